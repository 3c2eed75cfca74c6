//! Flow metrics in instants of 0.1 s, and their means, which equal those of the summary.

use std::collections::{BTreeMap, HashMap};

use polars::prelude::*;

use super::data::Selection;
use super::error::Result;
use super::request::Kind;
use crate::in_flight::in_flight;
use crate::journal::{PhaseRecord, TrialEnd};
use crate::summary::query::{batches, collect, number, scan, sender};
use crate::summary::settling::BIN_S;
pub(super) use crate::summary::statistics::Mean;
use crate::summary::statistics::mean_with_interval;
use crate::summary::{PhaseRow, Running, flows_of};
use ccbench_proto::metric::Scope;

/// A flow in one instant; `None` if there is no data.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Instant {
    pub(super) mbit_per_s: Option<f64>,
    pub(super) srtt_ms: Option<f64>,
    pub(super) in_flight: Option<f64>,
}

/// One flow in one phase of one trial: its means over the phase, as in the summary, and its instants.
pub(super) struct Flow {
    pub(super) trial: u16,
    pub(super) phase: String,
    pub(super) flow: String,
    pub(super) mean: Instant,
    /// The share of the phase in which the flow's group has data, which weights the flow's means in those of all flows together.
    pub(super) share: f64,
    /// Throughput and packets in flight of all flows together, as in the summary; `None` if the filters exclude flows.
    pub(super) net: Instant,
    pub(super) instants: Vec<Instant>,
}

/// Returns all selected flows of these trials of one point, in the selected phases in which they run.
pub(super) fn flows(data: &Selection, trials: &[&TrialEnd]) -> Result<Vec<Flow>> {
    let mut packets = match data.request.kind {
        Kind::OperatingPoint => packets_in_flight(data, trials)?,
        _ => HashMap::new(),
    };
    let mut flows = Vec::new();
    for (end, found) in trials.iter().zip(flows_of(&data.run, trials, &data.schedule)) {
        let (rows, grid) = found?;
        let mut means: BTreeMap<(&str, &str), [Option<f64>; 2]> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.scope == Scope::Flow && row.stat == "mean") {
            let (nth, scale) = match row.metric {
                "throughput" => (0, 1e6),
                "srtt" => (1, 1e3),
                _ => continue,
            };
            means.entry((&row.phase, &row.subject)).or_default()[nth] = Some(row.value / scale);
        }
        let of_phase = |phase: &PhaseRecord| {
            let rows: Vec<&PhaseRow> = rows.iter().filter(|row| row.phase == phase.name).collect();
            let net = if data.accepts_every_flow() { net(&rows) } else { Instant::default() };
            (phase.name.clone(), (Running::new(&rows, phase, &data.schedule), net))
        };
        let of_phases: BTreeMap<String, (Running<'_>, Instant)> =
            end.phases.iter().map(of_phase).collect();
        for ((phase, flow), [mbit_per_s, srtt_ms]) in means {
            let record = end.phases.iter().find(|record| record.name == phase);
            let record = record.filter(|_| data.accepts("phase", phase) && data.accepts_flow(flow));
            let Some((from_s, to_s)) = record.map(PhaseRecord::span_s) else { continue };
            let here = grid.between(from_s, to_s);
            let key = (end.trial, phase.to_owned(), flow.to_owned());
            let packets = packets.remove(&key).unwrap_or_default();
            let instant = |(nth, (mbit_per_s, srtt_us)): (usize, (Option<f64>, Option<f64>))| {
                let in_flight = packets.instants.get(&(here.first() + nth)).copied();
                Instant { mbit_per_s, srtt_ms: srtt_us.map(|us| us / 1e3), in_flight }
            };
            let mean = Instant { mbit_per_s, srtt_ms, in_flight: packets.mean() };
            let instants = here.of(flow).into_iter().enumerate().map(instant).collect();
            let (share, net) = of_phases
                .get(phase)
                .map_or((1.0, Instant::default()), |(running, net)| (running.share(flow), *net));
            let (trial, phase, flow) = key;
            flows.push(Flow { trial, phase, flow, mean, share, net, instants });
        }
    }
    Ok(flows)
}

/// Returns throughput and packets in flight of all flows together, from the rows of a phase.
fn net(rows: &[&PhaseRow]) -> Instant {
    let of = |metric: &str, stat: &str| {
        let is_meant =
            |row: &&&PhaseRow| row.scope == Scope::Net && (row.metric, row.stat) == (metric, stat);
        rows.iter().find(is_meant).map(|row| row.value)
    };
    let mbit_per_s = of("throughput_sum", "mean").map(|bps| bps / 1e6);
    Instant { mbit_per_s, srtt_ms: None, in_flight: of("in_flight", "sum") }
}

/// Packets in flight of one flow in one phase of one trial.
#[derive(Default)]
struct Packets {
    /// Mean of the samples in each instant, by its index in the trial.
    instants: HashMap<usize, f64>,
    sum: f64,
    samples: f64,
}

impl Packets {
    /// Returns the mean of all samples.
    fn mean(&self) -> Option<f64> {
        (self.samples > 0.0).then(|| self.sum / self.samples)
    }
}

/// Returns packets in flight, by trial, phase and flow.
fn packets_in_flight(
    data: &Selection,
    trials: &[&TrialEnd],
) -> Result<HashMap<(u16, String, String), Packets>> {
    const TABLE: &str = "flow_samples";
    let keys = || ["point_id", "trial", "phase", "flow_id", "instant"].map(col).to_vec();
    let mut found: HashMap<_, Packets> = HashMap::new();
    for batch in batches(trials) {
        let Some(rows) = scan(&data.run, TABLE, batch)? else { continue };
        let instant = (col("t_s") * lit(1.0 / BIN_S)).cast(DataType::Int64).alias("instant");
        let rows = rows
            .filter(sender().and(col("t_s").is_not_null()).and(col("phase").is_not_null()))
            .with_column(instant)
            .group_by(keys())
            .agg([in_flight().sum().alias("sum"), number_of(in_flight()).alias("samples")])
            .sort_by_exprs(keys(), SortMultipleOptions::default())
            .with_columns(["point_id", "trial", "instant"].map(number));
        let lines = collect(&data.run, TABLE, rows)?;
        for line in 0..lines.len() {
            let number = |name: &str| lines.number(name, line);
            let (Some(nth), Some(sum)) = (number("instant"), number("sum")) else { continue };
            let Some(samples) = number("samples").filter(|samples| *samples > 0.0) else {
                continue;
            };
            let key = (lines.trial(line).1, lines.text("phase", line), lines.text("flow_id", line));
            let packets = found.entry(key).or_default();
            packets.instants.insert(nth as usize, sum / samples);
            packets.sum += sum;
            packets.samples += samples;
        }
    }
    Ok(found)
}

/// Returns the number of non-null values.
fn number_of(values: Expr) -> Expr {
    values.count().cast(DataType::Float64)
}

/// An operating point, averaged over trials.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OperatingPoint {
    pub(super) mbit_per_s: Mean,
    pub(super) srtt_ms: Mean,
    /// Packets in flight; `None` without samples.
    pub(super) in_flight: Option<Mean>,
    pub(super) trials: u32,
}

/// Returns the operating point in a phase of each flow and of all flows together. For all flows, throughput and packets in flight are those
/// of the net in the summary. For a selection of flows, they are the sums of the flows' means, each weighted with the share of the phase in
/// which its group has data. The sRTT is the mean over flows.
pub(super) fn operating_points(
    flows: &[Flow],
    phase: &str,
) -> (BTreeMap<String, OperatingPoint>, Option<OperatingPoint>) {
    /// Throughput, sRTT and packets in flight; the last may be unknown.
    type Means = (f64, f64, Option<f64>);
    let mut each: BTreeMap<String, Vec<Means>> = BTreeMap::new();
    let mut joint: BTreeMap<u16, Vec<&Flow>> = BTreeMap::new();
    for flow in flows.iter().filter(|flow| flow.phase == phase) {
        let Instant { mbit_per_s: Some(rate), srtt_ms: Some(srtt), in_flight } = flow.mean else {
            continue;
        };
        each.entry(flow.flow.clone()).or_default().push((rate, srtt, in_flight));
        joint.entry(flow.trial).or_default().push(flow);
    }
    let over = |trials: Vec<Means>| {
        let of = |value: &dyn Fn(&Means) -> Option<f64>| {
            mean_with_interval(&trials.iter().map(value).collect::<Option<Vec<f64>>>()?)
        };
        Some(OperatingPoint {
            mbit_per_s: of(&|means| Some(means.0))?,
            srtt_ms: of(&|means| Some(means.1))?,
            in_flight: of(&|means| means.2),
            trials: trials.len() as u32,
        })
    };
    let together = |flows: Vec<&Flow>| -> Option<Means> {
        let sum = |value: fn(&Instant) -> Option<f64>| {
            let net = flows.first().and_then(|flow| value(&flow.net));
            net.or_else(|| flows.iter().map(|flow| Some(value(&flow.mean)? * flow.share)).sum())
        };
        let srtt_ms = flows.iter().map(|flow| flow.mean.srtt_ms).sum::<Option<f64>>()?;
        Some((sum(|i| i.mbit_per_s)?, srtt_ms / flows.len() as f64, sum(|i| i.in_flight)))
    };
    let joint = over(joint.into_values().filter_map(together).collect());
    let each = each.into_iter().filter_map(|(flow, trials)| Some((flow, over(trials)?)));
    (each.collect(), joint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joint_point_sums_rates_and_averages_rtts() {
        let flow = |name: &str, trial, mbit: f64, srtt: f64, packets: f64| Flow {
            trial,
            phase: "p".into(),
            flow: name.into(),
            mean: Instant { mbit_per_s: Some(mbit), srtt_ms: Some(srtt), in_flight: Some(packets) },
            share: 1.0,
            net: Instant::default(),
            instants: vec![],
        };
        let flows = [
            flow("a/0", 1, 26.3, 24.0, 56.9),
            flow("b/0", 1, 4.5, 26.0, 9.4),
            flow("a/0", 2, 26.3, 24.0, 56.9),
            flow("b/0", 2, 4.5, 26.0, 9.4),
        ];
        let (each, joint) = operating_points(&flows, "p");
        let joint = joint.unwrap();
        assert!(
            (joint.mbit_per_s.value - 30.8).abs() < 1e-9
                && (joint.srtt_ms.value - 25.0).abs() < 1e-9
        );
        assert!((joint.in_flight.unwrap().value - 66.3).abs() < 1e-9 && joint.trials == 2);
        assert!((each["a/0"].mbit_per_s.value - 26.3).abs() < 1e-9);
        assert!(operating_points(&flows, "q").1.is_none());
        // Each flow has the link for half of the phase.
        let half = |flow| Flow { share: 0.5, ..flow };
        let turns = [("a/0", 20.0), ("b/0", 18.0)]
            .map(|(name, mbit)| half(flow(name, 1, mbit, 24.0, 40.0)));
        let joint = operating_points(&turns, "p").1.unwrap();
        assert_eq!((joint.mbit_per_s.value, joint.in_flight.unwrap().value), (19.0, 40.0));
        let net = Instant { mbit_per_s: Some(18.5), srtt_ms: None, in_flight: Some(39.0) };
        let joint = operating_points(&turns.map(|flow| Flow { net, ..flow }), "p").1.unwrap();
        assert_eq!((joint.mbit_per_s.value, joint.in_flight.unwrap().value), (18.5, 39.0));
        assert_eq!(joint.srtt_ms.value, 24.0);
    }
}
