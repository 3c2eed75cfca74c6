//! Checks a plan across its keys: the result is a [`CheckedPlan`] or a list of all problems. Every point of the matrix is checked,
//! because trials run points.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Plan;
use super::parse::read_text;
use super::parse::unread_keys::UnreadKeys;
use crate::resolve;
use crate::topology::Topology;
use crate::units::Micros;

mod absent_groups;
mod captures;
mod cc;
mod changes;
mod classes;
mod competitors;
mod endpoints;
mod expects;
mod flows;
mod impair;
mod lab;
mod limits;
mod links;
mod lints;
mod matrix;
mod names;
mod nodes;
mod probes;
mod problems;
mod queues;
mod repeats;
mod simulator;
mod supplied;
mod timeline;
mod traces;
mod triggers;

use problems::Problems;

pub use super::checked::{CheckedPlan, PlanFiles, Point, TraceFacts, TraceFiles, UnreadableTrace};
pub use super::parse::quick::quick_sets;
pub use super::problem::{PlanProblem, Severity};
pub use timeline::refuse_phases;

/// Execution targets of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Target {
    /// Kernels: nodes, network namespaces, or the lab if the plan selects it.
    #[default]
    Kernel,
    /// The lab, also if the plan does not select it.
    Lab,
    /// The simulator, which models a part of what kernels can do.
    Simulator,
    /// Not known: the plan comes from results, or is an agent's, and a controller has checked it for its target.
    Any,
}

impl Target {
    /// Whether kernels run the plan for certain.
    fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel | Self::Lab)
    }
}

impl CheckedPlan {
    /// Number of points of the matrix; 1 without a matrix.
    pub fn point_count(&self) -> u32 {
        matrix::count(self.plan()).min(matrix::MAX_POINTS) as u32
    }

    /// The levels of every point, in the order of their ids; cheaper than [`CheckedPlan::points`].
    pub fn levels(&self) -> Vec<Vec<(String, String)>> {
        matrix::combinations(self.plan())
    }

    /// The length of a trial of every point, in the order of their ids; cheaper than [`CheckedPlan::points`].
    pub fn trial_lengths(&self) -> Vec<Micros> {
        matrix::lengths(self.plan())
    }

    /// Every combination of the matrix's levels, in order: the last factor (by name) changes fastest.
    pub fn points(&self) -> Vec<Point> {
        matrix::expand(self.plan())
            .filter_map(|cell| {
                let mut plan = cell.plan?;
                fill(&mut plan, self.files());
                let mut plan = resolve::normalize(&plan);
                resolve::remove_unscheduled(&mut plan);
                let plan = Self::new(plan, Arc::clone(self.files()));
                Some(Point { id: cell.id, factors: cell.factors, plan })
            })
            .collect()
    }
}

/// Fills in the keys that follow from the files.
fn fill(plan: &mut Plan, files: &PlanFiles) {
    traces::fill(plan, &files.traces);
    supplied::fill(plan, &files.ccs);
}

/// Makes a checked plan. Fills in the keys that follow from files which no factor changes.
fn checked(mut plan: Plan, files: Arc<PlanFiles>) -> CheckedPlan {
    traces::fill_unvaried(&mut plan, &files.traces);
    supplied::fill_unvaried(&mut plan, &files.ccs);
    plan.quick.clear();
    CheckedPlan::new(plan, files)
}

/// Reads a plan's text with overrides (`links.bottleneck.rate=50mbit`) and checks it at every point of its
/// matrix. The warnings come with the plan. Problems are in the order of their lines. Rules that depend on the contents of trace
/// files are skipped; see [`read_with`].
///
/// # Errors
/// If at least one problem is an error, all problems, including warnings: keys that cannot be read, and problems of the others.
/// Problems that may only follow from unread keys are left out.
pub fn read(
    text: &str,
    sets: &[String],
) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    read_with(text, sets, TraceFiles::new())
}

/// As [`read`], with the contents of the files that [`trace_files`] names.
///
/// # Errors
/// As [`read`]; files that cannot be read are problems of the plan.
pub fn read_with(
    text: &str,
    sets: &[String],
    traces: TraceFiles,
) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    read_for(Target::Any, text, sets, traces)
}

/// As [`read_with`], for a plan that this target will run, with all its files, also those that [`cc_files`] names.
///
/// # Errors
/// As [`read_with`]; everything that the target cannot run is a problem of the plan.
pub fn read_for(
    target: Target,
    text: &str,
    sets: &[String],
    files: impl Into<PlanFiles>,
) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    let (reading, lines) = read_text(text, sets).map_err(|problem| vec![problem])?;
    let mut found = reading.problems;
    found.extend(reading.warnings);
    let files = Arc::new(files.into());
    if let Some(plan) = &reading.plan {
        found.extend(find(plan, reading.unread_keys, &files, target));
    }
    let is_right = |found: &[PlanProblem]| found.iter().all(|p| p.severity < Severity::Error);
    if sets.is_empty() && is_right(&found) {
        found.extend(errors_with_quick(target, text, &files));
    }
    lines.number(&mut found);
    match reading.plan {
        Some(plan) if is_right(&found) => Ok((checked(plan, files), found)),
        _ => Err(found),
    }
}

/// The errors of a plan with the overrides of its `[quick]`. The plan is valid without them, so each error follows from an
/// override. Errors at other keys become warnings, because the plan runs without the overrides.
fn errors_with_quick(target: Target, text: &str, files: &Arc<PlanFiles>) -> Vec<PlanProblem> {
    let sets = quick_sets(text, &[]).unwrap_or_default();
    if sets.is_empty() {
        return Vec::new();
    }
    let Ok((reading, lines)) = read_text(text, &sets) else { return Vec::new() };
    let mut found = reading.problems;
    if let Some(plan) = &reading.plan {
        found.extend(find(plan, reading.unread_keys, files, target));
    }
    found.retain(|problem| problem.severity == Severity::Error);
    lines.number(&mut found);
    let is_of_quick =
        |problem: &PlanProblem| problem.place.first().is_some_and(|first| first == "quick");
    for problem in found.iter_mut().filter(|problem| !is_of_quick(problem)) {
        problem.reason += " (with `--quick`)";
        problem.severity = Severity::Warning;
    }
    found
}

/// The trace files that any point of a plan names, as far as the plan can be read.
pub fn trace_files(text: &str, sets: &[String]) -> BTreeSet<String> {
    let plan = read_text(text, sets).ok().and_then(|(reading, _)| reading.plan);
    plan.as_ref().map(traces::files).unwrap_or_default()
}

/// The files of supplied congestion controls that any point of a plan names, as far as the plan can be read.
pub fn cc_files(text: &str, sets: &[String]) -> BTreeSet<String> {
    let plan = read_text(text, sets).ok().and_then(|(reading, _)| reading.plan);
    plan.as_ref().map(supplied::files).unwrap_or_default()
}

/// Checks a plan at every point of its matrix. The warnings come with the plan. Problems have no lines, because the text is not
/// known; see [`read`].
///
/// # Errors
/// If at least one problem is an error, all problems, including warnings.
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
    let files = Arc::new(traces.into());
    let found = find(&plan, UnreadKeys::default(), &files, Target::Any);
    if found.iter().any(|p| p.severity == Severity::Error) {
        return Err(found);
    }
    Ok((checked(plan, files), found))
}

/// Every problem of a plan, except those that only follow from unread keys.
fn find(
    plan: &Plan,
    unread_keys: UnreadKeys,
    files: &Arc<PlanFiles>,
    target: Target,
) -> Vec<PlanProblem> {
    let files = Arc::clone(files);
    let mut problems = Problems { unread_keys, files, target, ..Problems::default() };
    check_constant_keys(plan, &mut problems);
    matrix::check(plan, &mut problems);
    expects::check(plan, &mut problems);
    repeats::check(plan, &mut problems);
    let topology = Topology::build(plan);
    let contrasts = competitors::contrasts(plan);
    let group_numbers = absent_groups::group_numbers(plan);
    let with_kernel_release = nodes::with_kernel_release(plan);
    matrix::check_points(plan, &mut problems, |point, levels, problems| {
        let own = (!are_wired_alike(point, plan)).then(|| Topology::build(point));
        let topology = own.as_ref().unwrap_or(&topology);
        nodes::check_kernel_releases(point, &with_kernel_release, problems);
        at_point(point, topology, problems);
        competitors::check(point, (levels, topology), &contrasts, problems);
        absent_groups::check(point, levels, &group_numbers, problems);
    });
    problems.found
}

/// Whether two plans have the same nodes and wires, and so the same topology. Most points share the topology of the plan.
fn are_wired_alike(a: &Plan, b: &Plan) -> bool {
    let mut nodes = a.nodes.iter().zip(&b.nodes);
    a.wires == b.wires
        && a.nodes.len() == b.nodes.len()
        && nodes.all(|((x, one), (y, other))| x == y && one.agent == other.agent)
}

/// Checks the keys that are the same at every point.
fn check_constant_keys(plan: &Plan, problems: &mut Problems) {
    nodes::check(plan, problems);
    repeats::check_count(plan, problems);
    timeline::check_experiment(plan, problems);
}

/// Checks one point, whose presets are not merged yet. A plan may have 10 000 points, and most of the work is copying it.
fn at_point(plan: &Plan, topology: &Topology, problems: &mut Problems) {
    let files = &problems.files;
    let filled = (!files.traces.is_empty() || !files.ccs.is_empty()).then(|| {
        let mut filled = plan.clone();
        fill(&mut filled, files);
        filled
    });
    let plan = filled.as_ref().unwrap_or(plan);
    let normalized = resolve::as_normalized(plan);
    let plans = (plan, &*normalized);
    names::check(plan, problems);
    nodes::check_settings(plan, problems);
    lab::check(plans, topology, problems);
    if problems.target == Target::Simulator {
        simulator::check(plans, topology, problems);
    }
    timeline::check_trial(plan, problems);
    links::check(plans, topology, problems);
    changes::check(plans, topology, problems);
    cc::check(plan, problems);
    flows::check(plans, topology, problems);
    captures::check(plan, topology, problems);
    lints::check(plans, topology, problems);
}
