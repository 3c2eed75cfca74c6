//! Identifies clients and decides which RPCs they may call. [`Authorized`] checks every RPC of the service before its
//! handler runs, and refuses RPCs that it does not know.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use ccbench_io::certificate::Certificate;
use ccbench_proto::scope::{Rpc, Scope, Scopes};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::Service;

use crate::accept::ConnectionHandle;
use crate::audit::{Audit, PendingCall, RunId};
use crate::caller;
use crate::tls::Trust;

/// A client of this agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The common name of its certificate, or a description of a client without one.
    pub name: String,
    /// The serial number of its certificate in hexadecimal; empty without one.
    pub serial: String,
    /// The scopes that it has.
    pub scopes: Scopes,
    /// Its certificate was issued before scopes existed, and permits everything.
    pub is_unscoped: bool,
    /// Scopes that its certificate grants and this worker withholds.
    pub withheld: Scopes,
}

impl Identity {
    /// Returns a client without a certificate, which may do everything: root or this process's user, on this machine.
    pub fn local(name: impl Into<String>) -> Self {
        let (name, serial, withheld) = (name.into(), String::new(), Scopes::default());
        Self { name, serial, scopes: Scopes::all(), is_unscoped: false, withheld }
    }

    /// Returns the holder of a certificate.
    pub fn of_certificate(certificate: &Certificate) -> Self {
        let scopes = Scopes::from_uris(certificate.uris.iter().map(String::as_str));
        Self {
            name: certificate.name.clone(),
            serial: certificate.serial_hex(),
            scopes: scopes.unwrap_or_else(Scopes::all),
            is_unscoped: scopes.is_none(),
            withheld: Scopes::default(),
        }
    }

    /// Refuses an operation whose scope the client lacks; `what` names the operation.
    ///
    /// # Errors
    /// The missing scope.
    pub fn check(
        &self,
        scope: Scope,
        what: impl FnOnce() -> String,
    ) -> Result<(), Box<MissingScope>> {
        if self.scopes.has(scope) {
            return Ok(());
        }
        let advised = self.scopes.with(scope);
        Err(Box::new(MissingScope { what: what(), scope, identity: self.clone(), advised }))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.serial.as_str() {
            "" => f.write_str(&self.name),
            serial => write!(f, "{} (serial {serial})", self.name),
        }
    }
}

/// The error of a client that lacks the scope of what it requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingScope {
    /// The operation and its object.
    pub what: String,
    /// The scope that it needs.
    pub scope: Scope,
    /// The client.
    pub identity: Identity,
    /// The scopes of a certificate that would be enough.
    pub advised: Scopes,
}

impl fmt::Display for MissingScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, scope, identity, advised } = self;
        if identity.withheld.has(*scope) {
            return write!(
                f,
                "{what} needs the scope `{scope}`; the certificate of {identity} has it, but this node grants it to no client; add it to \
                 `--scope` of `ccbench-agent worker`"
            );
        }
        let has = identity.scopes.to_string();
        let has = if has.is_empty() { "none" } else { &has };
        write!(
            f,
            "{what} needs the scope `{scope}`, but the certificate of {identity} has {has}; issue one that has it, with another \
             name: `ccbench pki controller DIR {}-2 --scope {}`",
            identity.name,
            advised.minimal()
        )
    }
}

impl std::error::Error for MissingScope {}

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
            self.audit.unknown_rpc(path, &status, &client);
            return refuse(status);
        };
        let run_id = RunId::default();
        let call = PendingCall::new(self.audit.clone(), rpc, &client, run_id.clone());
        if let Err(status) = check(rpc, &client, self.trust.as_ref()) {
            tracing::warn!(client = %client.identity(), rpc = rpc.name(), why = status.message(), "refused a request");
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
    use super::*;

    fn alice(scopes: &[Scope]) -> Identity {
        let scopes = scopes.iter().copied().collect();
        Identity { serial: "4a".into(), scopes, ..Identity::local("alice") }
    }

    #[test]
    fn a_missing_scope_is_named_with_the_identity_and_the_command() {
        let missing = alice(&[Scope::Run]).check(Scope::Bpf, || "[cc.mine]".into()).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "[cc.mine] needs the scope `bpf`, but the certificate of alice (serial 4a) has run; issue one that has it, \
             with another name: `ccbench pki controller DIR alice-2 --scope run,bpf`"
        );
        let missing = alice(&[]).check(Scope::Read, || "x".into()).unwrap_err().to_string();
        assert!(missing.contains("has none;"), "{missing}");
    }

    /// Another certificate would not help here.
    #[test]
    fn a_scope_that_the_worker_permits_to_nobody_names_its_flag() {
        let limited = Identity { withheld: Scopes::default().with(Scope::Bpf), ..alice(&[]) };
        let missing = limited.check(Scope::Bpf, || "[cc.mine]".into()).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "[cc.mine] needs the scope `bpf`; the certificate of alice (serial 4a) has it, but this node grants it to no client; add \
             it to `--scope` of `ccbench-agent worker`"
        );
        let missing = limited.check(Scope::Module, || "x".into()).unwrap_err().to_string();
        assert!(missing.contains("issue one that has it"), "{missing}");
    }

    #[test]
    fn scopes_come_from_the_certificate() {
        let certificate = |uris: &[&str]| Certificate {
            name: "alice".into(),
            serial: vec![0x0a, 0xff],
            public_key: Vec::new(),
            uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
            hosts: Vec::new(),
            not_after_s: 0,
            for_servers: false,
            for_clients: true,
        };
        let identity = Identity::of_certificate(&certificate(&["ccbench:scope/read"]));
        assert_eq!(identity.to_string(), "alice (serial 0aff)");
        assert!(identity.check(Scope::Read, String::new).is_ok());
        assert!(identity.check(Scope::Run, String::new).is_err() && !identity.is_unscoped);
        let earlier = Identity::of_certificate(&certificate(&[]));
        assert!(earlier.is_unscoped && earlier.scopes == Scopes::all());
    }

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
