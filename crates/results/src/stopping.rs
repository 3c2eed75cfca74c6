//! Rules that end the repetition of points (`[[repeat.until]]`) and comparisons of points (`[[compare]]`), applied after every trial. No
//! I/O: the caller provides the values of the trials.
//!
//! A rule looks at whole repetitions: at trials 1 to n of its points, once all of them have ended. So neither the order in which trials end
//! nor the number of concurrent trials changes a decision, and a resumed run makes the same decisions as an uninterrupted one. A trial
//! without a value (it failed, or the number is undefined) is left out. In a comparison, so is the other trial of the pair.
//!
//! The intervals are those of a [confidence sequence](confidence), so a rule may look after every repetition.

use std::collections::BTreeMap;

use ccbench_proto::metric::UNDEFINED;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::expect::Numbered;
use ccbench_proto::plan::repeat::{Margin, Measure};
use ccbench_proto::plan::{Better, Plan};

use crate::model::Levels;
use crate::summary::{PhaseRow, Summary};
use confidence::ConfidenceSequence;

pub mod confidence;
mod measure;
mod print;

pub use crate::model::decision::{Decision, Estimate, Outcome};
pub use measure::TrialMeter;
pub use print::{RuleResult, text};

/// Number of repetitions before the first look, for plans with a fixed number of trials.
const FIXED_AT_LEAST: u16 = 2;

/// Whether a trial may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The trial is needed.
    Now,
    /// Trials that are running decide whether it is needed.
    Later,
    /// All rules about the trial's point are decided.
    Never,
}

/// A rule of the plan, for all its points.
#[derive(Debug, Clone, PartialEq)]
struct Definition {
    name: String,
    measure: Measure,
    /// Which direction is better, for a comparison.
    better: Option<Better>,
}

/// A rule at one point or pair of points.
#[derive(Debug, Clone)]
struct Rule {
    definition: usize,
    points: Vec<u32>,
    /// The number of repetitions that the rule has looked at.
    looked: u16,
    evidence: Evidence,
    decision: Option<Decision>,
}

/// The values that a rule has seen.
#[derive(Debug, Clone, Default)]
struct Evidence {
    /// The number, or the difference a - b.
    values: ConfidenceSequence,
    /// a - (1 + share) b and a - (1 - share) b, if the margin is a share of b's mean.
    above: ConfidenceSequence,
    below: ConfidenceSequence,
    /// b.
    other: ConfidenceSequence,
}

/// All rules of a plan, and the trials that have ended.
#[derive(Debug, Clone)]
pub struct StoppingRules {
    definitions: Vec<Definition>,
    rules: Vec<Rule>,
    /// The indices of the rules about each point.
    of_point: BTreeMap<u32, Vec<usize>>,
    /// The values of each definition in the trials that have ended.
    ended: BTreeMap<(u32, u16), Vec<Option<f64>>>,
    at_least: u16,
    /// Whether points are no longer repeated once they are decided.
    is_adaptive: bool,
    levels: Vec<Levels>,
}

impl StoppingRules {
    /// Returns the rules of a plan, before the first trial.
    pub fn new(plan: &CheckedPlan) -> Self {
        let has_rules = plan.plan().repeat.adaptive().is_some() || !plan.plan().compare.is_empty();
        let levels = if has_rules { plan.levels() } else { vec![] };
        let at_least = plan.plan().repeat.adaptive().map(|adaptive| adaptive.at_least);
        let at_least = at_least.map(|trials| u16::try_from(trials).unwrap_or(u16::MAX));
        let mut all = Self {
            definitions: vec![],
            rules: vec![],
            of_point: BTreeMap::new(),
            ended: BTreeMap::new(),
            at_least: at_least.unwrap_or(FIXED_AT_LEAST),
            is_adaptive: at_least.is_some(),
            levels,
        };
        all.define(plan.plan());
        for (index, rule) in all.rules.iter().enumerate() {
            for point in &rule.points {
                all.of_point.entry(*point).or_default().push(index);
            }
        }
        all
    }

    fn define(&mut self, plan: &Plan) {
        let adaptive = plan.repeat.adaptive();
        for (until, nth) in adaptive.iter().flat_map(|adaptive| &adaptive.until).zip(0..) {
            let points = until.points(&self.levels).into_iter().map(|point| vec![point]);
            let points: Vec<Vec<u32>> = points.collect();
            self.add(&format!("until.{nth}"), until.measure(plan), None, points);
        }
        for (compare, nth) in plan.compare.iter().zip(0..) {
            let pairs = compare.pairs(&self.levels).into_iter().map(|(a, b)| vec![a, b]);
            let pairs: Vec<Vec<u32>> = pairs.collect();
            let better = Some(compare.better);
            self.add(&format!("compare.{nth}"), compare.measure(plan), better, pairs);
        }
    }

    fn add(
        &mut self,
        name: &str,
        measure: Option<Measure>,
        better: Option<Better>,
        points: Vec<Vec<u32>>,
    ) {
        // The plan check rejects rules that measure nothing.
        let Some(measure) = measure else { return };
        let definition = self.definitions.len();
        self.definitions.push(Definition { name: name.to_owned(), measure, better });
        self.rules.extend(points.into_iter().map(|points| Rule {
            definition,
            points,
            looked: 0,
            evidence: Evidence::default(),
            decision: None,
        }));
    }

    /// Returns whether the plan has no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the numbers whose values [`StoppingRules::trial_ended`] needs, in order.
    pub fn numbers(&self) -> Vec<Numbered> {
        self.definitions.iter().map(|definition| definition.measure.number.clone()).collect()
    }

    /// Returns whether a trial may start.
    pub fn start(&self, point_id: u32, trial: u16) -> Start {
        if !self.is_adaptive || trial <= self.at_least {
            return Start::Now;
        }
        let about = self.of_point.get(&point_id).into_iter().flatten();
        let mut start = Start::Never;
        for rule in about.filter_map(|index| self.rules.get(*index)) {
            if rule.decision.is_some() {
                continue;
            }
            if rule.looked >= trial - 1 {
                return Start::Now;
            }
            start = Start::Later;
        }
        start
    }

    /// Returns whether an undecided rule is about a point. Only then do the values of the point's trials matter.
    pub fn is_open(&self, point_id: u32) -> bool {
        let about = self.of_point.get(&point_id).into_iter().flatten();
        let mut rules = about.filter_map(|index| self.rules.get(*index));
        rules.any(|rule| rule.decision.is_none())
    }

    /// Returns whether a run needs a trial, as far as known.
    pub fn is_needed(&self, point_id: u32, trial: u16) -> bool {
        self.ended.contains_key(&(point_id, trial)) || self.start(point_id, trial) != Start::Never
    }

    /// Records the values of the [numbers](StoppingRules::numbers) in a trial that has ended, and returns the rules that this decides.
    /// Values are empty if the point is not [open](StoppingRules::is_open) or the trial has none.
    pub fn trial_ended(
        &mut self,
        point_id: u32,
        trial: u16,
        values: Vec<Option<f64>>,
    ) -> Vec<Decision> {
        self.ended.insert((point_id, trial), values);
        let mut decided = Vec::new();
        for index in self.of_point.get(&point_id).into_iter().flatten() {
            let Some(rule) = self.rules.get_mut(*index) else { continue };
            let was_decided = rule.decision.is_some();
            let definition = &self.definitions[rule.definition];
            while rule.decision.is_none()
                && let Some(values) = values_of(&self.ended, rule)
            {
                rule.look(definition, &values, self.at_least);
            }
            decided.extend(rule.decision.clone().filter(|_| !was_decided));
        }
        decided
    }

    /// Returns the recorded values of a trial that has ended.
    pub fn values(&self, point_id: u32, trial: u16) -> Option<&[Option<f64>]> {
        self.ended.get(&(point_id, trial)).map(Vec::as_slice)
    }

    /// Returns the decided rules, in the order of the plan.
    pub fn decisions(&self) -> Vec<Decision> {
        self.rules.iter().filter_map(|rule| rule.decision.clone()).collect()
    }

    /// Returns the current result of every rule.
    pub fn results(&self) -> Vec<RuleResult> {
        let levels = |point: u32| self.levels.get(point as usize).map_or(&[][..], Vec::as_slice);
        let result = |rule: &Rule| {
            let definition = &self.definitions[rule.definition];
            let points: Vec<&[(String, String)]> =
                rule.points.iter().map(|point| levels(*point)).collect();
            RuleResult::new(definition, rule, &points)
        };
        self.rules.iter().map(result).collect()
    }
}

/// Returns the values of the rule's points in the repetition that it looks at next; `None` if one of these trials has not ended.
fn values_of(
    ended: &BTreeMap<(u32, u16), Vec<Option<f64>>>,
    rule: &Rule,
) -> Option<Vec<Option<f64>>> {
    let trial = rule.looked.checked_add(1)?;
    let value = |point: &u32| {
        let values = ended.get(&(*point, trial))?;
        Some(values.get(rule.definition).copied().flatten())
    };
    rule.points.iter().map(value).collect()
}

impl Rule {
    /// Looks at the next repetition, with these values of the rule's points.
    fn look(&mut self, definition: &Definition, values: &[Option<f64>], at_least: u16) {
        self.looked += 1;
        let Measure { number, margin } = &definition.measure;
        match *values {
            [Some(value)] => self.evidence.values.push(value),
            [Some(a), Some(b)] => self.evidence.pair(a, b, *margin),
            _ => {}
        }
        if self.looked < at_least {
            return;
        }
        let outcome = match definition.better {
            None => self.evidence.is_within(*margin).then_some(Outcome::Known),
            Some(better) => self.evidence.compared(*margin, better),
        };
        let Some((outcome, estimate)) = outcome.zip(self.evidence.estimate()) else { return };
        self.decision = Some(Decision {
            rule: definition.name.clone(),
            points: self.points.clone(),
            outcome,
            after: self.looked,
            estimate,
            unit: number.metric.unit_of(number.stat).to_owned(),
        });
    }
}

impl Evidence {
    fn pair(&mut self, a: f64, b: f64, margin: Margin) {
        self.values.push(a - b);
        self.other.push(b);
        if let Margin::Share(share) = margin {
            self.above.push(a - (1.0 + share) * b);
            self.below.push(a - (1.0 - share) * b);
        }
    }

    /// Returns the estimate; `None` while the interval is infinite.
    fn estimate(&self) -> Option<Estimate> {
        let (mean, (low, high)) = (self.values.mean()?, self.values.interval()?);
        Some(Estimate { n: self.values.n(), mean, low, high })
    }

    fn is_within(&self, margin: Margin) -> bool {
        self.estimate().is_some_and(|Estimate { mean, low, high, .. }| {
            (high - low) / 2.0 <= margin.about(mean)
        })
    }

    /// Compares two points. Equivalence comes first: a difference below the margin does not matter, even if it exists.
    fn compared(&self, margin: Margin, better: Better) -> Option<Outcome> {
        let Estimate { low, high, .. } = self.estimate()?;
        let is_equivalent = match margin {
            Margin::Amount(amount) => -amount <= low && high <= amount,
            Margin::Share(_) => {
                let above = self.above.interval().is_some_and(|(_, high)| high <= 0.0);
                let below = self.below.interval().is_some_and(|(low, _)| low >= 0.0);
                above && below && self.other.mean().is_some_and(|mean| mean > 0.0)
            }
        };
        match better {
            _ if is_equivalent => Some(Outcome::Equivalent),
            Better::Higher if low > 0.0 => Some(Outcome::ABetter),
            Better::Higher if high < 0.0 => Some(Outcome::BBetter),
            Better::Lower if high < 0.0 => Some(Outcome::ABetter),
            Better::Lower if low > 0.0 => Some(Outcome::BBetter),
            Better::Higher | Better::Lower => None,
        }
    }
}

/// Returns the value of a number in the rows of one trial.
fn value_of(rows: &[PhaseRow], number: &Numbered) -> Option<f64> {
    let Numbered { phase, scope, subject, metric, stat, .. } = number;
    let is_of_metric = |row: &&PhaseRow| {
        row.phase == *phase
            && row.scope == *scope
            && row.subject == *subject
            && row.metric == metric.name
    };
    let mut of_metric = rows.iter().filter(is_of_metric).peekable();
    // A trial in which all values are defined has no row of their number.
    let none = (*stat == UNDEFINED && of_metric.peek().is_some()).then_some(0.0);
    let value = of_metric.find(|row| row.stat == *stat).map(|row| row.value).or(none);
    value.filter(|value| value.is_finite())
}

/// Returns the results of all rules of a plan, according to a summary.
pub fn judge(plan: &CheckedPlan, summary: &Summary) -> Vec<RuleResult> {
    let mut rules = StoppingRules::new(plan);
    if rules.is_empty() {
        return vec![];
    }
    let numbers = rules.numbers();
    // Aborted trials included: they have ended without values, and the run goes on.
    for end in &summary.trials {
        let rows = match measure::counts(end) {
            true => summary.phase_rows_of_trial(end.point_id, end.trial),
            false => &[],
        };
        let values = numbers.iter().map(|number| value_of(rows, number)).collect();
        rules.trial_ended(end.point_id, end.trial, values);
    }
    rules.results()
}

#[cfg(test)]
mod tests;
