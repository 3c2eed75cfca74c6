//! Connections to an agent: who may connect, how many there may be, and what their end means. No root, except for another user.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use ccbench_proto::wire;
use ccbench_tests::port::ReservedPort;
use ccbench_tests::skip::skip;
use socket2::{Domain, Socket, Type};
use support::{AGENT, Agent, IDLE_PLAN, now_ns, prepare, wait_for, wait_for_setup};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, pki_types};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

#[tokio::test]
async fn notices_a_vanished_controller() {
    let dir = tempfile::tempdir().unwrap();
    let reserved = ReservedPort::new(Ipv4Addr::LOCALHOST);
    let address = reserved.address().to_string();
    let mut agent = Command::new(AGENT)
        .args(["serve", "--listen", &format!("tcp:{address}"), "--state-dir"])
        .arg(dir.path())
        .spawn()
        .unwrap();
    let connect = async || {
        wait_for_setup("the agent's port", || TcpStream::connect(&address).is_ok()).await;
        wire::agent_client::AgentClient::connect(format!("http://{address}")).await.unwrap()
    };
    let mut other = connect().await;
    let plan = IDLE_PLAN.replace("200ms", "60s");
    let (started, wait) = tokio::sync::oneshot::channel();
    let request = prepare(&plan, "one", 1);
    // This controller's thread stops: its sockets stay open without replies.
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
    // At most 10 s, counted in naps, so that time without the CPU does not shorten it.
    let mut naps = 0;
    while other.prepare(prepare(&plan, "one", 2)).await.is_err() {
        naps += 1;
        assert!(naps < 200, "the vanished controller still holds the node");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    drop(thaw);
    frozen.join().unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
}

#[tokio::test]
async fn other_users_do_not_connect_on_loopback() {
    const OTHER: &str = "12345";
    if !nix::unistd::geteuid().is_root() {
        return skip("it needs another user: run it as root");
    }
    let dir = tempfile::tempdir().unwrap();
    let reserved = ReservedPort::new(Ipv4Addr::LOCALHOST);
    let (host, port) = ("127.0.0.1", reserved.address().port().to_string());
    let mut agent = Command::new(AGENT)
        .args(["serve", "--listen", &format!("tcp:{host}:{port}"), "--state-dir"])
        .arg(dir.path())
        .spawn()
        .unwrap();
    let connects = || TcpStream::connect(format!("{host}:{port}")).is_ok();
    wait_for_setup("the agent's port", connects).await;
    let connect = "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n\
                   try: print(len(s.recv(1)))\nexcept ConnectionResetError: print(0)";
    let received = |user: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        command.args(["/usr/bin/python3", "-c", connect, host, &port]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    // An HTTP/2 server starts with a SETTINGS frame.
    assert_eq!((received("0").as_str(), received(OTHER).as_str()), ("1", "0"));
    let log = || std::fs::read_to_string(dir.path().join("audit.ndjson")).unwrap_or_default();
    let refused =
        || log().contains("the client runs as user 12345; only root and user 0 may connect");
    wait_for("the refused connection in the audit log", refused).await;
    agent.kill().unwrap();
    agent.wait().unwrap();
}

mod tls {
    use super::{Path, PathBuf};

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa,
        KeyPair,
    };

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

    /// Issues the certificate of a controller, or that of the node with the name `node`.
    pub fn issue(ca: &Ca, dir: &Path, name: &str) -> Files {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.extended_key_usages = match name {
            "node" => vec![ExtendedKeyUsagePurpose::ServerAuth],
            _ => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        let cert = params.signed_by(&key, ca).unwrap();
        let files =
            Files { cert: dir.join(format!("{name}.pem")), key: dir.join(format!("{name}.key")) };
        std::fs::write(&files.cert, cert.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

/// An agent with certificates on a loopback port; killed on drop.
struct TlsAgent {
    dir: tempfile::TempDir,
    ca: tls::Ca,
    port: u16,
    _reserved: ReservedPort,
    child: Child,
}

impl TlsAgent {
    async fn start() -> Self {
        let (dir, ca) = (tempfile::tempdir().unwrap(), tls::ca());
        let reserved = ReservedPort::new(Ipv4Addr::LOCALHOST);
        let port = reserved.address().port();
        let ca_file = dir.path().join("ca.pem");
        std::fs::write(&ca_file, ca.pem()).unwrap();
        let node = tls::issue(&ca, dir.path(), "node");
        let child = Command::new(AGENT)
            .args(["serve", "--ephemeral", "--listen", &format!("tcp:127.0.0.1:{port}")])
            .arg("--tls-cert")
            .arg(&node.cert)
            .arg("--tls-key")
            .arg(&node.key)
            .arg("--tls-ca")
            .arg(&ca_file)
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let agent = Self { dir, ca, port, _reserved: reserved, child };
        wait_for_setup("the agent's port", || agent.open().is_ok()).await;
        agent
    }

    /// Opens a TCP connection that sends nothing.
    fn open(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.port))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Connects with this certificate.
    async fn channel(
        &self,
        identity: Option<tls::Files>,
    ) -> Result<tonic::transport::Channel, tonic::transport::Error> {
        let mut config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.ca.pem()))
            .domain_name("localhost");
        if let Some(files) = identity {
            let read = |path| std::fs::read(path).unwrap();
            config = config.identity(Identity::from_pem(read(files.cert), read(files.key)));
        }
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", self.port)).unwrap();
        endpoint.tls_config(config).unwrap().connect().await
    }

    async fn client(
        &self,
        identity: tls::Files,
    ) -> wire::agent_client::AgentClient<tonic::transport::Channel> {
        wire::agent_client::AgentClient::new(self.channel(Some(identity)).await.unwrap())
    }

    /// Requests the clock with this certificate.
    async fn ask(&self, identity: Option<tls::Files>) -> Result<(), String> {
        let channel = self.channel(identity).await.map_err(|error| error.to_string())?;
        let mut client = wire::agent_client::AgentClient::new(channel);
        // The server rejects a certificate after the client's part of the handshake.
        client.clock(wire::ClockRequest {}).await.map(drop).map_err(|error| error.to_string())
    }
}

impl Drop for TlsAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn accepts_only_clients_of_the_authority() {
    let agent = TlsAgent::start().await;
    let own = tls::issue(&agent.ca, agent.dir.path(), "controller");
    let stranger = tls::issue(&tls::ca(), agent.dir.path(), "stranger");
    assert!(agent.ask(Some(own)).await.is_ok());
    assert!(agent.ask(Some(stranger)).await.is_err(), "another authority's");
    assert!(agent.ask(None).await.is_err(), "none at all");
    wait_for("a line for each", || agent.log().matches("refused a connection").count() >= 2).await;
}

#[tokio::test]
async fn accepts_only_tls_1_3() {
    let agent = TlsAgent::start().await;
    let files = tls::issue(&agent.ca, agent.dir.path(), "controller");
    let mut roots = RootCertStore::empty();
    let ca = pki_types::CertificateDer::from_pem_slice(agent.ca.pem().as_bytes()).unwrap();
    roots.add(ca).unwrap();
    for (version, accepted) in [(&rustls::version::TLS13, true), (&rustls::version::TLS12, false)] {
        let cert = pki_types::CertificateDer::from_pem_file(&files.cert).unwrap();
        let key = pki_types::PrivateKeyDer::from_pem_file(&files.key).unwrap();
        let config = ClientConfig::builder_with_protocol_versions(&[version])
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(vec![cert], key)
            .unwrap();
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", agent.port)).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        assert_eq!(connector.connect(name, stream).await.is_ok(), accepted, "{version:?}");
    }
}

#[tokio::test]
async fn silent_connections_keep_nobody_out_and_are_closed() {
    let agent = TlsAgent::start().await;
    let silent: Vec<_> = (0..300).map(|_| agent.open().unwrap()).collect();
    let own = tls::issue(&agent.ca, agent.dir.path(), "controller");
    agent.ask(Some(own)).await.unwrap();
    for mut stream in silent {
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let end = ccbench_tests::retry_on_intr(|| stream.read(&mut [0]));
        let reset = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(end.map_or_else(reset, |read| read == 0), "it is still open");
    }
    // The agent logs a connection after it has closed it.
    for line in ["newer connections are waiting", "refused more connections"] {
        wait_for(line, || agent.log().contains(line)).await;
    }
}

#[tokio::test]
async fn an_address_that_floods_is_blocked_and_others_are_not() {
    let agent = TlsAgent::start().await;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, agent.port));
    let open = |_| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 9], 0)).into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        // Frees the port as soon as it is closed.
        socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
        // Still in progress.
        let _ = socket.connect(&to.into());
        socket
    };
    let blocked = |line: &&str| line.contains("the kernel drops its packets");
    let mut flood: Vec<Socket> = (0..300).map(open).collect();
    wait_for_setup("the flood's address to be blocked", || {
        // The agent counts per second; a slow one refuses too few connections of a single burst.
        flood.drain(..20);
        flood.extend((0..20).map(open));
        agent.log().lines().any(|line| blocked(&line))
    })
    .await;
    drop(flood);
    let own = tls::issue(&agent.ca, agent.dir.path(), "controller");
    agent.ask(Some(own)).await.unwrap();
    let log = agent.log();
    assert!(log.lines().filter(blocked).all(|line| line.contains("127.0.0.9")), "{log}");
}

#[tokio::test]
async fn a_client_with_many_connections_keeps_nobody_out() {
    let agent = TlsAgent::start().await;
    let files = |name: &str| tls::issue(&agent.ca, agent.dir.path(), name);
    let copy = |files: &tls::Files| tls::Files { cert: files.cert.clone(), key: files.key.clone() };
    let greedy = files("greedy");
    let mut open = Vec::new();
    for _ in 0..16 {
        let mut client = agent.client(copy(&greedy)).await;
        client.clock(wire::ClockRequest {}).await.unwrap();
        open.push(client);
    }
    assert!(agent.ask(Some(copy(&greedy))).await.is_err(), "one more than the limit");
    wait_for("the reason", || agent.log().contains("connections per certificate")).await;
    agent.ask(Some(files("other"))).await.unwrap();
    drop(open);
}

#[tokio::test]
async fn unfinished_requests_of_a_certificate_are_bounded() {
    // RFC 9113, section 6.5.
    const SETTINGS: u8 = 4;
    const MAX_CONCURRENT_STREAMS: [u8; 2] = [0, 3];
    const CONNECTIONS_OF_A_CERTIFICATE: usize = 16;
    let agent = Agent::here();
    drop(agent.connect().await);
    // An HTTP/2 server starts with a SETTINGS frame.
    let mut stream = UnixStream::connect(agent.socket()).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut header = [0; 9];
    stream.read_exact(&mut header).unwrap();
    assert_eq!((header[..2].to_vec(), header[3]), (vec![0, 0], SETTINGS));
    let mut settings = vec![0; usize::from(header[2])];
    stream.read_exact(&mut settings).unwrap();
    let value = |setting: &[u8]| u32::from_be_bytes(setting[2..].try_into().unwrap());
    let streams = settings.chunks_exact(6).find(|s| s[..2] == MAX_CONCURRENT_STREAMS).map(value);
    let streams = usize::try_from(streams.unwrap_or(u32::MAX)).unwrap();
    assert!(streams >= 2, "a controller has a stream and a reset");
    let held = CONNECTIONS_OF_A_CERTIFICATE.saturating_mul(streams);
    let held = held.saturating_mul(wire::MAX_REMOTE_MESSAGE_BYTES);
    assert!(held < 64 << 20, "{streams} requests of each connection hold {held} bytes");
}

#[tokio::test]
async fn a_controller_that_dies_before_the_run_frees_its_node() {
    let agent = Agent::here();
    let mut dying = agent.connect().await;
    let mut request = prepare(IDLE_PLAN, "one", 1);
    request.lease_ms = 3_600_000;
    dying.prepare(request).await.unwrap();
    let mut other = agent.connect().await;
    let busy = other.prepare(prepare(IDLE_PLAN, "one", 2)).await.unwrap_err();
    assert!(busy.message().contains("is prepared"), "{busy:?}");
    drop(dying);
    let mut naps = 0;
    while other.prepare(prepare(IDLE_PLAN, "one", 2)).await.is_err() {
        naps += 1;
        assert!(naps < 1000, "the dead controller still holds the node");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn requests_over_a_network_are_short_and_traces_come_in_parts() {
    let agent = TlsAgent::start().await;
    let mut client = agent.client(tls::issue(&agent.ca, agent.dir.path(), "controller")).await;
    let long = IDLE_PLAN.to_owned() + &"#".repeat(wire::MAX_REMOTE_MESSAGE_BYTES);
    let refused = client.prepare(prepare(&long, "one", 1)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused:?}");
    let parts: Vec<Vec<u8>> = (0..20).map(|part| vec![part; wire::FILE_CHUNK_BYTES]).collect();
    let chunks = parts.clone().into_iter().map(|data| wire::FileChunk { data });
    let sent = client.put_file(tokio_stream::iter(chunks)).await.unwrap().into_inner();
    assert_eq!(sent.sha256, ccbench_proto::plan::digest_bytes(&parts.concat()));
    let mut request = prepare(IDLE_PLAN, "one", 1);
    request.file_digests.insert("a.trace".to_owned(), "00".to_owned());
    let refused = client.prepare(request.clone()).await.unwrap_err();
    assert!(refused.message().contains("`a.trace`"), "{refused:?}");
    request.file_digests.insert("a.trace".to_owned(), sent.sha256);
    client.prepare(request).await.unwrap();
}
