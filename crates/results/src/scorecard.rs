//! The scorecard of a congestion control: the criteria of RFC 9743 (BCP 133), measured beside CUBIC. No I/O.
//!
//! Runs of `plans/scorecard/rfc9743.toml` have one. In each of the plan's scenarios, the congestion control under test and CUBIC run with
//! the same seeds. Trials of the same repetition are pairs.

use std::collections::BTreeMap;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::{Better, Cc, Plan};

use super::expect::Outcome;
use super::journal::TrialEnd;
use super::model::{TrialStatus, codes_of, level_of};
use super::reason::ReasonCode;
use super::summary::Summary;
use super::summary::statistics::{Mean, mean_with_interval};

mod criteria;
mod print;

pub use criteria::{Bound, CRITERIA, Criterion, Measure, PHASE};

/// Prefix of the names of plans with a scorecard; the name of the congestion control under test follows.
pub const NAME_PREFIX: &str = "scorecard-";
/// The congestion control that others are compared with.
pub const BASELINE: &str = "cubic";
/// The plan's factor that selects the congestion control, and its levels.
const CC_FACTOR: &str = "cc";
const TESTED_LEVEL: &str = "tested";
const BASELINE_LEVEL: &str = "baseline";
/// The name of the instance under test in `[cc]`.
const INSTANCE: &str = "scored";
/// The plan's factor that selects the scenario.
const SCENARIO_FACTOR: &str = "scenario";

/// Reasons for degraded trials that a congestion control may cause itself, for example by backing off. Such trials count.
const OWN_REASONS: &[ReasonCode] =
    &[ReasonCode::FlowLate, ReasonCode::FlowStalled, ReasonCode::FlowStarved];

/// All criteria with their measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct Scorecard {
    /// Name of the congestion control under test.
    pub cc: String,
    /// What distinguishes the instance under test: its parameters, and its file with the SHA-256. May be empty.
    pub instance: String,
    /// A row for each measure of each criterion, and for each criterion without a measure.
    pub rows: Vec<ScorecardRow>,
    /// Notes on the run for readers.
    pub notes: Vec<String>,
}

/// A row of the table `scorecard`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScorecardRow {
    /// The criterion.
    pub criterion: &'static Criterion,
    /// What is measured; `None` if nothing is, or for the part of a criterion that is not.
    pub measure: Option<&'static Measure>,
    /// The points of the congestion control under test and of the baseline; `None` if the plan lacks the point.
    pub points: [Option<u32>; 2],
    /// The value of the congestion control under test.
    pub tested: Option<Estimate>,
    /// The value of the baseline.
    pub baseline: Option<Estimate>,
    /// The ratio of the congestion control under test to the baseline, over pairs of trials.
    pub ratio: Option<Mean>,
    /// Which one is better.
    pub comparison: Option<Comparison>,
    /// The outcome of the bound; `None` if the value was measured but no document gives a bound.
    pub outcome: Option<Outcome>,
    /// Why the value was not measured, or notes on the measurement: the column `reason`.
    pub reasons: Vec<String>,
    /// The reasons of the trials that prevented the measurement.
    pub codes: String,
}

/// A mean over trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Mean and 95 % confidence interval.
    pub mean: Mean,
    /// Number of trials.
    pub n_trials: u32,
}

/// How a congestion control compares with the baseline: whether the 95 % confidence interval of the mean difference of pairs excludes zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The congestion control is better.
    Better,
    /// The congestion control is worse.
    Worse,
    /// The interval contains zero.
    NoDifference,
}

impl Comparison {
    /// Returns the text in the column `comparison`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoDifference => "no_difference",
        }
    }
}

impl Scorecard {
    /// Returns the scorecard of a run; `None` if its plan has none.
    pub fn new(plan: &Plan, summary: &Summary) -> Option<Self> {
        let cc = plan.name.strip_prefix(NAME_PREFIX)?.to_owned();
        let has = |factor: &str| summary.factors.iter().any(|name| name == factor);
        if !has(CC_FACTOR) || !has(SCENARIO_FACTOR) {
            return None;
        }
        let rows = CRITERIA.iter().flat_map(|criterion| rows_of(criterion, summary)).collect();
        let incomplete = summary.incomplete_run();
        let notes = incomplete.into_iter().chain(summary.backend.notes()).collect();
        Some(Self { cc, instance: String::new(), rows, notes })
    }

    /// Adds the description of the instance under test.
    pub(crate) fn with_instance(mut self, plan: &CheckedPlan) -> Self {
        let is_tested =
            |factors: &[(String, String)]| level_of(factors, CC_FACTOR) == Some(TESTED_LEVEL);
        let tested = plan.points().into_iter().find(|point| is_tested(&point.factors));
        if let Some(cc) = tested.and_then(|point| point.plan.plan().cc.get(INSTANCE).cloned()) {
            self.instance = describe(&cc, &plan.cc_digests());
        }
        self
    }
}

/// Returns the parameters of an instance, and its file with the SHA-256.
fn describe(cc: &Cc, digests: &BTreeMap<String, String>) -> String {
    let params = cc.params.iter().map(|(name, value)| format!("{name} = {value}"));
    let mut parts: Vec<String> = params.collect();
    if let Some((path, _)) = cc.supplied() {
        parts.push(path.to_owned());
        let sha256 = cc.sha256.as_ref().or_else(|| digests.get(path));
        parts.extend(sha256.map(|sha256| format!("SHA-256 {sha256}")));
    }
    parts.join(", ")
}

/// Returns the rows of a criterion.
fn rows_of(criterion: &'static Criterion, summary: &Summary) -> Vec<ScorecardRow> {
    let measures = criterion.measures.iter();
    let measured = measures.map(|measure| ScorecardRow::new(criterion, measure, summary));
    let open = criterion.not_measured;
    let open = open.map(|reason| ScorecardRow::not_measured(criterion, reason));
    measured.chain(open).collect()
}

impl ScorecardRow {
    fn not_measured(criterion: &'static Criterion, reason: &str) -> Self {
        Self {
            criterion,
            measure: None,
            points: [None, None],
            tested: None,
            baseline: None,
            ratio: None,
            comparison: None,
            outcome: Some(Outcome::NotMeasured),
            reasons: vec![reason.to_owned()],
            codes: String::new(),
        }
    }

    fn new(criterion: &'static Criterion, measure: &'static Measure, summary: &Summary) -> Self {
        let [tested, baseline] =
            [TESTED_LEVEL, BASELINE_LEVEL].map(|level| Side::new(level, measure, summary));
        let points = [tested.point_id, baseline.point_id];
        let values = match tested.values {
            Ok(values) => values,
            Err(reason) => {
                let row = Self::not_measured(criterion, &reason.to_string());
                return Self { measure: Some(measure), points, codes: reason.codes(), ..row };
            }
        };
        let mut row = Self {
            measure: Some(measure),
            points,
            tested: Estimate::from_values(&values),
            outcome: None,
            reasons: undefined(points[0], &values, summary).into_iter().collect(),
            ..Self::not_measured(criterion, "")
        };
        if let Some((bound, tested)) = measure.bound.zip(row.tested) {
            let holds = tested.mean.value <= bound.upper;
            row.outcome = Some(if holds { Outcome::Holds } else { Outcome::DoesNotHold });
        }
        match baseline.values {
            Ok(baseline) => {
                let note = undefined(points[1], &baseline, summary);
                row.reasons.extend(note.map(|note| format!("{BASELINE}: {note}")));
                row.compare(measure, &values, &baseline);
            }
            Err(reason) => row.reasons.push(format!("{BASELINE}: {reason}")),
        }
        row
    }

    /// Adds the baseline and the comparison with it.
    fn compare(&mut self, measure: &Measure, tested: &Values, baseline: &Values) {
        let pairs = tested.iter().filter_map(|(trial, a)| Some((*a, *baseline.get(trial)?)));
        let pairs: Vec<(f64, f64)> = pairs.collect();
        let ratios: Vec<f64> =
            pairs.iter().map(|(a, b)| a / b).filter(|ratio| ratio.is_finite()).collect();
        if !ratios.is_empty() && ratios.len() < pairs.len() {
            let (some, all) = (ratios.len(), pairs.len());
            let note = format!("ratio of {some} of {all} pairs: {BASELINE} is 0 in the others");
            self.reasons.push(note);
        }
        let differences: Vec<f64> = pairs.iter().map(|(a, b)| a - b).collect();
        self.baseline = Estimate::from_values(baseline);
        self.ratio = mean_with_interval(&ratios);
        let interval = mean_with_interval(&differences).and_then(|mean| mean.interval);
        self.comparison = interval.map(|(low, high)| match (low > 0.0, high < 0.0) {
            (false, false) => Comparison::NoDifference,
            (higher, _) if higher == (measure.better == Better::Higher) => Comparison::Better,
            _ => Comparison::Worse,
        });
    }

    /// Returns the text in the column `verdict`.
    pub fn verdict(&self) -> &'static str {
        self.outcome.map_or("reported", Outcome::as_str)
    }
}

impl Estimate {
    fn from_values(values: &Values) -> Option<Self> {
        let n_trials = values.len() as u32;
        let values: Vec<f64> = values.values().copied().collect();
        mean_with_interval(&values).map(|mean| Self { mean, n_trials })
    }
}

/// Values, by repetition.
type Values = BTreeMap<u16, f64>;

/// Why a measure has no values.
#[derive(Debug, thiserror::Error)]
enum NotMeasured {
    #[error("not run")]
    NotRun,
    #[error("of {all} trials {degraded} degraded, {failed} failed, {aborted} aborted ({codes})")]
    Disturbed { all: usize, degraded: usize, failed: usize, aborted: usize, codes: String },
    #[error("no trial has a value of {number}")]
    NoValue { number: String },
}

impl NotMeasured {
    /// Returns the reasons of the trials.
    fn codes(self) -> String {
        match self {
            Self::Disturbed { codes, .. } => codes,
            Self::NotRun | Self::NoValue { .. } => String::new(),
        }
    }
}

/// A measure for one of the two congestion controls.
struct Side {
    point_id: Option<u32>,
    values: Result<Values, NotMeasured>,
}

impl Side {
    fn new(level: &str, measure: &Measure, summary: &Summary) -> Self {
        let is_here = |at: &[(String, String)]| {
            level_of(at, CC_FACTOR) == Some(level)
                && level_of(at, SCENARIO_FACTOR) == Some(measure.scenario)
        };
        let point_id = summary.points.iter().find(|(_, at)| is_here(at)).map(|(id, _)| *id);
        let values = match point_id {
            Some(point_id) => values(point_id, measure, summary),
            None => Err(NotMeasured::NotRun),
        };
        Self { point_id, values }
    }
}

/// Returns the values of a measure at a point.
fn values(point_id: u32, measure: &Measure, summary: &Summary) -> Result<Values, NotMeasured> {
    let trials = summary.trials_of(point_id);
    if trials.is_empty() {
        return Err(NotMeasured::NotRun);
    }
    if let Some(reason) = disturbed(trials) {
        return Err(reason);
    }
    let rows = summary.phase_rows_of(point_id).iter().filter(|row| measure.is_of(row));
    let values: Values = rows.map(|row| (row.trial, row.value)).collect();
    if values.is_empty() {
        return Err(NotMeasured::NoValue { number: measure.number() });
    }
    Ok(values)
}

/// Returns why trials of a point do not count: they failed, or something other than the congestion control disturbed them.
fn disturbed(trials: &[TrialEnd]) -> Option<NotMeasured> {
    let is_disturbed = |end: &&TrialEnd| match end.status {
        TrialStatus::Ok => false,
        TrialStatus::Degraded => {
            end.reasons.iter().any(|reason| !OWN_REASONS.contains(&reason.code))
        }
        TrialStatus::Failed | TrialStatus::Aborted => true,
    };
    let disturbed: Vec<&TrialEnd> = trials.iter().filter(is_disturbed).collect();
    let count = |status| disturbed.iter().filter(|end| end.status == status).count();
    let (degraded, failed) = (count(TrialStatus::Degraded), count(TrialStatus::Failed));
    (!disturbed.is_empty()).then(|| NotMeasured::Disturbed {
        all: trials.len(),
        degraded,
        failed,
        aborted: disturbed.len() - degraded - failed,
        codes: codes_of(disturbed.iter().flat_map(|end| &end.reasons)),
    })
}

/// Returns a note on trials in which the number is undefined.
fn undefined(point_id: Option<u32>, values: &Values, summary: &Summary) -> Option<String> {
    let all = summary.trials_of(point_id?).len();
    (values.len() < all).then(|| format!("defined in {} of {all} trials", values.len()))
}

#[cfg(test)]
mod tests;
