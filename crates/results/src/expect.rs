//! Compares the plan's claims (`[[expect]]`) with the summary. No I/O.
//!
//! A claim is compared with the mean over trials. A claim about two numbers takes both from the same trial or, for two points, from the
//! same repetition: the points of a repetition run one after the other, so slow drift affects both. A claim that cannot be measured gets a
//! row with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ccbench_proto::metric::{Scope, UNDEFINED};
use ccbench_proto::plan::Plan;
use ccbench_proto::plan::expect::{Claim, Expect, Numbered, Operand, Relation, levels};
use polars::prelude::*;

use super::journal::TrialEnd;
use super::model::{TrialStatus, codes_of, level_of};
use super::summary::statistics::mean_with_interval;
use super::summary::tables::{numbers, text};
use super::summary::{PhaseRow, Summary};

mod expectation;
mod print;

pub use expectation::{Expectation, Outcome};
pub use print::text as claims_text;
pub(crate) use print::{limits_text, mean_text, measured_text, number_ranges, quantity, wrapped};

/// Point, phase, scope, subject, metric, statistic.
type Key<'a> = (u32, &'a str, Scope, &'a str, &'a str, &'a str);
/// Values, by repetition.
type Values = BTreeMap<u16, f64>;

/// The statistic that a trial lacks exactly if it exceeds every completed time.
const KM_MEDIAN: &str = "km_median";

/// Why a claim has no measured value.
#[derive(Debug, thiserror::Error)]
enum NotMeasured {
    #[error("no repetition has both numbers, or both are zero")]
    NoPair,
    #[error("the ratio is infinite in {infinite} of {all} trials: the second number is zero")]
    Infinite { infinite: usize, all: usize },
    #[error(
        "the {number} exceeds every completed time in {trials} of the counted trials, so the {limit} limit cannot be tested"
    )]
    BeyondCompleted { number: String, trials: usize, limit: &'static str },
    #[error("this run has no point with {levels} to compare with")]
    NoPoint { levels: String },
    #[error("not run")]
    NotRun,
    #[error("the trial failed{reason}")]
    TrialFailed { reason: String },
    #[error("all {trials} trials failed{reason}")]
    AllFailed { trials: usize, reason: String },
    #[error("the trial was interrupted")]
    TrialInterrupted,
    #[error("all {trials} trials were interrupted")]
    AllInterrupted { trials: usize },
    #[error("all {trials} trials failed or were interrupted{reason}")]
    AllLost { trials: usize, reason: String },
    #[error("no counted trial has the {number}")]
    NoValue { number: String },
    #[error("the {number} is undefined in {trials} of the counted trials")]
    Undefined { number: String, trials: usize },
}

/// Returns all claims of a plan, in its order, each at every point that it is about.
pub fn judge(plan: &Plan, summary: &Summary) -> Vec<Expectation> {
    let index = Index::new(summary);
    let claims = plan.expect.iter().enumerate();
    claims.flat_map(|(nth, expect)| index.claim(nth as u32, expect, plan)).collect()
}

/// The summary's numbers, by what they measure.
struct Index<'a> {
    summary: &'a Summary,
    values: BTreeMap<Key<'a>, Values>,
    by_levels: BTreeMap<&'a [(String, String)], u32>,
    /// The committed trials of each point.
    trials: BTreeMap<u32, Vec<&'a TrialEnd>>,
}

impl<'a> Index<'a> {
    fn new(summary: &'a Summary) -> Self {
        let mut values: BTreeMap<Key<'a>, Values> = BTreeMap::new();
        for row in &summary.phase_rows {
            let PhaseRow { point_id, phase, scope, subject, metric, stat, .. } = row;
            let key = (*point_id, phase.as_str(), *scope, subject.as_str(), *metric, *stat);
            values.entry(key).or_default().insert(row.trial, row.value);
        }
        let by_levels = summary.points.iter().map(|(id, at)| (at.as_slice(), *id)).collect();
        let mut trials: BTreeMap<u32, Vec<&'a TrialEnd>> = BTreeMap::new();
        for end in &summary.trials {
            trials.entry(end.point_id).or_default().push(end);
        }
        Self { summary, values, by_levels, trials }
    }

    fn claim(&self, index: u32, expect: &Expect, plan: &Plan) -> Vec<Expectation> {
        let bare = Expectation {
            index,
            claim: expect.claim.clone(),
            source: expect.source.clone(),
            published: expect.published.clone(),
            point_id: None,
            levels: String::new(),
            number: String::new(),
            test: None,
            measured: None,
            interval: None,
            n_trials: 0,
            outcome: Outcome::NotMeasured,
            reasons: vec![],
        };
        let without = |reason: String| vec![Expectation { reasons: vec![reason], ..bare.clone() }];
        if let Some(reason) = &expect.skip {
            return without(reason.clone());
        }
        let Some(claim) = expect.claim(plan) else {
            return without(
                "the plan does not define what to measure; run `ccbench check`".to_owned(),
            );
        };
        let points: Vec<u32> = self.points(expect);
        if points.is_empty() {
            let at = expect.at.iter().map(|(factor, level)| (factor, levels(level).join(", ")));
            let at: Vec<String> = at.map(|(factor, level)| format!("{factor} = {level}")).collect();
            return without(format!("this run has no point with {}", at.join(" and ")));
        }
        let shared = self.shared_levels(&points);
        let row = |point_id: u32| {
            let mut row = Expectation {
                point_id: Some(point_id),
                levels: self.open_levels(point_id, &shared),
                number: self.describe_with_timescale(point_id, &claim),
                test: Some(claim.test),
                ..bare.clone()
            };
            self.evaluate(&mut row, point_id, &claim);
            row
        };
        points.iter().map(|point_id| row(*point_id)).collect()
    }

    /// Describes what a claim measures, with the timescale if the claim depends on it.
    fn describe_with_timescale(&self, point_id: u32, claim: &Claim) -> String {
        let Numbered { phase, metric, stat, .. } = &claim.number;
        let key = (point_id, phase.as_str(), Scope::Net, "all", "timescale", "mean");
        let timescale = self.values.get(&key).and_then(|values| values.values().next());
        match timescale.filter(|_| metric.depends_on_timescale(stat)) {
            Some(us) => format!("{} (timescale {})", describe_claim(claim), quantity(*us, "us")),
            None => describe_claim(claim),
        }
    }

    /// Returns the points that a claim is about.
    fn points(&self, expect: &Expect) -> Vec<u32> {
        let fits = |at: &[(String, String)]| {
            expect.at.iter().all(|(factor, asked)| {
                level_of(at, factor).is_some_and(|here| levels(asked).iter().any(|l| l == here))
            })
        };
        let points = self.summary.points.iter().filter(|(_, at)| fits(at));
        points.map(|(id, _)| *id).collect()
    }

    fn levels(&self, point_id: u32) -> &'a [(String, String)] {
        self.summary.points.get(&point_id).map_or(&[][..], Vec::as_slice)
    }

    /// Returns the levels that all of these points have.
    fn shared_levels(&self, points: &[u32]) -> Vec<&'a (String, String)> {
        let first = points.first().map_or(&[][..], |first| self.levels(*first));
        let mut shared: Vec<&(String, String)> = first.iter().collect();
        for point_id in points {
            let levels = self.levels(*point_id);
            shared.retain(|level| levels.contains(level));
        }
        shared
    }

    /// Returns the levels of a point that are not `shared` with the claim's other points.
    fn open_levels(&self, point_id: u32, shared: &[&(String, String)]) -> String {
        let open = self.levels(point_id).iter().filter(|level| !shared.contains(level));
        open.map(|(factor, level)| format!("{factor}={level}")).collect::<Vec<_>>().join(" ")
    }

    /// Computes the value and compares it with the limits.
    fn evaluate(&self, row: &mut Expectation, point_id: u32, claim: &Claim) {
        let (values, left_out) = match self.related(point_id, claim) {
            Ok(found) => found,
            Err(reason) => {
                row.reasons = vec![reason.to_string()];
                return;
            }
        };
        let Some(mean) = mean_with_interval(&values) else { return };
        let all = values.len() + left_out;
        let infinite = values.iter().filter(|value| value.is_infinite()).count();
        let infinite_ratios = NotMeasured::Infinite { infinite, all }.to_string();
        let holds = claim.test.holds(mean.value);
        // An infinite mean exceeds every upper limit, but says nothing about a lower one. Infinite ratios of both signs have no mean.
        if infinite > 0 && (holds || mean.value.is_nan()) {
            row.reasons = vec![infinite_ratios];
            return;
        }
        row.measured = Some(mean.value);
        row.interval = mean.interval.filter(|_| infinite == 0);
        row.n_trials = values.len() as u32;
        row.outcome = if holds { Outcome::Holds } else { Outcome::DoesNotHold };
        let mut known = Vec::new();
        let ends = row.interval.map(|(low, high)| [low, high]);
        if ends.is_some_and(|ends| ends.iter().any(|end| claim.test.holds(*end) != holds)) {
            known.push("the 95 % interval includes the limit".to_owned());
        }
        if infinite > 0 {
            known.push(infinite_ratios);
        }
        known.extend(self.defined_in_some(point_id, &claim.number));
        if left_out > 0 {
            let reason = match claim.relation {
                Some(Relation::Over(_)) => "the second number is missing, or both are zero",
                _ => "the second number is missing",
            };
            known.push(format!("{left_out} of {all} trials left out: {reason}"));
        }
        known.extend(self.caveat(point_id));
        row.reasons = known;
    }

    /// Returns the value of each repetition: the claim's number, or its ratio to or difference from the other number. A ratio is infinite
    /// if only the other number is zero. Also returns the number of repetitions that have only the claim's number, or no ratio because
    /// both are zero.
    fn related(&self, point_id: u32, claim: &Claim) -> Result<(Vec<f64>, usize), NotMeasured> {
        let own = self.trial_values(point_id, &claim.number)?;
        self.check_medians(point_id, claim)?;
        let Some(relation) = &claim.relation else { return Ok((own.into_values().collect(), 0)) };
        let (Relation::Over(operand) | Relation::Minus(operand)) = relation;
        let other: Values = match operand {
            Operand::Amount(amount) => own.keys().map(|trial| (*trial, *amount)).collect(),
            Operand::Number(number) => self.trial_values(point_id, number)?,
        };
        let over = matches!(relation, Relation::Over(_));
        let pair = |(trial, value): (&u16, &f64)| {
            // The sum of -0 and 0 is 0.
            let other = other.get(trial)? + 0.0;
            let value = if over { value / other } else { value - other };
            (!value.is_nan()).then_some(value)
        };
        let values: Vec<f64> = own.iter().filter_map(pair).collect();
        if values.is_empty() {
            return Err(NotMeasured::NoPair);
        }
        let left_out = own.len() - values.len();
        Ok((values, left_out))
    }

    /// Checks that the limits can be tested although some trials have no Kaplan-Meier median. These medians exceed every completed time,
    /// so the mean over all trials is higher than that over the others. For the second number of a claim, the relation is lower.
    fn check_medians(&self, point_id: u32, claim: &Claim) -> Result<(), NotMeasured> {
        let second = match &claim.relation {
            Some(
                Relation::Over(Operand::Number(number)) | Relation::Minus(Operand::Number(number)),
            ) => Some(number),
            _ => None,
        };
        let limits =
            [(Some(&claim.number), claim.test.most, "upper"), (second, claim.test.least, "lower")];
        for (number, value, limit) in limits {
            let Some(number) = number.filter(|number| number.stat == KM_MEDIAN) else { continue };
            let trials = self.undefined(point_id, number);
            if value.is_some() && trials > 0 {
                return Err(NotMeasured::BeyondCompleted { number: named(number), trials, limit });
            }
        }
        Ok(())
    }

    fn trial_values(&self, point_id: u32, number: &Numbered) -> Result<Values, NotMeasured> {
        let point = self.other_point(point_id, number)?;
        let values = self.values_of(point, number);
        values.ok_or_else(|| self.why_none(point, number))
    }

    /// Returns the point itself, or the point with the levels in the number's `where`.
    fn other_point(&self, point_id: u32, number: &Numbered) -> Result<u32, NotMeasured> {
        if number.at.is_empty() {
            return Ok(point_id);
        }
        let mut wanted = self.levels(point_id).to_vec();
        for (factor, level) in &mut wanted {
            if let Some(other) = number.at.get(factor) {
                level.clone_from(other);
            }
        }
        self.by_levels.get(wanted.as_slice()).copied().ok_or_else(|| {
            let at: Vec<String> =
                number.at.iter().map(|(f, level)| format!("{f} = {level}")).collect();
            NotMeasured::NoPoint { levels: at.join(" and ") }
        })
    }

    /// Returns the values of a number at a point. A trial in which all values are defined has no row of their number.
    fn values_of(&self, point: u32, number: &Numbered) -> Option<Values> {
        let found = self.rows_of(point, number, number.metric.name, number.stat);
        if number.stat != UNDEFINED {
            return found.cloned();
        }
        let all = self.trials_with_metric(point, number).into_iter();
        let mut values: Values = all.map(|trial| (trial, 0.0)).collect();
        values.extend(found.into_iter().flatten());
        (!values.is_empty()).then_some(values)
    }

    /// Returns the rows of a statistic for a number's subject and phase.
    fn rows_of<'s>(
        &'s self,
        point: u32,
        number: &'s Numbered,
        metric: &'s str,
        stat: &'s str,
    ) -> Option<&'s Values> {
        let Numbered { phase, scope, subject, .. } = number;
        self.values.get(&(point, phase.as_str(), *scope, subject.as_str(), metric, stat))
    }

    /// Returns the trials to which a number's metric applies: those with any of its statistics.
    fn trials_with_metric(&self, point: u32, number: &Numbered) -> BTreeSet<u16> {
        let Numbered { metric, .. } = number;
        let rows =
            metric.stats.iter().filter_map(|stat| self.rows_of(point, number, metric.name, stat));
        let mut trials: BTreeSet<u16> = rows.flat_map(|values| values.keys().copied()).collect();
        // Without a completed fetch, its time has no statistic at all.
        if metric.name == "fetch_time" {
            let unfinished = self.rows_of(point, number, "unfinished_fetches", "sum");
            let unfinished = unfinished.into_iter().flatten().filter(|(_, count)| **count > 0.0);
            trials.extend(unfinished.map(|(trial, _)| *trial));
        }
        trials
    }

    /// Returns how many trials have the number's metric, but no value because it is undefined there.
    fn undefined(&self, point_id: u32, number: &Numbered) -> usize {
        let Ok(point) = self.other_point(point_id, number) else { return 0 };
        let defined = self.values_of(point, number).unwrap_or_default();
        let all = self.trials_with_metric(point, number);
        all.iter().filter(|trial| !defined.contains_key(*trial)).count()
    }

    /// Returns a note on trials that are missing from a mean because the number is undefined there.
    fn defined_in_some(&self, point_id: u32, number: &Numbered) -> Option<String> {
        if self.undefined(point_id, number) == 0 {
            return None;
        }
        let defined = self.values_of(point_id, number).unwrap_or_default().len();
        let all = self.trials_of(point_id).len();
        Some(format!("defined in {defined} of {all} trials"))
    }

    fn trials_of(&self, point_id: u32) -> &[&'a TrialEnd] {
        self.trials.get(&point_id).map_or(&[][..], Vec::as_slice)
    }

    fn why_none(&self, point_id: u32, number: &Numbered) -> NotMeasured {
        let trials = self.trials_of(point_id);
        let lost =
            |end: &&&TrialEnd| matches!(end.status, TrialStatus::Failed | TrialStatus::Aborted);
        match (trials.first(), trials.iter().filter(lost).count()) {
            (None, _) => NotMeasured::NotRun,
            (Some(_), lost) if lost == trials.len() => {
                let is_failed = |end: &&&TrialEnd| end.status == TrialStatus::Failed;
                let failed = trials.iter().filter(is_failed).count();
                let reason = trials.iter().find(is_failed).and_then(|end| end.reasons.first());
                let reason =
                    reason.map_or(String::new(), |r| format!(": {}: {}", r.code, r.message));
                match (failed, lost) {
                    (0, 1) => NotMeasured::TrialInterrupted,
                    (0, trials) => NotMeasured::AllInterrupted { trials },
                    (1, 1) => NotMeasured::TrialFailed { reason },
                    (failed, trials) if failed == trials => {
                        NotMeasured::AllFailed { trials, reason }
                    }
                    (_, trials) => NotMeasured::AllLost { trials, reason },
                }
            }
            _ => {
                let own = Numbered { at: BTreeMap::new(), ..number.clone() };
                match self.undefined(point_id, &own) {
                    0 => NotMeasured::NoValue { number: named(number) },
                    trials => NotMeasured::Undefined { number: named(number), trials },
                }
            }
        }
    }

    /// Returns notes on a point's degraded, failed and interrupted trials.
    fn caveat(&self, point_id: u32) -> Vec<String> {
        let all = self.trials_of(point_id).len();
        let of = |status: TrialStatus| -> Vec<&TrialEnd> {
            let trials = self.trials_of(point_id).iter().copied();
            trials.filter(|end| end.status == status).collect()
        };
        let describe = |ends: Vec<&TrialEnd>, what: &str| {
            let codes = codes_of(ends.iter().flat_map(|end| &end.reasons));
            (!ends.is_empty()).then(|| format!("{} of {all} trials {what} ({codes})", ends.len()))
        };
        let degraded = describe(of(TrialStatus::Degraded), "degraded");
        let failed = describe(of(TrialStatus::Failed), "failed");
        let interrupted = of(TrialStatus::Aborted).len();
        let interrupted =
            (interrupted > 0).then(|| format!("{interrupted} of {all} trials interrupted"));
        degraded.into_iter().chain(failed).chain(interrupted).collect()
    }
}

/// Describes a number.
pub(crate) fn named(number: &Numbered) -> String {
    let Numbered { phase, scope, subject, metric, stat, .. } = number;
    let stat = if *stat == metric.default_stat() { String::new() } else { format!(" ({stat})") };
    let of = if *scope == Scope::Net {
        "all flows".to_owned()
    } else {
        format!("{} {subject}", scope.as_str())
    };
    let phase = if metric.whole_trial { String::new() } else { format!(" in {phase}") };
    format!("{}{stat} of {of}{phase}", metric.name)
}

/// Describes what a claim measures.
fn describe_claim(claim: &Claim) -> String {
    let mut words = named(&claim.number);
    let unit = claim.number.metric.unit_of(claim.number.stat);
    let (how, operand) = match &claim.relation {
        None => return words,
        Some(Relation::Over(operand)) => ("over", operand),
        Some(Relation::Minus(operand)) => ("minus", operand),
    };
    let other = match operand {
        Operand::Amount(amount) => quantity(*amount, unit),
        Operand::Number(number) => {
            let at: Vec<String> =
                number.at.iter().map(|(f, level)| format!("{f}={level}")).collect();
            let at = if at.is_empty() { String::new() } else { format!(" at {}", at.join(" ")) };
            format!("{}{at}", named(number))
        }
    };
    // Writing to a String cannot fail.
    let _ = write!(words, " {how} {other}");
    words
}

/// Returns the table `expectations`.
pub(super) fn frame(rows: &[Expectation]) -> PolarsResult<DataFrame> {
    let maybe = |name: &str, value: fn(&Expectation) -> Option<String>| {
        Column::new(name.into(), rows.iter().map(value).collect::<Vec<_>>())
    };
    let number = |name: &str, value: fn(&Expectation) -> Option<f64>| {
        Column::new(name.into(), rows.iter().map(value).collect::<Vec<_>>())
    };
    DataFrame::new_infer_height(vec![
        numbers("expectation", rows, |r| r.index),
        text("claim", rows, |r| r.claim.clone()),
        maybe("source", |r| r.source.clone()),
        maybe("published", |r| r.published.clone()),
        Column::new("point_id".into(), rows.iter().map(|r| r.point_id).collect::<Vec<_>>()),
        text("levels", rows, |r| r.levels.clone()),
        text("number", rows, |r| r.number.clone()),
        maybe("unit", |r| r.test.map(|test| test.unit.to_owned())),
        number("lower_bound", |r| r.test?.least),
        number("upper_bound", |r| r.test?.most),
        number("measured", |r| r.measured),
        number("ci_low", |r| r.interval.map(|(low, _)| low)),
        number("ci_high", |r| r.interval.map(|(_, high)| high)),
        numbers("n_trials", rows, |r| r.n_trials),
        text("verdict", rows, |r| r.outcome.as_str().to_owned()),
        text("reason", rows, |r| r.reasons.join("; ")),
    ])
}

#[cfg(test)]
mod tests;
