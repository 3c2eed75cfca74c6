//! CAKE without its own shaper (bandwidth `unlimited`, the default), because the link has one. Kernel backend only.

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
const TCA_CAKE_STATS_MEMORY_USED: u16 = 4;
const TCA_CAKE_STATS_TIN_STATS: u16 = 10;
const TCA_CAKE_TIN_STATS_ECN_MARKED_PACKETS: u16 = 8;
/// `tc` sets the target to this part of the round-trip time.
const TARGETS_PER_RTT: u32 = 20;

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

    /// `TCA_CAKE_STATS_*`: the qdisc's memory, and the marks of all tins.
    fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
        row.memory_used_bytes =
            attrs(xstats).find_kind(TCA_CAKE_STATS_MEMORY_USED).and_then(|v| word(v, 0));
        let tins = attrs(xstats).find_kind(TCA_CAKE_STATS_TIN_STATS).unwrap_or(&[]);
        let marks = attrs(tins).filter_map(|tin| {
            tin.attrs().find_kind(TCA_CAKE_TIN_STATS_ECN_MARKED_PACKETS).and_then(|v| word(v, 0))
        });
        row.ecn_mark_pkts = Some(marks.sum());
    }
}
