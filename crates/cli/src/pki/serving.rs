//! `ccbench pki serve`: issues a certificate to each node that has a token, until no token is left. See [`ccbench_proto::join`].

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ccbench_proto::join::{JoinReply, JoinRequest, MAX_REQUEST_BYTES, SERVER_NAME};
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

use super::tokens::{self, RedeemError};
use super::{AUTHORITY, Order, PkiError, issuer, now_s, read, sign};
use crate::clock;
use crate::console::{message, print};

/// Maximum number of concurrent connections. Others wait.
const MAX_CONNECTIONS: usize = 16;
/// Time limit for a node's request, and for sending the answer.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an error of `accept`.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// How often the record is read again, because tokens are made and expire.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// Validity of this service's certificate in days: at least that of any token.
const SERVICE_DAYS: u32 = 31;

/// Serves until every token of `dir` is used or has expired.
///
/// # Errors
/// `dir` holds no authority, or the address is not available for listening.
pub async fn serve(dir: &Path, listen: SocketAddr) -> Result<(), PkiError> {
    let acceptor = acceptor(dir)?;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|e| PkiError::service(format!("listen on {listen}"), e))?;
    let bound = listener.local_addr().map_err(|e| PkiError::service("read the address", e))?;
    let unused = tokens::unused(dir, now_s())?;
    print(&format!(
        "listening on {bound} until every token is used or has expired ({unused} now)\n"
    ));
    let mut connections: JoinSet<(SocketAddr, Result<String, ExchangeError>)> = JoinSet::new();
    let (mut refusals, mut closed) = (Refusals::default(), 0u64);
    while !connections.is_empty() || tokens::unused(dir, now_s())? > 0 {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, peer)) if refusals.may_ask(peer.ip(), clock::monotonic_ns()) => {
                    let (acceptor, dir) = (acceptor.clone(), dir.to_owned());
                    connections.spawn(async move { (peer, answer(stream, acceptor, dir).await) });
                }
                Ok(_) => closed += 1,
                Err(error) => {
                    message(format_args!("cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            },
            Some(Ok((peer, outcome))) = connections.join_next() => match outcome {
                Ok(name) => print(&format!("{name}: issued a certificate to {}\n", peer.ip())),
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
    if closed > 0 {
        message(format_args!("connections closed after too many refused requests: {closed}"));
    }
    print("no token is left\n");
    Ok(())
}

/// Presents a certificate of the authority, and the authority's own.
fn acceptor(dir: &Path) -> Result<TlsAcceptor, PkiError> {
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
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
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
    #[error("this is not a request of `ccbench-agent join`")]
    Malformed,
    /// The token is not valid for a certificate.
    #[error(transparent)]
    Refused(#[from] RedeemError),
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

/// Answers a request. Returns the node's name.
async fn answer(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    dir: PathBuf,
) -> Result<String, ExchangeError> {
    let received = timeout(EXCHANGE_TIMEOUT, receive(stream, &acceptor)).await;
    let (mut stream, line) = received.unwrap_or(Err(ExchangeError::Timeout))?;
    let redeemed = match serde_json::from_str::<JoinRequest>(&line) {
        Ok(request) => tokens::redeem(&dir, &request, now_s()).map_err(ExchangeError::from),
        Err(_) => Err(ExchangeError::Malformed),
    };
    let (reply, named) = match redeemed {
        Ok((name, files)) => (JoinReply::Issued(files), Ok(name)),
        // Do not tell the node about failures of the authority.
        Err(error @ ExchangeError::Refused(RedeemError::Authority(_))) => {
            let why = "the authority cannot issue it; `ccbench pki serve` has printed the reason";
            (JoinReply::Refused(why.to_owned()), Err(error))
        }
        Err(error) => (JoinReply::Refused(error.to_string()), Err(error)),
    };
    // The answer has a time limit of its own, because a certificate that was issued but not delivered must be reported as such.
    let sent = timeout(EXCHANGE_TIMEOUT, send(&mut stream, &reply)).await;
    let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let name = named?;
    sent.map_err(|source| ExchangeError::Undelivered { name: name.clone(), source })?;
    Ok(name)
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
        self.0.retain(|_, (began_ns, _)| now_ns - *began_ns < MINUTE_NS);
        match self.0.get(&peer) {
            Some((_, refused)) => *refused < MAX_REFUSED,
            None => self.0.len() < MAX_ADDRESSES,
        }
    }

    /// Adds a refused request. Returns the number in this minute.
    fn add(&mut self, peer: IpAddr, now_ns: u64) -> u32 {
        let (_, refused) = self.0.entry(peer).or_insert((now_ns, 0));
        *refused += 1;
        *refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
