//! Distributions over instants, and goodput of flows.

use std::collections::BTreeMap;

use super::axes::{Axis, Frame, Key, Row, left_margin, legend};
use super::canvas::{Anchor, Canvas, FAINT, INK, Stroke, Style, colour, dash, truncate_end};
use super::cc_names::CcNames;
use super::data::{Selection, flow_styles, group_of};
use super::error::Result;
use super::instants::{Flow, Instant, flows};
use super::png::points;
use super::request::{COLUMN_MM, Figure, Kind, TWO_COLUMNS_MM};
use crate::csv::Table;
use crate::summary::statistics::jain_index;

/// Maximum number of steps of an ECDF.
const MAX_STEPS: usize = 1000;

/// Draws figures of either kind.
pub(super) fn draw(data: &Selection) -> Result<Vec<Figure>> {
    match data.request.kind {
        Kind::Strips => strips(data).map(|figure| figure.into_iter().collect()),
        _ => data
            .points()
            .into_iter()
            .filter_map(|point_id| ecdf(data, point_id).transpose())
            .collect(),
    }
}

/// Returns the empirical CDF: sorted values, each with the fraction of values that are not larger. Thins out many values evenly.
fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let every = n.div_ceil(MAX_STEPS).max(1);
    let kept = (0..n).filter(|nth| nth % every == 0 || nth + 1 == n);
    kept.map(|nth| (values[nth], (nth + 1) as f64 / n as f64)).collect()
}

/// ECDFs of one flow: name, throughput, sRTT.
type Spread = (String, [Vec<(f64, f64)>; 2]);

/// Draws ECDFs of throughput and sRTT of a point's flows in one phase, over all instants of all trials.
fn ecdf(data: &Selection, point_id: u32) -> Result<Option<Figure>> {
    let Some(phase) = data.busiest_phase(point_id) else { return Ok(None) };
    let trials = data.trials_of(point_id);
    let mut all: BTreeMap<String, Vec<Instant>> = BTreeMap::new();
    for flow in flows(data, &trials)? {
        if flow.phase == phase.name {
            all.entry(flow.flow).or_default().extend(flow.instants);
        }
    }
    let spread = |(flow, instants): (String, Vec<Instant>)| -> Spread {
        let of = |value: fn(&Instant) -> Option<f64>| {
            distribution(instants.iter().filter_map(value).collect())
        };
        (flow, [of(|i| i.mbit_per_s), of(|i| i.srtt_ms)])
    };
    let spreads: Vec<Spread> = all.into_iter().map(spread).collect();
    if spreads.is_empty() {
        return Ok(None);
    }
    let mut csv = Table::new(&["point_id", "phase", "flow_id", "metric", "value", "share_at_most"]);
    for (flow, both) in &spreads {
        for (metric, steps) in ["throughput_mbit_s", "srtt_ms"].into_iter().zip(both) {
            for (value, share) in steps {
                csv.row(&[
                    f64::from(point_id).into(),
                    phase.name.as_str().into(),
                    flow.as_str().into(),
                    metric.into(),
                    (*value).into(),
                    (*share).into(),
                ]);
            }
        }
    }
    let mut stem = data.stem(trials.first().copied());
    if data.phases().len() > 1 {
        stem = format!("{stem}-{}", phase.name);
    }
    let ccs = data.cc_names(&trials)?;
    let name_of = |flow: &str| ccs.named(flow, &[point_id]);
    let (svg, width_points) = ecdf_sheet(data, &spreads, &phase.name, name_of);
    Ok(Some(Figure { stem, svg, width_points, csv: csv.finish() }))
}

fn ecdf_sheet(
    data: &Selection,
    spreads: &[Spread],
    phase: &str,
    name_of: impl Fn(&str) -> String,
) -> (String, f64) {
    let width = points(data.request.width_mm.unwrap_or(COLUMN_MM));
    let height = points(data.request.height_mm.unwrap_or(52.0));
    let names: Vec<String> = spreads.iter().map(|(flow, _)| flow.clone()).collect();
    let looks = flow_styles(&names);
    let mut canvas = Canvas::new(width, height);
    let mut keys: Vec<(Key, String)> = Vec::new();
    for (flow, (nth, own)) in names.iter().zip(&looks) {
        let name = name_of(if *own { flow.as_str() } else { group_of(flow) });
        if !keys.iter().any(|(_, known)| *known == name) {
            let stroke = Stroke { dash: dash(*nth), ..Stroke::new(colour(*nth), 1.1) };
            keys.push((Key::Line(stroke), name));
        }
    }
    let y = Axis::exact("Share of instants", 0.0, 1.0, 4.0);
    let left = left_margin(&[&y], false);
    let gap = 12.0;
    let room = width - left - 7.0;
    let top = 3.0 + legend(&mut canvas, &keys, (left, 3.0), room) + 3.0;
    let each = (room - gap) / 2.0;
    for (nth, label) in ["Throughput (Mbit/s)", "sRTT (ms)"].into_iter().enumerate() {
        let ends: Vec<f64> =
            spreads.iter().flat_map(|(_, both)| &both[nth]).map(|(value, _)| *value).collect();
        let low = ends.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ends.iter().copied().fold(0.0, f64::max);
        let from = if nth == 0 || !low.is_finite() || low < high / 2.0 { 0.0 } else { low };
        let x = Axis::linear(label, from, high, 3.0);
        let mut frame = Frame {
            left: left + nth as f64 * (each + gap),
            top,
            width: each,
            height: 1.0,
            x,
            y: y.clone(),
        };
        frame.height = height - top - frame.x_axis_height() - 2.0;
        frame.draw_background(&mut canvas, &[]);
        for ((_, both), (look, own)) in spreads.iter().zip(&looks) {
            let mut line = Vec::new();
            let mut share = 0.0;
            for (value, now) in &both[nth] {
                line.extend([frame.at(*value, share), frame.at(*value, *now)]);
                share = *now;
            }
            let width = if *own { 1.1 } else { 0.7 };
            canvas
                .polyline(&line, Stroke { dash: dash(*look), ..Stroke::new(colour(*look), width) });
        }
        frame.edges(&mut canvas, true, nth == 0);
    }
    (
        canvas
            .finish(&format!("Distribution of throughput and sRTT in {phase}, instants of 0.1 s")),
        width,
    )
}

/// Mean throughput of a flow in a trial.
struct FlowThroughput {
    place: usize,
    phase: String,
    flow: String,
    trial: u16,
    mbit_per_s: f64,
    /// The flow's fair share.
    fair: Option<f64>,
}

/// Draws the throughput of every flow in each phase as dots beside the fair share, by group or by point.
fn strips(data: &Selection) -> Result<Option<Figure>> {
    let ids = data.points();
    let mut places: Vec<(u32, String)> = Vec::new();
    let mut got = Vec::new();
    let mut fairs = BTreeMap::new();
    for point_id in &ids {
        for flow in flows(data, &data.trials_of(*point_id))? {
            let Some(mbit_per_s) = flow.mean.mbit_per_s else { continue };
            let Flow { trial, phase, flow, .. } = flow;
            let key = (*point_id, group_of(&flow).to_owned());
            let place = places.iter().position(|place| *place == key).unwrap_or_else(|| {
                places.push(key);
                places.len() - 1
            });
            let fair = *fairs
                .entry((place, phase.clone()))
                .or_insert_with(|| fair_share(data, *point_id, &flow, &phase));
            got.push(FlowThroughput { place, phase, flow, trial, mbit_per_s, fair });
        }
    }
    if got.is_empty() {
        return Ok(None);
    }
    let mut csv = Table::new(&[
        "point_id",
        "point",
        "phase",
        "trial",
        "flow_id",
        "throughput_mbit_s",
        "fair_mbit_s",
    ]);
    for one in &got {
        let point_id = places[one.place].0;
        csv.row(&[
            f64::from(point_id).into(),
            data.point_name(point_id).as_str().into(),
            one.phase.as_str().into(),
            f64::from(one.trial).into(),
            one.flow.as_str().into(),
            one.mbit_per_s.into(),
            one.fair.into(),
        ]);
    }
    let ccs = data.cc_names(&data.trials.iter().collect::<Vec<_>>())?;
    let (svg, width_points) = strips_sheet(data, &places, &got, &ccs);
    Ok(Some(Figure { stem: data.stem(None), svg, width_points, csv: csv.finish() }))
}

/// Returns an equal share of the bottleneck's payload for each flow that passes it in a phase.
fn fair_share(data: &Selection, point_id: u32, flow: &str, phase: &str) -> Option<f64> {
    let all = data.groups_sharing_bottleneck(point_id, group_of(flow), phase).values().sum::<u32>();
    let path = data.path(point_id, group_of(flow), phase)?;
    (all > 0).then(|| path.payload_bps() / 1e6 / f64::from(all))
}

/// Returns Jain's index over the flows of a phase at a point, averaged over trials.
fn mean_jain_index(
    got: &[FlowThroughput],
    places: &[(u32, String)],
    point_id: u32,
    phase: &str,
) -> Option<f64> {
    let mut trials: BTreeMap<u16, Vec<f64>> = BTreeMap::new();
    for one in got.iter().filter(|one| one.phase == phase && places[one.place].0 == point_id) {
        trials.entry(one.trial).or_default().push(one.mbit_per_s);
    }
    let indices: Vec<f64> = trials.values().filter_map(|shares| jain_index(shares)).collect();
    (!indices.is_empty()).then(|| indices.iter().sum::<f64>() / indices.len() as f64)
}

/// Returns the legend: a colour per group, and the line of the fair share.
fn strips_legend(groups: &[String]) -> Vec<(Key, String)> {
    let mark = |nth| Key::Mark(super::canvas::Shape::Circle, colour(nth));
    let fair = Key::Line(Stroke { dash: "3 1.5", ..Stroke::new(INK, 0.8) });
    let of_group = |(nth, group): (usize, &String)| (mark(nth), group.clone());
    groups.iter().enumerate().map(of_group).chain([(fair, "fair share".to_owned())]).collect()
}

/// Returns the throughput axis, with room for all flows and the fair shares.
fn strips_axis(got: &[FlowThroughput]) -> Axis {
    let both = got.iter().flat_map(|one| [Some(one.mbit_per_s), one.fair]);
    let most = both.flatten().fold(0.0, f64::max);
    Axis::linear("Throughput per flow (Mbit/s)", 0.0, most, 5.0)
}

fn strips_sheet(
    data: &Selection,
    places: &[(u32, String)],
    got: &[FlowThroughput],
    ccs: &CcNames,
) -> (String, f64) {
    let ids = data.points();
    let phases: Vec<String> = data.phases().into_iter().map(|p| p.name).collect();
    let phases: Vec<&String> =
        phases.iter().filter(|p| got.iter().any(|one| one.phase == **p)).collect();
    let mut groups: Vec<&str> = places.iter().map(|(_, group)| group.as_str()).collect();
    groups.sort_unstable();
    groups.dedup();
    let named: Vec<String> = groups.iter().map(|group| ccs.named(group, &ids)).collect();
    // With several points, categories are points and colours are groups.
    let of_points = || ids.iter().map(|id| data.point_name(*id)).collect();
    let names: Vec<String> = if ids.len() > 1 { of_points() } else { named.clone() };
    let slot = |place: usize| {
        let (point_id, group) = &places[place];
        let nth = groups.iter().position(|name| name == group).unwrap_or(0);
        let at = ids.iter().position(|id| id == point_id).unwrap_or(0);
        let step = 1.0 / (groups.len() as f64 + 1.0);
        if ids.len() > 1 {
            (at as f64 + step * (nth as f64 + 1.0), nth)
        } else {
            (nth as f64 + 0.5, nth)
        }
    };
    let slots = if ids.len() > 1 { groups.len() as f64 + 1.0 } else { 1.6 };
    let usual = if names.len() * phases.len() > 6 { TWO_COLUMNS_MM } else { COLUMN_MM };
    let width = points(data.request.width_mm.unwrap_or(usual));
    let height = points(data.request.height_mm.unwrap_or(62.0));
    let y = strips_axis(got);
    let mut canvas = Canvas::new(width, height);
    let keys = strips_legend(&named);
    let jain_line = if ids.len() > 1 { 0.0 } else { 8.0 };
    let x = Axis::names(&data.point_factors(), &names);
    let (size, count) = ((width, height), phases.len());
    let row = Row { size, right: 4.0, above: 9.0 + jain_line, gap: 8.0, count };
    let first = row.first(&keys, &x, &y);
    legend(&mut canvas, &keys, (first.left, 3.0), width - first.left - row.right);
    for (nth, phase) in phases.iter().enumerate() {
        let frame = row.nth(&first, nth);
        frame.draw_background(&mut canvas, &[]);
        let style = Style { colour: FAINT, ..Style::new(7.0, Anchor::Middle) };
        let (middle, above) = (frame.left + frame.width / 2.0, frame.top - 3.0);
        canvas.text((middle, above - jain_line), style, &truncate_end(phase, style, frame.width));
        if let (true, Some(index)) = (ids.len() == 1, mean_jain_index(got, places, ids[0], phase)) {
            canvas.text((middle, above), style, &format!("Jain {index:.2}"));
        }
        for (at, id) in ids.iter().enumerate() {
            let here = |one: &&FlowThroughput| one.phase == **phase && places[one.place].0 == *id;
            let fair: BTreeMap<usize, Option<f64>> =
                got.iter().filter(here).map(|one| (one.place, one.fair)).collect();
            let (from, to) = match ids.len() {
                1 => (0.0, names.len() as f64),
                _ => (at as f64 + 0.05, at as f64 + 0.95),
            };
            let beside = |place| (slot(place).0 - 0.45 / slots, slot(place).0 + 0.45 / slots);
            fair_lines(&mut canvas, &frame, &fair, (from, to), beside);
        }
        for (nth, one) in got.iter().enumerate().filter(|(_, one)| one.phase == **phase) {
            let (at, group) = slot(one.place);
            canvas.dot(frame.at(at + jitter(nth, slots), one.mbit_per_s), 1.5, colour(group), 0.75);
        }
        frame.edges(&mut canvas, true, nth == 0);
    }
    (canvas.finish("Throughput of every flow in every trial, beside the fair share"), width)
}

/// Returns a deterministic horizontal offset for the nth dot, so that dots do not cover each other.
fn jitter(nth: usize, slots: f64) -> f64 {
    ((nth as f64 * 0.618_034).fract() - 0.5) * 0.5 / slots
}

/// Draws the fair shares of a point's flows. If they are equal, draws one line from `from` to `to`. Otherwise draws a line over the `span`
/// of each flow, because flows may have different bottlenecks.
fn fair_lines(
    canvas: &mut Canvas,
    frame: &Frame,
    shares: &BTreeMap<usize, Option<f64>>,
    (from, to): (f64, f64),
    span: impl Fn(usize) -> (f64, f64),
) {
    let first = shares.values().next().copied().flatten();
    if shares.values().all(|share| *share == first) {
        return fair_line(canvas, frame, first, (from, to));
    }
    for (place, share) in shares {
        fair_line(canvas, frame, *share, span(*place));
    }
}

/// Draws the fair share between two positions of the x axis.
fn fair_line(canvas: &mut Canvas, frame: &Frame, fair: Option<f64>, (from, to): (f64, f64)) {
    let Some(y) = fair.map(|fair| frame.at_y(fair)) else { return };
    let stroke = Stroke { dash: "3 1.5", ..Stroke::new(INK, 0.8) };
    canvas.line((frame.at_x(from), y), (frame.at_x(to), y), stroke);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecdf_reaches_one_and_keeps_extremes() {
        let steps = distribution((0..5000).rev().map(f64::from).collect());
        assert!(steps.len() <= MAX_STEPS + 1 && steps.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
        assert_eq!((steps[0], *steps.last().unwrap()), ((0.0, 1.0 / 5000.0), (4999.0, 1.0)));
        assert!(distribution(vec![]).is_empty());
    }
}
