//! Why nothing is run.

use std::path::PathBuf;

/// What a user can do who wants to add repetitions to a run.
const MORE_REPETITIONS: &str =
    "For more repetitions, start a new run: ccbench run PLAN --set repeat=N";

/// The command line names nothing to run, or its options contradict each other.
#[derive(Debug, thiserror::Error)]
pub enum RunUsageError {
    /// There is nothing to run.
    #[error("give a plan, or --resume DIR")]
    NothingToRun,
    /// A run was to be resumed with `--quick`.
    #[error(
        "--quick changes the plan, but --resume continues the plan that was run; leave out --quick"
    )]
    QuickWithResume,
    /// A run was to be resumed with a plan.
    #[error(
        "--resume continues the plan that was run, of which the directory has a copy; leave out {}. {MORE_REPETITIONS}",
        .0.display()
    )]
    PlanWithResume(PathBuf),
    /// A run was to be resumed with overrides.
    #[error(
        "--set changes the plan, but --resume continues the plan that was run; leave out --set. {MORE_REPETITIONS}"
    )]
    SetWithResume,
    /// The results of a run that is no shard were to be put into a bucket.
    #[error(
        "--out {0}: only shards are put into a bucket; add --shard 1/1, then make a run of them with `ccbench merge {0}`"
    )]
    Bucket(String),
}
