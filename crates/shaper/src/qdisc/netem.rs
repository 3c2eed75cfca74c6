//! Network emulator: constant delay and independent loss.

use ccbench_proto::units::{Micros, Ppm, Rate};

use super::Qdisc;
use crate::netlink::Message;

const TCA_NETEM_LATENCY64: u16 = 10;
const TCA_NETEM_PRNG_SEED: u16 = 14;
/// Smallest frame on an Ethernet, without preamble and checksum.
const SMALLEST_FRAME_BYTES: u64 = 60;
const LEAST_LIMIT_PKTS: u64 = 100_000;
const MOST_LIMIT_PKTS: u64 = 4_000_000;

/// Constant one-way delay and independent loss, holding at most `limit_pkts`. `seed` fixes which packets
/// are lost; kernels before 6.6 ignore it.
pub fn encode(delay: Micros, loss: Ppm, limit_pkts: u32, seed: u64) -> Qdisc {
    let ns = delay.nanos();
    let ticks = u32::try_from(ns >> 6).unwrap_or(u32::MAX);
    let mut options = [0; 24];
    for (at, word) in [ticks, limit_pkts, share(loss)].into_iter().enumerate() {
        options[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    let mut message = Message::attributes().raw(&options);
    // The field above is in ticks of 64 ns and ends at 275 s; this one is exact.
    if u64::from(ticks) << 6 != ns {
        message = message.attr_u64(TCA_NETEM_LATENCY64, ns);
    }
    if loss.get() > 0 && seed != 0 {
        message = message.attr_u64(TCA_NETEM_PRNG_SEED, seed);
    }
    Qdisc { kind: "netem", options: message.into_attributes() }
}

/// A probability as the kernel's share of 2^32 - 1, rounded to nearest.
fn share(loss: Ppm) -> u32 {
    let scaled = u64::from(loss.get()) * u64::from(u32::MAX) + 500_000;
    u32::try_from(scaled / 1_000_000).unwrap_or(u32::MAX)
}

/// How many packets netem may hold, itself and the queue below it together, so that it never drops one
/// silently: its default of 1000 packets is 120 ms at 100 Mbit/s. What arrives comes at the rate of the
/// hop before, not of this link, so there is room for ten times the link's rate in smallest frames.
pub fn limit_pkts(rate: Option<Rate>, delay: Micros, queue_pkts: u32) -> u32 {
    let in_flight = rate.map_or(MOST_LIMIT_PKTS, |rate| {
        rate.over(delay).get().saturating_mul(10) / SMALLEST_FRAME_BYTES
    });
    let limit = in_flight.clamp(LEAST_LIMIT_PKTS, MOST_LIMIT_PKTS) + u64::from(queue_pkts);
    u32::try_from(limit).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_never_silently_drops() {
        let gigabit = Some(Rate::from_bits_per_sec(1_000_000_000));
        assert_eq!(limit_pkts(gigabit, Micros::from_millis(10), 0), 208_333);
        assert_eq!(limit_pkts(None, Micros::from_millis(10), 0), 4_000_000);
        assert_eq!(limit_pkts(gigabit, Micros::new(1), 50), 100_050);
    }

    #[test]
    fn a_delay_that_is_no_whole_tick_is_sent_exactly() {
        let encoded = |us| encode(Micros::new(us), Ppm::default(), 1000, 0).options.len();
        assert_eq!(encoded(8), 24);
        assert_eq!(encoded(1), 24 + 12);
        assert_eq!(encoded(300_000_000), 24 + 12);
    }

    #[test]
    fn loss_is_a_share_of_two_to_the_32() {
        let ppm = |n| share(Ppm::new(n).unwrap());
        assert_eq!(ppm(0), 0);
        assert_eq!(ppm(500_000), 0x8000_0000);
        assert_eq!(ppm(1_000_000), u32::MAX);
    }
}
