//! Suggests the lab when network namespaces of this machine may be unable to provide what a plan asks for.

use ccbench_proto::plan::check::{CheckedPlan, check};
use ccbench_proto::plan::{Backend, Engine, Link};
use ccbench_proto::schedule;
use ccbench_proto::wire::NodeInfo;
use ccbench_results::table::NOTICEABLE_STEAL_PCT;

use crate::lab::cpu;

/// Properties of this machine that affect results in namespaces.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    cpus: u32,
    /// Steal as a share of the CPU time that the machine asked for since boot; 0 if it is not a virtual machine.
    steal_pct: f64,
    has_netem: bool,
}

impl Host {
    /// Takes the properties from `info` of a node in a namespace of this machine.
    pub fn new(info: &NodeInfo) -> Self {
        let all = cpu::since_boot().first().copied().unwrap_or_default();
        let has_netem = info.qdiscs.iter().any(|kind| kind == "netem");
        Self { cpus: info.cpus, steal_pct: all.steal_pct(), has_netem }
    }
}

/// Returns the note, or `None` if this machine has what the plan needs or the lab cannot run the plan. `usable` are the lab's
/// engines on this machine, the faster one first; `--lab` uses the first that can run the plan.
pub fn suggestion(plan: &CheckedPlan, host: &Host, usable: &[Engine]) -> Option<String> {
    let points = plan.points();
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
    // QEMU runs everything that the other engine runs, and more.
    if reasons.is_empty() || !runs_in_lab(plan, Engine::Qemu) {
        return None;
    }
    let how = match usable.iter().copied().find(|engine| runs_in_lab(plan, *engine)) {
        Some(engine) => {
            let seconds = lab_seconds(plan, engine, host.cpus);
            let (time, name) = (duration(seconds), &plan.plan().name);
            format!("`--lab` does not depend on it (about {time} for the plan `{name}`)")
        }
        None => {
            let engine = if runs_in_lab(plan, Engine::Uml) { Engine::Uml } else { Engine::Qemu };
            format!(
                "`--lab` does not depend on it, after `ccbench lab build --engine {engine}` (once, about 15 minutes)"
            )
        }
    };
    Some(format!("results may depend on this machine: {}; {how}", reasons.join("; ")))
}

/// Returns whether a lab engine can run the plan. Its nodes and devices must be the lab's own.
fn runs_in_lab(plan: &CheckedPlan, engine: Engine) -> bool {
    let mut in_lab = plan.plan().clone();
    in_lab.lab.engine = Some(engine);
    let points = plan.points();
    let mut links = points.iter().flat_map(|point| point.plan.plan().links.values());
    links.all(|link| link.dev.is_none()) && check(in_lab).is_ok()
}

/// Returns whether the kernel needs netem for a link.
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

/// Estimates the wall-clock time of all trials in the lab. The cost of a second grows with the number of packets. For uml, the
/// estimate fits the quickstart (4 s for one trial, 6.5 s for three on two CPUs), a trial of judge.toml (3 s) and 5 s of single
/// packets at 3 Gbit/s (9 s) in docs/benchmarks.md.
fn lab_seconds(plan: &CheckedPlan, engine: Engine, cpus: u32) -> f64 {
    let trials = f64::from(plan.plan().repeat.at_most()) / f64::from(cpus.max(1));
    let of_point = |point: schedule::Point| {
        let rates = point.plan.plan().links.values().filter_map(|link| link.rate);
        let mbit_s = rates.map(|rate| rate.bits_per_sec() as f64 / 1e6).fold(0.0, f64::max);
        let (per_trial, per_second, per_mbit) = match engine {
            Engine::Uml => (2.0, 0.08, 0.0005),
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

    const UML: [Engine; 1] = [Engine::Uml];
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
        assert_eq!(suggestion(&plan("delay = \"5ms\""), &GOOD, &UML), None);
        let without = Host { has_netem: false, ..GOOD };
        assert_eq!(suggestion(&plan(""), &without, &UML), None, "no link needs netem");
        let userspace = plan("delay = \"5ms\"\nbackend = \"userspace\"");
        assert_eq!(suggestion(&userspace, &without, &UML), None, "the plan asks for it");
    }

    #[test]
    fn every_reason_is_named_with_the_time_in_the_lab() {
        let bad = Host { cpus: 1, steal_pct: 7.4, has_netem: false };
        let text = suggestion(&plan("delay = \"5ms\""), &bad, &UML).unwrap();
        for word in [
            "one CPU",
            "steal since boot is 7 %",
            "no netem",
            "`--lab`",
            "about 13 s for the plan `p`",
        ] {
            assert!(text.contains(word), "no `{word}`: {text}");
        }
        let text = suggestion(&plan("delay = \"5ms\""), &bad, &[]).unwrap();
        assert!(text.contains("ccbench lab build"), "{text}");
    }

    #[test]
    fn the_time_is_that_of_an_engine_that_runs_the_plan() {
        let bad = Host { cpus: 1, ..GOOD };
        let both = [Engine::Uml, Engine::Qemu];
        let text = |plan: &CheckedPlan| suggestion(plan, &bad, &both).unwrap();
        let limited = text(&plan(""));
        assert!(limited.contains("about 13 s"), "{limited}");
        // uml's CPU is infinitely fast, so a flow without a rate limit would never end.
        let mut unlimited = plan("delay = \"5ms\"").plan().clone();
        unlimited.links.values_mut().for_each(|link| link.rate = None);
        let unlimited = text(&check(unlimited).unwrap().0);
        assert!(unlimited.contains("about 24 s"), "{unlimited}");
    }
}
