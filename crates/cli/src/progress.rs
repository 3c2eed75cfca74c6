//! Progress of an experiment: a progress bar on a terminal, plain lines elsewhere, one JSON object per line with
//! `--json`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::Duration;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule::{self, PhaseSpan, ScheduledTrial};
use ccbench_proto::units::Micros;
use ccbench_proto::wire::{self, Role, Side};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::time::Instant;

use crate::clock;
use ccbench_results::TrialStatus;
use ccbench_results::model::{Status, Verdict};

/// Seconds between two lines of a phase when standard error is not a terminal.
const PLAIN_INTERVAL_S: u64 = 10;

/// Phases and flow groups of a trial; times count from its start.
#[derive(Debug, Default)]
pub struct TrialSchedule {
    phases: Vec<PhaseSpan>,
    /// Start and stop by flow group.
    groups: BTreeMap<String, (Micros, Micros)>,
}

impl TrialSchedule {
    /// The schedule of a point's plan.
    pub fn of(plan: &CheckedPlan) -> Self {
        let groups = schedule::flows(plan).into_iter();
        Self {
            phases: schedule::phases(plan),
            groups: groups.map(|flow| (flow.group, (flow.start, flow.stop))).collect(),
        }
    }

    fn length(&self) -> Micros {
        self.phases.last().map_or(Micros::default(), |phase| phase.end)
    }

    fn is_active(&self, group: &str, phase: &PhaseSpan) -> bool {
        self.groups.get(group).is_none_or(|(start, stop)| *start < phase.end && *stop > phase.start)
    }
}

/// Prints the progress of one `ccbench run`.
pub struct Progress {
    output: Output,
    trials: u32,
    done: u32,
    label: String,
    /// Point and repetition of the running trial.
    run: (u32, u16),
    schedule: TrialSchedule,
    /// Index of the running phase; the number of phases after the last one.
    phase: usize,
    /// When the last line was printed, in seconds since the trial's start.
    printed_s: u64,
    /// Time that the trials after this one will take.
    rest: Duration,
    sockets: BTreeMap<(String, String), Socket>,
    probes: BTreeMap<String, Mean>,
    wall_time: Option<WallTime>,
}

/// Wall-clock time of a trial that runs on the guest's virtual clock.
struct WallTime {
    trial_start: Instant,
    /// Wall-clock seconds per guest second, as of the last tick.
    per_guest_s: f64,
}

enum Output {
    Json,
    Plain,
    Bar(ProgressBar),
}

/// Counters of one data socket over the interval that is printed next: the phase so far in plain lines, else the time
/// since the last line.
#[derive(Default)]
struct Socket {
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
struct Mean {
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

/// The content of one progress line.
#[derive(Debug, PartialEq)]
struct Snapshot {
    phase: String,
    at: Micros,
    groups: Vec<GroupStats>,
    /// Mean of each probe in milliseconds; `None` if it got no reply.
    probes: BTreeMap<String, Option<f64>>,
}

impl Progress {
    /// Progress of `trials` trials: a bar if standard error is a terminal and no log lines (`-v`) go there.
    pub fn new(json: bool, trials: u32) -> Self {
        let output = if json {
            Output::Json
        } else if std::io::stderr().is_terminal() && !tracing::enabled!(tracing::Level::INFO) {
            let bar = ProgressBar::new(1);
            if let Ok(style) = ProgressStyle::with_template("{bar:24} {msg}") {
                bar.set_style(style);
            }
            Output::Bar(bar)
        } else {
            Output::Plain
        };
        Self {
            output,
            trials,
            done: 0,
            label: String::new(),
            run: (0, 0),
            schedule: TrialSchedule::default(),
            phase: 0,
            printed_s: 0,
            rest: Duration::ZERO,
            sockets: BTreeMap::new(),
            probes: BTreeMap::new(),
            wall_time: None,
        }
    }

    /// Trials run on a virtual clock: prints the wall-clock time too.
    pub fn use_virtual_time(&mut self) {
        self.wall_time = Some(WallTime { trial_start: clock::now(), per_guest_s: 1.0 });
    }

    /// Prints a message; `kind` is its event in JSON output.
    pub fn message(&self, kind: &str, text: &str) {
        match &self.output {
            Output::Json => print_json(&json!({"event": kind, "message": text})),
            Output::Plain => eprintln!("{text}"),
            Output::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
        }
    }

    /// A trial starts. `label` names point and repetition; `rest` is the time that later trials will take.
    pub fn trial_start(
        &mut self,
        scheduled: &ScheduledTrial,
        label: &str,
        schedule: TrialSchedule,
        rest: Duration,
    ) {
        self.label = label.to_owned();
        self.run = (scheduled.point_id, scheduled.trial);
        let length = schedule.length();
        self.schedule = schedule;
        self.phase = 0;
        self.printed_s = 0;
        self.rest = rest;
        self.sockets.clear();
        self.probes.clear();
        if let Some(wall) = &mut self.wall_time {
            wall.trial_start = clock::now();
        }
        match &self.output {
            Output::Json => print_json(&json!({
                "event": "trial_start", "index": self.done + 1, "trials": self.trials,
                "point_id": scheduled.point_id, "trial": scheduled.trial, "label": label,
                "length_s": length.as_secs_f64(),
            })),
            Output::Plain => eprintln!(
                "trial {}/{} {label}: {} s",
                self.done + 1,
                self.trials,
                length.as_secs_f64()
            ),
            Output::Bar(bar) => bar.set_length(length.get().max(1)),
        }
    }

    /// Adds a row of a node's stream to the statistics.
    pub fn record(&mut self, node: &str, event: &wire::RunEvent) {
        let sample = match &event.of {
            Some(wire::run_event::Of::FlowSample(sample)) => sample,
            Some(wire::run_event::Of::Probe(probe)) => {
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
    }

    /// A snapshot of every phase that has ended, and of the running one if its interval is over.
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
        let interval_s = match self.output {
            Output::Json => 1,
            Output::Plain => PLAIN_INTERVAL_S,
            Output::Bar(_) => 0,
        };
        if seconds >= self.printed_s + interval_s {
            self.printed_s = seconds;
            due.extend(self.snapshot(Some(elapsed)));
            if !matches!(self.output, Output::Plain) {
                self.start_interval();
            }
        }
        due
    }

    fn print(&mut self, snapshot: &Snapshot) {
        let Snapshot { phase, at, groups, probes } = snapshot;
        let mut left = (self.schedule.length() - *at).duration() + self.rest;
        let mut wall_s = None;
        if let Some(wall) = &mut self.wall_time {
            let elapsed_s = clock::since(wall.trial_start).as_secs_f64();
            if at.get() > 0 {
                wall.per_guest_s = elapsed_s / at.as_secs_f64();
            }
            left = left.mul_f64(wall.per_guest_s);
            wall_s = Some(elapsed_s);
        }
        let wall_text = wall_s.map_or(String::new(), |s| format!(" (wall {s:.0} s)"));
        match &self.output {
            Output::Json => print_json(&json!({
                "event": "progress", "phase": phase, "elapsed_s": at.as_secs_f64(),
                "left_s": left.as_secs(), "wall_s": wall_s,
                "groups": groups.iter().map(|g| json!({
                    "group": g.name, "throughput_bps": g.bits_per_s.round(), "srtt_us": g.rtt_us,
                })).collect::<Vec<_>>(),
                "probes_ms": probes,
            })),
            Output::Plain => {
                eprintln!(
                    "  {:>4} s{wall_text}  {phase:<12} {}{}",
                    at.get() / 1_000_000,
                    groups_text(groups),
                    probes_text(probes)
                );
            }
            Output::Bar(bar) => {
                bar.set_position(at.get());
                bar.set_message(format!(
                    "{}/{} {} · {phase} · {} left{wall_text} · {}{}",
                    self.done + 1,
                    self.trials,
                    self.label,
                    clock_text(left),
                    groups_text(groups),
                    probes_text(probes)
                ));
            }
        }
    }

    /// A trial ended with this verdict.
    pub fn trial_end(&mut self, verdict: &Verdict) {
        if verdict.status != Status::Failed {
            // There may have been no tick since the end of the last phase.
            self.tick(self.schedule.length());
        }
        self.done += 1;
        let status = TrialStatus::from(verdict.status).as_str();
        if let Output::Json = self.output {
            let (point_id, trial) = self.run;
            print_json(&json!({
                "event": "trial_end", "index": self.done, "point_id": point_id, "trial": trial,
                "label": self.label, "status": status, "reasons": verdict.reasons,
            }));
            return;
        }
        let mut text = format!("trial {}/{} {}: {status}", self.done, self.trials, self.label);
        for reason in &verdict.reasons {
            text.push_str("\n    ");
            text.push_str(&reason.message);
        }
        self.message("trial_end", &text);
    }

    /// Removes the progress bar.
    pub fn finish(&self) {
        if let Output::Bar(bar) = &self.output {
            bar.finish_and_clear();
        }
    }

    /// Statistics of the running phase at a time, by default at its end; `None` after the last phase.
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

    /// Throughput (receiver goodput where both ends are sampled) and mean smoothed RTT by group.
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

/// The mean of each probe: ` · rtt 20.7 ms · page lost`.
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

/// `1:05` or `2:03:00`.
pub fn clock_text(time: Duration) -> String {
    let s = time.as_secs();
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}

fn print_json(value: &serde_json::Value) {
    use std::io::Write;
    // A closed pipe must not end the experiment.
    let _ = writeln!(std::io::stdout(), "{value}");
}

#[cfg(test)]
mod tests {
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
        wire::RunEvent { of: Some(wire::run_event::Of::FlowSample(sample)) }
    }

    fn stats(name: &str, bits_per_s: f64, rtt_us: f64) -> GroupStats {
        GroupStats { name: name.into(), bits_per_s, rtt_us: Some(rtt_us) }
    }

    #[test]
    fn counts_a_flow_sampled_at_both_ends_once() {
        let mut progress = Progress::new(true, 1);
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
        let mut progress = Progress::new(false, 1);
        progress.output = Output::Plain;
        progress.schedule = TrialSchedule { phases, groups: groups.into() };
        let mut printed = Vec::new();
        let mut bytes = 0;
        for s in 0..=18 {
            // In the second phase the rate of `a` doubles and its RTT halves; the last row of `b` comes after its end.
            let rtt_us = if s <= 12 { 20_000 } else { 10_000 };
            progress.record("src", &sample("a", Side::Sender, s * 1_000_000_000, bytes, rtt_us));
            if s <= 13 {
                progress.record(
                    "src",
                    &sample("b", Side::Sender, s * 1_000_000_000, s * 125_000, 30_000),
                );
            }
            if s == 1 {
                let probe = wire::Probe {
                    probe_id: "rtt".into(),
                    rtt_us: Some(21_000.0),
                    ..Default::default()
                };
                progress
                    .record("src", &wire::RunEvent { of: Some(wire::run_event::Of::Probe(probe)) });
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
    fn formats_durations_as_clock_time() {
        assert_eq!(clock_text(Duration::from_secs(65)), "1:05");
        assert_eq!(clock_text(Duration::from_secs(7380)), "2:03:00");
    }
}
