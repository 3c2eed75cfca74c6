//! Switches segmentation offloads off for a trial.

use std::collections::BTreeSet;

use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire;
use ccbench_shaper::netlink::find_ifindex;

use crate::error::AgentError;
use crate::event::event;
use crate::interfaces::{Devices, Interfaces};
use crate::undo::{Step, Undo};

/// Returns the interfaces whose offloads are switched off unless the node keeps them. A node that ccbench made has no other use for
/// its interfaces, and super-packets would also cross the interfaces that nothing here shapes.
///
/// # Errors
/// An interface cannot be looked up.
pub fn devices<'a>(
    task: &'a NodeTask,
    devices: &'a Devices,
) -> Result<BTreeSet<&'a String>, AgentError> {
    let mut all: BTreeSet<_> = devices.values().collect();
    for dev in &task.wired {
        let failed = |source| AgentError::Offloads { dev: dev.clone(), source };
        if find_ifindex(dev).map_err(failed)?.is_some() {
            all.insert(dev);
        }
    }
    Ok(all)
}

/// Switches the offloads of an interface off, unless they are off already. Returns the event of a change.
///
/// # Errors
/// The kernel, or the undo journal, refused.
pub fn switch_off(
    dev: &str,
    interfaces: &dyn Interfaces,
    undo: &mut Undo,
) -> Result<Option<wire::Event>, AgentError> {
    let failed = |source| AgentError::Offloads { dev: dev.to_owned(), source };
    let Some(before) = interfaces.save_offloads(dev).map_err(failed)? else {
        return Ok(None);
    };
    undo.push(Step::Offloads { dev: dev.to_owned(), before })?;
    interfaces.offloads_off(dev).map_err(failed)?;
    Ok(Some(event(Kind::OffloadsOff(NoData {}), dev, "TSO, GSO and GRO are off")))
}
