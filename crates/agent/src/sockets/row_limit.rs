//! The limit of rows of internal state ([`super::cc_state`]), which the reader and the BPF programs keep.

use ccbench_proto::cc::Core;

/// Approximate limit of rows per second of one node: a tenth of what its stream can carry.
pub(super) const ROWS_PER_S: u64 = 2000;

/// Returns the least time between two records of one of `sockets` sockets. A record becomes one row per variable.
pub(super) fn gap_ns(core: &Core, sockets: u64) -> u64 {
    1_000_000_000 * core.stats.len() as u64 * sockets / ROWS_PER_S
}

/// Returns the least time between two records of a lone socket. An adapter need not record more rounds.
#[cfg(feature = "ebpf")]
pub(super) fn min_gap_us(core: &Core) -> u32 {
    u32::try_from(gap_ns(core, 1) / 1000).unwrap_or(u32::MAX)
}
