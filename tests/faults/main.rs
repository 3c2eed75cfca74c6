//! Fault campaign (root, strace): faults at every system call that changes something, of an agent as one process and as front, worker and
//! loader, of the controller, of `undo` and `clean`, and of a testbed; slow system calls; processes that are stopped or run out of memory;
//! partitions of the control network; damaged files. After each fault, the nodes are in their original state, what was written is complete,
//! nothing panics or hangs, and the next run is ok.
//!
//! The verdicts of that next run, and of a run with a damaged file, are the only assertions about faults that need the CPU. Their flow has
//! twice the time in which a flow must start. If a trial failed for timing reasons only (`link_late`) and other processes used the CPU
//! meanwhile, it is not judged: such faults are counted, and reported as skipped. A verdict with any other reason counts on every machine.
//!
//! `CCBENCH_FAULT_POINTS` is the number of faults of each kind, spread evenly over all; 0 means all. `CCBENCH_FAULT=agent:sendto:KILL:17`
//! runs only this fault. A failure prints the command that repeats it. The table at the end counts the faults of each kind.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod calls;
mod damage;
mod failure;
mod fault;
mod lane;
mod memory_cgroup;
mod nodes;
mod partition;
mod process;
mod service_group;
mod slope;
mod system_call;
mod tally;
mod timed_partition;
mod victim;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::Duration;

use ccbench_tests::cpu::{CpuReport, CpuWatch};
use ccbench_tests::skip::skip;
use ccbench_tests::{alone, wait_for};

use damage::{Damage, damages};
use failure::Failure;
use fault::{Fault, faults, sample, slow};
use lane::{FaultResult, Lane};
use partition::{Partition, partitions};
use process::{ProcessFault, process_faults};
use tally::{Counts, DAMAGE, PARTITION, PROCESS, SOAK_FAULTS};
use victim::Victim;

/// Number of faults of each kind that `make test-faults` runs; of system calls, see [`Victim::sampled`].
const PARTITIONS: usize = 12;
const PROCESS_FAULTS: usize = 18;
const DAMAGES: usize = 18;
/// Number of pairs of nodes that run at the same time.
const LANES: usize = 4;
/// On a machine without other work, the verdict after at most one in this number of faults may lack the CPU, because of a short disturbance.
const UNJUDGED: usize = 10;
/// Within this time, a dead agent's congestion controls are gone.
const CONTROLS_TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn every_fault_of_an_agent_is_survived() {
    campaign(Victim::Agent);
}

#[test]
fn every_fault_of_the_controller_is_survived() {
    campaign(Victim::Controller);
}

#[test]
fn every_fault_of_a_worker_is_survived() {
    campaign(Victim::Worker);
}

#[test]
fn every_fault_of_a_front_is_survived() {
    campaign(Victim::Front);
}

#[test]
fn every_fault_of_a_loader_is_survived() {
    campaign(Victim::Loader);
}

#[test]
fn every_fault_of_undo_is_survived() {
    campaign(Victim::Undo);
}

#[test]
fn every_fault_of_clean_is_survived() {
    campaign(Victim::Clean);
}

#[test]
fn every_fault_of_a_testbed_is_survived() {
    campaign(Victim::Testbed);
}

#[test]
fn every_partition_is_survived() {
    let _alone = alone();
    let chosen = selected(|| sample(partitions(), points(PARTITIONS)));
    run_all(PARTITION, chosen, Lane::partition);
}

#[test]
fn every_stopped_process_and_every_end_of_memory_is_survived() {
    let _alone = alone();
    let chosen = selected(|| sample(process_faults(), points(PROCESS_FAULTS)));
    run_all(PROCESS, chosen, Lane::fault_process);
}

#[test]
fn every_damaged_file_is_survived() {
    let _alone = alone();
    run_all(DAMAGE, selected(|| sample(damages(), points(DAMAGES))), Lane::damage);
}

/// Counts the system calls of a process in a run without a fault, and injects faults into some of them.
fn campaign(victim: Victim) {
    let _alone = alone();
    let before = own_congestion_controls();
    let mut chosen = selected(|| {
        let mut lane = Lane::new();
        let counted = lane.count(victim).unwrap();
        if matches!(victim, Victim::Agent | Victim::Worker) && lane.nodes[0].has_group() {
            assert!(
                counted.contains("ccbench-traffic-"),
                "traffic had no control group of its own"
            );
        }
        let all = faults(victim, &counted).unwrap_or_else(|unknown| panic!("{unknown}"));
        assert!(all.len() >= 10 * victim.sampled(), "strace has counted next to nothing: {all:?}");
        let mut some = sample(all, points(victim.sampled()));
        some.extend(slow(victim));
        some
    });
    chosen.retain(|fault: &Fault| fault.victim == victim);
    run_all(victim.name(), chosen, Lane::fault);
    wait_for("the end of the congestion controls", CONTROLS_TIMEOUT, || {
        own_congestion_controls().is_subset(&before)
    });
}

/// Returns the instances of the algorithm of the lanes' plan that the kernel has. They belong to the machine, not to a namespace.
fn own_congestion_controls() -> BTreeSet<String> {
    let all =
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    let own = all.split_whitespace().filter(|name| name.starts_with("vegas."));
    own.map(str::to_owned).collect()
}

/// Returns the number of faults of a kind to run.
fn points(otherwise: usize) -> usize {
    match std::env::var("CCBENCH_FAULT_POINTS").map(|text| text.parse().unwrap()) {
        Ok(0) => usize::MAX,
        Ok(points) => points,
        Err(_) => otherwise,
    }
}

/// Returns whether all faults are to run.
fn is_soak() -> bool {
    points(1) == usize::MAX && std::env::var_os("CCBENCH_FAULT").is_none()
}

/// Returns the fault that `CCBENCH_FAULT` names, if it is of this kind. Without the variable, returns some of all faults.
fn selected<F: FromStr>(some: impl FnOnce() -> Vec<F>) -> Vec<F> {
    let Ok(text) = std::env::var("CCBENCH_FAULT") else { return some() };
    let kinds = [
        text.parse::<Fault>().is_ok(),
        text.parse::<Partition>().is_ok(),
        text.parse::<ProcessFault>().is_ok(),
        text.parse::<Damage>().is_ok(),
    ];
    assert!(kinds.contains(&true), "CCBENCH_FAULT={text:?} names no fault");
    text.parse::<F>().into_iter().collect()
}

/// What the lanes have found.
#[derive(Default)]
struct Found {
    counts: Counts,
    /// How often a run had each exit code.
    codes: BTreeMap<FaultResult, u32>,
    /// Faults after which the run had no CPU, each with the measurement.
    unjudged: Vec<String>,
    failures: Vec<String>,
}

impl Found {
    fn add(&mut self, survived: FaultResult, unjudged: Option<String>) {
        match (survived.injected, unjudged.is_some()) {
            (false, _) => self.counts.missed += 1,
            (true, true) => self.counts.unjudged += 1,
            (true, false) => self.counts.injected += 1,
        }
        self.unjudged.extend(unjudged);
        *self.codes.entry(survived).or_insert(0) += 1;
    }

    fn fail(&mut self, why: String) {
        self.counts.failed += 1;
        self.failures.push(why);
    }
}

/// Runs faults in several lanes, and reports all that are not survived.
fn run_all<F: Display + Send>(
    kind: &'static str,
    faults: Vec<F>,
    run: impl Fn(&mut Lane, &F) -> Result<FaultResult, Failure> + Sync,
) {
    if faults.is_empty() {
        tally::record(kind, Counts::default());
        return skip("CCBENCH_FAULT selects another fault");
    }
    println!("{kind}: {} faults", faults.len());
    let waiting = Mutex::new(faults.into_iter());
    let found = Mutex::new(Found::default());
    let watch = CpuWatch::start();
    let work = || {
        let mut lane: Option<Lane> = None;
        loop {
            let Some(fault) = waiting.lock().unwrap().next() else { break };
            let on = lane.get_or_insert_with(Lane::new);
            match run(on, &fault) {
                Ok(survived) => {
                    let unjudged = on.unjudged.take().map(|why| format!("{fault}: {why}"));
                    found.lock().unwrap().add(survived, unjudged);
                }
                Err(why) => {
                    let why =
                        format!("{fault}: {why}\nrepeat: CCBENCH_FAULT={fault} make test-faults\n");
                    eprintln!("{why}");
                    found.lock().unwrap().fail(why);
                    // The next fault gets new nodes.
                    lane = None;
                }
            }
        }
    };
    std::thread::scope(|scope| (0..LANES).for_each(|_| drop(scope.spawn(work))));
    let cpu = watch.report();
    let found = found.into_inner().unwrap();
    println!("{kind}: {:?}, runs {:?}", found.counts, found.codes);
    let too_few = tally::record(kind, found.counts).filter(|_| is_soak());
    check(&found, &cpu);
    assert_eq!(too_few, None, "`make soak` must inject {SOAK_FAULTS} faults");
}

/// Checks that every fault was survived, that most were injected, and that few were not judged.
fn check(found: &Found, cpu: &CpuReport) {
    let Counts { missed, .. } = found.counts;
    let (all, unjudged) = (found.counts.planned(), found.unjudged.len());
    if let Some(first) = found.unjudged.first() {
        skip(&format!("no CPU after {unjudged} of {all} faults; the first: {first}"));
    }
    let failures = &found.failures;
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.concat());
    assert!(missed <= all / 2, "{missed} of {all} faults were not injected");
    assert!(
        unjudged <= all.div_ceil(UNJUDGED) || cpu.is_disturbed(),
        "{unjudged} of {all} faults were not judged, although others left the CPU to the campaign: {cpu}"
    );
}
