//! Simulated trials: bytes become a plan, which is read, checked, scheduled and simulated as by `ccbench run --sim`. Repeating the trial
//! must give the same rows. `links`, `probes`, `streams` and `sockets` check what must hold of the rows.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use ccbench_proto::plan::check::{self, CheckedPlan, PlanProblem, Target, TraceFacts, TraceFiles};
use ccbench_proto::schedule::{self, FlowTask};
use ccbench_proto::topology::Topology;
use ccbench_proto::wire::RunEvent;
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::{plan as proto_plan, resolve, trace};
use ccbench_simulator::{Simulation, T0_NS};

use crate::mutate::Random;

mod choices;
mod lines;
mod link_keys;
mod links;
mod plan;
mod probes;
mod schema_keys;
mod sockets;
mod streams;

use links::Links;

/// Maximum number of stop checks of a trial, one per 4096 events: more than any of these plans needs.
const MAX_STOP_CHECKS: u32 = 2000;

/// The trial of a generated plan, and its result.
pub(crate) struct Trial {
    /// The plan at the point: without a matrix, and with presets merged.
    plan: CheckedPlan,
    topology: Topology,
    flows: Vec<FlowTask>,
    /// Rows in the order in which they were emitted, each with its node.
    rows: Vec<(String, RunEvent)>,
    end_ns: u64,
}

/// Prints the plan of a trial that fails.
struct ShownIfPanicking(plan::Input);

impl Drop for ShownIfPanicking {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("plan.toml, for `ccbench run plan.toml --sim`:\n{}", self.0.plan);
            for (name, content) in &self.0.files {
                eprintln!("{name}:\n{content}");
            }
        }
    }
}

/// Length of a generated input, bytes.
const INPUT_BYTES: usize = 900;

/// Returns the input of a seed.
#[must_use]
pub fn input(seed: u64) -> Vec<u8> {
    // Small seeds have similar first random numbers.
    let mut random = Random::new(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..INPUT_BYTES).map(|_| random.below(256) as u8).collect()
}

/// Makes a plan from these bytes, and runs its trial.
pub fn simulation(data: &[u8]) {
    let input = ShownIfPanicking(plan::generate(data));
    let trial = Trial::run(&input.0);
    let again = Trial::run(&input.0);
    assert!(trial.rows == again.rows, "the same plan and seed give other rows");
    let links = Links::of(&trial);
    check_times(&trial);
    links.check(&trial);
    probes::check(&trial);
    streams::check(&trial, &links);
    sockets::check(&trial, &links);
}

impl Trial {
    fn run(input: &plan::Input) -> Self {
        let plan = checked(input);
        let seed = schedule::trials(&plan)[0].seed;
        let Some(point) = plan.points().pop() else { panic!("the plan has no points") };
        let plan = point.plan;
        let rows = simulate(&plan, seed);
        Self {
            topology: Topology::build(plan.plan()),
            flows: schedule::flows(&plan),
            end_ns: T0_NS + schedule::length(&plan).nanos(),
            rows,
            plan,
        }
    }

    /// Returns the links from one node to another, in order.
    fn route(&self, from: &str, to: &str) -> Vec<&str> {
        let hops = self.topology.path(from, to).unwrap_or_default();
        let links = &self.plan.plan().links;
        let link_of = |hop| {
            let mut shapes = links.iter().filter(|(_, l)| resolve::shapes(l, &self.topology, hop));
            shapes.next().map(|(name, _)| name.as_str())
        };
        hops.into_iter().filter_map(link_of).collect()
    }

    /// Returns the nodes of a flow's sender and receiver.
    fn ends(flow: &FlowTask) -> (&str, &str) {
        let (from, to) = (flow.plan.from.as_str(), flow.plan.to.as_str());
        if flow.plan.reverse { (to, from) } else { (from, to) }
    }
}

/// Reads a plan for the simulator. `files`: its traces by name.
fn read(plan: &str, files: &BTreeMap<String, String>) -> Result<CheckedPlan, Vec<PlanProblem>> {
    let facts = |(name, text): (&String, &String)| {
        let trace = trace::parse(name, text.as_bytes());
        let trace = Arc::new(trace.unwrap_or_else(|error| panic!("{name}: {error}")));
        let sha256 = proto_plan::digest_bytes(text.as_bytes());
        (name.clone(), Ok(TraceFacts { sha256, trace }))
    };
    let files: TraceFiles = files.iter().map(facts).collect();
    check::read_for(Target::Simulator, plan, &[], files).map(|(plan, _)| plan)
}

/// Returns the generated plan, which must be valid.
fn checked(input: &plan::Input) -> CheckedPlan {
    let read = read(&input.plan, &input.files);
    read.unwrap_or_else(|problems| panic!("the plan is invalid: {problems:#?}"))
}

fn simulate(plan: &CheckedPlan, seed: u64) -> Vec<(String, RunEvent)> {
    let simulation = Simulation::of_trial(plan, seed);
    let simulation = simulation.unwrap_or_else(|error| panic!("it cannot be simulated: {error}"));
    let stop_checks = Cell::new(0);
    let should_continue = || {
        stop_checks.set(stop_checks.get() + 1);
        stop_checks.get() < MAX_STOP_CHECKS
    };
    let mut rows = Vec::new();
    let emit = &mut |node: &str, event| rows.push((node.to_owned(), event));
    let ended = simulation.run(emit, &should_continue);
    assert!(ended.is_ok(), "it does not end as it should: {ended:?}");
    rows
}

/// Checks that every row is within the trial, and that every node's last row has the number of its rows.
fn check_times(trial: &Trial) {
    let within = T0_NS..=trial.end_ns;
    for (node, event) in &trial.rows {
        let at_ns = match event.payload.as_ref() {
            Some(Payload::FlowSample(row)) => row.at_ns,
            Some(Payload::Interval(row)) => row.at_ns,
            Some(Payload::Probe(row)) => row.at_ns,
            Some(Payload::QdiscSample(row)) => row.at_ns,
            Some(Payload::LinkChange(row)) => row.applied_at_ns,
            Some(Payload::Event(row)) => row.at_ns,
            Some(Payload::LinkPacket(row)) => row.at_ns,
            Some(Payload::CcState(row)) => row.at_ns,
            Some(Payload::Acks(batch)) => {
                assert!(batch.at_ns.is_sorted(), "{batch:?}");
                assert!(batch.at_ns.iter().all(|at_ns| within.contains(at_ns)), "{batch:?}");
                continue;
            }
            Some(Payload::Done(done)) => {
                let others = |(of, row): &&(String, RunEvent)| {
                    of == node && !matches!(row.payload, Some(Payload::Done(_)))
                };
                let count = trial.rows.iter().filter(others).count() as u64;
                assert_eq!(done.rows_sent, count, "rows of {node}");
                continue;
            }
            _ => continue,
        };
        assert!(within.contains(&at_ns), "{event:?} is not within {within:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys, besides those of [`schema_keys`], that at least one plan of a few hundred must have.
    const KEYS: [&str; 30] = [
        "kind = \"udp\"",
        "kind = \"ping\"",
        "kind = \"tcp_connect\"",
        "kind = \"http\"",
        "repeat = \"interval\"",
        "repeat = \"back-to-back\"",
        "repeat = \"once\"",
        "bytes = \"0B\"",
        "timeout = ",
        "[[changes]]",
        ".rate\" = ",
        ".delay\" = ",
        ".loss\" = ",
        ".classes.c1]",
        "port = 6400",
        "trace = {",
        "start = \"first-packet\"",
        "floor = ",
        "jitter.distribution = \"pareto\"",
        "jitter.distribution = \"normal\"",
        "jitter.distribution = \"uniform\"",
        "backend = \"kernel\"",
        "backend = \"userspace\"",
        "shaper = \"tbf\"",
        "path = \"preset\"",
        "ect1 = ",
        "reverse = true",
        "tcp_ecn",
        "offloads = true",
        "[matrix.b]",
    ];

    #[test]
    fn generated_plans_have_every_key_that_the_simulator_reads() {
        let plans: Vec<String> = (0..600).map(|seed| plan::generate(&input(seed)).plan).collect();
        for key in KEYS {
            assert!(plans.iter().any(|plan| plan.contains(key)), "no plan has {key}");
        }
        assert_eq!(schema_keys::missing(&plans), Vec::<String>::new(), "no plan has these keys");
    }

    #[test]
    fn generated_plans_are_valid() {
        for seed in 0..100 {
            let input = ShownIfPanicking(plan::generate(&input(seed)));
            checked(&input.0);
        }
    }

    #[test]
    fn inputs_of_seeds_differ_and_repeat() {
        assert_eq!(input(7), input(7));
        assert!((0..20).all(|seed| input(seed)[..32] != input(seed + 1)[..32]));
    }
}
