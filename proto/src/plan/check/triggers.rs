//! Checks changes that a state of a flow's congestion control triggers.

use crate::cc;
use crate::plan::{Change, Plan, When, timeline};

use super::limits::{LENGTHS, PHASE_FLOWS, known_flow};
use super::problems::Problems;

/// Checks `at` and `when` of an entry of `changes`.
pub(super) fn check(plan: &Plan, number: &str, change: &Change, problems: &mut Problems) {
    match (change.at, &change.when) {
        (Some(_), None) => {}
        (Some(_), Some(_)) => {
            let why = "is given beside `at`; leave one of the two out";
            problems.error_from(&["changes", number, "when"], &[], why);
        }
        (None, None) => {
            let why = "is missing; write it like `at = \"30s\"`, or write `when`";
            problems.error_from(&["changes", number, "at"], &[], why);
        }
        (None, Some(when)) => check_when(plan, number, (change, when), problems),
    }
}

fn check_when(
    plan: &Plan,
    number: &str,
    (change, when): (&Change, &When),
    problems: &mut Problems,
) {
    let path = |key: &'static str| ["changes", number, "when", key];
    if when.duration.is_some_and(|duration| duration.get() == 0) {
        problems.error(&path("for"), "is zero; leave it out for a change that lasts");
    }
    if !known_flow(plan, &path("flow"), &when.flow, problems) {
        return;
    }
    let Some(flow) = plan.flows.get(&when.flow) else { return };
    let instance = flow.cc.as_ref().and_then(|name| plan.cc.get(name));
    let states = instance.map(cc::states).unwrap_or_default();
    if !states.iter().any(|state| state.name == when.cc_state) {
        let names: Vec<&str> = states.iter().map(|state| state.name).collect();
        let why = match names.is_empty() {
            true => format!(
                "the congestion control of `flows.{}` reports no states: use an instance of `bbr2` or `bbr3` ([cc.NAME])",
                when.flow
            ),
            false => format!(
                "is not a state of the group's congestion control; its states are {}",
                names.join(", ")
            ),
        };
        let reads: &[&[&str]] = &[&path("cc_state"), &["flows", &when.flow, "cc"], &["cc"]];
        problems.error_from(&path("cc_state"), reads, why);
    }
    check_after(plan, &path("after"), when, problems);
    if problems.target.is_kernel() {
        check_nodes(plan, number, (change, when), problems);
    }
}

/// Warns of a change that comes after the end of the trial even if a flow enters the state at its start.
fn check_after(plan: &Plan, path: &[&str], when: &When, problems: &mut Problems) {
    let Some((after, flow)) = when.after.zip(plan.flows.get(&when.flow)) else { return };
    let Some((start, _)) = timeline::flow_span(plan, &when.flow, flow) else { return };
    let end = timeline::length(plan);
    if start + after >= end && !plan.phases.is_empty() {
        let why = format!(
            "is {after}, but the trial ends {} after `{}` starts, so the change is never made; make it shorter",
            end - start,
            when.flow
        );
        let start = ["flows", &when.flow, "start"];
        problems.warning_from(path, &[path, &start, LENGTHS, PHASE_FLOWS], why);
    }
}

/// Checks that the link is at the sender's node: nodes exchange no messages during a trial.
fn check_nodes(
    plan: &Plan,
    number: &str,
    (change, when): (&Change, &When),
    problems: &mut Problems,
) {
    let Some(flow) = plan.flows.get(&when.flow) else { return };
    let sender = if flow.reverse { &flow.to } else { &flow.from };
    for key in change.set.keys() {
        let name = key.strip_prefix("links.").and_then(|key| key.split_once('.'));
        let Some((name, link)) = name.and_then(|(name, _)| plan.links.get_key_value(name)) else {
            continue;
        };
        if link.node != *sender {
            let why = format!(
                "`links.{name}` is at `{}`, and `{sender}` sends the flows of `{}`: a node reads only the states of its \
                 own senders, and nodes send each other nothing during a trial; move the link to `{sender}`, or run the \
                 plan with --sim",
                link.node, when.flow
            );
            let reads: &[&[&str]] = &[&["links", name, "node"], &["flows", &when.flow]];
            problems.error_from(&["changes", number, "set", key], reads, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::check::read;

    const PLAN: &str = r#"
name = "late"
[nodes]
src = {}
dst = {}
[wires]
path = ["src", "dst"]
[links.bottleneck]
node = "src"
toward = "dst"
rate = "100mbit"
delay = "10ms"
queue = { kind = "bfifo", limit = "187500B" }
[cc.probing]
algorithm = "bbr3"
[flows.a]
from = "src"
to = "dst"
cc = "probing"
[[phases]]
name = "before"
length = "5s"
[[phases]]
name = "all"
length = "10s"
flows = ["a"]
[[changes]]
when = { flow = "a", cc_state = "DRAIN", after = "AFTER" }
set = { "links.bottleneck.rate" = "90mbit" }
"#;

    #[test]
    fn warns_of_a_change_after_the_end_of_the_trial() {
        let warned = |after: &str| {
            let (_, warnings) = read(&PLAN.replace("AFTER", after), &[]).unwrap();
            warnings.iter().any(|warning| warning.path == "changes.0.when.after")
        };
        assert!(!warned("9999ms"));
        assert!(warned("10s"));
    }
}
