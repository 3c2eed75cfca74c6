//! A metric over two factors of the matrix: one coloured, labelled cell per point.

use std::collections::BTreeSet;

use ccbench_proto::metric::WHOLE_TRIAL;

use super::axes::{Axis, Frame, SMALL, TITLE, left_margin};
use super::canvas::{Anchor, Canvas, FAINT, INK, Stroke, Style, truncate_end};
use super::data::{Selection, comma_separated, group_of};
use super::error::{FigureError, Result};
use super::phases::titled;
use super::png::points;
use super::request::{COLUMN_MM, Figure, TWO_COLUMNS_MM};
use crate::csv::Table;
use crate::display::readable;
use crate::model::name_and_stat;
use crate::summary::{PointRow, Summary};
use ccbench_proto::metric::Scope;

/// The cividis colour map, from low to high: perceptually uniform, also for colour-blind readers.
const SCALE: [[f64; 3]; 6] = [
    [0.0, 34.0, 78.0],
    [53.0, 69.0, 108.0],
    [102.0, 105.0, 112.0],
    [148.0, 142.0, 119.0],
    [200.0, 184.0, 102.0],
    [254.0, 232.0, 56.0],
];
/// Maximum number of levels in a single-column figure.
const MAX_PER_COLUMN: usize = 5;

/// Draws the figure.
pub(super) fn draw(data: &Selection) -> Result<Vec<Figure>> {
    let varied: Vec<String> = data.varying_factors().into_iter().map(str::to_owned).collect();
    let (x, y) = match varied.as_slice() {
        [] => {
            return Err(
                data.no_data("it has one point, and a heatmap is over the factors of a matrix")
            );
        }
        [x] => (x.clone(), None),
        [y, x] => (x.clone(), Some(y.clone())),
        more => {
            let level = levels(data, &more[0]).into_iter().next().unwrap_or_default();
            let why = format!(
                "{} factors vary ({}); leave two, as in --where {}={level}",
                more.len(),
                more.join(", "),
                more[0]
            );
            return Err(data.no_data(&why));
        }
    };
    let summary = data.summary()?;
    let rows = rows(data, &summary)?;
    let Some(first) = rows.first() else { return Ok(vec![]) };
    let (scale, unit) = readable(first.unit);
    let map = Map {
        xs: levels(data, &x),
        ys: y.as_ref().map_or(vec![String::new()], |y| levels(data, y)),
        x,
        y: y.unwrap_or_default(),
        title: format!(
            "{} of {}, {}{}",
            titled(first.metric, first.stat),
            if first.scope == Scope::Net { "all flows" } else { &first.subject },
            if first.phase == WHOLE_TRIAL {
                "whole trials".to_owned()
            } else {
                format!("phase {}", first.phase)
            },
            if unit == "1" { String::new() } else { format!(" ({unit})") }
        ),
        scale,
        rows,
    };
    let (svg, width_points) = map.sheet(data);
    Ok(vec![Figure { stem: data.stem(None), svg, width_points, csv: map.table(data) }])
}

/// Levels of a factor in the order of points.
fn levels(data: &Selection, factor: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for level in data.points().into_iter().filter_map(|id| data.level(id, factor)) {
        if !found.iter().any(|known| known == level) {
            found.push(level.to_owned());
        }
    }
    // Numeric levels are sorted.
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
    let rate = || level.parse::<Rate>().ok().map(|rate| rate.bits_per_sec() as f64);
    let time = || level.parse::<Micros>().ok().map(Micros::as_secs_f64);
    let size = || level.parse::<Bytes>().ok().map(|size| size.get() as f64);
    number.or_else(rate).or_else(time).or_else(size)
}

/// The rows of the requested metric, one per point: in the selected phase or the one with most flows; of the selected
/// group, or of all flows together if there is such a row.
fn rows(data: &Selection, summary: &Summary) -> Result<Vec<PointRow>> {
    let requested = data.request.metrics.first().map_or("throughput_sum", String::as_str);
    let (name, stat) = name_and_stat(requested);
    let phase = data.points().first().and_then(|id| data.busiest_phase(*id));
    let phase = phase.map_or(String::new(), |phase| phase.name);
    let fits = |row: &&PointRow| row.metric == name && stat.is_none_or(|stat| row.stat == stat);
    let anywhere: Vec<&PointRow> = summary.point_rows.iter().filter(fits).collect();
    // Some metrics cover whole trials; settling times exist only in the phase in which a flow starts or stops.
    let phases: BTreeSet<&str> = anywhere.iter().map(|row| row.phase.as_str()).collect();
    let only = phases.first().filter(|_| phases.len() == 1);
    let only = only.filter(|only| **only == WHOLE_TRIAL || data.wanted("phase").is_none());
    let phase = only.map_or(phase, |only| (*only).to_owned());
    let of_metric: Vec<&PointRow> =
        anywhere.iter().copied().filter(|row| row.phase == phase).collect();
    if of_metric.is_empty() && !anywhere.is_empty() {
        let phases: Vec<&str> = phases.into_iter().collect();
        let why = format!(
            "`{requested}` has no value in this phase; it has values in {}",
            phases.join(", ")
        );
        return Err(FigureError::Where { column: "phase".to_owned(), value: phase, why });
    }
    if of_metric.is_empty() {
        let mut known: Vec<String> =
            summary.point_rows.iter().map(|row| format!("{}:{}", row.metric, row.stat)).collect();
        known.sort();
        known.dedup();
        return Err(FigureError::UnknownMetric {
            metric: requested.to_owned(),
            known: known.join(", "),
        });
    }
    let subject = |row: &PointRow| (row.scope, row.subject.clone());
    let wanted = ["flow_id", "link", "group"].into_iter().find_map(|c| Some((c, data.wanted(c)?)));
    let chosen = match wanted {
        Some((column, value)) => {
            let found = of_metric.iter().find(|row| of_wanted(data, row));
            Some(found.ok_or_else(|| {
                let subjects: BTreeSet<&String> =
                    of_metric.iter().map(|row| &row.subject).collect();
                let why = format!(
                    "`{requested}` has no value for it; it has values for {}",
                    comma_separated(subjects)
                );
                FigureError::Where { column: column.to_owned(), value: value.to_owned(), why }
            })?)
        }
        None => {
            let group = data.group_under_test(&summary.groups());
            let of_group = |row: &&&PointRow| {
                row.scope == Scope::Group && Some(&row.subject) == group.as_ref()
            };
            let of_group = of_metric.iter().find(of_group);
            of_group.or_else(|| of_metric.iter().min_by_key(|row| subject(row)))
        }
    };
    let Some(chosen) = chosen else { return Ok(vec![]) };
    let (of, stat) = (subject(chosen), chosen.stat);
    Ok(of_metric
        .into_iter()
        .filter(|row| subject(row) == of && row.stat == stat)
        .cloned()
        .collect())
}

/// Whether all filters accept a row's group, flow or link.
fn of_wanted(data: &Selection, row: &PointRow) -> bool {
    let is = |column: &str, scope: Scope| {
        data.wanted(column).is_none_or(|name| row.scope == scope && row.subject == name)
    };
    let of_group = data.wanted("group").is_none_or(|group| match row.scope {
        Scope::Group => row.subject == group,
        Scope::Flow => data.wanted("flow_id").is_some() && group_of(&row.subject) == group,
        _ => false,
    });
    is("flow_id", Scope::Flow) && is("link", Scope::Link) && of_group
}

/// The content of the heatmap.
struct Map {
    x: String,
    y: String,
    xs: Vec<String>,
    ys: Vec<String>,
    title: String,
    scale: f64,
    rows: Vec<PointRow>,
}

impl Map {
    fn cell(&self, data: &Selection, row: &PointRow) -> Option<(usize, usize)> {
        let at = |factor: &str, levels: &[String]| {
            if factor.is_empty() {
                return Some(0);
            }
            let level = data.level(row.point_id, factor)?;
            levels.iter().position(|known| known == level)
        };
        Some((at(&self.x, &self.xs)?, at(&self.y, &self.ys)?))
    }

    fn table(&self, data: &Selection) -> String {
        let y = if self.y.is_empty() { "-" } else { &self.y };
        let columns = [
            "point_id",
            &self.x,
            y,
            "phase",
            "subject",
            "metric",
            "stat",
            "unit",
            "mean",
            "ci95_low",
            "ci95_high",
            "trials",
        ];
        let columns = columns.map(crate::csv::quoted);
        let mut csv = Table::new(&columns.each_ref().map(String::as_str));
        for row in &self.rows {
            csv.row(&[
                f64::from(row.point_id).into(),
                data.level(row.point_id, &self.x).unwrap_or_default().into(),
                data.level(row.point_id, &self.y).unwrap_or_default().into(),
                row.phase.as_str().into(),
                row.subject.as_str().into(),
                row.metric.into(),
                row.stat.into(),
                row.unit.into(),
                row.value.into(),
                row.interval.map(|i| i.0).into(),
                row.interval.map(|i| i.1).into(),
                f64::from(row.n_trials).into(),
            ]);
        }
        csv.finish()
    }

    fn sheet(&self, data: &Selection) -> (String, f64) {
        let usual = if self.xs.len() > MAX_PER_COLUMN { TWO_COLUMNS_MM } else { COLUMN_MM };
        let width = points(data.request.width_mm.unwrap_or(usual));
        let usual = 11.0 * self.ys.len() as f64 + 34.0;
        let height = points(data.request.height_mm.unwrap_or(usual));
        let up: Vec<String> = self.ys.iter().rev().cloned().collect();
        let (x, y) = (Axis::names(&self.x, &self.xs), Axis::names(&self.y, &up));
        let values: Vec<f64> = self.rows.iter().map(|row| row.value / self.scale).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let left = left_margin(&[&y], false);
        let bar = 34.0;
        let mut canvas = Canvas::new(width, height);
        let mut frame =
            Frame { left, top: 15.0, width: width - left - bar - 6.0, height: 1.0, x, y };
        frame.height = height - frame.top - frame.x_axis_height() - 2.0;
        let style = Style::new(TITLE, Anchor::Start);
        canvas.text((left, 9.0), style, &truncate_end(&self.title, style, width - left - 4.0));
        canvas.rect((frame.left, frame.top), (frame.width, frame.height), "#ededed");
        let share = |value: f64| if high > low { (value - low) / (high - low) } else { 0.5 };
        for (row, value) in self.rows.iter().zip(&values) {
            let Some((across, down)) = self.cell(data, row) else { continue };
            let up = self.ys.len() - 1 - down;
            let (from, to) = (
                frame.at(across as f64, up as f64 + 1.0),
                frame.at(across as f64 + 1.0, up as f64),
            );
            let size = (to.0 - from.0, to.1 - from.1);
            canvas.rect(
                (from.0 + 0.4, from.1 + 0.4),
                (size.0 - 0.8, size.1 - 0.8),
                &shade(share(*value)),
            );
            self.write(&mut canvas, row, (from, size), share(*value));
        }
        frame.edges(&mut canvas, true, true);
        colour_bar(
            &mut canvas,
            (frame.left + frame.width + 6.0, frame.top, frame.height),
            (low, high),
        );
        (canvas.finish(&self.title), width)
    }

    /// Writes the cell's mean, and half the width of its interval if there is room.
    fn write(
        &self,
        canvas: &mut Canvas,
        row: &PointRow,
        ((x, y), (wide, tall)): ((f64, f64), (f64, f64)),
        share: f64,
    ) {
        let ink = if share < 0.55 { "#ffffff" } else { INK };
        let style = Style { colour: ink, ..Style::new(SMALL, Anchor::Middle) };
        let half = row.interval.map(|(low, high)| {
            format!("±{}", figures((high - low) / 2.0 / self.scale, row.value / self.scale))
        });
        let two = half.is_some() && tall > 20.0;
        let middle = (x + wide / 2.0, y + tall / 2.0 + SMALL * 0.36 - if two { 4.0 } else { 0.0 });
        canvas.text(
            middle,
            style,
            &truncate_end(&figures(row.value / self.scale, row.value / self.scale), style, wide),
        );
        if let (true, Some(half)) = (two, half) {
            let small = Style { size: SMALL - 1.0, ..style };
            canvas.text((middle.0, middle.1 + 8.0), small, &truncate_end(&half, small, wide));
        }
    }
}

/// Formats a number with a precision suitable for values of the magnitude of `like`.
fn figures(value: f64, like: f64) -> String {
    let digits = match like.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// The colour of a fraction from 0 to 1.
fn shade(share: f64) -> String {
    let at = share.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let below = (at.floor() as usize).min(SCALE.len() - 2);
    let part = at - below as f64;
    let [r, g, b] = [0, 1, 2].map(|c| {
        let (from, to) = (SCALE[below][c], SCALE[below + 1][c]);
        (from + (to - from) * part).round() as u8
    });
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn colour_bar(canvas: &mut Canvas, (x, top, height): (f64, f64, f64), (low, high): (f64, f64)) {
    const STEPS: usize = 40;
    const WIDE: f64 = 7.0;
    for step in 0..STEPS {
        let share = step as f64 / (STEPS - 1) as f64;
        let tall = height / STEPS as f64;
        canvas.rect(
            (x, top + height - tall * (step as f64 + 1.0)),
            (WIDE, tall + 0.2),
            &shade(share),
        );
    }
    let style = Style { colour: FAINT, ..Style::new(SMALL - 0.5, Anchor::Start) };
    for (value, share) in [(high, 1.0), (f64::midpoint(low, high), 0.5), (low, 0.0)] {
        let y = top + height * (1.0 - share);
        canvas.line((x + WIDE, y), (x + WIDE + 2.0, y), Stroke::new(FAINT, 0.5));
        canvas.text((x + WIDE + 3.5, y + SMALL * 0.33), style, &figures(value, high));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_map_increases_in_lightness() {
        let light = |share| {
            let text = shade(share);
            let part = |at: usize| f64::from(u8::from_str_radix(&text[at..at + 2], 16).unwrap());
            0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
        };
        let all: Vec<f64> = (0..=20).map(|n| light(f64::from(n) / 20.0)).collect();
        assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
        assert_eq!((shade(-1.0), shade(2.0)), ("#00224e".to_owned(), "#fee838".to_owned()));
    }

    #[test]
    fn parses_levels_with_units() {
        assert!(quantity("100mbit") > quantity("25mbit") && quantity("1s") > quantity("15ms"));
        assert_eq!((quantity("0.5"), quantity("cubic")), (Some(0.5), None));
    }
}
