//! Scopes: what the certificate of a controller permits on a node, and the scope that each RPC needs.

use std::fmt;
use std::str::FromStr;

/// Beginning of the URI in a certificate's subject alternative names that grants a scope: `ccbench:scope/run`.
const URI_PREFIX: &str = "ccbench:scope/";
/// Beginning of the path of every RPC.
const SERVICE: &str = "/ccbench.v1.Agent/";

/// A permission of a controller on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Describe the node and read its clock.
    Read,
    /// Run trials: flows, probes, and links in namespaces. Includes `read`.
    Run,
    /// Change and capture the machine's own network: physical interfaces, and everything in the initial network namespace.
    HostNet,
    /// Load kernel modules and change their parameters.
    Module,
    /// Load congestion controls into the kernel as BPF programs.
    Bpf,
    /// Reboot the node into a kernel that the plan names.
    Reboot,
}

/// The text is not a scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a scope; write read, run, host-net, module, bpf or reboot")]
pub struct UnknownScope(String);

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Run, Self::HostNet, Self::Module, Self::Bpf, Self::Reboot];

    /// Its name on the command line and in certificates.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::HostNet => "host-net",
            Self::Module => "module",
            Self::Bpf => "bpf",
            Self::Reboot => "reboot",
        }
    }

    /// The URI in a certificate that grants it.
    pub fn uri(self) -> String {
        format!("{URI_PREFIX}{}", self.name())
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == text);
        found.ok_or_else(|| UnknownScope(text.to_owned()))
    }
}

/// A set of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope.
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// Whether the set permits what `scope` permits.
    pub fn has(self, scope: Scope) -> bool {
        let holds = |scope: Scope| self.0 & scope.bit() != 0;
        holds(scope) || scope == Scope::Read && holds(Scope::Run)
    }

    /// This set with `scope` added.
    #[must_use]
    pub fn with(self, scope: Scope) -> Self {
        Self(self.0 | scope.bit())
    }

    /// The smallest set that permits the same.
    #[must_use]
    pub fn minimal(self) -> Self {
        if self.has(Scope::Run) { Self(self.0 & !Scope::Read.bit()) } else { self }
    }

    /// The scopes that the URIs of a certificate grant; `None` if no URI names a scope, as in certificates of earlier versions. A
    /// scope that this version does not know grants nothing.
    pub fn from_uris<'a>(uris: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut found = None;
        for name in uris.into_iter().filter_map(|uri| uri.strip_prefix(URI_PREFIX)) {
            let scopes: Self = found.unwrap_or_default();
            found = Some(name.parse::<Scope>().map_or(scopes, |scope| scopes.with(scope)));
        }
        found
    }

    /// The scopes of the set, in order.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.0 & scope.bit() != 0)
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        scopes.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Scope::name).collect();
        f.write_str(&names.join(","))
    }
}

/// An RPC of `agent.proto`. A test compares this list with the descriptors of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rpc {
    /// Describe the node.
    Describe,
    /// Read its clock.
    Clock,
    /// Send a file.
    PutFile,
    /// Ask whether a trial would be refused.
    Check,
    /// Prepare a trial.
    Prepare,
    /// Run it.
    Run,
    /// Undo every change.
    Reset,
    /// Reboot into another kernel.
    Reboot,
}

impl Rpc {
    /// Every RPC.
    pub const ALL: [Self; 8] = [
        Self::Describe,
        Self::Clock,
        Self::PutFile,
        Self::Check,
        Self::Prepare,
        Self::Run,
        Self::Reset,
        Self::Reboot,
    ];

    /// Its name in `agent.proto`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Describe => "Describe",
            Self::Clock => "Clock",
            Self::PutFile => "PutFile",
            Self::Check => "Check",
            Self::Prepare => "Prepare",
            Self::Run => "Run",
            Self::Reset => "Reset",
            Self::Reboot => "Reboot",
        }
    }

    /// The scope that a client needs. `Check` and `Prepare` need further scopes if the plan does.
    pub fn scope(self) -> Scope {
        match self {
            Self::Describe | Self::Clock => Scope::Read,
            Self::PutFile | Self::Check | Self::Prepare | Self::Run | Self::Reset => Scope::Run,
            Self::Reboot => Scope::Reboot,
        }
    }

    /// The RPC of an HTTP path.
    pub fn of_path(path: &str) -> Option<Self> {
        let name = path.strip_prefix(SERVICE)?;
        Self::ALL.into_iter().find(|rpc| rpc.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_and_uris_are_read_back() {
        for scope in Scope::ALL {
            assert_eq!(scope.to_string().parse(), Ok(scope));
            let uri = scope.uri();
            assert_eq!(Scopes::from_uris([uri.as_str()]), Some([scope].into_iter().collect()));
        }
        let error = "root".parse::<Scope>().unwrap_err().to_string();
        assert!(error.starts_with("`root` is not a scope; write read, run, host-net"), "{error}");
    }

    #[test]
    fn run_includes_read_and_nothing_else() {
        let run = Scopes::default().with(Scope::Run);
        let permitted: Vec<_> = Scope::ALL.into_iter().filter(|scope| run.has(*scope)).collect();
        assert_eq!(permitted, [Scope::Read, Scope::Run]);
        assert_eq!(run.to_string(), "run");
        assert_eq!(run.with(Scope::Read).minimal(), run);
        let read = Scopes::default().with(Scope::Read);
        assert_eq!(read.minimal(), read);
        assert_eq!(Scopes::all().to_string(), "read,run,host-net,module,bpf,reboot");
    }

    #[test]
    fn a_certificate_without_scopes_differs_from_one_with_an_unknown_scope() {
        assert_eq!(Scopes::from_uris(["spiffe://lab/node/n1", "ccbench:scop"]), None);
        assert_eq!(Scopes::from_uris(["ccbench:scope/root"]), Some(Scopes::default()));
        let both = Scopes::from_uris(["ccbench:scope/root", "ccbench:scope/read"]);
        assert_eq!(both, Some(Scopes::default().with(Scope::Read)));
    }

    #[test]
    fn a_path_is_that_of_one_rpc() {
        for rpc in Rpc::ALL {
            assert_eq!(Rpc::of_path(&format!("/ccbench.v1.Agent/{}", rpc.name())), Some(rpc));
        }
        for other in ["/ccbench.v1.Agent/describe", "/ccbench.v1.Agent/", "Describe", ""] {
            assert_eq!(Rpc::of_path(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn only_what_is_granted_is_permitted(bits in 0u8..64) {
            let granted: Vec<_> = Scope::ALL.into_iter().filter(|s| bits & s.bit() != 0).collect();
            let uris: Vec<String> = granted.iter().map(|scope| scope.uri()).collect();
            let scopes = Scopes::from_uris(uris.iter().map(String::as_str)).unwrap_or_default();
            for scope in Scope::ALL {
                let by_run = scope == Scope::Read && granted.contains(&Scope::Run);
                prop_assert_eq!(scopes.has(scope), granted.contains(&scope) || by_run);
            }
        }
    }
}
