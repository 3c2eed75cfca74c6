//! The congestion controls of flow groups in legends.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::plan::Plan;

use crate::summary::group_of;

/// The algorithms of those instances of congestion controls whose algorithm the matrix selects, by point and instance. The names of such
/// instances do not show which algorithm runs.
#[derive(Debug, Default, Clone)]
pub(super) struct SelectedAlgorithms(BTreeMap<(u32, String), String>);

impl SelectedAlgorithms {
    /// Collects the algorithms from the plans of all points.
    pub(super) fn from_plans(plans: &BTreeMap<u32, Plan>) -> Self {
        let mut algorithms: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, cc) in plans.values().flat_map(|plan| &plan.cc) {
            algorithms.entry(name).or_default().insert(&cc.algorithm);
        }
        let mut selected = BTreeMap::new();
        for (id, plan) in plans {
            for (name, cc) in &plan.cc {
                let differ = algorithms.get(name.as_str()).is_some_and(|all| all.len() > 1);
                // A congestion control from a file may have no algorithm name.
                if differ && !cc.algorithm.is_empty() {
                    selected.insert((*id, name.clone()), cc.algorithm.clone());
                }
            }
        }
        Self(selected)
    }

    /// Returns the name of a congestion control in the legends at a point.
    pub(super) fn shown<'a>(&'a self, point_id: u32, cc: &'a str) -> &'a str {
        self.0.get(&(point_id, cc.to_owned())).map_or(cc, String::as_str)
    }
}

/// The congestion controls of flow groups, as reported by the kernel.
#[derive(Debug, Default)]
pub(super) struct CcNames {
    /// Congestion controls, by point and group.
    ccs: BTreeMap<(u32, String), String>,
    algorithms: SelectedAlgorithms,
}

impl CcNames {
    /// Creates the names; `ccs` is by point and group.
    pub(super) const fn new(
        ccs: BTreeMap<(u32, String), String>,
        algorithms: SelectedAlgorithms,
    ) -> Self {
        Self { ccs, algorithms }
    }

    /// Returns the congestion control of a group or flow at a point; empty if unknown.
    pub(super) fn cc(&self, point_id: u32, name: &str) -> &str {
        self.ccs.get(&(point_id, group_of(name).to_owned())).map_or("", String::as_str)
    }

    /// Returns a group or flow with its congestion controls at these points in parentheses, unless the group has the name of the only one.
    pub(super) fn named(&self, name: &str, points: &[u32]) -> String {
        self.with(name, points, None)
    }

    /// As [`Self::named`], for several flows of a group that share a line of a legend.
    pub(super) fn named_flows(&self, group: &str, points: &[u32], flows: usize) -> String {
        self.with(group, points, Some(&format!("{flows} flows")))
    }

    fn with(&self, name: &str, points: &[u32], rest: Option<&str>) -> String {
        const MAX_NAMES: usize = 3;
        let shown = |id: &u32| self.algorithms.shown(*id, self.cc(*id, name));
        let ccs: BTreeSet<&str> = points.iter().map(shown).collect();
        let mut shown: Vec<&str> = ccs.into_iter().filter(|cc| !cc.is_empty()).collect();
        if shown == [group_of(name)] {
            shown.clear();
        }
        if shown.len() > MAX_NAMES {
            shown.truncate(MAX_NAMES);
            shown.push("…");
        }
        shown.extend(rest);
        if shown.is_empty() { name.to_owned() } else { format!("{name} ({})", shown.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::Cc;

    use super::*;

    #[test]
    fn an_instance_whose_algorithm_the_matrix_selects_has_the_algorithms_name() {
        let plan = |algorithm: &str| {
            let mut plan = Plan::new("legend");
            plan.cc.insert("scheme".to_owned(), Cc::new(algorithm));
            plan.cc.insert("gentle".to_owned(), Cc::new("cubic"));
            plan
        };
        let names = |algorithms: [&str; 2]| {
            let plans: BTreeMap<u32, Plan> = (0..).zip(algorithms.map(plan)).collect();
            let group = |id: u32, group: &str, cc: &str| ((id, group.to_owned()), cc.to_owned());
            let ccs = (0..2).flat_map(|id| [group(id, "a", "scheme"), group(id, "b", "gentle")]);
            CcNames::new(ccs.collect(), SelectedAlgorithms::from_plans(&plans))
        };
        let selected = names(["vegas", "ta"]);
        assert_eq!(selected.named("a/0", &[0]), "a/0 (vegas)");
        assert_eq!(selected.named("a", &[0, 1]), "a (ta, vegas)");
        // The plan's author named it, and it is the same everywhere.
        assert_eq!(selected.named("b", &[0, 1]), "b (gentle)");
        assert_eq!(names(["ta", "ta"]).named("a", &[0, 1]), "a (scheme)");
        assert_eq!(names(["ta", ""]).named("a", &[1]), "a (scheme)");
        assert_eq!(selected.cc(0, "a"), "scheme", "in CSV as in the tables");
    }

    #[test]
    fn names_have_congestion_controls() {
        let ccs =
            [(0, "a", "bbr"), (1, "a", "bbr"), (0, "cubic", "cubic"), (0, "b", "x"), (1, "b", "y")];
        let ccs = ccs.map(|(point, group, cc)| ((point, group.to_owned()), cc.to_owned()));
        let names = CcNames::new(ccs.into(), SelectedAlgorithms::default());
        assert_eq!(names.named("a/0", &[0, 1]), "a/0 (bbr)");
        assert_eq!(names.named("b", &[0, 1]), "b (x, y)");
        assert_eq!(names.named("cubic/1", &[0]), "cubic/1");
        assert_eq!(names.named_flows("a", &[0], 5), "a (bbr, 5 flows)");
        assert_eq!(names.named_flows("cubic", &[0], 2), "cubic (2 flows)");
        assert_eq!((names.named("c", &[0]).as_str(), names.cc(1, "b/3")), ("c", "y"));
    }
}
