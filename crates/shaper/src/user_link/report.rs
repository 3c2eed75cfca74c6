//! The rows that a userspace link reports.

use ccbench_proto::wire;

use crate::datapath::histogram::Histogram;
use crate::datapath::log::{Log, Row};
use crate::datapath::{Counters, LinkSpec};
use crate::replay::PlayedRows;

/// Returns the counters `now` of a link and its interface at `at_ns`. `socket_drops`: packets for which the receiving socket had no room.
pub(crate) fn qdisc_sample(
    spec: &LinkSpec,
    now: &Counters,
    socket_drops: u64,
    at_ns: u64,
    (link, iface): (&str, &str),
) -> wire::QdiscSample {
    let overmemory = now.overmemory_pkts + now.queue_overmemory_pkts + socket_drops;
    let plan = &spec.plan;
    let mut row = wire::QdiscSample {
        at_ns,
        link: link.to_owned(),
        iface: iface.to_owned(),
        parent: "root".to_owned(),
        kind: "userspace".to_owned(),
        sent_bytes: now.sent_bytes,
        sent_pkts: now.sent_pkts,
        drops_pkts: now.lost_pkts
            + now.policed_pkts
            + now.acks_filtered_pkts
            + now.overlimit_pkts
            + now.early_pkts
            + overmemory
            + now.unfit_pkts
            + now.device_pkts,
        backlog_bytes: now.backlog_bytes,
        qlen_pkts: now.backlog_pkts,
        drop_overlimit_pkts: Some(now.overlimit_pkts),
        drop_overmemory_pkts: Some(overmemory),
        drop_early_pkts: Some(now.early_pkts),
        drop_lost_pkts: Some(now.lost_pkts),
        drop_policed_pkts: plan.policer.map(|_| now.policed_pkts),
        drop_ack_filter_pkts: plan.ack_filter.then_some(now.acks_filtered_pkts),
        acks_held_pkts: plan.ack_aggregation.map(|_| now.acks_held_pkts),
        ecn_rewritten_pkts: plan.ecn_rewrite.map(|_| now.ecn_rewritten_pkts),
        ce_rewritten_pkts: plan.ecn_rewrite.map(|_| now.ce_rewritten_pkts),
        slots: plan.slot.map(|_| now.slots),
        memory_used_bytes: Some(now.memory_bytes),
        rate_bps: (now.rate_bps != u64::MAX).then_some(now.rate_bps),
        late_pkts: Some(now.late_pkts),
        max_late_us: Some(now.max_late_ns.div_ceil(1000)),
        idle_us: (now.rate_bps != u64::MAX).then_some(now.idle_ns / 1000),
        // If none is the trial's, its packets have other addresses here (a tunnel, address translation), so nothing is known.
        foreign_pkts: (now.own_pkts > 0).then_some(now.foreign_pkts),
        foreign_bytes: (now.own_pkts > 0).then_some(now.foreign_bytes),
        ..wire::QdiscSample::default()
    };
    // The counters are those of all queues together.
    spec.queue.fill_row(now, &mut row);
    for class in &spec.classes {
        class.queue.fill_row(now, &mut row);
    }
    row
}

/// Returns a row of the packet log.
pub(crate) fn packet(link: &str, iface: &str, row: &Row) -> wire::LinkPacket {
    let passed = row.passed;
    wire::LinkPacket {
        at_ns: row.arrived_ns,
        link: link.to_owned(),
        iface: iface.to_owned(),
        bytes: row.bytes,
        flow: row.flow,
        ecn: row.ecn.bits().into(),
        fate: row.fate.on_wire().into(),
        marked: row.marked,
        queued_ns: passed.map(|passed| passed.queued_ns),
        due_ns: passed.map(|passed| passed.due_ns),
        sent_ns: passed.and_then(|passed| passed.sent_ns),
        sojourn_us: passed.map(|passed| u64::from(passed.waited_us)),
    }
}

/// Returns the row for the steps of a trace, if there were any. The model applies steps exactly when they are due.
pub(crate) fn steps_timing(
    played: Option<&PlayedRows>,
    row: wire::LinkTiming,
) -> Option<wire::LinkTiming> {
    let count = played.map_or(0, PlayedRows::count);
    let kind = wire::TimingKind::Steps.into();
    (count > 0).then_some(wire::LinkTiming { kind, count, ..row })
}

/// Returns the row for the scheduling errors of packets. `late` counts those above 1 ms.
pub(crate) fn packets_timing(
    scheduling_error: &Histogram,
    late: u64,
    row: wire::LinkTiming,
) -> wire::LinkTiming {
    let summary = scheduling_error.summary();
    let us = |ns: u64| ns as f64 / 1e3;
    wire::LinkTiming {
        kind: wire::TimingKind::Packets.into(),
        count: summary.count,
        late,
        p50_us: us(summary.p50_ns),
        p90_us: us(summary.p90_ns),
        p99_us: us(summary.p99_ns),
        max_us: us(summary.max_ns),
        ..row
    }
}

/// Returns the row for the packet log. `missed` counts packets for which the log had no room.
pub(crate) fn log_timing(log: &Log, row: wire::LinkTiming) -> wire::LinkTiming {
    let (count, missed) = log.counts();
    wire::LinkTiming { kind: wire::TimingKind::Log.into(), count, missed, ..row }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::Class;
    use ccbench_proto::units::Rate;

    use super::*;
    use crate::datapath::classes::ClassSpec;
    use crate::discipline::codel::CodelQueueParams;
    use crate::discipline::{FifoLimit, QueueParams};

    #[test]
    fn without_a_packet_of_the_trial_none_is_foreign() {
        let row = |own_pkts| {
            let now =
                Counters { own_pkts, foreign_pkts: 2, foreign_bytes: 300, ..Counters::default() };
            let row = qdisc_sample(&LinkSpec::default(), &now, 0, 1, ("l", "eth0"));
            (row.foreign_pkts, row.foreign_bytes)
        };
        assert_eq!((row(0), row(1)), ((None, None), (Some(2), Some(300))));
    }

    #[test]
    fn marks_of_class_queues_are_in_the_row() {
        let class = |queue| ClassSpec {
            plan: Class::new(Rate::from_bits_per_sec(1_000_000)),
            queue,
            matches: Vec::new(),
        };
        let fifo = QueueParams::TailDrop(FifoLimit::Packets(100));
        let codel = QueueParams::Codel(CodelQueueParams::default());
        let now = Counters { ecn_mark_pkts: 5000, ce_mark_pkts: 7, ..Counters::default() };
        let row = |queue, classes| {
            let spec = LinkSpec { queue, classes, ..LinkSpec::default() };
            let row = qdisc_sample(&spec, &now, 0, 1, ("l", "eth0"));
            (row.ecn_mark_pkts, row.ce_mark_pkts, row.flows)
        };
        let marks = (Some(5000), Some(7), None);
        assert_eq!(row(fifo, vec![class(codel), class(fifo)]), marks);
        // Both queues mark: the counters have the sum.
        assert_eq!(row(codel, vec![class(codel)]), marks);
        assert_eq!(row(fifo, vec![class(fifo)]), (None, None, None));
    }
}
