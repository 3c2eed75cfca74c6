//! The state of RACK (RFC 8985), the time-based loss detection: `tp->rack`. `loss_detection.rs` uses it to decide which segments are lost;
//! after a retransmission timeout, `timers.rs` does.

use super::retransmit_queue::SentSegment;

/// `TCP_TIMEOUT_MIN_US`: two timer ticks.
pub const TIMEOUT_MIN_NS: u64 = 2_000_000;
/// Number of recoveries for which a larger reordering window is kept.
const TCP_RACK_RECOVERY_THRESH: u32 = 16;
/// `tp->reordering` while no reordering has been seen. Also the number of duplicate ACKs that a receiver does not compress.
pub const TCP_FASTRETRANS_THRESH: u32 = 3;

/// `tp->rack`, and the part of `tcp_recovery.c` that needs nothing else.
#[derive(Debug, Clone, Default)]
pub struct Rack {
    /// Last transmission of the most recently sent segment among those delivered, and its end (`mstamp`, `end_seq`).
    pub mstamp_ns: u64,
    pub end_seq: u64,
    rtt_ns: u64,
    /// Whether `sent_ns` or `rtt_ns` is new.
    pub advanced: bool,
    dsack_seen: bool,
    /// Reordering window in quarters of the minimum RTT.
    pub reo_wnd_steps: u32,
    reo_wnd_persist: u32,
    last_delivered: u32,
}

impl Rack {
    pub fn new() -> Self {
        Self { reo_wnd_steps: 1, ..Self::default() }
    }

    /// `tcp_rack_advance()`, for a segment that was delivered.
    pub fn advance(&mut self, now_ns: u64, segment: &SentSegment, min_rtt_us: u32) {
        let rtt_ns = now_ns - segment.sent_ns;
        // The acknowledgement is of the original: the retransmission cannot have arrived yet.
        if segment.was_retransmitted && rtt_ns < u64::from(min_rtt_us) * 1000 {
            return;
        }
        self.advanced = true;
        self.rtt_ns = rtt_ns;
        if (segment.sent_ns, segment.end()) > (self.mstamp_ns, self.end_seq) {
            (self.mstamp_ns, self.end_seq) = (segment.sent_ns, segment.end());
        }
    }

    /// Processes a D-SACK: the reordering window was too small.
    pub fn see_dsack(&mut self) {
        self.dsack_seen = true;
    }

    /// `tcp_rack_update_reo_wnd()`.
    pub fn update_reo_wnd(&mut self, prior_delivered: u32, delivered: u32) {
        if prior_delivered == 0 {
            return;
        }
        if (prior_delivered.wrapping_sub(self.last_delivered) as i32) < 0 {
            self.dsack_seen = false;
        }
        if self.dsack_seen {
            self.reo_wnd_steps = (self.reo_wnd_steps + 1).min(0xff);
            self.dsack_seen = false;
            self.last_delivered = delivered;
            self.reo_wnd_persist = TCP_RACK_RECOVERY_THRESH;
        } else if self.reo_wnd_persist == 0 {
            self.reo_wnd_steps = 1;
        }
    }

    /// `tcp_rack_skb_timeout()`: returns how long until a segment counts as lost; 0 if it already does.
    pub fn skb_timeout_ns(&self, now_ns: u64, sent_ns: u64, reo_wnd_ns: u64) -> u64 {
        (self.rtt_ns + reo_wnd_ns).saturating_sub(now_ns - sent_ns)
    }

    /// Records that a recovery ended without undo.
    pub fn end_recovery(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
    }

    /// Records that a recovery was undone because of D-SACKs.
    pub fn extend_reo_wnd_persist(&mut self) {
        self.reo_wnd_persist = (self.reo_wnd_persist + 1).min(TCP_RACK_RECOVERY_THRESH);
    }
}
