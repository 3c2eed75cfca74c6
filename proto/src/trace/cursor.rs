//! The position in a trace at a time. Integer arithmetic only, so that long replays do not drift.

use std::sync::Arc;

use super::{Opportunities, Replay, Steps, Trace};
use crate::plan::impair::OnEnd;
use crate::units::{Ppm, Rate};

/// The state of a link while a step of a trace is in force, and before and after the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSpan {
    /// Its beginning, on the clock of the trace's beginning; 0 before the trace's beginning.
    pub from_ns: u64,
    /// Its end; `u64::MAX` is never.
    pub until_ns: u64,
    /// Rate, raised to the floor; `None`: that of the link's configuration.
    pub rate: Option<Rate>,
    /// One-way delay; `None`: that of the link's configuration.
    pub delay_ns: Option<u64>,
    /// Independent random loss; `None`: that of the link's configuration.
    pub loss: Option<Ppm>,
    /// The row, from 1; 0 before the trace's beginning and, with `stop`, after its end.
    pub row: u32,
}

/// Walks over the steps of a piecewise constant trace. The trace is in force from `begin_ns` on, its first row also before that.
/// Copies of a cursor share the trace.
#[derive(Debug, Clone)]
pub struct Cursor {
    trace: Arc<Trace>,
    on_end: OnEnd,
    floor: Rate,
    begin_ns: u64,
    position: Position,
    /// The work that one lap carries, in bit·ns/s; `None` if a row has no rate.
    lap_work: Option<u128>,
}

/// Where a cursor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Before,
    /// In a row of the lap that began at `lap_ns`.
    Row {
        index: usize,
        lap_ns: u64,
    },
    /// After the end of a trace that stops.
    After,
}

impl Cursor {
    /// A cursor before the trace's beginning at `begin_ns` (`u64::MAX`: not known yet); `None` if the trace does not consist of
    /// steps.
    pub fn new(replay: &Replay, begin_ns: u64) -> Option<Self> {
        let Trace::Steps(steps) = &*replay.trace else { return None };
        let floor = replay.plan.floor.unwrap_or(Rate::from_bits_per_sec(0));
        let lap_work = steps.spans().try_fold(0_u128, |sum, (step, length_ns)| {
            let rate = step.rate?.max(floor).bits_per_sec();
            Some(sum + u128::from(rate) * u128::from(length_ns))
        });
        Some(Self {
            trace: Arc::clone(&replay.trace),
            on_end: replay.plan.on_end,
            floor,
            begin_ns,
            position: Position::Before,
            lap_work,
        })
    }

    fn steps(&self) -> &Steps {
        match &*self.trace {
            Trace::Steps(steps) => steps,
            Trace::Opportunities(_) => unreachable!("`new` takes traces of steps only"),
        }
    }

    /// Sets another start time of the trace, and moves to the position before it.
    pub fn begin(&mut self, at_ns: u64) {
        self.begin_ns = at_ns;
        self.position = Position::Before;
    }

    /// Moves to the position of `other`, which is a copy of this cursor.
    pub fn follow(&mut self, other: &Self) {
        self.begin_ns = other.begin_ns;
        self.position = other.position;
    }

    /// When the trace begins; `u64::MAX` if that is not known yet.
    pub fn begin_ns(&self) -> u64 {
        self.begin_ns
    }

    /// The current span.
    pub fn span(&self) -> StepSpan {
        let (steps, index, from_ns, until_ns) = match self.position {
            Position::Before => (self.steps(), 0, 0, self.begin_ns),
            Position::Row { index, lap_ns } => {
                let steps = self.steps();
                let at = |at_ns: u64| lap_ns.saturating_add(at_ns);
                let until_ns = match steps.steps.get(index + 1) {
                    Some(next) => at(next.at_ns),
                    None if self.on_end == OnEnd::Hold => u64::MAX,
                    None => at(steps.length_ns),
                };
                (steps, index, at(steps.steps[index].at_ns), until_ns)
            }
            Position::After => {
                let from_ns = self.begin_ns.saturating_add(self.steps().length_ns);
                let rate = Some(Rate::from_bits_per_sec(0));
                let until_ns = u64::MAX;
                return StepSpan { from_ns, until_ns, rate, delay_ns: None, loss: None, row: 0 };
            }
        };
        let step = &steps.steps[index];
        let row = match self.position {
            Position::Row { .. } => index as u32 + 1,
            Position::Before | Position::After => 0,
        };
        StepSpan {
            from_ns,
            until_ns,
            rate: step.rate.map(|rate| rate.max(self.floor)),
            delay_ns: step.delay_ns,
            loss: step.loss,
            row,
        }
    }

    /// Moves to the next span; `false`, without moving, if there is none.
    pub fn advance(&mut self) -> bool {
        let next = match self.position {
            Position::Before if self.begin_ns == u64::MAX => return false,
            Position::Before => Position::Row { index: 0, lap_ns: self.begin_ns },
            Position::Row { index, lap_ns } if index + 1 < self.steps().steps.len() => {
                Position::Row { index: index + 1, lap_ns }
            }
            Position::Row { lap_ns, .. } => match self.on_end {
                OnEnd::Hold => return false,
                OnEnd::Stop => Position::After,
                OnEnd::Loop => match lap_ns.checked_add(self.steps().length_ns) {
                    Some(lap_ns) => Position::Row { index: 0, lap_ns },
                    None => return false,
                },
            },
            Position::After => return false,
        };
        self.position = next;
        true
    }

    /// Moves to the span in force at `at_ns`; does not move backwards.
    pub fn seek(&mut self, at_ns: u64) {
        // After a long idle period the cursor skips rows that affected no packet.
        if let Position::Row { index, lap_ns } = self.position
            && self.on_end == OnEnd::Loop
        {
            let laps = at_ns.saturating_sub(lap_ns) / self.steps().length_ns;
            if laps > 0 {
                let lap_ns = lap_ns + laps * self.steps().length_ns;
                self.position = Position::Row { index: 0, lap_ns };
            } else if at_ns >= self.span().until_ns {
                let rows = &self.steps().steps[index..];
                let passed = rows.partition_point(|step| lap_ns + step.at_ns <= at_ns);
                self.position = Position::Row { index: index + passed - 1, lap_ns };
            }
        }
        while self.span().until_ns <= at_ns && self.advance() {}
    }

    /// Carries `work` bit·ns/s from `from_ns` on, which lies in the current span. Moves to the span in which the work ends, and
    /// returns the time of its end, rounded down to nanoseconds, with the work that the rounding leaves; `None` if it never ends.
    /// `unset_bps` is the rate of rows without one; if it is `None`, too, the work takes no time.
    pub fn carry(
        &mut self,
        mut from_ns: u64,
        mut work: u64,
        unset_bps: Option<u64>,
    ) -> Option<(u64, u64)> {
        loop {
            self.skip_laps(&mut from_ns, &mut work)?;
            let span = self.span();
            let Some(rate) = span.rate.map(Rate::bits_per_sec).or(unset_bps) else {
                return Some((from_ns, 0));
            };
            if let (Some(lasts_ns), Some(left)) = (work.checked_div(rate), work.checked_rem(rate)) {
                let end_ns = from_ns.checked_add(lasts_ns)?;
                if end_ns < span.until_ns || end_ns == span.until_ns && left == 0 {
                    return Some((end_ns, left));
                }
                // This cannot overflow: the span carries no more than the remaining work.
                work -= rate * span.until_ns.saturating_sub(from_ns).min(lasts_ns);
            }
            from_ns = from_ns.max(span.until_ns);
            if !self.advance() {
                return None;
            }
        }
    }

    /// At the beginning of a lap, skips the laps that the work fills completely. `None` if a lap carries nothing.
    fn skip_laps(&mut self, from_ns: &mut u64, work: &mut u64) -> Option<()> {
        let (Position::Row { index: 0, lap_ns }, OnEnd::Loop, Some(lap_work)) =
            (self.position, self.on_end, self.lap_work)
        else {
            return Some(());
        };
        if *from_ns != lap_ns || u128::from(*work) <= lap_work {
            return Some(());
        }
        let laps = u128::from(*work - 1).checked_div(lap_work)?;
        *work -= (laps * lap_work) as u64;
        let passed_ns = u64::try_from(laps * u128::from(self.steps().length_ns)).ok()?;
        *from_ns = lap_ns.checked_add(passed_ns)?;
        self.position = Position::Row { index: 0, lap_ns: *from_ns };
        Some(())
    }
}

/// Walks over the opportunities of a trace that begins at an instant.
#[derive(Debug, Clone)]
pub struct OpportunityCursor {
    trace: Arc<Trace>,
    on_end: OnEnd,
    begin_ns: u64,
    /// Number of opportunities that it has passed.
    passed: u64,
    /// The gap between the last two instants and the number of opportunities at the last one, which `hold` repeats.
    last_gap_ns: u64,
    last_count: u64,
}

impl OpportunityCursor {
    /// A cursor at the first opportunity of a trace that begins at `begin_ns`; `None` if the trace does not consist of
    /// opportunities.
    pub fn new(replay: &Replay, begin_ns: u64) -> Option<Self> {
        let Trace::Opportunities(all) = &*replay.trace else { return None };
        let last = *all.at_ns.last()?;
        let before = all.at_ns.partition_point(|&at_ns| at_ns < last);
        let previous = before.checked_sub(1).map_or(0, |index| all.at_ns[index]);
        Some(Self {
            trace: Arc::clone(&replay.trace),
            on_end: replay.plan.on_end,
            begin_ns,
            passed: 0,
            last_gap_ns: (last - previous).max(1),
            last_count: (all.at_ns.len() - before) as u64,
        })
    }

    fn all(&self) -> &Opportunities {
        match &*self.trace {
            Trace::Opportunities(all) => all,
            Trace::Steps(_) => unreachable!("`new` takes traces of opportunities only"),
        }
    }

    /// IP bytes of each opportunity.
    pub fn bytes(&self) -> u32 {
        self.all().bytes
    }

    /// The instant of the current opportunity; `u64::MAX` if there is none.
    pub fn at_ns(&self) -> u64 {
        let all = self.all();
        let count = all.at_ns.len() as u64;
        let (lap, index) = (self.passed / count, self.passed % count);
        let after_ns = match (lap, self.on_end) {
            (0, _) | (_, OnEnd::Loop) => {
                lap.saturating_mul(all.length_ns).saturating_add(all.at_ns[index as usize])
            }
            (_, OnEnd::Stop) => u64::MAX,
            (_, OnEnd::Hold) => {
                let more = (self.passed - count) / self.last_count + 1;
                more.saturating_mul(self.last_gap_ns).saturating_add(all.length_ns)
            }
        };
        self.begin_ns.saturating_add(after_ns)
    }

    /// Moves to the next opportunity.
    pub fn advance(&mut self) {
        self.passed += 1;
    }

    /// Moves to the first opportunity at `at_ns` or later; does not move backwards.
    pub fn seek(&mut self, at_ns: u64) {
        let all = self.all();
        let count = all.at_ns.len() as u64;
        let after_ns = at_ns.saturating_sub(self.begin_ns);
        let in_lap = |after_ns: u64| all.at_ns.partition_point(|&at_ns| at_ns < after_ns) as u64;
        let passed = if after_ns <= all.length_ns {
            in_lap(after_ns)
        } else {
            match self.on_end {
                OnEnd::Stop => count,
                OnEnd::Loop => {
                    let laps = (after_ns - 1) / all.length_ns;
                    laps * count + in_lap(after_ns - laps * all.length_ns)
                }
                OnEnd::Hold => {
                    let more = (after_ns - all.length_ns).div_ceil(self.last_gap_ns);
                    count.saturating_add((more - 1).saturating_mul(self.last_count))
                }
            }
        };
        self.passed = self.passed.max(passed);
    }

    /// Number of opportunities that it has passed.
    pub fn passed(&self) -> u64 {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::TraceUse;
    use crate::trace::Step;

    fn replay(trace: Trace, on_end: OnEnd) -> Replay {
        let floor = Some(Rate::from_bits_per_sec(5));
        let plan = TraceUse { on_end, floor, ..TraceUse::new("t") };
        Replay { trace: Arc::new(trace), plan }
    }

    fn steps(rows: &[(u64, u64)], length_ns: u64) -> Trace {
        let step = |&(at_ns, rate)| Step {
            at_ns,
            rate: Some(Rate::from_bits_per_sec(rate)),
            delay_ns: None,
            loss: None,
            line: 0,
        };
        Trace::Steps(Steps { steps: rows.iter().map(step).collect(), length_ns })
    }

    fn walk(cursor: &mut Cursor, most: usize) -> Vec<(u64, u64, u64)> {
        let mut seen = Vec::new();
        for _ in 0..most {
            let span = cursor.span();
            seen.push((span.from_ns, span.until_ns, span.rate.unwrap().bits_per_sec()));
            if !cursor.advance() {
                break;
            }
        }
        seen
    }

    #[test]
    fn on_end_hold_loop_and_stop() {
        let walked = |on_end| {
            let replay = replay(steps(&[(0, 10), (7, 2)], 9), on_end);
            walk(&mut Cursor::new(&replay, 100).unwrap(), 5)
        };
        let before = (0, 100, 10);
        let (first, last) = ((100, 107, 10), (107, 109, 5));
        assert_eq!(walked(OnEnd::Hold), [before, first, (107, u64::MAX, 5)]);
        assert_eq!(walked(OnEnd::Stop), [before, first, last, (109, u64::MAX, 0)]);
        assert_eq!(walked(OnEnd::Loop), [before, first, last, (109, 116, 10), (116, 118, 5)]);
    }

    #[test]
    fn a_trace_without_a_beginning_stays_at_its_first_row() {
        let replay = replay(steps(&[(0, 10), (7, 2)], 9), OnEnd::Loop);
        let mut cursor = Cursor::new(&replay, u64::MAX).unwrap();
        assert!(!cursor.advance());
        cursor.seek(1_000_000);
        assert_eq!(cursor.span().until_ns, u64::MAX);
        cursor.begin(1_000_002);
        cursor.seek(1_000_001);
        assert_eq!(cursor.span().row, 0);
        cursor.seek(1_000_009);
        assert_eq!((cursor.span().row, cursor.span().from_ns), (2, 1_000_009));
    }

    #[test]
    fn work_spans_steps_and_waits_during_zero_rate() {
        let trace = steps(&[(0, 10), (100, 0), (200, 3)], 300);
        let mut replay = replay(trace, OnEnd::Hold);
        replay.plan.floor = None;
        let mut cursor = Cursor::new(&replay, 0).unwrap();
        cursor.seek(0);
        // 20 ns at 10, then nothing for 100 ns, then 100 at 3: 33 ns and 1 left.
        assert_eq!(cursor.carry(80, 300, None), Some((233, 1)));
        let mut cursor = Cursor::new(&replay, 0).unwrap();
        // Done exactly at the end of a step, though the next one carries nothing.
        assert_eq!(cursor.carry(99, 10, None), Some((100, 0)));
    }

    #[test]
    fn stopped_trace_never_carries_the_rest() {
        let replay = replay(steps(&[(0, 10)], 10), OnEnd::Stop);
        let mut cursor = Cursor::new(&replay, 5).unwrap();
        assert_eq!(cursor.carry(5, 99, None), Some((14, 9)));
        assert_eq!(cursor.carry(14, 19, None), None);
    }

    #[test]
    fn looped_trace_with_zero_rate_carries_nothing() {
        let mut replay = replay(steps(&[(0, 0), (10, 0)], 20), OnEnd::Loop);
        replay.plan.floor = None;
        assert_eq!(Cursor::new(&replay, 0).unwrap().carry(3, 1, None), None);
        // The work skips millions of laps at once.
        let mut slow = self::replay(steps(&[(0, 0), (10, 1)], 20), OnEnd::Loop);
        slow.plan.floor = None;
        let mut cursor = Cursor::new(&slow, 0).unwrap();
        assert_eq!(cursor.carry(0, 10_000_000_000_005, None), Some((20_000_000_000_015, 0)));
    }

    fn opportunities(ms: &[u64], on_end: OnEnd) -> OpportunityCursor {
        let all = Opportunities { at_ns: ms.to_vec(), bytes: 1500, length_ns: *ms.last().unwrap() };
        OpportunityCursor::new(&replay(Trace::Opportunities(all), on_end), 1000).unwrap()
    }

    #[test]
    fn opportunities_follow_on_end() {
        let walked = |on_end| {
            let mut cursor = opportunities(&[0, 3, 5, 5], on_end);
            (0..8)
                .map(|_| {
                    let at = cursor.at_ns();
                    cursor.advance();
                    at
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(walked(OnEnd::Loop), [1000, 1003, 1005, 1005, 1005, 1008, 1010, 1010]);
        assert_eq!(walked(OnEnd::Hold), [1000, 1003, 1005, 1005, 1007, 1007, 1009, 1009]);
        assert_eq!(walked(OnEnd::Stop)[3..5], [1005, u64::MAX]);
    }

    proptest! {
        #[test]
        fn seeking_is_walking(
            gaps in proptest::collection::vec(0_u64..5, 1..20),
            to in 0_u64..300,
            on_end in prop_oneof![Just(OnEnd::Hold), Just(OnEnd::Loop), Just(OnEnd::Stop)],
        ) {
            let mut at = 0;
            let mut instants: Vec<u64> = gaps.iter().map(|gap| { at += gap; at }).collect();
            instants.push(at + 1);
            let mut sought = opportunities(&instants, on_end);
            sought.seek(1000 + to);
            let mut walked = opportunities(&instants, on_end);
            while walked.at_ns() < 1000 + to {
                walked.advance();
            }
            prop_assert_eq!(sought.at_ns(), walked.at_ns());
            prop_assert_eq!(sought.passed(), walked.passed());
        }

        #[test]
        fn seeking_steps_is_walking(
            lengths in proptest::collection::vec(1_u64..9, 1..20),
            hops in proptest::collection::vec(0_u64..200, 1..9),
            on_end in prop_oneof![Just(OnEnd::Hold), Just(OnEnd::Loop), Just(OnEnd::Stop)],
        ) {
            let mut at = 0;
            let rows: Vec<_> = lengths.iter().map(|l| { at += l; (at - l, at) }).collect();
            let replay = replay(steps(&rows, at), on_end);
            let mut sought = Cursor::new(&replay, 50).unwrap();
            let mut walked = sought.clone();
            let mut to = 0;
            for hop in hops {
                to += hop;
                sought.seek(to);
                while walked.span().until_ns <= to && walked.advance() {}
                prop_assert_eq!(sought.span(), walked.span());
            }
        }

        #[test]
        fn carrying_in_parts_is_carrying_at_once(
            rows in proptest::collection::vec((1_u64..1000, 0_u64..50), 1..8),
            parts in proptest::collection::vec(1_u64..5000, 1..10),
        ) {
            let mut at = 0;
            let mut all: Vec<_> = rows.iter().map(|&(l, rate)| { at += l; (at - l, rate) }).collect();
            all[0].1 += 1;
            let mut replay = replay(steps(&all, at), OnEnd::Loop);
            replay.plan.floor = None;
            let mut whole = Cursor::new(&replay, 0).unwrap();
            let mut parted = whole.clone();
            let (mut now, mut left) = (0, 0);
            for part in &parts {
                parted.seek(now);
                (now, left) = parted.carry(now, left + part, None).unwrap();
            }
            let sum = parts.iter().sum();
            prop_assert_eq!(whole.carry(0, sum, None), Some((now, left)));
        }
    }
}
