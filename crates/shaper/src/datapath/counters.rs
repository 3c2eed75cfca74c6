//! Counters of a packet loop, which the control side reads at any time.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a packet loop since its start, unless stated otherwise.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(crate) struct Counters { $($(#[$doc])* pub(crate) $name: u64,)* }

        /// [`Counters`] that other threads may read at any time.
        #[derive(Debug, Default)]
        pub(crate) struct AtomicCounters { $($name: AtomicU64,)* }

        impl AtomicCounters {
            /// Publishes `counters`.
            pub(crate) fn publish(&self, counters: &Counters) {
                $(self.$name.store(counters.$name, Release);)*
            }
            /// Returns the counters of the loop's last iteration. Not an atomic snapshot.
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
    /// Dropped by random loss.
    lost_pkts,
    /// Dropped by the policer.
    policed_pkts,
    /// Acknowledgements that the filter dropped, and those that were held back.
    acks_filtered_pkts,
    acks_held_pkts,
    /// Frames whose ECN field was rewritten, and those of them that had CE.
    ecn_rewritten_pkts,
    ce_rewritten_pkts,
    /// Slots in which frames left.
    slots,
    /// Dropped because the queue was full.
    overlimit_pkts,
    /// Dropped because the queue reached its own memory limit.
    queue_overmemory_pkts,
    /// Dropped by the AQM's control law.
    early_pkts,
    /// Marked by the control law (including the step); by `ce_threshold`; by the step.
    ecn_mark_pkts,
    ce_mark_pkts,
    step_mark_pkts,
    /// Current probability of the control law, times 2^32.
    prob,
    /// Current sojourn time of the first packet in the classic and the low-latency queue.
    delay_c_ns,
    delay_l_ns,
    /// Frames that entered the classic and the low-latency queue.
    pkts_in_c,
    pkts_in_l,
    /// Current credit of the scheduler between the two queues, an `i64` bit pattern.
    credit,
    /// Maximum number of frames in the queue since the start.
    maxq_pkts,
    /// Current number of flows in the queue.
    flows,
    /// Packets of flows and probes that arrived, and foreign packets with their bytes. Super-packets count once.
    own_pkts,
    foreign_pkts,
    foreign_bytes,
    /// Dropped because the link's memory was full.
    overmemory_pkts,
    /// Super-packets that could not be segmented, and frames larger than the initial MTU.
    unfit_pkts,
    /// Frames that the device rejected.
    device_pkts,
    /// Current number of frames in the queue.
    backlog_pkts,
    /// Current bytes in the queue.
    backlog_bytes,
    /// Memory currently in use for frames in the link.
    memory_bytes,
    /// Current rate, bit/s; `u64::MAX`: unshaped.
    rate_bps,
    /// Frames released more than 1 ms after they were due.
    late_pkts,
    /// Maximum time that a frame was released after it was due, nanoseconds.
    max_late_ns,
    /// Number of times that the thread was demoted from real-time priority.
    demotions,
    /// When the trace began or will begin, `CLOCK_MONOTONIC` nanoseconds; 0: not known yet.
    trace_began_ns,
    /// Time without a packet on the line, nanoseconds since zero of the clock.
    idle_ns,
}
