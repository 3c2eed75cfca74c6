//! A running link: reads and writes its counters at every interval, and ends it in order.

use std::time::Duration;

use ccbench_proto::column_text::ColumnText as _;
use ccbench_shaper::Link;

use super::args::{Args, Start};
use super::error::LinkError;
use super::output::Output;
use super::report::{Interval, Name, Reading};
use super::signals::{ReceivedSignal, Signals};
use crate::clock;

/// How often packets and changes are read from the links, whose buffers are limited.
const FETCH: Duration = Duration::from_millis(50);

/// One direction.
pub(crate) struct Direction {
    name: Name,
    link: Box<dyn Link>,
    first: Reading,
    last: Reading,
}

impl Direction {
    /// Wraps a link that has just been created.
    pub(crate) fn new(name: Name, link: Box<dyn Link>) -> Self {
        Self { name, link, first: Reading::default(), last: Reading::default() }
    }

    /// Describes it for people.
    pub(crate) fn describe(&self) -> String {
        let state = self.link.state();
        let Name { direction, from, to } = &self.name;
        let reason = state.reason_text();
        let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        let backend = state.backend().as_text();
        format!("{direction} ({from} → {to}): {backend}{reason}: {}", state.qdiscs.join("; "))
    }

    fn read(&mut self, at_ns: u64) -> Result<Reading, LinkError> {
        let (mut rows, mut timing) = (Vec::new(), Vec::new());
        let flag = || format!("the link {}", self.name.direction);
        self.link.counters(at_ns, &mut rows).map_err(LinkError::shaper(flag()))?;
        self.link.timing(&mut timing);
        Ok(Reading::new(at_ns, &rows, &timing))
    }
}

/// A running link with all its directions, and the output of its statistics.
pub(crate) struct LinkSession {
    directions: Vec<Direction>,
    output: Output,
    interval_ns: u64,
    began_ns: u64,
    /// When it ends on its own.
    end_ns: u64,
}

impl LinkSession {
    /// Starts the counters and the traces.
    ///
    /// # Errors
    /// A link does not answer, or the time of `--start` has passed.
    pub(crate) fn begin(
        args: &Args,
        mut directions: Vec<Direction>,
        output: Output,
    ) -> Result<Self, LinkError> {
        let (now_ns, real_ns) = clock::now_both_ns();
        let start_ns = match args.start {
            Start::Now | Start::FirstPacket => now_ns,
            Start::At(at_ns) => {
                let ahead_ns = i128::from(at_ns) - i128::from(real_ns);
                let ahead_ns = u64::try_from(ahead_ns).map_err(|_| LinkError::Flag {
                    flag: "--start".to_owned(),
                    reason: "this time has already passed; choose a later one".to_owned(),
                })?;
                now_ns.saturating_add(ahead_ns)
            }
        };
        for one in &mut directions {
            one.link.begin(start_ns).map_err(LinkError::shaper("--trace"))?;
            one.first = one.read(now_ns)?;
            one.last = one.first.clone();
        }
        let end_ns = args.length.map_or(u64::MAX, |length| now_ns.saturating_add(length.nanos()));
        let interval_ns = args.interval.nanos();
        Ok(Self { directions, output, interval_ns, began_ns: now_ns, end_ns })
    }

    /// Runs until `on_signal` returns an exit code or the time is over (exit code 0), then writes the totals.
    ///
    /// # Errors
    /// A link failed, or the statistics cannot be written.
    pub(crate) fn run(
        mut self,
        signals: &Signals,
        mut on_signal: impl FnMut(ReceivedSignal) -> Option<u8>,
    ) -> Result<u8, LinkError> {
        let mut next_ns = clock::next_due_ns(self.began_ns, self.interval_ns, self.began_ns);
        let code = loop {
            let now_ns = clock::now_ns();
            self.fetch()?;
            if now_ns >= self.end_ns {
                break 0;
            }
            if now_ns >= next_ns {
                self.report(now_ns)?;
                // Merge missed intervals into one.
                next_ns = clock::next_due_ns(next_ns, self.interval_ns, now_ns);
            }
            let mut limit = clock::until(next_ns.min(self.end_ns));
            if self.output.wants_packets() {
                limit = limit.min(FETCH);
            }
            if let Some(received) = signals.wait(limit)?
                && let Some(code) = on_signal(received)
            {
                break code;
            }
        };
        self.finish()?;
        Ok(code)
    }

    /// Reads the packets and changes recorded by the links since the last call.
    fn fetch(&mut self) -> Result<(), LinkError> {
        let (mut packets, mut changes) = (Vec::new(), Vec::new());
        for one in &mut self.directions {
            // The timing counts the changes made by a trace.
            one.link.changes(&mut changes);
            if self.output.wants_packets() {
                one.link.packets(&mut packets);
                self.output.packets(one.name.direction, &packets)?;
                packets.clear();
            }
        }
        Ok(())
    }

    fn report(&mut self, now_ns: u64) -> Result<(), LinkError> {
        let mut readings = Vec::new();
        for one in &mut self.directions {
            readings.push(one.read(now_ns)?);
        }
        let intervals: Vec<Interval<'_>> = self
            .directions
            .iter()
            .zip(&readings)
            .map(|(one, now)| Interval {
                name: &one.name,
                began_ns: self.began_ns,
                before: &one.last,
                now,
            })
            .collect();
        self.output.interval(&intervals)?;
        for (one, now) in self.directions.iter_mut().zip(readings) {
            one.last = now;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), LinkError> {
        let now_ns = clock::now_ns();
        for one in &mut self.directions {
            one.last = one.read(now_ns)?;
        }
        self.fetch()?;
        let intervals: Vec<Interval<'_>> = self
            .directions
            .iter()
            .map(|one| Interval {
                name: &one.name,
                began_ns: self.began_ns,
                before: &one.first,
                now: &one.last,
            })
            .collect();
        self.output.totals(&intervals)?;
        for one in &mut self.directions {
            one.link.remove().map_err(LinkError::shaper("end the link"))?;
        }
        Ok(())
    }
}
