//! `ccbench run --shard`: runs the trials of a shard that are missing from the shard store.

use serde_json::json;

use super::{PlanRun, Prepared, interrupt, prepare};
use crate::args::RunArgs;
use crate::args::shard::ShardChoice;
use crate::console::{message, print_json};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::plan_source::PlanSource;
use crate::shard::{ShardProgress, ShardRun};

/// Runs a shard. The exit code is for a scheduler and does not depend on verdicts: 0 if every trial of the shard is in the store,
/// 2 if a retry would fail too, 143 after SIGTERM. After any other code, a retry may succeed.
///
/// # Errors
/// The plan is invalid, the backend is not available, or a trial cannot be stored.
pub async fn run(
    args: &RunArgs,
    choice: ShardChoice,
    source: PlanSource,
) -> Result<ExitCode, CliError> {
    let interrupt = interrupt()?;
    let Prepared { experiment, text, sets, choice: backend, engine_note } = prepare(args, source)?;
    let shard = ShardRun::open(choice, &args.options.out, &experiment).await?;
    let (begin, store) = (shard.progress(), args.options.out.display());
    message(format_args!(
        "shard {} of {store}: {} of {} trials are left; the files of running trials are in {}",
        begin.shard,
        begin.planned - begin.committed,
        begin.planned,
        shard.scratch().display()
    ));
    let result = if shard.is_complete() {
        Ok(())
    } else {
        let (experiment, plan_text, sets) = (&experiment, text.as_str(), sets.as_slice());
        let shard = Some(&shard);
        let run = PlanRun { args, experiment, plan_text, sets, earlier: None, shard, engine_note };
        let completed = run.execute(backend, interrupt.clone()).await;
        completed.and_then(|completed| {
            completed.result?;
            Ok(completed.recorded?)
        })
    };
    print_end(&shard.progress(), args.options.json);
    match result {
        Err(error) if error.exit_code() == ExitCode::Interrupted && interrupt.is_termination() => {
            Err(CliError::Terminated)
        }
        Err(error) => Err(error),
        Ok(()) if shard.is_complete() => Ok(ExitCode::Success),
        Ok(()) => Ok(ExitCode::Failure),
    }
}

/// Prints what is now in the store.
fn print_end(progress: &ShardProgress, is_json: bool) {
    let ShardProgress { shard, planned, committed, duplicates } = progress;
    if is_json {
        print_json(&json!({
            "event": "end", "shard": shard.to_string(), "trials": planned, "committed": committed, "duplicates": duplicates,
        }));
    } else {
        let discarded = match duplicates {
            0 => String::new(),
            count => format!("; {count} trials of this attempt were duplicates and were discarded"),
        };
        message(format_args!(
            "shard {shard}: {committed} of {planned} trials are committed{discarded}"
        ));
    }
}
