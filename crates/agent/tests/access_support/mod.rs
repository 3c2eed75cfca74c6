//! Agents with certificates, as one process or two, and calls of RPCs by name.
#![allow(dead_code, reason = "every test target uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ccbench_agent::caller;
use ccbench_io::replace::replace;
use ccbench_proto::scope::Scope;
use ccbench_proto::wire;
use ccbench_tests::port::ReservedPort;
use prost::Message as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SanType, SerialNumber,
};
use serde_json::Value;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::support::{AGENT, wait_for_setup};

pub type Ca = CertifiedIssuer<'static, KeyPair>;

pub fn authority() -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "the tests' authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key (PEM).
#[derive(Clone)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

/// The years in which most certificates are valid.
pub const VALID: (i32, i32) = (2020, 2090);

/// Issues a controller's certificate, as `ccbench pki` does. `serial` is also the holder's name. Without scopes, it is a certificate of an
/// earlier version.
pub fn issue(ca: &Ca, serial: u64, scopes: Option<&[Scope]>, last_year: Option<i32>) -> Issued {
    let years = (VALID.0, last_year.unwrap_or(VALID.1));
    let usages = &[ExtendedKeyUsagePurpose::ClientAuth];
    issue_for(ca, serial, usages, scopes.unwrap_or_default(), years)
}

/// Issues a node's certificate, as `ccbench pki` does.
pub fn issue_node(ca: &Ca, serial: u64) -> Issued {
    issue_for(ca, serial, &[ExtendedKeyUsagePurpose::ServerAuth], &[], VALID)
}

/// Issues a certificate for these usages, valid from the beginning of the first year to that of the last one.
pub fn issue_for(
    ca: &Ca,
    serial: u64,
    usages: &[ExtendedKeyUsagePurpose],
    scopes: &[Scope],
    (first_year, last_year): (i32, i32),
) -> Issued {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, format!("client{serial}"));
    params.serial_number = Some(SerialNumber::from(serial));
    params.not_before = rcgen::date_time_ymd(first_year, 1, 1);
    params.not_after = rcgen::date_time_ymd(last_year, 1, 1);
    params.extended_key_usages = usages.to_vec();
    for scope in scopes {
        let uri = scope.uri().try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
    }
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, ca).unwrap().pem();
    Issued { certificate, key: key.serialize_pem() }
}

pub fn revocations(ca: &Ca, serials: &[u64]) -> String {
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

/// The serial number that is revoked from the start.
pub const REVOKED: u64 = 66;

/// The processes of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `serve`.
    OneProcess,
    /// `front` and `worker`.
    FrontAndWorker,
}

/// An agent with certificates and a state directory; killed on drop.
pub struct Agent {
    pub dir: tempfile::TempDir,
    pub ca: Ca,
    port: u16,
    _reserved: ReservedPort,
    /// The process that controllers connect to.
    pub child: Child,
    pub worker: Option<Child>,
}

impl Agent {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub async fn start_with(arguments: &[&str]) -> Self {
        Self::start_as(Mode::OneProcess, arguments).await
    }

    /// Starts an agent. `arguments` are for the process that changes the machine.
    pub async fn start_as(mode: Mode, arguments: &[&str]) -> Self {
        let (dir, ca) = (tempfile::tempdir().unwrap(), authority());
        let reserved = ReservedPort::new(Ipv4Addr::LOCALHOST);
        let port = reserved.address().port();
        let node = issue_node(&ca, 1);
        for (name, text) in [
            ("ca.pem", &ca.pem()),
            ("node.pem", &node.certificate),
            ("node.key", &node.key),
            ("crl.pem", &revocations(&ca, &[REVOKED])),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let worker = match mode {
            Mode::OneProcess => None,
            Mode::FrontAndWorker => Some(start_worker(dir.path(), arguments)),
        };
        let child = match mode {
            Mode::OneProcess => start_listening(dir.path(), port, "serve", arguments),
            Mode::FrontAndWorker => start_front(dir.path(), port),
        };
        let agent = Self { dir, ca, port, _reserved: reserved, child, worker };
        agent.listens().await;
        agent
    }

    async fn listens(&self) {
        let connects = || std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
        wait_for_setup("the agent's port", connects).await;
        if self.worker.is_some() {
            let socket = self.path("worker.sock");
            let connects = || std::os::unix::net::UnixStream::connect(&socket).is_ok();
            wait_for_setup("the worker's socket", connects).await;
        }
    }

    /// Kills the front and starts another one.
    pub async fn restart_front(&mut self) {
        end(&mut self.child);
        self.child = start_front(self.dir.path(), self.port);
        self.listens().await;
    }

    pub fn kill_worker(&mut self) {
        self.worker.iter_mut().for_each(end);
        self.worker = None;
    }

    pub async fn start_worker(&mut self) {
        self.worker = Some(start_worker(self.dir.path(), &[]));
        self.listens().await;
    }

    /// Connects to the worker, bypassing the front.
    pub async fn connect_to_worker(&self) -> Channel {
        let socket = format!("unix:{}", self.path("worker.sock").display());
        Endpoint::from_shared(socket).unwrap().connect().await.unwrap()
    }

    pub fn worker_log(&self) -> String {
        std::fs::read_to_string(self.path("worker.log")).unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces a file, which the agent may read at any time.
    pub fn replace(&self, name: &str, content: &str) {
        replace(&self.path(name), content.as_bytes()).unwrap();
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    pub fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("state/audit.ndjson")).unwrap();
        // The last line may be incomplete.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub async fn connect(
        &self,
        client: Option<Issued>,
    ) -> Result<Channel, tonic::transport::Error> {
        let mut config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.ca.pem()))
            .domain_name("localhost");
        if let Some(Issued { certificate, key }) = client {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", self.port)).unwrap();
        endpoint.tls_config(config).unwrap().connect().await
    }

    pub async fn call(&self, client: Option<Issued>, rpc: &str) -> Outcome {
        match self.connect(client).await {
            Ok(channel) => call(channel, rpc).await,
            Err(_) => Outcome::NoConnection,
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        end(&mut self.child);
        self.worker.iter_mut().for_each(end);
    }
}

fn end(process: &mut Child) {
    let _ = process.kill();
    let _ = process.wait();
}

fn logged(dir: &Path, log: &str, mut command: Command) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(dir.join(log)).unwrap();
    command.stdin(Stdio::null()).stderr(log).spawn().unwrap()
}

/// Starts a process that controllers connect to.
fn start_listening(dir: &Path, port: u16, subcommand: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(AGENT);
    command
        .args([subcommand, "--listen", &format!("tcp:127.0.0.1:{port}"), "--state-dir"])
        .arg(dir.join("state"))
        .arg("--tls-ca")
        .arg(dir.join("ca.pem"))
        .arg("--tls-cert")
        .arg(dir.join("node.pem"))
        .arg("--tls-key")
        .arg(dir.join("node.key"))
        .arg("--tls-crl")
        .arg(dir.join("crl.pem"))
        .args(arguments);
    logged(dir, "log", command)
}

fn start_front(dir: &Path, port: u16) -> Child {
    let socket = dir.join("worker.sock");
    start_listening(dir, port, "front", &["--worker", socket.to_str().unwrap()])
}

fn start_worker(dir: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(AGENT);
    command
        .args(["worker", "--listen", &format!("unix:{}", dir.join("worker.sock").display())])
        .args(["--front-user", &nix::unistd::geteuid().to_string(), "--state-dir"])
        .arg(dir.join("worker-state"))
        .args(arguments);
    logged(dir, "worker.log", command)
}

/// Returns a request as a front sends it to its worker.
pub fn for_caller<T>(message: T, name: &str, scopes: &[Scope]) -> Request<T> {
    let caller = wire::Caller {
        name: name.to_owned(),
        scopes: scopes.iter().map(ToString::to_string).collect(),
        ..wire::Caller::default()
    };
    let mut request = Request::new(message);
    let value = MetadataValue::from_bytes(&caller.encode_to_vec());
    request.metadata_mut().insert_bin(caller::KEY, value);
    request
}

/// How an agent answers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The agent closes the connection.
    NoConnection,
    /// The agent refuses the call.
    Refused,
    /// The call reaches its handler.
    Handled,
}

/// Calls an RPC by name with one empty message.
pub async fn call(channel: Channel, rpc: &str) -> Outcome {
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

pub async fn status_of(channel: Channel, rpc: &str) -> Result<(), Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path: PathAndQuery = format!("/ccbench.v1.Agent/{rpc}").parse().unwrap();
    let request = Request::new(tokio_stream::once(()));
    let answer = client.streaming(request, path, ProstCodec::<(), ()>::default()).await?;
    answer.into_inner().message().await.map(drop)
}

/// Returns the names of all RPCs of the service.
pub fn descriptors() -> Vec<String> {
    let set = prost_types::FileDescriptorSet::decode(wire::DESCRIPTORS).unwrap();
    let services = set.file.iter().flat_map(|file| &file.service);
    let methods = services.flat_map(|service| &service.method);
    methods.map(|method| method.name().to_owned()).collect()
}
