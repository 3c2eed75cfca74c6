//! Tasks of probes: those that measure and those that answer.

use std::net::IpAddr;

use crate::plan::{Plan, Probe, ProbeKind};

use super::PORT_SLOTS;

/// Most probes with a listener in one plan.
pub const MAX_SERVED_PROBES: u32 = 32;

/// A probe: the same value on the node that measures and on the one that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTask {
    /// Its name in the plan.
    pub id: String,
    /// Its keys in the plan.
    pub plan: Probe,
    /// Address of the node that answers.
    pub to_ip: IpAddr,
    /// The listener's port; 0 for a ping.
    pub port: u16,
}

/// The port of probe number `index` among those with a listener.
pub fn probe_port(slot: u32, index: u32) -> u16 {
    (6400 + (slot % PORT_SLOTS) * MAX_SERVED_PROBES + index) as u16
}

/// Every probe of the plan, in name order.
pub(super) fn tasks(plan: &Plan, address: &impl Fn(&str) -> IpAddr, slot: u32) -> Vec<ProbeTask> {
    let mut served = 0;
    let mut port = |kind: ProbeKind| {
        if !kind.is_served() {
            return 0;
        }
        served += 1;
        probe_port(slot, served - 1)
    };
    plan.probes
        .iter()
        .map(|(id, probe)| ProbeTask {
            id: id.clone(),
            plan: probe.clone(),
            to_ip: address(&probe.to),
            port: port(probe.kind),
        })
        .collect()
}
