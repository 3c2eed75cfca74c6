//! What faults have caused. Without effects, a simulation would show nothing.

use std::fmt;
use std::ops::AddAssign;

use crate::faults::{Fault, KINDS};

/// Effects of the faults of a kind.
#[derive(Debug, Clone, Copy, Default)]
struct OfKind {
    /// Faults during a trial that they affect.
    in_trials: usize,
    /// What such a fault does.
    direct: usize,
}

/// Effects of the faults of one or several seeds.
#[derive(Debug, Clone, Default)]
pub struct Effects {
    of_kinds: [OfKind; KINDS.len()],
    /// Nodes that a controller has lost.
    pub lost_nodes: usize,
    /// Trials that began again.
    pub repeated_trials: usize,
}

impl Effects {
    /// Counts a fault during a trial that it affects.
    pub fn meets_trial(&mut self, fault: Fault) {
        self.of_kinds[fault.kind()].in_trials += 1;
    }

    /// Counts direct effects: messages that were held, calls that failed, trials with late messages, and for other faults, trials that did not
    /// run to their end.
    pub fn add(&mut self, fault: Fault, count: usize) {
        self.of_kinds[fault.kind()].direct += count;
    }

    /// Returns what never happened.
    pub fn missing(&self) -> Vec<String> {
        let of_kind = |(name, of): (&&str, &OfKind)| {
            [("was in no trial", of.in_trials), ("had no effect", of.direct)]
                .into_iter()
                .filter(|(_, count)| *count == 0)
                .map(|(what, _)| format!("{name}: {what}"))
                .collect::<Vec<_>>()
        };
        let mut missing: Vec<_> = KINDS.iter().zip(&self.of_kinds).flat_map(of_kind).collect();
        let totals = [
            ("no node was lost", self.lost_nodes),
            ("no trial was repeated", self.repeated_trials),
        ];
        missing.extend(totals.iter().filter(|(_, n)| *n == 0).map(|(what, _)| (*what).to_owned()));
        missing
    }
}

impl AddAssign<&Self> for Effects {
    fn add_assign(&mut self, other: &Self) {
        for (one, other) in self.of_kinds.iter_mut().zip(&other.of_kinds) {
            one.in_trials += other.in_trials;
            one.direct += other.direct;
        }
        self.lost_nodes += other.lost_nodes;
        self.repeated_trials += other.repeated_trials;
    }
}

impl fmt::Display for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, OfKind { in_trials, direct }) in KINDS.iter().zip(&self.of_kinds) {
            writeln!(f, "{name}: {in_trials} during a trial, {direct} effects")?;
        }
        let Self { lost_nodes, repeated_trials, .. } = self;
        write!(f, "{lost_nodes} nodes were lost, {repeated_trials} trials were repeated")
    }
}
