//! Makes a trace from the rows of a recorded path: UDP streams that exceed its capacity, with echoes beside them.
//!
//! While a stream exceeds the capacity, the interface with the bottleneck always has a packet to send, so what arrives in an interval is
//! the capacity of that interval. If everything that was sent arrives, the interval is not saturated, and its rate is a lower bound. The
//! same is true if a machine was too slow. Both kinds of intervals are counted.

use std::path::{Path, PathBuf};

use ccbench_proto::plan::probe::STREAM_PACKET_BYTES;
use ccbench_proto::trace::{Step, Steps};
use ccbench_proto::units::{Bytes, Micros, Rate};
use polars::prelude::*;

use crate::error::{ErrorClass, FileError};
use crate::store::{RunDir, StoreError};
use crate::summary::query::{Lines, collect, number, scan};

const PACKET_BYTES: u64 = STREAM_PACKET_BYTES as u64;
/// An interval may lack this many packets, or this share of them if that is more, because they arrive in the next one.
const LATE_PACKETS: u64 = 2;
const LATE_SHARE: f64 = 0.02;

/// Why a run has no recorded path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordedError {
    /// A table cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The results directory cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There are no measurements.
    #[error("{}: probe `{probe}` has no row in the recorded time", path.display())]
    NoRows {
        /// The results directory.
        path: PathBuf,
        /// The probe.
        probe: String,
    },
}

impl RecordedError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::NoRows { .. } => ErrorClass::Run,
        }
    }
}

/// The result of reading a recorded path.
type Result<T, E = RecordedError> = std::result::Result<T, E>;

/// A stream, with the part of it that becomes a trace. Times are relative to the start of the trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// The sender's rate of IP packets.
    pub rate: Rate,
    /// When the stream begins.
    pub start: Micros,
    /// Length of the stream's intervals.
    pub every: Micros,
    /// Start and end: whole intervals after `start`.
    pub window: (Micros, Micros),
    /// Bytes per packet on the line besides IP; a link that replays the trace has the same.
    pub overhead: Bytes,
}

/// The packets that arrived in one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// The interval's number, from the start of the stream.
    pub seq: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
    /// Whether the sender left out packets, or the receiver's socket dropped some.
    pub is_machine_late: bool,
}

/// A trace, with the number of rows of each kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// A row per interval. A missing interval has the previous row or, at the beginning, the next one.
    pub trace: Steps,
    /// Rows with the capacity.
    pub saturated: usize,
    /// Rows with a lower bound because everything arrived.
    pub unsaturated: usize,
    /// Rows with a lower bound because the sender or the receiver was late.
    pub late: usize,
    /// Intervals without a row.
    pub missing: usize,
}

/// Returns the trace of a stream's intervals; `None` if there is none in the stream's window. `delay_ns` is the one-way delay in all rows.
pub fn recording(
    stream: &Stream,
    intervals: &[Interval],
    delay_ns: Option<u64>,
) -> Option<Recording> {
    let every_ns = stream.every.nanos().max(1);
    let (start_ns, from_ns, to_ns) =
        (stream.start.nanos(), stream.window.0.nanos(), stream.window.1.nanos());
    let offered = u128::from(stream.rate.bits_per_sec()) * u128::from(every_ns) / 8_000_000_000;
    let offered = u64::try_from(offered).unwrap_or(u64::MAX);
    let slack = (LATE_PACKETS * PACKET_BYTES).max((offered as f64 * LATE_SHARE) as u64);
    let length_ns = to_ns.checked_sub(from_ns)?;
    let trace = Steps { steps: vec![], length_ns };
    let mut recording = Recording { trace, saturated: 0, unsaturated: 0, late: 0, missing: 0 };
    for interval in intervals {
        let at_ns = start_ns + interval.seq * every_ns;
        if at_ns < from_ns || at_ns + every_ns > to_ns {
            continue;
        }
        let overhead =
            u128::from(interval.bytes / PACKET_BYTES) * u128::from(stream.overhead.get());
        let on_line = overhead.saturating_add(interval.bytes.into());
        let rate_bps = on_line.saturating_mul(8_000_000_000) / u128::from(every_ns);
        let rate = Rate::from_bits_per_sec(u64::try_from(rate_bps).unwrap_or(u64::MAX));
        let steps = &mut recording.trace.steps;
        // A trace's first row begins at zero.
        let at_ns = if steps.is_empty() { 0 } else { at_ns - from_ns };
        steps.push(Step { at_ns, rate: Some(rate), delay_ns, loss: None, line: 0 });
        if interval.is_machine_late {
            recording.late += 1;
        } else if interval.bytes + slack < offered {
            recording.saturated += 1;
        } else {
            recording.unsaturated += 1;
        }
    }
    let rows = recording.trace.steps.len();
    recording.missing = ((length_ns / every_ns) as usize).saturating_sub(rows);
    (rows > 0).then_some(recording)
}

/// The rows of a recorded path.
pub struct Rows {
    path: PathBuf,
    lines: Lines,
}

impl Rows {
    /// Reads the first trial of a run.
    ///
    /// # Errors
    /// The run cannot be read.
    pub fn read(run_dir: &Path) -> Result<Self> {
        let run = RunDir::open(run_dir)?;
        run.check(|table| table == "probes");
        let none = || RecordedError::NoRows { path: run_dir.to_path_buf(), probe: "*".to_owned() };
        let end = run.trials().into_iter().next().ok_or_else(none)?;
        let rows = scan(&run, "probes", &[&end])?.ok_or_else(none)?;
        let numbers = ["seq", "t_s", "bytes", "rtt_us"].map(number);
        let texts = ["probe_id", "error"].map(|name| col(name).cast(DataType::String));
        let rows = rows
            .select([&numbers[..], &texts].concat())
            .sort_by_exprs([col("probe_id"), col("seq")], SortMultipleOptions::default());
        Ok(Self { path: run_dir.to_path_buf(), lines: collect(&run, "probes", rows)? })
    }

    /// Returns the lines of a probe.
    fn lines_of_probe<'a>(&'a self, probe: &'a str) -> impl Iterator<Item = usize> + 'a {
        (0..self.lines.len()).filter(move |line| self.lines.text("probe_id", *line) == probe)
    }

    /// Returns the trace of a stream.
    ///
    /// # Errors
    /// The stream has no row in its window.
    pub fn recording(
        &self,
        probe: &str,
        stream: &Stream,
        delay_ns: Option<u64>,
    ) -> Result<Recording> {
        let interval = |line| {
            Some(Interval {
                seq: self.lines.number("seq", line)? as u64,
                bytes: self.lines.number("bytes", line)? as u64,
                is_machine_late: !self.lines.text("error", line).is_empty(),
            })
        };
        let intervals: Vec<Interval> = self.lines_of_probe(probe).filter_map(interval).collect();
        let none = || RecordedError::NoRows { path: self.path.clone(), probe: probe.to_owned() };
        recording(stream, &intervals, delay_ns).ok_or_else(none)
    }

    /// Returns the round-trip times in microseconds, ascending, of the answered echoes that a probe sent in a span.
    pub fn round_trips_us(&self, probe: &str, (from, to): (Micros, Micros)) -> Vec<f64> {
        let span = from.as_secs_f64()..to.as_secs_f64();
        let in_span =
            |line: &usize| self.lines.number("t_s", *line).is_some_and(|at_s| span.contains(&at_s));
        let lines = self.lines_of_probe(probe).filter(in_span);
        let mut found: Vec<f64> =
            lines.filter_map(|line| self.lines.number("rtt_us", line)).collect();
        found.sort_by(f64::total_cmp);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of 1500 bytes per millisecond. The window begins at 1 s and takes 0.5 s; the stream begins at 0.9 s.
    const STREAM: Stream = Stream {
        rate: Rate::from_bits_per_sec(12_000_000),
        start: Micros::from_millis(900),
        every: Micros::from_millis(100),
        window: (Micros::from_millis(1000), Micros::from_millis(1500)),
        overhead: Bytes::new(14),
    };

    fn interval(seq: u64, packets: u64) -> Interval {
        Interval { seq, bytes: packets * PACKET_BYTES, is_machine_late: false }
    }

    #[test]
    fn saturated_intervals_are_the_capacity_and_others_are_counted() {
        let late = Interval { is_machine_late: true, ..interval(2, 10) };
        let all = [interval(0, 7), interval(1, 50), late, interval(4, 98), interval(5, 0)];
        let Recording { trace, saturated, unsaturated, late, missing } =
            recording(&STREAM, &all, Some(5_000_000)).unwrap();
        assert_eq!((saturated, unsaturated, late, missing), (2, 1, 1, 1));
        let rows: Vec<(u64, u64)> = trace
            .steps
            .iter()
            .map(|step| (step.at_ns / 1_000_000, step.rate.unwrap().bits_per_sec()))
            .collect();
        // Rates count 1514 bytes per packet. Packets that arrived before the window do not count.
        let bps = |packets: u64| packets * 1514 * 80;
        assert_eq!(rows, [(0, bps(50)), (100, bps(10)), (300, bps(98)), (400, 0)]);
        assert!(trace.steps.iter().all(|step| step.delay_ns == Some(5_000_000)));
        assert_eq!(trace.length_ns, 500_000_000);
    }

    #[test]
    fn a_fiftieth_of_the_packets_may_be_late() {
        let fast = Stream { rate: Rate::from_bits_per_sec(120_000_000), ..STREAM };
        let all = [interval(1, 980), interval(2, 979)];
        let found = recording(&fast, &all, None).unwrap();
        assert_eq!((found.unsaturated, found.saturated), (1, 1));
    }

    #[test]
    fn a_stream_without_rows_in_the_window_has_no_trace() {
        assert_eq!(recording(&STREAM, &[interval(0, 50), interval(6, 50)], None), None);
        // The first interval of the window is missing, so its row is the next one's.
        let late = recording(&STREAM, &[interval(2, 50)], None).unwrap();
        assert_eq!((late.trace.steps[0].at_ns, late.missing), (0, 4));
    }
}
