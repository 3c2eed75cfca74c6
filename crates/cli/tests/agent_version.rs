//! A controller and an agent of another version: what the controller cannot read degrades the trial.

#![allow(clippy::disallowed_methods, reason = "the test's agent has a clock")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::convert::Infallible;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::task::{Context, Poll};

use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::wire::agent_server::{Agent, AgentServer};
use ccbench_proto::wire::{self, run_event::Of};
use ccbench_results::TrialStatus;
use ccbench_results::store::RunDir;
use prost::Message as _;
use rustix::time::{ClockId, clock_gettime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::{Request as HttpRequest, Response as HttpResponse};
use tonic::{Request, Response, Status};

/// A short trial with a probe, whose one row the agent of `one` sends.
const PLAN: &str = r#"
name = "version"
[nodes.one]
agent = "127.0.0.1:PORT_ONE"
address = "127.0.0.1"
[nodes.two]
agent = "127.0.0.1:PORT_TWO"
address = "127.0.0.2"
[probes.rtt]
kind = "ping"
from = "one"
to = "two"
[[phases]]
name = "only"
length = "200ms"
"#;

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// An agent that does nothing.
struct Fake;

type Events = tokio_stream::Iter<std::vec::IntoIter<Result<wire::RunEvent, Status>>>;

#[tonic::async_trait]
impl Agent for Fake {
    type RunStream = Events;

    async fn describe(
        &self,
        _: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::NodeInfo>, Status> {
        let agent_version = "99.0.0".to_owned();
        Ok(Response::new(wire::NodeInfo { agent_version, ..wire::NodeInfo::default() }))
    }

    async fn clock(
        &self,
        _: Request<wire::ClockRequest>,
    ) -> Result<Response<wire::ClockReply>, Status> {
        let received_ns = monotonic_ns();
        let sent_ns = monotonic_ns();
        Ok(Response::new(wire::ClockReply { received_ns, sent_ns, realtime_ns: 0 }))
    }

    async fn prepare(
        &self,
        _: Request<wire::PrepareRequest>,
    ) -> Result<Response<wire::PrepareReply>, Status> {
        Ok(Response::new(wire::PrepareReply::default()))
    }

    async fn run(&self, _: Request<wire::RunRequest>) -> Result<Response<Events>, Status> {
        Err(Status::internal("the raw service answers"))
    }

    async fn reset(
        &self,
        _: Request<wire::ResetRequest>,
    ) -> Result<Response<wire::ResetReply>, Status> {
        Ok(Response::new(wire::ResetReply::default()))
    }
}

/// Messages as bytes: the encoder of another version.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
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
        use prost::bytes::BufMut as _;
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        use prost::bytes::Buf as _;
        buffer.advance(buffer.remaining());
        Ok(Some(()))
    }
}

/// Sends these messages as the stream of Run.
#[derive(Clone)]
struct RunRaw(Vec<Vec<u8>>);

impl tonic::server::ServerStreamingService<()> for RunRaw {
    type Response = Vec<u8>;
    type ResponseStream = tokio_stream::Iter<std::vec::IntoIter<Result<Vec<u8>, Status>>>;
    type Future = std::future::Ready<Result<Response<Self::ResponseStream>, Status>>;
    fn call(&mut self, _: Request<()>) -> Self::Future {
        let messages: Vec<_> = self.0.iter().cloned().map(Ok).collect();
        std::future::ready(Ok(Response::new(tokio_stream::iter(messages))))
    }
}

/// The fake agent, but for Run.
#[derive(Clone)]
struct OtherVersion {
    known: AgentServer<Fake>,
    run: RunRaw,
}

impl tonic::server::NamedService for OtherVersion {
    const NAME: &'static str = "ccbench.v1.Agent";
}

impl tower::Service<HttpRequest<Body>> for OtherVersion {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = futures_util::future::BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        if request.uri().path() == "/ccbench.v1.Agent/Run" {
            let run = self.run.clone();
            return Box::pin(async move {
                Ok(tonic::server::Grpc::new(Raw).server_streaming(run, request).await)
            });
        }
        Box::pin(tower::Service::call(&mut self.known, request))
    }
}

/// Serves an agent that sends these messages; its port.
fn serve(messages: Vec<Vec<u8>>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let service = OtherVersion { known: AgentServer::new(Fake), run: RunRaw(messages) };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let incoming =
                TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).unwrap());
            let server = tonic::transport::Server::builder();
            server.serve_with_incoming(service, incoming).await.unwrap();
        });
    });
    port
}

/// Status, reasons and notes of a trial in which the agent sends these messages and `Done`.
fn run(messages: Vec<Vec<u8>>) -> (TrialStatus, Vec<String>, Vec<String>) {
    let row = wire::Probe { probe_id: "rtt".to_owned(), ..wire::Probe::default() };
    let [row, done] = [Of::Probe(row), Of::Done(wire::Done::default())]
        .map(|of| wire::RunEvent { of: Some(of) }.encode_to_vec());
    let one = serve(messages.into_iter().chain([row, done.clone()]).collect());
    let two = serve(vec![done]);
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("version.toml");
    let text = PLAN.replace("PORT_ONE", &one.to_string()).replace("PORT_TWO", &two.to_string());
    std::fs::write(&plan, text).unwrap();
    let out = dir.path().join("results");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    let done = command.arg("run").arg(&plan).arg("--out").arg(&out).output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let runs: Vec<_> = std::fs::read_dir(&out).unwrap().flatten().map(|e| e.path()).collect();
    let opened =
        RunDir::open(runs.iter().map(Path::new).find(|run| run.is_dir()).unwrap()).unwrap();
    let trials = opened.trials();
    let reasons = trials[0].reasons.iter().map(|r| format!("{}: {}", r.code, r.message));
    (trials[0].status, reasons.collect(), opened.notes())
}

/// An event as field 7 of a RunEvent.
fn in_stream(event: &[u8]) -> Vec<u8> {
    field(7, event)
}

fn field(number: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut bytes);
    prost::encoding::encode_varint(payload.len() as u64, &mut bytes);
    bytes.extend(payload);
    bytes
}

#[test]
fn readable_events_leave_the_trial_ok_and_the_version_is_a_note() {
    let event = wire::Event { kind: Some(Kind::TrialEnd(NoData {})), ..wire::Event::default() };
    let (status, reasons, notes) = run(vec![in_stream(&event.encode_to_vec())]);
    assert_eq!((status, reasons), (TrialStatus::Ok, vec![]));
    let note = "one: its agent is ccbench-agent 99.0.0, this is ccbench ";
    assert!(notes.iter().any(|line| line.starts_with(note)), "{notes:?}");
}

#[test]
fn unreadable_events_degrade_the_trial() {
    let newer = [field(3, b"l4s"), field(4242, b"of a later version")].concat();
    let older = [field(2, b"flow_error"), field(4, b"unable to connect")].concat();
    let message = field(4242, b"a kind of row of a later version");
    let row = wire::Interval { flow_id: "l4s/0".into(), ..wire::Interval::default() };
    let row = wire::RunEvent { of: Some(Of::Interval(row)) }.encode_to_vec();
    let (status, reasons, _) = run(vec![in_stream(&newer), in_stream(&older), message, row]);
    assert_eq!(status, TrialStatus::Degraded);
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    let begin = "event_unreadable: one: messages that cannot be read: 4 (the first: its kind is unknown: l4s); its agent is \
                 ccbench-agent 99.0.0, this is ccbench ";
    assert!(reason.starts_with(begin), "{reason}");
}
