//! Delivery-rate samples: `tcp_rate_*()` in tcp_input.c, tcp_output.c and tcp.c (tcp_rate.c before Linux 7.0), and
//! draft-cheng-iccrg-delivery-rate-estimation.

use super::retransmit_queue::{SentSegment, TxState};

/// The rate estimation state of a connection.
#[derive(Debug, Clone, Default)]
pub struct DeliveryRate {
    /// Packets delivered so far, and how many of them had CE. Both wrap.
    pub delivered: u32,
    pub delivered_ce: u32,
    /// When `delivered` last grew.
    pub delivered_mstamp_ns: u64,
    /// Transmission time of the most recently delivered packet.
    pub first_tx_mstamp_ns: u64,
    /// The value of `delivered` at which the last bubble has left the pipe; 0 if the application does not limit the rate.
    pub app_limited: u32,
    /// For TCP_INFO: the sample with the highest rate among those not limited by the application, or else the last sample.
    pub rate_delivered: u32,
    pub rate_interval_us: u32,
    pub rate_app_limited: bool,
}

/// `struct rate_sample` while an acknowledgement is processed.
#[derive(Debug, Clone, Copy, Default)]
pub struct RateSample {
    prior_ns: u64,
    last_end: u64,
    prior_delivered_ce: u32,
    snd_interval_ns: u64,
    pub prior_delivered: u32,
    pub delivered: u32,
    pub delivered_ce: u32,
    /// Length of the sample; 0: no sample.
    pub interval_us: u32,
    pub is_app_limited: bool,
}

impl DeliveryRate {
    /// `tcp_rate_skb_sent()`.
    pub fn skb_sent(&mut self, now_ns: u64, nothing_in_flight: bool) -> TxState {
        if nothing_in_flight {
            (self.first_tx_mstamp_ns, self.delivered_mstamp_ns) = (now_ns, now_ns);
        }
        TxState {
            first_tx_mstamp_ns: self.first_tx_mstamp_ns,
            delivered_mstamp_ns: self.delivered_mstamp_ns,
            delivered: self.delivered,
            delivered_ce: self.delivered_ce,
            is_app_limited: self.app_limited != 0,
            is_taken: false,
        }
    }

    /// `tcp_rate_skb_delivered()`: keeps the sample of the packet that was sent last.
    pub fn skb_delivered(&mut self, segment: &SentSegment, sample: &mut RateSample) {
        let tx = &segment.tx;
        if tx.is_taken {
            return;
        }
        let is_later =
            (segment.sent_ns, segment.end()) > (self.first_tx_mstamp_ns, sample.last_end);
        if sample.prior_ns != 0 && !is_later {
            return;
        }
        sample.prior_ns = tx.delivered_mstamp_ns;
        sample.prior_delivered = tx.delivered;
        sample.prior_delivered_ce = tx.delivered_ce;
        sample.is_app_limited = tx.is_app_limited;
        sample.last_end = segment.end();
        sample.snd_interval_ns = segment.sent_ns - tx.first_tx_mstamp_ns;
        self.first_tx_mstamp_ns = segment.sent_ns;
    }

    /// `tcp_rate_gen()`: this acknowledgement has delivered `newly` packets.
    pub fn rate_gen(
        &mut self,
        now_ns: u64,
        delivered_pkts: u32,
        min_rtt_us: u32,
        sample: &mut RateSample,
    ) {
        if self.app_limited != 0 && (self.delivered.wrapping_sub(self.app_limited) as i32) > 0 {
            self.app_limited = 0;
        }
        if delivered_pkts > 0 {
            self.delivered_mstamp_ns = now_ns;
        }
        if sample.prior_ns == 0 {
            return;
        }
        sample.delivered = self.delivered.wrapping_sub(sample.prior_delivered);
        sample.delivered_ce = self.delivered_ce.wrapping_sub(sample.prior_delivered_ce);
        let interval_ns = sample.snd_interval_ns.max(now_ns - sample.prior_ns);
        let interval_us = u32::try_from(interval_ns / 1000).unwrap_or(u32::MAX);
        // An interval below the minimum RTT is an artefact of reordering.
        if interval_us < min_rtt_us {
            return;
        }
        sample.interval_us = interval_us;
        let rate = |delivered: u32, interval_us: u32| u64::from(delivered) * u64::from(interval_us);
        let is_higher = rate(sample.delivered, self.rate_interval_us)
            >= rate(self.rate_delivered, sample.interval_us);
        if !sample.is_app_limited || is_higher {
            self.rate_delivered = sample.delivered;
            self.rate_interval_us = sample.interval_us;
            self.rate_app_limited = sample.is_app_limited;
        }
    }
}
