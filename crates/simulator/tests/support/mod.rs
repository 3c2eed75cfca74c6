//! Makes a plan, and runs it in the simulator.
#![allow(dead_code, reason = "every test target uses its own part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use ccbench_proto::plan::check;
use ccbench_proto::schedule::{self, TrialContext};
use ccbench_proto::topology::Topology;
use ccbench_proto::wire::RunEvent;
use ccbench_simulator::{Simulation, SimulatorError};

/// Returns a plan of a path from `src` over `router` to `dst`. The link `there`, from the router to `dst`, has these keys; `rest` has further
/// tables.
pub fn one_link_plan(name: &str, link_keys: &str, rest: &str) -> String {
    format!(
        r#"
name = "{name}"
[nodes]
src = {{}}
router = {{}}
dst = {{}}
[wires]
path = ["src", "router", "dst"]
[links.there]
node = "router"
toward = "dst"
{link_keys}
{rest}
"#
    )
}

/// Returns all rows of a simulation, each with its node.
pub fn rows(text: &str, seed: u64) -> Result<Vec<(String, RunEvent)>, SimulatorError> {
    let mut rows = Vec::new();
    run(text, seed, &mut |node, event| rows.push((node.to_owned(), event)))?;
    Ok(rows)
}

/// Runs a simulation. `emit` receives each row with its node.
pub fn run(
    text: &str,
    seed: u64,
    emit: &mut dyn FnMut(&str, RunEvent),
) -> Result<(), SimulatorError> {
    let (plan, _) = check::read(text, &[]).unwrap();
    let topology = Topology::build(plan.plan());
    let context = TrialContext {
        addresses: topology.addresses(),
        port_slot: 0,
        seed,
        traces: BTreeMap::<String, Arc<ccbench_proto::trace::Trace>>::new(),
    };
    let task = |node: &String| (node.clone(), schedule::task_for(&plan, node, &context));
    let nodes = plan.plan().nodes.keys().map(task).collect();
    Simulation::new(nodes, &topology, seed)?.run(emit, &|| true)
}
