//! Was a machine too busy for its numbers to be the network's?

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::wire::{HostSample, NodeInfo};

use super::{Findings, Span, Status};

/// A CPU this busy has no room left for the next packet's softirq: it delays packets itself.
pub const BUSY_PCT: f64 = 95.0;
/// A second of iperf3's start-up in a short trial is no reason; a fifth of the time is.
pub const BUSY_SHARE: f64 = 0.2;
/// With fewer samples a share says nothing.
pub const FEWEST_SAMPLES: u32 = 3;

/// Counters per machine; nodes that are namespaces of one machine share it, and one of them speaks for it.
#[derive(Debug)]
pub(crate) struct HostCheck {
    speakers: BTreeSet<String>,
    hosts: BTreeMap<String, Host>,
}

#[derive(Debug, Default)]
struct Host {
    samples: u32,
    busy: u32,
    softnet_dropped: u64,
}

impl HostCheck {
    pub(crate) fn new(nodes: &BTreeMap<String, NodeInfo>) -> Self {
        let mut machines = BTreeSet::new();
        let speaks = |(name, info): (&String, &NodeInfo)| {
            let new = info.boot_id.is_empty() || machines.insert(info.boot_id.clone());
            new.then(|| name.clone())
        };
        Self { speakers: nodes.iter().filter_map(speaks).collect(), hosts: BTreeMap::new() }
    }

    pub(crate) fn sample(&mut self, node: &str, span: Span, row: &HostSample) {
        if !span.holds(row.at_ns) || !self.speakers.contains(node) {
            return;
        }
        let host = self.hosts.entry(node.to_owned()).or_default();
        host.samples += 1;
        host.busy += u32::from(row.cpu_max_busy_pct >= BUSY_PCT);
        host.softnet_dropped += row.softnet_dropped;
    }

    pub(crate) fn finish(self, findings: &mut Findings) {
        for (node, host) in self.hosts {
            let share = f64::from(host.busy) / f64::from(host.samples.max(1));
            if host.samples >= FEWEST_SAMPLES && share > BUSY_SHARE {
                let message = format!(
                    "{node}: the busiest CPU was at {BUSY_PCT} % or more in {:.0} % of {} samples (limit {:.0} %)",
                    share * 100.0,
                    host.samples,
                    BUSY_SHARE * 100.0
                );
                findings.add(Status::Degraded, "cpu_bound", message);
            }
            if host.softnet_dropped > 0 {
                let message = format!(
                    "{node}: the kernel dropped {} packets before any queue of the plan",
                    host.softnet_dropped
                );
                findings.add(Status::Degraded, "softnet_dropped", message);
            }
        }
    }
}
