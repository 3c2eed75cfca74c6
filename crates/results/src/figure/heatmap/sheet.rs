//! Draws the panels of one file, with their legend, caption and CSV.

use std::collections::{BTreeMap, BTreeSet};

use super::Cells;
use super::colours::{EMPTY, LEGEND, Scale, format_value, hatch};
use super::grid::{CELL, File, GAP, HEADING, Layout, Panel, index};
use super::values::{Value, Values};
use crate::figure::axes::{Axis, Frame, SMALL, TITLE, left_margin};
use crate::figure::canvas::{
    Anchor, Canvas, FAINT, Shape, Style, distinct_labels, text_width, truncate_end,
};
use crate::figure::data::{Selection, plain};
use crate::figure::png::points;
use crate::figure::request::{COLUMN_MM, Figure, TWO_COLUMNS_MM};
use crate::summary::Summary;

/// Maximum number of levels in a single-column figure.
const MAX_PER_COLUMN: usize = 5;
/// Height of a cell of a figure with one panel, in points.
const TALL_CELL: f64 = 31.0;
/// Font sizes for the number in a cell; the first that fits is used.
const CELL_SIZES: [f64; 4] = [SMALL, 6.2, 5.5, 4.8];
/// Minimum difference of a share from the equal one for a side to win.
const WIN_MARGIN: f64 = 0.05;
/// Maximum number of a group's congestion controls that a legend names.
const MAX_NAMES: usize = 3;
/// Height of a line of text.
const LINE: f64 = 9.0;

/// The content of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cell {
    Value(Value),
    /// All trials failed.
    Failed,
    /// No trial, or no value although a trial is ok or degraded.
    Empty,
}

/// All files of a heatmap.
pub(super) struct Sheets<'a> {
    data: &'a Selection,
    summary: &'a Summary,
    layout: &'a Layout,
    values: &'a Values,
    cells: Cells,
    /// The factors that distinguish the points, in the order of the keys of `ids`.
    factors: Vec<&'a str>,
    ids: BTreeMap<Vec<String>, u32>,
    failed: BTreeSet<u32>,
}

/// The position of everything in a file, in points.
struct Geometry {
    width: f64,
    height: f64,
    left: f64,
    top: f64,
    panel: (f64, f64),
    /// Space above a panel.
    heading: f64,
    caption: Vec<String>,
}

impl<'a> Sheets<'a> {
    pub(super) fn new(
        data: &'a Selection,
        summary: &'a Summary,
        layout: &'a Layout,
        values: &'a Values,
        cells: Cells,
    ) -> Self {
        let factors = data.factors_of(&data.planned_points());
        let failed = summary.lost_points().into_keys().collect();
        let ids = index(data, &factors);
        Self { data, summary, layout, values, cells, factors, ids, failed }
    }

    /// Returns the point of a cell; `None` if the matrix does not have it.
    fn point(&self, file: &File, panel: &Panel, x: usize, y: usize) -> Option<u32> {
        let Layout { x: across, y: up, .. } = self.layout;
        let level = |factor: &&str| {
            if *factor == across.name {
                return across.levels.get(x).cloned();
            }
            if *factor == up.name {
                return up.levels.get(y).cloned();
            }
            let mut fixed = file.fixed.iter().chain(panel);
            fixed.find(|(name, _)| name == factor).map(|(_, level)| level.clone())
        };
        self.ids.get(&self.factors.iter().map(level).collect::<Option<Vec<_>>>()?).copied()
    }

    fn cell(&self, point: u32) -> Cell {
        match self.values.points.get(&point) {
            Some(value) => Cell::Value(*value),
            None if self.failed.contains(&point) => Cell::Failed,
            None => Cell::Empty,
        }
    }

    /// Returns the points of a file, in the order of panels, rows and columns.
    fn points(&self, file: &File) -> Vec<u32> {
        let (xs, ys) = self.size();
        let of = |panel: &Panel| {
            let cells = (0..ys).flat_map(|y| (0..xs).map(move |x| (x, y)));
            cells.filter_map(|(x, y)| self.point(file, panel, x, y)).collect::<Vec<_>>()
        };
        file.panels.iter().flat_map(of).collect()
    }

    /// Returns the number of columns and rows of a panel.
    fn size(&self) -> (usize, usize) {
        (self.layout.x.levels.len(), self.layout.y.levels.len().max(1))
    }

    pub(super) fn figure(&self, file: &File) -> Figure {
        let (svg, width_points) = self.sheet(file);
        let mut stem = self.data.stem(None);
        for (factor, level) in &file.fixed {
            stem += &format!(
                "-{}={}",
                plain(factor),
                self.data.file_part(factor, level, str::to_owned)
            );
        }
        if file.part.1 > 1 {
            stem += &format!("-part-{}", file.part.0);
        }
        Figure { stem, svg, width_points, csv: self.table(file) }
    }

    /// Returns a group with its congestion controls at these points.
    fn named(&self, group: &str, points: &[u32]) -> String {
        let of = |point: &u32| {
            let cc = self.summary.ccs.get(&(*point, group.to_owned()))?;
            Some(self.data.algorithms.shown(*point, cc))
        };
        let ccs: BTreeSet<&str> = points.iter().filter_map(of).collect();
        let mut names: Vec<&str> = ccs.iter().take(MAX_NAMES).copied().collect();
        if ccs.len() > names.len() {
            names.push("…");
        }
        match names.as_slice() {
            [] => group.to_owned(),
            [one] if *one == group => group.to_owned(),
            [one] => format!("{one} ({group})"),
            more => format!("{group} ({})", more.join(", ")),
        }
    }

    fn scale(&self, points: &[u32]) -> Scale {
        if let Some((first, others)) = &self.values.groups {
            let second: Vec<String> =
                others.iter().map(|group| self.named(group, points)).collect();
            return Scale::Shares { first: self.named(first, points), second: second.join(", ") };
        }
        // All files use the same scale.
        let all = || self.values.points.values().map(|value| value.mean / self.values.scale);
        Scale::Linear {
            low: all().fold(f64::INFINITY, f64::min),
            high: all().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn geometry(&self, file: &File, points_of: &[u32], scale: &Scale) -> Geometry {
        let request = &self.data.request;
        let (xs, ys) = self.size();
        let lines = file.panels.len().div_ceil(file.columns);
        let is_narrow = file.columns * xs <= MAX_PER_COLUMN;
        let usual = if is_narrow { COLUMN_MM } else { TWO_COLUMNS_MM };
        let width = points(request.width_mm.unwrap_or(usual));
        let [x, y] = self.axes(true);
        let left = left_margin(&[&y], false);
        let columns = file.columns as f64;
        let wide = (width - left - 5.0 - GAP * (columns - 1.0)) / columns;
        let heading = if file.panels.len() > 1 { HEADING } else { 0.0 };
        let frame = Frame { left, top: 0.0, width: wide, height: 1.0, x, y };
        let rows = ys as f64;
        let cell = if file.panels.len() > 1 { CELL } else { TALL_CELL };
        let shown = fitting((wide / self.size().0 as f64, cell), scale);
        let style = Style::new(SMALL - 0.3, Anchor::Start);
        let caption = wrapped(&self.caption(points_of, shown, scale), style, width - 8.0);
        let fixed = if self.subtitle(file).is_empty() { 0.0 } else { LINE + 1.0 };
        let top = 12.0 + fixed + LEGEND;
        let below = frame.x_axis_height() + LINE * caption.len() as f64 + 5.0;
        let lines = lines as f64;
        let others = top + lines * heading + (lines - 1.0) * GAP + below;
        let tall = match request.height_mm {
            Some(mm) => ((points(mm) - others) / lines).max(rows),
            None => rows * cell,
        };
        Geometry {
            width,
            height: others + lines * tall,
            left,
            top,
            panel: (wide, tall),
            heading,
            caption,
        }
    }

    /// Returns the axes of a panel, with or without their titles.
    fn axes(&self, titles: bool) -> [Axis; 2] {
        let Layout { x, y, .. } = self.layout;
        let up: Vec<String> =
            if y.levels.is_empty() { vec![String::new()] } else { y.levels.clone() };
        let title = |name: &'a str| if titles { name } else { "" };
        [Axis::names(title(&x.name), &x.levels), Axis::names(title(&y.name), &up)]
    }

    /// Describes what the headings of panels are, and lists the levels that all panels share.
    fn subtitle(&self, file: &File) -> String {
        let fixed = file.fixed.iter().map(|(factor, level)| format!("{factor} = {level}"));
        let mut parts: Vec<String> = fixed.collect();
        if file.panels.len() > 1 {
            let names = file.panels[0].iter().map(|(factor, _)| factor.as_str());
            parts.push(format!("panels: {}", names.collect::<Vec<_>>().join(", ")));
        }
        if file.part.1 > 1 {
            parts.push(format!("part {} of {}", file.part.0, file.part.1));
        }
        parts.join("; ")
    }

    fn caption(&self, points: &[u32], shown: Shown, scale: &Scale) -> String {
        let mut parts = Vec::new();
        if let Scale::Shares { first, second } = scale {
            match shown {
                Shown::Number(_) => parts.push(format!("Numbers: share of {first} in percent.")),
                Shown::Symbol => parts.push(format!(
                    "Triangle up: {first} gets more; down: {second}; none: within {:.0} percentage points of an equal share.",
                    WIN_MARGIN * 100.0
                )),
                Shown::Nothing => {}
            }
        }
        let cells: Vec<Cell> = points.iter().map(|point| self.cell(*point)).collect();
        let trials: BTreeSet<u32> = cells
            .iter()
            .filter_map(
                |cell| if let Cell::Value(value) = cell { Some(value.trials) } else { None },
            )
            .collect();
        let each = match (trials.first(), trials.last()) {
            (Some(1), Some(1)) => ", one trial each".to_owned(),
            (Some(least), Some(most)) if least == most => format!(", means of {most} trials"),
            (Some(least), Some(most)) => format!(", means of {least} to {most} trials"),
            _ => String::new(),
        };
        parts.push(format!("{} points{each}.", cells.len()));
        for (kind, what) in
            [(Cell::Failed, "failed (hatched)"), (Cell::Empty, "without a trial or a value (grey)")]
        {
            let count = cells.iter().filter(|cell| **cell == kind).count();
            if count > 0 {
                parts.push(format!("{count} {what}."));
            }
        }
        parts.join(" ")
    }

    fn sheet(&self, file: &File) -> (String, f64) {
        let of_file = self.points(file);
        let scale = self.scale(&of_file);
        let geometry = self.geometry(file, &of_file, &scale);
        let mut canvas = Canvas::new(geometry.width, geometry.height);
        let style = Style::new(TITLE, Anchor::Start);
        let room = geometry.width - 8.0;
        canvas.text((4.0, 9.0), style, &truncate_end(&self.values.title, style, room));
        let subtitle = self.subtitle(file);
        if !subtitle.is_empty() {
            let style = Style::new(SMALL, Anchor::Start);
            canvas.text((4.0, 9.0 + LINE), style, &truncate_end(&subtitle, style, room));
        }
        scale.legend(&mut canvas, (4.0, geometry.top - LEGEND), room);
        let style = Style::new(SMALL, Anchor::Middle);
        let names: Vec<String> = file.panels.iter().map(heading).collect();
        let names = distinct_labels(&names, style, geometry.panel.0);
        for (nth, (panel, name)) in file.panels.iter().zip(&names).enumerate() {
            let (line, column) = (nth / file.columns, nth % file.columns);
            let [x, y] = self.axes(false);
            let (wide, tall) = geometry.panel;
            let frame = Frame {
                left: geometry.left + column as f64 * (wide + GAP),
                top: geometry.top
                    + geometry.heading
                    + line as f64 * (tall + GAP + geometry.heading),
                width: wide,
                height: tall,
                x,
                y,
            };
            if geometry.heading > 0.0 {
                canvas.text((frame.left + wide / 2.0, frame.top - 2.5), style, name);
            }
            self.panel(&mut canvas, &frame, (file, panel), &scale);
            let is_lowest = nth + file.columns >= file.panels.len();
            frame.edges(&mut canvas, is_lowest, column == 0);
        }
        self.titles(&mut canvas, &geometry);
        (canvas.finish(&self.values.title), geometry.width)
    }

    /// Draws the titles of the axes, and the caption.
    fn titles(&self, canvas: &mut Canvas, geometry: &Geometry) {
        let middle = Style::new(TITLE, Anchor::Middle);
        let bottom = geometry.height - LINE * geometry.caption.len() as f64 - 4.0;
        let x = geometry.left + (geometry.width - geometry.left - 5.0) / 2.0;
        canvas.text((x, bottom - 2.5), middle, &self.layout.x.name);
        let y = f64::midpoint(geometry.top, bottom - 20.0);
        let turned = Style { rotation_deg: -90.0, ..middle };
        canvas.text((TITLE + 1.0, y), turned, &self.layout.y.name);
        let style = Style { colour: FAINT, ..Style::new(SMALL - 0.3, Anchor::Start) };
        for (nth, line) in geometry.caption.iter().enumerate() {
            canvas.text((4.0, bottom + LINE * (nth as f64 + 1.0) - 1.0), style, line);
        }
    }

    fn panel(
        &self,
        canvas: &mut Canvas,
        frame: &Frame,
        (file, panel): (&File, &Panel),
        scale: &Scale,
    ) {
        let (xs, ys) = self.size();
        for (x, y) in (0..ys).flat_map(|y| (0..xs).map(move |x| (x, y))) {
            let Some(point) = self.point(file, panel, x, y) else { continue };
            let (left, top) = frame.at(x as f64, y as f64 + 1.0);
            let (right, bottom) = frame.at(x as f64 + 1.0, y as f64);
            let area = ((left + 0.3, top + 0.3), (right - left - 0.6, bottom - top - 0.6));
            if self.cells == Cells::Links {
                canvas.link(&format!("#point-{point}"), &self.name(point));
            }
            match self.cell(point) {
                Cell::Value(value) => self.value(canvas, value, area, scale),
                Cell::Failed => hatch(canvas, area.0, area.1),
                Cell::Empty => canvas.rect(area.0, area.1, EMPTY),
            }
            if self.cells == Cells::Links {
                canvas.unlink();
            }
        }
    }

    /// Returns the levels of a point, and its value.
    fn name(&self, point: u32) -> String {
        let level = |factor: &&str| {
            format!("{factor} {}", self.data.level(point, factor).unwrap_or_default())
        };
        let levels: Vec<String> = self.factors.iter().map(level).collect();
        let value = match self.cell(point) {
            Cell::Value(value) => self.in_words(value),
            Cell::Failed => "all trials failed".to_owned(),
            Cell::Empty => "no value".to_owned(),
        };
        format!("{}: {value}", levels.join(", "))
    }

    /// Describes a value with its interval. The text contains what the cell shows.
    fn in_words(&self, value: Value) -> String {
        let number = value.mean / self.values.scale;
        let half = value.interval.map(|(low, high)| (high - low) / 2.0 / self.values.scale);
        let half = half.map_or(String::new(), |half| format!(" ±{}", format_value(half, number)));
        match self.values.groups {
            Some(_) => format!("{number:.0}{half} percent"),
            None => format_value(number, number) + &half,
        }
    }

    /// Draws a cell with its number or symbol, and half the width of its interval if there is room.
    fn value(
        &self,
        canvas: &mut Canvas,
        value: Value,
        ((x, y), (wide, tall)): ((f64, f64), (f64, f64)),
        scale: &Scale,
    ) {
        let number = value.mean / self.values.scale;
        let is_share = matches!(scale, Scale::Shares { .. });
        let position = scale.position(if is_share { value.mean } else { number }, value.equal);
        canvas.rect((x, y), (wide, tall), &scale.colour(position));
        let (middle, ink) = ((x + wide / 2.0, y + tall / 2.0), scale.ink(position));
        match fitting((wide, tall), scale) {
            Shown::Number(size) => {
                let text =
                    if is_share { format!("{number:.0}") } else { format_value(number, number) };
                let style = Style { colour: ink, ..Style::new(size, Anchor::Middle) };
                let half = value.interval.map(|(low, high)| (high - low) / 2.0 / self.values.scale);
                let half = half.filter(|_| tall > 20.0 && text_width("±00.0", style) < wide);
                let up = if half.is_some() { 4.0 } else { 0.0 };
                let at = (middle.0, middle.1 + size * 0.36 - up);
                canvas.text(at, style, &truncate_end(&text, style, wide));
                if let Some(half) = half {
                    let small = Style { size: size - 1.0, ..style };
                    let text = format!("±{}", format_value(half, number));
                    canvas.text((at.0, at.1 + 8.0), small, &truncate_end(&text, small, wide));
                }
            }
            Shown::Symbol => {
                let equal = value.equal.unwrap_or(0.5);
                let shape = if value.mean > equal { Shape::Triangle } else { Shape::TriangleDown };
                if (value.mean - equal).abs() >= WIN_MARGIN {
                    canvas.mark(shape, middle, wide.min(tall) * 0.5, ink);
                }
            }
            Shown::Nothing => {}
        }
    }

    fn table(&self, file: &File) -> String {
        let row = |point: u32| {
            let (value, status) = match self.cell(point) {
                Cell::Value(value) => (Some(value), "ok"),
                Cell::Failed => (None, "failed"),
                Cell::Empty => (None, "missing"),
            };
            (point, value, [status.into()])
        };
        let Layout { x, y, .. } = self.layout;
        let factors = (&self.factors[..], [x.name.as_str(), y.name.as_str()]);
        self.values.csv(self.data, factors, ["status"], self.points(file).into_iter().map(row))
    }
}

/// Returns the levels of a panel.
fn heading(panel: &Panel) -> String {
    panel.iter().map(|(_, level)| level.as_str()).collect::<Vec<_>>().join(", ")
}

/// What fits into a cell of this size.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shown {
    /// The number, in this font size.
    Number(f64),
    /// A symbol for the side that wins.
    Symbol,
    Nothing,
}

fn fitting((wide, tall): (f64, f64), scale: &Scale) -> Shown {
    let is_share = matches!(scale, Scale::Shares { .. });
    let longest = if is_share { "100" } else { "0.000" };
    let fits = |size: &f64| {
        text_width(longest, Style::new(*size, Anchor::Middle)) < wide - 1.0 && *size < tall - 2.0
    };
    match CELL_SIZES.into_iter().find(|size| fits(size)) {
        Some(size) => Shown::Number(size),
        None if is_share && wide.min(tall) > 4.0 => Shown::Symbol,
        None => Shown::Nothing,
    }
}

/// Breaks a text into lines of at most this width.
pub(super) fn wrapped(text: &str, style: Style, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if text_width(&format!("{line} {word}"), style) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
