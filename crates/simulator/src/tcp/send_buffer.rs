//! The application's side of a sending socket: `tcp_sendmsg_locked()`, the PSH flag, and the send buffer, which grows with the window
//! (`tcp_sndbuf_expand()`).

use super::output::{MAX_TCP_HEADER, SK_GSO_MAX_SIZE_BYTES};
use super::sender::{Chrono, Sender, TCP_INIT_CWND};
use super::write_queue::WriteSkb;
use crate::packet::MSS_BYTES;

/// SKB_DATA_ALIGN(sizeof()) of `struct sk_buff`, and of `struct skb_shared_info`.
const SK_BUFF_BYTES: u64 = 256;
const SKB_SHARED_INFO_BYTES: u64 = 320;
/// SKB_SMALL_HEAD_HEADROOM: the headroom of a new `struct sk_buff`. MAX_TCP_HEADER and `struct skb_shared_info` take 512 bytes. Heads have
/// their own slab cache, whose size must not be a power of two, so they get another cache line of 64 bytes.
const SKB_SMALL_HEAD_HEADROOM_BYTES: u64 = MAX_TCP_HEADER + 64;
/// `truesize` of a `struct sk_buff` without data: `SKB_TRUESIZE(skb_end_offset())`, 832 bytes (`tcp_stream_alloc_skb()`).
const SKB_OVERHEAD_BYTES: u64 =
    SKB_SMALL_HEAD_HEADROOM_BYTES + SK_BUFF_BYTES + SKB_SHARED_INFO_BYTES;
/// `mss_clamp`: the MSS option of the other end.
const MSS_CLAMP_BYTES: u64 = 1460;
/// `per_mss` of `tcp_sndbuf_expand()`, 2304 bytes: the head of a segment, a power of two, and its `struct sk_buff`.
const BYTES_PER_PACKET: u64 =
    (MSS_CLAMP_BYTES + MAX_TCP_HEADER + SKB_SHARED_INFO_BYTES).next_power_of_two() + SK_BUFF_BYTES;
/// `TCP_MSS_DEFAULT`.
const TCP_MSS_DEFAULT: u64 = 536;

impl Sender {
    /// Lets the application write up to this byte of the stream, in calls of send() that block while the buffer is full.
    pub fn write(&mut self, now_ns: u64, app_seq: u64) {
        self.send_buffer.app_seq = self.send_buffer.app_seq.max(app_seq);
        if !self.send_buffer.is_waiting {
            self.sendmsg(now_ns);
        }
    }

    /// `tcp_sendmsg_locked()`, call after call, until the application has nothing more or waits for memory.
    fn sendmsg(&mut self, now_ns: u64) {
        while self.write_seq < self.send_buffer.app_seq {
            if self.write_seq == self.send_buffer.call_end_seq {
                self.rate_check_app_limited();
                let buffer = &mut self.send_buffer;
                buffer.call_start_seq = self.write_seq;
                buffer.call_end_seq =
                    self.write_seq.saturating_add(self.config.send_bytes).min(buffer.app_seq);
            }
            let size_goal_bytes = self.size_goal_bytes();
            if !self.has_room(size_goal_bytes) && !self.skb_entail(now_ns) {
                self.send_buffer.is_waiting = true;
                if self.write_seq > self.send_buffer.call_start_seq {
                    self.push(now_ns);
                }
                return;
            }
            self.fill_tail_skb(size_goal_bytes);
            if self.write_seq == self.send_buffer.call_end_seq || self.forced_push() {
                self.push(now_ns);
            } else if self.send_buffer.skbs.len() == 1 {
                // `tcp_push_one()`
                self.write_xmit(now_ns);
            }
        }
    }

    /// `tcp_xmit_size_goal()`: returns the length of a full `struct sk_buff`, at most half of the receiver's largest window; one segment if
    /// the node has no segmentation offloads.
    fn size_goal_bytes(&self) -> u64 {
        let mss = u64::from(MSS_BYTES);
        let bound_bytes = match self.max_window_bytes {
            0 => SK_GSO_MAX_SIZE_BYTES,
            window_bytes if window_bytes > TCP_MSS_DEFAULT => window_bytes >> 1,
            window_bytes => window_bytes,
        };
        let segs = SK_GSO_MAX_SIZE_BYTES.min(bound_bytes) / mss;
        segs.min(self.config.gso_max_segs.into()).max(1) * mss
    }

    /// Returns the bytes in the last `struct sk_buff` of the write queue.
    fn tail_skb_bytes(&self) -> Option<u64> {
        let skbs = &self.send_buffer.skbs;
        let before = skbs.len().checked_sub(2).and_then(|at| skbs.get(at));
        let start_seq = before.map_or(self.snd_nxt, |skb| skb.end_seq);
        skbs.back().map(|skb| skb.end_seq - start_seq)
    }

    fn has_room(&self, size_goal_bytes: u64) -> bool {
        self.tail_skb_bytes().is_some_and(|bytes| bytes < size_goal_bytes)
    }

    /// `tcp_skb_entail()`: adds a new `struct sk_buff`. Returns `false` if the buffer is full (`sk_stream_memory_free()`).
    fn skb_entail(&mut self, now_ns: u64) -> bool {
        if self.wmem_queued_bytes() >= self.send_buffer.sndbuf_bytes {
            return false;
        }
        if self.chrono_type == Chrono::Idle {
            self.chrono_set(now_ns, Chrono::Busy);
        }
        self.send_buffer.skbs.push_back(WriteSkb { end_seq: self.write_seq, has_psh: false });
        if self.rtx_queue.is_empty() {
            self.slow_start_after_idle_check(now_ns);
        }
        true
    }

    /// Appends the application's data to the last `struct sk_buff`, which has room. As in the kernel, only a new one requires room in the
    /// buffer.
    fn fill_tail_skb(&mut self, size_goal_bytes: u64) {
        let room_bytes = size_goal_bytes.saturating_sub(self.tail_skb_bytes().unwrap_or(0));
        let buffer = &mut self.send_buffer;
        let Some(tail) = buffer.skbs.back_mut() else { return };
        // An earlier call has set it, and that call's data is no longer the last.
        tail.has_psh &= self.write_seq != buffer.call_start_seq;
        self.write_seq += room_bytes.min(buffer.call_end_seq - self.write_seq);
        tail.end_seq = self.write_seq;
    }

    /// `forced_push()`: more than half of the receiver's largest window has been written since the last PSH flag.
    fn forced_push(&self) -> bool {
        self.write_seq > self.send_buffer.pushed_seq + (self.max_window_bytes >> 1)
    }

    /// `tcp_push()`, `tcp_mark_push()`.
    fn push(&mut self, now_ns: u64) {
        let Some(tail) = self.send_buffer.skbs.back_mut() else { return };
        tail.has_psh = true;
        self.send_buffer.pushed_seq = self.write_seq;
        self.write_xmit(now_ns);
    }

    /// `sk_wmem_queued`: data that is not acknowledged, including data that has not been sent yet, with its overhead.
    fn wmem_queued_bytes(&self) -> u64 {
        let skbs = self.send_buffer.skbs.len() as u64 + u64::from(self.rtx_queue.skbs());
        self.write_seq - self.snd_una + skbs * SKB_OVERHEAD_BYTES
    }

    /// `tcp_sndbuf_expand()`: two windows, or three for a congestion control that may be in slow start during recovery.
    pub(super) fn sndbuf_expand(&mut self) {
        let windows = if self.requirements.owns_cwnd { 3 } else { 2 };
        let packets = TCP_INIT_CWND.max(self.snd_cwnd).max(self.reordering + 1);
        let wanted_bytes = windows * u64::from(packets) * BYTES_PER_PACKET;
        let buffer = &mut self.send_buffer;
        if buffer.sndbuf_bytes < wanted_bytes {
            buffer.sndbuf_bytes = wanted_bytes.min(buffer.max_bytes);
        }
    }

    /// `tcp_data_snd_check()`: after an acknowledgement, sends what it permits and wakes an application that waits for memory.
    pub fn data_snd_check(&mut self, now_ns: u64) {
        self.write_xmit(now_ns);
        self.check_space(now_ns);
    }

    /// `tcp_check_space()`, `tcp_new_space()`, `sk_stream_write_space()`.
    fn check_space(&mut self, now_ns: u64) {
        if !self.send_buffer.is_waiting {
            return;
        }
        // The buffer grows if it does not fill the window.
        if self.rtx_queue.in_flight() < self.snd_cwnd {
            self.sndbuf_expand();
            self.snd_cwnd_stamp_ns = now_ns;
        }
        let (queued_bytes, sndbuf_bytes) =
            (self.wmem_queued_bytes(), self.send_buffer.sndbuf_bytes);
        // A third of the buffer is free.
        if queued_bytes >= sndbuf_bytes || sndbuf_bytes - queued_bytes < queued_bytes >> 1 {
            return;
        }
        self.send_buffer.is_waiting = false;
        if self.chrono_type == Chrono::SndbufLimited {
            self.chrono_set(now_ns, Chrono::Busy);
        }
        self.sendmsg(now_ns);
    }

    /// SOCK_NOSPACE.
    pub(super) fn is_waiting_for_memory(&self) -> bool {
        self.send_buffer.is_waiting
    }

    /// `tcp_cwnd_validate()`: returns whether the full buffer limits the connection, once `sent_pkts` have just been sent.
    pub(super) fn is_sndbuf_limited(&self, sent_pkts: u32) -> bool {
        let begins = sent_pkts > 0 && !self.tcp_is_cwnd_limited();
        self.send_buffer.is_waiting
            && self.write_seq == self.snd_nxt
            && (begins || self.chrono_type == Chrono::SndbufLimited)
    }

    /// Returns the bytes in the first `struct sk_buff` of the write queue, and whether it is the last one.
    pub(super) fn head_skb(&self) -> (u64, bool) {
        let skbs = &self.send_buffer.skbs;
        let bytes = skbs.front().map_or(0, |skb| skb.end_seq - self.snd_nxt);
        (bytes, skbs.len() <= 1)
    }

    /// `tcp_grow_skb()`: moves data from the next `struct sk_buff` to the first one, so that this has as many segments.
    pub(super) fn grow_head_skb(&mut self, segments: u32) {
        let wanted_seq = self.snd_nxt + u64::from(segments) * u64::from(MSS_BYTES);
        let skbs = &mut self.send_buffer.skbs;
        while let (Some(&head), Some(&next)) = (skbs.front(), skbs.get(1)) {
            if head.end_seq >= wanted_seq {
                return;
            }
            if wanted_seq < next.end_seq {
                skbs[0].end_seq = wanted_seq;
                return;
            }
            // Nothing of the next one is left.
            skbs.pop_front();
            skbs[0].has_psh |= head.has_psh;
        }
    }

    /// Removes what has been sent from the write queue. Returns whether it ends with the PSH flag.
    pub(super) fn dequeue_sent(&mut self) -> bool {
        let skbs = &mut self.send_buffer.skbs;
        let sent = skbs.front().copied().filter(|head| head.end_seq <= self.snd_nxt);
        if sent.is_some() {
            skbs.pop_front();
        }
        sent.is_some_and(|head| head.has_psh)
    }

    /// `sk_sndbuf`.
    #[cfg(test)]
    pub fn sndbuf_bytes(&self) -> u64 {
        self.send_buffer.sndbuf_bytes
    }
}
