//! Puts what was decided into force for one trial, and says what became of it. Nothing here fails a trial: what cannot
//! be had is a fallback, which the event names and the verdict sees.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ccbench_proto::plan::Via;
use ccbench_proto::resolve::Egress;
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire;
use serde_json::json;

#[cfg(feature = "ebpf")]
use super::hooks::{Early, Ect1};
use super::{Capabilities, Decision, End, Mode, decide, probe};
use crate::executor::event;
use crate::kernel::Kernel;
use crate::sysctl;
use crate::undo::{Step, Undo};
use crate::{cgroup, ecn};

pub(crate) const TCP_ECN: &str = "net.ipv4.tcp_ecn";
const DEFAULT_CC: &str = "net.ipv4.tcp_congestion_control";

/// What is attached for a trial; dropped, it is gone.
#[derive(Debug, Default)]
pub struct InForce {
    #[cfg(feature = "ebpf")]
    early: Option<Early>,
    #[cfg(feature = "ebpf")]
    ect1: Vec<Ect1>,
}

/// What is needed of the node.
pub struct Node<'a> {
    /// The machine.
    pub kernel: &'a dyn Kernel,
    /// Takes the undo of every change of a setting.
    pub undo: &'a mut Undo,
    /// The control group that traffic runs in; none: the agent's own.
    pub group: Option<&'a Path>,
}

/// Puts ECN into force for the ends of flows on this node that want it, before any of their sockets is made. The events,
/// one per end, say what was asked for, what is in force and why.
pub fn apply(
    task: &NodeTask,
    became: impl Fn(&str) -> (String, Via),
    node: &mut Node<'_>,
) -> (InForce, Vec<wire::Event>) {
    let ends = ecn::ends(task, became);
    let mut in_force = InForce::default();
    if ends.is_empty() {
        return (in_force, Vec::new());
    }
    let can = probe::capabilities();
    let mut decided = decide_all(&ends, task, can);
    let wanted = |(_, decision): &&(&End, Decision)| decision.mode != Mode::None;
    let ports: BTreeMap<u16, String> = decided
        .iter()
        .filter(wanted)
        .flat_map(|(end, _)| end.ports.iter().map(|port| (*port, end.cc.clone())))
        .collect();
    if let Err(why) = in_force.hook(&ports, node) {
        let instead = set_default_cc(&ends, task, node);
        for (_, decision) in decided.iter_mut().filter(|(_, d)| d.mode != Mode::None) {
            no_hook(decision, &why, instead.as_ref());
        }
    }
    if decided.iter().any(|(_, decision)| decision.mode == Mode::AccecnSysctl)
        && let Err(why) = set(TCP_ECN, "3", node)
    {
        for (_, decision) in decided.iter_mut().filter(|(_, d)| d.mode == Mode::AccecnSysctl) {
            (decision.mode, decision.reason) = (Mode::Rfc3168, why.clone());
        }
    }
    let events = decided
        .iter()
        .map(|(end, decision)| {
            let ect1 = match end.sends && end.wants.ect1 && decision.mode.counts_marks() {
                true => Some(in_force.rewrite(end, node)),
                false => None,
            };
            told(end, decision, ect1)
        })
        .collect();
    (in_force, events)
}

fn decide_all<'e>(
    ends: &'e [End],
    task: &NodeTask,
    can: &Capabilities,
) -> Vec<(&'e End, Decision)> {
    let tcp_ecn = task.sysctls.iter().find(|(name, _)| name.replace('/', ".") == TCP_ECN);
    let tcp_ecn = tcp_ecn.map(|(_, value)| value.as_str());
    ends.iter().map(|end| (end, decide(can, end.wants, end.via, tcp_ecn))).collect()
}

/// Without the hook: the namespace's default if that is nobody else's, or no ECN.
fn no_hook(decision: &mut Decision, why: &str, instead: Result<&(), &String>) {
    match instead {
        Ok(()) => {
            decision.reason +=
                &format!("; in force by the namespace's default, because the hook is not: {why}");
        }
        Err(no) => {
            decision.mode = Mode::None;
            decision.reason = format!(
                "the congestion control cannot be in force before the handshake: {why}; {no}"
            );
        }
    }
}

/// Makes the one congestion control of all flows of this node the namespace's default.
fn set_default_cc(ends: &[End], task: &NodeTask, node: &mut Node<'_>) -> Result<(), String> {
    let flows = task.clients.len() + task.servers.len();
    let one = ends.first().filter(|first| ends.iter().all(|end| end.cc == first.cc));
    match one.filter(|_| ends.len() == flows) {
        Some(end) => set(DEFAULT_CC, &end.cc, node),
        None => Err("the namespace's default would be other flows' too".to_owned()),
    }
}

fn set(name: &str, value: &str, node: &mut Node<'_>) -> Result<(), String> {
    let saved = sysctl::save(name).map_err(|e| e.to_string())?;
    for saved in saved {
        node.undo.push(Step::Sysctl(saved)).map_err(|e| e.to_string())?;
    }
    sysctl::write(name, value).map_err(|e| e.to_string())
}

fn told(end: &End, decision: &Decision, ect1: Option<Result<String, String>>) -> wire::Event {
    let (asked, mode) = (end.wants.name(), decision.mode.name());
    let side = if end.sends { "snd" } else { "rcv" };
    let ect1_text = match &ect1 {
        Some(Ok(dev)) => format!("; ECT(1) by rewrite on the way out of {dev}"),
        Some(Err(why)) => format!("; no ECT(1): {why}"),
        None => String::new(),
    };
    let message = format!("{} ({side}): {mode}: {}{ect1_text}", end.cc, decision.reason);
    let data = json!({
        "side": side,
        "cc": end.cc,
        "asked": asked,
        "mode": mode,
        "reason": decision.reason,
        "counts_marks": decision.mode.counts_marks(),
        "ect1_wanted": end.sends && end.wants.ect1,
        "ect1_dev": ect1.as_ref().and_then(|done| done.as_ref().ok()),
        "ect1_error": ect1.as_ref().and_then(|done| done.as_ref().err()),
    });
    wire::Event { data_json: data.to_string(), ..event("ecn", &end.group, message) }
}

impl InForce {
    #[cfg(feature = "ebpf")]
    fn hook(&mut self, ports: &BTreeMap<u16, String>, node: &Node<'_>) -> Result<(), String> {
        if ports.is_empty() {
            return Ok(());
        }
        let group = node.group.map(Path::to_owned).or_else(cgroup::own_folder);
        let group: PathBuf = group.ok_or("this machine has no control groups version 2")?;
        self.early = Some(Early::attach(&group, ports)?);
        Ok(())
    }

    #[cfg(not(feature = "ebpf"))]
    fn hook(&mut self, ports: &BTreeMap<u16, String>, _: &Node<'_>) -> Result<(), String> {
        if ports.is_empty() {
            return Ok(());
        }
        Err("this ccbench-agent was built without the feature ebpf".to_owned())
    }

    /// The interface; one program serves all flows of one congestion control.
    #[cfg(feature = "ebpf")]
    fn rewrite(&mut self, end: &End, node: &Node<'_>) -> Result<String, String> {
        let dev = node.kernel.device(&Egress::Toward(end.peer)).map_err(|e| e.to_string())?;
        if !self.ect1.iter().any(|there| there.dev == dev && there.cc == end.cc) {
            self.ect1.push(Ect1::attach(&dev, &end.cc)?);
        }
        Ok(dev)
    }

    #[cfg(not(feature = "ebpf"))]
    fn rewrite(&mut self, end: &End, node: &Node<'_>) -> Result<String, String> {
        let dev = node.kernel.device(&Egress::Toward(end.peer)).map_err(|e| e.to_string())?;
        Err(format!("no program for {dev}: built without the feature ebpf"))
    }

    /// What the programs did so far, for the end of a trial.
    #[cfg(feature = "ebpf")]
    pub fn counts(&self) -> Vec<wire::Event> {
        let mut events = Vec::new();
        if let Some(early) = &self.early {
            let (set, refused) = early.counts();
            let message = format!("{set} sockets before their handshake, {refused} refused");
            let data_json = json!({"set": set, "refused": refused}).to_string();
            events.push(wire::Event { data_json, ..event("ecn_sockets", "", message) });
        }
        for ect1 in &self.ect1 {
            let rewritten = ect1.rewritten();
            let message = format!("{rewritten} packets of {} from ECT(0) to ECT(1)", ect1.cc);
            let data_json = json!({"cc": ect1.cc, "rewritten": rewritten}).to_string();
            events.push(wire::Event { data_json, ..event("ecn_ect1", &ect1.dev, message) });
        }
        events
    }

    /// What the programs did so far: there are none.
    #[cfg(not(feature = "ebpf"))]
    pub fn counts(&self) -> Vec<wire::Event> {
        Vec::new()
    }
}
