//! From the nodes' tasks to connections and probes, and what nodes would answer before a trial.

use std::collections::BTreeMap;

use ccbench_proto::cc::SIMULATED_BUILTINS;
use ccbench_proto::plan::{Cc, Ecn, SysctlValue};
use ccbench_proto::schedule::{FlowTask, NodeTask};
use ccbench_proto::topology::Topology;
use ccbench_proto::wire::{self, Backend, Via, backend_reason};

use crate::connection::Connection;
use crate::core::CongestionControl;
use crate::ecn_events::ecn_events;
use crate::error::SimulatorError;
use crate::network::{Endpoints, Network, Protocol};
use crate::probes::SimulatedProbe;
use crate::tcp::{EcnMode, SenderConfig};

/// The kernel's default congestion control.
const DEFAULT_CC: &str = "cubic";
/// The third numbers of `tcp_wmem` and `tcp_rmem`, bytes.
const WMEM_BYTES: u64 = 4_194_304;
const RMEM_BYTES: u64 = 6_291_456;

/// Settings of a node.
pub struct Sysctls<'a>(pub &'a NodeTask);

impl Sysctls<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let known = self.0.sysctls.iter().rev().find(|(key, _)| key == name);
        known.map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str, at: usize) -> Option<u64> {
        self.get(name)?.split_whitespace().nth(at)?.parse().ok()
    }

    /// `tcp_ecn`.
    pub fn ecn(&self) -> u64 {
        self.number("net.ipv4.tcp_ecn", 0).unwrap_or(2)
    }
}

/// Every connection of every flow group, in the order of names.
pub fn connections(
    nodes: &BTreeMap<String, NodeTask>,
    topology: &Topology,
    network: &mut Network,
    seed: u64,
) -> Result<Vec<Connection>, SimulatorError> {
    let mut tasks: Vec<&FlowTask> = nodes.values().flat_map(|node| &node.clients).collect();
    tasks.sort_by(|a, b| a.group.cmp(&b.group));
    let mut connections = Vec::new();
    for task in tasks {
        for number in 0..task.plan.count {
            let routes = routes(task, number, topology, network)?;
            let seed = seed ^ (connections.len() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            connections.push(connection(nodes, task, number, routes, seed)?);
        }
    }
    Ok(connections)
}

/// From the sender to the receiver, and back.
fn routes(
    task: &FlowTask,
    number: u32,
    topology: &Topology,
    network: &mut Network,
) -> Result<[u32; 2], SimulatorError> {
    let (from, to) = (task.plan.from.as_str(), task.plan.to.as_str());
    let there = Endpoints {
        from: task.from_ip,
        to: task.to_ip,
        from_port: task.client_port + number as u16,
        to_port: task.server_port,
        protocol: Protocol::Tcp,
    };
    let (first, second) = if task.plan.reverse {
        (((to, from), there.reversed()), ((from, to), there))
    } else {
        (((from, to), there), ((to, from), there.reversed()))
    };
    Ok([
        network.add_route(topology, first.0, first.1, 0)?,
        network.add_route(topology, second.0, second.1, 0)?,
    ])
}

fn connection(
    nodes: &BTreeMap<String, NodeTask>,
    task: &FlowTask,
    number: u32,
    routes: [u32; 2],
    seed: u64,
) -> Result<Connection, SimulatorError> {
    let (sender, receiver) = match task.plan.reverse {
        true => (&task.plan.to, &task.plan.from),
        false => (&task.plan.from, &task.plan.to),
    };
    let none = NodeTask::default();
    let settings = |node: &String| Sysctls(nodes.get(node).unwrap_or(&none));
    let (sending, receiving) = (settings(sender), settings(receiver));
    let name = task.plan.cc.as_deref().unwrap_or(DEFAULT_CC);
    let instance = sending.0.cc.get(name);
    let algorithm = instance.map_or(name, |cc| cc.algorithm.as_str());
    let params = instance.map_or(Ok(BTreeMap::new()), |cc| params(&task.group, cc))?;
    let cc = CongestionControl::new(algorithm, &params)
        .map_err(|source| SimulatorError::CongestionControl { flow: task.group.clone(), source })?;
    let wants = cc.wants();
    let (client, server) = (settings(&task.plan.from).ecn(), settings(&task.plan.to).ecn());
    let ecn = if wants.ecn && client != 0 && server != 0 {
        let ect1 = instance.and_then(|cc| cc.ect1).unwrap_or(wants.ect1);
        EcnMode::Accurate { ect: if ect1 { Ecn::Ect1 } else { Ecn::Ect0 } }
    } else {
        match client == 1 && !wants.ecn && matches!(server, 1 | 2) {
            true => EcnMode::Classic,
            false => EcnMode::Off,
        }
    };
    let config = SenderConfig {
        ecn,
        sndbuf_bytes: sending.number("net.ipv4.tcp_wmem", 2).unwrap_or(WMEM_BYTES),
        slow_start_after_idle: sending.number("net.ipv4.tcp_slow_start_after_idle", 0) != Some(0),
        seed: seed.max(1),
    };
    let rcvbuf_bytes = receiving.number("net.ipv4.tcp_rmem", 2).unwrap_or(RMEM_BYTES);
    // The state of the kernel's has no rows.
    let instance =
        (!SIMULATED_BUILTINS.contains(&algorithm)).then(|| (name.to_owned(), algorithm.to_owned()));
    let mut connection =
        Connection::new((task.clone(), number), routes, instance, cc, config, rcvbuf_bytes);
    name.clone_into(&mut connection.cc_name);
    Ok(connection)
}

fn params(flow: &str, cc: &Cc) -> Result<BTreeMap<String, u32>, SimulatorError> {
    let number = |(name, value): (&String, &SysctlValue)| {
        let value = value.to_string();
        match value.trim().parse() {
            Ok(number) => Ok((name.clone(), number)),
            Err(_) => {
                let (flow, name) = (flow.to_owned(), name.clone());
                Err(SimulatorError::Parameter { flow, name, value })
            }
        }
    };
    cc.params.iter().map(number).collect()
}

/// Every probe, in the order of nodes and names.
pub fn probes(
    nodes: &BTreeMap<String, NodeTask>,
    topology: &Topology,
    network: &mut Network,
) -> Result<Vec<SimulatedProbe>, SimulatorError> {
    let mut probes = Vec::new();
    for (node, task) in nodes {
        for probe in &task.probes {
            let (from, to) = (probe.plan.from.as_str(), probe.plan.to.as_str());
            let no_path = || SimulatorError::NoPath { from: from.to_owned(), to: to.to_owned() };
            let protocol = match probe.port {
                0 => Protocol::Icmp,
                _ => Protocol::Udp,
            };
            let there = Endpoints {
                from: topology.address(node).ok_or_else(no_path)?,
                to: probe.to_ip,
                from_port: 40_000 + probes.len() as u16,
                to_port: probe.port,
                protocol,
            };
            let routes = [
                network.add_route(topology, (from, to), there, probe.plan.tos)?,
                network.add_route(topology, (to, from), there.reversed(), probe.plan.tos)?,
            ];
            let index = probes.len() as u32;
            probes.push(SimulatedProbe::new(node.clone(), probe.clone(), index, routes));
        }
    }
    Ok(probes)
}

/// Replies of the nodes to Describe.
pub fn infos(
    nodes: &BTreeMap<String, NodeTask>,
    topology: &Topology,
) -> BTreeMap<String, wire::NodeInfo> {
    let interfaces = |node: &str| {
        let made = topology.nodes.get(node).map_or(&[][..], |made| &made.interfaces);
        let interface =
            |(interface, index): (&ccbench_proto::topology::Interface, u32)| wire::Interface {
                name: interface.dev.clone(),
                index,
                mtu_bytes: crate::packet::MTU_BYTES,
                up: true,
                addresses: vec![format!("{}/24", interface.address)],
                ..wire::Interface::default()
            };
        made.iter().zip(1..).map(interface).collect()
    };
    let info = |node: &str| wire::NodeInfo {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        hostname: node.to_owned(),
        kernel: format!("simulator {}", crate::MODEL_VERSION),
        cpus: 1,
        congestion_controls: SIMULATED_BUILTINS.map(str::to_owned).into(),
        allowed_congestion_controls: SIMULATED_BUILTINS.map(str::to_owned).into(),
        default_congestion_control: DEFAULT_CC.to_owned(),
        interfaces: interfaces(node),
        can_userspace_link: true,
        clocksource: "virtual".to_owned(),
        ..wire::NodeInfo::default()
    };
    nodes.keys().map(|node| (node.clone(), info(node))).collect()
}

/// Replies of the nodes to Prepare.
pub fn replies(
    nodes: &BTreeMap<String, NodeTask>,
    network: &Network,
    connections: &[Connection],
) -> BTreeMap<String, wire::PrepareReply> {
    let reply = |node: &String| {
        let links = network.links.iter().filter(|link| link.node == *node);
        let link_state = |link: &crate::network::SimulatedLink| {
            let configured = backend_reason::Configured {};
            let reason = Some(backend_reason::Reason::Configured(configured));
            wire::LinkState {
                link: link.name.clone(),
                dev: link.dev.clone(),
                qdiscs: vec![link.link.describe()],
                backend: Backend::Userspace.into(),
                reason: Some(wire::BackendReason { reason }),
            }
        };
        wire::PrepareReply {
            links: links.map(link_state).collect(),
            congestion_controls: congestion_controls(node, nodes, connections),
            events: nodes.get(node).map(ecn_events).unwrap_or_default(),
            ..wire::PrepareReply::default()
        }
    };
    nodes.keys().map(|node| (node.clone(), reply(node))).collect()
}

/// The instances that connections of a node use.
fn congestion_controls(
    node: &str,
    nodes: &BTreeMap<String, NodeTask>,
    connections: &[Connection],
) -> Vec<wire::CongestionControl> {
    let Some(task) = nodes.get(node) else { return Vec::new() };
    let is_used = |name: &str| {
        let mut own = connections.iter().filter(|connection| connection.nodes[0] == node);
        own.any(|connection| connection.cc_name == name)
    };
    let instance = |(name, cc): (&String, &Cc)| wire::CongestionControl {
        name: name.clone(),
        algorithm: cc.algorithm.clone(),
        kernel_name: cc.algorithm.clone(),
        why: "it is part of the simulator".to_owned(),
        params: cc.params.iter().map(|(key, value)| (key.clone(), value.to_string())).collect(),
        via: Via::Builtin.into(),
    };
    task.cc.iter().filter(|(name, _)| is_used(name)).map(instance).collect()
}
