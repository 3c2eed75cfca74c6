//! The receive buffer and its window, which grow with the data that arrives within an RTT (dynamic right-sizing).

use super::{MIN_WINDOW_CLAMP_BYTES, RCVBUF_LOW_RTT_NS, Receiver, TRUESIZE_BYTES};
use crate::packet::{MSS_BYTES, Segment};
use crate::tcp::tsval_ms;

impl Receiver {
    /// `tcp_measure_rcv_mss()`, `tcp_set_window_clamp()`: sets the share of the buffer that holds payload.
    pub(super) fn set_scaling_ratio(&mut self, ratio: u64) {
        if std::mem::replace(&mut self.scaling_ratio, ratio.max(1)) == ratio.max(1) {
            return;
        }
        let before_bytes = self.window_clamp_bytes;
        let clamp_bytes = self.window_bytes(self.rcvbuf_bytes).max(MIN_WINDOW_CLAMP_BYTES);
        self.window_clamp_bytes = clamp_bytes;
        if clamp_bytes < before_bytes {
            self.rcv_ssthresh_bytes = self.rcv_ssthresh_bytes.min(clamp_bytes);
        } else {
            let window_bytes = self.rcv_wnd_bytes.min(clamp_bytes);
            self.rcv_ssthresh_bytes = self.rcv_ssthresh_bytes.max(window_bytes);
        }
        self.rcvq_space_bytes = self.rcvq_space_bytes.min(clamp_bytes);
    }

    /// `tcp_win_from_space()`: returns the payload that fits in a buffer of this length.
    fn window_bytes(&self, space_bytes: u64) -> u64 {
        (space_bytes * self.scaling_ratio) >> 8
    }

    /// `tcp_space()`: returns the payload for which there is room beside out-of-order data and `queued_bytes` of the buffer.
    pub(super) fn space_bytes(&self, queued_bytes: u64) -> u64 {
        let held_bytes = self.out_of_order_bytes.div_ceil(MSS_BYTES.into()) * TRUESIZE_BYTES;
        self.window_bytes(self.rcvbuf_bytes.saturating_sub(held_bytes + queued_bytes))
    }

    /// `tcp_grow_window()`: a segment that uses its buffer space well raises the window and is acknowledged at once.
    pub(super) fn grow_window(&mut self, segment: &Segment, queued_bytes: u64) {
        let limit_bytes = self.window_clamp_bytes.min(self.space_bytes(queued_bytes));
        let room_bytes = limit_bytes.saturating_sub(self.rcv_ssthresh_bytes);
        if room_bytes == 0 {
            return;
        }
        let payload_bytes = u64::from(segment.bytes);
        let growth_bytes = match self.window_bytes(TRUESIZE_BYTES) <= payload_bytes {
            true => 2 * u64::from(MSS_BYTES),
            false => self.grow_window_slowly(payload_bytes),
        };
        if growth_bytes > 0 {
            self.rcv_ssthresh_bytes += growth_bytes.max(2 * payload_bytes).min(room_bytes);
            self.quick |= 1;
        }
    }

    /// `__tcp_grow_window()`.
    fn grow_window_slowly(&self, payload_bytes: u64) -> u64 {
        let mut truesize_bytes = self.window_bytes(TRUESIZE_BYTES) >> 1;
        let mut window_bytes = self.window_bytes(self.max_rcvbuf_bytes) >> 1;
        while self.rcv_ssthresh_bytes <= window_bytes {
            if truesize_bytes <= payload_bytes {
                return 2 * u64::from(self.rcv_mss_bytes);
            }
            truesize_bytes >>= 1;
            window_bytes >>= 1;
        }
        0
    }

    /// `tcp_rcv_rtt_measure()`: a window takes at least an RTT to arrive. This is the only sample if the RTT is below a timestamp tick.
    pub(super) fn rcv_rtt_measure(&mut self, now_ns: u64, rcv_nxt: u64) {
        if let Some((end_seq, at_ns)) = self.rcv_rtt_window {
            if rcv_nxt < end_seq {
                return;
            }
            let sample_ns = (now_ns - at_ns).max(1000);
            if self.rcv_rtt_ns == 0 || sample_ns < self.rcv_rtt_ns {
                self.rcv_rtt_ns = sample_ns;
            }
        }
        self.rcv_rtt_window = Some((rcv_nxt + self.rcv_wnd_bytes, now_ns));
    }

    /// `tcp_rcv_rtt_measure_ts()`, `tcp_rcv_rtt_update()`: measures the RTT including queues, in timestamp ticks, once per tick. A lower
    /// sample takes effect at once.
    pub(super) fn rcv_rtt_measure_ts(&mut self, now_ns: u64, segment: &Segment) {
        let tsecr_ms = tsval_ms(segment.tsecr_ns);
        if segment.tsecr_ns == 0 || tsecr_ms == self.rcv_rtt_last_tsecr_ms {
            return;
        }
        self.rcv_rtt_last_tsecr_ms = tsecr_ms;
        let sample_ns = (tsval_ms(now_ns) - tsecr_ms) * 1_000_000;
        if segment.bytes < self.rcv_mss_bytes || sample_ns == 0 {
            return;
        }
        self.rcv_rtt_ns = match self.rcv_rtt_ns == 0 || sample_ns < self.rcv_rtt_ns {
            true => sample_ns,
            false => self.rcv_rtt_ns - self.rcv_rtt_ns / 8 + sample_ns / 8,
        };
    }

    /// `tcp_rcv_space_adjust()`: called once per RTT, after the application has read.
    pub(super) fn rcv_space_adjust(&mut self, now_ns: u64) {
        if self.rcv_rtt_ns == 0 || now_ns - self.rcvq_space_time_ns < self.rcv_rtt_ns {
            return;
        }
        let copied_bytes = self.rcv_nxt - self.rcvq_space_seq;
        if copied_bytes > self.rcvq_space_bytes {
            self.rcvbuf_grow(copied_bytes);
        }
        (self.rcvq_space_seq, self.rcvq_space_time_ns) = (self.rcv_nxt, now_ns);
    }

    /// `tcp_rcvbuf_grow()`: sets the window to twice what the application has read in an RTT, and more while that grows.
    pub(super) fn rcvbuf_grow(&mut self, read_bytes: u64) {
        let before_bytes = std::mem::replace(&mut self.rcvq_space_bytes, read_bytes);
        let mut wanted_bytes = 2 * read_bytes;
        wanted_bytes += match self.rcv_rtt_ns < RCVBUF_LOW_RTT_NS {
            true => wanted_bytes * self.rcv_rtt_ns / RCVBUF_LOW_RTT_NS,
            false => 2 * wanted_bytes * (read_bytes - before_bytes) / before_bytes.max(1),
        };
        wanted_bytes += self.out_of_order.end().map_or(0, |end| end - self.rcv_nxt);
        let rcvbuf_bytes = ((wanted_bytes << 8) / self.scaling_ratio).min(self.max_rcvbuf_bytes);
        if rcvbuf_bytes > self.rcvbuf_bytes {
            self.rcvbuf_bytes = rcvbuf_bytes;
            self.window_clamp_bytes = self.window_bytes(rcvbuf_bytes);
        }
    }
}
