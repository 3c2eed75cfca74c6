//! Answers of rtnetlink and ethtool.

use ccbench_shaper::netlink::message::{Message, NESTED};

const NLM_F_MULTI: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
/// A number that the kernel assigns.
const ETHTOOL_FAMILY: u16 = 0x15;
const GENL_ID_CTRL: u16 = 0x10;

/// Returns the inputs with their names.
pub(super) fn inputs() -> Vec<(&'static str, Vec<u8>)> {
    let all =
        [link(2, "eth0", "", None), link(3, "br0", "bridge", None), link(4, "v", "vlan", Some(2))];
    vec![
        ("links", all.concat()),
        ("addresses", [address(&[10, 0, 0, 1]), address(&[0xfd; 16])].concat()),
        ("route", Message::new(RTM_NEWROUTE, 0).raw(&[0; 12]).attr_u32(4, 2).finish()),
        ("features", features()),
        ("family", family()),
    ]
}

/// Returns an interface on top of `lower`. The others are ports of interface 3.
fn link(index: u32, name: &str, kind: &str, lower: Option<u32>) -> Vec<u8> {
    let message = Message::new(RTM_NEWLINK, NLM_F_MULTI)
        .ifinfo_flags(index, 1, 0)
        .attr_str(3, name)
        .attr_u32(4, 1500)
        .attr_str(6, "fq_codel")
        .attr_u32(40, 65_535)
        .nested(18, |m| m.attr_str(1, kind));
    match lower {
        Some(lower) => message.attr_u32(5, lower).finish(),
        None => message.attr_u32(10, 3).finish(),
    }
}

fn address(octets: &[u8]) -> Vec<u8> {
    Message::new(RTM_NEWADDR, NLM_F_MULTI)
        .raw(&[2, 24, 0, 0])
        .raw(&2_u32.to_ne_bytes())
        .attr(1, octets)
        .attr(2, octets)
        .finish()
}

fn features() -> Vec<u8> {
    let bit = |m: Message, name: &str| {
        m.nested(1 | NESTED, |m| m.attr_u32(1, 7).attr_str(2, name).attr(3, &[]))
    };
    let bits = |m: Message| bit(bit(m, "rx-gro"), "tx-tcp-segmentation");
    // The hardware's features with a mask, and the active ones without.
    let masked = |m: Message| m.attr_u32(2, 60).nested(3 | NESTED, bits);
    Message::new(ETHTOOL_FAMILY, 0)
        .raw(&[11, 1, 0, 0])
        .nested(2 | NESTED, masked)
        .nested(3 | NESTED, masked)
        .nested(4 | NESTED, |m| m.attr(1, &[]).nested(3 | NESTED, bits))
        .finish()
}

fn family() -> Vec<u8> {
    Message::new(GENL_ID_CTRL, 0)
        .raw(&[1, 2, 0, 0])
        .attr_str(2, "ethtool")
        .attr_u16(1, ETHTOOL_FAMILY)
        .finish()
}
