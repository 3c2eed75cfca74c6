//! Accepts connections: enforces limits, completes the TLS handshake first, identifies the client, and reports the end
//! of each connection.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ccbench_collector::{SampleError, socket_owner};
use ccbench_io::certificate::{Certificate, CertificateError};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::Accept;
use tokio_rustls::rustls;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;

use crate::audit::Audit;
use crate::clock;
use crate::control_interface::Peer;
use crate::identity::{Identity, NotForClients};
use crate::privileges::in_initial_user_namespace;
use crate::tls::{PeerCertificate, Trust};

mod connection;
mod floods;
mod per_client;
mod refusals;

use connection::{Rejection, Stream};
use floods::Floods;
use per_client::{MAX_PER_CLIENT, PerClient};
use refusals::RefusalLog;

pub use connection::{Connection, Transport};

/// Limit of concurrent connections; each controller has one.
const MAX_CONNECTIONS: usize = 64;
/// Limit of concurrent unfinished TLS handshakes. Above it the oldest is closed, so that a flood of silent connections
/// cannot block other clients.
const MAX_HANDSHAKES: usize = 64;
/// Time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after an error of `accept`, such as EMFILE, which would recur at once.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The other end of a connection.
#[derive(Debug, Clone)]
struct Client {
    identity: Arc<Identity>,
    certificate: Option<Arc<PeerCertificate>>,
}

/// A handle of a connection: identifies its client, and resolves when it has ended. Each request carries one in its extensions.
#[derive(Debug, Clone)]
pub struct ConnectionHandle {
    id: u64,
    peer: Option<Peer>,
    client: Client,
    end: watch::Receiver<()>,
    close: Arc<Notify>,
}

impl ConnectionHandle {
    /// Returns a number that is unique among the connections of this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the address of the other end, if it came over a network.
    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// Returns the client.
    pub fn identity(&self) -> &Identity {
        &self.client.identity
    }

    /// Returns the client's certificate, if it uses TLS.
    pub fn certificate(&self) -> Option<&PeerCertificate> {
        self.client.certificate.as_deref()
    }

    /// Returns the same connection for a client of the front at its other end.
    pub fn on_behalf_of(&self, identity: Identity, peer: Option<Peer>) -> Self {
        let client = Client { identity: Arc::new(identity), certificate: None };
        Self { peer, client, ..self.clone() }
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.close.notify_one();
    }

    /// Resolves when the connection has ended.
    pub async fn wait(&mut self) {
        while self.end.changed().await.is_ok() {}
    }

    /// Returns a connection that ends when the first value is dropped.
    #[cfg(test)]
    pub(crate) fn example() -> (watch::Sender<()>, Self) {
        Self::example_from(None)
    }

    /// Like [`Self::example`], from this address.
    #[cfg(test)]
    pub(crate) fn example_from(ip: Option<std::net::IpAddr>) -> (watch::Sender<()>, Self) {
        let (send, example) = Self::example_of(Identity::local("a test"));
        (send, Self { peer: ip.map(Peer::at), ..example })
    }

    /// Like [`Self::example`], of this client.
    #[cfg(test)]
    pub(crate) fn example_of(identity: Identity) -> (watch::Sender<()>, Self) {
        let (send, end) = watch::channel(());
        let client = Client { identity: Arc::new(identity), certificate: None };
        (send, Self { id: 1, peer: None, client, end, close: Arc::default() })
    }
}

/// Why a connection was refused.
#[derive(Debug, thiserror::Error)]
enum RefusedConnection {
    /// A process of another user, on a Unix socket or on loopback without TLS.
    #[error("the client runs as user {uid}; only root and user {permitted} may connect")]
    OtherUser {
        /// The user.
        uid: u32,
        /// The user that may, besides root.
        permitted: u32,
    },
    /// The kernel does not name the user.
    #[error("read the user of the client process: {0}")]
    UnknownUser(#[source] io::Error),
    /// On loopback without TLS, the kernel could not look up the socket.
    #[error("find the user of the client process: {0}; listen on unix:PATH, or use TLS")]
    NoLookUp(#[from] SampleError),
    /// On loopback without TLS, no process has the other end of the connection.
    #[error(
        "no process in this network namespace has the other end of the connection, so its user is unknown; use TLS, or connect \
         from this node"
    )]
    NoProcess,
    /// The TLS handshake failed.
    #[error("TLS handshake: {0}")]
    Handshake(#[source] io::Error),
    /// The TLS handshake took too long.
    #[error("no TLS handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    HandshakeTimeout,
    /// The client's certificate passed the handshake but cannot be read.
    #[error("the client's certificate: {0}")]
    Certificate(#[from] CertificateError),
    /// The client's certificate permits nothing.
    #[error(transparent)]
    NotForClients(#[from] NotForClients),
    /// The certificate is no longer accepted; for example, it was revoked.
    #[error("the certificate of {client} is no longer accepted: {source}")]
    Rejected {
        /// The client.
        client: String,
        /// The reason.
        source: rustls::Error,
    },
    /// Newer connections are waiting for their handshakes.
    #[error("{MAX_HANDSHAKES} newer connections are waiting for their TLS handshakes, the limit")]
    TooManyHandshakes,
    /// So many connections of its address were refused that the address is blocked.
    #[error(
        "{} connections from this address were refused within a second; for one second the kernel drops its packets to this port",
        floods::MAX_REFUSED
    )]
    Flood,
    /// The limit of connections is reached.
    #[error("the limit of {MAX_CONNECTIONS} connections is reached")]
    TooManyConnections,
    /// The client's limit of connections is reached.
    #[error("{client} has reached the limit of {MAX_PER_CLIENT} connections per certificate")]
    TooManyOfClient {
        /// The client.
        client: String,
    },
}

/// Accepted connections.
pub type Incoming = ReceiverStream<io::Result<Connection>>;

/// Accepts connections on a Unix socket from root and the user `permitted`, whatever the permissions of the socket and its directory.
pub fn unix(listener: UnixListener, permitted: u32, audit: Audit) -> Incoming {
    let (gate, incoming) = Gate::new(None);
    tokio::spawn(async move {
        let mut log = RefusalLog::new(audit);
        loop {
            tokio::select! {
                accepted = gate.accept(|| listener.accept()) => {
                    let Some((stream, _)) = accepted else { return };
                    match may_connect(&stream, permitted) {
                        Ok(uid) => {
                            let client = Client::local(format!("a local process of user {uid}"));
                            gate.admit(Stream::Unix(stream), client, "a local process", &mut log).await;
                        }
                        Err(why) => log.refused("a local process", &why),
                    }
                }
                () = log.summary_due() => log.summarize(clock::now_ns()),
            }
        }
    });
    incoming
}

/// Accepts connections on a TCP socket. With `trust`, admits only clients whose certificate it accepts, for as long as
/// it does. Without it, admits only processes of root and of this process's user, in its network namespace.
pub fn tcp(listener: TcpListener, trust: Option<Trust>, audit: Audit) -> Incoming {
    let (gate, incoming) = Gate::new(trust);
    tokio::spawn(async move {
        let (mut handshakes, mut floods) = (Handshakes::default(), Floods::new(audit.clone()));
        let mut log = RefusalLog::new(audit);
        loop {
            tokio::select! {
                accepted = gate.accept(|| listener.accept()) => {
                    let Some((stream, peer)) = accepted else { return };
                    // If this fails, the connection is only slower.
                    let _ = stream.set_nodelay(true);
                    match &gate.trust {
                        Some(trust) => {
                            let accept = trust.acceptor().accept(stream);
                            if let Some(oldest) = handshakes.start(peer, accept)
                                && !floods.refused(&listener, oldest.ip())
                            {
                                log.refused(&oldest.to_string(), &RefusedConnection::TooManyHandshakes);
                            }
                        }
                        None => match user_on_loopback(&stream, peer) {
                            Ok(uid) => {
                                let client = Client::local(format!("a process of user {uid} on loopback"));
                                gate.admit(Stream::Tcp(stream), client, &peer.to_string(), &mut log).await;
                            }
                            Err(why) => log.refused(&peer.to_string(), &why),
                        },
                    }
                }
                (peer, done) = handshakes.next() => match done {
                    Ok(stream) => {
                        gate.admit_certified(Box::new(stream), &peer.to_string(), &mut log).await;
                    }
                    Err(why) => {
                        if !floods.refused(&listener, peer.ip()) {
                            log.refused(&peer.to_string(), &why);
                        }
                    }
                },
                () = floods.end_due() => floods.end(&listener),
                () = log.summary_due() => log.summarize(clock::now_ns()),
            }
        }
    });
    incoming
}

/// Accepts connections of another transport, such as the network of a simulation, from everybody. Their clients may do everything, as on a
/// Unix socket.
#[doc(hidden)]
pub fn unauthenticated<T, F>(next: impl Fn() -> F + Send + Sync + 'static, audit: Audit) -> Incoming
where
    T: Transport + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    const PEER: &str = "another transport";
    let (gate, incoming) = Gate::new(None);
    tokio::spawn(async move {
        let mut log = RefusalLog::new(audit);
        while let Some(stream) = gate.accept(&next).await {
            gate.admit(Stream::Other(Box::new(stream)), Client::local(PEER), PEER, &mut log).await;
        }
    });
    incoming
}

/// Returns the user of a local process. Only root and `permitted` may control this node.
fn may_connect(stream: &UnixStream, permitted: u32) -> Result<u32, RefusedConnection> {
    let peer = stream.peer_cred().map_err(RefusedConnection::UnknownUser)?;
    check_user(peer.uid(), permitted, users_without_number)
}

/// Returns the user of a client on loopback without TLS, where any user of this machine reaches the port.
fn user_on_loopback(stream: &TcpStream, peer: SocketAddr) -> Result<u32, RefusedConnection> {
    let local = stream.local_addr().map_err(RefusedConnection::UnknownUser)?;
    let uid = socket_owner(peer, local)?.ok_or(RefusedConnection::NoProcess)?;
    check_user(uid, rustix::process::geteuid().as_raw(), users_without_number)
}

/// Admits root and one user. `without_number` is the overflow UID, under which other users may appear.
fn check_user(
    uid: u32,
    permitted: u32,
    without_number: impl FnOnce() -> Option<u32>,
) -> Result<u32, RefusedConnection> {
    if uid == 0 || uid == permitted && without_number() != Some(uid) {
        return Ok(uid);
    }
    Err(RefusedConnection::OtherUser { uid, permitted })
}

/// Returns the overflow UID, which stands for users without a UID in this process's user namespace. `None`: all users have one.
fn users_without_number() -> Option<u32> {
    if in_initial_user_namespace() {
        return None;
    }
    let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    Some(number.trim().parse().unwrap_or(65_534))
}

impl Client {
    fn local(name: impl Into<String>) -> Self {
        Self { identity: Arc::new(Identity::local(name)), certificate: None }
    }

    /// Identifies the holder of the certificate of a TLS connection.
    fn certified(stream: &TlsStream<TcpStream>) -> Result<Self, RefusedConnection> {
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let leaf = chain.first().map(|leaf| &leaf[..]).unwrap_or_default();
        let identity = Identity::from_certificate(&Certificate::from_der(leaf)?)?;
        if identity.is_unscoped {
            tracing::warn!(
                client = %identity,
                "the client's certificate has no scopes, so it permits everything; issue one with scopes: `ccbench pki controller`"
            );
        }
        let certificate = Some(Arc::new(PeerCertificate::new(chain.to_vec())));
        Ok(Self { identity: Arc::new(identity), certificate })
    }
}

/// Passes connections on to the server, at most [`MAX_CONNECTIONS`] at a time.
struct Gate {
    slots: Arc<Semaphore>,
    per_client: PerClient,
    trust: Option<Trust>,
    next_id: AtomicU64,
    out: mpsc::Sender<io::Result<Connection>>,
}

impl Gate {
    fn new(trust: Option<Trust>) -> (Self, Incoming) {
        let (out, incoming) = mpsc::channel(1);
        let gate = Self {
            slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            per_client: PerClient::default(),
            trust,
            next_id: AtomicU64::new(0),
            out,
        };
        (gate, ReceiverStream::new(incoming))
    }

    /// Returns the next connection; `None` when the server has ended.
    async fn accept<T, F: Future<Output = io::Result<T>>>(
        &self,
        next: impl Fn() -> F,
    ) -> Option<T> {
        loop {
            let accepted = tokio::select! {
                accepted = next() => accepted,
                () = self.out.closed() => return None,
            };
            match accepted {
                Ok(accepted) => return Some(accepted),
                Err(error) => {
                    tracing::warn!(%error, "accept a connection");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    async fn admit_certified(
        &self,
        stream: Box<TlsStream<TcpStream>>,
        peer: &str,
        log: &mut RefusalLog,
    ) {
        match Client::certified(&stream) {
            Ok(client) => self.admit(Stream::Tls(stream), client, peer, log).await,
            Err(why) => log.refused(peer, &why),
        }
    }

    async fn admit(&self, stream: Stream, client: Client, peer: &str, log: &mut RefusalLog) {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            log.refused(peer, &RefusedConnection::TooManyConnections);
            return;
        };
        let place = match client.certificate {
            Some(_) => {
                let name = client.identity.to_string();
                let Some(place) = self.per_client.take(&name) else {
                    log.refused(peer, &RefusedConnection::TooManyOfClient { client: name });
                    return;
                };
                Some(place)
            }
            None => None,
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (end, close) = (watch::channel(()).0, Arc::new(Notify::new()));
        let rejected = self.rejection(&client, peer, &log.audit);
        let closed = Arc::clone(&close);
        let rejection: Rejection = Box::pin(async move {
            tokio::select! {
                () = rejected => {}
                () = closed.notified() => {}
            }
        });
        let connection =
            Connection { id, stream, client, rejection, end, close, _slot: slot, _place: place };
        // Sending fails only when the server has ended.
        let _ = self.out.send(Ok(connection)).await;
    }

    /// Resolves when the client's certificate is no longer accepted, and logs the reason.
    fn rejection(&self, client: &Client, peer: &str, audit: &Audit) -> Rejection {
        let (Some(trust), Some(certificate)) = (self.trust.clone(), client.certificate.clone())
        else {
            return Box::pin(std::future::pending::<()>());
        };
        let (client, peer, audit) = (client.identity.to_string(), peer.to_owned(), audit.clone());
        Box::pin(async move {
            let source = trust.rejection(&certificate).await;
            let why = RefusedConnection::Rejected { client, source };
            tracing::warn!(peer, %why, "closed a connection");
            audit.refused(&peer, &why.to_string());
        })
    }
}

/// The peer, and the result of its TLS handshake.
type Handshake = (SocketAddr, Result<TlsStream<TcpStream>, RefusedConnection>);

/// Unfinished TLS handshakes, the oldest first.
#[derive(Default)]
struct Handshakes {
    running: JoinSet<Handshake>,
    order: VecDeque<(SocketAddr, AbortHandle)>,
}

impl Handshakes {
    /// Starts a handshake. Returns the peer whose handshake was closed in favour of this one.
    fn start(&mut self, peer: SocketAddr, handshake: Accept<TcpStream>) -> Option<SocketAddr> {
        let task = self.running.spawn(async move {
            let done = match timeout(HANDSHAKE_TIMEOUT, handshake).await {
                Ok(done) => done.map_err(RefusedConnection::Handshake),
                Err(_) => Err(RefusedConnection::HandshakeTimeout),
            };
            (peer, done)
        });
        self.order.retain(|(_, earlier)| !earlier.is_finished());
        self.order.push_back((peer, task));
        if self.order.len() <= MAX_HANDSHAKES {
            return None;
        }
        let (oldest, task) = self.order.pop_front()?;
        task.abort();
        Some(oldest)
    }

    /// Waits for the next handshake to end; pending if there is none.
    async fn next(&mut self) -> Handshake {
        loop {
            match self.running.join_next().await {
                Some(Ok(done)) => return done,
                // The handshake was aborted in favour of a newer one.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_one_user_are_permitted() {
        const OVERFLOW: u32 = 65_534;
        let permits = |uid, permitted, without_number: Option<u32>| {
            check_user(uid, permitted, || without_number).is_ok()
        };
        for without_number in [None, Some(OVERFLOW)] {
            assert!(permits(0, 1000, without_number) && permits(1000, 1000, without_number));
            assert!(!permits(1001, 1000, without_number) && !permits(1000, 0, without_number));
        }
        assert!(permits(OVERFLOW, OVERFLOW, None));
        assert!(!permits(OVERFLOW, OVERFLOW, Some(OVERFLOW)), "it may be anybody");
    }

    #[tokio::test]
    async fn a_client_on_loopback_has_the_user_of_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(user_on_loopback(&stream, peer).unwrap(), own);
        // Not an end of this connection.
        let other = SocketAddr::new(peer.ip(), 1);
        let refused = user_on_loopback(&stream, other).unwrap_err();
        assert!(matches!(refused, RefusedConnection::NoProcess), "{refused:?}");
        drop(client);
    }
}
