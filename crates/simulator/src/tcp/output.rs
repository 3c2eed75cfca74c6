//! Sending: `tcp_output.c`.

use ccbench_proto::wire::TcpEventKind;

use super::retransmit_queue::SentSegment;
use super::sender::{Chrono, Sender, TCP_INIT_CWND};
use crate::congestion_control::{CaState, Event};
use crate::packet::{MSS_BYTES, MTU_BYTES, Segment};

/// MAX_TCP_HEADER of the lab's kernel: L1_CACHE_ALIGN(128 + LL_MAX_HEADER), without drivers that need more than 32 bytes.
pub(super) const MAX_TCP_HEADER: u64 = 192;
/// `sk_gso_max_size`: a burst is one IP super-packet (GSO_LEGACY_MAX_SIZE) minus its headers.
pub(super) const SK_GSO_MAX_SIZE_BYTES: u64 = 65_536 - (MAX_TCP_HEADER + 1);
/// `tcp_tso_rtt_log`.
const TSO_RTT_LOG: u32 = 9;
/// `tcp_tso_win_divisor`.
const TSO_WIN_DIVISOR: u32 = 3;
/// The stack does not pace the first packets of a connection.
const UNPACED_SEGMENTS: u32 = 10;
/// A burst is not deferred if the last one was longer ago than this.
const DEFER_NS: u64 = 1_000_000;

/// The decision of `tcp_tso_should_defer()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defer {
    SendNow,
    CwndLimited,
    RwndLimited,
    /// The window has room, and the application may write more.
    AppLimited,
}

impl Sender {
    /// Returns the bytes of the stream that have been sent at least once.
    pub fn sent_bytes(&self) -> u64 {
        self.snd_nxt
    }

    /// `tcp_slow_start_after_idle_check()`, `tcp_cwnd_restart()`.
    pub(super) fn slow_start_after_idle_check(&mut self, now_ns: u64) {
        let idle_ns = now_ns - self.lsndtime_ns;
        let rto_ns = self.rtt.rto_us() * 1000;
        let restarts = self.config.slow_start_after_idle && !self.requirements.owns_cwnd;
        if self.snd_nxt > 0 && restarts && idle_ns > rto_ns {
            self.cc_event(now_ns, Event::Restart);
            self.snd_ssthresh = self.current_ssthresh();
            let min_cwnd = TCP_INIT_CWND.min(self.snd_cwnd);
            let mut left_ns = idle_ns - rto_ns;
            while left_ns > 0 && self.snd_cwnd > min_cwnd {
                self.snd_cwnd >>= 1;
                left_ns = left_ns.saturating_sub(rto_ns);
            }
            self.snd_cwnd = self.snd_cwnd.max(min_cwnd);
            (self.snd_cwnd_stamp_ns, self.snd_cwnd_used) = (now_ns, 0);
        }
    }

    /// `tcp_write_xmit()`: sends what window, pacing and the application allow.
    pub fn write_xmit(&mut self, now_ns: u64) {
        let (mut sent_pkts, mut is_cwnd_limited) = (0, false);
        // `tcp_push_pending_frames()`: without data, the window limits nothing.
        let had_data = self.write_seq > self.snd_nxt;
        let mut chrono = Chrono::Busy;
        while self.write_seq > self.snd_nxt {
            if self.pacing_check(now_ns) {
                break;
            }
            let in_flight = self.rtx_queue.in_flight();
            if in_flight >= self.snd_cwnd {
                break;
            }
            if self.snd_nxt >= self.snd_wnd_end {
                chrono = Chrono::RwndLimited;
                break;
            }
            let max_segs = self.tso_segs();
            let cwnd_quota =
                (self.snd_cwnd - in_flight).min((self.snd_cwnd >> 1).max(1)).min(max_segs);
            self.grow_head_skb(cwnd_quota);
            let defer = self.tso_should_defer(now_ns, max_segs);
            is_cwnd_limited |= defer == Defer::CwndLimited;
            if defer == Defer::RwndLimited {
                chrono = Chrono::RwndLimited;
            }
            if defer != Defer::SendNow {
                break;
            }
            match self.send_burst(now_ns, cwnd_quota, self.nagle_check()) {
                // The window has no room for a full segment.
                0 => {
                    let is_part = self.write_seq - self.snd_nxt < MSS_BYTES.into();
                    chrono = if is_part { Chrono::Busy } else { Chrono::RwndLimited };
                    break;
                }
                burst_pkts => sent_pkts += burst_pkts,
            }
        }
        is_cwnd_limited |= had_data && self.rtx_queue.in_flight() >= self.snd_cwnd;
        if sent_pkts > 0 || is_cwnd_limited {
            self.cwnd_validate(now_ns, is_cwnd_limited);
        }
        if sent_pkts > 0 {
            if self.in_cwnd_reduction() {
                self.prr_out += sent_pkts;
            }
            self.schedule_loss_probe(now_ns, false);
        }
        if self.is_sndbuf_limited(sent_pkts) {
            chrono = Chrono::SndbufLimited;
        }
        let idle = self.rtx_queue.is_empty() && self.write_seq == self.snd_nxt;
        self.chrono_set(now_ns, if idle { Chrono::Idle } else { chrono });
    }

    /// `tcp_write_xmit()` with `push_one` = 2: sends one new segment, even beyond the window. Returns whether it was sent.
    pub(super) fn write_xmit_probe(&mut self, now_ns: u64) -> bool {
        let sent_pkts =
            if self.pacing_check(now_ns) { 0 } else { self.send_burst(now_ns, 1, false) };
        let is_cwnd_limited = self.rtx_queue.in_flight() >= self.snd_cwnd;
        if sent_pkts > 0 || is_cwnd_limited {
            self.cwnd_validate(now_ns, is_cwnd_limited);
        }
        if self.in_cwnd_reduction() {
            self.prr_out += sent_pkts;
        }
        sent_pkts > 0
    }

    /// `tcp_rate_check_app_limited()`: called when the application writes. Detects that earlier data has been sent and there is room for
    /// more.
    pub(super) fn rate_check_app_limited(&mut self) {
        let in_flight = self.rtx_queue.in_flight();
        if self.write_seq - self.snd_nxt < u64::from(MSS_BYTES)
            && in_flight < self.snd_cwnd
            && self.rtx_queue.lost_out <= self.rtx_queue.retrans_out
        {
            self.rate.app_limited = self.rate.delivered.wrapping_add(in_flight).max(1);
        }
    }

    /// `tcp_pacing_check()`.
    pub(super) fn pacing_check(&mut self, now_ns: u64) -> bool {
        if !self.requirements.pacing || self.tcp_wstamp_ns <= now_ns {
            return false;
        }
        self.pacing_until_ns = Some(self.tcp_wstamp_ns);
        true
    }

    /// `tcp_tso_segs()`, `tcp_tso_autosize()`: returns the segments per burst. A burst is what the pacing rate gives in 2^-shift s, more on
    /// short paths, and one segment if the node has no segmentation offloads.
    fn tso_segs(&self) -> u32 {
        let bursts = self.cc.bursts(self.pacing_rate_bytes_per_s, MTU_BYTES);
        let mut bytes = self.pacing_rate_bytes_per_s >> (bursts.pacing_shift & 31);
        let shift = self.rtt.min_us() >> TSO_RTT_LOG;
        if shift < u32::BITS {
            bytes += SK_GSO_MAX_SIZE_BYTES >> shift;
        }
        let segs = (bytes.min(SK_GSO_MAX_SIZE_BYTES) / u64::from(MSS_BYTES)) as u32;
        segs.max(bursts.min_tso_segs).min(self.config.gso_max_segs)
    }

    /// `tcp_tso_should_defer()`: decides whether to wait for more window instead of sending a small burst.
    fn tso_should_defer(&self, now_ns: u64, max_segs: u32) -> Defer {
        let mss = u64::from(MSS_BYTES);
        let (skb_bytes, is_tail) = self.head_skb();
        if skb_bytes <= mss || self.ca_state >= CaState::Recovery {
            return Defer::SendNow;
        }
        if now_ns.saturating_sub(self.tcp_wstamp_ns) > DEFER_NS {
            return Defer::SendNow;
        }
        let send_win_bytes = self.snd_wnd_end - self.snd_nxt;
        let cong_win_bytes = u64::from(self.snd_cwnd - self.rtx_queue.in_flight()) * mss;
        let limit_bytes = send_win_bytes.min(cong_win_bytes);
        if limit_bytes >= u64::from(max_segs) * mss || (!is_tail && limit_bytes >= skb_bytes) {
            return Defer::SendNow;
        }
        let win_bytes = (self.snd_wnd_end - self.snd_una).min(u64::from(self.snd_cwnd) * mss);
        if limit_bytes >= (win_bytes / u64::from(TSO_WIN_DIVISOR)).max(mss) {
            return Defer::SendNow;
        }
        let Some(head) = self.rtx_queue.head() else { return Defer::SendNow };
        // The next acknowledgement is far away.
        let srtt_ns = u64::from(self.rtt.srtt_us()) * 125;
        if head.sent_ns + srtt_ns > now_ns + (srtt_ns / 2).min(DEFER_NS) {
            return Defer::SendNow;
        }
        match cong_win_bytes < send_win_bytes {
            true if cong_win_bytes <= skb_bytes => Defer::CwndLimited,
            false if send_win_bytes <= skb_bytes => Defer::RwndLimited,
            _ => Defer::AppLimited,
        }
    }

    /// Sends at most `quota` new segments. Returns how many. `only_full`: sends no partial segment.
    pub(super) fn send_burst(&mut self, now_ns: u64, quota: u32, only_full: bool) -> u32 {
        self.grow_head_skb(quota);
        let (mut sent, mut sent_bytes) = (0, 0);
        while sent < quota && self.send_new(now_ns, only_full) {
            sent += 1;
            sent_bytes += u64::from(self.outbox.last().map_or(0, |(segment, _)| segment.bytes));
        }
        if sent > 0 {
            let has_psh = self.dequeue_sent();
            self.rtx_queue.end_skb(has_psh);
            // `__tcp_transmit_skb()`: set on the last segment of every burst.
            if let Some((last, _)) = self.outbox.last_mut() {
                last.psh = has_psh || sent > 1;
            }
            self.update_skb_after_send(now_ns, sent_bytes);
        }
        sent
    }

    /// Sends one new segment if there is data and the receiver has room.
    fn send_new(&mut self, now_ns: u64, only_full: bool) -> bool {
        let end = self.write_seq.min(self.snd_wnd_end);
        let bytes = end.saturating_sub(self.snd_nxt).min(MSS_BYTES.into()) as u32;
        // Silly window syndrome: send a partial segment only if it is the last that the application has.
        if bytes == 0 || (bytes < MSS_BYTES && (end != self.write_seq || only_full)) {
            return false;
        }
        self.event_data_sent(now_ns);
        let tx = self.rate.skb_sent(now_ns, self.rtx_queue.is_empty());
        let (seq, sent_ns) = (self.snd_nxt, now_ns);
        self.rtx_queue.push(SentSegment { seq, bytes, sent_ns, tx, ..SentSegment::default() });
        self.snd_nxt += u64::from(bytes);
        if bytes < MSS_BYTES {
            self.snd_sml = self.snd_nxt;
        }
        self.transmit(seq, bytes, now_ns, false);
        true
    }

    /// `tcp_nagle_check()`, `tcp_minshall_check()`: a partial segment waits until the last partial one is acknowledged.
    fn nagle_check(&self) -> bool {
        self.snd_sml > self.snd_una
    }

    /// `tcp_event_data_sent()`, for when the pipe was empty.
    fn event_data_sent(&mut self, now_ns: u64) {
        if self.rtx_queue.in_flight() == 0 {
            self.cc_event(now_ns, Event::TxStart);
        }
    }

    /// `tcp_retransmit_skb()`, or `tcp_xmit_retransmit_queue()` for one segment.
    pub(super) fn retransmit_skb(&mut self, now_ns: u64, seq: u64, bytes: u32) {
        self.event_data_sent(now_ns);
        let tx = self.rate.skb_sent(now_ns, false);
        self.rtx_queue.retransmit(seq, now_ns, tx);
        if self.retrans_stamp_ns == 0 {
            self.retrans_stamp_ns = now_ns;
        }
        self.undo_retrans = self.undo_retrans.max(0) + 1;
        self.counters.total_retrans += 1;
        self.counters.bytes_retrans += u64::from(bytes);
        self.transmit(seq, bytes, now_ns, true);
        self.update_skb_after_send(now_ns, bytes.into());
    }

    /// `__tcp_retransmit_skb()` alone: sends the last segment again as a probe.
    pub(super) fn retransmit_probe(&mut self, now_ns: u64, seq: u64, bytes: u32) {
        let tx = self.rate.skb_sent(now_ns, false);
        self.rtx_queue.probe(seq, now_ns, tx);
        self.counters.total_retrans += 1;
        self.counters.bytes_retrans += u64::from(bytes);
        self.transmit(seq, bytes, now_ns, true);
        self.update_skb_after_send(now_ns, bytes.into());
    }

    fn transmit(&mut self, seq: u64, bytes: u32, now_ns: u64, is_retransmission: bool) {
        let cwr = !is_retransmission && std::mem::take(&mut self.cwr_pending);
        self.counters.data_segs_out += 1;
        self.counters.bytes_sent += u64::from(bytes);
        self.lsndtime_ns = now_ns;
        let tsecr_ns = self.ts_recent_ns;
        let psh = is_retransmission && self.rtx_queue.get(seq).is_some_and(|sent| sent.has_psh);
        let segment = Segment { seq, bytes, tsval_ns: now_ns, tsecr_ns, cwr, psh };
        self.outbox.push((segment, is_retransmission));
        if is_retransmission {
            self.push_event(now_ns, TcpEventKind::Retransmit, 1);
        }
    }

    /// `tcp_update_skb_after_send()`: computes when the next burst may leave.
    fn update_skb_after_send(&mut self, now_ns: u64, bytes: u64) {
        let before_ns = self.tcp_wstamp_ns;
        self.tcp_wstamp_ns = before_ns.max(now_ns);
        let unpaced = self.counters.data_segs_out < UNPACED_SEGMENTS;
        if !self.requirements.pacing || unpaced || self.pacing_rate_bytes_per_s == 0 {
            return;
        }
        let length_ns = bytes * 1_000_000_000 / self.pacing_rate_bytes_per_s;
        // Idle time before this burst shortens the wait, by at most half of the burst's length.
        let credit_ns = (self.tcp_wstamp_ns - before_ns).min(length_ns / 2);
        self.tcp_wstamp_ns += length_ns - credit_ns;
    }

    /// `tcp_xmit_retransmit_queue()`.
    pub(super) fn xmit_retransmit_queue(&mut self, now_ns: u64) {
        let mut rearm = false;
        while let Some(segment) = self.rtx_queue.next_lost() {
            if self.pacing_check(now_ns) || self.rtx_queue.in_flight() >= self.snd_cwnd {
                break;
            }
            let is_head = segment.seq == self.snd_una;
            self.retransmit_skb(now_ns, segment.seq, segment.bytes);
            if self.in_cwnd_reduction() {
                self.prr_out += 1;
            }
            rearm |= is_head && !self.has_reordering_timer();
        }
        if rearm {
            self.arm_rto_after_pacing(now_ns);
        }
    }

    /// Sends when the earliest departure time of the next packet has come.
    pub fn on_pacing_timer(&mut self, now_ns: u64) {
        if self.pacing_until_ns.take().is_none() {
            return;
        }
        if self.ca_state == CaState::Loss || self.in_cwnd_reduction() || self.rtx_queue.lost_out > 0
        {
            self.xmit_retransmit_queue(now_ns);
        }
        self.write_xmit(now_ns);
    }

    /// Returns when [`Self::on_pacing_timer`] is due.
    pub fn pacing_until_ns(&self) -> Option<u64> {
        self.pacing_until_ns
    }

    /// `tcp_cwnd_validate()`.
    fn cwnd_validate(&mut self, now_ns: u64, is_cwnd_limited: bool) {
        let packets_out = self.rtx_queue.packets_out();
        if self.snd_una >= self.cwnd_usage_seq
            || is_cwnd_limited
            || (!self.is_cwnd_limited && packets_out > self.max_packets_out)
        {
            self.is_cwnd_limited = is_cwnd_limited;
            self.max_packets_out = packets_out;
            self.cwnd_usage_seq = self.snd_nxt;
        }
        if self.tcp_is_cwnd_limited() {
            (self.snd_cwnd_used, self.snd_cwnd_stamp_ns) = (0, now_ns);
            return;
        }
        self.snd_cwnd_used = self.snd_cwnd_used.max(packets_out);
        let since_ns = now_ns - self.snd_cwnd_stamp_ns;
        if self.config.slow_start_after_idle
            && !self.requirements.owns_cwnd
            && since_ns >= self.rtt.rto_us() * 1000
        {
            self.cwnd_application_limited(now_ns);
        }
    }

    /// `tcp_cwnd_application_limited()`.
    fn cwnd_application_limited(&mut self, now_ns: u64) {
        if self.ca_state == CaState::Open && !self.is_waiting_for_memory() {
            let used = self.snd_cwnd_used.max(TCP_INIT_CWND);
            if used < self.snd_cwnd {
                self.snd_ssthresh = self.current_ssthresh();
                self.snd_cwnd = (self.snd_cwnd + used) >> 1;
            }
            self.snd_cwnd_used = 0;
        }
        self.snd_cwnd_stamp_ns = now_ns;
    }
}
