//! Progress of an experiment: on a terminal, a progress bar for each running trial; otherwise plain lines, or one JSON object per
//! line with `--json`. [`ReadingProgress`] is for commands that read runs.

use std::cell::Cell;
use std::fmt::Arguments;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccbench_proto::schedule::ScheduledTrial;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::json;

use crate::clock;
use crate::console::{message, print_json};
use crate::live::Live;
use crate::virtual_network;
use trial::WallTime;

pub use reading::ReadingProgress;
pub use trial::{TrialProgress, TrialSchedule};

mod reading;
mod trial;

/// Prints the progress of one `ccbench run`.
pub struct Progress {
    output: Output,
    trials: usize,
    /// Number of concurrent trials.
    jobs: Cell<usize>,
    has_virtual_time: bool,
    /// Number of trials that were repeated after the loss of a node.
    repeated: Cell<usize>,
    live: Live,
    /// Whether a screen covers the terminal. Then plain lines are not printed.
    hidden: Arc<AtomicBool>,
}

enum Output {
    Json,
    Plain,
    /// A bar for each running trial.
    Bars(MultiProgress),
}

impl Progress {
    /// Makes the progress of `trials` trials, with bars if standard error is a terminal without log lines (`-v`).
    pub fn new(json: bool, trials: usize) -> Self {
        let output = if json {
            Output::Json
        } else if has_bars() {
            Output::Bars(MultiProgress::new())
        } else {
            Output::Plain
        };
        Self {
            output,
            trials,
            jobs: Cell::new(1),
            has_virtual_time: false,
            repeated: Cell::new(0),
            live: Live::default(),
            hidden: Arc::default(),
        }
    }

    /// Returns the state that live views show.
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// Returns the number of trials that were repeated after the loss of a node.
    pub fn repeated(&self) -> usize {
        self.repeated.get()
    }

    /// Gives the terminal to a screen: prints no bars, and plain lines only while the returned flag is false.
    pub fn hide(&mut self) -> Arc<AtomicBool> {
        self.output = Output::Plain;
        self.hidden.store(true, Ordering::Relaxed);
        Arc::clone(&self.hidden)
    }

    /// Prints a plain line.
    fn line(&self, text: Arguments<'_>) {
        if !self.hidden.load(Ordering::Relaxed) {
            message(text);
        }
    }

    /// Prints the wall-clock time too, because trials run on a virtual clock.
    pub fn use_virtual_time(&mut self) {
        self.has_virtual_time = true;
    }

    /// Sets the number of concurrent trials. With several, plain lines name their trial, and the remaining time is shorter.
    pub fn set_jobs(&self, jobs: usize) {
        self.jobs.set(jobs);
    }

    /// Prints a message. `kind` is its event in JSON output.
    pub fn message(&self, kind: &str, text: &str) {
        self.live.state().message(text);
        match &self.output {
            Output::Json => print_json(&json!({"event": kind, "message": text})),
            Output::Plain => self.line(format_args!("{text}")),
            Output::Bars(bars) => bars.suspend(|| message(format_args!("{text}"))),
        }
    }

    /// Reports that the trial of this index starts. `label` names point and repetition, `rest` is the length of all later trials,
    /// and `next` the label of the first of them.
    pub fn trial_start(
        &self,
        index: usize,
        scheduled: &ScheduledTrial,
        label: &str,
        schedule: TrialSchedule,
        (rest, next): (Duration, Option<String>),
    ) -> TrialProgress<'_> {
        let (number, length) = (index + 1, schedule.length());
        self.live.state().start_trial(schedule.facts(number, label), next);
        let mut bar = None;
        match &self.output {
            Output::Json => print_json(&json!({
                "event": "trial_start", "index": number, "trials": self.trials,
                "point_id": scheduled.point_id, "trial": scheduled.trial, "label": label,
                "length_s": length.as_secs_f64(),
            })),
            Output::Plain => {
                self.line(format_args!(
                    "trial {number}/{} {label}: {} s",
                    self.trials,
                    length.as_secs_f64()
                ));
            }
            Output::Bars(bars) => bar = Some(bars.add(new_bar(length.get().max(1)))),
        }
        TrialProgress {
            progress: self,
            bar,
            number,
            label: label.to_owned(),
            run: (scheduled.point_id, scheduled.trial),
            schedule,
            rest: rest / u32::try_from(self.jobs.get()).unwrap_or(1).max(1),
            wall_time: self.has_virtual_time.then(|| WallTime::starting(clock::now())),
            ..TrialProgress::idle(self)
        }
    }

    /// Removes the progress bars.
    pub fn finish(&self) {
        if let Output::Bars(bars) = &self.output {
            // Fails only if the terminal is gone.
            let _ = bars.clear();
        }
    }
}

/// Returns whether standard error is a terminal without log lines. A simulation has none.
fn has_bars() -> bool {
    let is_hidden = virtual_network::now_ns().is_some() || tracing::enabled!(tracing::Level::INFO);
    std::io::stderr().is_terminal() && !is_hidden
}

fn new_bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    match ProgressStyle::with_template("{bar:24} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Formats a duration as `1:05` or `2:03:00`.
pub fn clock_text(time: Duration) -> String {
    let s = time.as_secs();
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_durations_as_clock_time() {
        assert_eq!(clock_text(Duration::from_secs(65)), "1:05");
        assert_eq!(clock_text(Duration::from_secs(7380)), "2:03:00");
    }
}
