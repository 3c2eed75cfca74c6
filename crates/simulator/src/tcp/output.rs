//! Sending: `tcp_output.c`.

use ccbench_proto::wire::TcpEventKind;

use super::retransmit_queue::SentSegment;
use super::sender::{INITIAL_CWND, Limit, Sender};
use crate::core::{CaState, Event};
use crate::packet::{MSS_BYTES, MTU_BYTES, Segment};

/// `sk_gso_max_size` without headers: a burst is one super-packet of IP.
const GSO_MAX_BYTES: u64 = 65_536;
const GSO_HEADERS_BYTES: u64 = 320;
/// `tcp_tso_rtt_log`.
const TSO_RTT_LOG: u32 = 9;
/// `tcp_tso_win_divisor`.
const TSO_WIN_DIVISOR: u32 = 3;
/// The stack does not pace the first packets.
const UNPACED_SEGMENTS: u32 = 10;
/// A burst is not deferred if the last one was longer ago.
const DEFER_NS: u64 = 1_000_000;

/// What `tcp_tso_should_defer()` decides.
enum Defer {
    SendNow,
    Wait(Limit),
}

impl Sender {
    /// The application has written up to this byte of the stream.
    pub fn write(&mut self, now_ns: u64, up_to: u64) {
        if up_to <= self.written {
            return;
        }
        self.check_app_limited();
        if self.queue.is_empty() {
            self.restart_after_idle(now_ns);
            if self.written == self.snd_nxt {
                self.set_limit(now_ns, Limit::Busy);
            }
        }
        self.written = up_to;
        self.send(now_ns);
    }

    /// Bytes of the stream that were sent at least once.
    pub fn sent_bytes(&self) -> u64 {
        self.snd_nxt
    }

    /// `tcp_slow_start_after_idle_check()`, `tcp_cwnd_restart()`.
    fn restart_after_idle(&mut self, now_ns: u64) {
        let idle_ns = now_ns - self.last_sent_ns;
        let rto_ns = self.rtt.rto_us() * 1000;
        let restarts = self.config.slow_start_after_idle && !self.wants.owns_cwnd;
        if self.snd_nxt > 0 && restarts && idle_ns > rto_ns {
            self.cc_event(now_ns, Event::Restart);
            self.ssthresh = self.current_ssthresh();
            let least = INITIAL_CWND.min(self.cwnd);
            let mut left_ns = idle_ns - rto_ns;
            while left_ns > 0 && self.cwnd > least {
                self.cwnd >>= 1;
                left_ns = left_ns.saturating_sub(rto_ns);
            }
            self.cwnd = self.cwnd.max(least);
            (self.cwnd_stamp_ns, self.cwnd_used) = (now_ns, 0);
        }
    }

    /// Sends what window, pacing and the application allow: `tcp_write_xmit()`.
    pub fn send(&mut self, now_ns: u64) {
        let (mut sent, mut is_cwnd_limited) = (0, false);
        let mut limit = Limit::Busy;
        while self.written > self.snd_nxt {
            if self.waits_for_pacing(now_ns) {
                break;
            }
            let in_flight = self.queue.in_flight();
            if in_flight >= self.cwnd {
                break;
            }
            if self.snd_nxt >= self.snd_wnd_end {
                limit = Limit::ReceiveWindow;
                break;
            }
            if self.snd_nxt - self.snd_una >= self.config.buffer_bytes {
                limit = Limit::SendBuffer;
                break;
            }
            let goal = self.burst_segments();
            let quota = (self.cwnd - in_flight).min((self.cwnd >> 1).max(1)).min(goal);
            if let Defer::Wait(by) = self.should_defer(now_ns, goal) {
                is_cwnd_limited = by == Limit::Busy;
                limit = by;
                break;
            }
            match self.send_burst(now_ns, quota, self.is_held_by_nagle()) {
                // The window has no room for a full segment.
                0 => {
                    let is_part = self.written - self.snd_nxt < MSS_BYTES.into();
                    limit = if is_part { Limit::Busy } else { Limit::ReceiveWindow };
                    break;
                }
                burst => sent += burst,
            }
        }
        is_cwnd_limited |= self.queue.in_flight() >= self.cwnd;
        if sent > 0 || is_cwnd_limited {
            self.validate_cwnd(now_ns, is_cwnd_limited);
        }
        if sent > 0 {
            if self.in_cwnd_reduction() {
                self.prr_out += sent;
            }
            self.schedule_loss_probe(now_ns, false);
        }
        let idle = self.queue.is_empty() && self.written == self.snd_nxt;
        self.set_limit(now_ns, if idle { Limit::Idle } else { limit });
    }

    /// `tcp_rate_check_app_limited()`: when the application writes, what it wrote before is sent and there is room for more.
    fn check_app_limited(&mut self) {
        let in_flight = self.queue.in_flight();
        if self.written.saturating_sub(self.snd_nxt) < u64::from(MSS_BYTES)
            && in_flight < self.cwnd
            && self.queue.lost_out <= self.queue.retrans_out
        {
            self.rate.app_limited = self.rate.delivered.wrapping_add(in_flight).max(1);
        }
    }

    /// `tcp_pacing_check()`.
    pub(super) fn waits_for_pacing(&mut self, now_ns: u64) -> bool {
        if !self.wants.pacing || self.wstamp_ns <= now_ns {
            return false;
        }
        self.pacing_until_ns = Some(self.wstamp_ns);
        true
    }

    /// `tcp_tso_autosize()`: segments per burst, what the pacing rate gives in 2^-shift s, more on short paths.
    fn burst_segments(&self) -> u32 {
        let bursts = self.cc.bursts(self.pacing_rate, MTU_BYTES);
        let mut bytes = self.pacing_rate >> (bursts.pacing_shift & 31);
        let shift = self.rtt.min_us() >> TSO_RTT_LOG;
        if shift < u32::BITS {
            bytes += GSO_MAX_BYTES >> shift;
        }
        let most = GSO_MAX_BYTES - 1 - GSO_HEADERS_BYTES;
        ((bytes.min(most) / u64::from(MSS_BYTES)) as u32).max(bursts.least_segs)
    }

    /// `tcp_tso_should_defer()`: waits for more window instead of sending a small burst.
    fn should_defer(&self, now_ns: u64, goal: u32) -> Defer {
        let mss = u64::from(MSS_BYTES);
        let waiting = self.written - self.snd_nxt;
        if waiting <= mss || self.ca_state >= CaState::Recovery {
            return Defer::SendNow;
        }
        if now_ns.saturating_sub(self.wstamp_ns) > DEFER_NS {
            return Defer::SendNow;
        }
        let send_window = self.snd_wnd_end - self.snd_nxt;
        let room = u64::from(self.cwnd - self.queue.in_flight()) * mss;
        let limit = send_window.min(room);
        if limit >= u64::from(goal) * mss || limit >= waiting {
            return Defer::SendNow;
        }
        let window = (self.snd_wnd_end - self.snd_una).min(u64::from(self.cwnd) * mss);
        if limit >= (window / u64::from(TSO_WIN_DIVISOR)).max(mss) {
            return Defer::SendNow;
        }
        let Some(head) = self.queue.head() else { return Defer::SendNow };
        // The next acknowledgement is far away.
        let srtt_ns = u64::from(self.rtt.srtt8_us()) * 125;
        if head.sent_ns + srtt_ns > now_ns + (srtt_ns / 2).min(DEFER_NS) {
            return Defer::SendNow;
        }
        Defer::Wait(if room < send_window { Limit::Busy } else { Limit::ReceiveWindow })
    }

    /// New segments, at most `quota`; returns how many. `only_full`: no part of a segment.
    pub(super) fn send_burst(&mut self, now_ns: u64, quota: u32, only_full: bool) -> u32 {
        let (mut sent, mut sent_bytes) = (0, 0);
        while sent < quota && self.send_new(now_ns, only_full) {
            sent += 1;
            sent_bytes += u64::from(self.outbox.last().map_or(0, |(segment, _)| segment.bytes));
        }
        self.after_send(now_ns, sent_bytes);
        sent
    }

    /// One new segment, if there is data and the receiver has room.
    fn send_new(&mut self, now_ns: u64, only_full: bool) -> bool {
        let end = self.written.min(self.snd_wnd_end);
        let bytes = end.saturating_sub(self.snd_nxt).min(MSS_BYTES.into()) as u32;
        // Silly window: a part of a segment only if it is the last one that the application has.
        if bytes == 0 || (bytes < MSS_BYTES && (end != self.written || only_full)) {
            return false;
        }
        self.before_transmit(now_ns);
        let at_send = self.rate.sent(now_ns, self.queue.is_empty());
        let (seq, sent_ns) = (self.snd_nxt, now_ns);
        self.queue.push(SentSegment { seq, bytes, sent_ns, at_send, ..SentSegment::default() });
        self.snd_nxt += u64::from(bytes);
        if bytes < MSS_BYTES {
            self.small_end = self.snd_nxt;
        }
        self.transmit(seq, bytes, now_ns, false);
        true
    }

    /// `tcp_nagle_check()`, `tcp_minshall_check()`: a part of a segment waits until the last one is acknowledged.
    fn is_held_by_nagle(&self) -> bool {
        self.small_end > self.snd_una
    }

    /// `tcp_event_data_sent()`: the pipe was empty.
    fn before_transmit(&mut self, now_ns: u64) {
        if self.queue.in_flight() == 0 {
            self.cc_event(now_ns, Event::TxStart);
        }
    }

    /// `tcp_retransmit_skb()`, `tcp_xmit_retransmit_queue()` for one segment.
    pub(super) fn retransmit(&mut self, now_ns: u64, seq: u64, bytes: u32) {
        self.before_transmit(now_ns);
        let at_send = self.rate.sent(now_ns, false);
        self.queue.retransmit(seq, now_ns, at_send);
        if self.retrans_ns == 0 {
            self.retrans_ns = now_ns;
        }
        self.undo_retrans = self.undo_retrans.max(0) + 1;
        self.counters.total_retrans += 1;
        self.counters.bytes_retrans += u64::from(bytes);
        self.transmit(seq, bytes, now_ns, true);
        self.after_send(now_ns, bytes.into());
    }

    /// The last segment again as a probe: `__tcp_retransmit_skb()` alone.
    pub(super) fn retransmit_probe(&mut self, now_ns: u64, seq: u64, bytes: u32) {
        let at_send = self.rate.sent(now_ns, false);
        self.queue.probe(seq, now_ns, at_send);
        self.counters.total_retrans += 1;
        self.counters.bytes_retrans += u64::from(bytes);
        self.transmit(seq, bytes, now_ns, true);
        self.after_send(now_ns, bytes.into());
    }

    fn transmit(&mut self, seq: u64, bytes: u32, now_ns: u64, is_retransmission: bool) {
        let cwr = !is_retransmission && std::mem::take(&mut self.cwr_pending);
        self.counters.data_segs_out += 1;
        self.counters.bytes_sent += u64::from(bytes);
        self.last_sent_ns = now_ns;
        let echoed_ns = self.echo_ns;
        let segment = Segment { seq, bytes, sent_ns: now_ns, echoed_ns, cwr };
        self.outbox.push((segment, is_retransmission));
        if is_retransmission {
            self.report(now_ns, TcpEventKind::Retransmit, 1);
        }
    }

    /// `tcp_update_skb_after_send()`: when the next burst may leave.
    fn after_send(&mut self, now_ns: u64, bytes: u64) {
        let before_ns = self.wstamp_ns;
        self.wstamp_ns = before_ns.max(now_ns);
        let unpaced = self.counters.data_segs_out < UNPACED_SEGMENTS;
        if !self.wants.pacing || unpaced || self.pacing_rate == 0 {
            return;
        }
        let length_ns = bytes * 1_000_000_000 / self.pacing_rate;
        // Idle time before this burst shortens the wait, by at most half of its length.
        let credit_ns = (self.wstamp_ns - before_ns).min(length_ns / 2);
        self.wstamp_ns += length_ns - credit_ns;
    }

    /// `tcp_xmit_retransmit_queue()`.
    pub(super) fn retransmit_lost(&mut self, now_ns: u64) {
        let mut rearm = false;
        while let Some(segment) = self.queue.next_lost() {
            if self.waits_for_pacing(now_ns) || self.queue.in_flight() >= self.cwnd {
                break;
            }
            let is_head = segment.seq == self.snd_una;
            self.retransmit(now_ns, segment.seq, segment.bytes);
            if self.in_cwnd_reduction() {
                self.prr_out += 1;
            }
            rearm |= is_head && !self.has_reordering_timer();
        }
        if rearm {
            self.arm_rto(now_ns);
        }
    }

    /// The earliest departure time of the next packet has come.
    pub fn on_pacing_timer(&mut self, now_ns: u64) {
        if self.pacing_until_ns.take().is_none() {
            return;
        }
        if self.ca_state == CaState::Loss || self.in_cwnd_reduction() || self.queue.lost_out > 0 {
            self.retransmit_lost(now_ns);
        }
        self.send(now_ns);
    }

    /// When [`Self::on_pacing_timer`] is due.
    pub fn pacing_until_ns(&self) -> Option<u64> {
        self.pacing_until_ns
    }

    /// `tcp_cwnd_validate()`.
    fn validate_cwnd(&mut self, now_ns: u64, is_cwnd_limited: bool) {
        let packets_out = self.queue.packets_out();
        if self.snd_una >= self.cwnd_usage_seq
            || is_cwnd_limited
            || (!self.is_cwnd_limited && packets_out > self.max_packets_out)
        {
            self.is_cwnd_limited = is_cwnd_limited;
            self.max_packets_out = packets_out;
            self.cwnd_usage_seq = self.snd_nxt;
        }
        if self.is_cwnd_limited() {
            (self.cwnd_used, self.cwnd_stamp_ns) = (0, now_ns);
            return;
        }
        self.cwnd_used = self.cwnd_used.max(packets_out);
        let since_ns = now_ns - self.cwnd_stamp_ns;
        if self.config.slow_start_after_idle
            && !self.wants.owns_cwnd
            && since_ns >= self.rtt.rto_us() * 1000
        {
            self.limit_cwnd_by_application(now_ns);
        }
    }

    /// `tcp_cwnd_application_limited()`.
    fn limit_cwnd_by_application(&mut self, now_ns: u64) {
        if self.ca_state == CaState::Open && self.limit != Limit::SendBuffer {
            let used = self.cwnd_used.max(INITIAL_CWND);
            if used < self.cwnd {
                self.ssthresh = self.current_ssthresh();
                self.cwnd = (self.cwnd + used) >> 1;
            }
            self.cwnd_used = 0;
        }
        self.cwnd_stamp_ns = now_ns;
    }
}
