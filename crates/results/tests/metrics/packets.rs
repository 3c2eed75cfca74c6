//! Tests one-way delays from the packet log of a link, and the responsiveness of new connections.

use std::net::SocketAddr;

use ccbench_proto::flow_hash::{tcp_flow_hash, tcp_flow_hash_of_0_1};
use ccbench_proto::wire::{PacketFate, ProbeKind, TimingKind};

use super::*;

/// The server's socket of both flows. `late` is reversed: its data comes from the listening port.
const SERVER: &str = "10.0.0.2:5201";
const CLIENTS: [&str; 2] = ["10.0.0.1:40000", "10.0.0.1:40001"];

/// Pushes the rows of both ends of a flow.
fn push_ends(writer: &mut TrialWriter<'_>, group: &str, sport: u32, sides: [Side; 2]) {
    for (node, side) in ["src", "dst"].into_iter().zip(sides) {
        let flow = wire::Flow {
            flow_id: format!("{group}/0"),
            group: group.into(),
            role: Role::Data.into(),
            side: side.into(),
            node_src: "src".into(),
            node_dst: "dst".into(),
            src_ip: "10.0.0.1".into(),
            dst_ip: "10.0.0.2".into(),
            sport,
            dport: 5201,
            ..Default::default()
        };
        push(writer, node, Payload::Flow(flow));
    }
}

/// A function that returns the hash of a flow's packets.
type FlowHash = fn(SocketAddr, SocketAddr) -> Option<u32>;

/// Returns a packet that spends `delay_us` in the link.
fn packet(at_s: f64, delay_us: u64, flow: u32) -> wire::LinkPacket {
    let arrived_ns = at_ns(0, at_s);
    wire::LinkPacket {
        at_ns: arrived_ns,
        link: "bottleneck".into(),
        bytes: 1514,
        flow,
        fate: PacketFate::Sent.into(),
        queued_ns: Some(arrived_ns),
        due_ns: Some(arrived_ns + delay_us * 1000),
        sent_ns: Some(arrived_ns + delay_us * 1000),
        ..Default::default()
    }
}

/// Returns the summary of a trial whose link could not log `missed` packets.
fn logged(root: &Path, missed: u64, flow_hash: FlowHash) -> RunSummary {
    let hash =
        |from: &str, to: &str| flow_hash(from.parse().unwrap(), to.parse().unwrap()).unwrap();
    let [first, late] = CLIENTS;
    let first_data = hash(first, SERVER);
    let dropped = wire::LinkPacket {
        fate: PacketFate::Overlimit.into(),
        queued_ns: None,
        due_ns: None,
        sent_ns: None,
        ..packet(1.4, 0, first_data)
    };
    let packets = [
        packet(1.0, 1000, first_data),
        packet(1.1, 2000, first_data),
        packet(1.2, 3000, first_data),
        packet(1.3, 4000, first_data),
        dropped,
        packet(3.0, 10_000, hash(SERVER, late)),
        // Acknowledgements, and a packet that belongs to no flow.
        packet(3.1, 99_000, hash(late, SERVER)),
        packet(3.2, 99_000, 7),
    ];
    summary_with(root, |writer| {
        push_ends(writer, "first", 40_000, [Side::Sender, Side::Receiver]);
        push_ends(writer, "late", 40_001, [Side::Receiver, Side::Sender]);
        let timing = wire::LinkTiming {
            at_ns: at_ns(0, 12.0),
            link: "bottleneck".into(),
            kind: TimingKind::Log.into(),
            count: packets.len() as u64,
            missed,
            ..Default::default()
        };
        push(writer, "src", Payload::LinkTiming(timing));
        for packet in packets {
            push(writer, "src", Payload::LinkPacket(packet));
        }
    })
}

#[test]
fn packet_log_gives_the_one_way_delay_of_each_flow() {
    let root = tempfile::tempdir().unwrap();
    let summary = logged(root.path(), 0, tcp_flow_hash);
    let of = |scope, subject, stat| {
        let found = summary.summary.find(0, "both", scope, subject, "one_way_delay", stat);
        found.map(|row| ((row.value * 1e3).round() / 1e3, row.n))
    };
    let first = |stat| of(Scope::Flow, "first/0", stat);
    let all = ["mean", "p50", "p95", "p99", "undefined"].map(first);
    let known = [2500.0, 2500.0, 3850.0, 3970.0].map(|us| Some((us, 4)));
    assert_eq!((&all[..4], all[4]), (&known[..], None));
    assert_eq!(of(Scope::Flow, "late/0", "p95"), Some((10_000.0, 1)), "data, not acknowledgements");
    for (scope, subject) in [(Scope::Net, "all"), (Scope::Link, "bottleneck")] {
        assert_eq!(of(scope, subject, "mean"), Some((4000.0, 5)));
    }
    let printed = table::text(&summary, 120);
    let line = printed.lines().skip_while(|line| !line.contains("one-way delay ms")).nth(2);
    let cells: Vec<&str> = line.unwrap_or(&printed).split_whitespace().collect();
    assert_eq!(cells, ["both", "first", "2.50", "2.50", "3.85", "3.97"], "{printed}");
}

#[test]
fn scheduling_errors_of_the_simulator_are_printed_if_there_are_any() {
    let printed = |max_us: f64, backend: RunBackend| {
        let root = tempfile::tempdir().unwrap();
        let mut summary = summary_with(root.path(), |writer| {
            push_ends(writer, "first", 40_000, [Side::Sender, Side::Receiver]);
            let timing = wire::LinkTiming {
                at_ns: at_ns(0, 12.0),
                link: "bottleneck".into(),
                kind: TimingKind::Packets.into(),
                count: 9,
                max_us,
                ..Default::default()
            };
            push(writer, "src", Payload::LinkTiming(timing));
        });
        summary.summary.backend = backend;
        table::text(&summary, 120).contains("scheduling error")
    };
    let simulator = || RunBackend::Simulator { model_version: 8 };
    assert!(!printed(0.0, simulator()) && printed(3.0, simulator()));
    assert!(printed(0.0, RunBackend::Testbed), "a measured zero");
}

#[test]
fn packet_log_of_an_earlier_version_gives_the_same_delays() {
    let rows = |flow_hash: FlowHash| {
        let root = tempfile::tempdir().unwrap();
        let rows = logged(root.path(), 0, flow_hash).summary.phase_rows;
        let delays = rows.into_iter().filter(|row| row.metric == "one_way_delay");
        delays.map(|row| (row.subject, row.stat, row.value, row.n)).collect::<Vec<_>>()
    };
    let known = rows(tcp_flow_hash_of_0_1);
    assert!(known.iter().any(|row| row.0 == "first/0"), "{known:?}");
    assert_eq!(known, rows(tcp_flow_hash));
}

#[test]
fn incomplete_packet_log_leaves_the_delay_undefined() {
    let root = tempfile::tempdir().unwrap();
    let summary = logged(root.path(), 3, tcp_flow_hash);
    let of = |scope, subject, stat| {
        summary.summary.find(0, "both", scope, subject, "one_way_delay", stat)
    };
    for (scope, subject, packets) in
        [(Scope::Flow, "first/0", 4), (Scope::Net, "all", 5), (Scope::Link, "bottleneck", 5)]
    {
        let undefined = of(scope, subject, "undefined").unwrap();
        assert_eq!((undefined.value, undefined.n, undefined.unit), (3.0, packets + 3, "1"));
        assert!(of(scope, subject, "p95").is_none());
    }
    assert!(!table::text(&summary, 120).contains("one-way delay"));
}

#[test]
fn new_connections_have_round_trips_per_minute() {
    let root = tempfile::tempdir().unwrap();
    let probe = |seq: u32, kind: ProbeKind, dns_us: Option<f64>| wire::Probe {
        at_ns: at_ns(0, 1.0 + f64::from(seq)),
        probe_id: if kind == ProbeKind::Http { "page" } else { "syn" }.into(),
        kind: kind.into(),
        seq,
        dns_us,
        connect_us: Some(20e3),
        ..Default::default()
    };
    // The connection takes 20 ms, the request 40 ms.
    let fetch = |seq, dns_us: Option<f64>| wire::Probe {
        ttfb_us: Some(60e3 + dns_us.unwrap_or(0.0)),
        total_us: Some(500e3),
        ..probe(seq, ProbeKind::Http, dns_us)
    };
    let summary = summary_with(root.path(), |writer| {
        // Flows between the same nodes, with an RTT of 14 ms.
        push_flow(writer, "first", 0.0);
        // ... which is finally idle: it loads nothing, and its RTT is that of its last data.
        let idle = wire::FlowSample {
            at_ns: at_ns(0, 11.95),
            flow_id: "first/0".into(),
            group: "first".into(),
            side: Side::Sender.into(),
            role: Role::Data.into(),
            rtt_us: Some(900_000),
            unacked_pkts: Some(0),
            ..Default::default()
        };
        push(writer, "src", Payload::FlowSample(idle));
        let refused = wire::Probe {
            lost: true,
            status: Some(404),
            error: "the server refused it".into(),
            total_us: Some(2e6),
            ..fetch(2, None)
        };
        for row in [fetch(0, None), fetch(1, Some(5e3)), refused] {
            push(writer, "src", Payload::Probe(row));
        }
        push(writer, "src", Payload::Probe(probe(0, ProbeKind::TcpConnect, None)));
    });
    let of = |probe, metric, stat| {
        let found = summary.summary.find(0, "both", Scope::Probe, probe, metric, stat);
        found.map(|row| (row.value, row.n, row.unit))
    };
    let foreign = |probe, stat| of(probe, "foreign_responsiveness", stat);
    assert_eq!(foreign("page", "mean"), Some((2000.0, 2, "1/min")));
    assert_eq!(foreign("page", "undefined"), Some((1.0, 3, "1")));
    assert_eq!(foreign("syn", "mean"), Some((3000.0, 1, "1/min")));
    let loaded = of("page", "loaded_responsiveness", "mean").map(|(rpm, n, _)| (rpm.round(), n));
    assert_eq!(loaded, Some((4286.0, 120)));
    assert_eq!(of("page", "rpm", "mean").map(|(rpm, ..)| rpm.round()), Some(3143.0));
    assert_eq!(of("page", "rpm", "undefined"), Some((1.0, 3, "1")));
    assert_eq!(of("syn", "rpm", "mean"), None, "a connection alone has no request");
    // A fetch of an error page does not count as completed.
    assert_eq!(of("page", "fetch_time", "max"), Some((500e3, 2, "us")));
}
