//! **recovery_time**: mean duration of a sender's loss recoveries, from the state changes in `tcp_events`. A recovery lasts while the
//! kernel's `ca_state` is Recovery or Loss, and counts in the phase in which it begins. A recovery that has not ended by the last event is
//! `undefined`. Trials without this table (`sample.acks = "off"`, polled runs) have no rows: samples every 100 ms cannot show an event of
//! one round trip.

use std::collections::BTreeMap;

use ccbench_proto::metric::{Scope, UNDEFINED};

use super::rows::{Texts, each_slice};
use super::schedule::Schedule;
use super::statistics;
use super::tables::PhaseRow;
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::store::RunDir;

/// Loss recovery by fast retransmit. The next state is Loss, after a timeout (include/uapi/linux/tcp.h).
const TCP_CA_RECOVERY: f64 = 3.0;

/// A change of `ca_state`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Change {
    at_s: f64,
    was_recovering: bool,
    is_recovering: bool,
}

/// A loss recovery: when it began, and its duration in seconds if it ended.
type Episode = (f64, Option<f64>);

/// Returns the recovery times of the flows and groups of one trial.
pub(super) fn recovery_times(
    run: &RunDir,
    end: &TrialEnd,
    schedule: &Schedule,
) -> Result<Vec<PhaseRow>> {
    let mut changes: BTreeMap<(String, String), Vec<Change>> = BTreeMap::new();
    let columns =
        ["group", "flow_id", "role", "side", "kind", "t_s", "ca_state", "ca_state_before"];
    each_slice(run, "tcp_events", end, &columns, |slice| {
        let [group, flow, role, side, kind] =
            ["group", "flow_id", "role", "side", "kind"].map(|name| slice.texts(name));
        let [at_s, after, before] =
            ["t_s", "ca_state", "ca_state_before"].map(|name| slice.numbers(name));
        for row in 0..slice.len() {
            let is_meant = (kind.get(row), role.get(row), side.get(row))
                == (Some("ca_state"), Some("data"), Some("snd"));
            let states = at_s.get(row).zip(after.get(row)).zip(before.get(row));
            let Some(((at_s, after), before)) = states.filter(|_| is_meant) else { continue };
            let name = |texts: &Texts<'_>| texts.get(row).unwrap_or_default().to_owned();
            changes.entry((name(&group), name(&flow))).or_default().push(Change {
                at_s,
                was_recovering: before >= TCP_CA_RECOVERY,
                is_recovering: after >= TCP_CA_RECOVERY,
            });
        }
    })?;
    let mut of_group: BTreeMap<String, Vec<Episode>> = BTreeMap::new();
    let mut found = Vec::new();
    for ((group, flow), changes) in changes {
        let episodes = episodes(changes);
        found.extend(rows(end, schedule, (Scope::Flow, &flow, &group), &episodes));
        of_group.entry(group).or_default().extend(episodes);
    }
    for (group, episodes) in &of_group {
        found.extend(rows(end, schedule, (Scope::Group, group, group), episodes));
    }
    Ok(found)
}

/// Returns the recoveries of one socket.
fn episodes(mut changes: Vec<Change>) -> Vec<Episode> {
    changes.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let (mut found, mut begun_s) = (Vec::new(), None);
    for change in changes {
        if change.was_recovering && !change.is_recovering {
            found.extend(begun_s.take().map(|begin_s| (begin_s, Some(change.at_s - begin_s))));
        } else if !change.was_recovering && change.is_recovering {
            // The end of the earlier recovery was lost.
            found.extend(begun_s.replace(change.at_s).map(|begin_s| (begin_s, None)));
        }
    }
    found.extend(begun_s.map(|begin_s| (begin_s, None)));
    found
}

/// Returns mean and number of unfinished recoveries in each measured phase in which the subject's group runs.
fn rows(
    end: &TrialEnd,
    schedule: &Schedule,
    (scope, subject, group): (Scope, &str, &str),
    episodes: &[Episode],
) -> Vec<PhaseRow> {
    let mut found = Vec::new();
    for phase in end.phases.iter().filter(|phase| phase.measure) {
        let (from_s, to_s) = phase.span_s();
        if schedule.allows(end.point_id, group, (from_s, to_s)) == Some(false) {
            continue;
        }
        let here = episodes.iter().filter(|(begin_s, _)| (from_s..to_s).contains(begin_s));
        let durations: Vec<Option<f64>> = here.map(|(_, duration)| *duration).collect();
        let known: Vec<f64> = durations.iter().copied().flatten().collect();
        let row = |unit, stat, value, n: usize| PhaseRow {
            point_id: end.point_id,
            trial: end.trial,
            phase: phase.name.clone(),
            scope,
            subject: subject.to_owned(),
            metric: "recovery_time",
            unit,
            stat,
            value,
            n: n as u32,
        };
        if let Some(mean_s) = statistics::mean(&known) {
            found.push(row("us", "mean", mean_s * 1e6, known.len()));
        }
        let unfinished = durations.len() - known.len();
        if unfinished > 0 {
            found.push(row("1", UNDEFINED, unfinished as f64, durations.len()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::PhaseRecord;
    use crate::model::{TrialKey, TrialStatus};

    fn change(at_s: f64, before: u32, after: u32) -> Change {
        let recovers = |state: u32| f64::from(state) >= TCP_CA_RECOVERY;
        Change { at_s, was_recovering: recovers(before), is_recovering: recovers(after) }
    }

    #[test]
    fn recovery_lasts_until_the_state_is_open_or_disorder() {
        // Disorder is not a recovery; Loss within Recovery continues the recovery.
        let all = vec![
            change(1.0, 0, 1),
            change(1.25, 1, 3),
            change(1.5, 3, 4),
            change(2.0, 4, 0),
            change(3.0, 0, 2),
            change(4.0, 2, 3),
        ];
        assert_eq!(episodes(all), [(1.25, Some(0.75)), (4.0, None)]);
        // An end without a beginning, and a beginning whose end was lost. The order of the rows does not matter.
        let torn = vec![change(5.0, 0, 4), change(1.0, 3, 0), change(2.0, 0, 3), change(5.5, 4, 0)];
        assert_eq!(episodes(torn), [(2.0, None), (5.0, Some(0.5))]);
        assert!(episodes(vec![]).is_empty());
    }

    #[test]
    fn recovery_counts_in_the_phase_in_which_it_begins() {
        let phase = |name: &str, start_s: u64, end_s: u64| PhaseRecord {
            name: name.to_owned(),
            start_us: start_s * 1_000_000,
            end_us: end_s * 1_000_000,
            measure: true,
        };
        let key = TrialKey { point_id: 2, trial: 1, seed: 1, epoch: 1 };
        let end = TrialEnd {
            phases: vec![phase("one", 0, 10), phase("two", 10, 20), phase("three", 20, 30)],
            ..TrialEnd::new(key, TrialStatus::Ok)
        };
        let episodes = [(1.0, Some(0.1)), (9.5, Some(0.75)), (15.0, None)];
        let found = rows(&end, &Schedule::from_plan(None), (Scope::Flow, "a/0", "a"), &episodes);
        let brief: Vec<_> = found
            .iter()
            .map(|row| (row.phase.as_str(), row.stat, row.unit, row.value.round(), row.n))
            .collect();
        let wanted = [("one", "mean", "us", 425_000.0, 2), ("two", "undefined", "1", 1.0, 1)];
        assert_eq!(brief, wanted);
    }
}
