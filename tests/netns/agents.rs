//! Runs the same plan against agents over TCP with mutual TLS.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ccbench_proto::schedule::{PORT_SLOTS, client_port};
use ccbench_tests::namespace::children;
use ccbench_tests::port::ReservedPort;
use ccbench_tests::{Bench, SETUP_TIMEOUT, alone, binary, text, wait_for};

/// Certificates from `ccbench pki` for an agent at 127.0.0.1.
const TLS: [&str; 8] = [
    "--tls-ca",
    "pki/ca.pem",
    "--tls-cert",
    "pki/127.0.0.1.pem",
    "--tls-key",
    "pki/127.0.0.1.key",
    "--tls-crl",
    "pki/crl.pem",
];

/// Creates an authority and the certificates of [`TLS`].
fn make_certificates(bench: &Bench) {
    assert_eq!(bench.run(&["pki", "init", "pki"]).status.code(), Some(0));
    assert_eq!(bench.run(&["pki", "node", "pki", "127.0.0.1"]).status.code(), Some(0));
}

/// Ends the agent when the test ends, however it ends. If the test fails, shows what the agent printed.
struct Agent {
    process: Child,
    stderr: PathBuf,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let status = self.process.wait();
        if std::thread::panicking() {
            let printed = std::fs::read_to_string(&self.stderr);
            eprintln!("agent: {status:?}, {}: {printed:?}", self.stderr.display());
        }
    }
}

/// Ports of the agents of nodes `a` and `b`.
type Ports = [ReservedPort; 2];

fn ports() -> Ports {
    [(); 2].map(|()| ReservedPort::new(Ipv4Addr::LOCALHOST))
}

fn serve(bench: &Bench, port: &ReservedPort, arguments: &[&str]) -> Agent {
    serve_with(Command::new(binary("ccbench-agent")), bench, port, arguments)
}

fn serve_with(
    mut command: Command,
    bench: &Bench,
    port: &ReservedPort,
    arguments: &[&str],
) -> Agent {
    let address = port.address();
    command.args(["serve", "--listen", &format!("tcp:{address}")]).args(arguments);
    command.arg("--state-dir").arg(bench.path(&format!("agent-{}", address.port())));
    command.current_dir(bench.path("")).stdin(Stdio::null());
    let stderr = bench.path(&format!("agent-{}.err", address.port()));
    command.stderr(std::fs::File::create(&stderr).unwrap());
    Agent { process: command.spawn().unwrap(), stderr }
}

/// Starts an agent as two processes. The front is first.
fn serve_split(bench: &Bench, port: &ReservedPort, tls: &[&str]) -> [Agent; 2] {
    let command = |subcommand: &str, log: &str| {
        let mut command = Command::new(binary("ccbench-agent"));
        let stderr = bench.path(log);
        command.arg(subcommand).current_dir(bench.path("")).stdin(Stdio::null());
        command.stderr(std::fs::File::create(&stderr).unwrap());
        (command, stderr)
    };
    let address = port.address();
    let port = address.port();
    let socket = format!("worker-{port}.sock");
    let (mut worker, worker_log) = command("worker", &format!("worker-{port}.err"));
    worker.args(["--listen", &format!("unix:{socket}"), "--front-user", "root", "--state-dir"]);
    worker.arg(bench.path(&format!("worker-{port}")));
    let (mut front, front_log) = command("front", &format!("front-{port}.err"));
    front.args(["--listen", &format!("tcp:{address}"), "--worker", &socket]).args(tls);
    front.arg("--state-dir").arg(bench.path(&format!("front-{port}")));
    [(front, front_log), (worker, worker_log)]
        .map(|(mut command, stderr)| Agent { process: command.spawn().unwrap(), stderr })
}

/// Returns an address of the loopback interface that no other process uses.
fn own_address(network: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{network}.{high}.{low}")
}

fn loopback_plan([a, b]: &Ports) -> String {
    format!(
        r#"
name = "agents"
[nodes.a]
agent = "{}"
address = "{}"
[nodes.b]
agent = "{}"
address = "{}"
[flows.f]
from = "a"
to = "b"
rate = "10mbit"
[[phases]]
name = "only"
length = "1s"
flows = ["f"]
"#,
        a.address(),
        own_address(1),
        b.address(),
        own_address(2)
    )
}

#[test]
fn runs_on_remote_agents_with_mutual_tls() {
    let _alone = alone();
    let bench = Bench::new();
    make_certificates(&bench);
    let ports = ports();
    let _agents = ports.each_ref().map(|port| serve(&bench, port, &TLS));
    wait_for_agents(&ports);
    let plan = bench.write("plan.toml", &loopback_plan(&ports));
    let plan = plan.to_string_lossy();

    let refused = bench.run(&["run", &plan]);
    assert_eq!(refused.status.code(), Some(3), "without a certificate: {}", text(&refused));

    assert_eq!(bench.run(&["pki", "init", "foreign"]).status.code(), Some(0));
    let foreign = bench.run(&["run", &plan, "--pki", "foreign"]);
    assert_eq!(foreign.status.code(), Some(3), "with a foreign certificate: {}", text(&foreign));

    let reader = bench.run(&["pki", "controller", "pki", "reader", "--scope", "read"]);
    assert_eq!(reader.status.code(), Some(0), "{}", text(&reader));
    let refused = bench.run(&["run", &plan, "--pki", "pki/reader", "--out", "refused"]);
    assert_eq!(refused.status.code(), Some(3), "without the scope: {}", text(&refused));
    let command = "ccbench pki controller DIR reader-2 --scope run";
    assert!(text(&refused).contains(command), "{}", text(&refused));
    assert!(!bench.path("refused").exists(), "agents that refuse a run leave no results");

    let output = bench.run(&["run", &plan, "--pki", "pki"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(bench.results().join("tables/flow_samples/point=0/trial-01/part-0.parquet").exists());
}

#[test]
fn runs_on_fronts_and_workers_with_mutual_tls() {
    let _alone = alone();
    let bench = Bench::new();
    make_certificates(&bench);
    let ports = ports();
    let _agents = ports.each_ref().map(|port| serve_split(&bench, port, &TLS));
    wait_for_agents(&ports);
    let worker_listens = |port: &ReservedPort| {
        let socket = bench.path(&format!("worker-{}.sock", port.address().port()));
        std::os::unix::net::UnixStream::connect(socket).is_ok()
    };
    wait_for("both workers to listen", SETUP_TIMEOUT, || ports.iter().all(worker_listens));
    let plan = bench.write("plan.toml", &loopback_plan(&ports));
    let plan = plan.to_string_lossy();

    let reader = bench.run(&["pki", "controller", "pki", "reader", "--scope", "read"]);
    assert_eq!(reader.status.code(), Some(0), "{}", text(&reader));
    let refused = bench.run(&["run", &plan, "--pki", "pki/reader", "--out", "refused"]);
    assert_eq!(refused.status.code(), Some(3), "without the scope: {}", text(&refused));
    let command = "ccbench pki controller DIR reader-2 --scope run";
    assert!(text(&refused).contains(command), "{}", text(&refused));

    let output = bench.run(&["run", &plan, "--pki", "pki"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let table = "tables/flow_samples/point=0/trial-01/part-0.parquet";
    assert!(bench.results().join(table).exists());
    // Both must have recorded for whom it was.
    let log = |name: &str| std::fs::read_to_string(bench.path(name).join("audit.ndjson")).unwrap();
    let port = ports[0].address().port();
    for name in [format!("front-{port}"), format!("worker-{port}")] {
        let of_controller = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["rpc"] == "Prepare" && line["peer"] == "127.0.0.1" && line["serial"] != ""
        };
        assert!(log(&name).lines().any(of_controller), "{name}: {}", log(&name));
    }
}

#[test]
fn a_trial_avoids_ports_that_are_in_use() {
    let _alone = alone();
    let bench = Bench::new();
    let ports = ports();
    let _agents = ports.each_ref().map(|port| serve(&bench, port, &[]));
    wait_for_agents(&ports);
    // At the address of the other tests, sockets of an ended flow may still be in TIME_WAIT.
    let address = own_address(3);
    let plan = loopback_plan(&ports).replace(&own_address(1), &address);
    let plan = bench.write("plan.toml", &plan);
    let hold = |slot| TcpListener::bind((address.as_str(), client_port(slot, 0))).unwrap();
    let mut held: Vec<_> = (0..PORT_SLOTS).map(hold).collect();
    let output = bench.run(&["run", &plan.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains(": Address already in use"), "{}", text(&output));

    drop(held.swap_remove(7));
    let output = bench.run(&["run", &plan.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}

/// Waits until both agents of a plan listen.
fn wait_for_agents(ports: &Ports) {
    let listens = |port: &ReservedPort| TcpStream::connect(port.address()).is_ok();
    wait_for("both agents to listen", SETUP_TIMEOUT, || ports.iter().all(listens));
}

#[test]
fn a_run_survives_the_restart_of_an_agent() {
    let _alone = alone();
    let bench = Bench::new();
    let ports = ports();
    let [stays, dies] = ports.each_ref().map(|port| serve(&bench, port, &[]));
    wait_for_agents(&ports);
    let plan = loopback_plan(&ports).replace("length = \"1s\"", "length = \"4s\"");
    let plan = bench.write("plan.toml", &plan);
    let mut run = bench.spawn(&["run", &plan.to_string_lossy(), "-v"]);
    // The sender of the flow starts with the trial.
    let sends = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"-c")
    };
    wait_for("the flow", SETUP_TIMEOUT, || children(stays.process.id()).iter().any(sends));
    drop(dies);
    let waits = || bench.printed().contains("trying again when every node answers");
    wait_for("the run to wait for the node", SETUP_TIMEOUT, waits);
    let _again = serve(&bench, &ports[1], &[]);
    assert_eq!(run.wait().unwrap().code(), Some(0), "{}", bench.printed());
}

#[test]
fn bounds_of_clocks_hold_for_a_known_offset() {
    const OFFSET_S: i64 = 5_000;
    let _alone = alone();
    let bench = Bench::new();
    let ports = ports();
    let _here = serve(&bench, &ports[0], &[]);
    // CLOCK_MONOTONIC of a time namespace is ahead by exactly this.
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--time", "--monotonic", &OFFSET_S.to_string(), "--kill-child", "--fork"]);
    elsewhere.arg(binary("ccbench-agent"));
    let _elsewhere = serve_with(elsewhere, &bench, &ports[1], &[]);
    wait_for_agents(&ports);
    let plan = format!("repeat = 4\n{}", loopback_plan(&ports).trim_start());
    let plan = bench.write("plan.toml", &plan);
    let output = bench.run(&["run", &plan.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));

    let run = std::fs::read_to_string(bench.results().join("run.json")).unwrap();
    let run: serde_json::Value = serde_json::from_str(&run).unwrap();
    let trials = run["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 4);
    for clocks in trials.iter().map(|trial| &trial["clocks"]) {
        let number = |node: &str, key: &str| clocks[node][key].as_i64().unwrap();
        assert_eq!(
            (clocks["a"]["source"].as_str(), number("a", "error_bound_ns")),
            (Some("shared"), 0)
        );
        assert_eq!(clocks["b"]["source"].as_str(), Some("exchange"));
        let offset_ns = number("b", "t0_ns") - number("a", "t0_ns");
        let error_ns = (offset_ns - OFFSET_S * 1_000_000_000).unsigned_abs();
        let [bound_ns, after_ns] =
            ["error_bound_ns", "error_bound_after_ns"].map(|key| number("b", key).unsigned_abs());
        assert!(after_ns > 0 && error_ns <= bound_ns, "off by {error_ns} ns, {clocks}");
    }
}
