//! Metrics derived from other metrics of a phase and from the plan's path: utilisation of bandwidth and of the bandwidth-delay product,
//! estimated queueing delay, and the share of the max-min fair allocation.
//!
//! - **bandwidth_utilisation** of a flow: its throughput over the mean rate of its bottleneck.
//! - **bdp_utilisation** of a flow: its mean packets in flight over the bottleneck's rate times the base RTT, in full frames.
//! - **estimated_queue_delay**: smoothed RTT less the base RTT, which is the sum of the configured delays; no row if they change.
//! - **max_min_fair_share**: throughput over the max-min fair goodput of [`super::network`].
//! - For the net: the sums over flows of packets in flight and of both utilisations (the latter only if the flows share one
//!   bottleneck and each has a value), and the smallest fair share of a flow. Sums are means over the phase of what all flows have
//!   together at each instant: a flow's mean is weighted with the share of the phase in which its group has data.

use std::collections::BTreeMap;

use ccbench_proto::metric::Scope;

use super::network::{Bottleneck, Curves, Network};
use super::schedule::{Schedule, group_of};
use super::span::{Group, Span};
use super::tables::PhaseRow;
use crate::journal::PhaseRecord;

/// Returns the derived metrics of one trial's rows.
pub(super) fn derived(
    rows: &[PhaseRow],
    phases: &[PhaseRecord],
    schedule: &Schedule,
    curves: Curves<'_, '_>,
) -> Vec<PhaseRow> {
    let mut found = Vec::new();
    for phase in phases.iter().filter(|phase| phase.measure && phase.seconds() > 0.0) {
        let rows: Vec<&PhaseRow> = rows.iter().filter(|row| row.phase == phase.name).collect();
        let Some(first) = rows.first() else { continue };
        let running = Running::new(&rows, phase, schedule);
        let total = |flows: &[&PhaseRow]| running.total(flows);
        found.extend(net_row(&rows, "in_flight", "packets", "sum", total));
        let Some(network) = schedule.network(first.point_id) else { continue };
        let groups: Vec<(&str, Group)> = schedule.groups(first.point_id).collect();
        let context = PhaseContext { network, groups, span: phase.span_s(), curves };
        found.extend(context.rows(&rows, &running));
    }
    found
}

/// The share of a phase in which each group has data.
pub(crate) struct Running<'r>(BTreeMap<&'r str, f64>);

impl<'r> Running<'r> {
    /// Computes the shares from the groups' `coverage_share`, a share of their scheduled time. `rows` are those of the phase.
    pub(crate) fn new(rows: &[&'r PhaseRow], phase: &PhaseRecord, schedule: &Schedule) -> Self {
        let covered = rows.iter().filter(|row| row.metric == "coverage_share");
        let share = |row: &&'r PhaseRow| {
            let planned_s = schedule.planned_s(row.point_id, &row.subject, phase.span_s());
            (row.subject.as_str(), row.value * planned_s / phase.seconds())
        };
        Self(covered.map(share).collect())
    }

    /// Returns the share of a flow's group; a group without one has data throughout.
    pub(crate) fn share(&self, flow: &str) -> f64 {
        self.0.get(group_of(flow)).map_or(1.0, |share| share.min(1.0))
    }

    /// Returns the sum of the flows' means, each weighted with the share of its group.
    fn total(&self, flows: &[&PhaseRow]) -> f64 {
        flows.iter().map(|row| row.value * self.share(&row.subject)).sum()
    }
}

/// A phase and the network of its point.
struct PhaseContext<'a, 'c> {
    network: &'a Network,
    groups: Vec<(&'a str, Group)>,
    span: Span,
    curves: Curves<'a, 'c>,
}

impl PhaseContext<'_, '_> {
    fn rows(&self, rows: &[&PhaseRow], running: &Running<'_>) -> Vec<PhaseRow> {
        let shares = self.network.fair_shares(&self.groups, self.span, self.curves);
        let shares = shares.unwrap_or_default();
        let mut found: Vec<PhaseRow> = Vec::new();
        for row in rows {
            found.extend(self.queue_delay(row));
            found.extend(self.utilisation(row));
            found.extend(self.fair_share(row, &shares));
        }
        let derived: Vec<&PhaseRow> = found.iter().collect();
        let least =
            |flows: &[&PhaseRow]| flows.iter().map(|row| row.value).fold(f64::INFINITY, f64::min);
        let mut net: Vec<PhaseRow> = Vec::new();
        if self.have_one_bottleneck(rows) {
            let flows = means(rows, "throughput").count();
            let of_every_flow = |metric: &&str| means(&derived, metric).count() == flows;
            for metric in
                ["bandwidth_utilisation", "bdp_utilisation"].into_iter().filter(of_every_flow)
            {
                net.extend(net_row(&derived, metric, "1", "sum", |flows| running.total(flows)));
            }
        }
        net.extend(net_row(&derived, "max_min_fair_share", "1", "min", least));
        found.extend(net);
        found
    }

    /// Returns a group's base RTT in us, if it is constant while the group runs.
    fn base_rtt(&self, group: &str) -> Option<f64> {
        self.network.base_rtt_us(group, self.running(group)?)
    }

    /// Returns the part of the phase in which a group runs.
    fn running(&self, group: &str) -> Option<Span> {
        let (_, Group { span, .. }) = self.groups.iter().find(|(name, _)| *name == group)?;
        let (from_s, to_s) = (span.0.max(self.span.0), span.1.min(self.span.1));
        (from_s < to_s).then_some((from_s, to_s))
    }

    fn bottleneck(&self, group: &str) -> Option<Bottleneck> {
        let found = self.network.bottleneck(group, self.running(group)?, self.curves)?;
        (found.rate_bps > 0.0).then_some(found)
    }

    fn queue_delay(&self, row: &PhaseRow) -> Option<PhaseRow> {
        let group = match row.scope {
            _ if row.metric != "srtt" => return None,
            Scope::Group => row.subject.as_str(),
            _ => group_of(&row.subject),
        };
        let base_us = self.base_rtt(group)?;
        let value = if row.stat == "std" { row.value } else { row.value - base_us };
        Some(PhaseRow { metric: "estimated_queue_delay", value, ..row.clone() })
    }

    fn utilisation(&self, row: &PhaseRow) -> Option<PhaseRow> {
        let group = group_of(&row.subject);
        let (metric, whole) = match (row.scope, row.metric, row.stat) {
            (Scope::Flow, "throughput", "mean") => {
                ("bandwidth_utilisation", self.bottleneck(group)?.rate_bps)
            }
            (Scope::Flow, "in_flight", "mean") => {
                let base_us = self.base_rtt(group)?;
                ("bdp_utilisation", self.bottleneck(group)?.bdp_packets(base_us))
            }
            _ => return None,
        };
        let value = Some(row.value / whole).filter(|value| value.is_finite())?;
        Some(PhaseRow { metric, unit: "1", value, ..row.clone() })
    }

    fn fair_share(&self, row: &PhaseRow, shares: &BTreeMap<&str, f64>) -> Option<PhaseRow> {
        let fair_bps = match (row.scope, row.metric, row.stat) {
            (Scope::Flow, "throughput", "mean") => *shares.get(group_of(&row.subject))?,
            (Scope::Group, "throughput_sum", "mean") => {
                let (_, group) = self.groups.iter().find(|(name, _)| *name == row.subject)?;
                shares.get(row.subject.as_str())? * f64::from(group.flows)
            }
            _ => return None,
        };
        let value = Some(row.value / fair_bps).filter(|value| value.is_finite())?;
        Some(PhaseRow { metric: "max_min_fair_share", unit: "1", value, ..row.clone() })
    }

    /// Returns whether all flows with a throughput have the same bottleneck.
    fn have_one_bottleneck(&self, rows: &[&PhaseRow]) -> bool {
        let is_meant = |row: &&&PhaseRow| (row.scope, row.metric) == (Scope::Flow, "throughput");
        let flows = rows.iter().filter(is_meant);
        let mut links = flows.map(|row| Some(self.bottleneck(group_of(&row.subject))?.link));
        let first = links.next().flatten();
        first.is_some() && links.all(|link| link == first)
    }
}

/// Returns a metric of all flows together, from the mean of each.
fn net_row(
    rows: &[&PhaseRow],
    metric: &'static str,
    unit: &'static str,
    stat: &'static str,
    together: impl Fn(&[&PhaseRow]) -> f64,
) -> Option<PhaseRow> {
    let flows: Vec<&PhaseRow> = means(rows, metric).collect();
    let first = flows.first()?;
    Some(PhaseRow {
        scope: Scope::Net,
        subject: "all".to_owned(),
        unit,
        stat,
        value: together(&flows),
        n: flows.len() as u32,
        ..(*first).clone()
    })
}

/// Returns each flow's mean of a metric.
fn means<'r>(rows: &'r [&PhaseRow], metric: &str) -> impl Iterator<Item = &'r PhaseRow> {
    let is_meant =
        move |row: &&PhaseRow| (row.scope, row.metric, row.stat) == (Scope::Flow, metric, "mean");
    rows.iter().copied().filter(is_meant)
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{TraceUse, check};
    use ccbench_proto::trace::{Step, Steps, Trace};
    use ccbench_proto::units::Rate;

    use super::*;
    use crate::curve::CapacityCurve;

    fn none(_: &str) -> Option<&'static CapacityCurve> {
        None
    }

    /// Experiment 95 of the published benchmark (ccperf): 32 Mbit/s, 15 ms, two flows for 15 s.
    const PLAN: &str = r#"
        name = "t"
        [nodes]
        a = {}
        b = {}
        [wires]
        w = ["a", "b"]
        [links.l]
        node = "a"
        toward = "b"
        rate = "32mbit"
        delay = "15ms"
        queue = { kind = "pfifo", limit = "40p" }
        [flows.reno]
        from = "a"
        to = "b"
        [flows.vegas]
        from = "a"
        to = "b"
        [[phases]]
        name = "both"
        length = "15s"
        flows = ["reno", "vegas"]
    "#;
    /// Frames in the bandwidth-delay product of that benchmark. The value is not published, but this one reproduces the published numbers.
    const PUBLISHED_BDP: f64 = 38.51;

    fn row(scope: Scope, subject: &str, metric: &'static str, value: f64) -> PhaseRow {
        PhaseRow {
            point_id: 0,
            trial: 1,
            phase: "both".to_owned(),
            scope,
            subject: subject.to_owned(),
            metric,
            unit: "unit",
            stat: "mean",
            value,
            n: 1,
        }
    }

    /// Returns the published means of both flows.
    fn published() -> Vec<PhaseRow> {
        let flow = |subject: &str, throughput: f64, in_flight: f64| {
            [
                row(Scope::Flow, subject, "throughput", throughput),
                row(Scope::Flow, subject, "in_flight", in_flight),
                row(Scope::Flow, subject, "srtt", 24_820.0),
            ]
        };
        let flows = [flow("reno/0", 26.30e6, 56.91), flow("vegas/0", 4.49e6, 9.41)];
        flows.into_iter().flatten().collect()
    }

    fn of_plan(text: &str, rows: &[PhaseRow]) -> Vec<PhaseRow> {
        with_curves(text, rows, &none)
    }

    fn with_curves(text: &str, rows: &[PhaseRow], curves: Curves<'_, '_>) -> Vec<PhaseRow> {
        let (plan, _) = check::read(text, &[]).unwrap_or_else(|e| panic!("{e:?}"));
        let both =
            PhaseRecord { name: "both".into(), start_us: 0, end_us: 15_000_000, measure: true };
        derived(rows, &[both], &Schedule::from_plan(Some(&plan)), curves)
    }

    fn find(rows: &[PhaseRow], scope: Scope, subject: &str, metric: &str) -> Option<f64> {
        let found = rows
            .iter()
            .find(|row| (row.scope, row.subject.as_str(), row.metric) == (scope, subject, metric));
        found.map(|row| row.value)
    }

    #[test]
    fn reproduces_the_published_table() {
        let rows = of_plan(PLAN, &published());
        let hundredths = |value: f64| (value * 100.0).round() / 100.0;
        let of = |scope, subject, metric| hundredths(find(&rows, scope, subject, metric).unwrap());
        let flows = |metric| ["reno/0", "vegas/0"].map(|flow| of(Scope::Flow, flow, metric));
        assert_eq!(flows("bandwidth_utilisation"), [0.82, 0.14]);
        assert_eq!(of(Scope::Net, "all", "bandwidth_utilisation"), 0.96);
        assert_eq!(flows("estimated_queue_delay"), [9_820.0; 2]);
        assert_eq!(of(Scope::Net, "all", "in_flight"), 66.32);
        // In our frames of 1514 bytes it is 39.63.
        let scaled = |scope, subject| {
            let value = find(&rows, scope, subject, "bdp_utilisation").unwrap();
            hundredths(value * (32e6 * 0.015 / 8.0 / 1514.0) / PUBLISHED_BDP)
        };
        assert_eq!([scaled(Scope::Flow, "reno/0"), scaled(Scope::Flow, "vegas/0")], [1.48, 0.24]);
        assert_eq!(scaled(Scope::Net, "all"), 1.72);
        // Half of the link's goodput is 15.30 Mbit/s.
        assert_eq!(flows("max_min_fair_share"), [1.72, 0.29]);
        assert_eq!(of(Scope::Net, "all", "max_min_fair_share"), 0.29);
    }

    #[test]
    fn sum_of_the_net_needs_every_flow() {
        let mut rows = published();
        rows.retain(|row| (row.subject.as_str(), row.metric) != ("vegas/0", "in_flight"));
        let rows = of_plan(PLAN, &rows);
        assert!(find(&rows, Scope::Flow, "reno/0", "bdp_utilisation").is_some());
        assert_eq!(find(&rows, Scope::Net, "all", "bdp_utilisation"), None);
        assert!(find(&rows, Scope::Net, "all", "bandwidth_utilisation").is_some());
    }

    #[test]
    fn flows_in_turn_do_not_add_up() {
        // Each flow runs alone for half of the phase: there are never 40 packets in flight, and the link is never used twice.
        let turns = PLAN
            .replace("[flows.reno]", "[flows.reno]\nstop = \"7500ms\"")
            .replace("[flows.vegas]", "[flows.vegas]\nstart = \"7500ms\"\nstop = \"15s\"");
        let turns = turns.replace("flows = [\"reno\", \"vegas\"]", "flows = []");
        let flow = |subject: &str, share: f64| {
            [
                row(Scope::Flow, &format!("{subject}/0"), "throughput", 30e6),
                row(Scope::Flow, &format!("{subject}/0"), "in_flight", 40.0),
                row(Scope::Group, subject, "coverage_share", share),
            ]
        };
        let rows = of_plan(&turns, &[flow("reno", 1.0), flow("vegas", 1.0)].concat());
        let net = |rows: &[PhaseRow], metric| find(rows, Scope::Net, "all", metric).unwrap();
        assert_eq!(net(&rows, "in_flight"), 40.0);
        assert!((net(&rows, "bandwidth_utilisation") - 30.0 / 32.0).abs() < 1e-9);
        // The second flow had data for two thirds of its time.
        let rows = of_plan(&turns, &[flow("reno", 1.0), flow("vegas", 2.0 / 3.0)].concat());
        assert!((net(&rows, "in_flight") - (20.0 + 40.0 / 3.0)).abs() < 1e-9);
        // Without a plan, the share is that of the phase.
        let both =
            PhaseRecord { name: "both".into(), start_us: 0, end_us: 15_000_000, measure: true };
        let rows = [flow("reno", 0.5), flow("vegas", 0.25)].concat();
        let rows = derived(&rows, &[both], &Schedule::from_plan(None), &none);
        assert_eq!(net(&rows, "in_flight"), 30.0);
    }

    #[test]
    fn limited_flow_with_its_rate_is_not_unfair() {
        let limited = PLAN.replace("[flows.vegas]", "[flows.vegas]\nrate = \"4490kbit\"");
        let rows = of_plan(&limited, &published());
        let share = |flow| find(&rows, Scope::Flow, flow, "max_min_fair_share").unwrap();
        assert!((share("vegas/0") - 1.0).abs() < 1e-9, "{rows:?}");
        assert!((share("reno/0") - 26.30 / (32.0 * 1448.0 / 1514.0 - 4.49)).abs() < 1e-9);
        // Groups of several flows.
        let two = PLAN.replace("[flows.vegas]", "[flows.vegas]\ncount = 2");
        let rows = of_plan(&two, &[row(Scope::Group, "vegas", "throughput_sum", 10e6)]);
        let share = find(&rows, Scope::Group, "vegas", "max_min_fair_share").unwrap();
        assert!((share - 10.0 / (2.0 / 3.0 * 32.0 * 1448.0 / 1514.0)).abs() < 1e-9, "{share}");
    }

    #[test]
    fn policer_limits_the_line_only_while_it_is_slower() {
        let policer = "rate = \"10mbit\"\npolicer = { rate = \"20mbit\", burst = \"100kB\" }";
        let policed = PLAN.replace("rate = \"32mbit\"", policer);
        // The mean of 10 and 20 Mbit/s.
        let verify = |rows: &[PhaseRow]| {
            let of = |metric| find(rows, Scope::Flow, "vegas/0", metric).unwrap();
            assert!((of("bandwidth_utilisation") - 4.49 / 15.0).abs() < 1e-9, "{rows:?}");
            let bdp = 15e6 * 0.015 / 8.0 / 1514.0;
            assert!((of("bdp_utilisation") - 9.41 / bdp).abs() < 1e-9, "{rows:?}");
            let fair = 7.5 * 1448.0 / 1514.0;
            assert!((of("max_min_fair_share") - 4.49 / fair).abs() < 1e-9, "{rows:?}");
        };
        let change = "[[changes]]\nat = \"7500ms\"\nset = { \"links.l.rate\" = \"30mbit\" }\n";
        verify(&of_plan(&(policed.clone() + change), &published()));
        // The same with a trace.
        let step = |at_ms: u64, mbit: u64| Step {
            at_ns: at_ms * 1_000_000,
            rate: Some(Rate::from_bits_per_sec(mbit * 1_000_000)),
            delay_ns: None,
            loss: None,
            line: 0,
        };
        let steps = vec![step(0, 10), step(7500, 30)];
        let trace = Trace::Steps(Steps { steps, length_ns: 15_000_000_000 });
        let curve = CapacityCurve::new(&trace, &TraceUse::new("a.csv"), (None, 14.0)).unwrap();
        let curve = &curve;
        verify(&with_curves(&policed, &published(), &move |_: &str| Some(curve)));
    }

    #[test]
    fn changing_delay_has_no_base_rtt() {
        let change = "[[changes]]\nat = \"5s\"\nset = { \"links.l.delay\" = \"25ms\" }\n";
        let rows = of_plan(&(PLAN.to_owned() + change), &published());
        let of = |metric| find(&rows, Scope::Flow, "reno/0", metric);
        assert_eq!((of("estimated_queue_delay"), of("bdp_utilisation")), (None, None));
        assert!(of("bandwidth_utilisation").is_some());
        assert!(derived(&published(), &[], &Schedule::from_plan(None), &none).is_empty());
    }

    #[test]
    fn standard_deviation_is_not_shifted() {
        let std = PhaseRow { stat: "std", ..row(Scope::Group, "reno", "srtt", 700.0) };
        let rows = of_plan(PLAN, &[std]);
        assert_eq!(find(&rows, Scope::Group, "reno", "estimated_queue_delay"), Some(700.0));
    }
}
