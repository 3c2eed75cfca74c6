//! Finds the line of each key in a plan's text.

use toml::de::{DeTable, DeValue};

use super::set::join_key;
use super::{Moved, quick};
use crate::plan::problem::PlanProblem;

/// The lines of a plan's keys.
pub(crate) struct Lines<'t> {
    root: Option<DeTable<'t>>,
    /// Byte offsets at which lines begin.
    starts: Vec<usize>,
    /// Keys whose values come from `--set`, not from the text.
    set: Vec<Vec<String>>,
    /// Keys whose values come from `[quick]`.
    quick: Vec<Moved>,
    /// Keys that are written under another name.
    moved: Vec<Moved>,
}

impl<'t> Lines<'t> {
    /// Finds the lines of a text; keys have no line if it is not TOML. `set` and `quick` are the keys that `--set` and `[quick]`
    /// changed. `moved` has keys with the names under which they are written.
    pub(crate) fn new(
        text: &'t str,
        (set, quick): (Vec<Vec<String>>, Vec<Moved>),
        moved: Vec<Moved>,
    ) -> Self {
        let root = DeTable::parse(text).ok().map(toml::Spanned::into_inner);
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
        Self { root, starts, set, quick, moved }
    }

    /// The line, from 1, of a byte of the text.
    pub(crate) fn at(&self, byte: usize) -> u32 {
        u32::try_from(self.starts.partition_point(|start| *start <= byte)).unwrap_or(u32::MAX)
    }

    /// The line of a key, or of the nearest written table around it.
    pub(crate) fn of(&self, key: &[String]) -> Option<u32> {
        let mut place = key.to_vec();
        for (moved, written) in self.moved.iter().rev() {
            if place.starts_with(moved) {
                place.splice(..moved.len(), written.iter().cloned());
            }
        }
        self.of_written(&place)
    }

    fn of_written(&self, place: &[String]) -> Option<u32> {
        let mut table = self.root.as_ref();
        let mut array = None;
        let mut byte = None;
        for segment in place {
            let value = if let Some(inside) = table {
                let Some((key, value)) = inside.get_key_value(segment.as_str()) else { break };
                byte = Some(key.span().start);
                value
            } else {
                let item = segment.parse().ok().and_then(|i: usize| {
                    let items: &toml::de::DeArray<'_> = array?;
                    items.get(i)
                });
                let Some(value) = item else { break };
                byte = Some(value.span().start);
                value
            };
            (table, array) = match value.get_ref() {
                DeValue::Table(inside) => (Some(inside), None),
                DeValue::Array(items) => (None, Some(items)),
                _ => (None, None),
            };
        }
        byte.map(|byte| self.at(byte))
    }

    /// Gives each problem its line, gives problems of values from `[quick]` their key there, and sorts them by line and path.
    pub(crate) fn number(&self, problems: &mut [PlanProblem]) {
        for problem in problems.iter_mut().filter(|p| p.line.is_none()) {
            if let Some(key) = self.set.iter().find(|key| problem.place.starts_with(key)) {
                problem.reason += &format!(" (from `--set {}`)", join_key(key));
                continue;
            }
            if let Some(place) = quick::written(&self.quick, &problem.place) {
                problem.path = join_key(&place);
                problem.place = place;
            }
            problem.line = self.of(&problem.place);
        }
        problems.sort_by(|a, b| (a.line, &a.path).cmp(&(b.line, &b.path)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_the_line_it_is_written_on() {
        let text = "name = 'x'\n\n[links.a]\nnode = 'n'\nqueue = { kind = 'fq' }\n[[phases]]\nname = 'p'\n\
                    [[phases]]\nflows = [\n  'a',\n  'b',\n]\n[links.b.queue]\nx.y = 1\n";
        let lines = Lines::new(text, (Vec::new(), Vec::new()), Vec::new());
        let line = |key: &str| {
            let segments: Vec<String> = key.split('.').map(str::to_owned).collect();
            lines.of(&segments)
        };
        let all = [
            ("name", Some(1)),
            ("links", Some(3)),
            ("links.a", Some(3)),
            ("links.a.rate", Some(3)),
            ("links.a.node", Some(4)),
            ("links.a.queue.kind", Some(5)),
            ("links.a.queue.limit", Some(5)),
            ("phases", Some(6)),
            ("phases.0.name", Some(7)),
            ("phases.0.length", Some(6)),
            ("phases.1", Some(8)),
            ("phases.1.name", Some(8)),
            ("phases.1.flows", Some(9)),
            ("phases.1.flows.1", Some(11)),
            ("links.b.rate", Some(13)),
            ("links.b.queue.x.y", Some(14)),
            ("repeat", None),
        ];
        for (key, expected) in all {
            assert_eq!(line(key), expected, "{key}");
        }
    }
}
