//! The front: serves controllers without privileges, and passes each permitted request to the worker, which changes the
//! machine. Every message is decoded and encoded again. Each controller connection has its own connection to the
//! worker, so that the worker learns of its end.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use ccbench_proto::wire;
use ccbench_proto::wire::agent_client::AgentClient;
use futures_util::{Stream, StreamExt as _, stream};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::{OnceCell, oneshot};
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

use crate::accept::ConnectionHandle;
use crate::audit::note_run;
use crate::caller;
use crate::error::with_causes;

/// How many bytes of one stream the worker may send ahead of the controller. Beyond this the worker's queue fills, which counts
/// dropped rows.
const WINDOW_BYTES: u32 = 256 << 10;

/// The connections to the worker, by the controller's connection.
type Upstreams = BTreeMap<u64, Arc<OnceCell<Channel>>>;

/// The service of a front.
#[derive(Debug, Clone)]
pub struct FrontService {
    worker: Arc<Path>,
    upstreams: Arc<Mutex<Upstreams>>,
}

impl FrontService {
    /// Passes requests to the worker at this socket.
    pub fn new(worker: PathBuf) -> Self {
        Self { worker: worker.into(), upstreams: Arc::default() }
    }

    /// Returns a client of the worker, and the request with its caller.
    async fn to_worker<T>(
        &self,
        request: Request<T>,
    ) -> Result<(AgentClient<Channel>, Request<T>), Status> {
        let Some(controller) = request.extensions().get::<ConnectionHandle>().cloned() else {
            return Err(Status::internal("the request has no connection (a bug in ccbench)"));
        };
        let channel = self.upstream(&controller).await?;
        let worker = AgentClient::new(channel).max_decoding_message_size(wire::MAX_MESSAGE_BYTES);
        // The controller's metadata is not passed on.
        let mut passed_on = Request::new(request.into_inner());
        caller::insert(&controller, passed_on.metadata_mut());
        Ok((worker, passed_on))
    }

    /// Returns the connection to the worker for a controller's connection.
    async fn upstream(&self, controller: &ConnectionHandle) -> Result<Channel, Status> {
        let cell = {
            let mut upstreams = self.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
            let cell = upstreams.entry(controller.id()).or_insert_with(|| {
                tokio::spawn(forget(Arc::clone(&self.upstreams), controller.clone()));
                Arc::default()
            });
            Arc::clone(cell)
        };
        let open = || connect(Arc::clone(&self.worker), controller.clone());
        let channel = cell.get_or_try_init(open).await;
        channel.cloned().map_err(|error| self.no_worker(&with_causes(&error)))
    }

    fn no_worker(&self, why: &str) -> Status {
        let worker = self.worker.display();
        let message = format!(
            "the worker of this node does not answer at {worker}: {why}; is `ccbench-agent worker` running there \
             (ccbench-agent-worker.service), with the user of the front as --front-user?"
        );
        tracing::error!("{message}");
        Status::unavailable(message)
    }

    /// Returns the worker's own status, or one that says it does not answer.
    fn status(&self, status: &Status) -> Status {
        match status.source() {
            Some(_) => self.no_worker(&with_causes(status)),
            None => Status::new(status.code(), status.message()),
        }
    }

    fn answer<T>(&self, answer: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
        match answer {
            Ok(response) => Ok(Response::new(response.into_inner())),
            Err(status) => Err(self.status(&status)),
        }
    }
}

/// Drops the connection to the worker when the controller's has ended.
async fn forget(upstreams: Arc<Mutex<Upstreams>>, mut controller: ConnectionHandle) {
    controller.wait().await;
    upstreams.lock().unwrap_or_else(PoisonError::into_inner).remove(&controller.id());
}

/// Connects once. A restarted worker knows nothing of what the controller sent on its connection, so the controller
/// must reconnect, too.
async fn connect(
    worker: Arc<Path>,
    controller: ConnectionHandle,
) -> Result<Channel, tonic::transport::Error> {
    let mut is_first = true;
    let connector = tower::service_fn(move |_: Uri| {
        let is_first = std::mem::take(&mut is_first);
        let (worker, controller) = (Arc::clone(&worker), controller.clone());
        async move {
            if !is_first {
                controller.close();
                return Err(io::Error::other("its connection has ended"));
            }
            UnixStream::connect(worker).await.map(TokioIo::new)
        }
    });
    // A worker that hangs counts as lost, as it would for a directly connected controller.
    Endpoint::from_static("http://worker.invalid")
        .initial_stream_window_size(WINDOW_BYTES)
        .http2_keep_alive_interval(wire::KEEPALIVE_INTERVAL)
        .keep_alive_timeout(wire::KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector(connector)
        .await
}

/// Returns the parts of a file, and a future that resolves with an error in them, which the controller gets. tonic treats a cancelled
/// request as one that has ended, so the worker then holds a truncated file, under another SHA-256, until the connection ends.
fn parts_of_file(
    incoming: Streaming<wire::FileChunk>,
) -> (impl Stream<Item = wire::FileChunk> + Send + 'static, oneshot::Receiver<Status>) {
    let (broken, is_broken) = oneshot::channel();
    let parts = stream::unfold((incoming, broken), |(mut incoming, broken)| async move {
        match incoming.message().await {
            Ok(part) => Some((part?, (incoming, broken))),
            Err(status) => {
                // If the call has ended, nobody waits for this.
                let _ = broken.send(status);
                std::future::pending().await
            }
        }
    });
    (parts, is_broken)
}

/// The response stream of `Run`.
type Events = Pin<Box<dyn Stream<Item = Result<wire::RunEvent, Status>> + Send>>;

#[tonic::async_trait]
impl wire::agent_server::Agent for FrontService {
    async fn describe(
        &self,
        request: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::NodeInfo>, Status> {
        let (mut worker, request) = self.to_worker(request).await?;
        self.answer(worker.describe(request).await)
    }

    async fn clock(
        &self,
        request: Request<wire::ClockRequest>,
    ) -> Result<Response<wire::ClockReply>, Status> {
        let (mut worker, request) = self.to_worker(request).await?;
        self.answer(worker.clock(request).await)
    }

    async fn put_file(
        &self,
        request: Request<Streaming<wire::FileChunk>>,
    ) -> Result<Response<wire::PutFileReply>, Status> {
        let (mut worker, request) = self.to_worker(request).await?;
        let (metadata, extensions, incoming) = request.into_parts();
        let (parts, is_broken) = parts_of_file(incoming);
        let request = Request::from_parts(metadata, extensions, parts);
        tokio::select! {
            answer = worker.put_file(request) => self.answer(answer),
            Ok(status) = is_broken => Err(status),
        }
    }

    async fn check(
        &self,
        request: Request<wire::PrepareRequest>,
    ) -> Result<Response<wire::CheckReply>, Status> {
        note_run(&request, &request.get_ref().run_id);
        let (mut worker, request) = self.to_worker(request).await?;
        self.answer(worker.check(request).await)
    }

    async fn prepare(
        &self,
        request: Request<wire::PrepareRequest>,
    ) -> Result<Response<wire::PrepareReply>, Status> {
        note_run(&request, &request.get_ref().run_id);
        let (mut worker, request) = self.to_worker(request).await?;
        self.answer(worker.prepare(request).await)
    }

    type RunStream = Events;

    async fn run(
        &self,
        request: Request<wire::RunRequest>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let (mut worker, request) = self.to_worker(request).await?;
        let events = self.answer(worker.run(request).await)?.into_inner();
        let front = self.clone();
        let events = events.map(move |event| event.map_err(|status| front.status(&status)));
        Ok(Response::new(Box::pin(events)))
    }

    async fn reset(
        &self,
        request: Request<wire::ResetRequest>,
    ) -> Result<Response<wire::ResetReply>, Status> {
        note_run(&request, &request.get_ref().run_id);
        let (mut worker, request) = self.to_worker(request).await?;
        self.answer(worker.reset(request).await)
    }

    async fn reboot(
        &self,
        request: Request<wire::RebootRequest>,
    ) -> Result<Response<wire::RebootReply>, Status> {
        note_run(&request, &request.get_ref().run_id);
        let (mut worker, request) = self.to_worker(request).await?;
        self.answer(worker.reboot(request).await)
    }
}
