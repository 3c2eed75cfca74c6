//! Stacked time series of one trial with shaded phases.

use std::collections::BTreeSet;
use std::sync::Arc;

use ccbench_proto::trace::{Cursor, OpportunityCursor, Replay, Trace};

use super::axes::{Axis, Frame, Key, left_margin, legend, phase_names};
use super::canvas::{Canvas, FAINT, Shape, Stroke, colour, dash};
use super::cc_names::CcNames;
use super::cc_state;
use super::data::{Selection, flow_styles, group_of};
use super::error::{FigureError, Result};
use super::png::points;
use super::request::{Figure, Kind, TWO_COLUMNS_MM};
use super::sequence::{self, RETRANSMITTED};
use crate::csv::Table;
use crate::journal::{PhaseRecord, TrialEnd};
use crate::series::{self, Curve, Detail, Panel};

/// The time bins of curves are finer than a printer's resolution at a figure's width.
const DETAIL: Detail = Detail { bins: 700, is_exact: false };
/// Maximum number of frames without an explicit selection.
const MAX_VARIABLES: usize = 6;
/// Marker of retransmissions.
const MARK: Shape = Shape::Plus;
/// Line at a change of a link.
const CHANGE: Stroke = Stroke { dash: "4 1.5 1 1.5", ..Stroke::new(FAINT, 0.7) };
/// Averaging window for traces of delivery opportunities.
const OPPORTUNITY_WINDOW_S: f64 = 0.1;

/// Draws one figure per selected point, from its first selected trial.
pub(super) fn draw(data: &Selection) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for end in data.first_trials() {
        let panels = match data.request.kind {
            Kind::CcState => cc_state_panels(data, end)?,
            Kind::TimeSequence => sequence::panels(data, end, time_range(data, end))?,
            _ => requested_panels(data, end)?,
        };
        if panels.is_empty() {
            continue;
        }
        let csv = table(data, end, &panels);
        let ccs = data.cc_names(&[end])?;
        let (svg, width_points) = sheet(data, end, &panels, &ccs);
        figures.push(Figure { stem: data.stem(Some(end)), svg, width_points, csv });
    }
    if figures.is_empty()
        && data.request.kind == Kind::CcState
        && let Some(error) = cc_state::no_states(data)
    {
        return Err(error);
    }
    Ok(figures)
}

/// Panels, by the name of their metric; the default ones come first.
const SERIES: [(&str, &str); 8] = [
    ("throughput", series::THROUGHPUT),
    ("srtt", series::SRTT),
    ("cwnd", series::CWND),
    ("in_flight", series::IN_FLIGHT),
    ("queue", series::QUEUE),
    ("rate", series::RATE),
    ("probe_rtt", series::PROBE_RTT),
    ("retransmissions", series::RETRANSMISSIONS),
];
/// Number of default panels.
const DEFAULT_COUNT: usize = 6;

/// Returns the requested panels of a trial with the requested curves.
fn requested_panels(data: &Selection, end: &TrialEnd) -> Result<Vec<Panel>> {
    let requested = &data.request.metrics;
    for metric in requested {
        if !SERIES.iter().any(|(name, _)| name == metric) {
            let known = SERIES.map(|(name, _)| name).join(", ");
            let hint = format!("; there are: {known}");
            return Err(FigureError::UnknownMetric { metric: metric.clone(), hint });
        }
    }
    let wanted = |nth: usize, name: &str| match requested.is_empty() {
        true => nth < DEFAULT_COUNT,
        false => requested.iter().any(|metric| metric == name),
    };
    let shown: Vec<&str> = SERIES
        .iter()
        .enumerate()
        .filter_map(|(nth, (name, title))| wanted(nth, name).then_some(*title))
        .collect();
    let mut found = series::panels(&data.run, end, DETAIL, |title| shown.contains(&title))?;
    if let Some(at) = found.iter().position(|panel| panel.title == series::RATE) {
        found[at].curves.extend(trace_curves(data, end));
        let steady = |curve: &Curve| curve.value.iter().all(|v| *v == curve.value[0]);
        if requested.is_empty() && found[at].curves.iter().all(steady) {
            found.remove(at);
        }
    }
    for panel in &mut found {
        let of_links = [series::QUEUE, series::RATE].contains(&panel.title.as_str());
        let of_flows = !of_links && panel.title != series::PROBE_RTT;
        panel.curves.retain(|curve| match () {
            () if of_links => data.accepts("link", curve.name.trim_end_matches(TRACE_SUFFIX)),
            () if of_flows => data.accepts_flow(&curve.name),
            () => true,
        });
        // A link without queued packets has no curve.
        if of_links {
            let busy: Vec<Curve> =
                panel.curves.iter().filter(|c| c.value.iter().any(|v| *v > 0.0)).cloned().collect();
            if !busy.is_empty() {
                panel.curves = busy;
            }
        }
    }
    found.retain(|panel| !panel.curves.is_empty());
    found.sort_by_key(|panel| shown.iter().position(|title| panel.title == *title));
    Ok(found)
}

/// Returns the internal state of the congestion controls below the cwnd of the same flows.
fn cc_state_panels(data: &Selection, end: &TrialEnd) -> Result<Vec<Panel>> {
    let requested = &data.request.metrics;
    let mut states = series::cc_state_panels(&data.run, end, DETAIL)?;
    if states.is_empty() {
        return Ok(vec![]);
    }
    let variable = |panel: &Panel| panel.title.rsplit(": ").next().unwrap_or_default().to_owned();
    let known: BTreeSet<String> = states.iter().map(variable).collect();
    if let Some(metric) = requested.iter().find(|metric| !known.contains(*metric)) {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        let hint = format!("; there are: {known}");
        return Err(FigureError::UnknownMetric { metric: metric.clone(), hint });
    }
    for panel in &mut states {
        panel.curves.retain(|curve| data.accepts_flow(&curve.name));
    }
    let of_cc = |panel: &Panel| {
        let cc = panel.title.rsplit_once(": ").map_or("", |(cc, _)| cc);
        data.accepts("cc", cc)
    };
    let moves = |panel: &Panel| {
        let first = panel.curves.first().and_then(|curve| curve.value.first());
        panel.curves.iter().flat_map(|curve| &curve.value).any(|value| Some(value) != first)
    };
    states.retain(|panel| !panel.curves.is_empty() && of_cc(panel));
    match requested.is_empty() {
        true => {
            states.retain(moves);
            states.truncate(MAX_VARIABLES);
        }
        false => states.retain(|panel| requested.contains(&variable(panel))),
    }
    if states.is_empty() {
        return Ok(vec![]);
    }
    let flows: BTreeSet<String> =
        states.iter().flat_map(|panel| &panel.curves).map(|curve| curve.name.clone()).collect();
    let mut panels = series::panels(&data.run, end, DETAIL, |title| title == series::CWND)?;
    for panel in &mut panels {
        panel.curves.retain(|curve| flows.contains(&curve.name));
    }
    panels.retain(|panel| !panel.curves.is_empty());
    for panel in &mut states {
        panel.title = variable(panel);
    }
    panels.extend(states);
    Ok(panels)
}

/// Suffix for the rate that a link's trace requests, as opposed to the applied rate.
const TRACE_SUFFIX: &str = " (trace)";

/// Returns the rates that the plan's traces request of their links.
fn trace_curves(data: &Selection, end: &TrialEnd) -> Vec<Curve> {
    let Some(plan) = data.plan(end.point_id) else { return vec![] };
    let length_s = end.length_s();
    let curve = |(name, link): (&String, &ccbench_proto::plan::Link)| {
        let used = link.trace.as_ref()?;
        let replay =
            Replay { trace: Arc::clone(data.run.plan()?.trace(&used.file)?), plan: used.clone() };
        let (t_s, value) = replay_points(&replay, length_s).into_iter().unzip();
        Some(Curve { name: format!("{name}{TRACE_SUFFIX}"), t_s, value })
    };
    plan.links.iter().filter_map(curve).collect()
}

/// Returns seconds and Mbit/s at both ends of each step of a trace, so that connecting the points draws steps.
fn replay_points(replay: &Replay, length_s: f64) -> Vec<(f64, f64)> {
    let length_ns = (length_s * 1e9) as u64;
    let mut points = Vec::new();
    if let Some(mut cursor) = Cursor::new(replay, 0) {
        while points.len() < 2 * MAX_STEPS {
            let span = cursor.span();
            let rate = span.rate.map_or(0.0, |rate| rate.bits_per_sec() as f64 / 1e6);
            let until_ns = span.until_ns.min(length_ns);
            if until_ns > span.from_ns {
                points.push((span.from_ns as f64 / 1e9, rate));
                points.push((until_ns as f64 / 1e9, rate));
            }
            if span.until_ns >= length_ns || !cursor.advance() {
                break;
            }
        }
    } else if let (Some(mut cursor), Trace::Opportunities(_)) =
        (OpportunityCursor::new(replay, 0), &*replay.trace)
    {
        let bits = f64::from(cursor.bytes()) * 8.0;
        for bin in 0..(length_s / OPPORTUNITY_WINDOW_S) as u64 {
            let (from_s, before) = (bin as f64 * OPPORTUNITY_WINDOW_S, cursor.passed());
            cursor.seek(((from_s + OPPORTUNITY_WINDOW_S) * 1e9) as u64);
            let rate = (cursor.passed() - before) as f64 * bits / OPPORTUNITY_WINDOW_S / 1e6;
            points.extend([(from_s, rate), (from_s + OPPORTUNITY_WINDOW_S, rate)]);
        }
    }
    points
}

/// Maximum number of trace steps in a figure.
const MAX_STEPS: usize = 20_000;

/// Returns the time range of the figure: the selected phase, or the whole trial.
fn time_range(data: &Selection, end: &TrialEnd) -> (f64, f64) {
    let phase = end.phases.iter().find(|phase| data.wanted("phase") == Some(&phase.name));
    // A trial that ended before its first phase still needs a range that is not empty.
    phase.map_or_else(|| (0.0, end.length_s().max(1e-6)), PhaseRecord::span_s)
}

/// Returns when the plan changes the selected links within a time range. Changes that a state of a flow triggers have no planned time.
fn change_times(data: &Selection, end: &TrialEnd, (from_s, to_s): (f64, f64)) -> Vec<f64> {
    let Some(plan) = data.plan(end.point_id).filter(|_| data.request.kind == Kind::Series) else {
        return vec![];
    };
    let is_of_link = |key: &String| {
        let link = key.strip_prefix("links.").and_then(|rest| rest.split('.').next());
        link.is_some_and(|link| data.accepts("link", link))
    };
    let changes = plan.changes.iter().filter(|change| change.set.keys().any(is_of_link));
    let times = changes.filter_map(|change| Some(change.at?.as_secs_f64()));
    times.filter(|at_s| from_s < *at_s && *at_s < to_s).collect()
}

fn table(data: &Selection, end: &TrialEnd, panels: &[Panel]) -> String {
    let mut csv = Table::new(&["panel", "unit", "point_id", "trial", "subject", "t_s", "value"]);
    let (from_s, to_s) = time_range(data, end);
    for panel in panels {
        for curve in &panel.curves {
            let inside =
                curve.t_s.iter().zip(&curve.value).filter(|(t, _)| (from_s..=to_s).contains(*t));
            for (t_s, value) in inside {
                csv.row(&[
                    panel.title.as_str().into(),
                    panel.unit.as_str().into(),
                    f64::from(end.point_id).into(),
                    f64::from(end.trial).into(),
                    curve.name.as_str().into(),
                    (*t_s).into(),
                    (*value).into(),
                ]);
            }
        }
    }
    csv.finish()
}

/// Returns the names of flows, then of other curves, in the order of the panels.
fn subjects(panels: &[Panel]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in panels.iter().flat_map(|panel| &panel.curves).map(|curve| &curve.name) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn sheet(data: &Selection, end: &TrialEnd, panels: &[Panel], ccs: &CcNames) -> (String, f64) {
    let count = panels.len() as f64;
    let width = points(data.request.width_mm.unwrap_or(TWO_COLUMNS_MM));
    let height = points(data.request.height_mm.unwrap_or(24.0 * count + 22.0));
    let (from_s, to_s) = time_range(data, end);
    let x = Axis::exact("Time (s)", from_s, to_s, 8.0);
    let axes: Vec<Axis> = panels.iter().map(|panel| y_axis(panel, from_s, to_s)).collect();
    let left = left_margin(&axes.iter().collect::<Vec<_>>(), true);
    let mut canvas = Canvas::new(width, height);
    let room = width - left - 8.0;
    let names = subjects(panels);
    let styles = styles(&names, ccs, end.point_id);
    let mut keys = keys(&names, &styles);
    let changes = change_times(data, end, (from_s, to_s));
    if !changes.is_empty() {
        keys.push((Key::Line(CHANGE), "change of a link".to_owned()));
    }
    let top = 3.0 + legend(&mut canvas, &keys, (left, 3.0), room) + 9.0;
    let frame =
        |y: &Axis| Frame { left, top, width: room, height: 10.0, x: x.clone(), y: y.clone() };
    let below = frame(&axes[0]).x_axis_height() + 2.0;
    let gap = 7.0;
    let each = (height - top - below - gap * (count - 1.0)) / count;
    let phases: Vec<(String, f64, f64)> = end
        .phases
        .iter()
        .map(|phase| {
            let (start_s, end_s) = phase.span_s();
            (phase.name.clone(), start_s.max(from_s), end_s.min(to_s))
        })
        .filter(|(_, from, to)| to > from)
        .collect();
    let bands: Vec<(f64, f64)> =
        phases.iter().step_by(2).map(|(_, from, to)| (*from, *to)).collect();
    for (nth, (axis, panel)) in axes.iter().zip(panels).enumerate() {
        let frame = Frame { top: top + nth as f64 * (each + gap), height: each, ..frame(axis) };
        frame.draw_background(&mut canvas, &bands);
        for at_s in &changes {
            let x = frame.at_x(*at_s);
            canvas.line((x, frame.top), (x, frame.top + frame.height), CHANGE);
        }
        if nth == 0 {
            phase_names(&mut canvas, &frame, &phases);
        }
        canvas.clip((frame.left, frame.top - 1.0), (frame.width, frame.height + 2.0));
        for curve in &panel.curves {
            let at = names.iter().position(|name| *name == curve.name).unwrap_or(0);
            let line: Vec<(f64, f64)> =
                cc_state::points(panel, curve).into_iter().map(|(t, v)| frame.at(t, v)).collect();
            match curve.name == RETRANSMITTED {
                true => line.iter().for_each(|at| canvas.mark(MARK, *at, 3.5, colour(1))),
                false => canvas.polyline(&line, styles[at].1),
            }
        }
        canvas.unclip();
        frame.edges(&mut canvas, nth + 1 == panels.len(), true);
    }
    let point = data.point_name(end.point_id);
    let point = if point.is_empty() { String::new() } else { format!(" ({point})") };
    let titles = panels.iter().map(|panel| panel.title.as_str()).collect::<Vec<_>>().join(", ");
    (canvas.finish(&format!("{titles} over the time of trial {}{point}", end.trial)), width)
}

fn y_axis(panel: &Panel, from_s: f64, to_s: f64) -> Axis {
    if let Some((range, ticks)) = cc_state::ticks(panel) {
        return Axis::named(&panel.title, range, ticks);
    }
    let (mut low, mut high) = (0.0_f64, 0.0_f64);
    for curve in &panel.curves {
        for (t, value) in curve.t_s.iter().zip(&curve.value) {
            if (from_s..=to_s).contains(t) {
                (low, high) = (low.min(*value), high.max(*value));
            }
        }
    }
    // The names of congestion controls' variables end in their unit.
    let variable = panel.title.strip_suffix(&format!("_{}", panel.unit));
    let unit = match panel.unit.as_str() {
        unit if !cc_state::states(unit).is_empty() => "",
        "us" => "µs",
        "pkts" => "packets",
        other => other,
    };
    let title = match panel.title.as_str() {
        series::SRTT => "sRTT",
        series::CWND => "cwnd",
        series::RETRANSMISSIONS => "Retransmits",
        other => variable.unwrap_or(other),
    };
    let label =
        if ["", "1"].contains(&unit) { title.to_owned() } else { format!("{title} ({unit})") };
    Axis::linear(&label, low, high, 3.0)
}

/// Returns the legend label and line style of each name at a point. Flows are coloured; links are grey to black.
fn styles(names: &[String], ccs: &CcNames, point_id: u32) -> Vec<(String, Stroke)> {
    let flows: Vec<String> = names.iter().filter(|name| name.contains('/')).cloned().collect();
    let looks = flow_styles(&flows);
    let others = [("#000000", ""), (FAINT, "3 1.5"), ("#999999", "1.2 1.2")];
    let mut other = 0;
    let style = |name: &String| match flows.iter().position(|flow| flow == name) {
        Some(at) => {
            let (nth, own) = looks[at];
            let stroke = Stroke { dash: dash(nth), ..Stroke::new(colour(nth), 0.8) };
            match own {
                true => (ccs.named(name, &[point_id]), stroke),
                false => (
                    ccs.named_flows(
                        group_of(name),
                        &[point_id],
                        flows.iter().filter(|f| group_of(f) == group_of(name)).count(),
                    ),
                    Stroke { width: 0.6, opacity: 0.7, ..stroke },
                ),
            }
        }
        None => {
            let (colour, dash) = others[other % others.len()];
            other += 1;
            (name.clone(), Stroke { dash, ..Stroke::new(colour, 0.8) })
        }
    };
    names.iter().map(style).collect()
}

fn keys(names: &[String], styles: &[(String, Stroke)]) -> Vec<(Key, String)> {
    let mut keys: Vec<(Key, String)> = Vec::new();
    for (_, (shown, stroke)) in names.iter().zip(styles) {
        if !keys.iter().any(|(_, known)| known == shown) {
            let is_marks = shown == RETRANSMITTED;
            let key = if is_marks { Key::Mark(MARK, colour(1)) } else { Key::Line(*stroke) };
            keys.push((key, shown.clone()));
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccbench_proto::plan::{OnEnd, TraceUse};
    use ccbench_proto::trace::parse;

    fn replay(text: &[u8], on_end: OnEnd) -> Replay {
        let trace = Arc::new(parse("t", text).unwrap());
        Replay { trace, plan: TraceUse { on_end, ..TraceUse::new("t") } }
    }

    #[test]
    fn traces_are_step_lines_until_trial_end() {
        let looped = replay_points(&replay(b"10,1\n40,2\n", OnEnd::Loop), 5.0);
        let wanted = [
            (0.0, 10.0),
            (1.0, 10.0),
            (1.0, 40.0),
            (3.0, 40.0),
            (3.0, 10.0),
            (4.0, 10.0),
            (4.0, 40.0),
            (5.0, 40.0),
        ];
        assert_eq!(looped, wanted);
        let held = replay_points(&replay(b"10,1\n40,2\n", OnEnd::Hold), 5.0);
        assert_eq!(held.last(), Some(&(5.0, 40.0)));
    }

    #[test]
    fn variable_titles_drop_unit_suffix() {
        let label = |title: &str, unit: &str| {
            let (title, unit) = (title.to_owned(), unit.to_owned());
            y_axis(&Panel { title, unit, samples: 0, curves: vec![] }, 0.0, 1.0).label
        };
        assert_eq!(label("base_us", "us"), "base (µs)");
        assert_eq!(label("target_pkts", "pkts"), "target (packets)");
        assert_eq!(label("alpha", "1"), "alpha");
        assert_eq!(label("mode", "0 STARTUP 1 DRAIN"), "mode");
        assert_eq!(label(series::SRTT, "ms"), "sRTT (ms)");
    }

    #[test]
    fn many_flows_are_styled_by_group() {
        let names: Vec<String> = (0..5)
            .flat_map(|n| [format!("a/{n}"), format!("b/{n}")])
            .chain(["link".into()])
            .collect();
        let styles = styles(&names, &CcNames::default(), 0);
        let keys = keys(&names, &styles);
        let shown: Vec<&str> = keys.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(shown, ["a (5 flows)", "b (5 flows)", "link"]);
    }
}
