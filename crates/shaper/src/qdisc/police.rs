//! The action `police` of a filter on HTB. It drops arriving packets above a rate, in front of netem and the queue.

use ccbench_proto::plan::Policer;

use super::{TCA_KIND, TCA_OPTIONS, TcMessage, burst_ticks, rate64, ratespec, size, word};
use crate::netlink::message::{Attr, NESTED, attrs};
use crate::netlink::{CREATE, Message, filter_info};

const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TC_U32_TERMINAL: u8 = 1;
const ETH_P_ALL: u16 = 3;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_ACT_STATS: u16 = 4;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_POLICE_TBF: u16 = 1;
const TCA_POLICE_RATE: u16 = 2;
const TCA_POLICE_RATE64: u16 = 8;
const TC_ACT_SHOT: u32 = 2;
const PARMS_BYTES: usize = 56;
/// A table of times per packet size, which the kernel requires but does not read for Ethernet.
const RATE_TABLE: [u8; 1024] = [0; 1024];

/// A policer of all packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Police {
    /// Its rate and its bucket.
    pub policer: Policer,
    /// Added to the size of every packet, which is that of the Ethernet frame.
    pub overhead_bytes: u16,
}

impl Police {
    /// Returns `struct tc_police`.
    fn parms(&self) -> [u8; PARMS_BYTES] {
        let Policer { rate, burst } = self.policer;
        let mut parms = [0; PARMS_BYTES];
        parms[4..8].copy_from_slice(&TC_ACT_SHOT.to_ne_bytes());
        parms[12..16].copy_from_slice(&burst_ticks(rate, size(burst)).to_ne_bytes());
        // The largest packet. Without this field, the kernel drops packets above 2040 bytes.
        parms[16..20].copy_from_slice(&u32::MAX.to_ne_bytes());
        parms[20..32].copy_from_slice(&ratespec(rate, self.overhead_bytes));
        parms
    }

    /// Returns the request that adds this policer to the qdisc `parent`. Packets that conform go on to `class`.
    pub fn add(&self, ifindex: u32, parent: u32, class: u32) -> Vec<u8> {
        // One key with an empty mask: every packet matches.
        let mut selector = [0; 32];
        selector[0] = TC_U32_TERMINAL;
        selector[2] = 1;
        let parameters = |message: Message| {
            let message =
                message.attr(TCA_POLICE_TBF, &self.parms()).attr(TCA_POLICE_RATE, &RATE_TABLE);
            match rate64(self.policer.rate) {
                Some(rate) => message.attr_u64(TCA_POLICE_RATE64, rate),
                None => message,
            }
        };
        Message::new(libc::RTM_NEWTFILTER, CREATE)
            .tcmsg(ifindex, 0, parent, filter_info(1, ETH_P_ALL))
            .attr_str(TCA_KIND, "u32")
            .nested(TCA_OPTIONS, |m| {
                m.attr_u32(TCA_U32_CLASSID, class)
                    .nested(TCA_U32_ACT, |m| {
                        m.nested(1, |m| {
                            m.attr_str(TCA_ACT_KIND, "police")
                                .nested(TCA_ACT_OPTIONS | NESTED, parameters)
                        })
                    })
                    .attr(TCA_U32_SEL, &selector)
            })
            .finish()
    }
}

/// Returns the number of packets that the actions of a listed filter have dropped; `None`: it has no actions.
pub(crate) fn dropped_pkts(filter: &TcMessage<'_>) -> Option<u64> {
    let actions = attrs(filter.options()?).find_kind(TCA_U32_ACT)?;
    let dropped = |action: Attr<'_>| {
        let stats = action.attrs().find_kind(TCA_ACT_STATS)?;
        // `struct gnet_stats_queue`.
        attrs(stats).find_kind(TCA_STATS_QUEUE).and_then(|queue| word(queue, 8))
    };
    attrs(actions).filter_map(dropped).reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use ccbench_proto::units::{Bytes, Rate};

    use super::*;
    use crate::netlink::message::{HEADER_BYTES, messages};

    const POLICER: Policer =
        Policer { rate: Rate::from_bits_per_sec(10_000_000), burst: Bytes::new(100_000) };

    #[test]
    fn rate_above_32_bits_has_an_attribute_of_its_own() {
        let police = |rate| {
            let policer = Policer { rate: Rate::from_bits_per_sec(rate), ..POLICER };
            Police { policer, overhead_bytes: 0 }.add(3, 0x1_0000, 0x1_0001).len()
        };
        assert_eq!(police(80_000_000_000), police(10_000_000) + 12);
    }

    #[test]
    fn counts_what_its_actions_dropped() {
        let added = Police { policer: POLICER, overhead_bytes: 0 }.add(3, 0x1_0000, 0x1_0001);
        let (_, _, body) = messages(&added).next().unwrap();
        assert_eq!(dropped_pkts(&TcMessage::parse(body).unwrap()), None, "no statistics yet");
        let queue: Vec<u8> = [0_u32, 0, 42, 0, 43].into_iter().flat_map(u32::to_ne_bytes).collect();
        let action = |m: Message| {
            m.attr_str(TCA_ACT_KIND, "police")
                .nested(TCA_ACT_STATS, |m| m.attr(TCA_STATS_QUEUE, &queue))
        };
        let listed = Message::new(libc::RTM_NEWTFILTER, 0)
            .tcmsg(3, 0x8000_0800, 0x1_0000, 0)
            .attr_str(TCA_KIND, "u32")
            .nested(TCA_OPTIONS, |m| {
                m.nested(TCA_U32_ACT, |m| m.nested(1, action).nested(2, action))
            })
            .finish();
        let listed = TcMessage::parse(&listed[HEADER_BYTES..]).unwrap();
        assert_eq!((listed.ifindex, dropped_pkts(&listed)), (3, Some(84)));
    }
}
