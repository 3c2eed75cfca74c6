//! A real agent on a Unix socket: requests, refusals, and its stop. Needs no root.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use ccbench_proto::wire;
use nix::sys::signal::Signal;
use support::{AGENT, Agent, IDLE_PLAN, LOOPBACK_PLAN, now_ns, prepare, wait_for};
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
    let of_generation = |generation| {
        let generation = Some(generation);
        wire::PrepareRequest { generation, ..prepare(IDLE_PLAN, "one", 8) }
    };
    for generation in [0, 2, u64::MAX] {
        let stale = client.prepare(of_generation(generation)).await.unwrap_err();
        assert_eq!(stale.code(), Code::FailedPrecondition);
        assert!(stale.message().contains("another controller has used this node"), "{stale:?}");
    }
    let reply = client.prepare(of_generation(1)).await.unwrap().into_inner();
    assert_eq!(reply.generation, 2);
}

#[tokio::test]
async fn a_controller_of_an_earlier_boot_is_told_to_describe_the_node_again() {
    let agent = Agent::here();
    let mut client = agent.connect().await;
    let info = client.describe(wire::DescribeRequest {}).await.unwrap().into_inner();
    let of_boot = |boot_id: &str| {
        // After a reboot, the generation differs, too.
        let generation = Some(info.generation + u64::from(boot_id != info.boot_id));
        let boot_id = Some(boot_id.to_owned());
        wire::PrepareRequest { boot_id, generation, ..prepare(IDLE_PLAN, "one", 1) }
    };
    let refused = client.prepare(of_boot("an earlier boot")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(refused.message().contains("has been rebooted meanwhile"), "{refused:?}");
    client.prepare(of_boot(&info.boot_id)).await.expect("its own boot");
}

#[tokio::test]
async fn no_number_of_a_controller_locks_others_out() {
    let agent = Agent::here();
    let mut client = agent.connect().await;
    let request = prepare(IDLE_PLAN, "one", u64::MAX);
    client.prepare(wire::PrepareRequest { generation: Some(0), ..request }).await.unwrap();
    client.reset(wire::ResetRequest::default()).await.unwrap();
    let info = client.describe(wire::DescribeRequest {}).await.unwrap().into_inner();
    assert_eq!((info.generation, info.last_run_id.as_str()), (1, "test"));
    let next = prepare(IDLE_PLAN, "one", 1);
    let next = wire::PrepareRequest { generation: Some(info.generation), ..next };
    client.prepare(next).await.expect("it knows the generation");
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
async fn a_controller_is_told_that_another_client_has_reset_its_node() {
    let agent = Agent::here();
    let (mut client, mut other) = (agent.connect().await, agent.connect().await);
    client.prepare(prepare(IDLE_PLAN, "one", 7)).await.unwrap();
    // It does not begin before the reset.
    let run = wire::RunRequest { start_at_ns: now_ns() + 60_000_000_000, epoch: 7 };
    let mut rows = client.run(run).await.unwrap().into_inner();
    other.reset(wire::ResetRequest::default()).await.unwrap();
    let status = loop {
        match rows.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended without a reason"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Aborted);
    assert!(status.message().contains("another client"), "{status:?}");
    assert!(status.message().contains("has reset this node"), "{status:?}");
}

#[tokio::test]
async fn the_generation_survives_a_restart() {
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
        // The dead agent's socket exists until the new agent takes it over.
        let endpoint = tonic::transport::Endpoint::from_shared(listen.clone()).unwrap();
        if let Ok(mut client) = wire::agent_client::AgentClient::connect(endpoint).await {
            let request = prepare(IDLE_PLAN, "one", 8);
            let request = wire::PrepareRequest { generation: Some(0), ..request };
            break client.prepare(request).await.unwrap_err();
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
    let mut attempts = 0;
    while let Err(busy) = client.prepare(prepare(IDLE_PLAN, "one", 1)).await {
        assert!(busy.message().contains("busy"), "{busy:?}");
        attempts += 1;
        assert!(attempts < 1000, "the lease does not end");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // The lease of the second request lasts, so nobody replaces its trial.
    let busy = client.prepare(prepare(IDLE_PLAN, "one", 1)).await.unwrap_err();
    assert!(busy.message().contains("busy"), "{busy:?}");
}

#[tokio::test]
async fn a_trial_without_traffic_runs_to_its_end() {
    let agent = Agent::here();
    let mut client = agent.connect().await;
    client.prepare(prepare(IDLE_PLAN, "one", 1)).await.unwrap();
    let run = wire::RunRequest { start_at_ns: now_ns() + 50_000_000, epoch: 1 };
    let mut rows = client.run(run).await.unwrap().into_inner();
    let mut kinds = Vec::new();
    while let Some(event) = rows.message().await.unwrap() {
        match event.payload.unwrap() {
            // The request arrived after the start, because there was no CPU.
            wire::run_event::Payload::Event(event) if event.name() == "start_late" => {}
            wire::run_event::Payload::Event(event) => kinds.push(event.name()),
            wire::run_event::Payload::Done(done) => {
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
