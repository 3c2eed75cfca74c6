//! Requests for figures (kinds, file formats and options), and drawn figures.

use super::error::{FigureError, Result};
use super::png;
use crate::model::{THROUGHPUT_SHARE, TrialFilter, missing_metric};

/// Width of a single-column figure.
pub const COLUMN_MM: f64 = 85.0;
/// Width of a double-column figure.
pub const TWO_COLUMNS_MM: f64 = 175.0;

/// The kinds of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Bar chart: throughput and sRTT of each flow group in each phase, beside the ideal; a group of bars per point.
    Phases,
    /// Time series: throughput, sRTT, cwnd, in flight, queue and link rate over a trial.
    Series,
    /// Throughput and sRTT against packets in flight, with the optimum.
    #[value(name = "operating_point", alias = "operating-point")]
    OperatingPoint,
    /// Mean sRTT against mean throughput, a marker per flow, with a flow's fair share at the base RTT.
    Plane,
    /// Empirical CDF of throughput and sRTT of every flow.
    Ecdf,
    /// Strip plot: goodput of every flow, beside the fair share.
    Strips,
    /// A metric over two factors of the matrix, one panel per combination of the others.
    Heatmap,
    /// A metric over one factor of the matrix, one line per level of another.
    Lines,
    /// Internal state of a congestion control below its cwnd.
    #[value(name = "cc_state", alias = "cc-state")]
    CcState,
    /// Time-sequence graph: bytes that a flow has sent, acknowledged and sent again, over time.
    #[value(name = "time_sequence", alias = "time-sequence")]
    TimeSequence,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Phases,
        Self::Series,
        Self::OperatingPoint,
        Self::Plane,
        Self::Ecdf,
        Self::Strips,
        Self::Heatmap,
        Self::Lines,
        Self::CcState,
        Self::TimeSequence,
    ];

    /// Returns whether the user can choose the metrics of this kind.
    const fn has_metrics(self) -> bool {
        match self {
            Self::Phases
            | Self::Series
            | Self::Heatmap
            | Self::Lines
            | Self::CcState
            | Self::TimeSequence => true,
            Self::OperatingPoint | Self::Plane | Self::Ecdf | Self::Strips => false,
        }
    }

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Phases => "phases",
            Self::Series => "series",
            Self::OperatingPoint => "operating_point",
            Self::Plane => "plane",
            Self::Ecdf => "ecdf",
            Self::Strips => "strips",
            Self::Heatmap => "heatmap",
            Self::Lines => "lines",
            Self::CcState => "cc_state",
            Self::TimeSequence => "time_sequence",
        }
    }

    /// Returns whether a figure of this kind shows one metric.
    const fn has_single_metric(self) -> bool {
        matches!(self, Self::Heatmap | Self::Lines)
    }

    /// Returns whether a figure of this kind shows one trial.
    pub(super) const fn is_of_one_trial(self) -> bool {
        matches!(self, Self::Series | Self::CcState | Self::TimeSequence)
    }

    /// Returns whether this kind draws metrics of the summary.
    pub(super) const fn is_of_summary(self) -> bool {
        matches!(self, Self::Phases | Self::Heatmap | Self::Lines)
    }

    /// Returns the tables that this kind draws, as text for people.
    pub const fn tables(self) -> &'static str {
        match self {
            Self::Phases | Self::Heatmap | Self::Lines => "the summary",
            Self::OperatingPoint | Self::Plane | Self::Ecdf | Self::Strips => {
                "`intervals` and `flow_samples` (polled)"
            }
            Self::Series => {
                "`intervals`, `flow_samples` (polled; `--kind time_sequence` draws the rows of `acks`), `probes` and \
                 `qdisc_samples`"
            }
            Self::CcState => "`cc_state`, and cwnd from `flow_samples` (polled)",
            Self::TimeSequence => "`acks`, or `flow_samples` (polled) for flows without rows there",
        }
    }
}

/// File formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For papers: scales to any size, text is searchable.
    Svg,
    /// For slides: 300 pixels per inch.
    Png,
}

impl Format {
    /// Returns the name on the command line, which is also the file extension.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Png => "png",
        }
    }
}

/// The figures to draw.
#[derive(Debug, Clone)]
pub struct Request {
    /// The kind of the figures.
    pub kind: Kind,
    /// Filters by column and value: `flows = 1v1`, `trial = 2`, `phase = compete`.
    pub filters: Vec<(String, String)>,
    /// Metrics to show; the kind's default if empty.
    pub metrics: Vec<String>,
    /// Factor on the horizontal axis of a heatmap or of lines, if not the default.
    pub x: Option<String>,
    /// Factor on the vertical axis of a heatmap, if not the default.
    pub y: Option<String>,
    /// Factor with a line for each level, if not the default.
    pub by: Option<String>,
    /// Width, if not the default.
    pub width_mm: Option<f64>,
    /// Height, if not the default.
    pub height_mm: Option<f64>,
    /// Which trials to include.
    pub trial_filter: TrialFilter,
}

impl Request {
    /// Rejects several values for a column, axes or metrics for figures without them, and unknown metrics.
    ///
    /// # Errors
    /// Two filters of a column differ; `x`, `y` or `by` is set, but the kind does not have it; or metrics are given, but the kind has
    /// fixed ones or no such metric.
    pub(super) fn check(&self) -> Result<()> {
        for (nth, (column, value)) in self.filters.iter().enumerate() {
            let mut others = self.filters.iter().take(nth).filter(|(other, _)| other == column);
            if let Some((_, first)) = others.find(|(_, other)| other != value) {
                return Err(FigureError::TwoValues {
                    column: column.clone(),
                    values: [first.clone(), value.clone()],
                });
            }
        }
        if !self.metrics.is_empty() && !self.kind.has_metrics() {
            let with = Self::kinds_with_metrics();
            return Err(FigureError::FixedMetrics { kind: self.kind.name(), with });
        }
        let of_summary = if self.kind.is_of_summary() { self.metrics.as_slice() } else { &[] };
        for metric in of_summary {
            let is_share = self.kind != Kind::Phases && metric == THROUGHPUT_SHARE;
            if let Some(hint) = missing_metric(metric).filter(|_| !is_share) {
                return Err(FigureError::UnknownMetric { metric: metric.clone(), hint });
            }
        }
        let (heatmap, lines) = (self.kind == Kind::Heatmap, self.kind == Kind::Lines);
        for (option, factor, kinds, has_option) in [
            ("--x", &self.x, "heatmaps and lines", heatmap || lines),
            ("--y", &self.y, "heatmaps", heatmap),
            ("--by", &self.by, "lines", lines),
        ] {
            if factor.is_some() && !has_option {
                return Err(FigureError::OtherKind { option, kinds });
            }
        }
        Ok(())
    }

    /// Returns the metrics of each figure. Kinds that show one metric have a figure for each.
    pub(super) fn metrics_of_figures(&self) -> Vec<Vec<String>> {
        match self.kind.has_single_metric() && !self.metrics.is_empty() {
            true => self.metrics.iter().map(|metric| vec![metric.clone()]).collect(),
            false => vec![self.metrics.clone()],
        }
    }

    fn kinds_with_metrics() -> String {
        let kinds = Kind::ALL.into_iter().filter(|kind| kind.has_metrics());
        kinds.map(Kind::name).collect::<Vec<_>>().join(", ")
    }
}

/// A figure and its data.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// File name without extension.
    pub stem: String,
    /// The figure as SVG.
    pub svg: String,
    /// Width in points (1/72 inch).
    pub width_points: f64,
    /// The data as CSV.
    pub csv: String,
}

impl Figure {
    /// The figure as PNG.
    ///
    /// # Errors
    /// The SVG cannot be rendered, for example because the image is too large.
    pub fn png(&self) -> Result<Vec<u8>> {
        png::png(&self.svg, self.width_points)
            .map_err(|source| FigureError::Png { stem: self.stem.clone(), source })
    }
}
