//! Acknowledgements at the sender: `tcp_ack()` and what it calls before the congestion states.

use super::EcnMode;
use super::delivery_rate::RateSample;
use super::recovery::Rexmit;
use super::retransmit_queue::SentSegment;
use super::sender::{AckInfo, Sender};
use crate::core::CaState;
use crate::packet::{Ack, MSS_BYTES, Range};

/// `tcp_max_reordering`.
const MAX_REORDERING: u32 = 300;

/// The timestamp option's clock, ms.
pub(super) fn timestamp(at_ns: u64) -> u64 {
    at_ns / 1_000_000
}

/// `tcp_skb_spurious_retrans()`: the timestamp that came back is older than the retransmission.
fn is_spurious_retransmission(segment: &SentSegment, echoed_ns: u64) -> bool {
    segment.was_retransmitted && echoed_ns > 0 && timestamp(echoed_ns) < timestamp(segment.sent_ns)
}

/// What an acknowledgement has brought: the kernel's `flag` and `struct tcp_sacktag_state`.
#[derive(Debug, Default)]
pub(super) struct AckState {
    pub ack: u64,
    /// `snd_una` before it.
    pub prior_una: u64,
    pub echoed_ns: u64,
    /// FLAG_SND_UNA_ADVANCED.
    pub una_advanced: bool,
    /// FLAG_DATA_ACKED.
    pub data_acked: bool,
    /// FLAG_DATA_SACKED.
    pub has_sacked: bool,
    /// FLAG_DSACKING_ACK.
    pub has_dsack: bool,
    /// FLAG_DSACK_TLP.
    pub is_dsack_of_probe: bool,
    /// FLAG_ECE.
    pub has_ece: bool,
    /// It neither advances the acknowledgement nor opens the window.
    pub is_duplicate: bool,
    /// FLAG_ORIG_SACK_ACKED.
    pub original_sacked: bool,
    /// FLAG_LOST_RETRANS.
    pub lost_retransmission: bool,
    /// FLAG_SET_XMIT_TIMER.
    pub sets_timer: bool,
    /// FLAG_RETRANS_DATA_ACKED.
    retransmission_acked: bool,
    /// FLAG_ACK_MAYBE_DELAYED.
    is_ack_delayed: bool,
    /// Of data that was sent once: the first and the last transmission that is acknowledged, cumulatively or selectively.
    first_sent_ns: Option<u64>,
    last_sent_ns: Option<u64>,
    first_sacked_ns: Option<u64>,
    last_sacked_ns: Option<u64>,
    /// Start of the lowest segment that was sent once and is newly acknowledged selectively below others.
    reordered_seq: Option<u64>,
    newly_delivered: u32,
    prior_lost: u32,
    rtt_us: Option<u32>,
    sample: RateSample,
}

impl AckState {
    /// What the congestion control learns, with `lost` packets marked so far.
    pub fn info(&self, lost: u32) -> AckInfo {
        AckInfo {
            rtt_us: self.rtt_us,
            acked: self.newly_delivered,
            lost: lost.wrapping_sub(self.prior_lost),
            is_ack_delayed: self.is_ack_delayed,
            sample: self.sample,
        }
    }

    /// `tcp_ack_is_dubious()`, without the test of the state.
    fn is_dubious(&self) -> bool {
        self.is_duplicate || self.has_sacked || self.has_ece || self.has_dsack
    }
}

impl Sender {
    /// An acknowledgement arrives. [`Self::send`] then sends what it permits.
    pub fn take_ack(&mut self, now_ns: u64, ack: &Ack) {
        self.counters.segs_in += 1;
        self.echo_ns = ack.sent_ns;
        if ack.ack < self.snd_una {
            return self.on_old_ack(now_ns, ack);
        }
        self.last_ack_ns = now_ns;
        let (prior_una, prior_delivered) = (self.snd_una, self.rate.delivered);
        let mut state = AckState {
            ack: ack.ack,
            prior_una,
            echoed_ns: ack.echoed_ns,
            prior_lost: self.queue.lost,
            ..AckState::default()
        };
        self.prior_in_flight = self.queue.in_flight();
        let had_data = !self.queue.is_empty();
        let window_grew = ack.window_end > self.snd_wnd_end;
        self.snd_wnd_end = self.snd_wnd_end.max(ack.window_end);
        if ack.ack > self.snd_una {
            self.snd_una = ack.ack;
            self.retransmits = 0;
            state.una_advanced = true;
        }
        // As before this acknowledgement: its own blocks are no evidence of reordering.
        let (prior_highest, prior_sacked) = (self.queue.sacked.end(), self.queue.sacked_out);
        self.take_sacks(now_ns, ack, &mut state);
        let acked_pkts = self.clean_queue(now_ns, prior_highest, &mut state);
        let is_runt = self.snd_una - prior_una < u64::from(MSS_BYTES);
        let only_this = state.sample.prior_delivered.wrapping_add(1) == self.rate.delivered;
        let is_exact = state.first_sent_ns.is_some() && !state.retransmission_acked;
        state.is_ack_delayed =
            acked_pkts == 1 && prior_sacked == 0 && is_runt && only_this && is_exact;
        self.take_marks(ack, prior_delivered, &mut state);
        state.is_duplicate = !state.una_advanced && !window_grew;
        if !had_data {
            if state.has_dsack {
                self.alert(now_ns, &mut state);
            }
            self.process_tlp_ack(now_ns, &state);
        } else {
            self.update_rtt(now_ns, &mut state);
            self.cc_sample(now_ns, acked_pkts, &state);
            state.newly_delivered = self.rate.delivered.wrapping_sub(prior_delivered);
            self.respond(now_ns, &mut state);
        }
    }

    /// An acknowledgement that a later one has overtaken: only its SACK blocks count (`old_ack` in `tcp_ack()`).
    fn on_old_ack(&mut self, now_ns: u64, ack: &Ack) {
        if ack.block_count > 0 {
            let mut state = AckState {
                ack: ack.ack,
                prior_una: self.snd_una,
                echoed_ns: ack.echoed_ns,
                ..AckState::default()
            };
            self.take_sacks(now_ns, ack, &mut state);
            let rexmit = self.alert(now_ns, &mut state);
            self.transmit_recovery(now_ns, rexmit);
        }
    }

    /// Loss detection, congestion states, congestion control and retransmissions.
    fn respond(&mut self, now_ns: u64, state: &mut AckState) {
        self.rack.update_window(state.sample.prior_delivered, self.rate.delivered);
        self.process_tlp_ack(now_ns, state);
        let mut rexmit = Rexmit::None;
        if state.is_dubious() || self.ca_state != CaState::Open {
            rexmit = self.alert(now_ns, state);
        }
        if state.sets_timer {
            self.set_transmit_timer(now_ns);
        }
        let newly = state.newly_delivered;
        self.rate.finish(now_ns, newly, self.rtt.min_us(), &mut state.sample);
        self.congestion_control(now_ns, state);
        self.transmit_recovery(now_ns, rexmit);
    }

    /// `icsk_ca_ops->pkts_acked()`, which congestion controls with `cong_control()` do not have.
    fn cc_sample(&mut self, now_ns: u64, acked_pkts: u32, state: &AckState) {
        if self.wants.owns_cwnd {
            return;
        }
        let info = AckInfo { rtt_us: state.rtt_us, acked: acked_pkts, ..AckInfo::default() };
        let view = self.view(now_ns, &info);
        self.round_ended |= self.cc.on_sample(&view);
    }

    /// `tcp_xmit_recovery()`.
    fn transmit_recovery(&mut self, now_ns: u64, rexmit: Rexmit) {
        match rexmit {
            Rexmit::None => {}
            Rexmit::Lost => self.retransmit_lost(now_ns),
            Rexmit::New => {
                self.send(now_ns);
                if self.snd_nxt <= self.high_seq {
                    self.frto = false;
                    self.retransmit_lost(now_ns);
                }
            }
        }
    }

    /// `tcp_sacktag_write_queue()`.
    fn take_sacks(&mut self, now_ns: u64, ack: &Ack, state: &mut AckState) {
        let (mut sorted, mut blocks) = (ack.blocks, ack.sacked());
        if ack.dsack
            && let Some((first, rest)) = blocks.split_first()
        {
            self.take_dsack(*first, state);
            blocks = rest;
        }
        // The most recent block comes first; reordering shows only in ascending order.
        let sorted = &mut sorted[..blocks.len()];
        sorted.copy_from_slice(blocks);
        sorted.sort_unstable_by_key(|block| block.begin);
        for block in &*sorted {
            if block.end > self.snd_nxt || block.end <= self.snd_una {
                continue;
            }
            let highest = self.queue.sacked.end();
            let mut new = [Range::default(); 8];
            let mut count = 0;
            self.queue.sacked.insert(*block, |range| {
                // More gaps than this in one block are not told apart: the range is looked at as a whole.
                count = (count + 1).min(new.len());
                let slot = &mut new[count - 1];
                *slot = if slot.end == 0 { range } else { Range { begin: slot.begin, ..range } };
            });
            for range in &new[..count] {
                self.sack_range(now_ns, *range, highest, state);
            }
        }
        if self.ca_state != CaState::Loss || self.undo_marker.is_some() {
            self.check_reordering(state.reordered_seq);
        }
    }

    /// `tcp_check_dsack()`: the receiver had this already.
    fn take_dsack(&mut self, range: Range, state: &mut AckState) {
        let segments = (range.end - range.begin).div_ceil(MSS_BYTES.into()).max(1);
        let is_of_probe = segments == 1 && self.tlp_high_seq == Some(range.end);
        state.is_dsack_of_probe |= is_of_probe;
        self.counters.dsack_dups += segments as u32;
        // More duplicates than retransmissions: the network made them.
        if self.counters.dsack_dups > self.counters.total_retrans {
            return;
        }
        state.has_dsack = true;
        if self.reordering_seen && !is_of_probe {
            self.rack.see_dsack();
        }
        if self.undo_marker.is_some_and(|marker| range.end > marker) && self.undo_retrans > 0 {
            self.undo_retrans = (self.undo_retrans - segments as i64).max(0);
        }
    }

    /// Newly selectively acknowledged data; `highest` was the end of what was known before.
    fn sack_range(
        &mut self,
        now_ns: u64,
        range: Range,
        highest: Option<u64>,
        state: &mut AckState,
    ) {
        let (rate, rack, min_rtt_us) = (&mut self.rate, &mut self.rack, self.rtt.min_us());
        let high_seq = self.high_seq;
        self.queue.sack(range, |segment| {
            if !segment.was_retransmitted {
                // A hole is filled by the original: packets were reordered.
                if highest.is_some_and(|highest| segment.seq < highest) {
                    state.reordered_seq.get_or_insert(segment.seq);
                }
                state.original_sacked |= segment.end() <= high_seq;
                state.first_sacked_ns.get_or_insert(segment.sent_ns);
                state.last_sacked_ns = Some(segment.sent_ns);
            }
            state.has_sacked = true;
            rate.delivered = rate.delivered.wrapping_add(1);
            rate.delivered(segment, &mut state.sample);
            rack.advance(now_ns, segment, min_rtt_us);
        });
    }

    /// `tcp_check_sack_reordering()`: a segment from here on was delivered after later ones.
    pub(super) fn check_reordering(&mut self, low_seq: Option<u64>) {
        let highest = self.queue.sacked.end().unwrap_or(self.snd_una);
        let Some(distance) = low_seq.and_then(|low_seq| highest.checked_sub(low_seq)) else {
            return;
        };
        if distance == 0 {
            return;
        }
        let packets = distance.div_ceil(MSS_BYTES.into()).min(MAX_REORDERING.into());
        self.reordering = self.reordering.max(packets as u32);
        self.reordering_seen = true;
        self.counters.reord_seen += 1;
    }

    /// `tcp_clean_rtx_queue()`; returns the number of packets.
    fn clean_queue(
        &mut self,
        now_ns: u64,
        highest_sacked: Option<u64>,
        state: &mut AckState,
    ) -> u32 {
        let min_rtt_us = self.rtt.min_us();
        let (mut count, mut reordered_seq) = (0, None);
        while let Some(segment) = self.queue.pop_acked(self.snd_una) {
            count += 1;
            state.data_acked = true;
            if segment.was_retransmitted {
                state.retransmission_acked = true;
            } else if !segment.is_sacked {
                state.first_sent_ns.get_or_insert(segment.sent_ns);
                state.last_sent_ns = Some(segment.sent_ns);
                if highest_sacked.is_some_and(|highest| segment.seq < highest) {
                    reordered_seq.get_or_insert(segment.seq);
                }
                state.original_sacked |= segment.end() <= self.high_seq;
            }
            if !segment.is_sacked {
                self.rate.delivered = self.rate.delivered.wrapping_add(1);
                self.rate.delivered(&segment, &mut state.sample);
                if !is_spurious_retransmission(&segment, state.echoed_ns) {
                    self.rack.advance(now_ns, &segment, min_rtt_us);
                }
            }
        }
        self.queue.sacked.remove_below(self.snd_una);
        self.check_reordering(reordered_seq);
        if count > 0 {
            self.backoff = 0;
            state.sets_timer = true;
        } else if let (Some(sacked_ns), Some(head)) = (state.first_sacked_ns, self.queue.head()) {
            // The RTO starts from the head's transmission unless this is of later data.
            state.sets_timer = now_ns - sacked_ns > now_ns - head.sent_ns;
        }
        count
    }

    /// ECE, or a higher count of marks.
    fn take_marks(&mut self, ack: &Ack, prior_delivered: u32, state: &mut AckState) {
        match self.config.ecn {
            EcnMode::Off => {}
            EcnMode::Classic => {
                state.has_ece = ack.ece;
                if ack.ece {
                    let newly = self.rate.delivered.wrapping_sub(prior_delivered);
                    self.rate.delivered_ce = self.rate.delivered_ce.wrapping_add(newly);
                }
            }
            EcnMode::Accurate { .. } => {
                let newly = ack.ce_pkts.wrapping_sub(self.received_ce);
                if (newly as i32) > 0 {
                    self.received_ce = ack.ce_pkts;
                    self.rate.delivered_ce = self.rate.delivered_ce.wrapping_add(newly);
                    state.has_ece = true;
                }
            }
        }
    }

    /// `tcp_ack_update_rtt()`.
    fn update_rtt(&mut self, now_ns: u64, state: &mut AckState) {
        let since_us = |sent_ns: u64| ((now_ns - sent_ns) / 1000) as u32;
        let exact = !state.retransmission_acked;
        let mut seq_rtt_us = state.first_sent_ns.filter(|_| exact).map(since_us);
        let mut ca_rtt_us = state.last_sent_ns.filter(|_| exact).map(since_us);
        if let Some(sacked_ns) = state.first_sacked_ns {
            seq_rtt_us = seq_rtt_us.or(Some(since_us(sacked_ns)));
            ca_rtt_us = state.last_sacked_ns.map(since_us);
        }
        if seq_rtt_us.is_none() && state.data_acked && state.echoed_ns > 0 {
            let ticks = timestamp(now_ns) - timestamp(state.echoed_ns);
            let rtt_us = (ticks.max(1) * 1000) as u32;
            (seq_rtt_us, ca_rtt_us) = (Some(rtt_us), Some(rtt_us));
        }
        state.rtt_us = ca_rtt_us;
        let (Some(seq_rtt_us), Some(ca_rtt_us)) = (seq_rtt_us, ca_rtt_us) else { return };
        // A delayed acknowledgement says nothing about the path.
        if !state.is_ack_delayed || ca_rtt_us <= self.rtt.min_us() {
            self.rtt.add_to_min(now_ns, ca_rtt_us);
        }
        self.rtt.add(seq_rtt_us, self.snd_una, self.snd_nxt);
    }
}
