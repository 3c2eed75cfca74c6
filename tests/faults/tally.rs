//! Counts the outcomes of the faults of each kind, and prints one table when the last kind has run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use crate::victim::Victim;

/// Kinds of faults beside those at system calls.
pub const PARTITION: &str = "partition";
pub const PROCESS: &str = "process";
pub const DAMAGE: &str = "damage";
/// How many faults `make soak` must inject.
pub const SOAK_FAULTS: usize = 1_000;

/// The outcomes of the faults of a kind. Every fault is counted once.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Injected, and survived.
    pub injected: usize,
    /// Not injected: the process ended before, or the call was another one.
    pub missed: usize,
    /// Injected, but the run afterwards had no CPU, so it says nothing.
    pub unjudged: usize,
    /// Not survived.
    pub failed: usize,
}

impl Counts {
    fn plus(self, other: Self) -> Self {
        Self {
            injected: self.injected + other.injected,
            missed: self.missed + other.missed,
            unjudged: self.unjudged + other.unjudged,
            failed: self.failed + other.failed,
        }
    }

    /// Returns the number of faults.
    pub fn planned(self) -> usize {
        let Self { injected, missed, unjudged, failed } = self;
        injected + missed + unjudged + failed
    }
}

/// The counts of the kinds that have run.
#[derive(Debug)]
struct Tally(BTreeMap<&'static str, Counts>);

static TALLY: Mutex<Tally> = Mutex::new(Tally(BTreeMap::new()));

/// Adds the counts of a kind. With the last kind, prints the table of all, and returns the number of injected and judged faults if they are
/// too few for the whole campaign.
pub fn record(kind: &'static str, counts: Counts) -> Option<usize> {
    let mut tally = TALLY.lock().unwrap_or_else(PoisonError::into_inner);
    tally.0.insert(kind, counts);
    if !tally.is_complete() {
        return None;
    }
    println!("{}", tally.table());
    tally.too_few()
}

impl Tally {
    /// Returns whether every kind has run.
    fn is_complete(&self) -> bool {
        let of_calls = Victim::ALL.map(Victim::name);
        of_calls.iter().chain(&[PARTITION, PROCESS, DAMAGE]).all(|kind| self.0.contains_key(kind))
    }

    fn total(&self) -> Counts {
        self.0.values().copied().fold(Counts::default(), Counts::plus)
    }

    /// Returns how many faults were injected and judged, if they are too few for the whole campaign.
    fn too_few(&self) -> Option<usize> {
        Some(self.total().injected).filter(|injected| *injected < SOAK_FAULTS)
    }

    fn table(&self) -> String {
        let mut table = format!(
            "{:<12}{:>9}{:>10}{:>8}{:>10}{:>8}\n",
            "faults", "planned", "injected", "missed", "unjudged", "failed"
        );
        let kinds = self.0.iter().map(|(kind, counts)| (*kind, *counts));
        for (kind, counts) in kinds.chain([("all", self.total())]) {
            let Counts { injected, missed, unjudged, failed } = counts;
            let planned = counts.planned();
            // Writing to a String does not fail.
            let _ = writeln!(
                table,
                "{kind:<12}{planned:>9}{injected:>10}{missed:>8}{unjudged:>10}{failed:>8}"
            );
        }
        table
    }
}

#[test]
fn only_injected_and_judged_faults_count() {
    let of = |injected, unjudged| Counts { injected, missed: 500, unjudged, failed: 0 };
    let mut tally = Tally(BTreeMap::from([("agent", of(900, 100))]));
    assert!(!tally.is_complete());
    assert_eq!(tally.too_few(), Some(900), "1500 were planned");
    tally.0.insert(PARTITION, of(100, 0));
    assert_eq!(tally.too_few(), None);
    for kind in Victim::ALL.map(Victim::name).into_iter().chain([PROCESS, DAMAGE]) {
        tally.0.entry(kind).or_default();
    }
    assert!(tally.is_complete());
    let table = tally.table();
    let words = |start: &str| {
        let line = table.lines().find(|line| line.starts_with(start)).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(words("agent"), ["1500", "900", "500", "100", "0"]);
    assert_eq!(words("all"), ["2100", "1000", "1000", "100", "0"]);
    assert_eq!(table.lines().count(), 1 + 11 + 1);
}
