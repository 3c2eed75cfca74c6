//! Reads the output of ping(8) (iputils, busybox). Pure.

use std::collections::BTreeMap;

use super::{LONGEST_S, truncate};

/// Limit of sequence numbers: at one request per second, a run lasts less than [`LONGEST_S`].
const MAX_SEQ: u32 = 1 << 26;

/// The pings of a text, in order.
#[derive(Debug, Default)]
pub struct PingRuns(Vec<PingRun>);

/// One run of ping.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PingRun {
    /// Its first line, from 1.
    pub line: u64,
    /// The host, as typed.
    pub host: String,
    /// By ping's sequence number, continued after it wraps.
    pub replies: BTreeMap<u32, Reply>,
    /// Requests sent, from ping's last lines.
    pub transmitted: Option<u32>,
    /// Its duration in milliseconds, from ping's last lines.
    pub took_ms: Option<f64>,
    /// Minimum, mean, maximum and deviation in milliseconds, from ping's summary; used if single replies are missing.
    pub summary_ms: Option<[f64; 4]>,
    last: u32,
}

/// One reply.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reply {
    /// When it arrived, in nanoseconds since 1970, if the line has a time.
    pub at_ns: Option<u64>,
    /// Round-trip time in microseconds; `None` if there was no reply.
    pub rtt_us: Option<f64>,
}

impl PingRuns {
    /// Takes a line without its time stamp; `false` if ping did not write it.
    pub fn take(&mut self, number: u64, at_ns: Option<u64>, text: &str) -> bool {
        // A text that went through Markdown may have escaped underscores and stars.
        let clean = text.replace("\\_", "_").replace("**", "");
        let line = clean.trim();
        if let Some(rest) = line.strip_prefix("PING ") {
            let host = truncate(rest.split([' ', '(', ':']).next().unwrap_or_default());
            self.0.push(PingRun { line: number, host, ..Default::default() });
            return true;
        }
        if let Some(seq) = after(line, "icmp_seq=").or_else(|| after(line, " seq=")) {
            return self.answer(number, at_ns, line, seq);
        }
        if line.starts_with("--- ") && line.contains("ping statistics") {
            if self.0.is_empty() {
                self.session(number, "");
            }
            return true;
        }
        self.last_lines(number, line)
    }

    fn session(&mut self, number: u64, host: &str) -> &mut PingRun {
        let over = self.0.last().is_none_or(|s| s.transmitted.is_some());
        if over {
            self.0.push(PingRun { line: number, host: host.to_owned(), ..Default::default() });
        }
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Takes a line with a sequence number.
    fn answer(&mut self, number: u64, at_ns: Option<u64>, line: &str, seq: u32) -> bool {
        let refused = ["no answer yet", "From ", "Request timeout"];
        let rtt_us = match after_decimal(line, "time=").or_else(|| after_decimal(line, "time<")) {
            Some(ms) => Some(ms * 1e3),
            None if refused.iter().any(|begin| line.starts_with(begin)) => None,
            None => return false,
        };
        let host = line.split("from ").nth(1).and_then(|rest| rest.split([' ', ':']).next());
        let session = self.session(number, host.unwrap_or_default());
        let Some(seq) = session.count_on(seq) else { return false };
        let reply = Reply { at_ns, rtt_us };
        let known = session.replies.entry(seq).or_insert(reply);
        // The first reply counts, not a duplicate, and it replaces "no answer yet".
        if known.rtt_us.is_none() {
            *known = reply;
        }
        true
    }

    fn last_lines(&mut self, number: u64, line: &str) -> bool {
        if let Some((sent, rest)) = line.split_once(" packets transmitted, ") {
            let Some(sent) = sent.parse().ok().filter(|sent| *sent < MAX_SEQ) else { return false };
            let session = self.session(number, "");
            session.transmitted = Some(sent);
            session.took_ms = after_decimal(rest, "time ");
            return true;
        }
        let times = ["rtt min/avg/max/mdev = ", "round-trip min/avg/max = "];
        if let Some(rest) = times.iter().find_map(|begin| line.strip_prefix(begin)) {
            let numbers = rest.split([' ', '/']).map_while(decimal).collect::<Vec<_>>();
            if let Some(last) = self.0.last_mut()
                && let [least, mean, most, ref deviation @ ..] = numbers[..]
            {
                let deviation = deviation.first().copied().unwrap_or(f64::NAN);
                last.summary_ms = Some([least, mean, most, deviation]);
                return true;
            }
        }
        false
    }

    /// Returns all runs, and the lines of those with an impossible duration, whose requests count as one second apart.
    pub fn finish(mut self) -> (Vec<PingRun>, Vec<u64>) {
        let mut wrong = vec![];
        for session in &mut self.0 {
            let last = session.replies.keys().next_back().copied().unwrap_or(0);
            let last = last.max(session.transmitted.unwrap_or(0));
            let length_s = session.interval_ns() as f64 * f64::from(last) / 1e9;
            if length_s > LONGEST_S {
                session.took_ms = None;
                wrong.push(session.line);
            }
        }
        (self.0, wrong)
    }
}

impl PingRun {
    /// Continues a sequence number that has wrapped; `None` if ping cannot have sent that many requests.
    fn count_on(&mut self, seq: u32) -> Option<u32> {
        const ROUND: u32 = 1 << 16;
        if seq >= ROUND {
            return (seq < MAX_SEQ).then_some(seq);
        }
        let round = self.last / ROUND * ROUND;
        let mut counted = round + seq;
        if counted + ROUND / 2 < self.last {
            counted += ROUND;
        } else if counted > self.last + ROUND / 2 && round > 0 {
            counted -= ROUND;
        }
        if counted >= MAX_SEQ {
            return None;
        }
        self.last = self.last.max(counted);
        Some(counted)
    }

    /// Time between two requests in nanoseconds: from the last lines, otherwise a second.
    pub fn interval_ns(&self) -> u64 {
        match (self.transmitted, self.took_ms) {
            (Some(sent), Some(ms)) if sent > 1 => (ms * 1e6 / f64::from(sent - 1)) as u64,
            _ => 1_000_000_000,
        }
    }

    /// The number of the first request: iputils counts from 1, busybox from 0.
    pub fn first(&self) -> u32 {
        u32::from(!self.replies.contains_key(&0))
    }

    /// Requests without a reply, known from the last lines or from a later reply. At most a million are
    /// returned.
    pub fn unanswered(&self) -> Vec<u32> {
        const MAX_UNANSWERED: u32 = 1 << 20;
        if self.replies.is_empty() {
            return vec![];
        }
        let last = self.replies.keys().next_back().map_or(0, |last| last + 1);
        let sent = self.transmitted.map_or(0, |sent| sent.saturating_add(self.first()));
        // If the text is an excerpt, most missing replies are not lost packets.
        let excerpt = self.replies.keys().next().is_some_and(|first| *first > self.first());
        let (begin, end) = if excerpt { (last, last) } else { (self.first(), last.max(sent)) };
        let sent = begin..end.min(begin.saturating_add(MAX_UNANSWERED));
        sent.filter(|seq| !self.replies.contains_key(seq)).collect()
    }
}

fn after(line: &str, key: &str) -> Option<u32> {
    let (_, rest) = line.split_once(key)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn after_decimal(line: &str, key: &str) -> Option<f64> {
    let (_, rest) = line.split_once(key)?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let unit = rest[end..].trim_start();
    // `time 59075ms`, `time=20.5 ms`; without its unit the number may have been cut.
    decimal(&rest[..end]).filter(|_| unit.starts_with("ms"))
}

fn decimal(text: &str) -> Option<f64> {
    let right = text.starts_with(|c: char| c.is_ascii_digit());
    right.then(|| text.parse::<f64>().ok())?.filter(|number| number.is_finite() && *number < 1e9)
}

#[cfg(test)]
mod tests;
