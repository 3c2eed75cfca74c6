//! Heatmaps: a metric over factors of the matrix, with one coloured, labelled cell per point, and one panel per combination of the factors
//! that are not on an axis. Line charts have the same values.
//!
//! - `grid` puts factors on axes, panels and files.
//! - `values` takes the value of each point from the summary.
//! - `colours` has the scales, `sheet` draws.
//! - `lines` draws the values over one factor.

use super::data::Selection;
use super::error::Result;
use super::request::Figure;
use crate::summary::Summary;

mod colours;
mod grid;
mod lines;
mod sheet;
mod values;

/// Draws the figures.
pub(super) fn draw(data: &Selection) -> Result<Vec<Figure>> {
    let layout = grid::Layout::new(data)?;
    let summary = data.summary()?;
    draw_layout(data, &layout, &summary, Cells::Plain)
}

/// Draws line charts.
pub(super) fn draw_lines(data: &Selection) -> Result<Vec<Figure>> {
    lines::draw(data)
}

/// Draws the figures from a computed summary of the selected trials, with links.
pub(super) fn draw_summary(data: &Selection, summary: &Summary) -> Result<Vec<Figure>> {
    draw_layout(data, &grid::Layout::new(data)?, summary, Cells::Links)
}

/// What the cells are in the SVG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cells {
    Plain,
    /// Links to `#point-ID` of the page in which the figure is inline.
    Links,
}

fn draw_layout(
    data: &Selection,
    layout: &grid::Layout,
    summary: &Summary,
    cells: Cells,
) -> Result<Vec<Figure>> {
    let panels = layout.files.iter().map(|file| file.panels.len()).sum::<usize>() > 1;
    let Some(values) = values::Values::from_selection(data, summary, panels)? else {
        return Ok(vec![]);
    };
    let sheets = sheet::Sheets::new(data, summary, layout, &values, cells);
    Ok(layout.files.iter().map(|file| sheets.figure(file)).collect())
}
