//! What the rules of a plan have decided: lines of the journal, and part of `run.json`.

use serde::{Deserialize, Serialize};

/// The result of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The mean is known to within the margin.
    Known,
    /// The mean of the first point is better.
    ABetter,
    /// The mean of the second point is better.
    BBetter,
    /// The means differ by no more than the margin.
    Equivalent,
}

impl Outcome {
    /// Returns the printed text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::ABetter => "a better",
            Self::BBetter => "b better",
            Self::Equivalent => "equivalent",
        }
    }
}

/// A mean, or a difference of means, with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Number of trials, or pairs of trials, that have a value.
    pub n: u32,
    /// The mean, or the mean of the differences a - b.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// A decided rule: a line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// `until` or `compare` with its number in the plan, from 0: `compare.0`.
    pub rule: String,
    /// The point, or both points of a comparison.
    pub points: Vec<u32>,
    /// The result.
    pub outcome: Outcome,
    /// The repetition after which the rule was decided.
    pub after: u16,
    /// The estimate on which the decision is based.
    pub estimate: Estimate,
    /// The estimate's unit.
    pub unit: String,
}

impl Decision {
    /// Returns whether both are the same result of the same rule.
    pub fn repeats(&self, other: &Self) -> bool {
        self.has_rule_of(other) && (self.outcome, self.after) == (other.outcome, other.after)
    }

    /// Returns whether both are results of the same rule at the same points.
    pub(crate) fn has_rule_of(&self, other: &Self) -> bool {
        self.rule == other.rule && self.points == other.points
    }
}
