//! Tests for an agent of another version: messages that the controller cannot read degrade the trial.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::wire::{self, encoded_field as field, run_event::Payload};
use ccbench_results::TrialStatus;
use ccbench_results::store::RunDir;
use prost::Message as _;

use crate::fake::{self, serve};

/// A plan of a short trial with one probe. The agent of `one` sends its only row.
const PLAN: &str = r#"
name = "version"
[nodes.one]
agent = "AGENT_ONE"
address = "127.0.0.1"
[nodes.two]
agent = "AGENT_TWO"
address = "127.0.0.2"
[probes.rtt]
kind = "ping"
from = "one"
to = "two"
[[phases]]
name = "only"
length = "200ms"
"#;

/// Returns status, reasons and notes of a trial in which the agent sends these messages and `Done`.
fn run(messages: Vec<Vec<u8>>) -> (TrialStatus, Vec<String>, Vec<String>) {
    let kind = wire::ProbeKind::Ping.into();
    let row = wire::Probe { probe_id: "rtt".to_owned(), kind, ..wire::Probe::default() };
    let ending = [fake::row(Payload::Probe(row)), fake::done()];
    let (status, reasons, notes, _) = run_on(serve(messages.into_iter().chain(ending).collect()));
    (status, reasons, notes)
}

/// Returns the plan with these agents.
pub(crate) fn plan_of(one: SocketAddr, two: SocketAddr) -> String {
    PLAN.replace("AGENT_ONE", &one.to_string()).replace("AGENT_TWO", &two.to_string())
}

/// Runs a trial whose node `one` has this agent. Returns the same, and what was printed.
pub(crate) fn run_on(one: SocketAddr) -> (TrialStatus, Vec<String>, Vec<String>, String) {
    run_on_both(one, serve(vec![fake::done()]))
}

/// Like [`run_on`], with the agents of both nodes.
pub(crate) fn run_on_both(
    one: SocketAddr,
    two: SocketAddr,
) -> (TrialStatus, Vec<String>, Vec<String>, String) {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("version.toml");
    std::fs::write(&plan, plan_of(one, two)).unwrap();
    let out = dir.path().join("results");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    let done = command.arg("run").arg(&plan).arg("--out").arg(&out).output().unwrap();
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    println!("{printed}");
    let runs: Vec<_> = std::fs::read_dir(&out).unwrap().flatten().map(|e| e.path()).collect();
    let opened =
        RunDir::open(runs.iter().map(Path::new).find(|run| run.is_dir()).unwrap()).unwrap();
    let trials = opened.trials();
    let reasons = trials[0].reasons.iter().map(|r| format!("{}: {}", r.code, r.message));
    (trials[0].status, reasons.collect(), opened.notes(), printed)
}

/// Encodes an event as field 7 of a RunEvent.
fn in_stream(event: &[u8]) -> Vec<u8> {
    field(7, event)
}

#[test]
fn readable_events_leave_the_trial_ok_and_the_version_is_a_note() {
    let event = wire::Event { kind: Some(Kind::TrialEnd(NoData {})), ..wire::Event::default() };
    let (status, reasons, notes) = run(vec![in_stream(&event.encode_to_vec())]);
    assert_eq!((status, reasons), (TrialStatus::Ok, vec![]));
    let note = format!("one: its agent is ccbench-agent {}, this is ccbench ", fake::VERSION);
    assert!(notes.iter().any(|line| line.starts_with(&note)), "{notes:?}");
}

#[test]
fn unreadable_events_degrade_the_trial() {
    let newer = [field(3, b"l4s"), field(4242, b"of a later version")].concat();
    let older = [field(2, b"flow_error"), field(4, b"unable to connect")].concat();
    let message = field(4242, b"a kind of row of a later version");
    let row = wire::Interval { flow_id: "l4s/0".into(), ..wire::Interval::default() };
    let row = wire::RunEvent { payload: Some(Payload::Interval(row)) }.encode_to_vec();
    let kind = 99;
    let timing = wire::LinkTiming { link: "l4s".into(), kind, ..wire::LinkTiming::default() };
    let timing = wire::RunEvent { payload: Some(Payload::LinkTiming(timing)) }.encode_to_vec();
    let (status, reasons, _) =
        run(vec![in_stream(&newer), in_stream(&older), message, row, timing]);
    assert_eq!(status, TrialStatus::Degraded);
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    let begin = "event_unreadable: one: messages that cannot be read: 5 (the first: its kind is unknown: l4s); its agent is \
                 ccbench-agent 99.0.0, this is ccbench ";
    assert!(reason.starts_with(begin), "{reason}");
}
