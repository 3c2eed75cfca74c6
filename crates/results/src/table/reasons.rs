//! Prints why trials are degraded or failed (each reason once), and what helps if they lacked CPU time.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::write_limited;
use crate::expect::number_ranges;
use crate::journal::TrialEnd;
use crate::model::{Reason, TrialStatus, level_of};
use crate::summary::Summary;
use crate::summary::steal::lacks_cpu;

/// Maximum number of trials whose steal is listed one by one; for more trials, only the range is printed.
const MAX_LISTED_TRIALS: usize = 4;
/// Steal in percent of the CPU time that a machine asked for. Below this limit the hypervisor is not to blame: even an idle virtual machine
/// shows some tenths of a percent.
pub const NOTICEABLE_STEAL_PCT: f64 = 1.0;

/// A reason, and the trials that have it.
struct Group<'a> {
    reason: &'a Reason,
    trials: Vec<&'a TrialEnd>,
    /// Whether the message is the same in all trials.
    same_message: bool,
}

/// Prints each reason once, with the trials that have it, and advice if trials lacked CPU time.
pub(super) fn write(summary: &Summary, out: &mut String, most: usize) {
    let lines: Vec<String> = groups(summary).iter().map(|group| line(summary, group)).collect();
    write_limited(out, "", &lines, most, "trials.csv");
    if let Some(advice) = advice(summary) {
        let _ = write!(out, "\n{advice}");
    }
}

/// Groups reasons by status, code and subject, in the order of their first trials.
fn groups(summary: &Summary) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for end in summary.trials.iter().filter(|end| end.status != TrialStatus::Ok) {
        for reason in &end.reasons {
            let known = groups.iter_mut().find(|group| {
                group.trials[0].status == end.status
                    && group.reason.code == reason.code
                    && group.reason.subject() == reason.subject()
            });
            match known {
                Some(group) => {
                    group.same_message &= group.reason.message == reason.message;
                    group.trials.push(end);
                }
                None => groups.push(Group { reason, trials: vec![end], same_message: true }),
            }
        }
    }
    for group in &mut groups {
        group.trials.dedup_by_key(|end| (end.point_id, end.trial));
    }
    groups
}

fn line(summary: &Summary, group: &Group<'_>) -> String {
    let Group { reason, trials, same_message } = group;
    // The location already names a single trial.
    let example = match *same_message || trials.len() == 1 {
        true => String::new(),
        false => format!("{}: ", trial_name(summary, trials[0])),
    };
    let (status, code) = (trials[0].status, &reason.code);
    let location = location(summary, trials);
    match status {
        TrialStatus::Aborted if reason.message == "interrupted" => {
            format!("interrupted [{location}]")
        }
        TrialStatus::Aborted => format!("aborted [{location}]: {example}{}", reason.message),
        _ => format!("{status}: {code} [{location}]: {example}{}", reason.message),
    }
}

/// Describes in a few words which trials are affected.
fn location(summary: &Summary, trials: &[&TrialEnd]) -> String {
    let numbers: Vec<usize> = trials.iter().map(|end| usize::from(end.trial)).collect();
    let points: BTreeSet<u32> = trials.iter().map(|end| end.point_id).collect();
    let trial = if numbers.len() == 1 { "trial" } else { "trials" };
    if points.len() > 1 {
        return format!("{} trials of {} points", numbers.len(), points.len());
    }
    let trials_of_run = summary.trials.len();
    match point_name(summary, trials[0].point_id) {
        Some(point) => format!("{point}, {trial} {}", number_ranges(&numbers)),
        None => format!("{trial} {} of {trials_of_run}", number_ranges(&numbers)),
    }
}

/// Returns `point 3 scheme=cubic buffer=20`; `None` for a run with a single point.
fn point_name(summary: &Summary, point_id: u32) -> Option<String> {
    if summary.points.len() < 2 {
        return None;
    }
    let mut name = format!("point {point_id}");
    for factor in &summary.factors {
        if let Some(level) = summary.points.get(&point_id).and_then(|l| level_of(l, factor)) {
            let _ = write!(name, " {factor}={level}");
        }
    }
    Some(name)
}

fn trial_name(summary: &Summary, end: &TrialEnd) -> String {
    match summary.points.len() {
        0 | 1 => format!("trial {}", end.trial),
        _ => format!("point {}, trial {}", end.point_id, end.trial),
    }
}

/// Returns the measured steal of trials that lacked CPU time, and what helps. `None` for the lab and the simulator, where the host's CPU
/// does not matter.
fn advice(summary: &Summary) -> Option<String> {
    if summary.backend.has_virtual_clock() {
        return None;
    }
    let affected: Vec<&TrialEnd> = summary.trials.iter().filter(|end| lacks_cpu(end)).collect();
    if affected.is_empty() {
        return None;
    }
    let steal = |end: &&TrialEnd| {
        let pct = *summary.steal_pct.get(&(end.point_id, end.trial))?;
        Some((trial_name(summary, end), pct))
    };
    let measured: Vec<(String, f64)> = affected.iter().filter_map(steal).collect();
    let largest = measured.iter().map(|(_, pct)| *pct).fold(0.0, f64::max);
    let smallest = measured.iter().map(|(_, pct)| *pct).fold(f64::INFINITY, f64::min);
    let steal = match measured.len() {
        0 => "not measured".to_owned(),
        1..=MAX_LISTED_TRIALS => {
            let each = measured.iter().map(|(name, pct)| format!("{pct:.1} % in {name}"));
            each.collect::<Vec<_>>().join(", ")
        }
        trials => format!("{smallest:.1} to {largest:.1} % in {trials} trials"),
    };
    let cause = match largest {
        _ if measured.is_empty() => "ccbench did not get enough CPU time in these trials.",
        pct if pct >= NOTICEABLE_STEAL_PCT => {
            "The hypervisor gave CPU time to other virtual machines."
        }
        _ => "Steal is low: other processes, or the experiment itself, used up the CPU.",
    };
    Some(format!(
        "CPU steal (mean over a trial): {steal}. {cause}\n\
         What helps: `--lab` (virtual time, independent of the host's load), `--sim` (no kernel, in seconds), fewer nodes per CPU core, an idle machine.\n"
    ))
}
