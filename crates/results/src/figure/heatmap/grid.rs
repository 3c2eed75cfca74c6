//! Distributes factors over the axes, and panels over files.

use std::collections::BTreeMap;

use crate::figure::data::Selection;
use crate::figure::error::{FigureError, Result};

/// Axes and panels of a heatmap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) x: Dimension,
    /// The vertical axis; empty if only one factor varies.
    pub(super) y: Dimension,
    pub(super) files: Vec<File>,
}

/// A factor and its levels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Dimension {
    pub(super) name: String,
    pub(super) levels: Vec<String>,
}

/// The panels of one file, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    /// The levels that all panels of the file share.
    pub(super) fixed: Vec<(String, String)>,
    pub(super) columns: usize,
    pub(super) panels: Vec<Panel>,
    /// Number of the file among those with the same fixed levels, from 1, and the number of such files.
    pub(super) part: (usize, usize),
}

/// One panel: the levels that distinguish it from the others in its file.
pub(super) type Panel = Vec<(String, String)>;

/// In points: width of all panels, height of a page, minimum width and usual height of a cell, and the space between panels.
const WIDTH: f64 = 440.0;
const PAGE: f64 = 520.0;
const MIN_CELL: f64 = 10.5;
pub(super) const CELL: f64 = 13.0;
pub(super) const GAP: f64 = 7.0;
/// Space for the heading of a panel.
pub(super) const HEADING: f64 = 10.0;
const MAX_COLUMNS: usize = 6;

impl Layout {
    /// Uses the requested axes. By default, the last two factors that vary are on the axes, in reverse order.
    pub(super) fn new(data: &Selection) -> Result<Self> {
        let varying = varying(data);
        if varying.is_empty() {
            return Err(data.no_data(
                "there is only one point, but the axes of a heatmap are factors that vary",
            ));
        }
        let (x, y) = (data.request.x.as_deref(), data.request.y.as_deref());
        Self::arrange(varying, x, y)
    }

    fn arrange(mut varying: Vec<Dimension>, x: Option<&str>, y: Option<&str>) -> Result<Self> {
        let known = || varying.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
        for (option, wanted) in [("--x", x), ("--y", y)] {
            let Some(wanted) = wanted else { continue };
            if !varying.iter().any(|one| one.name == wanted)
                || (option == "--y" && x == Some(wanted))
            {
                let (factor, known) = (wanted.to_owned(), known());
                return Err(FigureError::Axis { option, factor, known });
            }
        }
        let mut take = |wanted: Option<&str>, other: Option<&str>| {
            let is = |one: &Dimension| match wanted {
                Some(wanted) => one.name == wanted,
                None => Some(one.name.as_str()) != other,
            };
            varying.iter().rposition(is).map(|at| varying.remove(at)).unwrap_or_default()
        };
        let first = take(x, y);
        let second = take(y, None);
        // The dimension with the most levels goes to files: it is easier to compare there than to fit on a page.
        varying.sort_by_key(|one| std::cmp::Reverse(one.levels.len()));
        let files = files(&varying, first.levels.len(), second.levels.len());
        Ok(Self { x: first, y: second, files })
    }
}

/// Distributes the panels. The two dimensions with the fewest levels become rows and columns; each level of the others gets its own file.
/// If there are too many columns, rows also get their own files, whose panels wrap to further lines.
fn files(dimensions: &[Dimension], xs: usize, ys: usize) -> Vec<File> {
    let fits = (WIDTH / (xs.max(1) as f64 * MIN_CELL + GAP)).floor() as usize;
    let most = fits.clamp(1, MAX_COLUMNS);
    let is_grid =
        dimensions.len() > 1 && dimensions.last().is_some_and(|one| one.levels.len() <= most);
    let paneled = if is_grid { 2 } else { 1 }.min(dimensions.len());
    let (of_files, of_panels) = dimensions.split_at(dimensions.len() - paneled);
    let panels = combinations(of_panels);
    let columns = match of_panels.last() {
        Some(one) if is_grid => one.levels.len(),
        // Lines of equal length, if possible.
        _ => panels.len().div_ceil(panels.len().div_ceil(most)),
    };
    let line = ys.max(1) as f64 * CELL + GAP + HEADING;
    let per_file = columns * ((PAGE / line).floor() as usize).max(1);
    let parts = panels.len().div_ceil(per_file);
    let of = |fixed: Vec<(String, String)>| {
        let chunks = panels.chunks(per_file).zip(1..);
        let file = |(chunk, nth): (&[Panel], usize)| File {
            fixed: fixed.clone(),
            columns,
            panels: chunk.to_vec(),
            part: (nth, parts),
        };
        chunks.map(file).collect::<Vec<_>>()
    };
    combinations(of_files).into_iter().flat_map(of).collect()
}

/// Returns all combinations of levels; the last dimension varies fastest.
pub(super) fn combinations(dimensions: &[Dimension]) -> Vec<Panel> {
    dimensions.iter().fold(vec![vec![]], |all, dimension| {
        let with = |before: Panel| {
            let level = |level: &String| {
                let one = (dimension.name.clone(), level.clone());
                before.iter().cloned().chain([one]).collect::<Panel>()
            };
            dimension.levels.iter().map(level).collect::<Vec<_>>()
        };
        all.into_iter().flat_map(with).collect()
    })
}

/// Returns the factors that vary, with their levels.
pub(super) fn varying(data: &Selection) -> Vec<Dimension> {
    let names = data.factors_of(&data.planned_points()).into_iter();
    names.map(|name| Dimension { name: name.to_owned(), levels: levels(data, name) }).collect()
}

/// Returns the levels of a factor in the order of points.
fn levels(data: &Selection, factor: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for level in data.planned_points().into_iter().filter_map(|id| data.level(id, factor)) {
        if !found.iter().any(|known| known == level) {
            found.push(level.to_owned());
        }
    }
    // Sort numeric levels.
    let numbers: Option<Vec<f64>> = found.iter().map(|level| quantity(level)).collect();
    if let Some(numbers) = numbers {
        let mut order: Vec<usize> = (0..found.len()).collect();
        order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b]));
        return order.into_iter().map(|nth| found[nth].clone()).collect();
    }
    found
}

/// Parses a level as a number, with or without a unit.
fn quantity(level: &str) -> Option<f64> {
    use ccbench_proto::units::{Bytes, Micros, Rate};
    let number = level.parse::<f64>().ok();
    let limit = |unit: &str| level.strip_suffix(unit)?.parse::<f64>().ok();
    let limit = || limit("bdp").or_else(|| limit("p"));
    let rate = || level.parse::<Rate>().ok().map(|rate| rate.bits_per_sec() as f64);
    let time = || level.parse::<Micros>().ok().map(Micros::as_secs_f64);
    let size = || level.parse::<Bytes>().ok().map(|size| size.get() as f64);
    number.or_else(limit).or_else(rate).or_else(time).or_else(size)
}

/// Returns the points by their levels of `factors`, in that order.
pub(super) fn index(data: &Selection, factors: &[&str]) -> BTreeMap<Vec<String>, u32> {
    let levels = |id: u32| {
        factors.iter().map(|factor| data.level(id, factor).unwrap_or_default().to_owned()).collect()
    };
    data.planned_points().into_iter().map(|id| (levels(id), id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimension(name: &str, count: usize) -> Dimension {
        let levels = (0..count).map(|nth| format!("{name}{nth}")).collect();
        Dimension { name: name.to_owned(), levels }
    }

    #[test]
    fn parses_levels_with_units() {
        assert!(quantity("100mbit") > quantity("25mbit") && quantity("1s") > quantity("15ms"));
        assert!(quantity("0.5bdp") < quantity("16bdp"));
        assert!(quantity("75p") < quantity("250p") && quantity("p").is_none());
        assert_eq!((quantity("0.5"), quantity("cubic")), (Some(0.5), None));
    }

    #[test]
    fn two_factors_are_one_panel() {
        let layout =
            Layout::arrange(vec![dimension("a", 2), dimension("b", 3)], None, None).unwrap();
        assert_eq!((layout.x.name.as_str(), layout.y.name.as_str()), ("b", "a"));
        let [file] = layout.files.as_slice() else { panic!("{layout:?}") };
        assert_eq!((file.columns, file.panels.len(), file.part), (1, 1, (1, 1)));
        let layout = Layout::arrange(vec![dimension("a", 2)], None, None).unwrap();
        assert_eq!((layout.x.name.as_str(), layout.y.name.as_str()), ("a", ""));
    }

    #[test]
    fn axes_are_selectable_and_checked() {
        let all = || vec![dimension("a", 2), dimension("b", 3), dimension("c", 4)];
        let layout = Layout::arrange(all(), Some("a"), None).unwrap();
        assert_eq!((layout.x.name.as_str(), layout.y.name.as_str()), ("a", "c"));
        let layout = Layout::arrange(all(), None, Some("c")).unwrap();
        assert_eq!((layout.x.name.as_str(), layout.y.name.as_str()), ("b", "c"));
        assert_eq!(layout.files[0].panels.len(), 2);
        for (x, y) in [(Some("d"), None), (None, Some("d")), (Some("a"), Some("a"))] {
            let error = Layout::arrange(all(), x, y).unwrap_err().to_string();
            assert!(error.ends_with("a, b, c"), "{error}");
        }
    }

    #[test]
    fn many_panels_are_split_into_files() {
        let all = vec![
            dimension("aqm", 5),
            dimension("buffer", 4),
            dimension("pair", 10),
            dimension("rate", 8),
            dimension("rtt", 5),
        ];
        let layout = Layout::arrange(all, Some("rtt"), Some("rate")).unwrap();
        assert_eq!(layout.files.len(), 20, "10 pairs, and two pages of 4 lines");
        let first = &layout.files[0];
        assert_eq!(first.fixed, [("pair".to_owned(), "pair0".to_owned())]);
        assert_eq!((first.columns, first.part), (4, (1, 2)));
        assert_eq!(first.panels[1][1], ("buffer".to_owned(), "buffer1".to_owned()));
        // Too many columns for a grid: a file for each level, with lines of equal length.
        let wide = vec![dimension("a", 9), dimension("b", 9), dimension("c", 5), dimension("d", 5)];
        let layout = Layout::arrange(wide, None, None).unwrap();
        assert_eq!((layout.files.len(), layout.files[0].columns), (9, 5));
        assert_eq!(layout.files[0].panels.len(), 9);
    }
}
