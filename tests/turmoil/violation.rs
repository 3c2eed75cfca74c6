//! What a simulation has found.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::PathBuf;

use ccbench_results::journal::TrialEnd;

use crate::kernel::KernelLink;

/// Why a simulation has failed.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    #[error("a host has failed: {0}")]
    Host(#[from] Box<dyn Error>),
    #[error("a task or a thread has panicked")]
    Panicked,
    #[error("no end after {limit_ms} ms: {controllers:?}")]
    NoEnd { limit_ms: u64, controllers: Vec<String> },
    #[error("{node}: {violation}")]
    Node { node: &'static str, violation: NodeViolation },
    #[error("run of {controller}: {violation}")]
    Run { controller: &'static str, violation: RunViolation },
}

/// What is wrong with a node.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NodeViolation {
    #[error("a trial begins with changes of another one: {0}")]
    FoundChanges(String),
    #[error("a change is not recorded before it is made: {0}")]
    NotRecorded(String),
    #[error("another state is restored than was saved: {0}")]
    OtherState(String),
    #[error("the generation is {generation} after {before}")]
    Generation { generation: u64, before: u64 },
    #[error("controller gone since {gone_since_ms} ms, but: {link:?}")]
    NotFree { gone_since_ms: u64, link: KernelLink },
    #[error("not undone: {0}")]
    NotUndone(String),
}

/// What is wrong with the results of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunViolation {
    #[error("it has no results")]
    NoResults,
    #[error("read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: Box<dyn Error> },
    #[error("commits by point and trial: {0:?}")]
    Commits(BTreeMap<(u32, u16), usize>),
    #[error("{end:?} has the end of only {nodes:?}")]
    LacksEnd { end: Box<TrialEnd>, nodes: BTreeSet<String> },
    #[error("{node} has not run {end:?} to its end: {links:?}")]
    NotRun { node: &'static str, end: Box<TrialEnd>, links: Vec<KernelLink> },
    #[error("damaged: {0:?}")]
    Damaged(Vec<String>),
    #[error("an agent failed: {0}")]
    AgentError(String),
    #[error("an unexpected error: {0}")]
    UnexpectedError(String),
}
