//! Axes with round ticks, plot frames that share an edge, and legends that wrap.

use super::canvas::{
    Anchor, BAND, Canvas, FAINT, GRID, INK, Shape, Stroke, Style, distinct_labels, text_width,
    truncate_end,
};
use crate::svg::{round_step, short};

/// Font size of ticks and legends.
pub(super) const SMALL: f64 = 7.0;
/// Font size of axis titles.
pub(super) const TITLE: f64 = 7.5;
const TICK: f64 = 2.5;
const GAP: f64 = 3.0;
/// How far a title may extend beyond its frame.
const TITLE_OVERHANG: f64 = 6.0;

/// One axis of a frame.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    /// Title with the unit.
    pub(super) label: String,
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
    /// Whether the axis has categories instead of numbers, and so no grid.
    names: bool,
}

impl Axis {
    /// Creates a numeric axis from at most `low` to at least `high` with about `parts` round ticks.
    pub(super) fn linear(label: &str, low: f64, high: f64, parts: f64) -> Self {
        let (low, high) = if high > low { (low, high) } else { (low, low + low.abs().max(1.0)) };
        let step = round_step(high - low, parts);
        let first = (low / step + 1e-9).floor();
        let last = (high / step - 1e-9).ceil();
        Self::ticked(label, first * step, last * step, step)
    }

    /// Creates a numeric axis from exactly `low` to `high`.
    pub(super) fn exact(label: &str, low: f64, high: f64, parts: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self::ticked(label, low, high, round_step(high - low, parts))
    }

    fn ticked(label: &str, low: f64, high: f64, step: f64) -> Self {
        let (first, last) =
            ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
        let tick = |nth: i64| {
            let value = nth as f64 * step;
            (
                value,
                if step < 0.001 {
                    format!("{value:.1e}")
                } else {
                    with_thousands_separators(value)
                },
            )
        };
        let ticks = (first..=last).map(tick).collect();
        Self { label: label.to_owned(), low, high, ticks, names: false }
    }

    /// Creates a categorical axis, on which the nth name spans `n` to `n + 1`.
    pub(super) fn names(label: &str, names: &[String]) -> Self {
        let ticks = names.iter().zip(0..).map(|(name, n)| (f64::from(n) + 0.5, name.clone()));
        Self {
            label: label.to_owned(),
            low: 0.0,
            high: names.len() as f64,
            ticks: ticks.collect(),
            names: true,
        }
    }

    /// Creates a numeric axis from `low` to `high` with these ticks.
    pub(super) fn named(label: &str, (low, high): (f64, f64), ticks: Vec<(f64, String)>) -> Self {
        Self { label: label.to_owned(), low, high, ticks, names: false }
    }

    /// Returns the width of the widest tick label.
    pub(super) fn tick_width(&self) -> f64 {
        let style = Style::new(SMALL, Anchor::End);
        self.ticks.iter().map(|(_, text)| text_width(text, style)).fold(0.0, f64::max)
    }

    fn share(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }
}

/// Formats a number with thousands separators.
fn with_thousands_separators(value: f64) -> String {
    let text = short(value);
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(w, r)| (w, Some(r)));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("−", digits));
    let mut out = String::from(sign);
    for (nth, digit) in digits.chars().enumerate() {
        // A thin space. Four-digit numbers have none.
        if digits.len() > 4 && nth > 0 && (digits.len() - nth) % 3 == 0 {
            out.push('\u{2009}');
        }
        out.push(digit);
    }
    rest.map_or(out.clone(), |rest| format!("{out}.{rest}"))
}

/// Direction of an error bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    X,
    Y,
}

/// Length of the arrow that marks an end beyond the frame.
const ARROW: f64 = 3.2;

/// One plot area.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) x: Axis,
    pub(super) y: Axis,
}

impl Frame {
    /// Returns the position of a value on the canvas.
    pub(super) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.at_x(x), self.at_y(y))
    }

    pub(super) fn at_x(&self, x: f64) -> f64 {
        self.left + self.width * self.x.share(x)
    }

    pub(super) fn at_y(&self, y: f64) -> f64 {
        self.top + self.height * (1.0 - self.y.share(y))
    }

    /// Draws the grid and phase bands below the data.
    pub(super) fn draw_background(&self, canvas: &mut Canvas, bands: &[(f64, f64)]) {
        for (from, to) in bands {
            let (from, to) = (self.at_x(from.max(self.x.low)), self.at_x(to.min(self.x.high)));
            if to > from {
                canvas.rect((from, self.top), (to - from, self.height), BAND);
            }
        }
        let grid = Stroke::new(GRID, 0.5);
        let (right, bottom) = (self.left + self.width, self.top + self.height);
        for (value, _) in self.y.ticks.iter().filter(|_| !self.y.names) {
            let y = self.at_y(*value);
            canvas.line((self.left, y), (right, y), grid);
        }
        for (value, _) in self.x.ticks.iter().filter(|_| !self.x.names) {
            let x = self.at_x(*value);
            canvas.line((x, self.top), (x, bottom), grid);
        }
    }

    /// Draws an error bar at `at` (points on the other axis) with caps of half-width `cap`. An end outside the frame is drawn as an arrow,
    /// because a cap at the edge would look like the end of the interval.
    pub(super) fn interval(
        &self,
        canvas: &mut Canvas,
        (along, at): (Direction, f64),
        ends: (f64, f64),
        (cap, stroke): (f64, Stroke),
    ) {
        let axis = if along == Direction::X { &self.x } else { &self.y };
        let within = |value: f64| value.clamp(axis.low, axis.high);
        // A point at a distance inwards from the end, and aside from the line.
        let place = |value: f64, inwards: f64, aside: f64| match along {
            Direction::X => (self.at_x(value) + inwards, at + aside),
            Direction::Y => (at + aside, self.at_y(value) - inwards),
        };
        let [low, high] = [ends.0, ends.1].map(within);
        canvas.line(place(low, 0.0, 0.0), place(high, 0.0, 0.0), stroke);
        for (end, shown, inwards) in [(ends.0, low, ARROW), (ends.1, high, -ARROW)] {
            // Exact comparison: a clamped value differs.
            let beyond = end != shown;
            let (inwards, half) = if beyond { (inwards, ARROW * 0.6) } else { (0.0, cap) };
            let corners = [-half, half].map(|aside| place(shown, inwards, aside));
            if beyond {
                canvas.polyline(&[corners[0], place(shown, 0.0, 0.0), corners[1]], stroke);
            } else if cap > 0.0 {
                canvas.line(corners[0], corners[1], stroke);
            }
        }
    }

    /// Draws axis lines, ticks and labels above the data. Only the bottom frame of a stack has labels below it.
    pub(super) fn edges(&self, canvas: &mut Canvas, texts_below: bool, y_texts: bool) {
        let edge = Stroke::new(INK, 0.6);
        let (right, bottom) = (self.left + self.width, self.top + self.height);
        canvas.polyline(&[(self.left, self.top), (self.left, bottom), (right, bottom)], edge);
        for (value, text) in &self.y.ticks {
            let y = self.at_y(*value);
            if !self.y.names {
                canvas.line((self.left - TICK, y), (self.left, y), edge);
            }
            if y_texts {
                let place = (self.left - TICK - 1.5, y + SMALL * 0.35);
                canvas.text(place, Style::new(SMALL, Anchor::End), text);
            }
        }
        if y_texts && !self.y.label.is_empty() {
            self.y_title(canvas);
        }
        if !self.x.names {
            for (value, _) in &self.x.ticks {
                let x = self.at_x(*value);
                canvas.line((x, bottom), (x, bottom + TICK), edge);
            }
        }
        if texts_below {
            self.x_texts(canvas);
        }
    }

    fn y_title(&self, canvas: &mut Canvas) {
        let style = Style { rotation_deg: -90.0, ..Style::new(TITLE, Anchor::Middle) };
        let x = self.left - TICK - 1.5 - self.y.tick_width() - GAP - 1.0;
        // If the title is too long, the unit moves to a second line.
        let middle = self.top + self.height / 2.0;
        let room = self.height + TITLE_OVERHANG;
        match self.y.label.rsplit_once(" (") {
            Some((name, unit)) if text_width(&self.y.label, style) > room => {
                canvas.text((x - TITLE * 1.1, middle), style, &truncate_end(name, style, room));
                canvas.text((x, middle), style, &format!("({unit}"));
            }
            _ => canvas.text((x, middle), style, &self.y.label),
        }
    }

    fn x_texts(&self, canvas: &mut Canvas) {
        let bottom = self.top + self.height;
        let style = Style::new(SMALL, Anchor::Middle);
        let rotation_deg = self.x.names && self.rotates_labels();
        let names: Vec<String> = self.x.ticks.iter().map(|(_, text)| text.clone()).collect();
        let names = if rotation_deg {
            distinct_labels(&names, style, self.max_rotated_label())
        } else {
            names
        };
        for ((value, _), text) in self.x.ticks.iter().zip(&names) {
            let x = self.at_x(*value);
            if rotation_deg {
                let style =
                    Style { anchor: Anchor::End, rotation_deg: -LABEL_ROTATION_DEG, ..style };
                canvas.text((x + 3.0, bottom + TICK + SMALL * 0.8), style, text);
            } else {
                let half = text_width(text, style) / 2.0;
                let x = x.min(canvas.width - half - 0.5).max(half + 0.5);
                canvas.text((x, bottom + TICK + SMALL), style, text);
            }
        }
        if !self.x.label.is_empty() {
            let y = bottom + self.x_axis_height() - 1.5;
            let style = Style::new(TITLE, Anchor::Middle);
            // The neighbour may be another frame or empty.
            let alone = self.width > canvas.width / 2.0;
            let room = if alone { canvas.width - 4.0 } else { self.width + 4.0 };
            let label = truncate_end(&self.x.label, style, room);
            let half = text_width(&label, style) / 2.0;
            let middle = self.left + self.width / 2.0;
            let x = middle.min(canvas.width - half - 2.0).max(half + 2.0);
            canvas.text((x, y), style, &label);
        }
    }

    /// Returns the maximum length of rotated labels at which the first one stays on the canvas.
    fn max_rotated_label(&self) -> f64 {
        let first = self.x.ticks.first().map_or(self.left, |(value, _)| self.at_x(*value));
        MAX_ROTATED_LABEL.min((first - 2.0) / LABEL_ROTATION_DEG.to_radians().cos())
    }

    /// Returns whether category labels must be rotated to fit.
    fn rotates_labels(&self) -> bool {
        let room = self.width / self.x.ticks.len().max(1) as f64;
        self.x.tick_width() > room - 2.0
    }

    /// Returns the height of ticks, labels and title below the frame.
    pub(super) fn x_axis_height(&self) -> f64 {
        let texts = if self.x.names && self.rotates_labels() {
            let widest = self.x.tick_width().min(self.max_rotated_label());
            widest * LABEL_ROTATION_DEG.to_radians().sin() + SMALL * 1.3
        } else {
            SMALL + 1.0
        };
        TICK + texts + if self.x.label.is_empty() { 2.0 } else { TITLE + 4.0 }
    }
}

/// Maximum length of rotated labels in points, and the rotation in degrees.
const MAX_ROTATED_LABEL: f64 = 80.0;
const LABEL_ROTATION_DEG: f64 = 40.0;

/// Returns the margin to the right of a frame: half of the last tick label.
pub(super) fn right_margin(x: &Axis) -> f64 {
    let last = x.ticks.last().filter(|_| !x.names);
    let half =
        last.map_or(0.0, |(_, text)| text_width(text, Style::new(SMALL, Anchor::Middle)) / 2.0);
    7.0_f64.max(half + 1.0)
}

/// Returns the margin to the left of stacked frames: the widest tick label and the title.
pub(super) fn left_margin(axes: &[&Axis], two_lines: bool) -> f64 {
    let ticks = axes.iter().map(|axis| axis.tick_width()).fold(0.0, f64::max);
    let titled = axes.iter().any(|axis| !axis.label.is_empty());
    let title = if !titled {
        0.0
    } else if two_lines {
        TITLE * 2.2
    } else {
        TITLE
    };
    TICK + 1.5 + ticks + GAP + title + 3.0
}

/// Returns the [`left_margin`] of an axis beside a frame of this height. A title that is too long takes two lines.
fn left_margin_for_height(axis: &Axis, height: f64) -> f64 {
    let title = text_width(&axis.label, Style::new(TITLE, Anchor::Middle));
    left_margin(&[axis], title > height + TITLE_OVERHANG)
}

/// Frames side by side below one legend, sharing the y axis on the left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Width and height of the canvas.
    pub(super) size: (f64, f64),
    /// Right margin.
    pub(super) right: f64,
    /// Space between the legend and the frames.
    pub(super) above: f64,
    /// Space between two frames.
    pub(super) gap: f64,
    pub(super) count: usize,
}

impl Row {
    /// Returns the first frame.
    pub(super) fn first(self, keys: &[(Key, String)], x: &Axis, y: &Axis) -> Frame {
        let (width, height) = self.size;
        let frame_at = |left: f64| {
            let room = width - left - self.right;
            let top = 3.0 + legend_height(keys, room) + self.above;
            let each = (room - self.gap * (self.count as f64 - 1.0)) / self.count as f64;
            let frame = Frame { left, top, width: each, height: 1.0, x: x.clone(), y: y.clone() };
            Frame { height: height - top - frame.x_axis_height() - 2.0, ..frame }
        };
        // The axis width depends on the height.
        frame_at(left_margin_for_height(y, frame_at(left_margin(&[y], true)).height))
    }

    /// Returns the nth frame, from 0.
    pub(super) fn nth(self, first: &Frame, nth: usize) -> Frame {
        Frame { left: first.left + nth as f64 * (first.width + self.gap), ..first.clone() }
    }
}

/// Symbol of a legend entry.
#[derive(Debug, Clone, Copy)]
pub(super) enum Key {
    Line(Stroke),
    Mark(Shape, &'static str),
    Box(&'static str),
    /// No symbol: the text is a heading.
    Heading,
}

const KEY: f64 = 13.0;
const LINE: f64 = SMALL + 3.0;

/// Returns the height of a legend.
pub(super) fn legend_height(entries: &[(Key, String)], width: f64) -> f64 {
    legend(&mut Canvas::new(width, LINE), entries, (0.0, 0.0), width)
}

/// Returns labels that are short enough for two legend columns.
pub(super) fn labels_for_two_columns(names: &[String], width: f64) -> Vec<String> {
    distinct_labels(names, Style::new(SMALL, Anchor::Start), width / 2.0 - KEY - 12.0)
}

/// Draws a legend with lines no wider than `width`, and returns its height.
pub(super) fn legend(
    canvas: &mut Canvas,
    entries: &[(Key, String)],
    (left, top): (f64, f64),
    width: f64,
) -> f64 {
    if entries.is_empty() {
        return 0.0;
    }
    let style = Style::new(SMALL, Anchor::Start);
    let (mut x, mut y) = (left, top + LINE / 2.0);
    for (key, name) in entries {
        let name = truncate_end(name, style, width - KEY - 4.0);
        let before = if matches!(key, Key::Heading) { 0.0 } else { KEY + 3.0 };
        let wide = before + text_width(&name, style) + 9.0;
        if x > left && x + wide - 9.0 > left + width {
            (x, y) = (left, y + LINE);
        }
        match *key {
            Key::Line(stroke) => {
                let width = stroke.width.max(1.0);
                canvas.line((x, y), (x + KEY, y), Stroke { width, opacity: 1.0, ..stroke });
            }
            Key::Mark(shape, fill) => canvas.mark(shape, (x + KEY / 2.0, y), 6.0, fill),
            Key::Box(fill) => canvas.rect((x + 3.0, y - 3.0), (KEY - 6.0, 6.0), fill),
            Key::Heading => {}
        }
        canvas.text((x + before, y + SMALL * 0.36), style, &name);
        x += wide;
    }
    y - top + LINE / 2.0 + 2.0
}

/// Draws the names of phases above a frame where they fit.
pub(super) fn phase_names(canvas: &mut Canvas, frame: &Frame, phases: &[(String, f64, f64)]) {
    for (name, from, to) in phases {
        let (from, to) = (frame.at_x(*from), frame.at_x(*to));
        let style = Style { colour: FAINT, ..Style::new(SMALL, Anchor::Middle) };
        let name = truncate_end(name, style, to - from - 2.0);
        if name != "…" {
            canvas.text((f64::midpoint(from, to), frame.top - 2.5), style, &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_and_cover_the_data() {
        let axis = Axis::linear("t (s)", 0.0, 95.6, 5.0);
        assert_eq!(texts(&axis), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!((axis.low, axis.high), (0.0, 100.0));
        assert_eq!(texts(&Axis::exact("t (s)", 0.0, 33.0, 4.0)), ["0", "10", "20", "30"]);
        assert_eq!(texts(&Axis::linear("x", -2.0, 3.0, 4.0)), ["−2", "0", "2", "4"]);
        // An empty range must not divide by zero.
        assert!(Axis::linear("x", 5.0, 5.0, 4.0).ticks.len() > 1);
    }

    #[test]
    fn formats_thousands_separators() {
        assert_eq!(with_thousands_separators(1500.0), "1500");
        assert_eq!(with_thousands_separators(187_500.0), "187\u{2009}500");
        assert_eq!(with_thousands_separators(-1_000_000.5), "−1\u{2009}000\u{2009}000.5");
    }

    #[test]
    fn legend_wraps_within_width() {
        let entry = (Key::Box("#000000"), "delay_based/0".to_owned());
        let one = legend(&mut Canvas::new(200.0, 50.0), &vec![entry.clone(); 2], (0.0, 0.0), 200.0);
        let mut canvas = Canvas::new(200.0, 50.0);
        let two = legend(&mut canvas, &vec![entry; 6], (0.0, 0.0), 200.0);
        assert!(two > one && one > 0.0);
        let svg = canvas.finish("t");
        for x in svg.split("<text x=\"").skip(1).filter_map(|s| s.split('"').next()) {
            assert!(x.parse::<f64>().unwrap() < 200.0 - 40.0, "cut at {x}");
        }
    }

    #[test]
    fn error_bars_end_in_caps_inside_and_arrows_outside() {
        let frame = Frame {
            left: 20.0,
            top: 10.0,
            width: 180.0,
            height: 60.0,
            x: Axis::linear("x", 0.0, 1.0, 4.0),
            y: Axis::linear("y", 0.0, 1.0, 4.0),
        };
        let paths = |along, ends| {
            let mut canvas = Canvas::new(210.0, 90.0);
            let thin = Stroke::new(INK, 0.7);
            frame.interval(&mut canvas, (along, 50.0), ends, (2.0, thin));
            let svg = canvas.finish("t");
            svg.split("<path d=\"")
                .skip(1)
                .map(|path| path.split('"').next().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let inside =
            ["M50.00,55.00L50.00,25.00", "M48.00,55.00L52.00,55.00", "M48.00,25.00L52.00,25.00"];
        assert_eq!(paths(Direction::Y, (0.25, 0.75)), inside);
        let beyond = paths(Direction::Y, (-3.0, 7.0));
        let arrows =
            ["M48.08,66.80L50.00,70.00L51.92,66.80", "M48.08,13.20L50.00,10.00L51.92,13.20"];
        assert_eq!(beyond[0], "M50.00,70.00L50.00,10.00");
        assert_eq!(beyond[1..], arrows);
        let beyond = paths(Direction::X, (0.5, 7.0));
        assert_eq!(beyond[2], "M196.80,48.08L200.00,50.00L196.80,51.92");
    }

    #[test]
    fn rotated_labels_are_distinct_and_inside_the_canvas() {
        let names: Vec<String> = ["one, 10ms", "one, 40ms", "two, 40ms"]
            .map(|end| format!("a_really_long_level_name_number_{end}"))
            .to_vec();
        let frame = Frame {
            left: 22.0,
            top: 10.0,
            width: 215.0,
            height: 60.0,
            x: Axis::names("a_very_long_factor_name, links.back.delay", &names),
            y: Axis::linear("y", 0.0, 1.0, 4.0),
        };
        assert!(frame.rotates_labels());
        let mut canvas = Canvas::new(241.0, 180.0);
        frame.edges(&mut canvas, true, false);
        let svg = canvas.finish("t");
        let rotated: Vec<(f64, String)> = svg
            .lines()
            .filter(|line| line.contains("rotate(-40"))
            .map(|line| {
                let x = line.split("x=\"").nth(1).unwrap().split('"').next().unwrap();
                let text = line.split('>').nth(1).unwrap().split('<').next().unwrap();
                (x.parse().unwrap(), text.to_owned())
            })
            .collect();
        let style = Style::new(SMALL, Anchor::End);
        for (x, text) in &rotated {
            let begin = x - text_width(text, style) * LABEL_ROTATION_DEG.to_radians().cos();
            assert!(begin > 0.0, "`{text}` begins at {begin}");
        }
        let texts: std::collections::BTreeSet<&String> = rotated.iter().map(|(_, t)| t).collect();
        assert_eq!(texts.len(), 3, "{rotated:?}");
    }

    #[test]
    fn margins_fit_last_tick_and_two_line_title() {
        let x = Axis::linear("Mean sRTT (ms)", 0.0, 1000.0, 4.0);
        let half = text_width("1000", Style::new(SMALL, Anchor::Middle)) / 2.0;
        assert!(right_margin(&x) > half && half > 7.0);
        let y = Axis::linear("Throughput per flow (Mbit/s)", 0.0, 5.0, 4.0);
        let two_lines = left_margin_for_height(&y, 80.0) - left_margin_for_height(&y, 120.0);
        assert!(two_lines >= TITLE * 1.1, "{two_lines}");
    }

    #[test]
    fn rotates_labels_that_do_not_fit() {
        let names: Vec<String> = (0..7).map(|n| format!("a long scheme {n}")).collect();
        let frame = |names: &[String]| Frame {
            left: 20.0,
            top: 10.0,
            width: 180.0,
            height: 60.0,
            x: Axis::names("", names),
            y: Axis::linear("y", 0.0, 1.0, 4.0),
        };
        assert!(frame(&names).rotates_labels() && !frame(&names[..2]).rotates_labels());
        assert!(frame(&names).x_axis_height() > frame(&names[..2]).x_axis_height());
        assert_eq!(frame(&names[..2]).at(1.0, 0.5), (110.0, 40.0));
    }
}
