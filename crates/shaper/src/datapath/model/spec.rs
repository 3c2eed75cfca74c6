//! Parameters of a link, and values derived from them.

use ccbench_proto::plan::Link;
use ccbench_proto::resolve::{self, OwnTraffic};
use ccbench_proto::trace::{Replay, Trace};
use ccbench_proto::units::{Micros, Rate};

use crate::datapath::classes::ClassSpec;
use crate::datapath::impair::typical_jitter_ns;
use crate::discipline::QueueParams;

/// Parameters of a link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LinkSpec {
    /// Its keys in the plan. With a trace, the rate is the trace's mean rate.
    pub(crate) plan: Link,
    /// Seed of all random streams.
    pub(crate) seed: u64,
    /// The queue of the default class.
    pub(crate) queue: QueueParams,
    /// Classes; empty: all packets share `queue`.
    pub(crate) classes: Vec<ClassSpec>,
    /// Trace to replay.
    pub(crate) trace: Option<Replay>,
    /// Parameters to which `queue` may change, for [`LinkModel::set_queue`](super::LinkModel::set_queue).
    pub(crate) changed_queues: Vec<QueueParams>,
    /// The packets of the trial; `None`: no packet counts as foreign.
    pub(crate) own_traffic: Option<OwnTraffic>,
}

impl LinkSpec {
    /// Returns a link with this rate in bit/s and this queue.
    #[cfg(any(test, feature = "bench"))]
    pub(crate) fn rated(rate_bps: u64, queue: QueueParams) -> Self {
        let rate = Some(Rate::from_bits_per_sec(rate_bps));
        let plan = Link { rate, ..Link::default() };
        Self { plan, queue, seed: 1, ..Self::default() }
    }

    /// Returns the initial rate in bit/s; `None`: unshaped.
    pub(crate) fn rate_bps(&self) -> Option<u64> {
        self.plan.rate.map(Rate::bits_per_sec)
    }

    /// Returns the initial delay in front of the queue, nanoseconds.
    pub(crate) fn delay_ns(&self) -> u64 {
        self.plan.delay.unwrap_or_default().nanos()
    }

    /// Returns the initial independent random loss in front of the delay, parts per million.
    pub(crate) fn loss_ppm(&self) -> u32 {
        self.plan.loss.unwrap_or_default().get()
    }

    /// Returns the link-layer overhead of each IP packet, bytes; by default an Ethernet header.
    pub(crate) fn overhead_bytes(&self) -> u32 {
        let overhead = self.plan.overhead.unwrap_or(resolve::ETHERNET_BYTES);
        u32::try_from(overhead.get()).unwrap_or(u32::MAX)
    }

    /// Returns a delay that few packets exceed, nanoseconds. Sizes buffers.
    pub(crate) fn typical_delay_ns(&self) -> u64 {
        let longest_ns = self.trace.as_ref().map_or(0, longest_delay_ns);
        let held_ns = self.plan.ack_aggregation.map_or(0, |plan| plan.hold.nanos());
        let late_ns = self.plan.reorder.and_then(|plan| plan.late).map_or(0, Micros::nanos);
        let more_ns = [typical_jitter_ns(self.plan.jitter), held_ns, late_ns];
        more_ns.into_iter().fold(self.delay_ns().max(longest_ns), u64::saturating_add)
    }

    /// Returns the queue and the initial values as text.
    pub(crate) fn describe(&self) -> String {
        let queue = self.queue.describe();
        let rate = self.rate_bps().map_or("none".to_owned(), |bps| format!("{bps}bit"));
        let (delay_us, loss_ppm) = (self.delay_ns() / 1000, self.loss_ppm());
        format!("{queue} rate {rate} delay {delay_us}us loss {loss_ppm}ppm")
    }

    /// Returns whether packet headers are read: by a queue, by a class, or for keys of the plan.
    pub(crate) fn classifies(&self) -> bool {
        let reads = self.plan.ecn_rewrite.is_some() || self.reads_acks();
        reads || self.queue.reads_headers() || !self.classes.is_empty()
    }

    /// Returns whether pure TCP acknowledgements are treated differently.
    fn reads_acks(&self) -> bool {
        self.plan.ack_filter || self.plan.ack_aggregation.is_some()
    }

    /// Returns the maximum number of frames in all queues, for frames of at least `min_frame_bytes`.
    pub(crate) fn max_packets(&self, min_frame_bytes: u64) -> u64 {
        let packets = |queue: &QueueParams| queue.max_packets(min_frame_bytes);
        let own = self.changed_queues.iter().map(packets).fold(packets(&self.queue), u64::max);
        self.classes.iter().map(|class| packets(&class.queue)).fold(own, u64::saturating_add)
    }
}

/// The longest delay of any row of a trace.
fn longest_delay_ns(replay: &Replay) -> u64 {
    delays(replay).flatten().max().unwrap_or(0)
}

/// The delay of each row of a trace.
pub(super) fn delays(replay: &Replay) -> impl Iterator<Item = Option<u64>> {
    let steps = match &*replay.trace {
        Trace::Steps(steps) => steps.steps.as_slice(),
        Trace::Opportunities(_) => &[],
    };
    steps.iter().map(|step| step.delay_ns)
}
