//! Offset and drift of a node's CLOCK_MONOTONIC relative to the controller's, from exchanges of four timestamps
//! (RFC 5905, section 8). Pure: it reads no clock.
//!
//! The bounds hold for clocks that drift steadily during a trial, by at most [`MAX_DRIFT_PPB`].

use std::collections::VecDeque;

use ccbench_results::model::{ClockSource, NodeClock};

/// The maximum rate at which Linux slews a clock, in parts per billion (NTP's `MAXFREQ`). A larger difference means that a clock
/// was stepped or that one belongs to another boot.
const MAX_DRIFT_PPB: i64 = 500_000;
/// The drift of two clocks that nothing disciplines is rarely larger.
const FREE_DRIFT_PPB: u64 = 100_000;
/// An error of this size at the end of a trial needs no better estimate of the drift. It is half of what the verdict tolerates.
const SMALL_ERROR_NS: u64 = 500_000;
/// The longest wait for a better estimate.
const MAX_WAIT_NS: u64 = 30_000_000_000;
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
    /// most half of the round-trip time, whatever the delay in each direction, and what the clock drifts within the exchange.
    /// Returns `None` if no clock can give these timestamps.
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
        let drift_ns = (i128::from(exchange_ns) * i128::from(MAX_DRIFT_PPB) / 1_000_000_000) as u64;
        let error_bound_ns = rtt_ns.div_ceil(2) + drift_ns + 1;
        Some(Self { at_ns: t4_ns, offset_ns, error_bound_ns, rtt_ns })
    }

    /// Returns the drift since an earlier measurement.
    fn drift_since(&self, earlier: &Self) -> Drift {
        let elapsed_ns = i128::from(self.at_ns.saturating_sub(earlier.at_ns)).max(1);
        let change_ns = i128::from(self.offset_ns) - i128::from(earlier.offset_ns);
        let bound_ns = i128::from(self.error_bound_ns) + i128::from(earlier.error_bound_ns);
        let per_second = |ns: i128| ns * 1_000_000_000 / elapsed_ns;
        Drift { ppb: per_second(change_ns), error_bound_ppb: per_second(bound_ns) }
    }
}

/// How much faster a node's clock ran between two measurements, in parts per billion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Drift {
    ppb: i128,
    /// Upper bound of its error, from the bounds of both measurements.
    error_bound_ppb: i128,
}

impl Drift {
    /// Returns whether a clock that nobody set can have drifted like this.
    fn is_possible(&self) -> bool {
        self.ppb.abs() - self.error_bound_ppb <= i128::from(MAX_DRIFT_PPB)
    }

    /// Returns whether no steady drift explains both.
    fn contradicts(&self, other: &Self) -> bool {
        (self.ppb - other.ppb).abs() > self.error_bound_ppb + other.error_bound_ppb
    }

    /// Returns the drift in parts per billion; 0 if the clock may not drift at all, because an estimate that is within its own error
    /// would move the times of a trial more than no estimate.
    fn known_ppb(&self) -> i64 {
        if self.ppb.abs() <= self.error_bound_ppb {
            return 0;
        }
        let limit = i128::from(MAX_DRIFT_PPB);
        self.ppb.clamp(-limit, limit) as i64
    }
}

/// The measurements of one node's clock.
#[derive(Debug, Default)]
pub struct ClockHistory {
    measured: VecDeque<ClockOffset>,
    /// Whether no drift explains the difference between the latest measurement and any earlier one.
    is_erratic: bool,
}

impl ClockHistory {
    /// Adds a measurement. The returned prediction uses its offset, and the drift since the earlier measurement that gives it most
    /// exactly.
    pub fn add(&mut self, measured: ClockOffset) -> ClockPrediction {
        // A difference that no drift explains means that the clock was set, or that it is the clock of another boot.
        let is_first = self.measured.is_empty();
        self.measured.retain(|earlier| measured.drift_since(earlier).is_possible());
        self.is_erratic = !is_first && self.measured.is_empty();
        let drifts = self.measured.iter().map(|earlier| measured.drift_since(earlier));
        let mut drift = drifts.min_by_key(|drift| drift.error_bound_ppb);
        let recent = self.measured.back().map(|last| measured.drift_since(last));
        if let (Some(best), Some(now)) = (drift, recent)
            && best.contradicts(&now)
        {
            // The clock has a new rate, for example because NTP has begun to correct it.
            drop(self.measured.drain(..self.measured.len() - 1));
            drift = recent;
        }
        if self.measured.len() == KEPT {
            self.measured.pop_front();
        }
        self.measured.push_back(measured);
        ClockPrediction { from: measured, drift_ppb: drift.map_or(0, |drift| drift.known_ppb()) }
    }

    /// Returns whether nothing has been measured.
    pub fn is_empty(&self) -> bool {
        self.measured.is_empty()
    }

    /// Returns how long to wait before the measurement that precedes a trial of this length, so that it gives the drift exactly
    /// enough. Does not wait for a clock that was just set or runs too fast or slow: the next measurement may not give its drift either.
    pub fn wait_ns(&self, now_ns: u64, trial_ns: u64) -> u64 {
        if self.is_erratic {
            return 0;
        }
        let since = |earlier: &ClockOffset| {
            // Both measurements contribute their error. The second one is assumed to be as exact as the first.
            let bound_ns = 2 * u128::from(earlier.error_bound_ns);
            let needed_ns = bound_ns * u128::from(trial_ns) / u128::from(SMALL_ERROR_NS);
            let most_ns = MAX_WAIT_NS.min(trial_ns / 2);
            let needed_ns = u64::try_from(needed_ns).unwrap_or(u64::MAX).min(most_ns);
            earlier.at_ns.saturating_add(needed_ns).saturating_sub(now_ns)
        };
        self.measured.iter().map(since).min().unwrap_or(0)
    }
}

/// Returns whether a trial is so long that an unknown drift would move its times.
pub fn needs_drift(trial_ns: u64) -> bool {
    let error_ns = u128::from(trial_ns) * u128::from(FREE_DRIFT_PPB) / 1_000_000_000;
    error_ns > u128::from(SMALL_ERROR_NS)
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
        within(20_000, at_s, offset_ns)
    }

    /// Returns a measurement with this error bound.
    fn within(error_bound_ns: u64, at_s: u64, offset_ns: i64) -> ClockOffset {
        ClockOffset { at_ns: at_s * SECOND, offset_ns, error_bound_ns, rtt_ns: 2 * error_bound_ns }
    }

    /// Returns the error bound of a trial from this prediction to a measurement after it.
    fn bound_ns(prediction: ClockPrediction, after: &ClockOffset) -> u64 {
        let mut clock = prediction.node_clock(prediction.from.at_ns, 0);
        prediction.bound(&mut clock, Some(after), after.at_ns);
        clock.error_bound_ns
    }

    #[test]
    fn four_timestamps_give_offset_and_error_bound() {
        // The node's clock is 1000 ahead. The forward path takes 10, the handler 5, and the reverse path 20.
        let estimate = ClockOffset::from_timestamps(100, 1110, 1115, 135).unwrap();
        let expected = ClockOffset { at_ns: 135, offset_ns: 995, error_bound_ns: 16, rtt_ns: 30 };
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
    fn the_drift_is_known_from_the_second_measurement_on() {
        let mut history = ClockHistory::default();
        assert_eq!(history.add(measured(100, 5_000_000)).drift_ppb, 0);
        assert_eq!(history.add(measured(101, 5_020_000)).drift_ppb, 0, "20 ppm, but within 40");
        let third = history.add(measured(120, 5_400_000));
        assert_eq!(third.drift_ppb, 20_000, "within 2 ppm since the first one");
        assert_eq!(third.offset_ns(130 * SECOND), 5_600_000);
        assert_eq!(third.error_bound_ns(&measured(180, 6_600_000)), 20_000);
        assert_eq!(third.error_bound_ns(&measured(180, 6_650_000)), 70_000);
    }

    #[test]
    fn the_drift_is_that_since_the_most_exact_measurement() {
        let mut history = ClockHistory::default();
        history.add(measured(10, 0));
        history.add(within(1_200_000, 50, 0));
        assert_eq!(history.add(measured(60, 1_000_000)).drift_ppb, 20_000);
    }

    /// The clock does not drift, but the exchange after the first trial met traffic on one of its ways.
    #[test]
    fn an_uncertain_measurement_does_not_move_the_next_trial() {
        let mut history = ClockHistory::default();
        history.add(within(1_500_000, 12, -1_400_000));
        let before = history.add(within(30_000, 24, 0));
        assert_eq!(before.drift_ppb, 0, "116 666 ppb, but within 127 500");
        let bound_ns = bound_ns(before, &within(30_000, 85, 0));
        assert!(bound_ns <= 60_000, "{bound_ns}");
    }

    #[test]
    fn a_new_rate_ends_the_earlier_one() {
        let mut history = ClockHistory::default();
        for (at_s, offset_ns) in [(10, 0), (20, 300_000)] {
            history.add(measured(at_s, offset_ns));
        }
        assert_eq!(history.add(measured(80, 2_100_000)).drift_ppb, 30_000);
        // From here on the clock runs like the controller's. Since the first measurement it has drifted by 16 ppm on average.
        assert_eq!(history.add(measured(140, 2_100_000)).drift_ppb, 0);
        assert_eq!(history.add(measured(200, 2_100_000)).drift_ppb, 0);
    }

    #[test]
    fn a_trial_waits_until_the_drift_is_known() {
        assert!(!needs_drift(5 * SECOND) && needs_drift(5 * SECOND + 100_000));
        let history = |measurements: &[ClockOffset]| {
            let measured = measurements.iter().copied().collect();
            ClockHistory { measured, is_erratic: false }
        };
        let one = history(&[within(30_000, 100, 0)]);
        assert!(!one.is_empty() && history(&[]).is_empty());
        let wait_s = |history: &ClockHistory, now_s: u64, trial_s: u64| {
            history.wait_ns(now_s * SECOND, trial_s * SECOND) as f64 / 1e9
        };
        assert_eq!(wait_s(&one, 100, 60), 7.2, "60 µs in this time are 8.3 ppm");
        assert_eq!((wait_s(&one, 103, 60), wait_s(&one, 108, 60)), (4.2, 0.0));
        assert_eq!(wait_s(&history(&[]), 100, 60), 0.0);
        assert_eq!(wait_s(&history(&[ClockOffset::shared(100 * SECOND)]), 100, 60), 0.0);
        let inexact = history(&[within(5_000_000, 100, 0)]);
        assert_eq!(wait_s(&inexact, 100, 20), 10.0, "at most half of the trial");
        assert_eq!(wait_s(&inexact, 100, 600), 30.0);
        let both = history(&[within(5_000_000, 50, 0), within(30_000, 100, 0)]);
        assert_eq!(wait_s(&both, 101, 60), 0.0, "the older one is old enough");
    }

    #[test]
    fn no_trial_waits_for_a_clock_whose_drift_is_impossible() {
        let mut history = ClockHistory::default();
        let wait_ns =
            |history: &ClockHistory, at_s: u64| history.wait_ns(at_s * SECOND, 60 * SECOND);
        history.add(measured(100, 0));
        assert!(wait_ns(&history, 100) > 0);
        // 600 ppm.
        for (at_s, offset_ns) in [(160, 36_000_000), (220, 72_000_000)] {
            history.add(measured(at_s, offset_ns));
            assert_eq!(wait_ns(&history, at_s), 0, "at {at_s} s");
        }
        // 10 ppm from here on.
        history.add(measured(280, 72_600_000));
        assert!(!history.is_erratic);
        history.add(measured(340, 0));
        assert_eq!(wait_ns(&history, 340), 0, "it was set");
        history.add(measured(341, 10_000));
        assert!(wait_ns(&history, 341) > 0, "it runs steadily again");
    }

    /// A trial of 60 s with a drift of 30 ppm, after a wait, and exchanges with the greatest error that their bounds allow.
    #[test]
    fn the_first_trial_has_a_small_bound_too() {
        let mut history = ClockHistory::default();
        history.add(within(30_000, 100, 30_000));
        assert!(history.wait_ns(100 * SECOND, 60 * SECOND) <= 8 * SECOND);
        let before = history.add(within(30_000, 108, 8 * 30_000 - 30_000));
        let after = within(30_000, 168, 68 * 30_000);
        let bound_ns = bound_ns(before, &after);
        assert!(bound_ns < 600_000, "{bound_ns}");
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

    /// Times are whole nanoseconds, in the measurements as in the true offset.
    const ROUNDING_NS: u64 = 4;

    /// Delays of an exchange: forward, in the handler, and back.
    fn delays() -> impl Strategy<Value = (u64, u64, u64)> {
        (1_000u64..5_000_000, 0u64..1_000_000, 1_000u64..5_000_000)
    }

    proptest! {
        /// The delay is arbitrary in each direction. Clocks differ by up to a day and drift by up to 100 ppm.
        #[test]
        fn bounds_hold_at_every_time_of_every_trial(
            offset_ns in -86_400_000_000_000i64..86_400_000_000_000,
            drift_ppb in -100_000i64..=100_000,
            trials in prop::collection::vec(
                (1u64..60 * SECOND, delays(), 1u64..600 * SECOND, delays()), 1..12
            ),
        ) {
            let start_ns = 200_000 * SECOND;
            let node = |at_ns: u64| {
                let drift = i128::from(at_ns - start_ns) * i128::from(drift_ppb) / 1_000_000_000;
                at_ns.saturating_add_signed(offset_ns + drift as i64)
            };
            let exchange = |t1_ns: u64, (forward_ns, handler_ns, backward_ns): (u64, u64, u64)| {
                let received_ns = t1_ns + forward_ns;
                let sent_ns = received_ns + handler_ns;
                let (t2_ns, t3_ns) = (node(received_ns), node(sent_ns));
                ClockOffset::from_timestamps(t1_ns, t2_ns, t3_ns, sent_ns + backward_ns).unwrap()
            };
            let mut history = ClockHistory::default();
            let mut now_ns = start_ns;
            for (idle_ns, before, length_ns, after) in trials {
                let measured = exchange(now_ns + idle_ns, before);
                let (begin_ns, prediction) = (measured.at_ns, history.add(measured));
                let end_ns = begin_ns + length_ns;
                let measured = exchange(end_ns, after);
                now_ns = measured.at_ns;
                let mut clock = prediction.node_clock(begin_ns, 0);
                for after in [Some(&measured), None] {
                    prediction.bound(&mut clock, after, now_ns);
                    for at_ns in (0..=10).map(|tenth| begin_ns + length_ns / 10 * tenth) {
                        let error_ns = node(at_ns).abs_diff(prediction.node_ns(at_ns));
                        prop_assert!(
                            error_ns <= clock.error_bound_ns + ROUNDING_NS,
                            "{error_ns} ns after {} ns: {clock:?}", at_ns - begin_ns
                        );
                    }
                }
                history.add(measured);
            }
        }
    }
}
