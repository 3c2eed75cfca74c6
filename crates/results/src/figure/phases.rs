//! Bar charts of the flow groups or probes in each phase, beside the ideal. There is a group of bars per point, or per flow group if there
//! is only one point.

use std::collections::BTreeSet;

use super::axes::{Axis, Direction, Frame, Key, left_margin, legend};
use super::canvas::{Canvas, INK, PALETTE, Stroke, colour};
use super::cc_names::CcNames;
use super::data::{ALL_FLOWS, Selection};
use super::error::{FigureError, Result};
use super::png::points;
use super::request::{COLUMN_MM, Figure, TWO_COLUMNS_MM};
use crate::csv::{Cell, Table};
use crate::display::readable;
use crate::journal::PhaseRecord;
use crate::model::{name_and_stat, possible_part, scopes_of};
use crate::summary::Summary;
use ccbench_proto::metric::Scope;

/// Maximum number of bars in a single-column figure.
const MAX_PER_COLUMN: usize = 12;

/// A metric of flow groups.
struct Metric {
    scope: Scope,
    name: String,
    stat: String,
    title: String,
    /// Unit on the axis; empty for dimensionless metrics.
    unit: String,
    /// The size of the axis unit in units of the summary.
    scale: f64,
}

impl Metric {
    /// Returns the axis label with the unit; `whose` names the group.
    fn label(&self, whose: &str) -> String {
        let Self { title, unit, .. } = self;
        if unit.is_empty() { format!("{title}{whose}") } else { format!("{title}{whose} ({unit})") }
    }
}

struct Bar {
    subject: Subject,
    value: f64,
    interval: Option<(f64, f64)>,
    /// The part of the interval that is drawn: values that the metric can have.
    possible: Option<(f64, f64)>,
    trials: u32,
    references: References,
}

/// The group or probe of a bar, or all flows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Subject {
    scope: Scope,
    name: String,
}

/// A category of the x axis: a point, or a subject of the only point.
struct Category {
    point_id: u32,
    subject: Option<Subject>,
}

/// The bars at the same position in every category: a phase and, if the categories are points, a subject.
struct Series {
    phase: PhaseRecord,
    subject: Option<Subject>,
}

/// The bars of a figure.
struct Layout<'a> {
    data: &'a Selection,
    ccs: CcNames,
    categories: Vec<Category>,
    series: Vec<Series>,
}

/// A metric with its bars by category and series.
type Panel<'m> = (&'m Metric, Vec<Vec<Option<Bar>>>);

/// Draws the figure.
pub(super) fn draw(data: &Selection) -> Result<Vec<Figure>> {
    let summary = data.summary()?;
    let metrics = metrics(data, &summary)?;
    let layout = Layout::new(data, &summary, &metrics);
    let all: Vec<Panel<'_>> =
        metrics.iter().map(|metric| (metric, layout.bars(&summary, metric))).collect();
    if !all.iter().flat_map(|(_, bars)| bars).flatten().any(Option::is_some) {
        return Ok(vec![]);
    }
    let (csv, (svg, width_points)) = (layout.table(&all), layout.sheet(&all));
    Ok(vec![Figure { stem: data.stem(None), svg, width_points, csv }])
}

/// Scopes with bars; if a metric exists in several, the first is used.
const SCOPES: [Scope; 3] = [Scope::Group, Scope::Probe, Scope::Net];

/// Returns the scopes in which a metric is looked for. As in `[[expect]]`, fairness without a group is that of all flows.
fn scopes_with_bars(data: &Selection, name: &str) -> &'static [Scope] {
    match data.wanted("group") {
        Some(_) if data.wants_all_flows() => &[Scope::Net],
        None if name == "jain_fairness_of_mean" => &[Scope::Net, Scope::Group],
        _ => &SCOPES,
    }
}

/// Returns the requested metrics of groups, probes or all flows (`name` or `name:stat`).
fn metrics(data: &Selection, summary: &Summary) -> Result<Vec<Metric>> {
    let usual = || match data.wants_all_flows() {
        // All flows together have no RTT.
        true => vec!["throughput_sum".to_owned()],
        false => vec!["throughput_sum".to_owned(), "srtt".to_owned()],
    };
    let requested =
        if data.request.metrics.is_empty() { usual() } else { data.request.metrics.clone() };
    let metric = |requested: &String| {
        let (name, stat) = name_and_stat(requested);
        let of_scope = |scope: Scope| {
            let of_name = || {
                let rows = summary.point_rows.iter();
                rows.filter(|row| row.scope == scope && row.metric == name)
            };
            let found = of_name().find(|row| row.stat == stat.unwrap_or("mean"));
            found.or_else(|| of_name().find(|_| stat.is_none()))
        };
        let scopes = scopes_with_bars(data, name);
        let Some(row) = scopes.iter().copied().find_map(of_scope) else {
            let hint = match data.wants_all_flows() {
                true => "; it has no value for all flows together".to_owned(),
                false => no_values(name),
            };
            return Err(FigureError::UnknownMetric { metric: requested.clone(), hint });
        };
        let other = match row.scope {
            Scope::Probe => Some("probes, which belong to no group"),
            Scope::Net if !data.wants_all_flows() => Some("all flows together, not of a group"),
            _ => None,
        };
        if let (Some(group), Some(other)) = (data.wanted("group"), other) {
            let (column, value) = ("group".to_owned(), group.to_owned());
            let reason = format!("`{name}` is a metric of {other}");
            return Err(FigureError::Where { column, value, reason });
        }
        let (scale, unit) = readable(row.unit);
        Ok(Metric {
            scope: row.scope,
            name: name.to_owned(),
            stat: row.stat.to_owned(),
            title: titled(name, row.stat),
            unit: if unit == "1" { String::new() } else { unit.to_owned() },
            scale,
        })
    };
    requested.iter().map(metric).collect()
}

/// Returns why a metric has no bars.
fn no_values(name: &str) -> String {
    let scopes = scopes_of(name);
    if SCOPES.iter().any(|scope| scopes.contains(scope)) {
        return "; this run has no values for it".to_owned();
    }
    let scopes: Vec<&str> = scopes.into_iter().map(Scope::as_str).collect();
    format!(
        "; this kind has bars of flow groups, probes and all flows, but the scope of this metric is {}: use --kind heatmap",
        scopes.join(", ")
    )
}

/// Returns the axis title of a statistic.
pub(super) fn titled(metric: &str, stat: &str) -> String {
    match (metric, stat) {
        ("srtt", "mean") => "Mean sRTT".to_owned(),
        (_, "mean" | "sum") => metric_title(metric),
        _ => format!("{} {stat}", metric_title(metric)),
    }
}

fn metric_title(metric: &str) -> String {
    match metric {
        "throughput_sum" => "Throughput".to_owned(),
        "throughput_per_flow_mean" => "Throughput per flow".to_owned(),
        "srtt" => "sRTT".to_owned(),
        "rtt" => "RTT".to_owned(),
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

/// Returns the groups that the filters accept, the probes, and all flows, as far as these metrics exist for them.
fn subjects(data: &Selection, summary: &Summary, metrics: &[Metric]) -> Vec<Subject> {
    let groups = summary.groups().into_iter().filter(|group| data.accepts("group", group));
    let groups = groups.map(|name| Subject { scope: Scope::Group, name });
    let of_probes = summary.point_rows.iter().filter(|row| row.scope == Scope::Probe);
    let probes: BTreeSet<&str> = of_probes.map(|row| row.subject.as_str()).collect();
    let probes = probes.into_iter().map(|name| (Scope::Probe, name.to_owned()));
    let probes = probes.map(|(scope, name)| Subject { scope, name });
    let is_shown = |one: &Subject| metrics.iter().any(|metric| metric.scope == one.scope);
    let all_flows = Subject { scope: Scope::Net, name: ALL_FLOWS.to_owned() };
    groups.chain(probes).chain([all_flows]).filter(is_shown).collect()
}

impl<'a> Layout<'a> {
    fn new(data: &'a Selection, summary: &Summary, metrics: &[Metric]) -> Self {
        let (points, phases) = (data.points(), data.phases());
        let subjects = subjects(data, summary, metrics);
        let ccs = CcNames::new(summary.ccs.clone(), data.algorithms.clone());
        if let [point_id] = points[..] {
            let category = |subject| Category { point_id, subject: Some(subject) };
            let series = phases.into_iter().map(|phase| Series { phase, subject: None });
            let categories = subjects.into_iter().map(category).collect();
            return Self { data, ccs, categories, series: series.collect() };
        }
        let series = |phase: &PhaseRecord, subject: &Subject| Series {
            phase: phase.clone(),
            subject: Some(subject.clone()),
        };
        let categories =
            points.iter().map(|id| Category { point_id: *id, subject: None }).collect();
        let mut layout = Self { data, ccs, categories, series: vec![] };
        let has_bar = |series: &Series| {
            let bar = |category| {
                metrics.iter().any(|m| bar(data, summary, m, category, series).is_some())
            };
            layout.categories.iter().any(bar)
        };
        let each = |phase| subjects.iter().map(move |subject| series(phase, subject));
        let shown: Vec<Series> = phases.iter().flat_map(each).filter(has_bar).collect();
        let with_bars: BTreeSet<&Subject> =
            shown.iter().filter_map(|one| one.subject.as_ref()).collect();
        let only = with_bars.first().filter(|_| with_bars.len() == 1).map(|one| (*one).clone());
        layout.series = match only {
            Some(subject) => phases.iter().map(|phase| series(phase, &subject)).collect(),
            // Bars would share colours, and nothing would distinguish them.
            None if shown.len() > PALETTE.len() => {
                let group = data.group_under_test(&summary.groups());
                let is_kept = |one: &Series| {
                    let of_group = one.subject.as_ref().filter(|s| s.scope == Scope::Group);
                    of_group.is_none_or(|subject| Some(&subject.name) == group.as_ref())
                };
                shown.into_iter().filter(is_kept).collect()
            }
            None => shown,
        };
        layout
    }

    fn bars(&self, summary: &Summary, metric: &Metric) -> Vec<Vec<Option<Bar>>> {
        let of = |category: &Category| {
            self.series.iter().map(|one| bar(self.data, summary, metric, category, one)).collect()
        };
        self.categories.iter().map(of).collect()
    }

    /// Returns a subject with its congestion controls at the points of the figure.
    fn named(&self, subject: &Subject) -> String {
        match subject.scope {
            Scope::Probe => format!("probe {}", subject.name),
            Scope::Net => "all flows".to_owned(),
            _ => self.ccs.named(&subject.name, &self.data.points()),
        }
    }

    fn category_name(&self, category: &Category) -> String {
        let subject = category.subject.as_ref();
        subject.map_or_else(|| self.data.point_name(category.point_id), |one| self.named(one))
    }

    /// Returns the subject of all bars of a scope, if there is only one.
    fn only_subject(&self, scope: Scope) -> Option<&Subject> {
        let categories = self.categories.iter().filter_map(|category| category.subject.as_ref());
        let series = self.series.iter().filter_map(|one| one.subject.as_ref());
        let all: BTreeSet<&Subject> =
            categories.chain(series).filter(|s| s.scope == scope).collect();
        all.first().copied().filter(|_| all.len() == 1)
    }

    /// Returns the series that may have bars of a metric.
    fn slots(&self, metric: &Metric) -> Vec<usize> {
        let fits = |one: &Series| one.subject.as_ref().is_none_or(|s| s.scope == metric.scope);
        (0..self.series.len()).filter(|nth| fits(&self.series[*nth])).collect()
    }

    /// Returns the legend of the bars, which distinguishes phases, groups or both.
    fn keys(&self) -> Vec<(Key, String)> {
        let phases: BTreeSet<&str> =
            self.series.iter().map(|one| one.phase.name.as_str()).collect();
        let subjects: BTreeSet<&Subject> =
            self.series.iter().filter_map(|one| one.subject.as_ref()).collect();
        let text = |one: &Series| match one.subject.as_ref().filter(|_| subjects.len() > 1) {
            Some(subject) if phases.len() > 1 => {
                format!("{}: {}", one.phase.name, self.named(subject))
            }
            Some(subject) => self.named(subject),
            None => one.phase.name.clone(),
        };
        let heading = match phases.first().filter(|_| phases.len() == 1) {
            Some(phase) if subjects.len() > 1 => Some(format!("phase {phase}:")),
            Some(_) => Some("phase:".to_owned()),
            None => None,
        };
        let boxes = self.series.iter().enumerate();
        let boxes = boxes.map(|(nth, one)| (Key::Box(colour(nth)), text(one)));
        heading.map(|text| (Key::Heading, text)).into_iter().chain(boxes).collect()
    }
}

fn bar(
    data: &Selection,
    summary: &Summary,
    metric: &Metric,
    category: &Category,
    series: &Series,
) -> Option<Bar> {
    let subject = category.subject.as_ref().or(series.subject.as_ref())?;
    let subject = Some(subject).filter(|subject| subject.scope == metric.scope)?;
    let row = summary.find(
        category.point_id,
        &series.phase.name,
        subject.scope,
        &subject.name,
        &metric.name,
        &metric.stat,
    )?;
    let scaled = |value: f64| value / metric.scale;
    let both = |(low, high): (f64, f64)| (scaled(low), scaled(high));
    Some(Bar {
        subject: subject.clone(),
        value: scaled(row.value),
        interval: row.interval.map(both),
        possible: row.interval.map(|ends| both(possible_part(&metric.name, &metric.stat, ends))),
        trials: row.n_trials,
        references: references(
            data,
            metric,
            (category.point_id, &subject.name),
            &series.phase.name,
        )
        .unwrap_or_default(),
    })
}

/// What the plan makes possible for a group, drawn beside its bar, in units of the axis.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct References {
    /// The group's fair share of the payload, or the base RTT if it is alone.
    ideal: Option<f64>,
    /// The RTT while the queue is full, if the group has competitors, which may keep it full.
    full_queue: Option<f64>,
}

impl References {
    /// Returns the existing references, each with its line.
    fn lines(self) -> impl Iterator<Item = (f64, Stroke)> {
        let ideal = self.ideal.map(|value| (value, ideal_stroke()));
        let full_queue = self.full_queue.map(|value| (value, full_queue_stroke()));
        ideal.into_iter().chain(full_queue)
    }
}

const fn ideal_stroke() -> Stroke {
    Stroke::new(INK, 1.4)
}

const fn full_queue_stroke() -> Stroke {
    Stroke { dash: "1.6 1", ..ideal_stroke() }
}

fn references(
    data: &Selection,
    metric: &Metric,
    (point_id, group): (u32, &str),
    phase: &str,
) -> Option<References> {
    let path = data.path(point_id, group, phase)?;
    let sharing = data.groups_sharing_bottleneck(point_id, group, phase);
    let mine = f64::from(*sharing.get(group)?);
    let all = f64::from(sharing.values().sum::<u32>());
    let mut found = References::default();
    match (metric.name.as_str(), metric.stat.as_str()) {
        ("throughput_sum", "mean") => {
            found.ideal = Some(path.payload_bps() * mine / all / metric.scale);
        }
        ("throughput_per_flow_mean", "mean") => {
            found.ideal = Some(path.payload_bps() / all / metric.scale);
        }
        ("srtt", "mean") if sharing.len() == 1 => found.ideal = path.base_rtt_ms,
        ("srtt", "mean") => {
            let both_ms = path.base_rtt_ms.zip(path.full_queue_ms);
            found.full_queue = both_ms.map(|(base_rtt_ms, queue_ms)| base_rtt_ms + queue_ms);
        }
        _ => {}
    }
    Some(found)
}

impl Layout<'_> {
    fn table(&self, all: &[Panel<'_>]) -> String {
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
            "cc",
            "probe",
            "full_queue",
        ]);
        for (metric, bars) in all {
            for (category, bars) in self.categories.iter().zip(bars) {
                let point = self.data.point_name(category.point_id);
                let point = category.subject.as_ref().map_or(point, |subject| subject.name.clone());
                for (series, bar) in self.series.iter().zip(bars) {
                    let Some(bar) = bar else { continue };
                    let of = |scope: Scope| {
                        if bar.subject.scope == scope { bar.subject.name.as_str() } else { "" }
                    };
                    let group = of(Scope::Group);
                    let group_or_all = if group.is_empty() { of(Scope::Net) } else { group };
                    csv.row(&[
                        metric.label("").as_str().into(),
                        f64::from(category.point_id).into(),
                        point.as_str().into(),
                        group_or_all.into(),
                        series.phase.name.as_str().into(),
                        bar.value.into(),
                        bar.interval.map(|i| i.0).into(),
                        bar.interval.map(|i| i.1).into(),
                        f64::from(bar.trials).into(),
                        Cell::from(bar.references.ideal),
                        self.ccs.cc(category.point_id, group).into(),
                        of(Scope::Probe).into(),
                        bar.references.full_queue.into(),
                    ]);
                }
            }
        }
        csv.finish()
    }

    fn sheet(&self, all: &[Panel<'_>]) -> (String, f64) {
        let data = self.data;
        let many = self.categories.len() * self.series.len() > MAX_PER_COLUMN;
        let usual = if many { TWO_COLUMNS_MM } else { COLUMN_MM };
        let width = points(data.request.width_mm.unwrap_or(usual));
        let height = points(data.request.height_mm.unwrap_or(42.0 * all.len() as f64 + 18.0));
        let names: Vec<String> =
            self.categories.iter().map(|category| self.category_name(category)).collect();
        // With a single point, the categories are the groups.
        let several = data.points().len() > 1;
        let whose = |metric: &Metric| {
            let only_subject = self.only_subject(metric.scope);
            only_subject.map_or(String::new(), |subject| match subject.scope {
                Scope::Net => " of all flows".to_owned(),
                _ => format!(" of {}", subject.name),
            })
        };
        let axes: Vec<Axis> = all
            .iter()
            .map(|(metric, bars)| {
                let is_named = several || metric.scope == Scope::Net;
                let whose = if is_named { whose(metric) } else { String::new() };
                value_axis(&metric.label(&whose), bars)
            })
            .collect();
        let left = left_margin(&axes.iter().collect::<Vec<_>>(), true);
        let mut canvas = Canvas::new(width, height);
        let mut keys = self.keys();
        let bars = || all.iter().flat_map(|(_, bars)| bars).flatten().flatten();
        if bars().any(|bar| bar.references.ideal.is_some()) {
            keys.push((Key::Line(ideal_stroke()), "ideal".to_owned()));
        }
        if bars().any(|bar| bar.references.full_queue.is_some()) {
            keys.push((Key::Line(full_queue_stroke()), "full queue".to_owned()));
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
        for (nth, (axis, (metric, bars))) in axes.iter().zip(all).enumerate() {
            let frame = Frame { top: top + nth as f64 * (each + gap), height: each, ..probe(axis) };
            frame.draw_background(&mut canvas, &[]);
            draw_bars(&mut canvas, &frame, bars, &self.slots(metric));
            frame.edges(&mut canvas, nth + 1 == all.len(), true);
        }
        let of = self
            .only_subject(Scope::Group)
            .map_or(String::new(), |subject| format!(" of {}", self.named(subject)));
        (canvas.finish(&format!("Means in each phase{of}, 95 % intervals over trials")), width)
    }
}

/// Returns the axis of these bars, which contains zero. With few trials, an interval may be far wider than its mean; then it ends outside.
fn value_axis(label: &str, bars: &[Vec<Option<Bar>>]) -> Axis {
    let (mut lowest, mut highest) = (0.0_f64, 0.0_f64);
    for bar in bars.iter().flatten().flatten() {
        let (low, high) = bar.possible.unwrap_or((bar.value, bar.value));
        let top = high.min(bar.value * 2.0);
        highest = bar.references.lines().map(|(value, _)| value).fold(highest.max(top), f64::max);
        // Harm is negative if a group gains.
        lowest = lowest.min(low.max(bar.value * 2.0));
    }
    Axis::linear(label, lowest, highest, 4.0)
}

/// Draws the bars of the series in `slots`, side by side.
fn draw_bars(canvas: &mut Canvas, frame: &Frame, bars: &[Vec<Option<Bar>>], slots: &[usize]) {
    const FILLED: f64 = 0.78;
    for (category, bars) in bars.iter().enumerate() {
        let step = FILLED / slots.len().max(1) as f64;
        for (slot, nth) in slots.iter().enumerate() {
            let Some(bar) = &bars[*nth] else { continue };
            let from = category as f64 + (1.0 - FILLED) / 2.0 + step * slot as f64;
            let (x, y) = frame.at(from + step * 0.06, bar.value);
            let wide = frame.at_x(from + step * 0.94) - x;
            let ground = frame.at_y(0.0);
            canvas.rect((x, y.min(ground)), (wide, (ground - y).abs()), colour(*nth));
            let middle = x + wide / 2.0;
            for (value, stroke) in bar.references.lines() {
                let y = frame.at_y(value);
                let beyond = (wide * 0.05).min(1.0);
                canvas.line((x - beyond, y), (x + wide + beyond, y), Stroke::new("#ffffff", 2.2));
                canvas.line((x - beyond, y), (x + wide + beyond, y), stroke);
            }
            if let Some(ends) = bar.possible {
                let line = ((wide * 0.25).min(2.5), Stroke::new(INK, 0.7));
                frame.interval(canvas, (Direction::Y, middle), ends, line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64, interval: Option<(f64, f64)>) -> Option<Bar> {
        let subject = Subject { scope: Scope::Group, name: "late".to_owned() };
        let (possible, references) = (interval, References::default());
        Some(Bar { subject, value, interval, possible, trials: 3, references })
    }

    #[test]
    fn negative_bars_hang_from_zero() {
        let bars = [vec![bar(-0.5, Some((-0.75, -0.25))), bar(1.0, None)]];
        let y = value_axis("Harm", &bars);
        let names = ["late".to_owned()];
        let (left, top, width, height) = (20.0, 10.0, 100.0, 80.0);
        let frame = Frame { left, top, width, height, x: Axis::names("", &names), y };
        let mut canvas = Canvas::new(140.0, 110.0);
        draw_bars(&mut canvas, &frame, &bars, &[0, 1]);
        let svg = canvas.finish("t");
        // The axis is from -1 to 1, so 0.5 is 20 points.
        assert_eq!(frame.at_y(0.0), 50.0);
        for (begin, tall) in [(50.0, 20.0), (10.0, 40.0)] {
            let [y, height] = [("y", begin), ("height", tall)]
                .map(|(name, value): (&str, f64)| format!(" {name}=\"{value:.2}\""));
            let is_bar = |line: &str| line.contains(&y) && line.contains(&height);
            assert!(svg.lines().any(is_bar), "{y}{height}: {svg}");
        }
        // An axis of positive bars begins at zero.
        let positive =
            Frame { y: value_axis("Rate", &[vec![bar(3.0, Some((-9.0, 15.0)))]]), ..frame };
        assert_eq!(positive.at_y(0.0), top + height);
        assert_eq!(positive.at_y(6.0), top);
    }

    #[test]
    fn axis_titles_name_the_statistic() {
        assert_eq!(titled("srtt", "mean"), "Mean sRTT");
        assert_eq!(titled("srtt", "p95"), "sRTT p95");
        assert_eq!(titled("throughput_sum", "mean"), "Throughput");
        assert_eq!(titled("retransmissions", "sum"), "Retransmissions");
        assert_eq!(titled("jain_fairness_of_mean", "mean"), "Jain's index");
    }
}
