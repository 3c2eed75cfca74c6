//! Why no node is reset.

/// The command line names no nodes with agents.
#[derive(Debug, thiserror::Error)]
pub enum ResetUsageError {
    /// A plan names no agents.
    #[error(
        "{0} names no agents: its nodes are namespaces of this machine, which exist only while it runs; `ccbench clean` removes what a \
         crashed run has left"
    )]
    NoAgents(String),
}
