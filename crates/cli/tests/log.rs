//! `ccbench -v` logs the steps of a trial and `-vv` the messages; a fake agent stands in for both nodes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;
use std::process::Command;

use ccbench_proto::wire;
use ccbench_proto::wire::agent_server::{Agent, AgentServer};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Accepts every call and sends no row.
struct FakeAgent;

#[tonic::async_trait]
impl Agent for FakeAgent {
    async fn describe(
        &self,
        _: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::NodeInfo>, Status> {
        let info = wire::NodeInfo {
            agent_version: "fake".to_owned(),
            kernel: "7.3.4".to_owned(),
            boot_id: "another machine".to_owned(),
            ..Default::default()
        };
        Ok(Response::new(info))
    }

    async fn clock(
        &self,
        _: Request<wire::ClockRequest>,
    ) -> Result<Response<wire::ClockReply>, Status> {
        Ok(Response::new(wire::ClockReply { received_ns: 1, sent_ns: 2, realtime_ns: 3 }))
    }

    async fn prepare(
        &self,
        _: Request<wire::PrepareRequest>,
    ) -> Result<Response<wire::PrepareReply>, Status> {
        Ok(Response::new(wire::PrepareReply::default()))
    }

    type RunStream = tokio_stream::Iter<std::array::IntoIter<Result<wire::RunEvent, Status>, 1>>;

    async fn run(&self, _: Request<wire::RunRequest>) -> Result<Response<Self::RunStream>, Status> {
        let done = wire::run_event::Of::Done(wire::Done::default());
        Ok(Response::new(tokio_stream::iter([Ok(wire::RunEvent { of: Some(done) })])))
    }

    async fn reset(
        &self,
        _: Request<wire::ResetRequest>,
    ) -> Result<Response<wire::ResetReply>, Status> {
        Ok(Response::new(wire::ResetReply::default()))
    }
}

/// Starts the agent on a free port of the loopback interface. It ends with the test's process.
fn start_agent() -> SocketAddr {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            let incoming = TcpListenerStream::new(listener);
            let agent = AgentServer::new(FakeAgent);
            tonic::transport::Server::builder()
                .serve_with_incoming_shutdown(agent, incoming, std::future::pending())
                .await
                .unwrap();
        });
    });
    receive.recv().unwrap()
}

/// Runs a plan of one short trial with these options; returns standard error.
fn run(options: &[&str]) -> String {
    let [src, dst] = [start_agent(), start_agent()];
    let dir = tempfile::tempdir().unwrap();
    let plan = format!(
        r#"
        name = "log"
        nodes.src = {{ agent = "{src}", address = "127.0.0.1" }}
        nodes.dst = {{ agent = "{dst}", address = "127.0.0.2" }}
        flows.bulk = {{ from = "src", to = "dst" }}
        phases = [{{ name = "all", length = "1s", flows = ["bulk"] }}]
        "#
    );
    std::fs::write(dir.path().join("plan.toml"), plan).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    command.args(options).args(["run", "plan.toml"]).current_dir(dir.path());
    let output = command.env_remove("CCBENCH_LOG").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    // The trial fails because no flow sends a row.
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    stderr
}

#[test]
fn verbose_logs_the_steps_of_a_trial_in_order() {
    let log = run(&["-v"]);
    let mut rest = log.as_str();
    for step in [
        "ccbench::agents: connect node=\"src\"",
        "ccbench::agents: describe node=\"src\"",
        "ccbench::runner: trial repeat 1/1",
        "ccbench::agents: clock node=\"src\"",
        "ccbench::agents: prepare nodes=2",
        "ccbench::testbed::trial: run nodes=2",
        "ccbench::agents: reset nodes=2",
        "ccbench::testbed::trial: commit",
        "ccbench::runner: verdict status=Failed",
    ] {
        let at = rest.find(step);
        rest = &rest[at.unwrap_or_else(|| panic!("`{step}` is missing or out of order: {log}"))..];
    }
    assert!(!log.contains("DEBUG"), "{log}");
}

#[test]
fn twice_verbose_logs_messages_with_kind_and_node() {
    let log = run(&["-vv"]);
    for message in [
        "prepare request node=\"dst\"",
        "prepare reply node=\"dst\"",
        "run request node=\"dst\"",
        "message node=\"dst\" kind=\"done\"",
        "end of stream node=\"dst\"",
    ] {
        assert!(log.contains(message), "no `{message}`: {log}");
    }
}

#[test]
fn logs_nothing_without_verbose() {
    let output = run(&[]);
    assert!(!output.contains("ccbench::"), "{output}");
}
