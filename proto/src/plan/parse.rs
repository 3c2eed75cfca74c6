//! Text to [`super::Plan`]: every problem at once, each with its place.

use super::Plan;
use super::check::{PlanProblem, Severity};

pub(crate) mod set;
pub(crate) mod suggest;

/// A plan from its TOML text.
///
/// # Errors
/// One problem with line and column where the text is not TOML, otherwise every problem there is.
pub fn parse(text: &str) -> Result<Plan, Vec<PlanProblem>> {
    parse_with(text, &[])
}

/// As [`parse`], with overrides (`links.bottleneck.rate=50mbit`) applied first.
///
/// # Errors
/// As [`parse`]; the path of a problem with an override begins with `--set`.
pub fn parse_with(text: &str, sets: &[String]) -> Result<Plan, Vec<PlanProblem>> {
    let mut table: toml::Table =
        toml::from_str(text).map_err(|e| vec![error("plan", e.message())])?;
    let mut problems = Vec::new();
    for assignment in sets {
        if let Err((path, why)) = set::apply(&mut table, assignment) {
            problems.push(error(&path, &why));
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    from_table(table)
}

/// A plan from its table.
pub(crate) fn from_table(table: toml::Table) -> Result<Plan, Vec<PlanProblem>> {
    toml::Value::Table(table)
        .try_into()
        .map_err(|e: toml::de::Error| vec![error("plan", e.message())])
}

fn error(path: &str, why: &str) -> PlanProblem {
    PlanProblem { path: path.to_owned(), why: why.to_owned(), severity: Severity::Error }
}
