//! What a run leaves behind: the results directory, its tables, the verdict on each trial and the summary.
//!
//! - [`store`] makes a results directory, reopens it, and takes a trial's rows ([`trial`]) into it.
//! - [`columns`] lists the columns of every table, in one place.
//! - [`journal`] is the append-only record that decides which trials exist.
//! - [`verdict`] judges a trial while its rows go by.
//! - [`report`] puts a run on one page for a browser; [`figure`] draws figures for a paper,
//!   [`compare`] lays two runs side by side, [`export`] writes for other tools.
//! - [`summary`] turns committed trials into means and confidence intervals; [`table`] prints them.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polars::error::PolarsError;

mod cells;
pub mod clock;
pub mod columns;
pub mod compare;
mod csv;
mod curve;
pub mod display;
mod encoding;
pub mod expect;
pub mod export;
pub mod figure;
pub mod journal;
mod layout;
pub mod model;
mod open_run;
mod parallel;
mod part;
mod points;
mod record;
pub mod report;
mod series;
pub mod six_columns;
pub mod store;
pub mod summarize;
pub mod summary;
pub mod svg;
pub mod table;
pub mod trace;
pub mod trial;
pub mod verdict;
mod writing;

pub use model::{SCHEMA_VERSION, TrialStatus};

/// What can go wrong with a results directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultsError {
    /// The file system refused.
    #[error("cannot {op} {}: {source}{}", path.display(), way_out(source))]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Polars refused.
    #[error("cannot {op} {}: {source}{}", path.display(), way_out_of(source))]
    Frame {
        /// What was tried.
        op: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// Polars' answer.
        source: PolarsError,
    },
    /// A JSON file or line could not be written or understood.
    #[error("cannot {op} {}: {source}", path.display())]
    Json {
        /// What was tried.
        op: &'static str,
        /// On which file.
        path: PathBuf,
        /// The parser's answer.
        source: serde_json::Error,
    },
    /// A directory that ccbench did not make.
    #[error(
        "{} is not a results directory of ccbench ({why}); give the directory that `ccbench run` printed",
        path.display()
    )]
    NotARun {
        /// The directory.
        path: PathBuf,
        /// What is missing.
        why: &'static str,
    },
    /// A plan in place of what running it made.
    #[error(
        "{} is a plan and no results directory; `ccbench run {}` runs it, and prints the directory",
        path.display(), path.display()
    )]
    APlan {
        /// The file.
        path: PathBuf,
    },
    /// A line of the journal that is not the last one fails its checksum.
    #[error(
        "{}: line {line} is damaged though lines follow it, so this is no interrupted write; \
         restore the file from a copy, or remove that line and every later one to go on from there",
        path.display()
    )]
    DamagedJournal {
        /// The journal.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// Resuming with a plan that resolves to something else.
    #[error(
        "{} holds a run of another plan (its resolved plan has sha256 {found}, this one {wanted}); \
         resume with the plan in {}/plan.toml, or start a new run",
        path.display(), path.display()
    )]
    OtherPlan {
        /// The results directory.
        path: PathBuf,
        /// Of the plan that the directory was made for.
        found: String,
        /// Of the plan given now.
        wanted: String,
    },
    /// Another ccbench is writing there.
    #[error("another ccbench is writing to {}; wait for it to end, or stop it", path.display())]
    InUse {
        /// The results directory.
        path: PathBuf,
    },
    /// A trial's files could not be written; every later step of the trial says so again.
    #[error(transparent)]
    Writing(Arc<ResultsError>),
    /// The thread that writes a trial's files panicked.
    #[error(
        "the thread that writes the trial's tables broke off: a mistake in ccbench; \
         `ccbench run --resume` does the trial again"
    )]
    WriterDied,
    /// The same trial was committed before.
    #[error("{} exists already: point {point_id}, trial {trial} was committed before", path.display())]
    Exists {
        /// The directory in the way.
        path: PathBuf,
        /// Which point.
        point_id: u32,
        /// Which repetition.
        trial: u16,
    },
    /// A row from a node whose clock was not given.
    #[error("rows of node `{node}` arrived, but the trial began without that node's clock")]
    UnknownNode {
        /// Its name.
        node: String,
    },
    /// A file of a node's raw output has a name that leaves the trial's directory, or there are too many.
    #[error("node `{node}` sent a raw file named `{name}`: {why}")]
    RawName {
        /// Whose.
        node: String,
        /// The file's name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A directory for an import has something in it.
    #[error("{} is not empty; name a directory that does not exist yet", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A directory opened for reading cannot take trials.
    #[error("{} is open for reading only", path.display())]
    ReadOnly {
        /// The results directory.
        path: PathBuf,
    },
    /// A figure for which there is no data.
    #[error("no {kind} figure of {}: {why}; {possible}", path.display())]
    NoFigure {
        /// The results directory.
        path: PathBuf,
        /// What was asked for.
        kind: &'static str,
        /// What is missing.
        why: String,
        /// The kinds that there is data for.
        possible: String,
    },
    /// A choice of rows that the run does not have.
    #[error("--where {column}={value}: {why}")]
    Where {
        /// Before the `=`.
        column: String,
        /// Behind it.
        value: String,
        /// What is wrong, and what there is.
        why: String,
    },
    /// A metric that a figure or a comparison does not have.
    #[error("there is no metric `{metric}` here; there are: {known}")]
    UnknownMetric {
        /// As asked.
        metric: String,
        /// Those that exist.
        known: String,
    },
    /// A table that the run does not have.
    #[error("there is no table `{table}` in this run; there are: {known}")]
    UnknownTable {
        /// As asked.
        table: String,
        /// Those that exist.
        known: String,
    },
    /// Several tables for standard output.
    #[error("standard output is for one table; name it with --table (there are: {known})")]
    ManyTables {
        /// Those that exist.
        known: String,
    },
    /// A run without what another tool would read.
    #[error("{}: nothing to export: {why}; `ccbench export csv` writes every table that there is", path.display())]
    NothingToExport {
        /// The results directory.
        path: PathBuf,
        /// What is missing.
        why: &'static str,
    },
    /// One file for several figures.
    #[error(
        "{} would hold {} figures ({}); name a folder, or choose one with --where",
        path.display(), stems.len(), stems.join(", ")
    )]
    ManyFigures {
        /// The file.
        path: PathBuf,
        /// What they are called.
        stems: Vec<String>,
    },
    /// A figure for a file that is none of the formats.
    #[error(
        "{} is neither SVG nor PNG: name a file that ends in .svg or .png, or a folder; SVG becomes PDF with \
        rsvg-convert, Inkscape or a browser",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// A comparison of what has nothing in common.
    #[error("nothing to compare: {why}")]
    Unpaired {
        /// What is missing, and what there is.
        why: String,
    },
    /// A picture cannot be turned into pixels.
    #[error("cannot draw {what} as PNG: {why}; make it smaller, or take --format svg")]
    Picture {
        /// Which.
        what: String,
        /// Why.
        why: String,
    },
    /// A flow group that no committed trial has.
    #[error("no committed trial has a flow group `{group}`; there are: {known}")]
    UnknownGroup {
        /// As asked.
        group: String,
        /// Those that exist.
        known: String,
    },
}

impl ResultsError {
    /// Whether the command named the wrong thing, or asked for what the run does not have.
    pub const fn is_of_the_command(&self) -> bool {
        matches!(
            self,
            Self::NotARun { .. }
                | Self::APlan { .. }
                | Self::NotEmpty { .. }
                | Self::NoFigure { .. }
                | Self::Where { .. }
                | Self::UnknownMetric { .. }
                | Self::UnknownTable { .. }
                | Self::ManyTables { .. }
                | Self::NothingToExport { .. }
                | Self::ManyFigures { .. }
                | Self::Format { .. }
                | Self::Unpaired { .. }
        )
    }
}

/// Where the system's answer does not say what to do.
fn way_out(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "; make room there (a run goes on with `ccbench run --resume`)"
        }
        _ => "",
    }
}

fn way_out_of(error: &PolarsError) -> &'static str {
    match error {
        PolarsError::IO { error, .. } => way_out(error),
        _ => "",
    }
}

/// Result of everything here.
pub type Result<T, E = ResultsError> = std::result::Result<T, E>;

/// Names operation and path of an I/O error.
fn io_error(op: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ResultsError {
    let path = path.to_path_buf();
    move |source| ResultsError::Io { op, path, source }
}

/// Names operation and path of a Polars error.
fn frame_error(op: &'static str, path: &Path) -> impl FnOnce(PolarsError) -> ResultsError {
    let path = path.to_path_buf();
    move |source| ResultsError::Frame { op, path, source }
}
