//! Offset and drift of a node's CLOCK_MONOTONIC relative to the controller's, from exchanges of four timestamps
//! (RFC 5905, section 8). Pure: it reads no clock.

use std::collections::VecDeque;

use ccbench_results::model::{ClockSource, NodeClock};

/// Minimum distance of two measurements from which a drift is computed. With error bounds of 50 µs, this gives the drift to
/// within 10 ppm.
const BASELINE_NS: u64 = 10_000_000_000;
/// The maximum rate at which Linux slews a clock, in parts per billion (NTP's `MAXFREQ`). A larger difference means that a clock
/// was stepped or that one belongs to another boot.
const MAX_DRIFT_PPB: i64 = 500_000;
/// Number of measurements that are kept.
const KEPT: usize = 16;

/// A measured offset between two monotonic clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset {
    /// When it was measured, on the controller's CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// The node's CLOCK_MONOTONIC minus the controller's.
    pub offset_ns: i64,
    /// Upper bound of the offset's error.
    pub error_bound_ns: u64,
    /// Round-trip time of the exchange; 0 if both read the same clock.
    pub rtt_ns: u64,
}

impl ClockOffset {
    /// Makes the offset of a node that reads the controller's clock.
    pub fn shared(at_ns: u64) -> Self {
        Self { at_ns, offset_ns: 0, error_bound_ns: 0, rtt_ns: 0 }
    }

    /// Computes the offset from four timestamps: origin (T1), receive (T2), transmit (T3) and destination (T4). The error is at
    /// most half of the round-trip time, whatever the delay in each direction. Returns `None` if no clock can give these
    /// timestamps.
    pub fn from_timestamps(t1_ns: u64, t2_ns: u64, t3_ns: u64, t4_ns: u64) -> Option<Self> {
        let signed = |ns| i64::try_from(ns).ok();
        let (t1, t2, t3, t4) = (signed(t1_ns)?, signed(t2_ns)?, signed(t3_ns)?, signed(t4_ns)?);
        let (exchange_ns, handler_ns) = (t4 - t1, t3 - t2);
        if handler_ns < 0 || exchange_ns < handler_ns {
            return None;
        }
        let rtt_ns = (exchange_ns - handler_ns).unsigned_abs().max(1);
        // The sum cannot overflow after the division by two.
        let offset_ns = ((i128::from(t2 - t1) + i128::from(t3 - t4)) / 2) as i64;
        Some(Self { at_ns: t4_ns, offset_ns, error_bound_ns: rtt_ns.div_ceil(2), rtt_ns })
    }

    /// Returns the drift since an earlier measurement: how much faster the node's clock runs, in parts per billion.
    fn drift_ppb_since(&self, earlier: &Self) -> i64 {
        let elapsed_ns = i128::from(self.at_ns) - i128::from(earlier.at_ns);
        let change_ns = i128::from(self.offset_ns) - i128::from(earlier.offset_ns);
        (change_ns * 1_000_000_000 / elapsed_ns.max(1)) as i64
    }
}

/// The measurements of one node's clock.
#[derive(Debug, Default)]
pub struct ClockHistory {
    measured: VecDeque<ClockOffset>,
}

impl ClockHistory {
    /// Adds a measurement. The returned prediction uses its offset, and the drift since the latest measurement that is at least
    /// `BASELINE_NS` older.
    pub fn add(&mut self, measured: ClockOffset) -> ClockPrediction {
        let mut earlier = self.measured.iter().rev();
        let reference = earlier.find(|m| m.at_ns.saturating_add(BASELINE_NS) <= measured.at_ns);
        let mut drift_ppb = reference.map_or(0, |earlier| measured.drift_ppb_since(earlier));
        if drift_ppb.abs() > MAX_DRIFT_PPB {
            self.measured.clear();
            drift_ppb = 0;
        }
        if self.measured.len() == KEPT {
            self.measured.pop_front();
        }
        self.measured.push_back(measured);
        ClockPrediction { from: measured, drift_ppb }
    }
}

/// Predicts a node's clock offset from the time of a measurement on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockPrediction {
    /// The measurement.
    pub from: ClockOffset,
    /// How much faster the node's clock runs, in parts per billion; 0 if unknown.
    pub drift_ppb: i64,
}

impl ClockPrediction {
    fn is_shared(&self) -> bool {
        self.from.rtt_ns == 0
    }

    /// Returns the offset at a time on the controller's clock.
    pub fn offset_ns(&self, at_ns: u64) -> i64 {
        let elapsed_ns = i128::from(at_ns) - i128::from(self.from.at_ns);
        let drift_ns = elapsed_ns * i128::from(self.drift_ppb) / 1_000_000_000;
        self.from.offset_ns.saturating_add(drift_ns as i64)
    }

    /// Converts a time on the controller's clock to the node's clock.
    pub fn node_ns(&self, at_ns: u64) -> u64 {
        at_ns.saturating_add_signed(self.offset_ns(at_ns))
    }

    /// Returns how this node's clock maps to UTC in a trial that begins at `t0_ns` on the controller's clock.
    /// `utc_minus_monotonic_ns` is the controller's value, read once for all nodes.
    pub fn node_clock(&self, t0_ns: u64, utc_minus_monotonic_ns: i64) -> NodeClock {
        let offset_ns = self.offset_ns(t0_ns);
        NodeClock {
            t0_ns: t0_ns.saturating_add_signed(offset_ns),
            realtime_offset_ns: utc_minus_monotonic_ns - offset_ns,
            drift_ppb: self.drift_ppb,
            error_bound_ns: self.from.error_bound_ns,
            error_bound_after_ns: None,
            source: if self.is_shared() { ClockSource::Shared } else { ClockSource::Exchange },
            rtt_ns: self.from.rtt_ns,
        }
    }

    /// Bounds the error of a trial's `clock` by a measurement after the trial, or by the end of the trial if there is none.
    pub fn bound(&self, clock: &mut NodeClock, after: Option<&ClockOffset>, end_ns: u64) {
        clock.error_bound_after_ns = after.map(|after| after.error_bound_ns);
        clock.error_bound_ns = match after {
            Some(after) => self.error_bound_ns(after),
            None if self.is_shared() => 0,
            None => self.unchecked_error_bound_ns(end_ns),
        };
    }

    /// Returns a bound of the prediction's error from its measurement until `after`. Clocks drift steadily within a trial, so the
    /// error is greatest at one end of that interval.
    fn error_bound_ns(&self, after: &ClockOffset) -> u64 {
        let error_ns = after.offset_ns.abs_diff(self.offset_ns(after.at_ns));
        self.from.error_bound_ns.max(error_ns.saturating_add(after.error_bound_ns))
    }

    /// Returns a bound of the prediction's error until `end_ns` without a later measurement.
    fn unchecked_error_bound_ns(&self, end_ns: u64) -> u64 {
        let elapsed_ns = end_ns.saturating_sub(self.from.at_ns);
        let drift_ns = u128::from(elapsed_ns) * MAX_DRIFT_PPB as u128 / 1_000_000_000;
        self.from.error_bound_ns.saturating_add(drift_ns as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn measured(at_s: u64, offset_ns: i64) -> ClockOffset {
        let at_ns = at_s * SECOND;
        ClockOffset { at_ns, offset_ns, error_bound_ns: 20_000, rtt_ns: 40_000 }
    }

    #[test]
    fn four_timestamps_give_offset_and_error_bound() {
        // The node's clock is 1000 ahead. The forward path takes 10, the handler 5, and the reverse path 20.
        let estimate = ClockOffset::from_timestamps(100, 1110, 1115, 135).unwrap();
        let expected = ClockOffset { at_ns: 135, offset_ns: 995, error_bound_ns: 15, rtt_ns: 30 };
        assert_eq!(estimate, expected);
        assert!((estimate.offset_ns - 1000).unsigned_abs() <= estimate.error_bound_ns);
        assert_eq!(
            ClockOffset::from_timestamps(100, 1110, 1100, 135),
            None,
            "sent before received"
        );
        assert_eq!(ClockOffset::from_timestamps(100, 1110, 1146, 135), None, "36 of 35 ns");
        assert_eq!(ClockOffset::from_timestamps(100, 1 << 63, 1 << 63, 135), None);
    }

    #[test]
    fn the_drift_is_known_from_the_second_trial_on() {
        let mut history = ClockHistory::default();
        assert_eq!(history.add(measured(100, 5_000_000)).drift_ppb, 0);
        assert_eq!(history.add(measured(105, 5_100_000)).drift_ppb, 0, "too short a time");
        let third = history.add(measured(120, 5_400_000));
        assert_eq!(third.drift_ppb, 20_000, "since the second one");
        assert_eq!(third.offset_ns(130 * SECOND), 5_600_000);
        assert_eq!(third.error_bound_ns(&measured(180, 6_600_000)), 20_000);
        assert_eq!(third.error_bound_ns(&measured(180, 6_650_000)), 70_000);
    }

    #[test]
    fn another_clock_begins_a_new_history() {
        let mut history = ClockHistory::default();
        history.add(measured(100, 0));
        assert_eq!(history.add(measured(120, -90_000_000_000)).drift_ppb, 0, "a reboot");
        assert_eq!(history.add(measured(140, -90_000_200_000)).drift_ppb, -10_000);
    }

    #[test]
    fn a_bound_without_a_measurement_grows_with_time() {
        let prediction = ClockHistory::default().add(measured(100, 0));
        assert_eq!(prediction.unchecked_error_bound_ns(102 * SECOND), 20_000 + 1_000_000);
    }

    proptest! {
        /// The delay is arbitrary in each direction. Clocks differ by up to a day and drift by up to 500 ppm.
        #[test]
        fn bounds_hold(
            offset_ns in -86_400_000_000_000i64..86_400_000_000_000,
            drift_ppb in -500_000i64..500_000,
            exchanges in prop::collection::vec((1u64..30 * SECOND, 0u64..5_000_000, 0u64..5_000_000), 2..40),
        ) {
            let start_ns = 200_000 * SECOND;
            let node = |at_ns: u64| {
                let drift = i128::from(at_ns - start_ns) * i128::from(drift_ppb) / 1_000_000_000;
                at_ns.saturating_add_signed(offset_ns + drift as i64)
            };
            let mut history = ClockHistory::default();
            let mut now_ns = start_ns;
            let mut before: Option<ClockPrediction> = None;
            for (interval_ns, forward_ns, backward_ns) in exchanges {
                now_ns += interval_ns;
                let (t1_ns, t2_ns) = (now_ns, node(now_ns + forward_ns));
                now_ns += forward_ns + backward_ns;
                let measured = ClockOffset::from_timestamps(t1_ns, t2_ns, t2_ns, now_ns).unwrap();
                // The clocks drift by at most 2.5 µs while the answer is in flight.
                let slack_ns = 2_600;
                let error_ns = |p: &ClockPrediction, at_ns| node(at_ns).abs_diff(p.node_ns(at_ns));
                if let Some(before) = before {
                    let bound_ns = before.error_bound_ns(&measured) + slack_ns;
                    for at_ns in [before.from.at_ns, (before.from.at_ns + now_ns) / 2, now_ns] {
                        prop_assert!(error_ns(&before, at_ns) <= bound_ns);
                    }
                }
                let prediction = history.add(measured);
                prop_assert!(error_ns(&prediction, now_ns) <= measured.error_bound_ns + slack_ns);
                before = Some(prediction);
            }
        }
    }
}
