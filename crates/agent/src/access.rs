//! Decides which RPCs a client may call. [`Authorized`] checks every RPC of the service before its
//! handler runs, and refuses RPCs that it does not know.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use ccbench_proto::scope::{Rpc, Scopes};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::Service;

use crate::accept::ConnectionHandle;
use crate::audit::{Audit, PendingCall, RunId};
use crate::caller;
use crate::tls::Trust;

/// A gRPC service that checks every RPC first.
#[derive(Debug, Clone)]
pub struct Authorized<S> {
    inner: S,
    trust: Option<Trust>,
    /// Set if the connections come from a front, which names the client of each request. No client gets scopes beyond these.
    behind_front: Option<Scopes>,
    audit: Audit,
}

impl<S> Authorized<S> {
    /// Verifies certificates again with `trust`, and records every call in `audit`.
    pub fn new(inner: S, trust: Option<Trust>, audit: Audit) -> Self {
        Self { inner, trust, behind_front: None, audit }
    }

    /// Accepts requests that a front passes on for its clients. Their scopes are limited to `limit`. Records every call in `audit`.
    pub fn behind_front(inner: S, limit: Scopes, audit: Audit) -> Self {
        Self { inner, trust: None, behind_front: Some(limit), audit }
    }
}

/// Returns the client that a request comes from.
fn client_of(request: &Request<Body>, limit: Option<Scopes>) -> Result<ConnectionHandle, Status> {
    let Some(connection) = request.extensions().get::<ConnectionHandle>() else {
        return Err(Status::internal("the request has no connection (a bug in ccbench)"));
    };
    let Some(limit) = limit else { return Ok(connection.clone()) };
    let (identity, peer) = caller::of_request(request.headers(), limit)
        .map_err(|error| Status::unauthenticated(error.to_string()))?;
    Ok(connection.on_behalf_of(identity, peer))
}

/// Checks that the client of a connection may call this RPC now.
fn check(rpc: Rpc, client: &ConnectionHandle, trust: Option<&Trust>) -> Result<(), Status> {
    let identity = client.identity();
    if let (Some(trust), Some(certificate)) = (trust, client.certificate()) {
        trust.check(certificate).map_err(|error| {
            Status::unauthenticated(format!(
                "the certificate of {identity} is no longer accepted: {error}; renew it: `ccbench pki renew DIR CERTIFICATE`"
            ))
        })?;
    }
    let what = || format!("the RPC {}", rpc.name());
    identity
        .check(rpc.scope(), what)
        .map_err(|missing| Status::permission_denied(missing.to_string()))
}

impl<S> Service<Request<Body>> for Authorized<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let refuse =
            |status: Status| -> Self::Future { Box::pin(async move { Ok(status.into_http()) }) };
        let client = match client_of(&request, self.behind_front) {
            Ok(client) => client,
            Err(status) => {
                tracing::error!(why = status.message(), "refused a request");
                return refuse(status);
            }
        };
        let path = request.uri().path();
        let Some(rpc) = Rpc::of_path(path) else {
            let why = "this agent does not have this RPC; update the agent, or use a controller of the same version";
            let status = Status::unimplemented(why);
            self.audit.unknown_rpc(path, &status, client.identity(), client.peer());
            return refuse(status);
        };
        let run_id = RunId::default();
        let (identity, peer) = (client.identity(), client.peer());
        let call = PendingCall::new(self.audit.clone(), rpc, identity, peer, run_id.clone());
        if let Err(status) = check(rpc, &client, self.trust.as_ref()) {
            tracing::warn!(client = %identity, rpc = rpc.name(), why = status.message(), "refused a request");
            call.finish(Some(&status));
            return refuse(status);
        }
        request.extensions_mut().insert(run_id);
        request.extensions_mut().insert(client);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = answer.await?;
            // A later error of the stream is not visible here: the audit log records whether the call was accepted.
            call.finish(response.extensions().get::<Status>());
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::scope::Scope;

    use super::*;
    use crate::identity::tests::alice;

    #[test]
    fn a_client_on_this_machine_may_do_everything() {
        let (_end, client) = ConnectionHandle::example();
        for rpc in Rpc::ALL {
            assert!(check(rpc, &client, None).is_ok(), "{rpc:?}");
        }
        let (_end, client) = ConnectionHandle::example_of(alice(&[Scope::Read]));
        let refused = check(Rpc::Reset, &client, None).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        let expected = "the RPC Reset needs the scope `run`";
        assert!(refused.message().starts_with(expected), "{refused:?}");
    }
}
