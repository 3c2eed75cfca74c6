//! Is the idle round trip what the links' delays add up to?

use std::collections::BTreeMap;

use ccbench_proto::event::BaseRtt;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::{Distribution, Jitter, Link, Plan};
use ccbench_proto::resolve::shapes;
use ccbench_proto::topology::Topology;

use super::findings::Findings;
use crate::model::Status;

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
    /// Links whose delay comes from a file.
    traced: Vec<String>,
    measured_us: BTreeMap<(String, String), f64>,
}

impl PathCheck {
    pub(crate) fn new(checked: &CheckedPlan) -> Self {
        let plan = checked.plan();
        let traced = |link: &Link| {
            let trace = link.trace.as_ref().and_then(|used| checked.trace(&used.file));
            trace.is_some_and(|trace| trace.summary().delay.is_some())
        };
        Self {
            topology: Topology::build(plan),
            traced: plan
                .links
                .iter()
                .filter(|(_, link)| traced(link))
                .map(|(name, _)| name.clone())
                .collect(),
            plan: plan.clone(),
            measured_us: BTreeMap::new(),
        }
    }

    /// Takes the idle round trip from `node` to `peer`.
    pub(crate) fn base_rtt(&mut self, node: &str, peer: &str, rtt: &BaseRtt) {
        if let Some(min_us) = rtt.min_us {
            self.measured_us.insert((node.to_owned(), peer.to_owned()), min_us);
        }
    }

    pub(crate) fn finish(self, findings: &mut Findings) {
        for ((from, to), measured_us) in &self.measured_us {
            let Some((expected_us, jitter_us)) = self.expected_us(from, to) else {
                continue;
            };
            let most = expected_us * (1.0 + OVER_SHARE) + OVER_US + jitter_us;
            let least = expected_us * (1.0 - UNDER_SHARE) - UNDER_US - jitter_us;
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

    /// Sum of the delays of all links there and back, and by how much that may be off at random. `None` where ccbench
    /// did not do the cabling, or a file gives a delay: it cannot know what delay the real path has.
    fn expected_us(&self, from: &str, to: &str) -> Option<(f64, f64)> {
        let Self { plan, topology, traced, .. } = self;
        let hops = topology.round_trip(from, to)?;
        let on_path = |link: &&Link| hops.iter().any(|hop| shapes(link, topology, *hop));
        if plan.links.iter().any(|(name, link)| traced.contains(name) && on_path(&link)) {
            return None;
        }
        let links = || plan.links.values().filter(on_path);
        let delays = links().filter_map(|link| link.delay).map(|delay| delay.get() as f64);
        let jitters = links().filter_map(|link| link.jitter.as_ref()).map(reach_us);
        Some((delays.sum(), jitters.sum()))
    }
}

/// How far off a few packets may be.
fn reach_us(jitter: &Jitter) -> f64 {
    let times = match jitter.distribution {
        Distribution::Uniform => 1.0,
        Distribution::Normal | Distribution::Pareto => 3.0,
    };
    times * jitter.spread.get() as f64
}
