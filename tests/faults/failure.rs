//! Ways in which a fault is not survived.

use std::path::PathBuf;
use std::process::ExitStatus;

/// What a node's agent has printed.
#[derive(Debug)]
pub struct AgentLog {
    /// Its address in the control network.
    pub node: &'static str,
    pub printed: String,
}

/// A promise that does not hold after a fault.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the agent of {} ended: {}", .0.node, .0.printed)]
    AgentEnded(AgentLog),
    #[error("the agent of {} does not listen: {}", .0.node, .0.printed)]
    NotListening(AgentLog),
    #[error("the agent of {} ignores SIGTERM: {}", .0.node, .0.printed)]
    IgnoresSigterm(AgentLog),
    #[error("the agent of {} cannot be killed: {}", .0.node, .0.printed)]
    NotKilled(AgentLog),
    #[error("the controller hangs: {printed}")]
    Hangs { printed: String },
    #[error("the controller ended with {status}: {printed}")]
    Controller { status: ExitStatus, printed: String },
    #[error("undo ended with {status}: {printed}")]
    Undo { status: ExitStatus, printed: String },
    #[error("undo says that nothing is left, but:\n{left}\n{printed}")]
    LeftByUndo { left: String, printed: String },
    #[error("a testbed ended with {status}: {printed}")]
    Testbed { status: ExitStatus, printed: String },
    #[error("damage of {} is not reported: {printed}", .file.display())]
    Silent { file: PathBuf, printed: String },
    #[error("a process panicked: {printed}")]
    Panicked { printed: String },
    #[error("a node is not free:\n{left}")]
    NotFree { left: String },
    #[error("verify: {verify}\n{printed}")]
    Torn { verify: String, printed: String },
    #[error("an interruption shorter than 3 s lost a node: {printed}")]
    NodeLost { printed: String },
    #[error("{lines} lines for {trials} trials: {printed}")]
    Incomplete { lines: usize, trials: usize, printed: String },
}
