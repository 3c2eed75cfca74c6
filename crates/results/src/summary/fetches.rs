//! Fetches that did not complete. Their duration is right-censored: a fetch that timed out or failed would have taken longer than any
//! completed one, and the last one of a trial took longer than it was observed. The mean and the quantiles of completed fetches are too
//! low. So the median is also estimated by the Kaplan-Meier method (`km_median`), and the number of unfinished fetches is given.

use std::collections::BTreeMap;

use ccbench_proto::metric::Scope;
use ccbench_proto::plan::{Probe, ProbeKind, Repeat};

use super::kaplan_meier;
use super::rows::each_slice;
use super::schedule::Schedule;
use super::tables::PhaseRow;
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::store::RunDir;

/// A fetch that ended.
#[derive(Debug, Clone, Copy)]
struct Fetch {
    /// Start in seconds since the start of the trial.
    begin_s: f64,
    /// Duration in us, if the fetch completed.
    duration_us: Option<f64>,
    /// When the fetch ended, in us after it began. For a failure, this is the last known time; `None` if it timed out.
    ended_us: Option<f64>,
}

/// The fetches of one probe in a trial.
#[derive(Debug, Default)]
struct Fetches {
    ended: Vec<Fetch>,
    /// Whether the trial ended before another fetch did.
    is_one_pending: bool,
}

/// The times of a fetch, in chronological order.
const TIMES: [&str; 4] = ["dns_us", "connect_us", "ttfb_us", "total_us"];
/// Part of the reason if a measurement took longer than the probe's `timeout`.
const TIMED_OUT: &str = "timed out";

/// Returns the numbers of unfinished fetches, and the medians, of one trial.
pub(super) fn fetches(run: &RunDir, end: &TrialEnd, schedule: &Schedule) -> Result<Vec<PhaseRow>> {
    let mut probes: BTreeMap<String, Fetches> = BTreeMap::new();
    let columns = [&["probe_id", "kind", "error", "t_s", "lost"][..], &TIMES].concat();
    each_slice(run, "probes", end, &columns, |slice| {
        let [probe, kind, error] = ["probe_id", "kind", "error"].map(|name| slice.texts(name));
        let (at_s, times) = (slice.numbers("t_s"), TIMES.map(|name| slice.numbers(name)));
        for row in 0..slice.len() {
            let is_fetch = kind.get(row) == Some(ProbeKind::Http.as_str());
            let Some(begin_s) = at_s.get(row).filter(|_| is_fetch) else { continue };
            let [dns_us, connect_us, first_byte_us, total_us] =
                times.each_ref().map(|times| times.get(row));
            let duration_us = total_us.filter(|_| slice.flag("lost", row) == Some(false));
            let connected_us = dns_us.unwrap_or(0.0) + connect_us.unwrap_or(0.0);
            let known_us = total_us.or(first_byte_us).unwrap_or(connected_us);
            let timed_out = error.get(row).is_some_and(|error| error.contains(TIMED_OUT));
            let ended_us = (!timed_out).then_some(known_us);
            let probe = probes.entry(probe.get(row).unwrap_or_default().to_owned()).or_default();
            probe.ended.push(Fetch { begin_s, duration_us, ended_us });
        }
    })?;
    each_slice(run, "events", end, &["kind", "subject"], |slice| {
        let [kind, subject] = ["kind", "subject"].map(|name| slice.texts(name));
        for row in (0..slice.len()).filter(|row| kind.get(*row) == Some("probe_unfinished")) {
            let probe = subject.get(row).unwrap_or_default();
            let planned = schedule.probe(end.point_id, probe);
            let is_fetch = planned.is_some_and(|planned| planned.kind == ProbeKind::Http);
            if is_fetch || probes.contains_key(probe) {
                probes.entry(probe.to_owned()).or_default().is_one_pending = true;
            }
        }
    })?;
    let mut found = Vec::new();
    for (probe, fetches) in probes {
        let pending = fetches.pending(schedule.probe(end.point_id, &probe), end.length_s());
        found.extend(rows(end, &probe, &fetches.ended, pending));
    }
    Ok(found)
}

impl Fetches {
    /// Returns when the fetch that was cut off by the end of the trial began, and how long it was observed in us. Without the plan, the
    /// fetch is taken to begin when the previous one ended. If that one failed without a timeout, only the last time before its failure is
    /// known.
    fn pending(&self, planned: Option<&Probe>, end_s: f64) -> Option<(f64, f64)> {
        if !self.is_one_pending {
            return None;
        }
        let timeout_us = planned.map_or(0.0, |probe| probe.timeout().get() as f64);
        let ended_s = |fetch: &Fetch| fetch.begin_s + fetch.ended_us.unwrap_or(timeout_us) / 1e6;
        let ends = self.ended.iter().map(ended_s);
        let first_s = planned.map_or(0.0, |probe| probe.start.as_secs_f64());
        let mut begin_s = ends.fold(first_s, f64::max);
        if let Some(probe) = planned.filter(|probe| probe.repeat == Repeat::Interval) {
            let every_s = probe.every.as_secs_f64();
            begin_s = first_s + ((begin_s - first_s) / every_s).ceil() * every_s;
        }
        let begin_s = begin_s.min(end_s);
        Some((begin_s, (end_s - begin_s) * 1e6))
    }
}

/// Returns the rows of a probe's fetches in each measured phase in which a fetch began.
fn rows(
    end: &TrialEnd,
    probe: &str,
    ended: &[Fetch],
    pending: Option<(f64, f64)>,
) -> Vec<PhaseRow> {
    let mut found = Vec::new();
    for phase in end.phases.iter().filter(|phase| phase.measure) {
        let (from_s, to_s) = phase.span_s();
        let is_here = |at_s: f64| (from_s..to_s).contains(&at_s);
        let (mut durations, mut censored) = (Vec::new(), Vec::new());
        for fetch in ended.iter().filter(|fetch| is_here(fetch.begin_s)) {
            match fetch.duration_us {
                Some(us) => durations.push(us),
                None => censored.push(f64::INFINITY),
            }
        }
        // The end of the trial belongs to its last phase.
        let is_cut = |at_s: f64| is_here(at_s) || at_s == to_s && to_s == end.length_s();
        censored.extend(pending.filter(|(at_s, _)| is_cut(*at_s)).map(|(_, us)| us));
        let all = durations.len() + censored.len();
        if all == 0 {
            continue;
        }
        let row = |metric, unit, stat, value| PhaseRow {
            point_id: end.point_id,
            trial: end.trial,
            phase: phase.name.clone(),
            scope: Scope::Probe,
            subject: probe.to_owned(),
            metric,
            unit,
            stat,
            value,
            n: all as u32,
        };
        found.push(row("unfinished_fetches", "1", "sum", censored.len() as f64));
        let median = kaplan_meier::median(&mut durations, &mut censored);
        found.extend(median.map(|us| row("fetch_time", "us", "km_median", us)));
    }
    found
}

#[cfg(test)]
mod tests {
    use ccbench_proto::units::Micros;

    use super::*;
    use crate::journal::PhaseRecord;
    use crate::model::{TrialKey, TrialStatus};

    fn page(repeat: Repeat) -> Probe {
        Probe {
            start: Micros::from_secs(1),
            every: Micros::from_secs(4),
            timeout: Some(Micros::from_secs(6)),
            repeat,
            ..Probe::new(ProbeKind::Http, "a", "b")
        }
    }

    fn completed(begin_s: f64, us: f64) -> Fetch {
        Fetch { begin_s, duration_us: Some(us), ended_us: Some(us) }
    }

    fn failed(begin_s: f64, ended_us: Option<f64>) -> Fetch {
        Fetch { begin_s, duration_us: None, ended_us }
    }

    #[test]
    fn pending_fetch_began_after_the_one_before_it() {
        // From 1 s on for 2.5 s, and from 5 s on until the timeout at 11 s.
        let ended = vec![completed(1.0, 2.5e6), failed(5.0, None)];
        let fetches = Fetches { ended: ended.clone(), is_one_pending: true };
        let pending = |repeat| fetches.pending(Some(&page(repeat)), 20.0);
        assert_eq!(pending(Repeat::Interval), Some((13.0, 7e6)), "the next multiple of 4 s");
        assert_eq!(pending(Repeat::BackToBack), Some((11.0, 9e6)));
        assert_eq!(fetches.pending(None, 20.0), Some((5.0, 15e6)));
        let first = Fetches { ended: vec![], is_one_pending: true };
        assert_eq!(first.pending(Some(&page(Repeat::Once)), 20.0), Some((1.0, 19e6)));
        // Refused 2 ms or 1.5 s after it began.
        let refused = |after_us| {
            let ended = vec![completed(1.0, 2.5e6), failed(5.0, Some(after_us))];
            let fetches = Fetches { ended, is_one_pending: true };
            [Repeat::Interval, Repeat::BackToBack].map(|repeat| {
                let (begin_s, observed_us) = fetches.pending(Some(&page(repeat)), 20.0).unwrap();
                (begin_s, observed_us.round())
            })
        };
        assert_eq!(refused(2000.0), [(9.0, 11e6), (5.002, 14_998_000.0)]);
        assert_eq!(refused(1.5e6), [(9.0, 11e6), (6.5, 13.5e6)]);
        let none = Fetches { ended, is_one_pending: false };
        assert_eq!(none.pending(Some(&page(Repeat::Once)), 20.0), None);
    }

    #[test]
    fn unfinished_fetches_are_counted_where_they_began() {
        let phase = |name: &str, start_s: u64, end_s: u64| PhaseRecord {
            name: name.to_owned(),
            start_us: start_s * 1_000_000,
            end_us: end_s * 1_000_000,
            measure: true,
        };
        let key = TrialKey { point_id: 0, trial: 1, seed: 1, epoch: 1 };
        let end = TrialEnd {
            phases: vec![phase("idle", 0, 10), phase("loaded", 10, 20)],
            ..TrialEnd::new(key, TrialStatus::Ok)
        };
        let idle = [completed(1.0, 1e6), completed(3.0, 3e6), completed(7.0, 2e6)];
        let ended = [&idle[..], &[failed(11.0, None), completed(15.0, 2e6)]].concat();
        let found = rows(&end, "page", &ended, Some((17.0, 3e6)));
        let brief: Vec<_> = found
            .iter()
            .map(|row| (row.phase.as_str(), row.metric, row.stat, row.value, row.n))
            .collect();
        // Only one of three completed: the median is longer than that.
        let wanted = [
            ("idle", "unfinished_fetches", "sum", 0.0, 3),
            ("idle", "fetch_time", "km_median", 2e6, 3),
            ("loaded", "unfinished_fetches", "sum", 2.0, 3),
        ];
        assert_eq!(brief, wanted);
    }
}
