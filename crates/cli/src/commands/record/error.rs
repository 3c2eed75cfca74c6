//! Why a path cannot be recorded.

use std::path::PathBuf;

use ccbench_proto::plan::check::PlanProblem;
use ccbench_proto::trace::WriteError;
use ccbench_proto::units::Micros;

/// The command line does not describe a recording, or the recording cannot be written as a trace.
#[derive(Debug, thiserror::Error)]
pub enum RecordUsageError {
    /// `--quick` was given.
    #[error("--quick is for plans; use a shorter --length")]
    Quick,
    /// The rows would not begin with the phases.
    #[error(
        "--every {every} must divide 1s and --length {length}: use 10ms, 20ms, 50ms, 100ms, 200ms, 500ms or 1s"
    )]
    Every {
        /// The time between rows.
        every: Micros,
        /// The length of the recording.
        length: Micros,
    },
    /// The ends of the path are not given.
    #[error("give a plan with --from and --to, or --peer with --peer-address and --here-address")]
    NoEnds,
    /// The plan of the recording is invalid.
    #[error("{}", .0.iter().map(PlanProblem::to_string).collect::<Vec<_>>().join("\n"))]
    Plan(Vec<PlanProblem>),
    /// The format cannot represent the recording.
    #[error("cannot write {}: {source}", path.display())]
    Format {
        /// The trace.
        path: PathBuf,
        /// Why.
        source: WriteError,
    },
}
