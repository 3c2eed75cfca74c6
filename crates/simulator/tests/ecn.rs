//! Tests what connections negotiate and which marks they feed back, at every point of `plans/conformance/ecn.toml`. The table here repeats
//! its claims (RFC 3168, section 6.1.1; RFC 9768, Table 2).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use ccbench_proto::plan::check::{self, CheckedPlan, Target, TraceFiles};
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{FlowSample, RunEvent, Side};
use ccbench_simulator::Simulation;

const PLAN: &str = include_str!("../../../plans/conformance/ecn.toml");

/// `tcpi_ecn_mode`.
const NO_ECN: u32 = 0;
const RFC_3168: u32 = 1;
const ACC_ECN: u32 = 2;
/// `TCPI_OPT_ECN` of `tcpi_options`.
const OPTION_ECN: u32 = 8;

/// Client, server and result, on a path on which no SYN is lost.
const TABLE: [(&str, &str, u32); 9] = [
    ("none", "none", NO_ECN),
    ("none", "ecn", NO_ECN),
    ("none", "accecn", NO_ECN),
    ("ecn", "none", NO_ECN),
    ("ecn", "ecn", RFC_3168),
    ("ecn", "accecn", RFC_3168),
    ("accecn", "none", NO_ECN),
    ("accecn", "ecn", RFC_3168),
    ("accecn", "accecn", ACC_ECN),
];

/// Returns what is negotiated at a point.
fn expected(client: &str, server: &str, path: &str) -> u32 {
    let row = TABLE.iter().find(|row| (row.0, row.1) == (client, server)).unwrap();
    match (path, client) {
        ("two_syns_lost", _) | ("first_syn_lost", "ecn") => NO_ECN,
        _ => row.2,
    }
}

/// The last samples of both ends, and the marks of the bottleneck.
struct Trial {
    ends: BTreeMap<Side, FlowSample>,
    marks_pkts: u64,
}

fn simulate(point: &CheckedPlan) -> Trial {
    let mut trial = Trial { ends: BTreeMap::new(), marks_pkts: 0 };
    let emit = &mut |_: &str, event: RunEvent| match event.payload.unwrap() {
        Payload::FlowSample(sample) => drop(trial.ends.insert(sample.side(), sample)),
        Payload::QdiscSample(sample) if sample.link == "bottleneck" => {
            trial.marks_pkts = sample.ce_mark_pkts.unwrap_or(0) + sample.ecn_mark_pkts.unwrap_or(0);
        }
        _ => {}
    };
    Simulation::of_trial(point, 1).unwrap().run(emit, &|| true).unwrap();
    trial
}

#[test]
fn every_pair_of_hosts_negotiates_what_the_rfcs_say() {
    let (plan, _) = check::read_for(Target::Simulator, PLAN, &[], TraceFiles::new()).unwrap();
    let points = plan.points();
    assert_eq!(points.len(), TABLE.len() * 5);
    for point in points {
        let levels: BTreeMap<&str, &str> =
            point.factors.iter().map(|(name, level)| (name.as_str(), level.as_str())).collect();
        let (client, server, path) = (levels["client"], levels["server"], levels["path"]);
        let (expected, trial) = (expected(client, server, path), simulate(&point.plan));
        let what = format!("{client} {server} {path}");
        for side in [Side::Sender, Side::Receiver] {
            let end = &trial.ends[&side];
            assert_eq!(end.ecn_mode, Some(expected), "{what}");
            assert_eq!(end.options.unwrap() & OPTION_ECN != 0, expected != NO_ECN, "{what}");
        }
        // Packets that are not ECN-capable are not marked. Marks that are removed are not counted.
        let can_mark = expected != NO_ECN && path != "ect_bleached";
        assert_eq!(trial.marks_pkts > 0, can_mark, "{what}: {}", trial.marks_pkts);
        let counted = trial.ends[&Side::Sender].delivered_ce_pkts.unwrap();
        assert_eq!(counted > 0, can_mark && path != "ce_bleached", "{what}: {counted}");
        if expected == ACC_ECN {
            assert!(u64::from(counted) <= trial.marks_pkts, "{what}: {counted}");
        }
    }
}

#[test]
fn the_plan_is_one_for_kernels_too() {
    check::read(PLAN, &[]).unwrap();
}

/// A congestion control that counts marks requests ECN in addition to `tcp_ecn`, unless that is 0.
#[test]
fn congestion_controls_that_count_marks_ask_for_ecn() {
    let mode = |algorithm: &str, [client, server, path]: [&str; 3]| {
        let instance = format!("\n[cc.x]\nalgorithm = \"{algorithm}\"\n");
        let text = PLAN.replace("cc   = \"reno\"", "cc   = \"x\"") + &instance;
        let sets = [("client", client), ("server", server), ("path", path)]
            .map(|(factor, level)| format!("matrix.{factor}={level}"));
        let read = check::read_for(Target::Simulator, &text, &sets, TraceFiles::new());
        let (plan, _) = read.unwrap_or_else(|problems| panic!("{problems:?}"));
        let [point] = &plan.points()[..] else { panic!("{sets:?}") };
        simulate(&point.plan).ends[&Side::Sender].ecn_mode.unwrap()
    };
    assert_eq!(mode("dctcp", ["ecn", "ecn", "clean"]), RFC_3168);
    assert_eq!(mode("dctcp", ["accecn", "accecn", "clean"]), ACC_ECN);
    assert_eq!(mode("prague", ["ecn", "ecn", "clean"]), ACC_ECN);
    assert_eq!(mode("prague", ["ecn", "none", "clean"]), NO_ECN);
    assert_eq!(mode("dctcp", ["ecn", "ecn", "first_syn_lost"]), NO_ECN);
}
