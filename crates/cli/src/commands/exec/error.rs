//! Why no experiment can be entered.

use std::path::PathBuf;

/// The command line does not choose one experiment on this machine.
#[derive(Debug, thiserror::Error)]
pub enum ExecUsageError {
    /// No experiment is running.
    #[error("none of your experiments is running on this machine")]
    NoneRuns,
    /// No experiment has this ID or directory.
    #[error("--run {0}: no running experiment of yours on this machine has this ID or directory")]
    Unknown(String),
    /// The experiments run on other machines, or in the lab or the simulator.
    #[error(
        "the nodes of {} are not in network namespaces of this machine, and exec enters only those; for a node with an agent, run the \
         command on its machine (`ssh HOST COMMAND`)",
        .0.join(", ")
    )]
    Elsewhere(Vec<String>),
    /// Several experiments are running.
    #[error("several experiments are running; choose one with --run ID or --run DIR: {}", .0.join(", "))]
    Several(Vec<String>),
    /// The working directory has another run in progress.
    #[error(
        "the run of this directory, {}, may not be {chosen}; choose one with --run ID or --run DIR",
        own.display()
    )]
    OtherRun {
        /// The run of the working directory.
        own: PathBuf,
        /// The only experiment on this machine.
        chosen: String,
    },
}
