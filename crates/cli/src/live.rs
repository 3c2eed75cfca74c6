//! What a person (or a program) sees while an experiment runs: one line that moves on a terminal, plain
//! lines elsewhere, one JSON object per line with `--json`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::Duration;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule::{self, PhaseSpan, Run};
use ccbench_proto::units::Micros;
use ccbench_proto::wire;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use ccbench_results::TrialStatus;
use ccbench_results::verdict::{Status, Verdict};

/// Seconds between two status lines of a phase when the output is not a terminal.
const PLAIN_EVERY_S: u64 = 10;

/// When what runs in a trial, after its beginning.
#[derive(Debug, Default)]
pub struct Timetable {
    phases: Vec<PhaseSpan>,
    /// Flow groups, from when to when.
    groups: BTreeMap<String, (Micros, Micros)>,
}

impl Timetable {
    /// A point's.
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

    fn runs(&self, group: &str, phase: &PhaseSpan) -> bool {
        self.groups.get(group).is_none_or(|(start, stop)| *start < phase.end && *stop > phase.start)
    }
}

/// The live view of one `ccbench run`.
pub struct Live {
    output: Output,
    trials: u32,
    done: u32,
    label: String,
    /// Point and repetition of the trial that runs.
    run: (u32, u16),
    times: Timetable,
    /// Which phase runs; as many as there are when all are over.
    phase: usize,
    /// When something was shown last, in seconds since the trial's beginning.
    shown_s: u64,
    /// Time that the trials after this one will take.
    rest: Duration,
    sockets: BTreeMap<(String, String), Socket>,
    probes: BTreeMap<String, Answers>,
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

/// One data socket, in the time that is shown next: of a phase so far in plain lines, else since something was shown.
#[derive(Default)]
struct Socket {
    group: String,
    from_ns: u64,
    from_bytes: u64,
    at_ns: u64,
    bytes: u64,
    rtt: Answers,
    receives: bool,
}

/// What came back in that time.
#[derive(Default, Clone, Copy)]
struct Answers {
    sum_us: f64,
    count: u32,
}

impl Answers {
    fn add(&mut self, us: Option<f64>) {
        self.sum_us += us.unwrap_or(0.0);
        self.count += u32::from(us.is_some());
    }

    fn mean_us(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_us / f64::from(self.count))
    }
}

/// Throughput and round-trip time of a flow group in that time.
#[derive(Debug, Clone, PartialEq)]
struct GroupNow {
    name: String,
    bits_per_s: f64,
    rtt_us: Option<f64>,
}

/// What is shown at once.
#[derive(Debug, PartialEq)]
struct Shown {
    phase: String,
    at: Micros,
    groups: Vec<GroupNow>,
    /// Mean of what each probe measured, in milliseconds; `None` if nothing came back.
    probes: BTreeMap<String, Option<f64>>,
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
            times: Timetable::default(),
            phase: 0,
            shown_s: 0,
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
    pub fn trial_start(&mut self, run: &Run, label: &str, times: Timetable, rest: Duration) {
        self.label = label.to_owned();
        self.run = (run.point_id, run.trial);
        let length = times.length();
        self.times = times;
        self.phase = 0;
        self.shown_s = 0;
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

    /// Takes note of a row.
    pub fn row(&mut self, node: &str, event: &wire::RunEvent) {
        let sample = match &event.of {
            Some(wire::run_event::Of::FlowSample(sample)) => sample,
            Some(wire::run_event::Of::Probe(probe)) => {
                let answers = self.probes.entry(probe.probe_id.clone()).or_default();
                answers.add(probe.total_us.or(probe.rtt_us));
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
            from_ns: sample.at_ns,
            from_bytes: bytes.unwrap_or(0),
            receives,
            ..Socket::default()
        });
        socket.at_ns = sample.at_ns;
        socket.bytes = bytes.unwrap_or(socket.bytes);
        socket.rtt.add(sample.rtt_us.map(f64::from));
    }

    /// Shows where the trial is, `elapsed` after its beginning.
    pub fn tick(&mut self, elapsed: Micros) {
        for shown in self.due(elapsed) {
            self.show(&shown);
        }
    }

    /// Phases that ended, each with its own figures, and the one that runs if something is due.
    fn due(&mut self, elapsed: Micros) -> Vec<Shown> {
        let phases = &self.times.phases;
        let now = phases.iter().position(|phase| elapsed < phase.end).unwrap_or(phases.len());
        let seconds = elapsed.get() / 1_000_000;
        let mut due = Vec::new();
        while self.phase < now {
            due.extend(self.figures(None));
            self.begin();
            self.phase += 1;
            self.shown_s = seconds;
        }
        let every_s = match self.output {
            Output::Json => 1,
            Output::Plain => PLAIN_EVERY_S,
            Output::Bar(_) => 0,
        };
        if seconds >= self.shown_s + every_s {
            self.shown_s = seconds;
            due.extend(self.figures(Some(elapsed)));
            if !matches!(self.output, Output::Plain) {
                self.begin();
            }
        }
        due
    }

    fn show(&mut self, shown: &Shown) {
        let Shown { phase, at, groups, probes } = shown;
        let mut left = (self.times.length() - *at).duration() + self.rest;
        let mut wall_s = None;
        if let Some(wall) = &mut self.lab {
            let passed_s = wall.since.elapsed().as_secs_f64();
            if at.get() > 0 {
                wall.per_guest_s = passed_s / at.as_secs_f64();
            }
            left = left.mul_f64(wall.per_guest_s);
            wall_s = Some(passed_s);
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

    /// A trial ended.
    pub fn trial_end(&mut self, verdict: &Verdict) {
        if verdict.status != Status::Failed {
            // Nothing need have ticked since the last phase's end.
            self.tick(self.times.length());
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
        self.say("trial_end", &text);
    }

    /// Nothing more will be shown.
    pub fn finish(&self) {
        if let Output::Bar(bar) = &self.output {
            bar.finish_and_clear();
        }
    }

    /// What is known of the phase that runs, at its end if no other time is given; `None` after the last.
    fn figures(&self, at: Option<Micros>) -> Option<Shown> {
        let phase = self.times.phases.get(self.phase)?;
        let mut groups = self.groups_now();
        groups.retain(|group| self.times.runs(&group.name, phase));
        let mean_ms = |answers: &Answers| answers.mean_us().map(|us| us / 1e3);
        Some(Shown {
            phase: phase.name.clone(),
            at: at.unwrap_or(phase.end),
            groups,
            probes: self.probes.iter().map(|(id, of)| (id.clone(), mean_ms(of))).collect(),
        })
    }

    /// What comes from here on is shown by itself.
    fn begin(&mut self) {
        self.probes.clear();
        for socket in self.sockets.values_mut() {
            (socket.from_ns, socket.from_bytes) = (socket.at_ns, socket.bytes);
            socket.rtt = Answers::default();
        }
    }

    /// Throughput (of receiving sockets where both ends are seen) and mean srtt.
    fn groups_now(&self) -> Vec<GroupNow> {
        let receivers: BTreeSet<&String> =
            self.sockets.values().filter(|s| s.receives).map(|s| &s.group).collect();
        let mut groups: BTreeMap<&String, (f64, Answers)> = BTreeMap::new();
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
        let now = |(name, (bits_per_s, rtt)): (&String, (f64, Answers))| GroupNow {
            name: name.clone(),
            bits_per_s,
            rtt_us: rtt.mean_us(),
        };
        groups.into_iter().map(now).collect()
    }
}

/// What each probe measured: ` · rtt 20.7 ms · page lost`.
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

    fn sample(group: &str, side: &str, at_ns: u64, bytes: u64, rtt_us: u32) -> wire::RunEvent {
        let sample = wire::FlowSample {
            at_ns,
            flow_id: format!("{group}/0"),
            group: group.into(),
            side: side.into(),
            role: "data".into(),
            bytes_received: (side == "rcv").then_some(bytes),
            bytes_acked: (side == "snd").then_some(bytes),
            rtt_us: Some(rtt_us),
            ..Default::default()
        };
        wire::RunEvent { of: Some(wire::run_event::Of::FlowSample(sample)) }
    }

    fn now(name: &str, bits_per_s: f64, rtt_us: f64) -> GroupNow {
        GroupNow { name: name.into(), bits_per_s, rtt_us: Some(rtt_us) }
    }

    #[test]
    fn both_ends_of_a_flow_are_counted_once() {
        let mut live = Live::new(true, 1);
        for (at_ns, bytes) in [(1_000_000_000, 0), (2_000_000_000, 1_250_000)] {
            live.row("dst", &sample("a", "rcv", at_ns, bytes, 1));
            live.row("src", &sample("a", "snd", at_ns, bytes, 20_000));
        }
        assert_eq!(live.groups_now(), [now("a", 1e7, 20_000.0)]);
        live.begin();
        assert!(live.groups_now().is_empty(), "nothing new since");
    }

    #[test]
    fn a_phase_is_shown_at_its_end_with_what_ran_in_it() {
        let second = |s: u64| Micros::new(s * 1_000_000);
        let phase = |name: &str, start, end| PhaseSpan {
            name: name.into(),
            start: second(start),
            end: second(end),
            measure: true,
        };
        let phases = vec![phase("both", 0, 12), phase("rest", 12, 18)];
        let groups = [("a", 18), ("b", 12)];
        let groups = groups.map(|(name, stop)| (name.to_owned(), (second(0), second(stop))));
        let mut live = Live::new(false, 1);
        live.output = Output::Plain;
        live.times = Timetable { phases, groups: groups.into() };
        let mut shown = Vec::new();
        let mut bytes = 0;
        for s in 0..=18 {
            // The rate of `a` doubles and its round trip halves with the phase; `b` has a last row after its end.
            let rtt_us = if s <= 12 { 20_000 } else { 10_000 };
            live.row("src", &sample("a", "snd", s * 1_000_000_000, bytes, rtt_us));
            if s <= 13 {
                live.row("src", &sample("b", "snd", s * 1_000_000_000, s * 125_000, 30_000));
            }
            if s == 1 {
                let probe = wire::Probe {
                    probe_id: "rtt".into(),
                    rtt_us: Some(21_000.0),
                    ..Default::default()
                };
                live.row("src", &wire::RunEvent { of: Some(wire::run_event::Of::Probe(probe)) });
            }
            bytes += if s < 12 { 1_250_000 } else { 2_500_000 };
            shown.extend(live.due(second(s)));
        }
        let line = |phase: &str, at: u64, groups: &[GroupNow], probes: &[(&str, f64)]| Shown {
            phase: phase.into(),
            at: second(at),
            groups: groups.to_vec(),
            probes: probes.iter().map(|(name, ms)| ((*name).to_owned(), Some(*ms))).collect(),
        };
        let both = [now("a", 1e7, 20_000.0), now("b", 1e6, 30_000.0)];
        let wanted = [
            line("both", 10, &both, &[("rtt", 21.0)]),
            line("both", 12, &both, &[("rtt", 21.0)]),
            line("rest", 18, &[now("a", 2e7, 10_000.0)], &[]),
        ];
        assert_eq!(shown, wanted);
        assert!(live.due(second(30)).is_empty());
    }

    #[test]
    fn times_read_as_a_clock() {
        assert_eq!(clock_text(Duration::from_secs(65)), "1:05");
        assert_eq!(clock_text(Duration::from_secs(7380)), "2:03:00");
    }
}
