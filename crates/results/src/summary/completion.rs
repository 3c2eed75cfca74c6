//! **flow_completion_time** of finite flows: from the time at which the sender's application begins to write until the receiver's
//! application has read the last byte (`start_s` and `completed_s` of table `flows`). A flow that is incomplete when it stops took longer
//! than it was observed. It is right-censored: it is counted (**unfinished_flows**, and as `undefined`) and enters the Kaplan-Meier median.
//! So is a flow that reported no beginning or no stop, as one without an interval: it was observed for no time.
//!
//! Without a plan (imported files), no flow is known to be finite. The time is then the duration of the transfer.
//!
//! The time is between the clocks of two nodes. It is as exact as the bounds of both clocks together.

use std::collections::BTreeMap;

use ccbench_proto::metric::{Scope, UNDEFINED, WHOLE_TRIAL};

use super::rows::{Numbers, Texts, each_slice};
use super::schedule::Schedule;
use super::tables::PhaseRow;
use super::{kaplan_meier, statistics, undefined};
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::model::NodeClock;
use crate::store::RunDir;

/// The reports of both ends of a flow, in seconds since the start of the trial on the controller's clock.
#[derive(Debug, Default, Clone)]
struct FlowTimes {
    /// When the sender's application began.
    sender_start_s: Option<f64>,
    receiver_start_s: Option<f64>,
    /// When the last byte was read, and when the flow stopped: at the receiver or, without the receiver's row, at the sender.
    completed_s: Option<f64>,
    stop_s: Option<f64>,
    /// The bound of each node's clock, by node: one if both ends are on the same node.
    bounds_ns: BTreeMap<String, u64>,
}

/// The completion times of a trial.
#[derive(Debug, Default)]
pub(super) struct Completions {
    /// The times of flows and groups.
    pub(super) rows: Vec<PhaseRow>,
    /// Upper bound of the error of a time in us, by group: that of the clocks at both ends.
    pub(super) bounds_us: BTreeMap<String, f64>,
}

/// A flow's time in us: until its last byte, or until the end of the observation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Time {
    Completed(f64),
    Censored(f64),
}

impl FlowTimes {
    /// Returns the flow's time. `is_finite` is from the plan; `None` if there is no plan.
    fn time(&self, is_finite: Option<bool>) -> Option<Time> {
        let start_s = self.sender_start_s.or(self.receiver_start_s);
        let until_us = |at_s: Option<f64>| Some(((at_s? - start_s?) * 1e6).round());
        match (is_finite, self.completed_s) {
            (Some(false), _) => None,
            (_, Some(at_s)) => until_us(Some(at_s)).map(Time::Completed),
            // The median does not depend on flows that were observed for no time.
            (Some(true), None) => Some(Time::Censored(until_us(self.stop_s).unwrap_or(0.0))),
            (None, None) => until_us(self.stop_s).map(Time::Completed),
        }
    }
}

/// Returns completion times of the flows and groups of one trial.
pub(super) fn completion_times(
    run: &RunDir,
    end: &TrialEnd,
    schedule: &Schedule,
) -> Result<Completions> {
    let flows = flow_times(run, end)?;
    let mut groups: BTreeMap<&str, Vec<(&str, Time)>> = BTreeMap::new();
    let mut bounds_us: BTreeMap<String, f64> = BTreeMap::new();
    for ((group, flow), ends) in &flows {
        if let Some(time) = ends.time(schedule.is_finite(end.point_id, group)) {
            groups.entry(group).or_default().push((flow.as_str(), time));
            let bound_us: f64 = ends.bounds_ns.values().map(|ns| *ns as f64 / 1e3).sum();
            let most_us = bounds_us.entry(group.clone()).or_default();
            *most_us = most_us.max(bound_us);
        }
    }
    let of_group = |(group, times): (&&str, &Vec<(&str, Time)>)| {
        let mut found = rows(end, group, times);
        if schedule.is_finite(end.point_id, group) == Some(true) {
            found.push(unfinished(end, group, times));
        }
        found
    };
    Ok(Completions { rows: groups.iter().flat_map(of_group).collect(), bounds_us })
}

/// Reads what both ends of each flow report, by group and flow.
fn flow_times(run: &RunDir, end: &TrialEnd) -> Result<BTreeMap<(String, String), FlowTimes>> {
    let mut flows: BTreeMap<(String, String), FlowTimes> = BTreeMap::new();
    let columns = ["node", "group", "flow_id", "role", "side", "start_s", "stop_s", "completed_s"];
    each_slice(run, "flows", end, &columns, |slice| {
        let [node, group, flow, role, side] =
            ["node", "group", "flow_id", "role", "side"].map(|name| slice.texts(name));
        let [start_s, stop_s, completed_s] =
            ["start_s", "stop_s", "completed_s"].map(|name| slice.numbers(name));
        for row in (0..slice.len()).filter(|row| role.get(*row) == Some("data")) {
            let name = |texts: &Texts<'_>| texts.get(row).unwrap_or_default().to_owned();
            let ends = flows.entry((name(&group), name(&flow))).or_default();
            let node = name(&node);
            let clock = end.clocks.get(&node);
            let at = |times: &Numbers<'_>| controller_s(clock, times.get(row));
            if side.get(row) == Some("rcv") {
                ends.receiver_start_s = at(&start_s);
                ends.completed_s = at(&completed_s);
                ends.stop_s = at(&stop_s).or(ends.stop_s);
            } else {
                ends.sender_start_s = at(&start_s);
                ends.stop_s = ends.stop_s.or(at(&stop_s));
            }
            ends.bounds_ns.insert(node, clock.map_or(0, |clock| clock.error_bound_ns));
        }
    })?;
    Ok(flows)
}

/// Converts a time of a node to the controller's clock. An unknown clock counts as the controller's.
fn controller_s(clock: Option<&NodeClock>, at_s: Option<f64>) -> Option<f64> {
    at_s.map(|at_s| clock.map_or(at_s, |clock| clock.controller_s(at_s)))
}

/// Returns how many flows of a group are incomplete.
fn unfinished(end: &TrialEnd, group: &str, times: &[(&str, Time)]) -> PhaseRow {
    let is_censored = |(_, time): &&(&str, Time)| matches!(time, Time::Censored(_));
    PhaseRow {
        point_id: end.point_id,
        trial: end.trial,
        phase: WHOLE_TRIAL.to_owned(),
        scope: Scope::Group,
        subject: group.to_owned(),
        metric: "unfinished_flows",
        unit: "1",
        stat: "sum",
        value: times.iter().filter(is_censored).count() as f64,
        n: times.len() as u32,
    }
}

/// Returns the times of a group and its flows.
fn rows(end: &TrialEnd, group: &str, times: &[(&str, Time)]) -> Vec<PhaseRow> {
    let n = times.len() as u32;
    let row = |scope, subject: &str, (stat, value): (&'static str, f64), n| PhaseRow {
        point_id: end.point_id,
        trial: end.trial,
        phase: WHOLE_TRIAL.to_owned(),
        scope,
        subject: subject.to_owned(),
        metric: "flow_completion_time",
        unit: undefined::unit(stat, "us"),
        stat,
        value,
        n,
    };
    let (mut completed, mut censored) = (Vec::new(), Vec::new());
    let mut found = Vec::new();
    for (flow, time) in times {
        let of_flow = match *time {
            Time::Completed(us) => {
                completed.push(us);
                ("mean", us)
            }
            Time::Censored(us) => {
                censored.push(us);
                (UNDEFINED, 1.0)
            }
        };
        found.push(row(Scope::Flow, flow, of_flow, 1));
    }
    let mut of_group = statistics::sample_stats(&mut completed);
    let median = kaplan_meier::median(&mut completed, &mut censored);
    of_group.extend(median.map(|us| ("km_median", us)));
    if !censored.is_empty() {
        of_group.push((UNDEFINED, censored.len() as f64));
    }
    found.extend(of_group.into_iter().map(|statistic| row(Scope::Group, group, statistic, n)));
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{TrialKey, TrialStatus};

    fn brief(times: &[Time]) -> Vec<(Scope, &'static str, f64, u32)> {
        let key = TrialKey { point_id: 0, trial: 1, seed: 1, epoch: 1 };
        let end = TrialEnd::new(key, TrialStatus::Ok);
        let times: Vec<_> = times.iter().map(|time| ("short/0", *time)).collect();
        let found = rows(&end, "short", &times);
        found.into_iter().map(|row| (row.scope, row.stat, row.value, row.n)).collect()
    }

    #[test]
    fn sender_begins_and_receiver_ends() {
        let ends = FlowTimes {
            sender_start_s: Some(2.0),
            receiver_start_s: Some(2.01),
            completed_s: Some(2.5),
            stop_s: Some(8.0),
            ..FlowTimes::default()
        };
        assert_eq!(ends.time(Some(true)), Some(Time::Completed(500_000.0)));
        assert_eq!(ends.time(Some(false)), None, "without `bytes` a flow has no completion");
        let unfinished = FlowTimes { completed_s: None, ..ends.clone() };
        assert_eq!(unfinished.time(Some(true)), Some(Time::Censored(6e6)));
        assert_eq!(unfinished.time(None), Some(Time::Completed(6e6)), "an import: the transfer");
        let alone = FlowTimes { sender_start_s: None, ..ends };
        assert_eq!(alone.time(Some(true)), Some(Time::Completed(490_000.0)));
        let silent = FlowTimes::default();
        assert_eq!(silent.time(Some(true)), Some(Time::Censored(0.0)), "it never began");
        assert_eq!((silent.time(Some(false)), silent.time(None)), (None, None));
        let without_stop = FlowTimes { stop_s: None, ..unfinished };
        assert_eq!(without_stop.time(Some(true)), Some(Time::Censored(0.0)));
    }

    #[test]
    fn unfinished_flows_are_counted_and_raise_the_median() {
        let [one, two, three] = [1e6, 2e6, 3e6].map(Time::Completed);
        let of_group = |times: &[Time]| -> BTreeMap<&'static str, f64> {
            let rows = brief(times).into_iter().filter(|row| row.0 == Scope::Group);
            rows.map(|(_, stat, value, n)| {
                assert_eq!(n as usize, times.len());
                (stat, value)
            })
            .collect()
        };
        let all = of_group(&[one, two, three]);
        assert_eq!((all["median"], all["km_median"], all.get("undefined")), (2e6, 2e6, None));
        let cut = of_group(&[one, two, three, Time::Censored(9e6), Time::Censored(9e6)]);
        assert_eq!((cut["mean"], cut["km_median"], cut["undefined"]), (2e6, 3e6, 2.0));
        let silent = of_group(&[one, two, three, Time::Censored(0.0), Time::Censored(0.0)]);
        assert_eq!((silent["km_median"], silent["undefined"]), (2e6, 2.0));
        let none = of_group(&[Time::Censored(9e6)]);
        assert_eq!(none.into_iter().collect::<Vec<_>>(), [("undefined", 1.0)]);
        assert_eq!(brief(&[Time::Censored(9e6)])[0], (Scope::Flow, "undefined", 1.0, 1));
    }

    proptest! {
        #[test]
        fn censoring_never_shortens_the_median(
            us in prop::collection::vec(1e3..1e7_f64, 1..30), cut_us in 1e3..1e7_f64,
        ) {
            let km = |times: &[Time]| {
                let rows = brief(times);
                rows.iter().find(|row| row.1 == "km_median").map(|row| row.2)
            };
            let all: Vec<Time> = us.iter().copied().map(Time::Completed).collect();
            let cut: Vec<Time> = us
                .iter()
                .map(|us| if *us > cut_us { Time::Censored(cut_us) } else { Time::Completed(*us) })
                .collect();
            if let Some(median) = km(&cut) {
                prop_assert_eq!(Some(median), km(&all));
            }
        }
    }
}
