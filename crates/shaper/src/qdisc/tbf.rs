//! Token bucket filter.

use ccbench_proto::units::Rate;

use super::{Qdisc, burst_ticks, ratespec};
use crate::netlink::Message;

const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;

/// A token bucket. `limit` is in the unit of the queue below it (bytes for bfifo, packets for pfifo),
/// because the kernel sets that queue's limit whenever the token bucket changes.
pub fn encode(rate: Rate, burst_bytes: u32, limit: u32) -> Qdisc {
    options(rate, burst_bytes, limit, super::wide_rate(rate))
}

/// Like [`encode`], but of a size that does not depend on the rate, so that a message can be patched.
pub fn encode_wide(rate: Rate, burst_bytes: u32, limit: u32) -> Qdisc {
    options(rate, burst_bytes, limit, Some(rate.bytes_per_sec()))
}

fn options(rate: Rate, burst_bytes: u32, limit: u32, rate64: Option<u64>) -> Qdisc {
    let mut parms = [0; 36];
    parms[..12].copy_from_slice(&ratespec(rate));
    parms[24..28].copy_from_slice(&limit.to_ne_bytes());
    parms[28..32].copy_from_slice(&burst_ticks(rate, burst_bytes).to_ne_bytes());
    let mut message =
        Message::attributes().attr(TCA_TBF_PARMS, &parms).attr_u32(TCA_TBF_BURST, burst_bytes);
    if let Some(rate) = rate64 {
        message = message.attr_u64(TCA_TBF_RATE64, rate);
    }
    Qdisc { kind: "tbf", options: message.into_attributes() }
}
