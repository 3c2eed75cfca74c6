//! What a subscriber receives: one JSON object per line. The name of a field ends in its unit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What has changed since the subscriber's last update. Bins that are not listed are unchanged; everything else is complete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The run.
    pub run: RunView,
    /// The first running trial, or else the trial that ended last. If its number or attempt differs from the previous one, its
    /// earlier bins are void.
    pub trial: Option<TrialView>,
}

/// A run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    /// The plan's name.
    pub name: String,
    /// The results directory.
    pub directory: String,
    /// Maximum number of trials of this command.
    pub trials: usize,
    /// Trials that have ended, by status: `ok`, `degraded`, `failed`, `discarded`.
    pub ended: BTreeMap<String, u32>,
    /// The trials that ended last, oldest first.
    pub last: Vec<EndedTrial>,
    /// Running trials.
    pub running: Vec<RunningTrial>,
    /// Whether a trial that lost a node waits until every node answers. It is not in `running`.
    #[serde(default)]
    pub waits_for_nodes: bool,
    /// The label of the trial that starts next; `None` after the last one.
    pub next: Option<String>,
    /// Estimate of the remaining wall-clock time.
    pub left_s: Option<u64>,
    /// The last messages, oldest first.
    pub messages: Vec<String>,
    /// Number of earlier messages that are not in `messages`.
    pub messages_left_out: u64,
    /// How the run ended (`complete`, `interrupted`, `failed`); `None` before the end.
    pub status: Option<String>,
}

/// A trial that has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EndedTrial {
    /// Position in the order of all trials, from 1.
    pub number: usize,
    /// Point and repetition.
    pub label: String,
    /// `ok`, `degraded`, `failed` or `discarded`.
    pub status: String,
}

/// A running trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningTrial {
    /// Position in the order of all trials, from 1.
    pub number: usize,
    /// Point and repetition.
    pub label: String,
    /// The current phase; `None` before the first and after the last one.
    pub phase: Option<String>,
    /// Time since the trial's start.
    pub elapsed_s: f64,
    /// Time from the first phase to the end of the last one.
    pub length_s: f64,
}

/// A trial in detail.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialView {
    /// Position in the order of all trials, from 1.
    pub number: usize,
    /// The attempt at the trial, from 1. A trial that lost a node is repeated.
    #[serde(default)]
    pub attempt: u32,
    /// Point and repetition.
    pub label: String,
    /// Time since the trial's start.
    pub elapsed_s: f64,
    /// Time from the first phase to the end of the last one.
    pub length_s: f64,
    /// The current phase; `None` before the first one, after the last one, and when the trial has ended.
    pub phase: Option<String>,
    /// The phase after the current one.
    pub next_phase: Option<String>,
    /// All phases.
    pub phases: Vec<PhaseView>,
    /// Width of a bin.
    pub bin_s: f64,
    /// The verdict so far: `ok`, `degraded` or `failed`; `discarded` if the trial was stopped.
    pub status: String,
    /// Whether the trial has ended, so that the verdict is final.
    pub has_ended: bool,
    /// The reasons of the verdict.
    pub reasons: Vec<String>,
    /// Data connections, by flow id.
    pub flows: BTreeMap<String, FlowView>,
    /// Links, by name.
    pub links: BTreeMap<String, LinkView>,
    /// Probes, by name.
    pub probes: BTreeMap<String, ProbeView>,
    /// The nodes' machines, by node.
    pub hosts: BTreeMap<String, HostView>,
    /// Number of rows of flows beyond the maximum that the view holds.
    pub rows_left_out: u64,
    /// Number of rows from before the trial's start, or of nodes whose clock is unknown.
    pub rows_outside: u64,
}

/// A phase in trial time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseView {
    /// Its name.
    pub name: String,
    /// Start in microseconds since the trial's start.
    pub start_us: u64,
    /// End in microseconds since the trial's start.
    pub end_us: u64,
}

/// Index of a bin, minimum, mean and maximum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bin(pub u32, pub f32, pub f32, pub f32);

/// One quantity: its mean over the last 0.2 s, and the bins that have changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantity {
    /// The mean of the samples of the 0.2 s up to the newest one, or the newest one if samples are rarer, whatever the width of the bins;
    /// `None` without a sample.
    pub now: Option<f32>,
    /// The changed bins; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bins: Vec<Bin>,
}

/// A data connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// The flow group.
    pub group: String,
    /// The kernel's name of the congestion control.
    pub cc: String,
    /// Time since the last row. The flow has ended, or its samples are missing.
    pub idle_s: f64,
    /// Rate of the bytes that the receiver got, or of the acknowledged bytes if the receiver is not sampled.
    pub rate_bps: Quantity,
    /// The sender's smoothed RTT.
    pub rtt_us: Quantity,
    /// Congestion window.
    pub cwnd_pkts: Quantity,
    /// Packets in flight (RFC 6675).
    pub in_flight_pkts: Quantity,
    /// Retransmitted packets so far.
    pub retrans_pkts: u64,
    /// Number of marked packets, as reported to the sender (`delivered_ce_pkts`); `None` if the kernel does not count them.
    pub marks_pkts: Option<u64>,
}

/// The queues of a link.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkView {
    /// Configured rate.
    pub rate_bps: Option<u64>,
    /// Bytes that wait for the link.
    pub backlog_bytes: Quantity,
    /// Packets dropped in this trial.
    pub drops_pkts: u64,
    /// Packets marked in this trial; `None` if no queue counts marks.
    pub marks_pkts: Option<u64>,
}

/// A probe.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbeView {
    /// Echo, connect or fetch time.
    pub rtt_us: Quantity,
    /// Measurements so far.
    pub sent: u64,
    /// Number of these without an answer.
    pub lost: u64,
}

/// A node's machine, as of its last sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostView {
    /// Load of all CPUs together.
    pub busy_pct: f32,
    /// Load of the busiest CPU.
    pub max_busy_pct: f32,
    /// The highest `max_busy_pct` during the trial.
    pub peak_busy_pct: f32,
    /// CPU time that the hypervisor took.
    pub steal_pct: f32,
    /// The agent's share of one CPU.
    pub agent_pct: f32,
    /// Packets that the kernel dropped before any queue, in this trial.
    pub softnet_dropped: u64,
}
