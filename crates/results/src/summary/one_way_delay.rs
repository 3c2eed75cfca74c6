//! **one_way_delay**: how long data packets spent in a userspace link, from their arrival until the device had them. It includes
//! propagation delay, queueing and transmission. The source is table `link_packets` (`packet_log`), with packets that the link sent. A
//! packet counts in the phase in which it arrives. Both times are of the link's node, so clocks of different nodes do not matter.
//!
//! - For a **link**: the data packets of all flows.
//! - For a **flow**, a group and the net: the packets on the link with a log that the group's data passes. If several have a log,
//!   the one with the lowest mean rate in the phase. Delays of different links are not summed, because packets cannot be identified
//!   across links. If the cabling is unknown (nodes with agents), data passes the links whose logs have packets of the group.
//! - A packet belongs to the flow whose data packets have its hash, according to the addresses and ports in table `flows`.
//! - If rows of a link's log are missing, the others are no sample of the phase: there is no value, and the stat `undefined`
//!   is the number of missing rows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::flow_hash::{tcp_flow_hash, tcp_flow_hash_of_0_1};
use ccbench_proto::metric::{Scope, UNDEFINED};
use ccbench_proto::wire::{PacketFate, TimingKind};

use super::network::Curves;
use super::query;
use super::rows::{Numbers, Texts, each_slice};
use super::schedule::Schedule;
use super::span::Span;
use super::statistics;
use super::tables::PhaseRow;
use crate::error::Result;
use crate::journal::{PhaseRecord, TrialEnd};
use crate::store::RunDir;

const TABLE: &str = "link_packets";
/// Statistics of samples, with their names in this metric, which papers use.
const STATS: [(&str, &str); 4] =
    [("mean", "mean"), ("median", "p50"), ("p95", "p95"), ("p99", "p99")];

/// The flows of a trial.
#[derive(Debug, Default)]
struct Flows {
    /// Group and flow of each.
    names: Vec<(String, String)>,
    /// The flow's index by the hash of its data packets; `None` if several flows have this hash.
    by_hash: HashMap<u32, Option<usize>>,
}

/// The packet log of a link.
#[derive(Debug)]
struct Log {
    link: String,
    /// Number of rows in the table.
    rows: u64,
    /// Number of rows that the link wrote, and of packets without space; `None` if the link did not report them because the trial was
    /// aborted.
    reported: Option<(u64, u64)>,
}

/// The packet logs of a trial.
#[derive(Debug, Default)]
struct Packets {
    logs: Vec<Log>,
    /// Delays in us, by phase, log and flow (indices).
    delays_us: BTreeMap<[usize; 3], Vec<f64>>,
}

/// Returns one-way delays in each measured phase of a trial.
pub(super) fn one_way_delays(
    run: &RunDir,
    end: &TrialEnd,
    schedule: &Schedule,
    curves: Curves<'_, '_>,
) -> Result<Vec<PhaseRow>> {
    if !end.rows.contains_key(TABLE) {
        return Ok(vec![]);
    }
    let flows = Flows::read(run, end)?;
    let packets = Packets::read(run, end, &flows)?;
    Ok(TrialLogs { end, flows: &flows, packets: &packets, schedule, curves }.rows())
}

impl Flows {
    fn read(run: &RunDir, end: &TrialEnd) -> Result<Self> {
        const TEXTS: [&str; 8] =
            ["group", "flow_id", "role", "side", "node", "node_src", "src_ip", "dst_ip"];
        const PORTS: [&str; 2] = ["sport", "dport"];
        let mut found = Self::default();
        each_slice(run, "flows", end, &[&TEXTS[..], &PORTS].concat(), |slice| {
            let [group, flow, role, side, node, node_src, src_ip, dst_ip] =
                TEXTS.map(|name| slice.texts(name));
            let [sport, dport] = PORTS.map(|name| slice.numbers(name));
            for row in (0..slice.len()).filter(|row| role.get(*row) == Some("data")) {
                let socket = |ip: &Texts<'_>, port: &Numbers<'_>| {
                    let ip: IpAddr = ip.get(row)?.parse().ok()?;
                    Some(SocketAddr::new(ip, port.get(row)? as u16))
                };
                let ends = socket(&src_ip, &sport).zip(socket(&dst_ip, &dport));
                // The end that connects sends the data unless the flow is reversed.
                let connects = node.get(row) == node_src.get(row);
                let sends = side.get(row) == Some("snd");
                let hashes = ends.map(|(src, dst)| {
                    let (from, to) = if connects == sends { (src, dst) } else { (dst, src) };
                    // All hashes in a log are of the same kind.
                    [tcp_flow_hash(from, to), tcp_flow_hash_of_0_1(from, to)]
                });
                let names = group.get(row).zip(flow.get(row));
                if let Some(((group, flow), hashes)) = names.zip(hashes) {
                    hashes.into_iter().flatten().for_each(|hash| found.add(group, flow, hash));
                }
            }
        })?;
        Ok(found)
    }

    /// Adds a flow. Each of its two ends has a row.
    fn add(&mut self, group: &str, flow: &str, hash: u32) {
        let known = self.names.iter().position(|(_, known)| known == flow);
        let index = known.unwrap_or_else(|| {
            self.names.push((group.to_owned(), flow.to_owned()));
            self.names.len() - 1
        });
        let of_hash = self.by_hash.entry(hash).or_insert(Some(index));
        if *of_hash != Some(index) {
            *of_hash = None;
        }
    }

    /// Returns the flows of a group, by index.
    fn of_group<'a>(&'a self, group: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        let names = self.names.iter().enumerate().filter(move |(_, (of, _))| of == group);
        names.map(|(index, (_, flow))| (index, flow.as_str()))
    }
}

impl Packets {
    fn read(run: &RunDir, end: &TrialEnd, flows: &Flows) -> Result<Self> {
        const COLUMNS: [&str; 7] = ["link", "node", "phase", "fate", "t_s", "flow", "sent_ns"];
        let mut found = Self::default();
        for row in query::timing(run, end)? {
            if row.kind == Some(TimingKind::Log) {
                let log = found.log(&row.link);
                found.logs[log].reported = Some((row.count, row.missed));
            }
        }
        let measured = |name: &str| end.phases.iter().position(|p| p.measure && p.name == name);
        each_slice(run, TABLE, end, &COLUMNS, |slice| {
            let [link, node, phase, fate] =
                ["link", "node", "phase", "fate"].map(|name| slice.texts(name));
            let [at_s, hash, sent_ns] = ["t_s", "flow", "sent_ns"].map(|name| slice.numbers(name));
            for row in 0..slice.len() {
                let log = found.log(link.get(row).unwrap_or_default());
                found.logs[log].rows += 1;
                if fate.get(row) != Some(PacketFate::Sent.as_text()) {
                    continue;
                }
                let flow = hash.get(row).and_then(|hash| *flows.by_hash.get(&(hash as u32))?);
                let clock = node.get(row).and_then(|node| end.clocks.get(node));
                let times = at_s.get(row).zip(sent_ns.get(row)).zip(clock);
                let place = phase.get(row).and_then(measured).zip(flow);
                if let Some(((phase, flow), ((at_s, sent_ns), clock))) = place.zip(times) {
                    // Nanoseconds since the start of the trial are exact.
                    let delay_ns = sent_ns - clock.t0_ns as f64 - (at_s * 1e9).round();
                    found.delays_us.entry([phase, log, flow]).or_default().push(delay_ns / 1e3);
                }
            }
        })?;
        Ok(found)
    }

    /// Returns the index of a link's log.
    fn log(&mut self, link: &str) -> usize {
        let known = self.logs.iter().position(|log| log.link == link);
        known.unwrap_or_else(|| {
            self.logs.push(Log { link: link.to_owned(), rows: 0, reported: None });
            self.logs.len() - 1
        })
    }
}

impl Log {
    /// Returns the number of packets without a row; `None` if unknown.
    fn missing(&self) -> Option<u64> {
        let (written, without_space) = self.reported?;
        Some(without_space + written.saturating_sub(self.rows))
    }
}

/// The packets of a subject in a phase.
#[derive(Debug, Default)]
struct Sample {
    delays_us: Vec<f64>,
    /// Number of missing rows.
    missing: u64,
}

/// A trial's packet logs, with what is known from its plan.
struct TrialLogs<'a, 'c> {
    end: &'a TrialEnd,
    flows: &'a Flows,
    packets: &'a Packets,
    schedule: &'a Schedule,
    curves: Curves<'a, 'c>,
}

impl TrialLogs<'_, '_> {
    fn rows(&self) -> Vec<PhaseRow> {
        let phases = self.end.phases.iter().enumerate();
        phases.filter(|(_, phase)| phase.measure).flat_map(|at| self.phase_rows(at)).collect()
    }

    fn phase_rows(&self, (nth, phase): (usize, &PhaseRecord)) -> Vec<PhaseRow> {
        let mut found = Vec::new();
        let mut add = |scope, subject: &str, sample: &mut Sample| {
            found.extend(self.statistics(phase, (scope, subject), sample));
        };
        for (log, of_link) in self.packets.logs.iter().enumerate() {
            let Some(missing) = of_link.missing() else { continue };
            let flows = self.packets.delays_us.range([nth, log, 0]..[nth, log + 1, 0]);
            let delays_us = flows.flat_map(|(_, delays_us)| delays_us).copied().collect();
            add(Scope::Link, &of_link.link, &mut Sample { delays_us, missing });
        }
        let groups: BTreeSet<&str> =
            self.flows.names.iter().map(|(group, _)| group.as_str()).collect();
        let (mut net, mut logs) = (Sample::default(), BTreeSet::new());
        for group in groups {
            let span = phase.span_s();
            if self.schedule.allows(self.end.point_id, group, span) == Some(false) {
                continue;
            }
            let Some(log) = self.log_of(group, span) else { continue };
            let Some(missing) = self.packets.logs[log].missing() else { continue };
            let mut of_group = Sample { delays_us: vec![], missing };
            for (flow, name) in self.flows.of_group(group) {
                let known = self.packets.delays_us.get(&[nth, log, flow]);
                let mut of_flow = Sample { delays_us: known.cloned().unwrap_or_default(), missing };
                of_group.delays_us.extend_from_slice(&of_flow.delays_us);
                add(Scope::Flow, name, &mut of_flow);
            }
            net.delays_us.extend_from_slice(&of_group.delays_us);
            net.missing += if logs.insert(log) { missing } else { 0 };
            add(Scope::Group, group, &mut of_group);
        }
        add(Scope::Net, "all", &mut net);
        found
    }

    /// Returns the log that measures a group in a span.
    fn log_of(&self, group: &str, span: Span) -> Option<usize> {
        let network = self.schedule.network(self.end.point_id);
        let logs = &self.packets.logs;
        let has_packets = |log: usize| {
            let of_group: Vec<usize> = self.flows.of_group(group).map(|(flow, _)| flow).collect();
            let mut keys = self.packets.delays_us.keys();
            keys.any(|[_, at, flow]| *at == log && of_group.contains(flow))
        };
        let passes = |log: &usize| {
            let planned = network.and_then(|network| network.passes(group, &logs[*log].link));
            planned.unwrap_or_else(|| has_packets(*log))
        };
        let passed: Vec<usize> = (0..logs.len()).filter(passes).collect();
        if let [only] = passed[..] {
            return Some(only);
        }
        let network = network?;
        let rate_bps = |log: usize| network.mean_rate_bps(&logs[log].link, span, self.curves);
        let rated = passed.into_iter().map(|log| (rate_bps(log), log));
        let slowest = rated.min_by(|a, b| a.0.total_cmp(&b.0));
        slowest.filter(|(rate_bps, _)| rate_bps.is_finite()).map(|(_, log)| log)
    }

    fn statistics(
        &self,
        phase: &PhaseRecord,
        (scope, subject): (Scope, &str),
        sample: &mut Sample,
    ) -> Vec<PhaseRow> {
        let packets = sample.delays_us.len() as u64;
        let row = |unit, stat, value, n: u64| PhaseRow {
            point_id: self.end.point_id,
            trial: self.end.trial,
            phase: phase.name.clone(),
            scope,
            subject: subject.to_owned(),
            metric: "one_way_delay",
            unit,
            stat,
            value,
            n: u32::try_from(n).unwrap_or(u32::MAX),
        };
        if sample.missing > 0 {
            let all = packets + sample.missing;
            return vec![row("1", UNDEFINED, sample.missing as f64, all)];
        }
        let found = statistics::sample_stats(&mut sample.delays_us);
        let of = |wanted: &str| found.iter().find(|(stat, _)| *stat == wanted).map(|(_, us)| *us);
        let rows = STATS.into_iter();
        rows.filter_map(|(stat, name)| Some(row("us", name, of(stat)?, packets))).collect()
    }
}

#[cfg(test)]
mod tests;
