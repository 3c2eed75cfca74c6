//! Loss detection by time: RFC 8985, `tcp_recovery.c`.

use super::retransmit_queue::SentSegment;
use super::sender::Sender;
use crate::core::CaState;

/// `TCP_TIMEOUT_MIN_US`: two timer ticks.
pub const TIMEOUT_MIN_NS: u64 = 2_000_000;
/// Recoveries during which a larger window for reordering stays.
const PERSIST: u32 = 16;
/// `tp->reordering` while no reordering has been seen.
pub const DUPTHRESH: u32 = 3;

/// `tp->rack`.
#[derive(Debug, Clone, Default)]
pub struct Rack {
    /// Last transmission of the segment that was sent last of those delivered, and its end.
    sent_ns: u64,
    end: u64,
    rtt_ns: u64,
    /// `sent_ns` or `rtt_ns` is new.
    pub advanced: bool,
    dsack_seen: bool,
    /// In quarters of the minimum RTT.
    steps: u32,
    persist: u32,
    last_delivered: u32,
}

impl Rack {
    pub fn new() -> Self {
        Self { steps: 1, ..Self::default() }
    }

    /// `tcp_rack_advance()`: a segment was delivered.
    pub fn advance(&mut self, now_ns: u64, segment: &SentSegment, min_rtt_us: u32) {
        let rtt_ns = now_ns - segment.sent_ns;
        // The acknowledgement is of the original: the retransmission cannot be there yet.
        if segment.was_retransmitted && rtt_ns < u64::from(min_rtt_us) * 1000 {
            return;
        }
        self.advanced = true;
        self.rtt_ns = rtt_ns;
        if (segment.sent_ns, segment.end()) > (self.sent_ns, self.end) {
            (self.sent_ns, self.end) = (segment.sent_ns, segment.end());
        }
    }

    /// A D-SACK has come: the window for reordering was too small.
    pub fn see_dsack(&mut self) {
        self.dsack_seen = true;
    }

    /// `tcp_rack_update_reo_wnd()`.
    pub fn update_window(&mut self, prior_delivered: u32, delivered: u32) {
        if prior_delivered == 0 {
            return;
        }
        if (prior_delivered.wrapping_sub(self.last_delivered) as i32) < 0 {
            self.dsack_seen = false;
        }
        if self.dsack_seen {
            self.steps = (self.steps + 1).min(0xff);
            self.dsack_seen = false;
            self.last_delivered = delivered;
            self.persist = PERSIST;
        } else if self.persist == 0 {
            self.steps = 1;
        }
    }

    /// `tcp_rack_skb_timeout()`: how long until a segment counts as lost; 0 if it does already.
    pub fn timeout_ns(&self, now_ns: u64, sent_ns: u64, window_ns: u64) -> u64 {
        (self.rtt_ns + window_ns).saturating_sub(now_ns - sent_ns)
    }

    /// A recovery ended without undo.
    pub fn end_recovery(&mut self) {
        self.persist = self.persist.saturating_sub(1);
    }

    /// A recovery was undone because of D-SACKs.
    pub fn keep_window(&mut self) {
        self.persist = (self.persist + 1).min(PERSIST);
    }
}

impl Sender {
    /// `tcp_rack_reo_wnd()`.
    fn reordering_window_ns(&self) -> u64 {
        let is_sure =
            self.ca_state >= CaState::Recovery || self.queue.sacked_out >= self.reordering;
        if !self.reordering_seen && is_sure {
            return 0;
        }
        let quarter_ns = u64::from(self.rtt.min_us() >> 2) * 1000;
        let smoothed_ns = u64::from(self.rtt.smoothed_us()) * 1000;
        (quarter_ns * u64::from(self.rack.steps)).min(smoothed_ns)
    }

    /// `tcp_rack_detect_loss()`: how long until more may be lost; 0 if nothing waits.
    fn detect_loss(&mut self, now_ns: u64) -> u64 {
        let window_ns = self.reordering_window_ns();
        let mut longest_ns = 0;
        let rack = &self.rack;
        self.queue.judge_in_flight(|segment| {
            if (segment.sent_ns, segment.end()) >= (rack.sent_ns, rack.end) {
                return None;
            }
            let left_ns = rack.timeout_ns(now_ns, segment.sent_ns, window_ns);
            longest_ns = longest_ns.max(left_ns);
            Some(left_ns == 0)
        });
        longest_ns
    }

    /// `tcp_rack_mark_lost()`: whether the timer for reordering is armed.
    pub(super) fn rack_mark_lost(&mut self, now_ns: u64) -> bool {
        if !self.rack.advanced {
            return false;
        }
        self.rack.advanced = false;
        let left_ns = self.detect_loss(now_ns);
        if left_ns > 0 {
            self.arm_reordering_timer(now_ns, left_ns + TIMEOUT_MIN_NS);
        }
        left_ns > 0
    }

    /// `tcp_rack_reo_timeout()`.
    pub(super) fn reordering_timeout(&mut self, now_ns: u64) {
        let (in_flight, lost) = (self.queue.in_flight(), self.queue.lost);
        self.detect_loss(now_ns);
        if self.queue.in_flight() != in_flight {
            if self.ca_state != CaState::Recovery {
                self.enter_recovery(now_ns, false);
                if !self.wants.owns_cwnd {
                    self.reduce_cwnd(1, self.queue.lost.wrapping_sub(lost), false);
                }
            }
            self.retransmit_lost(now_ns);
        }
        if !self.has_retransmission_timer() {
            self.rearm_rto(now_ns);
        }
    }
}
