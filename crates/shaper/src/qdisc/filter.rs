//! `u32` filters that select the packets of a class by IPv4 and IPv6 header fields.

use std::net::IpAddr;

use ccbench_proto::resolve::PacketMatch;

use super::{TCA_KIND, TCA_OPTIONS};
use crate::netlink::{CREATE, Message};

const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
const TC_U32_TERMINAL: u8 = 1;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
/// IPv4 and IPv6 filters cannot share a priority.
const PRIO_IP: u16 = 1;
const PRIO_IPV6: u16 = 2;
const PROTOCOLS: [u8; 2] = [libc::IPPROTO_TCP as u8, libc::IPPROTO_UDP as u8];

/// One comparison: the 32-bit word at this offset of the IP header, under this mask, must have this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    mask: u32,
    value: u32,
    offset: u32,
}

/// One filter: all keys must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    ethertype: u16,
    prio: u16,
    keys: Vec<Key>,
}

/// Returns the filters that together match `wanted`. They cover both IPv4 and IPv6 unless an address selects one, and ports take one filter
/// each for TCP and UDP. Later IPv4 fragments carry no ports, and IP options move them: such packets go to the default class.
pub fn filters(wanted: &PacketMatch) -> Vec<Filter> {
    let is_v4 = |address: &IpAddr| address.is_ipv4();
    let families: Vec<bool> = match (&wanted.src, &wanted.dst) {
        (Some(a), Some(b)) if is_v4(a) != is_v4(b) => vec![],
        (Some(address), _) | (_, Some(address)) => vec![is_v4(address)],
        (None, None) => vec![true, false],
    };
    let with_ports = wanted.sport.is_some() || wanted.dport.is_some();
    let mut all = Vec::new();
    for v4 in families {
        let protocols = if with_ports { PROTOCOLS.map(Some).to_vec() } else { vec![None] };
        for protocol in protocols {
            let mut filter = Filter {
                ethertype: if v4 { ETH_P_IP } else { ETH_P_IPV6 },
                prio: if v4 { PRIO_IP } else { PRIO_IPV6 },
                keys: Vec::new(),
            };
            filter.match_addresses(wanted);
            if v4 {
                filter.match_v4(wanted, protocol);
            } else {
                filter.match_v6(wanted, protocol);
            }
            if filter.keys.is_empty() {
                // No condition matches everything, so add one key that is always true.
                filter.keys.push(Key { mask: 0, value: 0, offset: 0 });
            }
            all.push(filter);
        }
    }
    all
}

impl Filter {
    /// Returns the request that adds this filter to the qdisc `parent`, leading to `class`.
    pub fn add(&self, ifindex: u32, parent: u32, class: u32) -> Vec<u8> {
        let info = crate::netlink::filter_info(self.prio, self.ethertype);
        let mut selector = vec![0; 16];
        selector[0] = TC_U32_TERMINAL;
        selector[2] = self.keys.len() as u8;
        for key in &self.keys {
            selector.extend(key.mask.to_be_bytes());
            selector.extend(key.value.to_be_bytes());
            selector.extend(key.offset.to_ne_bytes());
            selector.extend([0; 4]);
        }
        Message::new(libc::RTM_NEWTFILTER, CREATE)
            .tcmsg(ifindex, 0, parent, info)
            .attr_str(TCA_KIND, "u32")
            .nested(TCA_OPTIONS, |m| {
                m.attr_u32(TCA_U32_CLASSID, class).attr(TCA_U32_SEL, &selector)
            })
            .finish()
    }

    fn match_addresses(&mut self, wanted: &PacketMatch) {
        for (address, v4_at, v6_at) in [(wanted.src, 12, 8), (wanted.dst, 16, 24)] {
            match address {
                Some(IpAddr::V4(address)) => self.key(v4_at, u32::MAX, address.to_bits()),
                Some(IpAddr::V6(address)) => {
                    for (word, bits) in [96, 64, 32, 0].into_iter().enumerate() {
                        let value = (address.to_bits() >> bits) as u32;
                        self.key(v6_at + word as u32 * 4, u32::MAX, value);
                    }
                }
                None => {}
            }
        }
    }

    fn match_v4(&mut self, wanted: &PacketMatch, protocol: Option<u8>) {
        if let Some(dscp) = wanted.dscp {
            self.key(0, 0x00fc_0000, u32::from(dscp) << 18);
        }
        if let Some(ecn) = wanted.ecn {
            self.key(0, 0x0003_0000, u32::from(ecn) << 16);
        }
        if let Some(protocol) = protocol {
            // Require a header of five words, so that the ports are at the expected offset.
            self.key(0, 0x0f00_0000, 0x0500_0000);
            // Require a fragment offset of zero: later fragments have data where the ports would be.
            self.key(4, 0x0000_1fff, 0);
            self.key(8, 0x00ff_0000, u32::from(protocol) << 16);
            self.match_ports(wanted, 20);
        }
    }

    fn match_v6(&mut self, wanted: &PacketMatch, protocol: Option<u8>) {
        if let Some(dscp) = wanted.dscp {
            self.key(0, 0x0fc0_0000, u32::from(dscp) << 22);
        }
        if let Some(ecn) = wanted.ecn {
            self.key(0, 0x0030_0000, u32::from(ecn) << 20);
        }
        if let Some(protocol) = protocol {
            self.key(4, 0x0000_ff00, u32::from(protocol) << 8);
            self.match_ports(wanted, 40);
        }
    }

    fn match_ports(&mut self, wanted: &PacketMatch, offset: u32) {
        if let Some(port) = wanted.sport {
            self.key(offset, 0xffff_0000, u32::from(port) << 16);
        }
        if let Some(port) = wanted.dport {
            self.key(offset, 0x0000_ffff, u32::from(port));
        }
    }

    /// Adds a comparison. Merges it into the key of the same word if there is one.
    fn key(&mut self, offset: u32, mask: u32, value: u32) {
        match self.keys.iter_mut().find(|key| key.offset == offset) {
            Some(key) => {
                key.mask |= mask;
                key.value |= value;
            }
            None => self.keys.push(Key { mask, value, offset }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_without_addresses_need_four_filters() {
        let wanted = PacketMatch { dport: Some(5201), ..PacketMatch::default() };
        let all = filters(&wanted);
        assert_eq!(all.len(), 4);
        assert_eq!(all.iter().filter(|f| f.ethertype == ETH_P_IP).count(), 2);
        assert!(all.iter().all(|f| f.keys.iter().any(|k| k.value == 5201)));
    }

    #[test]
    fn ports_match_no_later_fragment() {
        let wanted = PacketMatch { sport: Some(5201), ..PacketMatch::default() };
        let unfragmented = Key { mask: 0x1fff, value: 0, offset: 4 };
        for filter in filters(&wanted).iter().filter(|filter| filter.ethertype == ETH_P_IP) {
            assert!(filter.keys.contains(&unfragmented), "{filter:?}");
        }
        // The offset is in the last 13 bits of the header's second word, in network order.
        let added = filters(&wanted)[0].add(3, 0x1_0000, 0x1_0011);
        let key = [[0, 0, 0x1f, 0xff], [0; 4], 4_u32.to_ne_bytes()].concat();
        assert!(added.windows(12).any(|bytes| bytes == key), "{added:02x?}");
        // Without ports, fragments match.
        let by_address = PacketMatch { src: "10.0.0.1".parse().ok(), ..PacketMatch::default() };
        assert!(!filters(&by_address)[0].keys.contains(&unfragmented));
    }

    #[test]
    fn empty_match_selects_all() {
        let all = filters(&PacketMatch::default());
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].keys, [Key { mask: 0, value: 0, offset: 0 }]);
    }

    #[test]
    fn mixed_families_match_nothing() {
        let wanted = PacketMatch {
            src: Some("10.0.0.1".parse().unwrap()),
            dst: Some("fd00::1".parse().unwrap()),
            ..PacketMatch::default()
        };
        assert_eq!(filters(&wanted), []);
    }
}
