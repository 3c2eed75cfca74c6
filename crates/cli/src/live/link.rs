//! The totals of a link's queues. As in the summary, they come from the root qdisc, which all bytes pass. Its drops and backlog
//! do not always include those of its children, and a backlog above a netem contains packets that wait for their delay.

use ccbench_proto::wire::QdiscSample;

/// The rows of all qdiscs and classes of a link that were read at one instant.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinkInstant {
    pub(super) at_ns: u64,
    root: Counters,
    queues: Counters,
    netem: Counters,
    has_netem: bool,
    marks_pkts: Option<u64>,
    /// The configured rate.
    pub(super) rate_bps: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    drops_pkts: u64,
    backlog_bytes: u64,
}

impl Counters {
    fn add(&mut self, row: &QdiscSample) {
        self.drops_pkts = self.drops_pkts.saturating_add(row.drops_pkts);
        self.backlog_bytes = self.backlog_bytes.saturating_add(row.backlog_bytes);
    }
}

impl LinkInstant {
    pub(super) fn new(at_ns: u64) -> Self {
        Self { at_ns, ..Self::default() }
    }

    pub(super) fn add(&mut self, row: &QdiscSample) {
        if row.ecn_mark_pkts.is_some() || row.ce_mark_pkts.is_some() {
            let [law, threshold] = [row.ecn_mark_pkts, row.ce_mark_pkts].map(|n| n.unwrap_or(0));
            let marks = self.marks_pkts.unwrap_or(0);
            self.marks_pkts = Some(marks.saturating_add(law).saturating_add(threshold));
        }
        self.rate_bps = self.rate_bps.max(row.rate_bps);
        let class = row.kind == "htb class";
        if !class && row.parent == "root" {
            self.root.add(row);
        } else if row.kind == "netem" {
            self.netem.add(row);
        } else if !class {
            self.queues.add(row);
        }
        self.has_netem |= row.kind == "netem";
    }

    /// Returns the bytes that wait for the link.
    pub(super) fn backlog_bytes(&self) -> u64 {
        if self.has_netem {
            return self.queues.backlog_bytes;
        }
        self.root.backlog_bytes.max(self.queues.backlog_bytes)
    }

    /// Returns the number of packets dropped so far.
    pub(super) fn drops_pkts(&self) -> u64 {
        let below = self.queues.drops_pkts.max(self.netem.drops_pkts);
        self.root.drops_pkts.max(below)
    }

    /// Returns the number of packets marked so far; `None` if no queue counts marks.
    pub(super) fn marks_pkts(&self) -> Option<u64> {
        self.marks_pkts
    }
}
