//! The rows that a userspace link reports.

use ccbench_proto::wire;

use crate::datapath::histogram::Histogram;
use crate::datapath::log::{Log, Row};

/// A row of the packet log.
pub(super) fn packet(link: &str, iface: &str, row: &Row) -> wire::LinkPacket {
    let passed = row.passed;
    wire::LinkPacket {
        at_ns: row.arrived_ns,
        link: link.to_owned(),
        iface: iface.to_owned(),
        bytes: row.bytes,
        flow: row.flow,
        ecn: row.ecn.bits(),
        fate: row.fate.on_wire().into(),
        marked: row.marked,
        queued_ns: passed.map(|passed| passed.queued_ns),
        due_ns: passed.map(|passed| passed.due_ns),
        sent_ns: passed.and_then(|passed| passed.sent_ns),
        sojourn_us: passed.map(|passed| u64::from(passed.waited_us)),
    }
}

/// Scheduling errors of packets; `late` counts those above 1 ms.
pub(super) fn packets_timing(
    scheduling_error: &Histogram,
    late: u64,
    row: wire::LinkTiming,
) -> wire::LinkTiming {
    let summary = scheduling_error.summary();
    let us = |ns: u64| ns as f64 / 1e3;
    wire::LinkTiming {
        what: wire::TimingKind::Packets.into(),
        count: summary.count,
        late,
        p50_us: us(summary.p50_ns),
        p90_us: us(summary.p90_ns),
        p99_us: us(summary.p99_ns),
        max_us: us(summary.max_ns),
        ..row
    }
}

/// Rows of the packet log; `missed` counts packets that it had no room for.
pub(super) fn log_timing(log: &Log, row: wire::LinkTiming) -> wire::LinkTiming {
    let (count, missed) = log.counts();
    wire::LinkTiming { what: wire::TimingKind::Log.into(), count, missed, ..row }
}
