//! Suggests the lab where namespaces of this machine may not give what a plan asks for.

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::{Backend, Engine, Link, Plan};
use ccbench_proto::schedule;
use ccbench_proto::wire::NodeInfo;
use ccbench_results::table::NOTICEABLE_STEAL_PCT;

use crate::lab::cpu;

/// Properties of this machine on which results in namespaces depend.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    cpus: u32,
    /// Since boot, of the CPU time that the machine asked for; 0 if it is not a virtual machine.
    steal_pct: f64,
    has_netem: bool,
}

impl Host {
    /// `info` of a node in a namespace of this machine.
    pub fn of(info: &NodeInfo) -> Self {
        let all = cpu::since_boot().first().copied().unwrap_or_default();
        let has_netem = info.qdiscs.iter().any(|kind| kind == "netem");
        Self { cpus: info.cpus, steal_pct: all.steal_pct(), has_netem }
    }
}

/// The note, or `None` if this machine has what the plan needs or the lab cannot run the plan.
pub fn suggestion(plan: &CheckedPlan, host: &Host, engine: Option<Engine>) -> Option<String> {
    let points = plan.points();
    let runs_there = points.iter().all(|point| runs_in_lab(point.plan.plan()));
    let needs_netem =
        points.iter().flat_map(|point| point.plan.plan().links.values()).any(in_netem);
    let mut reasons = Vec::new();
    if host.cpus == 1 {
        reasons.push("it has one CPU".to_owned());
    }
    if host.steal_pct >= NOTICEABLE_STEAL_PCT {
        reasons.push(format!("its CPU steal since boot is {:.0} %", host.steal_pct));
    }
    if needs_netem && !host.has_netem {
        reasons.push(
            "its kernel has no netem, so links with delay or loss are emulated in userspace"
                .to_owned(),
        );
    }
    if reasons.is_empty() || !runs_there {
        return None;
    }
    let how = match engine {
        Some(engine) => {
            let seconds = lab_seconds(plan, engine, host.cpus);
            format!("`--lab` does not depend on it (about {})", duration(seconds))
        }
        None => "`--lab` does not depend on it, after `ccbench lab build` (once, about 20 minutes)"
            .to_owned(),
    };
    Some(format!("results may depend on this machine: {}; {how}", reasons.join("; ")))
}

/// Whether the lab has everything that the plan names: its nodes are the lab's own.
fn runs_in_lab(plan: &Plan) -> bool {
    plan.nodes.values().all(|node| node.agent.is_none())
        && plan.links.values().all(|l| l.dev.is_none())
}

/// Whether the kernel needs netem for a link.
fn in_netem(link: &Link) -> bool {
    link.backend != Backend::Userspace
        && (link.delay.is_some()
            || link.loss.is_some()
            || link.jitter.is_some()
            || link.burst_loss.is_some()
            || link.duplicate.is_some()
            || link.reorder.is_some()
            || link.corrupt.is_some())
}

/// Wall-clock time of all trials in the lab. The cost of a second grows with the number of packets: docs/benchmarks.md has
/// the measurements.
fn lab_seconds(plan: &CheckedPlan, engine: Engine, cpus: u32) -> f64 {
    let trials = f64::from(plan.plan().repeat.at_most()) / f64::from(cpus.max(1));
    let of_point = |point: schedule::Point| {
        let rates = point.plan.plan().links.values().filter_map(|link| link.rate);
        let mbit_s = rates.map(|rate| rate.bits_per_sec() as f64 / 1e6).fold(0.0, f64::max);
        let (per_trial, per_second, per_mbit) = match engine {
            Engine::Uml => (1.0, 0.05, 0.002),
            Engine::Qemu => (3.0, 0.3, 0.02),
        };
        per_trial + schedule::length(&point.plan).as_secs_f64() * (per_second + per_mbit * mbit_s)
    };
    plan.points().into_iter().map(of_point).sum::<f64>() * trials
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{:.0} s", s.max(1.0)),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{check, parse};

    use super::*;

    const GOOD: Host = Host { cpus: 4, steal_pct: 0.2, has_netem: true };

    fn plan(link: &str) -> CheckedPlan {
        let text = format!(
            "name = \"p\"\nrepeat = 4\n[nodes]\na = {{}}\nb = {{}}\n[wires]\nw = [\"a\", \"b\"]\n\
             [links.l]\nnode = \"a\"\ntoward = \"b\"\nrate = \"100mbit\"\n{link}\n[flows.f]\nfrom = \"a\"\nto = \"b\"\n\
             [[phases]]\nname = \"p\"\nlength = \"10s\"\nflows = [\"f\"]\n"
        );
        check::check(parse::parse(&text).unwrap()).unwrap().0
    }

    #[test]
    fn a_machine_that_has_everything_is_left_alone() {
        assert_eq!(suggestion(&plan("delay = \"5ms\""), &GOOD, Some(Engine::Uml)), None);
        let without = Host { has_netem: false, ..GOOD };
        assert_eq!(suggestion(&plan(""), &without, Some(Engine::Uml)), None, "no link needs netem");
        let userspace = plan("delay = \"5ms\"\nbackend = \"userspace\"");
        assert_eq!(
            suggestion(&userspace, &without, Some(Engine::Uml)),
            None,
            "the plan asks for it"
        );
    }

    #[test]
    fn every_reason_is_named_with_the_time_in_the_lab() {
        let bad = Host { cpus: 1, steal_pct: 7.4, has_netem: false };
        let text = suggestion(&plan("delay = \"5ms\""), &bad, Some(Engine::Uml)).unwrap();
        for word in ["one CPU", "steal since boot is 7 %", "no netem", "`--lab`", "about 14 s"] {
            assert!(text.contains(word), "no `{word}`: {text}");
        }
        let text = suggestion(&plan("delay = \"5ms\""), &bad, None).unwrap();
        assert!(text.contains("ccbench lab build"), "{text}");
    }
}
