//! A canvas in points (1/72 inch), written as SVG. Text stays text, so that it is searchable and editable. Its width comes from the
//! embedded font, whose metrics equal Arial's.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::LazyLock;

use skrifa::instance::{LocationRef, Size};
use skrifa::{FontRef, MetadataProvider as _};

use crate::svg::escaped;

pub(super) const POINTS_PER_MM: f64 = 72.0 / 25.4;
pub(super) const FONT: &[u8] = include_bytes!("../../assets/fonts/Arimo-Regular.ttf");
/// Fonts with the same metrics as the embedded one.
const FONT_FAMILY: &str = "Arimo, Arial, 'Liberation Sans', Helvetica, sans-serif";

/// The Okabe-Ito palette for colour-blind readers; its yellow is too light for lines on white.
pub(super) const PALETTE: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
/// Dash patterns, which distinguish lines if colours repeat or are printed in grey.
const DASHES: [&str; 4] = ["", "4 1.6", "1.2 1.4", "5 1.4 1.2 1.4"];
/// White outline of markers.
const MARKER_OUTLINE: &str = "stroke=\"#ffffff\" stroke-width=\"0.5\"";
pub(super) const INK: &str = "#222222";
pub(super) const FAINT: &str = "#6b6b6b";
pub(super) const GRID: &str = "#e2e2e2";
pub(super) const BAND: &str = "#f0f2f5";

/// Returns the colour of the nth series.
pub(super) fn colour(nth: usize) -> &'static str {
    PALETTE[nth % PALETTE.len()]
}

/// Returns the dash pattern of the nth series.
pub(super) fn dash(nth: usize) -> &'static str {
    DASHES[(nth / PALETTE.len()) % DASHES.len()]
}

/// Text alignment relative to its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Style of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) size: f64,
    pub(super) anchor: Anchor,
    /// Rotation in degrees, clockwise.
    pub(super) rotation_deg: f64,
    pub(super) colour: &'static str,
}

impl Style {
    /// Returns the style of horizontal text in the default colour.
    pub(super) const fn new(size: f64, anchor: Anchor) -> Self {
        Self { size, anchor, rotation_deg: 0.0, colour: INK }
    }
}

/// Style of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stroke {
    pub(super) colour: &'static str,
    pub(super) width: f64,
    pub(super) dash: &'static str,
    pub(super) opacity: f64,
}

impl Stroke {
    /// Returns the style of a solid line.
    pub(super) const fn new(colour: &'static str, width: f64) -> Self {
        Self { colour, width, dash: "", opacity: 1.0 }
    }
}

/// Marker shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
    Star,
    TriangleDown,
    Plus,
}

/// Returns the marker shape of the nth series; the star is reserved for optima.
pub(super) fn shape(nth: usize) -> Shape {
    const SHAPES: [Shape; 5] =
        [Shape::Circle, Shape::Square, Shape::Triangle, Shape::TriangleDown, Shape::Plus];
    SHAPES[nth % SHAPES.len()]
}

/// Advance widths of the embedded font, in em.
struct FontMetrics {
    font: Option<FontRef<'static>>,
}

impl FontMetrics {
    fn of(&self, text: &str) -> f64 {
        let Some(font) = &self.font else { return 0.55 * text.chars().count() as f64 };
        let metrics = font.glyph_metrics(Size::new(1.0), LocationRef::default());
        let width = |c: char| metrics.advance_width(font.charmap().map(c)?);
        text.chars().map(|c| f64::from(width(c).unwrap_or(0.6))).sum()
    }
}

/// Returns the width of a text in points.
pub(super) fn text_width(text: &str, style: Style) -> f64 {
    static METRICS: LazyLock<FontMetrics> =
        LazyLock::new(|| FontMetrics { font: FontRef::new(FONT).ok() });
    METRICS.of(text) * style.size
}

/// Truncates a text to a width in points; a truncated text ends in `…`.
pub(super) fn truncate_end(text: &str, style: Style, width: f64) -> String {
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

/// Truncates a text to a width in points by removing its middle.
fn truncate_middle(text: &str, style: Style, width: f64) -> String {
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

/// Truncates labels to a width in points so that different labels stay different: by removing the middle, by keeping only the part in which
/// they differ, or by numbering them.
pub(super) fn distinct_labels(names: &[String], style: Style, width: f64) -> Vec<String> {
    let distinct = |texts: &[String]| texts.iter().collect::<BTreeSet<_>>().len();
    let enough = distinct(names);
    let halves = |names: &[String]| -> Vec<String> {
        names.iter().map(|name| truncate_middle(name, style, width)).collect()
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
        format!("{number}{}", truncate_middle(name, style, room))
    });
    numbered.collect()
}

/// The canvas.
#[derive(Debug)]
pub(super) struct Canvas {
    pub(super) width: f64,
    pub(super) height: f64,
    body: String,
    clips: u32,
    has_links: bool,
}

impl Canvas {
    /// Creates a white canvas of this size in points.
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new(), clips: 0, has_links: false }
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

    /// Draws a polygon with the outline of markers.
    fn polygon(&mut self, points: &[(f64, f64)], fill: &str) {
        let path = path(points);
        self.put(format_args!("<path d=\"{path}Z\" fill=\"{fill}\" {MARKER_OUTLINE}/>"));
    }

    pub(super) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        self.put(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"{fill}\"/>"
        ));
    }

    /// Draws a small dot without outline, for scatter plots.
    pub(super) fn dot(&mut self, (x, y): (f64, f64), radius: f64, fill: &str, opacity: f64) {
        self.put(format_args!(
            "<circle cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"{radius}\" fill=\"{fill}\" fill-opacity=\"{opacity}\"/>"
        ));
    }

    /// Draws a marker of about `size` points. Its thin white outline separates overlapping markers.
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
                "<circle cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"{r:.2}\" fill=\"{fill}\" {MARKER_OUTLINE}/>"
            )),
            Shape::Square => {
                self.polygon(&turn(&[45.0, 135.0, 225.0, 315.0].map(|a| (a, 1.25))), fill);
            }
            Shape::Diamond => {
                self.polygon(&turn(&[0.0, 90.0, 180.0, 270.0].map(|a| (a, 1.3))), fill);
            }
            Shape::Triangle => self.polygon(&turn(&[90.0, 210.0, 330.0].map(|a| (a, 1.3))), fill),
            Shape::TriangleDown => self.polygon(&turn(&[270.0, 30.0, 150.0].map(|a| (a, 1.3))), fill),
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
        let rotation = if style.rotation_deg == 0.0 {
            String::new()
        } else {
            format!(" transform=\"rotate({} {x:.2} {y:.2})\"", style.rotation_deg)
        };
        self.put(format_args!(
            "<text x=\"{x:.2}\" y=\"{y:.2}\" font-size=\"{}\" text-anchor=\"{anchor}\" fill=\"{}\"{rotation}>{}</text>",
            style.size,
            style.colour,
            escaped(text)
        ));
    }

    /// Clips everything that is drawn until [`Canvas::unclip`] to a rectangle.
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

    /// Turns everything that is drawn until [`Canvas::unlink`] into a link with this name, for pages with the figure inline.
    pub(super) fn link(&mut self, target: &str, name: &str) {
        self.has_links = true;
        self.put(format_args!("<a href=\"{}\" aria-label=\"{}\">", escaped(target), escaped(name)));
    }

    pub(super) fn unlink(&mut self) {
        self.put(format_args!("</a>"));
    }

    /// Returns the SVG file. Screen readers read its title and its links.
    pub(super) fn finish(self, title: &str) -> String {
        let Self { width, height, body, has_links, .. } = self;
        // Screen readers ignore the content of an image.
        let role = if has_links { "group" } else { "img" };
        let mm = |points: f64| points / POINTS_PER_MM;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.2}mm\" height=\"{:.2}mm\" viewBox=\"0 0 {width:.2} {height:.2}\" \
             role=\"{role}\" font-family=\"{FONT_FAMILY}\">\n<title>{}</title>\n\
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
    fn text_width_matches_arial() {
        // Arial's advance widths of these letters: 667 + 278 + 556 units of 1000.
        let style = Style::new(10.0, Anchor::Start);
        assert!((text_width("A t", style) - 12.23).abs() < 0.02, "{}", text_width("A t", style));
        let kept = truncate_end("a long name of a flow", style, 40.0);
        assert!(kept.ends_with('…') && text_width(&kept, style) <= 40.0, "{kept}");
        assert_eq!(truncate_end("short", style, 40.0), "short");
    }

    #[test]
    fn truncated_labels_stay_distinct() {
        let style = Style::new(7.0, Anchor::Start);
        let short = |names: &[&str], width| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let short = distinct_labels(&names, style, width);
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
        // Equal labels need no numbers.
        assert_eq!(short(&["reno", "reno"], 40.0), ["reno", "reno"]);
    }

    #[test]
    fn svg_has_size_in_mm_and_escapes_text() {
        let mut canvas = Canvas::new(85.0 * POINTS_PER_MM, 60.0 * POINTS_PER_MM);
        canvas.text((1.0, 2.0), Style::new(8.0, Anchor::Start), "<&>");
        let svg = canvas.finish("a \"title\"");
        assert!(svg.contains("width=\"85.00mm\" height=\"60.00mm\""), "{svg}");
        assert!(svg.contains("&lt;&amp;&gt;") && svg.contains("a &quot;title&quot;"));
    }
}
