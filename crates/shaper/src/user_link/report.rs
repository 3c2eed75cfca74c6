//! What a link tells about itself, as rows.

use ccbench_proto::wire;

use crate::datapath::lateness::Lateness;
use crate::datapath::log::{Log, Row};

/// A packet that was written down.
pub(super) fn packet(link: &str, iface: &str, row: &Row) -> wire::LinkPacket {
    let passed = row.passed;
    wire::LinkPacket {
        at_ns: row.arrived_ns,
        link: link.to_owned(),
        iface: iface.to_owned(),
        bytes: row.bytes,
        flow: row.flow,
        ecn: row.ecn.bits(),
        fate: row.fate.name().to_owned(),
        marked: row.marked,
        queued_ns: passed.map(|passed| passed.queued_ns),
        due_ns: passed.map(|passed| passed.due_ns),
        sent_ns: passed.and_then(|passed| passed.sent_ns),
        sojourn_us: passed.map(|passed| u64::from(passed.waited_us)),
    }
}

/// How late packets were released, `late` of them by more than 1 ms.
pub(super) fn packets_timing(
    lateness: &Lateness,
    late: u64,
    row: wire::LinkTiming,
) -> wire::LinkTiming {
    let told = lateness.summary();
    let us = |ns: u64| ns as f64 / 1e3;
    wire::LinkTiming {
        what: "packets".to_owned(),
        count: told.count,
        late,
        p50_us: us(told.p50_ns),
        p90_us: us(told.p90_ns),
        p99_us: us(told.p99_ns),
        max_us: us(told.max_ns),
        ..row
    }
}

/// How many packets were written down; `missed` is those that there was no room for.
pub(super) fn log_timing(log: &Log, row: wire::LinkTiming) -> wire::LinkTiming {
    let (count, missed) = log.counts();
    wire::LinkTiming { what: "log".to_owned(), count, missed, ..row }
}
