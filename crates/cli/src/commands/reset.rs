//! `ccbench reset`: frees nodes that a trial holds, for example after the loss of its controller.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use ccbench_proto::wire::ResetReply;

use self::error::ResetUsageError;
use crate::agents::{Address, AgentError, free};
use crate::args::reset::ResetArgs;
use crate::backend::error::BackendError;
use crate::console::print;
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::plan_source::PlanSource;
use crate::provision::AGENT_PORT;
use crate::tls::Tls;

pub mod error;

/// Resets every node, and prints what was undone.
///
/// # Errors
/// A plan is invalid or names no agents. After all nodes were tried: names every node that cannot be reached or refuses, and every change
/// that could not be undone.
pub async fn run(args: &ResetArgs) -> Result<ExitCode, CliError> {
    let addresses = addresses(&args.nodes)?;
    let tls = Tls::open(&args.tls).map_err(AgentError::from).map_err(BackendError::from)?;
    let replies = free(addresses, tls.as_ref()).await.map_err(BackendError::from)?;
    let mut errors = Vec::new();
    for (node, reply) in replies {
        match reply {
            Ok(reply) => {
                print(&undone(&node, &reply));
                errors.extend(not_undone(node, &reply));
            }
            Err(error) => errors.push(error),
        }
    }
    let mut errors = errors.into_iter();
    match errors.next() {
        None => Ok(ExitCode::Success),
        Some(first) => Err(BackendError::from(first.with_other_errors(errors)).into()),
    }
}

/// Returns the agents' addresses by the names of their nodes: those in a plan, or the given ones.
fn addresses(nodes: &[String]) -> Result<BTreeMap<String, Address>, CliError> {
    let mut found = BTreeMap::new();
    for given in nodes {
        if !is_plan(given) {
            add(&mut found, given, with_port(given));
            continue;
        }
        let plan = PlanSource::read(Path::new(given))?.load_quietly(&[])?;
        let named = plan.plan().nodes.iter();
        let agents = named.filter_map(|(name, node)| Some((name, node.agent.as_ref()?)));
        let mut count = 0;
        for (name, agent) in agents {
            add(&mut found, name, agent.clone());
            count += 1;
        }
        if count == 0 {
            return Err(ResetUsageError::NoAgents(given.clone()).into());
        }
    }
    Ok(found)
}

/// Adds an agent by the name of its node, or by its address if another node has that name, for example in a plan.
fn add(found: &mut BTreeMap<String, Address>, name: &str, address: String) {
    let is_same = |known: &Address| matches!(known, Address::Tcp(known) if *known == address);
    let is_free = found.get(name).is_none_or(is_same);
    let name = if is_free { name } else { address.as_str() };
    found.insert(name.to_owned(), Address::Tcp(address));
}

/// Returns whether this is a plan rather than the address of an agent.
fn is_plan(given: &str) -> bool {
    given.contains('/') || Path::new(given).extension().is_some_and(|ending| ending == "toml")
}

/// Returns the address of an agent with the port of agents, if it has none.
fn with_port(given: &str) -> String {
    if let Ok(ip) = given.parse::<IpAddr>() {
        return SocketAddr::new(ip, AGENT_PORT).to_string();
    }
    match given.ends_with(']') || !given.contains(':') {
        true => format!("{given}:{AGENT_PORT}"),
        false => given.to_owned(),
    }
}

/// Describes what was undone on a node.
fn undone(node: &str, reply: &ResetReply) -> String {
    match (reply.undone.is_empty(), reply.failed.is_empty()) {
        (true, true) => return format!("{node}: is free; there was nothing to undo\n"),
        (true, false) => return format!("{node}: nothing was undone\n"),
        (false, _) => {}
    }
    let lines = reply.undone.iter().map(|change| format!("  {change}\n"));
    format!("{node}: undone:\n{}", lines.collect::<String>())
}

/// Returns the error of a node with changes that could not be undone.
fn not_undone(node: String, reply: &ResetReply) -> Option<AgentError> {
    let reason = format!("could not be undone: {}", reply.failed.join("; "));
    (!reply.failed.is_empty()).then_some(AgentError::Refused { node, step: "reset", reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
name = "plan"
[nodes.node1]
agent = "192.0.2.11:7700"
address = "192.0.2.11"
[nodes.node2]
agent = "192.0.2.12:7700"
address = "192.0.2.12"
[probes.rtt]
kind = "ping"
from = "node1"
to = "node2"
[[phases]]
name = "only"
length = "200ms"
"#;

    #[test]
    fn an_address_without_a_port_has_that_of_agents() {
        for (given, expected) in [
            ("node1.example", "node1.example:7700"),
            ("node1.example:7701", "node1.example:7701"),
            ("192.0.2.11", "192.0.2.11:7700"),
            ("192.0.2.11:7701", "192.0.2.11:7701"),
            ("2001:db8::1", "[2001:db8::1]:7700"),
            ("[2001:db8::1]", "[2001:db8::1]:7700"),
            ("[2001:db8::1]:7701", "[2001:db8::1]:7701"),
        ] {
            assert_eq!(with_port(given), expected);
        }
    }

    #[test]
    fn of_two_nodes_with_one_name_both_are_reset() {
        let mut found = BTreeMap::new();
        for (name, address) in [
            ("node1", "192.0.2.11:7700"),
            // In the plan and on the command line.
            ("node1", "192.0.2.11:7700"),
            ("node1", "node1:7700"),
            ("node1", "node1:7700"),
        ] {
            add(&mut found, name, address.to_owned());
        }
        let found = found.into_iter().map(|(name, address)| (name, format!("{address:?}")));
        let expected =
            [("node1", "Tcp(\"192.0.2.11:7700\")"), ("node1:7700", "Tcp(\"node1:7700\")")];
        let expected = expected.map(|(name, address)| (name.to_owned(), address.to_owned()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_host_replaces_no_node_of_a_plan() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plan.toml");
        std::fs::write(&path, PLAN).unwrap();
        let given = [path.display().to_string(), "node1".to_owned()];
        for given in [given.clone(), [given[1].clone(), given[0].clone()]] {
            let found = addresses(&given).unwrap();
            let mut found: Vec<_> = found.values().map(|address| format!("{address:?}")).collect();
            found.sort();
            let expected = ["192.0.2.11:7700", "192.0.2.12:7700", "node1:7700"];
            assert_eq!(found, expected.map(|address| format!("Tcp({address:?})")), "{given:?}");
        }
    }

    #[test]
    fn a_path_is_a_plan() {
        for plan in ["plan.toml", "results/run/plan.resolved.toml", "./plan"] {
            assert!(is_plan(plan), "{plan}");
        }
        for host in ["toml", "node1.example", "192.0.2.11:7700"] {
            assert!(!is_plan(host), "{host}");
        }
    }
}
