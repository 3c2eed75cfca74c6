//! Diagrams with axes: scales with round ticks, frames that share an edge, legends that wrap.

use super::canvas::{
    Anchor, BAND, Canvas, FAINT, GRID, INK, Shape, Stroke, Style, fitted, text_width, told_apart,
};
use crate::svg::{round_step, short};

/// Of ticks and legends.
pub(super) const SMALL: f64 = 7.0;
/// Of titles of axes.
pub(super) const TITLE: f64 = 7.5;
const TICK: f64 = 2.5;
const GAP: f64 = 3.0;
/// How much longer than its diagram a title may be.
const BESIDE: f64 = 6.0;

/// What is along an edge of a diagram.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    /// With its unit.
    pub(super) label: String,
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
    /// Names of things instead of numbers: no grid.
    names: bool,
}

impl Axis {
    /// Numbers from at least `low` to at least `high`, with about `parts` round ticks.
    pub(super) fn linear(label: &str, low: f64, high: f64, parts: f64) -> Self {
        let (low, high) = if high > low { (low, high) } else { (low, low + low.abs().max(1.0)) };
        let step = round_step(high - low, parts);
        let first = (low / step + 1e-9).floor();
        let last = (high / step - 1e-9).ceil();
        Self::ticked(label, first * step, last * step, step)
    }

    /// Numbers from `low` to `high` exactly.
    pub(super) fn exact(label: &str, low: f64, high: f64, parts: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self::ticked(label, low, high, round_step(high - low, parts))
    }

    fn ticked(label: &str, low: f64, high: f64, step: f64) -> Self {
        let (first, last) =
            ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
        let tick = |nth: i64| {
            let value = nth as f64 * step;
            (value, if step < 0.001 { format!("{value:.1e}") } else { thousands(value) })
        };
        let ticks = (first..=last).map(tick).collect();
        Self { label: label.to_owned(), low, high, ticks, names: false }
    }

    /// One place, from `n` to `n + 1`, for each name.
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

    /// The widest tick's text.
    pub(super) fn tick_width(&self) -> f64 {
        let style = Style::new(SMALL, Anchor::End);
        self.ticks.iter().map(|(_, text)| text_width(text, style)).fold(0.0, f64::max)
    }

    fn share(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }
}

/// A number of an axis, its thousands set apart.
fn thousands(value: f64) -> String {
    let text = short(value);
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(w, r)| (w, Some(r)));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("−", digits));
    let mut out = String::from(sign);
    for (nth, digit) in digits.chars().enumerate() {
        // A thin space; numbers of four digits need none.
        if digits.len() > 4 && nth > 0 && (digits.len() - nth) % 3 == 0 {
            out.push('\u{2009}');
        }
        out.push(digit);
    }
    rest.map_or(out.clone(), |rest| format!("{out}.{rest}"))
}

/// A direction on the sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Along {
    X,
    Y,
}

/// Length of what stands for an end beyond the diagram.
const ARROW: f64 = 3.2;

/// One diagram on the sheet.
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
    /// Where a value is on the sheet.
    pub(super) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.at_x(x), self.at_y(y))
    }

    pub(super) fn at_x(&self, x: f64) -> f64 {
        self.left + self.width * self.x.share(x)
    }

    pub(super) fn at_y(&self, y: f64) -> f64 {
        self.top + self.height * (1.0 - self.y.share(y))
    }

    /// Grid and ground, under the data.
    pub(super) fn ground(&self, canvas: &mut Canvas, bands: &[(f64, f64)]) {
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

    /// The interval of a mean whose place on the other axis is `at`, in points: a line with caps so wide; an end that lies
    /// beyond the diagram is an arrow, as a cap there would be read as the end.
    pub(super) fn interval(
        &self,
        canvas: &mut Canvas,
        (along, at): (Along, f64),
        ends: (f64, f64),
        (cap, stroke): (f64, Stroke),
    ) {
        let axis = if along == Along::X { &self.x } else { &self.y };
        let within = |value: f64| value.clamp(axis.low, axis.high);
        // So many points further inside, and so many beside the line.
        let place = |value: f64, inwards: f64, aside: f64| match along {
            Along::X => (self.at_x(value) + inwards, at + aside),
            Along::Y => (at + aside, self.at_y(value) - inwards),
        };
        let [low, high] = [ends.0, ends.1].map(within);
        canvas.line(place(low, 0.0, 0.0), place(high, 0.0, 0.0), stroke);
        for (end, shown, inwards) in [(ends.0, low, ARROW), (ends.1, high, -ARROW)] {
            // What is clamped differs exactly.
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

    /// Edges, ticks and their texts, over the data. Diagrams above others have no texts below.
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
        let style = Style { turned: -90.0, ..Style::new(TITLE, Anchor::Middle) };
        let x = self.left - TICK - 1.5 - self.y.tick_width() - GAP - 1.0;
        // A long title takes two lines, its unit the second.
        let middle = self.top + self.height / 2.0;
        let room = self.height + BESIDE;
        match self.y.label.rsplit_once(" (") {
            Some((name, unit)) if text_width(&self.y.label, style) > room => {
                canvas.text((x - TITLE * 1.1, middle), style, &fitted(name, style, room));
                canvas.text((x, middle), style, &format!("({unit}"));
            }
            _ => canvas.text((x, middle), style, &self.y.label),
        }
    }

    fn x_texts(&self, canvas: &mut Canvas) {
        let bottom = self.top + self.height;
        let style = Style::new(SMALL, Anchor::Middle);
        let turned = self.x.names && self.turns();
        let names: Vec<String> = self.x.ticks.iter().map(|(_, text)| text.clone()).collect();
        let names = if turned { told_apart(&names, style, self.turned_room()) } else { names };
        for ((value, _), text) in self.x.ticks.iter().zip(&names) {
            let x = self.at_x(*value);
            if turned {
                let style = Style { anchor: Anchor::End, turned: -TURNED, ..style };
                canvas.text((x + 3.0, bottom + TICK + SMALL * 0.8), style, text);
            } else {
                let half = text_width(text, style) / 2.0;
                let x = x.min(canvas.width - half - 0.5).max(half + 0.5);
                canvas.text((x, bottom + TICK + SMALL), style, text);
            }
        }
        if !self.x.label.is_empty() {
            let y = bottom + self.x_depth() - 1.5;
            let style = Style::new(TITLE, Anchor::Middle);
            // Beside it may be another diagram's, or nothing.
            let alone = self.width > canvas.width / 2.0;
            let room = if alone { canvas.width - 4.0 } else { self.width + 4.0 };
            let label = fitted(&self.x.label, style, room);
            let half = text_width(&label, style) / 2.0;
            let middle = self.left + self.width / 2.0;
            let x = middle.min(canvas.width - half - 2.0).max(half + 2.0);
            canvas.text((x, y), style, &label);
        }
    }

    /// How long turned names may be: the first must not leave the sheet.
    fn turned_room(&self) -> f64 {
        let first = self.x.ticks.first().map_or(self.left, |(value, _)| self.at_x(*value));
        MOST_TURNED.min((first - 2.0) / TURNED.to_radians().cos())
    }

    /// Whether names along the lower edge must be turned to find room.
    fn turns(&self) -> bool {
        let room = self.width / self.x.ticks.len().max(1) as f64;
        self.x.tick_width() > room - 2.0
    }

    /// How much room ticks, texts and title need below.
    pub(super) fn x_depth(&self) -> f64 {
        let texts = if self.x.names && self.turns() {
            let widest = self.x.tick_width().min(self.turned_room());
            widest * TURNED.to_radians().sin() + SMALL * 1.3
        } else {
            SMALL + 1.0
        };
        TICK + texts + if self.x.label.is_empty() { 2.0 } else { TITLE + 4.0 }
    }
}

/// Room for names that are turned, and by how many degrees they are.
const MOST_TURNED: f64 = 80.0;
const TURNED: f64 = 40.0;

/// Room right of a diagram: half of the last tick's text stands there.
pub(super) fn right_margin(x: &Axis) -> f64 {
    let last = x.ticks.last().filter(|_| !x.names);
    let half =
        last.map_or(0.0, |(_, text)| text_width(text, Style::new(SMALL, Anchor::Middle)) / 2.0);
    7.0_f64.max(half + 1.0)
}

/// Room left of diagrams above each other, for the widest of their ticks and their titles.
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

/// As [`left_margin`] of one axis beside a diagram that is so high: two lines where its title needs them.
fn left_margin_beside(axis: &Axis, height: f64) -> f64 {
    let title = text_width(&axis.label, Style::new(TITLE, Anchor::Middle));
    left_margin(&[axis], title > height + BESIDE)
}

/// Diagrams side by side under one legend, with one axis at the left of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Width and height of the sheet.
    pub(super) size: (f64, f64),
    /// Room at the right.
    pub(super) right: f64,
    /// Room between the legend and the diagrams.
    pub(super) above: f64,
    /// Room between two diagrams.
    pub(super) gap: f64,
    pub(super) count: usize,
}

impl Row {
    /// The first of them, under this legend.
    pub(super) fn first(self, keys: &[(Key, String)], x: &Axis, y: &Axis) -> Frame {
        let (width, height) = self.size;
        let beside = |left: f64| {
            let room = width - left - self.right;
            let top = 3.0 + legend_height(keys, room) + self.above;
            let each = (room - self.gap * (self.count as f64 - 1.0)) / self.count as f64;
            let frame = Frame { left, top, width: each, height: 1.0, x: x.clone(), y: y.clone() };
            Frame { height: height - top - frame.x_depth() - 2.0, ..frame }
        };
        // How much room the axis needs depends on the height.
        beside(left_margin_beside(y, beside(left_margin(&[y], true)).height))
    }

    /// The nth of them, from 0.
    pub(super) fn nth(self, first: &Frame, nth: usize) -> Frame {
        Frame { left: first.left + nth as f64 * (first.width + self.gap), ..first.clone() }
    }
}

/// What stands for a thing in a legend.
#[derive(Debug, Clone, Copy)]
pub(super) enum Key {
    Line(Stroke),
    Mark(Shape, &'static str),
    Box(&'static str),
    /// Nothing: the text says what the others are.
    Heading,
}

const KEY: f64 = 13.0;
const LINE: f64 = SMALL + 3.0;

/// How high a legend is.
pub(super) fn legend_height(entries: &[(Key, String)], width: f64) -> f64 {
    legend(&mut Canvas::new(width, LINE), entries, (0.0, 0.0), width)
}

/// Names so short that two entries find room beside each other.
pub(super) fn in_two_columns(names: &[String], width: f64) -> Vec<String> {
    told_apart(names, Style::new(SMALL, Anchor::Start), width / 2.0 - KEY - 12.0)
}

/// Entries of a legend, in lines no wider than `width`; returns its height.
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
        let name = fitted(name, style, width - KEY - 4.0);
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

/// Names of phases above a diagram, where they find room.
pub(super) fn phase_names(canvas: &mut Canvas, frame: &Frame, phases: &[(String, f64, f64)]) {
    for (name, from, to) in phases {
        let (from, to) = (frame.at_x(*from), frame.at_x(*to));
        let style = Style { colour: FAINT, ..Style::new(SMALL, Anchor::Middle) };
        let name = fitted(name, style, to - from - 2.0);
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
    fn ticks_are_round_and_hold_the_data() {
        let axis = Axis::linear("t (s)", 0.0, 95.6, 5.0);
        assert_eq!(texts(&axis), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!((axis.low, axis.high), (0.0, 100.0));
        assert_eq!(texts(&Axis::exact("t (s)", 0.0, 33.0, 4.0)), ["0", "10", "20", "30"]);
        assert_eq!(texts(&Axis::linear("x", -2.0, 3.0, 4.0)), ["−2", "0", "2", "4"]);
        // Nothing to show is no division by zero.
        assert!(Axis::linear("x", 5.0, 5.0, 4.0).ticks.len() > 1);
    }

    #[test]
    fn large_numbers_are_set_apart() {
        assert_eq!(thousands(1500.0), "1500");
        assert_eq!(thousands(187_500.0), "187\u{2009}500");
        assert_eq!(thousands(-1_000_000.5), "−1\u{2009}000\u{2009}000.5");
    }

    #[test]
    fn a_legend_wraps_within_its_width() {
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
    fn an_interval_ends_in_caps_within_the_diagram_and_in_arrows_beyond() {
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
        assert_eq!(paths(Along::Y, (0.25, 0.75)), inside);
        let beyond = paths(Along::Y, (-3.0, 7.0));
        let arrows =
            ["M48.08,66.80L50.00,70.00L51.92,66.80", "M48.08,13.20L50.00,10.00L51.92,13.20"];
        assert_eq!(beyond[0], "M50.00,70.00L50.00,10.00");
        assert_eq!(beyond[1..], arrows);
        let beyond = paths(Along::X, (0.5, 7.0));
        assert_eq!(beyond[2], "M196.80,48.08L200.00,50.00L196.80,51.92");
    }

    #[test]
    fn turned_names_can_be_told_apart_and_stay_on_the_sheet() {
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
        assert!(frame.turns());
        let mut canvas = Canvas::new(241.0, 180.0);
        frame.edges(&mut canvas, true, false);
        let svg = canvas.finish("t");
        let turned: Vec<(f64, String)> = svg
            .lines()
            .filter(|line| line.contains("rotate(-40"))
            .map(|line| {
                let x = line.split("x=\"").nth(1).unwrap().split('"').next().unwrap();
                let text = line.split('>').nth(1).unwrap().split('<').next().unwrap();
                (x.parse().unwrap(), text.to_owned())
            })
            .collect();
        let style = Style::new(SMALL, Anchor::End);
        for (x, text) in &turned {
            let begin = x - text_width(text, style) * TURNED.to_radians().cos();
            assert!(begin > 0.0, "`{text}` begins at {begin}");
        }
        let texts: std::collections::BTreeSet<&String> = turned.iter().map(|(_, t)| t).collect();
        assert_eq!(texts.len(), 3, "{turned:?}");
    }

    #[test]
    fn the_last_tick_and_a_title_of_two_lines_find_room() {
        let x = Axis::linear("Mean sRTT (ms)", 0.0, 1000.0, 4.0);
        let half = text_width("1000", Style::new(SMALL, Anchor::Middle)) / 2.0;
        assert!(right_margin(&x) > half && half > 7.0);
        let y = Axis::linear("Throughput per flow (Mbit/s)", 0.0, 5.0, 4.0);
        let two_lines = left_margin_beside(&y, 80.0) - left_margin_beside(&y, 120.0);
        assert!(two_lines >= TITLE * 1.1, "{two_lines}");
    }

    #[test]
    fn names_that_find_no_room_are_turned() {
        let names: Vec<String> = (0..7).map(|n| format!("a long scheme {n}")).collect();
        let frame = |names: &[String]| Frame {
            left: 20.0,
            top: 10.0,
            width: 180.0,
            height: 60.0,
            x: Axis::names("", names),
            y: Axis::linear("y", 0.0, 1.0, 4.0),
        };
        assert!(frame(&names).turns() && !frame(&names[..2]).turns());
        assert!(frame(&names).x_depth() > frame(&names[..2]).x_depth());
        assert_eq!(frame(&names[..2]).at(1.0, 0.5), (110.0, 40.0));
    }
}
