//! Exposes private items to the fuzz targets (`tests/fuzz`): parsers, and the hash of a flow.

use ccbench_proto::wire::QdiscSample;

use crate::datapath::header;
use crate::discipline::fill_row;
use crate::qdisc::TcMessage;

pub use crate::netlink::acknowledgement;
pub use crate::saved::{from_hex, to_hex};

/// Returns the column `flow` of `link_packets` for an Ethernet frame.
pub fn flow_hash(frame: &[u8]) -> u32 {
    header::flow(frame)
}

/// Returns the row of a qdisc or class that the kernel listed.
pub fn listed(body: &[u8], class: bool) -> Option<QdiscSample> {
    let listed = TcMessage::parse(body)?;
    let mut row = QdiscSample::default();
    fill_row(&listed, class, &mut row);
    Some(row)
}
