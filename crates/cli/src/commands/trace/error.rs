//! Why a trace cannot be read, converted or generated.

use std::path::PathBuf;

use ccbench_proto::trace::generate::{GenerateError, Kind};
use ccbench_proto::trace::{Format, TraceError, WriteError};
use ccbench_results::trace::parquet::ParquetTraceError;

/// The command line names a trace that cannot be read or written, or options that do not fit each other.
#[derive(Debug, thiserror::Error)]
pub enum TraceUsageError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The Parquet file has no trace.
    #[error("cannot read {}: {source}", path.display())]
    ReadParquet {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ParquetTraceError,
    },
    /// The trace is invalid; every problem has been printed.
    #[error("{}: {count} problem(s){}", path.display(), read_as(*format))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The number of problems.
        count: usize,
        /// The format it was read as; `None` if unknown.
        format: Option<Format>,
    },
    /// The plot's file has the extension of another format.
    #[error("cannot write {}: the plot is SVG; end its name in .svg", .0.display())]
    NotSvg(PathBuf),
    /// The output has an unknown extension, and no format is given.
    #[error(
        "cannot write {}: its extension is of no known format; end its name in .csv, .json, .down, .up, .mahimahi or .parquet, or add \
         --format",
        .0.display()
    )]
    UnknownExtension(PathBuf),
    /// The output is the input.
    #[error("cannot write {}: it is the trace that is read; name another file", .0.display())]
    SameFile(PathBuf),
    /// The output has the extension of another format.
    #[error(
        "cannot write {}: its extension does not fit the format {format}; change the extension, or leave out --format",
        path.display()
    )]
    OtherExtension {
        /// The output.
        path: PathBuf,
        /// The format on the command line.
        format: &'static str,
    },
    /// Limits were given for a kind of trace that is no walk.
    #[error("`--between` is for `random-walk`; leave it out for `{0}`")]
    NoWalk(Kind),
    /// The limits of a walk were given twice.
    #[error("`--between` and `--rate` both set the limits of the walk; leave one out")]
    TwoLimits,
    /// The trace cannot be generated.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The format cannot represent the trace.
    #[error("cannot write {}: {source}", path.display())]
    Format {
        /// The output.
        path: PathBuf,
        /// Why.
        source: WriteError,
    },
    /// Parquet is written from the columns of ccbench's text format, which cannot represent the trace.
    #[error(transparent)]
    Columns(TraceError),
    /// The trace has opportunities to send instead of rows.
    #[error("Parquet supports only traces of rows")]
    NoRows,
    /// The trace cannot be written as Parquet.
    #[error(transparent)]
    WriteParquet(ParquetTraceError),
}

fn read_as(format: Option<Format>) -> String {
    format.map_or(String::new(), |format| format!(" (read as {format})"))
}
