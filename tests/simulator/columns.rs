//! Tests that rows of simulated probes have values in the same columns as those of an agent.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ccbench_agent::probe::serve;
use ccbench_agent::probe::tcp::{self, Deadline};
use ccbench_proto::plan::{Probe, ProbeKind, Repeat};
use ccbench_proto::schedule::ProbeTask;
use ccbench_proto::units::{Bytes, Micros};
use ccbench_proto::wire;
use ccbench_proto::wire::run_event::Payload;
use ccbench_tests::port::ReservedPort;

#[path = "../../crates/simulator/tests/support/mod.rs"]
mod support;

/// A probe whose path is cut after the handshake, by the change in the plan's last table.
const SIMULATED: &str = r#"
name = "columns"
[nodes]
src = {}
dst = {}
[wires]
path = ["src", "dst"]
[links.there]
node = "src"
toward = "dst"
delay = "10ms"
[links.back]
node = "dst"
toward = "src"
delay = "10ms"
[[phases]]
name = "only"
length = "1s"
[probes.p]
from = "src"
to = "dst"
repeat = "once"
timeout = "500ms"
"#;
const CUT: &str = "[[changes]]\nat = \"25ms\"\nset = { \"links.back.loss\" = \"99.99%\" }\n";

/// Returns the columns of a row that have a value, except those that every row fills in.
fn filled(row: &wire::Probe) -> Vec<&'static str> {
    let columns = [
        ("rtt_us", row.rtt_us.is_some()),
        ("lost", row.lost),
        ("bytes", row.bytes.is_some()),
        ("dns_us", row.dns_us.is_some()),
        ("connect_us", row.connect_us.is_some()),
        ("ttfb_us", row.ttfb_us.is_some()),
        ("total_us", row.total_us.is_some()),
        ("status", row.status.is_some()),
        ("error", !row.error.is_empty()),
    ];
    columns.into_iter().filter(|(_, has_value)| *has_value).map(|(column, _)| column).collect()
}

/// Returns the simulator's only row of a probe with these keys.
fn simulated(keys: &str, more: &str) -> wire::Probe {
    let rows = support::rows(&format!("{SIMULATED}{keys}{more}"), 1).unwrap();
    let probe = |(_, event): (String, wire::RunEvent)| match event.payload {
        Some(Payload::Probe(row)) => Some(row),
        _ => None,
    };
    let mut probes: Vec<wire::Probe> = rows.into_iter().filter_map(probe).collect();
    assert_eq!(probes.len(), 1, "{probes:?}");
    probes.remove(0)
}

/// Returns a probe of a port of this machine.
fn task(kind: ProbeKind, port: u16, timeout: Micros) -> ProbeTask {
    let bytes = (kind == ProbeKind::Http).then_some(Bytes::new(1000));
    let probe = Probe::new(kind, "src", "dst");
    let plan = Probe { repeat: Repeat::Once, timeout: Some(timeout), bytes, ..probe };
    ProbeTask { id: "p".to_owned(), plan, to_ip: [127, 0, 0, 1].into(), port }
}

/// Returns an agent's only row of a probe.
fn measured(task: &ProbeTask) -> wire::Probe {
    let (mut rows, stop) = (Vec::new(), Arc::new(AtomicBool::new(false)));
    let deadline = Deadline { at_ns: u64::MAX, stop: Arc::clone(&stop) };
    tcp::run(task, 0, &deadline, &mut |row| {
        rows.push(row);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows.remove(0)
}

/// Returns a listener of this machine and its port.
fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Compares all columns whose values do not depend on time.
#[track_caller]
fn same(of_agent: &wire::Probe, simulated: &wire::Probe) {
    assert_eq!(filled(of_agent), filled(simulated), "{of_agent:?}\n{simulated:?}");
    let values = |row: &wire::Probe| {
        (row.probe_id.clone(), row.seq, row.kind, row.tos, row.lost, row.bytes, row.status)
    };
    assert_eq!(values(of_agent), values(simulated));
    let operation = |row: &wire::Probe| -> Vec<String> {
        row.error.split(' ').take(2).map(str::to_owned).collect()
    };
    assert_eq!(operation(of_agent), operation(simulated));
}

const LONG: Micros = Micros::from_secs(60);

#[test]
fn success_fills_the_columns_that_an_agent_fills() {
    for kind in [ProbeKind::TcpConnect, ProbeKind::Http] {
        let reserved = ReservedPort::new(Ipv4Addr::LOCALHOST);
        let task = task(kind, reserved.address().port(), LONG);
        let server = serve::start(&task, None).unwrap();
        let of_agent = measured(&task);
        drop(server);
        let keys = match kind {
            ProbeKind::Http => "kind = \"http\"\nbytes = \"1000B\"\n",
            _ => "kind = \"tcp_connect\"\n",
        };
        same(&of_agent, &simulated(keys, ""));
    }
}

#[test]
fn failure_fills_the_columns_that_an_agent_fills() {
    // Nobody listens here; nothing arrives there.
    let reserved = ReservedPort::new(Ipv4Addr::LOCALHOST);
    let refused = measured(&task(ProbeKind::TcpConnect, reserved.address().port(), LONG));
    let dead = CUT.replace("25ms", "1ms");
    same(&refused, &simulated("kind = \"tcp_connect\"\n", &dead));
    // A listener that never answers; an answer that never arrives.
    let (_silent, port) = listener();
    let unanswered = measured(&task(ProbeKind::Http, port, Micros::from_secs(2)));
    same(&unanswered, &simulated("kind = \"http\"\nbytes = \"1000B\"\n", CUT));
}
