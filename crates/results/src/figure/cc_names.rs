//! The congestion controls of flow groups in legends.

use std::collections::{BTreeMap, BTreeSet};

use super::data::group_of;

/// The congestion controls of flow groups, as reported by the kernel.
#[derive(Debug, Default)]
pub(super) struct CcNames(BTreeMap<(u32, String), String>);

impl CcNames {
    /// By point and group.
    pub(super) const fn new(ccs: BTreeMap<(u32, String), String>) -> Self {
        Self(ccs)
    }

    /// That of a group or flow at a point; empty if it is not known.
    pub(super) fn cc(&self, point_id: u32, name: &str) -> &str {
        self.0.get(&(point_id, group_of(name).to_owned())).map_or("", String::as_str)
    }

    /// A group or flow with its congestion controls at these points in parentheses, unless the group has the name of the only one.
    pub(super) fn named(&self, name: &str, points: &[u32]) -> String {
        self.with(name, points, None)
    }

    /// As [`Self::named`], for a number of flows of a group that share a line of a legend.
    pub(super) fn named_flows(&self, group: &str, points: &[u32], flows: usize) -> String {
        self.with(group, points, Some(&format!("{flows} flows")))
    }

    fn with(&self, name: &str, points: &[u32], rest: Option<&str>) -> String {
        const MAX_NAMES: usize = 3;
        let ccs: BTreeSet<&str> = points.iter().map(|id| self.cc(*id, name)).collect();
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
    use super::*;

    #[test]
    fn names_have_congestion_controls() {
        let ccs =
            [(0, "a", "bbr"), (1, "a", "bbr"), (0, "cubic", "cubic"), (0, "b", "x"), (1, "b", "y")];
        let ccs = ccs.map(|(point, group, cc)| ((point, group.to_owned()), cc.to_owned()));
        let names = CcNames::new(ccs.into());
        assert_eq!(names.named("a/0", &[0, 1]), "a/0 (bbr)");
        assert_eq!(names.named("b", &[0, 1]), "b (x, y)");
        assert_eq!(names.named("cubic/1", &[0]), "cubic/1");
        assert_eq!(names.named_flows("a", &[0], 5), "a (bbr, 5 flows)");
        assert_eq!(names.named_flows("cubic", &[0], 2), "cubic (2 flows)");
        assert_eq!((names.named("c", &[0]).as_str(), names.cc(1, "b/3")), ("c", "y"));
    }
}
