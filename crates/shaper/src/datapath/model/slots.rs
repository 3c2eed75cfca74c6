//! Slots: times at which the line may begin to transmit what is in the queue, as one burst.
//!
//! A slot carries the packets that are in the queue when it begins: at most the plan's `packets`, up to the packet that reaches its
//! `bytes`. Packets that enter the queue later wait for the next slot, even if the queue drops packets of this one. Dropped packets do not
//! count against `packets` and `bytes`. A slot in which no packet leaves is unused. If the line still transmits the packets of a slot when
//! the next is due, the next one begins when that ends.

use ccbench_proto::plan::Slot;
use ccbench_proto::units::{Bytes, Micros, Packets};

use crate::datapath::random::{Purpose, Random};

/// The slots of a line.
#[derive(Debug)]
pub(super) struct Slots {
    every_ns: u64,
    /// Maximum addition to the time between two slots.
    range_ns: u64,
    max_packets: u64,
    max_bytes: u64,
    random: Random,
    /// When the current slot began.
    began_ns: u64,
    /// When the next slot begins.
    next_ns: u64,
    /// Packets that were in the queue when the slot began and still are.
    queued_left: u64,
    /// Packets and bytes that may still leave in this slot.
    packets_left: u64,
    bytes_left: u64,
    /// Slots in which packets left.
    used: u64,
}

impl Slots {
    /// Creates the slots; the first begins at zero of the clock.
    pub(super) fn new(slot: &Slot, seed: u64) -> Self {
        let every_ns = slot.every.nanos().max(1);
        let max_ns = slot.max.map_or(every_ns, Micros::nanos);
        Self {
            every_ns,
            range_ns: max_ns.saturating_sub(every_ns),
            max_packets: slot.packets.map_or(u64::MAX, |packets| u64::from(Packets::get(packets))),
            max_bytes: slot.bytes.map_or(u64::MAX, Bytes::get),
            random: Random::new(seed, Purpose::Slot),
            began_ns: 0,
            next_ns: 0,
            queued_left: 0,
            packets_left: 0,
            bytes_left: 0,
            used: 0,
        }
    }

    /// Draws the time to the next slot.
    fn draw_ns(&mut self) -> u64 {
        let more = match self.range_ns {
            0 => 0,
            range_ns => (u128::from(self.random.draw()) * (u128::from(range_ns) + 1)) >> 64,
        };
        self.every_ns + more as u64
    }

    /// A packet enters the empty queue of an idle line: the slots until `now_ns` have passed unused.
    pub(super) fn skip(&mut self, now_ns: u64) {
        if self.range_ns == 0 && self.next_ns <= now_ns {
            let passed = (now_ns - self.next_ns) / self.every_ns + 1;
            self.next_ns = self.next_ns.saturating_add(passed.saturating_mul(self.every_ns));
        }
        // After a long time without packets (zero of the clock may be long ago), the last slots are enough.
        let longest_ns = self.every_ns.saturating_add(self.range_ns);
        let from_ns = now_ns.saturating_sub(longest_ns.saturating_mul(1_000));
        self.next_ns = self.next_ns.max(from_ns);
        while self.next_ns <= now_ns {
            self.next_ns = self.next_ns.saturating_add(self.draw_ns());
        }
    }

    /// Returns whether the line may transmit the next of `queued` packets at `now_ns`. If not, the error is when to ask again;
    /// `u64::MAX`: when a packet enters.
    pub(super) fn open(&mut self, now_ns: u64, queued: u64) -> Result<(), u64> {
        if queued == 0 {
            self.queued_left = 0;
            return Err(u64::MAX);
        }
        if self.queued_left > 0 && self.packets_left > 0 && self.bytes_left > 0 {
            return Ok(());
        }
        if now_ns < self.next_ns {
            return Err(self.next_ns);
        }
        self.skip(now_ns);
        self.began_ns = now_ns;
        self.queued_left = queued;
        self.packets_left = self.max_packets;
        self.bytes_left = self.max_bytes;
        Ok(())
    }

    /// Records that this many packets have left the queue, both dropped ones and the one that the line transmits, whose size is
    /// `sent_bytes`.
    pub(super) fn dequeued(&mut self, packets: u64, sent_bytes: Option<u32>) {
        self.queued_left = self.queued_left.saturating_sub(packets);
        let Some(bytes) = sent_bytes else { return };
        // The first packet of this slot.
        self.used += u64::from(self.packets_left == self.max_packets);
        self.packets_left = self.packets_left.saturating_sub(1);
        self.bytes_left = self.bytes_left.saturating_sub(u64::from(bytes));
    }

    /// Records that a packet that entered the queue at `queued_ns` was removed. It is not of this slot if it entered after the slot began.
    pub(super) fn removed(&mut self, queued_ns: u64) {
        if queued_ns < self.began_ns {
            self.dequeued(1, None);
        }
    }

    /// Slots in which packets left.
    pub(super) fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn slots(every_ms: u64, max_ms: u64) -> Slots {
        let every = Micros::from_millis(every_ms);
        let max = Some(Micros::from_millis(max_ms));
        Slots::new(&Slot { every, max, ..Slot::default() }, 3)
    }

    #[test]
    fn slot_has_what_was_queued_when_it_began() {
        let mut slots = slots(5, 5);
        slots.skip(MS);
        assert_eq!(slots.open(MS, 1), Err(5 * MS));
        assert_eq!(slots.open(5 * MS, 2), Ok(()));
        slots.dequeued(1, Some(1000));
        // Another packet has entered meanwhile.
        assert_eq!(slots.open(6 * MS, 2), Ok(()));
        slots.dequeued(1, Some(1000));
        assert_eq!(slots.open(7 * MS, 1), Err(10 * MS));
        assert_eq!((slots.open(10 * MS, 0), slots.used()), (Err(u64::MAX), 1));
    }

    #[test]
    fn limits_end_a_slot() {
        let plan = Slot {
            every: Micros::from_millis(5),
            packets: Some(Packets::new(3)),
            bytes: Some(Bytes::new(2_000)),
            ..Slot::default()
        };
        let mut slots = Slots::new(&plan, 1);
        // The packet that reaches the size is the last of the slot.
        for bytes in [1_000, 999, 500] {
            assert_eq!(slots.open(0, 9), Ok(()));
            slots.dequeued(1, Some(bytes));
        }
        assert_eq!(slots.open(0, 6), Err(5 * MS));
        for _ in 0..2 {
            assert_eq!(slots.open(5 * MS, 6), Ok(()));
            slots.dequeued(1, Some(1_000));
        }
        assert_eq!(slots.open(6 * MS, 4), Err(10 * MS));
    }

    #[test]
    fn dropped_packets_use_nothing_and_are_not_replaced() {
        let plan = Slot {
            every: Micros::from_millis(5),
            packets: Some(Packets::new(2)),
            bytes: Some(Bytes::new(2_000)),
            ..Slot::default()
        };
        let mut slots = Slots::new(&plan, 1);
        // Three of six are dropped, and two leave, as many as without drops.
        assert_eq!(slots.open(0, 6), Ok(()));
        slots.dequeued(3, Some(1_000));
        assert_eq!(slots.open(MS, 3), Ok(()));
        slots.dequeued(2, Some(900));
        assert_eq!(slots.open(2 * MS, 1), Err(5 * MS));
        // One of two is dropped; the one that has entered since then waits.
        assert_eq!(slots.open(5 * MS, 2), Ok(()));
        slots.dequeued(2, Some(1_000));
        assert_eq!(slots.open(6 * MS, 1), Err(10 * MS));
        assert_eq!(slots.used(), 2);
        // All are dropped: no packet leaves in this slot.
        assert_eq!(slots.open(10 * MS, 2), Ok(()));
        slots.dequeued(2, None);
        assert_eq!((slots.open(11 * MS, 1), slots.used()), (Err(15 * MS), 2));
    }

    #[test]
    fn packet_that_entered_after_the_slot_began_is_not_of_it() {
        let mut slots = slots(5, 5);
        assert_eq!(slots.open(5 * MS, 2), Ok(()));
        slots.dequeued(1, Some(1000));
        slots.removed(5 * MS + 1);
        assert_eq!(slots.open(6 * MS, 1), Ok(()));
        slots.removed(4 * MS);
        assert_eq!(slots.open(6 * MS, 1), Err(10 * MS));
    }

    #[test]
    fn slot_that_the_line_missed_begins_late_and_once() {
        let mut slots = slots(5, 5);
        assert_eq!(slots.open(0, 1), Ok(()));
        slots.dequeued(1, Some(1000));
        assert_eq!(slots.open(17 * MS, 1), Ok(()));
        slots.dequeued(1, Some(1000));
        assert_eq!(slots.open(17 * MS, 1), Err(20 * MS));
    }

    #[test]
    fn random_times_are_between_both_limits() {
        let mut slots = slots(2, 6);
        let (mut last_ns, mut sum_ns, mut seen) = (0, 0, [false; 4]);
        for _ in 0..10_000 {
            slots.skip(last_ns);
            let length_ns = slots.next_ns - last_ns;
            assert!((2 * MS..=6 * MS).contains(&length_ns), "{length_ns}");
            seen[(length_ns / MS).min(5) as usize - 2] = true;
            sum_ns += length_ns;
            last_ns = slots.next_ns;
        }
        assert_eq!(seen, [true; 4]);
        let mean_ns = sum_ns / 10_000;
        assert!((3_900_000..4_100_000).contains(&mean_ns), "{mean_ns}");
    }
}
