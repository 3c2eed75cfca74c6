//! Who may call which RPC: a matrix of every RPC of the descriptors and every kind of certificate, on a real agent over
//! loopback; renewals, revocations, the audit log and keepalives. No root.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccbench_agent::undo::{Step, Undo};
use ccbench_io::replace::replace;
use ccbench_proto::scope::{Rpc, Scope};
use ccbench_proto::wire;
use ccbench_tests::port::ReservedPort;
use ccbench_tests::uninterrupted;
use prost::Message as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SanType, SerialNumber,
};
use serde_json::Value;
use support::{AGENT, IDLE_PLAN, now_ns, prepare, wait_for, wait_for_setup};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

type Ca = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "the tests' authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key (PEM).
#[derive(Clone)]
struct Issued {
    certificate: String,
    key: String,
}

/// `serial` is also the name of the holder; `None` for the scopes: one of an earlier version.
fn issue(ca: &Ca, serial: u64, scopes: Option<&[Scope]>, last_year: Option<i32>) -> Issued {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, format!("client{serial}"));
    params.serial_number = Some(SerialNumber::from(serial));
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(last_year.unwrap_or(2090), 1, 1);
    for scope in scopes.unwrap_or_default() {
        let uri = scope.uri().try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
    }
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, ca).unwrap().pem();
    Issued { certificate, key: key.serialize_pem() }
}

fn revocations(ca: &Ca, serials: &[u64]) -> String {
    let revoked = |serial: &u64| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: rcgen::date_time_ymd(2021, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2021, 1, 1),
        next_update: rcgen::date_time_ymd(2090, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: serials.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(ca).unwrap().pem().unwrap()
}

/// The serial number that is revoked from the beginning.
const REVOKED: u64 = 66;

/// An agent with certificates and a state directory; killed on drop.
struct Agent {
    dir: tempfile::TempDir,
    ca: Ca,
    port: u16,
    _reserved: ReservedPort,
    child: Child,
}

impl Agent {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(arguments: &[&str]) -> Self {
        let (dir, ca) = (tempfile::tempdir().unwrap(), authority());
        let reserved = ReservedPort::new(Ipv4Addr::LOCALHOST);
        let port = reserved.address().port();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let node = issue(&ca, 1, None, None);
        let child = Command::new(AGENT)
            .args(["serve", "--listen", &format!("tcp:127.0.0.1:{port}"), "--state-dir"])
            .arg(dir.path().join("state"))
            .arg("--tls-ca")
            .arg(file("ca.pem", &ca.pem()))
            .arg("--tls-cert")
            .arg(file("node.pem", &node.certificate))
            .arg("--tls-key")
            .arg(file("node.key", &node.key))
            .arg("--tls-crl")
            .arg(file("crl.pem", &revocations(&ca, &[REVOKED])))
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let agent = Self { dir, ca, port, _reserved: reserved, child };
        let connects = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        wait_for_setup("the agent's port", connects).await;
        agent
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces a file, which the agent reads at any time.
    fn replace(&self, name: &str, content: &str) {
        replace(&self.path(name), content.as_bytes()).unwrap();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("state/audit.ndjson")).unwrap();
        // The last line may be incomplete.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    async fn connect(&self, client: Option<Issued>) -> Result<Channel, tonic::transport::Error> {
        let mut config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.ca.pem()))
            .domain_name("localhost");
        if let Some(Issued { certificate, key }) = client {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", self.port)).unwrap();
        endpoint.tls_config(config).unwrap().connect().await
    }

    async fn call(&self, client: Option<Issued>, rpc: &str) -> Outcome {
        match self.connect(client).await {
            Ok(channel) => call(channel, rpc).await,
            Err(_) => Outcome::NoConnection,
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How an agent answers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It closes the connection.
    NoConnection,
    /// It refuses the call.
    Refused,
    /// The call reaches its handler.
    Handled,
}

/// Calls an RPC by its name with one empty message.
async fn call(channel: Channel, rpc: &str) -> Outcome {
    match status_of(channel, rpc).await.map_err(|status| status.code()) {
        // An empty request has no plan, and no trial is prepared.
        Ok(()) | Err(Code::InvalidArgument | Code::FailedPrecondition) => Outcome::Handled,
        Err(Code::PermissionDenied | Code::Unauthenticated) => Outcome::Refused,
        // An agent that refuses a certificate closes the connection after the client's part of the handshake.
        Err(Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled) => {
            Outcome::NoConnection
        }
        Err(other) => panic!("{rpc}: {other:?}"),
    }
}

async fn status_of(channel: Channel, rpc: &str) -> Result<(), Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path: PathAndQuery = format!("/ccbench.v1.Agent/{rpc}").parse().unwrap();
    let request = Request::new(tokio_stream::once(()));
    let answer = client.streaming(request, path, ProstCodec::<(), ()>::default()).await?;
    answer.into_inner().message().await.map(drop)
}

/// The names of all RPCs of the service.
fn descriptors() -> Vec<String> {
    let set = prost_types::FileDescriptorSet::decode(wire::DESCRIPTORS).unwrap();
    let services = set.file.iter().flat_map(|file| &file.service);
    let methods = services.flat_map(|service| &service.method);
    methods.map(|method| method.name().to_owned()).collect()
}

#[test]
fn every_rpc_has_a_scope() {
    let known: Vec<&str> = Rpc::ALL.into_iter().map(Rpc::name).collect();
    assert_eq!(known, descriptors(), "the RPCs of agent.proto and of Rpc::ALL, in order");
}

#[tokio::test]
async fn every_rpc_is_refused_or_handled_by_the_clients_certificate() {
    let agent = Agent::start().await;
    let certified = |serial, scopes| Some(issue(&agent.ca, serial, scopes, None));
    let expired = issue(&agent.ca, 7, Some(&Scope::ALL), Some(2021));
    let others: [(&str, Option<Issued>); 4] = [
        ("no certificate", None),
        ("another authority", Some(issue(&authority(), 8, Some(&Scope::ALL), None))),
        ("revoked", certified(REVOKED, Some(&Scope::ALL))),
        ("expired", Some(expired)),
    ];
    let scoped: [(&str, Option<Issued>, &[Scope]); 6] = [
        ("read", certified(2, Some(&[Scope::Read])), &[Scope::Read]),
        ("run", certified(3, Some(&[Scope::Run])), &[Scope::Read, Scope::Run]),
        ("all", certified(4, Some(&Scope::ALL)), &Scope::ALL),
        ("module", certified(5, Some(&[Scope::Module])), &[]),
        ("reboot", certified(9, Some(&[Scope::Reboot])), &[]),
        ("of an earlier version", certified(6, None), &Scope::ALL),
    ];
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
    assert!(agent.log().contains("its certificate has no scopes"), "{}", agent.log());
}

#[tokio::test]
async fn a_refusal_names_scope_identity_and_command() {
    let agent = Agent::start().await;
    let client = issue(&agent.ca, 2, Some(&[Scope::Read]), None);
    let channel = agent.connect(Some(client)).await.unwrap();
    let refused = status_of(channel.clone(), "Prepare").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let command = "`ccbench pki controller DIR client2 --scope read,run`";
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
    // The node is free again, and the connection of another client is open.
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
    // A file that is not a list changes nothing.
    agent.replace("crl.pem", "no list");
    wait_for("the error", || agent.log().contains("previous certificates stay in force")).await;
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
    let renewed = issue(&agent.ca, 90, None, None);
    // The key is the second of two files: until then the pair does not match, and the earlier one stays in force.
    agent.replace("node.pem", &renewed.certificate);
    agent.replace("node.key", &renewed.key);
    wait_for("the new pair", || agent.log().contains("read the certificates again")).await;
    let client = issue(&agent.ca, 2, Some(&[Scope::Read]), None);
    assert_eq!(agent.call(Some(client), "Clock").await, Outcome::Handled);
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
    // Without a log none is made.
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
        let length = uninterrupted(|| receiver.recv(&mut buffer)).unwrap();
        received.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success());
    let mut buffer = [0; 64];
    while !buffer.starts_with(b"STOPPING=1") {
        uninterrupted(|| receiver.recv(&mut buffer)).unwrap();
    }
}
