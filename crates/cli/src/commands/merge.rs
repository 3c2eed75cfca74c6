//! `ccbench merge`: one run of the trials of all shards.

use std::path::Path;

use ccbench_results::merge::{Duplicate, Missing, Staging};
use ccbench_results::shard::PLAN_KEY;
use ccbench_results::store::RunDir;

use super::run::{Tables, summarize_run};
use crate::args::shard::MergeArgs;
use crate::collect::{Collected, collect, copy_files};
use crate::console::message;
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::runtime::block_on;

/// Trials that a message names.
const NAMED_TRIALS: usize = 10;

/// Runs the command.
///
/// # Errors
/// The store cannot be read, an object is damaged or belongs to another plan, or the results cannot be written.
pub fn run(args: &MergeArgs) -> Result<ExitCode, CliError> {
    let Some(merged) = block_on(merge(args))? else { return Ok(ExitCode::Failure) };
    let dir = RunDir::open(&merged.path)?;
    message(format_args!("results: {}", dir.path().display()));
    let code = summarize_run(&dir, Tables::All, args.json, args.strict)?.exit_code;
    Ok(if merged.is_sound { code } else { ExitCode::Failure })
}

/// A merged run.
struct Merged {
    path: std::path::PathBuf,
    /// No trial is missing, and no machine disagrees with another one.
    is_sound: bool,
}

/// Combines the shards; `None` if trials are missing, which is printed.
async fn merge(args: &MergeArgs) -> Result<Option<Merged>, CliError> {
    let location = &args.shards;
    if !ccbench_store::is_url(location) && !Path::new(location).is_dir() {
        return Err(CliError::Usage(format!(
            "{location} is no directory; give that of `ccbench run PLAN --shard I/N --out DIR`, or its URL"
        )));
    }
    let store = ccbench_store::open(location)?;
    let store = &*store;
    if store.read(PLAN_KEY).await?.is_none() {
        return Err(CliError::Usage(format!(
            "{location} has no shards; `ccbench run PLAN --shard I/N --out {location}` puts them there"
        )));
    }
    let Collected { merge, .. } = collect(store, Staging::new(&args.out)?).await?;
    let missing = merge.missing();
    missing.iter().for_each(print_missing);
    for duplicate in merge.duplicates() {
        print_duplicate(duplicate, merge.is_repeatable());
    }
    if !missing.is_empty() && !args.partial {
        message("nothing was merged; run these shards again, or add --partial");
        return Ok(None);
    }
    for commit in merge.commits() {
        copy_files(store, &merge, commit).await?;
    }
    let disagree = merge.is_repeatable() && merge.duplicates().iter().any(|found| !found.equal);
    let note = format!("merged from the shards in {location}");
    let path = merge.finish(note)?;
    Ok(Some(Merged { path, is_sound: missing.is_empty() && !disagree }))
}

/// `point 3 repetition 2, point 4 repetition 1 and 5 more`.
fn named(trials: &[(u32, u16)]) -> String {
    let first = trials.iter().take(NAMED_TRIALS);
    let names: Vec<String> =
        first.map(|(point, trial)| format!("point {point} repetition {trial}")).collect();
    let more = match trials.len().saturating_sub(NAMED_TRIALS) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    names.join(", ") + &more
}

fn print_missing(missing: &Missing) {
    let (count, names) = (missing.trials.len(), named(&missing.trials));
    match missing.shard {
        Some(shard) => {
            message(format_args!("missing: shard {shard} lacks {count} trials: {names}"));
        }
        None => message(format_args!(
            "missing: {count} trials: {names} (the shards were not all of one number of shards)"
        )),
    }
}

fn print_duplicate(duplicate: &Duplicate, is_repeatable: bool) {
    let Duplicate { trial, used, discarded, equal } = duplicate;
    let comparison = match (equal, is_repeatable) {
        (true, _) => "their tables are equal",
        (false, false) => "only its tables are in the run",
        (false, true) => {
            "their tables differ, although this backend gives equal ones: a machine or a program is faulty"
        }
    };
    message(format_args!(
        "duplicate: {}: attempts {used} and {discarded} ran it, and that of {used} is used; {comparison}",
        named(&[*trial])
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_some_trials_and_count_the_others() {
        assert_eq!(named(&[(3, 2)]), "point 3 repetition 2");
        let many: Vec<(u32, u16)> = (0..13).map(|point| (point, 1)).collect();
        let text = named(&many);
        assert!(text.ends_with("point 9 repetition 1 and 3 more"), "{text}");
    }
}
