//! Packet log. Rows pass through a ring buffer from the packet loop to the control side. Rows that do not fit in the ring or exceed the
//! size limit are counted.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ccbench_proto::wire::PacketFate;

use super::header::Ecn;

/// Bytes of a row. The budget counts rows of this size.
pub(crate) const ROW_BYTES: u64 = (WORDS * size_of::<u64>()) as u64;
const WORDS: usize = 6;
/// Capacity of the ring, rows: a quarter of a second of small packets.
const MAX_ROWS: u64 = 1 << 17;
/// Represents `None` for values that are never zero.
const NONE: u64 = 0;

/// The fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Sent,
    /// Lost at random.
    Lost,
    /// Dropped because the queue was full.
    Overlimit,
    /// Dropped because the queue or the link reached its memory limit.
    Overmemory,
    /// Dropped by the AQM's control law.
    Early,
    /// It could not be segmented or was larger than the MTU.
    Unfit,
    /// Rejected by the device.
    Device,
    /// Dropped by the policer.
    Policed,
    /// Dropped by the ACK filter, because a later segment superseded it.
    AckFilter,
}

impl Fate {
    const ALL: [Self; 9] = [
        Self::Sent,
        Self::Lost,
        Self::Overlimit,
        Self::Overmemory,
        Self::Early,
        Self::Unfit,
        Self::Device,
        Self::Policed,
        Self::AckFilter,
    ];

    /// Returns the value for the table `link_packets`.
    pub(crate) fn on_wire(self) -> PacketFate {
        match self {
            Self::Sent => PacketFate::Sent,
            Self::Lost => PacketFate::Lost,
            Self::Overlimit => PacketFate::Overlimit,
            Self::Overmemory => PacketFate::Overmemory,
            Self::Early => PacketFate::Early,
            Self::Unfit => PacketFate::Unfit,
            Self::Device => PacketFate::Device,
            Self::Policed => PacketFate::Policed,
            Self::AckFilter => PacketFate::AckFilter,
        }
    }
}

/// One packet. Times are `CLOCK_MONOTONIC` nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) arrived_ns: u64,
    pub(crate) bytes: u32,
    pub(crate) flow: u32,
    /// ECN field on arrival.
    pub(crate) ecn: Ecn,
    pub(crate) fate: Fate,
    pub(crate) marked: bool,
    pub(crate) passed: Option<Passed>,
}

/// Additional fields of a packet that was not dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passed {
    /// When it entered the queue.
    pub(crate) queued_ns: u64,
    /// Sojourn time there, microseconds.
    pub(crate) waited_us: u32,
    pub(crate) due_ns: u64,
    /// `None` if the device rejected it.
    pub(crate) sent_ns: Option<u64>,
}

impl Row {
    fn words(&self) -> [u64; WORDS] {
        let passed = self.passed;
        let waited_us = passed.map_or(0, |passed| passed.waited_us);
        [
            self.arrived_ns,
            u64::from(self.bytes) << 32 | u64::from(self.flow),
            u64::from(waited_us) << 32
                | u64::from(self.marked) << 16
                | (self.fate as u64) << 8
                | self.ecn as u64,
            passed.map_or(NONE, |passed| passed.queued_ns),
            passed.map_or(NONE, |passed| passed.due_ns),
            passed.and_then(|passed| passed.sent_ns).unwrap_or(NONE),
        ]
    }

    fn of(words: [u64; WORDS]) -> Self {
        let [arrived_ns, sizes, marks, queued_ns, due_ns, sent_ns] = words;
        let passed = (due_ns != NONE).then_some(Passed {
            queued_ns,
            waited_us: (marks >> 32) as u32,
            due_ns,
            sent_ns: (sent_ns != NONE).then_some(sent_ns),
        });
        Self {
            arrived_ns,
            bytes: (sizes >> 32) as u32,
            flow: sizes as u32,
            ecn: Ecn::ALL[(marks & 3) as usize],
            fate: Fate::ALL[(marks >> 8 & 0xff) as usize % Fate::ALL.len()],
            marked: marks >> 16 & 1 == 1,
            passed,
        }
    }
}

/// A ring between two threads: one calls [`Log::write`], the other calls [`Log::read`].
#[derive(Debug)]
pub(crate) struct Log {
    rows: Box<[[AtomicU64; WORDS]]>,
    max_rows: u64,
    written: AtomicU64,
    read: AtomicU64,
    unlogged: AtomicU64,
}

impl Log {
    /// Creates a log for at most `budget_bytes` of rows in total.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        let max_rows = budget_bytes / ROW_BYTES;
        let ring = max_rows.min(MAX_ROWS);
        Self {
            rows: (0..ring).map(|_| Default::default()).collect(),
            max_rows,
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            unlogged: AtomicU64::new(0),
        }
    }

    /// Appends a row, or counts it if there is no space. Neither allocates nor blocks.
    pub(crate) fn write(&self, row: &Row) {
        let written = self.written.load(Relaxed);
        let waiting = written - self.read.load(Acquire);
        if written >= self.max_rows || waiting >= self.rows.len() as u64 {
            self.unlogged.store(self.unlogged.load(Relaxed) + 1, Relaxed);
            return;
        }
        let place = &self.rows[(written % self.rows.len() as u64) as usize];
        for (word, value) in place.iter().zip(row.words()) {
            word.store(value, Relaxed);
        }
        self.written.store(written + 1, Release);
    }

    /// Takes the next row.
    pub(crate) fn read(&self) -> Option<Row> {
        let read = self.read.load(Relaxed);
        if read == self.written.load(Acquire) {
            return None;
        }
        let place = &self.rows[(read % self.rows.len() as u64) as usize];
        let row = Row::of(std::array::from_fn(|nth| place[nth].load(Relaxed)));
        self.read.store(read + 1, Release);
        Some(row)
    }

    /// Returns the number of rows written and the number of packets for which there was no space.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.written.load(Relaxed), self.unlogged.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(arrived_ns: u64) -> Row {
        let (ecn, fate) = (Ecn::Ect1, Fate::Early);
        Row { arrived_ns, bytes: 1514, flow: 7, ecn, fate, marked: false, passed: None }
    }

    #[test]
    fn counts_rows_that_do_not_fit() {
        let log = Log::new(3 * ROW_BYTES + 1);
        (1..=5).for_each(|nth| log.write(&row(nth)));
        assert_eq!(log.counts(), (3, 2));
        assert_eq!(log.read(), Some(row(1)));
        // The budget is used up, although the ring has space left.
        log.write(&row(6));
        assert_eq!(log.counts(), (3, 3));
        assert_eq!([log.read(), log.read(), log.read()], [Some(row(2)), Some(row(3)), None]);
    }

    #[test]
    fn zero_budget_only_counts() {
        let log = Log::new(0);
        log.write(&row(1));
        assert_eq!((log.counts(), log.read()), ((0, 1), None));
    }

    #[test]
    fn ring_wraps_between_two_threads() {
        const ROWS: u64 = 400_000;
        let log = Log::new(u64::MAX);
        let (sum, count) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| (1..=ROWS).for_each(|nth| log.write(&row(nth))));
            let (mut last, mut count) = (0, 0);
            loop {
                let ended = writer.is_finished();
                match log.read() {
                    Some(found) => {
                        assert_eq!(found, row(found.arrived_ns));
                        assert!(found.arrived_ns > last, "out of order");
                        (last, count) = (found.arrived_ns, count + 1);
                    }
                    None if ended => break,
                    None => std::thread::yield_now(),
                }
            }
            (log.counts(), count)
        });
        assert_eq!(sum.0, count);
        assert_eq!(sum.0 + sum.1, ROWS);
        assert!(count >= MAX_ROWS);
    }

    proptest! {
        #[test]
        fn rows_round_trip(
            (arrived_ns, bytes, flow) in any::<(u64, u32, u32)>(),
            (ecn, fate, marked) in (0..4_usize, 0..Fate::ALL.len(), any::<bool>()),
            passed in proptest::option::of((any::<u64>(), any::<u32>(), 1..u64::MAX, proptest::option::of(1..u64::MAX))),
        ) {
            let passed = passed.map(|(queued_ns, waited_us, due_ns, sent_ns)| {
                Passed { queued_ns, waited_us, due_ns, sent_ns }
            });
            let (ecn, fate) = (Ecn::ALL[ecn], Fate::ALL[fate]);
            let row = Row { arrived_ns, bytes, flow, ecn, fate, marked, passed };
            prop_assert_eq!(Row::of(row.words()), row);
        }
    }
}
