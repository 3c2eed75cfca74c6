//! Exposes private items to the fuzz targets (`tests/fuzz`): parsers, what a userspace link does with frames, and the hash of a flow.

use ccbench_proto::plan::Ecn;
use ccbench_proto::wire::{self, QdiscSample};

use crate::datapath::coalesce::{Group, HEAD_BYTES};
use crate::datapath::segment::Frames;
use crate::datapath::tcp_header::{TcpHeader, tcp_header};
use crate::datapath::vnet::{TAG_BYTES, complete_checksum, put_tag};
use crate::datapath::{self, header};
use crate::discipline::fill_row;
use crate::offload::{self, FeatureSets};
use crate::qdisc::TcMessage;
use crate::route;
use crate::stack::{self, StackedInterface};

pub use crate::netlink::acknowledgement;
pub use crate::saved::{from_hex, to_hex};

/// Returns the column `flow` of `link_packets` for an Ethernet frame.
pub fn flow_hash(frame: &[u8]) -> u32 {
    header::flow(frame)
}

/// What a userspace link reads in the headers of an Ethernet frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeaders {
    /// Whether classes can match it.
    pub is_ip: bool,
    /// Its ECN field.
    pub ecn: Ecn,
    /// Its TCP header.
    pub tcp: Option<TcpHeader>,
    /// Whether the ACK filter would drop it for a copy of itself.
    pub is_superseded_by_copy: bool,
}

/// Reads the headers of an Ethernet frame.
pub fn frame_headers(frame: &[u8]) -> FrameHeaders {
    let tcp = tcp_header(frame);
    FrameHeaders {
        is_ip: header::fields(frame).is_some(),
        ecn: header::ecn(frame),
        tcp,
        is_superseded_by_copy: tcp.is_some_and(|tcp| tcp.is_superseded_by(&tcp)),
    }
}

/// Returns an Ethernet frame with this ECN field.
pub fn with_ecn(frame: &[u8], ecn: Ecn) -> Vec<u8> {
    let mut frame = frame.to_vec();
    header::set_ecn(&mut frame, ecn);
    frame
}

/// Returns an Ethernet frame with the bit flipped that `draw` selects.
pub fn with_flipped_bit(frame: &[u8], draw: u64) -> Vec<u8> {
    let mut frame = frame.to_vec();
    header::flip_bit(&mut frame, draw);
    frame
}

/// Returns a packet (vnet header and frame) with the VLAN tag that the kernel took out of its frame.
pub fn with_tag(packet: &[u8], tag: [u8; TAG_BYTES]) -> Vec<u8> {
    let mut buffer = [&[0; TAG_BYTES][..], packet].concat();
    put_tag(&mut buffer, tag);
    buffer
}

/// Returns a packet whose partial checksum, if it has one, is complete.
pub fn with_checksum(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    complete_checksum(&mut packet);
    packet
}

/// Returns the first `most` frames of a received packet, each behind its vnet header, and the number of the others; `None` if a link on an
/// interface with this MTU drops the packet.
pub fn segments(packet: &[u8], mtu_bytes: u32, most: usize) -> Option<(Vec<Vec<u8>>, u64)> {
    let mut frames = Frames::new(packet).ok()?;
    let slot_bytes = frames.slot_bytes();
    if slot_bytes > datapath::slot_bytes(mtu_bytes) {
        return None;
    }
    let mut slot = vec![0; slot_bytes];
    let mut segments = Vec::new();
    while segments.len() < most
        && let Some(length) = frames.next_into(&mut slot)
    {
        segments.push(slot[..length].to_vec());
    }
    Some((segments, frames.skip_rest()))
}

/// Returns what a link writes for packets that are due at the same time: their number and the bytes of each write.
pub fn coalesce(packets: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
    let mut written = Vec::new();
    let mut rest = packets;
    while let Some(first) = rest.first() {
        let mut count = 1;
        let mut bytes = first.clone();
        if let Some(mut group) = Group::start(first) {
            while rest.get(group.count()).is_some_and(|next| group.extend(first, next)) {}
            count = group.count();
            if count > 1 {
                let mut head = [0; HEAD_BYTES];
                group.write_head(first, &mut head);
                bytes = head[..group.head_bytes()].to_vec();
                for packet in &rest[..count] {
                    bytes.extend_from_slice(&packet[group.head_bytes()..]);
                }
            }
        }
        written.push((count, bytes));
        rest = &rest[count..];
    }
    written
}

/// Returns the row of a qdisc or class that the kernel listed.
pub fn listed(body: &[u8], class: bool) -> Option<QdiscSample> {
    let listed = TcMessage::parse(body)?;
    let mut row = QdiscSample::default();
    fill_row(&listed, class, &mut row);
    Some(row)
}

/// What is read in the body of an answer of rtnetlink or ethtool, as if it were an answer of each kind.
#[derive(Debug)]
pub struct Answer {
    /// An interface and its place in the stack.
    pub stacked: Option<StackedInterface>,
    /// The same interface as a node describes it.
    pub interface: Option<wire::Interface>,
    /// An address: its interface and `ADDRESS/PREFIX`.
    pub address: Option<(u32, String)>,
    /// The interface of a route.
    pub egress_index: Option<u32>,
    /// The features of an interface: those that it has, wanted, active and fixed ones.
    pub features: [Vec<String>; 4],
    /// Numbers: a family's id, and an interface's maximum number of segments.
    pub numbers: (Option<u16>, Option<u32>),
}

/// Reads the body of an answer of rtnetlink or ethtool.
pub fn answer(body: &[u8]) -> Answer {
    let FeatureSets { hardware, wanted, active, fixed } = FeatureSets::parse(body);
    Answer {
        stacked: stack::interface(body),
        interface: route::interface(body),
        address: route::address(body),
        egress_index: route::egress_index(body),
        features: [hardware, wanted, active, fixed],
        numbers: (offload::family_id(body), offload::max_segs(body)),
    }
}
