//! Turns a plan's nodes and wires into a request to a testbed (CloudLab, FABRIC, containerlab), and makes the plan for the nodes
//! that the testbed reserves. This module only handles text; [`crate::commands::testbed`] reads and writes files.
//!
//! Addresses and routes are the same as in the plan's network namespaces ([`Topology`]), so trials use the same paths. Device
//! names stay the same only with containerlab. The testbed provides the control network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ccbench_proto::plan::Plan;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::timeline::Setting;
use ccbench_proto::resolve::normalize;
use ccbench_proto::topology::{TopoNode, Topology};
use ccbench_proto::units::Rate;

pub mod adapted;
pub mod cloudlab;
pub mod containerlab;
pub mod fabric;
pub mod joining;

#[cfg(test)]
mod tests;

/// Port of agents on the control network.
pub const AGENT_PORT: u16 = 7700;
/// Turns a machine into a node: installs ccbench, configures the network, and joins.
pub const INSTALL_SCRIPT: &str = include_str!("../../../scripts/install-agent.sh");

/// Why a plan cannot run on a testbed as it is.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The plan is already for a testbed.
    #[error(
        "node `{0}` has an `agent`; give the plan without agents and addresses, because this command adds them"
    )]
    Agent(String),
    /// The plan's nodes are virtual machines of the lab.
    #[error("the plan runs in the lab; leave out `lab.engine`, `lab.kernel` and `kernel`")]
    Lab,
    /// The plan varies its topology, but a testbed has only one.
    #[error(
        "point {0} of the matrix has other nodes, wires or devices than the plan; a testbed is built once: write a plan for each topology"
    )]
    Varied(u32),
    /// Two nodes have the same host name: host names have no `_` and ignore case.
    #[error("the nodes `{0}` and `{1}` have the same host name; rename one of them")]
    HostName(String, String),
    /// A link or capture names a device that leads to no node.
    #[error(
        "`{table}.{name}` is at `{dev}` of `{node}`, a device that leads to no node; device names differ on a testbed: give \
         `toward` instead of `dev`"
    )]
    Device {
        /// `links` or `capture`.
        table: &'static str,
        /// The link or the capture.
        name: String,
        /// The node of the link or capture.
        node: String,
        /// The device.
        dev: String,
    },
    /// The manifest belongs to another plan, or to an experiment that is not ready.
    #[error("the manifest has no node `{0}`; give the manifest of this plan's experiment")]
    NotReserved(String),
    /// The text of the plan cannot be changed.
    #[error("cannot change the plan's text: {0}")]
    Text(#[from] toml_edit::TomlError),
}

/// The machines and networks of a plan.
#[derive(Debug)]
pub struct Layout<'p> {
    /// The plan.
    pub plan: &'p Plan,
    /// Interfaces, addresses and routes.
    pub topology: Topology,
    /// The highest rate of a link at any point and time.
    pub max_rate: Option<Rate>,
    /// The name of the controller's machine. No node has this name.
    pub controller: String,
    /// Host names by node.
    hosts: BTreeMap<String, String>,
}

impl<'p> Layout<'p> {
    /// Returns the layout of a plan that runs in namespaces.
    ///
    /// # Errors
    /// See [`ProvisionError`].
    pub fn from_plan(checked: &'p CheckedPlan) -> Result<Self, ProvisionError> {
        let plan = checked.plan();
        if let Some((name, _)) = plan.nodes.iter().find(|(_, node)| node.agent.is_some()) {
            return Err(ProvisionError::Agent(name.clone()));
        }
        let topology = Topology::build(plan);
        let mut max_rate: Option<Rate> = None;
        for point in checked.points() {
            let at_point = point.plan.plan();
            if at_point.in_lab() {
                return Err(ProvisionError::Lab);
            }
            if Topology::build(at_point) != topology || devices(at_point) != devices(plan) {
                return Err(ProvisionError::Varied(point.id));
            }
            max_rate = max_rate.max(max_rate_of(&point.plan));
        }
        let hosts = host_names(plan)?;
        let taken: BTreeSet<String> =
            hosts.values().map(|host| host.to_ascii_lowercase()).collect();
        let mut controller = "controller".to_owned();
        while taken.contains(&controller) {
            controller.push_str("-0");
        }
        Ok(Self { plan, topology, max_rate, controller, hosts })
    }

    /// Returns the host name of a node.
    pub fn host<'s>(&'s self, node: &'s str) -> &'s str {
        self.hosts.get(node).map_or(node, String::as_str)
    }

    /// Returns the nodes with their interfaces, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&String, &TopoNode)> {
        self.topology.nodes.iter()
    }

    /// Returns `quickstart: 4 nodes, 3 wires`, followed by the plan's description.
    pub fn title(&self) -> String {
        let plural = |count: usize, word: &str| match count {
            1 => format!("1 {word}"),
            _ => format!("{count} {word}s"),
        };
        let (nodes, wires) = (self.topology.nodes.len(), self.topology.wires.len());
        let mut title =
            format!("{}: {}, {}", self.plan.name, plural(nodes, "node"), plural(wires, "wire"));
        if let Some(about) = &self.plan.about {
            // YAML takes these characters as line breaks.
            let _ = write!(title, ". {}", about.replace(['\u{2028}', '\u{2029}'], " "));
        }
        title
    }

    /// Returns the options of `install-agent.sh network` for a node.
    fn network_options(&self, node: &str) -> &'static [&'static str] {
        let offloads = self.plan.nodes.get(node).is_some_and(|node| node.offloads);
        if offloads { &["--offloads"] } else { &[] }
    }

    /// Returns all arguments of `install-agent.sh network` for a node.
    fn network(&self, name: &str, node: &TopoNode) -> String {
        let mut words: Vec<String> =
            self.network_options(name).iter().map(|&option| option.to_owned()).collect();
        words.extend(node.interfaces.iter().map(|interface| interface.address.to_string()));
        words.extend(node.routes.iter().map(|route| format!("{}/24={}", route.subnet, route.via)));
        words.join(" ")
    }

    /// Returns the wires, numbered from 1, with node and address of both ends.
    fn segments(&self) -> impl Iterator<Item = (usize, [(&str, String); 2])> {
        self.topology.wires.iter().enumerate().map(move |(index, wire)| {
            let ends =
                [&wire.a, &wire.b].map(|(node, dev)| (node.as_str(), self.address_at(node, dev)));
            (index + 1, ends)
        })
    }

    fn address_at(&self, node: &str, dev: &str) -> String {
        let interfaces = self.topology.nodes.get(node).map_or(&[][..], |node| &node.interfaces);
        let found = interfaces.iter().find(|interface| interface.dev == dev);
        found.map(|interface| interface.address.to_string()).unwrap_or_default()
    }
}

/// Returns the subnet of the interface with this address: `10.77.1.0/24`.
fn subnet_of(address: &str) -> String {
    let prefix = address.rsplit_once('.').map_or(address, |(prefix, _)| prefix);
    format!("{prefix}.0/24")
}

/// Returns links and captures that name a device, as (table, name, node, device).
fn devices(plan: &Plan) -> Vec<(&'static str, &str, &str, &str)> {
    let links = plan.links.iter().filter_map(|(name, link)| {
        Some(("links", name.as_str(), link.node.as_str(), link.dev.as_deref()?))
    });
    let captures = plan.capture.iter().filter_map(|(name, capture)| {
        Some(("capture", name.as_str(), capture.node.as_str(), capture.dev.as_deref()?))
    });
    links.chain(captures).collect()
}

/// Returns the highest rate of any link of a point, including its traces and changes.
fn max_rate_of(point: &CheckedPlan) -> Option<Rate> {
    let plan = normalize(point.plan());
    let of_links = plan.links.values().filter_map(|link| {
        let trace = link.trace.as_ref().and_then(|trace| point.trace(&trace.file));
        link.rate.max(trace.and_then(|trace| trace.summary().max_rate))
    });
    let settings = plan.changes.iter().flat_map(|change| change.set.values());
    let of_changes = settings.filter_map(|setting| match setting {
        Setting::Rate(rate) => Some(*rate),
        _ => None,
    });
    of_links.chain(of_changes).max()
}

/// Returns host names by node, with `-` for `_`. They must differ without regard to case.
fn host_names(plan: &Plan) -> Result<BTreeMap<String, String>, ProvisionError> {
    let mut owners: BTreeMap<String, &String> = BTreeMap::new();
    let mut hosts = BTreeMap::new();
    for name in plan.nodes.keys() {
        let host = name.replace('_', "-");
        if let Some(other) = owners.insert(host.to_ascii_lowercase(), name) {
            return Err(ProvisionError::HostName(other.clone(), name.clone()));
        }
        hosts.insert(name.clone(), host);
    }
    Ok(hosts)
}

/// Replaces each `@KEY@` in `text`, in this order. Only the last value may contain text of the author, because replaced text is
/// scanned again.
fn filled(text: &str, values: &[(&str, String)]) -> String {
    let replace =
        |text: String, (key, value): &(&str, String)| text.replace(&format!("@{key}@"), value);
    values.iter().fold(text.to_owned(), replace)
}
