//! Who may call which RPC. Tests every RPC of the descriptors with every kind of certificate, on a real agent over
//! loopback. Also tests renewals, revocations, the audit log and keepalives. Needs no root.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod access_support;
mod support;

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use access_support::{
    Agent, Issued, Mode, Outcome, REVOKED, VALID, authority, call, descriptors, issue, issue_for,
    issue_node, revocations, status_of,
};
use ccbench_agent::undo::{Step, Undo};
use ccbench_proto::scope::{Rpc, Scope};
use ccbench_proto::wire;
use ccbench_tests::retry_on_intr;
use rcgen::ExtendedKeyUsagePurpose::ClientAuth;
use serde_json::Value;
use support::{AGENT, IDLE_PLAN, now_ns, prepare, wait_for};
use tonic::Code;
use tonic::transport::Channel;

#[test]
fn every_rpc_has_a_scope() {
    let known: Vec<&str> = Rpc::ALL.into_iter().map(Rpc::name).collect();
    assert_eq!(known, descriptors(), "the RPCs of agent.proto and of Rpc::ALL, in order");
}

#[tokio::test]
async fn every_rpc_is_refused_or_handled_by_the_clients_certificate() {
    every_rpc_by_every_client(Mode::OneProcess).await;
}

#[tokio::test]
async fn a_front_refuses_what_one_process_refuses() {
    every_rpc_by_every_client(Mode::FrontAndWorker).await;
}

async fn every_rpc_by_every_client(mode: Mode) {
    let agent = Agent::start_as(mode, &[]).await;
    let ca = &agent.ca;
    let certified = |serial, scopes| Some(issue(ca, serial, scopes, None));
    let others: [(&str, Option<Issued>); 7] = [
        ("no certificate", None),
        ("another authority", Some(issue(&authority(), 8, Some(&Scope::ALL), None))),
        ("revoked", certified(REVOKED, Some(&Scope::ALL))),
        ("expired", Some(issue(ca, 7, Some(&Scope::ALL), Some(2021)))),
        ("not yet valid", Some(issue_for(ca, 9, &[ClientAuth], &Scope::ALL, (2089, 2090)))),
        ("a node's", Some(issue_node(ca, 10))),
        ("without usage and scopes", Some(issue_for(ca, 11, &[], &[], VALID))),
    ];
    let mut scoped: Vec<(&str, Option<Issued>, Vec<Scope>)> = vec![
        ("all", certified(4, Some(&Scope::ALL)), Scope::ALL.to_vec()),
        ("of an earlier version", certified(6, None), Scope::ALL.to_vec()),
    ];
    for (scope, serial) in Scope::ALL.into_iter().zip(20..) {
        let mut permitted = vec![scope];
        if scope == Scope::Run {
            permitted.push(Scope::Read);
        }
        let client = issue(ca, serial, Some(&[scope]), None);
        scoped.push((scope.name(), Some(client), permitted));
    }
    for rpc in descriptors() {
        let path = format!("/ccbench.v1.Agent/{rpc}");
        let scope = Rpc::of_path(&path).unwrap().scope();
        for (name, client) in &others {
            let outcome = agent.call(client.clone(), &rpc).await;
            assert_eq!(outcome, Outcome::NoConnection, "{rpc}: {name}");
        }
        for (name, client, permitted) in &scoped {
            let expected = match permitted.contains(&scope) {
                true => Outcome::Handled,
                false => Outcome::Refused,
            };
            assert_eq!(agent.call(client.clone(), &rpc).await, expected, "{rpc}: {name}");
        }
    }
    assert!(agent.log().contains("the client's certificate has no scopes"), "{}", agent.log());
}

/// TLS accepts a certificate without any usage for both ends. With one, a node's is refused during the handshake.
#[tokio::test]
async fn a_certificate_of_no_client_is_refused() {
    let agent = Agent::start().await;
    let no_usage = issue_for(&agent.ca, 11, &[], &[], VALID);
    assert_eq!(agent.call(Some(no_usage), "Clock").await, Outcome::NoConnection);
    let why = "the certificate of client11 (serial 0b) has no scopes and is not for clients";
    wait_for("the reason", || agent.log().contains(why)).await;
    let of_node = issue_node(&agent.ca, 12);
    assert_eq!(agent.call(Some(of_node), "Clock").await, Outcome::NoConnection);
    wait_for("the other reason", || agent.log().contains("TLS handshake: ")).await;
    // A certificate with scopes is a controller's, whoever has issued it.
    let scoped = issue_for(&agent.ca, 13, &[], &[Scope::Read], VALID);
    assert_eq!(agent.call(Some(scoped), "Clock").await, Outcome::Handled);
}

#[tokio::test]
async fn a_refusal_names_scope_identity_and_command() {
    let agent = Agent::start().await;
    let client = issue(&agent.ca, 2, Some(&[Scope::Read]), None);
    let channel = agent.connect(Some(client)).await.unwrap();
    let refused = status_of(channel.clone(), "Prepare").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let command = "`ccbench pki controller DIR client2-2 --scope run`";
    for part in ["the RPC Prepare needs the scope `run`", "client2 (serial 02)", command] {
        assert!(refused.message().contains(part), "no `{part}`: {}", refused.message());
    }
    let unknown = status_of(channel, "Shutdown").await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented, "what is not in the list is refused");
    let is_logged =
        |line: &Value| line["rpc"] == "unknown" && line["message"] == "/ccbench.v1.Agent/Shutdown";
    wait_for("the unknown RPC", || agent.audit().iter().any(is_logged)).await;
}

#[tokio::test]
async fn a_revocation_closes_open_connections_and_ends_their_trials() {
    let agent = Agent::start().await;
    let client = issue(&agent.ca, 2, Some(&[Scope::Run]), None);
    let other = issue(&agent.ca, 3, Some(&[Scope::Run]), None);
    let idle = agent.connect(Some(client.clone())).await.unwrap();
    assert_eq!(call(idle.clone(), "Describe").await, Outcome::Handled);
    let typed = wire::agent_client::AgentClient::<Channel>::new;
    let mut running = typed(agent.connect(Some(client.clone())).await.unwrap());
    let plan = IDLE_PLAN.replace("200ms", "60s");
    running.prepare(prepare(&plan, "one", 1)).await.unwrap();
    let run = wire::RunRequest { start_at_ns: now_ns(), epoch: 1 };
    let mut rows = running.run(run).await.unwrap().into_inner();
    let mut permitted = typed(agent.connect(Some(other.clone())).await.unwrap());
    permitted.prepare(prepare(&plan, "one", 2)).await.unwrap_err();
    agent.replace("crl.pem", &revocations(&agent.ca, &[2]));
    let end = loop {
        match rows.message().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert!(end.is_err(), "the trial came to its end");
    let closed = || {
        agent.log().matches("the certificate of client2 (serial 02) is no longer accepted").count()
    };
    wait_for("the end of both connections", || closed() == 2).await;
    assert_eq!(call(idle, "Describe").await, Outcome::NoConnection);
    assert_eq!(agent.call(Some(client), "Describe").await, Outcome::NoConnection);
    // The node is free again, and another client's connection is still open.
    let mut attempts = 0;
    while permitted.prepare(prepare(&plan, "one", 2)).await.is_err() {
        attempts += 1;
        assert!(attempts < 1000, "the revoked client still holds the node: {}", agent.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let is_recorded = |line: &Value| {
        line["event"] == "connection" && line["message"].to_string().contains("no longer accepted")
    };
    wait_for("the audit log", || agent.audit().iter().any(is_recorded)).await;
    assert_eq!(agent.call(Some(other), "Describe").await, Outcome::Handled);
    // A file that is not a revocation list changes nothing.
    agent.replace("crl.pem", "no list");
    wait_for("the error", || agent.log().contains("previous certificates stay in force")).await;
    assert!(agent.log().contains("where DIR is the authority's directory"), "{}", agent.log());
    let still = issue(&agent.ca, 2, Some(&[Scope::Run]), None);
    assert_eq!(agent.call(Some(still), "Describe").await, Outcome::NoConnection);
}

#[tokio::test]
async fn a_revocation_needs_no_usable_key_of_the_node() {
    let agent = Agent::start().await;
    let client = issue(&agent.ca, 2, Some(&[Scope::Run]), None);
    let other = issue(&agent.ca, 3, Some(&[Scope::Run]), None);
    let open = agent.connect(Some(client)).await.unwrap();
    agent.replace("node.key", "no key");
    agent.replace("crl.pem", &revocations(&agent.ca, &[2]));
    let mut calls = 0;
    while call(open.clone(), "Describe").await == Outcome::Handled {
        calls += 1;
        assert!(calls < 1000, "the revocation is lost: {}", agent.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let kept = || agent.log().contains("this node's previous certificate stays in force");
    wait_for("the error", kept).await;
    assert_eq!(agent.call(Some(other), "Describe").await, Outcome::Handled);
}

#[tokio::test]
async fn a_module_that_the_agent_may_not_load_is_refused() {
    let agent = Agent::start_with(&["--allow-module", "ccb_*,tcp_cubic"]).await;
    let client = issue(&agent.ca, 2, Some(&Scope::ALL), None);
    let channel = agent.connect(Some(client)).await.unwrap();
    let mut client = wire::agent_client::AgentClient::new(channel);
    let flow = "[flows.f]\nfrom = \"one\"\nto = \"two\"\ncc = \"nosuch\"\ntool = \"ccbench\"\n";
    let plan = format!("{IDLE_PLAN}flows = [\"f\"]\n{flow}");
    let checked = client.check(prepare(&plan, "one", 1)).await.map(drop);
    let prepared = client.prepare(prepare(&plan, "one", 1)).await.map(drop);
    for refused in [checked, prepared] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
        for part in [
            "flow f needs the kernel module tcp_nosuch",
            "ccb_*, tcp_cubic",
            "`--allow-module tcp_nosuch`",
        ] {
            assert!(refused.message().contains(part), "no `{part}`: {}", refused.message());
        }
    }
}

/// A plan for a kernel that is not installed anywhere.
const KERNEL_PLAN: &str = r#"
name = "kernel"
[nodes.one]
agent = "192.0.2.1:7700"
address = "127.0.0.1"
kernel_release = "6.99.0-none"
[nodes.two]
agent = "192.0.2.2:7700"
address = "127.0.0.2"
[probes.rtt]
kind = "ping"
from = "two"
to = "one"
[[phases]]
name = "only"
length = "200ms"
"#;

#[tokio::test]
async fn a_reboot_is_refused_unless_the_agent_allows_it() {
    for mode in [Mode::OneProcess, Mode::FrontAndWorker] {
        let agent = Agent::start_as(mode, &[]).await;
        let client = issue(&agent.ca, 2, Some(&Scope::ALL), None);
        let channel = agent.connect(Some(client)).await.unwrap();
        let mut client = wire::agent_client::AgentClient::new(channel);
        let kernel_release = "6.99.0-none".to_owned();
        let request = wire::RebootRequest { kernel_release, ..wire::RebootRequest::default() };
        let rebooted = client.reboot(request).await.map(drop);
        let checked = client.check(prepare(KERNEL_PLAN, "one", 1)).await.map(drop);
        for refused in [rebooted, checked] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
            assert!(refused.message().contains("`--allow-reboot grub`"), "{refused:?}");
        }
        let refused = client.prepare(prepare(KERNEL_PLAN, "one", 1)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        assert!(refused.message().contains("names kernel 6.99.0-none"), "{refused:?}");
    }
}

#[tokio::test]
async fn a_hangup_makes_the_agent_read_its_certificates_again() {
    let agent = Agent::start().await;
    let pid = nix::unistd::Pid::from_raw(agent.child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).unwrap();
    wait_for("the certificates", || agent.log().contains("read the certificates again")).await;
    let client = issue(&agent.ca, 2, Some(&[Scope::Read]), None);
    assert_eq!(agent.call(Some(client), "Clock").await, Outcome::Handled);
}

#[tokio::test]
async fn a_renewed_node_certificate_needs_no_restart() {
    let agent = Agent::start().await;
    let renewed = issue_node(&agent.ca, 90);
    // The key is written last: until then the pair does not match, and the earlier one stays in force.
    agent.replace("node.pem", &renewed.certificate);
    agent.replace("node.key", &renewed.key);
    wait_for("the new pair", || agent.log().contains("read the certificates again")).await;
    let client = issue(&agent.ca, 2, Some(&[Scope::Read]), None);
    assert_eq!(agent.call(Some(client.clone()), "Clock").await, Outcome::Handled);
    // Clients do not trust another authority, so a failed connection shows that the agent presents what it has read.
    let foreign = issue_node(&authority(), 91);
    agent.replace("node.pem", &foreign.certificate);
    agent.replace("node.key", &foreign.key);
    let mut calls = 0;
    let outcome = loop {
        match agent.call(Some(client.clone()), "Clock").await {
            Outcome::Handled => calls += 1,
            other => break other,
        }
        assert!(calls < 600, "the agent presents its previous certificate: {}", agent.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(outcome, Outcome::NoConnection);
}

#[tokio::test]
async fn calls_and_refused_connections_are_in_the_audit_log() {
    let agent = Agent::start().await;
    let client = issue(&agent.ca, 2, Some(&[Scope::Read]), None);
    let channel = agent.connect(Some(client)).await.unwrap();
    assert_eq!(call(channel.clone(), "Describe").await, Outcome::Handled);
    let mut typed = wire::agent_client::AgentClient::new(channel);
    let reset = wire::ResetRequest { run_id: "run-7".into(), epoch: 1 };
    typed.reset(reset.clone()).await.unwrap_err();
    let permitted = issue(&agent.ca, 3, Some(&[Scope::Run]), None);
    let channel = agent.connect(Some(permitted)).await.unwrap();
    wire::agent_client::AgentClient::new(channel).reset(reset).await.unwrap();
    assert_eq!(agent.call(None, "Clock").await, Outcome::NoConnection);
    let of = |event: &str| {
        let lines = agent.audit().into_iter();
        lines.filter(|line| line["event"] == event).collect::<Vec<Value>>()
    };
    wait_for("the calls", || of("rpc").len() == 3).await;
    wait_for("the refused connection", || !of("connection").is_empty()).await;
    let calls = of("rpc");
    let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
    let results: Vec<_> =
        calls.iter().map(|line| text(line, "rpc") + " " + &text(line, "result")).collect();
    assert_eq!(results, ["Describe Ok", "Reset PermissionDenied", "Reset Ok"]);
    assert_eq!(calls[1]["identity"], "client2");
    assert_eq!(calls[1]["serial"], "02");
    assert_eq!(calls[1]["peer"], "127.0.0.1");
    assert_eq!(calls[1]["scope"], "run");
    assert_eq!(calls[2]["run_id"], "run-7");
    let refused = of("connection");
    assert!(refused[0]["message"].as_str().unwrap().contains("TLS handshake"), "{refused:?}");
}

#[test]
fn what_undo_does_is_in_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.ndjson");
    let (mut undo, _) = Undo::open(dir.path()).unwrap();
    undo.push(Step::TrafficGroup { folder: dir.path().join("traffic") }).unwrap();
    drop(undo);
    std::fs::write(&log, "").unwrap();
    let undo = || Command::new(AGENT).args(["undo", "--state-dir"]).arg(dir.path()).output();
    undo().unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!(line["event"], "undo");
    let steps = |key: &str| line[key].as_array().unwrap().len();
    assert_eq!(steps("undone") + steps("failed"), 1, "{line}");
    // `undo` does not create a log.
    std::fs::remove_file(&log).unwrap();
    undo().unwrap();
    assert!(!log.exists());
}

#[tokio::test]
async fn the_service_manager_is_notified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let receiver = UnixDatagram::bind(&path).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let listen = format!("unix:{}", dir.path().join("agent.sock").display());
    let mut child = Command::new(AGENT)
        .args(["serve", "--ephemeral", "--listen", &listen])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "100000")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut received = Vec::new();
    while received.iter().filter(|state| *state == "WATCHDOG=1").count() < 3
        || !received.contains(&"READY=1".to_owned())
    {
        let mut buffer = [0; 64];
        let length = retry_on_intr(|| receiver.recv(&mut buffer)).unwrap();
        received.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success());
    let mut buffer = [0; 64];
    while !buffer.starts_with(b"STOPPING=1") {
        retry_on_intr(|| receiver.recv(&mut buffer)).unwrap();
    }
}
