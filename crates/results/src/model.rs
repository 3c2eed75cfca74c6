//! The types that the other modules share: trial keys and status, clocks, reasons, the description of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ccbench_proto::metric::{METRICS, Scope, UNDEFINED, replacement};
use ccbench_proto::plan::parse::suggest::near;
use ccbench_proto::wire::NodeInfo;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::RunBackend;
use crate::reason::ReasonCode;

pub mod attempt;
pub mod decision;

/// Version of the results directory's layout and of the tables' columns; incremented when readers must adapt.
pub const SCHEMA_VERSION: u32 = 1;

/// Status of a committed trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialStatus {
    /// No check found a problem.
    Ok,
    /// Complete, but a check found a disturbance. Summaries count the trial and mark it.
    Degraded,
    /// The trial is not what the plan specifies. It is kept, but summaries include it only with `--include-failed`.
    Failed,
    /// Ended early. The rows received so far are kept, and a resumed run repeats the trial.
    Aborted,
}

impl TrialStatus {
    /// Returns the value in `trials.parquet` and in the journal.
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

/// Status of a trial that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// No check found a problem.
    Ok,
    /// A check found a disturbance.
    Degraded,
    /// The trial is not what the plan specifies.
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

/// Why a trial is degraded, failed or aborted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The check that the trial did not pass.
    pub code: ReasonCode,
    /// See [`Reason::subject`]. `None` for errors, and in journals of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// Text for people: where, the measured value and the limit.
    pub message: String,
}

impl Reason {
    /// Returns a reason without a subject, for an error whose message begins with what it is about.
    pub fn new(code: ReasonCode, message: impl Into<String>) -> Self {
        Self { code, subject: None, message: message.into() }
    }

    /// Returns a reason with a subject.
    pub fn about(code: ReasonCode, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..Self::new(code, message) }
    }

    /// Returns the link, flow, probe, node or machine that the reason is about, without measured values; empty if it is about the whole
    /// trial. Reasons with the same code and subject are one problem that several trials share.
    pub fn subject(&self) -> &str {
        let first_part = || self.message.split_once(": ").map_or("", |(subject, _)| subject);
        self.subject.as_deref().unwrap_or_else(first_part)
    }
}

/// Returns the codes of these reasons, each once, in alphabetical order.
pub(crate) fn codes_of<'a>(reasons: impl IntoIterator<Item = &'a Reason>) -> String {
    let codes: BTreeSet<&str> = reasons.into_iter().map(|reason| reason.code.as_str()).collect();
    codes.into_iter().collect::<Vec<_>>().join(", ")
}

/// The validity of a trial, with the reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The worst status of all reasons.
    pub status: Status,
    /// Every problem found, worst first.
    pub reasons: Vec<Reason>,
}

/// Identifies one trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialKey {
    /// Index of the point in the plan's matrix.
    pub point_id: u32,
    /// Repetition, from 1.
    pub trial: u16,
    /// Seed of this trial.
    pub seed: u64,
    /// Increases with every trial; see [`crate::store::RunDir::next_epoch`].
    pub epoch: u64,
}

/// How the offset of a node's clock was determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockSource {
    /// Not measured: the node reads the controller's clock.
    Shared,
    /// By exchanges of four timestamps (RFC 5905, section 8).
    Exchange,
    /// Not measured: the rows are those of imported files.
    Imported,
}

impl ClockSource {
    /// Returns the value in table `clock` and in the journal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Exchange => "exchange",
            Self::Imported => "imported",
        }
    }
}

/// The relation of a node's clock to the controller's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClock {
    /// CLOCK_MONOTONIC of this node at the trial's start.
    pub t0_ns: u64,
    /// UTC nanoseconds on the controller's axis minus CLOCK_MONOTONIC nanoseconds of this node, at `t0_ns`.
    pub realtime_offset_ns: i64,
    /// How much faster the node's clock runs than the controller's, in parts per billion, as estimated before the trial.
    #[serde(default)]
    pub drift_ppb: i64,
    /// Upper bound of the mapping's error during the trial.
    pub error_bound_ns: u64,
    /// Upper bound of the error of the measurement after the trial; `None` if nothing was measured.
    #[serde(default)]
    pub error_bound_after_ns: Option<u64>,
    /// How the offset was measured.
    pub source: ClockSource,
    /// Round-trip time of the best exchange before the trial.
    pub rtt_ns: u64,
}

impl NodeClock {
    /// Returns the clock of a node that reads the controller's clock, whose UTC is `realtime_offset_ns` ahead of it.
    pub fn shared(t0_ns: u64, realtime_offset_ns: i64) -> Self {
        Self {
            t0_ns,
            realtime_offset_ns,
            drift_ppb: 0,
            error_bound_ns: 0,
            error_bound_after_ns: Some(0),
            source: ClockSource::Shared,
            rtt_ns: 0,
        }
    }

    /// Converts seconds since the start of the trial from this node's clock to the controller's.
    pub fn controller_s(&self, at_s: f64) -> f64 {
        // A damaged journal may have any number.
        at_s / (1.0 + self.drift_ppb as f64 / 1e9).max(0.5)
    }
}

/// Each factor with its level at one point.
pub type Levels = Vec<(String, String)>;

/// Returns the level of a factor; `None` if the factor is absent.
pub(crate) fn level_of<'a>(levels: &'a [(String, String)], factor: &str) -> Option<&'a str> {
    levels.iter().find(|(name, _)| name == factor).map(|(_, level)| level.as_str())
}

/// Description of a run, written to `run.json` as its provenance.
#[derive(Debug, Clone, PartialEq)]
pub struct RunInfo {
    /// The plan's name, part of the directory's name.
    pub plan_name: String,
    /// The plan as its author wrote it.
    pub plan_text: String,
    /// The plan with defaults, presets and overrides resolved.
    pub resolved_text: String,
    /// SHA-256 of `resolved_text`, in hexadecimal.
    pub plan_sha256: String,
    /// Every point: its id and levels.
    pub points: Vec<(u32, Levels)>,
    /// Trials per point.
    pub repeat: u32,
    /// The plan's seed.
    pub seed: u64,
    /// The controller's command line.
    pub command_line: Vec<String>,
    /// The controller's version.
    pub ccbench_version: String,
    /// When the command started.
    pub started_utc: jiff::Timestamp,
    /// Each node's description of itself.
    pub nodes: BTreeMap<String, NodeInfo>,
    /// Where the trials take place.
    pub backend: RunBackend,
    /// The topology that ccbench built, or the address of each node that has an agent; null if neither applies.
    pub topology: Value,
    /// Notes on the backend ([`RunBackend::notes`]), and limitations of the nodes, each with its reason.
    pub notes: Vec<String>,
    /// `--set` overrides.
    pub sets: Vec<String>,
    /// Trace files, by their names under `traces/`.
    pub traces: BTreeMap<PathBuf, Vec<u8>>,
    /// The user's congestion controls, by their names under `cc/`.
    pub ccs: BTreeMap<PathBuf, Vec<u8>>,
    /// Imported files of other tools; empty for a run.
    pub imported: Vec<Imported>,
}

/// An imported file of another tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Its path as given.
    pub file: String,
    /// SHA-256 of its content, in hexadecimal.
    pub sha256: String,
    /// The node to which its rows were assigned.
    pub node: String,
    /// The trial to which its rows were assigned.
    pub trial: u16,
    /// Number of lines that are not empty.
    pub lines: u64,
    /// Number of lines that the tables do not represent completely.
    pub unread: u64,
}

/// Status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// A controller is working on the run. In `run.json`, the controller may also have been killed.
    Running,
    /// `run.json` has `running`, but no process writes to the run. Never in the file.
    #[serde(skip)]
    Killed,
    /// Every trial is committed.
    Complete,
    /// Stopped by the user; can be resumed.
    Interrupted,
    /// Stopped by an error; can be resumed.
    Failed,
}

impl RunStatus {
    /// Returns the value in `run.json`, or that which readers show.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Killed => "killed",
            Self::Complete => "complete",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }

    /// Returns the status with this value; `None` if only a later version knows it.
    pub(crate) fn named(value: &str) -> Option<Self> {
        let all = [Self::Running, Self::Complete, Self::Interrupted, Self::Failed];
        all.into_iter().find(|status| status.as_str() == value)
    }
}

/// Which trials a summary includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrialFilter {
    /// Include failed and aborted trials, too.
    pub include_failed: bool,
    /// Include only trials whose status is ok.
    pub only_ok: bool,
}

impl TrialFilter {
    /// Returns whether a trial with this status is included.
    pub(crate) fn includes(self, status: TrialStatus) -> bool {
        match status {
            TrialStatus::Ok => true,
            TrialStatus::Degraded => !self.only_ok,
            TrialStatus::Failed | TrialStatus::Aborted => self.include_failed && !self.only_ok,
        }
    }
}

/// Splits a metric as given on the command line (`NAME` or `NAME:STAT`) and replaces deprecated names.
pub(crate) fn name_and_stat(metric: &str) -> (&str, Option<&str>) {
    let (name, stat) =
        metric.split_once(':').map_or((metric, None), |(name, stat)| (name, Some(stat)));
    (replacement(name).unwrap_or(name), stat)
}

/// A group's share of the throughput of all groups; only heatmaps and lines have this value.
pub(crate) const THROUGHPUT_SHARE: &str = "throughput_share";

/// Metrics from 0 to 1.
const FRACTIONS: [&str; 9] = [
    "cc_state_share",
    "coverage_share",
    "entropy_fairness",
    "jain_fairness",
    "jain_fairness_of_mean",
    "loss_share",
    "min_max_ratio",
    "retransmission_share",
    THROUGHPUT_SHARE,
];

/// Returns the part of a confidence interval in which the metric can have values. Intervals of Student's t assume no bounds.
pub(crate) fn possible_part(metric: &str, stat: &str, (low, high): (f64, f64)) -> (f64, f64) {
    // `undefined` is a count.
    let is_fraction = FRACTIONS.contains(&metric) && stat != UNDEFINED;
    if is_fraction { (low.max(0.0), high.min(1.0)) } else { (low, high) }
}

/// Returns every scope of the metrics with this name.
pub(crate) fn scopes_of(name: &str) -> Vec<Scope> {
    METRICS.iter().filter(|metric| metric.name == name).flat_map(|m| m.scopes).copied().collect()
}

/// Returns the end of an error message if no summary has the given metric: where it exists, or which names are similar.
pub(crate) fn missing_metric(given: &str) -> Option<String> {
    let (name, stat) = name_and_stat(given);
    if name == THROUGHPUT_SHARE {
        let text = "; only figures of `--kind heatmap` and `--kind lines` have it";
        return Some(text.to_owned());
    }
    let of_name = METRICS.iter().filter(|metric| metric.name == name);
    let mut stats: Vec<&str> = Vec::new();
    for stat in of_name.flat_map(|metric| metric.stats) {
        if !stats.contains(stat) {
            stats.push(stat);
        }
    }
    if stats.is_empty() {
        let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        let near = near(name, &names);
        let list = "; docs/results.md#summaries lists them".to_owned();
        return Some(if near.is_empty() { list } else { near });
    }
    stat.filter(|stat| !stats.contains(stat))?;
    Some(format!("; the statistics of `{name}` are {}", stats.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_metrics_have_near_names() {
        let missing = |given| missing_metric(given).unwrap_or_default();
        assert_eq!(missing("srtt:p95") + &missing("packet_lateness"), "");
        assert_eq!(missing("srt"), "; did you mean `srtt`?");
        assert_eq!(
            missing("throughput_share"),
            "; only figures of `--kind heatmap` and `--kind lines` have it"
        );
        assert_eq!(
            missing("throughput_sum:sum"),
            "; the statistics of `throughput_sum` are mean, std, cov"
        );
        assert!(missing("utterly_unlike").ends_with("lists them"));
    }

    #[test]
    fn clocks_have_the_same_source_in_journal_and_table() {
        for source in [ClockSource::Shared, ClockSource::Exchange, ClockSource::Imported] {
            let clock = NodeClock { source, ..NodeClock::shared(1, 2) };
            let journal = serde_json::to_value(&clock).unwrap();
            assert_eq!(journal["source"], source.as_str());
            assert_eq!(serde_json::from_value::<NodeClock>(journal).unwrap(), clock);
        }
    }
}
