//! The retransmission queue: segments that have been sent and not yet cumulatively acknowledged.

use std::collections::VecDeque;

use super::ranges::Ranges;
use crate::packet::SeqRange;

/// A segment with what the kernel stores about it (`struct tcp_skb_cb`).
#[derive(Debug, Clone, Copy, Default)]
pub struct SentSegment {
    pub seq: u64,
    pub bytes: u32,
    /// Time of the last transmission.
    pub sent_ns: u64,
    /// `TCPCB_SACKED_ACKED`.
    pub is_sacked: bool,
    /// `TCPCB_LOST`.
    pub is_lost: bool,
    /// `TCPCB_SACKED_RETRANS`: retransmitted, and not lost again.
    pub is_retransmitted: bool,
    /// `TCPCB_EVER_RETRANS`.
    pub was_retransmitted: bool,
    /// Whether it is the last segment of its `struct sk_buff`, and whether that has TCPHDR_PSH.
    pub ends_skb: bool,
    pub has_psh: bool,
    /// The connection's state at the last transmission, for the delivery rate.
    pub tx: TxState,
}

/// `TCP_SKB_CB(skb)->tx`.
#[derive(Debug, Clone, Copy, Default)]
pub struct TxState {
    pub first_tx_mstamp_ns: u64,
    pub delivered_mstamp_ns: u64,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub is_app_limited: bool,
    /// Whether the rate sample of this transmission has been taken.
    pub is_taken: bool,
}

impl SentSegment {
    pub fn end(&self) -> u64 {
        self.seq + u64::from(self.bytes)
    }
}

/// A transmission, in order of time (`tsorted_sent_queue`).
#[derive(Debug, Clone, Copy)]
struct Transmission {
    seq: u64,
    sent_ns: u64,
}

/// The queue with the kernel's counters, in packets.
#[derive(Debug, Default)]
pub struct RetransmitQueue {
    segments: VecDeque<SentSegment>,
    tsorted_sent_queue: VecDeque<Transmission>,
    /// First bytes of the segments that may be waiting for retransmission, ascending.
    lost_seqs: VecDeque<u64>,
    /// Ranges that the receiver holds beyond the cumulative acknowledgement.
    pub sacked: Ranges,
    pub sacked_out: u32,
    pub lost_out: u32,
    pub retrans_out: u32,
    /// `tp->lost`: packets marked lost so far.
    pub lost: u32,
    /// Number of `struct sk_buff` that hold the segments.
    skbs: u32,
}

impl RetransmitQueue {
    pub fn packets_out(&self) -> u32 {
        self.segments.len() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the number of `struct sk_buff` that hold the segments.
    pub fn skbs(&self) -> u32 {
        self.skbs
    }

    /// `tcp_packets_in_flight()`.
    pub fn in_flight(&self) -> u32 {
        (self.packets_out() + self.retrans_out).saturating_sub(self.left_out())
    }

    /// `tcp_left_out()`.
    pub fn left_out(&self) -> u32 {
        self.sacked_out + self.lost_out
    }

    pub fn head(&self) -> Option<&SentSegment> {
        self.segments.front()
    }

    pub fn tail(&self) -> Option<&SentSegment> {
        self.segments.back()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &SentSegment> {
        self.segments.iter()
    }

    fn index_of(&self, seq: u64) -> Option<usize> {
        let index = self.segments.partition_point(|segment| segment.end() <= seq);
        self.segments.get(index).filter(|segment| segment.seq == seq).map(|_| index)
    }

    /// Returns the segment that begins here.
    pub fn get(&self, seq: u64) -> Option<&SentSegment> {
        self.segments.get(self.index_of(seq)?)
    }

    /// Adds a new segment, which is sent.
    pub fn push(&mut self, segment: SentSegment) {
        self.tsorted_sent_queue
            .push_back(Transmission { seq: segment.seq, sent_ns: segment.sent_ns });
        self.segments.push_back(segment);
    }

    /// Marks the last segment as the last of its `struct sk_buff`.
    pub fn end_skb(&mut self, has_psh: bool) {
        if let Some(last) = self.segments.back_mut() {
            (last.ends_skb, last.has_psh) = (true, has_psh);
            self.skbs += 1;
        }
    }

    /// Records that a segment is sent again.
    pub fn retransmit(&mut self, seq: u64, sent_ns: u64, tx: TxState) {
        let Some(index) = self.index_of(seq) else { return };
        let segment = &mut self.segments[index];
        self.retrans_out += u32::from(!segment.is_retransmitted);
        (segment.is_retransmitted, segment.was_retransmitted) = (true, true);
        (segment.sent_ns, segment.tx) = (sent_ns, tx);
        self.tsorted_sent_queue.push_back(Transmission { seq, sent_ns });
    }

    /// Records that a segment is sent again as a tail loss probe, which does not count as a retransmission in flight.
    pub fn probe(&mut self, seq: u64, sent_ns: u64, tx: TxState) {
        let Some(index) = self.index_of(seq) else { return };
        let segment = &mut self.segments[index];
        segment.was_retransmitted = true;
        (segment.sent_ns, segment.tx) = (sent_ns, tx);
        self.tsorted_sent_queue.push_back(Transmission { seq, sent_ns });
    }

    /// Removes the first segment if it ends at or before `ack`.
    pub fn pop_acked(&mut self, ack: u64) -> Option<SentSegment> {
        let segment = *self.segments.front().filter(|segment| segment.end() <= ack)?;
        self.segments.pop_front();
        while self.tsorted_sent_queue.front().is_some_and(|sent| sent.seq < segment.end()) {
            self.tsorted_sent_queue.pop_front();
        }
        self.sacked_out -= u32::from(segment.is_sacked);
        self.lost_out -= u32::from(segment.is_lost);
        self.retrans_out -= u32::from(segment.is_retransmitted);
        self.skbs -= u32::from(segment.ends_skb);
        Some(segment)
    }

    /// `tcp_sacktag_one()` for each segment of a range that was not selectively acknowledged before, in order. Passes each segment in its
    /// previous state.
    pub fn sack(&mut self, range: SeqRange, mut newly: impl FnMut(&SentSegment)) {
        let mut index = self.segments.partition_point(|segment| segment.seq < range.start_seq);
        while let Some(segment) = self.segments.get_mut(index).filter(|s| s.end() <= range.end_seq)
        {
            if !segment.is_sacked {
                newly(segment);
                self.sacked_out += 1;
                if segment.is_lost {
                    // Otherwise both were in flight (after an undo), and the retransmission still is.
                    self.lost_out -= 1;
                    self.retrans_out -= u32::from(segment.is_retransmitted);
                    segment.is_retransmitted = false;
                }
                (segment.is_sacked, segment.is_lost) = (true, false);
                segment.tx.is_taken = true;
                self.shift_skb_data(index);
            }
            index += 1;
        }
    }

    /// `tcp_shift_skb_data()`: a hole was filled. Appends a selectively acknowledged segment to the `struct sk_buff` before it if that is
    /// selectively acknowledged, too, and then does the same with the one behind it.
    fn shift_skb_data(&mut self, index: usize) {
        if index.checked_sub(1).is_some_and(|before| self.shift_next(before)) {
            self.shift_next(index);
        }
    }

    /// Appends the `struct sk_buff` behind this segment to the one that ends with it. Returns whether it could.
    fn shift_next(&mut self, index: usize) -> bool {
        let (Some(last), Some(next)) = (self.segments.get(index), self.segments.get(index + 1))
        else {
            return false;
        };
        let is_plain = |segment: &SentSegment| segment.is_sacked && !segment.is_retransmitted;
        let shifts = last.ends_skb && is_plain(last) && is_plain(next) && last.bytes == next.bytes;
        if shifts {
            self.segments[index].ends_skb = false;
            self.skbs -= 1;
        }
        shifts
    }

    /// Processes a D-SACK of this range: passes the segments that were retransmitted, in order and in their previous state. Their
    /// retransmissions are no longer in flight. Those of lost segments stay in flight until the segments are selectively acknowledged.
    pub fn duplicate(&mut self, range: SeqRange, mut arrived: impl FnMut(&SentSegment)) {
        let first = self.segments.partition_point(|segment| segment.seq < range.start_seq);
        let in_range = self.segments.range_mut(first..);
        for segment in in_range.take_while(|segment| segment.end() <= range.end_seq) {
            if !segment.was_retransmitted {
                continue;
            }
            arrived(segment);
            if segment.is_retransmitted && !segment.is_lost {
                segment.is_retransmitted = false;
                self.retrans_out -= 1;
            }
        }
    }

    /// `tcp_mark_skb_lost()`.
    pub fn mark_lost(&mut self, seq: u64) {
        let Some(index) = self.index_of(seq) else { return };
        let segment = &mut self.segments[index];
        if segment.is_sacked || (segment.is_lost && !segment.is_retransmitted) {
            return;
        }
        self.lost += 1;
        if segment.is_lost {
            // The retransmission is lost, too.
            segment.is_retransmitted = false;
            self.retrans_out -= 1;
        } else {
            // A retransmission (after an undo) is still in flight.
            segment.is_lost = true;
            self.lost_out += 1;
        }
        match self.lost_seqs.back() {
            Some(last) if *last >= seq => {
                let at = self.lost_seqs.partition_point(|known| *known < seq);
                if self.lost_seqs.get(at) != Some(&seq) {
                    self.lost_seqs.insert(at, seq);
                }
            }
            _ => self.lost_seqs.push_back(seq),
        }
    }

    /// Clears the lost marks of all segments: the timeout or recovery was spurious.
    pub fn unmark_lost(&mut self) {
        for segment in &mut self.segments {
            segment.is_lost = false;
        }
        self.lost_out = 0;
        self.lost_seqs.clear();
    }

    /// Returns the first lost segment that has not been retransmitted yet. Like `tcp_xmit_retransmit_queue()`, returns none while as many
    /// retransmissions are in flight as segments are lost.
    pub fn next_lost(&mut self) -> Option<SentSegment> {
        if self.retrans_out >= self.lost_out {
            return None;
        }
        while let Some(&seq) = self.lost_seqs.front() {
            let found = self.get(seq).copied();
            match found.filter(|s| s.is_lost && !s.is_retransmitted && !s.is_sacked) {
                Some(segment) => return Some(segment),
                None => drop(self.lost_seqs.pop_front()),
            }
        }
        None
    }

    /// Calls `is_lost` for every segment in flight, in order of the last transmission, until it returns `None`. Marks those lost for which
    /// it returns true.
    pub fn mark_lost_where(&mut self, mut is_lost: impl FnMut(&SentSegment) -> Option<bool>) {
        let mut at = 0;
        while let Some(&Transmission { seq, sent_ns }) = self.tsorted_sent_queue.get(at) {
            let segment = self.get(seq).copied();
            let current = segment.filter(|s| s.sent_ns == sent_ns && !s.is_sacked);
            let Some(segment) = current else {
                self.tsorted_sent_queue.remove(at);
                continue;
            };
            if segment.is_lost && !segment.is_retransmitted {
                // It is in flight again after an undo.
                at += 1;
                continue;
            }
            match is_lost(&segment) {
                None => return,
                Some(false) => at += 1,
                Some(true) => {
                    self.mark_lost(seq);
                    self.tsorted_sent_queue.remove(at);
                }
            }
        }
    }
}
