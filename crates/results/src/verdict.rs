//! Judges a trial while its rows arrive. A few counters per flow, link and host suffice, without a second pass over the files.
//!
//! Each check is a module, which gives its limits and the reasons for them: [`host`], [`link`] with [`timing`], [`foreign`], [`flow`],
//! `cc_start`, `cc_state`, `clock`, [`ecn`], [`acks`], [`path`], [`probe`], [`gaps`] and `unreadable`. The worst problem decides the status.

use std::collections::BTreeMap;

use ccbench_proto::event::{Capture, Kind, Severity};
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule;
use ccbench_proto::wire::{Done, Event, NodeInfo, RunEvent, run_event::Payload};

use crate::curve;
use crate::model::{NodeClock, Reason, Status, Verdict};
use crate::reason::ReasonCode;
use cc_state::CcStateCheck;
use ecn::EcnCheck;
use findings::{Findings, Span};
use flow::FlowCheck;
use foreign::ForeignCheck;
use gaps::GapCheck;
use host::HostCheck;
use link::LinkCheck;
use path::PathCheck;
use probe::ProbeCheck;
use unreadable::Unreadable;

pub mod acks;
mod cc_start;
mod cc_state;
mod clock;
pub mod ecn;
mod findings;
pub mod flow;
pub mod foreign;
pub mod gaps;
pub mod host;
pub mod link;
pub mod path;
pub mod probe;
pub mod timing;
mod unreadable;

/// Judges one trial.
#[derive(Debug)]
pub struct Judge {
    spans: BTreeMap<String, Span>,
    hosts: HostCheck,
    links: LinkCheck,
    foreign: ForeignCheck,
    flows: FlowCheck,
    paths: PathCheck,
    probes: ProbeCheck,
    gaps: GapCheck,
    ecn: EcnCheck,
    states: CcStateCheck,
    unreadable: Unreadable,
    findings: Findings,
}

impl Judge {
    /// Creates the judge of one trial of a point, with each node's description and clock. A node without a clock counts as lost.
    pub fn new(
        plan: &CheckedPlan,
        nodes: &BTreeMap<String, NodeInfo>,
        clocks: &BTreeMap<String, NodeClock>,
    ) -> Self {
        let length_ns = schedule::length(plan).nanos();
        let span = |clock: &NodeClock| Span {
            t0_ns: clock.t0_ns,
            end_ns: clock.t0_ns.saturating_add(length_ns),
        };
        let curves = curve::capacity_curves(plan);
        Self {
            spans: clocks.iter().map(|(node, clock)| (node.clone(), span(clock))).collect(),
            hosts: HostCheck::new(nodes, clocks),
            links: LinkCheck::new(plan, &curves),
            foreign: ForeignCheck::default(),
            flows: FlowCheck::new(plan),
            paths: PathCheck::new(plan),
            probes: ProbeCheck::new(plan),
            gaps: GapCheck::new(plan, clocks.keys()),
            ecn: EcnCheck::new(plan),
            states: CcStateCheck::default(),
            unreadable: Unreadable::new(nodes),
            findings: Findings::default(),
        }
    }

    /// Stops deriving reasons from CPU utilisation, for nodes whose CPU takes no time.
    pub fn ignore_cpu_utilisation(&mut self) {
        self.hosts.ignores_cpu = true;
    }

    /// Stops expecting samples of machines, for nodes that have none.
    pub fn ignore_machines(&mut self) {
        self.ignore_cpu_utilisation();
        self.gaps.ignore_machines();
    }

    /// Updates the checks with one message of a node's stream.
    pub fn observe(&mut self, node: &str, event: &RunEvent) {
        let Some(&span) = self.spans.get(node) else { return };
        self.unreadable.message(node, event.payload.as_ref());
        let Some(payload) = &event.payload else { return };
        self.gaps.row(node, span, payload);
        match payload {
            Payload::FlowSample(row) => {
                self.flows.sample(node, span, row);
                self.ecn.sample(span, row);
                self.states.sample(node, row);
            }
            Payload::Interval(row) => self.flows.interval(span, row),
            Payload::Flow(row) => self.flows.flow(row),
            Payload::QdiscSample(row) => {
                self.links.sample(node, span, row);
                self.foreign.sample(node, span, row);
                self.ecn.queue(node, span, row);
            }
            Payload::LinkChange(row) => self.links.change(row),
            Payload::LinkTiming(row) => self.links.timing(node, row),
            Payload::HostSample(row) => self.hosts.sample(node, span, row),
            Payload::Event(row) => self.event(node, row),
            Payload::AckCount(row) => acks::lost(node, row, &mut self.findings),
            Payload::Probe(row) => self.probes.row(row),
            Payload::CcState(row) => self.states.state(row),
            Payload::LinkPacket(_) | Payload::Raw(_) | Payload::Done(_) => {}
            Payload::Acks(_) | Payload::TcpEvents(_) => {}
        }
    }

    /// Takes one part of a node's reply to Prepare.
    pub fn reply(&mut self, node: &str, subject: &str, part: &Kind) {
        let (subject, kind) = (subject.to_owned(), Some(part.clone()));
        self.event(node, &Event { subject, kind, ..Event::default() });
    }

    fn event(&mut self, node: &str, event: &Event) {
        let kind = match event.read() {
            Ok(kind) => kind,
            Err(error) => return self.unreadable.add(node, event, error),
        };
        let group = &event.subject;
        match kind {
            Kind::BaseRtt(rtt) => self.paths.base_rtt(node, &event.subject, rtt),
            Kind::Link(link) => self.paths.link(link),
            Kind::Ecn(ecn) => self.ecn.event(node, group, ecn),
            Kind::Capture(capture) => self.capture(node, event, capture),
            Kind::InitialCc(start) => cc_start::judge(node, group, start, &mut self.findings),
            Kind::CcSockets(sockets) => {
                cc_start::judge_sockets(node, group, sockets, &mut self.findings);
            }
            Kind::CongestionControl(loaded) => {
                if let Some(cc) = &loaded.cc {
                    self.states.loaded(cc);
                }
            }
            Kind::CcStateError(_) | Kind::CcStateThinned(_) => self.states.unreadable(node),
            _ => {}
        }
        let status = match kind.severity() {
            Severity::Info => return,
            Severity::Degraded => Status::Degraded,
            Severity::Failed => Status::Failed,
        };
        self.findings.add(
            status,
            kind.name().into(),
            node,
            format!("{node}: {}: {}", event.subject, event.message),
        );
    }

    /// Checks for packets that are missing in a capture's files.
    fn capture(&mut self, node: &str, event: &Event, capture: &Capture) {
        let message = || format!("{node}: {}: {}", event.subject, event.message);
        if capture.dropped() > 0 {
            self.findings.add(Status::Degraded, ReasonCode::CaptureDropped, node, message());
        }
        if capture.left_out() > 0 {
            self.findings.add(Status::Degraded, ReasonCode::CaptureFull, node, message());
        }
    }

    /// Takes a node's clock, with the bounds measured after the trial.
    pub fn clock(&mut self, node: &str, clock: &NodeClock) {
        clock::judge(node, clock, &mut self.findings);
    }

    /// Returns what is known before the trial's end: problems in events, idle RTTs, and the load of machines so far, which may fall below
    /// its limit again. Other checks need the whole trial.
    pub fn so_far(&self) -> Verdict {
        let mut findings = self.findings.clone();
        self.paths.finish(&mut findings);
        self.hosts.finish(&mut findings);
        findings.verdict()
    }

    /// Returns the verdict. `done` has the `Done` message of every node whose stream ended properly. Each of `errors` fails the trial.
    pub fn finish(self, done: &BTreeMap<String, Done>, errors: &[String]) -> Verdict {
        let mut findings = self.findings;
        for error in errors {
            findings.push(Status::Failed, Reason::new(ReasonCode::Error, error.clone()));
        }
        for node in self.spans.keys().filter(|node| !done.contains_key(*node)) {
            let message =
                format!("{node}: its stream ended without a `Done` message; rows may be missing");
            findings.add(Status::Failed, ReasonCode::NodeLost, node, message);
        }
        for (node, done) in done {
            if done.rows_dropped > 0 {
                let (dropped, sent) = (done.rows_dropped, done.rows_sent);
                let total = dropped.saturating_add(sent);
                let message = format!(
                    "{node}: {dropped} of {total} rows dropped because the queue to the controller was full; use a release \
                     build (`make install`), sample less often (`sample.tcp`, `sample.acks`), or give the controller an \
                     idle CPU"
                );
                findings.add(Status::Degraded, ReasonCode::RowsDropped, node, message);
            }
        }
        self.flows.finish(done, &mut findings);
        self.links.finish(&self.spans, &mut findings);
        self.foreign.finish(&mut findings);
        self.hosts.finish(&mut findings);
        self.paths.finish(&mut findings);
        self.probes.finish(&mut findings);
        self.gaps.finish(done, &mut findings);
        self.ecn.finish(&mut findings);
        self.states.finish(&mut findings);
        self.unreadable.finish(&mut findings);
        findings.verdict()
    }
}

#[cfg(test)]
mod tests;
