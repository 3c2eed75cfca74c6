//! How many bytes a traced link may have sent by an instant of the trial.

use ccbench_proto::plan::{OnEnd, TraceUse};
use ccbench_proto::trace::Trace;
use ccbench_proto::units::Rate;

/// Bytes over time: piecewise linear, repeated if the trace loops.
#[derive(Debug)]
pub(crate) struct Curve {
    /// Instant in nanoseconds after the trace's beginning, the bytes until then, and the rate from then on in bytes
    /// per nanosecond. The first is at 0.
    knots: Vec<(u64, f64, f64)>,
    length_ns: u64,
    on_end: OnEnd,
}

impl Curve {
    /// Of a trace that begins with the trial, on a line with this overhead per packet; `None` if its rows say no rate.
    pub(crate) fn new(trace: &Trace, used: &TraceUse, overhead: f64) -> Option<Self> {
        let per_ns = |rate: Rate| rate.bits_per_sec() as f64 / 8e9;
        let mut knots: Vec<(u64, f64, f64)> = Vec::new();
        let length_ns = match trace {
            Trace::Steps(steps) => {
                let mut bytes = 0.0;
                for step in &steps.steps {
                    if let Some((at_ns, _, slope)) = knots.last() {
                        bytes += slope * step.at_ns.saturating_sub(*at_ns) as f64;
                    }
                    let rate = step.rate?;
                    let floor = used.floor.unwrap_or(rate);
                    knots.push((step.at_ns, bytes, per_ns(rate.max(floor))));
                }
                steps.length_ns
            }
            Trace::Opportunities(all) => {
                knots.push((0, 0.0, 0.0));
                let each = f64::from(all.bytes) + overhead;
                let sums = all.at_ns.iter().zip(1_u32..);
                knots.extend(sums.map(|(at_ns, n)| (*at_ns, each * f64::from(n), 0.0)));
                all.length_ns
            }
        };
        Some(Self { knots, length_ns: length_ns.max(1), on_end: used.on_end })
    }

    /// Bytes from one instant of the trial to another, in nanoseconds since its beginning.
    pub(crate) fn bytes(&self, from_ns: u64, to_ns: u64) -> f64 {
        self.until(to_ns) - self.until(from_ns)
    }

    /// Most bytes that pass within any stretch of this length inside a window.
    pub(crate) fn burst(&self, (from_ns, to_ns): (u64, u64), stretch_ns: u64) -> f64 {
        let edge = |at_ns: u64| {
            self.bytes(at_ns.saturating_sub(stretch_ns), at_ns.saturating_add(stretch_ns))
        };
        edge(from_ns) + edge(to_ns)
    }

    fn until(&self, at_ns: u64) -> f64 {
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
            // A trace that is held goes on at its last rate.
            bytes + slope * (at_ns - from_ns) as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::TraceStart;
    use ccbench_proto::trace::{Opportunities, Step, Steps};

    use super::*;

    fn used(on_end: OnEnd, floor: Option<Rate>) -> TraceUse {
        let file = "a.csv".to_owned();
        TraceUse { file, sha256: None, mean_rate: None, on_end, start: TraceStart::Trial, floor }
    }

    /// 8 Mbit/s for a second, then nothing for one.
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
    fn rows_are_integrated() {
        let s = 1_000_000_000;
        let curve = |on_end, floor| Curve::new(&steps(), &used(on_end, floor), 14.0).unwrap();
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
    fn opportunities_are_counted() {
        let all = Opportunities { at_ns: vec![1, 1, 5], bytes: 1500, length_ns: 5 };
        let trace = Trace::Opportunities(all);
        let curve = Curve::new(&trace, &used(OnEnd::Loop, None), 14.0).unwrap();
        assert_eq!(curve.bytes(0, 4), 3028.0);
        assert_eq!(curve.bytes(0, 10), 6.0 * 1514.0);
    }
}
