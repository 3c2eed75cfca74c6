//! Derives the schedule of a checked plan: points, the order of trials, and each node's tasks in a trial. Pure; the same plan and
//! seed give the same schedule on every machine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::plan::checked::CheckedPlan;
use crate::plan::timeline::{self, flow_span, phase_spans};
use crate::plan::{Cc, Class, Flow, Link, Match, Order, Plan, Sample, TraceUse};
use crate::resolve::{
    self, ClassConfig, Egress, FlowAddress, LinkConfig, TimedChange, TriggeredChange, base_rtt,
    drain_rate, packet_matches, resolve_queue,
};
use crate::topology::Topology;
use crate::trace::{Replay, Trace};
use crate::units::Micros;

mod blocks;
mod captures;
mod changes;
mod link_flows;
mod own_traffic;
mod probes;
pub(crate) mod random;
mod shards;

pub use crate::plan::checked::Point;
pub use crate::plan::timeline::PhaseSpan;
pub use blocks::{
    CONNECT_TIMEOUT_S, MAX_BLOCK_BYTES, block_bytes, block_offset_ns, paused_offset_ns,
};
pub use captures::CaptureTask;
pub use link_flows::LinkFlow;
pub use probes::{MAX_SERVED_PROBES, ProbeTask, probe_port};
use random::{derive, derive_u64, shuffle};
pub use shards::{MAX_SHARDS, Shard, ShardError, partition, shard_trials};

/// One trial of one point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledTrial {
    /// Its position in the order in which trials run, from 0.
    pub index: u32,
    /// Which point.
    pub point_id: u32,
    /// Which repetition, from 1.
    pub trial: u16,
    /// Seeds everything random in this trial; the same for the same plan, point and repetition.
    pub seed: u64,
}

/// A node's input for a trial in addition to the plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrialContext {
    /// Node name to the address its peers use.
    pub addresses: BTreeMap<String, IpAddr>,
    /// The range of ports that the trial uses (see [`server_port`]).
    pub port_slot: u32,
    /// The trial's seed.
    pub seed: u64,
    /// Contents of the plan's trace files, by their name in the plan.
    pub traces: BTreeMap<String, Arc<Trace>>,
}

/// One node's part of one trial.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeTask {
    /// The timeline.
    pub phases: Vec<PhaseSpan>,
    /// When the last phase ends, after the trial's beginning.
    pub length: Micros,
    /// Sampling intervals.
    pub sample: Sample,
    /// Kernel settings, in order.
    pub sysctls: Vec<(String, String)>,
    /// The kernel that this node must run, as `uname -r` prints it; `None`: any.
    pub kernel_release: Option<String>,
    /// Leave segmentation offloads on.
    pub keep_offloads: bool,
    /// Keep this machine's CPUs from halting. If ccbench makes several nodes on one machine, only the first does it, for all of
    /// them.
    pub keep_awake: bool,
    /// The CPUs of this machine are kept from halting, by this node or another one.
    pub kept_awake: bool,
    /// The interfaces that ccbench made for this node; none where the node has a separate agent.
    pub wired: Vec<String>,
    /// Links on this node.
    pub links: Vec<LinkTask>,
    /// Flow groups whose listener is here.
    pub servers: Vec<FlowTask>,
    /// Flow groups that connect from here.
    pub clients: Vec<FlowTask>,
    /// The plan's instances of congestion controls that flows of this node use, by name.
    pub cc: BTreeMap<String, Cc>,
    /// Probes that measure from here.
    pub probes: Vec<ProbeTask>,
    /// Probes that servers started by ccbench answer here.
    pub served: Vec<ProbeTask>,
    /// Captures here.
    pub captures: Vec<CaptureTask>,
    /// Every other node to which this node sends traffic, for the base RTT measured before the start.
    pub peers: BTreeMap<String, IpAddr>,
}

/// A link and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkTask {
    /// Its configuration.
    pub config: LinkConfig,
    /// Its interface.
    pub egress: Egress,
    /// How it changes, sorted by time.
    pub changes: Vec<TimedChange>,
    /// Its changes that states of flows trigger.
    pub triggered: Vec<TriggeredChange>,
    /// The data connections that pass it; `None` where the cabling is not known (nodes with agents).
    pub flows: Option<Vec<LinkFlow>>,
}

/// A flow group: the same value on the node that connects and on the one that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowTask {
    /// The group's name.
    pub group: String,
    /// Its keys in the plan; `start` and `stop` below say when it runs.
    pub plan: Flow,
    /// Address of the node that connects.
    pub from_ip: IpAddr,
    /// Address of the node that listens.
    pub to_ip: IpAddr,
    /// The listener's port.
    pub server_port: u16,
    /// Data connection `i` comes from port `client_port + i`; iperf3's control connection from any other.
    pub client_port: u16,
    /// Time since the trial's beginning.
    pub start: Micros,
    /// Time since the trial's beginning.
    pub stop: Micros,
}

/// Number of port ranges that trials use in turn.
pub const PORT_SLOTS: u32 = 32;
/// Most flow groups that run at one point (one server port each).
pub const MAX_GROUPS: u32 = 32;
/// Most data connections at one point.
pub const MAX_SOCKETS: u32 = 600;

/// The listener's port of flow group number `group` (in name order).
pub fn server_port(slot: u32, group: u32) -> u16 {
    (5201 + (slot % PORT_SLOTS) * MAX_GROUPS + group) as u16
}

/// The first data connection's local port. `offset` is the number of connections of earlier groups.
pub fn client_port(slot: u32, offset: u32) -> u16 {
    (10_000 + (slot % PORT_SLOTS) * MAX_SOCKETS + offset) as u16
}

/// Every trial of every point in the order in which they run: shuffled within each repetition by the plan's seed, or point by
/// point. The order is the same on every machine. Rules of `repeat` may leave out later repetitions of a point.
pub fn trials(plan: &CheckedPlan) -> Vec<ScheduledTrial> {
    let repeat = plan.plan().repeat.at_most().min(u32::from(u16::MAX)) as u16;
    let (points, seed) = (plan.point_count(), plan.plan().seed);
    let firsts = first_compared(plan);
    let mut order: Vec<(u32, u16)> = Vec::new();
    match plan.plan().order {
        Order::AsWritten => {
            order.extend(
                (0..points).flat_map(|point| (1..=repeat).map(move |trial| (point, trial))),
            );
        }
        Order::Random => {
            for trial in 1..=repeat {
                let mut block: Vec<(u32, u16)> = (0..points).map(|point| (point, trial)).collect();
                shuffle(&mut block, derive(seed, "order", &[u64::from(trial)]));
                order.append(&mut block);
            }
        }
    }
    order
        .into_iter()
        .zip(0..)
        .map(|((point_id, trial), index)| ScheduledTrial {
            index,
            point_id,
            trial,
            seed: {
                let of_point = firsts.get(point_id as usize).copied().unwrap_or(point_id);
                derive_u64(seed, "trial", &[u64::from(of_point), u64::from(trial)])
            },
        })
        .collect()
}

/// For each point, the first of the points that comparisons connect with it, whose seeds its trials have. Empty without comparisons,
/// because then each point is the first one.
fn first_compared(plan: &CheckedPlan) -> Vec<u32> {
    if plan.plan().compare.is_empty() {
        return Vec::new();
    }
    let levels = plan.levels();
    let mut first: Vec<u32> = (0..levels.len() as u32).collect();
    let pairs = plan.plan().compare.iter().flat_map(|compare| compare.pairs(&levels));
    for (a, b) in pairs {
        let (a, b) = (root(&first, a), root(&first, b));
        first[a.max(b) as usize] = a.min(b);
    }
    (0..levels.len() as u32).map(|point| root(&first, point)).collect()
}

/// The first point that comparisons connect with a point.
fn root(first: &[u32], mut point: u32) -> u32 {
    while first[point as usize] != point {
        point = first[point as usize];
    }
    point
}

/// The phases with their places on the timeline.
pub fn phases(plan: &CheckedPlan) -> Vec<PhaseSpan> {
    phase_spans(plan.plan())
}

/// When the last phase ends, after the trial's beginning.
pub fn length(plan: &CheckedPlan) -> Micros {
    timeline::length(plan.plan())
}

/// The task of `node` in one trial of a point. Addresses that `context` lacks come from the plan or the built topology.
pub fn task_for(plan: &CheckedPlan, node: &str, context: &TrialContext) -> NodeTask {
    let plan = &resolve::normalize(plan.plan());
    let topology = Topology::build(plan);
    let address = |name: &str| {
        let given = context.addresses.get(name).copied();
        let written = || plan.nodes.get(name).and_then(|n| n.address);
        given
            .or_else(written)
            .or_else(|| topology.address(name))
            .unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))
    };
    let flows = flow_tasks(plan, &address, context.port_slot, Some(context.seed));
    let here = plan.nodes.get(node).cloned().unwrap_or_default();
    let all_probes = probes::tasks(plan, &address, context.port_slot);
    let served = |probe: &&ProbeTask| probe.plan.to == node && probe.plan.kind.is_served();
    let probes: Vec<ProbeTask> =
        all_probes.iter().filter(|p| p.plan.from == node).cloned().collect();
    let clients: Vec<FlowTask> = flows.iter().filter(|f| f.plan.from == node).cloned().collect();
    let towards = clients.iter().map(|f| (&f.plan.to, f.to_ip));
    let peers = towards.chain(probes.iter().map(|p| (&p.plan.to, p.to_ip)));
    NodeTask {
        length: timeline::length(plan),
        phases: phase_spans(plan),
        sample: plan.sample.clone(),
        sysctls: here.sysctl.iter().map(|(k, v)| (k.clone(), v.to_string())).collect(),
        kernel_release: here.kernel_release.clone(),
        keep_offloads: here.offloads,
        kept_awake: plan.keep_awake,
        keep_awake: plan.keep_awake && is_first_node_of_machine(plan, node),
        wired: topology
            .nodes
            .get(node)
            .map(|made| made.interfaces.iter().map(|interface| interface.dev.clone()).collect())
            .unwrap_or_default(),
        links: plan
            .links
            .iter()
            .filter(|(_, link)| link.node == node)
            .map(|(name, link)| {
                let context = (context.seed, &context.traces);
                let mut task = link_task(plan, name, link, &address, &flows, context);
                task.flows = link_flows::link_flows(plan, &topology, link, &flows);
                task.config.own_traffic =
                    own_traffic::own_traffic(plan, &flows, &all_probes, &address);
                task
            })
            .collect(),
        cc: flows
            .iter()
            .filter(|f| f.plan.from == node || f.plan.to == node)
            .map(|f| &f.plan.cc)
            .chain(all_probes.iter().filter(served).map(|p| &p.plan.cc))
            .filter_map(|cc| plan.cc.get_key_value(cc.as_ref()?))
            .map(|(name, cc)| (name.clone(), cc.clone()))
            .collect(),
        servers: flows.iter().filter(|f| f.plan.to == node).cloned().collect(),
        peers: peers.map(|(name, ip)| (name.clone(), ip)).collect(),
        clients,
        captures: captures::tasks(plan, node, &address),
        served: all_probes.iter().filter(served).cloned().collect(),
        probes,
    }
}

/// Whether a node has a separate machine, or is the first (by name) of those on ccbench's machine.
fn is_first_node_of_machine(plan: &Plan, node: &str) -> bool {
    let first_of_ours = || plan.nodes.iter().find(|(_, other)| other.agent.is_none());
    let own = plan.nodes.get(node).is_some_and(|here| here.agent.is_some());
    own || first_of_ours().is_some_and(|(first, _)| first == node)
}

/// Every flow group of the plan and when it runs, in name order, for readers of results: the ports are those of the first
/// range, and the addresses are unspecified.
pub fn flows(plan: &CheckedPlan) -> Vec<FlowTask> {
    flow_tasks(plan.plan(), &|_| IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0, None)
}

/// Every flow group of the plan with its ports and its times, in name order. Without a seed, starts have no jitter.
fn flow_tasks(
    plan: &Plan,
    address: &impl Fn(&str) -> IpAddr,
    slot: u32,
    seed: Option<u64>,
) -> Vec<FlowTask> {
    let mut earlier = 0;
    plan.flows
        .iter()
        .zip(0..)
        .map(|((name, flow), group)| {
            let (start, stop) = flow_span(plan, name, flow).unwrap_or_default();
            let client_port = client_port(slot, earlier);
            earlier += flow.count;
            let jitter = flow.start_jitter.zip(seed).map_or(0, |(most, seed)| {
                derive_u64(seed, &format!("start {name}"), &[]) % (most.get() + 1)
            });
            FlowTask {
                group: name.clone(),
                plan: flow.clone(),
                from_ip: address(&flow.from),
                to_ip: address(&flow.to),
                server_port: server_port(slot, group),
                client_port,
                start: start + Micros::new(jitter),
                stop,
            }
        })
        .collect()
}

fn link_task(
    plan: &Plan,
    name: &str,
    link: &Link,
    address: &impl Fn(&str) -> IpAddr,
    flows: &[FlowTask],
    (seed, traces): (u64, &BTreeMap<String, Arc<Trace>>),
) -> LinkTask {
    let rtt = base_rtt(plan, name);
    let flow_address = |group: &str| {
        let flow = flows.iter().find(|flow| flow.group == group)?;
        let FlowTask { from_ip, to_ip, server_port, .. } = *flow;
        Some(FlowAddress { from_ip, to_ip, server_port })
    };
    let class_config = |name: &str, class: &Class| ClassConfig {
        name: name.to_owned(),
        plan: Class { matches: Match::default(), queue: None, ..class.clone() },
        matches: packet_matches(&class.matches, address, &flow_address),
        queue: resolve_queue(class.queue.as_ref(), Some(class.rate), rtt),
    };
    let (changes, mut changed_queues) = changes::timed(plan, name, link, rtt);
    let triggered = changes::triggered(plan, (name, link), rtt, &mut changed_queues);
    LinkTask {
        config: LinkConfig {
            name: name.to_owned(),
            plan: Link { queue: None, classes: BTreeMap::new(), trace: None, ..link.clone() },
            queue: resolve_queue(link.queue.as_ref(), drain_rate(link), rtt),
            classes: link.classes.iter().map(|(name, class)| class_config(name, class)).collect(),
            trace: link.trace.as_ref().and_then(|used| replay(used, traces)),
            seed: derive_u64(seed, &format!("link {name}"), &[]),
            changed_queues,
            own_traffic: None,
        },
        egress: match (&link.dev, &link.toward) {
            (Some(dev), _) => Egress::Dev(dev.clone()),
            (None, toward) => Egress::Toward(address(toward.as_deref().unwrap_or_default())),
        },
        changes,
        triggered,
        flows: None,
    }
}

/// A link's trace; `None` if its file was not given.
fn replay(used: &TraceUse, traces: &BTreeMap<String, Arc<Trace>>) -> Option<Replay> {
    Some(Replay { trace: Arc::clone(traces.get(&used.file)?), plan: used.clone() })
}
