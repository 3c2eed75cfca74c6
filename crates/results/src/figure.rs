//! Figures for papers as SVG, PNG of the same picture, and the figure's data as CSV.
//!
//! - `data` selects trials and derives what the plan implies (bottleneck, base RTT, ideal).
//! - `canvas` and `axes` draw; `png` rasterises.
//! - Each of the other modules lays out one or two kinds of figures.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::error::io_error;
use crate::journal::TrialEnd;
use crate::model::TrialStatus;
use crate::part::write_bytes;
use crate::summary::Summary;

mod axes;
mod canvas;
mod cc_names;
mod cc_state;
mod data;
mod error;
mod heatmap;
mod instants;
mod operating;
mod phases;
mod png;
mod request;
mod sequence;
mod spread;
mod time;

use data::Selection;
pub use error::FigureError;
use error::Result;
pub use png::PngError;
pub use request::{COLUMN_MM, Figure, Format, Kind, Request, TWO_COLUMNS_MM};

/// Draws all figures of a request: one figure for kinds that aggregate trials, one per point for kinds that show a trial. Heatmaps and
/// lines have a figure for each metric.
///
/// # Errors
/// The run cannot be read, or has no data for this kind. In the latter case, the error lists the kinds that it has data for.
pub fn draw(run_dir: &Path, request: &Request) -> Result<Vec<Figure>> {
    Ok(draw_with_note(run_dir, request)?.0)
}

/// Draws the figures as [`draw`] does. Also returns how many of their trials are degraded, with the codes of the reasons, as text for
/// people; `None` if no trial is.
///
/// # Errors
/// As [`draw`].
pub fn draw_with_note(run_dir: &Path, request: &Request) -> Result<(Vec<Figure>, Option<String>)> {
    let mut data = Selection::open(run_dir, request)?;
    let mut figures = Vec::new();
    for metrics in request.metrics_of_figures() {
        data.request.metrics = metrics;
        let drawn = draw_kind(&data).map_err(|error| match error {
            FigureError::NoData { path, kind, reason, possible } => {
                let possible = other_kinds(&data).unwrap_or(possible);
                FigureError::NoData { path, kind, reason, possible }
            }
            other => other,
        })?;
        figures.extend(drawn);
    }
    make_stems_unique(&mut figures);
    Ok((figures, degraded_trials(&data)))
}

fn degraded_trials(data: &Selection) -> Option<String> {
    let shown: Vec<&TrialEnd> = match data.request.kind.is_of_one_trial() {
        true => data.first_trials(),
        false => data.trials.iter().collect(),
    };
    let is_degraded = |end: &&&TrialEnd| end.status == TrialStatus::Degraded;
    let degraded: Vec<&TrialEnd> = shown.iter().filter(is_degraded).copied().collect();
    let reasons = degraded.iter().flat_map(|end| &end.reasons);
    let codes: BTreeSet<&str> = reasons.map(|reason| reason.code.as_str()).collect();
    let codes = codes.into_iter().collect::<Vec<_>>().join(", ");
    let codes = if codes.is_empty() { codes } else { format!(" ({codes})") };
    let are = if degraded.len() == 1 { "is" } else { "are" };
    (!degraded.is_empty())
        .then(|| format!("{} of {} trials {are} degraded{codes}", degraded.len(), shown.len()))
}

/// Draws the heatmaps of all points, from a computed summary of the run.
///
/// # Errors
/// The run cannot be read, or has no data for heatmaps.
pub(crate) fn draw_heatmaps(summary: &Summary) -> Result<Vec<Figure>> {
    let request = Request {
        kind: Kind::Heatmap,
        filters: vec![],
        metrics: vec![],
        x: None,
        y: None,
        by: None,
        width_mm: None,
        height_mm: None,
        trial_filter: summary.trial_filter,
    };
    let data = Selection::open(&summary.run_dir, &request)?;
    let mut figures = not_empty(&data, heatmap::draw_summary(&data, summary)?)?;
    make_stems_unique(&mut figures);
    Ok(figures)
}

fn draw_kind(data: &Selection) -> Result<Vec<Figure>> {
    let figures = match data.request.kind {
        Kind::Phases => phases::draw(data),
        Kind::Series | Kind::CcState | Kind::TimeSequence => time::draw(data),
        Kind::OperatingPoint | Kind::Plane => operating::draw(data),
        Kind::Ecdf | Kind::Strips => spread::draw(data),
        Kind::Heatmap => heatmap::draw(data),
        Kind::Lines => heatmap::draw_lines(data),
    }?;
    not_empty(data, figures)
}

fn not_empty(data: &Selection, figures: Vec<Figure>) -> Result<Vec<Figure>> {
    match figures.is_empty() {
        true => Err(data.no_data("none of the selected trials has data for it")),
        false => Ok(figures),
    }
}

/// Returns other kinds that the selection has data for, found by drawing a few trials.
fn other_kinds(data: &Selection) -> Option<String> {
    let (run_dir, request) = (data.run.path(), &data.request);
    let others = Kind::ALL.into_iter().filter(|kind| *kind != request.kind);
    let can = |kind: &Kind| {
        let (metrics, x, y, by) = (vec![], None, None, None);
        let mut request = Request { kind: *kind, metrics, x, y, by, ..request.clone() };
        request.filters.retain(|(column, _)| data.can_filter_by(*kind, column));
        Selection::open(run_dir, &request)
            .map(|data| draw_kind(&data.sample_trials()))
            // The user can name the factor.
            .is_ok_and(|drawn| matches!(drawn, Ok(_) | Err(FigureError::NoFactorOfLines { .. })))
    };
    let names: Vec<&str> = others.filter(can).map(Kind::name).collect();
    (!names.is_empty()).then(|| format!("this run has data for: {}", names.join(", ")))
}

/// Adds numbers to figures whose file names would be equal.
fn make_stems_unique(figures: &mut [Figure]) {
    let mut seen = BTreeSet::new();
    for figure in figures {
        let stem = figure.stem.clone();
        let mut nth = 2;
        // Many file systems are case-insensitive.
        while !seen.insert(figure.stem.to_lowercase()) {
            figure.stem = format!("{stem}-{nth}");
            nth += 1;
        }
    }
}

/// File extensions of unsupported formats.
const UNSUPPORTED_EXTENSIONS: [&str; 11] =
    ["pdf", "eps", "ps", "jpg", "jpeg", "gif", "tif", "tiff", "webp", "csv", "html"];

/// Writes figures into a folder in these formats (all if empty), or a single figure to the named file, each with its CSV. Returns the paths
/// written.
///
/// # Errors
/// There are several figures for one file, the format is unsupported or does not match the file, or a file cannot be written.
pub fn write(figures: &[Figure], output: &Path, formats: &[Format]) -> Result<Vec<PathBuf>> {
    let ending = output.extension().and_then(|ending| ending.to_str());
    let of_file = match ending {
        Some("svg") => Some(Format::Svg),
        Some("png") => Some(Format::Png),
        // A folder's name may contain a dot, but is unlikely to end in one of these extensions.
        Some(other) if UNSUPPORTED_EXTENSIONS.contains(&other) && !output.is_dir() => {
            return Err(FigureError::Format { path: output.to_path_buf() });
        }
        _ => None,
    };
    if of_file.is_some() && figures.len() > 1 {
        return Err(FigureError::OneFile {
            path: output.to_path_buf(),
            stems: figures.iter().map(|figure| figure.stem.clone()).collect(),
        });
    }
    if let Some(only) = of_file
        && let Some(other) = formats.iter().find(|format| **format != only)
    {
        let path = output.to_path_buf();
        return Err(FigureError::OtherFormat { path, format: other.name() });
    }
    let folder = if of_file.is_some() { output.parent().unwrap_or(output) } else { output };
    if !folder.as_os_str().is_empty() {
        std::fs::create_dir_all(folder).map_err(io_error("make the directory", folder))?;
    }
    let mut written = Vec::new();
    let mut put = |path: PathBuf, bytes: &[u8]| {
        write_bytes(bytes, &path)?;
        written.push(path);
        Ok::<_, FigureError>(())
    };
    for figure in figures {
        let stem = match of_file {
            Some(_) => output.with_extension(""),
            None => folder.join(&figure.stem),
        };
        let file = |ending: &str| {
            let mut name = stem.clone().into_os_string();
            name.push(ending);
            PathBuf::from(name)
        };
        let of_folder = |format| formats.is_empty() || formats.contains(&format);
        let wanted = |format| of_file.map_or(of_folder(format), |only| only == format);
        if wanted(Format::Svg) {
            put(file(".svg"), figure.svg.as_bytes())?;
        }
        if wanted(Format::Png) {
            put(file(".png"), &figure.png()?)?;
        }
        put(file(".csv"), figure.csv.as_bytes())?;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(stem: &str) -> Figure {
        let (svg, csv) = ("<svg/>".to_owned(), "a\n1\n".to_owned());
        Figure { stem: stem.to_owned(), svg, width_points: 1.0, csv }
    }

    #[test]
    fn stems_are_unique() {
        let mut figures = ["series-a_b", "series-A_b", "series-a_b-2", "series-c"].map(figure);
        make_stems_unique(&mut figures);
        let stems = figures.map(|figure| figure.stem);
        assert_eq!(stems, ["series-a_b", "series-A_b-2", "series-a_b-2-2", "series-c"]);
    }

    #[test]
    fn rejects_unsupported_formats_but_accepts_dots_in_folders() {
        let dir = tempfile::tempdir().unwrap();
        let pdf = dir.path().join("fig.pdf");
        let refused = write(&[figure("a")], &pdf, &[Format::Svg]).unwrap_err().to_string();
        assert!(refused.contains("fig.pdf") && refused.contains(".svg"), "{refused}");
        assert!(!pdf.exists());
        let folder = dir.path().join("queue-1.5bdp");
        assert_eq!(write(&[figure("a")], &folder, &[Format::Svg]).unwrap().len(), 2);
        assert!(folder.join("a.svg").is_file());
    }
}
