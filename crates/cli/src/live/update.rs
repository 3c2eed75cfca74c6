//! What a subscriber gets, one JSON object per line. A field's name ends in its unit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What has changed since the subscriber's last update. Bins that are not listed are as they were; everything else is complete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The run.
    pub run: RunView,
    /// The first trial that runs, or else the last one that ran; its earlier bins are void if the number is another than before.
    pub trial: Option<TrialView>,
}

/// A run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    /// The plan's name.
    pub name: String,
    /// The results directory.
    pub directory: String,
    /// Most trials of this command.
    pub trials: usize,
    /// Trials that have ended, by status: `ok`, `degraded`, `failed`, `discarded`.
    pub ended: BTreeMap<String, u32>,
    /// The last ones that have ended, oldest first.
    pub last: Vec<EndedTrial>,
    /// Trials that run.
    pub running: Vec<RunningTrial>,
    /// The label of the trial that starts next; `None` after the last one.
    pub next: Option<String>,
    /// Estimate of the time left, wall clock.
    pub left_s: Option<u64>,
    /// The last messages, oldest first.
    pub messages: Vec<String>,
    /// Earlier messages, which are not in `messages`.
    pub messages_left_out: u64,
    /// How the run ended (`complete`, `interrupted`, `failed`); `None` before.
    pub status: Option<String>,
}

/// A trial that has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EndedTrial {
    /// In the order of all trials, from 1.
    pub number: usize,
    /// Point and repetition.
    pub label: String,
    /// `ok`, `degraded`, `failed` or `discarded`.
    pub status: String,
}

/// A trial that runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningTrial {
    /// In the order of all trials, from 1.
    pub number: usize,
    /// Point and repetition.
    pub label: String,
    /// The running phase; `None` before the first and after the last one.
    pub phase: Option<String>,
    /// Since the trial's start.
    pub elapsed_s: f64,
    /// From the first phase to the end of the last one.
    pub length_s: f64,
}

/// A trial in detail.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialView {
    /// In the order of all trials, from 1.
    pub number: usize,
    /// Point and repetition.
    pub label: String,
    /// Since the trial's start.
    pub elapsed_s: f64,
    /// From the first phase to the end of the last one.
    pub length_s: f64,
    /// The running phase; `None` before the first one, after the last one, and when the trial has ended.
    pub phase: Option<String>,
    /// The phase after it.
    pub next_phase: Option<String>,
    /// All phases.
    pub phases: Vec<PhaseView>,
    /// Width of a bin.
    pub bin_s: f64,
    /// The verdict as it is known: `ok`, `degraded`, `failed`; `discarded` if the trial was stopped.
    pub status: String,
    /// Whether that is the verdict of the whole trial.
    pub has_ended: bool,
    /// Its reasons.
    pub reasons: Vec<String>,
    /// By flow id.
    pub flows: BTreeMap<String, FlowView>,
    /// By name.
    pub links: BTreeMap<String, LinkView>,
    /// By name.
    pub probes: BTreeMap<String, ProbeView>,
    /// The machine of each node, by node.
    pub hosts: BTreeMap<String, HostView>,
    /// Rows of flows beyond the number that the view holds.
    pub rows_left_out: u64,
    /// Rows from before the trial's start, or of nodes whose clock is not known.
    pub rows_outside: u64,
}

/// A phase, on the trial's time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseView {
    /// Its name.
    pub name: String,
    /// In microseconds since the trial's start.
    pub start_us: u64,
    /// In microseconds since the trial's start.
    pub end_us: u64,
}

/// Index of a bin, minimum, mean and maximum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bin(pub u32, pub f32, pub f32, pub f32);

/// One quantity: the mean of its newest bin, and the bins that have changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantity {
    /// `None` without a sample.
    pub now: Option<f32>,
    /// Empty if nothing has changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bins: Vec<Bin>,
}

/// A data connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// The flow group.
    pub group: String,
    /// The congestion control, as the kernel calls it.
    pub cc: String,
    /// Time without a row: the flow has ended, or its samples are missing.
    pub idle_s: f64,
    /// Bytes that the receiver got, or if it is not sampled those that were acknowledged.
    pub rate_bps: Quantity,
    /// Smoothed RTT of the sender.
    pub rtt_us: Quantity,
    /// Congestion window.
    pub cwnd_pkts: Quantity,
    /// Packets in flight (RFC 6675).
    pub in_flight_pkts: Quantity,
    /// Retransmitted packets so far.
    pub retrans_pkts: u64,
    /// Packets that were marked, as the sender knows (`delivered_ce_pkts`); `None` if the kernel does not count them.
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
    /// Those of them without an answer.
    pub lost: u64,
}

/// The machine under a node, as of its last sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostView {
    /// Of all CPUs together.
    pub busy_pct: f32,
    /// Of the busiest CPU.
    pub max_busy_pct: f32,
    /// The highest `max_busy_pct` of the trial.
    pub peak_busy_pct: f32,
    /// Taken by the hypervisor.
    pub steal_pct: f32,
    /// Of one CPU, by the agent.
    pub agent_pct: f32,
    /// Packets that the kernel dropped before a queue, in this trial.
    pub softnet_dropped: u64,
}
