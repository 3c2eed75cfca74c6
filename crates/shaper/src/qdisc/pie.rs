//! Proportional integral controller enhanced.

use ccbench_proto::plan::Queue;
use ccbench_proto::units::Packets;

use super::{BadQueue, Qdisc, micros, with_some};
use crate::netlink::Message;

const TCA_PIE_TARGET: u16 = 1;
const TCA_PIE_LIMIT: u16 = 2;
const TCA_PIE_TUPDATE: u16 = 3;
const TCA_PIE_ALPHA: u16 = 4;
const TCA_PIE_BETA: u16 = 5;
const TCA_PIE_ECN: u16 = 6;
const TCA_PIE_BYTEMODE: u16 = 7;

/// Encodes [`Queue::Pie`].
///
/// # Errors
/// None today.
pub fn encode(queue: &Queue) -> Result<Qdisc, BadQueue> {
    let mut message = Message::attributes();
    if let Queue::Pie { limit, target, tupdate, alpha, beta, ecn, bytemode } = queue {
        let attributes = [
            (TCA_PIE_LIMIT, limit.map(Packets::get)),
            (TCA_PIE_TUPDATE, tupdate.map(micros)),
            (TCA_PIE_TARGET, target.map(micros)),
            (TCA_PIE_ALPHA, *alpha),
            (TCA_PIE_BETA, *beta),
            (TCA_PIE_ECN, ecn.map(u32::from)),
            (TCA_PIE_BYTEMODE, bytemode.map(u32::from)),
        ];
        message = with_some(message, &attributes);
    }
    Ok(Qdisc { kind: "pie", options: message.into_attributes() })
}
