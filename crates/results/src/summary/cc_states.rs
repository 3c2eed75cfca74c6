//! Metrics of the internal state of `bbr2` and `bbr3` (table `cc_state`): how long a flow is in a state, how often it enters the state, how
//! many rounds end there, and the values of variables of draft-ietf-ccwg-bbr. The table has a row per round and at the beginning of each
//! state, so a state lasts from its first row to the first row of the next state. What happens before the first row of a flow and after its
//! last row is unknown, and does not count.

use ccbench_proto::metric::{BBR_STATE_STATS, BBR_STATES, Scope, UNDEFINED};

use super::rows::{GroupedRows, each_slice};
use super::schedule::{Schedule, group_of};
use super::span::Span;
use super::statistics;
use super::tables::PhaseRow;
use super::undefined;
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::store::RunDir;

/// Metrics of variables: name and unit, the variable of `cc_state`, and the size of its unit in units of the metric.
const VARIABLES: [(&str, &str, &str, f64); 13] = [
    ("bbr_bw", "bit/s", "bw_kbps", 1e3),
    ("bbr_max_bw", "bit/s", "max_bw_kbps", 1e3),
    ("bbr_bw_shortterm", "bit/s", "bw_lo_kbps", 1e3),
    ("bbr_min_rtt", "us", "min_rtt_us", 1.0),
    ("bbr_bdp", "packets", "bdp_pkts", 1.0),
    ("bbr_inflight_longterm", "packets", "inflight_hi_pkts", 1.0),
    ("bbr_inflight_shortterm", "packets", "inflight_lo_pkts", 1.0),
    ("bbr_extra_acked", "packets", "extra_acked_pkts", 1.0),
    ("bbr_full_bw_reached", "1", "full_pipe", 1.0),
    ("bbr_pacing_gain", "1", "pacing_gain", 1.0 / 256.0),
    ("bbr_cwnd_gain", "1", "cwnd_gain", 1.0 / 256.0),
    ("bbr_cwnd", "packets", "cwnd_pkts", 1.0),
    ("bbr_inflight", "packets", "inflight_pkts", 1.0),
];
/// The variable that contains the number of the state.
const MODE: &str = "mode";
/// The value of a bound that is not set.
const UNSET: f64 = 4_294_967_295.0;

/// The rows with the same time.
#[derive(Debug, Clone, Default, PartialEq)]
struct Record {
    at_s: f64,
    round: f64,
    mode: Option<usize>,
    /// Values in the order of [`VARIABLES`] and in the metrics' units; [`UNSET`] is stored unscaled.
    values: [Option<f64>; VARIABLES.len()],
}

/// A visit to a state.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Visit {
    state: usize,
    span: Span,
}

/// Values, by state.
type StateValues = [f64; BBR_STATES.len()];

/// What a flow did in a phase.
#[derive(Debug, Clone, Default, PartialEq)]
struct FlowPhase<'a> {
    time_s: StateValues,
    entries: StateValues,
    rounds: StateValues,
    /// The rows of the phase, and whether a state begins with each.
    rows: Vec<(&'a Record, bool)>,
}

/// Returns the metrics of the flows and groups of one trial.
pub(super) fn cc_states(
    run: &RunDir,
    end: &TrialEnd,
    schedule: &Schedule,
) -> Result<Vec<PhaseRow>> {
    let mut flows: GroupedRows<Vec<Record>> = GroupedRows::new();
    let columns = ["flow_id", "t_s", "round", "variable", "value"];
    each_slice(run, "cc_state", end, &columns, |slice| {
        let [flow, variable] = ["flow_id", "variable"].map(|name| slice.texts(name));
        let [at_s, round, value] = ["t_s", "round", "value"].map(|name| slice.numbers(name));
        for row in 0..slice.len() {
            let numbers = at_s.get(row).zip(round.get(row)).zip(value.get(row));
            let Some(((at_s, round), value)) = numbers else { continue };
            let flow = flow.get(row).unwrap_or_default();
            let records = flows.at(["", group_of(flow), flow]);
            put(records, (at_s, round), variable.get(row).unwrap_or_default(), value);
        }
    })?;
    let mut found = Vec::new();
    let mut of_group: Vec<(String, Vec<Vec<Record>>)> = Vec::new();
    for ([_, group, flow], mut records) in flows.sorted() {
        // Other congestion controls have no states.
        records.retain(|record| record.mode.is_some());
        records.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        let records = [records];
        found.extend(rows(end, schedule, (Scope::Flow, &flow), &group, &records));
        match of_group.last_mut() {
            Some((last, all)) if *last == group => all.extend(records),
            _ => of_group.push((group, records.into())),
        }
    }
    for (group, flows) in &of_group {
        found.extend(rows(end, schedule, (Scope::Group, group), group, flows));
    }
    Ok(found)
}

/// Adds a row of the table to the records of its flow. The rows of a record are consecutive.
fn put(records: &mut Vec<Record>, (at_s, round): (f64, f64), variable: &str, value: f64) {
    let nth = VARIABLES.iter().position(|(_, _, name, _)| *name == variable);
    if nth.is_none() && variable != MODE {
        return;
    }
    let is_filled = |record: &Record| match nth {
        Some(nth) => record.values[nth].is_some(),
        None => record.mode.is_some(),
    };
    let continues = records.last().is_some_and(|last| last.at_s == at_s && !is_filled(last));
    if !continues {
        records.push(Record { at_s, round, ..Record::default() });
    }
    let Some(record) = records.last_mut() else { return };
    match nth {
        Some(nth) => {
            let factor = VARIABLES[nth].3;
            record.values[nth] = Some(if value == UNSET { UNSET } else { value * factor });
        }
        None => record.mode = Some(value as usize).filter(|mode| *mode < BBR_STATES.len()),
    }
}

/// Returns the successive states of a flow.
fn visits(records: &[Record]) -> Vec<Visit> {
    let mut found: Vec<Visit> = Vec::new();
    for record in records {
        let Some(state) = record.mode else { continue };
        if let Some(last) = found.last_mut() {
            last.span.1 = record.at_s;
            if last.state == state {
                continue;
            }
        }
        found.push(Visit { state, span: (record.at_s, record.at_s) });
    }
    found
}

/// Returns what a flow did in this span.
fn in_phase(records: &[Record], (from_s, to_s): Span) -> FlowPhase<'_> {
    let mut here = FlowPhase::default();
    let is_here = |at_s: f64| (from_s..to_s).contains(&at_s);
    for Visit { state, span } in visits(records) {
        here.time_s[state] += (span.1.min(to_s) - span.0.max(from_s)).max(0.0);
        here.entries[state] += f64::from(u8::from(is_here(span.0)));
    }
    let mut before: Option<&Record> = None;
    for record in records {
        if is_here(record.at_s) {
            // The acknowledgement that ends a round may also end the state. Such a round belongs to the previous state.
            if let Some((before, state)) = before.and_then(|before| Some((before, before.mode?))) {
                here.rounds[state] += (record.round - before.round).max(0.0);
            }
            here.rows.push((record, before.is_none_or(|before| before.mode != record.mode)));
        }
        before = Some(record);
    }
    here
}

/// Returns the metrics of a flow or of a group's flows. Times, entries and rounds are means over the flows; values are those of all rows.
fn rows(
    end: &TrialEnd,
    schedule: &Schedule,
    (scope, subject): (Scope, &str),
    group: &str,
    flows: &[Vec<Record>],
) -> Vec<PhaseRow> {
    let mut found = Vec::new();
    for phase in end.phases.iter().filter(|phase| phase.measure) {
        if schedule.allows(end.point_id, group, phase.span_s()) == Some(false) {
            continue;
        }
        let all = flows.iter().map(|records| in_phase(records, phase.span_s()));
        let here: Vec<FlowPhase<'_>> = all
            .filter(|flow| !flow.rows.is_empty() || flow.time_s.iter().any(|s| *s > 0.0))
            .collect();
        if here.is_empty() {
            continue;
        }
        let mut push = |metric, unit, stat, value, n: usize| {
            found.push(PhaseRow {
                point_id: end.point_id,
                trial: end.trial,
                phase: phase.name.clone(),
                scope,
                subject: subject.to_owned(),
                metric,
                unit,
                stat,
                value,
                n: n as u32,
            });
        };
        let mean = |of: &dyn Fn(&FlowPhase<'_>) -> f64| {
            here.iter().map(of).sum::<f64>() / here.len() as f64
        };
        for (nth, state) in BBR_STATES.iter().copied().enumerate() {
            push("cc_state_time", "us", state, mean(&|flow| flow.time_s[nth] * 1e6), here.len());
            // A flow whose states did not last, as after a single row, has no shares.
            let share = |flow: &FlowPhase<'_>| flow.time_s[nth] / flow.time_s.iter().sum::<f64>();
            let shares: Vec<f64> =
                here.iter().map(share).filter(|share| share.is_finite()).collect();
            if let Some(share) = statistics::mean(&shares) {
                push("cc_state_share", "1", state, share, shares.len());
            }
            push("cc_state_entries", "1", state, mean(&|flow| flow.entries[nth]), here.len());
            push("cc_state_rounds", "1", state, mean(&|flow| flow.rounds[nth]), here.len());
        }
        for (nth, (metric, unit, ..)) in VARIABLES.into_iter().enumerate() {
            for (stat, value, n) in values(&here, nth, scope) {
                push(metric, undefined::unit(stat, unit), stat, value, n);
            }
        }
    }
    found
}

/// Returns statistics of a variable over the rows of a phase and, for a group, also over those in each state.
fn values(flows: &[FlowPhase<'_>], nth: usize, scope: Scope) -> Vec<(&'static str, f64, usize)> {
    let all = || flows.iter().flat_map(|flow| &flow.rows);
    let of = |record: &Record| record.values[nth].filter(|value| *value != UNSET);
    let mut found = Vec::new();
    let mut extremes = |[least, most]: [&'static str; 2], values: &[f64]| {
        if !values.is_empty() {
            found.push((least, values.iter().copied().fold(f64::INFINITY, f64::min), values.len()));
            found.push((
                most,
                values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                values.len(),
            ));
        }
    };
    let known: Vec<f64> = all().filter_map(|(record, _)| of(record)).collect();
    extremes(["min", "max"], &known);
    let mut begun = Vec::new();
    if scope == Scope::Group {
        for (state, [least, most, begin]) in BBR_STATE_STATS.iter().enumerate() {
            let inside = || all().filter(move |(record, _)| record.mode == Some(state));
            let values: Vec<f64> = inside().filter_map(|(record, _)| of(record)).collect();
            extremes([*least, *most], &values);
            let first = inside().filter(|(_, begins)| *begins).filter_map(|(record, _)| of(record));
            begun.push((*begin, first.collect::<Vec<f64>>()));
        }
    }
    let last = |flow: &FlowPhase<'_>| flow.rows.iter().rev().find_map(|(record, _)| of(record));
    let ends: Vec<f64> = flows.iter().filter_map(last).collect();
    begun.extend([("mean", known), ("end", ends)]);
    for (stat, values) in begun {
        found.extend(statistics::mean(&values).map(|mean| (stat, mean, values.len())));
    }
    let unset = all().filter(|(record, _)| record.values[nth] == Some(UNSET)).count();
    if unset > 0 {
        found.push((UNDEFINED, unset as f64, all().count()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::PhaseRecord;
    use crate::model::{TrialKey, TrialStatus};

    const STARTUP: usize = 0;
    const DRAIN: usize = 1;
    const DOWN: usize = 2;
    const CRUISE: usize = 3;

    /// Returns the rows of the table: time, round, state, pacing gain in 1/256 and `inflight_hi`.
    fn records(rows: &[(f64, u32, usize, u32, u32)]) -> Vec<Record> {
        let mut records = Vec::new();
        for (at_s, round, mode, gain, inflight_hi) in rows {
            let mut put = |variable, value: u32| {
                put(&mut records, (*at_s, f64::from(*round)), variable, f64::from(value));
            };
            put(MODE, *mode as u32);
            put("bw_kbps", 8);
            put("inflight_hi_pkts", *inflight_hi);
            put("pacing_gain", *gain);
            put("ecn_alpha", 7);
        }
        records
    }

    /// Returns a flow whose DRAIN is shorter than a round, and whose last state has no end.
    fn flow() -> Vec<Record> {
        records(&[
            (1.0, 1, STARTUP, 710, u32::MAX),
            (1.5, 2, STARTUP, 710, u32::MAX),
            (2.0, 3, DRAIN, 88, 40),
            (2.25, 3, DOWN, 232, 44),
            (3.0, 5, DOWN, 232, 50),
            (3.5, 6, CRUISE, 256, 20),
            (4.5, 7, CRUISE, 256, 30),
        ])
    }

    #[test]
    fn rows_of_one_time_are_one_record() {
        let records = flow();
        assert_eq!(records.len(), 7);
        assert_eq!((records[2].round, records[2].mode), (3.0, Some(DRAIN)));
        let of = |name: &str| {
            let nth = VARIABLES.iter().position(|(metric, ..)| *metric == name).unwrap();
            records[2].values[nth]
        };
        assert_eq!(of("bbr_bw"), Some(8000.0));
        assert_eq!(of("bbr_pacing_gain"), Some(0.34375));
        assert_eq!(of("bbr_min_rtt"), None);
        // Two records with the same time stay separate.
        assert_eq!(
            super::tests::records(&[(1.0, 1, STARTUP, 0, 0), (1.0, 1, DRAIN, 0, 0)]).len(),
            2
        );
    }

    #[test]
    fn states_last_until_the_next_one() {
        let records = flow();
        let spans: Vec<(usize, Span)> =
            visits(&records).into_iter().map(|visit| (visit.state, visit.span)).collect();
        let wanted = [
            (STARTUP, (1.0, 2.0)),
            (DRAIN, (2.0, 2.25)),
            (DOWN, (2.25, 3.5)),
            (CRUISE, (3.5, 4.5)),
        ];
        assert_eq!(spans, wanted);
        let here = in_phase(&records, (1.25, 3.25));
        assert_eq!(here.time_s[..4], [0.75, 0.25, 1.0, 0.0]);
        assert_eq!(here.entries[..4], [0.0, 1.0, 1.0, 0.0]);
        // The round that ends with the first row of DRAIN was in STARTUP, and no round ends in DRAIN.
        assert_eq!(here.rounds[..4], [2.0, 0.0, 2.0, 0.0]);
        assert_eq!(here.rows.len(), 4);
    }

    #[test]
    fn statistics_are_those_of_the_rows_in_the_phase_and_in_each_state() {
        let phase = |name: &str, start_s: u64, end_s: u64| PhaseRecord {
            name: name.to_owned(),
            start_us: start_s * 1_000_000,
            end_us: end_s * 1_000_000,
            measure: true,
        };
        let key = TrialKey { point_id: 2, trial: 1, seed: 1, epoch: 1 };
        let phases = vec![phase("all", 0, 5), phase("later", 5, 9)];
        let end = TrialEnd { phases, ..TrialEnd::new(key, TrialStatus::Ok) };
        let found =
            rows(&end, &Schedule::from_plan(None), (Scope::Group, "a"), "a", &[flow(), flow()]);
        assert!(found.iter().all(|row| row.phase == "all"), "no row after the last one");
        let of = |metric: &str, stat: &str| {
            let row = found.iter().find(|row| row.metric == metric && row.stat == stat);
            row.map(|row| (row.value, row.unit, row.n))
        };
        assert_eq!(of("cc_state_time", "DRAIN"), Some((250_000.0, "us", 2)));
        assert_eq!(of("cc_state_time", "UP"), Some((0.0, "us", 2)));
        assert_eq!(of("cc_state_share", "DOWN"), Some((1.25 / 3.5, "1", 2)));
        assert_eq!(of("cc_state_entries", "STARTUP"), Some((1.0, "1", 2)));
        assert_eq!(of("cc_state_rounds", "DOWN"), Some((3.0, "1", 2)));
        assert_eq!(of("bbr_inflight_longterm", "min"), Some((20.0, "packets", 10)));
        assert_eq!(of("bbr_inflight_longterm", "mean"), Some((36.8, "packets", 10)));
        assert_eq!(of("bbr_inflight_longterm", "end"), Some((30.0, "packets", 2)));
        assert_eq!(of("bbr_inflight_longterm", "undefined"), Some((4.0, "1", 14)));
        assert_eq!(of("bbr_inflight_longterm", "max_DOWN"), Some((50.0, "packets", 4)));
        assert_eq!(of("bbr_inflight_longterm", "begin_DOWN"), Some((44.0, "packets", 2)));
        assert_eq!(of("bbr_inflight_longterm", "min_STARTUP"), None);
        assert_eq!(of("bbr_pacing_gain", "max_DRAIN"), Some((0.34375, "1", 2)));
        assert_eq!(of("bbr_pacing_gain", "undefined"), None);
        assert_eq!(of("bbr_cwnd", "max"), None);
        let of_flow = rows(&end, &Schedule::from_plan(None), (Scope::Flow, "a/0"), "a", &[flow()]);
        assert!(of_flow.iter().all(|row| !row.stat.contains("_DOWN")));
        // The state of a flow with a single row has no length.
        let late = records(&[(4.75, 1, STARTUP, 710, 9)]);
        let found =
            rows(&end, &Schedule::from_plan(None), (Scope::Group, "a"), "a", &[flow(), late]);
        let shares = found.iter().filter(|row| row.metric == "cc_state_share");
        let (sum, flows) = shares.fold((0.0, 0), |(sum, _), row| (sum + row.value, row.n));
        assert!((sum - 1.0_f64).abs() < 1e-9 && flows == 1, "{sum} {flows}");
    }
}
