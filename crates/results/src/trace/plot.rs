//! Plots a trace as an SVG that is readable on light and dark backgrounds.

use std::fmt::Write as _;

use ccbench_proto::trace::{Step, Trace};
use ccbench_proto::units::Rate;

use crate::svg::{decimal, escaped, round_step, short};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 48.0;
/// Maximum number of points that fit the width.
const MAX_POINTS: usize = 6_000;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#333}.title{font-weight:600}.grid{stroke:#8884;stroke-width:1}\
.axis{stroke:#888;stroke-width:1}.rate{fill:none;stroke:#1667b7;stroke-width:1.5}.area{fill:#1667b7;fill-opacity:.14}\
.mean{stroke:#b5541a;stroke-width:1.2;stroke-dasharray:6 4}.ground{fill:#fff}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.rate{stroke:#6cb2f5}.area{fill:#6cb2f5}.mean{stroke:#f0a36b}.ground{fill:#16181c}}";

/// Formats a rate in bit/s with a suitable unit.
pub fn rate_text(bps: f64) -> String {
    with_unit(bps, unit_of(bps))
}

fn with_unit(value: f64, (scale, unit): (f64, &str)) -> String {
    let value = value / scale;
    let digits = match value {
        0.0 => 0,
        large if large >= 100.0 => 0,
        small if small < 0.1 => (1.0 - small.log10().floor()) as usize,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

fn unit_of(bps: f64) -> (f64, &'static str) {
    match bps {
        giga if giga >= 1e9 => (1e9, "Gbit/s"),
        mega if mega >= 1e6 => (1e6, "Mbit/s"),
        kilo if kilo >= 1e3 => (1e3, "kbit/s"),
        _ => (1.0, "bit/s"),
    }
}

/// A value, if the row has one, and its duration in seconds.
type Row = (Option<f64>, f64);
/// A function that returns the scale and name of the unit in which to show a value in base units.
type UnitOf = fn(f64) -> (f64, &'static str);

/// Returns the plotted rows: rates, or delays or losses if the trace has no rates.
fn plotted_rows(trace: &Trace) -> (Vec<Row>, UnitOf) {
    let of = |value: fn(&Step) -> Option<f64>| -> Vec<Row> {
        let Trace::Steps(steps) = trace else { return vec![] };
        steps.spans().map(|(step, ns)| (value(step), ns as f64 / 1e9)).collect()
    };
    let figures = trace.summary();
    if figures.max_rate.is_none() && figures.delay.is_some() {
        return (of(|step| Some(step.delay_ns? as f64)), |_| (1e6, "ms of delay"));
    }
    if figures.max_rate.is_none() && figures.loss.is_some() {
        return (of(|step| Some(f64::from(step.loss?.get()))), |_| (1e4, "% of loss"));
    }
    let bps = |rate: Rate| rate.bits_per_sec() as f64;
    (trace.rates().iter().map(|(rate, ns)| (rate.map(bps), *ns as f64 / 1e9)).collect(), unit_of)
}

/// Returns the time-weighted mean; `None` if a row has no value.
fn mean(rows: &[Row]) -> Option<f64> {
    let sum = rows.iter().try_fold(0.0, |sum, (value, seconds)| Some(sum + (*value)? * seconds))?;
    Some(sum / rows.iter().map(|row| row.1).sum::<f64>().max(1e-9))
}

/// Returns values and durations. If there are too many, merges neighbours by their time-weighted mean.
fn points(rows: &[Row]) -> Vec<(f64, f64)> {
    let group = rows.len().div_ceil(MAX_POINTS).max(1);
    rows.chunks(group)
        .map(|rows| {
            let seconds: f64 = rows.iter().map(|row| row.1).sum();
            let sum: f64 = rows.iter().map(|row| row.0.unwrap_or(0.0) * row.1).sum();
            (sum / seconds.max(1e-9), seconds)
        })
        .collect()
}

/// Returns the SVG path data of a step line.
fn step_path(points: &[(f64, f64)], x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    let mut at_s = 0.0;
    for (value, seconds) in points {
        let (from, to, height) = (x(at_s), x(at_s + seconds), y(*value));
        let command = if path.is_empty() { 'M' } else { 'L' };
        // Writing to a String cannot fail.
        let _ = write!(path, "{command}{from:.1},{height:.1}H{to:.1}");
        at_s += seconds;
    }
    path
}

/// Renders the rate (or delay or loss) over time, with its mean.
pub fn svg(name: &str, trace: &Trace) -> String {
    let (rows, unit_of) = plotted_rows(trace);
    let (points, mean) = (points(&rows), mean(&rows));
    let length_s: f64 = points.iter().map(|point| point.1).sum();
    let top = points.iter().map(|point| point.0).fold(0.0, f64::max);
    let top = if top > 0.0 { top } else { unit_of(0.0).0 };
    let (scale, unit) = unit_of(top);
    let value_step = round_step(top / scale, 5.0);
    let most = (top / scale / value_step).ceil() * value_step;
    // A round step has at most two significant digits.
    let digits = (1.0 - value_step.log10().floor()).max(3.0) as usize;
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let x = |seconds: f64| LEFT + (right - LEFT) * seconds / length_s;
    let y = |value: f64| bottom - (bottom - TOP) * value / scale / most;

    let mut all = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n"
    );
    // Writing to a String cannot fail.
    let mut put = |line: String| _ = writeln!(all, "{line}");
    let figures =
        mean.map_or(String::new(), |mean| format!(", mean {}", with_unit(mean, unit_of(mean))));
    put(format!(
        "<text class=\"title\" x=\"{LEFT}\" y=\"20\">{}: {} s{figures}</text>",
        escaped(name),
        short(length_s)
    ));
    put(format!("<text x=\"{LEFT}\" y=\"38\">{unit}</text>"));
    for nth in 0..=(most / value_step).round() as u32 {
        let value = f64::from(nth) * value_step;
        let at = y(value * scale);
        put(format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
        ));
        put(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            decimal(value, digits)
        ));
    }
    let time_step = round_step(length_s, 8.0);
    for nth in 0..=(length_s / time_step + 1e-9) as u32 {
        let (seconds, below) = (f64::from(nth) * time_step, bottom + 20.0);
        put(format!(
            "<text x=\"{:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>",
            x(seconds),
            short(seconds)
        ));
    }
    put(format!(
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">time in s</text>",
        f64::midpoint(LEFT, right),
        HEIGHT - 8.0
    ));
    let path = step_path(&points, x, y);
    put(format!("<path class=\"area\" d=\"{path}V{bottom}H{LEFT}Z\"/>"));
    put(format!("<path class=\"rate\" d=\"{path}\"/>"));
    if let Some(mean) = mean {
        let at = y(mean);
        put(format!(
            "<line class=\"mean\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
        ));
    }
    put(format!("<path class=\"axis\" fill=\"none\" d=\"M{LEFT},{TOP}V{bottom}H{right}\"/>"));
    put("</svg>".to_owned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_rates() {
        assert_eq!(rate_text(2_310e6), "2.31 Gbit/s");
        assert_eq!(rate_text(0.0), "0 bit/s");
        assert_eq!(with_unit(40.0, (1e4, "% of loss")), "0.0040 % of loss");
    }

    #[test]
    fn svg_has_axis_units_and_escapes_text() {
        let trace = ccbench_proto::trace::parse("t", b"10,1\n0,1\n40,2\n").unwrap();
        let svg = svg("<a&b>", &trace);
        for wanted in [
            "&lt;a&amp;b&gt;: 4 s, mean 22.50 Mbit/s",
            ">Mbit/s<",
            "time in s",
            ">40<",
            "prefers-color-scheme",
        ] {
            assert!(svg.contains(wanted), "{wanted} in {svg}");
        }
        assert!(svg.contains("M70.0,") && !svg.contains("NaN"));
    }

    #[test]
    fn axis_fits_small_and_zero_values() {
        let of = |rows: &str| {
            let text = format!("t_us,{rows}");
            svg("t", &ccbench_proto::trace::parse("t.csv", text.as_bytes()).unwrap())
        };
        let loss = of("loss_ppm\n0,5\n1000000,10\n2000000,10\n");
        assert!(loss.contains(">0.0002<") && loss.contains(">0.001<"), "{loss}");
        let delay = of("delay_us\n0,0\n1000000,0\n");
        assert!(delay.contains(">0.2<") && delay.contains(">1<"), "{delay}");
    }
}
