//! The flow groups that run at some point. Factors may decide in which phases a group runs, and so whether it runs at all.

use std::collections::BTreeSet;

use crate::plan::Plan;
use crate::plan::timeline::is_scheduled;

use super::expand::{expand, with_factors_about};

/// The flow groups that run at some point of the plan; `None` if no factor decides when groups run, so that the same groups run at
/// all points.
pub(super) fn running_groups(plan: &Plan) -> Option<BTreeSet<String>> {
    let mut fewer = with_factors_about(plan, decides_when_groups_run);
    if fewer.matrix.is_empty() {
        return None;
    }
    if plan.design.is_some() {
        // A design may leave out any combination.
        fewer.clone_from(plan);
    }
    let mut running = BTreeSet::new();
    for plan in expand(&fewer).filter_map(|point| point.plan) {
        let groups = plan.flows.iter().filter(|(name, flow)| is_scheduled(&plan, name, flow));
        running.extend(groups.map(|(name, _)| name.clone()));
    }
    Some(running)
}

fn decides_when_groups_run(key: &[String]) -> bool {
    let key: Vec<&str> = key.iter().map(String::as_str).collect();
    match key[..] {
        ["phases", _, inner, ..] => inner == "flows",
        ["flows", _, inner, ..] => ["start", "stop"].contains(&inner),
        [first, ..] => ["phases", "flows"].contains(&first),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::check::{CheckedPlan, PlanProblem, read};
    use crate::resolve;
    use crate::schedule::{TrialContext, flows, task_for};

    fn text(phase: &str, rest: &str) -> String {
        format!(
            "name = \"t\"\n[nodes]\na = {{}}\nr = {{}}\nb = {{}}\n[wires]\nw = [\"a\", \"r\", \"b\"]\n[links.l]\nnode = \"r\"\n\
             toward = \"b\"\nrate = \"10mbit\"\ndelay = \"10ms\"\n[flows.one]\nfrom = \"a\"\nto = \"b\"\n[flows.two]\nfrom = \"a\"\n\
             to = \"b\"\n[[phases]]\nname = \"p\"\nlength = \"9s\"\nflows = {phase}\n{rest}"
        )
    }

    const ALONE_AND_BOTH: &str = "[matrix.load]\nalone = { \"phases.0.flows\" = [\"one\"] }\n\
                                  both = { \"phases.0.flows\" = [\"one\", \"two\"] }\n";
    const NEVER: &str =
        "flows.two: never runs: name it in `flows` of a phase, or give it `start` and `stop`";

    /// The groups that run at each point.
    fn groups(plan: &CheckedPlan) -> Vec<Vec<String>> {
        let of = |plan: &CheckedPlan| flows(plan).into_iter().map(|task| task.group).collect();
        plan.points().iter().map(|point| of(&point.plan)).collect()
    }

    fn errors(text: &str) -> Vec<String> {
        let problems = read(text, &[]).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_group_does_not_start_at_points_where_no_phase_names_it() {
        for phase in ["[\"one\"]", "[\"one\", \"two\"]"] {
            let (plan, _) = read(&text(phase, ALONE_AND_BOTH), &[]).unwrap();
            assert_eq!(groups(&plan), [&["one"][..], &["one", "two"]]);
            for (point, clients) in plan.points().iter().zip(1..) {
                let task = task_for(&point.plan, "a", &TrialContext::default());
                assert_eq!(task.clients.len(), clients);
                // As an agent reads it.
                let (of_agent, _) = read(&resolve::to_toml(&point.plan), &[]).unwrap();
                assert_eq!(of_agent.plan().flows.len(), clients);
            }
        }
        let start = "[matrix.start]\nlate = { \"flows.two.start\" = \"3s\" }\nnever = {}\n";
        let (plan, _) = read(&text("[\"one\"]", start), &[]).unwrap();
        assert_eq!(groups(&plan), [&["one", "two"][..], &["one"]]);
    }

    #[test]
    fn a_group_that_runs_at_no_point_is_an_error() {
        for matrix in [
            "",
            "[matrix]\n\"links.l.rate\" = [\"1mbit\", \"2mbit\"]\n",
            "[matrix]\n\"phases.0.flows\" = [[\"one\"], []]\n",
        ] {
            let found = errors(&text("[\"one\"]", matrix));
            assert!(found.iter().any(|error| error == NEVER), "{matrix}: {found:?}");
        }
    }

    #[test]
    fn only_points_that_a_design_selects_count() {
        let matrix = "[matrix]\n\"links.l.rate\" = [\"1mbit\", \"2mbit\"]\n[matrix.load]\n\
                      a = { \"phases.0.length\" = \"8s\" }\nb = { \"phases.0.length\" = \"7s\" }\n\
                      c = { \"phases.0.length\" = \"6s\" }\nd = { \"phases.0.flows\" = [\"one\", \"two\"] }\n";
        let (mut with, mut without) = (0, 0);
        for seed in 1..=16 {
            let design = "design = { kind = \"latin-hypercube\", points = 2 }\n";
            let text = format!("seed = {seed}\n{design}{}", text("[\"one\"]", matrix));
            match read(&text, &[]) {
                Ok((plan, _)) => {
                    let found = groups(&plan);
                    assert!(found.iter().any(|groups| groups.len() == 2), "{found:?}");
                    with += 1;
                }
                Err(found) => {
                    assert!(found.iter().any(|error| error.to_string() == NEVER), "{found:?}");
                    without += 1;
                }
            }
        }
        assert!(with > 0 && without > 0, "{with} designs with `two`, {without} without");
    }

    /// Reads a plan with two points: this number of groups runs at each, none at both. Each group has `count` connections, and
    /// each point one more.
    fn of_two_points(
        groups: [usize; 2],
        count: u32,
        rest: &str,
    ) -> Result<CheckedPlan, Vec<String>> {
        let names = |prefix: &str, groups: usize| -> Vec<String> {
            (0..groups).map(|number| format!("{prefix}{number}")).collect()
        };
        let [mut first, mut second] = [names("a", groups[0]), names("b", groups[1])];
        let flow =
            |name: &String| format!("[flows.{name}]\nfrom = \"a\"\nto = \"b\"\ncount = {count}\n");
        let flows: Vec<String> = first.iter().chain(&second).map(flow).collect();
        first.push("one".to_owned());
        second.push("two".to_owned());
        let matrix = format!(
            "{}[matrix.load]\nx = {{ \"phases.0.flows\" = {first:?} }}\ny = {{ \"phases.0.flows\" = {second:?} }}\n{rest}",
            flows.concat()
        );
        let of = |problems: &[PlanProblem]| -> Vec<String> {
            let about =
                problems.iter().filter(|problem| ["flows", "sample.tcp"].contains(&&*problem.path));
            about.map(ToString::to_string).collect()
        };
        match read(&text("[\"one\"]", &matrix), &[]) {
            Ok((plan, warnings)) if of(&warnings).is_empty() => Ok(plan),
            Ok((_, problems)) | Err(problems) => Err(of(&problems)),
        }
    }

    #[test]
    fn only_groups_that_run_at_a_point_count_for_its_limits() {
        // 42 groups with 802 connections, half of them at each point.
        let plan = of_two_points([20, 20], 20, "").unwrap();
        let numbers: Vec<usize> = groups(&plan).iter().map(Vec::len).collect();
        assert_eq!(numbers, [21, 21]);
        let of = |groups, count| of_two_points(groups, count, "").unwrap_err();
        assert_eq!(of([32, 20], 1), ["flows: there are 33 groups; 32 are allowed (at load=x)"]);
        let sockets = "flows: their counts sum to 601 sockets; 600 are allowed (at load=y)";
        assert_eq!(of([10, 20], 30), [sockets]);
    }

    #[test]
    fn only_groups_that_run_at_a_point_count_for_the_cost_of_samples() {
        let of = |count| of_two_points([3, 3], count, "[sample]\ntcp = \"5ms\"\n");
        assert!(of(16).is_ok(), "{:?}", of(16).err());
        let found = of(17).unwrap_err();
        assert!(found.len() == 1 && found[0].contains("5ms with 52 sockets"), "{found:?}");
    }

    #[test]
    fn what_names_a_group_needs_it_at_every_point() {
        let class = "[links.l.classes.c]\nrate = \"1mbit\"\nmatch = { flow = \"two\" }\n";
        let found = errors(&text("[\"one\"]", &(class.to_owned() + ALONE_AND_BOTH)));
        let error =
            found.iter().find(|error| error.contains("`two` runs in no phase of this point"));
        assert!(error.is_some_and(|error| error.ends_with("(at load=alone)")), "{found:?}");
    }

    #[test]
    fn a_point_without_groups_and_probes_measures_nothing() {
        let nobody = "[matrix]\n\"phases.0.flows\" = [[\"one\", \"two\"], []]\n";
        let found = errors(&text("[\"one\"]", nobody));
        let why = "flows: no flow group runs, and there is no probe: ";
        assert!(found.iter().any(|error| error.starts_with(why)), "{found:?}");
        let probe = "[probes.rtt]\nkind = \"ping\"\nfrom = \"a\"\nto = \"b\"\n";
        let (plan, _) = read(&text("[\"one\"]", &(probe.to_owned() + nobody)), &[]).unwrap();
        assert_eq!(groups(&plan).last(), Some(&vec![]));
    }
}
