//! The options of pfifo, bfifo and pfifo_head_drop: `struct tc_fifo_qopt`, whose limit is in packets or bytes.

use crate::qdisc::Qdisc;

/// Returns a FIFO of this kind, which determines the unit of `limit`.
pub(super) fn encode(kind: &'static str, limit: u32) -> Qdisc {
    Qdisc { kind, options: limit.to_ne_bytes().to_vec() }
}
