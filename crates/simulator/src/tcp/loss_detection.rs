//! Time-based loss detection: RACK (RFC 8985), `tcp_recovery.c`. `recovery.rs` calls it for acknowledgements, `timers.rs` when the
//! reordering timer expires. Its state is in `rack.rs`.

use super::rack::TIMEOUT_MIN_NS;
use super::sender::Sender;
use crate::congestion_control::CaState;

impl Sender {
    /// `tcp_rack_reo_wnd()`.
    fn reo_wnd_ns(&self) -> u64 {
        let is_sure =
            self.ca_state >= CaState::Recovery || self.rtx_queue.sacked_out >= self.reordering;
        if !self.reordering_seen && is_sure {
            return 0;
        }
        let quarter_ns = u64::from(self.rtt.min_us() >> 2) * 1000;
        let smoothed_ns = u64::from(self.rtt.smoothed_us()) * 1000;
        (quarter_ns * u64::from(self.rack.reo_wnd_steps)).min(smoothed_ns)
    }

    /// `tcp_rack_detect_loss()`: returns how long until more segments may be lost; 0 if none is waiting.
    fn rack_detect_loss(&mut self, now_ns: u64) -> u64 {
        let reo_wnd_ns = self.reo_wnd_ns();
        let mut longest_ns = 0;
        let rack = &self.rack;
        self.rtx_queue.mark_lost_where(|segment| {
            if (segment.sent_ns, segment.end()) >= (rack.mstamp_ns, rack.end_seq) {
                return None;
            }
            let left_ns = rack.skb_timeout_ns(now_ns, segment.sent_ns, reo_wnd_ns);
            longest_ns = longest_ns.max(left_ns);
            Some(left_ns == 0)
        });
        longest_ns
    }

    /// `tcp_rack_mark_lost()`: returns whether the reordering timer is armed.
    pub(super) fn rack_mark_lost(&mut self, now_ns: u64) -> bool {
        if !self.rack.advanced {
            return false;
        }
        self.rack.advanced = false;
        let left_ns = self.rack_detect_loss(now_ns);
        if left_ns > 0 {
            self.arm_reordering_timer(now_ns, left_ns + TIMEOUT_MIN_NS);
        }
        left_ns > 0
    }

    /// `tcp_rack_reo_timeout()`.
    pub(super) fn rack_reo_timeout(&mut self, now_ns: u64) {
        let (in_flight, lost) = (self.rtx_queue.in_flight(), self.rtx_queue.lost);
        self.rack_detect_loss(now_ns);
        if self.rtx_queue.in_flight() != in_flight {
            if self.ca_state != CaState::Recovery {
                self.enter_recovery(now_ns, false);
                if !self.requirements.owns_cwnd {
                    self.cwnd_reduction(1, self.rtx_queue.lost.wrapping_sub(lost), false);
                }
            }
            self.xmit_retransmit_queue(now_ns);
        }
        if !self.has_retransmission_timer() {
            self.rearm_rto(now_ns);
        }
    }
}
