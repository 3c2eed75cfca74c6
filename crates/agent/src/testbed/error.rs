//! Errors of building a testbed.

use std::io;
use std::path::PathBuf;

/// Why the testbed could not be built: operation, object, source and hint.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// Standard input failed or ended early.
    #[error("read the plan from standard input: {0}")]
    Input(#[source] io::Error),
    /// The text is not a valid plan.
    #[error("the plan is wrong: {0}")]
    Plan(String),
    /// The plan names no node to build.
    #[error("every node of the plan has an agent of its own; there is no namespace to make")]
    NothingToBuild,
    /// The path of a socket is longer than the kernel accepts.
    #[error(
        "the socket path {path} has {length} bytes, but the kernel takes 107 at most; use a shorter run directory (CCBENCH_STATE)"
    )]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// User namespaces are disabled or forbidden.
    #[error("make a user namespace: {source}; {hint}")]
    UserNamespace {
        /// Why.
        source: io::Error,
        /// How to fix it.
        hint: String,
    },
    /// A network namespace could not be created.
    #[error("make the network namespace of {node}: {source}")]
    Namespace {
        /// The node, or the namespace's other purpose.
        node: String,
        /// Why.
        source: io::Error,
    },
    /// A sysctl that the testbed needs could not be set.
    #[error("set {key} = {value} in node {node}: {source}; is /proc/sys mounted read-only?")]
    Sysctl {
        /// The node.
        node: String,
        /// The sysctl.
        key: &'static str,
        /// The value.
        value: &'static str,
        /// Why.
        source: io::Error,
    },
    /// rtnetlink refused.
    #[error("{operation}: {source}")]
    Netlink {
        /// The operation and its object.
        operation: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An agent could not be started.
    #[error("start the agent of node {node} ({bin}): {source}")]
    Spawn {
        /// The node.
        node: String,
        /// The program.
        bin: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An agent ended before it listened.
    #[error("the agent of node {node} ended before it was ready: {status}")]
    AgentDied {
        /// The node.
        node: String,
        /// Its exit status and the end of its log.
        status: String,
    },
    /// An agent did not listen in time.
    #[error("the agent of node {node} does not listen at {socket} after {seconds} s; see {log}")]
    AgentSilent {
        /// The node.
        node: String,
        /// Where it should listen.
        socket: PathBuf,
        /// The timeout.
        seconds: u64,
        /// Its log.
        log: PathBuf,
    },
    /// The controller went away, or a signal asked to stop, before the testbed was ready.
    #[error("the testbed was stopped before it was ready")]
    Stopped,
    /// Another system operation failed.
    #[error("{operation}: {source}")]
    System {
        /// The operation and its object.
        operation: String,
        /// Why.
        source: io::Error,
    },
}

impl TestbedError {
    /// Returns a closure for `map_err` that adds a description to a system error.
    pub(super) fn system<E: Into<io::Error>>(
        operation: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let operation = operation.into();
        move |source| Self::System { operation, source: source.into() }
    }
}
