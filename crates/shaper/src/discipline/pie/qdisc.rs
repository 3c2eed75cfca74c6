//! The options and statistics of `sch_pie`.

use ccbench_proto::plan::Pie;
use ccbench_proto::wire::QdiscSample;

use crate::discipline::Discipline;
use crate::netlink::Message;
use crate::netlink::message::u64_at;
use crate::qdisc::{BadQueue, Qdisc, limit_packets, micros, with_some, word};

const TCA_PIE_TARGET: u16 = 1;
const TCA_PIE_LIMIT: u16 = 2;
const TCA_PIE_TUPDATE: u16 = 3;
const TCA_PIE_ALPHA: u16 = 4;
const TCA_PIE_BETA: u16 = 5;
const TCA_PIE_ECN: u16 = 6;
const TCA_PIE_BYTEMODE: u16 = 7;

/// Returns the qdisc.
///
/// # Errors
/// Fails for a limit that is neither packets nor bytes.
pub(super) fn encode(queue: &Pie) -> Result<Qdisc, BadQueue> {
    let Pie { limit, target, tupdate, alpha, beta, ecn, bytemode } = queue;
    let attributes = [
        (TCA_PIE_LIMIT, limit.map(limit_packets).transpose()?),
        (TCA_PIE_TUPDATE, tupdate.map(micros)),
        (TCA_PIE_TARGET, target.map(micros)),
        (TCA_PIE_ALPHA, *alpha),
        (TCA_PIE_BETA, *beta),
        (TCA_PIE_ECN, ecn.map(u32::from)),
        (TCA_PIE_BYTEMODE, bytemode.map(u32::from)),
    ];
    let message = with_some(Message::attributes(), &attributes);
    Ok(Qdisc { kind: Pie::KIND, options: message.into_attributes() })
}

/// `struct tc_pie_xstats`.
pub(super) fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
    row.prob = u64_at(xstats, 0).map(|p| p as f64 / 2.0_f64.powi(64));
    row.delay_c_us = word(xstats, 8);
    row.drop_overlimit_pkts = word(xstats, 28);
    row.maxq_pkts = word(xstats, 32);
    row.ecn_mark_pkts = word(xstats, 36);
}
