//! Trace replay on a kernel link: supported traces, netlink messages, results.

use std::io;
use std::ops::Range;

use ccbench_proto::plan::{OnEnd, TraceStart, TraceUse};
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::trace::{Cursor, Replay, Trace};
use ccbench_proto::units::Rate;
use ccbench_proto::wire;

use super::tree::{self, RateControl};
use crate::ShaperError;
use crate::clock::monotonic_ns;
use crate::netlink::Socket;
use crate::replay::source;
use crate::replay_thread::{Applied, LATE_NS, RateSetter, ReplayThread};

/// Replay of a trace on the kernel's qdiscs.
#[derive(Debug)]
pub(super) struct TraceReplay {
    thread: ReplayThread,
    /// Scheduling errors of all steps so far, nanoseconds.
    late_ns: Vec<u64>,
    /// Steps that have not been reported yet.
    waiting: Vec<Applied>,
}

/// Rejects traces that qdiscs cannot replay.
pub(super) fn check_supported(config: &LinkConfig) -> Result<(), ShaperError> {
    let Some(replay) = &config.trace else { return Ok(()) };
    let link = &config.name;
    let unsupported = |what: String, hint: String| {
        Err(ShaperError::Unsupported { link: link.clone(), backend: "kernel", what, hint })
    };
    let userspace = || format!("write `backend = \"userspace\"` for link {link}");
    let TraceUse { file, on_end, start, floor, .. } = &replay.plan;
    let Trace::Steps(steps) = &*replay.trace else {
        return unsupported(format!("the delivery opportunities of {file}"), userspace());
    };
    if *start == TraceStart::FirstPacket {
        return unsupported("a trace that begins with the first packet".to_owned(), userspace());
    }
    if *on_end == OnEnd::Stop {
        let hint = format!("{}, or choose another `on_end`", userspace());
        return unsupported("a trace with `on_end = \"stop\"`".to_owned(), hint);
    }
    for step in &steps.steps {
        let place = format!("{file}:{}", step.line);
        if step.delay_ns.is_some() || step.loss.is_some() {
            return unsupported(format!("the delay or loss in {place}"), userspace());
        }
        match step.rate.map(|rate| rate.max(floor.unwrap_or(Rate::from_bits_per_sec(0)))) {
            None => return unsupported(format!("the row without a rate in {place}"), userspace()),
            Some(rate) if rate.bits_per_sec() == 0 => {
                let hint =
                    format!("give the trace a `floor`, like \"100kbit\", or {}", userspace());
                return unsupported(format!("the rate of zero in {place}"), hint);
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// The messages of a rate change, and the socket that sends them.
pub(super) struct Messages {
    pub(super) socket: Socket,
    pub(super) control: RateControl,
    pub(super) frame_bytes: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) parts: Vec<Range<usize>>,
}

impl RateSetter for Messages {
    fn prepare(&mut self, rate: Rate) {
        tree::patch(&self.control, rate, self.frame_bytes, &mut self.bytes, &self.parts);
        self.socket.number(&mut self.bytes, &self.parts);
    }

    fn send(&mut self) -> io::Result<()> {
        self.socket.send_numbered(&self.bytes)
    }

    fn ack(&mut self) -> i32 {
        match self.socket.take_answer() {
            Ok(()) => 0,
            Err(error) => -error.source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl TraceReplay {
    /// Starts the replay thread, which waits for [`Self::begin`].
    pub(super) fn start(replay: &Replay, messages: Messages) -> Result<Option<Self>, ShaperError> {
        let Some(cursor) = Cursor::new(replay, u64::MAX) else { return Ok(None) };
        let thread = ReplayThread::start(cursor, messages)?;
        Ok(Some(Self { thread, late_ns: Vec::new(), waiting: Vec::new() }))
    }

    pub(super) fn begin(&self, at_ns: u64) {
        self.thread.begin(at_ns);
    }

    pub(super) fn stop(&mut self) {
        self.thread.stop();
    }

    fn fetch(&mut self) {
        while let Some(step) = self.thread.next_applied() {
            self.late_ns.push(step.applied_ns.saturating_sub(step.due_ns));
            self.waiting.push(step);
        }
    }

    /// Appends one row for each step since the last call. `names`: of the link and its interface.
    pub(super) fn changes(&mut self, names: (&str, &str), into: &mut Vec<wire::LinkChange>) {
        self.fetch();
        into.extend(self.waiting.drain(..).map(|step| wire::LinkChange {
            requested_at_ns: step.due_ns,
            applied_at_ns: step.applied_ns,
            link: names.0.to_owned(),
            iface: names.1.to_owned(),
            rate_bps: Some(step.rate_bps),
            source: source(step.row),
            rc: step.rc,
            ..wire::LinkChange::default()
        }));
    }

    /// Returns the scheduling errors of all steps so far; `None` if none was applied or missed.
    pub(super) fn timing(&mut self, names: (&str, &str)) -> Option<wire::LinkTiming> {
        self.fetch();
        let late_ns = self.late_ns.clone();
        let row = steps_timing(late_ns, self.thread.lost(), self.thread.missed())?;
        let (link, iface) = (names.0.to_owned(), names.1.to_owned());
        Some(wire::LinkTiming { at_ns: monotonic_ns(), link, iface, ..row })
    }
}

/// Returns the row of steps with these scheduling errors, of `lost` steps that were applied but not recorded, and of `missed` ones;
/// `None` if there are none. Without a scheduling error, all errors are zero.
fn steps_timing(mut late_ns: Vec<u64>, lost: u64, missed: u64) -> Option<wire::LinkTiming> {
    late_ns.sort_unstable();
    let count = late_ns.len() as u64 + lost;
    if count + missed == 0 {
        return None;
    }
    let last = late_ns.len().saturating_sub(1);
    let us =
        |percent: usize| late_ns.get(last * percent / 100).map_or(0.0, |&ns| ns as f64 / 1000.0);
    Some(wire::LinkTiming {
        kind: wire::TimingKind::Steps.into(),
        count,
        late: late_ns.iter().filter(|&&ns| ns > LATE_NS).count() as u64,
        missed,
        p50_us: us(50),
        p90_us: us(90),
        p99_us: us(99),
        max_us: us(100),
        ..wire::LinkTiming::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_steps_are_reported_even_if_none_was_applied() {
        assert_eq!(steps_timing(vec![], 0, 0), None);
        let row = steps_timing(vec![], 0, 7).unwrap();
        assert_eq!((row.count, row.missed, row.max_us), (0, 7, 0.0));
        let row = steps_timing(vec![300_000, 1000], 1, 2).unwrap();
        assert_eq!((row.count, row.late, row.missed), (3, 1, 2));
        assert_eq!((row.p50_us, row.max_us), (1.0, 300.0));
    }
}
