//! Common applications kept enhanced, without its own shaper: the rate stays with the link's.

use ccbench_proto::plan::Queue;

use super::{BadQueue, Qdisc, micros, size};
use crate::netlink::Message;

const TCA_CAKE_RTT: u16 = 7;
const TCA_CAKE_TARGET: u16 = 8;
const TCA_CAKE_MEMORY: u16 = 10;
/// `tc` derives the target from the round-trip time like this.
const TARGETS_PER_RTT: u32 = 20;

/// Encodes [`Queue::Cake`].
///
/// # Errors
/// None today.
pub fn encode(queue: &Queue) -> Result<Qdisc, BadQueue> {
    let mut message = Message::attributes();
    if let Queue::Cake { rtt, memory_limit } = queue {
        let attributes = [
            (TCA_CAKE_RTT, rtt.map(micros)),
            (TCA_CAKE_TARGET, rtt.map(|rtt| (micros(rtt) / TARGETS_PER_RTT).max(1))),
            (TCA_CAKE_MEMORY, memory_limit.map(size)),
        ];
        message = super::with_some(message, &attributes);
    }
    Ok(Qdisc { kind: "cake", options: message.into_attributes() })
}
