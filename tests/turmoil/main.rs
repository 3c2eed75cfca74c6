//! Runs agents and controllers in a simulated network (turmoil) with simulated time. The agent's executor, session, undo journal,
//! gRPC service and server, and the controller's `ccbench run` with its connections, its reaction to lost nodes and its results directory
//! are those of the programs. The kernel, the traffic and the samples of sockets are models, and there is no TLS.
//!
//! Promises (docs/reliability.md): a change is recorded before it is made, and undone (P1); a trial begins on a clean node, so two controllers
//! never use one at the same time (P1, and that part of P12); a node is free soon after its controller is gone (P2, P11); a trial is committed
//! only with the end of all nodes, which have run it from beginning to end, and with files that match their digests (that part of P4, and P11),
//! and only once (P3); after the faults, every run completes, resumed if need be.
//!
//! `CCBENCH_SEEDS` is the number of seeds, `CCBENCH_SEED` is the first one. A seed determines the faults and the latency of each message. It
//! does not determine which of several ready branches `tokio::select!` takes, nor when threads write files.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod controller;
mod effects;
mod faults;
mod kernel;
mod node;
mod panics;
mod violation;
mod world;

use std::sync::Arc;

use ccbench_agent::flow::process::Generators;
use ccbench_tests::seeds::{Seeds, Watchdog};
use effects::Effects;
use violation::{NodeViolation, RunViolation, Violation};
use world::World;

/// Number of seeds in `make test`.
const SEEDS: u64 = 40;
/// With as many seeds, each kind of fault has effects, whatever a seed does not determine. With 40, a kind has as few as two.
const SEEDS_WITH_ALL_EFFECTS: u64 = 200;

/// A flaw of the programs or of a node, which the checks must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// No flaw.
    None,
    /// The agent does not notice that its controller is silent.
    IgnoresSilence,
    /// The generation is lost when the agent ends.
    ForgetsGeneration,
    /// The records of changes are lost when the agent ends.
    ForgetsChanges,
    /// Changes have no record.
    ChangesBeforeRecord,
    /// The agent stops undoing after as many trials as both runs have.
    SkipsUndo,
    /// A task of the agent panics.
    Panics,
    /// A call of the kernel fails once, without a fault.
    FailsOnce,
    /// The link vanishes during the trial, and the agent does not know it.
    LosesLink,
    /// The controller commits a trial twice.
    CommitsTwice,
    /// The controller commits a trial without the rows of one node.
    CommitsTooEarly,
    /// The controller writes a file that differs from its digest.
    DamagesFile,
}

/// Returns the traffic generators that the agents describe. Their version is found here, because simulated time waits for no process.
fn generators() -> Arc<Generators> {
    let generators = Generators::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Without iperf3, every description has a note, and nothing waits.
    drop(runtime.block_on(generators.iperf3_version()));
    Arc::new(generators)
}

#[test]
fn every_seed_keeps_the_promises_over_a_simulated_network() {
    let (generators, mut effects) = (generators(), Effects::default());
    let seeds = Seeds::from_environment(SEEDS);
    seeds.check("network", |seed| {
        let mut world = World::new(seed, Flaw::None, &generators);
        let result = world.simulate();
        effects += &world.effects;
        result.map_err(|why| {
            format!(
                "at {} ms: {why}\nfaults: {:?}\nThe faults are the same again; the rest may differ, so run it several times.",
                world.now_ms(),
                world.faults
            )
        })
    });
    println!("{effects}");
    let missing = effects.missing();
    assert!(
        !seeds.include_first(SEEDS_WITH_ALL_EFFECTS) || missing.is_empty(),
        "{missing:?}\n{effects}"
    );
}

/// Verifies the checks: each flaw causes the violation that names it.
#[test]
fn flaws_are_found_over_a_simulated_network() {
    let (generators, watchdog) = (generators(), Watchdog::start());
    let node = |violation: &Violation, is_expected: fn(&NodeViolation) -> bool| matches!(violation, Violation::Node { violation, .. } if is_expected(violation));
    let run = |violation: &Violation, is_expected: fn(&RunViolation) -> bool| matches!(violation, Violation::Run { violation, .. } if is_expected(violation));
    let is_expected = |flaw: Flaw, found: &Violation| match flaw {
        Flaw::None => false,
        Flaw::IgnoresSilence => node(found, |v| matches!(v, NodeViolation::NotFree { .. })),
        Flaw::ForgetsGeneration => node(found, |v| matches!(v, NodeViolation::Generation { .. })),
        Flaw::ForgetsChanges => node(found, |v| matches!(v, NodeViolation::FoundChanges(_))),
        Flaw::ChangesBeforeRecord => node(found, |v| matches!(v, NodeViolation::NotRecorded(_))),
        Flaw::SkipsUndo => node(found, |v| matches!(v, NodeViolation::NotUndone(_))),
        Flaw::Panics => matches!(found, Violation::Panicked),
        Flaw::FailsOnce => run(found, |v| matches!(v, RunViolation::UnexpectedError(_))),
        Flaw::LosesLink => run(found, |v| matches!(v, RunViolation::NotRun { .. })),
        Flaw::CommitsTwice => run(found, |v| matches!(v, RunViolation::Commits(_))),
        Flaw::CommitsTooEarly => run(found, |v| matches!(v, RunViolation::LacksEnd { .. })),
        Flaw::DamagesFile => run(found, |v| match v {
            RunViolation::Damaged(files) => files[0].starts_with("tables/clock/"),
            _ => false,
        }),
    };
    let flaws = [
        Flaw::IgnoresSilence,
        Flaw::ForgetsGeneration,
        Flaw::ForgetsChanges,
        Flaw::ChangesBeforeRecord,
        Flaw::SkipsUndo,
        Flaw::Panics,
        Flaw::FailsOnce,
        Flaw::LosesLink,
        Flaw::CommitsTwice,
        Flaw::CommitsTooEarly,
        Flaw::DamagesFile,
    ];
    for flaw in flaws {
        let mut others = Vec::new();
        let found = (0..SEEDS).any(|seed| {
            watchdog.begin(seed);
            let found = World::new(seed, flaw, &generators).simulate().err();
            let is_found = found.as_ref().is_some_and(|found| is_expected(flaw, found));
            others.extend(found.filter(|_| !is_found));
            is_found
        });
        assert!(found, "{flaw:?}: not found in {SEEDS} seeds, but: {others:?}");
    }
}
