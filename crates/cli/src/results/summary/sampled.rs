//! Metrics that are taken at every instant and then averaged, as against those of averages (`_of_mean`): the mean of a
//! logarithm, a product or a ratio is not that of the means. All flows are first brought to one grid of instants.
//!
//! What is undefined at an instant (a flow without data there, the logarithm of nothing) is left out and counted.

use std::collections::BTreeMap;

use super::statistics::{entropy, jain, max_min, product};

/// Length of an instant: iperf3's usual interval.
pub(super) const INSTANT_S: f64 = 0.1;
/// An instant of which less than this share was reported is none.
const LEAST_COVERED: f64 = 0.5;
/// Flows have converged when Jain's index of so many instants is this: a second, and nine tenths.
const CONVERGED_INSTANTS: usize = 10;
const CONVERGED_JAIN: f64 = 0.9;
/// Without a plan: a flow runs in a phase of which it has this share of instants.
const SOME_OF_A_PHASE: f64 = 0.1;

/// What a flow did in one instant.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Instant {
    bytes: f64,
    covered_s: f64,
    srtt_us: Option<f64>,
}

impl Instant {
    /// Received, Mbit/s.
    fn mbit_per_s(self) -> Option<f64> {
        (self.covered_s >= LEAST_COVERED * INSTANT_S).then(|| self.bytes * 8e-6 / self.covered_s)
    }
}

/// The flows of one trial in one phase, on the grid of the instants that lie within the phase.
#[derive(Debug)]
pub(super) struct Aligned {
    /// Number of the phase's first instant since the trial's beginning.
    first: i64,
    count: usize,
    flows: BTreeMap<String, Vec<Instant>>,
}

/// Of a rate.
type Utility = fn(f64) -> f64;
/// Of the rates of all flows.
type Index = fn(&[f64]) -> Option<f64>;
/// One number: flow (`None`: all together), metric, unit, statistic, value, instants in it.
pub(super) type Number<'a> = (Option<&'a str>, &'static str, &'static str, &'static str, f64, u32);

impl Aligned {
    /// A phase from `start_s` to `end_s` after the trial's beginning.
    pub(super) fn new(start_s: f64, end_s: f64) -> Self {
        let first = (start_s / INSTANT_S - 1e-6).ceil();
        let count = ((end_s / INSTANT_S + 1e-6).floor() - first).max(0.0);
        Self { first: first as i64, count: count as usize, flows: BTreeMap::new() }
    }

    fn flow(&mut self, name: &str) -> &mut Vec<Instant> {
        let count = self.count;
        self.flows.entry(name.to_owned()).or_insert_with(|| vec![Instant::default(); count])
    }

    /// Bytes that were received in the `seconds` before `end_s`, evenly.
    pub(super) fn interval(&mut self, flow: &str, end_s: f64, seconds: f64, bytes: f64) {
        let (start_s, first) = (end_s - seconds, self.first);
        let last_s = (first + self.count as i64) as f64 * INSTANT_S;
        if end_s <= first as f64 * INSTANT_S || start_s >= last_s {
            return;
        }
        let from = ((start_s / INSTANT_S).floor() as i64 - first).max(0);
        for (nth, instant) in self.flow(flow).iter_mut().enumerate().skip(from as usize) {
            let begin_s = (first + nth as i64) as f64 * INSTANT_S;
            if begin_s >= end_s {
                break;
            }
            let inside_s = (begin_s + INSTANT_S).min(end_s) - begin_s.max(start_s);
            if inside_s > 0.0 {
                instant.bytes += bytes * inside_s / seconds;
                instant.covered_s += inside_s;
            }
        }
    }

    /// Mean smoothed RTT of the samples in the instant `nth` since the trial's beginning.
    pub(super) fn srtt(&mut self, flow: &str, nth: i64, us: f64) {
        let at = usize::try_from(nth - self.first).ok();
        let Some(at) = at.filter(|at| *at < self.count) else { return };
        self.flow(flow)[at].srtt_us = Some(us);
    }

    /// All metrics of the phase, of the flows that `runs` says may run in it (`None`: it cannot tell).
    pub(super) fn numbers(&self, runs: impl Fn(&str) -> Option<bool>) -> Vec<Number<'_>> {
        let defined =
            |instants: &[Instant]| instants.iter().filter(|i| i.mbit_per_s().is_some()).count();
        let flows: Vec<(&str, &[Instant])> = self
            .flows
            .iter()
            .map(|(flow, instants)| (flow.as_str(), instants.as_slice()))
            .filter(|(flow, instants)| {
                let seems = defined(instants) as f64 >= SOME_OF_A_PHASE * self.count as f64;
                runs(flow).unwrap_or(seems) && defined(instants) > 0
            })
            .collect();
        let mut numbers = Vec::new();
        let mut sums = [0.0; 2];
        for (flow, instants) in &flows {
            let flow = Some(*flow);
            let rates: Vec<f64> = instants.iter().filter_map(|i| i.mbit_per_s()).collect();
            spread(flow, "throughput", &rates, &mut numbers);
            let power = |i: &Instant| Some(i.mbit_per_s()? * 1e6 / (i.srtt_us? / 1e6));
            mean(flow, "power", "bit/s/s", instants.iter().map(power), &mut numbers);
            let positive = |rate: f64| (rate > 0.0).then_some(rate);
            let utilities: [(_, _, Utility); 2] = [
                ("utility_pf", "ln(Mbit/s)", f64::ln),
                ("utility_mpd", "s/Mbit", |rate| -1.0 / rate),
            ];
            for ((metric, unit, of), sum) in utilities.into_iter().zip(&mut sums) {
                let values = rates.iter().map(|rate| positive(*rate).map(of));
                *sum += mean(flow, metric, unit, values, &mut numbers).unwrap_or(f64::NAN);
            }
        }
        if flows.is_empty() {
            return numbers;
        }
        let together: Vec<Option<Vec<f64>>> = (0..self.count)
            .map(|nth| flows.iter().map(|(_, instants)| instants[nth].mbit_per_s()).collect())
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
        if flows.len() > 1 {
            let indices: [(_, _, Index); 4] = [
                ("jain_fairness", "1", jain),
                ("product_fairness", "(Mbit/s)^flows", product),
                ("entropy_fairness", "1", entropy),
                ("max_min_fairness", "1", max_min),
            ];
            for (metric, unit, of) in indices {
                let values = together.iter().map(|rates| of(rates.as_ref()?));
                mean(None, metric, unit, values, &mut numbers);
            }
            let converged = convergence_us(&together);
            mean(None, "convergence_time", "us", std::iter::once(converged), &mut numbers);
            if converged.is_none() {
                numbers.push((None, "convergence_time", "1", "undefined", 1.0, 1));
            }
        }
        numbers
    }
}

/// From the beginning to that of the first second in which what the flows got is shared fairly, all of them being there.
fn convergence_us(together: &[Option<Vec<f64>>]) -> Option<f64> {
    let fair = |second: &[Option<Vec<f64>>]| {
        let rates: Option<Vec<&Vec<f64>>> = second.iter().map(Option::as_ref).collect();
        let rates = rates?;
        let flows = rates.first()?.len();
        let sums: Vec<f64> = (0..flows).map(|flow| rates.iter().map(|at| at[flow]).sum()).collect();
        jain(&sums).filter(|index| *index >= CONVERGED_JAIN)
    };
    let first = together.windows(CONVERGED_INSTANTS).position(|second| fair(second).is_some())?;
    Some((first as f64 * INSTANT_S * 1e6).round())
}

/// Sample standard deviation in bit/s, and that over the mean.
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
    // What is left of a constant rate by rounding.
    let std = if std < mean * 1e-9 { 0.0 } else { std };
    into.push((flow, metric, "bit/s", "std", std * 1e6, mbit.len() as u32));
    if mean > 0.0 {
        into.push((flow, metric, "1", "cov", std / mean, mbit.len() as u32));
    }
}

/// The mean of what is defined, and how many are not; returns the mean.
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
    let mean = (n > 0).then(|| sum / f64::from(n))?;
    into.push((flow, metric, unit, "mean", mean, n));
    if undefined > 0 {
        into.push((flow, metric, "1", "undefined", f64::from(undefined), n + undefined));
    }
    Some(mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(aligned: &Aligned, flow: Option<&str>, metric: &str, stat: &str) -> Option<(f64, u32)> {
        let numbers = aligned.numbers(|_| None);
        let found = numbers.iter().find(|n| (n.0, n.1, n.3) == (flow, metric, stat))?;
        Some((found.4, found.5))
    }

    /// Two flows with these rates in Mbit/s, an instant each.
    fn two(rates: &[(f64, f64)]) -> Aligned {
        let mut aligned = Aligned::new(0.0, rates.len() as f64 * INSTANT_S);
        for (nth, (a, b)) in rates.iter().enumerate() {
            let end_s = (nth + 1) as f64 * INSTANT_S;
            aligned.interval("a", end_s, INSTANT_S, a * 1e6 / 8.0 * INSTANT_S);
            aligned.interval("b", end_s, INSTANT_S, b * 1e6 / 8.0 * INSTANT_S);
        }
        aligned
    }

    fn close(found: Option<(f64, u32)>, wanted: f64) {
        let (value, _) = found.unwrap();
        assert!((value - wanted).abs() < 1e-9 * wanted.abs().max(1.0), "{value} is not {wanted}");
    }

    #[test]
    fn a_mean_of_products_is_not_the_product_of_means() {
        // NewReno and Vegas of the published comparison: 26.30 and 4.49 Mbit/s in the mean, one up when the other
        // is down (covariance -3.1): 114.99 is printed, 118.09 is what the means give.
        let swing = 3.1_f64.sqrt();
        let aligned = two(&[(26.30 + swing, 4.49 - swing), (26.30 - swing, 4.49 + swing)]);
        close(find(&aligned, None, "product_fairness", "mean"), 26.30 * 4.49 - 3.1);
        let jain = |a: f64, b: f64| (a + b).powi(2) / (2.0 * (a * a + b * b));
        let wanted = (jain(26.30 + swing, 4.49 - swing) + jain(26.30 - swing, 4.49 + swing)) / 2.0;
        close(find(&aligned, None, "jain_fairness", "mean"), wanted);
        let wanted = ((26.30 + swing).ln() + (26.30 - swing).ln()) / 2.0;
        close(find(&aligned, Some("a"), "utility_pf", "mean"), wanted);
        close(find(&aligned, Some("a"), "throughput", "std"), (2.0_f64 * 3.1).sqrt() * 1e6);
    }

    #[test]
    fn the_utilities_of_constant_flows_are_those_of_their_rates() {
        let aligned = two(&[(26.30, 4.49); 5]);
        close(find(&aligned, None, "utility_pf", "sum"), 26.30_f64.ln() + 4.49_f64.ln());
        close(find(&aligned, None, "utility_mpd", "sum"), -1.0 / 26.30 - 1.0 / 4.49);
        close(find(&aligned, None, "max_min_fairness", "mean"), 4.49 / 26.30);
        close(find(&aligned, None, "throughput_sum", "cov"), 0.0);
    }

    #[test]
    fn what_is_undefined_is_counted_and_left_out() {
        let aligned = two(&[(10.0, 0.0), (10.0, 10.0), (10.0, 10.0)]);
        assert_eq!(find(&aligned, Some("b"), "utility_pf", "undefined"), Some((1.0, 3)));
        close(find(&aligned, Some("b"), "utility_pf", "mean"), 10.0_f64.ln());
        assert_eq!(find(&aligned, Some("a"), "utility_pf", "undefined"), None);
        // A flow that begins later: nothing can be said of both before.
        let mut late = Aligned::new(0.0, 0.3);
        late.interval("a", 0.3, 0.3, 300.0);
        late.interval("b", 0.3, 0.1, 100.0);
        close(find(&late, None, "jain_fairness", "mean"), 1.0);
        assert_eq!(find(&late, None, "jain_fairness", "undefined"), Some((2.0, 3)));
    }

    #[test]
    fn what_drains_after_a_flows_end_is_no_flow_of_the_next_phase() {
        let mut aligned = two(&[(10.0, 30.0); 4]);
        aligned.interval("drained", 0.1, 0.1, 1.0);
        let numbers = aligned.numbers(|flow| Some(flow != "drained"));
        let jain = numbers.iter().find(|n| n.1 == "jain_fairness").unwrap();
        assert!((jain.4 - 0.8).abs() < 1e-9 && jain.5 == 4, "{jain:?}");
    }

    #[test]
    fn flows_have_converged_with_the_first_second_that_they_share() {
        let mut rates = vec![(30.0, 0.0); 20];
        rates.extend([(19.0, 11.0); 10]);
        rates.extend([(15.0, 15.0); 10]);
        // 19 to 11 is an index of 0.93; with one instant of the second before it is 0.896.
        close(find(&two(&rates), None, "convergence_time", "mean"), 2e6);
        let never = two(&[(30.0, 1.0); 30]);
        assert_eq!(find(&never, None, "convergence_time", "mean"), None);
        assert_eq!(find(&never, None, "convergence_time", "undefined"), Some((1.0, 1)));
        // Scaled and turned about it is the same.
        let turned: Vec<(f64, f64)> = rates.iter().map(|(a, b)| (b * 7.0, a * 7.0)).collect();
        close(find(&two(&turned), None, "convergence_time", "mean"), 2e6);
    }

    #[test]
    fn intervals_are_spread_over_the_instants_that_they_cover() {
        let mut aligned = Aligned::new(1.0, 1.3);
        // From 0.95 to 1.15 s: half an instant lies before the phase, half of one within it.
        aligned.interval("a", 1.15, 0.2, 2000.0);
        aligned.interval("a", 1.3, 0.15, 6000.0);
        aligned.srtt("a", 10, 20_000.0);
        aligned.srtt("a", 9, 1.0);
        let rates: Vec<_> = aligned.flows["a"].iter().map(|i| i.mbit_per_s().unwrap()).collect();
        let wanted = [0.08, (500.0 + 2000.0) * 8e-5, 0.32];
        assert!(rates.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9), "{rates:?}");
        assert_eq!(find(&aligned, Some("a"), "power", "mean").unwrap().1, 1);
        close(find(&aligned, Some("a"), "power", "mean"), 0.08e6 / 0.02);
        // Outside of the phase.
        aligned.interval("a", 0.9, 0.5, 1e9);
        aligned.interval("a", 9.0, 0.5, 1e9);
        let again: Vec<_> = aligned.flows["a"].iter().map(|i| i.mbit_per_s().unwrap()).collect();
        assert_eq!(again, rates);
    }
}
