//! `[[expect]]`: a claim about the results, and its limits.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize};
use toml::Value;

use crate::metric::{Metric, Scope};
use crate::units::{Bytes, Micros, Packets, Ppm, Rate, SHARE_UNITS, UnitError};

use super::Plan;
use super::text::{Levels, Name, Scalar};
use selector::{MetricSelector, selecting_table};

pub(in crate::plan) mod selector;

selecting_table! {
    /// A claim about the results: a number of the summary with its bounds.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    pub struct Expect {
        /// The claim, in one line.
        #[schemars(length(max = 200))]
        pub claim: String,
        /// Source of the claim.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub source: Option<String>,
        /// The published value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub published: Option<String>,
        /// Points that the claim applies to: factor = level, or a list of levels; absent: every point.
        #[serde(default, rename = "where", skip_serializing_if = "BTreeMap::is_empty")]
        #[schemars(with = "BTreeMap<String, Levels>")]
        pub at: BTreeMap<String, Value>,
        /// A metric of the summary; `throughput` of a group or of all flows is their sum. Required without `skip`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub metric: Option<String>,
        /// Statistic over the phase: `"mean"`, `"median"`, `"p95"` …; absent: the metric's first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub stat: Option<String>,
    }
    phase_and_subject {
        /// Divisor: an amount, or another number of the same trial or repetition.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub over: Option<Reference>,
        /// Subtrahend; not with `over`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub minus: Option<Reference>,
        /// Upper bound (inclusive). One of `below`, `above`, `between`, `near` is required.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub below: Option<Amount>,
        /// Lower bound (inclusive).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub above: Option<Amount>,
        /// Lower and upper bound.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub between: Option<[Amount; 2]>,
        /// Value and tolerance: a share of the value (`"10%"`) or an amount.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub near: Option<[Amount; 2]>,
        /// Reason why it is not measured; the claim is then only listed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub skip: Option<String>,
    }
}

/// Another number; omitted keys are those of the claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OtherMetric {
    /// Levels in which the other point differs.
    #[serde(rename = "where", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, Scalar>")]
    pub at: BTreeMap<String, Value>,
    /// Name of the metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Statistic over the phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stat: Option<String>,
    /// Phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub phase: Option<String>,
    /// The flow group.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub group: Option<String>,
    /// The flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// The probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub probe: Option<String>,
    /// The link.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub link: Option<String>,
}

/// The divisor or subtrahend that a number is compared with.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Reference {
    /// A constant amount.
    Amount(Amount),
    /// Another measured number.
    Number(Box<OtherMetric>),
}

/// A quantity in a unit of the metric: `"12mbit"`, `"26ms"`, `0.95`, `"95%"`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "amount")]
pub enum Amount {
    /// Without a unit.
    Number(f64),
    /// With its unit.
    Text(String),
}

const EXPECTED: &str = "an amount like \"12mbit\", \"26ms\" or 0.95";

struct AmountVisitor;

impl serde::de::Visitor<'_> for AmountVisitor {
    type Value = Amount;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Amount, E> {
        Ok(Amount::Text(text.to_owned()))
    }
    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Amount, E> {
        Ok(Amount::Number(number as f64))
    }
    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Amount, E> {
        Ok(Amount::Number(number))
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(AmountVisitor)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> serde::de::Visitor<'de> for Either {
            type Value = Reference;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{EXPECTED}, or a table like {{ phase = \"alone\" }}")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Reference, E> {
                AmountVisitor.visit_str(text).map(Reference::Amount)
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Reference, E> {
                AmountVisitor.visit_i64(number).map(Reference::Amount)
            }
            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Reference, E> {
                AmountVisitor.visit_f64(number).map(Reference::Amount)
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<Reference, A::Error> {
                OtherMetric::deserialize(MapAccessDeserializer::new(map))
                    .map(|other| Reference::Number(Box::new(other)))
            }
        }
        d.deserialize_any(Either)
    }
}

/// Why an amount does not fit the unit of a metric.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AmountError {
    /// The text is not a quantity of that unit.
    #[error(transparent)]
    Quantity(#[from] UnitError),
    /// The number needs a unit.
    #[error("`{number}` has no unit; write it like \"{example}\"")]
    NoUnit {
        /// The number.
        number: f64,
        /// An amount with a unit.
        example: &'static str,
    },
    /// The text is not a share, but the number has no unit.
    #[error(
        "`{text}` does not fit: the claim is about a ratio, which has no unit; write it like 0.95, without quotes, or as a share like \"95%\""
    )]
    NotAShare {
        /// The text.
        text: String,
    },
    /// The metric has no unit that can be written.
    #[error("must be a plain number: the metric's unit is {unit}")]
    NotANumber {
        /// The unit.
        unit: String,
    },
}

impl Amount {
    /// Converts the amount to a unit of [`Metric`].
    ///
    /// # Errors
    /// The amount does not fit the unit.
    pub fn in_unit(&self, unit: &str) -> Result<f64, AmountError> {
        let no_unit = |number, example| Err(AmountError::NoUnit { number, example });
        match (unit, self) {
            ("bit/s", Self::Text(text)) => Ok(text.parse::<Rate>()?.bits_per_sec() as f64),
            ("us", Self::Text(text)) => Ok(text.parse::<Micros>()?.get() as f64),
            ("bytes", Self::Text(text)) => Ok(text.parse::<Bytes>()?.get() as f64),
            ("packets", Self::Text(text)) => Ok(f64::from(text.parse::<Packets>()?.get())),
            ("1", Self::Text(text)) => match self.share() {
                Some(share) => Ok(f64::from(share?.get()) / 1e6),
                None => Err(AmountError::NotAShare { text: text.clone() }),
            },
            ("bit/s", Self::Number(n)) => no_unit(*n, "12mbit"),
            ("us", Self::Number(n)) => no_unit(*n, "26ms"),
            ("bytes", Self::Number(n)) => no_unit(*n, "187500B"),
            (_, Self::Number(n)) if n.is_finite() => Ok(*n),
            (unit, _) => Err(AmountError::NotANumber { unit: unit.to_owned() }),
        }
    }

    /// Parses a percentage as a share of another number; `None` for an amount.
    pub(crate) fn share(&self) -> Option<Result<Ppm, UnitError>> {
        let Self::Text(text) = self else { return None };
        let end = text.trim_end().to_ascii_lowercase();
        SHARE_UNITS.iter().any(|(unit, _)| end.ends_with(unit)).then(|| text.parse())
    }

    /// As [`Amount::in_unit`], for a difference of two numbers, which may be negative.
    ///
    /// # Errors
    /// As [`Amount::in_unit`].
    pub fn in_unit_of_difference(&self, unit: &str) -> Result<f64, AmountError> {
        match self.without_sign() {
            // Not -0.
            Some(magnitude) => Ok(0.0 - magnitude.in_unit(unit)?),
            None => self.in_unit(unit),
        }
    }

    /// The text after its minus sign; `None` for a number, or without a sign.
    fn without_sign(&self) -> Option<Self> {
        match self {
            Self::Text(text) => text.trim().strip_prefix('-').map(|rest| Self::Text(rest.into())),
            Self::Number(_) => None,
        }
    }
}

/// A resolved claim: a number, a relation and limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The number.
    pub number: Numbered,
    /// How it is related to a reference.
    pub relation: Option<Relation>,
    /// The limits.
    pub test: Test,
}

/// One number of a summary, at the claim's own point or another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbered {
    /// Levels at which its point differs from the claim's.
    pub at: BTreeMap<String, String>,
    /// The phase, or [`WHOLE_TRIAL`](crate::metric::WHOLE_TRIAL).
    pub phase: String,
    /// Kind of subject.
    pub scope: Scope,
    /// Its name; `all` for all flows together.
    pub subject: String,
    /// The metric.
    pub metric: &'static Metric,
    /// Statistic over the phase.
    pub stat: &'static str,
}

/// The operation on a number before it is compared with the limits.
#[derive(Debug, Clone, PartialEq)]
pub enum Relation {
    /// Divided by.
    Over(Operand),
    /// Less.
    Minus(Operand),
}

/// The second operand of a relation.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A constant, in the metric's unit.
    Amount(f64),
    /// Measured.
    Number(Numbered),
}

/// The limits of a number, in `unit`. They are inclusive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Test {
    /// The lower limit.
    pub least: Option<f64>,
    /// The upper limit.
    pub most: Option<f64>,
    /// Unit of the limits and of the number.
    pub unit: &'static str,
}

impl Test {
    /// Whether a value is within the limits.
    pub fn holds(&self, value: f64) -> bool {
        self.least.is_none_or(|least| value >= least) && self.most.is_none_or(|most| value <= most)
    }
}

/// A problem: the key under the claim, and what to do.
pub(crate) type Fault = (Vec<&'static str>, String);

/// The text of a level in `where` and in the results, without quotes.
pub fn level(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The levels of one factor in `where`.
pub fn levels(value: &Value) -> Vec<String> {
    value.as_array().map_or_else(|| vec![level(value)], |many| many.iter().map(level).collect())
}

impl Expect {
    fn naming(&self) -> MetricSelector<'_> {
        MetricSelector {
            prefix: &[],
            metric: self.metric.as_deref(),
            stat: self.stat.as_deref(),
            phase: self.phase.as_deref(),
            inherited_phase: None,
            subjects: self.subjects(),
        }
    }

    /// Resolves the claim in a plan.
    ///
    /// # Errors
    /// All its problems, each with the key under the claim.
    pub(crate) fn faults_or_claim(&self, plan: &Plan) -> Result<Claim, Vec<Fault>> {
        let mut faults = Vec::new();
        if let (Some(_), Some(_)) = (&self.over, &self.minus) {
            faults.push((
                vec!["minus"],
                "`over` is given too; a claim has only one of the two".to_owned(),
            ));
        }
        let number = match self.naming().number(plan) {
            Ok(number) => number,
            Err(wrong) => return Err([faults, wrong].concat()),
        };
        let unit = number.metric.unit_of(number.stat);
        let mut relation = None;
        for (key, reference) in [("over", &self.over), ("minus", &self.minus)] {
            let Some(reference) = reference else { continue };
            match self.operand(key, reference, &number, plan) {
                Ok(operand) if key == "over" => relation = Some(Relation::Over(operand)),
                Ok(operand) => relation = Some(Relation::Minus(operand)),
                Err(wrong) => faults.extend(wrong),
            }
        }
        let unit = if self.over.is_some() { "1" } else { unit };
        match self.test(unit) {
            Ok(test) if faults.is_empty() => Ok(Claim { number, relation, test }),
            Ok(_) => Err(faults),
            Err(fault) => Err([faults, vec![fault]].concat()),
        }
    }

    /// The resolved claim; `None` if it is skipped or invalid.
    pub fn claim(&self, plan: &Plan) -> Option<Claim> {
        self.skip.is_none().then(|| self.faults_or_claim(plan).ok()).flatten()
    }

    fn operand(
        &self,
        key: &'static str,
        reference: &Reference,
        number: &Numbered,
        plan: &Plan,
    ) -> Result<Operand, Vec<Fault>> {
        let unit = number.metric.unit_of(number.stat);
        let other = match reference {
            Reference::Amount(amount) => {
                let value =
                    amount.in_unit(unit).map_err(|why| vec![(vec![key], why.to_string())])?;
                if key == "over" && value == 0.0 {
                    return Err(vec![(
                        vec![key],
                        "is zero: nothing can be divided by it".to_owned(),
                    )]);
                }
                return Ok(Operand::Amount(value));
            }
            Reference::Number(other) => other,
        };
        let own = [&other.group, &other.flow, &other.probe, &other.link];
        let mine = self.naming();
        let subject = |nth: usize| {
            let (key, scope, name) = mine.subjects[nth];
            let inherit = own.iter().all(|name| name.is_none());
            (key, scope, if inherit { name } else { own[nth].as_deref() })
        };
        let prefix = [key];
        let naming = MetricSelector {
            prefix: &prefix,
            metric: other.metric.as_deref().or(mine.metric),
            stat: other.stat.as_deref().or(mine.stat.filter(|_| other.metric.is_none())),
            phase: other.phase.as_deref(),
            inherited_phase: mine.phase,
            subjects: std::array::from_fn(subject),
        };
        let mut found = naming.number(plan)?;
        let other_unit = found.metric.unit_of(found.stat);
        if other_unit != unit && key == "minus" {
            let why = format!(
                "is in {other_unit}, but the claim's number is in {unit}; name a number in the same unit, or write `over`"
            );
            return Err(vec![(vec![key], why)]);
        }
        let is_same_number = found == *number;
        found.at = other.at.iter().map(|(factor, value)| (factor.clone(), level(value))).collect();
        // A list of levels may include that of the other point.
        let differs = |(factor, other): (&String, &String)| {
            self.at.get(factor).is_none_or(|own| own.is_array() || level(own) != *other)
        };
        if is_same_number && !found.at.iter().any(differs) {
            let why =
                "selects the same number as the claim; name what differs, like `{ phase = \"alone\" }`".to_owned();
            return Err(vec![(vec![key], why)]);
        }
        Ok(Operand::Number(found))
    }

    fn test(&self, unit: &'static str) -> Result<Test, Fault> {
        let value = |key: &'static str, amount: &Amount| {
            let (value, hint) = match &self.minus {
                Some(_) => (amount.in_unit_of_difference(unit), ""),
                None if amount.without_sign().is_some() => {
                    (amount.in_unit(unit), "; only a difference (`minus`) has negative bounds")
                }
                None => (amount.in_unit(unit), ""),
            };
            value.map_err(|why| (vec![key], format!("{why}{hint}")))
        };
        let test = |least, most| Test { least, most, unit };
        match (&self.below, &self.above, &self.between, &self.near) {
            (Some(below), None, None, None) => Ok(test(None, Some(value("below", below)?))),
            (None, Some(above), None, None) => Ok(test(Some(value("above", above)?), None)),
            (None, None, Some([from, to]), None) => {
                let (from, to) = (value("between", from)?, value("between", to)?);
                if from > to {
                    return Err((vec!["between"], "the first bound must be the lower one".to_owned()));
                }
                Ok(test(Some(from), Some(to)))
            }
            (None, None, None, Some([centre, tolerance])) => {
                let centre = value("near", centre)?;
                let half = match tolerance.share() {
                    Some(Ok(share)) => centre.abs() * f64::from(share.get()) / 1e6,
                    Some(Err(why)) => return Err((vec!["near"], why.to_string())),
                    None => {
                        let tolerance = tolerance.in_unit(unit);
                        tolerance.map_err(|why| (vec!["near"], why.to_string()))?.abs()
                    }
                };
                Ok(test(Some(centre - half), Some(centre + half)))
            }
            (None, None, None, None) => Err((
                vec!["below"],
                "the claim has no bound; write `below`, `above`, `between = [a, b]` or `near = [value, tolerance]` \
                 (or `skip = \"why\"`, if it cannot be measured)"
                    .to_owned(),
            )),
            _ => Err((
                vec!["below"],
                "a claim has one of `below`, `above`, `between` and `near`; write two claims".to_owned(),
            )),
        }
    }
}

#[cfg(test)]
mod tests;
