//! Metrics computed in each time bin and then averaged, unlike metrics of means (`_of_mean`): the mean of a logarithm, a product or a ratio
//! differs from that of the means. All flows use the same time bins.
//!
//! These metrics are computed over **instants**: as many bins as make up the plan's timescale (`sample.timescale`). Over less than a few
//! round trips, rates are bursts rather than shares. Instants in which a metric is undefined (a flow without data, the logarithm of zero)
//! are excluded and counted.

use std::collections::BTreeMap;

use ccbench_proto::metric::{Scope, UNDEFINED};

use super::schedule::group_of;
use super::settling::{BIN_S, Settled, settled};
use super::statistics::{self, entropy, jain_index, min_max_ratio, product};

/// A bin needs reports for at least this share of its length.
const MIN_COVERED_SHARE: f64 = 0.5;
/// For `jain_convergence_time`, Jain's index over this many bins (one second) must reach [`CONVERGED_JAIN`].
const CONVERGED_BINS: usize = 10;
const CONVERGED_JAIN: f64 = 0.9;
/// Maximum number of bins of all flows of a trial: 11 flows for a week, or 77 for a day. They take 2 GiB.
const MAX_BINS: usize = 1 << 26;
/// Without a plan, a flow runs in a phase if it has data in at least this share of the bins.
const RUNNING_SHARE: f64 = 0.1;

/// The data of one flow in one bin.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Bin {
    bytes: f64,
    covered_s: f64,
    /// Sum and number of the samples.
    srtt_us: (f64, u32),
}

impl Bin {
    /// Returns the goodput in Mbit/s.
    fn mbit_per_s(self) -> Option<f64> {
        self.mbit_per_s_over(1)
    }

    /// Returns the goodput in Mbit/s over this many bins.
    fn mbit_per_s_over(self, bins: usize) -> Option<f64> {
        let least_s = MIN_COVERED_SHARE * BIN_S * bins as f64;
        (self.covered_s >= least_s).then(|| self.bytes * 8e-6 / self.covered_s)
    }

    /// Returns the sums of two bins.
    fn merge(self, other: Self) -> Self {
        let ((sum, samples), (more, further)) = (self.srtt_us, other.srtt_us);
        Self {
            bytes: self.bytes + other.bytes,
            covered_s: self.covered_s + other.covered_s,
            srtt_us: (sum + more, samples + further),
        }
    }

    /// Returns the mean smoothed RTT in µs.
    fn srtt_us(self) -> Option<f64> {
        let (sum, samples) = self.srtt_us;
        (samples > 0).then(|| sum / f64::from(samples))
    }
}

/// The flows of one trial in time bins that start with the trial.
#[derive(Debug)]
pub(crate) struct BinnedFlows {
    count: usize,
    /// Maximum number of flows that fit into memory.
    max_flows: usize,
    is_full: bool,
    flows: Vec<(String, Vec<Bin>)>,
    /// Index of the last flow that was looked up, because rows of a flow are adjacent.
    last: usize,
}

/// The bins of a [`BinnedFlows`] that lie within a span of the trial.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BinSpan<'a> {
    all: &'a BinnedFlows,
    first: usize,
    count: usize,
}

/// The utility of a rate.
type Utility = fn(f64) -> f64;
/// A fairness index of the rates of all flows.
type Index = fn(&[f64]) -> Option<f64>;
/// One value: flow (`None`: all flows together), metric, unit, statistic, value, number of bins.
pub(super) type Number<'a> = (Option<&'a str>, &'static str, &'static str, &'static str, f64, u32);

impl BinnedFlows {
    /// Creates the bins of a trial of this length.
    pub(super) fn new(end_s: f64) -> Self {
        let count = (end_s / BIN_S + 1e-6).floor().max(0.0) as usize;
        let max_flows = MAX_BINS / count.max(1);
        Self { count, max_flows, is_full: false, flows: Vec::new(), last: 0 }
    }

    /// Returns whether flows were left out because they would not fit into memory.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the bins of a flow; empty for a flow that is left out.
    fn flow(&mut self, name: &str) -> &mut [Bin] {
        if self.flows.get(self.last).is_none_or(|(known, _)| known != name) {
            let known = self.flows.iter().position(|(known, _)| known == name);
            if known.is_none() {
                if self.flows.len() >= self.max_flows {
                    self.is_full = true;
                    return &mut [];
                }
                self.flows.push((name.to_owned(), vec![Bin::default(); self.count]));
            }
            self.last = known.unwrap_or(self.flows.len() - 1);
        }
        &mut self.flows[self.last].1
    }

    /// Spreads the bytes received in the `seconds` before `end_s` evenly over the bins.
    pub(super) fn interval(&mut self, flow: &str, end_s: f64, seconds: f64, bytes: f64) {
        let start_s = end_s - seconds;
        let from = (start_s / BIN_S).floor().max(0.0) as usize;
        for (nth, bin) in self.flow(flow).iter_mut().enumerate().skip(from) {
            let begin_s = nth as f64 * BIN_S;
            if begin_s >= end_s {
                break;
            }
            let inside_s = (begin_s + BIN_S).min(end_s) - begin_s.max(start_s);
            if inside_s > 0.0 {
                bin.bytes += bytes * inside_s / seconds;
                bin.covered_s += inside_s;
            }
        }
    }

    /// Adds a sample of the smoothed RTT, `at_s` seconds after the start of the trial.
    pub(super) fn srtt(&mut self, flow: &str, at_s: f64, us: f64) {
        // Not `at_s / BIN_S`: 0.3 / 0.1 is less than 3, but multiples of 0.1 s must start a bin.
        let nth = at_s * (1.0 / BIN_S);
        if nth >= 0.0
            && (nth as usize) < self.count
            && let Some(bin) = self.flow(flow).get_mut(nth as usize)
        {
            let (sum, samples) = &mut bin.srtt_us;
            *sum += us;
            *samples += 1;
        }
    }

    /// Returns the bins between two times in seconds since the start of the trial.
    pub(crate) fn between(&self, start_s: f64, end_s: f64) -> BinSpan<'_> {
        let first = (start_s / BIN_S - 1e-6).ceil().max(0.0);
        let end = (end_s / BIN_S + 1e-6).floor().min(self.count as f64);
        BinSpan { all: self, first: first as usize, count: (end - first).max(0.0) as usize }
    }
}

impl<'a> BinSpan<'a> {
    /// Returns the index of the first bin in the trial.
    pub(crate) fn first(self) -> usize {
        self.first
    }

    /// Returns the goodput in Mbit/s and the mean smoothed RTT in µs of a flow in every bin; empty for a flow without data.
    pub(crate) fn of(self, flow: &str) -> Vec<(Option<f64>, Option<f64>)> {
        let found = self.all.flows.iter().find(|(known, _)| known == flow);
        let bins = found.and_then(|found| found.1.get(self.first..self.first + self.count));
        match bins {
            Some(bins) => bins.iter().map(|bin| (bin.mbit_per_s(), bin.srtt_us())).collect(),
            None => vec![],
        }
    }

    /// Returns the flows with data that run in this span according to `runs` (`None`: unknown).
    fn flows(self, runs: impl Fn(&str) -> Option<bool>) -> Vec<(&'a str, &'a [Bin])> {
        let defined = |bins: &[Bin]| bins.iter().filter(|bin| bin.mbit_per_s().is_some()).count();
        let here = |(flow, bins): &'a (String, Vec<Bin>)| {
            let bins = bins.get(self.first..self.first + self.count)?;
            let known = defined(bins);
            let probably = known as f64 >= RUNNING_SHARE * self.count as f64;
            (known > 0 && runs(flow).unwrap_or(probably)).then_some((flow.as_str(), bins))
        };
        let mut flows: Vec<_> = self.all.flows.iter().filter_map(here).collect();
        flows.sort_unstable_by_key(|(flow, _)| *flow);
        flows
    }

    /// Returns the goodput in Mbit/s, in every bin, of the flows that run in this span according to `runs` (`None`: unknown).
    pub(super) fn rates(
        self,
        runs: impl Fn(&str) -> Option<bool>,
    ) -> Vec<(&'a str, Vec<Option<f64>>)> {
        let rates = |bins: &[Bin]| -> Vec<Option<f64>> {
            bins.iter().map(|bin| bin.mbit_per_s()).collect()
        };
        self.flows(runs).into_iter().map(|(flow, bins)| (flow, rates(bins))).collect()
    }

    /// Returns all metrics of the flows that run in this span according to `runs` (`None`: unknown), over instants of `per` bins.
    pub(super) fn numbers(
        self,
        runs: impl Fn(&str) -> Option<bool>,
        per: usize,
    ) -> Vec<Number<'a>> {
        let per = per.max(1);
        let instants = |bins: &[Bin]| -> Vec<Bin> {
            let whole = bins.chunks_exact(per);
            whole.map(|bins| bins.iter().fold(Bin::default(), |sum, bin| sum.merge(*bin))).collect()
        };
        let flows = self.flows(runs);
        let mut numbers = Vec::new();
        let jain_converged = (flows.len() > 1).then(|| {
            let together = |nth: usize| -> Option<Vec<f64>> {
                flows.iter().map(|(_, bins)| bins[nth].mbit_per_s()).collect()
            };
            jain_convergence_us(&(0..self.count).map(together).collect::<Vec<_>>())
        });
        let flows: Vec<(&str, Vec<Bin>)> =
            flows.into_iter().map(|(flow, bins)| (flow, instants(bins))).collect();
        let mut sums = [0.0; 2];
        for (flow, bins) in &flows {
            let flow = Some(*flow);
            let rate = |bin: &Bin| bin.mbit_per_s_over(per);
            let rates: Vec<f64> = bins.iter().filter_map(rate).collect();
            spread(flow, "throughput", &rates, &mut numbers);
            let power = |bin: &Bin| Some(rate(bin)? * 1e6 / (bin.srtt_us()? / 1e6));
            mean(flow, "power", "bit/s/s", bins.iter().map(power), &mut numbers);
            let positive = |bin: &Bin| rate(bin).filter(|rate| *rate > 0.0);
            let utilities: [(_, _, Utility); 2] = [
                ("utility_pf", "ln(Mbit/s)", f64::ln),
                ("utility_mpd", "s/Mbit", |rate| -1.0 / rate),
            ];
            for ((metric, unit, of), sum) in utilities.into_iter().zip(&mut sums) {
                let values = bins.iter().map(|bin| positive(bin).map(of));
                *sum += mean(flow, metric, unit, values, &mut numbers).unwrap_or(f64::NAN);
            }
        }
        if flows.is_empty() {
            return numbers;
        }
        let together: Vec<Option<Vec<f64>>> = (0..self.count / per)
            .map(|nth| flows.iter().map(|(_, bins)| bins[nth].mbit_per_s_over(per)).collect())
            .collect();
        let totals: Vec<f64> = together.iter().flatten().map(|rates| rates.iter().sum()).collect();
        spread(None, "throughput_sum", &totals, &mut numbers);
        for ((metric, unit), sum) in
            [("utility_pf", "ln(Mbit/s)"), ("utility_mpd", "s/Mbit")].into_iter().zip(sums)
        {
            if sum.is_finite() {
                numbers.push((None, metric, unit, "sum", sum, flows.len() as u32));
            }
        }
        if let Some(converged) = jain_converged {
            fairness(&together, &mut numbers);
            push_value("jain_convergence_time", "us", converged, &mut numbers);
        }
        numbers
    }

    /// Returns settling times of throughput and smoothed RTT after a step at the start of the span, for every flow, every group and all
    /// flows. The throughput of a group is the sum over its flows, its RTT the mean.
    pub(super) fn settling(self, runs: impl Fn(&str) -> Option<bool>) -> Vec<Settled> {
        let flows = self.flows(runs);
        let mut all: BTreeMap<(Scope, &str), Vec<&[Bin]>> = BTreeMap::new();
        for (flow, bins) in flows {
            let places = [(Scope::Flow, flow), (Scope::Group, group_of(flow)), (Scope::Net, "all")];
            for place in places {
                all.entry(place).or_default().push(bins);
            }
        }
        let mut found = Vec::new();
        for ((scope, subject), flows) in all {
            let mut judge = |metric, at: &dyn Fn(usize) -> Option<f64>| {
                let bins: Vec<Option<f64>> = (0..self.count).map(at).collect();
                if bins.iter().any(Option::is_some) {
                    found.push((scope, subject.to_owned(), metric, settled(&bins)));
                }
            };
            judge("settling_time", &|nth| flows.iter().map(|flow| flow[nth].mbit_per_s()).sum());
            if scope != Scope::Net {
                judge("srtt_settling_time", &|nth| {
                    let known: Vec<f64> =
                        flows.iter().filter_map(|flow| flow[nth].srtt_us()).collect();
                    statistics::mean(&known)
                });
            }
        }
        found
    }
}

/// Adds the means of the fairness indices of several flows.
fn fairness(together: &[Option<Vec<f64>>], into: &mut Vec<Number<'_>>) {
    let indices: [(_, _, Index); 4] = [
        ("jain_fairness", "1", jain_index),
        ("product_fairness", "(Mbit/s)^flows", product),
        ("entropy_fairness", "1", entropy),
        ("min_max_ratio", "1", min_max_ratio),
    ];
    for (metric, unit, of) in indices {
        mean(None, metric, unit, together.iter().map(|rates| of(rates.as_ref()?)), into);
    }
}

/// Adds a value that occurs once per phase, or that the value is undefined.
pub(super) fn push_value(
    metric: &'static str,
    unit: &'static str,
    value: Option<f64>,
    into: &mut Vec<Number<'_>>,
) {
    into.push(match value {
        Some(value) => (None, metric, unit, "mean", value, 1),
        None => (None, metric, "1", UNDEFINED, 1.0, 1),
    });
}

/// Returns the time until the start of the first second in which all flows have data and Jain's index reaches [`CONVERGED_JAIN`].
fn jain_convergence_us(together: &[Option<Vec<f64>>]) -> Option<f64> {
    let fair = |second: &[Option<Vec<f64>>]| {
        let rates: Option<Vec<&Vec<f64>>> = second.iter().map(Option::as_ref).collect();
        let rates = rates?;
        let flows = rates.first()?.len();
        let sums: Vec<f64> = (0..flows).map(|flow| rates.iter().map(|at| at[flow]).sum()).collect();
        jain_index(&sums).filter(|index| *index >= CONVERGED_JAIN)
    };
    let first = together.windows(CONVERGED_BINS).position(|second| fair(second).is_some())?;
    Some((first as f64 * BIN_S * 1e6).round())
}

/// Adds standard deviation in bit/s, and coefficient of variation.
fn spread<'a>(
    flow: Option<&'a str>,
    metric: &'static str,
    mbit: &[f64],
    into: &mut Vec<Number<'a>>,
) {
    if mbit.len() < 2 {
        return;
    }
    let n = mbit.len() as f64;
    let mean = mbit.iter().sum::<f64>() / n;
    let std = (mbit.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    // A constant rate has rounding errors.
    let std = if std < mean * 1e-9 { 0.0 } else { std };
    into.push((flow, metric, "bit/s", "std", std * 1e6, mbit.len() as u32));
    if mean > 0.0 {
        into.push((flow, metric, "1", "cov", std / mean, mbit.len() as u32));
    }
}

/// Adds the mean of the defined values and the number of undefined ones, and returns the mean. A phase without a whole instant counts as
/// one undefined value.
fn mean<'a>(
    flow: Option<&'a str>,
    metric: &'static str,
    unit: &'static str,
    values: impl Iterator<Item = Option<f64>>,
    into: &mut Vec<Number<'a>>,
) -> Option<f64> {
    let (mut sum, mut n, mut undefined) = (0.0, 0_u32, 0_u32);
    for value in values {
        match value {
            Some(value) => (sum, n) = (sum + value, n + 1),
            None => undefined += 1,
        }
    }
    if n + undefined == 0 {
        undefined = 1;
    }
    let mean = (n > 0).then(|| sum / f64::from(n));
    into.extend(mean.map(|mean| (flow, metric, unit, "mean", mean, n)));
    if undefined > 0 {
        into.push((flow, metric, "1", UNDEFINED, f64::from(undefined), n + undefined));
    }
    mean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(grid: &BinnedFlows) -> BinSpan<'_> {
        grid.between(0.0, 1e9)
    }

    fn find(
        grid: &BinnedFlows,
        flow: Option<&str>,
        metric: &str,
        stat: &str,
    ) -> Option<(f64, u32)> {
        let numbers = whole(grid).numbers(|_| None, 1);
        let found = numbers.iter().find(|n| (n.0, n.1, n.3) == (flow, metric, stat))?;
        Some((found.4, found.5))
    }

    /// Returns two flows with these rates in Mbit/s, one pair for each bin.
    fn two(rates: &[(f64, f64)]) -> BinnedFlows {
        let mut aligned = BinnedFlows::new(rates.len() as f64 * BIN_S);
        for (nth, (a, b)) in rates.iter().enumerate() {
            let end_s = (nth + 1) as f64 * BIN_S;
            aligned.interval("a", end_s, BIN_S, a * 1e6 / 8.0 * BIN_S);
            aligned.interval("b", end_s, BIN_S, b * 1e6 / 8.0 * BIN_S);
        }
        aligned
    }

    fn assert_close(found: Option<(f64, u32)>, expected: f64) {
        let (value, _) = found.unwrap();
        assert!(
            (value - expected).abs() < 1e-9 * expected.abs().max(1.0),
            "{value} is not {expected}"
        );
    }

    #[test]
    fn mean_of_products_differs_from_product_of_means() {
        // NewReno and Vegas of the published comparison: means of 26.30 and 4.49 Mbit/s, where one rises as the other falls (covariance
        // -3.1). 114.99 is published; the product of the means is 118.09.
        let swing = 3.1_f64.sqrt();
        let aligned = two(&[(26.30 + swing, 4.49 - swing), (26.30 - swing, 4.49 + swing)]);
        assert_close(find(&aligned, None, "product_fairness", "mean"), 26.30 * 4.49 - 3.1);
        let jain = |a: f64, b: f64| (a + b).powi(2) / (2.0 * (a * a + b * b));
        let wanted = (jain(26.30 + swing, 4.49 - swing) + jain(26.30 - swing, 4.49 + swing)) / 2.0;
        assert_close(find(&aligned, None, "jain_fairness", "mean"), wanted);
        let wanted = ((26.30 + swing).ln() + (26.30 - swing).ln()) / 2.0;
        assert_close(find(&aligned, Some("a"), "utility_pf", "mean"), wanted);
        assert_close(find(&aligned, Some("a"), "throughput", "std"), (2.0_f64 * 3.1).sqrt() * 1e6);
    }

    #[test]
    fn utilities_of_constant_flows_match_their_rates() {
        let aligned = two(&[(26.30, 4.49); 5]);
        assert_close(find(&aligned, None, "utility_pf", "sum"), 26.30_f64.ln() + 4.49_f64.ln());
        assert_close(find(&aligned, None, "utility_mpd", "sum"), -1.0 / 26.30 - 1.0 / 4.49);
        assert_close(find(&aligned, None, "min_max_ratio", "mean"), 4.49 / 26.30);
        assert_close(find(&aligned, None, "throughput_sum", "cov"), 0.0);
    }

    #[test]
    fn undefined_bins_are_counted_and_excluded() {
        let aligned = two(&[(10.0, 0.0), (10.0, 10.0), (10.0, 10.0)]);
        assert_eq!(find(&aligned, Some("b"), "utility_pf", "undefined"), Some((1.0, 3)));
        assert_close(find(&aligned, Some("b"), "utility_pf", "mean"), 10.0_f64.ln());
        assert_eq!(find(&aligned, Some("a"), "utility_pf", "undefined"), None);
        let never = two(&[(10.0, 0.0); 3]);
        assert_eq!(find(&never, Some("b"), "utility_pf", "mean"), None);
        assert_eq!(find(&never, Some("b"), "utility_pf", "undefined"), Some((3.0, 3)));
        // Until the second flow starts, the index is undefined.
        let mut late = BinnedFlows::new(0.3);
        late.interval("a", 0.3, 0.3, 300.0);
        late.interval("b", 0.3, 0.1, 100.0);
        assert_close(find(&late, None, "jain_fairness", "mean"), 1.0);
        assert_eq!(find(&late, None, "jain_fairness", "undefined"), Some((2.0, 3)));
        // So are the flow's utilities.
        for metric in ["utility_pf", "utility_mpd"] {
            assert_eq!(find(&late, Some("b"), metric, "undefined"), Some((2.0, 3)), "{metric}");
            assert_eq!(find(&late, Some("b"), metric, "mean").map(|found| found.1), Some(1));
        }
    }

    #[test]
    fn longer_instants_measure_shares_instead_of_bursts() {
        // Two flows take turns, which is unfair in each bin but fair over two bins.
        let turns: Vec<(f64, f64)> =
            (0..9).map(|nth| if nth % 2 == 0 { (20.0, 0.0) } else { (0.0, 20.0) }).collect();
        let grid = two(&turns);
        let of = |per: usize, metric: &str, stat: &str| {
            let numbers = whole(&grid).numbers(|_| None, per);
            let found = numbers.iter().find(|n| n.0.is_none() && (n.1, n.3) == (metric, stat));
            found.map(|n| (n.4, n.5))
        };
        assert_close(of(1, "jain_fairness", "mean"), 0.5);
        // The last bin is not a whole instant.
        assert_close(of(2, "jain_fairness", "mean"), 1.0);
        assert_eq!(of(2, "jain_fairness", "mean").map(|found| found.1), Some(4));
        assert_eq!(of(2, "product_fairness", "undefined"), None);
        assert_eq!(of(10, "jain_fairness", "mean"), None, "no whole instant");
        let metrics = ["jain_fairness", "product_fairness", "entropy_fairness", "min_max_ratio"];
        for metric in metrics {
            assert_eq!(of(10, metric, "undefined"), Some((1.0, 1)), "{metric}");
        }
        let std = |per: usize| {
            let numbers = whole(&grid).numbers(|_| None, per);
            let of_a = numbers.iter().find(|n| (n.0, n.1, n.3) == (Some("a"), "throughput", "std"));
            of_a.map(|n| n.4)
        };
        assert!(std(1) > Some(10e6) && std(2) == Some(0.0), "{:?} {:?}", std(1), std(2));
    }

    #[test]
    fn ignores_a_flow_that_drains_into_the_next_phase() {
        let mut aligned = two(&[(10.0, 30.0); 4]);
        aligned.interval("drained", 0.1, 0.1, 1.0);
        let numbers = whole(&aligned).numbers(|flow| Some(flow != "drained"), 1);
        let jain = numbers.iter().find(|n| n.1 == "jain_fairness").unwrap();
        assert!((jain.4 - 0.8).abs() < 1e-9 && jain.5 == 4, "{jain:?}");
    }

    #[test]
    fn flows_converge_in_the_first_fair_second() {
        let mut rates = vec![(30.0, 0.0); 20];
        rates.extend([(19.0, 11.0); 10]);
        rates.extend([(15.0, 15.0); 10]);
        // 19 to 11 is an index of 0.93; together with one bin of the previous second it is 0.896.
        assert_close(find(&two(&rates), None, "jain_convergence_time", "mean"), 2e6);
        let never = two(&[(30.0, 1.0); 30]);
        assert_eq!(find(&never, None, "jain_convergence_time", "mean"), None);
        assert_eq!(find(&never, None, "jain_convergence_time", "undefined"), Some((1.0, 1)));
        // Scale and order do not matter.
        let turned: Vec<(f64, f64)> = rates.iter().map(|(a, b)| (b * 7.0, a * 7.0)).collect();
        assert_close(find(&two(&turned), None, "jain_convergence_time", "mean"), 2e6);
    }

    #[test]
    fn intervals_are_spread_over_the_bins_that_they_cover() {
        let mut grid = BinnedFlows::new(1.3);
        // From 0.95 to 1.15 s: half of the interval is before the phase.
        grid.interval("a", 1.15, 0.2, 2000.0);
        grid.interval("a", 1.3, 0.15, 6000.0);
        grid.srtt("a", 1.0, 20_000.0);
        grid.srtt("a", 0.99, 1.0);
        let rates = |grid: &BinnedFlows| -> Vec<Option<f64>> {
            let flows = grid.between(1.0, 1.3).flows(|_| None);
            flows[0].1.iter().map(|bin| bin.mbit_per_s()).collect()
        };
        let (before, wanted) = (rates(&grid), [0.08, (500.0 + 2000.0) * 8e-5, 0.32]);
        assert!(
            before.iter().zip(wanted).all(|(a, b)| (a.unwrap() - b).abs() < 1e-9),
            "{before:?}"
        );
        let numbers = grid.between(1.0, 1.3).numbers(|_| None, 1);
        let power = numbers.iter().find(|n| n.1 == "power").unwrap();
        assert!((power.4 - 0.08e6 / 0.02).abs() < 1e-6 && power.5 == 1, "{power:?}");
        // Outside the phase, and outside the trial.
        grid.interval("a", 0.9, 0.5, 1e9);
        grid.interval("a", 9.0, 0.5, 1e9);
        grid.srtt("a", 1.3, 1.0);
        grid.srtt("a", -0.1, 1.0);
        assert_eq!(rates(&grid), before);
    }

    #[test]
    fn more_flows_than_fit_into_memory_are_left_out() {
        let mut grid = BinnedFlows::new(7.0 * 24.0 * 3600.0);
        assert_eq!(grid.max_flows, 11, "of a week");
        grid = BinnedFlows { max_flows: 1, ..BinnedFlows::new(1.0) };
        grid.interval("a", 1.0, 1.0, 1.0);
        grid.srtt("a", 0.5, 1.0);
        assert!(!grid.is_full());
        grid.interval("b", 1.0, 1.0, 1.0);
        grid.srtt("c", 0.5, 1.0);
        assert!(grid.is_full() && grid.flows.len() == 1);
    }

    #[test]
    fn settling_times_of_flows_groups_and_all_flows() {
        let mut grid = BinnedFlows::new(20.0);
        for nth in 1..=200 {
            let end_s = f64::from(nth) * BIN_S;
            // `b` takes over half of the rate of `a` between 5 s and 8 s; the sum is constant.
            let share = ((end_s - 5.0) / 3.0).clamp(0.0, 1.0);
            grid.interval("a/0", end_s, BIN_S, 1e5 * (2.0 - share));
            grid.interval("b/0", end_s, BIN_S, 1e5 * share);
            grid.srtt("a/0", end_s - 0.05, 20_000.0);
        }
        let settled = grid.between(0.0, 20.0).settling(|_| None);
        let of = |scope, subject: &str, metric: &str| {
            let found =
                settled.iter().find(|s| (s.0, s.1.as_str(), s.2) == (scope, subject, metric));
            found.map(|found| found.3)
        };
        // 0.3 s before the end of the change, the mean over one second is within a tenth of the level.
        assert!(
            matches!(of(Scope::Flow, "b/0", "settling_time"), Some(Some(70..=77))),
            "{settled:?}"
        );
        assert_eq!(of(Scope::Group, "b", "settling_time"), of(Scope::Flow, "b/0", "settling_time"));
        assert_eq!(of(Scope::Net, "all", "settling_time"), Some(Some(0)));
        assert_eq!(of(Scope::Flow, "a/0", "srtt_settling_time"), Some(Some(0)));
        assert_eq!(of(Scope::Flow, "b/0", "srtt_settling_time"), None, "never sampled");
        assert_eq!(of(Scope::Net, "all", "srtt_settling_time"), None);
        // Too short: the next step follows after 2 s.
        let short = grid.between(0.0, 2.0).settling(|flow| Some(flow == "a/0"));
        assert!(!short.is_empty() && short.iter().all(|settled| settled.3.is_none()), "{short:?}");
    }
}
