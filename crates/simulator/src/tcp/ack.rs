//! Acknowledgements at the sender: `tcp_ack()` and what it calls before it handles the congestion states.

use super::EcnMode;
use super::ack_state::{AckState, Rexmit, TCP_PAWS_WINDOW_MS, tsval_ms};
use super::retransmit_queue::SentSegment;
use super::sender::{CcSample, Sender};
use crate::congestion_control::CaState;
use crate::packet::{AckSegment, MSS_BYTES, SeqRange};

/// `tcp_max_reordering`.
const MAX_REORDERING: u32 = 300;

/// `tcp_skb_spurious_retrans()`: the echoed timestamp is older than the retransmission.
fn is_spurious_retransmission(segment: &SentSegment, tsecr_ns: u64) -> bool {
    segment.was_retransmitted && tsecr_ns > 0 && tsval_ms(tsecr_ns) < tsval_ms(segment.sent_ns)
}

impl Sender {
    /// Processes an acknowledgement. [`Self::data_snd_check`] then sends what it permits.
    pub fn on_ack(&mut self, now_ns: u64, ack: &AckSegment) {
        self.counters.segs_in += 1;
        if self.paws_discard(ack) {
            return;
        }
        // `tcp_replace_ts_recent()`: the timestamp never goes back, because no data of the other direction is missing.
        self.ts_recent_ns = self.ts_recent_ns.max(ack.tsval_ns);
        if ack.ack_seq < self.snd_una {
            return self.on_old_ack(now_ns, ack);
        }
        self.rcv_tstamp_ns = now_ns;
        let (prior_una, prior_delivered) = (self.snd_una, self.rate.delivered);
        let mut state = AckState {
            ack_seq: ack.ack_seq,
            prior_una,
            tsecr_ns: ack.tsecr_ns,
            prior_lost: self.rtx_queue.lost,
            ..AckState::default()
        };
        self.prior_in_flight = self.rtx_queue.in_flight();
        let had_data = !self.rtx_queue.is_empty();
        let window_grew = ack.window_end > self.snd_wnd_end;
        self.snd_wnd_end = self.snd_wnd_end.max(ack.window_end);
        let window_bytes = ack.window_end.saturating_sub(ack.ack_seq);
        self.max_window_bytes = self.max_window_bytes.max(window_bytes);
        if ack.ack_seq > self.snd_una {
            self.snd_una = ack.ack_seq;
            self.retransmits = 0;
            state.una_advanced = true;
        }
        // Before this acknowledgement: its own blocks are no evidence of reordering.
        let (prior_highest, prior_sacked) =
            (self.rtx_queue.sacked.end(), self.rtx_queue.sacked_out);
        self.sacktag_write_queue(now_ns, ack, &mut state);
        let acked_pkts = self.clean_rtx_queue(now_ns, prior_highest, &mut state);
        let is_partial_segment = self.snd_una - prior_una < u64::from(MSS_BYTES);
        let only_this = state.sample.prior_delivered.wrapping_add(1) == self.rate.delivered;
        let is_exact = state.first_sent_ns.is_some() && !state.retransmission_acked;
        state.is_ack_delayed =
            acked_pkts == 1 && prior_sacked == 0 && is_partial_segment && only_this && is_exact;
        self.rcv_ecn_echo(ack, prior_delivered, &mut state);
        state.is_duplicate = !state.una_advanced && !window_grew;
        if !had_data {
            if state.has_dsack {
                self.fastretrans_alert(now_ns, &mut state);
            }
            self.process_tlp_ack(now_ns, &state);
        } else {
            self.ack_update_rtt(now_ns, &mut state);
            self.pkts_acked(now_ns, acked_pkts, &state);
            state.newly_acked_sacked = self.rate.delivered.wrapping_sub(prior_delivered);
            self.respond(now_ns, &mut state);
        }
    }

    /// `tcp_paws_discard()` (RFC 7323), `tcp_disordered_ack_check()`: returns whether to discard an acknowledgement because a later one has
    /// overtaken it by more than a tick. It is kept if it repeats the number of the last one within 1.2 timeouts.
    fn paws_discard(&self, ack: &AckSegment) -> bool {
        let older_ms = tsval_ms(self.ts_recent_ns).saturating_sub(tsval_ms(ack.tsval_ns));
        if older_ms <= TCP_PAWS_WINDOW_MS {
            return false;
        }
        let is_disordered = ack.ack_seq == self.snd_una
            && ack.window_end <= self.snd_wnd_end
            && older_ms <= self.rtt.backed_off_us(self.backoff) * 12 / 10_000;
        !is_disordered
    }

    /// Processes an acknowledgement that a later one has overtaken. Only its SACK blocks count (`old_ack` in `tcp_ack()`).
    fn on_old_ack(&mut self, now_ns: u64, ack: &AckSegment) {
        if ack.block_count > 0 {
            let mut state = AckState {
                ack_seq: ack.ack_seq,
                prior_una: self.snd_una,
                tsecr_ns: ack.tsecr_ns,
                ..AckState::default()
            };
            let delivered = self.rate.delivered;
            self.sacktag_write_queue(now_ns, ack, &mut state);
            // As in the kernel, `tcp_count_delivered()` is not called.
            self.rate.delivered = delivered;
            let rexmit = self.fastretrans_alert(now_ns, &mut state);
            self.xmit_recovery(now_ns, rexmit);
        }
    }

    /// Loss detection, congestion states, congestion control and retransmissions.
    fn respond(&mut self, now_ns: u64, state: &mut AckState) {
        self.rack.update_reo_wnd(state.sample.prior_delivered, self.rate.delivered);
        self.process_tlp_ack(now_ns, state);
        let mut rexmit = Rexmit::None;
        if state.is_dubious() || self.ca_state != CaState::Open {
            rexmit = self.fastretrans_alert(now_ns, state);
        }
        if state.sets_timer {
            self.set_xmit_timer(now_ns);
        }
        let newly = state.newly_acked_sacked;
        self.rate.rate_gen(now_ns, newly, self.rtt.min_us(), &mut state.sample);
        self.cong_control(now_ns, state);
        self.xmit_recovery(now_ns, rexmit);
    }

    /// `icsk_ca_ops->pkts_acked()`. Congestion controls with `cong_control()` do not have it.
    fn pkts_acked(&mut self, now_ns: u64, acked_pkts: u32, state: &AckState) {
        if self.requirements.owns_cwnd {
            return;
        }
        let sample = CcSample { rtt_us: state.rtt_us, acked_pkts, ..CcSample::default() };
        let view = self.view(now_ns, &sample);
        self.round_ended |= self.cc.on_sample(&view);
    }

    /// `tcp_xmit_recovery()`.
    fn xmit_recovery(&mut self, now_ns: u64, rexmit: Rexmit) {
        match rexmit {
            Rexmit::None => {}
            Rexmit::Lost => self.xmit_retransmit_queue(now_ns),
            Rexmit::New => {
                self.write_xmit(now_ns);
                if self.snd_nxt <= self.high_seq {
                    self.frto = false;
                    self.xmit_retransmit_queue(now_ns);
                }
            }
        }
    }

    /// `tcp_sacktag_write_queue()`.
    fn sacktag_write_queue(&mut self, now_ns: u64, ack: &AckSegment, state: &mut AckState) {
        let (mut sorted, mut blocks) = (ack.blocks, ack.sacked());
        if ack.is_dsack
            && let Some((first, rest)) = blocks.split_first()
        {
            self.check_dsack(*first, state);
            blocks = rest;
        }
        // The most recent block comes first. Reordering is visible only in ascending order.
        let sorted = &mut sorted[..blocks.len()];
        sorted.copy_from_slice(blocks);
        sorted.sort_unstable_by_key(|block| block.start_seq);
        for block in &*sorted {
            // `tcp_is_sackblock_valid()`
            if block.end_seq > self.snd_nxt || block.start_seq <= self.snd_una {
                continue;
            }
            let highest = self.rtx_queue.sacked.end();
            let mut new = [SeqRange::default(); 8];
            let mut count = 0;
            self.rtx_queue.sacked.insert(*block, |range| {
                // A block with more gaps than this is treated as one range.
                count = (count + 1).min(new.len());
                let slot = &mut new[count - 1];
                *slot = if slot.end_seq == 0 {
                    range
                } else {
                    SeqRange { start_seq: slot.start_seq, ..range }
                };
            });
            for range in &new[..count] {
                self.sack_range(now_ns, *range, highest, state);
            }
        }
        if self.ca_state != CaState::Loss || self.undo_marker.is_some() {
            self.check_sack_reordering(state.reordered_seq);
        }
    }

    /// `tcp_check_dsack()`, `tcp_dsack_seen()`: the receiver already had this data.
    fn check_dsack(&mut self, range: SeqRange, state: &mut AckState) {
        let segments = (range.end_seq - range.start_seq).div_ceil(MSS_BYTES.into()).max(1);
        let is_of_probe = segments == 1 && self.tlp_high_seq == Some(range.end_seq);
        state.is_dsack_tlp |= is_of_probe;
        self.counters.dsack_dups += segments as u32;
        // More duplicates than retransmissions: the network has duplicated packets.
        if self.counters.dsack_dups > self.counters.total_retrans {
            return;
        }
        state.has_dsack = true;
        // An unnecessary retransmission was delivered, too.
        self.rate.delivered = self.rate.delivered.wrapping_add(segments as u32);
        if self.reordering_seen && !is_of_probe {
            self.rack.see_dsack();
        }
        if range.end_seq > state.prior_una {
            self.sacktag_duplicates(range, state);
        } else if self.undo_marker.is_some_and(|marker| range.end_seq > marker) {
            // -1 is kept.
            self.undo_retrans -= self.undo_retrans.clamp(0, segments as i64);
        }
    }

    /// `tcp_sacktag_one()` with `dup_sack`: the retransmission of segments that are not acknowledged cumulatively has arrived after the
    /// original. If the segment had been selectively acknowledged by then, packets were reordered.
    fn sacktag_duplicates(&mut self, range: SeqRange, state: &mut AckState) {
        let (undo_marker, undo_retrans) = (self.undo_marker, &mut self.undo_retrans);
        self.rtx_queue.duplicate(range, |segment| {
            if undo_marker.is_some_and(|marker| segment.end() > marker) && *undo_retrans > 0 {
                *undo_retrans -= 1;
            }
            if segment.is_sacked {
                state.add_reordered(segment.seq);
            }
        });
    }

    /// Processes newly selectively acknowledged data. `highest` is the end of what was known before.
    fn sack_range(
        &mut self,
        now_ns: u64,
        range: SeqRange,
        highest: Option<u64>,
        state: &mut AckState,
    ) {
        let (rate, rack, min_rtt_us) = (&mut self.rate, &mut self.rack, self.rtt.min_us());
        let high_seq = self.high_seq;
        self.rtx_queue.sack(range, |segment| {
            if !segment.was_retransmitted {
                // The original fills a hole: packets were reordered.
                if highest.is_some_and(|highest| segment.seq < highest) {
                    state.add_reordered(segment.seq);
                }
                state.original_sacked |= segment.end() <= high_seq;
                state.first_sacked_ns.get_or_insert(segment.sent_ns);
                state.last_sacked_ns = Some(segment.sent_ns);
            }
            state.has_sacked = true;
            rate.delivered = rate.delivered.wrapping_add(1);
            rate.skb_delivered(segment, &mut state.sample);
            rack.advance(now_ns, segment, min_rtt_us);
        });
    }

    /// `tcp_check_sack_reordering()`: a segment from here on was delivered after later ones.
    pub(super) fn check_sack_reordering(&mut self, low_seq: Option<u64>) {
        let highest = self.rtx_queue.sacked.end().unwrap_or(self.snd_una);
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

    /// `tcp_clean_rtx_queue()`. Returns the number of packets.
    fn clean_rtx_queue(
        &mut self,
        now_ns: u64,
        highest_sacked: Option<u64>,
        state: &mut AckState,
    ) -> u32 {
        let min_rtt_us = self.rtt.min_us();
        let (mut count, mut reordered_seq) = (0, None);
        while let Some(segment) = self.rtx_queue.pop_acked(self.snd_una) {
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
                self.rate.skb_delivered(&segment, &mut state.sample);
                if !is_spurious_retransmission(&segment, state.tsecr_ns) {
                    self.rack.advance(now_ns, &segment, min_rtt_us);
                }
            }
        }
        self.rtx_queue.sacked.remove_below(self.snd_una);
        self.check_sack_reordering(reordered_seq);
        if count > 0 {
            state.sets_timer = true;
        } else if let (Some(sacked_ns), Some(head)) = (state.first_sacked_ns, self.rtx_queue.head())
        {
            // The RTO starts at the head's transmission, unless this acknowledgement is of later data.
            state.sets_timer = now_ns - sacked_ns > now_ns - head.sent_ns;
        }
        count
    }

    /// Processes ECE, or a higher count of marks.
    fn rcv_ecn_echo(&mut self, ack: &AckSegment, prior_delivered: u32, state: &mut AckState) {
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
                let newly = ack.ce_pkts.wrapping_sub(self.peer_ce_pkts);
                if (newly as i32) > 0 {
                    self.peer_ce_pkts = ack.ce_pkts;
                    self.rate.delivered_ce = self.rate.delivered_ce.wrapping_add(newly);
                    state.has_ece = true;
                }
            }
        }
    }

    /// `tcp_ack_update_rtt()`.
    fn ack_update_rtt(&mut self, now_ns: u64, state: &mut AckState) {
        let since_us = |sent_ns: u64| ((now_ns - sent_ns) / 1000) as u32;
        let exact = !state.retransmission_acked;
        let mut seq_rtt_us = state.first_sent_ns.filter(|_| exact).map(since_us);
        let mut ca_rtt_us = state.last_sent_ns.filter(|_| exact).map(since_us);
        if let Some(sacked_ns) = state.first_sacked_ns {
            seq_rtt_us = seq_rtt_us.or(Some(since_us(sacked_ns)));
            ca_rtt_us = state.last_sacked_ns.map(since_us);
        }
        if seq_rtt_us.is_none() && state.data_acked && state.tsecr_ns > 0 {
            let ticks = tsval_ms(now_ns) - tsval_ms(state.tsecr_ns);
            let rtt_us = (ticks.max(1) * 1000) as u32;
            (seq_rtt_us, ca_rtt_us) = (Some(rtt_us), Some(rtt_us));
        }
        state.rtt_us = ca_rtt_us;
        let (Some(seq_rtt_us), Some(ca_rtt_us)) = (seq_rtt_us, ca_rtt_us) else { return };
        // A delayed acknowledgement does not measure the path.
        if !state.is_ack_delayed || ca_rtt_us <= self.rtt.min_us() {
            self.rtt.update_rtt_min(now_ns, ca_rtt_us);
        }
        self.rtt.rtt_estimator(seq_rtt_us, self.snd_una, self.snd_nxt);
        self.backoff = 0;
    }
}
