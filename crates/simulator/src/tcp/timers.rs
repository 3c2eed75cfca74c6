//! The timers of a sending socket: `tcp_timer.c`, and the tail loss probe of RFC 8985. As in the kernel, at most one timer is armed at a
//! time.

use ccbench_proto::wire::{TcpEvent, TcpEventKind};

use super::rack::TCP_FASTRETRANS_THRESH;
use super::sender::Sender;
use super::timer_wheel::{TICK_NS, Timer, TimerKind, wheel_ns};
use crate::congestion_control::{CaState, Event};
use crate::packet::MSS_BYTES;

impl Sender {
    /// Returns when [`Self::on_timer`] is due.
    pub fn timer_ns(&self) -> Option<u64> {
        self.timer.map(|timer| timer.at_ns)
    }

    fn is_armed(&self, kind: TimerKind) -> bool {
        self.timer.is_some_and(|timer| timer.kind == kind)
    }

    pub(super) fn has_retransmission_timer(&self) -> bool {
        self.is_armed(TimerKind::Retransmission)
    }

    pub(super) fn has_reordering_timer(&self) -> bool {
        self.is_armed(TimerKind::Reordering)
    }

    fn arm(&mut self, kind: TimerKind, now_ns: u64, delay_ns: u64) {
        self.timer = Some(Timer { kind, at_ns: wheel_ns(now_ns, delay_ns) });
    }

    pub(super) fn arm_reordering_timer(&mut self, now_ns: u64, delay_ns: u64) {
        self.arm(TimerKind::Reordering, now_ns, delay_ns);
    }

    /// Arms the retransmission timer for a full timeout from now.
    fn arm_rto(&mut self, now_ns: u64) {
        self.arm(TimerKind::Retransmission, now_ns, self.rto_ns());
    }

    /// Does the same, later by the time until the next packet may leave (`tcp_reset_xmit_timer()` with `pace_delay`).
    pub(super) fn arm_rto_after_pacing(&mut self, now_ns: u64) {
        let delay_ns = self.rto_ns() + self.pacing_delay_ns(now_ns);
        self.arm(TimerKind::Retransmission, now_ns, delay_ns);
    }

    /// Does the same for a timeout that began with the transmission of the first segment.
    fn arm_rest_of_rto(&mut self, now_ns: u64) {
        let delay_ns = self.rto_delta_ns(now_ns).max(1_000) + self.pacing_delay_ns(now_ns);
        self.arm(TimerKind::Retransmission, now_ns, delay_ns);
    }

    /// `tcp_pacing_delay()`: returns the time until the last packet leaves, in whole ticks.
    fn pacing_delay_ns(&self, now_ns: u64) -> u64 {
        self.tcp_wstamp_ns.saturating_sub(now_ns) / TICK_NS * TICK_NS
    }

    fn rto_ns(&self) -> u64 {
        self.rtt.backed_off_us(self.backoff) * 1000
    }

    /// `tcp_rto_delta_us()`: returns the time until a timeout that began with the transmission of the first segment.
    fn rto_delta_ns(&self, now_ns: u64) -> u64 {
        let sent_ns = self.rtx_queue.head().map_or(now_ns, |head| head.sent_ns);
        (sent_ns + self.rto_ns()).saturating_sub(now_ns)
    }

    /// `tcp_rearm_rto()`.
    pub(super) fn rearm_rto(&mut self, now_ns: u64) {
        if self.rtx_queue.is_empty() {
            self.timer = None;
        } else if self.is_armed(TimerKind::LossProbe) || self.is_armed(TimerKind::Reordering) {
            self.arm_rest_of_rto(now_ns);
        } else {
            self.arm_rto_after_pacing(now_ns);
        }
    }

    /// `tcp_set_xmit_timer()`.
    pub(super) fn set_xmit_timer(&mut self, now_ns: u64) {
        if !self.schedule_loss_probe(now_ns, true) {
            self.rearm_rto(now_ns);
        }
    }

    /// `tcp_schedule_loss_probe()`: arms the probe two RTTs after the last transmission or acknowledgement.
    pub(super) fn schedule_loss_probe(&mut self, now_ns: u64, advancing_rto: bool) -> bool {
        if !matches!(self.ca_state, CaState::Open | CaState::Cwr) || self.rtx_queue.is_empty() {
            // New data needs a timer in every state.
            if self.timer.is_none() && !self.rtx_queue.is_empty() {
                self.arm_rto_after_pacing(now_ns);
            }
            return false;
        }
        let mut delay_ns = u64::from(self.rtt.srtt_us() >> 2) * 1000;
        delay_ns += match self.rtx_queue.packets_out() {
            1 => super::rtt::RTO_MIN_US * 1000,
            _ => super::rack::TIMEOUT_MIN_NS,
        };
        let rto_ns = if advancing_rto { self.rto_ns() } else { self.rto_delta_ns(now_ns) };
        if rto_ns > 0 {
            delay_ns = delay_ns.min(rto_ns);
        }
        self.arm(TimerKind::LossProbe, now_ns, delay_ns + self.pacing_delay_ns(now_ns));
        true
    }

    /// `tcp_write_timer_handler()`: processes the timer that is due. Except for a probe, new data waits for the next acknowledgement.
    pub fn on_timer(&mut self, now_ns: u64) {
        let Some(timer) = self.timer.filter(|timer| timer.at_ns <= now_ns) else { return };
        match timer.kind {
            TimerKind::Retransmission => {
                self.timer = None;
                self.retransmit_timer(now_ns);
            }
            TimerKind::LossProbe => {
                self.timer = None;
                self.send_loss_probe(now_ns);
            }
            // It counts as armed until another one is.
            TimerKind::Reordering => self.rack_reo_timeout(now_ns),
        }
    }

    /// `tcp_retransmit_timer()`.
    fn retransmit_timer(&mut self, now_ns: u64) {
        if self.rtx_queue.is_empty() {
            return;
        }
        self.counters.total_rto += 1;
        self.enter_loss(now_ns);
        self.retransmits += 1;
        if let Some(head) = self.rtx_queue.head().copied() {
            // The program sees a timeout only after the kernel has counted its retransmission.
            let (count, total_retrans_pkts) = (self.retransmits, self.counters.total_retrans + 1);
            let retransmitted = |event| TcpEvent { count, total_retrans_pkts, ..event };
            self.push_event_with(now_ns, TcpEventKind::Rto, retransmitted);
            self.retransmit_skb(now_ns, head.seq, head.bytes);
        }
        self.backoff += 1;
        self.arm_rto(now_ns);
    }

    /// `tcp_enter_loss()`.
    fn enter_loss(&mut self, now_ns: u64) {
        let is_new_recovery = self.ca_state < CaState::Recovery;
        self.timeout_mark_lost(now_ns);
        if self.ca_state <= CaState::Disorder
            || self.high_seq <= self.snd_una
            || (self.ca_state == CaState::Loss && self.retransmits == 0)
        {
            self.prior_ssthresh = self.current_ssthresh();
            self.prior_cwnd = self.snd_cwnd;
            self.snd_ssthresh = self.cc_ssthresh(now_ns);
            self.cc_event(now_ns, Event::Rto);
            self.init_undo();
        }
        self.snd_cwnd = self.rtx_queue.in_flight() + 1;
        (self.snd_cwnd_stamp_ns, self.tlp_high_seq) = (now_ns, None);
        if self.ca_state <= CaState::Disorder && self.rtx_queue.sacked_out >= TCP_FASTRETRANS_THRESH
        {
            self.reordering = TCP_FASTRETRANS_THRESH;
        }
        self.set_ca_state(now_ns, CaState::Loss);
        self.high_seq = self.snd_nxt;
        self.cwr_pending = self.config.ecn == super::EcnMode::Classic;
        self.frto = is_new_recovery || self.retransmits > 0;
    }

    /// `tcp_timeout_mark_lost()`: marks everything lost except what was sent recently.
    fn timeout_mark_lost(&mut self, now_ns: u64) {
        let head = self.rtx_queue.head().map(|head| head.seq);
        let rack = &self.rack;
        let is_lost = |segment: &&super::retransmit_queue::SentSegment| {
            Some(segment.seq) == head || rack.skb_timeout_ns(now_ns, segment.sent_ns, 0) == 0
        };
        let lost: Vec<u64> =
            self.rtx_queue.iter().filter(is_lost).map(|segment| segment.seq).collect();
        lost.into_iter().for_each(|seq| self.rtx_queue.mark_lost(seq));
    }

    /// `tcp_send_loss_probe()`: sends new data if there is any and the receiver has room, otherwise the last segment again. Then a full
    /// timeout begins.
    fn send_loss_probe(&mut self, now_ns: u64) {
        if self.rtx_queue.is_empty() {
            return;
        }
        if self.tlp_high_seq.is_none() {
            self.tlp_retrans = false;
            // `tcp_snd_wnd_test()`: the whole segment must fit into the window.
            let len_bytes = (self.write_seq - self.snd_nxt).min(MSS_BYTES.into());
            if len_bytes > 0 && self.snd_nxt + len_bytes <= self.snd_wnd_end {
                if self.write_xmit_probe(now_ns) {
                    self.tlp_high_seq = Some(self.snd_nxt);
                }
            } else if let Some(tail) = self.rtx_queue.tail().copied() {
                self.retransmit_probe(now_ns, tail.seq, tail.bytes);
                self.tlp_retrans = true;
                self.tlp_high_seq = Some(self.snd_nxt);
            }
            if self.tlp_high_seq.is_some() {
                return self.arm_rto_after_pacing(now_ns);
            }
        }
        self.arm_rest_of_rto(now_ns);
    }
}
