//! Makes the node ready for one trial, all or nothing. The undo of each change is recorded before the change; on an
//! error the caller undoes what was done.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use ccbench_collector::acks::AckSource;
use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::plan::Via;
use ccbench_proto::resolve::{Egress, LinkConfig};
use ccbench_proto::schedule::{FlowTask, NodeTask, ProbeTask};
use ccbench_proto::units::Rate;
use ccbench_proto::wire;
use ccbench_shaper::flow_queues;

use super::acks::{self, OpenAcks};
use super::choices::{self, Choices};
use super::settings::{self, TrialSettings};
use super::timed_link::TimedLink;
use super::{Dependencies, ipv6, modules, offloads, scopes};
use crate::accept::ConnectionHandle;
use crate::blocking;
use crate::cgroup;
use crate::clock;
use crate::error::AgentError;
use crate::event::event;
use crate::files::Contents;
use crate::flow::{FlowEndpoint, FlowSource, Traffic};
use crate::interfaces::{Devices, Interfaces};
use crate::ports;
use crate::probe::{process, serve};
use crate::session::{Command, Holder};
use crate::sockets::allowed::AllowedModules;
use crate::sockets::error::NotAvailable;
use crate::sockets::names::{self, TrialId};
use crate::sockets::node::Node;
use crate::sockets::supplied::Supplied;
use crate::sockets::{before_handshake, ecn, load, verify};
use crate::sysctl;
use crate::undo::{Step, Undo};

/// Returns the session's command for a request.
pub fn command(request: &wire::PrepareRequest, controller: Option<&ConnectionHandle>) -> Command {
    let holder = Holder {
        run_id: request.run_id.clone(),
        point_id: request.point_id,
        trial: request.trial,
        epoch: request.epoch,
        connection: controller.map(ConnectionHandle::id),
    };
    let (generation, boot_id) = (request.generation, request.boot_id.clone());
    Command::Prepare { holder, generation, boot_id }
}

/// A prepared trial. Dropping it releases what it holds.
#[derive(Default)]
pub struct Trial {
    /// This node's part.
    pub task: Option<NodeTask>,
    /// The links in place.
    pub links: Vec<TimedLink>,
    /// The loaded congestion controls of this node's flows.
    pub cc: load::LoadedCcs,
    /// The hook that sets congestion controls before the handshake.
    pub attached: before_handshake::AttachedHook,
    /// The ECN settings of this node's flows.
    pub ecn: ecn::apply::EcnApplied,
    /// The source of acknowledgements.
    pub acks: Option<Box<dyn AckSource>>,
    /// Listening servers of flows.
    pub servers: Vec<(FlowTask, Box<dyn Traffic>)>,
    /// Servers that answer probes, in the order of the task's.
    pub answers: Vec<process::Server>,
    /// Events of the preparation.
    pub events: Vec<wire::Event>,
    /// The initial state of each link, reported in the trial's first rows.
    pub applied: Vec<wire::LinkChange>,
    /// The settings that must not change until the trial's end.
    pub settings: TrialSettings,
}

impl Trial {
    /// Returns an event for each server of a probe that has ended, although the trial still holds it: the measuring node has seen loss.
    pub fn ended_answers(&mut self) -> Vec<wire::Event> {
        let probes = self.task.iter().flat_map(|task| &task.served);
        let ended = probes.zip(&mut self.answers).filter_map(|(probe, server)| {
            let message = format!("its server ended early ({})", server.ended()?);
            Some(event(Kind::ProbeError(NoData {}), &probe.id, message))
        });
        ended.collect()
    }
}

/// The parts of the node that preparing uses.
pub struct PrepareContext<'a> {
    /// The machine's interfaces.
    pub interfaces: &'a dyn Interfaces,
    /// Starts traffic.
    pub source: &'a Arc<dyn FlowSource>,
    /// Watches acknowledgements.
    pub acks: OpenAcks,
    /// Records the undo of every change before the change.
    pub undo: &'a mut Undo,
    /// The control group of traffic, unless it is the agent's own.
    pub traffic_group: Option<&'a Path>,
    /// The kernel modules that may be loaded.
    pub modules: &'a AllowedModules,
    /// The connection of the controller.
    pub controller: Option<&'a ConnectionHandle>,
    /// Congestion controls supplied by the user.
    pub supplied: Supplied<'a>,
    /// The trial.
    pub trial: TrialId,
    /// This node's name in the plan.
    pub node: &'a str,
}

impl<'a> PrepareContext<'a> {
    /// Collects the parts of an executor for a request.
    pub fn from_request(
        dependencies: &'a mut Dependencies,
        request: &'a wire::PrepareRequest,
        files: &'a Contents,
        controller: Option<&'a ConnectionHandle>,
    ) -> Self {
        Self {
            interfaces: &*dependencies.interfaces,
            source: &dependencies.source,
            acks: dependencies.acks,
            undo: &mut dependencies.undo,
            traffic_group: dependencies.traffic_group.as_deref(),
            modules: &dependencies.modules,
            controller,
            supplied: Supplied { files, allowed: &dependencies.cc_digests },
            trial: TrialId { run_id: request.run_id.clone(), epoch: request.epoch },
            node: &request.node,
        }
    }
}

/// Refuses a trial for every reason that is known before anything is changed, except busy ports, which change from
/// trial to trial. Returns the interfaces that the trial uses.
///
/// # Errors
/// A program or an interface is missing, a link would cut off the controller, a setting would delete IPv6 addresses, the client lacks a
/// scope, the loader does not answer, or the agent may not load a module or a supplied congestion control.
pub async fn check(
    task: &NodeTask,
    context: &mut PrepareContext<'_>,
) -> Result<Devices, AgentError> {
    let flows = task.clients.iter().chain(&task.servers);
    for tool in flows.map(|flow| flow.plan.tool()).collect::<BTreeSet<_>>() {
        context.source.find(tool).await?;
    }
    let devices = devices(task, context.interfaces)?;
    check_control(task, &devices, context)?;
    ipv6::check(&task.sysctls, context.interfaces)?;
    let choices = Choices::for_task(task, context.node, choices::choose).await?;
    if let Some(client) = context.controller.map(ConnectionHandle::identity) {
        scopes::check(task, context.node, &devices, context.interfaces, &choices, client)?;
    }
    load::check_digests(task, context.node, context.supplied)?;
    modules::check(task, context.node, context.modules, &choices)?;
    Ok(devices)
}

/// Makes the node ready. Every change goes into `trial` at once, so that the caller can undo it on an error.
///
/// # Errors
/// The first step that failed.
pub async fn prepare(
    mut task: NodeTask,
    context: &mut PrepareContext<'_>,
    trial: &mut Trial,
) -> Result<wire::PrepareReply, AgentError> {
    ports::check(&task)?;
    let devices = check(&task, context).await?;
    let supplied = load::read_supplied(&task, context.node, context.supplied)?;
    set_sysctls(&task, context, trial)?;
    // Traffic generators set the congestion control on both ends, so both need it loaded.
    // After an error, too, the caller undoes what was loaded.
    let (cc, loaded) = load::load_in_thread(&task, &context.trial, context.node, supplied).await;
    trial.cc = cc;
    loaded?;
    for loaded in trial.cc.messages() {
        let via = loaded.via().as_text();
        let of = match loaded.sha256.as_str() {
            "" => String::new(),
            sha256 => format!(", sha256 {sha256}"),
        };
        context
            .undo
            .audit()
            .change(format!("congestion control {} ({via}{of})", loaded.kernel_name));
    }
    check_kernel_ccs(&task, |_| true, verify::check).await?;
    if !task.keep_offloads {
        for dev in offloads::devices(&task, &devices)? {
            trial.events.extend(offloads::switch_off(dev, context.interfaces, context.undo)?);
        }
    }
    make_links(&task, &devices, context, trial)?;
    make_traffic_group(&task, context)?;
    start_servers(&task, context, trial).await?;
    let (acks, report) = acks::watch(&task, context.acks);
    trial.acks = acks;
    trial.events.extend(report);
    read_settings(&task, &devices, context, trial)?;
    let reply = wire::PrepareReply {
        links: trial.links.iter().map(|timed| timed.link.state()).collect(),
        events: std::mem::take(&mut trial.events),
        congestion_controls: trial.cc.messages(),
        generation: 0,
    };
    trial.cc.rename(&mut task);
    trial.task = Some(task);
    Ok(reply)
}

/// Checks each congestion control of probes and of these flows that the plan does not define, beside the runtime: the kernel may load its module.
///
/// # Errors
/// The first one that the kernel does not have.
async fn check_kernel_ccs(
    task: &NodeTask,
    is_checked: impl Fn(&FlowTask) -> bool,
    check: fn(&str) -> Result<(), NotAvailable>,
) -> Result<(), AgentError> {
    let flows = task.clients.iter().chain(&task.servers).filter(|flow| is_checked(flow));
    let flows = flows.map(|flow| (&flow.group, &flow.plan.cc));
    let probes = task.served.iter().map(|probe| (&probe.id, &probe.plan.cc));
    let of_kernel = flows.chain(probes).filter_map(|(name, cc)| {
        let cc = cc.as_ref().filter(|cc| !task.cc.contains_key(*cc))?;
        Some((name.clone(), cc.clone()))
    });
    let of_kernel: Vec<(String, String)> = of_kernel.collect();
    blocking::run(move || {
        of_kernel.into_iter().try_for_each(|(group, cc)| {
            check(&cc).map_err(|source| AgentError::CongestionControl { group, cc, source })
        })
    })
    .await
}

/// Checks the congestion controls with which this node sends, before the trial. The receiving end needs them too, but one node's
/// refusal names the problem. Says nothing about a node whose kernel the plan names: its Prepare checks them.
///
/// # Errors
/// The first one that the kernel does not have.
pub async fn check_sent_ccs(
    task: &NodeTask,
    node: &str,
    check: fn(&str) -> Result<(), NotAvailable>,
) -> Result<(), AgentError> {
    if task.kernel_release.is_some() {
        return Ok(());
    }
    check_kernel_ccs(task, |flow| names::sender(flow) == node, check).await
}

fn set_sysctls(
    task: &NodeTask,
    context: &mut PrepareContext<'_>,
    trial: &mut Trial,
) -> Result<(), AgentError> {
    // Read all values before writing any: some sysctls change others.
    let mut saved = Vec::new();
    for (name, _) in &task.sysctls {
        saved.extend(sysctl::save(name)?);
    }
    for saved in &saved {
        context.undo.push(Step::Sysctl(saved.clone()))?;
    }
    for (name, value) in &task.sysctls {
        sysctl::write(name, value)?;
        let before = saved.iter().find(|saved| saved.name == *name);
        let before = before.map_or("?", |saved| saved.before.as_str());
        trial.events.push(event(Kind::Sysctl(NoData {}), name, format!("{before} -> {value}")));
    }
    Ok(())
}

/// Returns the interfaces that links shape, by link, and those that this node's flows use, by flow.
fn devices(task: &NodeTask, interfaces: &dyn Interfaces) -> Result<Devices, AgentError> {
    let mut found = BTreeMap::new();
    for link in &task.links {
        let name = link.config.name.clone();
        let dev = interfaces
            .device(&link.egress)
            .map_err(|source| AgentError::Link { link: name.clone(), source })?;
        found.insert(("link", name), dev);
    }
    let clients = task.clients.iter().map(|flow| (flow, flow.to_ip));
    let servers = task.servers.iter().map(|flow| (flow, flow.from_ip));
    for (flow, peer) in clients.chain(servers) {
        // A flow without a route fails later, with iperf3's error message.
        if let Ok(dev) = interfaces.device(&Egress::Toward(peer)) {
            found.insert(("flow", format!("{} {peer}", flow.group)), dev);
        }
    }
    Ok(found)
}

/// Refuses links on the interfaces of the routes to the controller: a slow or broken link would cut it off.
fn check_control(
    task: &NodeTask,
    devices: &Devices,
    context: &PrepareContext<'_>,
) -> Result<(), AgentError> {
    let Some(peer) = context.controller.and_then(ConnectionHandle::peer) else { return Ok(()) };
    let controller = peer.ip;
    // The route to an address of this node uses `lo`.
    let control = context.interfaces.control_devices(&peer);
    let control = control.map_err(|source| AgentError::ControlRoute { controller, source })?;
    for link in task.links.iter().filter(|link| !link.config.plan.allow_control_interface) {
        let link = link.config.name.clone();
        let dev = devices.get(&("link", link.clone()));
        if let Some(dev) = dev.filter(|dev| control.contains(*dev)).cloned() {
            return Err(AgentError::ControlInterface { link, dev, controller });
        }
    }
    Ok(())
}

fn make_links(
    task: &NodeTask,
    devices: &Devices,
    context: &mut PrepareContext<'_>,
    trial: &mut Trial,
) -> Result<(), AgentError> {
    for link in &task.links {
        let name = &link.config.name;
        let failed = |source| AgentError::Link { link: name.clone(), source };
        let dev = devices.get(&("link", name.clone())).cloned().unwrap_or_default();
        let before = context.interfaces.save_root(&dev).map_err(failed)?;
        context.undo.push(Step::Link { link: name.clone(), dev: dev.clone(), before })?;
        let requested_at_ns = clock::now_ns();
        let controller = context.controller.and_then(ConnectionHandle::peer).map(|peer| peer.ip);
        let config = with_controller(&link.config, controller);
        let open = context.interfaces.open(&config, &dev).map_err(failed)?;
        trial.applied.push(applied(&link.config, &dev, requested_at_ns, clock::now_ns()));
        let state = open.state();
        trial.links.push(TimedLink::new(open, dev, link));
        let message =
            format!("{} on {}: {}", state.backend().as_text(), state.dev, state.reason_text());
        trial.events.push(event(Kind::LinkUp(NoData {}), name, message));
        let shared = flow_queues::events(&link.config, link.flows.as_deref(), state.backend());
        let at_ns = clock::now_ns();
        trial.events.extend(shared.into_iter().map(|event| wire::Event { at_ns, ..event }));
    }
    Ok(())
}

/// Adds the controller's address. Its connections to agents of other nodes may pass any link.
fn with_controller(config: &LinkConfig, controller: Option<IpAddr>) -> Cow<'_, LinkConfig> {
    let (Some(controller), Some(own)) = (controller, &config.own_traffic) else {
        return Cow::Borrowed(config);
    };
    let mut own = own.clone();
    own.controllers.push(controller);
    Cow::Owned(LinkConfig { own_traffic: Some(own), ..config.clone() })
}

/// Reads the settings of all interfaces that packets of the trial use, and the sysctls that were set.
fn read_settings(
    task: &NodeTask,
    devices: &Devices,
    context: &PrepareContext<'_>,
    trial: &mut Trial,
) -> Result<(), AgentError> {
    let changing = settings::changing_devices(task, &trial.links);
    let sysctls = settings::compared_sysctls(context.undo, task);
    let devices = offloads::devices(task, devices)?;
    let (read, unread) = TrialSettings::read(&devices, &changing, sysctls, context.interfaces);
    trial.settings = read;
    trial.events.extend(unread);
    Ok(())
}

/// Returns a link's row with its initial state. A link that could not be applied has none: its Prepare fails.
fn applied(
    config: &LinkConfig,
    dev: &str,
    requested_at_ns: u64,
    applied_at_ns: u64,
) -> wire::LinkChange {
    wire::LinkChange {
        requested_at_ns,
        applied_at_ns,
        link: config.name.clone(),
        iface: dev.to_owned(),
        rate_bps: config.plan.rate.map(Rate::bits_per_sec),
        delay_us: Some(config.plan.delay.unwrap_or_default().get()),
        loss_ppm: Some(config.plan.loss.unwrap_or_default().get()),
        source: "plan".to_owned(),
        rc: 0,
    }
}

/// Must run before the first socket is opened: clients and listeners need their congestion control before a handshake.
fn attach_cc(task: &NodeTask, context: &mut PrepareContext<'_>, trial: &mut Trial) {
    let group = context.traffic_group;
    let mut node = Node { interfaces: context.interfaces, undo: context.undo, group };
    let outcome_of = |name: &str| trial.cc.outcome_of(task, name);
    let assignments = ecn::apply::decide_all(ecn::endpoints(task, outcome_of), task);
    // Without ECN, a congestion control whose own flags would negotiate it must be set after the handshake.
    let late = |group: &str| {
        assignments.iter().any(|a| {
            a.end.group == group && a.decision.mode == ecn::Mode::None && a.end.via != Via::Bpf
        })
    };
    let needed = assignments.iter().any(|a| a.decision.mode != ecn::Mode::None);
    let starts = before_handshake::starts(task, outcome_of, late);
    trial.attached = before_handshake::apply(starts, task, needed, &mut node);
    trial.events.extend(trial.attached.reports());
    let (applied, events) = ecn::apply::apply(assignments, &trial.attached, &mut node);
    trial.ecn = applied;
    trial.events.extend(events);
}

/// Starts a server that answers a probe.
fn answer(
    probe: &ProbeTask,
    task: &NodeTask,
    group: Option<&Path>,
    loaded: &load::LoadedCcs,
) -> Result<process::Server, AgentError> {
    // A web server's congestion control may be a loaded instance, under its kernel name.
    let cc = probe.plan.cc.as_ref().and_then(|cc| Some(loaded.outcome_of(task, cc)?.0));
    let socket = serve::open(probe, cc.as_deref()).map_err(|source| {
        if source.kind() == std::io::ErrorKind::AddrInUse {
            return ports::in_use(format!("probe {}", probe.id), probe.to_ip, probe.port);
        }
        let with = cc.map_or(String::new(), |cc| format!(" with congestion control {cc}"));
        let (ip, port) = (probe.to_ip, probe.port);
        AgentError::system(format!("listen on {ip} port {port} for probe {}{with}", probe.id))(
            source,
        )
    })?;
    let op = format!("start the server of probe {}", probe.id);
    process::answer(probe, socket, group).map_err(AgentError::system(op))
}

/// Makes the control group of the processes of flows and probes.
fn make_traffic_group(task: &NodeTask, context: &mut PrepareContext<'_>) -> Result<(), AgentError> {
    let has_flows = !(task.servers.is_empty() && task.clients.is_empty());
    let has_probes = !(task.served.is_empty() && task.probes.is_empty());
    if let Some(group) = context.traffic_group.filter(|_| has_flows || has_probes) {
        context.undo.push(Step::TrafficGroup { folder: group.to_owned() })?;
        let op = format!("make control group {} for traffic", group.display());
        cgroup::make(group).map_err(AgentError::system(op))?;
    }
    Ok(())
}

/// Starts the servers of flows and those that answer probes.
async fn start_servers(
    task: &NodeTask,
    context: &mut PrepareContext<'_>,
    trial: &mut Trial,
) -> Result<(), AgentError> {
    if !(task.servers.is_empty() && task.clients.is_empty()) {
        attach_cc(task, context, trial);
    }
    // Start all servers before waiting for any: the starts overlap, and so do the limits of their time.
    for flow in &task.servers {
        let traffic = context.source.start(&trial.cc.renamed(flow), FlowEndpoint::Server)?;
        trial.servers.push((flow.clone(), traffic));
    }
    for probe in &task.served {
        trial.answers.push(answer(probe, task, context.traffic_group, &trial.cc)?);
    }
    for (flow, traffic) in &mut trial.servers {
        traffic.listening().await.map_err(|source| AgentError::Server {
            group: flow.group.clone(),
            address: format!("{}:{}", flow.to_ip, flow.server_port),
            source,
        })?;
    }
    for (probe, server) in task.served.iter().zip(&mut trial.answers) {
        server
            .started()
            .await
            .map_err(|source| AgentError::ProbeServer { id: probe.id.clone(), source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{self, ProbeKind, Repeat};
    use ccbench_proto::resolve::OwnTraffic;
    use ccbench_proto::units::{Limit, Packets};

    use super::*;
    use crate::probe::serve::tests::task;
    use crate::sockets::names::tests::flow;

    #[tokio::test]
    async fn congestion_controls_of_the_kernel_are_tried_beside_the_runtime() {
        let clients = vec![flow("a", "src", "cubic")];
        let task = NodeTask { clients, ..NodeTask::default() };
        let on_thread = |_: &str| -> Result<(), NotAvailable> {
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            let (available, hint) = (String::new(), String::new());
            Err(NotAvailable { source: std::io::Error::other(thread), available, hint })
        };
        let error = check_kernel_ccs(&task, |_| true, on_thread).await.unwrap_err().to_string();
        let expected = "flow a: this kernel has no congestion control `cubic` (blocking)";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn every_link_knows_the_controllers_address() {
        let queue = plan::Queue::pfifo(Limit::Packets(Packets::new(9)));
        let own_traffic = Some(OwnTraffic::default());
        let mut config =
            LinkConfig { own_traffic, ..LinkConfig::new("l", plan::Link::default(), queue) };
        let controller: IpAddr = "10.0.0.9".parse().unwrap();
        let controllers = |config: &LinkConfig, controller: Option<IpAddr>| {
            with_controller(config, controller).own_traffic.clone().unwrap().controllers
        };
        assert_eq!(controllers(&config, Some(controller)), [controller]);
        config.plan.allow_control_interface = true;
        assert_eq!(controllers(&config, Some(controller)), [controller]);
        assert!(controllers(&config, None).is_empty());
    }

    #[test]
    fn a_server_of_a_probe_that_has_ended_is_an_event() {
        let served = ["page", "stream"].map(|id| {
            let task = task(ProbeKind::Http, 0, Repeat::Interval);
            ProbeTask { id: id.to_owned(), ..task }
        });
        let task = NodeTask { served: served.to_vec(), ..NodeTask::default() };
        let answers = vec![process::Server::mute(0), process::Server::mute(0)];
        let mut trial = Trial { task: Some(task), answers, ..Trial::default() };
        assert!(trial.ended_answers().is_empty());
        trial.answers[1].kill();
        let events = trial.ended_answers();
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.name(), event.subject.as_str()), ("probe_error", "stream"));
        assert!(event.message.contains("signal: 9"), "{event:?}");
    }

    #[tokio::test]
    async fn the_sending_node_refuses_an_unknown_congestion_control() {
        let unknown = |_: &str| -> Result<(), NotAvailable> {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            Err(NotAvailable { source, available: "reno".to_owned(), hint: String::new() })
        };
        let flows = vec![flow("a", "src", "nosuch")];
        let sends = NodeTask { clients: flows.clone(), ..NodeTask::default() };
        let error = check_sent_ccs(&sends, "src", unknown).await.unwrap_err().to_string();
        let expected = "flow a: this kernel has no congestion control `nosuch`; it has: reno";
        assert_eq!(error, expected);
        let receives = NodeTask { servers: flows, ..NodeTask::default() };
        check_sent_ccs(&receives, "dst", unknown).await.unwrap();
        let kernel_release = Some("6.99.0-none".to_owned());
        let reboots = NodeTask { kernel_release, ..sends };
        check_sent_ccs(&reboots, "src", unknown).await.unwrap();
    }
}
