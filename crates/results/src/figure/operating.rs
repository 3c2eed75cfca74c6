//! Operating points: throughput and sRTT against packets in flight, and against each other.

use std::collections::{BTreeMap, BTreeSet};

use super::axes::{
    Axis, Direction, Frame, Key, Row, SMALL, labels_for_two_columns, left_margin, legend,
    legend_height, right_margin,
};
use super::canvas::{
    Anchor, Canvas, FAINT, INK, PALETTE, Shape, Stroke, Style, colour, shape, truncate_end,
};
use super::cc_names::CcNames;
use super::data::{BottleneckPath, Selection, flow_styles, group_of};
use super::error::Result;
use super::instants::{Flow, Instant, Mean, OperatingPoint, flows, operating_points};
use super::png::points;
use super::request::{COLUMN_MM, Figure, Kind, TWO_COLUMNS_MM};
use crate::csv::Table;

/// Colour of the optimum.
const OPTIMUM_COLOUR: &str = "#c2185b";
const MARKER_SIZE: f64 = 6.0;
/// Approximate limit for the dots of a figure.
const MAX_DOTS: usize = 3000;

/// Draws figures of either kind.
pub(super) fn draw(data: &Selection) -> Result<Vec<Figure>> {
    match data.request.kind {
        Kind::Plane => plane(data).map(|figure| figure.into_iter().collect()),
        _ => data
            .first_trials()
            .into_iter()
            .filter_map(|end| against_in_flight(data, end.point_id).transpose())
            .collect(),
    }
}

/// A value of an operating point.
type PointValue = fn(&OperatingPoint) -> Option<Mean>;
/// The same value of an instant.
type InstantValue = fn(&Instant) -> Option<f64>;
/// The same value of an optimum.
type OptimumValue = fn(&Optimum) -> f64;

/// Throughput and sRTT of a point's flows in one phase, against packets in flight.
fn against_in_flight(data: &Selection, point_id: u32) -> Result<Option<Figure>> {
    let Some(phase) = data.busiest_phase(point_id) else { return Ok(None) };
    let trials = data.trials_of(point_id);
    let all = flows(data, &trials)?;
    let (mut each, joint) = operating_points(&all, &phase.name);
    each.retain(|_, flow| flow.in_flight.is_some());
    let Some(joint) = joint.filter(|joint| joint.in_flight.is_some()) else { return Ok(None) };
    let names: Vec<String> = each.keys().cloned().collect();
    let optima =
        optima(data, &phase.name, false, names.iter().map(|flow| (point_id, group_of(flow))));
    let ccs = data.cc_names(&trials)?;
    let drawn = InFlight {
        each: &each,
        joint: &joint,
        optima: &optima,
        names: &names,
        ccs: &ccs,
        point_id,
    };
    let first = trials.first().map_or(0, |end| end.trial);
    let dots: Vec<&Flow> =
        all.iter().filter(|flow| flow.trial == first && flow.phase == phase.name).collect();
    let end = trials.first().copied();
    let mut stem = data.stem(end);
    if data.phases().len() > 1 {
        stem = format!("{stem}-{}", phase.name);
    }
    let width = points(data.request.width_mm.unwrap_or(COLUMN_MM));
    let height = points(data.request.height_mm.unwrap_or(95.0));
    let svg = drawn.sheet(&dots, width, height, &phase.name);
    Ok(Some(Figure { stem, svg, width_points: width, csv: drawn.table(&phase.name) }))
}

/// The content of a figure against packets in flight.
struct InFlight<'a> {
    each: &'a BTreeMap<String, OperatingPoint>,
    joint: &'a OperatingPoint,
    optima: &'a [Optimum],
    names: &'a [String],
    ccs: &'a CcNames,
    point_id: u32,
}

impl InFlight<'_> {
    fn table(&self, phase: &str) -> String {
        let point_id = self.point_id;
        let mut csv = Table::new(&[
            "point_id",
            "phase",
            "subject",
            "in_flight_pkts",
            "in_flight_ci95_low",
            "in_flight_ci95_high",
            "throughput_mbit_s",
            "throughput_ci95_low",
            "throughput_ci95_high",
            "srtt_ms",
            "srtt_ci95_low",
            "srtt_ci95_high",
            "trials",
        ]);
        let joint = [("joint".to_owned(), self.joint.clone())];
        let each = self.each.iter().map(|(flow, o)| (flow.clone(), o.clone()));
        for (name, o) in each.chain(joint) {
            let mut row = vec![f64::from(point_id).into(), phase.into(), name.as_str().into()];
            for mean in [o.in_flight, Some(o.mbit_per_s), Some(o.srtt_ms)] {
                let interval = mean.and_then(|mean| mean.interval);
                row.extend([
                    mean.map(|mean| mean.value).into(),
                    interval.map(|i| i.0).into(),
                    interval.map(|i| i.1).into(),
                ]);
            }
            row.push(f64::from(o.trials).into());
            csv.row(&row);
        }
        for optimum in self.optima {
            let subject = match optimum.label.as_str() {
                "" => "optimum".to_owned(),
                whose => format!("optimum of {whose}"),
            };
            let mut row = vec![f64::from(point_id).into(), phase.into(), subject.as_str().into()];
            for value in [optimum.in_flight(), optimum.mbit_per_s(), optimum.srtt_ms()] {
                row.extend([value.into(), None.into(), None.into()]);
            }
            row.push(None.into());
            csv.row(&row);
        }
        csv.finish()
    }

    fn sheet(&self, dots: &[&Flow], width: f64, height: f64, phase: &str) -> String {
        let looks = flow_styles(self.names);
        let of_flow = |flow: &str| looks[self.names.iter().position(|n| n == flow).unwrap_or(0)];
        let most = |of: PointValue, instant: InstantValue, optimum: OptimumValue| {
            let best = self.optima.iter().map(optimum);
            let means =
                self.each.values().chain([self.joint]).filter_map(of).map(|mean| mean.value);
            let dots = dots.iter().flat_map(|flow| flow.instants.iter().filter_map(instant));
            means.chain(dots).chain(best).fold(0.0, f64::max)
        };
        let x = Axis::linear(
            "In flight (packets)",
            0.0,
            most(|o| o.in_flight, |i| i.in_flight, Optimum::in_flight),
            6.0,
        );
        let rows: [(&str, PointValue, InstantValue, OptimumValue); 2] = [
            ("Throughput (Mbit/s)", |o| Some(o.mbit_per_s), |i| i.mbit_per_s, Optimum::mbit_per_s),
            ("sRTT (ms)", |o| Some(o.srtt_ms), |i| i.srtt_ms, Optimum::srtt_ms),
        ];
        let axes = rows.map(|(label, of, instant, optimum)| {
            Axis::linear(label, 0.0, most(of, instant, optimum), 4.0)
        });
        let left = left_margin(&[&axes[0], &axes[1]], false);
        let mut canvas = Canvas::new(width, height);
        let room = width - left - right_margin(&x);
        let top = 3.0 + legend(&mut canvas, &self.keys(&looks), (left, 3.0), room) + 3.0;
        let frame =
            |y: &Axis| Frame { left, top, width: room, height: 1.0, x: x.clone(), y: y.clone() };
        let below = frame(&axes[0]).x_axis_height() + 2.0;
        let each = (height - top - below - 8.0) / 2.0;
        let every =
            dots.iter().map(|flow| flow.instants.len()).sum::<usize>().div_ceil(MAX_DOTS).max(1);
        for (nth, ((_, of, instant, optimum), axis)) in rows.into_iter().zip(&axes).enumerate() {
            let frame = Frame { top: top + nth as f64 * (each + 8.0), height: each, ..frame(axis) };
            frame.draw_background(&mut canvas, &[]);
            canvas
                .clip((frame.left - 4.0, frame.top - 4.0), (frame.width + 8.0, frame.height + 8.0));
            for flow in dots {
                let fill = colour(of_flow(&flow.flow).0);
                for i in flow.instants.iter().step_by(every) {
                    if let (Some(x), Some(y)) = (i.in_flight, instant(i)) {
                        canvas.dot(frame.at(x, y), 0.7, fill, 0.3);
                    }
                }
            }
            for (flow, o) in self.each {
                let look = of_flow(flow).0;
                if let Some(means) = o.in_flight.zip(of(o)) {
                    draw_marker(&mut canvas, &frame, means, (shape(look), colour(look)));
                }
            }
            if let Some(means) = self.joint.in_flight.zip(of(self.joint)) {
                draw_marker(&mut canvas, &frame, means, (Shape::Diamond, INK));
            }
            for best in self.optima {
                best.draw(&mut canvas, &frame, (best.in_flight(), optimum(best)));
            }
            canvas.unclip();
            frame.edges(&mut canvas, nth == 1, true);
        }
        canvas.finish(&format!("Throughput and sRTT against packets in flight, {phase}"))
    }

    fn keys(&self, looks: &[(usize, bool)]) -> Vec<(Key, String)> {
        let mut keys: Vec<(Key, String)> = Vec::new();
        for (flow, (nth, own)) in self.names.iter().zip(looks) {
            let name = if *own { flow.as_str() } else { group_of(flow) };
            let name = self.ccs.named(name, &[self.point_id]);
            if !keys.iter().any(|(_, known)| *known == name) {
                keys.push((Key::Mark(shape(*nth), colour(*nth)), name));
            }
        }
        keys.push((Key::Mark(Shape::Diamond, INK), "joint".to_owned()));
        if !self.optima.is_empty() {
            keys.push((Key::Mark(Shape::Star, OPTIMUM_COLOUR), "optimum".to_owned()));
        }
        keys
    }
}

/// Draws a marker with the error bars of both means.
fn draw_marker(
    canvas: &mut Canvas,
    frame: &Frame,
    (x, y): (Mean, Mean),
    (shape, fill): (Shape, &'static str),
) {
    let thin = Stroke::new(fill, 0.7);
    if let Some(ends) = x.interval {
        frame.interval(canvas, (Direction::X, frame.at_y(y.value)), ends, (0.0, thin));
    }
    if let Some(ends) = y.interval {
        frame.interval(canvas, (Direction::Y, frame.at_x(x.value)), ends, (0.0, thin));
    }
    canvas.mark(shape, frame.at(x.value, y.value), MARKER_SIZE, fill);
}

/// A marker of the plane.
struct PlaneMarker {
    point_id: u32,
    phase: String,
    flow: String,
    point: OperatingPoint,
    shape: Shape,
    colour: &'static str,
}

/// Draws mean sRTT against mean throughput, with a frame per phase and a marker per flow. Colours and shapes distinguish flows. If there
/// are several points, colours distinguish points, and shapes distinguish groups.
fn plane(data: &Selection) -> Result<Option<Figure>> {
    let ids = data.points();
    let phases: Vec<String> = data.phases().into_iter().map(|phase| phase.name).collect();
    let mut of_points: Vec<(u32, Vec<Flow>)> = Vec::new();
    for point_id in &ids {
        of_points.push((*point_id, flows(data, &data.trials_of(*point_id))?));
    }
    // Shapes distinguish points that share a colour.
    if ids.len() > PALETTE.len() {
        let under_test = data.group_under_test(&data.groups(ids.first().copied()));
        let is_shown =
            |flow: &Flow| under_test.as_ref().is_none_or(|group| group_of(&flow.flow) == group);
        for (_, flows) in &mut of_points {
            flows.retain(is_shown);
        }
    }
    let all = || of_points.iter().flat_map(|(_, flows)| flows);
    let groups: BTreeSet<String> = all().map(|flow| group_of(&flow.flow).to_owned()).collect();
    let ccs = data.cc_names(&data.trials.iter().collect::<Vec<_>>())?;
    let (mut marks, mut keys) = (Vec::new(), Vec::new());
    for (nth, (point_id, all)) in of_points.iter().enumerate() {
        let flow_names: BTreeSet<&str> = all.iter().map(|flow| flow.flow.as_str()).collect();
        let flow_names: Vec<String> = flow_names.into_iter().map(str::to_owned).collect();
        let looks = flow_styles(&flow_names);
        for phase in &phases {
            for (flow, point) in operating_points(all, phase).0 {
                let (look, own) =
                    looks[flow_names.iter().position(|name| *name == flow).unwrap_or(0)];
                let group = groups.iter().position(|name| *name == group_of(&flow)).unwrap_or(0);
                let (series, form) = match (ids.len() > 1, groups.len() > 1) {
                    (true, true) => (nth, group),
                    (true, false) => (nth, nth),
                    (false, _) => (look, look),
                };
                let (shape, colour) = (shape(form), colour(series));
                let subject = if own { flow.as_str() } else { group_of(&flow) };
                let key = match (ids.len() > 1, groups.len() > 1) {
                    (true, true) => (Key::Box(colour), data.point_name(*point_id)),
                    (true, false) => (Key::Mark(shape, colour), data.point_name(*point_id)),
                    (false, _) => (Key::Mark(shape, colour), ccs.named(subject, &ids)),
                };
                if !keys.iter().any(|(_, name): &(Key, String)| *name == key.1) {
                    keys.push(key);
                }
                let (point_id, phase) = (*point_id, phase.clone());
                marks.push(PlaneMarker { point_id, phase, flow, point, shape, colour });
            }
        }
    }
    if marks.is_empty() {
        return Ok(None);
    }
    let of_groups = groups.iter().enumerate().filter(|_| ids.len() > 1 && groups.len() > 1);
    let of_groups: Vec<(Key, String)> = of_groups
        .map(|(nth, group)| (Key::Mark(shape(nth), INK), ccs.named(group, &ids)))
        .collect();
    let csv = plane_csv(data, &marks);
    let one = groups.first().filter(|_| ids.len() > 1 && groups.len() == 1);
    let whose = one.map_or(String::new(), |group| format!(" of {group}"));
    let sheet = PlaneSheet { data, marks: &marks, keys: &keys, of_groups: &of_groups };
    let (svg, width_points) = sheet.draw(&phases, &whose);
    Ok(Some(Figure { stem: data.stem(None), svg, width_points, csv }))
}

fn plane_csv(data: &Selection, marks: &[PlaneMarker]) -> String {
    let mut csv = Table::new(&[
        "point_id",
        "point",
        "phase",
        "flow_id",
        "srtt_ms",
        "srtt_ci95_low",
        "srtt_ci95_high",
        "throughput_mbit_s",
        "throughput_ci95_low",
        "throughput_ci95_high",
        "trials",
    ]);
    for mark in marks {
        let mut row = vec![
            f64::from(mark.point_id).into(),
            data.point_name(mark.point_id).as_str().into(),
            mark.phase.as_str().into(),
            mark.flow.as_str().into(),
        ];
        for mean in [mark.point.srtt_ms, mark.point.mbit_per_s] {
            let interval = mean.interval;
            row.extend([
                mean.value.into(),
                interval.map(|i| i.0).into(),
                interval.map(|i| i.1).into(),
            ]);
        }
        row.push(f64::from(mark.point.trials).into());
        csv.row(&row);
    }
    csv.finish()
}

/// The ideal operating point: a fully used bottleneck with an empty queue.
struct Optimum {
    path: BottleneckPath,
    base_rtt_ms: f64,
    points: BTreeSet<u32>,
    groups: BTreeSet<String>,
    /// The label if there are several optima, otherwise empty.
    label: String,
    /// The share of the bottleneck's rate.
    share: f64,
}

/// Returns whether two values are equal except for rounding errors, which depend on the length of the phase.
fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

/// Returns the distinct optima of these points' groups in a phase: of all flows together, or the fair share `of_each` flow. Groups without
/// a constant base RTT have none.
fn optima<'a>(
    data: &Selection,
    phase: &str,
    of_each: bool,
    drawn: impl Iterator<Item = (u32, &'a str)>,
) -> Vec<Optimum> {
    let mut found: Vec<Optimum> = Vec::new();
    for (point_id, group) in drawn {
        let path = data.path(point_id, group, phase);
        let known = path.and_then(|path| Some((path, path.base_rtt_ms?)));
        let Some((path, base_rtt_ms)) = known else { continue };
        let sharing = data.groups_sharing_bottleneck(point_id, group, phase);
        let flows = sharing.values().sum::<u32>().max(1);
        let share = if of_each { 1.0 / f64::from(flows) } else { 1.0 };
        let same = |known: &Optimum| {
            is_same(known.base_rtt_ms, base_rtt_ms)
                && is_same(known.path.rate_bps * known.share, path.rate_bps * share)
        };
        let at = found.iter().position(same).unwrap_or(found.len());
        if at == found.len() {
            let (points, groups, label) = Default::default();
            found.push(Optimum { path, base_rtt_ms, points, groups, label, share });
        }
        found[at].points.insert(point_id);
        found[at].groups.insert(group.to_owned());
    }
    let same_points = found.windows(2).all(|pair| pair[0].points == pair[1].points);
    let same_groups = found.windows(2).all(|pair| pair[0].groups == pair[1].groups);
    if found.len() > 1 {
        for optimum in &mut found {
            let groups = optimum.groups.iter().cloned().collect::<Vec<_>>().join(", ");
            optimum.label = match (same_points, same_groups) {
                (true, _) => groups,
                (false, true) => data.common_name(&optimum.points),
                (false, false) => format!("{}: {groups}", data.common_name(&optimum.points)),
            };
        }
    }
    found
}

impl Optimum {
    fn in_flight(&self) -> f64 {
        self.path.bdp_packets(self.base_rtt_ms)
    }

    fn mbit_per_s(&self) -> f64 {
        self.path.payload_bps() * self.share / 1e6
    }

    fn srtt_ms(&self) -> f64 {
        self.base_rtt_ms
    }

    fn draw(&self, canvas: &mut Canvas, frame: &Frame, (x, y): (f64, f64)) {
        let (x, y) = frame.at(x, y);
        canvas.mark(Shape::Star, (x, y), MARKER_SIZE + 1.0, OPTIMUM_COLOUR);
        let style = Style { colour: OPTIMUM_COLOUR, ..Style::new(SMALL, Anchor::Start) };
        // On the side with more room.
        let (before, behind) = (x - frame.left, frame.left + frame.width - x);
        let (anchor, aside) = if behind >= before {
            (Anchor::Start, MARKER_SIZE)
        } else {
            (Anchor::End, -MARKER_SIZE)
        };
        let label = truncate_end(&self.label, style, before.max(behind) - MARKER_SIZE);
        if !label.is_empty() {
            // Above and outwards, away from most markers.
            canvas.text(
                (x + aside * 0.6, y - MARKER_SIZE * 0.6),
                Style { anchor, ..style },
                &label,
            );
        }
    }
}

/// Content of the plane.
struct PlaneSheet<'a> {
    data: &'a Selection,
    marks: &'a [PlaneMarker],
    /// Keys of the flows or of the points.
    keys: &'a [(Key, String)],
    /// Keys of the groups, if there are several groups and several points.
    of_groups: &'a [(Key, String)],
}

impl PlaneSheet<'_> {
    /// Returns the legend. A heading before the points lists the factors that name them.
    fn legend(&self, room: f64) -> Vec<(Key, String)> {
        let texts: Vec<String> = self.keys.iter().map(|(_, name)| name.clone()).collect();
        let factors = self.data.point_factors();
        let heading = (!factors.is_empty()).then(|| (Key::Heading, format!("{factors}:")));
        let named = self.keys.iter().zip(labels_for_two_columns(&texts, room));
        let named = named.map(|((key, _), name)| (*key, name));
        heading.into_iter().chain(named).chain(self.of_groups.iter().cloned()).collect()
    }

    fn draw(&self, phases: &[String], whose: &str) -> (String, f64) {
        let Self { data, marks, .. } = *self;
        let shown: Vec<&String> =
            phases.iter().filter(|p| marks.iter().any(|m| m.phase == **p)).collect();
        let usual = if shown.len() > 1 { TWO_COLUMNS_MM } else { COLUMN_MM };
        let width = points(data.request.width_mm.unwrap_or(usual));
        let of_phase = |phase: &String| {
            let marks = marks.iter().filter(|mark| mark.phase == *phase);
            optima(data, phase, true, marks.map(|mark| (mark.point_id, group_of(&mark.flow))))
        };
        let optima: Vec<Vec<Optimum>> = shown.iter().map(|phase| of_phase(phase)).collect();
        let most = |of: fn(&OperatingPoint) -> Mean| {
            let end = |m: &PlaneMarker| {
                let mean = of(&m.point);
                mean.interval.map_or(mean.value, |(_, high)| high.min(mean.value * 1.5))
            };
            marks.iter().map(end).fold(0.0, f64::max)
        };
        let best = |of: OptimumValue| optima.iter().flatten().map(of).fold(0.0, f64::max);
        let x = Axis::linear(
            "Mean sRTT (ms)",
            0.0,
            most(|o| o.srtt_ms).max(best(Optimum::srtt_ms)),
            4.0,
        );
        let label = format!("Throughput{whose} (Mbit/s)");
        let room_for_names =
            if optima.iter().any(|of_phase| of_phase.len() > 1) { 1.08 } else { 1.0 };
        let highest = most(|o| o.mbit_per_s).max(best(Optimum::mbit_per_s) * room_for_names);
        let y = Axis::linear(&label, 0.0, highest, 5.0);
        let right = right_margin(&x);
        let least = width - left_margin(&[&y], true) - right;
        let mut keys = self.legend(least);
        if optima.iter().any(|of_phase| !of_phase.is_empty()) {
            let text = "optimum (fair share)".to_owned();
            keys.push((Key::Mark(Shape::Star, OPTIMUM_COLOUR), text));
        }
        // A long legend makes the figure higher, not the frames.
        let above = legend_height(&keys, least);
        let usual =
            points(68.0) + (above - legend_height(&keys[..1], least) - 2.0 * SMALL).max(0.0);
        let height = data.request.height_mm.map_or(usual, points);
        let row = Row { size: (width, height), right, above: 10.0, gap: 12.0, count: shown.len() };
        let first = row.first(&keys, &x, &y);
        let mut canvas = Canvas::new(width, height);
        legend(&mut canvas, &keys, (first.left, 3.0), width - first.left - right);
        for (nth, phase) in shown.iter().enumerate() {
            let frame = row.nth(&first, nth);
            frame.draw_background(&mut canvas, &[]);
            let style = Style { colour: FAINT, ..Style::new(7.0, Anchor::Middle) };
            let place = (frame.left + frame.width / 2.0, frame.top - 3.0);
            canvas.text(place, style, &truncate_end(phase, style, frame.width));
            for mark in marks.iter().filter(|mark| mark.phase == **phase) {
                let means = (mark.point.srtt_ms, mark.point.mbit_per_s);
                draw_marker(&mut canvas, &frame, means, (mark.shape, mark.colour));
            }
            for optimum in &optima[nth] {
                optimum.draw(&mut canvas, &frame, (optimum.srtt_ms(), optimum.mbit_per_s()));
            }
            frame.edges(&mut canvas, true, nth == 0);
        }
        (
            canvas.finish(
                "Mean sRTT against mean throughput of each flow, 95 % intervals over trials",
            ),
            width,
        )
    }
}
