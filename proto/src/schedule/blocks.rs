//! How an application with a `rate` writes: blocks at fixed times.

use crate::units::Rate;

/// Payload of one full segment (MTU 1500): a smaller block would be a partial segment.
const MIN_BLOCK_BYTES: u64 = 1448;
/// iperf3's default block (`-l`).
const MAX_BLOCK_BYTES: u64 = 128 << 10;

/// Block length: 10 ms of the rate. iperf3 paces whole blocks, and its default of 128 KiB would be a burst of 90 packets.
pub fn block_bytes(rate: Rate) -> u64 {
    (rate.bits_per_sec() / 8 / 100).clamp(MIN_BLOCK_BYTES, MAX_BLOCK_BYTES)
}

/// When a flow with this rate may write block `number`, counted from 0, in nanoseconds after its start. A flow that was held up
/// catches up: the mean rate since the start is kept.
pub fn block_due_ns(rate_bps: u64, block_bytes: u64, number: u64) -> u64 {
    let bits = u128::from(number) * u128::from(block_bytes) * 8;
    let due_ns = bits.saturating_mul(1_000_000_000) / u128::from(rate_bps.max(1));
    u64::try_from(due_ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_10_ms_within_limits() {
        let block = |mbit: u64| block_bytes(Rate::from_bits_per_sec(mbit * 1_000_000));
        assert_eq!([1, 8, 104, 10_000].map(block), [1_448, 10_000, 130_000, 131_072]);
    }
}
