//! `[quick]`: the overrides of `--quick`, applied like `--set`.

use toml::{Table, Value};

use super::set::{apply, overlap, split_assignment, split_key};
use super::{error, nesting};
use crate::plan::problem::PlanProblem;

/// The assignments of `[quick]`, for `--set`.
fn assignments(table: &Table) -> Vec<(String, String)> {
    let quick = table.get("quick").and_then(Value::as_table);
    let pairs = quick.into_iter().flatten();
    pairs.map(|(key, value)| (key.clone(), format!("{key}={value}"))).collect()
}

/// The overrides of `--quick`: those of the plan's `[quick]`, and `sets`, which take precedence. `None` without `[quick]`.
pub fn quick_sets(text: &str, sets: &[String]) -> Option<Vec<String>> {
    // Invalid TOML is reported when the plan is read.
    let Some(table) = nesting::parse(text) else { return Some(sets.to_vec()) };
    table.get("quick")?;
    let key = |assignment: &str| split_key(split_assignment(assignment)?.0).ok();
    let given: Vec<Vec<String>> = sets.iter().filter_map(|set| key(set)).collect();
    let of_plan = assignments(&table).into_iter().map(|(_, set)| set);
    let overridden =
        |set: &String| key(set).is_some_and(|key| given.iter().any(|g| overlap(g, &key)));
    Some(of_plan.filter(|set| !overridden(set)).chain(sets.iter().cloned()).collect())
}

/// The problems of a plan's `[quick]`.
pub(super) fn check(table: &Table) -> Vec<PlanProblem> {
    let mut quick = table.clone();
    quick.remove("quick");
    let mut wrong = Vec::new();
    for (key, assignment) in assignments(table) {
        if let Err((_, why)) = apply(&mut quick, &assignment) {
            wrong.push(error(&["quick".to_owned(), key], why.to_string()));
        }
    }
    wrong
}
