//! Tests the protocol of controllers and agents under faults, in virtual time: two controllers and three nodes. Their messages are late,
//! repeated and reordered; their processes and machines end, stop and start. The agent's state machine, and the controller's decision about
//! a lost node, are the programs' own. Kernel, disk and network are models.
//!
//! Promises (docs/reliability.md): a node works for one trial at a time and begins it clean (P1, P12); it is free soon after its controller
//! is gone (P2, P11); every change has a record that undoes it (P1); a trial is recorded as ok only if it ran on all nodes from beginning
//! to end (P4, P13), and only once (P3); after the faults, every run completes (P8, P10).
//!
//! `CCBENCH_SEEDS` is the number of seeds, `CCBENCH_SEED` is the first one. A failure prints the command that repeats it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod controller;
mod node;
mod world;

use std::collections::HashSet;

use ccbench_tests::seeds::Seeds;
use world::World;

/// Number of seeds in `make test`.
const SEEDS: u64 = 4_000;

/// A flaw of the protocol, which the checks must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// No flaw.
    None,
    /// The controller's Prepare does not say which generation it knows.
    NoFencing,
    /// The generation is lost when the agent ends.
    ForgetsGeneration,
    /// The undo record is written after the change.
    ChangesBeforeRecord,
    /// The agent does not notice that the controller's connection has ended.
    IgnoresLoss,
    /// A trial is ok as soon as one node has reported.
    CommitsTooEarly,
    /// The controller uses a node again that another run has used since, if the node has lost its state and counts from 0 again.
    TakesBack,
}

#[test]
fn every_seed_keeps_the_promises() {
    let mut kinds = HashSet::new();
    let seeds = Seeds::from_environment(SEEDS);
    seeds.check("protocol", |seed| {
        let mut world = World::new(seed, Flaw::None);
        let result = world.simulate();
        kinds.extend(world.faults.iter().map(|(_, fault)| std::mem::discriminant(fault)));
        result.map_err(|why| format!("{why}\nfaults (ms): {:?}", world.faults))
    });
    let has_all = kinds.len() == world::FAULT_KINDS;
    assert!(!seeds.include_first(100) || has_all, "only these faults: {kinds:?}");
}

#[test]
fn a_seed_repeats_itself() {
    let end = |seed| {
        let mut world = World::new(seed, Flaw::None);
        let result = world.simulate();
        (result, world.events(), format!("{:?}", world.faults))
    };
    for seed in 0..20 {
        assert_eq!(end(seed), end(seed), "seed {seed}");
    }
    assert_ne!(end(1), end(2));
}

/// Verifies the checks: they find each flaw.
#[test]
fn flaws_are_found() {
    let flaws = [
        Flaw::NoFencing,
        Flaw::ForgetsGeneration,
        Flaw::ChangesBeforeRecord,
        Flaw::IgnoresLoss,
        Flaw::CommitsTooEarly,
        Flaw::TakesBack,
    ];
    for flaw in flaws {
        let found = (0..SEEDS).any(|seed| World::new(seed, flaw).simulate().is_err());
        assert!(found, "{flaw:?} is not found in {SEEDS} seeds");
    }
}
