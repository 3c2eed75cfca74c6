//! `ccbench check`: checks a plan and prints its number of trials and their duration.

use std::time::Duration;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::{AdaptiveRepeat, Engine};
use ccbench_proto::resolve;
use ccbench_proto::units::Micros;

use crate::args::CheckArgs;
use crate::console::{message, print};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::lab::engine::{self, LabRequest};
use crate::plan_source::PlanSource;
use crate::progress::clock_text;

/// Checks a plan.
///
/// # Errors
/// The plan is invalid.
pub fn run(args: &CheckArgs) -> Result<ExitCode, CliError> {
    let source = PlanSource::read(&args.plan.plan)?.for_backend(args.lab, args.sim);
    let mut sets = source.sets(&args.plan.sets, args.quick)?;
    if args.lab {
        // The rules are in `plan::check::lab`.
        sets.extend(lab_engine(args, &source, &sets)?.map(engine::as_override));
    }
    let plan = source.load(&sets)?.plan;
    if args.expand {
        for point in plan.points() {
            let factors: Vec<String> =
                point.factors.iter().map(|(factor, level)| format!("{factor} = {level}")).collect();
            let limits = resolve::relative_limits(point.plan.plan()).into_iter();
            let limits: String = limits
                .map(|(key, limit, amount)| format!("# {key} = {limit} is {amount}\n"))
                .collect();
            let plan = resolve::to_toml(&point.plan);
            print(&format!("# point {} {}\n{limits}{plan}\n", point.id, factors.join(", ")));
        }
    }
    // The output of --expand is TOML.
    let comment = if args.expand { "# " } else { "" };
    print(&format!("{comment}{}: {}\n", plan.plan().name, size(&plan)));
    Ok(ExitCode::Success)
}

/// Returns the engine to check for; `None` if the plan names engines.
fn lab_engine(
    args: &CheckArgs,
    source: &PlanSource,
    sets: &[String],
) -> Result<Option<Engine>, CliError> {
    if args.engine.is_some() {
        return Ok(args.engine);
    }
    let plan = source.load_quietly(sets)?;
    let request = LabRequest { lab: true, ..LabRequest::default() };
    let choice = engine::choose_for(&plan, source, sets, request);
    if let Some(note) = choice.as_ref().and_then(|choice| choice.note.as_ref()) {
        message(format_args!("note: {note}"));
    }
    Ok(choice.map(|choice| choice.engine))
}

/// Returns points, trials and duration, such as `8 point(s) × 3 = 24 trial(s), 12:00 of traffic`.
pub fn size(plan: &CheckedPlan) -> String {
    let (points, most) = (plan.point_count(), plan.plan().repeat.at_most());
    let (trials, duration) = (points * most, duration(plan));
    match plan.plan().repeat.adaptive() {
        None => format!("{points} point(s) × {most} = {trials} trial(s), {duration} of traffic"),
        Some(AdaptiveRepeat { at_least, .. }) => format!(
            "{points} point(s) × {at_least} to {most} = {} to {trials} trial(s), at most {duration} of traffic",
            points * at_least
        ),
    }
}

/// Returns the maximum duration of all trials of a plan, such as `12:00`.
pub fn duration(plan: &CheckedPlan) -> String {
    let lengths = plan.trial_lengths().into_iter().map(Micros::as_secs_f64);
    let total = lengths.sum::<f64>() * f64::from(plan.plan().repeat.at_most());
    clock_text(Duration::from_secs_f64(total))
}
