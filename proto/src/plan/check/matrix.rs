//! The matrix: every combination of its factors' levels, each a plan of its own.

use toml::{Table, Value};

use crate::plan::parse::{from_table, set};
use crate::plan::{Factor, Plan};

use super::PlanProblem;

/// Most points in one plan.
pub(super) const MAX_POINTS: usize = 10_000;

/// A level of a factor: its name and the keys it sets.
pub(super) struct Level {
    pub(super) name: String,
    pub(super) keys: Vec<(Vec<String>, Value)>,
}

/// One combination of levels, and the plan it makes.
pub(super) struct Cell {
    pub(super) id: u32,
    pub(super) factors: Vec<(String, String)>,
    pub(super) plan: Result<Plan, Vec<PlanProblem>>,
}

/// A value as it appears in a result column: text without its quotes.
pub(super) fn label(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The levels of a factor; keys that are not dotted keys are left out (they are reported elsewhere).
pub(super) fn levels(name: &str, factor: &Factor) -> Vec<Level> {
    match factor {
        Factor::Values(values) => values
            .iter()
            .map(|value| Level {
                name: label(value),
                keys: set::split_key(name)
                    .ok()
                    .map(|key| (key, value.clone()))
                    .into_iter()
                    .collect(),
            })
            .collect(),
        Factor::Levels(levels) => levels
            .iter()
            .map(|(name, keys)| Level {
                name: name.clone(),
                keys: keys
                    .iter()
                    .filter_map(|(key, value)| Some((set::split_key(key).ok()?, value.clone())))
                    .collect(),
            })
            .collect(),
    }
}

/// The plan as a table without its matrix, for keys to be set in.
pub(super) fn base(plan: &Plan) -> Table {
    let bare = Plan { matrix: std::collections::BTreeMap::new(), ..plan.clone() };
    Table::try_from(&bare).unwrap_or_default()
}

/// How many combinations there are; 1 without a matrix, 0 when a factor has no levels.
pub(super) fn count(plan: &Plan) -> usize {
    let levels = |factor: &Factor| match factor {
        Factor::Values(values) => values.len(),
        Factor::Levels(levels) => levels.len(),
    };
    plan.matrix.values().fold(1, |n, factor| n.saturating_mul(levels(factor)))
}

/// All combinations; without a matrix the one point of the plan itself. At most [`MAX_POINTS`].
pub(super) fn expand(plan: &Plan) -> Vec<Cell> {
    if plan.matrix.is_empty() {
        return vec![Cell { id: 0, factors: Vec::new(), plan: Ok(plan.clone()) }];
    }
    let factors: Vec<(&String, Vec<Level>)> =
        plan.matrix.iter().map(|(name, factor)| (name, levels(name, factor))).collect();
    let base = base(plan);
    (0..count(plan).min(MAX_POINTS))
        .map(|id| {
            let mut left = id;
            let mut chosen: Vec<(&String, &Level)> = Vec::new();
            for (name, levels) in factors.iter().rev() {
                chosen.push((name, &levels[left % levels.len()]));
                left /= levels.len();
            }
            chosen.reverse();
            let mut table = base.clone();
            for (key, value) in chosen.iter().flat_map(|(_, level)| &level.keys) {
                // A key that cannot be set is reported with its factor.
                let _ = set::set_key(&mut table, key, value.clone());
            }
            Cell {
                id: id as u32,
                factors: chosen.iter().map(|(n, l)| ((*n).clone(), l.name.clone())).collect(),
                plan: from_table(table),
            }
        })
        .collect()
}
