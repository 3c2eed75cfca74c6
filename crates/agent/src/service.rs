//! The gRPC service: translates requests into commands for the executor, and errors into statuses. It contains no logic of its own.

use std::pin::Pin;
use std::sync::Arc;

use ccbench_proto::wire;
use ccbench_shaper::ShaperError;
use futures_util::{Stream, StreamExt as _, stream};
use tonic::{Code, Request, Response, Status};

use crate::accept::ConnectionHandle;
use crate::audit::note_run;
use crate::boot_loader::BootError;
use crate::clock;
use crate::describe;
use crate::error::AgentError;
use crate::executor::{Handle, NodeStatus};
use crate::flow::process::Generators;
use crate::session::Refused;

/// The service: a handle to the executor.
#[derive(Debug, Clone)]
pub struct AgentService {
    executor: Handle,
    generators: Arc<Generators>,
    notes: Arc<[String]>,
}

impl AgentService {
    /// Returns a service that sends commands to `executor`. Describe returns `notes`.
    pub fn new(executor: Handle, generators: Arc<Generators>, notes: Vec<String>) -> Self {
        Self { executor, generators, notes: notes.into() }
    }
}

/// The note for a controller whose certificate was issued before scopes existed.
const UNSCOPED: &str = "the controller's certificate has no scopes and permits everything; `ccbench pki renew` gives it scopes";

/// The response stream of `Run`.
type Events = Pin<Box<dyn Stream<Item = Result<wire::RunEvent, Status>> + Send>>;

#[tonic::async_trait]
impl wire::agent_server::Agent for AgentService {
    async fn describe(
        &self,
        request: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::NodeInfo>, Status> {
        let mut info = describe::describe(&self.generators, &self.notes).await;
        let NodeStatus { generation, last_run_id, not_undone, .. } = self.executor.status();
        (info.generation, info.last_run_id) = (generation, last_run_id);
        let note = |left| format!("takes no trial until this change is undone: {left}");
        info.notes.extend(not_undone.into_iter().map(note));
        let client = request.extensions().get::<ConnectionHandle>();
        if client.is_some_and(|client| client.identity().is_unscoped) {
            info.notes.push(UNSCOPED.to_owned());
        }
        Ok(Response::new(info))
    }

    async fn clock(
        &self,
        _: Request<wire::ClockRequest>,
    ) -> Result<Response<wire::ClockReply>, Status> {
        let received_ns = clock::now_ns();
        let mut reply = wire::ClockReply { received_ns, ..Default::default() };
        (reply.sent_ns, reply.realtime_ns) = clock::now_both_ns();
        Ok(Response::new(reply))
    }

    async fn put_file(
        &self,
        request: Request<tonic::Streaming<wire::FileChunk>>,
    ) -> Result<Response<wire::PutFileReply>, Status> {
        let Some(connection) = request.extensions().get::<ConnectionHandle>().cloned() else {
            return Err(Status::internal("the request has no connection (a bug in ccbench)"));
        };
        let files = self.executor.files();
        let sha256 = files.receive(request.into_inner(), connection).await?;
        Ok(Response::new(wire::PutFileReply { sha256 }))
    }

    async fn check(
        &self,
        request: Request<wire::PrepareRequest>,
    ) -> Result<Response<wire::CheckReply>, Status> {
        let controller = request.extensions().get::<ConnectionHandle>().cloned();
        note_run(&request, &request.get_ref().run_id);
        let checked = self.executor.check(request.into_inner(), controller).await;
        checked.map(|()| Response::new(wire::CheckReply {})).map_err(|error| {
            let status = status(&error);
            match status.code() {
                Code::Unimplemented => Status::invalid_argument(status.message()),
                _ => status,
            }
        })
    }

    async fn prepare(
        &self,
        request: Request<wire::PrepareRequest>,
    ) -> Result<Response<wire::PrepareReply>, Status> {
        let controller = request.extensions().get::<ConnectionHandle>().cloned();
        note_run(&request, &request.get_ref().run_id);
        let reply = self.executor.prepare(request.into_inner(), controller).await;
        reply.map(Response::new).map_err(|e| status(&e))
    }

    type RunStream = Events;

    async fn run(
        &self,
        request: Request<wire::RunRequest>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let NodeStatus { generation, last_run_id, .. } = self.executor.status();
        note_run(&request, &last_run_id);
        let connection = request.extensions().get::<ConnectionHandle>().map(ConnectionHandle::id);
        let events = self.executor.run(request.into_inner(), connection).await;
        let events = events.map_err(|e| status(&e))?;
        let events = tokio_stream::wrappers::ReceiverStream::new(events);
        let ended_by = self.executor.ended_by(generation);
        let reset_by_other = stream::once(async move { ended_by() })
            .filter_map(|why| std::future::ready(why.map(|why| Err(Status::aborted(why)))));
        let events = events.map(|outgoing| Ok(outgoing.event)).chain(reset_by_other);
        Ok(Response::new(Box::pin(events)))
    }

    async fn reset(
        &self,
        request: Request<wire::ResetRequest>,
    ) -> Result<Response<wire::ResetReply>, Status> {
        let client = request.extensions().get::<ConnectionHandle>().cloned();
        note_run(&request, &request.get_ref().run_id);
        let reply = self.executor.reset_by(request.into_inner(), client).await;
        reply.map(Response::new).map_err(|e| status(&e))
    }

    async fn reboot(
        &self,
        request: Request<wire::RebootRequest>,
    ) -> Result<Response<wire::RebootReply>, Status> {
        let controller = request.extensions().get::<ConnectionHandle>().cloned();
        note_run(&request, &request.get_ref().run_id);
        let reply = self.executor.reboot(request.into_inner(), controller).await;
        reply.map(Response::new).map_err(|e| status(&e))
    }
}

/// Maps every error to a gRPC code, in this one place: wrong plan = INVALID_ARGUMENT, wrong moment =
/// FAILED_PRECONDITION, a missing capability of this node = UNIMPLEMENTED, not permitted to the client or the agent =
/// PERMISSION_DENIED, other ports needed = ABORTED, kernel refused = INTERNAL, the node was rebooted = UNAVAILABLE, a file is
/// needed again = NOT_FOUND.
fn status(error: &AgentError) -> Status {
    let message = error.to_string();
    match error {
        AgentError::Plan { .. } | AgentError::Request { .. } => Status::invalid_argument(message),
        // No refusal: the controller sends it again.
        AgentError::FileNotSent { .. } => Status::not_found(message),
        AgentError::MissingScope(_) | AgentError::ModuleNotAllowed { .. } => {
            Status::permission_denied(message)
        }
        AgentError::Boot(BootError::NotAllowed { .. }) => Status::permission_denied(message),
        AgentError::Boot(BootError::NotInstalled { .. } | BootError::NotWritable { .. }) => {
            Status::unimplemented(message)
        }
        // Must differ from the status of a lost connection, which a reboot causes, too.
        AgentError::Boot(_) | AgentError::OtherKernel { .. } => {
            Status::failed_precondition(message)
        }
        // The controller then describes the node again.
        AgentError::Refused(Refused::Rebooted { .. }) => Status::unavailable(message),
        AgentError::Refused(_) | AgentError::NotUndone { .. } => {
            Status::failed_precondition(message)
        }
        AgentError::Link { source, .. }
        | AgentError::Capture { source, .. }
        | AgentError::Offloads { source, .. } => match source {
            ShaperError::Missing { .. } | ShaperError::Unsupported { .. } => {
                Status::unimplemented(message)
            }
            ShaperError::Occupied { .. } => Status::failed_precondition(message),
            ShaperError::NotFound { .. } => Status::invalid_argument(message),
            ShaperError::Netlink { .. } | ShaperError::System { .. } => Status::internal(message),
        },
        AgentError::Cc(refused) if refused.is_not_allowed() => Status::permission_denied(message),
        AgentError::CongestionControl { .. }
        | AgentError::Cc { .. }
        | AgentError::NoIperf3 { .. }
        | AgentError::ControlInterface { .. }
        | AgentError::DisablesIpv6 { .. } => Status::unimplemented(message),
        AgentError::PortInUse { .. } => Status::aborted(message),
        AgentError::Sysctl { .. }
        | AgentError::Server { .. }
        | AgentError::ProbeServer { .. }
        | AgentError::ControlRoute { .. }
        | AgentError::Ipv6Addresses { .. }
        | AgentError::Sample { .. }
        | AgentError::Journal { .. }
        | AgentError::Audit { .. }
        | AgentError::Listen { .. }
        | AgentError::Tls { .. }
        | AgentError::Serve { .. }
        | AgentError::System { .. } => Status::internal(message),
        AgentError::Stopping => Status::unavailable(message),
    }
}
