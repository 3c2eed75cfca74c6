//! A claim of the plan with its measurement.

use ccbench_proto::plan::expect::Test;

/// The result of judging a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The mean over trials is within the limits.
    Holds,
    /// The mean over trials is outside the limits.
    DoesNotHold,
    /// The summary does not have the number.
    NotMeasured,
}

impl Outcome {
    /// Returns the text in the column `verdict`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does_not_hold",
            Self::NotMeasured => "not_measured",
        }
    }
}

/// A claim with its measurement at one point: a row of `expectations`.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// The claim's number in the plan, from 0.
    pub index: u32,
    /// The claim in one line.
    pub claim: String,
    /// Source of the claim.
    pub source: Option<String>,
    /// The published value.
    pub published: Option<String>,
    /// The point at which the claim was measured; `None` if it was not measured.
    pub point_id: Option<u32>,
    /// Levels of that point that the claim's `where` does not select, for example `scheme=ta`.
    pub levels: String,
    /// The number, in words: `srtt mean of group long in alone`.
    pub number: String,
    /// The limits; `None` if the claim has none.
    pub test: Option<Test>,
    /// The mean over trials.
    pub measured: Option<f64>,
    /// The mean's 95 % confidence interval; `None` with fewer than two trials, or if the mean is infinite.
    pub interval: Option<(f64, f64)>,
    /// Number of trials in the mean.
    pub n_trials: u32,
    /// Whether the claim holds.
    pub outcome: Outcome,
    /// Why the claim was not measured, or notes on the measurement: the column `reason`.
    pub reasons: Vec<String>,
}

impl Expectation {
    /// Returns the event of `--json`.
    pub fn json(&self) -> serde_json::Value {
        let test = self.test;
        serde_json::json!({
            "event": "expectation", "expectation": self.index, "claim": self.claim, "source": self.source, "published": self.published,
            "point_id": self.point_id, "levels": self.levels, "number": self.number, "unit": test.map(|test| test.unit),
            "lower_bound": test.and_then(|test| test.least), "upper_bound": test.and_then(|test| test.most),
            "measured": self.measured, "ci_low": self.interval.map(|(low, _)| low),
            "ci_high": self.interval.map(|(_, high)| high), "n_trials": self.n_trials,
            "verdict": self.outcome.as_str(), "reason": self.reasons,
        })
    }
}
