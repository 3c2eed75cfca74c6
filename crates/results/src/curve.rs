//! Capacity curves: how many bytes a traced link can have sent by a given time of the trial.

use std::collections::BTreeMap;
use std::sync::Arc;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::{Link, OnEnd, TraceStart, TraceUse};
use ccbench_proto::resolve::ETHERNET_BYTES;
use ccbench_proto::trace::{Step, Trace};
use ccbench_proto::units::Rate;

/// A loss of all packets, in parts per million.
const WHOLE_PPM: u32 = 1_000_000;
/// Delivery opportunities have the mean rate of this time.
const WINDOW_NS: u64 = 100_000_000;

/// Returns the bytes per packet that count against the link's rate in addition to the IP packet.
pub(crate) fn overhead(link: &Link) -> f64 {
    link.overhead.unwrap_or(ETHERNET_BYTES).get() as f64
}

/// Returns the bytes per packet that count against the link's rate but not in its counters.
pub(crate) fn extra_bytes(link: &Link) -> f64 {
    overhead(link) - ETHERNET_BYTES.get() as f64
}

/// Returns how many bytes count against a link's rate, from its byte and packet counters. `extra_bytes` are those of each packet.
pub(crate) fn line_bytes(counted: f64, packets: f64, extra_bytes: f64) -> f64 {
    (counted + extra_bytes * packets).max(0.0)
}

/// Capacity curves of the traces stored with a run, by point and link.
#[derive(Debug, Default)]
pub(crate) struct TraceCapacities(BTreeMap<u32, BTreeMap<String, Arc<CapacityCurve>>>);

impl TraceCapacities {
    /// Returns the curves of a plan whose traces are stored with its run. Skips unreadable traces.
    pub(super) fn from_plan(plan: &CheckedPlan) -> Self {
        let points = plan.points();
        let mut cache = Vec::new();
        Self(points.iter().map(|point| (point.id, curves(&point.plan, &mut cache))).collect())
    }

    /// Returns the capacity curve of a link at a point; `None` if its trace starts after the trial, has no rates or cannot be read.
    pub(crate) fn curve(&self, point_id: u32, link: &str) -> Option<&CapacityCurve> {
        self.0.get(&point_id)?.get(link).map(Arc::as_ref)
    }

    /// Returns whether no link has a curve.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(BTreeMap::is_empty)
    }
}

/// A trace's settings, the link's rate and overhead, and the curve built from them.
type CacheEntry = (TraceUse, Option<Rate>, f64, Arc<CapacityCurve>);

/// Returns the capacity curves of a plan's links. Links whose trace starts after the trial have none.
pub(crate) fn capacity_curves(plan: &CheckedPlan) -> BTreeMap<String, Arc<CapacityCurve>> {
    curves(plan, &mut Vec::new())
}

/// As [`capacity_curves`], but links with equal settings share one curve.
fn curves(plan: &CheckedPlan, cache: &mut Vec<CacheEntry>) -> BTreeMap<String, Arc<CapacityCurve>> {
    let curve = |(name, link): (&String, &Link)| {
        let used = starting_with_trial(link)?;
        let (rate, overhead) = (link.rate, overhead(link));
        let is_known =
            |(of, unset, bytes, _): &&CacheEntry| (of, unset, bytes) == (used, &rate, &overhead);
        if let Some((.., curve)) = cache.iter().find(is_known) {
            return Some((name.clone(), Arc::clone(curve)));
        }
        let curve = CapacityCurve::new(plan.trace(&used.file)?, used, (rate, overhead))?;
        let curve = Arc::new(curve);
        cache.push((used.clone(), rate, overhead, Arc::clone(&curve)));
        Some((name.clone(), curve))
    };
    plan.plan().links.iter().filter_map(curve).collect()
}

/// Returns the link's trace settings if the trace starts with the trial.
fn starting_with_trial(link: &Link) -> Option<&TraceUse> {
    link.trace.as_ref().filter(|used| used.start == TraceStart::Trial)
}

/// Returns the intervals up to `until_ns`, of at least `least_ns`, in which a link's trace lets nothing pass: its rate is zero or it drops
/// all packets. Empty if the trace starts after the trial or cannot be read.
pub(crate) fn outages(
    plan: &CheckedPlan,
    link: &Link,
    (until_ns, least_ns): (u64, u64),
) -> Vec<(u64, u64)> {
    let used = starting_with_trial(link);
    let traced = used.and_then(|used| Some((used, &**plan.trace(&used.file)?)));
    let Some((used, trace)) = traced else { return vec![] };
    let is_discrete = matches!(trace, Trace::Opportunities(_));
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut take = |from_ns: u64, to_ns: u64, continues: bool| {
        let to_ns = to_ns.min(until_ns);
        match found.last_mut() {
            // Merge consecutive parts of an outage.
            Some(last) if last.1 == from_ns && continues => last.1 = to_ns,
            _ if from_ns < to_ns => found.push((from_ns, to_ns)),
            _ => {}
        }
    };
    let rows = rows_with_outages(trace, used, link.rate);
    let length_ns = trace.length_ns().max(1);
    // Each row of discrete opportunities begins with one, except for the first.
    let passes_at_end = is_discrete && rows.iter().skip(1).any(|(at_ns, _)| *at_ns == length_ns);
    let mut begin_ns = 0_u64;
    while begin_ns < until_ns {
        for (nth, (at_ns, is_outage)) in rows.iter().enumerate() {
            let next = rows.get(nth + 1).map(|(next_ns, _)| begin_ns + next_ns);
            let end_ns = match used.on_end {
                OnEnd::Loop => begin_ns.saturating_add(length_ns),
                OnEnd::Stop => length_ns,
                OnEnd::Hold => until_ns,
            };
            if *is_outage {
                let continues = if nth == 0 { !passes_at_end } else { !is_discrete };
                take(begin_ns + at_ns, next.unwrap_or(end_ns), continues);
            }
        }
        match used.on_end {
            OnEnd::Loop => begin_ns = begin_ns.saturating_add(length_ns),
            OnEnd::Stop => {
                take(length_ns, until_ns, !passes_at_end);
                break;
            }
            OnEnd::Hold => break,
        }
    }
    found.retain(|(from_ns, to_ns)| to_ns - from_ns >= least_ns);
    found
}

/// Returns when the rows of a trace begin, and whether nothing passes in each. Nothing passes between delivery opportunities.
fn rows_with_outages(trace: &Trace, used: &TraceUse, unset: Option<Rate>) -> Vec<(u64, bool)> {
    match trace {
        Trace::Steps(steps) => {
            let is_outage = |step: &Step| {
                rate_of(step, used, unset).is_some_and(|rate| rate.bits_per_sec() == 0)
                    || step.loss.is_some_and(|loss| loss.get() == WHOLE_PPM)
            };
            steps.steps.iter().map(|step| (step.at_ns, is_outage(step))).collect()
        }
        Trace::Opportunities(_) => {
            let curve = CapacityCurve::new(trace, used, (None, 0.0));
            let knots = curve.into_iter().flat_map(|curve| curve.knots);
            knots.map(|(at_ns, _, slope)| (at_ns, slope <= 0.0)).collect()
        }
    }
}

/// Returns the rate of a row, raised to the trace's floor. A row without a rate has the rate of its link.
fn rate_of(step: &Step, used: &TraceUse, unset: Option<Rate>) -> Option<Rate> {
    let raised = |rate: Rate| rate.max(used.floor.unwrap_or(rate));
    step.rate.map(raised).or(unset)
}

/// Cumulative capacity: piecewise linear, repeated if the trace loops.
#[derive(Debug)]
pub(crate) struct CapacityCurve {
    /// Time in nanoseconds since the start of the trace, bytes until then, and the rate from then on in bytes per nanosecond. The first
    /// knot is at 0.
    knots: Vec<(u64, f64, f64)>,
    length_ns: u64,
    on_end: OnEnd,
    is_discrete: bool,
}

impl CapacityCurve {
    /// Builds the curve of a trace that starts with the trial. `unset` is the link's rate, which applies to rows without one; `overhead` is
    /// in bytes per packet. `None` if no row has a rate, or if a row has neither its own rate nor the link's.
    pub(crate) fn new(
        trace: &Trace,
        used: &TraceUse,
        (unset, overhead): (Option<Rate>, f64),
    ) -> Option<Self> {
        if !trace.has_rates() {
            return None;
        }
        let per_ns = |rate: Rate| rate.bits_per_sec() as f64 / 8e9;
        let mut knots: Vec<(u64, f64, f64)> = Vec::new();
        let length_ns = match trace {
            Trace::Steps(steps) => {
                let mut bytes = 0.0;
                for step in &steps.steps {
                    if let Some((at_ns, _, slope)) = knots.last() {
                        bytes += slope * step.at_ns.saturating_sub(*at_ns) as f64;
                    }
                    knots.push((step.at_ns, bytes, per_ns(rate_of(step, used, unset)?)));
                }
                steps.length_ns
            }
            Trace::Opportunities(all) => {
                knots.push((0, 0.0, 0.0));
                let each = f64::from(all.bytes) + overhead;
                let sums = all.at_ns.iter().zip(1_u32..);
                knots.extend(sums.map(|(at_ns, n)| (*at_ns, each * f64::from(n), 0.0)));
                if let (OnEnd::Hold, Some((last, earlier))) = (used.on_end, all.at_ns.split_last())
                {
                    // With `hold`, the last opportunity repeats, at its distance from the one before it.
                    let before = earlier.partition_point(|at_ns| at_ns < last);
                    let previous = before.checked_sub(1).map_or(0, |index| earlier[index]);
                    let bytes = each * (all.at_ns.len() - before) as f64;
                    let slope = bytes / (last - previous).max(1) as f64;
                    knots.push((all.length_ns, each * all.at_ns.len() as f64, slope));
                }
                all.length_ns
            }
        };
        let is_discrete = matches!(trace, Trace::Opportunities(_));
        Some(Self { knots, length_ns: length_ns.max(1), on_end: used.on_end, is_discrete })
    }

    /// Returns the bytes between two times, in nanoseconds since the start of the trial.
    pub(crate) fn bytes(&self, from_ns: u64, to_ns: u64) -> f64 {
        self.bytes_until(to_ns) - self.bytes_until(from_ns)
    }

    /// Returns the bytes between two times that exceed `most_per_ns` bytes per nanosecond. Lower rates at other times do not balance them.
    pub(crate) fn bytes_above(&self, (from_ns, to_ns): (u64, u64), most_per_ns: f64) -> f64 {
        let (mut at_ns, mut above) = (from_ns, 0.0);
        while at_ns < to_ns {
            let until_ns = self.constant_until_ns(at_ns).min(to_ns);
            let most = most_per_ns * (until_ns - at_ns) as f64;
            above += (self.bytes(at_ns, until_ns) - most).max(0.0);
            at_ns = until_ns;
        }
        above
    }

    /// Returns the end of the time after `at_ns` in which the rate is constant.
    fn constant_until_ns(&self, at_ns: u64) -> u64 {
        if self.is_discrete {
            return at_ns.saturating_add(WINDOW_NS);
        }
        let (rest_ns, end_ns) = match self.on_end {
            OnEnd::Loop => (at_ns % self.length_ns, self.length_ns),
            OnEnd::Stop if at_ns < self.length_ns => (at_ns, self.length_ns),
            OnEnd::Stop | OnEnd::Hold => (at_ns, u64::MAX),
        };
        let after = self.knots.partition_point(|(knot_ns, _, _)| *knot_ns <= rest_ns);
        let next_ns = self.knots.get(after).map_or(end_ns, |(knot_ns, _, _)| *knot_ns).min(end_ns);
        at_ns.saturating_add(next_ns - rest_ns)
    }

    /// Returns the bytes within `stretch_ns` of the edges of a window: how far off a count may be if its times are off by that much.
    pub(crate) fn burst(&self, (from_ns, to_ns): (u64, u64), stretch_ns: u64) -> f64 {
        let edge = |at_ns: u64| {
            self.bytes(at_ns.saturating_sub(stretch_ns), at_ns.saturating_add(stretch_ns))
        };
        edge(from_ns) + edge(to_ns)
    }

    /// Returns whether the capacity consists of discrete delivery opportunities.
    pub(crate) fn is_discrete(&self) -> bool {
        self.is_discrete
    }

    /// Returns how many nanoseconds the link takes to send `bytes` from a time on; `None` if it never does.
    pub(crate) fn drain_time_ns(&self, from_ns: u64, bytes: f64) -> Option<u64> {
        if bytes <= 0.0 {
            return Some(0);
        }
        let wanted = self.bytes_until(from_ns) + bytes;
        let round = self.within(self.length_ns);
        let (rounds, rest) = match self.on_end {
            OnEnd::Loop if round <= 0.0 => return None,
            OnEnd::Loop => {
                // The last byte of a loop belongs to this loop, not to the start of the next.
                let rounds = ((wanted / round).ceil() - 1.0).max(0.0);
                (rounds as u64, wanted - rounds * round)
            }
            OnEnd::Stop if wanted > round => return None,
            OnEnd::Stop | OnEnd::Hold => (0, wanted),
        };
        // The first knot at or after the last byte, and the segment in which this byte is sent.
        let after = self.knots.partition_point(|(_, bytes, _)| *bytes < rest);
        let (knot_ns, passed, slope) = *self.knots.get(after.checked_sub(1)?)?;
        let within = (slope > 0.0).then(|| knot_ns as f64 + (rest - passed) / slope);
        let next = self.knots.get(after).map(|(at_ns, _, _)| *at_ns as f64);
        let at_ns = match (within, next) {
            (Some(within), Some(next)) => within.min(next),
            (one, other) => one.or(other)?,
        };
        let until_ns = rounds.saturating_mul(self.length_ns).saturating_add(at_ns.ceil() as u64);
        Some(until_ns.saturating_sub(from_ns))
    }

    fn bytes_until(&self, at_ns: u64) -> f64 {
        let (rounds, rest_ns) = match self.on_end {
            OnEnd::Loop => (at_ns / self.length_ns, at_ns % self.length_ns),
            OnEnd::Hold => (0, at_ns),
            OnEnd::Stop => (0, at_ns.min(self.length_ns)),
        };
        rounds as f64 * self.within(self.length_ns) + self.within(rest_ns)
    }

    fn within(&self, at_ns: u64) -> f64 {
        let after = self.knots.partition_point(|(knot_ns, _, _)| *knot_ns <= at_ns);
        let knot = after.checked_sub(1).and_then(|index| self.knots.get(index));
        knot.map_or(0.0, |(from_ns, bytes, slope)| {
            // With `hold`, the last rate continues.
            bytes + slope * (at_ns - from_ns) as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::check::{self, TraceFacts};
    use ccbench_proto::trace::{Opportunities, Steps};
    use ccbench_proto::units::Ppm;

    use super::*;
    use crate::model::RunInfo;
    use crate::store::RunDir;

    fn used(on_end: OnEnd, floor: Option<Rate>) -> TraceUse {
        TraceUse { on_end, floor, ..TraceUse::new("a.csv") }
    }

    /// 8 Mbit/s for one second, then an outage of one second.
    fn steps() -> Trace {
        let step = |s: u64, bps: u64| Step {
            at_ns: s * 1_000_000_000,
            rate: Some(Rate::from_bits_per_sec(bps)),
            delay_ns: None,
            loss: None,
            line: 0,
        };
        Trace::Steps(Steps {
            steps: vec![step(0, 8_000_000), step(1, 0)],
            length_ns: 2_000_000_000,
        })
    }

    #[test]
    fn integrates_rates() {
        let s = 1_000_000_000;
        let curve = |on_end, floor| {
            CapacityCurve::new(&steps(), &used(on_end, floor), (None, 14.0)).unwrap()
        };
        let hold = curve(OnEnd::Hold, None);
        assert_eq!(hold.bytes(0, s), 1e6);
        assert_eq!(hold.bytes(s / 2, 3 * s), 5e5);
        let looped = curve(OnEnd::Loop, None);
        assert_eq!(looped.bytes(s / 2, 5 * s / 2), 1e6);
        let floor = curve(OnEnd::Hold, Some(Rate::from_bits_per_sec(800_000)));
        assert_eq!(floor.bytes(s, 4 * s), 3e5);
        assert_eq!(curve(OnEnd::Stop, Some(Rate::from_bits_per_sec(800_000))).bytes(s, 9 * s), 1e5);
    }

    #[test]
    fn a_row_without_a_rate_has_the_rate_of_its_link() {
        let s = 1_000_000_000;
        let Trace::Steps(mut all) = steps() else { panic!("opportunities") };
        all.steps[1].rate = None;
        let floor = Some(Rate::from_bits_per_sec(4_000_000));
        let curve = |all: &Steps, unset: Option<u64>| {
            let line = (unset.map(Rate::from_bits_per_sec), 14.0);
            CapacityCurve::new(&Trace::Steps(all.clone()), &used(OnEnd::Hold, floor), line)
        };
        // The floor applies to rows only.
        assert_eq!(curve(&all, Some(800_000)).unwrap().bytes(s / 2, 3 * s), 5e5 + 2e5);
        assert!(curve(&all, None).is_none(), "no limit for a time");
        all.steps[0].rate = None;
        assert!(curve(&all, Some(800_000)).is_none(), "no trace of rates");
    }

    #[test]
    fn counts_opportunities() {
        let all = Opportunities { at_ns: vec![1, 1, 5], bytes: 1500, length_ns: 5 };
        let trace = Trace::Opportunities(all);
        let curve = CapacityCurve::new(&trace, &used(OnEnd::Loop, None), (None, 14.0)).unwrap();
        assert_eq!(curve.bytes(0, 4), 3028.0);
        assert_eq!(curve.bytes(0, 10), 6.0 * 1514.0);
        let held = CapacityCurve::new(&trace, &used(OnEnd::Hold, None), (None, 14.0)).unwrap();
        assert_eq!(held.bytes(0, 9), 4.0 * 1514.0, "the last one again, 4 ns later");
    }

    #[test]
    fn bytes_above_a_rate_are_those_of_faster_times() {
        let s = 1_000_000_000;
        let curve = |on_end, trace: &Trace| {
            CapacityCurve::new(trace, &used(on_end, None), (None, 14.0)).unwrap()
        };
        // 1 MB in each second at 8 Mbit/s, of which half exceeds 4 Mbit/s.
        let most_per_ns = 4e6 / 8e9;
        for (on_end, wanted) in [(OnEnd::Loop, 5e5), (OnEnd::Hold, 0.0), (OnEnd::Stop, 0.0)] {
            let curve = curve(on_end, &steps());
            let of = |span_ns| curve.bytes_above(span_ns, most_per_ns);
            assert_eq!(of((0, s)), 5e5);
            assert_eq!(of((s / 2, 2 * s)), 25e4, "nothing in the outage");
            assert_eq!(of((s, 4 * s)), wanted);
            assert_eq!(curve.bytes_above((0, 9 * s), 1e-3), 0.0, "the rate itself");
        }
        // Bursts of less than 0.1 s do not exceed their mean rate.
        let at_ns = (0..40).map(|nth| nth * 25_000_000).collect();
        let all = Trace::Opportunities(Opportunities { at_ns, bytes: 1486, length_ns: s });
        let curve = curve(OnEnd::Loop, &all);
        assert_eq!(curve.bytes_above((0, s), 61_000e-9), 0.0);
        assert!((curve.bytes_above((0, s), 15_000e-9) - 45_000.0).abs() < 1e-6);
    }

    #[test]
    fn drain_time_follows_the_trace() {
        let s = 1_000_000_000;
        let curve =
            |on_end| CapacityCurve::new(&steps(), &used(on_end, None), (None, 14.0)).unwrap();
        let looped = curve(OnEnd::Loop);
        assert_eq!(looped.drain_time_ns(s / 4, 5e5), Some(s / 2));
        assert_eq!(looped.drain_time_ns(s / 2, 5e5), Some(s / 2), "to the end of the rate");
        assert_eq!(looped.drain_time_ns(s / 2, 6e5), Some(s / 2 + s + s / 10), "over the outage");
        assert_eq!(looped.drain_time_ns(3 * s / 2, 0.0), Some(0));
        assert_eq!(looped.drain_time_ns(7 * s / 2, 25e5), Some(s / 2 + 4 * s + s / 2));
        for on_end in [OnEnd::Hold, OnEnd::Stop] {
            assert_eq!(curve(on_end).drain_time_ns(s / 2, 6e5), None, "never");
        }
        let all = Opportunities { at_ns: vec![1, 1, 5], bytes: 1500, length_ns: 5 };
        let curve =
            CapacityCurve::new(&Trace::Opportunities(all), &used(OnEnd::Loop, None), (None, 14.0))
                .unwrap();
        let waiting = |packets: f64| curve.drain_time_ns(1, packets * 1514.0);
        assert_eq!([1.0, 2.0, 3.0, 4.0].map(waiting), [4, 5, 5, 9].map(Some));
    }

    #[test]
    fn finds_outages() {
        let s = 1_000_000_000;
        let of = |trace: &Trace, on_end: &str, within: (u64, u64)| {
            let text = PLAN
                .replace("on_end = \"loop\"", &format!("on_end = \"{on_end}\""))
                .replace("length = \"1s\"", "length = \"9s\"");
            let facts = TraceFacts { sha256: "0".repeat(64), trace: Arc::new(trace.clone()) };
            let files = ["x/t.csv", "y/t.csv", "gone.csv", "late.csv"]
                .map(|file| (file.to_owned(), Ok(facts.clone())));
            let (plan, _) = check::read_with(&text, &[], files.into()).unwrap();
            let plan = &plan.points()[0].plan;
            assert!(
                outages(plan, &plan.plan().links["back"], within).is_empty(),
                "it starts later"
            );
            outages(plan, &plan.plan().links["up"], within)
        };
        let trace = steps();
        assert_eq!(of(&trace, "loop", (4 * s, s / 2)), [(s, 2 * s), (3 * s, 4 * s)]);
        assert_eq!(of(&trace, "hold", (5 * s, s / 2)), [(s, 5 * s)]);
        assert_eq!(of(&trace, "stop", (5 * s, s / 2)), [(s, 5 * s)]);
        assert!(of(&trace, "loop", (4 * s, 2 * s)).is_empty());
        // The same outage as a loss of all packets, with and without a rate.
        for rate in [Some(Rate::from_bits_per_sec(8_000_000)), None] {
            let Trace::Steps(mut all) = steps() else { panic!("opportunities") };
            for (step, ppm) in all.steps.iter_mut().zip([999_999, 1_000_000]) {
                (step.rate, step.loss) = (rate, Ppm::new(ppm));
            }
            let lossy = Trace::Steps(all);
            assert_eq!(of(&lossy, "loop", (4 * s, s / 2)), [(s, 2 * s), (3 * s, 4 * s)]);
        }
    }

    #[test]
    fn outage_of_opportunities_goes_on_after_the_end_of_the_trace() {
        let s = 1_000_000_000;
        let of = |at_ns: &[u64], on_end: OnEnd| {
            let all = Opportunities { at_ns: at_ns.to_vec(), bytes: 1500, length_ns: 5 * s };
            let facts =
                TraceFacts { sha256: "0".repeat(64), trace: Arc::new(Trace::Opportunities(all)) };
            let files = ["x/t.csv", "y/t.csv", "gone.csv", "late.csv"]
                .map(|file| (file.to_owned(), Ok(facts.clone())));
            let (plan, _) = check::read_with(PLAN, &[], files.into()).unwrap();
            let plan = &plan.points()[0].plan;
            let mut link = plan.plan().links["up"].clone();
            link.trace.as_mut().unwrap().on_end = on_end;
            outages(plan, &link, (9 * s, s))
        };
        let before_end = [s, s, 4 * s];
        let found = of(&before_end, OnEnd::Stop);
        assert_eq!(found, [(0, s), (s, 4 * s), (4 * s, 9 * s)]);
        let found = of(&before_end, OnEnd::Loop);
        assert_eq!(found, [(0, s), (s, 4 * s), (4 * s, 6 * s), (6 * s, 9 * s)]);
        // Each part is shorter than the least outage.
        let halves = of(&[s / 2, 9 * s / 2], OnEnd::Loop);
        assert_eq!(halves, [(s / 2, 9 * s / 2), (9 * s / 2, 11 * s / 2), (11 * s / 2, 9 * s)]);
        // A packet passes at the end.
        let found = of(&[s, 5 * s], OnEnd::Loop);
        assert_eq!(found, [(0, s), (s, 5 * s), (5 * s, 6 * s), (6 * s, 9 * s)]);
        assert_eq!(of(&[s, 5 * s], OnEnd::Stop), [(0, s), (s, 5 * s), (5 * s, 9 * s)]);
    }

    const PLAN: &str = r#"
name = "two"
[nodes]
a = {}
b = {}
[wires]
w = ["a", "b"]
[links.up]
node = "a"
toward = "b"
trace = { file = "x/t.csv", on_end = "loop" }
[links.back]
node = "b"
toward = "a"
trace = { file = "late.csv", start = "first-packet" }
[flows.f]
from = "a"
to = "b"
[[phases]]
name = "all"
length = "1s"
flows = ["f"]
[matrix]
"links.up.trace.file" = ["x/t.csv", "y/t.csv", "gone.csv"]
"#;

    #[test]
    fn reads_stored_traces_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| (name.into(), text.as_bytes().to_vec());
        let ones = "t_us,rate_bps\n0,8000000\n1000000,8000000\n";
        let info = RunInfo {
            plan_name: "two".into(),
            plan_text: PLAN.into(),
            resolved_text: PLAN.into(),
            plan_sha256: String::new(),
            points: (0..3).map(|id| (id, vec![])).collect(),
            repeat: 1,
            seed: 1,
            command_line: vec![],
            ccbench_version: String::new(),
            started_utc: jiff::Timestamp::UNIX_EPOCH,
            nodes: BTreeMap::new(),
            backend: crate::backend::RunBackend::Testbed,
            topology: serde_json::Value::Null,
            notes: vec![],
            sets: vec![],
            // Files with the same name in different folders stay distinct.
            traces: [
                file("x/t.csv", ones),
                file("y/t.csv", &ones.replace("80", "160")),
                file("late.csv", ones),
            ]
            .into(),
            ccs: BTreeMap::new(),
            imported: vec![],
        };
        let run = RunDir::create_at(&folder.path().join("run"), &info).unwrap();
        let offered = |id: u32, link: &str| {
            run.trace_capacities().curve(id, link).map(|curve| curve.bytes(0, 1_000_000_000))
        };
        assert_eq!([0, 1, 2].map(|id| offered(id, "up")), [Some(1e6), Some(2e6), None]);
        assert_eq!([0, 1, 2].map(|id| offered(id, "back")), [None; 3], "from its first packet on");
        let plan = run.plan().unwrap();
        assert!(plan.trace("late.csv").is_some() && plan.trace("gone.csv").is_none());
        let points = plan.points();
        let mean = |id: usize| points[id].plan.plan().links["up"].trace.as_ref().unwrap().mean_rate;
        let mbit = |mbit: u64| Some(Rate::from_bits_per_sec(mbit * 1_000_000));
        assert_eq!([0, 1, 2].map(mean), [mbit(8), mbit(16), None]);
        let notes = run.notes();
        assert!(
            notes.len() == 1 && notes[0].contains("traces/gone.csv: No such file"),
            "{notes:?}"
        );

        // A copy that has changed is left out, although the plan has no hash of a file that a factor names.
        std::fs::write(run.path().join("traces/y/t.csv"), ones).unwrap();
        let reader = RunDir::open(run.path()).unwrap();
        let known = |id| reader.trace_capacities().curve(id, "up").is_some();
        assert_eq!([0, 1].map(known), [true, false]);
        let notes = reader.notes();
        assert!(notes.iter().any(|note| note.contains("y/t.csv: it has changed")), "{notes:?}");

        // A trace whose hash does not match the plan is ignored, and a note says so.
        let other = "0".repeat(64);
        let late = "file = \"late.csv\"";
        let plan = PLAN.replace(late, &format!("{late}, sha256 = \"{other}\""));
        let info = RunInfo { resolved_text: plan, ..info };
        let run = RunDir::create_at(&folder.path().join("altered"), &info).unwrap();
        assert!(run.plan().is_some() && run.trace_capacities().curve(0, "up").is_none());
        let notes = run.notes();
        assert!(notes.len() == 2 && notes[1].contains("`late.csv` has changed"), "{notes:?}");
    }
}
