//! What the packet loop and its control face share: a few atomics, written by one side each.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::histogram::Histogram;
use super::log::Log;

/// Shared by one packet loop and its control face.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The loop is to end.
    pub(crate) stop: AtomicBool,
    /// The rate asked for last, bit/s.
    pub(crate) rate_bps: AtomicU64,
    /// When it was asked for, `CLOCK_MONOTONIC` nanoseconds.
    pub(crate) rate_at_ns: AtomicU64,
    /// Grows with every change, after the two above are written.
    pub(crate) rate_generation: AtomicU64,
    /// Likewise, with a generation of its own: a delay in nanoseconds and when it was asked for, and a loss in
    /// parts per million.
    pub(crate) delay_ns: AtomicU64,
    pub(crate) delay_at_ns: AtomicU64,
    pub(crate) delay_generation: AtomicU64,
    pub(crate) loss_ppm: AtomicU64,
    pub(crate) loss_generation: AtomicU64,
    /// When the trial begins, which a trace may wait for, `CLOCK_MONOTONIC` nanoseconds; 0: not known yet.
    pub(crate) begin_at_ns: AtomicU64,
    /// Written by the loop.
    pub(crate) counters: Published,
    /// How late packets were released; written by the loop.
    pub(crate) scheduling_error: Histogram,
    /// Every packet, if that was asked for; written by the loop.
    pub(crate) log: Option<Log>,
}

impl Shared {
    /// With a log of at most so many bytes of rows, if any.
    pub(crate) fn new(log_bytes: Option<u64>) -> Self {
        Self { log: log_bytes.map(Log::new), ..Self::default() }
    }

    /// Asks for a delay as of `at_ns`.
    pub(crate) fn ask_delay(&self, at_ns: u64, delay_ns: u64) {
        self.delay_at_ns.store(at_ns, Relaxed);
        self.delay_ns.store(delay_ns, Relaxed);
        self.delay_generation.fetch_add(1, Release);
    }

    /// Asks for a loss.
    pub(crate) fn ask_loss(&self, loss_ppm: u32) {
        self.loss_ppm.store(u64::from(loss_ppm), Relaxed);
        self.loss_generation.fetch_add(1, Release);
    }

    /// Asks for a rate as of `at_ns`.
    pub(crate) fn ask_rate(&self, at_ns: u64, rate_bps: u64) {
        self.rate_at_ns.store(at_ns, Relaxed);
        self.rate_bps.store(rate_bps, Relaxed);
        self.rate_generation.fetch_add(1, Release);
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a packet loop, since its start unless stated otherwise.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(crate) struct Counters { $($(#[$doc])* pub(crate) $name: u64,)* }

        /// [`Counters`] that another thread may read at any time.
        #[derive(Debug, Default)]
        pub(crate) struct Published { $($name: AtomicU64,)* }

        impl Published {
            /// Makes `counters` visible.
            pub(crate) fn publish(&self, counters: &Counters) {
                $(self.$name.store(counters.$name, Release);)*
            }
            /// Each of them as of some instant of the loop's last round.
            pub(crate) fn read(&self) -> Counters {
                Counters { $($name: self.$name.load(Acquire),)* }
            }
        }
    };
}

counters! {
    /// Frames sent.
    sent_pkts,
    /// Their bytes without preamble and checksum.
    sent_bytes,
    /// Lost at random, as asked.
    lost_pkts,
    /// Dropped because the queue was full.
    overlimit_pkts,
    /// Dropped because the queue's own limit of memory was reached.
    queue_overmemory_pkts,
    /// Dropped by the queue's control law.
    early_pkts,
    /// Marked by the control law; by `ce_threshold`; by the step (among the first too).
    ecn_mark_pkts,
    ce_mark_pkts,
    step_mark_pkts,
    /// The control law's probability now, of 2^32.
    prob,
    /// How long the first packet of the classic and the low-latency queue has waited now.
    delay_c_ns,
    delay_l_ns,
    /// Frames that entered them.
    pkts_in_c,
    pkts_in_l,
    /// The scheduler's credit between them now, an `i64` as it is.
    credit,
    /// The most frames that were ever in the queue.
    maxq_pkts,
    /// Flows in the queue now.
    flows,
    /// Dropped because the link's memory was full.
    overmemory_pkts,
    /// Super-packets that could not be cut and frames larger than the MTU was at the start.
    unfit_pkts,
    /// Frames that the device refused for good.
    device_pkts,
    /// Frames in the queue now.
    backlog_pkts,
    /// Their bytes.
    backlog_bytes,
    /// Memory in use now for frames in the link.
    memory_bytes,
    /// The rate now, bit/s; `u64::MAX` is unshaped.
    rate_bps,
    /// Frames released more than 1 ms after they were due.
    late_pkts,
    /// The longest time a frame was released after it was due, nanoseconds.
    max_late_ns,
    /// How often the thread gave its real-time priority up for a while.
    yields,
    /// When the trace began or will begin, `CLOCK_MONOTONIC` nanoseconds; 0 if that is not known yet.
    trace_began_ns,
}
