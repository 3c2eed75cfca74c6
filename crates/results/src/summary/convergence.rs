//! Convergence time as in Dong et al., PCC (NSDI 2015): the time from the arrival of the last flow until the
//! throughput of every flow, in each second of the next five, is within 25 % of its share. With a timescale above one second
//! (`sample.timescale`), its length replaces the second.
//!
//! - The **last arrival** is the latest start of a flow in the phase according to the plan, or the start of the phase if no
//!   flow starts in it; without a plan, the first bin in which every flow of the phase has data.
//! - The **share** is the max-min fair goodput of the plan's links and rate limits in that second. If the plan cannot be read,
//!   if it does not have the cabling (nodes with agents), or if nothing limits a flow, it is an equal share of the goodput of all flows.
//! - The flows are those that run at the last arrival; the time ends when the first of them stops, or with the phase.

use super::network::Curves;
use super::sampled::BinnedFlows;
use super::schedule::{Group, Schedule, Span, group_of};
use super::settling::BIN_S;

/// How far throughput may be from the share, relative to the share.
const TOLERANCE: f64 = 0.25;
/// Shares must be kept for this time.
const STABLE_S: f64 = 5.0;
/// Time over which throughput is averaged, at least.
const WINDOW_S: f64 = 1.0;

/// Convergence time of a phase in us, and `None` within it if the flows do not converge; `None` if fewer than two flows run, or
/// if their shares are unknown because classes divide a link.
pub(super) fn of_phase(
    bins: &BinnedFlows,
    schedule: &Schedule,
    point_id: u32,
    phase: Span,
    curves: Curves<'_, '_>,
) -> Option<Option<f64>> {
    let running = running(schedule, point_id, phase);
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
    let network = schedule.network(point_id).zip(running.as_ref());
    let network = network.filter(|(network, running)| network.has_paths(&running.groups));
    let mut is_known = true;
    let share = |nth: usize| -> Shares {
        let Some((network, running)) = network else { return Shares::Equal };
        let begin_s = first_s + nth as f64 * BIN_S;
        let second = (begin_s, begin_s + window as f64 * BIN_S);
        let Some(shares) = network.fair_shares(&running.groups, second, curves) else {
            is_known = false;
            return Shares::Equal;
        };
        let of_flow = |flow: &&str| shares.get(group_of(flow)).map(|bps| bps / 1e6);
        names.iter().map(of_flow).collect::<Option<_>>().map_or(Shares::Equal, Shares::Of)
    };
    let converged = converged(&rates, window, share);
    let us = |nth: usize| ((first_s + nth as f64 * BIN_S - from_s) * 1e6).round();
    is_known.then(|| converged.map(us))
}

/// The groups that run at the last arrival of a phase, and the span from then on in which all of them run.
struct Running<'s> {
    groups: Vec<(&'s str, Group)>,
    span: Span,
}

/// `None` if the plan cannot be read.
fn running(schedule: &Schedule, point_id: u32, (begin_s, end_s): Span) -> Option<Running<'_>> {
    schedule.network(point_id)?;
    let here = |group: &Group| group.span.0 < end_s && group.span.1 > begin_s;
    let mut groups: Vec<(&str, Group)> =
        schedule.groups(point_id).filter(|(_, group)| here(group)).collect();
    let arrival_s = groups.iter().map(|(_, group)| group.span.0).fold(begin_s, f64::max);
    groups.retain(|(_, group)| group.span.1 > arrival_s);
    let stop_s = groups.iter().map(|(_, group)| group.span.1).fold(end_s, f64::min);
    Some(Running { groups, span: (arrival_s, stop_s) })
}

/// Shares of flows.
enum Shares {
    /// Of each flow in Mbit/s.
    Of(Vec<f64>),
    /// Equal ones of the sum.
    Equal,
}

/// The first bin from which on every flow is within [`TOLERANCE`] of its share in consecutive windows that cover
/// [`STABLE_S`]. `rates` are those of each flow in every bin, in Mbit/s; `share` gives the shares in the window that starts
/// with a bin.
fn converged(
    rates: &[Vec<Option<f64>>],
    window: usize,
    mut share: impl FnMut(usize) -> Shares,
) -> Option<usize> {
    let bins = rates.iter().map(Vec::len).min()?;
    let windows = (STABLE_S / BIN_S / window as f64).ceil() as usize;
    let mut is_fair = |from: usize| {
        let mean = |bins: &Vec<Option<f64>>| -> Option<f64> {
            let sum: Option<f64> = bins[from..from + window].iter().copied().sum();
            Some(sum? / window as f64)
        };
        let Some(means) = rates.iter().map(mean).collect::<Option<Vec<f64>>>() else {
            return false;
        };
        let shares = match share(from) {
            Shares::Of(shares) => shares,
            Shares::Equal => vec![means.iter().sum::<f64>() / means.len() as f64; means.len()],
        };
        // A share of zero cannot be kept: no flow can send.
        let near =
            |(mean, share): (&f64, &f64)| *share > 0.0 && (mean - share).abs() <= TOLERANCE * share;
        means.iter().zip(&shares).all(near)
    };
    let fair: Vec<bool> = (0..(bins + 1).saturating_sub(window)).map(&mut is_fair).collect();
    let stays = |from: &usize| (0..windows).all(|nth| fair.get(from + nth * window) == Some(&true));
    (0..fair.len()).find(stays)
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

    /// Rates of flows that stay the same for a number of bins each.
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
        // 12.5 and 7.5 are at the limit.
        assert_eq!(equal(&[(60, [12.5, 7.5])]), Some(0));
        assert_eq!(equal(&[(60, [12.6, 7.4])]), None);
        // Fair for four seconds, unfair for one, then fair.
        let lapse = [(40, [10.0, 10.0]), (10, [18.0, 2.0]), (60, [10.0, 10.0])];
        assert_eq!(equal(&lapse), Some(47), "a window may hold three unfair bins of ten");
    }

    #[test]
    fn what_jain_accepts_is_no_convergence() {
        // Two to one: Jain's index is 0.9, but both are 33 % off.
        assert_eq!(equal(&[(100, [20.0, 10.0])]), None);
        // One starved flow of ten.
        let mut starved = [10.0; 10];
        starved[9] = 0.0;
        assert_eq!(equal(&[(100, starved)]), None);
        // Another share than an equal one.
        let of = |shares: [f64; 2]| {
            converged(&rates(&[(100, [20.0, 10.0])]), 10, |_| Shares::Of(shares.to_vec()))
        };
        assert_eq!((of([20.0, 10.0]), of([15.0, 15.0]), of([20.0, 0.0])), (Some(0), None, None));
        // Without data there is no convergence.
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

    /// Both flows at these rates in Mbit/s, the second one from 4 s to 20 s, the first one at twice its rate before.
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
        let (plan, _) = check::read(text, &[]).unwrap_or_else(|e| panic!("{e:?}"));
        of_phase(grid, &Schedule::of(Some(&plan)), 0, (0.0, 22.0), &none)
    }

    #[test]
    fn time_counts_from_the_last_arrival() {
        let first_full_bin = |found: Option<Option<f64>>| {
            found.flatten().is_some_and(|us| (0.0..=1e5).contains(&us))
        };
        assert!(first_full_bin(of_plan(PLAN, &grid(9.5, 9.5))));
        // Equal, but far below what the link carries.
        assert_eq!(of_plan(PLAN, &grid(5.0, 5.0)), Some(None));
        // The share of a limited flow is its limit, the other one gets the rest.
        let limited = PLAN.replace("start = \"4s\"", "start = \"4s\"\nrate = \"2mbit\"");
        assert!(first_full_bin(of_plan(&limited, &grid(17.0, 2.0))));
        assert_eq!(of_plan(PLAN, &grid(17.0, 2.0)), Some(None));
        // Without a plan: from the first bin with data of both, and equal shares of their sum.
        let without =
            |grid: &BinnedFlows| of_phase(grid, &Schedule::of(None), 0, (0.0, 22.0), &none);
        assert!(first_full_bin(without(&grid(5.0, 5.0))));
        assert_eq!(without(&grid(9.0, 1.0)), Some(None));
    }

    #[test]
    fn one_flow_and_classes_have_no_convergence_time() {
        let mut alone = BinnedFlows::new(22.0);
        alone.interval("first/0", 22.0, 22.0, 1e6);
        assert_eq!(of_plan(PLAN, &alone), None);
        let class = "[links.l.classes.c]\nrate = \"5mbit\"\nmatch = { flow = \"late\" }\n";
        assert_eq!(of_plan(&(PLAN.to_owned() + class), &grid(9.5, 9.5)), None);
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
            // Powers of two: rounding does not matter at the limit.
            let plain = of(1.0, false);
            prop_assert_eq!(plain, of(1024.0, false));
            prop_assert_eq!(plain, of(1.0, true));
        }

        #[test]
        fn an_unfair_start_delays_convergence(before in 10_usize..60) {
            let found = equal(&[(before, [20.0, 1.0]), (60, [10.0, 10.0])]);
            let is_near = found.is_some_and(|at| (before - 10..=before).contains(&at));
            prop_assert!(is_near, "{before} {found:?}");
        }
    }
}
