//! `ccbench pki serve`: issues a certificate to each node that has a token, and renews the certificates of nodes that ask, until no token is
//! left or until it is stopped. See [`ccbench_proto::join`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ccbench_proto::join::{JoinReply, JoinedNode, MAX_REQUEST_BYTES, NodeRequest, SERVER_NAME};
use ccbench_proto::scope::Scopes;
use rcgen::{ExtendedKeyUsagePurpose, KeyPair};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig, version};
use tokio_rustls::server::TlsStream;

use super::renewing::{self, AnyCertificate, RenewError};
use super::tokens::{self, RedeemError};
use super::{AUTHORITY, Order, PkiError, issuer, now_s, read, sign};
use crate::clock;
use crate::console::{message, print};
use crate::runtime::blocking;

/// Maximum number of concurrent connections. Others wait.
const MAX_CONNECTIONS: usize = 16;
/// Maximum number of concurrent connections of an address, so that a few addresses cannot hold all of them. Others are closed.
const MAX_CONNECTIONS_PER_ADDRESS: usize = 4;
/// Time limit for a node's request, and for sending the answer.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an error of `accept`.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// How often the record is read again, because tokens are made and expire.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// Validity of this service's certificate in days: at least that of any token.
const SERVICE_DAYS: u32 = 31;
/// How often this service makes another certificate for itself.
const SERVICE_INTERVAL_S: i64 = 24 * 3600;

/// Serves until every token of `dir` is used or has expired, or without an end.
///
/// # Errors
/// `dir` holds no authority, or the address is not available for listening.
pub async fn serve(dir: &Path, listen: SocketAddr, until_stopped: bool) -> Result<(), PkiError> {
    let mut service = Service::new(dir, now_s())?;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|e| PkiError::service(format!("listen on {listen}"), e))?;
    let bound = listener.local_addr().map_err(|e| PkiError::service("read the address", e))?;
    let unused = tokens::unused(dir, now_s())?;
    let end = if until_stopped { "stopped" } else { "every token is used or has expired" };
    print(&format!("listening on {bound} until {end} (unused tokens: {unused})\n"));
    let mut connections: JoinSet<(SocketAddr, Result<Served, ExchangeError>)> = JoinSet::new();
    let (mut refusals, mut places) = (Refusals::default(), Places::default());
    let (mut closed, mut reported_ns) = (0u64, clock::monotonic_ns());
    while until_stopped || !connections.is_empty() || tokens::unused(dir, now_s())? > 0 {
        service.refresh(dir, now_s());
        let now_ns = clock::monotonic_ns();
        if now_ns - reported_ns >= MINUTE_NS {
            reported_ns = now_ns;
            report_closed(&mut closed);
        }
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, peer)) => {
                    let may_ask = refusals.may_ask(peer.ip(), clock::monotonic_ns());
                    match places.take(peer.ip()).filter(|_| may_ask) {
                        Some(place) => {
                            let (acceptor, dir) = (service.acceptor(), dir.to_owned());
                            connections.spawn(async move {
                                let _place = place;
                                (peer, answer(stream, acceptor, dir).await)
                            });
                        }
                        None => closed += 1,
                    }
                }
                Err(error) => {
                    message(format_args!("cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            },
            Some(Ok((peer, outcome))) = connections.join_next() => match outcome {
                Ok(served) => print(&format!("{served} {}\n", peer.ip())),
                Err(why) => {
                    message(format_args!("{peer}: {why}"));
                    if refusals.add(peer.ip(), clock::monotonic_ns()) == MAX_REFUSED {
                        message(format_args!("{}: too many refused requests; its connections are closed for a minute", peer.ip()));
                    }
                }
            },
            () = tokio::time::sleep(RECORD_INTERVAL) => {}
        }
    }
    report_closed(&mut closed);
    print("no token is left\n");
    Ok(())
}

/// Prints how many connections were closed without an answer since the last time.
fn report_closed(closed: &mut u64) {
    if *closed > 0 {
        message(format_args!(
            "connections closed, because their address had too many refused requests or {MAX_CONNECTIONS_PER_ADDRESS} other connections: {closed}"
        ));
        *closed = 0;
    }
}

/// The TLS configuration, whose certificate must not expire while the service runs.
struct Service {
    config: Arc<ServerConfig>,
    made_s: i64,
}

impl Service {
    fn new(dir: &Path, now_s: i64) -> Result<Self, PkiError> {
        Ok(Self { config: Arc::new(config(dir)?), made_s: now_s })
    }

    /// Replaces the configuration after a day. The earlier one stays if that fails.
    fn refresh(&mut self, dir: &Path, now_s: i64) {
        if (now_s - self.made_s).abs() < SERVICE_INTERVAL_S {
            return;
        }
        self.made_s = now_s;
        match config(dir) {
            Ok(config) => self.config = Arc::new(config),
            Err(error) => message(format_args!(
                "the certificate of this service, which is valid for {SERVICE_DAYS} days, cannot be replaced: {error}"
            )),
        }
    }

    fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }
}

/// Presents a certificate of the authority, and the authority's own. Requests one of the client.
fn config(dir: &Path) -> Result<ServerConfig, PkiError> {
    let key = KeyPair::generate()?;
    let hosts = [SERVER_NAME.to_owned()];
    let order = Order {
        name: "ccbench pki serve",
        hosts: &hosts,
        scopes: Scopes::default(),
        usage: ExtendedKeyUsagePurpose::ServerAuth,
        days: Some(SERVICE_DAYS),
    };
    let own = sign(&order, &key, &issuer(dir)?)?;
    let authority = read(&dir.join("ca.pem"), AUTHORITY)?;
    let unusable =
        |error: rustls::Error| PkiError::service("use the certificate of this service", error);
    let chain = [own, authority].map(|text| CertificateDer::from_pem_slice(text.as_bytes()));
    let chain = chain.into_iter().collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| PkiError::service("use the authority", error))?;
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes());
    let key = key.map_err(|error| PkiError::service("use the key of this service", error))?;
    let provider = Arc::new(ring::default_provider());
    ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(Arc::new(AnyCertificate(provider)))
        .with_single_cert(chain, key)
        .map_err(unusable)
}

/// What a node got. With the node's address, `Display` is a line of the log.
#[derive(Debug, Clone)]
enum Served {
    /// Its first certificate. The name is the node's.
    Issued(String),
    /// A renewed one.
    Renewed(String),
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Issued(name) => write!(f, "{name}: issued a certificate to"),
            Self::Renewed(name) => write!(f, "{name}: renewed its certificate for"),
        }
    }
}

/// Why a node got no certificate.
#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    /// No request arrived in time.
    #[error("no request within {} s", EXCHANGE_TIMEOUT.as_secs())]
    Timeout,
    /// The client sent something else.
    #[error("this is not a request of `ccbench-agent join` or `ccbench-agent renew`")]
    Malformed,
    /// The token is not valid for a certificate.
    #[error(transparent)]
    Refused(#[from] RedeemError),
    /// The certificate may not be renewed.
    #[error(transparent)]
    NotRenewed(#[from] RenewError),
    /// The renewed certificate could not be delivered to the node.
    #[error(
        "{name}: the renewed certificate was not delivered ({source}); the node keeps the earlier one, and may ask again"
    )]
    RenewalUndelivered {
        /// The node.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The certificate could not be delivered to the node.
    #[error(
        "{name}: the certificate was issued but not delivered ({source}); revoke {name}.pem, remove it, and make another token"
    )]
    Undelivered {
        /// The node.
        name: String,
        /// Why.
        source: io::Error,
    },
}

/// Answers a request.
async fn answer(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    dir: PathBuf,
) -> Result<Served, ExchangeError> {
    let received = timeout(EXCHANGE_TIMEOUT, receive(stream, &acceptor)).await;
    let (mut stream, line) = received.unwrap_or(Err(ExchangeError::Timeout))?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
    // It may wait for another command that holds the lock. Meanwhile, others are accepted and have their time limits.
    let decided = blocking(move || decide(&dir, &line, shown.as_ref())).await;
    let (reply, served) = match decided {
        Ok((served, files)) => (JoinReply::Issued(files), Ok(served)),
        // Do not tell the node about failures of the authority.
        Err(
            error @ (ExchangeError::Refused(RedeemError::Authority(_))
            | ExchangeError::NotRenewed(RenewError::Authority(_))),
        ) => {
            let why = "the authority cannot issue it; `ccbench pki serve` has printed the reason";
            (JoinReply::Refused(why.to_owned()), Err(error))
        }
        Err(error) => (JoinReply::Refused(error.to_string()), Err(error)),
    };
    // The answer has a time limit of its own, because a certificate that was issued but not delivered must be reported as such.
    let sent = timeout(EXCHANGE_TIMEOUT, send(&mut stream, &reply)).await;
    let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let served = served?;
    match (served, sent) {
        (served, Ok(())) => Ok(served),
        (Served::Issued(name), Err(source)) => Err(ExchangeError::Undelivered { name, source }),
        (Served::Renewed(name), Err(source)) => {
            Err(ExchangeError::RenewalUndelivered { name, source })
        }
    }
}

/// Does what a request asks for. `shown` is the certificate of the client.
fn decide(
    dir: &Path,
    line: &str,
    shown: Option<&CertificateDer<'_>>,
) -> Result<(Served, JoinedNode), ExchangeError> {
    match serde_json::from_str::<NodeRequest>(line) {
        Ok(NodeRequest::Join(request)) => {
            let (name, files) = tokens::redeem(dir, &request, now_s())?;
            Ok((Served::Issued(name), files))
        }
        Ok(NodeRequest::Renew(request)) => {
            let shown = shown.map(|certificate| &certificate[..]);
            let (name, files) = renewing::renew(dir, shown, &request, now_s())?;
            Ok((Served::Renewed(name), files))
        }
        Err(_) => Err(ExchangeError::Malformed),
    }
}

/// Reads the line of a request.
async fn receive(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
) -> Result<(TlsStream<TcpStream>, String), ExchangeError> {
    let mut stream = acceptor.accept(stream).await?;
    let mut line = String::new();
    BufReader::new((&mut stream).take(MAX_REQUEST_BYTES)).read_line(&mut line).await?;
    Ok((stream, line))
}

async fn send(stream: &mut TlsStream<TcpStream>, reply: &JoinReply) -> io::Result<()> {
    let mut text = serde_json::to_string(reply)?;
    text.push('\n');
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

/// Maximum number of refused requests of an address per minute. For the rest of the minute, the service ignores the address.
const MAX_REFUSED: u32 = 10;
const MINUTE_NS: u64 = 60_000_000_000;
/// Maximum number of counted addresses. While all are in use, the service ignores new addresses.
const MAX_ADDRESSES: usize = 1024;

/// The refused requests of each address: when its minute began, and how many. Pure: the time is an argument.
#[derive(Debug, Default)]
struct Refusals(BTreeMap<IpAddr, (u64, u32)>);

impl Refusals {
    fn may_ask(&mut self, peer: IpAddr, now_ns: u64) -> bool {
        let peer = counted(peer);
        self.0.retain(|_, (began_ns, _)| now_ns - *began_ns < MINUTE_NS);
        match self.0.get(&peer) {
            Some((_, refused)) => *refused < MAX_REFUSED,
            None => self.0.len() < MAX_ADDRESSES,
        }
    }

    /// Adds a refused request. Returns the number in this minute.
    fn add(&mut self, peer: IpAddr, now_ns: u64) -> u32 {
        let (_, refused) = self.0.entry(counted(peer)).or_insert((now_ns, 0));
        *refused += 1;
        *refused
    }
}

/// The connections of each address. Each of them holds one reference to the address's entry until it is closed.
#[derive(Debug, Default)]
struct Places(BTreeMap<IpAddr, Arc<()>>);

impl Places {
    /// Returns what a connection holds until it is closed; `None` if the address has no place left.
    fn take(&mut self, peer: IpAddr) -> Option<Arc<()>> {
        self.0.retain(|_, entry| Arc::strong_count(entry) > 1);
        let entry = self.0.entry(counted(peer)).or_default();
        (Arc::strong_count(entry) <= MAX_CONNECTIONS_PER_ADDRESS).then(|| Arc::clone(entry))
    }
}

/// Returns the address for which limits count: of IPv6 that of the /64, because one machine may use all of its addresses.
fn counted(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::join::JoinRequest;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
    use tokio_rustls::rustls::{
        ClientConfig, ClientConnection, Connection, RootCertStore, ServerConnection,
    };

    use super::super::{init, node};
    use super::*;

    /// Delivers what one end has to send.
    fn deliver(from: &mut Connection, to: &mut Connection) -> Result<(), rustls::Error> {
        let mut sent = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut sent).unwrap();
        }
        let mut rest = &sent[..];
        while !rest.is_empty() {
            to.read_tls(&mut rest).unwrap();
            to.process_new_packets()?;
        }
        Ok(())
    }

    /// A client that shows a certificate, and signs with this key.
    fn client(dir: &Path, certificate: &Path, key: &Path) -> Arc<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(dir.join("ca.pem")).unwrap()).unwrap();
        let key = PrivateKeyDer::from_pem_file(key).unwrap();
        let key = provider.key_provider.load_private_key(key).unwrap();
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        // Unlike `with_client_auth_cert`, this does not check that they belong together.
        let shown = SingleCertAndKey::from(CertifiedKey::new(chain, key));
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(shown));
        Arc::new(config)
    }

    /// Connects a client in memory. Returns the certificates that the service has seen.
    fn handshake(
        dir: &Path,
        certificate: &Path,
        key: &Path,
    ) -> Result<Vec<CertificateDer<'static>>, rustls::Error> {
        let name = ServerName::try_from(SERVER_NAME).unwrap();
        let client = ClientConnection::new(client(dir, certificate, key), name).unwrap();
        let mut client = Connection::from(client);
        let service = Service::new(dir, now_s()).unwrap().config;
        let mut service = Connection::from(ServerConnection::new(service).unwrap());
        while client.is_handshaking() || service.is_handshaking() {
            deliver(&mut client, &mut service)?;
            deliver(&mut service, &mut client)?;
        }
        Ok(service.peer_certificates().unwrap().to_vec())
    }

    /// [`renewing::renew`] relies on it.
    #[test]
    fn a_client_proves_that_it_has_the_key_of_its_certificate() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("pki");
        init(&dir).unwrap();
        for name in ["n1", "n2"] {
            node(&dir, &[name.to_owned()]).unwrap();
        }
        let [certificate, own, others] = ["n1.pem", "n1.key", "n2.key"].map(|name| dir.join(name));
        let seen = handshake(&dir, &certificate, &own).unwrap();
        assert_eq!(seen, [CertificateDer::from_pem_file(&certificate).unwrap()]);
        let refused = handshake(&dir, &certificate, &others);
        let expected = rustls::Error::InvalidCertificate(rustls::CertificateError::BadSignature);
        assert_eq!(refused, Err(expected));
    }

    /// Sends a line to the service.
    async fn sent(
        client: Arc<ClientConfig>,
        address: SocketAddr,
        line: &str,
    ) -> tokio_rustls::client::TlsStream<TcpStream> {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(SERVER_NAME).unwrap();
        let mut stream = TlsConnector::from(client).connect(name, stream).await.unwrap();
        stream.write_all(line.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }

    #[tokio::test]
    async fn a_request_that_waits_for_the_lock_delays_no_other() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("pki");
        init(&dir).unwrap();
        node(&dir, &["n1".to_owned()]).unwrap();
        let client = client(&dir, &dir.join("n1.pem"), &dir.join("n1.key"));
        let acceptor = Service::new(&dir, now_s()).unwrap().acceptor();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let lock = tokens::lock(&dir).unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer(stream, acceptor.clone(), dir.clone()));
            }
        });
        let (release, released) = std::sync::mpsc::channel();
        // At some time it gives up, so that this test does not wait for ever if it fails.
        let holder = std::thread::spawn(move || {
            let released = released.recv_timeout(Duration::from_secs(60));
            drop(lock);
            released
        });
        let request = JoinRequest { secret: "00".to_owned(), csr: String::new() };
        let request = serde_json::to_string(&request).unwrap() + "\n";
        let mut first = sent(Arc::clone(&client), address, &request).await;
        let mut answer = String::new();
        sent(client, address, "no request\n").await.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("this is not a request"), "{answer}");
        release.send(()).unwrap();
        holder.join().unwrap().unwrap();
        answer.clear();
        first.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("the token is unknown"), "{answer}");
    }

    #[test]
    fn an_address_has_a_limited_number_of_connections() {
        let mut places = Places::default();
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse::<IpAddr>().unwrap());
        let held = [(); MAX_CONNECTIONS_PER_ADDRESS].map(|()| places.take(a).unwrap());
        assert!(
            places.take(a).is_none() && places.take("::ffff:10.0.0.1".parse().unwrap()).is_none()
        );
        drop(places.take(b).unwrap());
        let [_first, rest @ ..] = held;
        drop(rest);
        assert!(places.take(a).is_some());
        assert_eq!(places.0.len(), 1, "addresses without connections are forgotten");
    }

    #[test]
    fn the_addresses_of_an_ipv6_network_count_as_one() {
        let [first, last, other] = ["2001:db8::1", "2001:db8::ffff:1:2:3", "2001:db8:0:1::1"]
            .map(|address| address.parse::<IpAddr>().unwrap());
        let mut places = Places::default();
        let _held = [(); MAX_CONNECTIONS_PER_ADDRESS].map(|()| places.take(first).unwrap());
        assert!(places.take(last).is_none() && places.take(other).is_some());
        let mut refusals = Refusals::default();
        for _ in 0..MAX_REFUSED {
            refusals.add(first, 0);
        }
        assert!(!refusals.may_ask(last, 1) && refusals.may_ask(other, 1));
    }

    #[test]
    fn the_certificate_of_a_service_that_is_not_stopped_does_not_expire() {
        const DAY_S: i64 = 86_400;
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("pki");
        init(&dir).unwrap();
        let mut service = Service::new(&dir, 0).unwrap();
        let first = Arc::clone(&service.config);
        service.refresh(&dir, DAY_S - 1);
        assert!(Arc::ptr_eq(&service.config, &first));
        service.refresh(&dir, DAY_S);
        assert!(!Arc::ptr_eq(&service.config, &first));
        let second = Arc::clone(&service.config);
        std::fs::remove_file(dir.join("ca.key")).unwrap();
        service.refresh(&dir, 2 * DAY_S);
        assert!(Arc::ptr_eq(&service.config, &second), "it has no better one");
    }

    #[test]
    fn an_address_is_not_heard_after_too_many_refusals() {
        let mut refusals = Refusals::default();
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        const BEGIN_NS: u64 = 77;
        for nth in 0..MAX_REFUSED {
            assert!(refusals.may_ask(a, BEGIN_NS + 1), "{nth}");
            assert_eq!(refusals.add(a, BEGIN_NS), nth + 1);
        }
        assert!(!refusals.may_ask(a, BEGIN_NS + MINUTE_NS - 1) && refusals.may_ask(b, BEGIN_NS));
        assert!(refusals.may_ask(a, BEGIN_NS + MINUTE_NS), "the minute is over");
        assert!(refusals.0.is_empty());
    }

    #[test]
    fn the_number_of_addresses_is_limited() {
        let mut refusals = Refusals::default();
        let address = |n: usize| IpAddr::from((n as u32).to_be_bytes());
        for n in 0..MAX_ADDRESSES {
            refusals.add(address(n), 0);
        }
        assert!(!refusals.may_ask(address(MAX_ADDRESSES), 1) && refusals.may_ask(address(0), 1));
        assert!(refusals.may_ask(address(MAX_ADDRESSES), MINUTE_NS));
    }
}
