//! Cross-field rules: a plan becomes a [`CheckedPlan`], or the list of all that is wrong with it. Every
//! point of the matrix is checked, because it is a point that runs, not the plan.

use super::Plan;
use super::parse::set::join_key;
use crate::resolve;
use crate::schedule::Point;

mod flows;
mod limits;
mod links;
mod lints;
mod matrix;
mod names;
mod nodes;
mod queues;
mod timeline;

/// A plan that passed every check. Only [`check`] makes one; only it can be scheduled.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedPlan(Plan);

/// One problem, its place in the plan, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct PlanProblem {
    /// Dotted path of the key, as a user would write it: `links.bottleneck.rate`.
    pub path: String,
    /// What is wrong and how to mend it.
    pub why: String,
    /// An error stops the plan; a warning is a lint about something that misleads.
    pub severity: Severity,
}

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The plan runs, but its results may mislead.
    Warning,
    /// The plan cannot run.
    Error,
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl CheckedPlan {
    /// The plan's contents.
    pub fn plan(&self) -> &Plan {
        &self.0
    }

    /// How many points the matrix has; 1 without one.
    pub fn point_count(&self) -> u32 {
        matrix::count(&self.0).min(matrix::MAX_POINTS) as u32
    }

    /// Every combination of the matrix's levels, in order: the last factor (by name) changes fastest.
    pub fn points(&self) -> Vec<Point> {
        matrix::expand(&self.0)
            .filter_map(|cell| {
                let plan = resolve::settle(&cell.plan.ok()?);
                Some(Point { id: cell.id, factors: cell.factors, plan: Self(plan) })
            })
            .collect()
    }
}

/// Checks a plan at every point of its matrix. The warnings come with the plan.
///
/// # Errors
/// Every problem there is, warnings too, when at least one is an error.
pub fn check(plan: Plan) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    let mut problems = Problems::default();
    whole(&plan, &mut problems);
    matrix::check(&plan, &mut problems);
    matrix::check_points(&plan, &mut problems, at_point);
    let found = problems.0;
    if found.iter().any(|p| p.severity == Severity::Error) {
        return Err(found);
    }
    Ok((CheckedPlan(plan), found))
}

/// Rules about what is the same at every point.
fn whole(plan: &Plan, problems: &mut Problems) {
    nodes::check(plan, problems);
    timeline::check_experiment(plan, problems);
}

/// Rules about one point, with its presets not yet merged.
fn at_point(plan: &Plan, problems: &mut Problems) {
    names::check(plan, problems);
    nodes::check_settings(plan, problems);
    links::check(plan, problems);
    flows::check(plan, problems);
    timeline::check_trial(plan, problems);
    lints::check(plan, problems);
}

/// What has been found so far.
#[derive(Debug, Default)]
struct Problems(Vec<PlanProblem>);

impl Problems {
    fn error(&mut self, path: &[&str], why: impl Into<String>) {
        self.add(path, why.into(), Severity::Error);
    }

    fn warning(&mut self, path: &[&str], why: impl Into<String>) {
        self.add(path, why.into(), Severity::Warning);
    }

    fn add(&mut self, path: &[&str], why: String, severity: Severity) {
        self.0.push(PlanProblem { path: join_key(path), why, severity });
    }
}
