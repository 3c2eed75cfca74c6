//! `repeat` and `[[compare]]`: the number of trials of each point, and comparisons of two points.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::Unexpected;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize};
use toml::Value;

use super::Plan;
use super::expect::selector::{MetricSelector, selecting_table};
use super::expect::{Amount, Fault, Numbered, level, levels};
use super::text::{Levels, Name, Scalar};

/// Fewest values with which a rule can be decided. With fewer, its interval is infinite.
pub(in crate::plan) const FEWEST_VALUES: u32 = 5;

/// Trials of every point: a number, or rules that end the repetition.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Repetitions {
    /// The same number for all points.
    Times(u32),
    /// As many as the rules need.
    Adaptive(AdaptiveRepeat),
}

impl Repetitions {
    /// Maximum trials of a point.
    pub fn at_most(&self) -> u32 {
        match self {
            Self::Times(times) => *times,
            Self::Adaptive(adaptive) => adaptive.at_most,
        }
    }

    /// The table; `None` for a number.
    pub fn adaptive(&self) -> Option<&AdaptiveRepeat> {
        match self {
            Self::Times(_) => None,
            Self::Adaptive(adaptive) => Some(adaptive),
        }
    }
}

impl<'de> Deserialize<'de> for Repetitions {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> serde::de::Visitor<'de> for Either {
            type Value = Repetitions;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 1 to 65535, or a table like { at_most = 40 }")
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Repetitions, E> {
                u32::try_from(number)
                    .map(Repetitions::Times)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<Repetitions, A::Error> {
                AdaptiveRepeat::deserialize(MapAccessDeserializer::new(map))
                    .map(Repetitions::Adaptive)
            }
        }
        d.deserialize_any(Either)
    }
}

/// Repeats each point until the rules about it are decided: every `until` here, and every `[[compare]]`. A point without a rule has
/// `at_least` trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveRepeat {
    /// Trials of every point, before rules are applied.
    #[serde(default = "at_least")]
    #[schemars(range(min = 2, max = 65535))]
    pub at_least: u32,
    /// Maximum trials of a point, for rules that are not decided before.
    #[schemars(range(min = 2, max = 65535))]
    pub at_most: u32,
    /// Rules: numbers that must be known to within a margin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub until: Vec<Until>,
}

fn at_least() -> u32 {
    FEWEST_VALUES
}

selecting_table! {
    /// A number of the summary whose mean over trials must be known to within a margin, with a confidence of 95 %.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    pub struct Until {
        /// Points that the rule is about: factor = level, or a list of levels; absent: every point.
        #[serde(default, rename = "where", skip_serializing_if = "BTreeMap::is_empty")]
        #[schemars(with = "BTreeMap<String, Levels>")]
        pub at: BTreeMap<String, Value>,
        /// A metric of the summary, as in `[[expect]]`.
        pub metric: String,
        /// Statistic over the phase; absent: the metric's first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub stat: Option<String>,
    }
    phase_and_subject {
        /// Maximum half-width of the interval: a share of the mean (`"2%"`) or an amount.
        pub within: Amount,
    }
}

selecting_table! {
    /// A comparison of two points, trial by trial: the trials of one repetition are a pair with the same seed. It ends as "a better",
    /// "b better" or "equivalent", with a confidence of 95 %, or is undecided after the last trial.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    pub struct Compare {
        /// Levels of the one point: factor = level.
        #[schemars(with = "BTreeMap<String, Scalar>")]
        pub a: BTreeMap<String, Value>,
        /// Levels of the other point, of the same factors. All other factors have the same levels; each of their combinations is
        /// compared.
        #[schemars(with = "BTreeMap<String, Scalar>")]
        pub b: BTreeMap<String, Value>,
        /// Levels of the other factors: factor = level, or a list of levels; absent: all.
        #[serde(default, rename = "where", skip_serializing_if = "BTreeMap::is_empty")]
        #[schemars(with = "BTreeMap<String, Levels>")]
        pub at: BTreeMap<String, Value>,
        /// A metric of the summary, as in `[[expect]]`.
        pub metric: String,
        /// Statistic over the phase; absent: the metric's first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub stat: Option<String>,
    }
    phase_and_subject {
        /// Which mean is better.
        pub better: Better,
        /// Means that differ by at most this are equivalent: a share of b's mean (`"5%"`) or an amount.
        pub margin: Amount,
    }
}

/// Which of two numbers is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// The higher one.
    Higher,
    /// The lower one.
    Lower,
}

/// A difference that does not matter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Margin {
    /// A share of a mean.
    Share(f64),
    /// In the metric's unit.
    Amount(f64),
}

impl Margin {
    /// The margin around this mean, in its unit.
    pub fn about(self, mean: f64) -> f64 {
        match self {
            Self::Share(share) => share * mean.abs(),
            Self::Amount(amount) => amount,
        }
    }

    fn read(key: &'static str, amount: &Amount, unit: &str) -> Result<Self, Fault> {
        let (margin, value) = match amount.share() {
            Some(Ok(share)) => {
                let share = f64::from(share.get()) / 1e6;
                (Self::Share(share), share)
            }
            Some(Err(why)) => return Err((vec![key], why.to_string())),
            None => {
                let amount = amount.in_unit(unit).map_err(|why| (vec![key], why.to_string()))?;
                (Self::Amount(amount), amount)
            }
        };
        if value > 0.0 {
            Ok(margin)
        } else {
            Err((vec![key], "must be more than zero: no interval becomes that narrow".to_owned()))
        }
    }
}

/// The number and the margin of an [`Until`] or a [`Compare`].
#[derive(Debug, Clone, PartialEq)]
pub struct Measure {
    /// The number.
    pub number: Numbered,
    /// `within` or `margin`.
    pub margin: Margin,
}

/// The number that a selector names, and the margin in its unit.
fn measure(
    selector: &MetricSelector<'_>,
    (key, amount): (&'static str, &Amount),
    plan: &Plan,
) -> Result<Measure, Vec<Fault>> {
    let number = selector.number(plan)?;
    let unit = number.metric.unit_of(number.stat);
    let margin = Margin::read(key, amount, unit).map_err(|fault| vec![fault])?;
    Ok(Measure { number, margin })
}

/// The levels of a point: factor and level.
type PointLevels = [(String, String)];

/// Whether a point has these levels; of a list of levels, it must have one.
pub(in crate::plan) fn fits(at: &BTreeMap<String, Value>, point: &PointLevels) -> bool {
    at.iter().all(|(factor, wanted)| {
        let here = point.iter().find(|(name, _)| name == factor);
        here.is_some_and(|(_, here)| levels(wanted).iter().any(|level| level == here))
    })
}

impl Until {
    /// The ids of the points that the rule is about. `points` are the levels of all points, in the order of their ids.
    pub fn points(&self, points: &[Vec<(String, String)>]) -> Vec<u32> {
        let about = points.iter().zip(0..).filter(|(point, _)| fits(&self.at, point));
        about.map(|(_, id)| id).collect()
    }

    /// Resolves the rule in a plan; `within` is the margin.
    ///
    /// # Errors
    /// All its problems, each with the key under the rule.
    pub(crate) fn faults_or_measure(&self, plan: &Plan) -> Result<Measure, Vec<Fault>> {
        let selector = MetricSelector {
            prefix: &[],
            metric: Some(&self.metric),
            stat: self.stat.as_deref(),
            phase: self.phase.as_deref(),
            inherited_phase: None,
            subjects: self.subjects(),
        };
        measure(&selector, ("within", &self.within), plan)
    }

    /// The number and the margin; `None` if the rule is invalid.
    pub fn measure(&self, plan: &Plan) -> Option<Measure> {
        self.faults_or_measure(plan).ok()
    }
}

impl Compare {
    /// The ids of the points that are compared, `a` first. `points` are the levels of all points, in the order of their ids.
    pub fn pairs(&self, points: &[Vec<(String, String)>]) -> Vec<(u32, u32)> {
        let ids: BTreeMap<&PointLevels, u32> = points.iter().map(Vec::as_slice).zip(0..).collect();
        let other = |point: &PointLevels| {
            let mut wanted = point.to_vec();
            for (factor, here) in &mut wanted {
                if let Some(other) = self.b.get(factor) {
                    *here = level(other);
                }
            }
            ids.get(wanted.as_slice()).copied()
        };
        let is_first = |point: &PointLevels| fits(&self.a, point) && fits(&self.at, point);
        let first = points.iter().zip(0..).filter(|(point, _)| is_first(point));
        first.filter_map(|(point, id)| Some((id, other(point)?))).collect()
    }

    /// Resolves the comparison in a plan.
    ///
    /// # Errors
    /// All its problems, each with the key under the comparison.
    pub(crate) fn faults_or_measure(&self, plan: &Plan) -> Result<Measure, Vec<Fault>> {
        let selector = MetricSelector {
            prefix: &[],
            metric: Some(&self.metric),
            stat: self.stat.as_deref(),
            phase: self.phase.as_deref(),
            inherited_phase: None,
            subjects: self.subjects(),
        };
        measure(&selector, ("margin", &self.margin), plan)
    }

    /// The number and the margin; `None` if the comparison is invalid.
    pub fn measure(&self, plan: &Plan) -> Option<Measure> {
        self.faults_or_measure(plan).ok()
    }
}

#[cfg(test)]
mod tests;
