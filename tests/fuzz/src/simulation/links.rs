//! Checks what must hold of each link: its packet rows agree with its counters, and no packet is early, exceeds the rate, or overtakes
//! another one in a FIFO.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::plan::{Distribution, FlowIsolation, Link, Queue, Setting};
use ccbench_proto::resolve::ETHERNET_BYTES;
use ccbench_proto::trace::Trace;
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{LinkPacket, LinkTiming, PacketFate, QdiscSample, TimingKind};
use ccbench_simulator::T0_NS;

use super::Trial;
use super::streams::pings_with_several_dscps;

/// Memory per packet of a userspace link with an MTU of 1500 bytes.
const SLOT_BYTES: u64 = 1536;
/// Error of a time that a line computes in integers, carrying fractions, compared with computing it anew.
const ROUNDING_NS: u64 = 2;

/// The rows of a link.
#[derive(Default)]
pub(super) struct LinkRows<'a> {
    /// In the order in which packets left or were dropped.
    pub(super) packets: Vec<&'a LinkPacket>,
    /// The same rows by the hash of their stream.
    by_flow: BTreeMap<u32, Vec<&'a LinkPacket>>,
    samples: Vec<&'a QdiscSample>,
    timing: Vec<&'a LinkTiming>,
}

/// The rows of all links, by name.
pub(super) struct Links<'a>(BTreeMap<&'a str, LinkRows<'a>>);

impl<'a> Links<'a> {
    pub(super) fn of(trial: &'a Trial) -> Self {
        let mut links = BTreeMap::<&str, LinkRows<'_>>::new();
        for (_, event) in &trial.rows {
            match event.payload.as_ref() {
                Some(Payload::LinkPacket(row)) => {
                    let rows = links.entry(&row.link).or_default();
                    rows.packets.push(row);
                    rows.by_flow.entry(row.flow).or_default().push(row);
                }
                Some(Payload::QdiscSample(row)) => {
                    links.entry(&row.link).or_default().samples.push(row);
                }
                Some(Payload::LinkTiming(row)) => {
                    links.entry(&row.link).or_default().timing.push(row);
                }
                _ => {}
            }
        }
        Self(links)
    }

    /// Returns the rows of a link of the plan.
    pub(super) fn rows(&self, name: &str) -> &LinkRows<'a> {
        self.0.get(name).unwrap_or_else(|| panic!("link {name} has no rows"))
    }

    pub(super) fn check(&self, trial: &Trial) {
        for (name, link) in &trial.plan.plan().links {
            let rows = self.rows(name);
            counters(trial, name, rows);
            if link.packet_log.is_some() {
                log(trial, name, rows);
                let least_ns = least_delay_ns(trial, name);
                rows.packets.iter().for_each(|packet| times(trial, packet, least_ns));
                order(trial, name, link, rows);
                line(trial, name, link, rows);
            }
        }
    }
}

impl<'a> LinkRows<'a> {
    /// Returns the packets of streams with this hash.
    pub(super) fn of_flow(&self, hash: u32) -> &[&'a LinkPacket] {
        self.by_flow.get(&hash).map_or(&[][..], Vec::as_slice)
    }

    fn last(&self) -> &QdiscSample {
        self.samples.last().unwrap_or_else(|| panic!("a link has no samples"))
    }

    /// Returns the number of packets in the link at the end.
    pub(super) fn inside(&self) -> u64 {
        self.last().memory_used_bytes.unwrap_or(0) / SLOT_BYTES
    }
}

/// Returns whether the last sample was taken after everything else. This is so unless one was due in the last instant.
pub(super) fn is_sampled_last(trial: &Trial) -> bool {
    let every_ns = trial.plan.plan().sample.qdisc.nanos();
    !(trial.end_ns - T0_NS).is_multiple_of(every_ns)
}

/// Checks that counters never shrink, and that every drop has one cause.
fn counters(trial: &Trial, name: &str, rows: &LinkRows<'_>) {
    for sample in &rows.samples {
        let causes = [
            sample.drop_lost_pkts,
            sample.drop_overlimit_pkts,
            sample.drop_early_pkts,
            sample.drop_overmemory_pkts,
            sample.drop_policed_pkts,
            sample.drop_ack_filter_pkts,
        ];
        let causes: u64 = causes.into_iter().flatten().sum();
        assert_eq!(sample.drops_pkts, causes, "link {name}: {sample:?}");
        let memory_bytes = sample.memory_used_bytes.unwrap_or(0);
        assert!(sample.qlen_pkts * SLOT_BYTES <= memory_bytes, "link {name}: {sample:?}");
        assert!(memory_bytes.is_multiple_of(SLOT_BYTES), "link {name}: {sample:?}");
    }
    for pair in rows.samples.windows(2) {
        let counts = |row: &QdiscSample| (row.sent_pkts, row.sent_bytes, row.drops_pkts);
        let ((sent, bytes, drops), after) = (counts(pair[0]), counts(pair[1]));
        let grows = sent <= after.0 && bytes <= after.1 && drops <= after.2;
        assert!(grows && pair[0].at_ns < pair[1].at_ns, "link {name}: {pair:?}");
    }
    assert_eq!(rows.last().at_ns, trial.end_ns, "link {name}: the last sample");
}

/// Checks that every packet that left or was dropped has a row.
fn log(trial: &Trial, name: &str, rows: &LinkRows<'_>) {
    let timing = |kind: TimingKind| {
        let row = rows.timing.iter().find(|row| row.kind() == kind);
        row.map_or((0, 0), |row| (row.count, row.missed))
    };
    assert_eq!(timing(TimingKind::Log), (rows.packets.len() as u64, 0), "link {name}: log");
    let of_fate = |fate: PacketFate| rows.packets.iter().filter(move |row| row.fate() == fate);
    let count = |fate: PacketFate| of_fate(fate).count() as u64;
    let sent = count(PacketFate::Sent);
    assert_eq!(timing(TimingKind::Packets).0, sent, "link {name}: packets sent");
    if is_sampled_last(trial) {
        let last = rows.last();
        let bytes: u64 = of_fate(PacketFate::Sent).map(|row| u64::from(row.bytes)).sum();
        let drops = [
            (PacketFate::Lost, last.drop_lost_pkts),
            (PacketFate::Overlimit, last.drop_overlimit_pkts),
            (PacketFate::Early, last.drop_early_pkts),
            (PacketFate::Overmemory, last.drop_overmemory_pkts),
        ];
        assert_eq!((sent, bytes), (last.sent_pkts, last.sent_bytes), "link {name}: {last:?}");
        for (fate, counted) in drops {
            assert_eq!(Some(count(fate)), counted, "link {name}: {fate:?}: {last:?}");
        }
        let own = [
            (PacketFate::Policed, last.drop_policed_pkts),
            (PacketFate::AckFilter, last.drop_ack_filter_pkts),
        ];
        for (fate, counted) in own {
            assert_eq!(count(fate), counted.unwrap_or(0), "link {name}: {fate:?}: {last:?}");
        }
        assert_eq!(sent + last.drops_pkts, rows.packets.len() as u64, "link {name}: fates");
    }
}

/// Returns the minimum delay that a link had at any time, nanoseconds.
pub(super) fn least_delay_ns(trial: &Trial, name: &str) -> u64 {
    let plan = trial.plan.plan();
    let link = &plan.links[name];
    let key = format!("links.{name}.delay");
    let changed = plan.changes.iter().filter_map(|change| match change.set.get(&key) {
        Some(Setting::Delay(delay)) => Some(delay.nanos()),
        _ => None,
    });
    let trace = link.trace.as_ref().and_then(|used| trial.plan.trace(&used.file));
    let rows = match trace.map(|trace| &**trace) {
        Some(Trace::Steps(steps)) => &steps.steps[..],
        _ => &[],
    };
    let own_ns = link.delay.unwrap_or_default().nanos();
    let traced = rows.iter().filter_map(|step| step.delay_ns);
    let constant_ns = changed.chain(traced).fold(own_ns, u64::min);
    match link.jitter {
        _ if link.reorder.is_some() => 0,
        None => constant_ns,
        Some(jitter) => match jitter.distribution {
            Distribution::Pareto => constant_ns,
            Distribution::Uniform => constant_ns.saturating_sub(jitter.spread.nanos() + 1),
            Distribution::Normal => 0,
        },
    }
}

/// Checks that a packet arrives, ends its delay, waits and leaves, in this order.
fn times(trial: &Trial, packet: &LinkPacket, least_ns: u64) {
    assert!((T0_NS..=trial.end_ns).contains(&packet.at_ns), "{packet:?}");
    if packet.fate() != PacketFate::Sent {
        let none = [packet.queued_ns, packet.due_ns, packet.sent_ns, packet.sojourn_us];
        assert!(none.iter().all(Option::is_none), "{packet:?}");
        return;
    }
    let (Some(queued_ns), Some(due_ns), Some(waited_us)) =
        (packet.queued_ns, packet.due_ns, packet.sojourn_us)
    else {
        panic!("a packet that was sent has no times: {packet:?}")
    };
    assert!(queued_ns >= packet.at_ns + least_ns, "earlier than {least_ns} ns: {packet:?}");
    assert!(queued_ns + waited_us * 1000 <= due_ns && due_ns <= trial.end_ns, "{packet:?}");
    assert_eq!(packet.sent_ns, Some(due_ns), "the hosts are infinitely fast");
    assert!(!packet.marked || packet.ecn != 0, "it was not ECN-capable: {packet:?}");
}

/// Checks that packets leave in order of time. In a FIFO, this is the order in which their delays ended. It is also the order of arrival,
/// unless the delay reorders packets or acknowledgements are held back. Other queues keep the order of a flow's packets with the same ECN
/// field, unless that is rewritten.
fn order(trial: &Trial, name: &str, link: &Link, rows: &LinkRows<'_>) {
    // Classes may separate the packets of these flows.
    let separated = match link.classes.is_empty() {
        true => BTreeSet::new(),
        false => pings_with_several_dscps(trial),
    };
    let isolation = link.queue.as_ref().map_or(FlowIsolation::None, Queue::flow_isolation);
    let is_fifo = link.classes.is_empty() && isolation == FlowIsolation::None;
    let keeps_order = link.reorder.is_none()
        && link.ack_aggregation.is_none()
        && !link.path_switch
        && !link.jitter.is_some_and(|jitter| jitter.reorder);
    if !is_fifo && link.ecn_rewrite.is_some_and(|rewrite| rewrite.share.is_some()) {
        return;
    }
    let mut last_ns = 0;
    let mut before = BTreeMap::<Option<(u32, u32)>, &LinkPacket>::new();
    for packet in rows.packets.iter().filter(|packet| packet.fate() == PacketFate::Sent) {
        let due_ns = packet.due_ns.unwrap_or(0);
        assert!(due_ns >= last_ns, "link {name}: time goes back: {packet:?}");
        last_ns = due_ns;
        if separated.contains(&packet.flow) {
            continue;
        }
        let queue = (!is_fifo).then_some((packet.flow, packet.ecn));
        if let Some(before) = before.insert(queue, packet) {
            let in_order = packet.queued_ns >= before.queued_ns
                && (!keeps_order || packet.at_ns >= before.at_ns);
            assert!(in_order, "link {name}: {packet:?} has overtaken {before:?}");
        }
    }
}

/// Checks that the line transmits one packet at a time, at most at its rate. A token bucket lets bursts pass.
fn line(trial: &Trial, name: &str, link: &Link, rows: &LinkRows<'_>) {
    if link.tbf.is_some() {
        return;
    }
    let key = format!("links.{name}.rate");
    let changes = trial.plan.plan().changes.iter();
    let changed = changes.filter_map(|change| match change.set.get(&key) {
        Some(Setting::Rate(rate)) => Some(rate.bits_per_sec()),
        _ => None,
    });
    let highest_bps = link.rate.map(|rate| changed.fold(rate.bits_per_sec(), u64::max));
    let overhead_bytes = link.overhead.unwrap_or(ETHERNET_BYTES).get();
    let mut free_ns = 0;
    for packet in &rows.packets {
        let (Some(queued_ns), Some(due_ns)) = (packet.queued_ns, packet.due_ns) else { continue };
        match highest_bps {
            None if link.trace.is_none() => {
                assert_eq!(queued_ns, due_ns, "link {name}: {packet:?}");
            }
            None => {}
            Some(rate_bps) => {
                let bytes = u64::from(packet.bytes) - ETHERNET_BYTES.get() + overhead_bytes;
                let length_ns = bytes * 8_000_000_000 / rate_bps;
                let least_ns = free_ns.max(queued_ns) + length_ns;
                assert!(
                    due_ns + ROUNDING_NS >= least_ns,
                    "link {name}: faster than {rate_bps} bit/s, free at {free_ns} ns: {packet:?}"
                );
            }
        }
        free_ns = due_ns;
    }
}
