//! CoDel per flow.

use ccbench_proto::plan::Queue;
use ccbench_proto::units::Packets;

use super::{BadQueue, Qdisc, micros, size};
use crate::netlink::Message;

const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_LIMIT: u16 = 2;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;
const TCA_FQ_CODEL_ECN: u16 = 4;
const TCA_FQ_CODEL_FLOWS: u16 = 5;
const TCA_FQ_CODEL_QUANTUM: u16 = 6;
const TCA_FQ_CODEL_CE_THRESHOLD: u16 = 7;
const TCA_FQ_CODEL_MEMORY_LIMIT: u16 = 9;

/// Encodes [`Queue::FqCodel`].
///
/// # Errors
/// None today.
pub fn encode(queue: &Queue) -> Result<Qdisc, BadQueue> {
    let mut message = Message::attributes();
    if let Queue::FqCodel {
        limit,
        flows,
        target,
        interval,
        quantum,
        ecn,
        ce_threshold,
        memory_limit,
    } = queue
    {
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
        message = super::with_some(message, &attributes);
    }
    Ok(Qdisc { kind: "fq_codel", options: message.into_attributes() })
}
