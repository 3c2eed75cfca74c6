//! The options and statistics of `sch_codel`.

use ccbench_proto::plan::Codel;
use ccbench_proto::wire::QdiscSample;

use crate::discipline::Discipline;
use crate::netlink::Message;
use crate::qdisc::{BadQueue, Qdisc, limit_packets, micros, with_some, word};

const TCA_CODEL_TARGET: u16 = 1;
const TCA_CODEL_LIMIT: u16 = 2;
const TCA_CODEL_INTERVAL: u16 = 3;
const TCA_CODEL_ECN: u16 = 4;
const TCA_CODEL_CE_THRESHOLD: u16 = 5;

/// Returns the qdisc.
///
/// # Errors
/// Fails for a limit that is neither packets nor bytes.
pub(super) fn encode(queue: &Codel) -> Result<Qdisc, BadQueue> {
    let Codel { limit, target, interval, ecn, ce_threshold } = queue;
    let attributes = [
        (TCA_CODEL_LIMIT, limit.map(limit_packets).transpose()?),
        (TCA_CODEL_INTERVAL, interval.map(micros)),
        (TCA_CODEL_TARGET, target.map(micros)),
        (TCA_CODEL_ECN, ecn.map(u32::from)),
        (TCA_CODEL_CE_THRESHOLD, ce_threshold.map(micros)),
    ];
    let message = with_some(Message::attributes(), &attributes);
    Ok(Qdisc { kind: Codel::KIND, options: message.into_attributes() })
}

/// `struct tc_codel_xstats`.
pub(super) fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
    row.drop_overlimit_pkts = word(xstats, 20);
    row.ecn_mark_pkts = word(xstats, 24);
    row.ce_mark_pkts = word(xstats, 32);
}
