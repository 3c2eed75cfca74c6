//! The state that `tcp_ack()` passes to the functions it calls.

use super::delivery_rate::RateSample;
use super::sender::CcSample;

/// TCP_PAWS_WINDOW: how much older than the last one a timestamp may be.
pub(super) const TCP_PAWS_WINDOW_MS: u64 = 1;

/// Returns the timestamp option's clock, ms.
pub fn tsval_ms(at_ns: u64) -> u64 {
    at_ns / 1_000_000
}

/// What to send after an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rexmit {
    None,
    Lost,
    New,
}

/// The effect of an acknowledgement: the kernel's `flag` and `struct tcp_sacktag_state`.
#[derive(Debug, Default)]
pub(super) struct AckState {
    pub ack_seq: u64,
    /// `snd_una` before the acknowledgement.
    pub prior_una: u64,
    pub tsecr_ns: u64,
    /// FLAG_SND_UNA_ADVANCED.
    pub una_advanced: bool,
    /// FLAG_DATA_ACKED.
    pub data_acked: bool,
    /// FLAG_DATA_SACKED.
    pub has_sacked: bool,
    /// FLAG_DSACKING_ACK.
    pub has_dsack: bool,
    /// FLAG_DSACK_TLP.
    pub is_dsack_tlp: bool,
    /// FLAG_ECE.
    pub has_ece: bool,
    /// Whether it neither advances `snd_una` nor opens the window.
    pub is_duplicate: bool,
    /// FLAG_ORIG_SACK_ACKED.
    pub original_sacked: bool,
    /// FLAG_LOST_RETRANS.
    pub lost_retransmission: bool,
    /// FLAG_SET_XMIT_TIMER.
    pub sets_timer: bool,
    /// FLAG_RETRANS_DATA_ACKED.
    pub retransmission_acked: bool,
    /// FLAG_ACK_MAYBE_DELAYED.
    pub is_ack_delayed: bool,
    /// For data that was sent once: the first and the last transmission that is acknowledged, cumulatively or selectively.
    pub first_sent_ns: Option<u64>,
    pub last_sent_ns: Option<u64>,
    pub first_sacked_ns: Option<u64>,
    pub last_sacked_ns: Option<u64>,
    /// `reord`: start of the lowest segment that shows reordering. Either it was sent once and is newly selectively acknowledged below
    /// others, or its retransmission has arrived after the original.
    pub reordered_seq: Option<u64>,
    pub newly_acked_sacked: u32,
    pub prior_lost: u32,
    pub rtt_us: Option<u32>,
    pub sample: RateSample,
}

impl AckState {
    /// Returns the sample for the congestion control; `lost` packets have been marked so far.
    pub fn cc_sample(&self, lost: u32) -> CcSample {
        CcSample {
            rtt_us: self.rtt_us,
            acked_pkts: self.newly_acked_sacked,
            lost_pkts: lost.wrapping_sub(self.prior_lost),
            is_ack_delayed: self.is_ack_delayed,
            sample: self.sample,
        }
    }

    /// Records that the segment that begins here shows reordering.
    pub fn add_reordered(&mut self, seq: u64) {
        self.reordered_seq = Some(self.reordered_seq.map_or(seq, |known| known.min(seq)));
    }

    /// `tcp_ack_is_dubious()`, except for the test of the state.
    pub fn is_dubious(&self) -> bool {
        self.is_duplicate || self.has_sacked || self.has_ece || self.has_dsack
    }
}
