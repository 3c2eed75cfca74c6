//! Fair queueing with pacing.

use ccbench_proto::plan::Queue;
use ccbench_proto::units::Packets;

use super::{BadQueue, Qdisc, micros};
use crate::netlink::Message;

const TCA_FQ_PLIMIT: u16 = 1;
const TCA_FQ_FLOW_PLIMIT: u16 = 2;
const TCA_FQ_BUCKETS_LOG: u16 = 8;
const TCA_FQ_ORPHAN_MASK: u16 = 10;
const TCA_FQ_CE_THRESHOLD: u16 = 12;

/// Encodes [`Queue::Fq`].
///
/// # Errors
/// A number of buckets that is no power of two.
pub fn encode(queue: &Queue) -> Result<Qdisc, BadQueue> {
    let mut message = Message::attributes();
    if let Queue::Fq { limit, flow_limit, buckets, ce_threshold, orphan_mask } = queue {
        if let Some(buckets) = buckets {
            message = message.attr_u32(TCA_FQ_BUCKETS_LOG, buckets_log(*buckets)?);
        }
        let attributes = [
            (TCA_FQ_PLIMIT, limit.map(Packets::get)),
            (TCA_FQ_FLOW_PLIMIT, flow_limit.map(Packets::get)),
            (TCA_FQ_ORPHAN_MASK, *orphan_mask),
            (TCA_FQ_CE_THRESHOLD, ce_threshold.map(micros)),
        ];
        message = super::with_some(message, &attributes);
    }
    Ok(Qdisc { kind: "fq", options: message.into_attributes() })
}

/// The number of buckets as a power of two.
pub(crate) fn buckets_log(buckets: u32) -> Result<u32, BadQueue> {
    if buckets.is_power_of_two() {
        return Ok(buckets.ilog2());
    }
    Err(BadQueue {
        what: format!("fq cannot have {buckets} buckets"),
        way_out: "write a power of two".to_owned(),
    })
}
