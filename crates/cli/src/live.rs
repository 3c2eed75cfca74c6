//! What a person (or a program) sees while an experiment runs: one line that moves on a terminal, plain
//! lines elsewhere, one JSON object per line with `--json`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use ccbench_proto::schedule::{PhaseSpan, Run};
use ccbench_proto::units::Micros;
use ccbench_proto::wire;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::results::TrialStatus;
use crate::results::verdict::Verdict;

/// Seconds between two status lines when the output is not a terminal.
const PLAIN_EVERY_S: u64 = 10;

/// The live view of one `ccbench run`.
pub struct Live {
    output: Output,
    trials: u32,
    done: u32,
    label: String,
    /// Point and repetition of the trial that runs.
    run: (u32, u16),
    phases: Vec<PhaseSpan>,
    length: Micros,
    phase: Option<usize>,
    last_plain_s: u64,
    /// Time that the trials after this one will take.
    rest: Duration,
    sockets: BTreeMap<(String, String), Socket>,
    /// What each probe measured last, in milliseconds; `None` if nothing came back.
    probes: BTreeMap<String, Option<f64>>,
    lab: Option<WallTime>,
}

/// In the lab the experiment's time is the guest's; this is how ours goes beside it.
struct WallTime {
    since: tokio::time::Instant,
    /// Seconds of ours for one of the guest's, as the last tick saw it.
    per_guest_s: f64,
}

enum Output {
    Json,
    Plain,
    Bar(ProgressBar),
}

/// The newest sample of one data socket, and what was shown last.
#[derive(Default)]
struct Socket {
    group: String,
    shown_at_ns: u64,
    shown_bytes: u64,
    at_ns: u64,
    bytes: u64,
    rtt_us: Option<u32>,
    receives: bool,
}

/// Throughput and round-trip time of a flow group at this moment.
#[derive(Debug, Clone, PartialEq)]
struct GroupNow {
    name: String,
    bits_per_s: f64,
    rtt_us: Option<f64>,
}

impl Live {
    /// A view for `trials` trials; a bar if standard error is a terminal.
    pub fn new(json: bool, trials: u32) -> Self {
        let output = if json {
            Output::Json
        } else if std::io::stderr().is_terminal() {
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
            phases: Vec::new(),
            length: Micros::default(),
            phase: None,
            last_plain_s: 0,
            rest: Duration::ZERO,
            sockets: BTreeMap::new(),
            probes: BTreeMap::new(),
            lab: None,
        }
    }

    /// The trials run in the lab.
    pub fn in_lab(&mut self) {
        self.lab = Some(WallTime { since: tokio::time::Instant::now(), per_guest_s: 1.0 });
    }

    /// Something worth a line of its own.
    pub fn say(&self, kind: &str, text: &str) {
        match &self.output {
            Output::Json => print_json(&json!({"event": kind, "message": text})),
            Output::Plain => eprintln!("{text}"),
            Output::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
        }
    }

    /// A trial begins: `label` names point and repetition; `rest` is what later trials will take.
    pub fn trial_start(&mut self, run: &Run, label: &str, phases: &[PhaseSpan], rest: Duration) {
        self.label = label.to_owned();
        self.run = (run.point_id, run.trial);
        self.phases = phases.to_vec();
        self.length = phases.last().map_or(Micros::default(), |phase| phase.end);
        self.phase = None;
        self.last_plain_s = 0;
        self.rest = rest;
        self.sockets.clear();
        self.probes.clear();
        if let Some(wall) = &mut self.lab {
            wall.since = tokio::time::Instant::now();
        }
        match &self.output {
            Output::Json => print_json(&json!({
                "event": "trial_start", "index": self.done + 1, "trials": self.trials,
                "point_id": run.point_id, "trial": run.trial, "label": label,
                "length_s": self.length.as_secs_f64(),
            })),
            Output::Plain => eprintln!(
                "trial {}/{} {label}: {} s",
                self.done + 1,
                self.trials,
                self.length.as_secs_f64()
            ),
            Output::Bar(bar) => bar.set_length(self.length.get().max(1)),
        }
    }

    /// Takes note of a row.
    pub fn row(&mut self, node: &str, event: &wire::RunEvent) {
        let sample = match &event.of {
            Some(wire::run_event::Of::FlowSample(sample)) => sample,
            Some(wire::run_event::Of::Probe(probe)) => {
                let us = probe.total_us.or(probe.rtt_us);
                self.probes.insert(probe.probe_id.clone(), us.map(|us| us / 1e3));
                return;
            }
            _ => return,
        };
        if sample.role != "data" {
            return;
        }
        let key = (node.to_owned(), sample.flow_id.clone());
        let receives = sample.side == "rcv";
        let bytes = if receives { sample.bytes_received } else { sample.bytes_acked };
        let socket = self.sockets.entry(key).or_insert_with(|| Socket {
            group: sample.group.clone(),
            shown_at_ns: sample.at_ns,
            shown_bytes: bytes.unwrap_or(0),
            receives,
            ..Socket::default()
        });
        socket.at_ns = sample.at_ns;
        socket.bytes = bytes.unwrap_or(socket.bytes);
        socket.rtt_us = sample.rtt_us;
    }

    /// Shows where the trial is, `elapsed` after its beginning.
    pub fn tick(&mut self, elapsed: Micros) {
        let phase = self.phases.iter().rposition(|phase| elapsed >= phase.start);
        let new_phase = phase != self.phase;
        self.phase = phase;
        let name = phase
            .and_then(|i| self.phases.get(i))
            .map_or("starting", |p| p.name.as_str())
            .to_owned();
        let seconds = elapsed.get() / 1_000_000;
        let every_s = match self.output {
            Output::Json => 1,
            Output::Plain => PLAIN_EVERY_S,
            Output::Bar(_) => 0,
        };
        if !new_phase && seconds < self.last_plain_s + every_s {
            return;
        }
        self.last_plain_s = seconds;
        let groups = self.groups_now();
        let mut left = (self.length - elapsed).duration() + self.rest;
        let shown = elapsed.min(self.length);
        let mut wall_s = None;
        if let Some(wall) = &mut self.lab {
            let passed_s = wall.since.elapsed().as_secs_f64();
            if shown.get() > 0 {
                wall.per_guest_s = passed_s / shown.as_secs_f64();
            }
            left = left.mul_f64(wall.per_guest_s);
            wall_s = Some(passed_s);
        }
        let wall_text = wall_s.map_or(String::new(), |s| format!(" (wall {s:.0} s)"));
        match &self.output {
            Output::Json => print_json(&json!({
                "event": "progress", "phase": name, "elapsed_s": shown.as_secs_f64(),
                "left_s": left.as_secs(), "wall_s": wall_s,
                "groups": groups.iter().map(|g| json!({
                    "group": g.name, "throughput_bps": g.bits_per_s.round(), "srtt_us": g.rtt_us,
                })).collect::<Vec<_>>(),
                "probes_ms": self.probes,
            })),
            Output::Plain => {
                eprintln!(
                    "  {:>4} s{wall_text}  {name:<12} {}{}",
                    shown.get() / 1_000_000,
                    groups_text(&groups),
                    probes_text(&self.probes)
                );
            }
            Output::Bar(bar) => {
                bar.set_position(shown.get());
                bar.set_message(format!(
                    "{}/{} {} · {name} · {} left{wall_text} · {}{}",
                    self.done + 1,
                    self.trials,
                    self.label,
                    clock_text(left),
                    groups_text(&groups),
                    probes_text(&self.probes)
                ));
            }
        }
    }

    /// A trial ended.
    pub fn trial_end(&mut self, verdict: &Verdict) {
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
        self.say("trial_end", &text);
    }

    /// Nothing more will be shown.
    pub fn finish(&self) {
        if let Output::Bar(bar) = &self.output {
            bar.finish_and_clear();
        }
    }

    /// Throughput since the last call (receiving sockets where both ends are seen) and mean srtt.
    fn groups_now(&mut self) -> Vec<GroupNow> {
        let receivers: std::collections::BTreeSet<String> =
            self.sockets.values().filter(|s| s.receives).map(|s| s.group.clone()).collect();
        let mut groups: BTreeMap<String, (f64, Vec<f64>)> = BTreeMap::new();
        for socket in self.sockets.values_mut() {
            let span_ns = socket.at_ns.saturating_sub(socket.shown_at_ns);
            let bytes = socket.bytes.saturating_sub(socket.shown_bytes);
            (socket.shown_at_ns, socket.shown_bytes) = (socket.at_ns, socket.bytes);
            let group = groups.entry(socket.group.clone()).or_default();
            if span_ns > 0 && (socket.receives || !receivers.contains(&socket.group)) {
                group.0 += bytes as f64 * 8e9 / span_ns as f64;
            }
            if span_ns > 0 && !socket.receives {
                group.1.extend(socket.rtt_us.map(f64::from));
            }
        }
        let mean =
            |rtts: &[f64]| (!rtts.is_empty()).then(|| rtts.iter().sum::<f64>() / rtts.len() as f64);
        groups
            .into_iter()
            .filter(|(_, (rate, rtts))| *rate > 0.0 || !rtts.is_empty())
            .map(|(name, (bits_per_s, rtts))| GroupNow { name, bits_per_s, rtt_us: mean(&rtts) })
            .collect()
    }
}

/// What each probe measured last: ` · rtt 20.7 ms · page lost`.
fn probes_text(probes: &BTreeMap<String, Option<f64>>) -> String {
    let one = |(name, ms): (&String, &Option<f64>)| match ms {
        Some(ms) => format!(" · {name} {ms:.1} ms"),
        None => format!(" · {name} lost"),
    };
    probes.iter().map(one).collect()
}

fn groups_text(groups: &[GroupNow]) -> String {
    let one = |g: &GroupNow| {
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
    // A reader that went away must not end the experiment.
    let _ = writeln!(std::io::stdout(), "{value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(side: &str, at_ns: u64, bytes: u64, rtt_us: u32) -> wire::RunEvent {
        let sample = wire::FlowSample {
            at_ns,
            flow_id: "a/0".into(),
            group: "a".into(),
            side: side.into(),
            role: "data".into(),
            bytes_received: (side == "rcv").then_some(bytes),
            bytes_acked: (side == "snd").then_some(bytes),
            rtt_us: Some(rtt_us),
            ..Default::default()
        };
        wire::RunEvent { of: Some(wire::run_event::Of::FlowSample(sample)) }
    }

    #[test]
    fn both_ends_of_a_flow_are_counted_once() {
        let mut live = Live::new(true, 1);
        for (at_ns, bytes) in [(1_000_000_000, 0), (2_000_000_000, 1_250_000)] {
            live.row("dst", &sample("rcv", at_ns, bytes, 1));
            live.row("src", &sample("snd", at_ns, bytes, 20_000));
        }
        let now = GroupNow { name: "a".into(), bits_per_s: 1e7, rtt_us: Some(20_000.0) };
        assert_eq!(live.groups_now(), [now]);
        assert!(live.groups_now().is_empty(), "nothing new since");
    }

    #[test]
    fn times_read_as_a_clock() {
        assert_eq!(clock_text(Duration::from_secs(65)), "1:05");
        assert_eq!(clock_text(Duration::from_secs(7380)), "2:03:00");
    }
}
