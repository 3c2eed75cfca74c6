//! A sheet of paper in points (1/72 inch) that becomes an SVG file. Text stays text, so that it can be searched and
//! edited; its width is known from the font that comes with ccbench, which is as wide as Arial.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::LazyLock;

use skrifa::instance::{LocationRef, Size};
use skrifa::{FontRef, MetadataProvider as _};

use crate::svg::escaped;

/// Of a millimetre.
pub(super) const POINTS_PER_MM: f64 = 72.0 / 25.4;
pub(super) const FONT: &[u8] = include_bytes!("../../assets/fonts/Arimo-Regular.ttf");
/// Fonts as wide as the one that comes with ccbench.
const FAMILY: &str = "Arimo, Arial, 'Liberation Sans', Helvetica, sans-serif";

/// Okabe and Ito's colours, which colour-blind people can tell apart; their yellow is too light for lines on white.
pub(super) const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
/// So that colours that come again, or are printed grey, can be told apart.
const DASHES: [&str; 4] = ["", "4 1.6", "1.2 1.4", "5 1.4 1.2 1.4"];
/// Of marks.
const EDGE: &str = "stroke=\"#ffffff\" stroke-width=\"0.5\"";
pub(super) const INK: &str = "#222222";
pub(super) const FAINT: &str = "#6b6b6b";
pub(super) const GRID: &str = "#e2e2e2";
pub(super) const BAND: &str = "#f0f2f5";

/// The colour of the nth of several things.
pub(super) fn colour(nth: usize) -> &'static str {
    COLOURS[nth % COLOURS.len()]
}

/// How the nth of several lines is drawn.
pub(super) fn dash(nth: usize) -> &'static str {
    DASHES[(nth / COLOURS.len()) % DASHES.len()]
}

/// Where a text's given point is on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) size: f64,
    pub(super) anchor: Anchor,
    /// Degrees, clockwise.
    pub(super) turned: f64,
    pub(super) colour: &'static str,
}

impl Style {
    /// Of this size, beginning at its point.
    pub(super) const fn new(size: f64, anchor: Anchor) -> Self {
        Self { size, anchor, turned: 0.0, colour: INK }
    }
}

/// How a line looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stroke {
    pub(super) colour: &'static str,
    pub(super) width: f64,
    pub(super) dash: &'static str,
    pub(super) opacity: f64,
}

impl Stroke {
    /// Solid.
    pub(super) const fn new(colour: &'static str, width: f64) -> Self {
        Self { colour, width, dash: "", opacity: 1.0 }
    }
}

/// A mark's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
    Star,
    Turned,
    Plus,
}

/// Shapes for the nth of several things; the star is for optima.
pub(super) fn shape(nth: usize) -> Shape {
    const SHAPES: [Shape; 5] =
        [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Turned, Shape::Plus];
    SHAPES[nth % SHAPES.len()]
}

/// Advance widths of the font's glyphs, in ems.
struct Widths {
    font: Option<FontRef<'static>>,
}

impl Widths {
    fn of(&self, text: &str) -> f64 {
        let Some(font) = &self.font else { return 0.55 * text.chars().count() as f64 };
        let metrics = font.glyph_metrics(Size::new(1.0), LocationRef::default());
        let width = |c: char| metrics.advance_width(font.charmap().map(c)?);
        text.chars().map(|c| f64::from(width(c).unwrap_or(0.6))).sum()
    }
}

/// How wide a text is, in points.
pub(super) fn text_width(text: &str, style: Style) -> f64 {
    static WIDTHS: LazyLock<Widths> = LazyLock::new(|| Widths { font: FontRef::new(FONT).ok() });
    WIDTHS.of(text) * style.size
}

/// A text that is no wider than so many points: shortened with `…` if it must be.
pub(super) fn fitted(text: &str, style: Style, width: f64) -> String {
    let mut kept = text.to_owned();
    while text_width(&kept, style) > width && kept.chars().count() > 1 {
        kept = kept.trim_end_matches('…').to_owned();
        kept.pop();
        kept.push('…');
        if kept == "…" {
            break;
        }
    }
    kept
}

/// A text that is no wider than so many points: of one that is, the middle is left out.
fn halved(text: &str, style: Style, width: f64) -> String {
    let letters: Vec<char> = text.chars().collect();
    let cut = |kept: usize| {
        let begin: String = letters[..kept.div_ceil(2)].iter().collect();
        let end: String = letters[letters.len() - kept / 2..].iter().collect();
        format!("{begin}…{end}")
    };
    let fits = |text: &String| text_width(text, style) <= width;
    match fits(&text.to_owned()) {
        true => text.to_owned(),
        false => (1..letters.len()).rev().map(cut).find(fits).unwrap_or_else(|| "…".to_owned()),
    }
}

/// Names that are no wider than so many points and differ where they differed: shortened in the middle, or to what they
/// do not have in common, or numbered.
pub(super) fn told_apart(names: &[String], style: Style, width: f64) -> Vec<String> {
    let distinct = |texts: &[String]| texts.iter().collect::<BTreeSet<_>>().len();
    let enough = distinct(names);
    let halves = |names: &[String]| -> Vec<String> {
        names.iter().map(|name| halved(name, style, width)).collect()
    };
    let short = halves(names);
    if distinct(&short) == enough {
        return short;
    }
    let letters: Vec<Vec<char>> = names.iter().map(|name| name.chars().collect()).collect();
    let least = letters.iter().map(Vec::len).min().unwrap_or(0);
    let same =
        |at: &dyn Fn(&Vec<char>) -> char| letters.iter().all(|name| at(name) == at(&letters[0]));
    let before = (0..least).take_while(|nth| same(&|name| name[*nth])).count();
    let after =
        (0..least - before).take_while(|nth| same(&|name| name[name.len() - 1 - nth])).count();
    let rest = |name: &Vec<char>| -> String {
        let rest: String = name[before..name.len() - after].iter().collect();
        let [begin, end] = [before, after].map(|cut| if cut > 0 { "…" } else { "" });
        format!("{begin}{rest}{end}")
    };
    let short = halves(&letters.iter().map(rest).collect::<Vec<_>>());
    if distinct(&short) == enough {
        return short;
    }
    let mut known: Vec<&String> = Vec::new();
    let numbered = names.iter().map(|name| {
        let nth = known.iter().position(|other| *other == name).unwrap_or(known.len());
        if nth == known.len() {
            known.push(name);
        }
        let number = format!("{}: ", nth + 1);
        let room = width - text_width(&number, style);
        format!("{number}{}", halved(name, style, room))
    });
    numbered.collect()
}

/// The sheet.
#[derive(Debug)]
pub(super) struct Canvas {
    pub(super) width: f64,
    pub(super) height: f64,
    body: String,
    clips: u32,
}

impl Canvas {
    /// White, of this size in points.
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new(), clips: 0 }
    }

    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.body.write_fmt(line);
        self.body.push('\n');
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), stroke: Stroke) {
        self.polyline(&[(x1, y1), (x2, y2)], stroke);
    }

    pub(super) fn polyline(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        if points.len() < 2 {
            return;
        }
        let path = path(points);
        let Stroke { colour, width, dash, opacity } = stroke;
        let dash =
            if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        let opacity =
            if opacity < 1.0 { format!(" stroke-opacity=\"{opacity}\"") } else { String::new() };
        self.put(format_args!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dash}{opacity}/>"
        ));
    }

    /// With a mark's white edge.
    fn polygon(&mut self, points: &[(f64, f64)], fill: &str) {
        let path = path(points);
        self.put(format_args!("<path d=\"{path}Z\" fill=\"{fill}\" {EDGE}/>"));
    }

    pub(super) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        self.put(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"{fill}\"/>"
        ));
    }

    /// A small disc, of which there are many.
    pub(super) fn dot(&mut self, (x, y): (f64, f64), radius: f64, fill: &str, opacity: f64) {
        self.put(format_args!(
            "<circle cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"{radius}\" fill=\"{fill}\" fill-opacity=\"{opacity}\"/>"
        ));
    }

    /// A mark of about `size` points with a thin white edge, so that marks that meet can be told apart.
    pub(super) fn mark(&mut self, shape: Shape, (x, y): (f64, f64), size: f64, fill: &str) {
        let r = size / 2.0;
        let turn = |angles: &[(f64, f64)]| -> Vec<(f64, f64)> {
            angles
                .iter()
                .map(|(degrees, radius)| {
                    let (sin, cos) = degrees.to_radians().sin_cos();
                    (x + radius * r * cos, y - radius * r * sin)
                })
                .collect()
        };
        match shape {
            Shape::Circle => self.put(format_args!(
                "<circle cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"{r:.2}\" fill=\"{fill}\" {EDGE}/>"
            )),
            Shape::Square => {
                self.polygon(&turn(&[45.0, 135.0, 225.0, 315.0].map(|a| (a, 1.25))), fill);
            }
            Shape::Diamond => {
                self.polygon(&turn(&[0.0, 90.0, 180.0, 270.0].map(|a| (a, 1.3))), fill);
            }
            Shape::Triangle => self.polygon(&turn(&[90.0, 210.0, 330.0].map(|a| (a, 1.3))), fill),
            Shape::Turned => self.polygon(&turn(&[270.0, 30.0, 150.0].map(|a| (a, 1.3))), fill),
            Shape::Star => {
                let points: Vec<(f64, f64)> = (0..10)
                    .map(|nth| {
                        (90.0 + 36.0 * f64::from(nth), if nth % 2 == 0 { 1.5 } else { 0.62 })
                    })
                    .collect();
                self.polygon(&turn(&points), fill);
            }
            Shape::Plus => {
                let arm = r / 3.0;
                let corners = [
                    (-arm, -r),
                    (arm, -r),
                    (arm, -arm),
                    (r, -arm),
                    (r, arm),
                    (arm, arm),
                    (arm, r),
                    (-arm, r),
                    (-arm, arm),
                    (-r, arm),
                    (-r, -arm),
                    (-arm, -arm),
                ];
                self.polygon(&corners.map(|(dx, dy)| (x + dx, y + dy)), fill);
            }
        }
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), style: Style, text: &str) {
        let anchor = match style.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let turned = if style.turned == 0.0 {
            String::new()
        } else {
            format!(" transform=\"rotate({} {x:.2} {y:.2})\"", style.turned)
        };
        self.put(format_args!(
            "<text x=\"{x:.2}\" y=\"{y:.2}\" font-size=\"{}\" text-anchor=\"{anchor}\" fill=\"{}\"{turned}>{}</text>",
            style.size,
            style.colour,
            escaped(text)
        ));
    }

    /// What is drawn until [`Canvas::unclip`] is cut at this rectangle's edges.
    pub(super) fn clip(&mut self, (x, y): (f64, f64), (width, height): (f64, f64)) {
        self.clips += 1;
        let id = self.clips;
        self.put(format_args!(
            "<clipPath id=\"c{id}\"><rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/></clipPath>\
             <g clip-path=\"url(#c{id})\">"
        ));
    }

    pub(super) fn unclip(&mut self) {
        self.put(format_args!("</g>"));
    }

    /// The file; its title is what a screen reader says.
    pub(super) fn finish(self, title: &str) -> String {
        let Self { width, height, body, .. } = self;
        let mm = |points: f64| points / POINTS_PER_MM;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.2}mm\" height=\"{:.2}mm\" viewBox=\"0 0 {width:.2} {height:.2}\" \
             role=\"img\" font-family=\"{FAMILY}\">\n<title>{}</title>\n\
             <rect width=\"{width:.2}\" height=\"{height:.2}\" fill=\"#ffffff\"/>\n{body}</svg>\n",
            mm(width),
            mm(height),
            escaped(title)
        )
    }
}

fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::with_capacity(points.len() * 14);
    for (nth, (x, y)) in points.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(path, "{}{x:.2},{y:.2}", if nth == 0 { 'M' } else { 'L' });
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_wide_as_in_arial() {
        // Arial's advance widths of these letters: 667 + 278 + 556 units of 1000.
        let style = Style::new(10.0, Anchor::Start);
        assert!((text_width("A t", style) - 12.23).abs() < 0.02, "{}", text_width("A t", style));
        let kept = fitted("a long name of a flow", style, 40.0);
        assert!(kept.ends_with('…') && text_width(&kept, style) <= 40.0, "{kept}");
        assert_eq!(fitted("short", style, 40.0), "short");
    }

    #[test]
    fn shortened_names_differ_where_they_differed() {
        let style = Style::new(7.0, Anchor::Start);
        let short = |names: &[&str], width| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let short = told_apart(&names, style, width);
            assert!(short.iter().all(|name| text_width(name, style) <= width), "{short:?}");
            short
        };
        assert_eq!(short(&["reno", "bbr"], 40.0), ["reno", "bbr"]);
        let ends = short(&["a_really_long_name_one", "a_really_long_name_two"], 50.0);
        assert!(ends[0].starts_with("a_re") && ends[0].ends_with("_one") && ends[0] != ends[1]);
        let middles = short(&["a_long_begin_1_a_long_end", "a_long_begin_2_a_long_end"], 30.0);
        assert_eq!(middles, ["…1…", "…2…"]);
        let long = |mid: &str| format!("{}{mid}{}", "x".repeat(40), "y".repeat(40));
        let [one, two] = ["1", "2"].map(long);
        let both = [format!("a{one}c"), format!("b{one}d"), format!("a{two}c")];
        let numbered = short(&both.each_ref().map(String::as_str), 40.0);
        assert!(numbered[2].starts_with("3: "), "{numbered:?}");
        // The same name twice is no reason to number.
        assert_eq!(short(&["reno", "reno"], 40.0), ["reno", "reno"]);
    }

    #[test]
    fn a_sheet_has_its_size_in_millimetres_and_no_foreign_markup() {
        let mut canvas = Canvas::new(85.0 * POINTS_PER_MM, 60.0 * POINTS_PER_MM);
        canvas.text((1.0, 2.0), Style::new(8.0, Anchor::Start), "<&>");
        let svg = canvas.finish("a \"title\"");
        assert!(svg.contains("width=\"85.00mm\" height=\"60.00mm\""), "{svg}");
        assert!(svg.contains("&lt;&amp;&gt;") && svg.contains("a &quot;title&quot;"));
    }
}
