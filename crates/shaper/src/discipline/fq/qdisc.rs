//! The options and statistics of `sch_fq`.

use ccbench_proto::plan::Fq;
use ccbench_proto::units::Rate;
use ccbench_proto::wire::QdiscSample;

use crate::discipline::Discipline;
use crate::netlink::Message;
use crate::netlink::message::u64_at;
use crate::qdisc::{BadQueue, Qdisc, limit_packets, micros, size, with_some, word};

const TCA_FQ_PLIMIT: u16 = 1;
const TCA_FQ_FLOW_PLIMIT: u16 = 2;
const TCA_FQ_QUANTUM: u16 = 3;
const TCA_FQ_INITIAL_QUANTUM: u16 = 4;
const TCA_FQ_FLOW_MAX_RATE: u16 = 7;
const TCA_FQ_BUCKETS_LOG: u16 = 8;
const TCA_FQ_ORPHAN_MASK: u16 = 10;
const TCA_FQ_CE_THRESHOLD: u16 = 12;

/// Returns the qdisc.
///
/// # Errors
/// Fails for a number of buckets that is not a power of two, or a limit that is neither packets nor bytes.
pub(super) fn encode(queue: &Fq) -> Result<Qdisc, BadQueue> {
    let mut message = Message::attributes();
    let Fq {
        limit,
        flow_limit,
        buckets,
        ce_threshold,
        orphan_mask,
        quantum,
        initial_quantum,
        maxrate,
    } = queue;
    // The kernel has at least two buckets, and buckets do not merge flows. A mask of 0 puts all packets that a node forwards into a single
    // queue.
    let log = buckets.map(buckets_log).transpose()?;
    let mask = if log == Some(0) { Some(0) } else { *orphan_mask };
    if let Some(log) = log.filter(|log| *log > 0) {
        message = message.attr_u32(TCA_FQ_BUCKETS_LOG, log);
    }
    let attributes = [
        (TCA_FQ_PLIMIT, limit.map(limit_packets).transpose()?),
        (TCA_FQ_FLOW_PLIMIT, flow_limit.map(limit_packets).transpose()?),
        (TCA_FQ_ORPHAN_MASK, mask),
        (TCA_FQ_CE_THRESHOLD, ce_threshold.map(micros)),
        (TCA_FQ_QUANTUM, quantum.map(size)),
        (TCA_FQ_INITIAL_QUANTUM, initial_quantum.map(size)),
        (TCA_FQ_FLOW_MAX_RATE, maxrate.map(bytes_per_sec)),
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

/// Returns a rate as the kernel's 32-bit attribute, whose largest value means unlimited.
fn bytes_per_sec(rate: Rate) -> u32 {
    u32::try_from(rate.bytes_per_sec()).unwrap_or(u32::MAX).min(u32::MAX - 1)
}

/// Returns the binary logarithm of the number of buckets.
pub(super) fn buckets_log(buckets: u32) -> Result<u32, BadQueue> {
    if buckets.is_power_of_two() {
        return Ok(buckets.ilog2());
    }
    Err(BadQueue {
        problem: format!("fq with buckets = {buckets}"),
        hint: "write a power of two".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use ccbench_proto::units::Bytes;

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

    #[test]
    fn quanta_and_rate_have_their_attributes() {
        let queue = Fq {
            quantum: Some(Bytes::new(3028)),
            initial_quantum: Some(Bytes::new(15_140)),
            maxrate: Some(Rate::from_bits_per_sec(8_000_000)),
            ..Fq::default()
        };
        let options = encode(&queue).unwrap().options;
        let sent: Vec<(u16, Vec<u8>)> =
            attrs(&options).map(|a| (a.kind, a.value.to_vec())).collect();
        let number = |n: u32| n.to_ne_bytes().to_vec();
        assert_eq!(sent, [(3, number(3028)), (4, number(15_140)), (7, number(1_000_000))]);
        assert_eq!(bytes_per_sec(Rate::from_bits_per_sec(u64::MAX)), u32::MAX - 1);
    }
}
