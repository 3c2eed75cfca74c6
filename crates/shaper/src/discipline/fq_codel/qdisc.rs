//! The options and statistics of `sch_fq_codel`.

use ccbench_proto::plan::FqCodel;
use ccbench_proto::wire::QdiscSample;

use crate::discipline::Discipline;
use crate::netlink::Message;
use crate::qdisc::{BadQueue, Qdisc, limit_bytes, limit_packets, micros, size, with_some, word};

const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_LIMIT: u16 = 2;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;
const TCA_FQ_CODEL_ECN: u16 = 4;
const TCA_FQ_CODEL_FLOWS: u16 = 5;
const TCA_FQ_CODEL_QUANTUM: u16 = 6;
const TCA_FQ_CODEL_CE_THRESHOLD: u16 = 7;
const TCA_FQ_CODEL_DROP_BATCH_SIZE: u16 = 8;
const TCA_FQ_CODEL_MEMORY_LIMIT: u16 = 9;
const TCA_FQ_CODEL_CE_THRESHOLD_SELECTOR: u16 = 10;
const TCA_FQ_CODEL_CE_THRESHOLD_MASK: u16 = 11;

/// Returns the qdisc.
///
/// # Errors
/// Fails for a limit that is neither packets nor bytes.
pub(super) fn encode(queue: &FqCodel) -> Result<Qdisc, BadQueue> {
    let FqCodel {
        limit,
        flows,
        target,
        interval,
        quantum,
        ecn,
        ce_threshold,
        memory_limit,
        ce_threshold_selector,
        ce_threshold_mask,
        drop_batch,
    } = queue;
    let attributes = [
        (TCA_FQ_CODEL_LIMIT, limit.map(limit_packets).transpose()?),
        (TCA_FQ_CODEL_FLOWS, *flows),
        (TCA_FQ_CODEL_QUANTUM, quantum.map(size)),
        (TCA_FQ_CODEL_INTERVAL, interval.map(micros)),
        (TCA_FQ_CODEL_TARGET, target.map(micros)),
        (TCA_FQ_CODEL_ECN, ecn.map(u32::from)),
        (TCA_FQ_CODEL_CE_THRESHOLD, ce_threshold.map(micros)),
        (TCA_FQ_CODEL_MEMORY_LIMIT, memory_limit.map(limit_bytes).transpose()?),
        (TCA_FQ_CODEL_DROP_BATCH_SIZE, *drop_batch),
    ];
    let mut message = with_some(Message::attributes(), &attributes);
    if let Some(mask) = *ce_threshold_mask {
        let selector = ce_threshold_selector.unwrap_or(0);
        message = message
            .attr_u8(TCA_FQ_CODEL_CE_THRESHOLD_SELECTOR, selector)
            .attr_u8(TCA_FQ_CODEL_CE_THRESHOLD_MASK, mask);
    }
    Ok(Qdisc { kind: FqCodel::KIND, options: message.into_attributes() })
}

/// `struct tc_fq_codel_xstats`, whose first word is 0 for the qdisc and 1 for a class.
pub(super) fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
    if word(xstats, 0) != Some(0) {
        return;
    }
    // `drop_overlimit` includes `drop_overmemory`.
    let overmemory = word(xstats, 36).unwrap_or(0);
    row.drop_overlimit_pkts = word(xstats, 8).map(|drops| drops.saturating_sub(overmemory));
    row.ecn_mark_pkts = word(xstats, 12);
    row.flows = word(xstats, 20).zip(word(xstats, 24)).map(|(new, old)| new + old);
    row.ce_mark_pkts = word(xstats, 28);
    row.memory_used_bytes = word(xstats, 32);
    row.drop_overmemory_pkts = word(xstats, 36);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::attrs;

    #[test]
    fn selector_mask_and_batch_have_their_attributes() {
        let queue = FqCodel {
            ce_threshold_selector: Some(1),
            ce_threshold_mask: Some(3),
            drop_batch: Some(8),
            ..FqCodel::default()
        };
        let options = encode(&queue).unwrap().options;
        let sent: Vec<(u16, Vec<u8>)> =
            attrs(&options).map(|a| (a.kind, a.value.to_vec())).collect();
        let batch = 8_u32.to_ne_bytes().to_vec();
        assert_eq!(sent, [(8, batch), (10, vec![1]), (11, vec![3])]);
    }
}
