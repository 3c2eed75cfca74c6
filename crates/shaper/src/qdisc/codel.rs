//! Controlled delay.

use ccbench_proto::plan::Queue;
use ccbench_proto::units::Packets;

use super::{BadQueue, Qdisc, micros};
use crate::netlink::Message;

const TCA_CODEL_TARGET: u16 = 1;
const TCA_CODEL_LIMIT: u16 = 2;
const TCA_CODEL_INTERVAL: u16 = 3;
const TCA_CODEL_ECN: u16 = 4;
const TCA_CODEL_CE_THRESHOLD: u16 = 5;

/// Encodes [`Queue::Codel`].
///
/// # Errors
/// None today.
pub fn encode(queue: &Queue) -> Result<Qdisc, BadQueue> {
    let mut message = Message::attributes();
    if let Queue::Codel { limit, target, interval, ecn, ce_threshold } = queue {
        let attributes = [
            (TCA_CODEL_LIMIT, limit.map(Packets::get)),
            (TCA_CODEL_INTERVAL, interval.map(micros)),
            (TCA_CODEL_TARGET, target.map(micros)),
            (TCA_CODEL_ECN, ecn.map(u32::from)),
            (TCA_CODEL_CE_THRESHOLD, ce_threshold.map(micros)),
        ];
        message = super::with_some(message, &attributes);
    }
    Ok(Qdisc { kind: "codel", options: message.into_attributes() })
}
