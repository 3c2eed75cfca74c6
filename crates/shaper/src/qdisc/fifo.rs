//! First in, first out: `struct tc_fifo_qopt` is one number, packets or bytes by the qdisc's name.

use super::Qdisc;

/// Limited in packets.
pub fn pfifo(limit_pkts: u32) -> Qdisc {
    Qdisc { kind: "pfifo", options: limit_pkts.to_ne_bytes().to_vec() }
}

/// Limited in packets; when it is full the oldest goes.
pub fn pfifo_head_drop(limit_pkts: u32) -> Qdisc {
    Qdisc { kind: "pfifo_head_drop", ..pfifo(limit_pkts) }
}

/// Limited in bytes.
pub fn bfifo(limit_bytes: u32) -> Qdisc {
    Qdisc { kind: "bfifo", options: limit_bytes.to_ne_bytes().to_vec() }
}
