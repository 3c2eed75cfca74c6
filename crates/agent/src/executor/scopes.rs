//! The scopes beyond `run` that a trial needs on this node. They are checked before anything is changed.

use ccbench_proto::cc;
use ccbench_proto::plan::Via;
use ccbench_proto::schedule::{FlowTask, NodeTask};
use ccbench_proto::scope::{Scope, Scopes};
use ccbench_shaper::ShaperError;

use super::choices::Choices;
use super::offloads;
use crate::error::AgentError;
use crate::identity::Identity;
use crate::interfaces::{Devices, Interfaces};
use crate::sockets::{ecn, load};

/// Refuses a trial that needs a scope that the client does not have.
///
/// # Errors
/// A scope is missing (the first one is named, and the advice has all), or an interface cannot be read.
pub fn check(
    task: &NodeTask,
    node: &str,
    devices: &Devices,
    interfaces: &dyn Interfaces,
    choices: &Choices,
    client: &Identity,
) -> Result<(), AgentError> {
    let of = |client: &Identity| check_first(task, node, devices, interfaces, choices, client);
    let mut missing = match of(client) {
        Err(AgentError::MissingScope(missing)) => missing,
        checked => return checked,
    };
    let mut able = client.clone();
    able.scopes = missing.advised;
    while let Err(AgentError::MissingScope(next)) = of(&able) {
        able.scopes = next.advised;
    }
    missing.advised = able.scopes;
    Err(missing.into())
}

/// Refuses a trial because of the first scope that the client does not have.
fn check_first(
    task: &NodeTask,
    node: &str,
    devices: &Devices,
    interfaces: &dyn Interfaces,
    choices: &Choices,
    client: &Identity,
) -> Result<(), AgentError> {
    if client.scopes == Scopes::all() {
        return Ok(());
    }
    for (name, scope) in congestion_controls(task, node, choices) {
        client.check(scope, || format!("congestion control {name}"))?;
    }
    check_host_network(task, devices, interfaces, client)
}

/// Returns the instances of congestion controls that need a scope on this node.
fn congestion_controls<'a>(
    task: &'a NodeTask,
    node: &str,
    choices: &Choices,
) -> impl Iterator<Item = (&'a str, Scope)> {
    load::needed(task, node).filter_map(move |(name, wanted)| {
        if let Some((_, via)) = wanted.supplied() {
            return Some((
                name.as_str(),
                if via == Via::Module { Scope::Module } else { Scope::Bpf },
            ));
        }
        if cc::is_kernel_algorithm(wanted) {
            // These parameters belong to the kernel's module and apply to the whole machine.
            return (!wanted.params.is_empty()).then_some((name.as_str(), Scope::Module));
        }
        let (_, core) = cc::scheme(&wanted.algorithm)?;
        // What cannot be loaded at all is refused later, with the reason.
        match choices.get(wanted.via, core)? {
            Via::Bpf => Some((name.as_str(), Scope::Bpf)),
            Via::Module => Some((name.as_str(), Scope::Module)),
            Via::Auto | Via::Builtin => None,
        }
    })
}

/// Returns the first flow whose congestion control needs ECN, with that control. On some kernels this changes `tcp_ecn`
/// or the default congestion control of the namespace, for all its connections.
fn flow_with_ecn(task: &NodeTask) -> Option<(&FlowTask, &str)> {
    let mut flows = task.clients.iter().chain(&task.servers);
    flows.find_map(|flow| {
        let cc = flow.plan.cc.as_deref()?;
        ecn::ecn_needs(cc, task.cc.get(cc)).any().then_some((flow, cc))
    })
}

fn check_host_network(
    task: &NodeTask,
    devices: &Devices,
    interfaces: &dyn Interfaces,
    client: &Identity,
) -> Result<(), AgentError> {
    let check = |what: &dyn Fn() -> String| client.check(Scope::HostNet, what);
    if interfaces.is_host_namespace() {
        if let Some((name, _)) = task.sysctls.first() {
            check(&|| format!("setting the machine's sysctl {name}"))?;
        }
        if let Some((flow, cc)) = flow_with_ecn(task) {
            check(&|| {
                format!(
                    "flow {} with congestion control {cc}, whose ECN may change sysctls of the machine,",
                    flow.group
                )
            })?;
        }
    }
    for link in &task.links {
        let name = link.config.name.clone();
        let Some(dev) = devices.get(&("link", name.clone())) else { continue };
        let failed = |source| AgentError::Link { link: name.clone(), source };
        if interfaces.is_host_interface(dev).map_err(failed)? {
            check(&|| format!("link {name} on {dev}, an interface of the machine,"))?;
        }
    }
    for capture in &task.captures {
        let name = &capture.name;
        let failed = |source| AgentError::Capture { capture: name.clone(), source };
        let dev = interfaces.device(&capture.egress).map_err(failed)?;
        if interfaces.is_host_interface(&dev).map_err(failed)? {
            check(&|| format!("capture {name} on {dev}, an interface of the machine,"))?;
        }
    }
    if task.keep_offloads {
        return Ok(());
    }
    for dev in offloads::devices(task, devices)? {
        let failed = |source: ShaperError| AgentError::Offloads { dev: dev.clone(), source };
        if interfaces.is_host_interface(dev).map_err(failed)?
            && interfaces.save_offloads(dev).map_err(failed)?.is_some()
        {
            check(&|| {
                format!(
                    "switching off the offloads of {dev}, an interface of the machine (`offloads = true` keeps them),"
                )
            })?;
        }
    }
    Ok(())
}
