//! A trial that is running or has just ended.

use std::collections::BTreeMap;

use ccbench_proto::schedule::PhaseSpan;
use ccbench_proto::units::Micros;
use ccbench_proto::wire::{
    FlowSample, HostSample, Probe, QdiscSample, Role, RunEvent, Side, run_event::Payload,
};
use ccbench_results::in_flight::packets_in_flight;

use super::link::LinkInstant;
use super::series::{Bins, SampleTime, Series, rounded};
use super::update::{
    FlowView, HostView, LinkView, PhaseView, ProbeView, Quantity, RunningTrial, TrialView,
};

/// Maximum number of flows, links or probes with series. An agent samples at most this many sockets.
const MAX_SUBJECTS: usize = 4096;

/// What is known about a trial before its first row.
#[derive(Debug, Clone, Default)]
pub struct TrialFacts {
    /// Position in the order of all trials, from 1.
    pub number: usize,
    /// Point and repetition.
    pub label: String,
    /// The phases in time order.
    pub phases: Vec<PhaseSpan>,
    /// Data connections of the plan.
    pub flows: u64,
}

/// The aggregated rows of a trial.
#[derive(Debug)]
pub struct LiveTrial {
    facts: TrialFacts,
    /// The attempt at the trial, from 1.
    attempt: u32,
    bins: Bins,
    /// CLOCK_MONOTONIC of each node at the trial's start.
    t0_ns: BTreeMap<String, u64>,
    /// The newest known instant, relative to the trial's start.
    elapsed_ns: u64,
    flows: BTreeMap<String, LiveFlow>,
    links: BTreeMap<String, LiveLink>,
    probes: BTreeMap<String, LiveProbe>,
    hosts: BTreeMap<String, HostView>,
    rows_left_out: u64,
    rows_outside: u64,
    status: &'static str,
    has_ended: bool,
    reasons: Vec<String>,
}

#[derive(Debug, Default)]
struct LiveFlow {
    group: String,
    cc: String,
    last_ns: u64,
    /// Counters of the sender and of the receiver.
    bytes: [Option<Counter>; 2],
    rate: Series,
    rtt: Series,
    cwnd: Series,
    in_flight: Series,
    retrans_pkts: u64,
    marks_pkts: Option<u64>,
}

/// A counter of bytes, at a time on its node's clock.
#[derive(Debug, Clone, Copy)]
struct Counter {
    at_ns: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct LiveLink {
    /// The rows of one instant, until a row of the next instant arrives.
    instant: Option<(LinkInstant, SampleTime)>,
    backlog: Series,
    drops: TrialCounter,
    marks: Option<TrialCounter>,
    rate_bps: Option<u64>,
}

/// A counter that may have been nonzero before the trial.
#[derive(Debug, Clone, Copy, Default)]
struct TrialCounter {
    first: Option<u64>,
    last: u64,
}

impl TrialCounter {
    fn set(&mut self, value: u64) {
        self.first.get_or_insert(value);
        self.last = value;
    }

    fn in_trial(self) -> u64 {
        self.last.saturating_sub(self.first.unwrap_or(0))
    }
}

#[derive(Debug, Default)]
struct LiveProbe {
    rtt: Series,
    sent: u64,
    lost: u64,
}

/// Returns the entry of this name, or `None` if it is new and there are already [`MAX_SUBJECTS`].
fn entry<'a, T: Default>(all: &'a mut BTreeMap<String, T>, name: &str) -> Option<&'a mut T> {
    // Avoids an allocation for rows of known subjects, which are nearly all.
    if !all.contains_key(name) {
        if all.len() >= MAX_SUBJECTS {
            return None;
        }
        all.insert(name.to_owned(), T::default());
    }
    all.get_mut(name)
}

impl LiveTrial {
    /// Makes a trial without rows.
    pub fn new(facts: TrialFacts) -> Self {
        let length_ns = length(&facts.phases).nanos();
        Self {
            bins: Bins::new(length_ns, facts.flows),
            facts,
            attempt: 1,
            t0_ns: BTreeMap::new(),
            elapsed_ns: 0,
            flows: BTreeMap::new(),
            links: BTreeMap::new(),
            probes: BTreeMap::new(),
            hosts: BTreeMap::new(),
            rows_left_out: 0,
            rows_outside: 0,
            status: "ok",
            has_ended: false,
            reasons: vec![],
        }
    }

    /// Makes the next attempt at this trial, without rows.
    #[must_use]
    pub fn next_attempt(self) -> Self {
        Self { attempt: self.attempt + 1, ..Self::new(self.facts) }
    }

    /// Returns the attempt at the trial, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the trial's number.
    pub fn number(&self) -> usize {
        self.facts.number
    }

    /// Returns the trial's label.
    pub fn label(&self) -> &str {
        &self.facts.label
    }

    /// Sets the trial's start on each node's clock. Drift is not corrected, because it is only microseconds within a trial.
    pub fn start(&mut self, t0_ns: BTreeMap<String, u64>) {
        self.t0_ns = t0_ns;
    }

    /// Sets how much of the trial has passed.
    pub fn tick(&mut self, elapsed_ns: u64) {
        self.elapsed_ns = self.elapsed_ns.max(elapsed_ns);
    }

    /// Sets the verdict so far.
    pub fn judge(&mut self, status: &'static str, reasons: Vec<String>) {
        (self.status, self.reasons) = (status, reasons);
    }

    /// Ends the trial with the verdict so far, during this revision of the state.
    pub fn end(&mut self, revision: u32) {
        self.links.values_mut().for_each(|link| link.end_instant(revision));
        self.has_ended = true;
    }

    /// Adds a row of a node, during this revision of the state.
    pub fn record(&mut self, node: &str, event: &RunEvent, revision: u32) {
        let at_ns = match &event.payload {
            Some(Payload::FlowSample(row)) if row.role() == Role::Data => row.at_ns,
            Some(Payload::QdiscSample(row)) => row.at_ns,
            Some(Payload::Probe(row)) => row.at_ns,
            Some(Payload::HostSample(row)) => row.at_ns,
            // The results keep these rows; the view does not show them.
            _ => return,
        };
        let Some(elapsed_ns) = self.t0_ns.get(node).and_then(|t0_ns| at_ns.checked_sub(*t0_ns))
        else {
            self.rows_outside += 1;
            return;
        };
        self.elapsed_ns = self.elapsed_ns.max(elapsed_ns);
        let at = SampleTime { elapsed_ns, bin: self.bins.index(elapsed_ns), revision };
        let is_known = match &event.payload {
            Some(Payload::FlowSample(row)) => self.flow_sample(row, at),
            Some(Payload::QdiscSample(row)) => self.qdisc_sample(row, at),
            Some(Payload::Probe(row)) => self.probe(row, at),
            Some(Payload::HostSample(row)) => self.host_sample(node, row),
            _ => Some(()),
        };
        self.rows_left_out += u64::from(is_known.is_none());
    }

    /// Returns `None` if the view has no room for the flow. So do the functions below.
    fn flow_sample(&mut self, row: &FlowSample, at: SampleTime) -> Option<()> {
        let flow = entry(&mut self.flows, &row.flow_id)?;
        flow.last_ns = flow.last_ns.max(at.elapsed_ns);
        let receives = row.side() == Side::Receiver;
        if flow.group.is_empty() {
            flow.group.clone_from(&row.group);
        }
        let bytes = if receives { row.bytes_received } else { row.bytes_acked };
        flow.count_bytes(receives, row.at_ns, bytes, at);
        if receives {
            return Some(());
        }
        if flow.cc != row.cc {
            flow.cc.clone_from(&row.cc);
        }
        let add = |series: &mut Series, value: Option<f64>| {
            if let Some(value) = value {
                series.add(at, value, 1.0);
            }
        };
        add(&mut flow.rtt, row.rtt_us.map(f64::from));
        add(&mut flow.cwnd, row.snd_cwnd_pkts.map(f64::from));
        add(&mut flow.in_flight, in_flight(row));
        flow.retrans_pkts = row.total_retrans_pkts.map_or(flow.retrans_pkts, u64::from);
        flow.marks_pkts = row.delivered_ce_pkts.map(u64::from).or(flow.marks_pkts);
        Some(())
    }

    fn qdisc_sample(&mut self, row: &QdiscSample, at: SampleTime) -> Option<()> {
        let link = entry(&mut self.links, &row.link)?;
        if link.instant.is_some_and(|(instant, _)| instant.at_ns != row.at_ns) {
            link.end_instant(at.revision);
        }
        let (instant, _) = link.instant.get_or_insert((LinkInstant::new(row.at_ns), at));
        instant.add(row);
        Some(())
    }

    fn probe(&mut self, row: &Probe, at: SampleTime) -> Option<()> {
        let probe = entry(&mut self.probes, &row.probe_id)?;
        probe.sent += 1;
        probe.lost += u64::from(row.lost);
        if let Some(us) = row.total_us.or(row.rtt_us) {
            probe.rtt.add(at, us, 1.0);
        }
        Some(())
    }

    fn host_sample(&mut self, node: &str, row: &HostSample) -> Option<()> {
        let host = entry(&mut self.hosts, node)?;
        host.busy_pct = rounded(100.0 - row.cpu_idle_pct);
        host.max_busy_pct = rounded(row.cpu_max_busy_pct);
        host.peak_busy_pct = host.peak_busy_pct.max(host.max_busy_pct);
        host.steal_pct = rounded(row.cpu_steal_pct);
        host.agent_pct = rounded(row.agent_cpu_pct);
        host.softnet_dropped = host.softnet_dropped.saturating_add(row.softnet_dropped);
        Some(())
    }

    fn phase(&self) -> Option<usize> {
        if self.has_ended {
            return None;
        }
        let elapsed = Micros::new(self.elapsed_ns / 1000);
        self.facts.phases.iter().position(|phase| phase.start <= elapsed && elapsed < phase.end)
    }

    fn phase_name(&self, index: Option<usize>) -> Option<String> {
        self.facts.phases.get(index?).map(|phase| phase.name.clone())
    }

    /// Returns a summary for one line.
    pub fn running(&self) -> RunningTrial {
        RunningTrial {
            number: self.facts.number,
            label: self.facts.label.clone(),
            phase: self.phase_name(self.phase()),
            elapsed_s: seconds(self.elapsed_ns),
            length_s: length(&self.facts.phases).as_secs_f64(),
        }
    }

    /// Returns the details, with the bins that have changed since this revision.
    pub fn view(&self, since: u32) -> TrialView {
        let quantity = |series: &Series| Quantity {
            now: series.now().map(rounded),
            bins: series.since(since),
        };
        let flow = |(id, flow): (&String, &LiveFlow)| {
            let view = FlowView {
                group: flow.group.clone(),
                cc: flow.cc.clone(),
                idle_s: seconds(self.elapsed_ns.saturating_sub(flow.last_ns)),
                rate_bps: quantity(&flow.rate),
                rtt_us: quantity(&flow.rtt),
                cwnd_pkts: quantity(&flow.cwnd),
                in_flight_pkts: quantity(&flow.in_flight),
                retrans_pkts: flow.retrans_pkts,
                marks_pkts: flow.marks_pkts,
            };
            (id.clone(), view)
        };
        let link = |(name, link): (&String, &LiveLink)| {
            let view = LinkView {
                rate_bps: link.rate_bps,
                backlog_bytes: quantity(&link.backlog),
                drops_pkts: link.drops.in_trial(),
                marks_pkts: link.marks.map(TrialCounter::in_trial),
            };
            (name.clone(), view)
        };
        let probe = |(name, probe): (&String, &LiveProbe)| {
            let LiveProbe { rtt, sent, lost } = probe;
            (name.clone(), ProbeView { rtt_us: quantity(rtt), sent: *sent, lost: *lost })
        };
        let RunningTrial { number, label, phase, elapsed_s, length_s } = self.running();
        TrialView {
            number,
            attempt: self.attempt,
            label,
            elapsed_s,
            length_s,
            phase,
            next_phase: self.phase_name(self.phase().map(|phase| phase + 1)),
            phases: self.facts.phases.iter().map(phase_view).collect(),
            bin_s: seconds(self.bins.width_ns),
            status: self.status.to_owned(),
            has_ended: self.has_ended,
            reasons: self.reasons.clone(),
            flows: self.flows.iter().map(flow).collect(),
            links: self.links.iter().map(link).collect(),
            probes: self.probes.iter().map(probe).collect(),
            hosts: self.hosts.clone(),
            rows_left_out: self.rows_left_out,
            rows_outside: self.rows_outside,
        }
    }
}

impl LiveLink {
    /// Takes over the rows of an instant that is complete.
    fn end_instant(&mut self, revision: u32) {
        let Some((instant, at)) = self.instant.take() else { return };
        self.backlog.add(SampleTime { revision, ..at }, instant.backlog_bytes() as f64, 1.0);
        self.drops.set(instant.drops_pkts());
        self.rate_bps = instant.rate_bps;
        if let Some(marks) = instant.marks_pkts() {
            self.marks.get_or_insert_default().set(marks);
        }
    }
}

impl LiveFlow {
    /// Adds the rate since the previous sample of the same end. If both ends are sampled, the receiver's rate counts (goodput).
    fn count_bytes(&mut self, receives: bool, at_ns: u64, bytes: Option<u64>, at: SampleTime) {
        let Some(bytes) = bytes else { return };
        let [sender, receiver] = &mut self.bytes;
        if receives && receiver.is_none() {
            // Drops the few rates of the sender so far, which are about the same bytes.
            self.rate = Series::default();
        }
        let is_counted = receives || receiver.is_none();
        let counter = if receives { receiver } else { sender };
        let before = counter.replace(Counter { at_ns, bytes });
        let Some(before) = before.filter(|before| is_counted && before.at_ns < at_ns) else {
            return;
        };
        let span_ns = (at_ns - before.at_ns) as f64;
        // A counter that restarts at 0 belongs to another connection.
        let bits = bytes.saturating_sub(before.bytes) as f64 * 8.0;
        self.rate.add(at, bits * 1e9 / span_ns, span_ns);
    }
}

fn in_flight(row: &FlowSample) -> Option<f64> {
    let counters = [row.unacked_pkts, row.sacked_pkts, row.lost_pkts, row.retrans_pkts];
    packets_in_flight(counters.map(|pkts| pkts.map(f64::from)))
}

fn length(phases: &[PhaseSpan]) -> Micros {
    phases.last().map_or(Micros::default(), |phase| phase.end)
}

fn seconds(ns: u64) -> f64 {
    // Milliseconds are enough for a view.
    (ns / 1_000_000) as f64 / 1e3
}

fn phase_view(phase: &PhaseSpan) -> PhaseView {
    let PhaseSpan { name, start, end, .. } = phase;
    PhaseView { name: name.clone(), start_us: start.get(), end_us: end.get() }
}
