//! Whole trials with real traffic over loopback: two agents in one network namespace created for the test. Needs root
//! and iperf3; fails without them.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ccbench_proto::tools::iperf3::{Numbering, Report};
use ccbench_proto::wire::{self, Role, Side};
use nix::sys::signal::Signal;
use support::pair::{Pair, Rows};
use support::{Agent, LOOPBACK_PLAN, now_ns, prepare, wait_for, wait_for_setup};

fn plan_with(tool: &str) -> String {
    LOOPBACK_PLAN.replace("cc = \"reno\"", &format!("cc = \"reno\"\ntool = \"{tool}\""))
}

#[tokio::test]
async fn a_trial_has_every_kind_of_row_and_leaves_nothing() {
    whole_trial("iperf3").await;
}

#[tokio::test]
async fn a_trial_with_our_generator_has_every_kind_of_row_and_leaves_nothing() {
    whole_trial("ccbench").await;
}

async fn whole_trial(tool: &str) {
    let is_iperf3 = tool == "iperf3";
    let mut pair = Pair::start_alone().await;
    pair.prepare(&plan_with(tool), 1).await;
    assert!(!pair.is_as_found(), "it did something");
    let ([client, server], cpu) = pair.trial(1).await;

    for (rows, side, who) in
        [(&client, Side::Sender, "client"), (&server, Side::Receiver, "server")]
    {
        assert_eq!(rows.events_of("flow_error"), Vec::<&wire::Event>::new());
        let data: Vec<_> = rows.flows.iter().filter(|flow| flow.role() == Role::Data).collect();
        assert_eq!(
            (data.len(), rows.flows.len()),
            (2, 2 + usize::from(is_iperf3)),
            "{:?}",
            rows.flows
        );
        assert!(rows.flows.iter().all(|flow| flow.tool.starts_with(tool)), "{:?}", rows.flows);
        assert!(data.iter().all(|flow| flow.side() == side && flow.exit_code.is_none()));
        assert!(rows.flows.iter().all(|flow| flow.cookie.is_some()), "{:?}", rows.flows);
        assert!(rows.intervals.iter().all(|i| i.side() == side && i.seconds > 0.0));
        for stream in ["bulk/0", "bulk/1"] {
            assert!(rows.samples.iter().any(|s| s.flow_id == stream && s.rtt_us.is_some()));
        }
        assert_eq!(rows.samples.iter().any(|s| s.flow_id == "bulk/control"), is_iperf3);
        let raw = &rows.raw[&format!("{tool}-bulk-{who}.json")];
        let numbering = Numbering { client_port: 0, count: 2, listens: who == "server" };
        assert!(
            is_iperf3
                || raw
                    .split(|&b| b == b'\n')
                    .any(|line| Report::default().on_line(line, numbering) == Some(2))
        );
        assert_eq!(serde_json::from_slice::<serde_json::Value>(raw).is_ok(), is_iperf3);
        assert_eq!(rows.done.unwrap().rows_dropped, 0);
    }
    let sending = client.flows.iter().filter(|flow| flow.role() == Role::Data);
    assert!(sending.clone().all(|flow| flow.cc_actual == "reno"), "{:?}", client.flows);
    let base = client.events_of("base_rtt");
    assert_eq!(base.len(), 1, "{base:?}");
    check_events(&client.events);

    pair.reset().await;
    assert!(pair.is_as_found());
    // One of twenty 100 ms intervals may be missing.
    cpu.check(Duration::from_millis(100), || {
        for rows in [&client, &server] {
            let mut data = rows.flows.iter().filter(|flow| flow.role() == Role::Data);
            // 50 Mbit/s for 2 s are 12.5 MB for each stream; iperf3's pacing is coarse.
            assert!(data.all(|flow| flow.bytes > 5_000_000), "{:?}", rows.flows);
            for stream in ["bulk/0", "bulk/1"] {
                assert!(rows.intervals.iter().filter(|i| i.flow_id == stream).count() >= 19);
            }
            assert!(rows.hosts >= 3, "{}", rows.hosts);
        }
        assert!(client.probes.iter().all(|probe| !probe.lost), "{:?}", client.probes);
        // The pings stop when the trial starts.
        assert!(base[0].data_json().contains("min_us"), "{base:?}");
        let mut starts = client.flows.iter().filter(|flow| flow.role() == Role::Data);
        assert!(starts.all(|flow| flow.start_s.is_some_and(|s| (0.0..0.5).contains(&s))));
        assert!(client.probes.len() >= 15, "{}", client.probes.len());
    });
}

/// Returns `/proc/PID/status` of an iperf3 process below the agent.
fn iperf3_below(agent: &Agent) -> Option<BTreeMap<String, String>> {
    let status = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let entries = text.lines().filter_map(|line| line.split_once(":\t"));
        let entries = entries.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Some(entries.collect::<BTreeMap<_, _>>())
    };
    let mut all = agent.children().into_iter().filter_map(status);
    all.find(|status| status.get("Name").is_some_and(|name| name == "iperf3"))
}

#[tokio::test]
async fn iperf3_runs_as_the_described_user_without_privileges() {
    let mut pair = Pair::start().await;
    let info = pair.clients[0].describe(wire::DescribeRequest {}).await.unwrap().into_inner();
    let uid = info.traffic_user.split(':').next().unwrap().to_owned();
    assert!(uid.parse::<u32>().is_ok_and(|uid| uid > 0), "{}", info.traffic_user);
    pair.prepare(&plan_with("iperf3").replace("2s", "60s"), 1).await;
    let _rows = pair.run(1).await;
    for agent in [&pair.one, &pair.two] {
        wait_for_setup("iperf3", || iperf3_below(agent).is_some()).await;
        let status = iperf3_below(agent).unwrap();
        let ids: Vec<&str> = status["Uid"].split_whitespace().collect();
        assert_eq!(ids, [uid.as_str(); 4]);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(u64::from_str_radix(&status[set], 16), Ok(0), "{set}");
        }
        assert_eq!(status["NoNewPrivs"], "1");
    }
    pair.reset().await;
}

/// Returns `/proc/PID/status` of each probe's process below the agent, by the probe's name and whether it measures.
fn probes_below(agent: &Agent) -> BTreeMap<(String, bool), (u32, BTreeMap<String, String>)> {
    let found = agent.children().into_iter().filter_map(|pid| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<&str> = line.split('\0').collect();
        // Before that, it is `launch`.
        let id = words.iter().find_map(|word| word.strip_prefix("--id="))?;
        let measures = words.iter().any(|word| word.starts_with("--start-ns="));
        (words.get(1) == Some(&"probe")).then_some(())?;
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let entries = text.lines().filter_map(|line| line.split_once(":\t"));
        let entries = entries.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Some(((id.to_owned(), measures), (pid, entries.collect())))
    });
    found.collect()
}

/// Returns the sockets that a process has open.
fn sockets_of(pid: u32) -> BTreeSet<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let targets = targets.map(|target| target.to_string_lossy().into_owned());
    targets.filter(|target| target.starts_with("socket:")).collect()
}

const EVERY_PROBE: &str = r#"
[probes.rtt]
kind = "ping"
from = "one"
to = "two"
every = "100ms"
[probes.udp]
kind = "udp"
from = "one"
to = "two"
every = "100ms"
[probes.connect]
kind = "tcp_connect"
from = "one"
to = "two"
every = "100ms"
[probes.page]
kind = "http"
from = "one"
to = "two"
bytes = "20000B"
cc = "reno"
every = "100ms"
[probes.stream]
kind = "udp_stream"
from = "one"
to = "two"
rate = "1mbit"
every = "100ms"
[[phases]]
name = "only"
length = "60s"
"#;

#[tokio::test]
async fn probes_run_as_the_described_user_without_privileges() {
    let mut pair = Pair::start().await;
    let info = pair.clients[0].describe(wire::DescribeRequest {}).await.unwrap().into_inner();
    let uid = info.traffic_user.split(':').next().unwrap().to_owned();
    assert!(uid.parse::<u32>().is_ok_and(|uid| uid > 0), "{}", info.traffic_user);
    let (before, _) = LOOPBACK_PLAN.split_once("[flows.bulk]").unwrap();
    pair.prepare(&format!("{before}{EVERY_PROBE}"), 1).await;
    let [mut one, _two] = pair.run(1).await;
    // Each probe measures while its processes are looked at.
    let mut rows = Rows::default();
    let ids = ["connect", "page", "rtt", "stream", "udp"];
    let measured = |rows: &Rows, id: &str| {
        let bytes = |row: &wire::Probe| id != "stream" || row.bytes.is_some_and(|bytes| bytes > 0);
        rows.probes.iter().any(|row| row.probe_id == id && !row.lost && bytes(row))
    };
    while !ids.iter().all(|id| measured(&rows, id)) {
        rows.take(one.message().await.unwrap().unwrap());
        assert_eq!(rows.events_of("probe_error"), Vec::<&wire::Event>::new());
    }
    let [measuring, answering] = [&pair.one, &pair.two].map(probes_below);
    let found = |below: &BTreeMap<(String, bool), _>, measures: bool| -> Vec<String> {
        assert!(below.keys().all(|(_, is_measuring)| *is_measuring == measures));
        below.keys().map(|(id, _)| id.clone()).collect()
    };
    assert_eq!(found(&measuring, true), ids);
    assert_eq!(found(&answering, false), ["connect", "page", "stream", "udp"]);
    for (agent, below) in [(&pair.one, &measuring), (&pair.two, &answering)] {
        let of_agent = sockets_of(agent.child.id());
        for (id, (pid, status)) in below {
            let ids: Vec<&str> = status["Uid"].split_whitespace().collect();
            assert_eq!(ids, [uid.as_str(); 4], "{id:?}");
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert_eq!(u64::from_str_radix(&status[set], 16), Ok(0), "{id:?} {set}");
            }
            assert_eq!(status["NoNewPrivs"], "1", "{id:?}");
            // What arrives is read by this process alone.
            assert!(of_agent.is_disjoint(&sockets_of(*pid)), "{id:?}");
        }
    }
    pair.reset().await;
    assert!(pair.is_as_found());
}

#[tokio::test]
async fn a_server_of_a_probe_that_dies_during_the_trial_is_an_event_of_its_node() {
    let mut pair = Pair::start().await;
    let (before, _) = LOOPBACK_PLAN.split_once("[flows.bulk]").unwrap();
    let plan = format!("{before}{EVERY_PROBE}").replace("length = \"60s\"", "length = \"2s\"");
    pair.prepare(&plan, 1).await;
    let streams = pair.run(1).await;
    let pid = probes_below(&pair.two)[&("stream".to_owned(), false)].0;
    let pid = nix::unistd::Pid::from_raw(pid.try_into().unwrap());
    nix::sys::signal::kill(pid, Signal::SIGKILL).unwrap();
    let [one, two] = streams.map(Rows::all);
    let (_, two) = tokio::join!(one, two);
    let errors = two.events_of("probe_error");
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(error.subject, "stream");
    assert!(error.message.contains("ended early (signal: 9"), "{error:?}");
    pair.reset().await;
    assert!(pair.is_as_found());
}

/// Checks that each part of the timeline reports its events in order. The parts are independent: their order depends on
/// how the runtime polls them.
fn check_events(events: &[wire::Event]) {
    // The request arrived after the start, or the probe began after it, because there was no CPU.
    let is_late = |event: &&wire::Event| {
        event.name() == "start_late"
            || event.name() == "probe_error" && event.message.starts_with("began ")
    };
    let on_time = events.iter().filter(|event| !is_late(event));
    let mut kinds: Vec<_> = on_time.map(wire::Event::name).collect();
    let at = |kind: &str| events.iter().position(|event| event.name() == kind).unwrap();
    assert!(at("phase_start") < at("trial_end") && at("flow_start") < at("flow_end"), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&"cc_sockets"), "counted after the timeline");
    kinds.sort_unstable();
    let wanted = ["base_rtt", "cc_sockets", "flow_end", "flow_start", "phase_start", "trial_end"];
    assert_eq!(kinds, wanted);
}

#[tokio::test]
async fn our_generator_sends_from_the_listener_and_ends_at_its_stop() {
    let mut pair = Pair::start_alone().await;
    let plan = plan_with("ccbench").replace("count = 2", "count = 2\nreverse = true");
    pair.prepare(&plan, 1).await;
    let ([client, server], cpu) = pair.trial(1).await;
    for rows in [&client, &server] {
        assert_eq!(rows.events_of("flow_error"), Vec::<&wire::Event>::new());
        assert_eq!(rows.flows.len(), 2, "{:?}", rows.flows);
    }
    assert!(server.flows.iter().all(|flow| flow.cc_actual == "reno"), "{:?}", server.flows);
    // At the end, the connection is already closed.
    let end_s = server.intervals.iter().map(|i| i.end_s).fold(0.0, f64::max);
    let sending = |i: &wire::Interval| i.side() == Side::Sender && i.snd_cwnd_bytes.is_some();
    let others: Vec<_> =
        server.intervals.iter().filter(|i| i.end_s < end_s - 0.15 && !sending(i)).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(client.intervals.iter().all(|i| i.side() == Side::Receiver && i.rtt_us.is_none()));
    // The receiver got everything that was sent, except what the stop discarded.
    for (sent, received) in server.flows.iter().zip(&client.flows) {
        assert!(
            received.bytes > 0 && received.bytes <= sent.bytes + 62_500,
            "{sent:?} {received:?}"
        );
    }
    cpu.check(Duration::from_millis(100), || {
        for flow in server.flows.iter().chain(&client.flows) {
            // 50 Mbit/s for 2 s are 12.5 MB, in blocks of 10 ms.
            assert!((11_800_000..=12_500_000 + 62_500).contains(&flow.bytes), "{flow:?}");
        }
    });
    pair.reset().await;
    assert!(pair.is_as_found());
}

#[tokio::test]
async fn a_flow_without_a_listener_is_an_event_and_the_trial_goes_on() {
    let mut pair = Pair::start().await;
    for (tool, epoch) in [("iperf3", 1), ("ccbench", 2)] {
        let plan = plan_with(tool).replace("length = \"2s\"", "length = \"60s\"");
        // Only the connecting node is prepared.
        pair.clients[0].prepare(prepare(&plan, "one", epoch)).await.unwrap();
        let run = wire::RunRequest { start_at_ns: now_ns() + 100_000_000, epoch };
        let mut stream = pair.clients[0].run(run).await.unwrap().into_inner();
        let mut rows = Rows::default();
        // Waits however long the tool takes to start.
        while rows.events_of("flow_error").is_empty() {
            rows.take(stream.message().await.unwrap().unwrap());
        }
        let probes = rows.probes.len();
        while rows.probes.len() == probes {
            rows.take(stream.message().await.unwrap().unwrap());
        }
        let errors = rows.events_of("flow_error");
        assert!(errors.len() == 1 && errors[0].message.contains("refused"), "{errors:?}");
        pair.reset().await;
    }
}

#[tokio::test]
async fn a_server_without_a_client_does_not_hang_and_an_odd_length_is_kept() {
    let mut pair = Pair::start_alone().await;
    let plan = LOOPBACK_PLAN.replace("length = \"2s\"", "length = \"700ms\"");
    pair.prepare(&plan, 1).await;
    let ([client, server], cpu) = pair.trial(1).await;
    // 14 intervals of 100 ms in two streams. A client that is interrupted before it has connected fails.
    let checked = cpu.check(Duration::from_millis(100), || {
        for rows in [&client, &server] {
            assert_eq!(rows.events_of("flow_error"), Vec::<&wire::Event>::new());
            assert!(rows.intervals.len() >= 10, "{}", rows.intervals.len());
        }
    });
    if checked.is_none() {
        return;
    }
    pair.reset().await;
    // Now only the server.
    pair.clients[1].prepare(prepare(&plan, "two", 2)).await.unwrap();
    let run = wire::RunRequest { start_at_ns: now_ns() + 100_000_000, epoch: 2 };
    let rows = Rows::all(pair.clients[1].run(run).await.unwrap().into_inner()).await;
    assert_eq!(rows.events_of("flow_error").len(), 1, "{:?}", rows.events);
    pair.reset().await;
}

#[tokio::test]
async fn a_lost_controller_means_undo() {
    let mut pair = Pair::start().await;
    pair.prepare(LOOPBACK_PLAN, 1).await;
    let streams = pair.run(1).await;
    wait_for_setup("traffic", || !pair.one.children().is_empty()).await;
    drop(streams);
    wait_for("the undo", || pair.is_as_found()).await;
}

#[tokio::test]
async fn a_terminated_agent_undoes_first() {
    let mut pair = Pair::start().await;
    pair.clients[0].prepare(prepare(LOOPBACK_PLAN, "one", 1)).await.unwrap();
    assert!(!pair.is_as_found(), "it did something");
    pair.one.signal(Signal::SIGTERM);
    assert!(pair.one.child.wait().unwrap().success());
    assert!(pair.is_as_found());
}

#[tokio::test]
async fn traffic_ends_with_a_killed_agent_and_undo_restores() {
    let mut pair = Pair::start().await;
    pair.clients[1].prepare(prepare(LOOPBACK_PLAN, "two", 1)).await.unwrap();
    pair.clients[0].prepare(prepare(LOOPBACK_PLAN, "one", 1)).await.unwrap();
    let servers = pair.two.children();
    assert_eq!(servers.len(), 1);
    pair.two.child.kill().unwrap();
    pair.two.child.wait().unwrap();
    let server = format!("/proc/{}", servers[0]);
    wait_for("the server's end", || !std::path::Path::new(&server).exists()).await;

    pair.one.child.kill().unwrap();
    pair.one.child.wait().unwrap();
    assert!(!pair.is_as_found());
    let (one, two) = (pair.one.undo(&pair.namespace), pair.two.undo(&pair.namespace));
    assert!(one.contains("undone: sysctl") && two.contains("undone: offloads"), "{one}{two}");
    assert!(pair.is_as_found());
    assert_eq!(pair.one.undo(&pair.namespace), "", "nothing is left to undo");
}

#[tokio::test]
async fn missing_kernel_features_are_reported_and_undone() {
    let mut pair = Pair::start().await;
    let plan = LOOPBACK_PLAN.replace("cc = \"reno\"", "cc = \"nosuch\"");
    let refused = pair.clients[0].prepare(prepare(&plan, "one", 1)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    assert!(refused.message().contains("`nosuch`") && refused.message().contains("reno"));
    assert!(pair.is_as_found());

    let plan = LOOPBACK_PLAN.replace("after_idle\" = 0", "after_idle\" = \"much\"");
    let refused = pair.clients[0].prepare(prepare(&plan, "one", 2)).await.unwrap_err();
    assert!(refused.message().contains("tcp_slow_start_after_idle = much"), "{refused:?}");
    assert!(pair.is_as_found());
}

#[tokio::test]
async fn traffic_has_the_privileges_that_its_congestion_control_needs() {
    const CAP_NET_ADMIN: u64 = 1 << 12;
    let allowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed = std::fs::read_to_string(allowed).unwrap();
    for (tool, cc) in [("iperf3", "reno"), ("ccbench", "reno"), ("iperf3", "cubic")] {
        let mut pair = Pair::start().await;
        let plan = plan_with(tool).replace("cc = \"reno\"", &format!("cc = \"{cc}\""));
        pair.prepare(&plan, 1).await;
        // This is the listening end; the other end starts with the flow.
        let [server] = pair.two.children()[..] else { panic!("{:?}", pair.two.children()) };
        let status = std::fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
            line.unwrap().split_whitespace().next().unwrap_or_default()
        };
        assert_ne!(value("Uid"), "0", "{tool}");
        assert_eq!(value("NoNewPrivs"), "1", "{tool}");
        let needs = cc != "reno" && !allowed.split_whitespace().any(|one| one == cc);
        let expected = if needs { CAP_NET_ADMIN } else { 0 };
        for set in ["CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let found = u64::from_str_radix(value(set), 16).unwrap();
            assert_eq!(found, expected, "{tool} {cc} {set}");
        }
        let ([client, _], _) = pair.trial(1).await;
        assert_eq!(client.events_of("flow_error"), Vec::<&wire::Event>::new());
        let mut data = client.flows.iter().filter(|flow| flow.role() == Role::Data);
        assert!(data.all(|flow| flow.cc_actual == cc && flow.bytes > 0), "{:?}", client.flows);
        pair.reset().await;
        assert!(pair.is_as_found());
    }
}
