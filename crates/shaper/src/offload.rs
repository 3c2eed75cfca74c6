//! Segmentation and receive offloads of an interface, through the ethtool netlink family (Linux 5.6 and later).
//!
//! They are off on shaped paths. Otherwise a queue would hold, drop and mark super-packets of up to 64 kB, which do not exist at the
//! bottleneck of a real path.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ShaperError;
use crate::netlink::message::{Attrs, Message, NESTED, attrs, u16_at, u32_at};
use crate::netlink::{self, ACK, Socket};

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const GENL_HEADER_BYTES: usize = 4;
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_HEADER_FLAGS: u16 = 3;
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 2;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_HW: u16 = 2;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_FEATURES_NOCHANGE: u16 = 5;
const ETHTOOL_A_BITSET_NOMASK: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
const IFLA_GSO_MAX_SEGS: u16 = 40;
const IFINFO_BYTES: usize = 16;
/// TCP builds super-packets even with GSO off, and they are segmented only after the qdisc. This limit prevents TCP from building them.
const ONE_SEGMENT: u32 = 1;
/// Kernel default (`GSO_MAX_SEGS`).
const DEFAULT_SEGMENTS: u32 = 65_535;

/// The offloads of an interface, with the names of `ethtool -K`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Offloads {
    /// TCP segmentation offload.
    pub tso: bool,
    /// Generic segmentation offload.
    pub gso: bool,
    /// Generic receive offload.
    pub gro: bool,
}

impl Offloads {
    /// Everything off.
    pub const OFF: Self = Self { tso: false, gso: false, gro: false };
}

/// State of all features that [`set`] may change, for [`restore`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Features {
    /// The features that this device can change, by kernel name (`tx-tcp-segmentation` ...), with their state.
    pub wanted: BTreeMap<String, bool>,
    /// Maximum number of segments in one super-packet.
    pub gso_max_segs: u32,
}

/// Returns the active offloads of `dev`.
///
/// # Errors
/// The interface does not exist, or the kernel lacks ethtool's netlink family (`ETHTOOL_NETLINK`).
pub fn get(dev: &str) -> Result<Offloads, ShaperError> {
    let found = read(&mut Socket::open_generic()?, dev)?;
    let active = |name: &str| found.active.iter().any(|have| have == name);
    Ok(Offloads {
        tso: active("tx-tcp-segmentation"),
        gso: active("tx-generic-segmentation"),
        gro: active("rx-gro"),
    })
}

/// Sets the offloads of `dev` and returns the previous ones. Features that the device cannot change stay unchanged; [`get`] reads the
/// result.
///
/// # Errors
/// The kernel's answer.
pub fn set(dev: &str, want: Offloads) -> Result<Offloads, ShaperError> {
    let before = get(dev)?;
    let now = snapshot(dev)?;
    let wanted = now.wanted.keys().filter_map(|name| Some((name.clone(), desired(name, want)?)));
    let gso_max_segs = match (want.gso, now.gso_max_segs) {
        (false, _) => ONE_SEGMENT,
        (true, ONE_SEGMENT) => DEFAULT_SEGMENTS,
        (true, other) => other,
    };
    restore(dev, &Features { wanted: wanted.collect(), gso_max_segs })?;
    Ok(before)
}

/// Returns the state of all features of `dev` that [`set`] may change.
///
/// # Errors
/// As for [`get`].
pub fn snapshot(dev: &str) -> Result<Features, ShaperError> {
    let found = read(&mut Socket::open_generic()?, dev)?;
    let changeable = found.hardware.iter().filter(|&name| !found.fixed.contains(name));
    let ours = changeable.filter(|name| desired(name, Offloads::OFF).is_some());
    let wanted = ours.map(|name| (name.clone(), found.wanted.contains(name))).collect();
    Ok(Features { wanted, gso_max_segs: gso_max_segs(dev)? })
}

/// Restores the features of `dev`. Idempotent.
///
/// # Errors
/// The kernel's answer.
pub fn restore(dev: &str, features: &Features) -> Result<(), ShaperError> {
    let mut socket = Socket::open_generic()?;
    let family = family(&mut socket)?;
    let message = features_message(family, ETHTOOL_MSG_FEATURES_SET, dev, ETHTOOL_FLAG_OMIT_REPLY)
        .nested(ETHTOOL_A_FEATURES_WANTED | NESTED, |m| {
            m.nested(ETHTOOL_A_BITSET_BITS | NESTED, |mut m| {
                for (name, &on) in &features.wanted {
                    m = m.nested(ETHTOOL_A_BITSET_BITS_BIT | NESTED, |m| {
                        let m = m.attr_str(ETHTOOL_A_BITSET_BIT_NAME, name);
                        if on { m.attr(ETHTOOL_A_BITSET_BIT_VALUE, &[]) } else { m }
                    });
                }
                m
            })
        });
    if !features.wanted.is_empty() {
        socket.request("set offloads", dev, &message.finish())?;
    }
    let segments = Message::new(libc::RTM_NEWLINK, ACK)
        .ifinfo(netlink::ifindex(dev)?)
        .attr_u32(IFLA_GSO_MAX_SEGS, features.gso_max_segs)
        .finish();
    Socket::open()?.request("set gso_max_segs", dev, &segments)
}

/// Returns the state of a feature for these offloads; `None`: [`set`] does not change it.
fn desired(name: &str, want: Offloads) -> Option<bool> {
    match name {
        // Off by default: it breaks the IPv4 identification.
        "tx-tcp-mangleid-segmentation" => Some(false),
        "tx-generic-segmentation" | "tx-udp-segmentation" => Some(want.gso),
        "rx-gro" => Some(want.gro),
        // These also merge packets, and GRO does not need them.
        "rx-lro" | "rx-gro-hw" | "rx-gro-list" | "rx-udp-gro-forwarding" => Some(false),
        _ if name.starts_with("tx-tcp") && name.ends_with("-segmentation") => Some(want.tso),
        _ => None,
    }
}

/// The features of a device in each set of an answer, by kernel name.
#[derive(Debug, Default)]
pub(crate) struct FeatureSets {
    pub(crate) hardware: Vec<String>,
    pub(crate) wanted: Vec<String>,
    pub(crate) active: Vec<String>,
    pub(crate) fixed: Vec<String>,
}

impl FeatureSets {
    /// Parses the body of an answer to `ETHTOOL_MSG_FEATURES_GET`.
    pub(crate) fn parse(body: &[u8]) -> Self {
        let attributes = attrs(body.get(GENL_HEADER_BYTES..).unwrap_or(&[]));
        let names = |kind| attributes.clone().find_kind(kind).map(bits).unwrap_or_default();
        Self {
            hardware: names(ETHTOOL_A_FEATURES_HW),
            wanted: names(ETHTOOL_A_FEATURES_WANTED),
            active: names(ETHTOOL_A_FEATURES_ACTIVE),
            fixed: names(ETHTOOL_A_FEATURES_NOCHANGE),
        }
    }
}

fn read(socket: &mut Socket, dev: &str) -> Result<FeatureSets, ShaperError> {
    let family = family(socket)?;
    let message = features_message(family, ETHTOOL_MSG_FEATURES_GET, dev, 0).finish();
    let mut found = FeatureSets::default();
    let answer = socket.request_reply("read offloads", dev, &message, |_, body| {
        found = FeatureSets::parse(body);
    });
    match answer {
        Err(error) if error.is_errno(libc::ENODEV) => {
            Err(ShaperError::NotFound { what: "interface", name: dev.to_owned() })
        }
        other => other.map(|()| found),
    }
}

/// Returns the names of the set bits of an ethtool bitset. If it has a mask, only bits with a value are set.
fn bits(bitset: &[u8]) -> Vec<String> {
    let set = attrs(bitset);
    let plain = set.clone().find_kind(ETHTOOL_A_BITSET_NOMASK).is_some();
    let listed = attrs(set.find_kind(ETHTOOL_A_BITSET_BITS).unwrap_or(&[]));
    let name = |bit: Attrs<'_>| {
        let set = plain || bit.clone().find_kind(ETHTOOL_A_BITSET_BIT_VALUE).is_some();
        let mut bit = bit.filter(|a| set && a.kind == ETHTOOL_A_BITSET_BIT_NAME);
        bit.next().map(|a| a.text())
    };
    listed.filter_map(|bit| name(bit.attrs())).collect()
}

fn features_message(family: u16, command: u8, dev: &str, flags: u32) -> Message {
    Message::new(family, ACK)
        .raw(&[command, 1, 0, 0])
        .nested(ETHTOOL_A_FEATURES_HEADER | NESTED, |m| {
            m.attr_str(ETHTOOL_A_HEADER_DEV_NAME, dev).attr_u32(ETHTOOL_A_HEADER_FLAGS, flags)
        })
}

/// Returns the id of the ethtool netlink family.
fn family(socket: &mut Socket) -> Result<u16, ShaperError> {
    let message = Message::new(GENL_ID_CTRL, ACK)
        .raw(&[CTRL_CMD_GETFAMILY, 1, 0, 0])
        .attr_str(CTRL_ATTR_FAMILY_NAME, "ethtool")
        .finish();
    let mut family = None;
    let answer =
        socket.request_reply("find netlink family ethtool", "this kernel", &message, |_, body| {
            family = family_id(body);
        });
    match (answer, family) {
        (Ok(()), Some(family)) => Ok(family),
        (Err(error), _) if !error.is_errno(libc::ENOENT) => Err(error),
        _ => Err(ShaperError::Missing {
            what: "netlink family ethtool".to_owned(),
            config: "ETHTOOL_NETLINK",
            hint: "write `offloads = true` for the node, or use Linux 5.6 or later".to_owned(),
        }),
    }
}

/// Parses the body of an answer to `CTRL_CMD_GETFAMILY`: the family's id.
pub(crate) fn family_id(body: &[u8]) -> Option<u16> {
    let attributes = attrs(body.get(GENL_HEADER_BYTES..)?);
    attributes.find_kind(CTRL_ATTR_FAMILY_ID).and_then(|id| u16_at(id, 0))
}

/// Parses the body of an `RTM_NEWLINK` message: the maximum number of segments in one super-packet.
pub(crate) fn max_segs(body: &[u8]) -> Option<u32> {
    let attributes = attrs(body.get(IFINFO_BYTES..)?);
    attributes.find_kind(IFLA_GSO_MAX_SEGS).and_then(|value| u32_at(value, 0))
}

fn gso_max_segs(dev: &str) -> Result<u32, ShaperError> {
    let message = Message::new(libc::RTM_GETLINK, ACK).ifinfo(netlink::ifindex(dev)?).finish();
    let mut segments = DEFAULT_SEGMENTS;
    Socket::open()?.request_reply("read interface", dev, &message, |_, body| {
        segments = max_segs(body).unwrap_or(segments);
    })?;
    Ok(segments)
}
