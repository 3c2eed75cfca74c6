//! Sets the congestion control of every flow before the handshake. iperf3 sets it only after `connect`: by then ECN is
//! negotiated and the namespace's default has been initialised. If that default is `bbr`, it has enabled pacing on the socket.
//! Nothing disables that, so the congestion control under test would be paced.
//!
//! A BPF hook in the control group of traffic selects sockets by port ([`crate::sockets::hook::CcHook`]) and leaves other
//! sockets alone. Without BPF, the namespace's default changes if the namespace is ccbench's or if all its flows need the same
//! congestion control. Otherwise an event reports what the sockets started with, and the verdict takes it into account.

use std::collections::BTreeMap;
#[cfg(feature = "ebpf")]
use std::path::{Path, PathBuf};

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::event::{CcMethod, InitialCc, Kind};
#[cfg(feature = "ebpf")]
use ccbench_proto::event::{CcSockets, NoData};
use ccbench_proto::plan::Via;
use ccbench_proto::schedule::{FlowTask, NodeTask};
use ccbench_proto::wire::{self, Side};
use ccbench_shaper::ShaperError;
use ccbench_shaper::netlink::find_ifindex;

#[cfg(feature = "ebpf")]
use crate::cgroup;
use crate::event::event;
#[cfg(feature = "ebpf")]
use crate::sockets::error::BpfError;
use crate::sockets::error::SocketError;
#[cfg(feature = "ebpf")]
use crate::sockets::hook::CcHook;
use crate::sockets::node::{Node, Port, set_sysctl};
use crate::sysctl;

const DEFAULT_CC: &str = "net.ipv4.tcp_congestion_control";
/// Every kernel has it, any namespace may use it as the default, and it leaves no state in a socket.
const NEUTRAL_CC: &str = "reno";
/// Name prefixes of congestion controls that enable pacing on a socket permanently.
const PACING_CC_PREFIXES: &[&str] = &["bbr", "prague"];

/// One end of a flow group with a congestion control on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The flow group.
    pub group: String,
    /// The congestion control's name in the plan.
    pub cc: String,
    /// Its name in this node's kernel; `None` for an instance that only the sending node has.
    pub kernel_name: Option<String>,
    /// The congestion control that its sockets start with.
    pub initial_cc: String,
    /// Local ports of its data connections, or the listener's.
    pub ports: Vec<u16>,
    /// Remote port of its control connection, if this end connects.
    pub control: Option<u16>,
    /// Whether this end sends the data.
    pub sends: bool,
}

/// Returns the ends on this node. `outcome_of` maps a name of the plan to the kernel's name and the backend (`None`: an
/// instance that is not on this node). `late` selects groups whose congestion control must not be set before the handshake.
pub fn starts(
    task: &NodeTask,
    outcome_of: impl Fn(&str) -> Option<(String, Via)>,
    late: impl Fn(&str) -> bool,
) -> Vec<Start> {
    let start = |flow: &FlowTask, listens: bool| {
        let cc = flow.plan.cc.as_deref()?;
        let kernel_name = outcome_of(cc).map(|(name, _)| name);
        let initial_cc =
            kernel_name.as_deref().filter(|_| !late(&flow.group)).unwrap_or(NEUTRAL_CC);
        Some(Start {
            group: flow.group.clone(),
            cc: cc.to_owned(),
            initial_cc: initial_cc.to_owned(),
            kernel_name,
            ports: match listens {
                true => vec![flow.server_port],
                false => (0..flow.plan.count).map(|i| flow.client_port + i as u16).collect(),
            },
            control: (!listens).then_some(flow.server_port),
            sends: listens == flow.plan.reverse,
        })
    };
    let clients = task.clients.iter().filter_map(|flow| start(flow, false));
    clients.chain(task.servers.iter().filter_map(|flow| start(flow, true))).collect()
}

/// How a flow's congestion control was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SetMethod {
    /// The hook sets it when sockets connect and listen.
    BeforeConnect,
    /// It is the namespace's default during the trial.
    NamespaceDefault,
    /// iperf3 sets it after `connect`.
    AfterConnect,
}

impl SetMethod {
    fn on_wire(self) -> CcMethod {
        match self {
            Self::BeforeConnect => CcMethod::BeforeConnect,
            Self::NamespaceDefault => CcMethod::NamespaceDefault,
            Self::AfterConnect => CcMethod::AfterConnect,
        }
    }
}

/// The attached hook of a trial, or its substitute. Dropping it detaches the hook.
#[derive(Debug, Default)]
pub struct AttachedHook {
    starts: Vec<Start>,
    /// Why the hook could not be attached.
    no_hook: Option<SocketError>,
    /// The new default of the namespace, or why it was not changed; `None` if the hook is attached.
    default_change: Option<Result<String, DefaultError>>,
    /// The unchanged default.
    default: String,
    #[cfg(feature = "ebpf")]
    hook: Option<CcHook>,
}

/// Attaches the hook, or changes the namespace's default. Call this before any socket of a flow is created. With
/// `needed`, the default may also change in a namespace that is not ccbench's.
pub fn apply(
    starts: Vec<Start>,
    task: &NodeTask,
    needed: bool,
    node: &mut Node<'_>,
) -> AttachedHook {
    let mut attached = AttachedHook { starts, ..AttachedHook::default() };
    if attached.starts.is_empty() {
        return attached;
    }
    if let Err(error) = attached.attach(node) {
        attached.no_hook = Some(error);
        attached.default_change = Some(change_default(&attached.starts, task, needed, node));
        attached.default = sysctl::read(DEFAULT_CC).unwrap_or_default();
    }
    attached
}

/// Why the namespace's default congestion control was not changed.
#[derive(Debug, thiserror::Error)]
enum DefaultError {
    /// Some flows have no `cc`.
    #[error("the namespace's default would apply to flows without `cc` too")]
    FlowsWithout,
    /// The namespace is not ccbench's, or flows need different congestion controls.
    #[error("the namespace's default would apply to other flows too")]
    OtherFlows,
    /// An interface that only ccbench's namespaces have could not be looked up.
    #[error("whether the namespace is ccbench's is unknown: {0}")]
    Interface(#[from] ShaperError),
    /// The setting cannot be changed.
    #[error(transparent)]
    Sysctl(#[from] SocketError),
}

/// The error if a flow's congestion control is set only after the handshake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the congestion control cannot be in force before the handshake: {reason}")]
pub struct SetAfterHandshake {
    /// Why neither the hook nor the namespace's default sets it earlier.
    reason: String,
}

/// Changes the namespace's default congestion control. Returns the new one.
fn change_default(
    starts: &[Start],
    task: &NodeTask,
    needed: bool,
    node: &mut Node<'_>,
) -> Result<String, DefaultError> {
    if starts.len() != task.clients.len() + task.servers.len() {
        return Err(DefaultError::FlowsWithout);
    }
    // The names come from the plan, and the machine may have an interface of such a name.
    let mut own = false;
    if !node.interfaces.is_host_namespace() {
        for dev in &task.wired {
            own = own || find_ifindex(dev)?.is_some();
        }
    }
    let common =
        starts.first().filter(|first| starts.iter().all(|s| s.initial_cc == first.initial_cc));
    let changed = match common {
        Some(start) if own || needed => set_sysctl(DEFAULT_CC, &start.initial_cc, node)
            .map(|()| start.initial_cc.clone())
            .map_err(Into::into),
        _ => Err(DefaultError::OtherFlows),
    };
    changed.or_else(|error| match own {
        true => Ok(set_sysctl(DEFAULT_CC, NEUTRAL_CC, node).map(|()| NEUTRAL_CC.to_owned())?),
        false => Err(error),
    })
}

/// Whether pacing stays enabled on a socket that starts with `initial_cc` and then uses `then`.
fn leaves_pacing(initial_cc: &str, then: &str) -> bool {
    let paces = |name: &str| PACING_CC_PREFIXES.iter().any(|kind| name.starts_with(kind));
    paces(initial_cc) && !paces(then)
}

impl AttachedHook {
    #[cfg(feature = "ebpf")]
    fn attach(&mut self, node: &Node<'_>) -> Result<(), SocketError> {
        let group = node.group.map(Path::to_owned).or_else(cgroup::own_folder);
        let group: PathBuf = group.ok_or(SocketError::NoCgroup)?;
        self.hook = Some(CcHook::attach(&group, &choices(&self.starts))?);
        Ok(())
    }

    #[cfg(not(feature = "ebpf"))]
    fn attach(&mut self, _: &Node<'_>) -> Result<(), SocketError> {
        Err(SocketError::NoEbpf)
    }

    /// Returns the congestion control that a group's sockets start with, and how theirs is set.
    fn of(&self, start: &Start) -> (String, SetMethod) {
        let own = |cc: &str| start.kernel_name.as_deref().is_none_or(|name| name == cc);
        let (initial_cc, method) = match &self.default_change {
            None => (start.initial_cc.clone(), SetMethod::BeforeConnect),
            Some(Ok(default)) => (default.clone(), SetMethod::NamespaceDefault),
            Some(Err(_)) => (self.default.clone(), SetMethod::NamespaceDefault),
        };
        let method = if own(&initial_cc) { method } else { SetMethod::AfterConnect };
        (initial_cc, method)
    }

    /// Returns how the congestion control of one end of a group is set before the handshake; `None` means by the hook.
    ///
    /// # Errors
    /// The congestion control is set only after the handshake.
    pub fn before_handshake(
        &self,
        group: &str,
        sends: bool,
    ) -> Result<Option<String>, SetAfterHandshake> {
        let start = self.starts.iter().find(|s| s.group == group && s.sends == sends);
        let method = start.map_or(SetMethod::AfterConnect, |start| self.of(start).1);
        let why =
            self.no_hook_reason().unwrap_or_else(|| "the plan does not request it".to_owned());
        match method {
            SetMethod::BeforeConnect => Ok(None),
            SetMethod::NamespaceDefault => Ok(Some(format!(
                "set by the namespace's default, because the hook is not available: {why}"
            ))),
            SetMethod::AfterConnect => {
                let no = match &self.default_change {
                    Some(Err(no)) => format!("; {no}"),
                    _ => String::new(),
                };
                Err(SetAfterHandshake { reason: format!("{why}{no}") })
            }
        }
    }

    fn no_hook_reason(&self) -> Option<String> {
        self.no_hook.as_ref().map(ToString::to_string)
    }

    /// Returns one event per end: the congestion control that its sockets start with, and how theirs is set.
    pub fn reports(&self) -> Vec<wire::Event> {
        self.starts.iter().map(|start| self.report_of(start)).collect()
    }

    fn report_of(&self, start: &Start) -> wire::Event {
        let (initial_cc, method) = self.of(start);
        let side = side(start);
        let name = start.kernel_name.as_deref().unwrap_or(NEUTRAL_CC);
        let paced_by = (start.sends && leaves_pacing(&initial_cc, name)).then_some(&initial_cc);
        let mut message = format!(
            "{} ({}): {}, sockets begin with {initial_cc}",
            start.cc,
            side.as_text(),
            method.on_wire().as_text()
        );
        let no_default = self.default_change.iter().filter_map(|default| default.as_ref().err());
        for why in self.no_hook_reason().into_iter().chain(no_default.map(ToString::to_string)) {
            message += &format!("; {why}");
        }
        if let Some(by) = paced_by {
            message += &format!("; {by} leaves pacing enabled on them");
        }
        let data = InitialCc {
            side: side.into(),
            cc: start.cc.clone(),
            kernel_name: start.kernel_name.clone(),
            method: method.on_wire().into(),
            no_hook: self.no_hook_reason(),
            paced_by: paced_by.cloned(),
            begins_with: initial_cc,
        };
        event(Kind::InitialCc(data), &start.group, message)
    }

    /// Returns the hook's counters so far, one event per end.
    #[cfg(feature = "ebpf")]
    pub fn counts(&self) -> Vec<wire::Event> {
        let Some(hook) = &self.hook else { return Vec::new() };
        let of = |start: &Start| {
            let mut ports = start.ports.iter().map(|port| hook.count(Port::Local(*port)));
            let sum = ports.try_fold([0_u64; 4], |all, one| {
                one.map(|one| std::array::from_fn(|i| all[i] + one[i]))
            });
            sockets_event(start, sum)
        };
        self.starts.iter().map(of).collect()
    }

    /// Without the feature `ebpf`, there is no hook to count.
    #[cfg(not(feature = "ebpf"))]
    pub fn counts(&self) -> Vec<wire::Event> {
        Vec::new()
    }
}

/// Returns the event of the hook's counters of one end: sockets set, refused, ended and paced.
#[cfg(feature = "ebpf")]
fn sockets_event(start: &Start, counts: Result<[u64; 4], BpfError>) -> wire::Event {
    let whose = format!("{} ({})", start.cc, side(start).as_text());
    let [set, refused, ended, paced] = match counts {
        Ok(counts) => counts,
        Err(error) => {
            let message = format!(
                "{whose}: the sockets set and refused before their handshake are unknown: {error}"
            );
            return event(Kind::AgentError(NoData {}), &start.group, message);
        }
    };
    let message = format!(
        "{whose}: {set} sockets set before their handshake, {refused} refused; the kernel paced {paced} of {ended} closed sockets"
    );
    let data = CcSockets {
        side: side(start).into(),
        cc: start.cc.clone(),
        set: Some(set),
        refused: Some(refused),
        ended,
        paced,
    };
    event(Kind::CcSockets(data), &start.group, message)
}

fn side(start: &Start) -> Side {
    if start.sends { Side::Sender } else { Side::Receiver }
}

/// Returns the congestion control that each port starts with. Control connections get `reno`, because it leaves no state.
#[cfg_attr(not(feature = "ebpf"), allow(dead_code, reason = "the hook's"))]
fn choices(starts: &[Start]) -> BTreeMap<Port, String> {
    let mut choices = BTreeMap::new();
    for start in starts {
        for port in &start.ports {
            choices.insert(Port::Local(*port), start.initial_cc.clone());
        }
        if let Some(port) = start.control {
            choices.insert(Port::Remote(port), NEUTRAL_CC.to_owned());
        }
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interfaces::fake::FakeInterfaces;
    use crate::undo::Undo;

    fn flow(group: &str, cc: Option<&str>, client_port: u16, reverse: bool) -> FlowTask {
        let mut flow = crate::sockets::names::tests::flow(group, "one", "x");
        (flow.plan.cc, flow.plan.reverse) = (cc.map(str::to_owned), reverse);
        FlowTask { client_port, ..flow }
    }

    fn task() -> NodeTask {
        NodeTask {
            clients: vec![flow("a", Some("ours"), 10_000, false), flow("n", None, 10_002, false)],
            servers: vec![flow("b", Some("there"), 10_004, false)],
            ..NodeTask::default()
        }
    }

    fn outcome_of(name: &str) -> Option<(String, Via)> {
        (name != "there").then(|| (format!("{name}.12345"), Via::Bpf))
    }

    #[test]
    fn selects_only_sockets_of_flows_with_a_congestion_control() {
        let found = starts(&task(), outcome_of, |_| false);
        let found_starts: Vec<_> = found
            .iter()
            .map(|s| (s.group.as_str(), s.initial_cc.as_str(), s.ports.clone(), s.sends))
            .collect();
        assert_eq!(
            found_starts,
            [
                ("a", "ours.12345", vec![10_000, 10_001], true),
                // The receiver does not have this congestion control, and does not need it.
                ("b", "reno", vec![5201], false),
            ]
        );
        let all = choices(&found);
        assert_eq!(all[&Port::Local(10_001)], "ours.12345");
        assert_eq!(all[&Port::Remote(5201)], "reno", "its control connection");
        assert!(!all.contains_key(&Port::Local(10_002)));
    }

    #[test]
    fn a_failed_look_up_of_an_interface_is_the_reason() {
        let task = NodeTask {
            clients: vec![flow("a", Some("ours"), 10_000, false)],
            // A name with a NUL cannot be looked up.
            wired: vec!["one\0".to_owned()],
            ..NodeTask::default()
        };
        let found = starts(&task, outcome_of, |_| false);
        let (interfaces, mut undo) = (FakeInterfaces::default(), Undo::in_memory());
        let mut node = Node { interfaces: &interfaces, undo: &mut undo, group: None };
        let error = change_default(&found, &task, false, &mut node).unwrap_err();
        assert!(matches!(error, DefaultError::Interface(_)), "{error}");
    }

    #[test]
    fn an_interface_of_the_machine_with_a_wired_name_does_not_make_its_namespace_ours() {
        let task = NodeTask {
            clients: vec![flow("a", Some("ours"), 10_000, false)],
            wired: vec!["lo".to_owned()],
            ..NodeTask::default()
        };
        let found = starts(&task, outcome_of, |_| false);
        let (interfaces, mut undo) = (FakeInterfaces::of_the_host(), Undo::in_memory());
        let mut node = Node { interfaces: &interfaces, undo: &mut undo, group: None };
        let error = change_default(&found, &task, false, &mut node).unwrap_err();
        assert!(matches!(error, DefaultError::OtherFlows), "{error}");
    }

    fn attached(default_change: Option<Result<String, DefaultError>>, late: bool) -> AttachedHook {
        let no_bpf =
            || SocketError::System { op: "attach".into(), source: std::io::Error::other("no BPF") };
        let no_hook = default_change.is_some().then(no_bpf);
        AttachedHook {
            starts: starts(&task(), outcome_of, |_| late),
            no_hook,
            default_change,
            ..AttachedHook::default()
        }
    }

    fn of(attached: &AttachedHook) -> Vec<(String, SetMethod)> {
        attached.starts.iter().map(|start| attached.of(start)).collect()
    }

    #[test]
    fn reports_how_the_congestion_control_was_set() {
        let text = |begin: &str, method| (begin.to_owned(), method);
        assert_eq!(
            of(&attached(None, false)),
            [text("ours.12345", SetMethod::BeforeConnect), text("reno", SetMethod::BeforeConnect)]
        );
        let late = attached(None, true);
        assert_eq!(of(&late)[0], text("reno", SetMethod::AfterConnect));
        assert!(late.before_handshake("a", true).is_err());
        let default = attached(Some(Ok("ours.12345".into())), false);
        assert_eq!(of(&default)[0], text("ours.12345", SetMethod::NamespaceDefault));
        let why = default.before_handshake("a", true).unwrap().unwrap();
        assert!(why.contains("no BPF"), "{why}");
        let neutral = attached(Some(Ok("reno".into())), false);
        assert_eq!(of(&neutral)[0], text("reno", SetMethod::AfterConnect));
        let refused = attached(Some(Err(DefaultError::OtherFlows)), false);
        let why = refused.before_handshake("a", true).unwrap_err().to_string();
        assert!(why.contains("no BPF") && why.contains("would apply to other flows"), "{why}");
        assert_eq!(attached(None, false).before_handshake("a", true), Ok(None));
    }

    #[cfg(feature = "ebpf")]
    #[test]
    fn counters_that_cannot_be_read_are_reported() {
        let start = &starts(&task(), outcome_of, |_| false)[0];
        assert_eq!(sockets_event(start, Ok([2, 0, 2, 0])).name(), "cc_sockets");
        let error = BpfError::NoKey { map: "early_ports".to_owned(), key: vec![80, 0, 0, 0] };
        let unread = sockets_event(start, Err(error));
        assert_eq!((unread.name(), &*unread.subject), ("agent_error", "a"));
        assert_eq!(
            unread.message,
            "ours (snd): the sockets set and refused before their handshake are unknown: the BPF map early_ports has no key \
             [80, 0, 0, 0]"
        );
    }

    #[test]
    fn detects_pacing_left_by_bbr() {
        assert!(leaves_pacing("bbr", "vegas.12345") && leaves_pacing("bbr", "cubic"));
        assert!(!leaves_pacing("bbr", "bbr2.12345") && !leaves_pacing("cubic", "reno"));
        assert!(!leaves_pacing("bbr", "prague.12345"));
    }
}

/// Checks with real sockets that a default that paces leaves pacing behind, and that the hook prevents it.
#[cfg(all(test, feature = "netns", feature = "ebpf"))]
mod socket_tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::sockets::journal::Journal;
    use crate::sockets::struct_ops::{InstanceSpec, register};

    const SERVER: u16 = 5301;
    const CLIENT: u16 = 20_100;

    /// Sends one megabyte with iperf3's `-C reno`, over sockets that start with `begin`. Returns how many connections
    /// ended, and how many of those the kernel paced, at the sender.
    #[expect(clippy::disallowed_methods, reason = "a test starts iperf3")]
    fn sent(begin: &str) -> (u64, u64) {
        let group = cgroup::own_folder().expect("control groups version 2");
        let all = [
            (Port::Local(CLIENT), begin.to_owned()),
            (Port::Local(SERVER), begin.to_owned()),
            (Port::Remote(SERVER), begin.to_owned()),
        ];
        let hook = CcHook::attach(&group, &all.into()).expect("root, and a kernel with BPF");
        let iperf3 = |words: &str| {
            let mut command = Command::new("iperf3");
            command.args(words.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let mut server = iperf3("-s -1 -B 127.0.0.1 -p 5301").spawn().expect("iperf3 is installed");
        let client = "-c 127.0.0.1 -B 127.0.0.1 -p 5301 --cport 20100 -n 1M -C reno";
        // The server needs time to listen; a refused client is not counted as a connection.
        let done = (0..100).any(|_| {
            let done = iperf3(client).status().is_ok_and(|status| status.success());
            if !done {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            done
        });
        let ended = server.wait();
        assert!(done && ended.is_ok_and(|status| status.success()), "the flow ran");
        let [set, refused, ended, paced] =
            hook.count(Port::Local(CLIENT)).expect("the map is readable");
        assert!(set > 0 && refused == 0, "{set} set, {refused} refused");
        (ended, paced)
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test starts ip")]
    fn reno_is_paced_only_after_a_pacing_default() {
        let in_namespace = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
            assert!(up.unwrap().success());
            let (_, core) = ccbench_proto::cc::scheme("bbr2").unwrap();
            let params: Vec<(String, u32)> =
                core.params.iter().map(|p| (p.name.clone(), p.default)).collect();
            let pacer = format!("p{}", std::process::id());
            let wanted = InstanceSpec {
                core,
                kernel_name: &pacer,
                params: &params,
                flags: 1,
                netns_cookie: None,
            };
            let held = register(&wanted, &mut Journal::default()).unwrap();
            assert_eq!(sent(&pacer), (1, 1), "iperf3's reno came too late");
            assert_eq!(sent("reno"), (1, 0));
            drop(held);
        };
        std::thread::spawn(in_namespace).join().unwrap();
    }
}
