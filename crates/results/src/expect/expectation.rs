//! A claim of the plan and what was measured.

use ccbench_proto::plan::expect::Test;

/// Result of judging a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The mean over trials is within the limits.
    Holds,
    /// It is not.
    DoesNotHold,
    /// There is no such number in the summary.
    NotMeasured,
}

impl Outcome {
    /// As it is written in the column `verdict`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does_not_hold",
            Self::NotMeasured => "not_measured",
        }
    }
}

/// A claim and what was measured, at one point: a row of `expectations`.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// Which claim of the plan, counted from 0.
    pub index: u32,
    /// The claim in one line.
    pub claim: String,
    /// Source of the claim.
    pub source: Option<String>,
    /// The published value.
    pub published: Option<String>,
    /// The point at which it was measured; `None` if it was not.
    pub point_id: Option<u32>,
    /// Levels of that point that the claim's `where` does not select, for example `scheme=ta`.
    pub levels: String,
    /// The number, in words: `srtt mean of group long in alone`.
    pub number: String,
    /// The limits; `None` if there are none to hold it against.
    pub test: Option<Test>,
    /// The mean over trials.
    pub measured: Option<f64>,
    /// Its 95 % confidence interval; `None` with fewer than two trials.
    pub interval: Option<(f64, f64)>,
    /// Trials in it.
    pub n_trials: u32,
    /// Whether it holds.
    pub outcome: Outcome,
    /// Why it was not measured, or what to know of the measurement. The name is that of the column.
    pub why: Vec<String>,
}

impl Expectation {
    /// The event of `--json`.
    pub fn json(&self) -> serde_json::Value {
        let test = self.test;
        serde_json::json!({
            "event": "expectation", "expectation": self.index, "claim": self.claim, "source": self.source, "published": self.published,
            "point_id": self.point_id, "levels": self.levels, "number": self.number, "unit": test.map(|test| test.unit),
            "least": test.and_then(|test| test.least), "most": test.and_then(|test| test.most),
            "measured": self.measured, "ci_low": self.interval.map(|(low, _)| low),
            "ci_high": self.interval.map(|(_, high)| high), "n_trials": self.n_trials,
            "verdict": self.outcome.as_str(), "why": self.why,
        })
    }
}
