//! Parsers for the fuzz targets (`tests/fuzz`) that are private otherwise.

use ccbench_proto::wire::QdiscSample;

use crate::discipline::fill_row;
use crate::qdisc::Listed;

pub use crate::netlink::acknowledgement;
pub use crate::saved::{from_hex, to_hex};

/// The row of a qdisc or a class that the kernel listed.
pub fn listed(body: &[u8], class: bool) -> Option<QdiscSample> {
    let listed = Listed::parse(body)?;
    let mut row = QdiscSample::default();
    fill_row(&listed, class, &mut row);
    Some(row)
}
