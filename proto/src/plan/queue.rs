//! What waits for a link's rate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Limit, Micros, Packets, Ppm};

/// The queue of a link or of a class. The keys are those of `tc`; what is left out is the kernel's default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "snake_case")]
#[schemars(extend("x-absent" = "the kernel's"))]
pub enum Queue {
    /// First in, first out, limited in packets.
    Pfifo {
        /// Capacity; other units than packets are rounded up to full frames of 1514 bytes.
        limit: Limit,
    },
    /// First in, first out, limited in bytes.
    Bfifo {
        /// Capacity.
        limit: Limit,
    },
    /// First in, first out, limited in packets; when it is full the oldest goes.
    PfifoHeadDrop {
        /// Capacity; other units than packets are rounded up to full frames of 1514 bytes.
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
        /// Integral gain, in sixteenths of a hertz as `tc` has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(max = 32))]
        alpha: Option<u32>,
        /// Proportional gain, in sixteenths of a hertz.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(max = 32))]
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
        /// Capacity.
        limit: Bytes,
        /// Average queue from which packets are dropped or marked.
        min: Bytes,
        /// Average queue at which the probability is `probability`.
        max: Bytes,
        /// Probability at `max`; absent: `"2%"`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        probability: Option<Ppm>,
        /// Average packet, to turn idle time into packets; absent: `"1000B"`.
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
        /// Number of buckets, a power of two. 1 is a single queue for what a node forwards: the kernel,
        /// which wants two at least, gets `orphan_mask = 0`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1, max = 262_144))]
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
        #[schemars(range(min = 1, max = 65_536))]
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
        #[schemars(range(min = 1, max = 255))]
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
