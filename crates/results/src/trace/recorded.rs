//! A trace from the rows of a recorded path: streams over UDP that exceed its capacity, and echoes beside them.
//!
//! While a stream exceeds the capacity, the interface with the bottleneck always has a packet to send, so what arrives in an interval is
//! the capacity of that interval. An interval in which all arrives that was sent is not saturated: its rate is a lower bound. So
//! is that of an interval in which a machine was too slow. Both are counted.

use std::path::{Path, PathBuf};

use ccbench_proto::plan::probe::STREAM_PACKET_BYTES;
use ccbench_proto::trace::{Step, Steps};
use ccbench_proto::units::{Bytes, Micros, Rate};
use polars::prelude::*;

use crate::error::{ErrorClass, FileError};
use crate::store::{RunDir, StoreError};
use crate::summary::query::{Lines, collect, number, scan};

const PACKET_BYTES: u64 = STREAM_PACKET_BYTES as u64;
/// So many packets of an interval may come in the next one, and this share of them.
const LATE_PACKETS: u64 = 2;
const LATE_SHARE: u64 = 50;

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
    /// Nothing was measured.
    #[error("{}: probe `{probe}` has no row in the recorded time", path.display())]
    NoRows {
        /// The results directory.
        path: PathBuf,
        /// The probe.
        probe: String,
    },
}

impl RecordedError {
    /// Who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::NoRows { .. } => ErrorClass::Run,
        }
    }
}

/// Result of reading a recorded path.
type Result<T, E = RecordedError> = std::result::Result<T, E>;

/// A stream, and which part of it becomes a trace. Times are since the start of the trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Rate of the sender, of IP packets.
    pub rate: Rate,
    /// When it begins.
    pub start: Micros,
    /// Length of its intervals.
    pub every: Micros,
    /// From and to: whole intervals after `start`.
    pub window: (Micros, Micros),
    /// Bytes of each packet on the line besides IP: a link that replays the trace has the same.
    pub overhead: Bytes,
}

/// What arrived in one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Its number, from the start of the stream.
    pub seq: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
    /// The sender left out packets, or the receiver's socket dropped some.
    pub is_machine_late: bool,
}

/// A trace, and how many of its rows are what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// A row per interval; of missing intervals, the row before.
    pub trace: Steps,
    /// Rows that are the capacity.
    pub saturated: usize,
    /// Rows that are a lower bound: everything arrived.
    pub unsaturated: usize,
    /// Rows that are a lower bound: the sender or the receiver was late.
    pub late: usize,
    /// Intervals without a row.
    pub missing: usize,
}

/// The trace of a stream's intervals; `None` if there is none in its window. `delay_ns`: the one-way delay in all rows.
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
    let slack = (LATE_PACKETS * PACKET_BYTES).max(offered / LATE_SHARE);
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
        // The first row of a trace begins at zero.
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

    /// The lines of a probe.
    fn of<'a>(&'a self, probe: &'a str) -> impl Iterator<Item = usize> + 'a {
        (0..self.lines.len()).filter(move |line| self.lines.text("probe_id", *line) == probe)
    }

    /// The trace of a stream.
    ///
    /// # Errors
    /// It has no row in its window.
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
        let intervals: Vec<Interval> = self.of(probe).filter_map(interval).collect();
        let none = || RecordedError::NoRows { path: self.path.clone(), probe: probe.to_owned() };
        recording(stream, &intervals, delay_ns).ok_or_else(none)
    }

    /// The round-trip times of the answered echoes that a probe sent in a span, microseconds, ascending.
    pub fn round_trips_us(&self, probe: &str, (from, to): (Micros, Micros)) -> Vec<f64> {
        let span = from.as_secs_f64()..to.as_secs_f64();
        let in_span =
            |line: &usize| self.lines.number("t_s", *line).is_some_and(|at_s| span.contains(&at_s));
        let lines = self.of(probe).filter(in_span);
        let mut found: Vec<f64> =
            lines.filter_map(|line| self.lines.number("rtt_us", line)).collect();
        found.sort_by(f64::total_cmp);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of 1500 bytes per millisecond; from 1 s on for 0.5 s, of a stream that begins at 0.9 s.
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
        // Rates count 1514 bytes per packet. What arrived before the window does not count.
        let bps = |packets: u64| packets * 1514 * 80;
        assert_eq!(rows, [(0, bps(50)), (100, bps(10)), (300, bps(98)), (400, 0)]);
        assert!(trace.steps.iter().all(|step| step.delay_ns == Some(5_000_000)));
        assert_eq!(trace.length_ns, 500_000_000);
    }

    #[test]
    fn a_stream_without_rows_in_the_window_has_no_trace() {
        assert_eq!(recording(&STREAM, &[interval(0, 50), interval(6, 50)], None), None);
        // The first interval of the window is missing: its row is the next one's.
        let late = recording(&STREAM, &[interval(2, 50)], None).unwrap();
        assert_eq!((late.trace.steps[0].at_ns, late.missing), (0, 4));
    }
}
