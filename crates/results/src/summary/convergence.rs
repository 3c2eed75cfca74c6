//! Convergence time: the time from the arrival of the last flow until every flow's throughput is within 25 % of its share in each of the
//! next five seconds. Modelled on Dong et al., PCC (NSDI 2015). If the timescale (`sample.timescale`) is above one second, its length
//! replaces the second.
//!
//! - The **last arrival** is the latest start of a flow in the phase, or the start of the phase if no flow starts in it. The plan
//!   has the flows of the phase and their scheduled starts; flows that start later (`start_jitter`) report their start in table `flows`.
//!   Without a plan, the last arrival is the first bin in which every flow of the phase has data.
//! - The **share** is the max-min fair goodput of the plan's links and rate limits in that second. It is an equal share of the goodput
//!   of all flows if the plan cannot be read, does not have the cabling (nodes with agents), or does not limit a flow.
//! - The flows are those that run at the last arrival. The time ends when the first of them stops, or with the phase.
//!
//! `jain_convergence_time`, the time until Jain's index reaches a limit, is a different metric: `jain_convergence_us` in `sampled.rs`.

use std::collections::BTreeMap;

use super::network::{Curves, Network};
use super::sampled::BinnedFlows;
use super::schedule::{Schedule, group_of};
use super::settling::BIN_S;
use super::span::{Group, Span};

/// Maximum deviation of throughput from the share, relative to the share.
const TOLERANCE: f64 = 0.25;
/// How long flows must keep their shares.
const STABLE_S: f64 = 5.0;
/// Minimum time over which throughput is averaged.
const WINDOW_S: f64 = 1.0;

/// Returns the convergence time of a phase in us; the inner `None` means that the flows do not converge. The outer `None` means that fewer
/// than two flows run, or that classes divide a link, so that shares are unknown. `starts_s` is when each flow reported its start.
pub(super) fn convergence_time_us(
    bins: &BinnedFlows,
    starts_s: &BTreeMap<String, f64>,
    schedule: &Schedule,
    point_id: u32,
    phase: Span,
    curves: Curves<'_, '_>,
) -> Option<Option<f64>> {
    let running = running(schedule, point_id, starts_s, phase);
    let (arrival_s, end_s) = running.as_ref().map_or(phase, |running| running.span);
    let is_running = |flow: &str| -> Option<bool> {
        let groups = &running.as_ref()?.groups;
        Some(groups.iter().any(|(name, _)| *name == group_of(flow)))
    };
    let span = bins.between(arrival_s, end_s);
    let flows = span.rates(is_running);
    if flows.len() < 2 {
        return None;
    }
    let network = schedule.network(point_id).zip(running.as_ref());
    if network.is_some_and(|(network, running)| network.has_unknown_shares(&running.groups)) {
        return None;
    }
    let (names, mut rates): (Vec<&str>, Vec<Vec<Option<f64>>>) = flows.into_iter().unzip();
    let (mut first_s, mut from_s) = (span.first() as f64 * BIN_S, arrival_s);
    if running.is_none() {
        let starts = rates.iter().filter_map(|bins| bins.iter().position(Option::is_some));
        let last = starts.max().unwrap_or(0);
        rates.iter_mut().for_each(|bins| drop(bins.drain(..last)));
        first_s += last as f64 * BIN_S;
        from_s = first_s;
    }
    let window = (schedule.timescale_s(point_id).max(WINDOW_S) / BIN_S).round() as usize;
    let network = network.filter(|(network, running)| network.has_paths(&running.groups));
    let mut known = network.map(|(network, running)| KnownShares::new(network, running, curves));
    let share = |nth: usize| -> Shares {
        let begin_s = first_s + nth as f64 * BIN_S;
        let second = (begin_s, begin_s + window as f64 * BIN_S);
        known.as_mut().map_or(Shares::Equal, |known| known.at(&names, second))
    };
    let converged = converged(&rates, window, share);
    Some(converged.map(|nth| ((first_s + nth as f64 * BIN_S - from_s) * 1e6).round()))
}

/// The groups that run at the last arrival of a phase, and the span from then on in which all of them run.
struct Running<'s> {
    groups: Vec<(&'s str, Group)>,
    span: Span,
}

/// Returns the running groups; `None` if the plan cannot be read.
fn running<'s>(
    schedule: &'s Schedule,
    point_id: u32,
    starts_s: &BTreeMap<String, f64>,
    (begin_s, end_s): Span,
) -> Option<Running<'s>> {
    schedule.network(point_id)?;
    let here = |group: &Group| group.span.0 < end_s && group.span.1 > begin_s;
    let mut groups: Vec<(&str, Group)> =
        schedule.groups(point_id).filter(|(_, group)| here(group)).collect();
    let start_s = |(name, group): &(&str, Group)| {
        let reported = starts_s.iter().filter(|(flow, _)| group_of(flow) == *name);
        reported.map(|(_, at_s)| *at_s).fold(group.span.0, f64::max)
    };
    let arrival_s = groups.iter().map(start_s).fold(begin_s, f64::max);
    groups.retain(|(_, group)| group.span.1 > arrival_s);
    let stop_s = groups.iter().map(|(_, group)| group.span.1).fold(end_s, f64::min);
    Some(Running { groups, span: (arrival_s, stop_s) })
}

/// Max-min fair shares in successive spans. They are computed only once as long as the links do not change.
struct KnownShares<'a, 'c> {
    network: &'a Network,
    running: &'a Running<'a>,
    curves: Curves<'a, 'c>,
    /// Times at which links change, ascending.
    changes_s: Vec<f64>,
    has_traces: bool,
    /// The shares after this number of changes.
    last: Option<(usize, Shares)>,
}

impl<'a, 'c> KnownShares<'a, 'c> {
    fn new(network: &'a Network, running: &'a Running<'a>, curves: Curves<'a, 'c>) -> Self {
        let mut changes_s: Vec<f64> = network.changes_s().collect();
        changes_s.sort_by(f64::total_cmp);
        let has_traces = network.has_curves(curves);
        Self { network, running, curves, changes_s, has_traces, last: None }
    }

    /// Returns the shares of flows in a span.
    fn at(&mut self, flows: &[&str], span: Span) -> Shares {
        let passed = self.changes_s.partition_point(|at_s| *at_s <= span.0);
        let is_constant =
            !self.has_traces && self.changes_s.get(passed).is_none_or(|next_s| *next_s >= span.1);
        if let Some((at, shares)) = &self.last
            && is_constant
            && *at == passed
        {
            return shares.clone();
        }
        let groups = self.network.fair_shares(&self.running.groups, span, self.curves);
        let groups = groups.unwrap_or_default();
        let of_flow = |flow: &&str| groups.get(group_of(flow)).map(|bps| bps / 1e6);
        let shares = flows.iter().map(of_flow).collect::<Option<_>>();
        let shares = shares.map_or(Shares::Equal, Shares::Known);
        self.last = is_constant.then(|| (passed, shares.clone()));
        shares
    }
}

/// The shares of flows.
#[derive(Debug, Clone)]
enum Shares {
    /// The share of each flow in Mbit/s.
    Known(Vec<f64>),
    /// Equal shares of the sum.
    Equal,
}

/// Returns the first bin from which on every flow is within [`TOLERANCE`] of its share in consecutive windows that cover [`STABLE_S`].
/// `rates` has each flow's rates in every bin, in Mbit/s; `share` returns the shares in the window that starts with a bin.
fn converged(
    rates: &[Vec<Option<f64>>],
    window: usize,
    mut share: impl FnMut(usize) -> Shares,
) -> Option<usize> {
    let bins = rates.iter().map(Vec::len).min()?;
    let windows = (STABLE_S / BIN_S / window as f64).ceil() as usize;
    let sums: Vec<Sums> = rates.iter().map(|bins| Sums::from_bins(bins)).collect();
    let mut is_fair = |from: usize| {
        let means = sums.iter().map(|sums| sums.mean(from, window));
        let Some(means) = means.collect::<Option<Vec<f64>>>() else { return false };
        let shares = match share(from) {
            Shares::Known(shares) => shares,
            Shares::Equal => vec![means.iter().sum::<f64>() / means.len() as f64; means.len()],
        };
        // No flow can keep a share of zero, because it cannot send.
        let near =
            |(mean, share): (&f64, &f64)| *share > 0.0 && (mean - share).abs() <= TOLERANCE * share;
        means.iter().zip(&shares).all(near)
    };
    let fair: Vec<bool> = (0..(bins + 1).saturating_sub(window)).map(&mut is_fair).collect();
    let stays = |from: &usize| (0..windows).all(|nth| fair.get(from + nth * window) == Some(&true));
    (0..fair.len()).find(stays)
}

/// Prefix sums of a flow's bins: computing the mean of a window takes the same time for any length.
struct Sums {
    /// Sum of the rates before each bin and before the end; 0 for a bin without data.
    rates: Vec<f64>,
    /// Number of bins without data before each bin and before the end.
    gaps: Vec<usize>,
}

impl Sums {
    fn from_bins(bins: &[Option<f64>]) -> Self {
        let (mut rates, mut gaps) = (vec![0.0], vec![0]);
        let (mut sum, mut missing) = (0.0, 0);
        for bin in bins {
            sum += bin.unwrap_or(0.0);
            missing += usize::from(bin.is_none());
            rates.push(sum);
            gaps.push(missing);
        }
        Self { rates, gaps }
    }

    /// Returns the mean rate of a window; `None` if a bin in it has no data.
    fn mean(&self, from: usize, window: usize) -> Option<f64> {
        let to = from + window;
        let is_whole = self.gaps[from] == self.gaps[to];
        is_whole.then(|| (self.rates[to] - self.rates[from]) / window as f64)
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::check;
    use proptest::prelude::*;

    use super::*;
    use crate::curve::CapacityCurve;

    fn none(_: &str) -> Option<&'static CapacityCurve> {
        None
    }

    /// Returns rates of flows, each constant for a number of bins.
    fn rates<const N: usize>(parts: &[(usize, [f64; N])]) -> Vec<Vec<Option<f64>>> {
        let of_flow = |flow: usize| {
            parts
                .iter()
                .flat_map(move |(bins, rates)| std::iter::repeat_n(Some(rates[flow]), *bins))
        };
        (0..N).map(|flow| of_flow(flow).collect()).collect()
    }

    fn equal<const N: usize>(parts: &[(usize, [f64; N])]) -> Option<usize> {
        converged(&rates(parts), 10, |_| Shares::Equal)
    }

    #[test]
    fn shares_must_be_kept_for_five_seconds() {
        assert_eq!(equal(&[(50, [10.0, 10.0])]), Some(0));
        assert_eq!(equal(&[(49, [10.0, 10.0])]), None, "less than five seconds");
        // 12.5 and 7.5 are exactly at the limit.
        assert_eq!(equal(&[(60, [12.5, 7.5])]), Some(0));
        assert_eq!(equal(&[(60, [12.6, 7.4])]), None);
        // Fair for four seconds, unfair for one, then fair.
        let lapse = [(40, [10.0, 10.0]), (10, [18.0, 2.0]), (60, [10.0, 10.0])];
        assert_eq!(equal(&lapse), Some(47), "a window may hold three unfair bins of ten");
    }

    #[test]
    fn jain_index_of_0_9_is_not_convergence() {
        // Two to one: Jain's index is 0.9, but both are 33 % off.
        assert_eq!(equal(&[(100, [20.0, 10.0])]), None);
        // One starved flow of ten.
        let mut starved = [10.0; 10];
        starved[9] = 0.0;
        assert_eq!(equal(&[(100, starved)]), None);
        // A share that is not equal.
        let of = |shares: [f64; 2]| {
            converged(&rates(&[(100, [20.0, 10.0])]), 10, |_| Shares::Known(shares.to_vec()))
        };
        assert_eq!((of([20.0, 10.0]), of([15.0, 15.0]), of([20.0, 0.0])), (Some(0), None, None));
        // Without data, the flows do not converge.
        let mut gap = rates(&[(60, [10.0, 10.0])]);
        gap[1][30] = None;
        assert_eq!(converged(&gap, 10, |_| Shares::Equal), None);
    }

    const PLAN: &str = r#"
        name = "t"
        [nodes]
        a = {}
        b = {}
        [wires]
        w = ["a", "b"]
        [links.l]
        node = "a"
        toward = "b"
        rate = "20mbit"
        [flows.first]
        from = "a"
        to = "b"
        [flows.late]
        from = "a"
        to = "b"
        start = "4s"
        stop = "20s"
        [[phases]]
        name = "p"
        length = "22s"
        flows = ["first"]
    "#;

    /// Returns both flows at these rates in Mbit/s. The second one runs from 4 s to 20 s; before, the first one has twice its rate.
    fn grid(first: f64, late: f64) -> BinnedFlows {
        let mut grid = BinnedFlows::new(22.0);
        for nth in 0..220 {
            let end_s = f64::from(nth + 1) * BIN_S;
            let both = (40..200).contains(&nth);
            let bytes = |mbit: f64| mbit * 1e6 / 8.0 * BIN_S;
            grid.interval("first/0", end_s, BIN_S, bytes(if both { first } else { 2.0 * first }));
            if both {
                grid.interval("late/0", end_s, BIN_S, bytes(late));
            }
        }
        grid
    }

    fn of_plan(text: &str, grid: &BinnedFlows) -> Option<Option<f64>> {
        of_late(text, grid, &[])
    }

    /// Computes the convergence time for flows that report when they started.
    fn of_late(text: &str, grid: &BinnedFlows, starts_s: &[(&str, f64)]) -> Option<Option<f64>> {
        let (plan, _) = check::read(text, &[]).unwrap_or_else(|e| panic!("{e:?}"));
        let starts_s = starts_s.iter().map(|(flow, at_s)| ((*flow).to_owned(), *at_s)).collect();
        convergence_time_us(
            grid,
            &starts_s,
            &Schedule::from_plan(Some(&plan)),
            0,
            (0.0, 22.0),
            &none,
        )
    }

    #[test]
    fn time_counts_from_the_last_arrival() {
        let first_full_bin = |found: Option<Option<f64>>| {
            found.flatten().is_some_and(|us| (0.0..=1e5).contains(&us))
        };
        assert!(first_full_bin(of_plan(PLAN, &grid(9.5, 9.5))));
        // Equal, but far below what the link carries.
        assert_eq!(of_plan(PLAN, &grid(5.0, 5.0)), Some(None));
        // A limited flow's share is its limit, and the other flow's is the rest.
        let limited = PLAN.replace("start = \"4s\"", "start = \"4s\"\nrate = \"2mbit\"");
        assert!(first_full_bin(of_plan(&limited, &grid(17.0, 2.0))));
        assert_eq!(of_plan(PLAN, &grid(17.0, 2.0)), Some(None));
        // Without a plan: from the first bin with data of both, with equal shares of their sum.
        let unplanned = Schedule::from_plan(None);
        let without = |grid: &BinnedFlows| {
            convergence_time_us(grid, &BTreeMap::new(), &unplanned, 0, (0.0, 22.0), &none)
        };
        assert!(first_full_bin(without(&grid(5.0, 5.0))));
        assert_eq!(without(&grid(9.0, 1.0)), Some(None));
    }

    #[test]
    fn one_flow_and_classes_have_no_convergence_time() {
        let mut alone = BinnedFlows::new(22.0);
        alone.interval("first/0", 22.0, 22.0, 1e6);
        assert_eq!(of_plan(PLAN, &alone), None);
        let class = "[links.l.classes.c]\nrate = \"5mbit\"\nmatch = { flow = \"late\" }\n";
        let divided = PLAN.to_owned() + class;
        assert_eq!(of_plan(&divided, &grid(9.5, 9.5)), None);
        // In no second do both flows have data.
        let mut brief = BinnedFlows::new(22.0);
        brief.interval("first/0", 5.0, 0.5, 1e5);
        brief.interval("late/0", 5.0, 0.5, 1e5);
        assert_eq!((of_plan(PLAN, &brief), of_plan(&divided, &brief)), (Some(None), None));
    }

    #[test]
    fn flow_that_starts_late_arrives_late() {
        let late = |at_s| of_late(PLAN, &grid(9.5, 9.5), &[("first/0", 0.004), ("late/0", at_s)]);
        // The first bin after the arrival.
        assert_eq!((late(4.0), late(4.25)), (Some(Some(0.0)), Some(Some(50_000.0))));
        assert_eq!(late(3.9), Some(Some(0.0)), "not before it is scheduled");
    }

    #[test]
    fn shares_follow_changes_of_the_link() {
        // From 10 s on, the link has half its rate. The flows are too fast for 0.4 s, and then have their shares.
        let change = "[[changes]]\nat = \"10s\"\nset = { \"links.l.rate\" = \"10mbit\" }\n";
        let plan = PLAN.to_owned() + change;
        let mut slower = BinnedFlows::new(22.0);
        for nth in 40..200 {
            let mbit = if nth < 104 { 9.5 } else { 4.75 };
            let bytes = mbit * 1e6 / 8.0 * BIN_S;
            slower.interval("first/0", f64::from(nth + 1) * BIN_S, BIN_S, bytes);
            slower.interval("late/0", f64::from(nth + 1) * BIN_S, BIN_S, bytes);
        }
        let first_full_bin = of_plan(&plan, &slower).flatten();
        assert!(first_full_bin.is_some_and(|us| (0.0..=1e5).contains(&us)), "{first_full_bin:?}");
        // With the shares of the initial rate, the flows do not converge after the change.
        let phase = |text: &str| {
            let (plan, _) = check::read(text, &[]).unwrap_or_else(|e| panic!("{e:?}"));
            let schedule = Schedule::from_plan(Some(&plan));
            convergence_time_us(&slower, &BTreeMap::new(), &schedule, 0, (11.0, 22.0), &none)
        };
        assert_eq!((phase(&plan), phase(PLAN)), (Some(Some(0.0)), Some(None)));
    }

    proptest! {
        #[test]
        fn is_independent_of_scale_and_order(
            values in prop::collection::vec((1.0..9.0_f64, 1.0..9.0_f64), 50..150),
        ) {
            let of = |scale: f64, turned: bool| {
                let pick = |nth: usize| values.iter().map(|(a, b)| {
                    let value = if (nth == 0) == turned { b } else { a };
                    Some(value * scale)
                }).collect::<Vec<_>>();
                converged(&[pick(0), pick(1)], 10, |_| Shares::Equal)
            };
            // Powers of two avoid rounding errors at the limit.
            let plain = of(1.0, false);
            prop_assert_eq!(plain, of(1024.0, false));
            prop_assert_eq!(plain, of(1.0, true));
        }

        #[test]
        fn means_of_windows_are_those_of_their_bins(
            bins in prop::collection::vec(prop::option::weighted(0.97, 0.0..1e5_f64), 10..80),
        ) {
            let sums = Sums::from_bins(&bins);
            for (from, window) in bins.windows(10).enumerate() {
                let wanted = window.iter().copied().sum::<Option<f64>>().map(|sum| sum / 10.0);
                let found = sums.mean(from, 10);
                prop_assert_eq!(found.is_some(), wanted.is_some());
                let difference = found.unwrap_or(0.0) - wanted.unwrap_or(0.0);
                prop_assert!(difference.abs() < 1e-6, "{from} {found:?} {wanted:?}");
            }
        }

        #[test]
        fn an_unfair_start_delays_convergence(before in 10_usize..60) {
            let found = equal(&[(before, [20.0, 1.0]), (60, [10.0, 10.0])]);
            let is_near = found.is_some_and(|at| (before - 10..=before).contains(&at));
            prop_assert!(is_near, "{before} {found:?}");
        }
    }
}
