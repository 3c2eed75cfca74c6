//! Failures of real iperf3 traffic and their reports. Needs root and iperf3; fails without them.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod access_support;
mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use access_support::for_caller;
use ccbench_proto::scope::Scope;
use ccbench_proto::wire::{self, Role};
use ccbench_tests::cpu::CpuWatch;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::pair::{Pair, Rows};
use support::{
    AGENT, Agent, LOOPBACK_PLAN, Namespace, Turn, difference, prepare, read_state, wait_for,
    wait_for_setup,
};

#[tokio::test]
async fn both_ends_report_a_killed_server() {
    let mut pair = Pair::start().await;
    pair.prepare(LOOPBACK_PLAN, 1).await;
    let servers = pair.two.children();
    assert_eq!(servers.len(), 1);
    let [one, mut two] = pair.run(1).await;
    let client = tokio::spawn(Rows::all(one));
    // The flow runs once the server's end has sent data samples.
    let mut rows = Rows::default();
    while !rows.samples.iter().any(|s| s.bytes_received.is_some_and(|bytes| bytes > 1_000_000)) {
        rows.take(two.message().await.unwrap().unwrap());
    }
    kill(Pid::from_raw(servers[0].cast_signed()), Signal::SIGKILL).unwrap();
    while let Some(event) = two.message().await.unwrap() {
        rows.take(event);
    }
    let client = client.await.unwrap();
    let events = rows.events_of("flow_error");
    assert!(events.len() == 1 && events[0].message.contains("iperf3 server"), "{:?}", rows.events);
    assert!(rows.flows.iter().all(|flow| flow.exit_code == Some(-9)), "{:?}", rows.flows);
    let events = client.events_of("flow_error");
    assert!(
        events.len() == 1 && events[0].message.contains("iperf3 client"),
        "{:?}",
        client.events
    );
    assert!(rows.done.is_some() && client.done.is_some());
    pair.reset().await;
    assert!(pair.is_as_found());
}

#[tokio::test]
async fn missing_iperf3_has_a_hint() {
    let _turn = Turn::beside().await;
    let namespace = Namespace::new();
    let agent = Agent::by(|dir| {
        let mut command = namespace.enter();
        command.arg("env").arg(format!("PATH={}", dir.display())).arg(AGENT);
        command
    });
    let mut client = agent.connect().await;
    let before = read_state(&namespace, &["lo"]);
    let info = client.describe(wire::DescribeRequest {}).await.unwrap().into_inner();
    assert_eq!(info.iperf3_version, "");
    assert!(info.notes.iter().any(|note| note.contains("install")), "{:?}", info.notes);
    for node in ["one", "two"] {
        let refused = client.prepare(prepare(LOOPBACK_PLAN, node, 1)).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented);
        let message = refused.message();
        assert!(
            message.starts_with("run iperf3: ") && message.contains("apt install iperf3"),
            "{message}"
        );
    }
    assert_eq!(difference(&before, &read_state(&namespace, &["lo"])), "");
}

/// A listener inside a namespace; killed on drop.
struct Other(std::process::Child);

impl Other {
    async fn listen(namespace: &Namespace, address: &str, port: u16) -> Self {
        let mut command = namespace.enter();
        let port = port.to_string();
        command.args(["iperf3", "-s", "-B", address, "-p", &port]);
        let other = Self(command.stdout(std::process::Stdio::null()).spawn().unwrap());
        let port = format!(":{port}");
        wait_for("the other listener", || namespace.run(&["ss", "-ltnH"]).contains(&port)).await;
        other
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test]
async fn names_the_process_on_a_taken_port() {
    let mut pair = Pair::start().await;
    let port = ccbench_proto::schedule::server_port(3, 0);
    for address in ["127.0.0.1", "0.0.0.0"] {
        let other = Other::listen(&pair.namespace, address, port).await;
        let refused = pair.clients[1].prepare(prepare(LOOPBACK_PLAN, "two", 1)).await.unwrap_err();
        let holder = format!("{address}:{port} (iperf3, pid {}) listens there", other.0.id());
        for part in ["flow bulk", "Address already in use", &holder] {
            assert!(refused.message().contains(part), "{part} is not in {refused:?}");
        }
        drop(other);
        assert!(pair.is_as_found());
    }
    // A listener on another address does not conflict.
    let _other = Other::listen(&pair.namespace, "127.0.0.2", port).await;
    pair.clients[1].prepare(prepare(LOOPBACK_PLAN, "two", 1)).await.unwrap();
    pair.reset().await;
}

fn available() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    text.unwrap().split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn rejects_unknown_congestion_control_before_any_link() {
    let mut pair = Pair::start().await;
    let plan = LOOPBACK_PLAN.replace("cc = \"reno\"", "cc = \"nosuch\"");
    for (client, node) in pair.clients.iter_mut().zip(["one", "two"]) {
        // Other tests register and remove instances (`prague.6cenb`) meanwhile.
        let before = available();
        let refused = client.prepare(prepare(&plan, node, 1)).await.unwrap_err();
        let message = refused.message();
        for cc in available().intersection(&before) {
            assert!(message.contains(cc), "{cc} is not in {message}");
        }
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let modules = format!("/lib/modules/{}/modules.dep", release.trim());
        let named = message.contains("has no module tcp_nosuch");
        assert_eq!(named, std::path::Path::new(&modules).exists(), "{message}");
    }
    assert!(pair.is_as_found());
}

/// Returns the peak memory of a process, in MiB.
fn most_memory_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn a_stalled_controller_costs_counted_rows_only() {
    let mut pair = Pair::start_alone().await;
    // 21 sockets with 200 samples a second give far more rows in three seconds than may wait.
    let plan = LOOPBACK_PLAN
        .replace("length = \"2s\"", "length = \"4s\"")
        .replace("count = 2", "count = 20")
        .replace("50mbit", "1mbit")
        + "[sample]\ntcp = \"5ms\"\n";
    pair.clients[0] = pair.one.connect_narrow().await;
    pair.prepare(&plan, 1).await;
    let watch = CpuWatch::start();
    let [one, two] = pair.run(1).await;
    let server = tokio::spawn(Rows::all(two));
    tokio::time::sleep(Duration::from_millis(3_300)).await;
    let (client, server) = (Rows::all(one).await, server.await.unwrap());
    let cpu = watch.report();
    let (done, read) = (client.done.unwrap(), server.done.unwrap());
    assert_eq!(client.events_of("trial_end").len(), 1);
    assert_eq!(client.events_of("flow_error"), Vec::<&wire::Event>::new());
    assert_eq!(client.flows.iter().filter(|flow| flow.role() == Role::Data).count(), 20);
    let memory_mib = most_memory_mib(pair.one.child.id());
    assert!(memory_mib < 64, "{memory_mib} MiB");
    pair.reset().await;
    assert!(pair.is_as_found());
    // A tenth of the samples of 4 s.
    cpu.check(Duration::from_millis(400), || {
        assert!(done.rows_dropped > 0, "{done:?}");
        assert_eq!(read.rows_dropped, 0, "{read:?}");
        // Lost rows are counted, whoever reads: both ends have about as many samples.
        let all = done.rows_sent + done.rows_dropped;
        assert!(all * 4 > read.rows_sent * 3, "{done:?} against {read:?}");
        // Sampling never stopped.
        let (first, last) = (client.samples.first().unwrap(), client.samples.last().unwrap());
        assert!(last.at_ns - first.at_ns > 3_500_000_000, "{} ns", last.at_ns - first.at_ns);
    });
}

#[tokio::test]
async fn what_a_killed_worker_changed_is_undone() {
    let _turn = Turn::beside().await;
    let namespace = Namespace::new();
    let dir = tempfile::tempdir().unwrap();
    let (socket, state) = (dir.path().join("worker.sock"), dir.path().join("state"));
    let listen = format!("unix:{}", socket.display());
    let mut command = namespace.enter();
    command.args([AGENT, "worker", "--front-user", "root", "--listen", &listen, "--state-dir"]);
    let mut worker = command.arg(&state).spawn().unwrap();
    let connects = || std::os::unix::net::UnixStream::connect(&socket).is_ok();
    wait_for_setup("the worker's socket", connects).await;
    let before = read_state(&namespace, &["lo"]);
    let channel = tonic::transport::Endpoint::from_shared(listen).unwrap().connect().await.unwrap();
    let mut client = wire::agent_client::AgentClient::new(channel);
    let request = prepare(LOOPBACK_PLAN, "one", 1);
    client.prepare(for_caller(request, "alice", &Scope::ALL)).await.unwrap();
    assert_ne!(read_state(&namespace, &["lo"]), before, "the plan sets a sysctl");
    worker.kill().unwrap();
    worker.wait().unwrap();
    let undone = namespace.run(&[AGENT, "undo", "--state-dir", state.to_str().unwrap()]);
    assert!(undone.contains("undone: "), "{undone}");
    assert_eq!(read_state(&namespace, &["lo"]), before);
}
