//! Compares two runs, or two levels of a factor of one run: differences with confidence intervals and effect sizes.
//!
//! Trials are paired if both sides have the same trial of the same point with the same seed. Both trials then used the same random values,
//! so differences are taken trial by trial. Otherwise the two sides are independent samples.
//!
//! Points of two runs are matched by the levels of their common factors. `tolerance` decides which of them agree.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use super::backend::RunBackend;
use super::expect::{self, Expectation};
use super::journal::TrialEnd;
use super::model::TrialFilter;
use super::observer::Observer;
use super::store::{RunDir, StoreError};
use super::summary::{Summary, compute, undefined};
use ccbench_proto::metric::{Scope, UNDEFINED};

use crate::error::{ErrorClass, FileError};
use crate::model::{missing_metric, name_and_stat};

mod claims;
mod numbers;
mod plans;
mod print;
mod tolerance;
mod trials;
mod unmatched;

pub use claims::{ComparedClaims, claims, claims_csv};
pub use numbers::Numbers;
use numbers::numbers;
pub use plans::plans_differ;
pub use print::{agreement, csv, text};
pub use tolerance::{
    DEFAULT_TOLERANCES, InvalidTolerance, JudgedPoint, RETRANSMISSION_SHARE_FLOOR, Tolerance,
};
use tolerance::{is_metric, judged_points};
pub use trials::SideTrials;
pub use unmatched::{Presence, Unmatched};

/// Two runs or levels cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A results directory cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The two sides have nothing in common.
    #[error("nothing to compare: {reason}")]
    Unpaired {
        /// What is missing, and what exists.
        reason: String,
    },
    /// Neither side has such a metric.
    #[error("there is no metric `{metric}` here{hint}")]
    UnknownMetric {
        /// The metric as given.
        metric: String,
        /// How the message continues: the metrics that exist, where this one exists, or which names are similar.
        hint: String,
    },
}

impl CompareError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::Unpaired { .. } | Self::UnknownMetric { .. } => ErrorClass::Usage,
        }
    }
}

/// The result of a comparison.
type Result<T, E = CompareError> = std::result::Result<T, E>;

/// The second side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison<'a> {
    /// Another run.
    Run(&'a Path),
    /// Two levels of a factor: the factor's name, the first level, the second level.
    Levels(&'a str, &'a str, &'a str),
}

/// Metrics and statistics that are compared by default.
const DEFAULT_METRICS: [(&str, &str); 8] = [
    ("throughput_sum", "mean"),
    ("srtt", "mean"),
    ("retransmissions", "sum"),
    ("jain_fairness_of_mean", "mean"),
    ("rtt", "mean"),
    ("fetch_time", "mean"),
    ("backlog", "mean"),
    ("drops", "sum"),
];

/// Maximum number of subjects of each side that an error lists.
const MAX_SUBJECTS: usize = 20;

/// The comparison of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// Levels of the shared factors.
    pub point: String,
    /// The phase's name.
    pub phase: String,
    /// What `subject` is.
    pub scope: Scope,
    /// The flow group, flow, probe or link.
    pub subject: String,
    /// Name of the metric.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The statistic, computed over the phase.
    pub stat: &'static str,
    /// The numbers.
    pub numbers: Numbers,
    /// Whether the means differ by no more than the metric's tolerance; `None` if the metric has none.
    pub agrees: Option<bool>,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Differences {
    /// The names of both runs or levels.
    pub names: (String, String),
    /// The backends of both sides.
    pub backends: [RunBackend; 2],
    /// One row per point, phase, subject and metric that both sides have.
    pub rows: Vec<Compared>,
    /// Points without rows.
    pub unmatched: Vec<Unmatched>,
    /// The points with judged rows, in the order of the points.
    pub judged: Vec<JudgedPoint>,
    /// The claims of both plans; empty if levels are compared.
    pub claims: ComparedClaims,
    /// The trials of both sides at the compared points.
    pub trials: [SideTrials; 2],
    /// Whether both sides are levels of one run.
    pub of_one_run: bool,
}

/// One side of a comparison: values with the seed of their trial, by row key and trial.
struct Side {
    name: String,
    backend: RunBackend,
    values: BTreeMap<RowKey, BTreeMap<u16, (u64, f64)>>,
    /// What the side has of each point, by the position of the point.
    presence: BTreeMap<usize, Presence>,
}

/// Point, phase, scope, subject, and metric with statistic. Numbers are positions in [`RowOrder`].
type RowKey = (usize, usize, Scope, String, usize);

/// Points, phases and metrics of both sides, in the order of the table.
struct RowOrder {
    /// The levels of the shared factors.
    points: Vec<String>,
    phases: Vec<String>,
    metrics: Vec<Metric>,
    /// The position of each metric.
    ranks: HashMap<Metric, usize>,
}

/// Name, statistic and unit.
type Metric = (&'static str, &'static str, &'static str);

/// Which metrics are compared and judged.
struct Metrics<'a> {
    /// The metrics as given on the command line; if empty, the default ones are compared.
    requested: &'a [String],
    /// The tolerances as given on the command line.
    given: &'a [Tolerance],
    /// All tolerances that apply.
    tolerances: Vec<Tolerance>,
}

impl<'a> Metrics<'a> {
    /// Selects metrics. `agreement` says whether the default tolerances apply. They do not add metrics to requested ones.
    fn new(requested: &'a [String], given: &'a [Tolerance], agreement: bool) -> Self {
        let all = if agreement { Tolerance::with_defaults(given) } else { given.to_vec() };
        let is_wanted = |one: &Tolerance| {
            let is_requested =
                |metric: &String| name_and_stat(metric) == name_and_stat(&one.metric);
            given.contains(one) || requested.is_empty() || requested.iter().any(is_requested)
        };
        Self { requested, given, tolerances: all.into_iter().filter(is_wanted).collect() }
    }

    fn is_selected(&self, metric: (&str, &str)) -> bool {
        let is_default = self.requested.is_empty() && DEFAULT_METRICS.contains(&metric);
        is_default
            || self.requested.iter().any(|given| is_metric(given, metric))
            || self.tolerance(metric).is_some()
    }

    /// Returns the tolerance of a metric.
    fn tolerance(&self, metric: (&str, &str)) -> Option<&Tolerance> {
        self.tolerances.iter().find(|one| is_metric(&one.metric, metric))
    }
}

/// Compares the given metrics: `name` (its mean or sum) or `name:stat`. If `metrics` is empty, compares the default ones. Metrics with a
/// tolerance are also compared. Two runs with several common points also have the default tolerances. The observer gets the progress of
/// reading both runs.
///
/// # Errors
/// A run cannot be read, a metric does not exist, or the two sides have nothing in common.
pub fn compare(
    run: &Path,
    with: &Comparison<'_>,
    metrics: &[String],
    tolerances: &[Tolerance],
    filter: TrialFilter,
    observer: &Observer,
) -> Result<Differences> {
    check_names(metrics, tolerances)?;
    let opened = RunDir::open_observed(run, observer)?;
    let first = compute(&opened, filter)?;
    let mut row_order = RowOrder::new(first.phases.clone());
    let mut claims = ComparedClaims::default();
    let second;
    let (one, other, names, points) = match with {
        Comparison::Levels(factor, level_a, level_b) => {
            check_levels(&first, factor, &[level_a, level_b])?;
            let of = |level: &str| {
                matching_points(&first, |point| level_of(&first, point, factor) == Some(level))
            };
            let names = [level_a, level_b].map(|level| format!("{factor}={level}"));
            (&first, &first, names, [of(level_a), of(level_b)])
        }
        Comparison::Run(path) => {
            let other = RunDir::open_observed(path, observer)?;
            second = compute(&other, filter)?;
            let (of_a, of_b) = (claims_of(&opened, &first), claims_of(&other, &second));
            claims = ComparedClaims::new([(&first.points, &of_a), (&second.points, &of_b)]);
            let name = |path: &Path| {
                let last = path.file_name();
                last.map_or_else(
                    || path.display().to_string(),
                    |n| n.to_string_lossy().into_owned(),
                )
            };
            let points = [&first, &second].map(|summary| matching_points(summary, |_| true));
            (&first, &second, [name(run), name(path)], points)
        }
    };
    let shared = shared(one, other, &points);
    for (side, points) in [(one, &points[0]), (other, &points[1])] {
        let alone = |f: &&String| varies(side, points, f) && !shared.contains(f);
        // Without this factor, several points of this side would have the same row key.
        if let Some(factor) = side.factors.iter().find(alone) {
            return Err(CompareError::Unpaired {
                reason: format!(
                    "{} varies `{factor}`, which the other run does not have; compare levels within one run: \
                     --by {factor}=LEVEL,LEVEL",
                    side.run_dir.display()
                ),
            });
        }
    }
    let [name_a, name_b] = names;
    let a = row_order.side(one, name_a, &shared, &points[0]);
    let b = row_order.side(other, name_b, &shared, &points[1]);
    let is_common = |point: &usize| a.has(*point) && b.has(*point);
    let common: BTreeSet<usize> = a.presence.keys().copied().filter(is_common).collect();
    let metrics =
        Metrics::new(metrics, tolerances, matches!(with, Comparison::Run(_)) && common.len() > 1);
    let differences = row_order.differences(a, b, &metrics)?;
    let trials = [(one, &points[0]), (other, &points[1])].map(|(side, points)| {
        let mut positions = row_order.positions(side, &shared, points);
        positions.retain(|_, position| common.contains(position));
        SideTrials::new(side, &positions.into_keys().collect())
    });
    let of_one_run = matches!(with, Comparison::Levels(..));
    Ok(Differences { claims, trials, of_one_run, ..differences })
}

/// Checks the names of metrics before the tables are read.
fn check_names(metrics: &[String], tolerances: &[Tolerance]) -> Result<()> {
    for metric in metrics.iter().chain(tolerances.iter().map(|one| &one.metric)) {
        if let Some(hint) = missing_metric(metric) {
            return Err(CompareError::UnknownMetric { metric: metric.clone(), hint });
        }
    }
    Ok(())
}

/// Returns the results of the claims of a run's plan.
fn claims_of(run: &RunDir, summary: &Summary) -> Vec<Expectation> {
    run.plan().map(|plan| expect::judge(plan.plan(), summary)).unwrap_or_default()
}

/// Returns the factors whose levels match the points of both sides: factors of both runs that vary on at least one side.
fn shared(a: &Summary, b: &Summary, points: &[BTreeSet<u32>; 2]) -> Vec<String> {
    let both = a.factors.iter().filter(|factor| b.factors.contains(factor));
    both.filter(|f| varies(a, &points[0], f) || varies(b, &points[1], f)).cloned().collect()
}

fn varies(summary: &Summary, points: &BTreeSet<u32>, factor: &str) -> bool {
    let levels: BTreeSet<_> =
        points.iter().map(|point| level_of(summary, *point, factor)).collect();
    levels.len() > 1
}

fn level_of<'s>(summary: &'s Summary, point: u32, factor: &str) -> Option<&'s str> {
    super::model::level_of(summary.points.get(&point)?, factor)
}

fn matching_points(summary: &Summary, matches: impl Fn(u32) -> bool) -> BTreeSet<u32> {
    summary.points.keys().copied().filter(|point| matches(*point)).collect()
}

fn check_levels(summary: &Summary, factor: &str, requested: &[&str]) -> Result<()> {
    let levels: BTreeSet<&str> =
        summary.points.keys().filter_map(|point| level_of(summary, *point, factor)).collect();
    if levels.is_empty() {
        let known =
            if summary.factors.is_empty() { "none".to_owned() } else { summary.factors.join(", ") };
        return Err(CompareError::Unpaired {
            reason: format!("this run has no factor `{factor}`; its factors: {known}"),
        });
    }
    match requested.iter().find(|level| !levels.contains(**level)) {
        Some(level) => Err(CompareError::Unpaired {
            reason: format!(
                "`{factor}` has no level `{level}`; its levels: {}",
                levels.into_iter().collect::<Vec<_>>().join(", ")
            ),
        }),
        None => Ok(()),
    }
}

impl Side {
    /// Returns whether this side has rows of a point.
    fn has(&self, point: usize) -> bool {
        self.presence.get(&point) == Some(&Presence::Counted)
    }

    fn presence(&self, point: usize) -> Presence {
        self.presence.get(&point).copied().unwrap_or(Presence::Absent)
    }
}

impl RowOrder {
    fn new(phases: Vec<String>) -> Self {
        Self { points: Vec::new(), phases, metrics: Vec::new(), ranks: HashMap::new() }
    }

    fn rank(&mut self, metric: Metric) -> usize {
        *self.ranks.entry(metric).or_insert_with(|| {
            self.metrics.push(metric);
            self.metrics.len() - 1
        })
    }

    /// Returns the position of each of these points. Points that only the second run has come last.
    fn positions(
        &mut self,
        summary: &Summary,
        shared: &[String],
        points: &BTreeSet<u32>,
    ) -> BTreeMap<u32, usize> {
        let mut known: HashMap<String, usize> = self.points.iter().cloned().zip(0..).collect();
        let mut positions = BTreeMap::new();
        for id in points {
            let levels = shared.iter().filter_map(|factor| level_of(summary, *id, factor));
            let name = levels.collect::<Vec<_>>().join(", ");
            let position = *known.entry(name).or_insert_with_key(|name| {
                self.points.push(name.clone());
                self.points.len() - 1
            });
            positions.insert(*id, position);
        }
        positions
    }

    fn side(
        &mut self,
        summary: &Summary,
        name: String,
        shared: &[String],
        points: &BTreeSet<u32>,
    ) -> Side {
        let seeds: BTreeMap<(u32, u16), u64> = summary
            .trials
            .iter()
            .map(|end: &TrialEnd| ((end.point_id, end.trial), end.seed))
            .collect();
        let positions = self.positions(summary, shared, points);
        let mut presence: BTreeMap<usize, Presence> =
            positions.values().map(|position| (*position, Presence::NoTrial)).collect();
        let mut values: BTreeMap<RowKey, BTreeMap<u16, (u64, f64)>> = BTreeMap::new();
        for row in &summary.phase_rows {
            let Some(point) = positions.get(&row.point_id).copied() else { continue };
            // Phases that only the second run has come last.
            let phase =
                self.phases.iter().position(|name| *name == row.phase).unwrap_or_else(|| {
                    self.phases.push(row.phase.clone());
                    self.phases.len() - 1
                });
            let about = |rank| (point, phase, row.scope, row.subject.clone(), rank);
            let seed = seeds.get(&(row.point_id, row.trial)).copied().unwrap_or_default();
            let rank = self.rank((row.metric, row.stat, row.unit));
            values.entry(about(rank)).or_default().insert(row.trial, (seed, row.value));
            // A trial in which all values are defined has no row of their number.
            if row.stat != UNDEFINED && undefined::is_counted(row.metric, row.scope) {
                let rank = self.rank((row.metric, UNDEFINED, "1"));
                let of_trials = values.entry(about(rank)).or_default();
                of_trials.entry(row.trial).or_insert((seed, 0.0));
            }
            presence.insert(point, Presence::Counted);
        }
        Side { name, backend: summary.backend.clone(), values, presence }
    }

    /// Checks that every named metric has values.
    fn check_metrics(&self, metrics: &Metrics<'_>) -> Result<()> {
        for metric in metrics.requested.iter().chain(metrics.given.iter().map(|one| &one.metric)) {
            let (name, stat) = name_and_stat(metric);
            let exists =
                |row: &(&str, &str, &str)| row.0 == name && stat.is_none_or(|s| row.1 == s);
            if !self.metrics.iter().any(exists) {
                let hint = "; neither side has values for it".to_owned();
                return Err(CompareError::UnknownMetric { metric: metric.clone(), hint });
            }
        }
        Ok(())
    }

    fn differences(&self, a: Side, b: Side, metrics: &Metrics<'_>) -> Result<Differences> {
        self.check_metrics(metrics)?;
        // Metrics of groups replace those of the groups' flows.
        let of_groups: BTreeSet<usize> =
            a.values.keys().filter(|about| about.2 == Scope::Group).map(|about| about.4).collect();
        let is_shown = |about: &RowKey| {
            let (metric, stat, _) = self.metrics[about.4];
            let in_group = about.2 == Scope::Flow && of_groups.contains(&about.4);
            metrics.is_selected((metric, stat)) && !in_group
        };
        let one = |(about, of_a): (&RowKey, &BTreeMap<u16, (u64, f64)>)| {
            let (point, phase, scope, subject, rank) = about;
            let (metric, stat, unit) = self.metrics[*rank];
            let numbers = is_shown(about).then(|| numbers(of_a, b.values.get(about)?)).flatten()?;
            let tolerance = metrics.tolerance((metric, stat));
            Some(Compared {
                point: self.points[*point].clone(),
                phase: self.phases[*phase].clone(),
                scope: *scope,
                subject: subject.clone(),
                metric,
                unit,
                stat,
                agrees: tolerance.map(|one| one.permits(numbers.means)),
                numbers,
            })
        };
        let rows: Vec<Compared> = a.values.iter().filter_map(one).collect();
        if rows.is_empty() {
            return Err(self.nothing_in_common(&a, &b));
        }
        let lacks = |of: &Side, about: &RowKey| {
            let (metric, stat, _) = self.metrics[about.4];
            let is_judged = is_shown(about) && metrics.tolerance((metric, stat)).is_some();
            is_judged && of.has(about.0) && !of.values.contains_key(about)
        };
        let only_in_a = a.values.keys().filter(|about| lacks(&b, about));
        let only_in_b = b.values.keys().filter(|about| lacks(&a, about));
        let name = |about: &RowKey| {
            let (metric, ..) = self.metrics[about.4];
            (about.0, format!("{metric} of {} in {}", about.3, self.phases[about.1]))
        };
        let unmatched_rows: BTreeSet<(usize, String)> =
            only_in_a.chain(only_in_b).map(name).collect();
        let judged = judged_points(&rows, &unmatched_rows, &self.points);
        let unmatched = self.unmatched(&a, &b);
        Ok(Differences {
            names: (a.name, b.name),
            backends: [a.backend, b.backend],
            rows,
            unmatched,
            judged,
            claims: <_>::default(),
            trials: <_>::default(),
            of_one_run: false,
        })
    }

    fn unmatched(&self, a: &Side, b: &Side) -> Vec<Unmatched> {
        let of = |(point, name): (usize, &String)| {
            let sides = (a.presence(point), b.presence(point));
            let is_matched = sides == (Presence::Counted, Presence::Counted);
            (!is_matched).then(|| Unmatched { point: name.clone(), sides })
        };
        self.points.iter().enumerate().filter_map(of).collect()
    }

    fn nothing_in_common(&self, a: &Side, b: &Side) -> CompareError {
        let subjects = |side: &Side| {
            let of = |about: &RowKey| {
                [self.points[about.0].as_str(), &about.3].join(" ").trim().to_owned()
            };
            let names: BTreeSet<String> = side.values.keys().map(of).collect();
            let more = names.len().saturating_sub(MAX_SUBJECTS);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            names.into_iter().take(MAX_SUBJECTS).collect::<Vec<_>>().join(", ") + &more
        };
        CompareError::Unpaired {
            reason: format!(
                "the sides have no number in common: no flow group, probe or link has the same name, phase and levels on both; {} has {}; \
                 {} has {}",
                a.name,
                subjects(a),
                b.name,
                subjects(b)
            ),
        }
    }
}

#[cfg(test)]
mod tests;
