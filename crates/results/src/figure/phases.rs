//! Bar charts of one flow group in each phase beside the ideal: a group of bars per point, or per flow group if there
//! is only one point.

use super::axes::{Axis, Direction, Frame, Key, left_margin, legend};
use super::canvas::{Canvas, INK, Stroke, colour};
use super::data::Selection;
use super::error::{FigureError, Result};
use super::png::points;
use super::request::{COLUMN_MM, Figure, TWO_COLUMNS_MM};
use crate::csv::{Cell, Table};
use crate::display::readable;
use crate::journal::PhaseRecord;
use crate::model::name_and_stat;
use crate::summary::Summary;
use ccbench_proto::metric::Scope;

/// Maximum number of bars in a single-column figure.
const MAX_PER_COLUMN: usize = 12;

/// A metric of flow groups.
struct Metric {
    name: String,
    stat: String,
    title: String,
    /// Unit on the axis; empty for dimensionless metrics.
    unit: String,
    /// The axis unit in units of the summary.
    scale: f64,
}

impl Metric {
    /// Axis label with the unit; `whose` names the group.
    fn label(&self, whose: &str) -> String {
        let Self { title, unit, .. } = self;
        if unit.is_empty() { format!("{title}{whose}") } else { format!("{title}{whose} ({unit})") }
    }
}

struct Bar {
    value: f64,
    interval: Option<(f64, f64)>,
    trials: u32,
    ideal: Option<f64>,
}

/// A category of the x axis: its label, and the point and group of its bars.
struct Place {
    name: String,
    point_id: u32,
    group: String,
}

/// Draws the figure.
pub(super) fn draw(data: &Selection) -> Result<Vec<Figure>> {
    let summary = data.summary()?;
    let metrics = metrics(data, &summary)?;
    let phases = data.phases();
    let (places, group) = places(data, &summary);
    let bars = |metric: &Metric| -> Vec<Vec<Option<Bar>>> {
        let of =
            |place: &Place| phases.iter().map(|p| bar(data, &summary, metric, place, p)).collect();
        places.iter().map(of).collect()
    };
    let all: Vec<(&Metric, Vec<Vec<Option<Bar>>>)> =
        metrics.iter().map(|metric| (metric, bars(metric))).collect();
    if !all.iter().flat_map(|(_, bars)| bars).flatten().any(Option::is_some) {
        return Ok(vec![]);
    }
    let csv = table(&all, &places, &phases);
    let (svg, width_points) = sheet(data, &all, &places, &phases, group.as_deref());
    Ok(vec![Figure { stem: data.stem(None), svg, width_points, csv }])
}

/// The requested metrics of groups (`name` or `name:stat`).
fn metrics(data: &Selection, summary: &Summary) -> Result<Vec<Metric>> {
    let usual = || vec!["throughput_sum".to_owned(), "srtt".to_owned()];
    let requested =
        if data.request.metrics.is_empty() { usual() } else { data.request.metrics.clone() };
    let of_groups = || summary.point_rows.iter().filter(|row| row.scope == Scope::Group);
    let metric = |requested: &String| {
        let (name, stat) = name_and_stat(requested);
        let of_name = || of_groups().filter(|row| row.metric == name);
        let found = of_name().find(|row| row.stat == stat.unwrap_or("mean"));
        let found = found.or_else(|| of_name().find(|_| stat.is_none()));
        let Some(row) = found else {
            let mut known: Vec<String> =
                of_groups().map(|row| format!("{}:{}", row.metric, row.stat)).collect();
            known.sort();
            known.dedup();
            return Err(FigureError::UnknownMetric {
                metric: requested.clone(),
                known: known.join(", "),
            });
        };
        let (scale, unit) = readable(row.unit);
        Ok(Metric {
            name: name.to_owned(),
            stat: row.stat.to_owned(),
            title: titled(name, row.stat),
            unit: if unit == "1" { String::new() } else { unit.to_owned() },
            scale,
        })
    };
    requested.iter().map(metric).collect()
}

/// Axis title of a statistic.
pub(super) fn titled(metric: &str, stat: &str) -> String {
    match (metric, stat) {
        ("srtt", "mean") => "Mean sRTT".to_owned(),
        (_, "mean" | "sum") => spoken(metric),
        _ => format!("{} {stat}", spoken(metric)),
    }
}

fn spoken(metric: &str) -> String {
    match metric {
        "throughput_sum" => "Throughput".to_owned(),
        "throughput_per_flow_mean" => "Throughput per flow".to_owned(),
        "srtt" => "sRTT".to_owned(),
        "jain_fairness_of_mean" | "jain_fairness" => "Jain's index".to_owned(),
        other => {
            let text = other.replace('_', " ");
            let mut letters = text.chars();
            letters
                .next()
                .map_or(String::new(), |first| first.to_uppercase().to_string() + letters.as_str())
        }
    }
}

/// Categories of the x axis, and the group if they all share one.
fn places(data: &Selection, summary: &Summary) -> (Vec<Place>, Option<String>) {
    let points = data.points();
    let groups: Vec<String> =
        summary.groups().into_iter().filter(|group| data.accepts("group", group)).collect();
    if points.len() == 1 {
        let place = |group: String| Place { name: group.clone(), point_id: points[0], group };
        let one = if groups.len() == 1 { groups.first().cloned() } else { None };
        return (groups.into_iter().map(place).collect(), one);
    }
    let group = data.group_under_test(&groups).unwrap_or_default();
    let place = |id: u32| Place { name: data.point_name(id), point_id: id, group: group.clone() };
    (points.into_iter().map(place).collect(), Some(group))
}

fn bar(
    data: &Selection,
    summary: &Summary,
    metric: &Metric,
    place: &Place,
    phase: &PhaseRecord,
) -> Option<Bar> {
    let row = summary.find(
        place.point_id,
        &phase.name,
        Scope::Group,
        &place.group,
        &metric.name,
        &metric.stat,
    )?;
    let scaled = |value: f64| value / metric.scale;
    Some(Bar {
        value: scaled(row.value),
        interval: row.interval.map(|(low, high)| (scaled(low), scaled(high))),
        trials: row.n_trials,
        ideal: ideal(data, metric, place, phase),
    })
}

/// The ideal of a low-delay congestion control: its fair share of the link, at the base RTT when alone and with a
/// full queue when competing.
fn ideal(data: &Selection, metric: &Metric, place: &Place, phase: &PhaseRecord) -> Option<f64> {
    let path = data.path(place.point_id, &place.group, &phase.name)?;
    let sharing = data.groups_sharing_bottleneck(place.point_id, &place.group, &phase.name);
    let mine = f64::from(*sharing.get(place.group.as_str())?);
    let all = f64::from(sharing.values().sum::<u32>());
    match (metric.name.as_str(), metric.stat.as_str()) {
        ("throughput_sum", "mean") => Some(path.rate_bps * mine / all / metric.scale),
        ("throughput_per_flow_mean", "mean") => Some(path.rate_bps / all / metric.scale),
        ("srtt", "mean") if sharing.len() == 1 => Some(path.base_rtt_ms),
        ("srtt", "mean") => Some(path.base_rtt_ms + path.full_queue_ms?),
        _ => None,
    }
}

fn table(
    all: &[(&Metric, Vec<Vec<Option<Bar>>>)],
    places: &[Place],
    phases: &[PhaseRecord],
) -> String {
    let mut csv = Table::new(&[
        "metric",
        "point_id",
        "point",
        "group",
        "phase",
        "mean",
        "ci95_low",
        "ci95_high",
        "trials",
        "ideal",
    ]);
    for (metric, bars) in all {
        for (place, bars) in places.iter().zip(bars) {
            for (phase, bar) in phases.iter().zip(bars) {
                let Some(bar) = bar else { continue };
                csv.row(&[
                    metric.label("").as_str().into(),
                    f64::from(place.point_id).into(),
                    place.name.as_str().into(),
                    place.group.as_str().into(),
                    phase.name.as_str().into(),
                    bar.value.into(),
                    bar.interval.map(|i| i.0).into(),
                    bar.interval.map(|i| i.1).into(),
                    f64::from(bar.trials).into(),
                    Cell::from(bar.ideal),
                ]);
            }
        }
    }
    csv.finish()
}

fn sheet(
    data: &Selection,
    all: &[(&Metric, Vec<Vec<Option<Bar>>>)],
    places: &[Place],
    phases: &[PhaseRecord],
    group: Option<&str>,
) -> (String, f64) {
    let many = places.len() * phases.len() > MAX_PER_COLUMN;
    let usual = if many { TWO_COLUMNS_MM } else { COLUMN_MM };
    let width = points(data.request.width_mm.unwrap_or(usual));
    let height = points(data.request.height_mm.unwrap_or(42.0 * all.len() as f64 + 18.0));
    let names: Vec<String> = places.iter().map(|place| place.name.clone()).collect();
    // With a single point, the categories are the groups.
    let several = data.points().len() > 1;
    let whose = group.map_or(String::new(), |group| format!(" of {group}"));
    let axes: Vec<Axis> = all
        .iter()
        .map(|(metric, bars)| {
            let ends = bars.iter().flatten().flatten().map(|bar| {
                let top = bar.interval.map_or(bar.value, |(_, high)| high);
                // With few trials, an interval may be far wider than its mean.
                top.min(bar.value * 2.0).max(bar.ideal.unwrap_or(0.0))
            });
            let label = metric.label(if several { &whose } else { "" });
            Axis::linear(&label, 0.0, ends.fold(0.0, f64::max), 4.0)
        })
        .collect();
    let left = left_margin(&axes.iter().collect::<Vec<_>>(), true);
    let mut canvas = Canvas::new(width, height);
    let mut keys: Vec<(Key, String)> = phases
        .iter()
        .zip(0..)
        .map(|(phase, nth)| (Key::Box(colour(nth)), phase.name.clone()))
        .collect();
    if all.iter().flat_map(|(_, bars)| bars).flatten().flatten().any(|bar| bar.ideal.is_some()) {
        keys.push((Key::Line(Stroke::new(INK, 1.4)), "ideal".to_owned()));
    }
    let room = width - left - 4.0;
    let top = 3.0 + legend(&mut canvas, &keys, (left, 3.0), room) + 3.0;
    let probe = |y: &Axis| Frame {
        left,
        top: 0.0,
        width: room,
        height: 10.0,
        x: Axis::names(&data.point_factors(), &names),
        y: y.clone(),
    };
    let below = probe(&axes[0]).x_axis_height() + 2.0;
    let gap = 9.0;
    let each = (height - top - below - gap * (all.len() as f64 - 1.0)) / all.len() as f64;
    for (nth, (axis, (_, bars))) in axes.iter().zip(all).enumerate() {
        let frame = Frame { top: top + nth as f64 * (each + gap), height: each, ..probe(axis) };
        frame.ground(&mut canvas, &[]);
        draw_bars(&mut canvas, &frame, bars);
        frame.edges(&mut canvas, nth + 1 == all.len(), true);
    }
    (canvas.finish(&format!("Means in each phase{whose}, 95 % intervals over trials")), width)
}

fn draw_bars(canvas: &mut Canvas, frame: &Frame, bars: &[Vec<Option<Bar>>]) {
    const FILLED: f64 = 0.78;
    for (place, bars) in bars.iter().enumerate() {
        let step = FILLED / bars.len().max(1) as f64;
        for (nth, bar) in bars.iter().enumerate() {
            let Some(bar) = bar else { continue };
            let from = place as f64 + (1.0 - FILLED) / 2.0 + step * nth as f64;
            let (x, y) = frame.at(from + step * 0.06, bar.value);
            let wide = frame.at_x(from + step * 0.94) - x;
            let ground = frame.top + frame.height;
            canvas.rect((x, y), (wide, (ground - y).max(0.0)), colour(nth));
            let middle = x + wide / 2.0;
            if let Some(ideal) = bar.ideal {
                let y = frame.at_y(ideal);
                let beyond = (wide * 0.05).min(1.0);
                canvas.line((x - beyond, y), (x + wide + beyond, y), Stroke::new("#ffffff", 2.2));
                canvas.line((x - beyond, y), (x + wide + beyond, y), Stroke::new(INK, 1.4));
            }
            if let Some(ends) = bar.interval {
                let line = ((wide * 0.25).min(2.5), Stroke::new(INK, 0.7));
                frame.interval(canvas, (Direction::Y, middle), ends, line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_titles_name_the_statistic() {
        assert_eq!(titled("srtt", "mean"), "Mean sRTT");
        assert_eq!(titled("srtt", "p95"), "sRTT p95");
        assert_eq!(titled("throughput_sum", "mean"), "Throughput");
        assert_eq!(titled("retransmissions", "sum"), "Retransmissions");
        assert_eq!(titled("jain_fairness_of_mean", "mean"), "Jain's index");
    }
}
