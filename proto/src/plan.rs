//! The plan as its author writes it: one serde type per table, unknown keys refused. Nothing here is
//! checked across fields (that is [`check`]) and nothing is computed from it (that is [`crate::resolve`]
//! and [`crate::schedule`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::units::{Bytes, Limit, Micros, Packets, Ppm, Rate};

pub use capture::Capture;
pub use cc::{Cc, Via};
pub use expect::Expect;
pub use impair::{BurstLoss, Distribution, Jitter, OnEnd, Reorder, TraceStart, TraceUse};
pub use lab::{LabUse, Series};
pub use node::{Node, SysctlValue};
pub use probe::{Probe, ProbeKind, Repeat};
pub use sample::{Acks, Sample};
pub use timeline::{Change, Phase, Setting};

pub mod capture;
pub mod cc;
pub mod check;
pub mod expect;
pub mod impair;
pub mod lab;
pub mod node;
pub mod parse;
pub mod probe;
pub mod sample;
pub mod timeline;

/// A whole plan. Every `BTreeMap` key is a name its author chose; names become values in result columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Short name; becomes part of the results directory's name (letters, digits, `-`, `_`).
    pub name: String,
    /// One sentence on what is compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Trials per point of the matrix.
    #[serde(default = "one")]
    pub repeat: u32,
    /// Pause between two trials.
    #[serde(default)]
    pub gap: Micros,
    /// Seeds the order of trials and everything random in them.
    #[serde(default = "one_u64")]
    pub seed: u64,
    /// Order of the trials.
    #[serde(default)]
    pub order: Order,
    /// How often to sample what.
    #[serde(default)]
    pub sample: Sample,
    /// Keep every processor of the nodes' machines from halting during a trial, so that timers are punctual
    /// on virtual machines: one idle-priority thread per processor that yields to everything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_awake: bool,
    /// What the plan asks of the lab.
    #[serde(default, skip_serializing_if = "LabUse::is_empty")]
    pub lab: LabUse,
    /// The machines, or namespaces where no agent is named.
    pub nodes: BTreeMap<String, Node>,
    /// Cabling between nodes: each a chain of node names. Used when ccbench builds the nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub wires: BTreeMap<String, Vec<String>>,
    /// Named path characteristics that a link may take over with `path = "NAME"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub path: BTreeMap<String, PathPreset>,
    /// Shaped links: each one direction of one interface.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<String, Link>,
    /// Instances of congestion controls, loaded before a trial and gone after it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cc: BTreeMap<String, Cc>,
    /// Named groups of TCP flows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub flows: BTreeMap<String, Flow>,
    /// Measurements beside the flows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub probes: BTreeMap<String, Probe>,
    /// Packets written to files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capture: BTreeMap<String, Capture>,
    /// The timeline.
    pub phases: Vec<Phase>,
    /// Link settings that change at an instant of the trial.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// Factors: every combination of their levels is a point.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub matrix: BTreeMap<String, Factor>,
    /// Claims about the results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expect>,
    /// Overrides for a quick look. Of no use to a plan that is read already, so never written.
    #[serde(default, skip_serializing)]
    pub quick: BTreeMap<String, toml::Value>,
}

/// The sha256 of a resolved plan's text, in hexadecimal.
pub fn digest(text: &str) -> String {
    digest_bytes(text.as_bytes())
}

/// The sha256 of a file's content, in hexadecimal.
pub fn digest_bytes(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn one() -> u32 {
    1
}
fn one_u64() -> u64 {
    1
}
fn yes() -> bool {
    true
}

/// Order in which trials run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Shuffled within each repetition by the plan's seed, so that drift of the machine does not alias with a factor.
    #[default]
    Random,
    /// Point by point as written.
    AsWritten,
}

/// Path characteristics with a name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PathPreset {
    /// Bottleneck rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// One-way delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Micros>,
    /// Independent random loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Ppm>,
    /// The bottleneck's queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
}

/// One direction of one interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The node whose egress is shaped.
    pub node: String,
    /// The interface is the one that the route to this node leaves by. Exactly one of `toward` and `dev`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toward: Option<String>,
    /// The interface by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// Take rate, delay, loss and queue from this preset; keys written here win.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Rate of the link; absent means unshaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Constant one-way delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Micros>,
    /// Independent random loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Ppm>,
    /// Random delay around `delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Jitter>,
    /// Loss in bursts, beside `loss`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_loss: Option<BurstLoss>,
    /// Share of packets that are delivered twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<Ppm>,
    /// Packets that overtake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder: Option<Reorder>,
    /// Share of packets in which one bit behind the IP header is flipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrupt: Option<Ppm>,
    /// Rate, delay or loss as a file says; in place of `rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceUse>,
    /// Bytes that the line carries beside each IP packet: 14 is an Ethernet header (what the kernel's qdiscs
    /// count), 0 none, 38 a whole frame with preamble, checksum and gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<Bytes>,
    /// Write down every packet of a userspace link, at most so many bytes of rows; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_log: Option<Bytes>,
    /// A userspace link may write packets that are due together as one super-packet; absent: yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gso: Option<bool>,
    /// The queue in front of the rate; absent: 1.5 BDP of bytes, at least 10 packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// Where it is done.
    #[serde(default)]
    pub backend: Backend,
    /// Which kernel qdisc limits the rate.
    #[serde(default)]
    pub shaper: Shaper,
    /// Slices of the rate, each with its own queue; what no class matches goes to the link's own queue.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, Class>,
}

/// Where a link is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The kernel's qdisc where this kernel has all that is asked, otherwise userspace; the choice is recorded.
    #[default]
    Auto,
    /// Kernel qdiscs over rtnetlink.
    Kernel,
    /// ccbench's own packet path.
    Userspace,
}

/// Which kernel qdisc limits the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shaper {
    /// Hierarchical token bucket with one leaf class (the usual bottleneck).
    #[default]
    Htb,
    /// Token bucket filter.
    Tbf,
}

/// The queue of a link or of a class. Field names are those of `tc`; what is absent is the kernel's default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "snake_case")]
pub enum Queue {
    /// First in, first out, limited in packets.
    Pfifo {
        /// Capacity.
        limit: Limit,
    },
    /// First in, first out, limited in bytes.
    Bfifo {
        /// Capacity.
        limit: Limit,
    },
    /// First in, first out, limited in packets; when it is full the oldest goes.
    PfifoHeadDrop {
        /// Capacity.
        limit: Limit,
    },
    /// First in, first out, limited in bytes; when it is full the oldest go. Userspace only.
    BfifoHeadDrop {
        /// Capacity.
        limit: Limit,
    },
    /// Proportional integral controller enhanced (RFC 8033).
    Pie {
        /// Capacity in packets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Packets>,
        /// Delay to hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Micros>,
        /// Time between two updates of the probability.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tupdate: Option<Micros>,
        /// Integral gain, 0 to 32, in sixteenths of a hertz as `tc` has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        alpha: Option<u32>,
        /// Proportional gain, 0 to 32, in sixteenths of a hertz.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        beta: Option<u32>,
        /// Mark instead of dropping while the probability is low.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ecn: Option<bool>,
        /// Count bytes: small packets are dropped less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytemode: Option<bool>,
    },
    /// Random early detection.
    Red {
        /// Capacity in bytes.
        limit: Bytes,
        /// Average queue from which packets are dropped or marked, bytes.
        min: Bytes,
        /// Average queue at which the probability is `probability`, bytes.
        max: Bytes,
        /// Probability at `max`; absent: 2 %.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        probability: Option<Ppm>,
        /// Average packet, to turn idle time into packets; absent: 1000 B.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        avpkt: Option<Bytes>,
        /// Packets that may burst; absent: (2 min + max) / (3 avpkt).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        burst: Option<u32>,
        /// Mark instead of dropping.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ecn: Option<bool>,
        /// Drop with certainty above `max` even what could be marked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        harddrop: Option<bool>,
        /// Let the probability find itself (Floyd's adaptive RED).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        adaptive: Option<bool>,
    },
    /// Fair queueing with pacing (`sch_fq`).
    Fq {
        /// Packets in all queues.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Packets>,
        /// Packets in one queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flow_limit: Option<Packets>,
        /// Number of buckets, a power of two; 1 is a single queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        buckets: Option<u32>,
        /// Mark ECT packets CE above this sojourn time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ce_threshold: Option<Micros>,
        /// Mask of the hash for packets without a local socket.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        orphan_mask: Option<u32>,
    },
    /// Controlled delay (RFC 8289).
    Codel {
        /// Capacity in packets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Packets>,
        /// Acceptable standing delay.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Micros>,
        /// Width of the moving time window.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interval: Option<Micros>,
        /// Mark instead of dropping.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ecn: Option<bool>,
        /// Mark ECT packets CE above this sojourn time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ce_threshold: Option<Micros>,
    },
    /// CoDel per flow (RFC 8290).
    FqCodel {
        /// Capacity in packets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Packets>,
        /// Number of queues.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flows: Option<u32>,
        /// Acceptable standing delay.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Micros>,
        /// Width of the moving time window.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interval: Option<Micros>,
        /// Bytes a queue may send in its turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quantum: Option<Bytes>,
        /// Mark instead of dropping.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ecn: Option<bool>,
        /// Mark ECT packets CE above this sojourn time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ce_threshold: Option<Micros>,
        /// Limit of the memory of all queues.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_limit: Option<Bytes>,
    },
    /// Common applications kept enhanced; the rate stays with the link's shaper.
    Cake {
        /// Round-trip time that the AQM is tuned for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rtt: Option<Micros>,
        /// Memory of the queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_limit: Option<Bytes>,
    },
    /// Dual-queue coupled AQM for L4S (RFC 9332).
    Dualpi2 {
        /// Capacity in packets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Packets>,
        /// Target delay of the classic queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Micros>,
        /// Time between two updates of the probability.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tupdate: Option<Micros>,
        /// Integral gain in Hz, as text (`"0.15625"`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        alpha: Option<String>,
        /// Proportional gain in Hz, as text (`"3.195312"`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        beta: Option<String>,
        /// Step marking threshold of the low-latency queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<Micros>,
        /// Coupling factor k.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        coupling: Option<u32>,
        /// Drop on overload (`true`) or overflow.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        drop_on_overload: Option<bool>,
        /// Drop at dequeue (`true`) or at enqueue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        drop_dequeue: Option<bool>,
        /// Split super-packets on enqueue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        split_gso: Option<bool>,
        /// Share reserved for the classic queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        classic_protection: Option<Ppm>,
    },
}

/// A slice of a link's rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Guaranteed rate.
    pub rate: Rate,
    /// Most it may borrow up to; absent: the guaranteed rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceil: Option<Rate>,
    /// Served before classes with a higher number, within its guarantee and beyond; absent: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Which packets.
    #[serde(rename = "match")]
    pub matches: Match,
    /// Its queue; absent: as the link's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
}

/// Which packets belong to a class; all given keys must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// Destination node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Source node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// A flow group (its ports), data and acknowledgements alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// DSCP, 0 to 63.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
    /// TCP or UDP port of either end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The IP header's ECN field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecn: Option<Ecn>,
}

/// The IP header's ECN field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ecn {
    /// 00.
    NotEct = 0,
    /// 01, L4S.
    Ect1 = 1,
    /// 10.
    Ect0 = 2,
    /// 11.
    Ce = 3,
}

/// A named group of TCP flows, started and stopped together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Node that connects (and sends, unless `reverse`).
    pub from: String,
    /// Node that listens.
    pub to: String,
    /// Congestion control of the sender; absent: the kernel's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cc: Option<String>,
    /// Parallel sockets of one iperf3 (1 to 128).
    #[serde(default = "one")]
    pub count: u32,
    /// The listener sends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reverse: bool,
    /// Application limit per socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Start this long after the trial's beginning, instead of with the first phase that names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Micros>,
    /// Stop this long after the trial's beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Micros>,
    /// Interval of iperf3's own rows.
    #[serde(default = "tenth")]
    pub interval: Micros,
}

fn tenth() -> Micros {
    Micros::from_millis(100)
}

/// A factor of the matrix. Its name is the table's key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Factor {
    /// The factor's name is a plan key, and these are its values.
    Values(Vec<toml::Value>),
    /// Named levels, each setting any number of plan keys.
    Levels(BTreeMap<String, BTreeMap<String, toml::Value>>),
}
