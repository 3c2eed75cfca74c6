//! Congestion states, recovery and undo: `tcp_fastretrans_alert()` and what it calls, PRR (RFC 9937), F-RTO (RFC 5682).

use super::EcnMode;
use super::ack_state::{AckState, Rexmit, tsval_ms};
use super::rack::TCP_FASTRETRANS_THRESH;
use super::sender::{CcSample, Sender, TCP_INFINITE_SSTHRESH};
use crate::congestion_control::{self, CaState, CcOutput, ack_flags};

impl Sender {
    /// `tcp_fastretrans_alert()`.
    pub(super) fn fastretrans_alert(&mut self, now_ns: u64, ack: &mut AckState) -> Rexmit {
        if ack.has_ece {
            self.prior_ssthresh = 0;
        }
        if self.ca_state == CaState::Open {
            self.retrans_stamp_ns = 0;
        } else if self.snd_una >= self.high_seq {
            match self.ca_state {
                CaState::Cwr if self.snd_una != self.high_seq => {
                    self.end_cwnd_reduction();
                    self.set_ca_state(now_ns, CaState::Open);
                }
                CaState::Recovery => {
                    self.try_undo_recovery(now_ns, ack);
                    self.end_cwnd_reduction();
                }
                _ => {}
            }
        }
        match self.ca_state {
            CaState::Recovery => {
                if ack.una_advanced && self.try_undo_partial(now_ns, ack) {
                    return Rexmit::None;
                }
                if self.try_undo_dsack(now_ns) {
                    self.try_to_open(now_ns, ack);
                }
                self.identify_packet_loss(now_ns, ack);
                if self.ca_state != CaState::Recovery {
                    if self.rtx_queue.lost_out == 0 {
                        return Rexmit::None;
                    }
                    self.enter_recovery(now_ns, ack.has_ece);
                }
            }
            CaState::Loss => {
                let rexmit = self.process_loss(now_ns, ack);
                self.identify_packet_loss(now_ns, ack);
                if self.ca_state != CaState::Open && !ack.lost_retransmission {
                    return rexmit;
                }
                if !self.recover_or_open(now_ns, ack) {
                    return rexmit;
                }
            }
            _ => {
                if self.ca_state <= CaState::Disorder {
                    self.try_undo_dsack(now_ns);
                }
                self.identify_packet_loss(now_ns, ack);
                if !self.recover_or_open(now_ns, ack) {
                    return Rexmit::None;
                }
            }
        }
        Rexmit::Lost
    }

    /// Enters recovery if something is lost (`tcp_time_to_recover()`). Otherwise stays in or enters the open state.
    fn recover_or_open(&mut self, now_ns: u64, ack: &AckState) -> bool {
        if self.rtx_queue.lost_out == 0 {
            self.try_to_open(now_ns, ack);
            return false;
        }
        self.enter_recovery(now_ns, ack.has_ece);
        true
    }

    /// `tcp_identify_packet_loss()`.
    fn identify_packet_loss(&mut self, now_ns: u64, ack: &mut AckState) {
        if self.rtx_queue.is_empty() {
            return;
        }
        let retransmitted = self.rtx_queue.retrans_out;
        if self.rack_mark_lost(now_ns) {
            ack.sets_timer = false;
        }
        ack.lost_retransmission |= retransmitted > self.rtx_queue.retrans_out;
    }

    /// `tcp_enter_recovery()`.
    pub(super) fn enter_recovery(&mut self, now_ns: u64, has_ece: bool) {
        self.retrans_stamp_cleanup();
        self.prior_ssthresh = 0;
        self.init_undo();
        if !self.in_cwnd_reduction() {
            if !has_ece {
                self.prior_ssthresh = self.current_ssthresh();
            }
            self.init_cwnd_reduction(now_ns);
        }
        self.set_ca_state(now_ns, CaState::Recovery);
    }

    /// `tcp_enter_cwr()`.
    pub(super) fn enter_cwr(&mut self, now_ns: u64) {
        self.prior_ssthresh = 0;
        if self.ca_state < CaState::Cwr {
            self.undo_marker = None;
            self.init_cwnd_reduction(now_ns);
            self.set_ca_state(now_ns, CaState::Cwr);
        }
    }

    /// `tcp_init_cwnd_reduction()`.
    fn init_cwnd_reduction(&mut self, now_ns: u64) {
        self.high_seq = self.snd_nxt;
        self.tlp_high_seq = None;
        self.prior_cwnd = self.snd_cwnd;
        (self.prr_delivered, self.prr_out) = (0, 0);
        self.snd_ssthresh = self.cc_ssthresh(now_ns);
        self.cwr_pending = self.config.ecn == EcnMode::Classic;
    }

    /// `tcp_end_cwnd_reduction()`.
    fn end_cwnd_reduction(&mut self) {
        if self.requirements.owns_cwnd {
            return;
        }
        let is_reduced = self.ca_state == CaState::Cwr || self.undo_marker.is_some();
        if self.snd_ssthresh < TCP_INFINITE_SSTHRESH && is_reduced {
            self.snd_cwnd = self.snd_ssthresh;
        }
    }

    /// `tcp_cwnd_reduction()`: PRR.
    pub(super) fn cwnd_reduction(
        &mut self,
        newly_acked_sacked: u32,
        newly_lost: u32,
        una_advanced: bool,
    ) {
        if newly_acked_sacked == 0 || self.prior_cwnd == 0 {
            return;
        }
        self.prr_delivered += newly_acked_sacked;
        let in_flight = self.rtx_queue.in_flight();
        let mut sndcnt = if let Some(delta_pkts) = self.snd_ssthresh.checked_sub(in_flight) {
            let owed_pkts = self.prr_delivered.saturating_sub(self.prr_out).max(newly_acked_sacked);
            delta_pkts.min(owed_pkts + u32::from(una_advanced && newly_lost == 0))
        } else {
            let share = u64::from(self.snd_ssthresh) * u64::from(self.prr_delivered);
            let share = share.div_ceil(u64::from(self.prior_cwnd)) as u32;
            share.saturating_sub(self.prr_out)
        };
        // The fast retransmission at the beginning of recovery.
        sndcnt = sndcnt.max(u32::from(self.prr_out == 0));
        self.snd_cwnd = in_flight + sndcnt;
    }

    /// `tcp_init_undo()`.
    pub(super) fn init_undo(&mut self) {
        self.undo_marker = Some(self.snd_una);
        let out = i64::from(self.rtx_queue.retrans_out)
            + i64::from(self.tlp_high_seq.is_some() && self.tlp_retrans);
        // -1: nothing has been retransmitted yet. 0 would mean that all retransmissions were duplicates.
        self.undo_retrans = if out == 0 { -1 } else { out };
    }

    /// `tcp_packet_delayed()`: returns whether nothing was retransmitted, or the acknowledgement is of a transmission before the first
    /// retransmission (Eifel detection, RFC 3522).
    fn packet_delayed(&self, ack: &AckState) -> bool {
        let is_older = ack.tsecr_ns > 0 && tsval_ms(ack.tsecr_ns) < tsval_ms(self.retrans_stamp_ns);
        self.retrans_stamp_ns == 0 || is_older
    }

    /// `tcp_any_retrans_done()`.
    fn any_retrans_done(&self) -> bool {
        self.rtx_queue.retrans_out > 0
            || self.rtx_queue.head().is_some_and(|head| head.was_retransmitted)
    }

    /// `tcp_retrans_stamp_cleanup()`.
    fn retrans_stamp_cleanup(&mut self) {
        if !self.any_retrans_done() {
            self.retrans_stamp_ns = 0;
        }
    }

    /// `tcp_may_undo()`.
    fn may_undo(&self, ack: &AckState) -> bool {
        self.undo_marker.is_some() && (self.undo_retrans == 0 || self.packet_delayed(ack))
    }

    /// `tcp_undo_cwnd_reduction()`.
    fn undo_cwnd_reduction(&mut self, now_ns: u64, unmark_loss: bool) {
        if unmark_loss {
            self.rtx_queue.unmark_lost();
        }
        if self.prior_ssthresh != 0 {
            let view = self.view(now_ns, &CcSample::default());
            self.snd_cwnd = self.cc.undo(&view);
            if self.prior_ssthresh > self.snd_ssthresh {
                self.snd_ssthresh = self.prior_ssthresh;
                self.cwr_pending = false;
            }
        }
        self.snd_cwnd_stamp_ns = now_ns;
        self.undo_marker = None;
        self.rack.advanced = true;
    }

    /// `tcp_try_undo_recovery()`.
    fn try_undo_recovery(&mut self, now_ns: u64, ack: &AckState) {
        if self.may_undo(ack) {
            self.undo_cwnd_reduction(now_ns, false);
        } else {
            self.rack.end_recovery();
        }
        self.set_ca_state(now_ns, CaState::Open);
    }

    /// `tcp_try_undo_dsack()`: undoes the reduction if every retransmission was a duplicate.
    fn try_undo_dsack(&mut self, now_ns: u64) -> bool {
        if self.undo_marker.is_none() || self.undo_retrans != 0 {
            return false;
        }
        self.rack.extend_reo_wnd_persist();
        self.undo_cwnd_reduction(now_ns, false);
        true
    }

    /// `tcp_try_undo_partial()`: returns whether to wait because retransmissions are in flight.
    fn try_undo_partial(&mut self, now_ns: u64, ack: &AckState) -> bool {
        if self.undo_marker.is_none() || !self.packet_delayed(ack) {
            return false;
        }
        self.check_sack_reordering(Some(ack.prior_una));
        if self.rtx_queue.retrans_out > 0 {
            return true;
        }
        self.retrans_stamp_cleanup();
        self.undo_cwnd_reduction(now_ns, true);
        self.try_keep_open(now_ns);
        false
    }

    /// `tcp_try_undo_loss()`.
    fn try_undo_loss(&mut self, now_ns: u64, ack: &AckState, by_frto: bool) -> bool {
        if !by_frto && !self.may_undo(ack) {
            return false;
        }
        self.undo_cwnd_reduction(now_ns, true);
        self.retransmits = 0;
        self.set_ca_state(now_ns, CaState::Open);
        true
    }

    /// `tcp_process_loss()`.
    fn process_loss(&mut self, now_ns: u64, ack: &AckState) -> Rexmit {
        let recovered = self.snd_una >= self.high_seq;
        if ack.una_advanced && self.try_undo_loss(now_ns, ack, false) {
            return Rexmit::None;
        }
        if self.frto {
            if ack.original_sacked && self.try_undo_loss(now_ns, ack, true) {
                return Rexmit::None;
            }
            if self.snd_nxt > self.high_seq {
                if ack.has_sacked || (ack.is_duplicate && !ack.has_dsack) {
                    self.frto = false;
                }
            } else if ack.una_advanced && !recovered {
                self.high_seq = self.snd_nxt;
                if self.write_seq > self.snd_nxt && self.snd_wnd_end > self.snd_nxt {
                    return Rexmit::New;
                }
                self.frto = false;
            }
        }
        if recovered {
            self.try_undo_recovery(now_ns, ack);
            return Rexmit::None;
        }
        Rexmit::Lost
    }

    /// `tcp_try_to_open()`.
    fn try_to_open(&mut self, now_ns: u64, ack: &AckState) {
        self.retrans_stamp_cleanup();
        if ack.has_ece {
            self.enter_cwr(now_ns);
        }
        if self.ca_state != CaState::Cwr {
            self.try_keep_open(now_ns);
        }
    }

    /// `tcp_try_keep_open()`.
    pub(super) fn try_keep_open(&mut self, now_ns: u64) {
        let is_clean = self.rtx_queue.left_out() == 0 && !self.any_retrans_done();
        let state = if is_clean { CaState::Open } else { CaState::Disorder };
        if self.ca_state != state {
            self.set_ca_state(now_ns, state);
            self.high_seq = self.snd_nxt;
        }
    }

    /// `tcp_process_tlp_ack()`.
    pub(super) fn process_tlp_ack(&mut self, now_ns: u64, ack: &AckState) {
        let Some(high_seq) = self.tlp_high_seq.filter(|high_seq| ack.ack_seq >= *high_seq) else {
            return;
        };
        if !self.tlp_retrans || ack.is_dsack_tlp {
            self.tlp_high_seq = None;
        } else if ack.ack_seq > high_seq {
            // The probe has repaired a loss.
            self.init_cwnd_reduction(now_ns);
            self.set_ca_state(now_ns, CaState::Cwr);
            self.end_cwnd_reduction();
            self.try_keep_open(now_ns);
        } else if !ack.una_advanced && !ack.has_sacked && ack.is_duplicate {
            self.tlp_high_seq = None;
        }
    }

    /// `tcp_cong_control()`.
    pub(super) fn cong_control(&mut self, now_ns: u64, ack: &AckState) {
        let sample = ack.cc_sample(self.rtx_queue.lost);
        if self.requirements.owns_cwnd {
            let view = self.view(now_ns, &sample);
            return self.call_on_ack(view);
        }
        // `tcp_may_raise_cwnd()`.
        let raises = ack.data_acked || (self.reordering > TCP_FASTRETRANS_THRESH && ack.has_sacked);
        if self.in_cwnd_reduction() {
            self.cwnd_reduction(sample.acked_pkts, sample.lost_pkts, ack.una_advanced);
        } else if raises {
            // `cong_avoid()` does not learn of the rate and of losses.
            let mut view = self
                .view(now_ns, &CcSample { acked_pkts: sample.acked_pkts, ..CcSample::default() });
            view.prior_inflight_pkts = view.inflight_pkts + sample.acked_pkts;
            self.call_on_ack(view);
            self.snd_cwnd_stamp_ns = now_ns;
        }
        self.update_pacing_rate();
    }

    fn call_on_ack(&mut self, mut view: congestion_control::Ack) {
        view.flags |= self.cwnd_flags();
        debug_assert!(view.flags & !ack_flags::ALL == 0);
        let out: CcOutput = self.cc.on_ack(&view);
        self.apply(&out);
    }
}
