//! **flow_completion_time**: the time from the start of a flow until its last byte has arrived (`start_s` and `stop_s` of
//! table `flows`, of the receiver if it has a row). Of flows that the plan stops, it is the duration of the transfer.

use std::collections::BTreeMap;

use ccbench_proto::metric::{Scope, WHOLE_TRIAL};

use super::rows::{Texts, each_slice};
use super::statistics;
use super::tables::PhaseRow;
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::store::RunDir;

/// Completion times of the flows and groups of one trial.
pub(super) fn completion_times(run: &RunDir, end: &TrialEnd) -> Result<Vec<PhaseRow>> {
    // In us, by group and flow.
    let mut flows: BTreeMap<(String, String), f64> = BTreeMap::new();
    let columns = ["group", "flow_id", "role", "side", "start_s", "stop_s"];
    each_slice(run, "flows", end, &columns, |slice| {
        let [group, flow, role, side] =
            ["group", "flow_id", "role", "side"].map(|name| slice.texts(name));
        let [start_s, stop_s] = ["start_s", "stop_s"].map(|name| slice.numbers(name));
        for row in (0..slice.len()).filter(|row| role.get(*row) == Some("data")) {
            let Some((start_s, stop_s)) = start_s.get(row).zip(stop_s.get(row)) else { continue };
            let name = |texts: &Texts<'_>| texts.get(row).unwrap_or_default().to_owned();
            let us = ((stop_s - start_s) * 1e6).round();
            let known = flows.entry((name(&group), name(&flow))).or_insert(us);
            if side.get(row) == Some("rcv") {
                *known = us;
            }
        }
    })?;
    let row = |scope, subject: &str, stat, value, n| PhaseRow {
        point_id: end.point_id,
        trial: end.trial,
        phase: WHOLE_TRIAL.to_owned(),
        scope,
        subject: subject.to_owned(),
        metric: "flow_completion_time",
        unit: "us",
        stat,
        value,
        n,
    };
    let mut found = Vec::new();
    let mut groups: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for ((group, flow), us) in &flows {
        found.push(row(Scope::Flow, flow, "mean", *us, 1));
        groups.entry(group).or_default().push(*us);
    }
    for (group, mut times) in groups {
        let n = times.len() as u32;
        let statistics = statistics::of_samples(&mut times);
        let rows = statistics.into_iter();
        found.extend(rows.map(|(stat, value)| row(Scope::Group, group, stat, value, n)));
    }
    Ok(found)
}
