//! Sums over several flows.

/// Bytes, retransmitted segments and timeouts of each flow of a group or of the net, and the segments of all flows.
#[derive(Debug, Default)]
pub(super) struct GroupTotals {
    pub(super) bytes: Vec<f64>,
    pub(super) retransmissions: Vec<f64>,
    pub(super) rtos: Vec<f64>,
    pub(super) segments: f64,
}

impl GroupTotals {
    pub(super) fn add(&mut self, other: Self) {
        self.bytes.extend(other.bytes);
        self.retransmissions.extend(other.retransmissions);
        self.rtos.extend(other.rtos);
        self.segments += other.segments;
    }
}
