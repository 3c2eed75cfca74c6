//! Figures for a paper: SVG, PNG of the same picture, and the numbers behind it as CSV.
//!
//! - `data` chooses trials and tells what the plan makes of them (bottleneck, base RTT, ideal).
//! - `canvas` and `axes` draw; `png` turns the drawing into pixels.
//! - Each of the other modules lays out the figures of one or two kinds.

use std::path::{Path, PathBuf};

use crate::error::io_error;

mod axes;
mod canvas;
mod data;
mod error;
mod heatmap;
mod instants;
mod operating;
mod phases;
mod png;
mod request;
mod spread;
mod time;

use data::Data;
pub use error::FigureError;
use error::Result;
pub use request::{COLUMN_MM, Figure, Format, Kind, Request, TWO_COLUMNS_MM};

/// All figures that a wish gives: of what is over trials one, of what is of a trial one for each point.
///
/// # Errors
/// The run cannot be read, or has no data for it: then the error names the kinds that it has data for.
pub fn draw(run_dir: &Path, request: &Request) -> Result<Vec<Figure>> {
    let data = Data::open(run_dir, request)?;
    let mut figures = drawn(&data).map_err(|error| match error {
        FigureError::NoData { path, kind, why, possible } => {
            let possible = others(&data).unwrap_or(possible);
            FigureError::NoData { path, kind, why, possible }
        }
        other => other,
    })?;
    tell_apart(&mut figures);
    Ok(figures)
}

fn drawn(data: &Data) -> Result<Vec<Figure>> {
    let figures = match data.request.kind {
        Kind::Phases => phases::draw(data),
        Kind::Series | Kind::CcState => time::draw(data),
        Kind::OperatingPoint | Kind::Plane => operating::draw(data),
        Kind::Ecdf | Kind::Strips => spread::draw(data),
        Kind::Heatmap => heatmap::draw(data),
    }?;
    match figures.is_empty() {
        true => Err(data.nothing("no trial that was chosen has data for it")),
        false => Ok(figures),
    }
}

/// Which other kinds can be drawn of what is chosen: found out by drawing a few trials.
fn others(data: &Data) -> Option<String> {
    let (run_dir, request) = (data.run.path(), &data.request);
    let others = Kind::ALL.into_iter().filter(|kind| *kind != request.kind);
    let can = |kind: &Kind| {
        let mut request = Request { kind: *kind, metrics: vec![], ..request.clone() };
        request.wheres.retain(|(column, _)| data.can_narrow(*kind, column));
        Data::open(run_dir, &request).is_ok_and(|data| drawn(&data.few()).is_ok())
    };
    let names: Vec<&str> = others.filter(can).map(Kind::name).collect();
    (!names.is_empty()).then(|| format!("this run has data for: {}", names.join(", ")))
}

/// Numbers figures whose points' levels differ only in what a file's name cannot hold.
fn tell_apart(figures: &mut [Figure]) {
    let mut seen = std::collections::BTreeSet::new();
    for figure in figures {
        let stem = figure.stem.clone();
        let mut nth = 2;
        // Many file systems do not tell capitals from small letters.
        while !seen.insert(figure.stem.to_lowercase()) {
            figure.stem = format!("{stem}-{nth}");
            nth += 1;
        }
    }
}

/// Endings of what people ask for and nobody draws here.
const OTHER_FORMATS: [&str; 11] =
    ["pdf", "eps", "ps", "jpg", "jpeg", "gif", "tif", "tiff", "webp", "csv", "html"];

/// Writes figures into a folder, or one to a file of that name; in either case the CSV beside them. Returns what was
/// written.
///
/// # Errors
/// Several figures for one file, a file of another format, or the file system refuses.
pub fn write(figures: &[Figure], output: &Path, formats: &[Format]) -> Result<Vec<PathBuf>> {
    let ending = output.extension().and_then(|ending| ending.to_str());
    let of_file = match ending {
        Some("svg") => Some(Format::Svg),
        Some("png") => Some(Format::Png),
        // A folder may have a dot in its name, but hardly such an ending.
        Some(other) if OTHER_FORMATS.contains(&other) && !output.is_dir() => {
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
    let folder = if of_file.is_some() { output.parent().unwrap_or(output) } else { output };
    if !folder.as_os_str().is_empty() {
        std::fs::create_dir_all(folder).map_err(io_error("make the folder", folder))?;
    }
    let mut written = Vec::new();
    let mut put = |path: PathBuf, bytes: &[u8]| {
        std::fs::write(&path, bytes).map_err(io_error("write", &path))?;
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
        let wanted = |format| of_file.map_or(formats.contains(&format), |only| only == format);
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
    fn no_figure_overwrites_another() {
        let mut figures = ["series-a_b", "series-A_b", "series-a_b-2", "series-c"].map(figure);
        tell_apart(&mut figures);
        let stems = figures.map(|figure| figure.stem);
        assert_eq!(stems, ["series-a_b", "series-A_b-2", "series-a_b-2-2", "series-c"]);
    }

    #[test]
    fn a_format_that_is_not_drawn_is_refused_and_a_folder_may_have_a_dot() {
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
