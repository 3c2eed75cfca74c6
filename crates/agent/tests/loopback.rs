//! A real agent on a path socket: orders, refusals, and the stop. No root.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use ccbench_proto::wire;
use nix::sys::signal::Signal;
use support::{AGENT, Agent, LOOPBACK_PLAN, now_ns, prepare, wait_for};
use tonic::Code;

#[tokio::test]
async fn describes_the_node_and_its_clock() {
    let agent = Agent::here();
    let mut client = agent.connect().await;
    let info = client.describe(wire::DescribeRequest {}).await.unwrap().into_inner();
    assert_eq!(info.agent_version, env!("CARGO_PKG_VERSION"));
    assert!(!info.kernel.is_empty() && info.cpus > 0, "{info:?}");
    assert!(info.congestion_controls.iter().any(|cc| cc == "reno"), "{info:?}");
    assert!(info.interfaces.iter().any(|i| i.name == "lo"), "{info:?}");

    let before = now_ns();
    let reply = client.clock(wire::ClockRequest {}).await.unwrap().into_inner();
    let after = now_ns();
    assert!(before <= reply.received_ns, "{reply:?}");
    assert!(reply.received_ns <= reply.sent_ns && reply.sent_ns <= after, "{reply:?}");
}

#[tokio::test]
async fn the_socket_is_private_and_removed() {
    let mut agent = Agent::here();
    drop(agent.connect().await);
    let mode = std::fs::metadata(agent.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    agent.signal(Signal::SIGTERM);
    assert!(agent.child.wait().unwrap().success());
    assert!(support::gone(&agent.socket()));
}

#[tokio::test]
async fn a_second_agent_does_not_take_a_live_ones_socket() {
    let agent = Agent::here();
    drop(agent.connect().await);
    let other = Command::new(AGENT)
        .args(["serve", "--ephemeral", "--listen", &format!("unix:{}", agent.socket().display())])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success() && stderr.contains("another agent listens there"), "{stderr}");
}

#[tokio::test]
async fn orders_in_the_wrong_order_are_refused() {
    let agent = Agent::here();
    let mut client = agent.connect().await;
    let run = wire::RunRequest { start_at_ns: 0, epoch: 1 };
    let refused = client.run(run).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("Prepare first"), "{refused:?}");

    let reply = client.reset(wire::ResetRequest::default()).await.unwrap().into_inner();
    assert_eq!(reply, wire::ResetReply::default(), "always allowed");
}

#[tokio::test]
async fn a_wrong_plan_is_refused_with_its_reason() {
    let agent = Agent::here();
    let mut client = agent.connect().await;
    let refused = client.prepare(prepare("name = 3", "one", 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let refused = client.prepare(prepare(LOOPBACK_PLAN, "three", 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("no node `three`; it has: one, two"), "{refused:?}");
}

/// A plan in which this node only watches: preparing it changes nothing, so no root is needed.
const IDLE_PLAN: &str = r#"
name = "idle"
[nodes]
one = {}
two = {}
[wires]
w = ["one", "two"]
[probes.rtt]
kind = "ping"
from = "two"
to = "one"
[[phases]]
name = "only"
length = "200ms"
"#;

#[tokio::test]
async fn a_busy_node_names_its_holder_and_an_overtaken_controller_is_refused() {
    let agent = Agent::here();
    let mut client = agent.connect().await;
    client.prepare(prepare(IDLE_PLAN, "one", 7)).await.unwrap();
    let busy = client.prepare(prepare(IDLE_PLAN, "one", 8)).await.unwrap_err();
    assert_eq!(busy.code(), Code::FailedPrecondition);
    assert!(busy.message().contains("run test (point 0, trial 1, epoch 7)"), "{busy:?}");
    let other = client.run(wire::RunRequest { start_at_ns: 0, epoch: 8 }).await.unwrap_err();
    assert_eq!(other.code(), Code::FailedPrecondition);
    let when = client.run(wire::RunRequest { start_at_ns: 0, epoch: 7 }).await.unwrap_err();
    assert_eq!(when.code(), Code::InvalidArgument);
    assert!(when.message().contains("CLOCK_MONOTONIC"), "{when:?}");

    client.reset(wire::ResetRequest::default()).await.unwrap();
    let stale = client.prepare(prepare(IDLE_PLAN, "one", 6)).await.unwrap_err();
    assert_eq!(stale.code(), Code::FailedPrecondition);
    assert!(stale.message().contains("another controller took over"), "{stale:?}");
}

#[tokio::test]
async fn another_runs_controller_cannot_reset_a_node_that_is_held() {
    let agent = Agent::here();
    let mut client = agent.connect().await;
    client.prepare(prepare(IDLE_PLAN, "one", 7)).await.unwrap();
    let reset = |run_id: &str, epoch| wire::ResetRequest { run_id: run_id.into(), epoch };
    for (run_id, epoch) in [("other", 8), ("test", 6)] {
        let refused = client.reset(reset(run_id, epoch)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("run test (point 0, trial 1, epoch 7)"), "{refused:?}");
    }
    client.run(wire::RunRequest { start_at_ns: now_ns(), epoch: 7 }).await.expect("still prepared");
    client.reset(reset("test", 7)).await.expect("its own");
    client.reset(reset("other", 1)).await.expect("the node is free");
}

#[tokio::test]
async fn the_epoch_survives_a_restart() {
    let mut agent = Agent::here();
    let mut client = agent.connect().await;
    client.prepare(prepare(IDLE_PLAN, "one", 7)).await.unwrap();
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    let listen = format!("unix:{}", agent.socket().display());
    agent.child = Command::new(AGENT)
        .args(["serve", "--listen", &listen, "--state-dir"])
        .arg(agent.state_dir())
        .spawn()
        .unwrap();
    let stale = loop {
        // The dead agent's socket is there until the new one takes it over.
        let endpoint = tonic::transport::Endpoint::from_shared(listen.clone()).unwrap();
        if let Ok(mut client) = wire::agent_client::AgentClient::connect(endpoint).await {
            break client.prepare(prepare(IDLE_PLAN, "one", 6)).await.unwrap_err();
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    assert_eq!(stale.code(), Code::FailedPrecondition, "{stale:?}");
}

#[tokio::test]
async fn a_lease_without_a_run_ends() {
    let agent = Agent::here();
    let mut client = agent.connect().await;
    let mut request = prepare(IDLE_PLAN, "one", 1);
    request.lease_ms = 100;
    client.prepare(request).await.unwrap();
    loop {
        match client.prepare(prepare(IDLE_PLAN, "one", 1)).await {
            Ok(_) => break,
            Err(busy) => assert!(busy.message().contains("busy"), "{busy:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_trial_without_traffic_runs_to_its_end() {
    let agent = Agent::here();
    let mut client = agent.connect().await;
    client.prepare(prepare(IDLE_PLAN, "one", 1)).await.unwrap();
    let start_at_ns = now_ns() + 50_000_000;
    let run = wire::RunRequest { start_at_ns, epoch: 1 };
    let mut rows = client.run(run).await.unwrap().into_inner();
    let mut kinds = Vec::new();
    while let Some(event) = rows.message().await.unwrap() {
        match event.of.unwrap() {
            wire::run_event::Of::Event(event) => kinds.push(event.name()),
            wire::run_event::Of::Done(done) => {
                assert_eq!(done.rows_dropped, 0);
                kinds.push("done");
            }
            _ => {}
        }
    }
    assert_eq!(kinds, ["phase_start", "trial_end", "done"]);
}

#[tokio::test]
async fn beyond_loopback_needs_certificates() {
    let output = Command::new(AGENT)
        .args(["serve", "--ephemeral", "--listen", "tcp:0.0.0.0:0"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("--tls-cert"), "{stderr}");
}

#[tokio::test]
async fn two_agents_do_not_share_a_state_directory() {
    let agent = Agent::here();
    wait_for("the lock", || agent.state_dir().join("lock").exists()).await;
    drop(agent.connect().await);
    let listen = format!("unix:{}", agent.dir.path().join("other.sock").display());
    let output = Command::new(AGENT)
        .args(["serve", "--listen", &listen, "--state-dir"])
        .arg(agent.state_dir())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("--state-dir"), "{stderr}");
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn notices_a_vanished_controller() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut agent = Command::new(AGENT)
        .args(["serve", "--listen", &format!("tcp:{address}"), "--state-dir"])
        .arg(dir.path())
        .spawn()
        .unwrap();
    let connect = async || {
        wait_for("the agent's port", || std::net::TcpStream::connect(&address).is_ok()).await;
        wire::agent_client::AgentClient::connect(format!("http://{address}")).await.unwrap()
    };
    let mut other = connect().await;
    let plan = IDLE_PLAN.replace("200ms", "60s");
    let (started, wait) = tokio::sync::oneshot::channel();
    let request = prepare(&plan, "one", 1);
    // This controller's thread stops turning: its sockets stay open without replies.
    let frozen_address = address.clone();
    let (thaw, thawed) = std::sync::mpsc::channel::<()>();
    let frozen = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let rows = runtime.block_on(async {
            let address = format!("http://{frozen_address}");
            let mut client = wire::agent_client::AgentClient::connect(address).await.unwrap();
            client.prepare(request).await.unwrap();
            let run = wire::RunRequest { start_at_ns: now_ns(), epoch: 1 };
            (client.run(run).await.unwrap(), client)
        });
        started.send(()).unwrap();
        let _ = thawed.recv();
        drop(rows);
    });
    wait.await.unwrap();
    let busy = other.prepare(prepare(&plan, "one", 2)).await.unwrap_err();
    assert!(busy.message().contains("is running"), "{busy:?}");
    let limit = now_ns() + 10_000_000_000;
    while other.prepare(prepare(&plan, "one", 2)).await.is_err() {
        assert!(now_ns() < limit, "the vanished controller still holds the node");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    drop(thaw);
    frozen.join().unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
}

mod tls {
    use std::path::{Path, PathBuf};

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    pub struct Files {
        pub cert: PathBuf,
        pub key: PathBuf,
    }

    pub type Ca = CertifiedIssuer<'static, KeyPair>;

    pub fn ca() -> Ca {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    pub fn issue(ca: &Ca, dir: &Path, name: &str) -> Files {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.signed_by(&key, ca).unwrap();
        let files =
            Files { cert: dir.join(format!("{name}.pem")), key: dir.join(format!("{name}.key")) };
        std::fs::write(&files.cert, cert.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

#[tokio::test]
async fn accepts_only_clients_of_the_authority() {
    use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
    let dir = tempfile::tempdir().unwrap();
    let (ca, foreign) = (tls::ca(), tls::ca());
    let ca_file = dir.path().join("ca.pem");
    std::fs::write(&ca_file, ca.pem()).unwrap();
    let node = tls::issue(&ca, dir.path(), "node");
    let port = free_port();
    let mut agent = Command::new(AGENT)
        .args(["serve", "--ephemeral", "--listen", &format!("tcp:0.0.0.0:{port}")])
        .arg("--tls-cert")
        .arg(&node.cert)
        .arg("--tls-key")
        .arg(&node.key)
        .arg("--tls-ca")
        .arg(&ca_file)
        .spawn()
        .unwrap();
    wait_for("the agent's port", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())
        .await;
    let describe = async |identity: Option<tls::Files>| {
        let mut config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(ca.pem()))
            .domain_name("localhost");
        if let Some(files) = identity {
            let read = |path| std::fs::read(path).unwrap();
            config = config.identity(Identity::from_pem(read(files.cert), read(files.key)));
        }
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{port}")).unwrap();
        let channel = endpoint.tls_config(config).unwrap().connect().await.map_err(|_| ())?;
        let mut client = wire::agent_client::AgentClient::new(channel);
        client.clock(wire::ClockRequest {}).await.map(drop).map_err(|_| ())
    };
    let own = tls::issue(&ca, dir.path(), "controller");
    let stranger = tls::issue(&foreign, dir.path(), "stranger");
    assert!(describe(Some(own)).await.is_ok());
    assert!(describe(Some(stranger)).await.is_err(), "another authority's");
    assert!(describe(None).await.is_err(), "none at all");
    agent.kill().unwrap();
    agent.wait().unwrap();
}
