//! Finds times without samples (reason `samples_missing`) in every table that has a row per interval: sockets at both ends, links, machines
//! and probes.
//!
//! Tables whose rows do not come at intervals (`acks`, `tcp_events`, `cc_state`, `events`) cannot be judged this way. Their missing rows
//! are counted where they are lost.

use std::collections::BTreeMap;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::{Probe as PlannedProbe, Repeat};
use ccbench_proto::schedule;
use ccbench_proto::units::Micros;
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{Done, FlowSample, Role, Side};

use super::findings::{Findings, Span};
use super::flow::SET_UP_RTTS;
use crate::model::Status;
use crate::reason::ReasonCode;

/// A time without samples is a gap if it is longer than this ...
pub const GAP_S: f64 = 1.0;
/// ... and longer than this many intervals, so that three consecutive samples are missing.
pub const GAP_INTERVALS: f64 = 3.5;
/// Minimum share of the expected samples. With fewer samples, the mean over a phase is not representative.
pub const MIN_SAMPLES_SHARE: f64 = 0.9;
/// Minimum number of expected samples for this check, because the first and the last may fall outside.
pub const MIN_EXPECTED_SAMPLES: f64 = 10.0;

/// Start and end, in seconds since the trial's beginning.
type Window = (f64, f64);

/// The times of one subject's samples.
#[derive(Debug, Default)]
struct Times {
    /// The first and the last sample.
    seen: Option<Window>,
    count: u64,
    /// Samples after this time are not expected, so they do not count.
    counted_until_s: Option<f64>,
    /// Times without a sample that are longer than the limit.
    gaps: Vec<Window>,
}

impl Times {
    /// Adds a sample. Samples may come in any order: the row of a lost echo comes after those of later ones.
    fn add(&mut self, at_s: f64, limit_s: f64) {
        let counted = u64::from(self.counted_until_s.is_none_or(|until_s| at_s <= until_s));
        let Some((first_s, last_s)) = self.seen else {
            (self.seen, self.count) = (Some((at_s, at_s)), counted);
            return;
        };
        // Qdiscs and classes of a link are read at the same time.
        if at_s == last_s {
            return;
        }
        self.count += counted;
        self.seen = Some((first_s.min(at_s), last_s.max(at_s)));
        if at_s > last_s {
            self.add_gap((last_s, at_s), limit_s);
        } else if at_s < first_s {
            self.add_gap((at_s, first_s), limit_s);
        } else if let Some(index) =
            self.gaps.iter().position(|(from_s, to_s)| *from_s < at_s && at_s < *to_s)
        {
            let (from_s, to_s) = self.gaps.swap_remove(index);
            self.add_gap((from_s, at_s), limit_s);
            self.add_gap((at_s, to_s), limit_s);
        }
    }

    fn add_gap(&mut self, (from_s, to_s): Window, limit_s: f64) {
        if to_s - from_s > limit_s {
            self.gaps.push((from_s, to_s));
        }
    }

    /// Returns which samples in a window are missing; `None` if this is within the limits. At both ends of the window, `margin_s` more may
    /// be missing.
    fn missing(&self, window: Window, pace: &Pace, margin_s: f64) -> Option<Missing> {
        if window.1 <= window.0 {
            return None;
        }
        let edge_s = pace.limit_s + margin_s;
        let mut gaps = self.gaps.clone();
        let mut begin_s = window.0;
        let mut add_edge = |from_s: f64, to_s: f64| {
            let is_gap = to_s - from_s > edge_s;
            gaps.extend(is_gap.then_some((from_s, to_s)));
            is_gap
        };
        match self.seen {
            None => {
                add_edge(window.0, window.1);
            }
            Some((first_s, last_s)) => {
                if !add_edge(window.0, first_s) {
                    begin_s = first_s;
                }
                add_edge(last_s, window.1);
            }
        }
        gaps.sort_by(|a, b| (b.1 - b.0).total_cmp(&(a.1 - a.0)));
        let length_s = window.1 - begin_s;
        let expected = pace.interval_s.map(|interval_s| (length_s / interval_s).floor());
        let share = match expected {
            Some(expected) => 1.0 - self.count as f64 / expected.max(1.0),
            None => gaps.iter().map(|(from_s, to_s)| to_s - from_s).sum::<f64>() / length_s,
        };
        let few = share > 1.0 - MIN_SAMPLES_SHARE && expected >= Some(MIN_EXPECTED_SAMPLES);
        let longest = gaps.first().copied();
        (few || longest.is_some()).then(|| Missing {
            longest,
            others: gaps.len().saturating_sub(1),
            limit_s: pace.limit_s,
            counts: expected.map(|expected| (self.count, expected)),
            share: share.max(0.0),
        })
    }
}

/// How often samples come.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// The interval; `None` if a sample may take any number of intervals.
    interval_s: Option<f64>,
    /// A time without samples is a gap if it is longer than this.
    limit_s: f64,
}

impl Pace {
    fn every(interval: Micros) -> Self {
        let interval_s = interval.as_secs_f64();
        let limit_s = GAP_S.max(GAP_INTERVALS * interval_s);
        Self { interval_s: Some(interval_s), limit_s }
    }

    /// Returns the pace of a probe; `None` if it does not repeat. Connections and fetches follow each other, so a long one delays the next.
    fn of_probe(probe: &PlannedProbe) -> Option<Self> {
        let even = Self::every(probe.every);
        let gap_s = match probe.repeat {
            Repeat::Once => return None,
            Repeat::Interval => even.limit_s,
            Repeat::BackToBack => GAP_S,
        };
        if !probe.kind.connects() {
            return Some(even);
        }
        Some(Self { interval_s: None, limit_s: gap_s + probe.timeout().as_secs_f64() })
    }
}

/// The missing samples in a window.
#[derive(Debug)]
struct Missing {
    longest: Option<Window>,
    /// Number of gaps besides the longest one.
    others: usize,
    limit_s: f64,
    /// Number of samples, and of expected ones.
    counts: Option<(u64, f64)>,
    share: f64,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { longest, others, limit_s, counts, share } = self;
        let percent = share * 100.0;
        if let Some((from_s, to_s)) = longest {
            let length_s = to_s - from_s;
            write!(f, "no sample for {length_s:.2} s from {from_s:.2} s to {to_s:.2} s")?;
            match others {
                0 => {}
                1 => write!(f, ", and one shorter gap")?,
                others => write!(f, ", and {others} shorter gaps")?,
            }
            write!(f, " (limit {limit_s:.2} s); ")?;
        }
        match counts {
            Some((count, expected)) => {
                let least = MIN_SAMPLES_SHARE * 100.0;
                write!(
                    f,
                    "{count} of {expected:.0} samples, {percent:.0} % missing (at least {least:.0} % required)"
                )
            }
            None => write!(f, "{percent:.0} % of the time"),
        }
    }
}

/// Both ends of a flow.
#[derive(Debug, Default)]
struct Ends {
    sender: Times,
    receiver: Times,
    srtt_s: f64,
}

/// A flow group.
#[derive(Debug)]
struct Group {
    sender: String,
    receiver: String,
    stop_s: f64,
    count: u32,
}

/// The times of all samples.
#[derive(Debug)]
pub(super) struct GapCheck {
    end_s: f64,
    tcp: Pace,
    qdisc: Pace,
    host: Pace,
    groups: BTreeMap<String, Group>,
    /// Flows, by their identifiers.
    flows: BTreeMap<String, Ends>,
    /// Links, by name.
    links: BTreeMap<String, (String, Times)>,
    /// Machines, by node.
    hosts: BTreeMap<String, Times>,
    /// Probes, by name.
    probes: BTreeMap<String, (PlannedProbe, Pace, Times)>,
}

impl GapCheck {
    /// Creates the check for the `nodes` of a trial.
    pub(super) fn new<'a>(plan: &CheckedPlan, nodes: impl Iterator<Item = &'a String>) -> Self {
        let end_s = schedule::length(plan).as_secs_f64();
        let group = |task: schedule::FlowTask| {
            let flow = task.plan;
            let (sender, receiver) =
                if flow.reverse { (flow.to, flow.from) } else { (flow.from, flow.to) };
            let stop_s = task.stop.as_secs_f64().min(end_s);
            (task.group, Group { sender, receiver, stop_s, count: flow.count })
        };
        let groups: BTreeMap<_, _> = schedule::flows(plan).into_iter().map(group).collect();
        let ids = |(name, group): (&String, &Group)| {
            let name = name.clone();
            (0..group.count).map(move |index| (format!("{name}/{index}"), Ends::default()))
        };
        let plan = plan.plan();
        let probe = |(name, probe): (&String, &PlannedProbe)| {
            let counted_until_s = Some(expected_until_s(probe, end_s));
            let times = Times { counted_until_s, ..Times::default() };
            Some((name.clone(), (probe.clone(), Pace::of_probe(probe)?, times)))
        };
        let links = plan.links.iter();
        Self {
            end_s,
            tcp: Pace::every(plan.sample.tcp),
            qdisc: Pace::every(plan.sample.qdisc),
            host: Pace::every(plan.sample.host),
            flows: groups.iter().flat_map(ids).collect(),
            groups,
            links: links
                .map(|(name, link)| (name.clone(), (link.node.clone(), Times::default())))
                .collect(),
            hosts: nodes.map(|node| (node.clone(), Times::default())).collect(),
            probes: plan.probes.iter().filter_map(probe).collect(),
        }
    }

    /// Stops expecting samples of machines.
    pub(super) fn ignore_machines(&mut self) {
        self.hosts.clear();
    }

    /// Adds a row of any table.
    pub(super) fn row(&mut self, node: &str, span: Span, payload: &Payload) {
        match payload {
            Payload::FlowSample(row) => self.socket(span, row),
            Payload::QdiscSample(row) if span.contains(row.at_ns) => {
                if let Some((_, times)) = self.links.get_mut(&row.link) {
                    times.add(span.seconds(row.at_ns), self.qdisc.limit_s);
                }
            }
            Payload::HostSample(row) if span.contains(row.at_ns) => {
                if let Some(times) = self.hosts.get_mut(node) {
                    times.add(span.seconds(row.at_ns), self.host.limit_s);
                }
            }
            Payload::Probe(row) if span.contains(row.at_ns) => {
                if let Some((_, pace, times)) = self.probes.get_mut(&row.probe_id) {
                    times.add(span.seconds(row.at_ns), pace.limit_s);
                }
            }
            _ => {}
        }
    }

    fn socket(&mut self, span: Span, row: &FlowSample) {
        let at_s = span.seconds(row.at_ns);
        let stop_s = self.groups.get(&row.group).map_or(self.end_s, |group| group.stop_s);
        let Some(ends) = self.flows.get_mut(&row.flow_id).filter(|_| row.role() == Role::Data)
        else {
            return;
        };
        if row.side() == Side::Sender
            && let Some(rtt_us) = row.rtt_us
        {
            ends.srtt_s = f64::from(rtt_us) / 1e6;
        }
        let times = match row.side() {
            Side::Sender => &mut ends.sender,
            _ => &mut ends.receiver,
        };
        // After a flow's stop, its socket exists until its data has drained.
        if at_s <= stop_s {
            times.add(at_s, self.tcp.limit_s);
        }
    }

    /// Judges only nodes that are `done`: a lost node fails the trial anyway.
    pub(super) fn finish(self, done: &BTreeMap<String, Done>, findings: &mut Findings) {
        let whole = (0.0, self.end_s);
        let mut found = Vec::new();
        for (node, times) in &self.hosts {
            let missing = times.missing(whole, &self.host, 0.0);
            found.push(("host_samples", node, "its machine".to_owned(), 1, missing));
        }
        for (link, (node, times)) in &self.links {
            let missing = times.missing(whole, &self.qdisc, 0.0);
            found.push(("qdisc_samples", node, format!("links.{link}"), 1, missing));
        }
        for (id, ends) in &self.flows {
            let name = id.rsplit_once('/').map_or(id.as_str(), |(name, _)| name);
            let Some(group) = self.groups.get(name) else { continue };
            let [sender, receiver] = ends.missing(group, &self.tcp);
            let subject = format!("flows.{name}");
            found.push(("flow_samples", &group.sender, subject.clone(), group.count, sender));
            found.push(("flow_samples", &group.receiver, subject, group.count, receiver));
        }
        for (name, (probe, pace, times)) in &self.probes {
            let missing = probe_missing(probe, pace, times, self.end_s);
            found.push(("probes", &probe.from, format!("probes.{name}"), 1, missing));
        }
        let mut problems: BTreeMap<_, (u32, u32, Missing)> = BTreeMap::new();
        for (table, node, subject, count, missing) in found {
            let Some(missing) = missing.filter(|_| done.contains_key(node)) else { continue };
            match problems.entry((table, node, subject)) {
                std::collections::btree_map::Entry::Vacant(vacant) => {
                    vacant.insert((1, count, missing));
                }
                std::collections::btree_map::Entry::Occupied(mut occupied) => {
                    let (flows, _, worst) = occupied.get_mut();
                    *flows += 1;
                    if missing.share > worst.share {
                        *worst = missing;
                    }
                }
            }
        }
        for ((table, node, subject), (flows, count, missing)) in problems {
            let of = if count > 1 { format!(" ({flows} of {count} flows)") } else { String::new() };
            let message = format!("{node}: table {table}, {subject}{of}: {missing}");
            findings.add(Status::Degraded, ReasonCode::SamplesMissing, node, message);
        }
    }
}

impl Ends {
    /// Returns the missing samples of sender and receiver. A flow's sockets exist from the first sample to the last one at either end. A
    /// late start or an early end has its own reason.
    fn missing(&self, group: &Group, pace: &Pace) -> [Option<Missing>; 2] {
        let seen = [self.sender.seen, self.receiver.seen];
        let first_s = seen.iter().flatten().map(|seen| seen.0).min_by(f64::total_cmp);
        let last_s = seen.iter().flatten().map(|seen| seen.1).max_by(f64::total_cmp);
        let (Some(first_s), Some(last_s)) = (first_s, last_s) else { return [None, None] };
        let window = (first_s, last_s.min(group.stop_s));
        let margin_s = f64::from(SET_UP_RTTS) * self.srtt_s;
        [&self.sender, &self.receiver].map(|times| times.missing(window, pace, margin_s))
    }
}

/// Returns the time until which samples of a probe are expected: the last ones may not finish.
fn expected_until_s(probe: &PlannedProbe, end_s: f64) -> f64 {
    end_s - probe.timeout().as_secs_f64()
}

/// Returns the missing samples of a probe. A probe without any row is dead, which has its own reason.
fn probe_missing(probe: &PlannedProbe, pace: &Pace, times: &Times, end_s: f64) -> Option<Missing> {
    times.seen?;
    times.missing((probe.start.as_secs_f64(), expected_until_s(probe, end_s)), pace, 0.0)
}

#[cfg(test)]
mod tests;
