//! State shared by the packet loop and the control side. It consists of atomics; one side writes each of them.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::counters::{AtomicCounters, Counters};
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
