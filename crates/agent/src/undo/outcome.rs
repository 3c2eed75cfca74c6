//! What undoing has done.

use std::fmt;

/// The result of undoing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Steps that were undone.
    pub undone: Vec<String>,
    /// Steps that failed, each with its reason.
    pub failed: Vec<String>,
    /// Steps that were given up, each with its reason.
    pub dropped: Vec<String>,
}

impl Outcome {
    /// Adds the result of one step.
    pub fn note(&mut self, step: impl fmt::Display, result: Result<(), impl fmt::Display>) {
        match result {
            Ok(()) => self.undone.push(step.to_string()),
            Err(error) => self.failed.push(format!("{step}: {error}")),
        }
    }

    /// Appends another outcome.
    pub fn merge(&mut self, other: Self) {
        self.undone.extend(other.undone);
        self.failed.extend(other.failed);
        self.dropped.extend(other.dropped);
    }
}
