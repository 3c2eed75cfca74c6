//! Compares two runs, or two levels of a factor of one run: differences with confidence intervals and effect sizes.
//!
//! Trials are paired if both sides have the same trial of the same point with the same seed: both trials then used the same
//! random values, and differences are taken trial by trial. Otherwise both sides are independent samples.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::journal::TrialEnd;
use super::model::TrialFilter;
use super::store::{RunDir, StoreError};
use super::summary::statistics::{bootstrap, mean, t_quantile, variance};
use super::summary::{PhaseRow, Summary, compute};
use ccbench_proto::metric::Scope;

use crate::error::{ErrorClass, FileError};

mod plans;
mod print;

pub use plans::plans_differ;
pub use print::{csv, text};

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
    #[error("nothing to compare: {why}")]
    Unpaired {
        /// What is missing, and what exists.
        why: String,
    },
    /// Neither side has such a metric.
    #[error("there is no metric `{metric}` here; there are: {known}")]
    UnknownMetric {
        /// As given.
        metric: String,
        /// The metrics that exist.
        known: String,
    },
}

impl CompareError {
    /// Who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::Unpaired { .. } | Self::UnknownMetric { .. } => ErrorClass::Usage,
        }
    }
}

/// Result of a comparison.
type Result<T, E = CompareError> = std::result::Result<T, E>;

/// The second side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison<'a> {
    /// Another run.
    Run(&'a Path),
    /// Two levels of a factor: its name, the first level, the second level.
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
    /// The statistic over the phase.
    pub stat: &'static str,
    /// The numbers.
    pub numbers: Numbers,
}

/// Two samples and how they differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    /// Trials of each side; equal if they are paired.
    pub n: (u32, u32),
    /// Whether the trials are paired.
    pub paired: bool,
    /// Trials of a paired comparison that have no counterpart with the same seed.
    pub left_out: u32,
    /// Mean of each side.
    pub means: (f64, f64),
    /// Second mean minus the first.
    pub difference: f64,
    /// 95 % confidence interval of the difference: Student's t for pairs, Welch's t otherwise.
    pub t: Option<(f64, f64)>,
    /// 95 % percentile bootstrap interval of the difference.
    pub bootstrap: Option<(f64, f64)>,
    /// Second mean divided by the first; `None` if the first is zero.
    pub ratio: Option<f64>,
    /// 95 % percentile bootstrap interval of the ratio.
    pub ratio_bootstrap: Option<(f64, f64)>,
    /// Hedges' g: the difference divided by the pooled standard deviation, corrected for small samples. `None` if nothing
    /// varies.
    pub hedges_g: Option<f64>,
}

impl Numbers {
    /// Compares independent samples.
    fn unpaired(a: &[f64], b: &[f64]) -> Option<Self> {
        let difference = mean(b)? - mean(a)?;
        let welch = || {
            let (na, nb) = (a.len() as f64, b.len() as f64);
            let (va, vb) = (variance(a)? / na, variance(b)? / nb);
            let freedom = (va + vb).powi(2) / (va.powi(2) / (na - 1.0) + vb.powi(2) / (nb - 1.0));
            let reach = if va + vb > 0.0 { t_quantile(freedom)? * (va + vb).sqrt() } else { 0.0 };
            Some((difference - reach, difference + reach))
        };
        let drawn = |of: fn(f64, f64) -> f64| {
            bootstrap(&[a, b], |both| Some(of(mean(&both[0])?, mean(&both[1])?)))
        };
        Some(Self::with(a, b, false, welch(), [drawn(|a, b| b - a), drawn(|a, b| b / a)]))
    }

    /// Compares pairs of trials; both slices have the same order.
    fn paired(a: &[f64], b: &[f64]) -> Option<Self> {
        let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
        let difference = mean(&differences)?;
        let n = differences.len() as f64;
        let t = || {
            let reach = t_quantile(n - 1.0)? * (variance(&differences)? / n).sqrt();
            Some((difference - reach, difference + reach))
        };
        let pairs: Vec<f64> = (0..a.len()).map(|nth| nth as f64).collect();
        let drawn = |of: fn(f64, f64) -> f64| {
            bootstrap(&[&pairs], |drawn| {
                let side = |values: &[f64]| {
                    mean(&drawn[0].iter().map(|nth| values[*nth as usize]).collect::<Vec<_>>())
                };
                Some(of(side(a)?, side(b)?))
            })
        };
        Some(Self::with(a, b, true, t(), [drawn(|a, b| b - a), drawn(|a, b| b / a)]))
    }

    fn with(
        a: &[f64],
        b: &[f64],
        paired: bool,
        t: Option<(f64, f64)>,
        [bootstrap, ratio_bootstrap]: [Option<(f64, f64)>; 2],
    ) -> Self {
        let means = (mean(a).unwrap_or(f64::NAN), mean(b).unwrap_or(f64::NAN));
        let ratio = (means.0 != 0.0).then(|| means.1 / means.0);
        Self {
            n: (a.len() as u32, b.len() as u32),
            paired,
            left_out: 0,
            means,
            difference: means.1 - means.0,
            t,
            bootstrap,
            ratio,
            ratio_bootstrap: ratio.and(ratio_bootstrap),
            hedges_g: hedges_g(a, b),
        }
    }

    /// Whether the t interval excludes zero; `None` without an interval.
    pub fn differs(&self) -> Option<bool> {
        self.t.map(|(low, high)| low > 0.0 || high < 0.0)
    }
}

/// Hedges' g with the approximate correction 1 - 3 / (4 (na + nb) - 9).
fn hedges_g(a: &[f64], b: &[f64]) -> Option<f64> {
    let (na, nb) = (a.len() as f64, b.len() as f64);
    let pooled = ((na - 1.0) * variance(a)? + (nb - 1.0) * variance(b)?) / (na + nb - 2.0);
    let correction = 1.0 - 3.0 / (4.0 * (na + nb) - 9.0);
    (pooled > 0.0)
        .then(|| correction * (mean(b).unwrap_or(0.0) - mean(a).unwrap_or(0.0)) / pooled.sqrt())
}

/// One side: values with the seed of their trial, by row key and trial.
struct Side {
    name: String,
    values: BTreeMap<RowKey, BTreeMap<u16, (u64, f64)>>,
}

/// Point (levels of shared factors), position of the phase, scope, subject, metric and stat in the order of the summary.
type RowKey = (String, usize, Scope, String, usize);

/// Phases and metrics of both sides, in the order of the table.
struct RowOrder {
    phases: Vec<String>,
    metrics: Vec<(&'static str, &'static str, &'static str)>,
}

/// Compares the given metrics: `name` (its mean or sum) or `name:stat`. If `metrics` is empty, compares the default ones.
///
/// # Errors
/// A run cannot be read, a metric does not exist, or both sides have nothing in common.
pub fn compare(
    run: &Path,
    with: &Comparison<'_>,
    metrics: &[String],
    filter: TrialFilter,
) -> Result<((String, String), Vec<Compared>)> {
    let first = compute(&RunDir::open(run)?, filter)?;
    let mut row_order = RowOrder { phases: first.phases.clone(), metrics: Vec::new() };
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
            second = compute(&RunDir::open(path)?, filter)?;
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
        // Several points of this side would have the same row key.
        if let Some(factor) = side.factors.iter().find(alone) {
            return Err(CompareError::Unpaired {
                why: format!(
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
    let compared = row_order.compared(&a, &b, metrics)?;
    Ok(((a.name, b.name), compared))
}

/// Factors whose levels match the points of both sides: factors of both runs that vary on at least one side.
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
            why: format!("this run has no factor `{factor}`; its factors: {known}"),
        });
    }
    match requested.iter().find(|level| !levels.contains(**level)) {
        Some(level) => Err(CompareError::Unpaired {
            why: format!(
                "`{factor}` has no level `{level}`; there are: {}",
                levels.into_iter().collect::<Vec<_>>().join(", ")
            ),
        }),
        None => Ok(()),
    }
}

impl RowOrder {
    fn rank(&mut self, row: &PhaseRow) -> usize {
        let metric = (row.metric, row.stat, row.unit);
        self.metrics.iter().position(|known| *known == metric).unwrap_or_else(|| {
            self.metrics.push(metric);
            self.metrics.len() - 1
        })
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
        let mut values: BTreeMap<RowKey, BTreeMap<u16, (u64, f64)>> = BTreeMap::new();
        for row in summary.phase_rows.iter().filter(|row| points.contains(&row.point_id)) {
            // Phases that only the second run has come last.
            let phase =
                self.phases.iter().position(|name| *name == row.phase).unwrap_or_else(|| {
                    self.phases.push(row.phase.clone());
                    self.phases.len() - 1
                });
            let levels: Vec<&str> = shared
                .iter()
                .filter_map(|factor| level_of(summary, row.point_id, factor))
                .collect();
            let about = (levels.join(", "), phase, row.scope, row.subject.clone(), self.rank(row));
            let seed = seeds.get(&(row.point_id, row.trial)).copied().unwrap_or_default();
            values.entry(about).or_default().insert(row.trial, (seed, row.value));
        }
        Side { name, values }
    }

    fn compared(&self, a: &Side, b: &Side, requested: &[String]) -> Result<Vec<Compared>> {
        // A name without a statistic means the mean or the sum.
        let plain = |stat: &str| ["mean", "sum"].contains(&stat);
        let selected = |(name, stat, _): &(&str, &str, &str)| {
            let matches = |metric: &String| match crate::model::name_and_stat(metric) {
                (metric, Some(which)) => (metric, which) == (*name, *stat),
                (metric, None) => metric == *name && plain(stat),
            };
            if requested.is_empty() {
                DEFAULT_METRICS.contains(&(*name, *stat))
            } else {
                requested.iter().any(matches)
            }
        };
        // Metrics of groups replace those of their flows.
        let of_groups: BTreeSet<usize> =
            a.values.keys().filter(|about| about.2 == Scope::Group).map(|about| about.4).collect();
        let known: BTreeSet<String> =
            self.metrics.iter().map(|(name, stat, _)| format!("{name}:{stat}")).collect();
        for metric in requested {
            let (name, stat) = crate::model::name_and_stat(metric);
            let exists =
                |row: &(&str, &str, &str)| row.0 == name && stat.is_none_or(|s| row.1 == s);
            if !self.metrics.iter().any(exists) {
                let known = known.iter().cloned().collect::<Vec<_>>().join(", ");
                return Err(CompareError::UnknownMetric { metric: metric.clone(), known });
            }
        }
        let one = |(about, of_a): (&RowKey, &BTreeMap<u16, (u64, f64)>)| {
            let (point, phase, scope, subject, rank) = about;
            let (metric, stat, unit) = self.metrics[*rank];
            let in_group = *scope == Scope::Flow && of_groups.contains(rank);
            if !selected(&self.metrics[*rank]) || in_group {
                return None;
            }
            Some(Compared {
                point: point.clone(),
                phase: self.phases[*phase].clone(),
                scope: *scope,
                subject: subject.clone(),
                metric,
                unit,
                stat,
                numbers: numbers(of_a, b.values.get(about)?)?,
            })
        };
        let found: Vec<Compared> = a.values.iter().filter_map(one).collect();
        if found.is_empty() {
            let subjects = |side: &Side| {
                let of = |about: &RowKey| [about.0.as_str(), &about.3].join(" ").trim().to_owned();
                let names: BTreeSet<String> = side.values.keys().map(of).collect();
                names.into_iter().collect::<Vec<_>>().join(", ")
            };
            return Err(CompareError::Unpaired {
                why: format!(
                    "no phase with a flow group, probe or link has the same name, levels and a number on both sides; {} has {}; {} has {}",
                    a.name,
                    subjects(a),
                    b.name,
                    subjects(b)
                ),
            });
        }
        Ok(found)
    }
}

/// Compares one metric. Pairs trials if at least two have a counterpart with the same seed; the other trials are then left
/// out and counted.
fn numbers(a: &BTreeMap<u16, (u64, f64)>, b: &BTreeMap<u16, (u64, f64)>) -> Option<Numbers> {
    let pairs: Vec<(f64, f64)> = a
        .iter()
        .filter_map(|(trial, (seed, of_a))| {
            let (other, of_b) = b.get(trial)?;
            (seed == other).then_some((*of_a, *of_b))
        })
        .collect();
    if pairs.len() >= 2 || (pairs.len() == 1 && a.len() == 1 && b.len() == 1) {
        let left_out = (a.len() + b.len() - 2 * pairs.len()) as u32;
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        return Numbers::paired(&a, &b).map(|numbers| Numbers { left_out, ..numbers });
    }
    let all = |side: &BTreeMap<u16, (u64, f64)>| {
        side.values().map(|(_, value)| *value).collect::<Vec<_>>()
    };
    Numbers::unpaired(&all(a), &all(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!(
            (found - expected).abs() < 1e-3 * expected.abs().max(1.0),
            "{found} is not {expected}"
        );
    }

    #[test]
    fn welch_interval_and_hedges_g_match_the_textbook() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 4.0, 6.0]);
        let n = Numbers::unpaired(&a, &b).unwrap();
        assert!(!n.paired && n.n == (4, 4));
        assert_close(Some(n.difference), 1.5);
        // Variances 5/3 and 8/3 of four values each: (va + vb)^2 / ((va^2 + vb^2) / 3) degrees of freedom, 5.70.
        let (va, vb) = (5.0 / 12.0, 8.0 / 12.0);
        let freedom: f64 = (va + vb) * (va + vb) / (va * va / 3.0 + vb * vb / 3.0);
        assert_close(Some(freedom), 5.697);
        let reach = t_quantile(freedom).unwrap() * (va + vb).sqrt();
        assert_close(n.t.map(|t| t.0), 1.5 - reach);
        // d = 1.5 / sqrt(13/6) = 1.0190; J = 1 - 3/23.
        assert_close(n.hedges_g, 1.0190 * (1.0 - 3.0 / 23.0));
        assert_close(n.ratio, 1.6);
        assert_eq!(n.differs(), Some(false));
    }

    #[test]
    fn pairing_detects_a_difference_within_the_spread() {
        let a = [10.0, 20.0, 30.0, 40.0, 50.0];
        let b = [11.0, 21.1, 31.0, 40.9, 51.0];
        let side = |values: &[f64], seeds: u64| -> BTreeMap<u16, (u64, f64)> {
            values
                .iter()
                .zip(1..)
                .map(|(v, trial)| (trial, (u64::from(trial) + seeds, *v)))
                .collect()
        };
        let paired = numbers(&side(&a, 0), &side(&b, 0)).unwrap();
        assert!(paired.paired && paired.differs() == Some(true), "{paired:?}");
        let apart = numbers(&side(&a, 0), &side(&b, 7)).unwrap();
        assert!(!apart.paired && apart.differs() == Some(false), "{apart:?}");
        assert!((paired.difference - apart.difference).abs() < 1e-9);
        let most = side(&b, 0).into_iter().filter(|(trial, _)| *trial > 2).collect();
        let paired_three = numbers(&side(&a, 0), &most).unwrap();
        assert_eq!((paired_three.n, paired_three.left_out), ((3, 3), 2));
        // The bootstrap interval contains the difference.
        let (low, high) = paired.bootstrap.unwrap();
        assert!(low > 0.9 && high < 1.1 && low < paired.difference && paired.difference < high);
    }

    #[test]
    fn one_trial_has_a_difference_but_no_interval() {
        let one = |value: f64| BTreeMap::from([(1_u16, (1_u64, value))]);
        let n = numbers(&one(5.0), &one(0.0)).unwrap();
        assert_eq!((n.difference, n.t, n.bootstrap, n.hedges_g), (-5.0, None, None, None));
        let n = numbers(&one(0.0), &one(5.0)).unwrap();
        assert_eq!((n.ratio, n.ratio_bootstrap), (None, None));
    }
}
