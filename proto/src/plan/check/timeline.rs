//! Checks the pause between trials, the seed, phases and sampling intervals. `repeats` checks `repeat`.

use std::collections::BTreeMap;

use crate::plan::sample::MIN_TIMESCALE;
use crate::plan::timeline::{self, MAX_PHASES, MAX_TRIAL};
use crate::plan::{Acks, Plan};
use crate::units::Micros;

use super::limits::{LENGTHS, MAX_GAP, MAX_INTERVAL, known_flow};
use super::names::{MAX_NAME, refuse};
use super::problems::Problems;

/// Checks the experiment as a whole.
pub(super) fn check_experiment(plan: &Plan, problems: &mut Problems) {
    if plan.gap > MAX_GAP {
        problems.error(&["gap"], "must be 24h or less");
    }
    if i64::try_from(plan.seed).is_err() {
        problems.error(&["seed"], format!("must be {} or less", i64::MAX));
    }
}

/// Checks the sampling intervals.
fn check_sample(plan: &Plan, problems: &mut Problems) {
    let one_ms = Micros::from_millis(1);
    let sample = &plan.sample;
    for (key, every) in [("tcp", sample.tcp), ("qdisc", sample.qdisc), ("host", sample.host)] {
        if every < one_ms || every > MAX_INTERVAL {
            problems.error(&["sample", key], "must be from 1ms to 1h");
        }
    }
    if let Acks::AtMost(gap) = sample.acks
        && (gap < one_ms || gap > MAX_INTERVAL)
    {
        let why = "must be from 1ms to 1h, or \"auto\", \"every-ack\", \"on-change\" or \"off\"";
        problems.error(&["sample", "acks"], why);
    }
    if let Some(timescale) = sample.timescale
        && (!(MIN_TIMESCALE..=MAX_INTERVAL).contains(&timescale)
            || !timescale.get().is_multiple_of(MIN_TIMESCALE.get()))
    {
        let why = "must be a multiple of 100ms from 100ms to 1h";
        problems.error(&["sample", "timescale"], why);
    }
}

/// Why a trial cannot have phases with these names and lengths in sequence; `None` if it can. Applies the rules for phases of a
/// plan to phases without a plan.
pub fn refuse_phases(phases: &[(String, Micros)]) -> Option<String> {
    if phases.len() > MAX_PHASES {
        return Some(format!("there are {}; {MAX_PHASES} are allowed", phases.len()));
    }
    let mut end = Micros::default();
    for (index, (name, length)) in phases.iter().enumerate() {
        if let Some(why) = refuse(name, MAX_NAME) {
            return Some(format!("`{}`: {why}", name.escape_debug()));
        }
        if phases[..index].iter().any(|(earlier, _)| earlier == name) {
            return Some(format!("two are named `{name}`; the results use the name as key"));
        }
        if length.get() == 0 {
            return Some(format!("the length of `{name}` is zero"));
        }
        end = end + *length;
    }
    (end > MAX_TRIAL).then(|| too_long(end))
}

fn too_long(end: Micros) -> String {
    format!("their lengths sum to {end}; a trial lasts a week ({MAX_TRIAL}) at most")
}

/// Checks one trial.
pub(super) fn check_trial(plan: &Plan, problems: &mut Problems) {
    check_sample(plan, problems);
    let sample = &plan.sample;
    if plan.phases.is_empty() {
        problems.error(
            &["phases"],
            "there are none; write `[[phases]]` with `name`, `length` and `flows`",
        );
        return;
    }
    if plan.phases.len() > MAX_PHASES {
        problems.error_from(
            &["phases"],
            &[],
            format!("there are {}; {MAX_PHASES} are allowed", plan.phases.len()),
        );
    }
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, phase) in plan.phases.iter().enumerate() {
        if let Some(earlier) = seen.insert(&phase.name, index) {
            problems.error_from(
                &["phases", &index.to_string(), "name"],
                &[&["phases", &earlier.to_string(), "name"]],
                format!(
                    "`{}` is the name of `phases.{earlier}` already; the results use it as key",
                    phase.name
                ),
            );
        }
        check_phase(plan, index, problems);
    }
    let end = timeline::length(plan);
    if end > MAX_TRIAL {
        problems.error_from(&["phases"], &[LENGTHS], too_long(end));
    }
    if !plan.phases.iter().any(|phase| phase.measure) {
        let why = "every phase has `measure = false`: the summaries will be empty";
        problems.warning_from(&["phases"], &[&["phases", "*", "measure"]], why);
    }
    for (index, phase) in plan.phases.iter().enumerate() {
        let number = index.to_string();
        let measure: &[&str] = &["phases", &number, "measure"];
        let intervals = [
            ("tcp", sample.tcp, "it may hold no sample"),
            (
                "qdisc",
                sample.qdisc,
                "it may hold no sample, and drops and marks of its links may count in another phase",
            ),
        ];
        for (key, every, why) in intervals {
            if phase.length < every && phase.length.get() > 0 && phase.measure {
                problems.warning_from(
                    &["phases", &number, "length"],
                    &[measure, &["sample", key]],
                    format!("{} is shorter than `sample.{key}`, {every}: {why}", phase.length),
                );
            }
        }
    }
}

/// Checks the length and the flows of one phase.
fn check_phase(plan: &Plan, index: usize, problems: &mut Problems) {
    let (number, phase) = (index.to_string(), &plan.phases[index]);
    if phase.length.get() == 0 {
        problems.error(&["phases", &number, "length"], "is zero; write it like `length = \"60s\"`");
        problems.mark_uncertain(&["phases", &number, "length"]);
    }
    for (i, flow) in phase.flows.iter().enumerate() {
        let place = i.to_string();
        let path = ["phases", &number, "flows", &place];
        known_flow(plan, &path, flow, problems);
        if let Some(earlier) = phase.flows[..i].iter().position(|other| other == flow) {
            let why = format!("`{flow}` is named twice in this phase; once is enough");
            let read = ["phases", &number, "flows", &earlier.to_string()];
            problems.error_from(&path, &[&read], why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_without_a_plan_obey_its_rules() {
        let refused = |phases: &[(&str, u64)]| {
            let phase = |(name, s): &(&str, u64)| ((*name).to_owned(), Micros::from_secs(*s));
            refuse_phases(&phases.iter().map(phase).collect::<Vec<_>>())
        };
        assert_eq!(refused(&[]), None);
        assert_eq!(refused(&[("a", 300_000), ("b", 304_800)]), None);
        let wrong: [(&[(&str, u64)], &str); 6] = [
            (&[("a", 1), ("a", 1)], "two are named `a`"),
            (&[("a", 0)], "zero"),
            (&[("", 1)], "empty"),
            (&[("a/b", 1)], "not `/`"),
            (&[("a", 300_000), ("b", 304_801)], "sum to 604801s"),
            (&[("a", u64::MAX / 1_000_000), ("b", u64::MAX / 1_000_000)], "a week (604800s)"),
        ];
        for (phases, why) in wrong {
            let found = refused(phases).unwrap();
            assert!(found.contains(why), "{found}");
        }
        let many: Vec<_> =
            (0..=MAX_PHASES).map(|n| (format!("p{n}"), Micros::from_secs(1))).collect();
        assert_eq!(refuse_phases(&many).unwrap(), "there are 1001; 1000 are allowed");
    }
}
