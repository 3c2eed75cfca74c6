//! An agent in two processes: the front answers like a single process, and each of the two may end or be missing. Needs
//! no root, except for the tests with another user.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod access_support;
mod support;

use std::convert::Infallible;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::process::Command;
use std::time::Duration;

use access_support::{Agent, Mode, Outcome, call, descriptors, for_caller, issue, status_of};
use ccbench_proto::plan::digest_bytes;
use ccbench_proto::scope::Scope;
use ccbench_proto::wire;
use ccbench_proto::wire::agent_client::AgentClient;
use ccbench_proto::wire::run_event::Payload;
use ccbench_tests::skip::skip;
use nix::sys::signal::Signal;
use serde_json::Value;
use support::{AGENT, IDLE_PLAN, now_ns, prepare, wait_for};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

async fn split() -> Agent {
    Agent::start_as(Mode::FrontAndWorker, &[]).await
}

async fn client_of(agent: &Agent, serial: u64, scopes: &[Scope]) -> AgentClient<Channel> {
    let client = issue(&agent.ca, serial, Some(scopes), None);
    AgentClient::new(agent.connect(Some(client)).await.unwrap())
}

/// Returns what every RPC answers to an empty message from clients with these scopes: code and message, unless it succeeds.
async fn answers(mode: Mode) -> Vec<(String, Option<(Code, String)>)> {
    let agent = Agent::start_as(mode, &["--allow-module", "ccb_*"]).await;
    let mut found = Vec::new();
    for (serial, scopes) in [(2, &[Scope::Read][..]), (3, &[Scope::Run][..]), (4, &Scope::ALL[..])]
    {
        for rpc in descriptors() {
            let client = issue(&agent.ca, serial, Some(scopes), None);
            let channel = agent.connect(Some(client)).await.unwrap();
            let refused = status_of(channel, &rpc).await.err();
            let refused = refused.map(|status| (status.code(), status.message().to_owned()));
            found.push((format!("{rpc} of client{serial}"), refused));
        }
    }
    // One plan is refused when it is parsed, and one needs a module.
    let mut client = client_of(&agent, 4, &Scope::ALL).await;
    let flow = "[flows.f]\nfrom = \"one\"\nto = \"two\"\ncc = \"nosuch\"\ntool = \"ccbench\"\n";
    let module = format!("{IDLE_PLAN}flows = [\"f\"]\n{flow}");
    for (name, plan) in [("no plan", "x = "), ("module", module.as_str())] {
        let refused = client.prepare(prepare(plan, "one", 1)).await.unwrap_err();
        found.push((name.to_owned(), Some((refused.code(), refused.message().to_owned()))));
    }
    found
}

#[tokio::test]
async fn a_front_answers_as_one_process_does() {
    let (one, two) = (answers(Mode::OneProcess).await, answers(Mode::FrontAndWorker).await);
    assert_eq!(one, two);
    let number = |code: Code| {
        let codes = one.iter().filter_map(|(_, refused)| Some(refused.as_ref()?.0));
        codes.filter(|found| *found == code).count()
    };
    assert!(number(Code::PermissionDenied) >= 6, "{one:?}");
    assert!(number(Code::InvalidArgument) >= 3, "{one:?}");
}

#[tokio::test]
async fn the_description_of_a_node_says_that_its_agent_is_one_process() {
    // Otherwise there are no services to choose from.
    let has_systemd = std::path::Path::new("/run/systemd/system").is_dir();
    let one_process = usize::from(has_systemd);
    for (mode, expected) in [(Mode::OneProcess, one_process), (Mode::FrontAndWorker, 0)] {
        let agent = Agent::start_as(mode, &[]).await;
        let mut client = client_of(&agent, 2, &[Scope::Read]).await;
        let notes = client.describe(wire::DescribeRequest {}).await.unwrap().into_inner().notes;
        let found = notes.iter().filter(|note| note.contains("enable --now ccbench-agent-front"));
        assert_eq!(found.count(), expected, "{mode:?}: {notes:?}");
    }
}

#[tokio::test]
async fn a_trial_runs_through_front_and_worker() {
    let agent = split().await;
    let mut client = client_of(&agent, 2, &[Scope::Run]).await;
    let info = client.describe(wire::DescribeRequest {}).await.unwrap().into_inner();
    assert!(!info.kernel.is_empty());
    let parts = [vec![1; wire::FILE_CHUNK_BYTES], vec![2; 1000]];
    let chunks = parts.clone().map(|data| wire::FileChunk { data });
    let sent = client.put_file(tokio_stream::iter(chunks)).await.unwrap().into_inner();
    assert_eq!(sent.sha256, digest_bytes(&parts.concat()));
    let prepared = client.prepare(prepare(IDLE_PLAN, "one", 1)).await.unwrap().into_inner();
    assert_eq!(prepared.generation, info.generation + 1);
    let run = wire::RunRequest { start_at_ns: now_ns(), epoch: 1 };
    let mut rows = client.run(run).await.unwrap().into_inner();
    let mut done = None;
    while let Some(event) = rows.message().await.unwrap() {
        if let Some(Payload::Done(last)) = event.payload {
            done = Some(last);
        }
    }
    assert_eq!(done.unwrap().rows_dropped, 0);
    let reset = wire::ResetRequest { run_id: "test".into(), epoch: 1 };
    assert_eq!(client.reset(reset).await.unwrap().into_inner().failed, [""; 0]);
    // Both logs name the client.
    let log = |name: &str| std::fs::read_to_string(agent.path(name)).unwrap();
    for name in ["state/audit.ndjson", "worker-state/audit.ndjson"] {
        let calls = || {
            let lines = log(name);
            let of_client = |line: &Value| {
                line["identity"] == "client2" && line["serial"] == "02" && line["rpc"] == "Prepare"
            };
            lines
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .any(|line| of_client(&line))
        };
        wait_for(name, calls).await;
    }
}

#[tokio::test]
async fn a_controller_cannot_name_another_caller() {
    let agent = split().await;
    let mut client = client_of(&agent, 2, &[Scope::Read]).await;
    let reset = || for_caller(wire::ResetRequest::default(), "root", &Scope::ALL);
    let refused = client.reset(reset()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("client2 (serial 02)"), "{refused:?}");
    // Scopes in the controller's metadata do not reach the worker with a permitted call, either.
    let mut client = client_of(&agent, 3, &[Scope::Run]).await;
    client.reset(reset()).await.unwrap();
    let log = std::fs::read_to_string(agent.path("worker.log")).unwrap();
    assert!(!log.contains("refused a request"), "{log}");
    let is_of = |name: &str| {
        let text = std::fs::read_to_string(agent.path("worker-state/audit.ndjson")).unwrap();
        text.lines().any(|line| line.contains("\"Reset\"") && line.contains(name))
    };
    wait_for("the reset", || is_of("\"client3\"")).await;
    assert!(!is_of("\"root\""));
}

#[tokio::test]
async fn a_worker_checks_the_caller_of_each_request() {
    let agent = Agent::start_as(Mode::FrontAndWorker, &["--scope", "run"]).await;
    let mut worker = AgentClient::new(agent.connect_to_worker().await);
    let nobodys = worker.describe(wire::DescribeRequest {}).await.unwrap_err();
    assert_eq!(nobodys.code(), Code::Unauthenticated);
    assert!(nobodys.message().contains("only requests from `ccbench-agent front`"), "{nobodys:?}");
    let reset = |scopes| for_caller(wire::ResetRequest::default(), "alice", scopes);
    let refused = worker.reset(reset(&[Scope::Read])).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    worker.reset(reset(&[Scope::Run])).await.unwrap();
    // The front cannot grant more than the worker's command line permits.
    let cc = "[cc.mine]\nalgorithm = \"cubic\"\nparams = { beta = 717 }\n";
    let flow = "[flows.f]\nfrom = \"one\"\nto = \"two\"\ncc = \"mine\"\ntool = \"ccbench\"\n";
    let plan = format!("{IDLE_PLAN}flows = [\"f\"]\n{flow}{cc}");
    let check = for_caller(prepare(&plan, "one", 1), "alice", &Scope::ALL);
    let refused = worker.check(check).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    for part in ["needs the scope `module`", "`--scope` of `ccbench-agent worker`"] {
        assert!(refused.message().contains(part), "no `{part}`: {refused:?}");
    }
}

#[tokio::test]
async fn a_front_without_a_worker_names_its_socket() {
    let mut agent = split().await;
    agent.kill_worker();
    let client = issue(&agent.ca, 2, Some(&[Scope::Read]), None);
    let channel = agent.connect(Some(client)).await.unwrap();
    let refused = status_of(channel.clone(), "Describe").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let socket = agent.path("worker.sock").display().to_string();
    for part in ["the worker of this node does not answer", &socket, "ccbench-agent-worker.service"]
    {
        assert!(refused.message().contains(part), "no `{part}`: {}", refused.message());
    }
    // What the certificate does not permit is refused before that.
    let refused = status_of(channel.clone(), "Prepare").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    agent.start_worker().await;
    assert_eq!(call(channel, "Describe").await, Outcome::Handled);
}

#[tokio::test]
async fn a_killed_front_frees_the_node() {
    let mut agent = split().await;
    let (_controller, mut rows) = running(&agent).await;
    agent.restart_front().await;
    while let Ok(row) = rows.message().await {
        assert!(row.is_some(), "the trial came to its end");
    }
    let mut next = client_of(&agent, 3, &[Scope::Run]).await;
    let mut attempts = 0;
    while let Err(refused) = next.prepare(prepare(&long_plan(), "one", 2)).await {
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        attempts += 1;
        assert!(attempts < 1000, "the node is not free: {}", agent.worker_log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_restarted_worker_gets_new_connections_of_controllers() {
    let mut agent = split().await;
    let client = issue(&agent.ca, 2, Some(&[Scope::Run]), None);
    let channel = agent.connect(Some(client)).await.unwrap();
    let mut typed = AgentClient::new(channel.clone());
    let sent = [wire::FileChunk { data: vec![7; 100] }];
    typed.put_file(tokio_stream::iter(sent)).await.unwrap();
    agent.kill_worker();
    agent.start_worker().await;
    // The file is gone with the worker. A controller that still relied on it would be refused later, so its connection ends.
    assert_eq!(call(channel.clone(), "Clock").await, Outcome::NoConnection);
    let mut attempts = 0;
    while call(channel.clone(), "Clock").await != Outcome::Handled {
        attempts += 1;
        assert!(attempts < 1000, "{}", agent.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn only_the_fronts_user_connects_to_a_worker() {
    const OTHER: &str = "12345";
    if !nix::unistd::geteuid().is_root() {
        return skip("it needs another user: run it as root");
    }
    let agent = split().await;
    let socket = agent.path("worker.sock");
    let metadata = std::fs::metadata(&socket).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o600, 0));
    // Act as if the permissions were wrong.
    let permit =
        |path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    permit(agent.dir.path(), 0o755);
    permit(socket.as_path(), 0o666);
    let connect = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n\
                   try: print(len(s.recv(1)))\nexcept ConnectionResetError: print(0)";
    let received = |user: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        let output =
            command.args(["/usr/bin/python3", "-c", connect]).arg(&socket).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    // An HTTP/2 server starts with a SETTINGS frame.
    assert_eq!((received("0").as_str(), received(OTHER).as_str()), ("1", "0"));
    let refused = || {
        agent
            .worker_log()
            .contains("the client runs as user 12345; only root and user 0 may connect")
    };
    wait_for("the refused connection", refused).await;
}

#[test]
fn a_front_needs_certificates_and_a_network() {
    let dir = tempfile::tempdir().unwrap();
    let front = |listen: &str| {
        let mut command = Command::new(AGENT);
        command.args(["front", "--listen", listen, "--state-dir"]).arg(dir.path());
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(front("tcp:127.0.0.1:0").contains("a front needs --tls-cert"));
    assert!(front("unix:/x").contains("to listen on a path, use `ccbench-agent serve`"));
}

/// Otherwise, a vulnerability in iperf3 would give access to the front.
#[test]
fn a_front_is_not_the_user_of_traffic() {
    if !nix::unistd::geteuid().is_root() {
        return skip("traffic has a user of its own only if the agent is root: run it as root");
    }
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}", dir.path().join("worker.sock").display());
    let mut command = Command::new(AGENT);
    command.args(["worker", "--front-user", "12345", "--listen", &listen, "--state-dir"]);
    command.arg(dir.path().join("state")).env("CCBENCH_TRAFFIC_USER", "12345");
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("experiment network, also runs as user 12345"), "{stderr}");
    assert!(!dir.path().join("state").exists(), "nothing was made");
}

#[tokio::test]
async fn a_worker_takes_a_listening_socket_over() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("worker.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let user = nix::unistd::geteuid().to_string();
    let mut command = Command::new(AGENT);
    command.args(["worker", "--listen", "stdin", "--front-user", &user, "--state-dir"]);
    command.arg(dir.path().join("state")).stdin(std::os::fd::OwnedFd::from(listener));
    let mut worker = command.spawn().unwrap();
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
    let mut client = AgentClient::new(endpoint.connect().await.unwrap());
    let describe = for_caller(wire::DescribeRequest {}, "alice", &[Scope::Read]);
    let described = client.describe(describe).await;
    let inherited = std::fs::read_link(format!("/proc/{}/fd/0", worker.id())).unwrap();
    worker.kill().unwrap();
    worker.wait().unwrap();
    assert!(!described.unwrap().into_inner().kernel.is_empty());
    assert_eq!(
        inherited.to_str(),
        Some("/dev/null"),
        "programs that it starts do not get the socket"
    );
}

/// Starts a one-minute trial. Returns its controller and its rows.
async fn running(agent: &Agent) -> (AgentClient<Channel>, tonic::Streaming<wire::RunEvent>) {
    let mut controller = client_of(agent, 2, &[Scope::Run]).await;
    controller.prepare(prepare(&long_plan(), "one", 1)).await.unwrap();
    let run = wire::RunRequest { start_at_ns: now_ns(), epoch: 1 };
    let rows = controller.run(run).await.unwrap().into_inner();
    (controller, rows)
}

fn long_plan() -> String {
    IDLE_PLAN.replace("200ms", "60s")
}

fn signal(process: &std::process::Child, signal: Signal) {
    let pid = nix::unistd::Pid::from_raw(process.id().cast_signed());
    nix::sys::signal::kill(pid, signal).unwrap();
}

/// Stops a process again and again. The kernel continues stopped processes when their process group is orphaned, for example because the
/// shell that started the tests in the background has ended.
async fn keep_stopped(process: &std::process::Child) -> Infallible {
    loop {
        signal(process, Signal::SIGSTOP);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Its connections stay open, so only keepalives detect it.
#[tokio::test]
async fn a_stopped_front_frees_the_node() {
    let agent = split().await;
    let _running = running(&agent).await;
    let mut worker = AgentClient::new(agent.connect_to_worker().await);
    let freed = async {
        let mut attempts = 0;
        loop {
            let next = for_caller(prepare(&long_plan(), "one", 2), "bob", &[Scope::Run]);
            let Err(refused) = worker.prepare(next).await else { break };
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
            attempts += 1;
            // Twice the time of silence: a front that was continued begins again.
            assert!(attempts < 2000, "{refused:?}, the node is not free: {}", agent.worker_log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = freed => {}
        never = keep_stopped(&agent.child) => match never {},
    }
    signal(&agent.child, Signal::SIGCONT);
}

#[tokio::test]
async fn a_stopped_worker_ends_the_stream_of_a_controller() {
    let agent = split().await;
    let (_controller, mut rows) = running(&agent).await;
    let worker = agent.worker.as_ref().unwrap();
    let lost = async {
        loop {
            match rows.message().await {
                Ok(row) => assert!(row.is_some(), "the trial came to its end"),
                Err(status) => break status,
            }
        }
    };
    let lost = tokio::select! {
        lost = lost => lost,
        never = keep_stopped(worker) => match never {},
    };
    assert_eq!(lost.code(), Code::Unavailable);
    assert!(lost.message().contains("the worker of this node does not answer"), "{lost:?}");
    signal(worker, Signal::SIGCONT);
}

/// The front reads the parts first. What the worker got until then has another SHA-256 than the file, and plans name files by SHA-256.
#[tokio::test]
async fn a_file_that_the_front_refuses_is_refused_as_by_one_process() {
    let refusal = async |agent: &Agent| {
        let mut client = client_of(agent, 2, &[Scope::Run]).await;
        let parts = [100, wire::MAX_REMOTE_MESSAGE_BYTES + 1].map(|bytes| vec![7; bytes]);
        let parts = parts.map(|data| wire::FileChunk { data });
        let refused = client.put_file(tokio_stream::iter(parts)).await.unwrap_err();
        client.reset(wire::ResetRequest::default()).await.unwrap();
        refused.code()
    };
    let agent = split().await;
    assert_eq!(refusal(&agent).await, refusal(&Agent::start().await).await);
}
