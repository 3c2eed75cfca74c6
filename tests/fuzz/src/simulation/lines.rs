//! The lines of a generated plan. Some have keys that the plan may lack. Those that contradict others are removed, because the check of the
//! plan knows all rules about keys.

use ccbench_proto::plan::check::{PlanProblem, Severity};

/// A line, or several, of a plan.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) text: String,
    /// The key in this line, if the plan may lack it.
    pub(super) optional: Option<OptionalKey>,
}

/// A key that the plan may lack.
#[derive(Debug)]
pub(super) struct OptionalKey {
    /// Its dotted path in the plan.
    pub(super) path: String,
    /// Whether its table requires it. Without this key, the plan also lacks the table.
    pub(super) is_required: bool,
}

impl Line {
    /// Returns whether it has an optional key at this path or below.
    fn is_at(&self, path: &str) -> bool {
        let rest = self.optional.as_ref().and_then(|key| key.path.strip_prefix(path));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// Returns the text of these lines.
fn text(lines: &[Line]) -> String {
    lines.iter().map(|line| format!("{}\n", line.text)).collect()
}

/// Returns the text without optional keys that are wrong, as `check` reports them. If other keys are wrong, the text stays invalid.
pub(super) fn valid_text(
    mut lines: Vec<Line>,
    check: impl Fn(&str) -> Result<(), Vec<PlanProblem>>,
) -> String {
    loop {
        let text = text(&lines);
        let Err(problems) = check(&text) else { return text };
        let before = lines.len();
        for problem in problems.iter().filter(|problem| problem.severity == Severity::Error) {
            // A change's key is the path of what it changes: `changes.0.set."links.l0.rate"`.
            let path = problem.path.split('"').nth(1).unwrap_or(&problem.path);
            remove(&mut lines, path, &problem.reason);
        }
        if lines.len() == before {
            return text;
        }
    }
}

/// Removes the optional keys at this path. If there are none, removes those that the reason names, in the innermost table around the path
/// that has any; otherwise the last one of that table.
fn remove(lines: &mut Vec<Line>, path: &str, reason: &str) {
    if lines.iter().any(|line| line.is_at(path)) {
        return remove_at(lines, path);
    }
    let mut inner = path;
    while let Some((table, _)) = inner.rsplit_once('.').filter(|(table, _)| table.contains('.')) {
        let Some(last) = lines.iter().rfind(|line| line.is_at(table)) else {
            inner = table;
            continue;
        };
        let last = last.optional.as_ref().map(|key| key.path.clone()).unwrap_or_default();
        let quoted = reason.split('`').skip(1).step_by(2);
        let named: Vec<String> = quoted.map(|key| format!("{table}.{key}")).collect();
        let before = lines.len();
        for path in &named {
            remove_at(lines, path);
        }
        if lines.len() == before {
            remove_at(lines, &last);
        }
        return;
    }
}

/// Removes the optional keys at this path, with their table if it requires one of them.
fn remove_at(lines: &mut Vec<Line>, path: &str) {
    let keys = lines.iter().filter_map(|line| line.optional.as_ref());
    let is_required = keys.filter(|key| key.path == path).any(|key| key.is_required);
    let table = path.rsplit_once('.').map(|(table, _)| table).filter(|_| is_required);
    lines.retain(|line| !line.is_at(table.unwrap_or(path)));
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::check;

    use super::*;

    /// Returns what is left of these optional keys if `problems` are the errors that name a key that is left.
    fn left(problems: &[(&str, &str)]) -> Vec<String> {
        let keys = ["q.kind", "q.ecn", "q.mask", "q.late", "tbf.burst", "tbf.peakrate", "gso"];
        let line = |key: &str| Line {
            text: key.to_owned(),
            optional: Some(OptionalKey {
                path: format!("links.l.{key}"),
                is_required: ["q.kind", "tbf.burst"].contains(&key),
            }),
        };
        let own = Line { text: "node".to_owned(), optional: None };
        let mut lines = vec![own];
        lines.extend(keys.map(line));
        for (path, reason) in problems {
            remove(&mut lines, path, reason);
        }
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn wrong_keys_are_removed() {
        let all =
            ["node", "q.kind", "q.ecn", "q.mask", "q.late", "tbf.burst", "tbf.peakrate", "gso"];
        let without = |removed: &[&str]| -> Vec<&str> {
            all.into_iter().filter(|key| !removed.contains(key)).collect()
        };
        assert_eq!(left(&[]), all);
        assert_eq!(left(&[("links.l.gso", "")]), without(&["gso"]));
        let queue = ["q.kind", "q.ecn", "q.mask", "q.late"];
        assert_eq!(left(&[("links.l.q", "")]), without(&queue));
        assert_eq!(left(&[("links.l.q.kind", "")]), without(&queue), "a queue requires its kind");
        // One is missing: the key that needs it, or any.
        let selector = ("links.l.q.selector", "is missing: `mask` needs it");
        assert_eq!(left(&[selector]), without(&["q.mask"]));
        assert_eq!(left(&[("links.l.q.selector", "is missing")]), without(&["q.late"]));
        let rate = ("links.l.rate", "must be less than the `peakrate` of the link's `tbf`");
        assert_eq!(left(&[rate]), without(&["tbf.burst", "tbf.peakrate"]));
        // Not the fault of these keys.
        assert_eq!(left(&[("flows.f.from", "`gso`"), ("links.other.rate", "`gso`")]), all);
    }

    #[test]
    fn text_is_valid_unless_other_keys_are_wrong() {
        let text = |from: &str| {
            let line = |text: String, optional| Line { text, optional };
            let link = "name = \"t\"\n[nodes]\na = {}\nb = {}\n[wires]\nw = [\"a\", \"b\"]\n[links.l]\n\
                        node = \"a\"\ntoward = \"b\"\nrate = \"10mbit\"";
            let rest = format!(
                "[flows.f]\nfrom = \"{from}\"\nto = \"b\"\n[[phases]]\nname = \"p\"\nlength = \"1s\"\nflows = [\"f\"]"
            );
            let key = OptionalKey { path: "links.l.loss".to_owned(), is_required: false };
            let lines = vec![
                line(link.to_owned(), None),
                line("loss = \"100%\"".to_owned(), Some(key)),
                line(rest, None),
            ];
            valid_text(lines, |text| check::read(text, &[]).map(drop))
        };
        let valid = text("a");
        assert!(!valid.contains("loss") && check::read(&valid, &[]).is_ok(), "{valid}");
        assert!(check::read(&text("nowhere"), &[]).is_err());
    }
}
