//! Limits how often a plan is read to find its problems. Every problem needs the whole plan again, often several times, and a plan may be
//! large.

use toml::Value;

/// Maximum number of values that are read to find the problems after the first one.
pub(super) const MAX_VALUES: usize = 5_000_000;

/// The number of times that a plan may still be read.
pub(super) struct ReadBudget {
    left: usize,
}

impl ReadBudget {
    /// As many as read at most `max_values`.
    pub(super) fn new(plan: &Value, max_values: usize) -> Self {
        Self { left: max_values / values_in(plan) }
    }

    /// Takes one; `false` if none is left.
    pub(super) fn take(&mut self) -> bool {
        let is_left = !self.is_spent();
        self.left = self.left.saturating_sub(1);
        is_left
    }

    /// Whether none is left.
    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }
}

/// The number of values in this one, which counts too.
fn values_in(value: &Value) -> usize {
    let inside: usize = match value {
        Value::Table(table) => table.values().map(values_in).sum(),
        Value::Array(items) => items.iter().map(values_in).sum(),
        _ => 0,
    };
    1 + inside
}

#[cfg(test)]
mod tests {
    use toml::Table;

    use super::super::{MAX_PROBLEMS, read_lenient_within};
    use super::*;

    /// The places of the problems of this plan, which may be read `readings` times.
    fn places(text: &str, readings: usize) -> Vec<String> {
        let table: Table = toml::from_str(text).unwrap();
        let values = values_in(&Value::Table(table.clone()));
        let problems = read_lenient_within(table, readings * values).problems;
        problems.into_iter().map(|problem| problem.path).collect()
    }

    #[test]
    fn every_problem_takes_a_reading() {
        let text: String = (0..2 * MAX_PROBLEMS).map(|nth| format!("wrong{nth} = 1\n")).collect();
        for (readings, expected) in [(1000, MAX_PROBLEMS), (5, 6)] {
            let found = places(&text, readings);
            let (last, found) = found.split_last().unwrap();
            assert!(found.iter().all(|place| place.starts_with("wrong")), "{found:?}");
            assert_eq!((found.len(), last.as_str()), (expected, "the plan"));
        }
    }

    #[test]
    fn every_candidate_for_the_wrong_key_of_a_table_takes_a_reading() {
        let levels: String = (0..500).map(|nth| format!("level{nth} = {{}}\n")).collect();
        let text = format!("[matrix.many]\n{levels}wrong = 1\n");
        assert_eq!(places(&text, 100), ["matrix.many", "the plan"]);
        let found = places(&text, 1000);
        assert_eq!(found[0], "matrix.many.wrong");
        assert!(!found.contains(&"the plan".to_owned()), "{found:?}");
    }
}
