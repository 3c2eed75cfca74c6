//! Listens, decides who may connect, and passes connections to the service. Covers all three roles: single process, front and worker.

use std::fs::File;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ccbench_proto::scope::Scopes;
use ccbench_proto::units::Bytes;
use ccbench_proto::wire::agent_server::{Agent, AgentServer};
use ccbench_proto::wire::{self, ResetRequest};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tonic::transport::Server;

use crate::accept;
use crate::access::Authorized;
use crate::args::{FrontArgs, Listen, LocalListen, MachineArgs, ServeArgs, WorkerArgs};
use crate::audit::{self, Audit};
use crate::boot_loader::Boot;
use crate::error::AgentError;
use crate::executor::{self, Dependencies, GenerationFile, Handle};
use crate::flow::FlowSource;
use crate::flow::process::Generators;
use crate::front::FrontService;
use crate::interfaces::Machine;
use crate::launch;
use crate::local_socket::{self, RemovedOnDrop};
use crate::notify;
use crate::placement::{self, Placement};
use crate::service::AgentService;
use crate::sockets::journal;
use crate::sockets::supplied::AllowedDigests;
use crate::tls::{self, Trust};
use crate::undo::{self, Undo};

/// Concurrent requests per connection. A controller has at most two: a stream and a reset. Each unfinished request
/// holds [`wire::MAX_REMOTE_MESSAGE_BYTES`], and a certificate may have 16 connections.
const MAX_STREAMS: u32 = 3;
/// Limit for the headers of one request.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// systemd makes this directory.
const SYSTEMD: &str = "/run/systemd/system";
/// The note of a node that controllers reach without a front between them.
const ONE_PROCESS: &str = "this agent is one process, which reads controllers' connections with all of its privileges; as a service, \
                           `systemctl disable --now ccbench-agent && systemctl enable --now ccbench-agent-front` runs an unprivileged \
                           front and a worker instead";

/// Serves until `shutdown`, then undoes everything.
///
/// # Errors
/// The address cannot be listened on, or a certificate is wrong.
pub async fn serve(args: &ServeArgs, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    let mut node = Node::open(&args.machine, args.netns.as_deref(), cc_digests(args))?;
    let audit = node.audit.clone();
    let longest = match &args.listen {
        Listen::Unix(_) => wire::MAX_MESSAGE_BYTES,
        Listen::Tcp(_) => wire::MAX_REMOTE_MESSAGE_BYTES,
    };
    let trust = match &args.listen {
        Listen::Unix(_) => None,
        Listen::Tcp(_) => Trust::open(&args.tls)?,
    };
    node.notes.extend(one_process_note(trust.is_some(), Path::new(SYSTEMD).is_dir()));
    let service = Authorized::new(node.service(longest), trust.clone(), audit.clone());
    let (stop, stopped) = stop();
    let server = async {
        match &args.listen {
            Listen::Unix(path) => serve_unix(path, service, audit, stopped).await,
            Listen::Tcp(address) => serve_tcp(*address, trust, service, audit, stopped).await,
        }
    };
    node.until(server, stop, shutdown).await
}

/// Without TLS, only root and the agent's user reach an agent. Without systemd, as in a container, its advice cannot be followed.
fn one_process_note(has_tls: bool, has_systemd: bool) -> Option<String> {
    (has_tls && has_systemd).then(|| ONE_PROCESS.to_owned())
}

/// Serves a front on this machine until `shutdown`, then undoes everything.
///
/// # Errors
/// The address cannot be listened on, or traffic processes would have the front's privileges.
pub async fn worker(
    args: &WorkerArgs,
    shutdown: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    if launch::is_traffic_user(args.front_user) {
        let reason = format!(
            "traffic, which receives data from the experiment network, also runs as user {}; give the front a user of its own, \
             `ccbench-front`",
            args.front_user
        );
        return Err(AgentError::Listen { address: args.listen.to_string(), reason });
    }
    let digests = AllowedDigests::Only(args.machine.allow.digests());
    let node = Node::open(&args.machine, None, digests)?;
    let audit = node.audit.clone();
    let limit = match &args.scope[..] {
        [] => Scopes::all(),
        given => given.iter().copied().collect(),
    };
    let service = node.service(wire::MAX_REMOTE_MESSAGE_BYTES);
    let service = Authorized::behind_front(service, limit, audit.clone());
    let (stop, stopped) = stop();
    let server = async {
        let (listener, _socket) = match &args.listen {
            LocalListen::Stdin => (local_socket::inherited()?, None),
            LocalListen::Unix(path) => {
                let listener = local_socket::listen(path, Some(args.front_user))?;
                (listener, Some(RemovedOnDrop(path)))
            }
        };
        let listener = asynchronous(listener)?;
        notify::ready();
        // A front that hangs counts as lost, as a controller would.
        network_server()
            .serve_with_incoming_shutdown(
                service,
                accept::unix(listener, args.front_user, audit),
                stopped,
            )
            .await
            .map_err(|source| AgentError::Serve { address: args.listen.to_string(), source })
    };
    node.until(server, stop, shutdown).await
}

/// Serves controllers until `shutdown`, and passes their requests on to the worker.
///
/// # Errors
/// The address cannot be listened on, or a certificate is missing or wrong.
pub async fn front(args: &FrontArgs, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    let refused = |address, reason: &str| AgentError::Listen { address, reason: reason.to_owned() };
    let address = match &args.listen {
        Listen::Tcp(address) => *address,
        Listen::Unix(path) => {
            let address = format!("unix:{}", path.display());
            return Err(refused(
                address,
                "a front listens on tcp:HOST:PORT; to listen on a path, use `ccbench-agent serve`",
            ));
        }
    };
    let Some(trust) = Trust::open(&args.tls)? else {
        let reason =
            "a front needs --tls-cert, --tls-key and --tls-ca (make them with `ccbench pki`)";
        return Err(refused(format!("tcp:{address}"), reason));
    };
    if rustix::process::geteuid().is_root() {
        tracing::warn!("the front runs as root: start it as a user of its own, `ccbench-front`");
    }
    let audit = open_audit(&args.state_dir, args.audit_size)?;
    let service = AgentServer::new(FrontService::new(args.worker.clone()))
        .max_decoding_message_size(wire::MAX_REMOTE_MESSAGE_BYTES);
    let service = Authorized::new(service, Some(trust.clone()), audit.clone());
    let (stop, stopped) = stop();
    let server = serve_tcp(address, Some(trust), service, audit.clone(), stopped);
    // A front only forwards requests: it hangs if its event loop does.
    let alive = || std::future::ready(true);
    let served = until(server, stop, shutdown, std::future::ready(()), alive).await;
    audit.flush();
    served
}

/// Stops a server.
type Stop = oneshot::Sender<()>;

fn stop() -> (Stop, impl Future<Output = ()>) {
    let (stop, stopped) = oneshot::channel::<()>();
    (stop, async move { drop(stopped.await) })
}

/// Runs `server` until it fails or `shutdown`; then completes `undo`, and stops it. `ask` is that of [`notify::keep_alive`].
async fn until<A: Future<Output = bool> + Send + 'static>(
    server: impl Future<Output = Result<(), AgentError>>,
    stop: Stop,
    shutdown: impl Future<Output = ()>,
    undo: impl Future<Output = ()>,
    ask: impl Fn() -> A + Send + 'static,
) -> Result<(), AgentError> {
    tokio::pin!(server);
    tokio::spawn(notify::keep_alive(ask));
    tokio::select! {
        served = &mut server => served,
        () = shutdown => {
            notify::stopping();
            undo.await;
            drop(stop);
            // A graceful shutdown would wait for open connections, which is pointless: everything is undone.
            drop(tokio::time::timeout(Duration::from_millis(200), server).await);
            Ok(())
        }
    }
}

/// The part of an agent that changes the machine.
struct Node {
    executor: Handle,
    generators: Arc<Generators>,
    /// Sent in the reply to Describe.
    notes: Vec<String>,
    audit: Audit,
    _lock: Option<File>,
    _namespace: Option<File>,
}

impl Node {
    /// Opens the state directory and undoes what dead agents left. `netns` is the file of the network namespace that
    /// this process has entered.
    fn open(
        args: &MachineArgs,
        netns: Option<&Path>,
        cc_digests: AllowedDigests,
    ) -> Result<Self, AgentError> {
        let State { mut undo, generation_file, audit, _lock } = state(args, netns)?;
        let _namespace = if args.ephemeral { None } else { hold_namespace() };
        // A testbed is started by hand, outside any service.
        let Placement { group, notes } =
            if args.ephemeral { Placement::default() } else { placement::place(&mut undo) };
        for note in &notes {
            tracing::warn!(note);
        }
        let generators = Arc::new(Generators::in_group(group.clone()));
        let executor = executor::spawn(Dependencies {
            interfaces: Arc::new(Machine),
            source: Arc::clone(&generators) as Arc<dyn FlowSource>,
            sampler: ccbench_collector::default_sampler,
            acks: ccbench_collector::acks::open,
            undo,
            generation_file,
            cc_journals: journal::FOLDER.into(),
            traffic_group: group,
            cc_digests,
            modules: args.allow.modules(),
            // A network namespace cannot be rebooted.
            boot: args.allow_reboot.filter(|_| !args.ephemeral).map(Boot::new),
        });
        Ok(Self { executor, generators, notes, audit, _lock, _namespace })
    }

    /// Returns the service with `longest` as the limit of a request, in bytes.
    fn service(&self, longest: usize) -> AgentServer<AgentService> {
        let (executor, generators) = (self.executor.clone(), Arc::clone(&self.generators));
        AgentServer::new(AgentService::new(executor, generators, self.notes.clone()))
            .max_decoding_message_size(longest)
    }

    /// Runs `server` until it fails or `shutdown` resolves; then undoes everything and stops it.
    async fn until(
        self,
        server: impl Future<Output = Result<(), AgentError>>,
        stop: Stop,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), AgentError> {
        let pulse = self.executor.pulse();
        let ask = move || pulse.clone().ask();
        let served = until(server, stop, shutdown, undo_all(&self.executor), ask).await;
        self.audit.flush();
        served
    }
}

/// Warns about another agent in this network namespace. Agents with different state directories do not exclude each
/// other: each would save, and later restore, what the other has set.
fn hold_namespace() -> Option<File> {
    match undo::lock_namespace() {
        Ok(Some(lock)) => return Some(lock),
        Ok(None) => tracing::warn!(
            "another agent runs in this network namespace: if both change it, neither restores it as it was; end one, or give this one a \
             network namespace of its own (--netns)"
        ),
        Err(error) => tracing::warn!(%error, "lock the network namespace"),
    }
    None
}

/// A Unix socket accepts any digest: only the agent's user and root reach it, and they could load anything themselves.
fn cc_digests(args: &ServeArgs) -> AllowedDigests {
    match &args.listen {
        Listen::Unix(_) => AllowedDigests::Any,
        Listen::Tcp(_) => AllowedDigests::Only(args.machine.allow.digests()),
    }
}

async fn serve_unix(
    path: &Path,
    service: Authorized<AgentServer<AgentService>>,
    audit: Audit,
    stopped: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    let own = rustix::process::geteuid().as_raw();
    let listener = asynchronous(local_socket::listen(path, None)?)?;
    let _socket = RemovedOnDrop(path);
    notify::ready();
    server()
        .serve_with_incoming_shutdown(service, accept::unix(listener, own, audit), stopped)
        .await
        .map_err(|source| AgentError::Serve { address: format!("unix:{}", path.display()), source })
}

async fn serve_tcp<S: Agent>(
    address: SocketAddr,
    trust: Option<Trust>,
    service: Authorized<AgentServer<S>>,
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
        let open = match &reachable_addresses(bound)[..] {
            // The front's systemd unit permits no netlink socket.
            [] => String::new(),
            found => format!(" ({})", found.join(" ")),
        };
        tracing::warn!(
            "tcp:{bound} is reachable at every address of this node{open}, also from the experiment network; listen only on \
             the address of the control network"
        );
    }
    notify::ready();
    let incoming = accept::tcp(listener, trust, audit);
    network_server().serve_with_incoming_shutdown(service, incoming, stopped).await.map_err(failed)
}

fn asynchronous(listener: std::os::unix::net::UnixListener) -> Result<UnixListener, AgentError> {
    let failed = || AgentError::system("use the listening socket");
    listener.set_nonblocking(true).map_err(failed())?;
    UnixListener::from_std(listener).map_err(failed())
}

fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
}

/// Returns the server of a front, a worker or an agent on a network. It closes connections whose other end is silent.
pub fn network_server() -> Server {
    server()
        .http2_keepalive_interval(Some(wire::KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(wire::KEEPALIVE_TIMEOUT))
}

/// Returns the non-loopback addresses at which a socket bound to all addresses is reachable now.
fn reachable_addresses(bound: SocketAddr) -> Vec<String> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let mut found: Vec<String> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            // An IPv6 socket bound to all addresses accepts IPv4, too.
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
    generation_file: Option<GenerationFile>,
    audit: Audit,
    _lock: Option<File>,
}

/// Opens the state directory and undoes what a dead agent left. An ephemeral agent keeps nothing: its namespace dies with it.
fn state(args: &MachineArgs, netns: Option<&Path>) -> Result<State, AgentError> {
    if args.ephemeral {
        let (undo, audit) = (Undo::in_memory(), Audit::default());
        return Ok(State { undo, generation_file: None, audit, _lock: None });
    }
    let dir = args.state_dir.clone().unwrap_or_else(undo::default_state_dir);
    let lock = undo::lock(&dir)?;
    let ran_before = undo::has_journal(&dir);
    let audit = open_audit(&dir, args.audit_size)?;
    let (mut undo, left) = Undo::open_in(&dir, netns, &Machine)?;
    undo.set_audit(audit.clone());
    audit.undone(&left);
    if !left.undone.is_empty() {
        tracing::info!(undone = ?left.undone, "undid the changes of a dead agent");
    }
    if !left.dropped.is_empty() {
        tracing::warn!(dropped = ?left.dropped, "dropped changes of a dead agent; nothing is left to undo");
    }
    if !left.failed.is_empty() {
        tracing::error!(failed = ?left.failed, "could not undo all changes of a dead agent; no trial runs here until they are undone");
    }
    let generation_file = Some(GenerationFile { path: dir.join("generation"), ran_before });
    Ok(State { undo, generation_file, audit, _lock: Some(lock) })
}

/// Opens the audit log in a state directory, and creates the directory if needed.
fn open_audit(dir: &Path, size: Bytes) -> Result<Audit, AgentError> {
    let made = std::fs::create_dir_all(dir);
    made.map_err(AgentError::system(format!("make {}", dir.display())))?;
    match size.get() {
        0 => Ok(Audit::default()),
        max_bytes => Ok(Audit::open(&dir.join(audit::FILE), max_bytes)?),
    }
}

async fn undo_all(executor: &Handle) {
    match executor.reset(ResetRequest::default()).await {
        Ok(reply) if reply.failed.is_empty() => {}
        Ok(reply) => tracing::error!(failed = ?reply.failed, "not everything could be undone"),
        Err(error) => tracing::error!(%error, "undo"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_noted_where_a_front_can_be_a_service() {
        let noted = [(true, true), (true, false), (false, true), (false, false)]
            .map(|(has_tls, has_systemd)| one_process_note(has_tls, has_systemd).is_some());
        assert_eq!(noted, [true, false, false, false]);
    }
}
