//! What can be asked of figures: their kinds, file formats and options; and a drawn figure.

use super::error::{FigureError, Result};
use super::png;
use crate::model::Choice;

/// Width of one column of a paper, and of two.
pub const COLUMN_MM: f64 = 85.0;
/// See [`COLUMN_MM`].
pub const TWO_COLUMNS_MM: f64 = 175.0;

/// What a figure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Bars: throughput and sRTT of a flow group in each phase, beside the ideal; a group of bars per point.
    Phases,
    /// Throughput, sRTT, cwnd, in flight, queue and link rate over the time of a trial.
    Series,
    /// Throughput and sRTT against packets in flight, with the optimum.
    #[value(name = "operating_point", alias = "operating-point")]
    OperatingPoint,
    /// Mean sRTT against mean throughput, a mark per flow.
    Plane,
    /// Distribution of throughput and sRTT of every flow.
    Ecdf,
    /// What every flow got, beside the fair share.
    Strips,
    /// A metric over two factors of the matrix.
    Heatmap,
    /// Inner state of a congestion control under its cwnd.
    #[value(name = "cc_state", alias = "cc-state")]
    CcState,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Phases,
        Self::Series,
        Self::OperatingPoint,
        Self::Plane,
        Self::Ecdf,
        Self::Strips,
        Self::Heatmap,
        Self::CcState,
    ];

    /// As it is typed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Phases => "phases",
            Self::Series => "series",
            Self::OperatingPoint => "operating_point",
            Self::Plane => "plane",
            Self::Ecdf => "ecdf",
            Self::Strips => "strips",
            Self::Heatmap => "heatmap",
            Self::CcState => "cc_state",
        }
    }
}

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For papers: sharp at any size, its text can be searched.
    Svg,
    /// For slides: 300 pixels per inch.
    Png,
}

/// A wish for figures.
#[derive(Debug, Clone)]
pub struct Request {
    /// What they show.
    pub kind: Kind,
    /// Only of these: column and value, as in `flows = 1v1`, `trial = 2`, `phase = compete`.
    pub wheres: Vec<(String, String)>,
    /// Which metrics; empty: those that the kind usually has.
    pub metrics: Vec<String>,
    /// Instead of the usual width.
    pub width_mm: Option<f64>,
    /// Instead of the usual height.
    pub height_mm: Option<f64>,
    /// Which trials count.
    pub choice: Choice,
}

/// A figure and the numbers in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Of its files' names.
    pub stem: String,
    /// The picture, as SVG.
    pub svg: String,
    /// How wide, in points (1/72 inch).
    pub width_points: f64,
    /// The numbers behind it.
    pub csv: String,
}

impl Figure {
    /// The picture as PNG.
    ///
    /// # Errors
    /// It is too large.
    pub fn png(&self) -> Result<Vec<u8>> {
        let failed = |why| FigureError::Png { what: self.stem.clone(), why };
        png::png(&self.svg, self.width_points).map_err(failed)
    }
}
