//! Is the idle round trip what the links' delays add up to?

use std::collections::BTreeMap;

use ccbench_proto::plan::{Link, Plan};
use ccbench_proto::topology::Topology;
use ccbench_proto::wire::Event;

use super::{Findings, Status};

/// Over the configured delay by this share ...
pub const OVER_SHARE: f64 = 0.10;
/// ... and this much, which four namespaces on a busy machine need for a ping.
pub const OVER_US: f64 = 600.0;
/// A delay that is shorter than configured is not the delay asked for; this much is the clock's reading.
pub const UNDER_SHARE: f64 = 0.02;
/// As [`UNDER_SHARE`], for paths of next to no delay.
pub const UNDER_US: f64 = 50.0;

/// Expected and measured base RTTs.
#[derive(Debug)]
pub(crate) struct PathCheck {
    plan: Plan,
    topology: Topology,
    measured_us: BTreeMap<(String, String), f64>,
}

impl PathCheck {
    pub(crate) fn new(plan: &Plan) -> Self {
        let topology = Topology::build(plan);
        Self { plan: plan.clone(), topology, measured_us: BTreeMap::new() }
    }

    /// An event `base_rtt`: `subject` is the peer, `data_json` has `min_us`.
    pub(crate) fn base_rtt(&mut self, node: &str, event: &Event) {
        let data: serde_json::Value = serde_json::from_str(&event.data_json).unwrap_or_default();
        if let Some(min_us) = data.get("min_us").and_then(serde_json::Value::as_f64) {
            self.measured_us.insert((node.to_owned(), event.subject.clone()), min_us);
        }
    }

    pub(crate) fn finish(self, findings: &mut Findings) {
        for ((from, to), measured_us) in &self.measured_us {
            let Some(expected_us) = expected_us(&self.plan, &self.topology, from, to) else {
                continue;
            };
            let most = expected_us * (1.0 + OVER_SHARE) + OVER_US;
            let least = expected_us * (1.0 - UNDER_SHARE) - UNDER_US;
            if *measured_us > most || *measured_us < least {
                let message = format!(
                    "{from} to {to}: the idle round trip was {:.2} ms, the links' delays add up to {:.2} ms \
                     (accepted: {:.2} to {:.2} ms)",
                    measured_us / 1e3,
                    expected_us / 1e3,
                    least.max(0.0) / 1e3,
                    most / 1e3
                );
                findings.add(Status::Degraded, "base_rtt", message);
            }
        }
    }
}

/// Sum of the delays of all links there and back. `None` where ccbench did not do the cabling: it cannot know what
/// delay the real path has.
fn expected_us(plan: &Plan, topology: &Topology, from: &str, to: &str) -> Option<f64> {
    let mut hops = topology.path(from, to)?;
    hops.extend(topology.path(to, from)?);
    let on_path = |link: &&Link| hops.iter().any(|(node, dev)| shapes(link, topology, node, dev));
    let delays = plan.links.values().filter(on_path).filter_map(|link| link.delay);
    Some(delays.map(|delay| delay.get() as f64).sum())
}

fn shapes(link: &Link, topology: &Topology, node: &str, dev: &str) -> bool {
    link.node == node
        && match (&link.dev, &link.toward) {
            (Some(named), _) => named == dev,
            (None, Some(toward)) => topology.egress(node, toward) == Some(dev),
            (None, None) => false,
        }
}
