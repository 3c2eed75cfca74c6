//! The options and statistics of `sch_fq_codel`.

use ccbench_proto::plan::FqCodel;
use ccbench_proto::units::Packets;
use ccbench_proto::wire::QdiscSample;

use crate::discipline::Discipline;
use crate::netlink::Message;
use crate::qdisc::{Qdisc, micros, size, with_some, word};

const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_LIMIT: u16 = 2;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;
const TCA_FQ_CODEL_ECN: u16 = 4;
const TCA_FQ_CODEL_FLOWS: u16 = 5;
const TCA_FQ_CODEL_QUANTUM: u16 = 6;
const TCA_FQ_CODEL_CE_THRESHOLD: u16 = 7;
const TCA_FQ_CODEL_MEMORY_LIMIT: u16 = 9;

/// The qdisc.
pub(super) fn encode(queue: &FqCodel) -> Qdisc {
    let FqCodel { limit, flows, target, interval, quantum, ecn, ce_threshold, memory_limit } =
        queue;
    let attributes = [
        (TCA_FQ_CODEL_LIMIT, limit.map(Packets::get)),
        (TCA_FQ_CODEL_FLOWS, *flows),
        (TCA_FQ_CODEL_QUANTUM, quantum.map(size)),
        (TCA_FQ_CODEL_INTERVAL, interval.map(micros)),
        (TCA_FQ_CODEL_TARGET, target.map(micros)),
        (TCA_FQ_CODEL_ECN, ecn.map(u32::from)),
        (TCA_FQ_CODEL_CE_THRESHOLD, ce_threshold.map(micros)),
        (TCA_FQ_CODEL_MEMORY_LIMIT, memory_limit.map(size)),
    ];
    let message = with_some(Message::attributes(), &attributes);
    Qdisc { kind: FqCodel::KIND, options: message.into_attributes() }
}

/// `struct tc_fq_codel_xstats`, whose first word is 0 for the qdisc and 1 for a class.
pub(super) fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
    if word(xstats, 0) != Some(0) {
        return;
    }
    row.drop_overlimit_pkts = word(xstats, 8);
    row.ecn_mark_pkts = word(xstats, 12);
    row.flows = word(xstats, 20).zip(word(xstats, 24)).map(|(new, old)| new + old);
    row.ce_mark_pkts = word(xstats, 28);
    row.memory_used_bytes = word(xstats, 32);
    row.drop_overmemory_pkts = word(xstats, 36);
}
