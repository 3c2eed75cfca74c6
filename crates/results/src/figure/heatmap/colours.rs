//! Colour scales of heatmaps, with their legends.

use crate::figure::axes::SMALL;
use crate::figure::canvas::{Anchor, Canvas, FAINT, INK, Stroke, Style, text_width, truncate_end};

/// The cividis colour map, from low to high. It is perceptually uniform, also for colour-blind readers.
const SCALE: [[f64; 3]; 6] = [
    [0.0, 34.0, 78.0],
    [53.0, 69.0, 108.0],
    [102.0, 105.0, 112.0],
    [148.0, 142.0, 119.0],
    [200.0, 184.0, 102.0],
    [254.0, 232.0, 56.0],
];
/// A scale from orange over white to blue. Equal distances from the middle have equal lightness.
const DIVERGING: [[f64; 3]; 7] = [
    [140.0, 61.0, 0.0],
    [213.0, 120.0, 33.0],
    [246.0, 199.0, 148.0],
    [247.0, 247.0, 247.0],
    [162.0, 205.0, 233.0],
    [58.0, 143.0, 196.0],
    [9.0, 79.0, 135.0],
];
/// Colour of cells without a value.
pub(super) const EMPTY: &str = "#d4d4d4";
/// Stroke of the hatching of failed points.
const HATCH: Stroke = Stroke::new("#8a8a8a", 0.5);

/// What the colours mean.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scale {
    /// From the lowest to the highest value.
    Linear { low: f64, high: f64 },
    /// Shares of two sides, with their names: white is an equal share.
    Shares { first: String, second: String },
}

impl Scale {
    /// Returns the position of a value from 0 to 1. `equal` is the share if all flows got the same.
    pub(super) fn position(&self, value: f64, equal: Option<f64>) -> f64 {
        match (self, equal) {
            (Self::Linear { low, high }, _) if high > low => (value - low) / (high - low),
            (Self::Linear { .. }, _) => 0.5,
            (Self::Shares { .. }, Some(equal)) if value < equal => value / equal / 2.0,
            (Self::Shares { .. }, Some(equal)) if equal < 1.0 => {
                0.5 + (value - equal) / (1.0 - equal) / 2.0
            }
            (Self::Shares { .. }, _) => 0.5,
        }
    }

    pub(super) fn colour(&self, position: f64) -> String {
        match self {
            Self::Linear { .. } => shade(&SCALE, position),
            Self::Shares { .. } => shade(&DIVERGING, position),
        }
    }

    /// Returns the colour of text in a cell.
    pub(super) const fn ink(&self, position: f64) -> &'static str {
        let is_dark = match self {
            Self::Linear { .. } => position < 0.55,
            Self::Shares { .. } => position < 0.16 || position > 0.8,
        };
        if is_dark { "#ffffff" } else { INK }
    }

    /// Draws the legend: a bar at `left` and `top`, `width` wide.
    pub(super) fn legend(&self, canvas: &mut Canvas, (left, top): (f64, f64), width: f64) {
        const STEPS: usize = 60;
        let style = Style::new(SMALL, Anchor::Start);
        let (names, ticks) = match self {
            Self::Linear { low, high } => {
                let middle = f64::midpoint(*low, *high);
                let ticks = [*low, middle, *high].map(|value| format_value(value, *high));
                ([String::new(), String::new()], ticks)
            }
            Self::Shares { first, second } => (
                [format!("all to {second}"), format!("all to {first}")],
                ["0 %".to_owned(), "equal share".to_owned(), "100 %".to_owned()],
            ),
        };
        let bar = (width * 0.34).clamp(60.0, 150.0);
        let room = (width - bar) / 2.0 - 4.0;
        let names = names.map(|name| truncate_end(&name, style, room));
        // The embedded font may be replaced by a wider one.
        let from = left + text_width(&names[0], style) * 1.1 + 5.0;
        let wide = bar / STEPS as f64;
        for step in 0..STEPS {
            let colour = self.colour(step as f64 / (STEPS - 1) as f64);
            canvas.rect((from + wide * step as f64, top), (wide + 0.2, BAR), &colour);
        }
        let before = Style { anchor: Anchor::End, ..style };
        canvas.text((from - 5.0, top + BAR - 1.2), before, &names[0]);
        canvas.text((from + bar + 5.0, top + BAR - 1.2), style, &names[1]);
        let small = Style { colour: FAINT, ..Style::new(SMALL - 0.5, Anchor::Middle) };
        for (nth, text) in ticks.iter().enumerate() {
            let x = from + bar * nth as f64 / 2.0;
            canvas.line((x, top + BAR), (x, top + BAR + 2.0), Stroke::new(FAINT, 0.5));
            canvas.text((x, top + BAR + 2.5 + SMALL), small, text);
        }
    }
}

/// Height of a legend's bar.
const BAR: f64 = 7.0;
/// Height of a legend.
pub(super) const LEGEND: f64 = BAR + SMALL + 7.0;

/// Hatches the cell of a point whose trials all failed.
pub(super) fn hatch(canvas: &mut Canvas, (x, y): (f64, f64), (wide, tall): (f64, f64)) {
    const STEP: f64 = 2.6;
    canvas.rect((x, y), (wide, tall), "#f4f4f4");
    // Lines x + y = c within the cell.
    let mut at = STEP / 2.0;
    while at < wide + tall {
        let from = (x + at.min(wide), y + (at - wide).max(0.0));
        let to = (x + (at - tall).max(0.0), y + at.min(tall));
        canvas.line(from, to, HATCH);
        at += STEP;
    }
}

/// Formats a number with a precision suitable for values of the magnitude of `like`.
pub(super) fn format_value(value: f64, like: f64) -> String {
    let digits = match like.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// Returns the colour of a fraction from 0 to 1.
fn shade(scale: &[[f64; 3]], share: f64) -> String {
    let at = share.clamp(0.0, 1.0) * (scale.len() - 1) as f64;
    let below = (at.floor() as usize).min(scale.len() - 2);
    let part = at - below as f64;
    let [r, g, b] = [0, 1, 2].map(|c| {
        let (from, to) = (scale[below][c], scale[below + 1][c]);
        (from + (to - from) * part).round() as u8
    });
    format!("#{r:02x}{g:02x}{b:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lightness(colour: &str) -> f64 {
        let part = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap());
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    #[test]
    fn linear_scale_increases_in_lightness() {
        let scale = Scale::Linear { low: 1.0, high: 3.0 };
        let all: Vec<f64> =
            (0..=20).map(|n| lightness(&scale.colour(f64::from(n) / 20.0))).collect();
        assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
        assert_eq!(
            (scale.colour(-1.0), scale.colour(2.0)),
            ("#00224e".to_owned(), "#fee838".to_owned())
        );
        assert_eq!(scale.position(2.0, None), 0.5);
        assert_eq!(Scale::Linear { low: 1.0, high: 1.0 }.position(1.0, None), 0.5);
    }

    #[test]
    fn shares_are_white_where_equal_and_dark_at_the_ends() {
        let scale = Scale::Shares { first: "a".to_owned(), second: "b".to_owned() };
        assert_eq!(scale.colour(0.5), "#f7f7f7");
        let light = |position: f64| lightness(&scale.colour(position));
        assert!((light(0.0) - light(1.0)).abs() < 12.0, "{} {}", light(0.0), light(1.0));
        assert!(light(0.0) < light(0.2) && light(0.2) < light(0.5) && light(0.5) > light(0.8));
        // One flow competes with four, so a fifth is the equal share.
        assert_eq!(scale.position(0.2, Some(0.2)), 0.5);
        assert_eq!((scale.position(0.0, Some(0.2)), scale.position(1.0, Some(0.2))), (0.0, 1.0));
        assert!((scale.position(0.6, Some(0.2)) - 0.75).abs() < 1e-9);
    }
}
