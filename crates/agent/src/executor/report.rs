//! Reads the report of a traffic generator with bounded memory, whatever its length.

use std::collections::BTreeMap;
use std::io::{self, Read};

use ccbench_proto::tools::iperf3::{IntervalValues, Numbering, Report, StreamInterval};

use crate::flow::document::Document;
use crate::flow::output::Output;

/// Intervals of a report that are kept as they are: 2 MB. More than the samples cover that place the report in time.
const KEPT_INTERVALS: usize = 8192;
/// Length of a piece of the output that is read at once.
const PIECE_BYTES: usize = 64 << 10;

/// A report that keeps the first intervals. Of each stream, it keeps the later ones as two: the last one, and one with the time and the
/// bytes of those before it.
#[derive(Debug, Default)]
pub struct BoundedReport {
    /// The report.
    pub report: Report,
    /// Lines that could not be read.
    pub unread: u32,
    /// Where the merged interval of a stream is, and its last one; the same if nothing is merged.
    merged: BTreeMap<u32, (usize, usize)>,
}

impl BoundedReport {
    /// Reads a line of `--json-stream`. Returns the intervals that it adds.
    pub fn on_line(&mut self, line: &[u8], numbering: Numbering) -> Vec<StreamInterval> {
        let known = self.report.intervals.len();
        self.unread += u32::from(self.report.on_line(line, numbering).is_none());
        let added = self.report.intervals[known..].to_vec();
        if self.report.intervals.len() > KEPT_INTERVALS {
            self.merge(known.max(KEPT_INTERVALS));
        }
        added
    }

    /// Merges the intervals from this position on into those before.
    fn merge(&mut self, from: usize) {
        let intervals = &mut self.report.intervals;
        for interval in intervals.split_off(from) {
            let next = intervals.len();
            let (merged, last) = *self.merged.entry(interval.stream).or_insert((next, next));
            if last == next || merged == last {
                self.merged.insert(interval.stream, (merged, next));
                intervals.push(interval);
            } else {
                let before = std::mem::replace(&mut intervals[last], interval);
                append(&mut intervals[merged].values, &before.values);
            }
        }
    }
}

/// Extends an interval by the next one: its time and its bytes.
fn append(interval: &mut IntervalValues, next: &IntervalValues) {
    interval.end = next.end;
    interval.seconds += next.seconds;
    interval.bytes += next.bytes;
}

/// Reads a report that is one document, piece by piece.
#[derive(Debug)]
pub struct Pieces<R> {
    reader: R,
    document: Document,
}

/// Returns the pieces of an output that is one document.
///
/// # Errors
/// The output cannot be read.
pub fn pieces(output: &mut Output) -> io::Result<Pieces<impl Read + Send>> {
    Ok(Pieces { reader: output.reader()?, document: Document::default() })
}

impl<R: Read> Pieces<R> {
    /// Returns the lines of the next piece; `None` at the end. Other tasks run before it is read.
    ///
    /// # Errors
    /// The output cannot be read.
    pub async fn next(&mut self) -> io::Result<Option<Vec<Vec<u8>>>> {
        tokio::task::yield_now().await;
        let mut piece = Vec::new();
        self.reader.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
        Ok((!piece.is_empty()).then(|| self.document.split(&piece)))
    }
}

/// Reads a report that is one document.
///
/// # Errors
/// The output cannot be read.
pub async fn read(output: &mut Output, numbering: Numbering) -> io::Result<BoundedReport> {
    let mut report = BoundedReport::default();
    let mut pieces = pieces(output)?;
    while let Some(lines) = pieces.next().await? {
        for line in lines {
            report.on_line(&line, numbering);
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAMS: u32 = 3;
    const NUMBERING: Numbering = Numbering { client_port: 10_000, count: STREAMS, listens: false };

    /// A document with this many intervals of three streams; in interval `i`, stream `s` moves `1000 * i + s` bytes.
    fn document(intervals: u32) -> String {
        let interval = |i: u32| {
            let stream = |s: u32| {
                let (start, end, bytes) =
                    (f64::from(i) / 10.0, f64::from(i + 1) / 10.0, 1000 * i + s);
                format!(r#"{{"start":{start},"end":{end},"seconds":0.1,"bytes":{bytes}}}"#)
            };
            let streams: Vec<String> = (0..STREAMS).map(stream).collect();
            format!(r#"{{"streams":[{}]}}"#, streams.join(","))
        };
        let intervals: Vec<String> = (0..intervals).map(interval).collect();
        format!(r#"{{"start":{{}},"intervals":[{}],"end":{{}}}}"#, intervals.join(","))
    }

    #[tokio::test]
    async fn a_long_report_needs_no_memory_for_its_length() {
        const INTERVALS: u32 = 20_000;
        let text = document(INTERVALS);
        let mut output = Output::from(text.as_str());
        let read = read(&mut output, NUMBERING).await.unwrap();
        let kept = &read.report.intervals;
        assert_eq!(kept.len(), KEPT_INTERVALS + 2 * STREAMS as usize);
        assert_eq!((read.unread, read.report.complete), (0, true));
        let whole = Report::from_json(text.as_bytes(), NUMBERING);
        assert_eq!(kept[..KEPT_INTERVALS], whole.intervals[..KEPT_INTERVALS]);
        for stream in 0..STREAMS {
            let of = |report: &Report| {
                let own = || report.intervals.iter().filter(|i| i.stream == stream);
                let bytes: f64 = own().map(|i| i.values.bytes).sum();
                (bytes, own().next_back().cloned())
            };
            assert_eq!(of(&read.report), of(&whole), "stream {stream}");
            let own = kept.iter().filter(|i| i.stream == stream);
            let times: Vec<(f64, f64)> = own.map(|i| (i.values.start, i.values.end)).collect();
            assert!(times.windows(2).all(|pair| pair[0].1 == pair[1].0), "there is no gap");
        }
    }

    #[tokio::test]
    async fn every_interval_is_returned_once() {
        const INTERVALS: u32 = 5000;
        let mut output = Output::from(document(INTERVALS).as_str());
        let (mut report, mut bytes, mut count) = (BoundedReport::default(), 0.0, 0);
        let mut pieces = pieces(&mut output).unwrap();
        while let Some(lines) = pieces.next().await.unwrap() {
            for line in lines {
                let added = report.on_line(&line, NUMBERING);
                count += added.len();
                bytes += added.iter().map(|i| i.values.bytes).sum::<f64>();
            }
        }
        assert_eq!(count, (INTERVALS * STREAMS) as usize);
        let expected = f64::from(INTERVALS * (INTERVALS - 1) / 2) * 1000.0 * f64::from(STREAMS);
        assert_eq!(bytes, expected + f64::from(INTERVALS * (1 + 2)));
    }
}
