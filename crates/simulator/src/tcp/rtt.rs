//! Round-trip times and the retransmission timeout (RFC 6298): `tcp_rtt_estimator()`, `tcp_update_rtt_min()`.

/// TCP_RTO_MIN.
pub const RTO_MIN_US: u64 = 200_000;
/// TCP_RTO_MAX.
const RTO_MAX_US: u64 = 120_000_000;
/// The timeout before the first sample, also for a SYN.
pub const TCP_TIMEOUT_INIT_US: u64 = 1_000_000;
/// Window of the running minimum: `tcp_min_rtt_wlen`.
const MIN_RTT_WINDOW_MS: u64 = 300_000;
/// A jiffy of the lab's kernel, and of most distributions' kernels.
const JIFFY_US: u32 = 1000;
/// Means that there is no sample yet.
pub const NO_RTT_US: u32 = u32::MAX;

/// State of the estimator. Fields are scaled as in the kernel.
#[derive(Debug, Clone)]
pub struct Rtt {
    /// 8 times the smoothed RTT.
    srtt_us: i64,
    /// 4 times the mean deviation.
    mdev_us: i64,
    /// Maximum of `mdev_us` in the last RTT, in the same scale.
    mdev_max_us: i64,
    /// `mdev_max_us` smoothed, in the same scale: the timeout is the smoothed RTT plus this.
    rttvar_us: i64,
    /// The maximum of the deviation is kept until this sequence number is acknowledged.
    rtt_seq: u64,
    rtt_min: MinMax,
}

/// A sample of the running minimum (`struct minmax_sample`). The time is in jiffies of 1 ms.
#[derive(Debug, Clone, Copy)]
struct MinMaxSample {
    at_ms: u64,
    rtt_us: u32,
}

/// The minimum over a window, from three samples (`struct minmax`, `lib/win_minmax.c`).
#[derive(Debug, Clone)]
struct MinMax([MinMaxSample; 3]);

impl MinMax {
    /// `minmax_reset()`.
    fn reset(sample: MinMaxSample) -> Self {
        Self([sample; 3])
    }

    /// `minmax_running_min()`.
    fn running_min(&mut self, sample: MinMaxSample) {
        let best = &mut self.0;
        if sample.rtt_us <= best[0].rtt_us || sample.at_ms - best[2].at_ms > MIN_RTT_WINDOW_MS {
            *self = Self::reset(sample);
            return;
        }
        if sample.rtt_us <= best[1].rtt_us {
            (best[1], best[2]) = (sample, sample);
        } else if sample.rtt_us <= best[2].rtt_us {
            best[2] = sample;
        }
        self.subwin_update(sample);
    }

    /// `minmax_subwin_update()`: after a quarter and after half of the window, newer samples become the second and the third choice.
    fn subwin_update(&mut self, sample: MinMaxSample) {
        let best = &mut self.0;
        let since_ms = sample.at_ms - best[0].at_ms;
        if since_ms > MIN_RTT_WINDOW_MS {
            *best = [best[1], best[2], sample];
            if sample.at_ms - best[0].at_ms > MIN_RTT_WINDOW_MS {
                *best = [best[1], best[2], sample];
            }
        } else if best[1].at_ms == best[0].at_ms && since_ms > MIN_RTT_WINDOW_MS / 4 {
            (best[1], best[2]) = (sample, sample);
        } else if best[2].at_ms == best[1].at_ms && since_ms > MIN_RTT_WINDOW_MS / 2 {
            best[2] = sample;
        }
    }
}

impl Rtt {
    pub fn new() -> Self {
        Self {
            srtt_us: 0,
            mdev_us: 0,
            mdev_max_us: 0,
            rttvar_us: 0,
            rtt_seq: 0,
            rtt_min: MinMax::reset(MinMaxSample { at_ms: 0, rtt_us: NO_RTT_US }),
        }
    }

    /// Adds a sample to the smoothed RTT.
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
            // A lower RTT is no reason for a longer timeout.
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

    /// `tcp_update_rtt_min()`: adds a sample to the minimum. An RTT of zero counts as one jiffy.
    pub fn update_rtt_min(&mut self, now_ns: u64, rtt_us: u32) {
        let rtt_us = if rtt_us == 0 { JIFFY_US } else { rtt_us };
        self.rtt_min.running_min(MinMaxSample { at_ms: now_ns / 1_000_000, rtt_us });
    }

    /// Returns 8 times the smoothed RTT; 0 without a sample.
    pub fn srtt_us(&self) -> u32 {
        u32::try_from(self.srtt_us).unwrap_or(u32::MAX)
    }

    /// Returns the smoothed RTT; 0 without a sample.
    pub fn smoothed_us(&self) -> u32 {
        self.srtt_us() >> 3
    }

    /// Returns 4 times the mean deviation.
    pub fn mdev_us(&self) -> u32 {
        u32::try_from(self.mdev_us).unwrap_or(u32::MAX)
    }

    /// Returns the minimum RTT; [`NO_RTT_US`] without a sample.
    pub fn min_us(&self) -> u32 {
        self.rtt_min.0[0].rtt_us
    }

    /// Returns the timeout without backoff, in whole jiffies (`__tcp_set_rto()`).
    pub fn rto_us(&self) -> u64 {
        if self.srtt_us == 0 {
            return TCP_TIMEOUT_INIT_US;
        }
        let rto_us = ((self.srtt_us >> 3) + self.rttvar_us).cast_unsigned();
        rto_us.next_multiple_of(JIFFY_US.into()).clamp(RTO_MIN_US, RTO_MAX_US)
    }

    /// Returns the timeout after this many timeouts in a row.
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
    fn the_timeout_is_rounded_up_to_jiffies() {
        let timeouts_us = |rtt_us: u32| {
            let mut rtt = Rtt::new();
            rtt.rtt_estimator(rtt_us, 0, 1);
            [0, 1, 10].map(|backoff| rtt.backed_off_us(backoff))
        };
        assert_eq!(timeouts_us(20_000), [220_000, 440_000, 120_000_000]);
        assert_eq!(timeouts_us(20_001), [221_000, 442_000, 120_000_000]);
        assert_eq!(timeouts_us(20_999), [221_000, 442_000, 120_000_000]);
    }

    /// Adds samples (seconds, microseconds). Returns the minimum.
    fn min_us(samples: &[(u64, u32)]) -> u32 {
        let mut rtt = Rtt::new();
        samples.iter().for_each(|(at_s, rtt_us)| rtt.update_rtt_min(at_s * 1_000_000_000, *rtt_us));
        rtt.min_us()
    }

    #[test]
    fn the_minimum_is_that_of_five_minutes() {
        assert_eq!(min_us(&[]), NO_RTT_US);
        assert_eq!(min_us(&[(1, 0)]), 1000, "as in the kernel");
        assert_eq!(min_us(&[(1, 10), (2, 30), (301, 20)]), 10);
        assert_eq!(min_us(&[(1, 10), (2, 10), (302, 20)]), 10, "an equal sample is newer");
        assert_eq!(min_us(&[(1, 10), (2, 30), (302, 20)]), 20, "nothing else is in the window");
        // After a quarter of the window, 30 becomes the second choice; after half of it, 40 becomes the third.
        assert_eq!(min_us(&[(1, 10), (80, 30), (160, 40), (302, 50)]), 30);
        assert_eq!(min_us(&[(1, 10), (80, 30), (160, 40), (302, 50), (381, 50)]), 40);
        assert_eq!(min_us(&[(1, 10), (80, 30), (160, 40), (462, 50)]), 50);
    }
}
