//! Why a figure cannot be drawn or written.

use std::path::PathBuf;

use super::png::PngError;
use crate::error::{ErrorClass, FileError};
use crate::store::StoreError;

/// The result of drawing or writing figures.
pub type Result<T, E = FigureError> = std::result::Result<T, E>;

/// A figure cannot be drawn or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FigureError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The results directory cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run has no data for this figure.
    #[error("no {kind} figure of {}: {reason}; {possible}", path.display())]
    NoData {
        /// The results directory.
        path: PathBuf,
        /// The kind of figure.
        kind: &'static str,
        /// What is missing.
        reason: String,
        /// The kinds that the run has data for.
        possible: String,
    },
    /// `--where` selects rows that the run does not have.
    #[error("--where {column}={value}: {reason}")]
    Where {
        /// The part before the `=`.
        column: String,
        /// The part after the `=`.
        value: String,
        /// What is wrong, and which values exist.
        reason: String,
    },
    /// Two filters of one column would select nothing together.
    #[error(
        "--where {column}={} and --where {column}={}: a figure accepts one value per column; draw a figure for each, or leave both out to \
         draw all",
        values[0], values[1]
    )]
    TwoValues {
        /// The part before the `=`.
        column: String,
        /// The parts after the `=`, in the order of the command line.
        values: [String; 2],
    },
    /// `--x`, `--y` or `--by` names no factor that varies.
    #[error("{option} {factor}: --x, --y and --by need different factors of these: {known}")]
    Axis {
        /// `--x`, `--y` or `--by`.
        option: &'static str,
        /// The factor as given.
        factor: String,
        /// The factors that vary.
        known: String,
    },
    /// `--x`, `--y` or `--by` is given for a figure without it.
    #[error("{option} is for {kinds}; leave it out, or use another --kind")]
    OtherKind {
        /// `--x`, `--y` or `--by`.
        option: &'static str,
        /// The kinds of figures that have it.
        kinds: &'static str,
    },
    /// Several factors can be those of the lines.
    #[error(
        "lines over {x} need a factor with a line for each level: name one of these with --by: {known}"
    )]
    NoFactorOfLines {
        /// The factor on the horizontal axis.
        x: String,
        /// The other factors that vary.
        known: String,
    },
    /// `--metric` is given for a figure with fixed metrics.
    #[error(
        "--metric is for figures of the kinds {with}, not {kind}; leave it out, or use another --kind"
    )]
    FixedMetrics {
        /// The kind of figure.
        kind: &'static str,
        /// The kinds with selectable metrics.
        with: String,
    },
    /// The figure has no such metric.
    #[error("there is no metric `{metric}` here{hint}")]
    UnknownMetric {
        /// The metric as given.
        metric: String,
        /// How the message continues: the metrics that exist, where this one exists, or which names are similar.
        hint: String,
    },
    /// There is one output file for several figures.
    #[error(
        "{} would hold {} figures ({}); name a directory, or choose one with --where (of heatmaps and lines, also with one --metric)",
        path.display(), stems.len(), stems.join(", ")
    )]
    OneFile {
        /// The file.
        path: PathBuf,
        /// The figures' names.
        stems: Vec<String>,
    },
    /// The output file's extension is not one of the formats.
    #[error(
        "{} is neither SVG nor PNG: name a file that ends in .svg or .png, or a directory; to get PDF, convert the SVG with \
        rsvg-convert, Inkscape or a browser",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// `--format` and the output file's extension name different formats.
    #[error(
        "{} is not the format `{format}` of --format; leave --format out, or name a file that ends in .{format}, or a directory",
        path.display()
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The requested format.
        format: &'static str,
    },
    /// The SVG cannot be rendered as PNG.
    #[error("cannot render {stem} as PNG: {source}; reduce its size, or use --format svg")]
    Png {
        /// The figure's file name without extension.
        stem: String,
        /// Why.
        source: PngError,
    },
}

impl FigureError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::NoData { .. }
            | Self::Where { .. }
            | Self::TwoValues { .. }
            | Self::Axis { .. }
            | Self::OtherKind { .. }
            | Self::NoFactorOfLines { .. }
            | Self::UnknownMetric { .. }
            | Self::OneFile { .. }
            | Self::FixedMetrics { .. }
            | Self::OtherFormat { .. }
            | Self::Format { .. } => ErrorClass::Usage,
            Self::Png { .. } => ErrorClass::Run,
        }
    }
}
