//! Checks whether the idle RTT matches the sum of the links' delays and of their transmission times of the echoes.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::event::BaseRtt;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::{Distribution, Jitter, Link, Plan};
use ccbench_proto::resolve::{ETHERNET_BYTES, shapes};
use ccbench_proto::topology::Topology;
use ccbench_proto::units::Bytes;
use ccbench_proto::wire::{Backend, LinkState};

use super::findings::Findings;
use crate::model::Status;
use crate::reason::ReasonCode;

/// Share by which the idle RTT may exceed the configured delay ...
pub const OVER_SHARE: f64 = 0.10;
/// ... plus this much, which a ping through four namespaces takes on a busy machine.
pub const OVER_US: f64 = 600.0;
/// Share by which the idle RTT may fall below the configured delay, which is the resolution of the measurement ...
pub const UNDER_SHARE: f64 = 0.02;
/// ... plus this much, for paths with almost no delay.
pub const UNDER_US: f64 = 50.0;
/// An echo as an IPv4 packet: 64 bytes of ICMP, as ping(8) sends. With IPv6 it is 20 bytes longer.
const ECHO_BYTES: u64 = 20 + 64;

/// Expected and measured base RTTs.
#[derive(Debug)]
pub(crate) struct PathCheck {
    plan: Plan,
    topology: Topology,
    /// Links with a delay from a trace.
    traced: Vec<String>,
    /// Links in userspace. Unlike the buckets of qdiscs, they transmit even a single packet at their rate.
    in_userspace: BTreeSet<String>,
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
            in_userspace: BTreeSet::new(),
            measured_us: BTreeMap::new(),
        }
    }

    /// Notes the backend of a link.
    pub(crate) fn link(&mut self, link: &LinkState) {
        if link.backend() == Backend::Userspace {
            self.in_userspace.insert(link.link.clone());
        }
    }

    /// Checks the idle round trip from `node` to `peer`.
    pub(crate) fn base_rtt(&mut self, node: &str, peer: &str, rtt: &BaseRtt) {
        if let Some(min_us) = rtt.min_us {
            self.measured_us.insert((node.to_owned(), peer.to_owned()), min_us);
        }
    }

    pub(crate) fn finish(&self, findings: &mut Findings) {
        for ((from, to), measured_us) in &self.measured_us {
            let Some((expected_us, jitter_us)) = self.expected_us(from, to) else {
                continue;
            };
            let most = expected_us * (1.0 + OVER_SHARE) + OVER_US + jitter_us;
            let least = expected_us * (1.0 - UNDER_SHARE) - UNDER_US - jitter_us;
            if *measured_us > most || *measured_us < least {
                let message = format!(
                    "{from} to {to}: the idle RTT was {:.2} ms, but the links' delays and transmission times add up to {:.2} ms \
                     (accepted: {:.2} to {:.2} ms)",
                    measured_us / 1e3,
                    expected_us / 1e3,
                    least.max(0.0) / 1e3,
                    most / 1e3
                );
                findings.add(
                    Status::Degraded,
                    ReasonCode::BaseRtt,
                    format!("{from} to {to}"),
                    message,
                );
            }
        }
    }

    /// Returns the sum of the delays and transmission times of all links in both directions, and the sum of their jitter and longest waits
    /// for a slot. `None` if ccbench did not build the testbed or a trace sets a delay, because the delay of the path is then unknown.
    fn expected_us(&self, from: &str, to: &str) -> Option<(f64, f64)> {
        let Self { plan, topology, traced, in_userspace, .. } = self;
        let hops = topology.round_trip(from, to)?;
        let on_path = |link: &&Link| hops.iter().any(|hop| shapes(link, topology, *hop));
        if plan.links.iter().any(|(name, link)| traced.contains(name) && on_path(&link)) {
            return None;
        }
        let links = || plan.links.values().filter(on_path);
        let delays = links().filter_map(|link| link.delay).map(|delay| delay.get() as f64);
        let transmitted = plan
            .links
            .iter()
            .filter(|(name, link)| in_userspace.contains(*name) && on_path(link))
            .filter_map(|(_, link)| transmission_us(link));
        let jitters = links().filter_map(|link| link.jitter.as_ref()).map(max_jitter_us);
        let slots = links().filter_map(|link| link.slot).map(|slot| slot.max.unwrap_or(slot.every));
        let slots_us = slots.map(|longest| longest.get() as f64).sum::<f64>();
        Some((delays.chain(transmitted).sum(), jitters.sum::<f64>() + slots_us))
    }
}

/// Returns the time in which a userspace link transmits an echo; `None` if it takes no time, or the time is unknown. The bucket of `tbf`
/// has tokens for one echo.
fn transmission_us(link: &Link) -> Option<f64> {
    if link.tbf.is_some() || link.trace.is_some() {
        return None;
    }
    let bytes = Bytes::new(ECHO_BYTES + link.overhead.unwrap_or(ETHERNET_BYTES).get());
    Some(link.rate?.ns_for(bytes) as f64 / 1e3)
}

/// Returns the deviation that jitter can cause in a few packets.
fn max_jitter_us(jitter: &Jitter) -> f64 {
    let times = match jitter.distribution {
        Distribution::Uniform => 1.0,
        // All packets may get the same draw.
        Distribution::Pareto if jitter.hold.is_some() => 18.0,
        Distribution::Normal | Distribution::Pareto => 3.0,
    };
    times * jitter.spread.get() as f64
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{check, parse};

    use super::*;

    const PLAN: &str = r#"
name = "slow"
[nodes]
src = {}
dst = {}
[wires]
path = ["src", "dst"]
[links.slow]
node = "src"
toward = "dst"
rate = "150kbit"
delay = "20ms"
queue = { kind = "bfifo", limit = "30000B" }
[flows.main]
from = "src"
to = "dst"
cc = "cubic"
[[phases]]
name = "only"
length = "10s"
flows = ["main"]
"#;

    /// Returns what is wrong with this idle RTT.
    fn found(backend: Backend, rtt_us: f64) -> Option<String> {
        let (plan, _) = check::check(parse::parse(PLAN).unwrap()).unwrap();
        let mut paths = PathCheck::new(&plan);
        let backend = backend.into();
        paths.link(&LinkState { link: "slow".into(), backend, ..LinkState::default() });
        paths.base_rtt("src", "dst", &BaseRtt { min_us: Some(rtt_us), n: 5 });
        let mut findings = Findings::default();
        paths.finish(&mut findings);
        findings.verdict().reasons.first().map(|reason| reason.message.clone())
    }

    #[test]
    fn echo_takes_its_transmission_time_in_userspace() {
        // 98 bytes take 5.23 ms at 150 kbit/s.
        assert_eq!(found(Backend::Userspace, 25_300.0), None);
        let over = found(Backend::Userspace, 28_500.0).unwrap();
        assert!(over.contains("add up to 25.23 ms (accepted: 24.67 to 28.35 ms)"), "{over}");
        assert!(found(Backend::Userspace, 20_100.0).is_some());
    }

    #[test]
    fn qdiscs_let_a_lone_echo_pass_at_once() {
        assert_eq!(found(Backend::Kernel, 20_100.0), None);
        let over = found(Backend::Kernel, 25_300.0).unwrap();
        assert!(over.contains("add up to 20.00 ms (accepted: 19.55 to 22.60 ms)"), "{over}");
    }
}
