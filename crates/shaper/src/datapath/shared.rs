//! State shared by the packet loop and the control side. It consists of atomics; one side writes each of them.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::histogram::Histogram;
use super::log::Log;
use super::model::LinkModel;

/// Shared by one packet loop and its control side.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Stops the loop.
    pub(crate) stop: AtomicBool,
    /// The last requested rate, bit/s.
    pub(crate) rate_bps: AtomicU64,
    /// When it was requested, `CLOCK_MONOTONIC` nanoseconds.
    pub(crate) rate_at_ns: AtomicU64,
    /// Incremented after the two fields above have been written.
    pub(crate) rate_generation: AtomicU64,
    /// The same for the delay (nanoseconds) with its time, and for the loss (parts per million).
    pub(crate) delay_ns: AtomicU64,
    pub(crate) delay_at_ns: AtomicU64,
    pub(crate) delay_generation: AtomicU64,
    pub(crate) loss_ppm: AtomicU64,
    pub(crate) loss_generation: AtomicU64,
    /// The same for the queue, an index into `LinkSpec::changed_queues`.
    pub(crate) queue_number: AtomicU64,
    pub(crate) queue_at_ns: AtomicU64,
    pub(crate) queue_generation: AtomicU64,
    /// When the trial begins, which starts the trace, `CLOCK_MONOTONIC` nanoseconds; 0: not known yet.
    pub(crate) begin_at_ns: AtomicU64,
    /// Written by the loop.
    pub(crate) counters: AtomicCounters,
    /// Scheduling errors of packets; written by the loop.
    pub(crate) scheduling_error: Histogram,
    /// The packet log, if enabled; written by the loop.
    pub(crate) log: Option<Log>,
}

impl Shared {
    /// `log_bytes`: size limit of the packet log; `None` disables it.
    pub(crate) fn new(log_bytes: Option<u64>) -> Self {
        Self { log: log_bytes.map(Log::new), ..Self::default() }
    }

    /// Requests a delay from `at_ns` on.
    pub(crate) fn request_delay(&self, at_ns: u64, delay_ns: u64) {
        self.delay_at_ns.store(at_ns, Relaxed);
        self.delay_ns.store(delay_ns, Relaxed);
        self.delay_generation.fetch_add(1, Release);
    }

    /// Requests a loss.
    pub(crate) fn request_loss(&self, loss_ppm: u32) {
        self.loss_ppm.store(u64::from(loss_ppm), Relaxed);
        self.loss_generation.fetch_add(1, Release);
    }

    /// Requests a queue from `at_ns` on.
    pub(crate) fn request_queue(&self, at_ns: u64, number: usize) {
        self.queue_at_ns.store(at_ns, Relaxed);
        self.queue_number.store(number as u64, Relaxed);
        self.queue_generation.fetch_add(1, Release);
    }

    /// Requests a rate from `at_ns` on.
    pub(crate) fn request_rate(&self, at_ns: u64, rate_bps: u64) {
        self.rate_at_ns.store(at_ns, Relaxed);
        self.rate_bps.store(rate_bps, Relaxed);
        self.rate_generation.fetch_add(1, Release);
    }
}

impl Counters {
    /// Copies the counters and the state of `model`. Keeps what is counted outside of it.
    pub(crate) fn take_over(&mut self, model: &LinkModel) {
        let queue = model.queue_stats();
        (self.backlog_pkts, self.backlog_bytes) = model.backlog();
        let counts = model.counts();
        self.lost_pkts = counts.lost;
        self.policed_pkts = counts.policed;
        self.acks_filtered_pkts = counts.acks_filtered;
        self.acks_held_pkts = counts.acks_held;
        self.ecn_rewritten_pkts = counts.ecn_rewritten;
        self.ce_rewritten_pkts = counts.ce_rewritten;
        self.slots = counts.slots;
        self.overlimit_pkts = queue.drop_overlimit;
        self.queue_overmemory_pkts = queue.drop_overmemory;
        self.early_pkts = queue.drop_early;
        self.ecn_mark_pkts = queue.ecn_mark;
        self.ce_mark_pkts = queue.ce_mark;
        self.step_mark_pkts = queue.step_mark;
        self.prob = queue.prob;
        self.delay_c_ns = queue.delay_c_ns;
        self.delay_l_ns = queue.delay_l_ns;
        self.pkts_in_c = queue.pkts_in_c;
        self.pkts_in_l = queue.pkts_in_l;
        self.credit = queue.credit.cast_unsigned();
        self.maxq_pkts = queue.maxq;
        self.flows = queue.flows;
        self.rate_bps = model.rate_bps().unwrap_or(u64::MAX);
        self.trace_began_ns = model.trace_began_ns().unwrap_or(0);
        self.idle_ns = model.idle_ns();
    }
}

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
