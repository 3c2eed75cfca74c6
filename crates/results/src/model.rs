//! What the other modules name: trials and their status, clocks, a run's description, and which trials count.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ccbench_proto::wire::NodeInfo;
use serde::{Deserialize, Serialize};

/// Version of the results directory's layout and of the tables' columns; grows when a reader must know.
pub const SCHEMA_VERSION: u32 = 1;

/// What a trial is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialStatus {
    /// Nothing speaks against it.
    Ok,
    /// Complete, but something disturbed it: counted, and marked.
    Degraded,
    /// Not what the plan asked for: kept, but out of the summary unless asked for.
    Failed,
    /// Ended before its time; what had arrived is kept, and a resumed run does it again.
    Aborted,
}

impl TrialStatus {
    /// As it is written in `trials.parquet` and in the journal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }
}

impl std::fmt::Display for TrialStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a complete trial is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Nothing speaks against it.
    Ok,
    /// Something disturbed it: counted, and marked.
    Degraded,
    /// Not what the plan asked for.
    Failed,
}

impl From<Status> for TrialStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Ok => Self::Ok,
            Status::Degraded => Self::Degraded,
            Status::Failed => Self::Failed,
        }
    }
}

/// Why a trial is not ok.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// Stable name of the check: `cpu_bound`, `rows_dropped`, ...
    pub code: String,
    /// For people: where, how much, against which limit.
    pub message: String,
}

impl Reason {
    /// A reason.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}

/// What a trial is worth, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The worst of the reasons.
    pub status: Status,
    /// Everything that speaks against it, worst first.
    pub reasons: Vec<Reason>,
}

/// Which trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialKey {
    /// Which point.
    pub point_id: u32,
    /// Which repetition, from 1.
    pub trial: u16,
    /// Of this trial.
    pub seed: u64,
    /// Grows with every trial; see [`crate::store::RunDir::next_epoch`].
    pub epoch: u64,
}

/// Where a node's clock stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClock {
    /// CLOCK_MONOTONIC of the trial's beginning on this node.
    pub t0_ns: u64,
    /// UTC nanoseconds on the controller's axis minus CLOCK_MONOTONIC nanoseconds of this node.
    pub realtime_offset_ns: i64,
    /// The offset is wrong by at most this.
    pub error_bound_ns: u64,
    /// How it was measured.
    pub source: String,
    /// Round trip of the best exchange.
    pub rtt_ns: u64,
}

/// Each factor and its level at one point.
pub type Levels = Vec<(String, String)>;

/// The level of a factor among these; `None` if it is not there.
pub(crate) fn level_of<'a>(levels: &'a [(String, String)], factor: &str) -> Option<&'a str> {
    levels.iter().find(|(name, _)| name == factor).map(|(_, level)| level.as_str())
}

/// What a run is, for its provenance.
#[derive(Debug, Clone, PartialEq)]
pub struct RunInfo {
    /// Becomes part of the directory's name.
    pub plan_name: String,
    /// The plan as its author wrote it.
    pub plan_text: String,
    /// The plan with defaults, presets and overrides written out.
    pub resolved_text: String,
    /// Of `resolved_text`, in hexadecimal.
    pub plan_sha256: String,
    /// Every point: its id, and each factor's level.
    pub points: Vec<(u32, Levels)>,
    /// Trials per point.
    pub repeat: u32,
    /// The plan's.
    pub seed: u64,
    /// Of the controller.
    pub command_line: Vec<String>,
    /// Of the controller.
    pub ccbench_version: String,
    /// When the command was given.
    pub started_utc: jiff::Timestamp,
    /// What each node said of itself.
    pub nodes: BTreeMap<String, NodeInfo>,
    /// The testbed that ccbench built, for people; empty if it built none.
    pub topology: String,
    /// What the testbed cannot do, each with its reason.
    pub notes: Vec<String>,
    /// `--set` overrides.
    pub sets: Vec<String>,
    /// Trace files, by their names under `traces/`.
    pub traces: BTreeMap<PathBuf, Vec<u8>>,
    /// Files of other tools that were imported; empty for a run.
    pub imported: Vec<Imported>,
}

/// A file of another tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Its path, as given.
    pub file: String,
    /// Of its content, in hexadecimal.
    pub sha256: String,
    /// The node that it was put down to.
    pub node: String,
    /// The trial that it was put down to.
    pub trial: u16,
    /// Lines that are not empty.
    pub lines: u64,
    /// Lines of which something is missing in the tables.
    pub unread: u64,
}

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// A controller works on it, or died without a word.
    Running,
    /// Every trial is there.
    Complete,
    /// Stopped by the user; can be resumed.
    Interrupted,
    /// Stopped by an error; can be resumed.
    Failed,
}

impl RunStatus {
    /// As it is written in `run.json`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }
}

/// Which trials count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choice {
    /// Failed and aborted ones too.
    pub include_failed: bool,
    /// Only those without a flaw.
    pub only_ok: bool,
}

impl Choice {
    /// Whether a trial with this verdict counts.
    pub(crate) fn takes(self, status: TrialStatus) -> bool {
        match status {
            TrialStatus::Ok => true,
            TrialStatus::Degraded => !self.only_ok,
            TrialStatus::Failed | TrialStatus::Aborted => self.include_failed && !self.only_ok,
        }
    }
}

/// A metric as people ask for it: `NAME` or `NAME:STAT`.
pub(crate) fn name_and_stat(asked: &str) -> (&str, Option<&str>) {
    asked.split_once(':').map_or((asked, None), |(name, stat)| (name, Some(stat)))
}
