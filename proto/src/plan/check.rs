//! Cross-field rules: a plan becomes a [`CheckedPlan`], or the list of all that is wrong with it. Every
//! point of the matrix is checked, because it is a point that runs, not the plan.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Plan;
use super::parse::lost::Lost;
use super::parse::read_text;
use super::parse::set::join_key;
use crate::resolve;
use crate::schedule::Point;
use crate::trace::Trace;

mod captures;
mod cc;
mod expects;
mod flows;
mod impair;
mod limits;
mod links;
mod lints;
mod matrix;
mod names;
mod nodes;
mod probes;
mod queues;
mod timeline;
mod traces;

pub use super::parse::quick::quick_sets;
pub use traces::{TraceFacts, TraceFiles};

/// A plan that passed every check. Only this module makes one; only it can be scheduled.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedPlan {
    plan: Plan,
    /// The trace files that its points may name.
    traces: Arc<TraceFiles>,
}

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
    /// Line of the plan's text, from 1, with the key or the nearest table around it; `None` when it is written
    /// nowhere: from `--set`, or missing from the plan as a whole.
    pub line: Option<u32>,
    /// The segments of the key whose line that is.
    pub(crate) place: Vec<String>,
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
    fn new(mut plan: Plan, traces: Arc<TraceFiles>) -> Self {
        traces::fill_unvaried(&mut plan, &traces);
        plan.quick.clear();
        Self { plan, traces }
    }

    /// The plan's contents.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What a trace file of the plan holds, by the name that the plan gives it; `None` if it has not been read.
    pub fn trace(&self, file: &str) -> Option<&Arc<Trace>> {
        self.traces.get(file)?.as_ref().ok().map(|facts| &facts.trace)
    }

    /// How many points the matrix has; 1 without one.
    pub fn point_count(&self) -> u32 {
        matrix::count(&self.plan).min(matrix::MAX_POINTS) as u32
    }

    /// Every combination of the matrix's levels, in order: the last factor (by name) changes fastest.
    pub fn points(&self) -> Vec<Point> {
        matrix::expand(&self.plan)
            .filter_map(|cell| {
                let mut plan = cell.plan?;
                traces::fill(&mut plan, &self.traces);
                let plan = resolve::settle(&plan);
                let plan = Self { plan, traces: Arc::clone(&self.traces) };
                Some(Point { id: cell.id, factors: cell.factors, plan })
            })
            .collect()
    }
}

/// Reads a plan's text with overrides (`links.bottleneck.rate=50mbit`) and checks it at every point of its
/// matrix. The warnings come with the plan. Problems are in the order of their lines. What depends on the contents
/// of trace files is not judged; see [`read_with`].
///
/// # Errors
/// Every problem there is, warnings too, when at least one is an error: what cannot be read, and what is
/// wrong with the rest. What may only follow from something unreadable is left out.
pub fn read(
    text: &str,
    sets: &[String],
) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    read_with(text, sets, TraceFiles::new())
}

/// As [`read`], with what the trace files hold that [`trace_files`] names.
///
/// # Errors
/// As [`read`]; files that cannot be read are problems of the plan.
pub fn read_with(
    text: &str,
    sets: &[String],
    traces: TraceFiles,
) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    let (reading, lines) = read_text(text, sets).map_err(|problem| vec![problem])?;
    let mut found = reading.problems;
    let traces = Arc::new(traces);
    if let Some(plan) = &reading.plan {
        found.extend(find(plan, reading.lost, &traces));
    }
    lines.number(&mut found);
    match reading.plan {
        Some(plan) if found.iter().all(|p| p.severity < Severity::Error) => {
            Ok((CheckedPlan::new(plan, traces), found))
        }
        _ => Err(found),
    }
}

/// The trace files that some point of a plan names, as far as it can be read.
pub fn trace_files(text: &str, sets: &[String]) -> BTreeSet<String> {
    let plan = read_text(text, sets).ok().and_then(|(reading, _)| reading.plan);
    plan.as_ref().map(traces::files).unwrap_or_default()
}

/// Checks a plan at every point of its matrix. The warnings come with the plan. Without the plan's text no
/// problem has a line; see [`read`].
///
/// # Errors
/// Every problem there is, warnings too, when at least one is an error.
pub fn check(plan: Plan) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    check_with(plan, TraceFiles::new())
}

/// As [`check`], with the contents of the trace files that the plan names.
///
/// # Errors
/// As [`check`]; files that cannot be read are problems of the plan.
pub fn check_with(
    plan: Plan,
    traces: TraceFiles,
) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    let traces = Arc::new(traces);
    let found = find(&plan, Lost::default(), &traces);
    if found.iter().any(|p| p.severity == Severity::Error) {
        return Err(found);
    }
    Ok((CheckedPlan::new(plan, traces), found))
}

/// Every problem of a plan, as far as it does not follow from what is lost of it.
fn find(plan: &Plan, lost: Lost, traces: &Arc<TraceFiles>) -> Vec<PlanProblem> {
    let mut problems = Problems { found: Vec::new(), lost, traces: Arc::clone(traces) };
    whole(plan, &mut problems);
    matrix::check(plan, &mut problems);
    expects::check(plan, &mut problems);
    matrix::check_points(plan, &mut problems, at_point);
    problems.found
}

/// Rules about what is the same at every point.
fn whole(plan: &Plan, problems: &mut Problems) {
    nodes::check(plan, problems);
    timeline::check_experiment(plan, problems);
}

/// Rules about one point, with its presets not yet merged.
fn at_point(plan: &Plan, problems: &mut Problems) {
    let mut plan = plan.clone();
    traces::fill(&mut plan, &problems.traces);
    let plan = &plan;
    names::check(plan, problems);
    nodes::check_settings(plan, problems);
    timeline::check_trial(plan, problems);
    links::check(plan, problems);
    cc::check(plan, problems);
    flows::check(plan, problems);
    captures::check(plan, problems);
    lints::check(plan, problems);
}

/// What has been found so far, and what cannot be judged.
#[derive(Debug, Default)]
struct Problems {
    found: Vec<PlanProblem>,
    lost: Lost,
    traces: Arc<TraceFiles>,
}

impl Problems {
    /// An error that follows from what is at the path and under it.
    fn error(&mut self, path: &[&str], why: impl Into<String>) {
        self.error_from(path, &[path], why);
    }

    /// An error that follows from the values at these places.
    fn error_from(&mut self, path: &[&str], reads: &[&[&str]], why: impl Into<String>) {
        self.add(path, reads, why.into(), Severity::Error);
    }

    /// A warning that follows from the values at these places.
    fn warning_from(&mut self, path: &[&str], reads: &[&[&str]], why: impl Into<String>) {
        self.add(path, reads, why.into(), Severity::Warning);
    }

    /// Whether something at, above or under one of these places could not be read.
    fn lost(&self, reads: &[&[&str]]) -> bool {
        reads.iter().any(|place| self.lost.touches(place))
    }

    /// From here on, what is at the path says nothing.
    fn doubt(&mut self, path: &[&str]) {
        self.lost.doubt(owned(path));
    }

    fn add(&mut self, path: &[&str], reads: &[&[&str]], why: String, severity: Severity) {
        let place = owned(path);
        if self.lost.covers(&place) || self.lost(reads) {
            return;
        }
        self.found.push(PlanProblem { path: join_key(path), why, severity, line: None, place });
    }
}

fn owned(path: &[&str]) -> Vec<String> {
    path.iter().map(|segment| (*segment).to_owned()).collect()
}
