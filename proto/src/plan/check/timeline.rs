//! Repetitions, phases and sampling intervals.

use std::collections::BTreeMap;

use crate::plan::Plan;
use crate::schedule::spans;
use crate::units::Micros;

use super::Problems;
use super::limits::{MAX_GAP, MAX_INTERVAL, MAX_PHASES, MAX_TRIAL, MAX_TRIALS, known_flow};
use super::matrix;

/// Rules about the experiment as a whole.
pub(super) fn check_experiment(plan: &Plan, problems: &mut Problems) {
    if plan.repeat == 0 {
        problems.error(&["repeat"], "is zero: nothing would run");
    } else if plan.repeat > u32::from(u16::MAX) {
        problems.error(&["repeat"], format!("must be {} or less", u16::MAX));
    }
    if plan.repeat == 1 {
        problems.warning(
            &["repeat"],
            "one trial gives no confidence interval: the difference between two points may be chance; 5 is usual",
        );
    }
    let trials = matrix::count(plan).saturating_mul(plan.repeat as usize);
    if trials > MAX_TRIALS {
        problems.error(
            &["repeat"],
            format!(
                "{} points run {} times are {trials} trials; {MAX_TRIALS} are allowed",
                matrix::count(plan),
                plan.repeat
            ),
        );
    }
    if plan.gap > MAX_GAP {
        problems.error(&["gap"], "must be 24h or less");
    }
    if i64::try_from(plan.seed).is_err() {
        problems.error(&["seed"], format!("must be {} or less", i64::MAX));
    }
}

/// Rules about one trial.
pub(super) fn check_trial(plan: &Plan, problems: &mut Problems) {
    let one_ms = Micros::from_millis(1);
    let sample = &plan.sample;
    for (key, every) in [("tcp", sample.tcp), ("qdisc", sample.qdisc), ("host", sample.host)] {
        if every < one_ms || every > MAX_INTERVAL {
            problems.error(&["sample", key], "must be from 1ms to 1h");
        }
    }
    if plan.phases.is_empty() {
        problems.error(
            &["phases"],
            "there are none; write `[[phases]]` with `name`, `length` and `flows`",
        );
        return;
    }
    if plan.phases.len() > MAX_PHASES {
        problems.error(
            &["phases"],
            format!("there are {}; {MAX_PHASES} are allowed", plan.phases.len()),
        );
    }
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, phase) in plan.phases.iter().enumerate() {
        let number = index.to_string();
        if let Some(earlier) = seen.insert(&phase.name, index) {
            problems.error(
                &["phases", &number, "name"],
                format!(
                    "`{}` is the name of `phases.{earlier}` already; results are told apart by it",
                    phase.name
                ),
            );
        }
        if phase.length.get() == 0 {
            problems.error(&["phases", &number, "length"], "is zero");
        }
        for (i, flow) in phase.flows.iter().enumerate() {
            let place = i.to_string();
            let path = ["phases", &number, "flows", &place];
            known_flow(plan, &path, flow, problems);
            if phase.flows[..i].contains(flow) {
                problems.error(&path, format!("`{flow}` is named twice in this phase"));
            }
        }
    }
    let end = spans(plan).last().map(|last| last.end).unwrap_or_default();
    if end > MAX_TRIAL {
        problems.error(
            &["phases"],
            format!("their lengths sum to {end}; a trial lasts a week (604800s) at most"),
        );
    }
    if !plan.phases.iter().any(|phase| phase.measure) {
        problems
            .warning(&["phases"], "every phase has `measure = false`: the summaries will be empty");
    }
    for (index, phase) in plan.phases.iter().enumerate() {
        if phase.length < sample.tcp && phase.length.get() > 0 && phase.measure {
            problems.warning(
                &["phases", &index.to_string(), "length"],
                format!(
                    "{} is shorter than `sample.tcp`, {}: it may hold no sample",
                    phase.length, sample.tcp
                ),
            );
        }
    }
}
