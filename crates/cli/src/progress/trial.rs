//! Progress of one trial.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::printable;
use ccbench_proto::schedule::{self, PhaseSpan};
use ccbench_proto::units::Micros;
use ccbench_proto::wire::{self, Role, Side};
use ccbench_results::TrialStatus;
use ccbench_results::model::{NodeClock, Status, Verdict};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::time::Instant;

use super::{Output, Progress, clock_text};
use crate::clock;
use crate::console::print_json;
use crate::live::trial::TrialFacts;

/// Seconds between two lines of a phase when standard error is not a terminal.
const PLAIN_INTERVAL_S: u64 = 10;
/// Trial time between two estimates of the remaining time for live views, in microseconds.
const LIVE_INTERVAL_US: u64 = 200_000;
/// Minimum wall-clock time between two verdicts for live views. Each one copies all reasons, and virtual time may pass quickly.
const VERDICT_INTERVAL: Duration = Duration::from_millis(200);

/// Phases and flow groups of a trial; times count from its start.
#[derive(Debug, Default)]
pub struct TrialSchedule {
    phases: Vec<PhaseSpan>,
    /// Start and stop by flow group.
    groups: BTreeMap<String, (Micros, Micros)>,
    /// Number of data connections of all groups.
    flows: u64,
}

impl TrialSchedule {
    /// Returns the schedule of a point's plan.
    pub fn from_plan(plan: &CheckedPlan) -> Self {
        let flows = schedule::flows(plan);
        Self {
            phases: schedule::phases(plan),
            flows: flows.iter().map(|flow| u64::from(flow.plan.count)).sum(),
            groups: flows.into_iter().map(|flow| (flow.group, (flow.start, flow.stop))).collect(),
        }
    }

    /// Returns the time from the first phase to the end of the last one.
    pub(super) fn length(&self) -> Micros {
        self.phases.last().map_or(Micros::default(), |phase| phase.end)
    }

    /// Returns what a live view shows before the first row.
    pub(super) fn facts(&self, number: usize, label: &str) -> TrialFacts {
        let (label, phases) = (label.to_owned(), self.phases.clone());
        TrialFacts { number, label, phases, flows: self.flows }
    }

    fn is_active(&self, group: &str, phase: &PhaseSpan) -> bool {
        self.groups.get(group).is_none_or(|(start, stop)| *start < phase.end && *stop > phase.start)
    }
}

/// Prints the progress of one trial.
pub struct TrialProgress<'a> {
    pub(super) progress: &'a Progress,
    /// The bar, on a terminal.
    pub(super) bar: Option<ProgressBar>,
    /// Position in the order of all trials, from 1.
    pub(super) number: usize,
    pub(super) label: String,
    /// Point and repetition.
    pub(super) run: (u32, u16),
    pub(super) schedule: TrialSchedule,
    /// Index of the running phase; the number of phases after the last one.
    pub(super) phase: usize,
    /// When the last line was printed, in seconds since the trial's start.
    pub(super) printed_s: u64,
    /// Time that the trials after this one will take.
    pub(super) rest: Duration,
    pub(super) sockets: BTreeMap<(String, String), Socket>,
    pub(super) probes: BTreeMap<String, Mean>,
    pub(super) wall_time: Option<WallTime>,
    /// When live views get the next estimate, in microseconds since the trial's start.
    pub(super) live_due_us: u64,
    /// When live views got the last verdict.
    pub(super) judged: Instant,
}

/// Wall-clock time of a trial on a virtual clock.
pub(super) struct WallTime {
    trial_start: Instant,
    /// Wall-clock seconds per guest second, as of the last tick.
    per_guest_s: f64,
}

impl WallTime {
    /// Returns the wall-clock time of a trial that starts `now`.
    pub(super) fn starting(now: Instant) -> Self {
        Self { trial_start: now, per_guest_s: 1.0 }
    }
}

/// Counters of one data socket since the start of the next line's interval: the phase for plain lines, otherwise the time since
/// the last line.
#[derive(Default)]
pub(super) struct Socket {
    group: String,
    from_ns: u64,
    from_bytes: u64,
    at_ns: u64,
    bytes: u64,
    rtt: Mean,
    receives: bool,
}

/// The mean of measurements in microseconds.
#[derive(Default, Clone, Copy)]
pub(super) struct Mean {
    sum_us: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, us: Option<f64>) {
        self.sum_us += us.unwrap_or(0.0);
        self.count += u32::from(us.is_some());
    }

    fn mean_us(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_us / f64::from(self.count))
    }
}

/// Throughput and smoothed RTT of a flow group over that interval.
#[derive(Debug, Clone, PartialEq)]
struct GroupStats {
    name: String,
    bits_per_s: f64,
    rtt_us: Option<f64>,
}

/// The contents of one progress line.
#[derive(Debug, PartialEq)]
struct Snapshot {
    phase: String,
    at: Micros,
    groups: Vec<GroupStats>,
    /// Mean of each probe in milliseconds; `None` if no reply arrived.
    probes: BTreeMap<String, Option<f64>>,
}

impl<'a> TrialProgress<'a> {
    /// Makes the state before the first row of a trial without phases.
    pub(super) fn idle(progress: &'a Progress) -> Self {
        Self {
            progress,
            bar: None,
            number: 1,
            label: String::new(),
            run: (0, 0),
            schedule: TrialSchedule::default(),
            phase: 0,
            printed_s: 0,
            rest: Duration::ZERO,
            sockets: BTreeMap::new(),
            probes: BTreeMap::new(),
            wall_time: None,
            live_due_us: 0,
            judged: clock::now(),
        }
    }

    /// Passes the trial's start on the clock of each node to live views.
    pub fn clocks(&self, clocks: &BTreeMap<String, NodeClock>) {
        let t0_ns = clocks.iter().map(|(node, clock)| (node.clone(), clock.t0_ns)).collect();
        self.progress.live.state().clocks(self.number, t0_ns);
    }

    /// Reports that the trial has lost a node and waits until every node answers.
    pub fn suspend(&self) {
        self.progress.live.state().suspend_trial(self.number);
    }

    /// Reports that every node answers and the trial starts again.
    pub fn repeat_after_loss(&mut self) {
        let repeated = &self.progress.repeated;
        repeated.set(repeated.get() + 1);
        self.repeat("every node answers again");
    }

    /// Reports that the trial starts again. The rows so far are void.
    pub fn repeat(&mut self, why: &str) {
        let attempt = self.progress.live.state().repeat_trial(self.number);
        (self.phase, self.printed_s, self.live_due_us) = (0, 0, 0);
        self.sockets.clear();
        self.probes.clear();
        let text =
            format!("trial {}/{}: {why}; attempt {attempt}", self.number, self.progress.trials);
        self.message("trial_repeat", &text);
    }

    /// Prints a message. `kind` is its event in JSON output.
    pub fn message(&self, kind: &str, text: &str) {
        self.progress.message(kind, text);
    }

    /// Reports that the trial ended without a result.
    pub fn discard(&self, kind: &str, text: &str) {
        self.remove_bar();
        self.progress.live.state().end_trial(self.number, "discarded", vec![]);
        self.message(kind, text);
    }

    fn remove_bar(&self) {
        if let (Some(bar), Output::Bars(bars)) = (&self.bar, &self.progress.output) {
            bar.finish_and_clear();
            bars.remove(bar);
        }
    }

    /// Adds a row of a node's stream to the statistics.
    pub fn record(&mut self, node: &str, event: &wire::RunEvent) {
        self.progress.live.state().record(self.number, node, event);
        let sample = match &event.payload {
            Some(wire::run_event::Payload::FlowSample(sample)) => sample,
            Some(wire::run_event::Payload::Probe(probe)) => {
                // Its rows count bytes; they have no duration.
                if probe.kind() == wire::ProbeKind::UdpStream {
                    return;
                }
                let mean = self.probes.entry(probe.probe_id.clone()).or_default();
                mean.add(probe.total_us.or(probe.rtt_us));
                return;
            }
            _ => return,
        };
        if sample.role() != Role::Data {
            return;
        }
        let key = (node.to_owned(), sample.flow_id.clone());
        let receives = sample.side() == Side::Receiver;
        let bytes = if receives { sample.bytes_received } else { sample.bytes_acked };
        let socket = self.sockets.entry(key).or_insert_with(|| Socket {
            group: sample.group.clone(),
            from_ns: sample.at_ns,
            from_bytes: bytes.unwrap_or(0),
            receives,
            ..Socket::default()
        });
        socket.at_ns = sample.at_ns;
        socket.bytes = bytes.unwrap_or(socket.bytes);
        socket.rtt.add(sample.rtt_us.map(f64::from));
    }

    /// Prints what is due `elapsed` after the trial's start.
    pub fn tick(&mut self, elapsed: Micros) {
        for snapshot in self.due(elapsed) {
            self.print(&snapshot);
        }
        if elapsed.get() >= self.live_due_us {
            self.live_due_us = elapsed.get() + LIVE_INTERVAL_US;
            let (left, _) = self.left(elapsed);
            self.progress.live.state().tick(self.number, elapsed.nanos(), left);
        }
    }

    /// Passes the verdict so far to live views if theirs is old.
    pub fn judge(&mut self, so_far: impl FnOnce() -> Verdict) {
        if clock::since(self.judged) >= VERDICT_INTERVAL {
            self.judged = clock::now();
            let (status, reasons) = verdict_texts(&so_far());
            self.progress.live.state().judge(self.number, status, reasons);
        }
    }

    /// Returns the time that this trial from `at` on and those after it will take, and the trial's wall-clock time so far if its
    /// clock is virtual.
    fn left(&mut self, at: Micros) -> (Duration, Option<f64>) {
        let left = (self.schedule.length() - at).duration() + self.rest;
        let Some(wall) = &mut self.wall_time else { return (left, None) };
        let elapsed_s = clock::since(wall.trial_start).as_secs_f64();
        // Before that, the ratio would mostly measure the trial's preparation.
        if at.get() >= LIVE_INTERVAL_US {
            wall.per_guest_s = elapsed_s / at.as_secs_f64();
        }
        (left.mul_f64(wall.per_guest_s), Some(elapsed_s))
    }

    /// Returns a snapshot of every phase that has ended, and of the current one if its interval is over.
    fn due(&mut self, elapsed: Micros) -> Vec<Snapshot> {
        let phases = &self.schedule.phases;
        let now = phases.iter().position(|phase| elapsed < phase.end).unwrap_or(phases.len());
        let seconds = elapsed.get() / 1_000_000;
        let mut due = Vec::new();
        while self.phase < now {
            due.extend(self.snapshot(None));
            self.start_interval();
            self.phase += 1;
            self.printed_s = seconds;
        }
        let interval_s = match self.progress.output {
            Output::Json => 1,
            Output::Plain => PLAIN_INTERVAL_S,
            Output::Bars(_) => 0,
        };
        if seconds >= self.printed_s + interval_s {
            self.printed_s = seconds;
            due.extend(self.snapshot(Some(elapsed)));
            if !matches!(self.progress.output, Output::Plain) {
                self.start_interval();
            }
        }
        due
    }

    fn print(&mut self, snapshot: &Snapshot) {
        let Snapshot { phase, at, groups, probes } = snapshot;
        let (left, wall_s) = self.left(*at);
        let wall_text = wall_s.map_or(String::new(), |s| format!(" (wall {s:.0} s)"));
        let (point_id, trial) = self.run;
        let Progress { output, trials, jobs, .. } = self.progress;
        match output {
            Output::Json => print_json(&json!({
                "event": "progress", "point_id": point_id, "trial": trial,
                "phase": phase, "elapsed_s": at.as_secs_f64(), "left_s": left.as_secs(), "wall_s": wall_s,
                "groups": groups.iter().map(|g| json!({
                    "group": g.name, "throughput_bps": g.bits_per_s.round(), "srtt_us": g.rtt_us,
                })).collect::<Vec<_>>(),
                "probes_ms": probes,
            })),
            Output::Plain => {
                let number = self.number;
                let which = (jobs.get() > 1).then(|| format!("{number}/{trials} "));
                self.progress.line(format_args!(
                    "  {}{:>4} s{wall_text}  {phase:<12} {}{}",
                    which.unwrap_or_default(),
                    at.get() / 1_000_000,
                    groups_text(groups),
                    probes_text(probes)
                ));
            }
            Output::Bars(_) => {
                let Some(bar) = &self.bar else { return };
                bar.set_position(at.get());
                let text = format!(
                    "{}/{trials} {} · {phase} · {} left{wall_text} · {}{}",
                    self.number,
                    self.label,
                    clock_text(left),
                    groups_text(groups),
                    probes_text(probes)
                );
                bar.set_message(printable::line(&text).into_owned());
            }
        }
    }

    /// Reports the trial's verdict.
    pub fn end(&mut self, verdict: &Verdict) {
        if verdict.status != Status::Failed {
            // There may have been no tick since the end of the last phase.
            self.tick(self.schedule.length());
        }
        self.remove_bar();
        let (status, reasons) = verdict_texts(verdict);
        self.progress.live.state().end_trial(self.number, status, reasons);
        let Progress { output, trials, .. } = self.progress;
        if let Output::Json = output {
            let (point_id, trial) = self.run;
            print_json(&json!({
                "event": "trial_end", "index": self.number, "point_id": point_id, "trial": trial,
                "label": self.label, "status": status, "reasons": verdict.reasons,
            }));
            return;
        }
        let mut text = format!("trial {}/{trials} {}: {status}", self.number, self.label);
        for reason in &verdict.reasons {
            text.push_str("\n    ");
            text.push_str(&reason.message);
        }
        self.message("trial_end", &text);
    }

    /// Returns statistics of the current phase at a time, by default at its end; `None` after the last phase.
    fn snapshot(&self, at: Option<Micros>) -> Option<Snapshot> {
        let phase = self.schedule.phases.get(self.phase)?;
        let mut groups = self.group_stats();
        groups.retain(|group| self.schedule.is_active(&group.name, phase));
        let mean_ms = |mean: &Mean| mean.mean_us().map(|us| us / 1e3);
        Some(Snapshot {
            phase: phase.name.clone(),
            at: at.unwrap_or(phase.end),
            groups,
            probes: self.probes.iter().map(|(id, mean)| (id.clone(), mean_ms(mean))).collect(),
        })
    }

    /// Starts the next interval of all counters.
    fn start_interval(&mut self) {
        self.probes.clear();
        for socket in self.sockets.values_mut() {
            (socket.from_ns, socket.from_bytes) = (socket.at_ns, socket.bytes);
            socket.rtt = Mean::default();
        }
    }

    /// Returns throughput (receiver goodput where both ends are sampled) and mean smoothed RTT by group.
    fn group_stats(&self) -> Vec<GroupStats> {
        let receivers: BTreeSet<&String> =
            self.sockets.values().filter(|s| s.receives).map(|s| &s.group).collect();
        let mut groups: BTreeMap<&String, (f64, Mean)> = BTreeMap::new();
        for socket in self.sockets.values() {
            let span_ns = socket.at_ns.saturating_sub(socket.from_ns);
            if span_ns == 0 {
                continue;
            }
            let (rate, rtt) = groups.entry(&socket.group).or_default();
            if socket.receives || !receivers.contains(&socket.group) {
                let bytes = socket.bytes.saturating_sub(socket.from_bytes);
                *rate += bytes as f64 * 8e9 / span_ns as f64;
            }
            if !socket.receives {
                rtt.sum_us += socket.rtt.sum_us;
                rtt.count += socket.rtt.count;
            }
        }
        let stats = |(name, (bits_per_s, rtt)): (&String, (f64, Mean))| GroupStats {
            name: name.clone(),
            bits_per_s,
            rtt_us: rtt.mean_us(),
        };
        groups.into_iter().map(stats).collect()
    }
}

/// Returns a verdict for live views: its status, and one line per reason.
fn verdict_texts(verdict: &Verdict) -> (&'static str, Vec<String>) {
    let reasons = verdict.reasons.iter().map(|reason| reason.message.clone()).collect();
    (TrialStatus::from(verdict.status).as_str(), reasons)
}

/// Returns the mean of each probe, such as ` · rtt 20.7 ms · page lost`.
fn probes_text(probes: &BTreeMap<String, Option<f64>>) -> String {
    let one = |(name, ms): (&String, &Option<f64>)| match ms {
        Some(ms) => format!(" · {name} {ms:.1} ms"),
        None => format!(" · {name} lost"),
    };
    probes.iter().map(one).collect()
}

fn groups_text(groups: &[GroupStats]) -> String {
    let one = |g: &GroupStats| {
        let rtt = g.rtt_us.map_or(String::new(), |us| format!(" {:.1} ms", us / 1000.0));
        format!("{} {:.1} Mbit/s{rtt}", g.name, g.bits_per_s / 1e6)
    };
    groups.iter().map(one).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use ccbench_proto::schedule::ScheduledTrial;

    use super::*;

    fn sample(group: &str, side: Side, at_ns: u64, bytes: u64, rtt_us: u32) -> wire::RunEvent {
        let sample = wire::FlowSample {
            at_ns,
            flow_id: format!("{group}/0"),
            group: group.into(),
            side: side.into(),
            role: Role::Data.into(),
            bytes_received: (side == Side::Receiver).then_some(bytes),
            bytes_acked: (side == Side::Sender).then_some(bytes),
            rtt_us: Some(rtt_us),
            ..Default::default()
        };
        wire::RunEvent { payload: Some(wire::run_event::Payload::FlowSample(sample)) }
    }

    fn stats(name: &str, bits_per_s: f64, rtt_us: f64) -> GroupStats {
        GroupStats { name: name.into(), bits_per_s, rtt_us: Some(rtt_us) }
    }

    #[test]
    fn counts_a_flow_sampled_at_both_ends_once() {
        let all = Progress::new(true, 1);
        let mut progress = TrialProgress::idle(&all);
        for (at_ns, bytes) in [(1_000_000_000, 0), (2_000_000_000, 1_250_000)] {
            progress.record("dst", &sample("a", Side::Receiver, at_ns, bytes, 1));
            progress.record("src", &sample("a", Side::Sender, at_ns, bytes, 20_000));
        }
        assert_eq!(progress.group_stats(), [stats("a", 1e7, 20_000.0)]);
        progress.start_interval();
        assert!(progress.group_stats().is_empty(), "no row since");
    }

    #[test]
    fn prints_a_phase_at_its_end_with_its_active_groups() {
        let second = |s: u64| Micros::new(s * 1_000_000);
        let phase = |name: &str, start, end| PhaseSpan::new(name, second(start), second(end));
        let phases = vec![phase("both", 0, 12), phase("rest", 12, 18)];
        let groups = [("a", 18), ("b", 12)];
        let groups = groups.map(|(name, stop)| (name.to_owned(), (second(0), second(stop))));
        let all = Progress { output: Output::Plain, ..Progress::new(false, 1) };
        let mut progress = TrialProgress::idle(&all);
        progress.schedule = TrialSchedule { phases, groups: groups.into(), flows: 2 };
        let mut printed = Vec::new();
        let mut bytes = 0;
        for s in 0..=18 {
            // In the second phase, the rate of `a` doubles and its RTT halves. The last row of `b` comes after its end.
            let rtt_us = if s <= 12 { 20_000 } else { 10_000 };
            progress.record("src", &sample("a", Side::Sender, s * 1_000_000_000, bytes, rtt_us));
            if s <= 13 {
                progress.record(
                    "src",
                    &sample("b", Side::Sender, s * 1_000_000_000, s * 125_000, 30_000),
                );
            }
            if s == 1 {
                let rtt = wire::Probe {
                    probe_id: "rtt".into(),
                    rtt_us: Some(21_000.0),
                    kind: wire::ProbeKind::Ping.into(),
                    ..Default::default()
                };
                let stream = wire::Probe {
                    probe_id: "stream".into(),
                    bytes: Some(125_000),
                    kind: wire::ProbeKind::UdpStream.into(),
                    ..Default::default()
                };
                for probe in [rtt, stream] {
                    let payload = Some(wire::run_event::Payload::Probe(probe));
                    progress.record("src", &wire::RunEvent { payload });
                }
            }
            bytes += if s < 12 { 1_250_000 } else { 2_500_000 };
            printed.extend(progress.due(second(s)));
        }
        let line = |phase: &str, at: u64, groups: &[GroupStats], probes: &[(&str, f64)]| Snapshot {
            phase: phase.into(),
            at: second(at),
            groups: groups.to_vec(),
            probes: probes.iter().map(|(name, ms)| ((*name).to_owned(), Some(*ms))).collect(),
        };
        let both = [stats("a", 1e7, 20_000.0), stats("b", 1e6, 30_000.0)];
        let expected = [
            line("both", 10, &both, &[("rtt", 21.0)]),
            line("both", 12, &both, &[("rtt", 21.0)]),
            line("rest", 18, &[stats("a", 2e7, 10_000.0)], &[]),
        ];
        assert_eq!(printed, expected);
        assert!(progress.due(second(30)).is_empty());
    }

    #[test]
    fn a_repeated_trial_has_no_rows_of_the_attempt_before() {
        let second = |s: u64| Micros::new(s * 1_000_000);
        let phases = [("alone", 0), ("compete", 10)];
        let phases = phases.map(|(name, s)| PhaseSpan::new(name, second(s), second(s + 10))).into();
        let all = Progress { output: Output::Plain, ..Progress::new(false, 1) };
        let mut progress = TrialProgress::idle(&all);
        progress.schedule = TrialSchedule { phases, groups: BTreeMap::new(), flows: 1 };
        let rate_at_end = |progress: &mut TrialProgress<'_>, bytes_per_s: u64| {
            let mut printed = Vec::new();
            for s in 0..=12 {
                let row = sample("a", Side::Sender, s * 1_000_000_000, s * bytes_per_s, 20_000);
                progress.record("src", &row);
                printed.extend(progress.due(second(s)));
            }
            printed
        };
        let first = rate_at_end(&mut progress, 1_250_000);
        assert_eq!(first.last().unwrap().groups, [stats("a", 1e7, 20_000.0)]);
        progress.repeat_after_loss();
        assert_eq!(all.repeated(), 1);
        let again = rate_at_end(&mut progress, 2_500_000);
        assert_eq!(again.last().unwrap().phase, "alone");
        assert_eq!(again.last().unwrap().groups, [stats("a", 2e7, 20_000.0)]);
    }

    #[test]
    fn later_trials_take_less_time_if_several_run_at_once() {
        let rest = |jobs| {
            let all = Progress { output: Output::Plain, ..Progress::new(false, 7) };
            all.set_jobs(jobs);
            let scheduled = ScheduledTrial { point_id: 3, trial: 2, seed: 1, index: 0 };
            let later = Duration::from_secs(60);
            let next = (later, None);
            let trial = all.trial_start(4, &scheduled, "x", TrialSchedule::default(), next);
            assert_eq!((trial.number, trial.run), (5, (3, 2)));
            trial.rest
        };
        assert_eq!(rest(1), Duration::from_secs(60));
        assert_eq!(rest(3), Duration::from_secs(20));
    }
}
