//! Checks whether a machine was so busy that its measurements may not reflect the network.

use std::collections::BTreeMap;

use ccbench_proto::wire::{HostSample, NodeInfo};

use super::findings::{Findings, Span};
use crate::model::{ClockSource, NodeClock, Status};
use crate::reason::ReasonCode;

/// A CPU at least this busy delays packets itself, because their softirq has to wait.
pub const BUSY_PCT: f64 = 95.0;
/// Share of busy samples that degrades a trial. iperf3's start-up takes a second, which stays below this share even in a short trial.
pub const BUSY_SHARE: f64 = 0.2;
/// With fewer samples, the share has no meaning.
pub const MIN_SAMPLES: u32 = 3;

/// Counters for each machine. Nodes that are namespaces of one machine share it; one of them represents it with its samples.
#[derive(Debug)]
pub(crate) struct HostCheck {
    /// The representative node of each machine, and the machine's name.
    representatives: BTreeMap<String, String>,
    hosts: BTreeMap<String, Host>,
    /// Whether the nodes' CPU utilisation has no meaning.
    pub(super) ignores_cpu: bool,
}

#[derive(Debug, Default)]
struct Host {
    samples: u32,
    busy: u32,
    softnet_dropped: u64,
}

impl HostCheck {
    /// Creates the check. `clocks` identify the nodes on the controller's machine.
    pub(crate) fn new(
        nodes: &BTreeMap<String, NodeInfo>,
        clocks: &BTreeMap<String, NodeClock>,
    ) -> Self {
        let mut machines: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, info) in nodes {
            // A node without a boot ID counts as a separate machine.
            let machine = if info.boot_id.is_empty() { name } else { &info.boot_id };
            machines.entry(machine).or_default().push(name);
        }
        let named = |names: Vec<&str>| {
            let representative = (*names.first()?).to_owned();
            if names.len() == 1 {
                return Some((representative.clone(), representative));
            }
            let here = clocks
                .get(&representative)
                .is_some_and(|clock| clock.source == ClockSource::Shared);
            let host = nodes.get(&representative).map_or("", |info| info.hostname.as_str());
            let machine = match host {
                _ if here => "this machine",
                "" => "one machine",
                host => host,
            };
            Some((representative, format!("{machine} (nodes {})", names.join(", "))))
        };
        Self {
            representatives: machines.into_values().filter_map(named).collect(),
            hosts: BTreeMap::new(),
            ignores_cpu: false,
        }
    }

    pub(crate) fn sample(&mut self, node: &str, span: Span, row: &HostSample) {
        if !span.contains(row.at_ns) || !self.representatives.contains_key(node) {
            return;
        }
        let host = self.hosts.entry(node.to_owned()).or_default();
        host.samples += 1;
        host.busy += u32::from(row.cpu_max_busy_pct >= BUSY_PCT);
        host.softnet_dropped = host.softnet_dropped.saturating_add(row.softnet_dropped);
    }

    pub(crate) fn finish(&self, findings: &mut Findings) {
        for (node, host) in &self.hosts {
            let machine = self.representatives.get(node).unwrap_or(node);
            let share = f64::from(host.busy) / f64::from(host.samples.max(1));
            if !self.ignores_cpu && host.samples >= MIN_SAMPLES && share > BUSY_SHARE {
                let message = format!(
                    "{machine}: the busiest CPU was at {BUSY_PCT} % or more in {:.0} % of {} samples (limit {:.0} %)",
                    share * 100.0,
                    host.samples,
                    BUSY_SHARE * 100.0
                );
                findings.add(Status::Degraded, ReasonCode::CpuBound, machine, message);
            }
            if host.softnet_dropped > 0 {
                let message = format!(
                    "{machine}: the kernel dropped {} packets before they reached a queue of the plan (softnet_stat)",
                    host.softnet_dropped
                );
                findings.add(Status::Degraded, ReasonCode::SoftnetDropped, machine, message);
            }
        }
    }
}
