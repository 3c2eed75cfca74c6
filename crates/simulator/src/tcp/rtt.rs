//! Round-trip times and the retransmission timeout: `tcp_rtt_estimator()`, `tcp_update_rtt_min()`, RFC 6298.

use std::collections::VecDeque;

/// TCP_RTO_MIN.
pub const RTO_MIN_US: u64 = 200_000;
/// TCP_RTO_MAX.
const RTO_MAX_US: u64 = 120_000_000;
/// The timeout before the first sample, also of a SYN.
pub const TCP_TIMEOUT_INIT_US: u64 = 1_000_000;
/// Window of the running minimum: `tcp_min_rtt_wlen`.
const MIN_RTT_WINDOW_NS: u64 = 300_000_000_000;
/// No sample yet.
pub const NO_RTT_US: u32 = u32::MAX;

/// The estimator's state. Fields are scaled as in the kernel.
#[derive(Debug, Clone)]
pub struct Rtt {
    /// 8 times the smoothed RTT.
    srtt_us: i64,
    /// 4 times the mean deviation.
    mdev_us: i64,
    /// Largest `mdev_us` of the last RTT, in the same scale.
    mdev_max_us: i64,
    /// `mdev_max_us` smoothed, in the same scale: the timeout is this beyond the smoothed RTT.
    rttvar_us: i64,
    /// The deviation's maximum is kept until this is acknowledged.
    rtt_seq: u64,
    /// Increasing in both time and RTT.
    minima: VecDeque<MinRtt>,
}

/// A sample of the running minimum (`struct minmax_sample`).
#[derive(Debug, Clone, Copy)]
struct MinRtt {
    at_ns: u64,
    rtt_us: u32,
}

impl Rtt {
    pub fn new() -> Self {
        Self {
            srtt_us: 0,
            mdev_us: 0,
            mdev_max_us: 0,
            rttvar_us: 0,
            rtt_seq: 0,
            minima: VecDeque::new(),
        }
    }

    /// A sample for the smoothed RTT.
    pub fn rtt_estimator(&mut self, rtt_us: u32, snd_una: u64, snd_nxt: u64) {
        let rto_min_us = RTO_MIN_US as i64;
        let mut error_us = i64::from(rtt_us.max(1));
        if self.srtt_us == 0 {
            self.srtt_us = error_us << 3;
            self.mdev_us = error_us << 1;
            self.rttvar_us = self.mdev_us.max(rto_min_us);
            self.mdev_max_us = self.rttvar_us;
            self.rtt_seq = snd_nxt;
            return;
        }
        error_us -= self.srtt_us >> 3;
        self.srtt_us += error_us;
        if error_us < 0 {
            error_us = -error_us - (self.mdev_us >> 2);
            // A lower RTT is no reason for a larger timeout.
            if error_us > 0 {
                error_us >>= 3;
            }
        } else {
            error_us -= self.mdev_us >> 2;
        }
        self.mdev_us += error_us;
        if self.mdev_us > self.mdev_max_us {
            self.mdev_max_us = self.mdev_us;
            self.rttvar_us = self.rttvar_us.max(self.mdev_max_us);
        }
        if snd_una > self.rtt_seq {
            if self.mdev_max_us < self.rttvar_us {
                self.rttvar_us -= (self.rttvar_us - self.mdev_max_us) >> 2;
            }
            self.rtt_seq = snd_nxt;
            self.mdev_max_us = rto_min_us;
        }
    }

    /// A sample for the minimum.
    pub fn update_rtt_min(&mut self, now_ns: u64, rtt_us: u32) {
        while self.minima.back().is_some_and(|known| known.rtt_us >= rtt_us) {
            self.minima.pop_back();
        }
        self.minima.push_back(MinRtt { at_ns: now_ns, rtt_us });
        while self.minima.len() > 1 && self.minima[0].at_ns + MIN_RTT_WINDOW_NS < now_ns {
            self.minima.pop_front();
        }
        // The kernel keeps three minima.
        self.minima.truncate(3);
    }

    /// 8 times the smoothed RTT; 0 without a sample.
    pub fn srtt_us(&self) -> u32 {
        u32::try_from(self.srtt_us).unwrap_or(u32::MAX)
    }

    /// Smoothed RTT; 0 without a sample.
    pub fn smoothed_us(&self) -> u32 {
        self.srtt_us() >> 3
    }

    /// 4 times the mean deviation.
    pub fn mdev_us(&self) -> u32 {
        u32::try_from(self.mdev_us).unwrap_or(u32::MAX)
    }

    /// [`NO_RTT_US`] without a sample.
    pub fn min_us(&self) -> u32 {
        self.minima.front().map_or(NO_RTT_US, |min| min.rtt_us)
    }

    /// The timeout without backoff.
    pub fn rto_us(&self) -> u64 {
        if self.srtt_us == 0 {
            return TCP_TIMEOUT_INIT_US;
        }
        let rto_us = ((self.srtt_us >> 3) + self.rttvar_us).cast_unsigned();
        rto_us.clamp(RTO_MIN_US, RTO_MAX_US)
    }

    /// The timeout after this many timeouts in a row.
    pub fn backed_off_us(&self, backoff: u32) -> u64 {
        self.rto_us().saturating_mul(1 << backoff.min(16)).min(RTO_MAX_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_rtt_gives_itself_and_the_least_deviation() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.rto_us(), 1_000_000);
        for round in 0..200 {
            rtt.rtt_estimator(20_000, round * 100, round * 100 + 100);
        }
        assert_eq!(rtt.smoothed_us(), 20_000);
        assert_eq!(rtt.rto_us(), 220_000);
        assert_eq!(rtt.backed_off_us(3), 8 * 220_000);
    }

    #[test]
    fn the_minimum_forgets_after_its_window() {
        let mut rtt = Rtt::new();
        rtt.update_rtt_min(0, 10);
        rtt.update_rtt_min(1, 30);
        rtt.update_rtt_min(2, 20);
        assert_eq!(rtt.min_us(), 10);
        rtt.update_rtt_min(MIN_RTT_WINDOW_NS + 1, 40);
        assert_eq!(rtt.min_us(), 20);
    }
}
