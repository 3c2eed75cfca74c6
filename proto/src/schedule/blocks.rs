//! How ccbench's traffic generator connects and writes: blocks, with a `rate` at fixed times.

use crate::plan::Pause;
use crate::units::Rate;

/// Payload of one full segment (MTU 1500): a smaller block would be a partial segment.
const MIN_BLOCK_BYTES: u64 = 1448;
/// Block length without a rate, and the longest with one: iperf3's default (`-l`).
pub const MAX_BLOCK_BYTES: u64 = 128 << 10;
/// Time limit for making a connection, seconds.
pub const CONNECT_TIMEOUT_S: u64 = 3;

/// Block length: 10 ms of the rate. iperf3 paces whole blocks, and its default of 128 KiB would be a burst of 90 packets.
pub fn block_bytes(rate: Rate) -> u64 {
    (rate.bits_per_sec() / 8 / 100).clamp(MIN_BLOCK_BYTES, MAX_BLOCK_BYTES)
}

/// When a flow with this rate may write block number `block` (from 0), in nanoseconds after its start. A flow that was held up
/// catches up, because the mean rate since the start counts. A rate of 0 counts as 1 bit/s.
pub fn block_offset_ns(rate: Rate, block_bytes: u64, block: u64) -> u64 {
    let bits = u128::from(block) * u128::from(block_bytes) * 8;
    let offset_ns = bits.saturating_mul(1_000_000_000) / u128::from(rate.bits_per_sec().max(1));
    u64::try_from(offset_ns).unwrap_or(u64::MAX)
}

/// Delays the offset of a block in an application that pauses: blocks that are due from the beginning of the pause on are due later
/// by its length, and with `every` again for each further pause.
pub fn paused_offset_ns(offset_ns: u64, pause: Option<Pause>) -> u64 {
    let Some(pause) = pause else { return offset_ns };
    let Some(since_ns) = offset_ns.checked_sub(pause.after.nanos()) else { return offset_ns };
    let duration_ns = pause.duration.nanos();
    // Between two pauses.
    let active_ns = pause.every.map_or(0, |every| every.nanos().saturating_sub(duration_ns));
    let pauses = 1 + since_ns.checked_div(active_ns).unwrap_or(0);
    offset_ns.saturating_add(duration_ns.saturating_mul(pauses))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Micros;

    #[test]
    fn a_block_is_10_ms_within_limits() {
        let block = |mbit: u64| block_bytes(Rate::from_bits_per_sec(mbit * 1_000_000));
        assert_eq!([1, 8, 104, 10_000].map(block), [1_448, 10_000, 130_000, 131_072]);
    }

    #[test]
    fn blocks_keep_the_mean_rate() {
        let offset = |bps, block| block_offset_ns(Rate::from_bits_per_sec(bps), 1250, block);
        assert_eq!(
            [0, 1, 300].map(|block| offset(1_000_000, block)),
            [0, 10_000_000, 3_000_000_000]
        );
        assert_eq!(offset(0, 1), 10_000_000_000_000);
        assert_eq!(offset(1, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_pause_defers_what_follows() {
        let ms = Micros::from_millis;
        let pause = Some(Pause { after: ms(20), duration: ms(5_000), every: None });
        let paused = |ms: u64| paused_offset_ns(ms * 1_000_000, pause) / 1_000_000;
        assert_eq!([0, 19, 20, 30].map(paused), [0, 19, 5_020, 5_030]);
        assert_eq!(paused_offset_ns(7, None), 7);
        assert_eq!(paused_offset_ns(u64::MAX, pause), u64::MAX);
    }

    #[test]
    fn pauses_come_again() {
        let ms = Micros::from_millis;
        // From 20 to 50 ms, from 60 to 90 ms, and so on.
        let pause = Some(Pause { after: ms(20), duration: ms(30), every: Some(ms(40)) });
        let paused = |ms: u64| paused_offset_ns(ms * 1_000_000, pause) / 1_000_000;
        assert_eq!([0, 19, 20, 29, 30, 39, 40].map(paused), [0, 19, 50, 59, 90, 99, 130]);
        assert_eq!(paused_offset_ns(u64::MAX, pause), u64::MAX);
    }
}
