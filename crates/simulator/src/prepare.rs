//! Converts the nodes' tasks to connections and probes, and makes the replies that nodes would give before a trial.

use std::collections::BTreeMap;
use std::sync::Arc;

use ccbench_proto::cc::SIMULATED_BUILTINS;
use ccbench_proto::plan::Cc;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule::{
    self, FlowTask, LinkTask, MAX_BLOCK_BYTES, NodeTask, ProbeTask, TrialContext, block_bytes,
};
use ccbench_proto::topology::Topology;
use ccbench_proto::wire::{self, Backend, Via, ViaReason, backend_reason};
use ccbench_shaper::flow_queues;

use crate::T0_NS;
use crate::congestion_control::{CcRequirements, CongestionControl};
use crate::connection::Connection;
use crate::ecn_events::ecn_events;
use crate::ecn_negotiation::{EcnSettings, EcnVariant};
use crate::error::SimulatorError;
use crate::network::{Endpoints, Network, Protocol};
use crate::probes::SimulatedProbe;
use crate::sysctls::Sysctls;
use crate::tcp_probes::{Socket, TcpProbe};

/// The kernel's default congestion control.
const DEFAULT_CC: &str = "cubic";
/// Bytes that a web server passes to one call of send(), like an agent's web server.
const SERVER_SEND_BYTES: u64 = 64 << 10;

/// Returns what each node does in a trial of a point, and the network. The inputs are those of the nodes in the lab: the plan and the seed.
pub fn trial(point: &CheckedPlan, seed: u64) -> (BTreeMap<String, NodeTask>, Topology) {
    let plan = point.with_lab_defaults();
    let topology = Topology::build(plan.plan());
    let files = plan.plan().links.values().filter_map(|link| Some(&link.trace.as_ref()?.file));
    let trace = |file: &String| Some((file.clone(), Arc::clone(plan.trace(file)?)));
    let context = TrialContext {
        addresses: topology.addresses(),
        port_slot: 0,
        seed,
        traces: files.filter_map(trace).collect(),
    };
    let task = |node: &String| {
        let mut task = schedule::task_for(&plan, node, &context);
        // As in an agent, a group that no phase names never runs.
        task.servers.retain(|flow| flow.start < flow.stop);
        task.clients.retain(|flow| flow.start < flow.stop);
        (node.clone(), task)
    };
    (plan.plan().nodes.keys().map(task).collect(), topology)
}

/// Returns all connections of all flow groups, in order of names.
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

/// Returns the routes from the sender to the receiver, and back.
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
    let cc = sending.congestion_control(&format!("flow {}", task.group), name)?;
    let requirements = cc.requirements();
    let ecn = ecn_settings((&settings(&task.plan.from), &settings(&task.plan.to)), requirements);
    let counted_ect = sending.counted_ect(name, requirements);
    let send_bytes = task.plan.rate.map_or(MAX_BLOCK_BYTES, block_bytes);
    let config = sending.sender_config(send_bytes, seed);
    // The state of the kernel's congestion controls has no rows.
    let instance =
        (!SIMULATED_BUILTINS.contains(&algorithm)).then(|| (name.to_owned(), algorithm.to_owned()));
    let sockets = (config, receiving.rcvbuf());
    let ecn = (ecn, counted_ect);
    let mut connection =
        Connection::new((task.clone(), number), routes, instance, cc, sockets, ecn);
    name.clone_into(&mut connection.cc_name);
    Ok(connection)
}

/// Returns the settings of a connection whose congestion control, the same at both ends, has these requirements. They are added to `tcp_ecn`
/// unless that is 0, as with agents.
fn ecn_settings(
    (client, server): (&Sysctls<'_>, &Sysctls<'_>),
    requirements: CcRequirements,
) -> EcnSettings {
    let needed = EcnVariant::needed_by(requirements);
    let with = |own: EcnVariant, node: &Sysctls<'_>| match node.ecn() {
        0 => EcnVariant::NoEcn,
        _ => own.max(needed),
    };
    EcnSettings {
        request: with(client.ecn_request(), client),
        accept: with(server.ecn_accept(), server),
        has_fallback: client.ecn_fallback(),
    }
}

/// Returns all probes that send echoes, in order of nodes and names.
pub fn probes(
    nodes: &BTreeMap<String, NodeTask>,
    topology: &Topology,
    network: &mut Network,
) -> Result<Vec<SimulatedProbe>, SimulatorError> {
    let mut probes = Vec::new();
    for (node, task) in nodes {
        for probe in task.probes.iter().filter(|probe| !probe.plan.kind.connects()) {
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

/// Returns all probes that connect, in order of nodes and names.
pub fn tcp_probes(
    nodes: &BTreeMap<String, NodeTask>,
    topology: &Topology,
    network: &mut Network,
    (seed, end_ns): (u64, u64),
) -> Result<Vec<TcpProbe>, SimulatorError> {
    let mut probes = Vec::new();
    for (node, task) in nodes {
        for probe in task.probes.iter().filter(|probe| probe.plan.kind.connects()) {
            let (from, to) = (probe.plan.from.as_str(), probe.plan.to.as_str());
            let no_path = || SimulatorError::NoPath { from: from.to_owned(), to: to.to_owned() };
            let there = Endpoints {
                from: topology.address(node).ok_or_else(no_path)?,
                to: probe.to_ip,
                from_port: 0,
                to_port: probe.port,
                protocol: Protocol::Tcp,
            };
            let links = [
                network.add_route(topology, (from, to), there, probe.plan.tos)?,
                network.add_route(topology, (to, from), there.reversed(), probe.plan.tos)?,
            ];
            let path = network.add_probe_path(links, there, probe.plan.tos);
            let seed = seed ^ (u64::from(path) + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let (sockets, ecn) = probe_sockets(nodes, probe, seed)?;
            let times = (T0_NS + probe.plan.start.nanos(), end_ns);
            let node = (node.clone(), path);
            probes.push(TcpProbe::new(node, probe.clone(), (sockets, ecn), times));
        }
    }
    Ok(probes)
}

/// Returns the sockets of the node that measures, which has the default congestion control, and of the node that answers, and what they may
/// negotiate.
fn probe_sockets(
    nodes: &BTreeMap<String, NodeTask>,
    probe: &ProbeTask,
    seed: u64,
) -> Result<([Socket; 2], EcnSettings), SimulatorError> {
    let none = NodeTask::default();
    let settings = |node: &String| Sysctls(nodes.get(node).unwrap_or(&none));
    let (client, server) = (settings(&probe.plan.from), settings(&probe.plan.to));
    let subject = format!("probe {}", probe.id);
    let name = probe.plan.cc.as_deref().unwrap_or(DEFAULT_CC);
    let answering = server.congestion_control(&subject, name)?;
    // The plan does not set the congestion control of the connecting end, so its SYN asks only for what `tcp_ecn` says.
    let ecn = EcnSettings {
        request: client.ecn_request(),
        accept: server.ecn_accept().max(EcnVariant::needed_by(answering.requirements())),
        has_fallback: client.ecn_fallback(),
    };
    let socket = |settings: &Sysctls<'_>, name: &str, cc: CongestionControl| Socket {
        counted_ect: settings.counted_ect(name, cc.requirements()),
        cc,
        config: settings.sender_config(SERVER_SEND_BYTES, seed),
        rcvbuf: settings.rcvbuf(),
    };
    let asking = client.congestion_control(&subject, DEFAULT_CC)?;
    let sockets = [socket(&client, DEFAULT_CC, asking), socket(&server, name, answering)];
    Ok((sockets, ecn))
}

/// Returns the nodes' replies to Describe.
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

/// Returns the nodes' replies to Prepare.
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
            events: nodes.get(node).map(events).unwrap_or_default(),
            ..wire::PrepareReply::default()
        }
    };
    nodes.keys().map(|node| (node.clone(), reply(node))).collect()
}

/// Returns the events of a node's preparation.
fn events(task: &NodeTask) -> Vec<wire::Event> {
    let shared = |link: &LinkTask| {
        flow_queues::events(&link.config, link.flows.as_deref(), Backend::Userspace)
    };
    task.links.iter().flat_map(shared).chain(ecn_events(task)).collect()
}

/// Returns the instances that the connections of a node and its web servers use.
fn congestion_controls(
    node: &str,
    nodes: &BTreeMap<String, NodeTask>,
    connections: &[Connection],
) -> Vec<wire::CongestionControl> {
    let Some(task) = nodes.get(node) else { return Vec::new() };
    let is_used = |name: &str| {
        let mut own = connections.iter().filter(|connection| connection.nodes[0] == node);
        own.any(|connection| connection.cc_name == name)
            || task.served.iter().any(|probe| probe.plan.cc.as_deref() == Some(name))
    };
    let instance = |(name, cc): (&String, &Cc)| wire::CongestionControl {
        name: name.clone(),
        algorithm: cc.algorithm.clone(),
        kernel_name: cc.algorithm.clone(),
        reason: Some(ViaReason::simulated()),
        params: cc.params.iter().map(|(key, value)| (key.clone(), value.to_string())).collect(),
        via: Via::Builtin.into(),
        sha256: String::new(),
    };
    task.cc.iter().filter(|(name, _)| is_used(name)).map(instance).collect()
}
