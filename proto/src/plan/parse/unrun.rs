//! Claims about levels that `--set` removed from the matrix stay in the plan and are skipped. Rules of `repeat` and comparisons
//! about such levels are removed.

use toml::{Table, Value};

use crate::plan::expect::{level, levels};
use crate::plan::repeat::FEWEST_VALUES;

/// The names of a factor's levels.
pub(super) fn names(factor: &Value) -> Vec<String> {
    match factor {
        Value::Array(values) => values.iter().map(level).collect(),
        Value::Table(levels) => levels.keys().cloned().collect(),
        _ => Vec::new(),
    }
}

/// Marks the claims about levels of `factor` that were among `before` and are gone.
pub(super) fn mark(table: &mut Table, factor: &str, before: &[String]) {
    let left = table.get("matrix").and_then(|matrix| matrix.get(factor)).map(names);
    let left = left.unwrap_or_default();
    let gone = |level: &String| before.contains(level) && !left.contains(level);
    let claims = table.get_mut("expect").and_then(Value::as_array_mut).into_iter().flatten();
    for claim in claims.filter_map(Value::as_table_mut) {
        let mut missing = Vec::new();
        for other in ["over", "minus"] {
            let at = claim.get(other).and_then(|other| other.get("where")?.get(factor));
            missing.extend(at.map(level).filter(gone));
        }
        if let Some(at) = claim.get_mut("where").and_then(|at| at.get_mut(factor)) {
            let claimed = levels(at);
            let there: Vec<&String> = claimed.iter().filter(|level| !gone(level)).collect();
            match there.len() {
                0 => missing.extend(claimed),
                some if some < claimed.len() => {
                    *at = Value::Array(there.into_iter().cloned().map(Value::String).collect());
                }
                _ => {}
            }
        }
        if !missing.is_empty() && !claim.contains_key("skip") {
            let why = format!("not run: {factor} = {}", missing.join(", "));
            claim.insert("skip".to_owned(), Value::String(why));
        }
    }
    let had_rules = has_rules(table);
    remove_rules(table.get_mut("compare"), factor, gone);
    remove_rules(table.get_mut("repeat").and_then(|it| it.get_mut("until")), factor, gone);
    if had_rules && !has_rules(table) {
        without_rules(table);
    }
}

/// Whether rules or comparisons decide how many trials the points have.
fn has_rules(table: &Table) -> bool {
    let until = table.get("repeat").and_then(|repeat| repeat.get("until"));
    let rules = [table.get("compare"), until].into_iter().flatten();
    rules.filter_map(Value::as_array).any(|rules| !rules.is_empty())
}

/// Replaces the table `repeat` by the number of trials of a point without a rule.
fn without_rules(table: &mut Table) {
    let Some(repeat) = table.get_mut("repeat").filter(|repeat| repeat.is_table()) else { return };
    let least = repeat.get("at_least").cloned();
    if let Value::Integer(least) = least.unwrap_or(Value::Integer(FEWEST_VALUES.into())) {
        *repeat = Value::Integer(least);
    }
}

/// Removes the rules about levels that are gone.
fn remove_rules(rules: Option<&mut Value>, factor: &str, gone: impl Fn(&String) -> bool) {
    let Some(rules) = rules.and_then(Value::as_array_mut) else { return };
    rules.retain_mut(|rule| {
        let side = |side: &str| rule.get(side).and_then(|side| side.get(factor)).map(level);
        if [side("a"), side("b")].into_iter().flatten().any(|level| gone(&level)) {
            return false;
        }
        let Some(at) = rule.get_mut("where").and_then(|at| at.get_mut(factor)) else {
            return true;
        };
        let named = levels(at);
        let there: Vec<String> = named.iter().filter(|level| !gone(level)).cloned().collect();
        let some_are_left = !there.is_empty();
        if there.len() < named.len() {
            *at = Value::Array(there.into_iter().map(Value::String).collect());
        }
        some_are_left
    });
}
