//! Settings that change in steps.

use crate::summary::span::Span;

/// A setting of a link over a trial: times in seconds since the start of the trial, ascending from 0, and the value from each time on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Steps(Vec<(f64, f64)>);

impl Steps {
    /// Creates the steps from the plan's value and the values of its changes.
    pub(super) fn new(first: f64, changes: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut later: Vec<(f64, f64)> = changes.collect();
        later.sort_by(|a, b| a.0.total_cmp(&b.0));
        later.insert(0, (0.0, first));
        Self(later)
    }

    /// Returns the mean over a span.
    pub(super) fn mean(&self, (from_s, to_s): Span) -> f64 {
        let ends = self.0.iter().skip(1).map(|(at_s, _)| *at_s).chain([f64::INFINITY]);
        let overlap = |begin_s: f64, end_s: f64| (end_s.min(to_s) - begin_s.max(from_s)).max(0.0);
        let parts = self.0.iter().zip(ends);
        let sum: f64 = parts.map(|((at_s, value), end_s)| value * overlap(*at_s, end_s)).sum();
        sum / (to_s - from_s)
    }

    /// Returns the part of each value that exceeds `limit`.
    pub(super) fn above(&self, limit: f64) -> Self {
        Self(self.0.iter().map(|(at_s, value)| (*at_s, (value - limit).max(0.0))).collect())
    }

    /// Returns the times of the changes.
    pub(super) fn changes_s(&self) -> impl Iterator<Item = f64> {
        self.0.iter().skip(1).map(|(at_s, _)| *at_s)
    }

    /// Returns each time with the difference between the value from then on and the previous value, which is initially 0.
    pub(super) fn differences(&self) -> impl Iterator<Item = (f64, f64)> {
        let before = [0.0].into_iter().chain(self.0.iter().map(|(_, value)| *value));
        self.0.iter().zip(before).map(|((at_s, value), before)| (*at_s, value - before))
    }

    /// Returns the value, if it does not change in a span.
    pub(super) fn constant(&self, (from_s, to_s): Span) -> Option<f64> {
        let before = self.0.iter().rfind(|(at_s, _)| *at_s <= from_s)?;
        let mut inside = self.0.iter().filter(|(at_s, _)| *at_s > from_s && *at_s < to_s);
        inside.all(|(_, value)| *value == before.1).then_some(before.1)
    }
}
