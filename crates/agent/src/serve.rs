//! Listens, decides who may connect, and passes connections to the service.

use std::fs::File;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ccbench_proto::wire::agent_server::AgentServer;
use ccbench_proto::wire::{self, ResetRequest};
use tokio::net::{TcpListener, UnixListener};
use tonic::transport::Server;

use crate::accept;
use crate::access::Authorized;
use crate::args::{Listen, ServeArgs};
use crate::audit::{self, Audit};
use crate::error::AgentError;
use crate::executor::{self, Handle, Parts};
use crate::flow::FlowSource;
use crate::flow::process::Generators;
use crate::interfaces::Machine;
use crate::notify;
use crate::placement::{self, Placement};
use crate::service::AgentService;
use crate::sockets::allowed::AllowedModules;
use crate::sockets::supplied::AllowedDigests;
use crate::tls::{self, Trust};
use crate::undo::{self, Undo};

/// Requests at the same time in one connection. A controller has two at most: a stream and a reset.
const MAX_STREAMS: u32 = 16;
/// Of one request.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// Serves until `shutdown`, then undoes everything.
///
/// # Errors
/// The address cannot be listened on, or a certificate is wrong.
pub async fn serve(args: &ServeArgs, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    let State { mut undo, generation_file, audit, _lock } = state(args)?;
    // After the settings: a namespace's default holds the module of its congestion control.
    let left = crate::sockets::journal::sweep();
    if left != undo::Outcome::default() {
        tracing::warn!(undone = ?left.undone, failed = ?left.failed, "congestion controls that a dead agent left");
    }
    audit.undone(&left);
    // A testbed is started by hand, outside of any service.
    let Placement { group, notes } =
        if args.ephemeral { Placement::default() } else { placement::place(&mut undo) };
    for note in &notes {
        tracing::warn!(note);
    }
    let generators = Arc::new(Generators::in_group(group.clone()));
    let executor = executor::spawn(Parts {
        interfaces: Arc::new(Machine),
        source: Arc::clone(&generators) as Arc<dyn FlowSource>,
        sampler: ccbench_collector::pick,
        acks: ccbench_collector::acks::open,
        undo,
        generation_file,
        traffic_group: group,
        cc_digests: cc_digests(args),
        modules: AllowedModules::of(&args.allow_module),
    });
    let longest = match &args.listen {
        Listen::Unix(_) => wire::MESSAGE_LIMIT,
        Listen::Tcp(_) => wire::REMOTE_MESSAGE_LIMIT,
    };
    let service = AgentServer::new(AgentService::new(executor.clone(), generators, notes))
        .max_decoding_message_size(longest);
    let trust = match &args.listen {
        Listen::Unix(_) => None,
        Listen::Tcp(_) => Trust::open(args)?,
    };
    let service = Authorized::new(service, trust.clone(), audit.clone());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let server = async {
        match &args.listen {
            Listen::Unix(path) => serve_unix(path, service, audit.clone(), stopped).await,
            Listen::Tcp(address) => {
                serve_tcp(*address, trust, service, audit.clone(), stopped).await
            }
        }
    };
    tokio::pin!(server);
    tokio::spawn(notify::keep_alive());
    let served = tokio::select! {
        served = &mut server => served,
        () = shutdown => {
            notify::stopping();
            undo_all(&executor).await;
            drop(stop);
            // Graceful shutdown waits for open connections, which is not needed: everything is undone.
            drop(tokio::time::timeout(Duration::from_millis(200), &mut server).await);
            Ok(())
        }
    };
    audit.flush();
    served
}

/// Only the agent's user and root reach a Unix socket, and could load anything themselves.
fn cc_digests(args: &ServeArgs) -> AllowedDigests {
    match &args.listen {
        Listen::Unix(_) => AllowedDigests::Any,
        Listen::Tcp(_) => AllowedDigests::Only(args.allow_cc_digest.iter().cloned().collect()),
    }
}

type Service = Authorized<AgentServer<AgentService>>;

async fn serve_unix(
    path: &Path,
    service: Service,
    audit: Audit,
    stopped: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    let listener = listen_unix(path)?;
    let _socket = RemovedOnDrop(path);
    notify::ready();
    server()
        .serve_with_incoming_shutdown(service, accept::unix(listener, audit), stopped)
        .await
        .map_err(|source| AgentError::Serve { address: format!("unix:{}", path.display()), source })
}

async fn serve_tcp(
    address: SocketAddr,
    trust: Option<Trust>,
    service: Service,
    audit: Audit,
    stopped: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    let refused = |reason: String| AgentError::Listen { address: format!("tcp:{address}"), reason };
    let failed = |source| AgentError::Serve { address: format!("tcp:{address}"), source };
    if trust.is_none() && !address.ip().is_loopback() {
        return Err(refused(
            "beyond loopback an agent needs --tls-cert, --tls-key and --tls-ca (make them with \
             `ccbench pki`)"
                .to_owned(),
        ));
    }
    if let Some(trust) = &trust {
        let hangup = tls::hangup().map_err(|e| refused(format!("handle SIGHUP: {e}")))?;
        tokio::spawn(trust.clone().watch(hangup));
    }
    let listener = TcpListener::bind(address).await.map_err(|e| refused(e.to_string()))?;
    let bound = listener.local_addr().map_err(|e| refused(e.to_string()))?;
    tracing::info!(address = %bound, tls = trust.is_some(), "listening");
    if bound.ip().is_unspecified() {
        let open = open_addresses(bound).join(" ");
        tracing::warn!(
            "tcp:{bound} is reachable at every address of this node, the experiment network's too ({open}); listen on the \
             control network's address only"
        );
    }
    notify::ready();
    let incoming = accept::tcp(listener, trust, audit);
    server()
        .http2_keepalive_interval(Some(wire::KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(wire::KEEPALIVE_TIMEOUT))
        .serve_with_incoming_shutdown(service, incoming, stopped)
        .await
        .map_err(failed)
}

fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
}

/// The addresses beyond loopback at which a socket that is bound to all of them is reachable now.
fn open_addresses(bound: SocketAddr) -> Vec<String> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let mut found: Vec<String> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            // A socket of IPv6 that is bound to all addresses takes IPv4 too.
            let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
            let ip = v4.or_else(|| bound.is_ipv6().then(v6)?).filter(|ip| !ip.is_loopback())?;
            Some(format!("{} of {}", ip, interface.interface_name))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// What an agent keeps in its state directory.
struct State {
    undo: Undo,
    generation_file: Option<PathBuf>,
    audit: Audit,
    _lock: Option<File>,
}

/// Opens the state directory and undoes what a dead agent left. In a namespace that dies with us nothing is kept.
fn state(args: &ServeArgs) -> Result<State, AgentError> {
    if args.ephemeral {
        let (undo, audit) = (Undo::in_memory(), Audit::default());
        return Ok(State { undo, generation_file: None, audit, _lock: None });
    }
    let dir = args.state_dir.clone().unwrap_or_else(undo::default_state_dir);
    let lock = undo::lock(&dir)?;
    let audit = match args.audit_size.get() {
        0 => Audit::default(),
        max_bytes => Audit::open(&dir.join(audit::FILE), max_bytes)?,
    };
    let (mut undo, left) = Undo::open(&dir)?;
    undo.set_audit(audit.clone());
    audit.undone(&left);
    if !left.undone.is_empty() {
        tracing::info!(undone = ?left.undone, "undid what a dead agent left");
    }
    if !left.failed.is_empty() {
        tracing::error!(failed = ?left.failed, "could not undo all that a dead agent left: no trial runs here until it is");
    }
    let generation_file = Some(dir.join("generation"));
    Ok(State { undo, generation_file, audit, _lock: Some(lock) })
}

async fn undo_all(executor: &Handle) {
    match executor.reset(ResetRequest::default()).await {
        Ok(reply) if reply.failed.is_empty() => {}
        Ok(reply) => tracing::error!(failed = ?reply.failed, "not everything could be undone"),
        Err(error) => tracing::error!(%error, "undo"),
    }
}

struct RemovedOnDrop<'a>(&'a Path);

impl Drop for RemovedOnDrop<'_> {
    fn drop(&mut self) {
        drop(std::fs::remove_file(self.0));
    }
}

/// A Unix socket that only its owner may use. Replaces a dead agent's socket, but not a live one's.
fn listen_unix(path: &Path) -> Result<UnixListener, AgentError> {
    let refused =
        |reason: String| AgentError::Listen { address: format!("unix:{}", path.display()), reason };
    if path.exists() {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(refused("another agent listens there".to_owned()));
        }
        std::fs::remove_file(path).map_err(|e| refused(format!("remove the old socket: {e}")))?;
    }
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound.map_err(|e| refused(e.to_string()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|e| refused(format!("set mode 0600: {e}")))?;
    tracing::info!(path = %path.display(), "listening");
    Ok(listener)
}
