//! Queue disciplines for both backends: the qdisc for the kernel, and the queue in front of a userspace link's rate.
//!
//! Each discipline has a file here, with a sub-module `qdisc` for its netlink encoding and statistics. This file defines the two traits and
//! the two lists. To add a discipline, add its struct to `ccbench_proto::plan::queue`, its two files here, and a line to each list below. Its
//! own tests implement `tests::Samples`, with which the tests of all queues run it.

use ccbench_proto::plan::{self, Queue};
use ccbench_proto::units::{Micros, Rate};
use ccbench_proto::wire::QdiscSample;

use crate::datapath::counters::Counters;
use crate::datapath::packet::Packet;
use crate::datapath::random::Random;
use crate::qdisc::{BadQueue, Qdisc};

mod cake;
pub(crate) mod codel;
#[cfg(feature = "bench")]
pub(crate) mod cost;
pub(crate) mod dualpi2;
pub(crate) mod fifo;
pub(crate) mod flow_lists;
pub(crate) mod flow_queue;
pub(crate) mod fq;
pub(crate) mod fq_codel;
pub(crate) mod pie;
pub(crate) mod red;
mod stats;
#[cfg(test)]
mod tests;

pub use cake::with_ack_filter;
pub(crate) use fifo::FifoLimit;
pub(crate) use stats::fill_row;

/// A plan's discipline. Defines how its parameters become a qdisc and a userspace queue.
pub(crate) trait Discipline {
    /// The plan's `kind`, which is also the qdisc's name.
    const KIND: &'static str;
    /// Which kernels have this qdisc.
    const KERNEL: KernelSupport;
    /// Returns the qdisc for the kernel backend, in front of `rate`.
    fn qdisc(&self, rate: Option<Rate>) -> Result<Qdisc, BadQueue>;
    /// Returns the parameters that change a qdisc which holds packets, in front of `rate`: by default, all of them.
    fn changed_qdisc(&self, rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        self.qdisc(rate)
    }
    /// Returns the parameters for the userspace backend, in front of `rate`.
    fn params(&self, rate: Option<Rate>) -> Result<QueueParams, BadQueue>;
    /// Reads the qdisc's own statistics (`TCA_STATS_APP`).
    fn read_xstats(_xstats: &[u8], _row: &mut QdiscSample) {}
}

/// Which kernels have a qdisc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelSupport {
    /// Every kernel with a packet scheduler.
    Always,
    /// Kernels built with this option, named without `CONFIG_`.
    Config(&'static str),
    /// No kernel.
    UserspaceOnly,
}

macro_rules! disciplines {
    ($($name:ident,)+) => {
        /// The name and the kernel support of every discipline.
        pub(crate) const KINDS: &[(&str, KernelSupport)] = &[
            $((<plan::$name as Discipline>::KIND, <plan::$name as Discipline>::KERNEL),)+
        ];

        /// The `kind` of a plan's queue, which is the name of its qdisc.
        pub fn kind(queue: &Queue) -> &'static str {
            match queue {
                $(Queue::$name(_) => <plan::$name as Discipline>::KIND,)+
            }
        }

        /// Returns the qdisc of a plan's queue in front of `rate`, which RED needs. Limits must be bytes or packets.
        ///
        /// # Errors
        /// A limit that still depends on rate and delay, or a value that the kernel cannot express.
        pub fn qdisc(queue: &Queue, rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
            match queue {
                $(Queue::$name(queue) => queue.qdisc(rate),)+
            }
        }

        /// Returns the parameters that change the qdisc of a plan's queue while it holds packets, in front of `rate`.
        ///
        /// # Errors
        /// As [`qdisc`], and if the change would drop the packets.
        pub(crate) fn changed_qdisc(queue: &Queue, rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
            match queue {
                $(Queue::$name(queue) => queue.changed_qdisc(rate),)+
            }
        }

        /// Returns the userspace parameters of a plan's queue.
        pub(crate) fn params(queue: &Queue, rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
            match queue {
                $(Queue::$name(queue) => queue.params(rate),)+
            }
        }

        /// Reads the statistics that only a qdisc of this kind has.
        fn read_xstats(kind: &str, xstats: &[u8], row: &mut QdiscSample) {
            $(if kind == <plan::$name as Discipline>::KIND {
                return <plan::$name as Discipline>::read_xstats(xstats, row);
            })+
        }
    };
}

// The list of all disciplines of a plan, in the order in which a node reports them.
disciplines! {
    Pfifo,
    Bfifo,
    PfifoHeadDrop,
    BfifoHeadDrop,
    Fq,
    Codel,
    FqCodel,
    Pie,
    Red,
    Cake,
    Dualpi2,
}

/// A userspace queue: a pure state machine that takes the time as an argument, holds packets without their bytes, and does not
/// allocate after it is built. `dropped` receives the slots of dropped packets.
pub(crate) trait PacketQueue: Sized {
    /// Its parameters.
    type Params: Copy;
    /// Whether the queue reads a packet's flow or ECN field.
    const READS_HEADERS: bool = true;

    /// An empty queue.
    fn build(params: Self::Params, setup: Setup) -> Self;
    /// Enqueues `packet`, which arrives at `packet.at_ns`. It may be dropped, or cause others to be dropped.
    fn enqueue(&mut self, packet: Packet, dropped: &mut Vec<u32>);
    /// Returns the next packet to transmit at `now_ns`. May drop packets in front of it.
    fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Option<Packet>;
    /// Notes that the line asks for a packet while the queue is empty, where [`Self::dequeue`] is not called: in a class, or outside a slot.
    fn found_empty(&mut self, _now_ns: u64) {}
    /// Removes the packet in `slot`, of this flow, from anywhere in the queue, without counting it. Returns `None` if it is not there.
    fn remove(&mut self, slot: u32, flow: u32) -> Option<Packet>;
    /// Changes the parameters. Drops packets beyond a lower limit, as the qdisc does. The number of queues does not change.
    fn set_params(&mut self, params: Self::Params, dropped: &mut Vec<u32>);
    /// Runs the timers that are due by `now_ns`.
    fn advance_to(&mut self, _now_ns: u64) {}
    /// Queued packets and bytes.
    fn backlog(&self) -> (u64, u64);
    /// Counters and state at `now_ns`.
    fn stats(&self, now_ns: u64) -> QueueStats;

    /// Returns the largest number of packets that it can hold if no frame is shorter than `min_frame_bytes`.
    fn max_packets(params: Self::Params, min_frame_bytes: u64) -> u64;
    /// Returns the number of the queue that packets with this flow hash enter; `None`: all flows share one queue.
    fn flow_queue(_params: Self::Params, _flow: u32) -> Option<u32> {
        None
    }
    /// Kind and parameters as `tc` prints them.
    fn describe(params: Self::Params) -> String;
    /// Fills in the columns that the kernel's qdisc of this kind reports.
    fn fill_row(_counters: &Counters, _row: &mut QdiscSample) {}
}

/// Environment of a userspace queue, in addition to its parameters.
#[derive(Debug)]
pub(crate) struct Setup {
    /// All slots of packets are below this.
    pub(crate) capacity: usize,
    /// The largest frame, bytes.
    pub(crate) frame_bytes: u32,
    /// For random drops and marks.
    pub(crate) random: Random,
}

macro_rules! packet_queues {
    ($($name:ident($queue:ty),)+) => {
        /// A userspace queue's kind and parameters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum QueueParams {
            $($name(<$queue as PacketQueue>::Params),)+
        }

        /// A userspace queue of any kind. An enum rather than a trait object, so that calls per packet are inlined.
        #[derive(Debug)]
        pub(crate) enum AnyQueue {
            $($name(Box<$queue>),)+
        }

        impl QueueParams {
            /// An empty queue with these parameters.
            pub(crate) fn build(&self, setup: Setup) -> AnyQueue {
                match *self {
                    $(Self::$name(params) => {
                        AnyQueue::$name(Box::new(<$queue>::build(params, setup)))
                    })+
                }
            }

            /// As [`PacketQueue::max_packets`].
            pub(crate) fn max_packets(&self, min_frame_bytes: u64) -> u64 {
                match *self {
                    $(Self::$name(params) => <$queue>::max_packets(params, min_frame_bytes),)+
                }
            }

            /// As [`PacketQueue::flow_queue`].
            pub(crate) fn flow_queue(&self, flow: u32) -> Option<u32> {
                match *self {
                    $(Self::$name(params) => <$queue>::flow_queue(params, flow),)+
                }
            }

            /// As [`PacketQueue::describe`].
            pub(crate) fn describe(&self) -> String {
                match *self {
                    $(Self::$name(params) => <$queue>::describe(params),)+
                }
            }

            /// As [`PacketQueue::fill_row`].
            pub(crate) fn fill_row(&self, counters: &Counters, row: &mut QdiscSample) {
                match self {
                    $(Self::$name(_) => <$queue>::fill_row(counters, row),)+
                }
            }

            /// As [`PacketQueue::READS_HEADERS`].
            pub(crate) fn reads_headers(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$queue>::READS_HEADERS,)+
                }
            }
        }

        #[cfg(test)]
        impl QueueParams {
            /// As [`tests::Samples::small`], of every queue.
            fn small() -> Vec<Self> {
                let mut all = Vec::new();
                $(all.extend(<$queue as tests::Samples>::small().into_iter().map(Self::$name));)+
                all
            }

            /// As [`tests::Samples::any`], of every queue.
            fn any(numbers: &tests::Numbers) -> Vec<Self> {
                vec![$(Self::$name(<$queue as tests::Samples>::any(numbers)),)+]
            }

            /// As [`tests::Samples::golden`], of every queue.
            fn golden() -> Vec<(Self, &'static str)> {
                let mut all = Vec::new();
                $(all.extend(
                    <$queue as tests::Samples>::golden()
                        .into_iter()
                        .map(|(params, signals)| (Self::$name(params), signals)),
                );)+
                all
            }
        }

        impl AnyQueue {
            /// As [`PacketQueue::enqueue`], for a packet that arrives at `now_ns`.
            pub(crate) fn enqueue(&mut self, now_ns: u64, packet: Packet, dropped: &mut Vec<u32>) {
                let packet = Packet { at_ns: now_ns, ..packet };
                match self {
                    $(Self::$name(queue) => queue.enqueue(packet, dropped),)+
                }
            }

            /// As [`PacketQueue::dequeue`].
            pub(crate) fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Option<Packet> {
                match self {
                    $(Self::$name(queue) => queue.dequeue(now_ns, dropped),)+
                }
            }

            /// As [`PacketQueue::found_empty`].
            pub(crate) fn found_empty(&mut self, now_ns: u64) {
                match self {
                    $(Self::$name(queue) => queue.found_empty(now_ns),)+
                }
            }

            /// As [`PacketQueue::remove`].
            pub(crate) fn remove(&mut self, slot: u32, flow: u32) -> Option<Packet> {
                match self {
                    $(Self::$name(queue) => queue.remove(slot, flow),)+
                }
            }

            /// As [`PacketQueue::set_params`]; parameters of another kind change nothing.
            pub(crate) fn set_params(&mut self, params: QueueParams, dropped: &mut Vec<u32>) {
                match (self, params) {
                    $((Self::$name(queue), QueueParams::$name(params)) => {
                        queue.set_params(params, dropped);
                    })+
                    _ => {}
                }
            }

            /// As [`PacketQueue::advance_to`].
            pub(crate) fn advance_to(&mut self, now_ns: u64) {
                match self {
                    $(Self::$name(queue) => queue.advance_to(now_ns),)+
                }
            }

            /// As [`PacketQueue::backlog`].
            pub(crate) fn backlog(&self) -> (u64, u64) {
                match self {
                    $(Self::$name(queue) => queue.backlog(),)+
                }
            }

            /// As [`PacketQueue::stats`].
            pub(crate) fn stats(&self, now_ns: u64) -> QueueStats {
                match self {
                    $(Self::$name(queue) => queue.stats(now_ns),)+
                }
            }
        }
    };
}

// The list of all userspace queues.
packet_queues! {
    TailDrop(fifo::TailDrop),
    HeadDrop(fifo::HeadDrop),
    Codel(codel::Codel),
    FqCodel(fq_codel::FqCodel),
    Fq(fq::Fq),
    Pie(pie::Pie),
    Red(red::Red),
    Dualpi2(dualpi2::Dualpi2),
}

impl Default for QueueParams {
    fn default() -> Self {
        Self::TailDrop(FifoLimit::Packets(1000))
    }
}

/// A queue's counters since its start, and its current state. Fields that a discipline does not have stay zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QueueStats {
    /// Packets dropped because the queue was full.
    pub(crate) drop_overlimit: u64,
    /// Packets dropped because `memory_limit` was reached.
    pub(crate) drop_overmemory: u64,
    /// Packets dropped by the AQM.
    pub(crate) drop_early: u64,
    /// Packets marked CE by the AQM.
    pub(crate) ecn_mark: u64,
    /// Packets marked CE because their sojourn time exceeded `ce_threshold`.
    pub(crate) ce_mark: u64,
    /// Packets marked CE by DualPI2's step; also counted in `ecn_mark`, as in the kernel.
    pub(crate) step_mark: u64,
    /// Drop probability of the AQM, times 2^32.
    pub(crate) prob: u64,
    /// Queue delay of the classic queue, or of the only one.
    pub(crate) delay_c_ns: u64,
    /// Queue delay of DualPI2's L queue.
    pub(crate) delay_l_ns: u64,
    /// Packets that entered DualPI2's C queue.
    pub(crate) pkts_in_c: u64,
    /// Packets that entered DualPI2's L queue.
    pub(crate) pkts_in_l: u64,
    /// DualPI2's `c_protection_credit`: the L queue is served unless it is positive.
    pub(crate) credit: i64,
    /// Maximum queue length so far, packets.
    pub(crate) maxq: u64,
    /// Flows in `new_flows` and `old_flows`.
    pub(crate) flows: u64,
}

impl QueueStats {
    /// Adds another queue's counters and credit. For other state, keeps the larger value.
    pub(crate) fn add(&mut self, other: &Self) {
        self.drop_overlimit += other.drop_overlimit;
        self.drop_overmemory += other.drop_overmemory;
        self.drop_early += other.drop_early;
        self.ecn_mark += other.ecn_mark;
        self.ce_mark += other.ce_mark;
        self.step_mark += other.step_mark;
        self.pkts_in_c += other.pkts_in_c;
        self.pkts_in_l += other.pkts_in_l;
        self.flows += other.flows;
        self.prob = self.prob.max(other.prob);
        self.delay_c_ns = self.delay_c_ns.max(other.delay_c_ns);
        self.delay_l_ns = self.delay_l_ns.max(other.delay_l_ns);
        self.maxq = self.maxq.max(other.maxq);
        self.credit += other.credit;
    }

    /// Packets dropped for any reason.
    pub(crate) fn dropped(&self) -> u64 {
        self.drop_overlimit + self.drop_overmemory + self.drop_early
    }
}

/// A probability of one in [`QueueStats::prob`].
pub(crate) const PROB_ONE: f64 = 4_294_967_296.0;

/// Whole microseconds, as `tc` prints a time.
fn us_text(ns: u64) -> String {
    format!("{}us", ns / 1000)
}

/// A flag as `tc` prints it: its name with a space in front, or nothing.
fn flag_text(on: bool, name: &'static str) -> String {
    if on { format!(" {name}") } else { String::new() }
}

/// Nanoseconds of a plan's time, or the default.
fn ns_or(time: Option<Micros>, default_ns: u64) -> u64 {
    time.map_or(default_ns, Micros::nanos)
}
