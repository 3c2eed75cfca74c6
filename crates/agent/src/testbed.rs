//! The embedded testbed: namespaces on this machine, wired as in the plan, with an agent in each. The namespaces have
//! no names, so they end with their processes: when this process ends, the kernel kills the agents and removes the
//! namespaces, interfaces and qdiscs.
//!
//! This must run on the main thread of a process without other threads: creating a user namespace requires it, and the
//! parent-death signal ties the children to the thread that starts them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ccbench_proto::plan::{Plan, check::check, parse::parse};
use ccbench_proto::testbed::{AgentDied, Ready, ReadyNode};
use ccbench_proto::topology::Topology;
use serde::Serialize;

mod build;
pub mod child;
mod children;
mod control_input;
mod error;
pub mod identity;
mod netns;
pub mod record;
mod rtnl;
pub mod sweep;
pub(crate) mod userns;

use build::Testbed;
#[doc(hidden)]
pub use control_input::plan_length;
use control_input::{ControlInput, Wake};
pub use error::TestbedError;
use sweep::Swept;

/// `ccbench-agent testbed`: a resolved plan on standard input, up to a line `---END---`. The input then stays
/// open; its end is the end of the testbed.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Directory for sockets and logs; made by the caller, not shared with another testbed
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// The program to start in every namespace [default: this one]
    #[arg(long, value_name = "PATH")]
    pub agent_bin: Option<PathBuf>,
    /// Use a user namespace even as root
    #[arg(long)]
    pub rootless: bool,
}

/// Builds the testbed and holds it until standard input ends or a signal stops it. Prints one line of JSON when all
/// agents listen, or why they do not, and one line for each agent that dies later. Returns the exit code.
///
/// # Errors
/// The line could not be printed.
pub fn main(args: &Args) -> Result<u8, TestbedError> {
    let Err(error) = hold(args) else { return Ok(0) };
    print_line(&Ready::failed(error.to_string()))
        .map_err(TestbedError::system("print why there is no testbed"))?;
    Ok(1)
}

fn hold(args: &Args) -> Result<(), TestbedError> {
    let input = ControlInput::open()?;
    let plan = resolved(&input.read_plan()?)?;
    let topology = Topology::build(&plan);
    if topology.nodes.is_empty() {
        return Err(TestbedError::NothingToBuild);
    }
    let agent_bin = match &args.agent_bin {
        Some(path) => path.clone(),
        None => std::env::current_exe().map_err(TestbedError::system("find this program"))?,
    };
    let (rootless, notes) = userns::isolate(args.rootless)?;
    let mut testbed = Testbed::build(&args.dir, &topology, &agent_bin, &input)?;
    let nodes = testbed.record().nodes.iter();
    let nodes = nodes.map(|(name, node)| (name.clone(), ReadyNode::from(node))).collect();
    let ready = Ready { ready: true, error: String::new(), rootless, notes, nodes };
    // Leftovers of earlier testbeds are not a reason to fail.
    if let Some(root) = args.dir.parent() {
        for what in not_swept(root, sweep::sweep(root)) {
            tracing::warn!("leftovers of an earlier testbed stay: {what}");
        }
    }
    // From here on, a closed reader is no error: it ends the control input.
    let _ = print_line(&ready);
    while let Wake::Child = input.wait(None)? {
        for (node, status) in testbed.reap() {
            let _ = print_line(&AgentDied { node, status });
        }
    }
    Ok(())
}

/// Returns what a sweep over `root` could not remove, each with its reason.
fn not_swept(root: &Path, swept: io::Result<Swept>) -> Vec<String> {
    match swept {
        Ok(swept) => swept.failed,
        Err(error) => vec![format!("list {}: {error}", root.display())],
    }
}

fn resolved(text: &str) -> Result<Plan, TestbedError> {
    let checked = parse(text).and_then(check).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        TestbedError::Plan(lines.join("; "))
    })?;
    Ok(checked.0.plan().clone())
}

fn print_line(line: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(line)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sweep_leaves_is_named() {
        let root = Path::new("/run/ccbench");
        let left = vec!["remove /run/ccbench/1: permission denied".to_owned()];
        let swept = Swept { failed: left.clone(), ..Swept::default() };
        assert_eq!(not_swept(root, Ok(swept)), left);
        let unreadable = Err(io::ErrorKind::PermissionDenied.into());
        assert_eq!(not_swept(root, unreadable), ["list /run/ccbench: permission denied"]);
    }
}
