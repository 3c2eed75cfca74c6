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
        // The kernel's buckets are trees that flows lie in, two at least. What makes a single queue of all that a
        // node forwards is a mask without bits.
        let log = buckets.map(buckets_log).transpose()?;
        let mask = if log == Some(0) { Some(0) } else { *orphan_mask };
        if let Some(log) = log.filter(|log| *log > 0) {
            message = message.attr_u32(TCA_FQ_BUCKETS_LOG, log);
        }
        let attributes = [
            (TCA_FQ_PLIMIT, limit.map(Packets::get)),
            (TCA_FQ_FLOW_PLIMIT, flow_limit.map(Packets::get)),
            (TCA_FQ_ORPHAN_MASK, mask),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::attrs;

    #[test]
    fn one_bucket_is_a_mask_without_bits() {
        let fq = |buckets| Queue::Fq {
            limit: None,
            flow_limit: None,
            buckets: Some(buckets),
            ce_threshold: None,
            orphan_mask: Some(1023),
        };
        let sent = |buckets| {
            let options = encode(&fq(buckets)).unwrap().options;
            attrs(&options).map(|a| (a.kind, a.value.to_vec())).collect::<Vec<_>>()
        };
        let number = |n: u32| n.to_ne_bytes().to_vec();
        assert_eq!(sent(1), [(TCA_FQ_ORPHAN_MASK, number(0))]);
        let expected = [(TCA_FQ_BUCKETS_LOG, number(6)), (TCA_FQ_ORPHAN_MASK, number(1023))];
        assert_eq!(sent(64), expected);
        assert!(encode(&fq(3)).is_err());
    }
}
