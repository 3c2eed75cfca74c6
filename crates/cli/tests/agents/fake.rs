//! A fake agent that accepts every call, or only the calls that change nothing. Its messages are raw bytes, so it can send those
//! of another version.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use ccbench_proto::wire;
use prost::Message as _;
use prost::bytes::{Buf as _, BufMut as _};
use rustix::time::{ClockId, clock_gettime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::{Request as HttpRequest, Response as HttpResponse};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};

/// The version that the agent reports.
pub(crate) const VERSION: &str = "99.0.0";
/// What a Reset undoes.
pub(crate) const UNDONE: &str = "qdisc of eth1: fq_codel";

/// Returns the last message of a stream.
pub(crate) fn done() -> Vec<u8> {
    row(wire::run_event::Payload::Done(wire::Done::default()))
}

/// Returns a message of a stream.
pub(crate) fn row(payload: wire::run_event::Payload) -> Vec<u8> {
    wire::RunEvent { payload: Some(payload) }.encode_to_vec()
}

/// Starts an agent on a free port of the loopback interface that sends these messages as the stream of Run. It runs until the
/// test's process ends.
pub(crate) fn serve(messages: Vec<Vec<u8>>) -> SocketAddr {
    serve_runs(vec![messages])
}

/// Like [`serve`], with the messages of each Run; the last ones are for all later Runs. At a Run without messages, the agent
/// stops answering as if it were cut off: its connections stay open.
pub(crate) fn serve_runs(runs: Vec<Vec<Vec<u8>>>) -> SocketAddr {
    start(FakeAgent { runs: Arc::new(Mutex::new(runs.into())), ..FakeAgent::default() })
}

/// Like [`serve_runs`], for an agent whose Reset with this number could not undo `left`. The first one only checks the access; others
/// follow after a trial or a failed Prepare, after a loss, and after another socket occupied a port, as after the description number
/// `port_in_use_after`.
pub(crate) fn serve_leaving(
    left: (u32, &'static str),
    port_in_use_after: Option<u32>,
    runs: Vec<Vec<Vec<u8>>>,
) -> SocketAddr {
    let runs = Arc::new(Mutex::new(runs.into()));
    start(FakeAgent { runs, leaves: Some(left), port_in_use_after, ..FakeAgent::default() })
}

/// Starts an agent whose Reset undoes nothing: it has nothing to undo, or could not undo `left`.
pub(crate) fn serve_undoing_nothing(left: Option<&'static str>) -> SocketAddr {
    let leaves = left.map(|left| (1, left));
    start(FakeAgent { leaves, undoes_nothing: true, ..FakeAgent::default() })
}

/// Starts an agent that never takes a file. It reports the arrival of each.
pub(crate) fn serve_holding_files(arrived: Sender<()>) -> SocketAddr {
    start(FakeAgent { holds_files: Some(arrived), ..FakeAgent::default() })
}

/// Like [`serve`], for an agent on another machine. The controller measures its clock, as exactly as the load allows.
pub(crate) fn serve_elsewhere(messages: Vec<Vec<u8>>) -> SocketAddr {
    let runs = Arc::new(Mutex::new(vec![messages].into()));
    start(FakeAgent { runs, is_elsewhere: true, ..FakeAgent::default() })
}

/// Starts an agent whose clock cannot be measured: its timestamps say that it took an hour for a reply that arrives at once.
pub(crate) fn serve_with_unusable_clock() -> SocketAddr {
    let clock_reply_ns = 3_600_000_000_000;
    start(FakeAgent { clock_reply_ns, is_elsewhere: true, ..FakeAgent::default() })
}

/// Starts an agent with the certificate `FILE.pem`, the key `FILE.key` and the authority of this `ccbench pki` directory.
pub(crate) fn serve_tls(pki: &Path, file: &str) -> SocketAddr {
    let read = |name: &str| std::fs::read(pki.join(name)).unwrap();
    let identity = Identity::from_pem(read(&format!("{file}.pem")), read(&format!("{file}.key")));
    let authority = Certificate::from_pem(read("ca.pem"));
    let tls = ServerTlsConfig::new().identity(identity).client_ca_root(authority);
    start_with(FakeAgent::default(), Server::builder().tls_config(tls).unwrap())
}

/// Starts an agent whose node another run's trial holds: it accepts no Reset of a run.
pub(crate) fn serve_held() -> SocketAddr {
    start(FakeAgent { is_held: true, ..FakeAgent::default() })
}

/// Starts an agent that permits the client only to read.
pub(crate) fn serve_reads() -> SocketAddr {
    start(FakeAgent { permits_only_reads: true, ..FakeAgent::default() })
}

/// Starts an agent that answers this call with this status. Its stream of Run has these messages.
pub(crate) fn serve_refusing(
    call: &'static str,
    status: (Code, &'static str),
    messages: Vec<Vec<u8>>,
) -> SocketAddr {
    let runs = Arc::new(Mutex::new(vec![messages].into()));
    start(FakeAgent { runs, refuses: Some((call, status)), ..FakeAgent::default() })
}

/// Like [`serve_refusing`], for an agent on another machine.
pub(crate) fn serve_elsewhere_refusing(
    call: &'static str,
    status: (Code, &'static str),
) -> SocketAddr {
    let refuses = Some((call, status));
    start(FakeAgent { is_elsewhere: true, refuses, ..FakeAgent::default() })
}

/// Starts an agent whose node has been rebooted: it refuses Prepare until its second description, which has another boot. Its
/// stream of Run has these messages.
pub(crate) fn serve_rebooted(messages: Vec<Vec<u8>>) -> SocketAddr {
    let runs = Arc::new(Mutex::new(vec![messages].into()));
    start(FakeAgent { runs, is_elsewhere: true, is_rebooted: true, ..FakeAgent::default() })
}

/// Like [`serve_rebooted`], for a node whose later boot has this kernel.
pub(crate) fn serve_upgraded(kernel: &'static str, messages: Vec<Vec<u8>>) -> SocketAddr {
    let runs = Arc::new(Mutex::new(vec![messages].into()));
    let (is_elsewhere, is_rebooted, upgraded_to) = (true, true, Some(kernel));
    start(FakeAgent { runs, is_elsewhere, is_rebooted, upgraded_to, ..FakeAgent::default() })
}

/// Starts an agent on another machine, which runs this kernel after a reboot. Its stream of Run has these messages.
pub(crate) fn serve_booting(kernel: &'static str, messages: Vec<Vec<u8>>) -> SocketAddr {
    let runs = Arc::new(Mutex::new(vec![messages].into()));
    let boots_into = Some(kernel);
    start(FakeAgent { runs, is_elsewhere: true, boots_into, ..FakeAgent::default() })
}

fn start(agent: FakeAgent) -> SocketAddr {
    start_with(agent, Server::builder())
}

fn start_with(agent: FakeAgent, server: Server) -> SocketAddr {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            let incoming = TcpListenerStream::new(listener);
            server.serve_with_incoming(agent, incoming).await.unwrap();
        });
    });
    receive.recv().unwrap()
}

/// The state of an agent, which determines its answers.
#[derive(Clone, Default)]
struct FakeAgent {
    /// The messages of every Run.
    runs: Arc<Mutex<VecDeque<Vec<Vec<u8>>>>>,
    /// The time from the arrival of a Clock request to the reply, according to its timestamps.
    clock_reply_ns: u64,
    /// Whether its clock differs from that of this machine.
    is_elsewhere: bool,
    permits_only_reads: bool,
    is_held: bool,
    /// A call, and the status with which the agent answers it.
    refuses: Option<(&'static str, (Code, &'static str))>,
    is_rebooted: bool,
    /// The kernel from the second description on.
    upgraded_to: Option<&'static str>,
    /// The kernel after a call of Reboot. The agent does not answer the first Describe after that call.
    boots_into: Option<&'static str>,
    /// 1 after the call of Reboot, 2 after the unanswered Describe.
    reboot: Arc<AtomicU32>,
    /// How often it has been described.
    described: Arc<AtomicU32>,
    /// How often it has been reset.
    resets: Arc<AtomicU32>,
    /// The number of a Reset, and what it cannot undo.
    leaves: Option<(u32, &'static str)>,
    undoes_nothing: bool,
    /// The number of descriptions after which another socket occupies a port, until the next description.
    port_in_use_after: Option<u32>,
    /// Receives a message for each file; the agent does not answer the call.
    holds_files: Option<Sender<()>>,
}

impl FakeAgent {
    /// Returns the kernel into which it was rebooted.
    fn booted(&self) -> Option<&'static str> {
        self.boots_into.filter(|_| self.reboot.load(Ordering::Relaxed) == 2)
    }

    /// Returns the kernel of its later boot.
    fn upgraded(&self) -> Option<&'static str> {
        self.upgraded_to.filter(|_| self.described.load(Ordering::Relaxed) > 0)
    }

    /// Returns the answer to this call. On the wire, a reply is a stream with one message.
    fn answers(&self, path: &str) -> Vec<Vec<u8>> {
        let reply = match path {
            "/ccbench.v1.Agent/Run" => {
                let mut runs = self.runs.lock().unwrap();
                let next = runs.pop_front().unwrap_or_default();
                if runs.is_empty() {
                    runs.push_back(next.clone());
                }
                drop(runs);
                if next.is_empty() {
                    loop {
                        std::thread::park();
                    }
                }
                return next;
            }
            "/ccbench.v1.Agent/Describe" => wire::NodeInfo {
                agent_version: VERSION.to_owned(),
                kernel: self.booted().or(self.upgraded()).unwrap_or("7.3.4").to_owned(),
                boot_id: match (self.is_rebooted, self.described.fetch_add(1, Ordering::Relaxed)) {
                    (true, 1..) => "a later boot".to_owned(),
                    _ if self.booted().is_some() => "the boot of another kernel".to_owned(),
                    _ if self.is_elsewhere => "another machine".to_owned(),
                    _ => {
                        let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
                        own.unwrap().trim().to_owned()
                    }
                },
                time_ns_inode: std::fs::metadata("/proc/self/ns/time").map_or(0, |file| file.ino()),
                ..wire::NodeInfo::default()
            }
            .encode_to_vec(),
            "/ccbench.v1.Agent/Clock" => {
                let [received_ns, sent_ns] = [monotonic_ns(), monotonic_ns() + self.clock_reply_ns];
                wire::ClockReply { received_ns, sent_ns, realtime_ns: 0 }.encode_to_vec()
            }
            "/ccbench.v1.Agent/Reset" => {
                let number = self.resets.fetch_add(1, Ordering::Relaxed) + 1;
                let left = self.leaves.filter(|(leaving, _)| *leaving == number);
                let failed = left.map(|(_, what)| what.to_owned()).into_iter().collect();
                let undone = if self.undoes_nothing { vec![] } else { vec![UNDONE.to_owned()] };
                wire::ResetReply { undone, failed }.encode_to_vec()
            }
            // Check, Prepare and Reboot: a message with default values in all fields has no bytes.
            _ => vec![],
        };
        vec![reply]
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl tonic::server::NamedService for FakeAgent {
    const NAME: &'static str = "ccbench.v1.Agent";
}

impl tower::Service<HttpRequest<Body>> for FakeAgent {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = futures_util::future::BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        let path = request.uri().path();
        if self.permits_only_reads && !path.ends_with("/Describe") && !path.ends_with("/Clock") {
            let refused = Status::permission_denied("it needs the scope `run`");
            return Box::pin(async move { Ok(refused.into_http()) });
        }
        if let Some((call, (code, why))) = self.refuses
            && path.ends_with(call)
        {
            return Box::pin(async move { Ok(Status::new(code, why).into_http()) });
        }
        if let Some(arrived) = self.holds_files.as_ref().filter(|_| path.ends_with("/PutFile")) {
            // The test may have ended.
            let _ = arrived.send(());
            return Box::pin(async move {
                let _request = request;
                std::future::pending().await
            });
        }
        if self.is_rebooted
            && path.ends_with("/Prepare")
            && self.described.load(Ordering::Relaxed) < 2
        {
            let refused = Status::unavailable("this node has been rebooted meanwhile");
            return Box::pin(async move { Ok(refused.into_http()) });
        }
        if self.port_in_use_after == Some(self.described.load(Ordering::Relaxed))
            && path.ends_with("/Prepare")
        {
            let refused = Status::aborted("another socket occupies port 5201");
            return Box::pin(async move { Ok(refused.into_http()) });
        }
        if self.boots_into.is_some() && path.ends_with("/Reboot") {
            self.reboot.store(1, Ordering::Relaxed);
        }
        if path.ends_with("/Describe") && self.reboot.load(Ordering::Relaxed) == 1 {
            self.reboot.store(2, Ordering::Relaxed);
            let refused = Status::unavailable("the machine is down");
            return Box::pin(async move { Ok(refused.into_http()) });
        }
        let refuses_runs = self.is_held && path.ends_with("/Reset");
        let answers = Answers { messages: self.answers(path), refuses_runs };
        Box::pin(async move {
            Ok(tonic::server::Grpc::new(Raw).server_streaming(answers, request).await)
        })
    }
}

/// The answers to one call.
struct Answers {
    messages: Vec<Vec<u8>>,
    /// Whether a request that names a run is refused. One without a run or anything else has no bytes.
    refuses_runs: bool,
}

impl tonic::server::ServerStreamingService<Vec<u8>> for Answers {
    type Response = Vec<u8>;
    type ResponseStream = tokio_stream::Iter<std::vec::IntoIter<Result<Vec<u8>, Status>>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        if self.refuses_runs && !request.get_ref().is_empty() {
            return ready(Err(Status::failed_precondition("this node is held by another run")));
        }
        let messages: Vec<_> = self.messages.drain(..).map(Ok).collect();
        ready(Ok(Response::new(tokio_stream::iter(messages))))
    }
}

/// Passes messages through as bytes.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;
    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}
