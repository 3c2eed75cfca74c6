//! What flows did in every tenth of a second, and their means.

use std::collections::BTreeMap;

use polars::prelude::*;

use super::data::{Data, group_of};
use crate::results::Result;
use crate::results::journal::TrialEnd;
use crate::results::summary::query::{
    Lines, batches, collect, in_flight, number, scan, sender, whole_intervals,
};
pub(super) use crate::results::summary::statistics::Mean;
use crate::results::summary::statistics::{self, mean_with_interval};

/// Length of an instant.
pub(super) const INSTANT_S: f64 = 0.1;

/// What a flow did in an instant; `None`: nothing was reported.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Instant {
    pub(super) mbit_per_s: Option<f64>,
    pub(super) srtt_ms: Option<f64>,
    pub(super) in_flight: Option<f64>,
}

/// Instants of one flow in one phase of one trial.
pub(super) struct Flow {
    pub(super) trial: u16,
    pub(super) phase: String,
    pub(super) flow: String,
    pub(super) instants: Vec<Instant>,
}

impl Flow {
    /// The mean of what is known.
    pub(super) fn mean(&self, of: fn(&Instant) -> Option<f64>) -> Option<f64> {
        statistics::mean(&self.instants.iter().filter_map(of).collect::<Vec<_>>())
    }
}

/// All wanted flows of these trials of one point in measured phases in which the plan lets them run.
pub(super) fn flows(data: &Data, point_id: u32, trials: &[&TrialEnd]) -> Result<Vec<Flow>> {
    let mut found: BTreeMap<(u16, String, String), BTreeMap<i64, Instant>> = BTreeMap::new();
    let mut each = |lines: &Lines, take: &dyn Fn(&mut Instant, usize)| {
        for line in 0..lines.len() {
            let key = (lines.trial(line).1, lines.text("phase", line), lines.text("flow_id", line));
            let Some(nth) = lines.number("instant", line) else { continue };
            take(found.entry(key).or_default().entry(nth as i64).or_default(), line);
        }
    };
    for batch in batches(trials) {
        if let Some(lines) = received(data, batch)? {
            each(&lines, &|instant, line| instant.mbit_per_s = lines.number("mbit_per_s", line));
        }
        if let Some(lines) = sampled(data, batch)? {
            each(&lines, &|instant, line| {
                instant.srtt_ms = lines.number("srtt_ms", line);
                instant.in_flight = lines.number("in_flight", line);
            });
        }
    }
    let runs = |phase: &str, flow: &str| data.may_run(point_id, phase, group_of(flow));
    let kept = found
        .into_iter()
        .filter(|((_, phase, flow), _)| runs(phase, flow) && data.takes_flow(flow));
    Ok(kept
        .map(|((trial, phase, flow), instants)| Flow {
            trial,
            phase,
            flow,
            instants: instants.into_values().collect(),
        })
        .collect())
}

fn keys() -> Vec<Expr> {
    ["point_id", "trial", "phase", "flow_id", "instant"].map(col).to_vec()
}

fn grouped(
    data: &Data,
    table: &str,
    rows: LazyFrame,
    at_s: Expr,
    aggregates: Vec<Expr>,
) -> Result<Lines> {
    let instant = (at_s / lit(INSTANT_S)).cast(DataType::Int64).alias("instant");
    let rows = rows
        .filter(col("t_s").is_not_null().and(col("phase").is_not_null()))
        .with_column(instant)
        .group_by(keys())
        .agg(aggregates)
        .sort_by_exprs(keys(), SortMultipleOptions::default())
        .with_columns(["point_id", "trial", "instant"].map(number));
    collect(&data.run, table, rows)
}

/// Received in every instant: an interval belongs to the one that its middle lies in.
fn received(data: &Data, trials: &[&TrialEnd]) -> Result<Option<Lines>> {
    const TABLE: &str = "intervals";
    let Some(rows) = scan(&data.run, TABLE, trials)? else { return Ok(None) };
    let rate = number("bytes").sum() * lit(8e-6) / col("seconds").sum();
    let middle = col("t_s") - col("seconds") / lit(2.0);
    grouped(data, TABLE, rows.filter(whole_intervals()), middle, vec![rate.alias("mbit_per_s")])
        .map(Some)
}

/// Means of the samples in every instant.
fn sampled(data: &Data, trials: &[&TrialEnd]) -> Result<Option<Lines>> {
    const TABLE: &str = "flow_samples";
    let Some(rows) = scan(&data.run, TABLE, trials)? else { return Ok(None) };
    let means = vec![
        (number("rtt_us").mean() / lit(1e3)).alias("srtt_ms"),
        in_flight().mean().alias("in_flight"),
    ];
    grouped(data, TABLE, rows.filter(sender()), col("t_s"), means).map(Some)
}

/// Where something operated, over trials.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Operating {
    pub(super) mbit_per_s: Mean,
    pub(super) srtt_ms: Mean,
    pub(super) in_flight: Mean,
    pub(super) trials: u32,
}

/// Where each flow of a phase operated, and all together: sums of throughput and packets in flight, and the mean sRTT
/// over flows.
pub(super) fn operating(
    flows: &[Flow],
    phase: &str,
) -> (BTreeMap<String, Operating>, Option<Operating>) {
    type Trials = BTreeMap<u16, [f64; 3]>;
    let mut each: BTreeMap<String, Trials> = BTreeMap::new();
    let mut joint: BTreeMap<u16, ([f64; 3], f64)> = BTreeMap::new();
    for flow in flows.iter().filter(|flow| flow.phase == phase) {
        let means =
            [flow.mean(|i| i.mbit_per_s), flow.mean(|i| i.srtt_ms), flow.mean(|i| i.in_flight)];
        let [Some(rate), Some(srtt), Some(packets)] = means else { continue };
        each.entry(flow.flow.clone()).or_default().insert(flow.trial, [rate, srtt, packets]);
        let (sums, n) = joint.entry(flow.trial).or_default();
        for (sum, value) in sums.iter_mut().zip([rate, srtt, packets]) {
            *sum += value;
        }
        *n += 1.0;
    }
    let over = |trials: Vec<[f64; 3]>| {
        let of =
            |nth: usize| mean_with_interval(&trials.iter().map(|t| t[nth]).collect::<Vec<_>>());
        Some(Operating {
            mbit_per_s: of(0)?,
            srtt_ms: of(1)?,
            in_flight: of(2)?,
            trials: trials.len() as u32,
        })
    };
    let joint = joint.into_values().map(|([rate, srtt, packets], n)| [rate, srtt / n, packets]);
    let joint = over(joint.collect());
    let each = each
        .into_iter()
        .filter_map(|(flow, trials)| Some((flow, over(trials.into_values().collect())?)));
    (each.collect(), joint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_joint_point_has_the_sum_of_rates_and_the_mean_of_round_trips() {
        let flow = |name: &str, trial, mbit: f64, srtt: f64, packets: f64| Flow {
            trial,
            phase: "p".into(),
            flow: name.into(),
            instants: vec![
                Instant {
                    mbit_per_s: Some(mbit - 1.0),
                    srtt_ms: Some(srtt),
                    in_flight: Some(packets),
                },
                Instant { mbit_per_s: Some(mbit + 1.0), srtt_ms: None, in_flight: Some(packets) },
            ],
        };
        let flows = [
            flow("a/0", 1, 26.3, 24.0, 56.9),
            flow("b/0", 1, 4.5, 26.0, 9.4),
            flow("a/0", 2, 26.3, 24.0, 56.9),
            flow("b/0", 2, 4.5, 26.0, 9.4),
        ];
        let (each, joint) = operating(&flows, "p");
        let joint = joint.unwrap();
        assert!(
            (joint.mbit_per_s.value - 30.8).abs() < 1e-9
                && (joint.srtt_ms.value - 25.0).abs() < 1e-9
        );
        assert!((joint.in_flight.value - 66.3).abs() < 1e-9 && joint.trials == 2);
        assert!((each["a/0"].mbit_per_s.value - 26.3).abs() < 1e-9);
        assert!(operating(&flows, "q").1.is_none());
    }
}
