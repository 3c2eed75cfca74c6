//! Tests metrics that need the plan, and tables that the made-up run does not have.

use ccbench_proto::event::NoData;
use ccbench_proto::metric::{WHOLE_TRIAL, find};

use super::*;

mod cc_states;
mod clocks;
mod packets;

/// A late flow, and a page that is fetched every 4 s.
const PLAN: &str = two_nodes!(
    r#"
[links.bottleneck]
node = "src"
toward = "dst"
rate = "40mbit"
delay = "10ms"
[flows.first]
from = "src"
to = "dst"
[flows.late]
from = "src"
to = "dst"
start = "2s"
stop = "12s"
[probes.page]
kind = "http"
from = "src"
to = "dst"
bytes = "100000B"
every = "4s"
timeout = "2s"
[[phases]]
name = "both"
length = "12s"
flows = ["first"]
"#
);

fn at_ns(node: usize, s: f64) -> u64 {
    T0_NS[node].1 + (s * 1e9).round() as u64
}

/// Pushes a flow of 18 Mbit/s from `start_s` on.
fn push_flow(writer: &mut TrialWriter<'_>, group: &str, start_s: f64) {
    let flow_id = format!("{group}/0");
    for step in (start_s * 10.0).round() as u64..120 {
        let begin_s = step as f64 / 10.0;
        let interval = wire::Interval {
            at_ns: at_ns(1, begin_s + 0.1),
            flow_id: flow_id.clone(),
            group: group.into(),
            side: Side::Receiver.into(),
            seconds: 0.1,
            bytes: 225_000,
            ..Default::default()
        };
        push(writer, "dst", Payload::Interval(interval));
        let sample = wire::FlowSample {
            at_ns: at_ns(0, begin_s),
            flow_id: flow_id.clone(),
            group: group.into(),
            side: Side::Sender.into(),
            role: Role::Data.into(),
            rtt_us: Some(14_000),
            snd_cwnd_pkts: Some(20),
            unacked_pkts: Some(20),
            sacked_pkts: Some(3),
            lost_pkts: Some(2),
            retrans_pkts: Some(1),
            delivery_rate_bytes_per_s: Some(2_250_000),
            ecn_mode: Some(2),
            total_rto: Some((begin_s / 4.0) as u32),
            ..Default::default()
        };
        push(writer, "src", Payload::FlowSample(sample));
    }
    for (node, side, stop_s) in [("src", Side::Sender, 12.0), ("dst", Side::Receiver, 11.5)] {
        let flow = wire::Flow {
            flow_id: flow_id.clone(),
            group: group.into(),
            role: Role::Data.into(),
            side: side.into(),
            start_s: Some(start_s),
            stop_s: Some(stop_s),
            ..Default::default()
        };
        push(writer, node, Payload::Flow(flow));
    }
}

/// Pushes a recovery of 20 ms, and one that does not end.
fn push_recoveries(writer: &mut TrialWriter<'_>) {
    let event = |(s, before, after)| wire::TcpEvent {
        at_ns: at_ns(0, s),
        flow_id: "first/0".into(),
        group: "first".into(),
        side: Side::Sender.into(),
        role: Role::Data.into(),
        kind: wire::TcpEventKind::CaState.into(),
        ca_state: after,
        ca_state_before: Some(before),
        ..Default::default()
    };
    let events = [(3.0, 0, 3), (3.02, 3, 0), (11.9, 1, 4)].map(event).into();
    push(writer, "src", Payload::TcpEvents(wire::TcpEvents { events }));
}

/// Pushes fetches of 0.5 s and 1.5 s. The third one, which begins at 8 s, is cut off.
fn push_fetches(writer: &mut TrialWriter<'_>) {
    for (seq, total_us) in [0.5e6, 1.5e6].into_iter().enumerate() {
        let probe = wire::Probe {
            at_ns: at_ns(0, seq as f64 * 4.0),
            probe_id: "page".into(),
            kind: wire::ProbeKind::Http.into(),
            seq: seq as u32,
            total_us: Some(total_us),
            ..Default::default()
        };
        push(writer, "src", Payload::Probe(probe));
    }
    let unfinished = wire::Event {
        at_ns: at_ns(0, 12.0),
        subject: "page".into(),
        kind: Some(Kind::ProbeUnfinished(NoData {})),
        ..Default::default()
    };
    push(writer, "src", Payload::Event(unfinished));
}

/// Returns the summary of one trial with both flows.
fn summary_of(root: &Path) -> RunSummary {
    summary_with(root, |writer| {
        push_flow(writer, "first", 0.0);
        push_flow(writer, "late", 2.0);
        push_recoveries(writer);
        push_fetches(writer);
    })
}

/// Returns the summary of one trial with these rows.
fn summary_with(root: &Path, fill: impl FnOnce(&mut TrialWriter<'_>)) -> RunSummary {
    summary_of_plan(root, PLAN, fill)
}

/// Returns the summary of one trial of a plan of 12 s with these rows.
fn summary_of_plan(root: &Path, plan: &str, fill: impl FnOnce(&mut TrialWriter<'_>)) -> RunSummary {
    let info = RunInfo { resolved_text: plan.into(), ..info() };
    summary_of_phases(root, info, &[phase("both", 0, 12, true)], fill)
}

/// Returns the summary of one trial with these phases and rows.
fn summary_of_phases(
    root: &Path,
    info: RunInfo,
    phases: &[PhaseSpan],
    fill: impl FnOnce(&mut TrialWriter<'_>),
) -> RunSummary {
    let run =
        RunDir::create(root, &RunInfo { points: vec![(0, vec![])], repeat: 1, ..info }).unwrap();
    let key = TrialKey { point_id: 0, trial: 1, seed: 3, epoch: run.next_epoch() };
    let mut writer = run.begin_trial(key, phases, clocks()).unwrap();
    fill(&mut writer);
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    RunSummary::compute(run.path(), TrialFilter::default()).unwrap()
}

#[test]
fn plan_and_tables_give_the_metrics_of_flows() {
    let root = tempfile::tempdir().unwrap();
    let summary = summary_of(root.path());
    let of = |phase, scope, subject, metric, stat| {
        let found = summary.summary.find(0, phase, scope, subject, metric, stat);
        found.map(|row| (row.value * 1e3).round() / 1e3)
    };
    let flow = |metric, stat| of("both", Scope::Flow, "first/0", metric, stat).unwrap();
    let net = |metric, stat| of("both", Scope::Net, "all", metric, stat);
    assert_eq!((flow("in_flight", "mean"), flow("in_flight", "cov")), (16.0, 0.0));
    // The second flow runs for 10 of 12 s.
    assert_eq!(net("in_flight", "sum"), Some(29.333));
    assert_eq!(flow("delivery_rate", "median"), 18e6);
    assert_eq!((flow("ecn_mode", "min"), flow("ecn_mode", "max")), (2.0, 2.0));
    assert_eq!(of("both", Scope::Flow, "first/0", "ecn_mode", "mean"), None, "no amount");
    assert_eq!(flow("estimated_queue_delay", "mean"), 4000.0);
    assert_eq!((flow("rtos", "sum"), net("rtos", "sum")), (2.0, Some(4.0)));
    let recovered = (flow("recovery_time", "mean"), flow("recovery_time", "undefined"));
    assert_eq!(recovered, (20_000.0, 1.0));
    assert_eq!(flow("bandwidth_utilisation", "mean"), 0.45);
    assert_eq!(net("bandwidth_utilisation", "sum"), Some(0.825));
    // The bandwidth-delay product is 33.03 frames.
    assert_eq!(flow("bdp_utilisation", "mean"), 0.484);
    // The first flow could have 38.26 Mbit/s while it is alone for 2 s, then 19.13.
    assert_eq!(flow("max_min_fair_share", "mean"), 0.807);
    assert_eq!(of("both", Scope::Group, "late", "max_min_fair_share", "mean"), Some(0.941));
    assert_eq!(net("max_min_fair_share", "min"), Some(0.807));
    assert_eq!((net("convergence_time", "mean"), net("timescale", "mean")), (Some(0.0), Some(1e5)));
    // Jain's variant counts from the start of the phase.
    assert_eq!(net("jain_convergence_time", "mean"), Some(2e6));
    let completed = of(WHOLE_TRIAL, Scope::Group, "first", "flow_completion_time", "mean");
    assert_eq!(completed, None, "these flows have no end of their own");
    for row in &summary.summary.phase_rows {
        let metric = find(row.metric, row.scope).unwrap_or_else(|| panic!("{row:?}"));
        assert!(metric.stats.contains(&row.stat), "{row:?}");
        assert_eq!(metric.unit_of(row.stat), row.unit, "{row:?}");
        assert_eq!(metric.whole_trial, row.phase == WHOLE_TRIAL, "{row:?}");
    }
}

#[test]
fn finite_flows_have_completion_times() {
    let root = tempfile::tempdir().unwrap();
    let finite = "start = \"2s\"\nstop = \"12s\"\ncount = 2\ntool = \"ccbench\"\nbytes = \"1MB\"\n";
    let plan = PLAN.replace("start = \"2s\"\nstop = \"12s\"\n", finite);
    let summary = summary_of_plan(root.path(), &plan, |writer| {
        push_flow(writer, "first", 0.0);
        for (number, completed_s) in [(0, Some(2.75)), (1, None)] {
            for (node, side) in [("src", Side::Sender), ("dst", Side::Receiver)] {
                let is_receiver = side == Side::Receiver;
                let flow = wire::Flow {
                    flow_id: format!("late/{number}"),
                    group: "late".into(),
                    role: Role::Data.into(),
                    side: side.into(),
                    start_s: Some(if is_receiver { 2.01 } else { 2.0 }),
                    stop_s: Some(12.0),
                    completed_s: completed_s.filter(|_| is_receiver),
                    ..Default::default()
                };
                push(writer, node, Payload::Flow(flow));
            }
        }
    });
    let of = |scope, subject, stat| {
        let metric = "flow_completion_time";
        let found = summary.summary.find(0, WHOLE_TRIAL, scope, subject, metric, stat);
        found.map(|row| row.value)
    };
    let late = ["late/0", "late/1"].map(|flow| of(Scope::Flow, flow, "mean"));
    assert_eq!(
        late,
        [Some(750_000.0), None],
        "from the sender's start to the receiver's last byte"
    );
    assert_eq!(of(Scope::Flow, "late/1", "undefined"), Some(1.0));
    assert_eq!(of(Scope::Flow, "first/0", "mean"), None, "it has no end of its own");
    let group = ["mean", "km_median", "undefined"].map(|stat| of(Scope::Group, "late", stat));
    assert_eq!(group, [Some(750_000.0), Some(750_000.0), Some(1.0)]);
    let printed = table::text(&summary, 120);
    let line = printed.lines().skip_while(|line| !line.contains("completion ms")).nth(2);
    let cells: Vec<&str> = line.unwrap_or(&printed).split_whitespace().collect();
    let wanted = ["late", "750.00", "750.00", "750.00", "750.00", "1", "of", "2"];
    assert_eq!(cells, wanted, "{printed}");
}

/// A flow's intervals do not match the phases. An interval that crosses a phase's end belongs to one of the phases, but its bytes to both.
#[test]
fn net_throughput_has_the_bytes_inside_the_phase() {
    let root = tempfile::tempdir().unwrap();
    let info =
        RunInfo { resolved_text: PLAN.into(), points: vec![(0, vec![])], repeat: 1, ..info() };
    let run = RunDir::create(root.path(), &info).unwrap();
    let key = TrialKey { point_id: 0, trial: 1, seed: 3, epoch: run.next_epoch() };
    let phases = [phase("one", 0, 4, true), phase("two", 4, 12, true)];
    let mut writer = run.begin_trial(key, &phases, clocks()).unwrap();
    // 18 Mbit/s from 0.35 s on, in intervals of 0.5 s. The last one is shorter, as at the end of a report.
    let ends_s = (0..23).map(|nth| (0.85 + f64::from(nth) * 0.5, 0.5)).chain([(12.0, 0.15)]);
    for (end_s, seconds) in ends_s {
        let interval = wire::Interval {
            at_ns: at_ns(1, end_s),
            flow_id: "first/0".into(),
            group: "first".into(),
            side: Side::Receiver.into(),
            seconds,
            bytes: (2_250_000.0 * seconds) as u64,
            ..Default::default()
        };
        push(&mut writer, "dst", Payload::Interval(interval));
    }
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    let summary = RunSummary::compute(run.path(), TrialFilter::default()).unwrap();
    let of = |phase, scope, subject| {
        let found = summary.summary.find(0, phase, scope, subject, "throughput_sum", "mean");
        found.unwrap().value
    };
    let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 100.0, "{found}");
    for phase in ["one", "two"] {
        near(of(phase, Scope::Group, "first"), 18e6);
    }
    // Seven whole intervals (3.5 s) belong to the first phase, and 8.15 s to the second: more than that phase lasts.
    near(of("one", Scope::Net, "all"), 18e6 * 3.65 / 4.0);
    near(of("two", Scope::Net, "all"), 18e6);
}

/// Pushes samples that begin 10 s after the connection.
fn push_old_connection(writer: &mut TrialWriter<'_>) {
    for step in 0..120_u32 {
        let sample = wire::FlowSample {
            at_ns: at_ns(0, f64::from(step) / 10.0),
            flow_id: "first/0".into(),
            group: "first".into(),
            side: Side::Sender.into(),
            role: Role::Data.into(),
            bytes_acked: Some(22_500_000 + u64::from(step) * 225_000),
            total_retrans_pkts: Some(1000 + step),
            data_segs_out_pkts: Some(100_000 + step * 100),
            ..Default::default()
        };
        push(writer, "src", Payload::FlowSample(sample));
    }
}

#[test]
fn acknowledged_bytes_before_the_first_sample_are_no_throughput() {
    let root = tempfile::tempdir().unwrap();
    let summary = summary_with(root.path(), push_old_connection);
    let found = summary.summary.find(0, "both", Scope::Group, "first", "throughput_sum", "mean");
    let throughput = found.unwrap().value;
    assert!((throughput - 18e6).abs() < 1.0, "{throughput}");
}

#[test]
fn counters_of_imported_flows_begin_with_their_first_sample() {
    let root = tempfile::tempdir().unwrap();
    let retransmissions = |summary: &RunSummary| {
        let of = |metric, stat| {
            summary.summary.find(0, "both", Scope::Group, "first", metric, stat).unwrap().value
        };
        (of("retransmissions", "sum"), of("retransmission_share", "mean"))
    };
    // In a run, the counters of a connection begin with the trial.
    let run = summary_with(root.path(), push_old_connection);
    assert_eq!(retransmissions(&run), (1119.0, 1119.0 / 111_900.0));
    let import = import_with(root.path(), push_old_connection);
    assert_eq!(retransmissions(&import), (119.0, 119.0 / 11_900.0));
}

/// Returns the summary of an import with these rows.
fn import_with(root: &Path, rows: impl FnOnce(&mut TrialWriter<'_>)) -> RunSummary {
    let info = RunInfo { backend: RunBackend::Import, ..info() };
    summary_of_phases(root, info, &[phase("both", 0, 12, true)], rows)
}

/// Two connections to one server, one after the other.
#[test]
fn a_flow_of_an_import_counts_only_in_phases_in_which_it_has_data() {
    let rows = |writer: &mut TrialWriter<'_>| {
        for step in (0..59_u32).chain(61..119) {
            let interval = wire::Interval {
                at_ns: at_ns(1, f64::from(step + 1) / 10.0),
                flow_id: format!("first/{}", step / 60),
                group: "first".into(),
                side: Side::Receiver.into(),
                seconds: 0.1,
                bytes: 500_000,
                ..Default::default()
            };
            push(writer, "dst", Payload::Interval(interval));
        }
    };
    let phases = [phase("one", 0, 6, true), phase("two", 6, 12, true)];
    // The flows in Mbit/s, their mean and Jain's index, in the first phase.
    let numbers = |info: RunInfo| {
        let root = tempfile::tempdir().unwrap();
        let summary = summary_of_phases(root.path(), info, &phases, rows);
        let of = |scope, subject, metric| {
            let found = summary.summary.find(0, "one", scope, subject, metric, "mean");
            found.map(|row| row.value)
        };
        let mbit = |bps: Option<f64>| bps.map(|bps| (bps / 1e6).round());
        (
            ["first/0", "first/1"].map(|flow| mbit(of(Scope::Flow, flow, "throughput"))),
            mbit(of(Scope::Group, "first", "throughput_per_flow_mean")),
            of(Scope::Group, "first", "jain_fairness_of_mean"),
        )
    };
    let import = RunInfo { backend: RunBackend::Import, ..info() };
    assert_eq!(numbers(import), ([Some(40.0), None], Some(40.0), None));
    // The plan of a run has both flows in both phases.
    let run = RunInfo { resolved_text: PLAN.into(), ..info() };
    assert_eq!(numbers(run), ([Some(40.0), Some(0.0)], Some(20.0), Some(0.5)));
}

/// Of three flows, one has intervals of its receiver, one has intervals of its sender, and one has samples of its sender only.
#[test]
fn flows_of_an_import_without_receivers_count_beside_others() {
    let rows = |writer: &mut TrialWriter<'_>| {
        push_flow(writer, "first", 0.0);
        for step in 0..120_u32 {
            let interval = wire::Interval {
                at_ns: at_ns(0, f64::from(step + 1) / 10.0),
                flow_id: "first/1".into(),
                group: "first".into(),
                side: Side::Sender.into(),
                seconds: 0.1,
                bytes: 150_000,
                ..Default::default()
            };
            push(writer, "src", Payload::Interval(interval));
            let sample = wire::FlowSample {
                at_ns: at_ns(0, f64::from(step) / 10.0),
                flow_id: "first/2".into(),
                group: "first".into(),
                side: Side::Sender.into(),
                role: Role::Data.into(),
                bytes_acked: Some(u64::from(step) * 75_000),
                ..Default::default()
            };
            push(writer, "src", Payload::FlowSample(sample));
        }
    };
    let mbit = |summary: &RunSummary| {
        ["first/0", "first/1", "first/2"].map(|flow| {
            let found = summary.summary.find(0, "both", Scope::Flow, flow, "throughput", "mean");
            (found.unwrap().value / 1e6).round()
        })
    };
    let root = tempfile::tempdir().unwrap();
    let import = import_with(root.path(), rows);
    assert_eq!(mbit(&import), [18.0, 12.0, 6.0]);
    let notes = import.summary.notes.join("\n");
    assert!(notes.contains("throughput of `first` is in part what senders reported"), "{notes}");
    // In a run, flows that receive nothing are starved.
    let run = summary_with(root.path(), rows);
    assert_eq!(mbit(&run), [18.0, 0.0, 0.0]);
}

/// The kernel has an RTT of 0 until it has measured one.
#[test]
fn socket_without_an_rtt_has_no_srtt_of_zero() {
    let root = tempfile::tempdir().unwrap();
    let summary = summary_with(root.path(), |writer| {
        push_flow(writer, "first", 1.0);
        for nth in 0..10_u32 {
            let unmeasured = wire::FlowSample {
                at_ns: at_ns(0, f64::from(nth) / 10.0),
                flow_id: "first/0".into(),
                group: "first".into(),
                side: Side::Sender.into(),
                role: Role::Data.into(),
                rtt_us: Some(0),
                snd_cwnd_pkts: Some(20),
                ..Default::default()
            };
            push(writer, "src", Payload::FlowSample(unmeasured));
        }
    });
    let of = |metric, stat| {
        let found = summary.summary.find(0, "both", Scope::Flow, "first/0", metric, stat).unwrap();
        (found.value, found.n)
    };
    assert_eq!((of("srtt", "min"), of("srtt", "mean").1), ((14_000.0, 110), 110));
    assert_eq!(of("cwnd", "mean"), (20.0, 120));
}

/// The rows of a stream do not say which packets are missing.
#[test]
fn only_measurements_with_an_answer_have_a_loss_share() {
    let root = tempfile::tempdir().unwrap();
    let summary = summary_with(root.path(), |writer| {
        for (probe_id, kind) in
            [("echo", wire::ProbeKind::Ping), ("stream", wire::ProbeKind::UdpStream)]
        {
            for seq in 0..10_u32 {
                let is_echo = kind == wire::ProbeKind::Ping;
                let probe = wire::Probe {
                    at_ns: at_ns(0, f64::from(seq)),
                    probe_id: probe_id.into(),
                    kind: kind.into(),
                    seq,
                    rtt_us: (is_echo && seq > 0).then_some(10_000.0),
                    lost: is_echo && seq == 0,
                    bytes: (!is_echo).then_some(1500),
                    ..Default::default()
                };
                push(writer, "src", Payload::Probe(probe));
            }
        }
    });
    let loss = |probe| summary.summary.find(0, "both", Scope::Probe, probe, "loss_share", "mean");
    assert_eq!(loss("echo").map(|row| (row.value, row.n)), Some((0.1, 10)));
    assert_eq!(loss("stream"), None);
}

#[test]
fn unfinished_fetches_are_printed_beside_their_median() {
    let root = tempfile::tempdir().unwrap();
    let summary = summary_of(root.path());
    let page = |metric, stat| summary.summary.find(0, "both", Scope::Probe, "page", metric, stat);
    let unfinished = page("unfinished_fetches", "sum").unwrap();
    assert_eq!((unfinished.value, unfinished.n), (1.0, 3));
    assert_eq!(page("fetch_time", "mean").map(|row| row.value), Some(1e6));
    assert_eq!(page("fetch_time", "km_median").map(|row| row.value), Some(1.5e6));
    let printed = table::text(&summary, 120);
    let line = printed.lines().find(|line| line.contains(" page ")).unwrap_or(&printed);
    assert!(line.contains("1500.00") && line.ends_with("1 of 3"), "{printed}");
}

/// On the line, a packet takes as long as 2500 bytes, of which the counters have 1514.
#[test]
fn the_overhead_of_a_link_counts_against_its_rate() {
    let root = tempfile::tempdir().unwrap();
    let framed = "rate = \"20mbit\"\noverhead = \"1000B\"\n";
    let plan = PLAN.replace("rate = \"40mbit\"\n", framed);
    // At 1000 packets a second, the line is never idle.
    let summary = summary_of_plan(root.path(), &plan, |writer| {
        for nth in 0..120_u64 {
            let counters = wire::QdiscSample {
                at_ns: at_ns(0, nth as f64 / 10.0),
                link: "bottleneck".into(),
                iface: "to-dst".into(),
                handle: "1:".into(),
                parent: "root".into(),
                kind: "userspace".into(),
                sent_bytes: nth * 151_400,
                sent_pkts: nth * 100,
                backlog_bytes: 15_140,
                qlen_pkts: 10,
                rate_bps: Some(20_000_000),
                ..Default::default()
            };
            push(writer, "src", Payload::QdiscSample(counters));
        }
    });
    let of = |metric| {
        let found = summary.summary.find(0, "both", Scope::Link, "bottleneck", metric, "mean");
        found.map(|row| (row.value * 1e6).round() / 1e6)
    };
    assert_eq!(of("utilisation"), Some(1.0));
    assert_eq!(of("queue_delay"), Some(10_000.0));
    // The bytes that the counters have.
    assert_eq!(of("throughput"), Some(12_112_000.0));
    assert_eq!(of("backlog"), Some(15_140.0));
}
