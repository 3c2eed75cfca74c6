//! A client of this agent, and the scopes that it has.

use std::fmt;

use ccbench_io::certificate::Certificate;
use ccbench_proto::scope::{Scope, Scopes};

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

    /// Returns the holder of a certificate. One without scopes permits everything if it is for clients, as those of versions before
    /// scopes are. TLS only refuses certificates with other usages: one without any usage could be that of a node.
    ///
    /// # Errors
    /// The certificate has neither scopes nor the extended key usage `clientAuth`.
    pub fn from_certificate(certificate: &Certificate) -> Result<Self, NotForClients> {
        let scopes = Scopes::from_uris(certificate.uris.iter().map(String::as_str));
        let identity = Self {
            name: certificate.name.clone(),
            serial: certificate.serial_hex(),
            scopes: scopes.unwrap_or_else(Scopes::all),
            is_unscoped: scopes.is_none(),
            withheld: Scopes::default(),
        };
        match scopes.is_some() || certificate.for_clients {
            true => Ok(identity),
            false => Err(NotForClients { client: identity.to_string() }),
        }
    }

    /// Refuses an operation whose scope the client lacks; `operation` names it.
    ///
    /// # Errors
    /// The missing scope.
    pub fn check(
        &self,
        scope: Scope,
        operation: impl FnOnce() -> String,
    ) -> Result<(), Box<MissingScope>> {
        if self.scopes.has(scope) {
            return Ok(());
        }
        let advised = self.scopes.with(scope);
        Err(Box::new(MissingScope {
            operation: operation(),
            scope,
            identity: self.clone(),
            advised,
        }))
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

/// The error of a certificate that permits nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the certificate of {client} has no scopes and is not for clients (extended key usage `clientAuth`); use one of \
     `ccbench pki controller`"
)]
pub struct NotForClients {
    /// Its holder.
    pub client: String,
}

/// The error of a client that lacks the scope of what it requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingScope {
    /// The operation and its object.
    pub operation: String,
    /// The scope that it needs.
    pub scope: Scope,
    /// The client.
    pub identity: Identity,
    /// The scopes of a certificate that would be enough.
    pub advised: Scopes,
}

impl fmt::Display for MissingScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, scope, identity, advised } = self;
        if identity.withheld.has(*scope) {
            return write!(
                f,
                "{operation} needs the scope `{scope}`; the certificate of {identity} has it, but this node grants it to no client; add it to \
                 `--scope` of `ccbench-agent worker`"
            );
        }
        let has = identity.scopes.to_string();
        let has = if has.is_empty() { "none" } else { &has };
        write!(
            f,
            "{operation} needs the scope `{scope}`, but the certificate of {identity} has {has}; issue one that has it, with another \
             name: `ccbench pki controller DIR {}-2 --scope {}`",
            identity.name,
            advised.minimal()
        )
    }
}

impl std::error::Error for MissingScope {}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn alice(scopes: &[Scope]) -> Identity {
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
        let certificate = |uris: &[&str], for_clients| Certificate {
            name: "alice".into(),
            serial: vec![0x0a, 0xff],
            public_key: Vec::new(),
            uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
            hosts: Vec::new(),
            not_before_s: 0,
            not_after_s: 0,
            for_servers: false,
            for_clients,
        };
        let of = |uris: &[&str], for_clients| {
            Identity::from_certificate(&certificate(uris, for_clients))
        };
        let identity = of(&["ccbench:scope/read"], false).unwrap();
        assert_eq!(identity.to_string(), "alice (serial 0aff)");
        assert!(identity.check(Scope::Read, String::new).is_ok());
        assert!(identity.check(Scope::Run, String::new).is_err() && !identity.is_unscoped);
        let earlier = of(&[], true).unwrap();
        assert!(earlier.is_unscoped && earlier.scopes == Scopes::all());
        let refused = of(&[], false).unwrap_err().to_string();
        assert!(refused.starts_with("the certificate of alice (serial 0aff) has no scopes"));
    }
}
