//! What a link tells about itself, as rows.

use ccbench_proto::wire;

use crate::datapath::lateness::Lateness;
use crate::datapath::log::{Log, Row};
use crate::datapath::{Counters, QueueSpec};

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

/// What the kernel's qdisc of the same kind tells about itself.
pub(super) fn fill_queue(queue: &QueueSpec, now: &Counters, row: &mut wire::QdiscSample) {
    match queue {
        QueueSpec::Fifo(_) | QueueSpec::HeadDrop(_) => {}
        QueueSpec::Red(_) => {
            row.ecn_mark_pkts = Some(now.ecn_mark_pkts);
            row.prob = Some(now.prob as f64 / 4_294_967_296.0);
        }
        QueueSpec::Pie(_) => {
            row.ecn_mark_pkts = Some(now.ecn_mark_pkts);
            row.prob = Some(now.prob as f64 / 4_294_967_296.0);
            row.delay_c_us = Some(now.delay_c_ns / 1000);
            row.maxq_pkts = Some(now.maxq_pkts);
        }
        QueueSpec::Codel(_) => {
            row.ecn_mark_pkts = Some(now.ecn_mark_pkts);
            row.ce_mark_pkts = Some(now.ce_mark_pkts);
        }
        QueueSpec::FqCodel(_) => {
            row.ecn_mark_pkts = Some(now.ecn_mark_pkts);
            row.ce_mark_pkts = Some(now.ce_mark_pkts);
            row.flows = Some(now.flows);
        }
        QueueSpec::Fq(_) => {
            row.ce_mark_pkts = Some(now.ce_mark_pkts);
            row.flows = Some(now.flows);
        }
        QueueSpec::Dualpi2(_) => {
            row.ecn_mark_pkts = Some(now.ecn_mark_pkts);
            row.step_mark_pkts = Some(now.step_mark_pkts);
            row.prob = Some(now.prob as f64 / 4_294_967_296.0);
            row.delay_c_us = Some(now.delay_c_ns / 1000);
            row.delay_l_us = Some(now.delay_l_ns / 1000);
            row.pkts_in_c = Some(now.pkts_in_c);
            row.pkts_in_l = Some(now.pkts_in_l);
            row.credit = Some(now.credit.cast_signed());
            row.maxq_pkts = Some(now.maxq_pkts);
        }
    }
}
