//! The options of pfifo, bfifo and pfifo_head_drop: `struct tc_fifo_qopt`, the limit in packets or bytes.

use crate::qdisc::Qdisc;

/// A FIFO of this kind; what `limit` counts depends on the kind.
pub(super) fn encode(kind: &'static str, limit: u32) -> Qdisc {
    Qdisc { kind, options: limit.to_ne_bytes().to_vec() }
}
