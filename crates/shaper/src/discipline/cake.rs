//! CAKE without its own shaper (bandwidth `unlimited`, the default), because the link has a shaper. Kernel backend only.

use ccbench_proto::plan::Cake;
use ccbench_proto::units::Rate;
use ccbench_proto::wire::QdiscSample;

use super::{Discipline, KernelSupport, QueueParams};
use crate::netlink::Message;
use crate::netlink::message::attrs;
use crate::qdisc::{BadQueue, Qdisc, limit_bytes, micros, with_some, word};

const TCA_CAKE_RTT: u16 = 7;
const TCA_CAKE_TARGET: u16 = 8;
const TCA_CAKE_MEMORY: u16 = 10;
const TCA_CAKE_ACK_FILTER: u16 = 16;
const CAKE_ACK_AGGRESSIVE: u32 = 2;
const TCA_CAKE_STATS_MEMORY_USED: u16 = 4;
const TCA_CAKE_STATS_TIN_STATS: u16 = 10;
const TCA_CAKE_TIN_STATS_ACKS_DROPPED_PACKETS: u16 = 6;
const TCA_CAKE_TIN_STATS_ECN_MARKED_PACKETS: u16 = 8;
/// `tc` sets the target to the round-trip time divided by this.
const TARGETS_PER_RTT: u32 = 20;

/// Makes the qdisc of a [`Cake`] also drop superseded acknowledgements (`ack-filter-aggressive`).
pub fn with_ack_filter(mut cake: Qdisc) -> Qdisc {
    let options = Message::attributes().raw(&cake.options);
    cake.options = options.attr_u32(TCA_CAKE_ACK_FILTER, CAKE_ACK_AGGRESSIVE).into_attributes();
    cake
}

impl Discipline for Cake {
    const KIND: &'static str = "cake";
    const KERNEL: KernelSupport = KernelSupport::Config("NET_SCH_CAKE");

    fn qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        let Self { rtt, memory_limit } = self;
        let attributes = [
            (TCA_CAKE_RTT, rtt.map(micros)),
            (TCA_CAKE_TARGET, rtt.map(|rtt| (micros(rtt) / TARGETS_PER_RTT).max(1))),
            (TCA_CAKE_MEMORY, memory_limit.map(limit_bytes).transpose()?),
        ];
        let message = with_some(Message::attributes(), &attributes);
        Ok(Qdisc { kind: Self::KIND, options: message.into_attributes() })
    }

    fn params(&self, _rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        Err(BadQueue::new(
            "queue cake",
            "use backend = \"kernel\" on a kernel that has it, or a queue of kind fq_codel",
        ))
    }

    /// `TCA_CAKE_STATS_*`: the qdisc's memory, and the marks and filtered acknowledgements summed over all tins.
    fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
        row.memory_used_bytes =
            attrs(xstats).find_kind(TCA_CAKE_STATS_MEMORY_USED).and_then(|v| word(v, 0));
        let tins = attrs(xstats).find_kind(TCA_CAKE_STATS_TIN_STATS).unwrap_or(&[]);
        let sum = |counter| -> u64 {
            attrs(tins).filter_map(|tin| word(tin.attrs().find_kind(counter)?, 0)).sum()
        };
        row.ecn_mark_pkts = Some(sum(TCA_CAKE_TIN_STATS_ECN_MARKED_PACKETS));
        row.drop_ack_filter_pkts = Some(sum(TCA_CAKE_TIN_STATS_ACKS_DROPPED_PACKETS));
    }
}
