//! The options and statistics of `sch_fq`.

use ccbench_proto::plan::Fq;
use ccbench_proto::units::Packets;
use ccbench_proto::wire::QdiscSample;

use crate::discipline::Discipline;
use crate::netlink::Message;
use crate::netlink::message::u64_at;
use crate::qdisc::{BadQueue, Qdisc, micros, with_some, word};

const TCA_FQ_PLIMIT: u16 = 1;
const TCA_FQ_FLOW_PLIMIT: u16 = 2;
const TCA_FQ_BUCKETS_LOG: u16 = 8;
const TCA_FQ_ORPHAN_MASK: u16 = 10;
const TCA_FQ_CE_THRESHOLD: u16 = 12;

/// The qdisc.
///
/// # Errors
/// A number of buckets that is no power of two.
pub(super) fn encode(queue: &Fq) -> Result<Qdisc, BadQueue> {
    let mut message = Message::attributes();
    let Fq { limit, flow_limit, buckets, ce_threshold, orphan_mask } = queue;
    // The kernel has two buckets or more, and they do not merge flows. A mask of 0 makes a single queue of all
    // packets that a node forwards.
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
    message = with_some(message, &attributes);
    Ok(Qdisc { kind: Fq::KIND, options: message.into_attributes() })
}

/// `struct tc_fq_qd_stats`.
pub(super) fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
    row.throttled = u64_at(xstats, 24);
    row.flows = word(xstats, 64);
    row.ce_mark_pkts = u64_at(xstats, 80);
}

/// The logarithm of the number of buckets.
pub(super) fn buckets_log(buckets: u32) -> Result<u32, BadQueue> {
    if buckets.is_power_of_two() {
        return Ok(buckets.ilog2());
    }
    Err(BadQueue {
        what: format!("fq cannot have {buckets} buckets"),
        hint: "write a power of two".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::attrs;

    #[test]
    fn one_bucket_sets_an_empty_orphan_mask() {
        let fq = |buckets| Fq { buckets: Some(buckets), orphan_mask: Some(1023), ..Fq::default() };
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
