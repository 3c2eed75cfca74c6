//! Reads a file with lines of any of the known tools. Pure.

use super::iperf3::{Numbering, Report};
use super::iperf3_text::{Test, Tests};
use super::named::RECORD_SEPARATOR;
use super::stamp::{self, BaseDate};
use super::{flent, iperf3, ping, qlog, ss};

pub use super::found::{Found, MAX_ROWS, MAX_UNREAD, NamedRows, Unread};

/// Longest line outside of a `-J` document that is read, in bytes: 1024 streams have 500 kB.
pub const MAX_LINE_BYTES: usize = 1 << 20;
/// Maximum number of characters shown of a line, or of its problem.
const SHOWN_CHARS: usize = 80;
/// The problem of the lines after [`MAX_ROWS`].
const TOO_MANY: &str = "the file has more than 1048576 rows; split it";

/// Numbers streams in the order in which they are listed.
const AS_LISTED: Numbering = Numbering { client_port: 0, count: 0, listens: false };

/// Parses a file of any supported tool.
pub fn read(bytes: &[u8], base: BaseDate) -> Found {
    if let Some(found) = read_document(bytes) {
        return found;
    }
    let mut reader = TextReader { base, scan_bytes: SCANS * bytes.len(), ..Default::default() };
    let mut at = 0;
    let mut number = 0;
    while at < bytes.len() {
        number += 1;
        let end = bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| at + n);
        let whole = end < bytes.len();
        let line = String::from_utf8_lossy(&bytes[at..end.min(at + MAX_LINE_BYTES)]);
        let (stamp, rest) = split(&line, base);
        if rest.trim_start().starts_with('{') && !is_event(rest) {
            let taken = reader.document(number, &bytes[at..]);
            number += bytes[at..at + taken].iter().filter(|&&b| b == b'\n').count() as u64;
            at += taken;
            // The rest of the document's last line.
            let end = bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| at + n);
            if end - at > MAX_LINE_BYTES {
                reader.long(number);
            } else {
                let behind = String::from_utf8_lossy(&bytes[at..end]);
                reader.line(number, None, &behind, end < bytes.len());
            }
            at = end + 1;
            continue;
        }
        match end - at > MAX_LINE_BYTES {
            true => reader.long(number),
            false => reader.torn(number, stamp, rest, whole),
        }
        at = end + 1;
    }
    reader.finish()
}

/// Reads a flent or qlog file; `None` if it is neither.
fn read_document(bytes: &[u8]) -> Option<Found> {
    let begin = bytes.trim_ascii_start();
    let has = |key: &[u8]| begin.windows(key.len()).any(|part| part == key);
    let reading = match *begin.first()? {
        b'{' if has(b"\"x_values\"") && has(b"\"results\"") => flent::read(begin),
        b'{' | RECORD_SEPARATOR if has(b"\"qlog_version\"") || has(b"\"urn:ietf:params:qlog") => {
            qlog::read(begin)
        }
        _ => return None,
    };
    let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    Some(reading.finish(lines.count() as u64))
}

fn split(line: &str, base: BaseDate) -> (Option<u64>, &str) {
    stamp::strip(line, base).map_or((None, line), |(at_ns, rest)| (Some(at_ns), rest))
}

/// The beginning of a line.
fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(4 * SHOWN_CHARS)]).into_owned()
}

/// Whether the text is a line of `--json-stream`.
fn is_event(text: &str) -> bool {
    let inner = text.trim_start().trim_start_matches('{').trim_start();
    inner.starts_with("\"event\"")
}

#[derive(Default)]
struct TextReader {
    base: BaseDate,
    found: Found,
    sockets: ss::Pairing,
    tests: Tests,
    pings: ping::PingRuns,
    /// The report of `--json-stream` lines.
    stream: Option<Test>,
    /// Rows so far.
    rows: usize,
    /// Bytes that may still be scanned for the ends of apparent documents.
    scan_bytes: usize,
}

/// This scan may cover a file's length that many times.
const SCANS: usize = 16;

impl TextReader {
    /// Reads a document of `-J`. Returns its length in bytes.
    fn document(&mut self, number: u64, bytes: &[u8]) -> usize {
        let open = bytes.iter().position(|&b| b == b'{').unwrap_or(0);
        // Within a report, braces are indented. One at a line's beginning belongs to another report, and this one was cut.
        let bound = bytes.len().min(open + self.scan_bytes);
        let next = bytes[open..bound].windows(2).position(|two| two == b"\n{");
        let scanned = next.unwrap_or(bound - open);
        let full = self.rows >= MAX_ROWS;
        let (taken, whole) = iperf3::document(&bytes[open..open + scanned]);
        let text = &bytes[open..open + taken];
        let report = match full {
            true => Report::default(),
            false => Report::from_json(text, AS_LISTED),
        };
        let empty = report.intervals.is_empty() && report.error.is_none() && !report.complete;
        if empty && report.streams.is_empty() {
            // This is not a report. The lines after this one are read by themselves.
            self.scan_bytes -= scanned;
            let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
            self.found.lines += 1;
            let reason = if full { TOO_MANY } else { "JSON, but not an iperf3 report" };
            self.unread(number, &shown(line), reason);
            return line.len();
        }
        let lines = text.split(|&b| b == b'\n').filter(|line| !line.trim_ascii().is_empty());
        self.found.lines += lines.count() as u64;
        if !whole || !report.complete && report.error.is_none() {
            let last = number + text.iter().filter(|&&b| b == b'\n').count() as u64;
            let kept = report.intervals.len();
            self.unread(last, "", &format!("the report ends here; {kept} intervals are kept"));
        }
        self.rows += 1 + report.intervals.len();
        let (mut line, mut before) = (number, 0);
        for part in &report.unread {
            line += text[before..part.at].iter().filter(|&&b| b == b'\n').count() as u64;
            before = part.at;
            self.unread(line, "", &format!("{}; the rest is kept", part.reason));
        }
        self.found.tests.push(Test::new(number, report));
        open + taken
    }

    /// Reads a line that may consist of two torn ones.
    fn torn(&mut self, number: u64, mut at_ns: Option<u64>, mut text: &str, whole: bool) {
        while let Some(at) = stamp::torn_at(text) {
            let (first, second) = text.split_at(at);
            // The lines were joined on purpose (`sed 's/<->\n//'`), or torn.
            let joined = first.trim_end().ends_with("<->") || first.ends_with(char::is_whitespace);
            self.line(number, at_ns, first, joined);
            let (stamp, rest) = split(second, self.base);
            (at_ns, text) = (stamp.or(at_ns), rest);
        }
        self.line(number, at_ns, text, whole);
    }

    /// Records a line that is not a document and longer than any tool's lines.
    fn long(&mut self, number: u64) {
        self.found.lines += 1;
        self.unread(number, "", "longer than 1 MiB");
    }

    /// Reads one line, or one part of a torn line. `whole`: it ends where its writer ended it.
    fn line(&mut self, number: u64, at_ns: Option<u64>, text: &str, whole: bool) {
        if text.trim().is_empty() {
            return;
        }
        self.found.lines += 1;
        if self.rows >= MAX_ROWS {
            return self.unread(number, text, TOO_MANY);
        }
        if is_event(text) {
            return self.event(number, at_ns, text);
        }
        if let Some(line) = ss::line(text, !whole) {
            let reason = match &line {
                ss::Line::Info(info) | ss::Line::Socket(_, Some(info)) => {
                    info.unread_reason.clone()
                }
                _ => None,
            };
            if let Some(reason) = reason {
                self.unread(number, text, &format!("{reason}; the rest is kept"));
            }
            self.rows += usize::from(!matches!(line, ss::Line::Socket(_, None) | ss::Line::Other));
            self.sockets.take(number, at_ns, line);
        } else if self.tests.take(number, at_ns, text) || self.pings.take(number, at_ns, text) {
            self.rows += 1;
        } else {
            let reason =
                if whole { "not a line of ss, iperf3 or ping" } else { "it ends in the middle" };
            self.unread(number, text, reason);
        }
    }

    /// Reads a line of `--json-stream`.
    fn event(&mut self, number: u64, at_ns: Option<u64>, text: &str) {
        let bytes = text.trim().as_bytes();
        if !iperf3::document(bytes).1 {
            return self.unread(number, text, "it ends in the middle");
        }
        let begins = text.contains("\"event\"")
            && text.split("\"start\"").next().is_some_and(|b| b.len() < 20);
        if begins && let Some(done) = self.stream.take() {
            self.found.tests.push(done);
        }
        let test = self.stream.get_or_insert_with(|| Test::new(number, Report::default()));
        self.rows += 1;
        let before = test.report.intervals.len();
        let known = test.report.on_line(bytes, AS_LISTED).is_some();
        let last = test.report.intervals[before..].iter().map(|i| i.values.end).next_back();
        self.rows += test.report.intervals.len() - before;
        if let Some(end_s) = last {
            test.stamp(at_ns, end_s);
        }
        if !known {
            self.unread(
                number,
                text,
                "an iperf3 event that can be read only in part or not at all",
            );
        }
    }

    fn unread(&mut self, line: u64, text: &str, reason: &str) {
        if self.found.unread.len() >= MAX_UNREAD {
            self.found.more_unread += 1;
            return;
        }
        let clip = |text: &str| text.trim().chars().take(SHOWN_CHARS).collect();
        self.found.unread.push(Unread { line, text: clip(text), reason: clip(reason) });
    }

    fn finish(mut self) -> Found {
        self.found.tests.extend(self.stream.take());
        let (tests, endless) = std::mem::take(&mut self.tests).finish();
        self.found.tests.extend(tests);
        for line in endless {
            self.unread(line, "", "a total without \"sender\" or \"receiver\"");
        }
        self.found.tests.sort_by_key(|test| test.line);
        let (rows, alone) = std::mem::take(&mut self.sockets).finish();
        for line in alone {
            self.unread(line, "", "the line with this socket's numbers is missing");
        }
        for row in rows.iter().filter(|row| row.socket.is_none()) {
            self.unread(
                row.line,
                "",
                "the socket of the line is unknown; it is kept under `unknown`",
            );
        }
        self.found.sockets = rows;
        let (pings, wrong) = std::mem::take(&mut self.pings).finish();
        for line in wrong {
            self.unread(
                line,
                "",
                "ping's total time is impossible; its requests are placed a second apart",
            );
        }
        self.found.pings = pings;
        self.found.unread.sort_by_key(|unread| unread.line);
        self.found
    }
}

#[cfg(test)]
mod tests;
