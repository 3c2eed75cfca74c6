//! Runs agents and controllers in a simulated network (turmoil) with simulated time. The agent's executor, session, undo journal, access checks,
//! gRPC service and server, and the controller's `ccbench run` with its connections, its reaction to lost nodes and its results directory
//! are those of the programs. The kernel, the traffic and the samples of sockets are models, and there is no TLS.
//!
//! Promises (docs/reliability.md): a node works for one trial at a time and begins it clean (P1, P12); it is free soon after its controller
//! is gone (P2, P11); a trial is committed only if it ran on all nodes from beginning to end (P4, P11), and only once (P3); after the faults,
//! every run completes and every change is undone (P1, P8).
//!
//! `CCBENCH_SEEDS` is the number of seeds, `CCBENCH_SEED` is the first one. A failure prints the command that repeats it. A seed determines
//! the faults and the latency of each message. It does not determine which of several ready branches `tokio::select!` takes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod controller;
mod faults;
mod node;
mod world;

use std::collections::HashSet;
use std::sync::Arc;

use ccbench_agent::flow::process::Generators;
use world::World;

/// Number of seeds in `make test`.
const SEEDS: u64 = 40;

/// A flaw of the agent, which the checks must find.
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
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
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
    let first = number("CCBENCH_SEED", 0);
    let count = number("CCBENCH_SEEDS", if first == 0 { SEEDS } else { 1 });
    let (generators, mut failures, mut kinds) = (generators(), Vec::new(), HashSet::new());
    for seed in first..first + count {
        let mut world = World::new(seed, Flaw::None, &generators);
        let result = world.simulate();
        kinds.extend(world.faults.iter().map(|one| std::mem::discriminant(&one.fault)));
        if let Err(why) = result {
            failures.push(format!(
                "seed {seed}: {why}\nfaults: {:?}\nrepeat: CCBENCH_SEED={seed} CCBENCH_SEEDS=1 cargo test --workspace \
                 --features netns,browser --test network every_seed\n",
                world.faults
            ));
        }
    }
    let shown: String = failures.iter().take(3).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} of {count} seeds:\n{shown}", failures.len());
    assert!(count < SEEDS || kinds.len() == faults::KINDS, "only these faults: {kinds:?}");
    println!("{count} seeds");
}

/// Verifies the checks: they find each flaw.
#[test]
fn flaws_of_agents_are_found() {
    let generators = generators();
    for flaw in [Flaw::IgnoresSilence, Flaw::ForgetsGeneration, Flaw::ForgetsChanges] {
        let found = (0..SEEDS).any(|seed| World::new(seed, flaw, &generators).simulate().is_err());
        assert!(found, "{flaw:?} is not found in {SEEDS} seeds");
    }
}
