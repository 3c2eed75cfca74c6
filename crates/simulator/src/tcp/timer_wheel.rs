//! The kernel's timer wheel, and a sending socket's timer that is armed in it.

/// A tick of the kernel: HZ = 1000.
pub const TICK_NS: u64 = 1_000_000;

/// Returns when a timer of the kernel's wheel fires that is set to this delay. The delay is whole ticks. The wheel rounds the expiry up, by
/// more for longer delays (`calc_index()` in kernel/time/timer.c).
pub fn wheel_ns(now_ns: u64, delay_ns: u64) -> u64 {
    const BUCKETS: u64 = 64;
    const LEVEL_BITS: u32 = 3;
    let ticks = delay_ns.div_ceil(TICK_NS);
    let mut shift = 0;
    while shift < 8 * LEVEL_BITS && ticks >= (BUCKETS - 1) << shift {
        shift += LEVEL_BITS;
    }
    ((((now_ns / TICK_NS + ticks) >> shift) + 1) << shift) * TICK_NS
}

/// `icsk_pending`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerKind {
    /// ICSK_TIME_RETRANS.
    Retransmission,
    /// ICSK_TIME_LOSS_PROBE.
    LossProbe,
    /// ICSK_TIME_REO_TIMEOUT.
    Reordering,
}

/// The armed timer.
#[derive(Debug, Clone, Copy)]
pub struct Timer {
    pub kind: TimerKind,
    pub at_ns: u64,
}
