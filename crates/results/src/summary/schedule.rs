//! When groups run and when links or flows change, according to the run's plan.

use std::collections::BTreeMap;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::sample::MIN_TIMESCALE;
use ccbench_proto::plan::{Flow, Probe, Sample, TraceUse};
use ccbench_proto::schedule::{self, FlowTask, Point};

use super::network::Network;
use super::span::{Group, Span};
use crate::journal::PhaseRecord;

/// Times of groups and changes of each point; `None` if the plan cannot be read.
pub(crate) struct Schedule(Option<BTreeMap<u32, Timing>>);

/// Times of one point.
struct Timing {
    groups: BTreeMap<String, Group>,
    /// Times at which a link changes or a flow starts or stops.
    steps_s: Vec<f64>,
    network: Network,
    probes: BTreeMap<String, Probe>,
    flows: BTreeMap<String, Flow>,
    /// Length of the instants of instantaneous metrics.
    timescale_s: f64,
    /// Interval between two samples of queues.
    queue_interval_s: f64,
}

impl Timing {
    fn from_point(point: &Point) -> Self {
        let timed = |task: FlowTask| {
            let span = (task.start.as_secs_f64(), task.stop.as_secs_f64());
            (task.group, Group { flows: task.plan.count, span })
        };
        let groups: BTreeMap<String, Group> =
            schedule::flows(&point.plan).into_iter().map(timed).collect();
        let changes = point.plan.plan().changes.iter();
        let changes = changes.filter_map(|change| Some(change.at?.as_secs_f64()));
        let mut steps_s: Vec<f64> =
            groups.values().flat_map(|group| [group.span.0, group.span.1]).chain(changes).collect();
        steps_s.sort_by(f64::total_cmp);
        steps_s.dedup();
        let trace = |used: &TraceUse| point.plan.trace(&used.file);
        let sets_delay =
            |used: &TraceUse| trace(used).is_some_and(|trace| trace.summary().delay.is_some());
        let network = Network::from_plan(point.plan.plan(), sets_delay);
        let sample = &point.plan.plan().sample;
        let timescale_s = sample.timescale(network.longest_rtt()).as_secs_f64();
        let queue_interval_s = sample.qdisc.as_secs_f64();
        let probes = point.plan.plan().probes.clone();
        let flows = point.plan.plan().flows.clone();
        Self { groups, steps_s, network, probes, flows, timescale_s, queue_interval_s }
    }
}

impl Schedule {
    /// Computes the times from the run's plan.
    pub(crate) fn from_plan(plan: Option<&CheckedPlan>) -> Self {
        let timing = |point: Point| (point.id, Timing::from_point(&point));
        Self(plan.map(|plan| plan.points().into_iter().map(timing).collect()))
    }

    fn timing(&self, point_id: u32) -> Option<&Timing> {
        self.0.as_ref()?.get(&point_id)
    }

    fn group(&self, point_id: u32, group: &str) -> Option<Span> {
        Some(self.timing(point_id)?.groups.get(group)?.span)
    }

    /// Returns the network of a point; `None` if the plan cannot be read.
    pub(crate) fn network(&self, point_id: u32) -> Option<&Network> {
        Some(&self.timing(point_id)?.network)
    }

    /// Returns whether a link of some point has overhead that its counters lack.
    pub(super) fn has_extra_bytes(&self) -> bool {
        self.0.iter().flat_map(BTreeMap::values).any(|timing| timing.network.has_extra_bytes())
    }

    /// Returns a probe of a point; `None` if it does not exist or the plan cannot be read.
    pub(super) fn probe(&self, point_id: u32, probe: &str) -> Option<&Probe> {
        self.timing(point_id)?.probes.get(probe)
    }

    /// Returns whether the flows of a group are finite; `None` if the plan cannot be read.
    pub(super) fn is_finite(&self, point_id: u32, group: &str) -> Option<bool> {
        let flow = self.timing(point_id)?.flows.get(group);
        Some(flow.is_some_and(|flow| flow.bytes.is_some()))
    }

    /// Returns the groups whose flows run between the two nodes of a probe, in either direction; empty if the plan cannot be read.
    pub(super) fn groups_between_nodes_of(&self, point_id: u32, probe: &str) -> Vec<&str> {
        let planned = self.timing(point_id).zip(self.probe(point_id, probe));
        let Some((timing, probe)) = planned else { return Vec::new() };
        let connects = |flow: &Flow| {
            let ends = [(&flow.from, &flow.to), (&flow.to, &flow.from)];
            ends.contains(&(&probe.from, &probe.to))
        };
        let flows = timing.flows.iter().filter(|(_, flow)| connects(flow));
        flows.map(|(group, _)| group.as_str()).collect()
    }

    /// Returns the length of the instants of instantaneous metrics in seconds.
    pub(super) fn timescale_s(&self, point_id: u32) -> f64 {
        let timing = self.timing(point_id);
        timing.map_or(MIN_TIMESCALE.as_secs_f64(), |timing| timing.timescale_s)
    }

    /// Returns the interval between two samples of queues in seconds; the default if the plan cannot be read.
    pub(super) fn queue_interval_s(&self, point_id: u32) -> f64 {
        let timing = self.timing(point_id);
        timing
            .map_or_else(|| Sample::default().qdisc.as_secs_f64(), |timing| timing.queue_interval_s)
    }

    /// Returns the groups of a point; empty if the plan cannot be read.
    pub(crate) fn groups(&self, point_id: u32) -> impl Iterator<Item = (&str, Group)> {
        let groups = self.timing(point_id).into_iter().flat_map(|timing| &timing.groups);
        groups.map(|(name, group)| (name.as_str(), *group))
    }

    /// Returns whether the plan schedules a group in this span; `None` if the plan cannot be read.
    pub(super) fn allows(
        &self,
        point_id: u32,
        group: &str,
        (begin_s, end_s): Span,
    ) -> Option<bool> {
        self.0.as_ref()?;
        let span = self.group(point_id, group);
        Some(span.is_some_and(|(start_s, stop_s)| start_s < end_s && stop_s > begin_s))
    }

    /// Returns the seconds of this span in which the plan schedules a group; the whole span if the plan cannot be read.
    pub(super) fn planned_s(&self, point_id: u32, group: &str, (begin_s, end_s): Span) -> f64 {
        let span = self.group(point_id, group);
        span.map_or(end_s - begin_s, |(start_s, stop_s)| stop_s.min(end_s) - start_s.max(begin_s))
    }

    /// Returns every step of a trial with its end, which is the next step or the end of the trial. If the plan cannot be read, every phase
    /// starts with a step.
    pub(super) fn steps(&self, point_id: u32, phases: &[PhaseRecord]) -> Vec<Span> {
        let end_s = phases.last().map_or(0.0, |last| last.span_s().1);
        let mut at: Vec<f64> = match &self.0 {
            Some(points) => points.get(&point_id).map_or(vec![], |timing| timing.steps_s.clone()),
            None => phases.iter().map(|phase| phase.span_s().0).collect(),
        };
        at.retain(|at_s| *at_s < end_s);
        at.push(end_s);
        at.windows(2).map(|pair| (pair[0], pair[1])).collect()
    }
}

/// Returns the group of a flow `GROUP/NUMBER`.
pub(crate) fn group_of(flow: &str) -> &str {
    flow.rsplit_once('/').map_or(flow, |(group, _)| group)
}
