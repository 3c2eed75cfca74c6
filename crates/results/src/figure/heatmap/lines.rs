//! Line charts: a metric over one factor of the matrix, with a line for each level of another factor.

use std::collections::BTreeMap;

use super::grid::{Dimension, Panel, combinations, index, varying};
use super::sheet::wrapped;
use super::values::{SHARE, Value, Values};
use crate::display::readable;
use crate::figure::axes::{Axis, Direction, Frame, Key, SMALL, TITLE, left_margin, legend};
use crate::figure::canvas::{Anchor, Canvas, Stroke, Style, colour, dash, shape};
use crate::figure::data::{Selection, plain};
use crate::figure::error::{FigureError, Result};
use crate::figure::phases::titled;
use crate::figure::png::points;
use crate::figure::request::{COLUMN_MM, Figure, TWO_COLUMNS_MM};
use crate::model::possible_part;

/// Maximum number of values in a single-column figure.
const MAX_PER_COLUMN: usize = 24;
/// Height of a line of text.
const LINE: f64 = 9.0;

/// The factors of all figures.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    x: Dimension,
    /// The factor with a line for each level; empty if only one factor varies.
    by: Dimension,
    /// Each combination of levels of the other factors has its own figure.
    others: Vec<Dimension>,
}

impl Layout {
    fn new(data: &Selection) -> Result<Self> {
        let varying = varying(data);
        if varying.is_empty() {
            return Err(data.no_data(
                "there is only one point, but the horizontal axis of lines is a factor that varies",
            ));
        }
        Self::arrange(varying, data.request.x.as_deref(), data.request.by.as_deref())
    }

    /// Uses the requested factors. By default, the last factor that varies is on the axis, as in heatmaps.
    fn arrange(mut varying: Vec<Dimension>, x: Option<&str>, by: Option<&str>) -> Result<Self> {
        let known = names(&varying);
        let wrong = |option: &'static str, factor: &str| FigureError::Axis {
            option,
            factor: factor.to_owned(),
            known: known.clone(),
        };
        let exists = |factor: &str| varying.iter().any(|one| one.name == factor);
        if let Some(x) = x.filter(|x| !exists(x)) {
            return Err(wrong("--x", x));
        }
        if let Some(by) = by.filter(|by| !exists(by) || x == Some(*by) || varying.len() == 1) {
            return Err(wrong("--by", by));
        }
        let is_x = |one: &Dimension| match x {
            Some(x) => one.name == x,
            None => by != Some(one.name.as_str()),
        };
        let x = varying.iter().rposition(is_x).map(|at| varying.remove(at)).unwrap_or_default();
        if by.is_none() && varying.len() > 1 {
            return Err(FigureError::NoFactorOfLines { x: x.name, known: names(&varying) });
        }
        let is_by = |one: &Dimension| by.is_none_or(|by| one.name == by);
        let by = varying.iter().position(is_by).map(|at| varying.remove(at)).unwrap_or_default();
        Ok(Self { x, by, others: varying })
    }
}

fn names(dimensions: &[Dimension]) -> String {
    dimensions.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The points of a line, in the order of the axis; `None` if the matrix does not have one.
type Line = Vec<Option<u32>>;

/// All figures of a request.
struct Charts<'a> {
    data: &'a Selection,
    layout: &'a Layout,
    values: &'a Values,
    /// The factors that distinguish the points, in the order of the keys of `ids`.
    factors: Vec<&'a str>,
    ids: BTreeMap<Vec<String>, u32>,
}

/// Draws the figures.
pub(super) fn draw(data: &Selection) -> Result<Vec<Figure>> {
    let summary = data.summary()?;
    let Some(values) = Values::from_selection(data, &summary, false)? else { return Ok(vec![]) };
    let layout = Layout::new(data)?;
    let factors = data.factors_of(&data.planned_points());
    let ids = index(data, &factors);
    let charts = Charts { data, layout: &layout, values: &values, factors, ids };
    let all = combinations(&layout.others);
    Ok(all.iter().filter_map(|fixed| charts.figure(fixed)).collect())
}

impl Charts<'_> {
    /// Returns the figure with these levels of the other factors; `None` if no point has a value.
    fn figure(&self, fixed: &Panel) -> Option<Figure> {
        let lines = self.lines(fixed);
        lines.iter().flatten().find_map(|point| self.value(*point))?;
        let mut stem = self.data.stem(None);
        for (factor, level) in fixed {
            let level = self.data.file_part(factor, level, str::to_owned);
            stem += &format!("-{}={level}", plain(factor));
        }
        let (svg, width_points) = self.sheet(fixed, &lines);
        Some(Figure { stem, svg, width_points, csv: self.table(&lines) })
    }

    fn lines(&self, fixed: &Panel) -> Vec<Line> {
        let xs = &self.layout.x.levels;
        let line = |by: &String| -> Line { xs.iter().map(|x| self.point(fixed, x, by)).collect() };
        match self.layout.by.levels.as_slice() {
            [] => vec![line(&String::new())],
            levels => levels.iter().map(line).collect(),
        }
    }

    fn point(&self, fixed: &Panel, x: &str, by: &str) -> Option<u32> {
        let Layout { x: across, by: of_lines, .. } = self.layout;
        let level = |factor: &&str| match *factor {
            factor if factor == across.name => Some(x.to_owned()),
            factor if factor == of_lines.name => Some(by.to_owned()),
            factor => {
                let of_factor = fixed.iter().find(|(name, _)| name == factor);
                of_factor.map(|(_, level)| level.clone())
            }
        };
        self.ids.get(&self.factors.iter().map(level).collect::<Option<Vec<_>>>()?).copied()
    }

    fn value(&self, point: Option<u32>) -> Option<Value> {
        self.values.points.get(&point?).copied()
    }

    /// Returns the part of a value's interval that is drawn, in units of the axis.
    fn interval(&self, value: Value) -> Option<(f64, f64)> {
        let Values { metric, stat, scale, .. } = self.values;
        let (low, high) = possible_part(metric, stat, value.interval?);
        Some((low / scale, high / scale))
    }

    /// Returns the vertical axis, which contains zero. With few trials, an interval may be far wider than its mean; then it ends outside.
    fn value_axis(&self, lines: &[Line]) -> Axis {
        let Values { metric, stat, unit, scale, .. } = self.values;
        let (mut lowest, mut highest) = (0.0_f64, 0.0_f64);
        for value in lines.iter().flatten().filter_map(|point| self.value(*point)) {
            let mean = value.mean / scale;
            let (low, high) = self.interval(value).unwrap_or((mean, mean));
            highest = highest.max(high.min(mean * 2.0));
            lowest = lowest.min(low.max(mean * 2.0));
        }
        let unit = if metric == SHARE { "%" } else { readable(unit).1 };
        let title = titled(metric, stat);
        let label = if unit == "1" { title } else { format!("{title} ({unit})") };
        Axis::linear(&label, lowest, highest, 4.0)
    }

    /// Returns the legend: the factor, and a marker for each of its levels.
    fn keys(&self) -> Vec<(Key, String)> {
        let Dimension { name, levels } = &self.layout.by;
        let of_level =
            |(nth, level): (usize, &String)| (Key::Mark(shape(nth), colour(nth)), level.clone());
        let heading = (!levels.is_empty()).then(|| (Key::Heading, format!("{name}:")));
        heading.into_iter().chain(levels.iter().enumerate().map(of_level)).collect()
    }

    fn sheet(&self, fixed: &Panel, lines: &[Line]) -> (String, f64) {
        let Dimension { name, levels } = &self.layout.x;
        let request = &self.data.request;
        let is_narrow = levels.len() * lines.len() <= MAX_PER_COLUMN;
        let usual = if is_narrow { COLUMN_MM } else { TWO_COLUMNS_MM };
        let width = points(request.width_mm.unwrap_or(usual));
        let height = points(request.height_mm.unwrap_or(62.0));
        let mut canvas = Canvas::new(width, height);
        let (title, subtitle) = (&self.values.title, subtitle(fixed));
        let mut top = 9.0;
        for (text, size) in [(title, TITLE), (&subtitle, SMALL)] {
            let style = Style::new(size, Anchor::Start);
            for line in wrapped(text, style, width - 8.0) {
                canvas.text((4.0, top), style, &line);
                top += LINE;
            }
        }
        let (x, y) = (Axis::names(name, levels), self.value_axis(lines));
        let left = left_margin(&[&y], true);
        let room = width - left - 5.0;
        top += legend(&mut canvas, &self.keys(), (left, top - 5.0), room);
        let mut frame = Frame { left, top, width: room, height: 1.0, x, y };
        frame.height = height - top - frame.x_axis_height() - 2.0;
        frame.draw_background(&mut canvas, &[]);
        for (nth, line) in lines.iter().enumerate() {
            self.line(&mut canvas, &frame, line, (nth, lines.len()));
        }
        frame.edges(&mut canvas, true, true);
        (canvas.finish(title), width)
    }

    /// Draws the nth of `count` lines. A point without a value is a gap.
    fn line(
        &self,
        canvas: &mut Canvas,
        frame: &Frame,
        line: &[Option<u32>],
        (nth, count): (usize, usize),
    ) {
        // Beside each other, so that intervals do not cover each other.
        let step = (0.5 / count as f64).min(0.06);
        let aside = step * (nth as f64 - (count as f64 - 1.0) / 2.0);
        let place = |(at, point): (usize, &Option<u32>)| {
            let value = self.value(*point)?;
            let (x, y) = frame.at(at as f64 + 0.5 + aside, value.mean / self.values.scale);
            Some((x, y, value))
        };
        let places: Vec<Option<(f64, f64, Value)>> = line.iter().enumerate().map(place).collect();
        let stroke = Stroke { dash: dash(nth), ..Stroke::new(colour(nth), 1.1) };
        for piece in places.split(Option::is_none) {
            let piece: Vec<(f64, f64)> = piece.iter().flatten().map(|(x, y, _)| (*x, *y)).collect();
            canvas.polyline(&piece, stroke);
        }
        for (x, y, value) in places.into_iter().flatten() {
            if let Some(ends) = self.interval(value) {
                let bar = (2.0, Stroke::new(colour(nth), 0.7));
                frame.interval(canvas, (Direction::Y, x), ends, bar);
            }
            canvas.mark(shape(nth), (x, y), 4.5, colour(nth));
        }
    }

    fn table(&self, lines: &[Line]) -> String {
        let points = lines.iter().flatten().flatten();
        let rows = points.map(|point| (*point, self.value(Some(*point)), []));
        let Layout { x, by, .. } = self.layout;
        self.values.csv(self.data, (&self.factors, [&x.name, &by.name]), [], rows)
    }
}

/// Returns the levels that all lines share.
fn subtitle(fixed: &Panel) -> String {
    let levels = fixed.iter().map(|(factor, level)| format!("{factor} = {level}"));
    levels.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrange(all: &[&str], x: Option<&str>, by: Option<&str>) -> Result<[String; 3]> {
        let dimension = |name: &&str| Dimension { name: (*name).to_owned(), levels: vec![] };
        let layout = Layout::arrange(all.iter().map(dimension).collect(), x, by)?;
        Ok([layout.x.name, layout.by.name, names(&layout.others)])
    }

    #[test]
    fn factors_are_selectable_and_checked() {
        let found = |all: &[&str], x, by| arrange(all, x, by).unwrap();
        assert_eq!(found(&["a"], None, None), ["a", "", ""]);
        assert_eq!(found(&["a", "b"], None, None), ["b", "a", ""]);
        assert_eq!(found(&["a", "b"], Some("a"), None), ["a", "b", ""]);
        assert_eq!(found(&["a", "b"], None, Some("b")), ["a", "b", ""]);
        let all = ["a", "b", "c", "d"];
        assert_eq!(found(&all, Some("b"), Some("d")), ["b", "d", "a, c"]);
        let error = arrange(&all, Some("b"), None).unwrap_err().to_string();
        assert!(error.contains("--by: ") && error.ends_with("a, c, d"), "{error}");
        for (x, by) in [(Some("e"), Some("a")), (None, Some("e")), (Some("a"), Some("a"))] {
            let error = arrange(&all, x, by).unwrap_err().to_string();
            assert!(error.ends_with("a, b, c, d"), "{error}");
        }
        assert!(arrange(&["a"], None, Some("a")).unwrap_err().to_string().starts_with("--by a: "));
    }
}
