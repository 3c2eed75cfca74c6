use ccbench_proto::plan::check;
use proptest::prelude::*;

use super::*;
use crate::curve::CapacityCurve;
use crate::model::{TrialKey, TrialStatus};

fn none(_: &str) -> Option<&'static CapacityCurve> {
    None
}

/// The data of both flows passes both links. The first link is slower.
const PLAN: &str = r#"
    name = "t"
    [nodes]
    a = {}
    b = {}
    c = {}
    [wires]
    path = ["a", "b", "c"]
    [links.wide]
    node = "a"
    toward = "b"
    rate = "20mbit"
    [links.narrow]
    node = "b"
    toward = "c"
    rate = "10mbit"
    [flows.x]
    from = "a"
    to = "c"
    [flows.y]
    from = "a"
    to = "c"
    [[phases]]
    name = "alone"
    length = "10s"
    flows = ["x"]
    [[phases]]
    name = "both"
    length = "10s"
    flows = ["x", "y"]
"#;

fn schedule() -> Schedule {
    let (plan, _) = check::read(PLAN, &[]).unwrap_or_else(|e| panic!("{e:?}"));
    Schedule::from_plan(Some(&plan))
}

fn trial() -> TrialEnd {
    let key = TrialKey { point_id: 0, trial: 1, seed: 1, epoch: 1 };
    let phase = |name: &str, start_us, end_us| PhaseRecord {
        name: name.to_owned(),
        start_us,
        end_us,
        measure: true,
    };
    let phases = vec![phase("alone", 0, 10_000_000), phase("both", 10_000_000, 20_000_000)];
    TrialEnd { phases, ..TrialEnd::new(key, TrialStatus::Ok) }
}

fn flows() -> Flows {
    let mut flows = Flows::default();
    flows.add("x", "x/0", 7);
    flows.add("y", "y/0", 8);
    flows
}

/// Returns a link's log with a row for each packet.
fn log(link: &str, rows: u64) -> Log {
    Log { link: link.to_owned(), rows, reported: Some((rows, 0)) }
}

/// Phase, scope, subject, statistic, value, number.
type Brief = (String, Scope, String, &'static str, f64, u32);

fn brief(packets: &Packets, schedule: &Schedule) -> Vec<Brief> {
    let (end, flows) = (trial(), flows());
    let logs = TrialLogs { end: &end, flows: &flows, packets, schedule, curves: &none };
    let brief = |row: PhaseRow| (row.phase, row.scope, row.subject, row.stat, row.value, row.n);
    logs.rows().into_iter().map(brief).collect()
}

/// Returns the statistics of a subject in a phase.
fn of(all: &[Brief], phase: &str, scope: Scope, subject: &str) -> Vec<(&'static str, f64, u32)> {
    let here =
        all.iter().filter(|row| (row.0.as_str(), row.1, row.2.as_str()) == (phase, scope, subject));
    here.map(|row| (row.3, row.4, row.5)).collect()
}

#[test]
fn percentiles_are_those_of_packets() {
    // Four packets of 1 to 4 ms: the 95th percentile is at 0.95 * 3 = 2.85, the 99th at 2.97.
    let x = vec![1000.0, 2000.0, 3000.0, 4000.0];
    let y = vec![10e3; 4];
    let delays_us = BTreeMap::from([([0, 0, 0], x.clone()), ([1, 0, 0], x), ([1, 0, 1], y)]);
    let packets = Packets { logs: vec![log("narrow", 12)], delays_us };
    let all = brief(&packets, &schedule());
    let wanted = [("mean", 2500.0, 4), ("p50", 2500.0, 4), ("p95", 3850.0, 4), ("p99", 3970.0, 4)];
    for (scope, subject) in
        [(Scope::Flow, "x/0"), (Scope::Group, "x"), (Scope::Net, "all"), (Scope::Link, "narrow")]
    {
        let found = of(&all, "alone", scope, subject);
        let near = |(a, b): (&(&str, f64, u32), &(&str, f64, u32))| {
            (a.0, a.2) == (b.0, b.2) && (a.1 - b.1).abs() < 1e-9
        };
        assert!(found.len() == 4 && found.iter().zip(&wanted).all(near), "{subject}: {found:?}");
    }
    // Both flows together: 1, 2, 3, 4 ms and four times 10 ms.
    let net = of(&all, "both", Scope::Net, "all");
    assert_eq!(net[..2], [("mean", 6250.0, 8), ("p50", 7000.0, 8)]);
    assert_eq!(of(&all, "both", Scope::Link, "narrow"), net);
    assert_eq!(of(&all, "both", Scope::Flow, "y/0")[2], ("p95", 10e3, 4));
    assert!(of(&all, "alone", Scope::Flow, "y/0").is_empty());
}

#[test]
fn link_with_the_lowest_rate_is_meant() {
    let delays_us = BTreeMap::from([([0, 0, 0], vec![1000.0; 3]), ([0, 1, 0], vec![7000.0; 3])]);
    let mut packets = Packets { logs: vec![log("wide", 3), log("narrow", 3)], delays_us };
    let mean = |all: &[Brief], scope, subject| of(all, "alone", scope, subject).first().copied();
    let planned = brief(&packets, &schedule());
    assert_eq!(mean(&planned, Scope::Flow, "x/0"), Some(("mean", 7000.0, 3)));
    assert_eq!(mean(&planned, Scope::Link, "wide"), Some(("mean", 1000.0, 3)));
    // Without a plan, it is unknown which link is slower.
    let without = brief(&packets, &Schedule::from_plan(None));
    assert_eq!(mean(&without, Scope::Flow, "x/0"), None);
    packets.delays_us.remove(&[0, 1, 0]);
    let without = brief(&packets, &Schedule::from_plan(None));
    assert_eq!(mean(&without, Scope::Flow, "x/0"), Some(("mean", 1000.0, 3)));
}

#[test]
fn incomplete_log_has_no_percentiles() {
    // Five packets did not fit, and two rows of those written are not in the table.
    let reported = Some((10, 5));
    let narrow = Log { reported, ..log("narrow", 8) };
    let delays_us = BTreeMap::from([([0, 0, 0], vec![1000.0; 3]), ([0, 1, 0], vec![7000.0; 3])]);
    let mut packets = Packets { logs: vec![log("wide", 3), narrow], delays_us };
    let all = brief(&packets, &schedule());
    for (scope, subject) in
        [(Scope::Flow, "x/0"), (Scope::Group, "x"), (Scope::Net, "all"), (Scope::Link, "narrow")]
    {
        assert_eq!(of(&all, "alone", scope, subject), [("undefined", 7.0, 10)], "{subject}");
    }
    assert_eq!(of(&all, "alone", Scope::Link, "wide")[0], ("mean", 1000.0, 3));
    // The counts of an aborted trial are unknown.
    packets.logs[1].reported = None;
    let all = brief(&packets, &schedule());
    assert!(all.iter().all(|row| row.1 == Scope::Link && row.2 == "wide"), "{all:?}");
}

#[test]
fn hash_of_two_flows_identifies_neither() {
    let mut flows = flows();
    flows.add("x", "x/0", 7);
    assert_eq!(flows.by_hash[&7], Some(0));
    flows.add("z", "z/0", 7);
    assert_eq!((flows.by_hash[&7], flows.by_hash[&8]), (None, Some(1)));
    assert_eq!(flows.of_group("z").collect::<Vec<_>>(), [(2, "z/0")]);
}

proptest! {
    #[test]
    fn statistics_are_ordered_and_shift_with_the_delay(
        x in prop::collection::vec(0.0..1e6_f64, 1..100),
        y in prop::collection::vec(0.0..1e6_f64, 1..100),
        more_us in 0.0..1e6_f64,
    ) {
        let packets = |more_us: f64| {
            let later = |delays: &[f64]| delays.iter().map(|us| us + more_us).collect::<Vec<_>>();
            let delays_us = BTreeMap::from([([1, 0, 0], later(&x)), ([1, 0, 1], later(&y))]);
            Packets { logs: vec![log("narrow", 0)], delays_us }
        };
        let schedule = schedule();
        let values = |more_us: f64, scope, subject: &str| -> Vec<f64> {
            let all = brief(&packets(more_us), &schedule);
            of(&all, "both", scope, subject).into_iter().map(|row| row.1).collect()
        };
        let (net, later) = (values(0.0, Scope::Net, "all"), values(more_us, Scope::Net, "all"));
        prop_assert!(net[1] <= net[2] && net[2] <= net[3], "{net:?}");
        for (plain, later) in net.iter().zip(&later) {
            prop_assert!((later - plain - more_us).abs() < 1e-3, "{plain} {later}");
        }
        let [one, other] = ["x/0", "y/0"].map(|flow| values(0.0, Scope::Flow, flow)[1]);
        // The median of all packets is between those of the flows.
        let (least, most) = (one.min(other) - 1e-3, one.max(other) + 1e-3);
        prop_assert!((least..=most).contains(&net[1]), "{net:?} {one} {other}");
    }
}
