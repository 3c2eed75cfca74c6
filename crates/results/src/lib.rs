//! Results of a run: the results directory, its tables, the verdict on each trial, summaries, figures and reports.
//!
//! - [`store`] creates and opens a results directory; [`trial`] writes a trial's rows into it.
//! - [`columns`] defines the columns of every table.
//! - [`backend`] is the run's backend in `run.json`.
//! - [`journal`] is the append-only record that decides which trials exist.
//! - [`verdict`] judges a trial while its rows arrive; [`reason`] lists its reasons.
//! - [`verify`] compares every file with the [digests](digest) in the journal.
//! - [`report`] writes an HTML report, [`figure`] draws figures for papers, [`compare`] compares two runs, [`export`] writes
//!   files for other tools, [`artifact`] packs a run for reviewers.
//! - [`shard`] has the records that a run's shards put into their shared store; [`merge`] combines them into one run.
//! - [`in_flight`] computes packets in flight.
//! - [`observer`] reports the progress of operations that read all trials of a run.
//! - [`stopping`] applies the rules that end the repetition of points, and compares points.
//! - [`summary`] computes means and confidence intervals over committed trials, [`expect`] judges the plan's claims,
//!   [`summarize`] combines and writes both, [`table`] prints them. [`scorecard`] relates a summary to the criteria of RFC 9743.
#![forbid(unsafe_code)]

pub mod artifact;
pub mod backend;
mod cells;
pub mod clock;
pub mod columns;
mod compact;
pub mod compare;
mod csv;
mod curve;
mod damage;
pub mod digest;
pub mod display;
mod encoding;
pub mod error;
pub mod expect;
pub mod export;
pub mod figure;
#[doc(hidden)]
pub mod fuzzing;
pub mod in_flight;
pub mod journal;
mod layout;
pub mod merge;
pub mod model;
pub mod observer;
mod open_run;
pub mod openmetrics;
mod parallel;
mod parquet_file;
mod part;
mod points;
pub mod reason;
mod record;
pub mod report;
pub mod scorecard;
mod series;
pub mod shard;
pub mod six_columns;
pub mod stopping;
pub mod store;
pub mod summarize;
pub mod summary;
pub mod svg;
pub mod table;
pub mod trace;
pub mod trial;
pub mod verdict;
pub mod verify;
mod writer_thread;

pub use artifact::ArtifactError;
pub use compare::CompareError;
pub use error::{ErrorClass, FileError};
pub use export::ExportError;
pub use figure::FigureError;
pub use journal::JournalError;
pub use merge::MergeError;
pub use model::{SCHEMA_VERSION, TrialStatus};
pub use part::write_bytes;
pub use report::ReportError;
pub use shard::ShardError;
pub use six_columns::UnknownGroup;
pub use store::StoreError;
pub use summarize::SummaryError;
pub use trace::recorded::RecordedError;
pub use trial::TrialError;

/// An error of this crate: one variant for each module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of a file in a results directory.
    #[error(transparent)]
    File(#[from] FileError),
    /// An error of the journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// An error of the results directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An error while a trial is written.
    #[error(transparent)]
    Trial(#[from] TrialError),
    /// An error of the summary.
    #[error(transparent)]
    Summary(#[from] SummaryError),
    /// The six columns name an unknown flow group.
    #[error(transparent)]
    SixColumns(#[from] UnknownGroup),
    /// An error of a comparison.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// An error of a figure.
    #[error(transparent)]
    Figure(#[from] FigureError),
    /// An error of an export.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// An error of the HTML report.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// An error of an artifact.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// An error of a record in the store of shards.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// An error while shards are merged.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// An error of a recorded path.
    #[error(transparent)]
    Recorded(#[from] RecordedError),
}

impl Error {
    /// Returns who has to act, which decides the exit code.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Journal(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::Trial(error) => error.class(),
            Self::Summary(error) => error.class(),
            Self::SixColumns(error) => error.class(),
            Self::Compare(error) => error.class(),
            Self::Figure(error) => error.class(),
            Self::Export(error) => error.class(),
            Self::Report(error) => error.class(),
            Self::Artifact(error) => error.class(),
            Self::Shard(error) => error.class(),
            Self::Merge(error) => error.class(),
            Self::Recorded(error) => error.class(),
        }
    }
}
