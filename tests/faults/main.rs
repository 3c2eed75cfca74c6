//! Fault campaign (root, strace): a fault at every system call of an agent and of the controller that changes something, slow system calls,
//! processes that are stopped or run out of memory, partitions of the control network, and damaged files. After each fault, the nodes are
//! in their original state, what was written is complete, nothing panics or hangs, and the next run is ok.
//!
//! The verdicts of that next run, and of a run with a damaged file, are the only assertions that need the CPU. Their flow has twice the time
//! in which a flow must start. If a trial failed for timing reasons only (`link_late`) and other processes used the CPU meanwhile, it is not
//! judged: such faults are counted, and reported as skipped. A verdict with any other reason counts on every machine.
//!
//! `CCBENCH_FAULT_POINTS` is the number of faults of each kind, spread evenly over all; 0 means all. `CCBENCH_FAULT=agent:sendto:KILL:17`
//! runs only this fault. A failure prints the command that repeats it.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod damage;
mod failure;
mod fault;
mod lane;
mod memory_cgroup;
mod nodes;
mod partition;
mod process;
mod slope;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Mutex;

use ccbench_tests::alone;
use ccbench_tests::cpu::CpuWatch;
use ccbench_tests::skip::skip;

use damage::{Damage, damages};
use failure::Failure;
use fault::{Fault, Victim, counting, faults, sample, slow};
use lane::{FaultResult, Lane, RUN};
use nodes::read;
use partition::{Partition, partitions};
use process::{ProcessFault, process_faults};

/// Number of faults of each kind that `make test-faults` runs.
const POINTS: usize = 30;
const PARTITIONS: usize = 18;
const PROCESS_FAULTS: usize = 24;
/// Number of pairs of nodes that run at the same time.
const LANES: usize = 4;
/// On a machine without other work, the verdict after at most one in this number of faults may lack the CPU, because of a short disturbance.
const UNJUDGED: usize = 10;

#[test]
fn every_fault_of_an_agent_is_survived() {
    campaign(Victim::Agent, |lane| {
        let trace = lane.bench.path("trace");
        lane.start(&counting(Victim::Agent, &trace))?;
        lane.run_short()?;
        lane.nodes[0].stop()?;
        Ok(read(&trace))
    });
}

#[test]
fn every_fault_of_the_controller_is_survived() {
    campaign(Victim::Controller, |lane| {
        lane.start(&[])?;
        let trace = lane.bench.path("trace");
        let strace = counting(Victim::Controller, &trace);
        lane.run(&strace, &RUN)?;
        Ok(read(&trace))
    });
}

#[test]
fn every_partition_is_survived() {
    let _alone = alone();
    run_all(selected(|| sample(partitions(), points(PARTITIONS))), Lane::partition);
}

#[test]
fn every_stopped_process_and_every_end_of_memory_is_survived() {
    let _alone = alone();
    run_all(selected(|| sample(process_faults(), points(PROCESS_FAULTS))), Lane::fault_process);
}

#[test]
fn every_damaged_file_is_survived() {
    let _alone = alone();
    run_all(selected(|| sample(damages(), points(POINTS))), Lane::damage);
}

/// Counts the system calls of a process in a run without a fault, and injects faults into some of them.
fn campaign(victim: Victim, count: impl FnOnce(&mut Lane) -> Result<String, Failure>) {
    let _alone = alone();
    let controls = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let before = std::fs::read_to_string(controls).unwrap();
    let mut chosen = selected(|| {
        let counted = count(&mut Lane::new()).unwrap();
        let all = faults(victim, &counted);
        assert!(all.len() > 100, "strace has counted next to nothing: {counted}");
        let mut some = sample(all, points(POINTS));
        some.extend(slow(victim));
        some
    });
    chosen.retain(|fault: &Fault| fault.victim == victim);
    run_all(chosen, |lane, fault: &Fault| match victim {
        Victim::Agent => lane.fault_agent(fault),
        Victim::Controller => lane.fault_controller(fault),
    });
    assert_eq!(std::fs::read_to_string(controls).unwrap(), before, "congestion controls are left");
}

/// Returns the number of faults of a kind to run.
fn points(otherwise: usize) -> usize {
    match std::env::var("CCBENCH_FAULT_POINTS").map(|text| text.parse().unwrap()) {
        Ok(0) => usize::MAX,
        Ok(points) => points,
        Err(_) => otherwise,
    }
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

/// Runs faults in several lanes, and reports all that are not survived.
fn run_all<F: Display + Send>(
    faults: Vec<F>,
    run: impl Fn(&mut Lane, &F) -> Result<FaultResult, Failure> + Sync,
) {
    if faults.is_empty() {
        return skip("CCBENCH_FAULT selects another fault");
    }
    let all = faults.len();
    println!("{all} faults");
    let waiting = Mutex::new(faults.into_iter());
    let (failures, codes) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::new()));
    let unjudged = Mutex::new(Vec::new());
    let watch = CpuWatch::start();
    let work = || {
        let mut lane: Option<Lane> = None;
        loop {
            let Some(fault) = waiting.lock().unwrap().next() else { break };
            let on = lane.get_or_insert_with(Lane::new);
            match run(on, &fault) {
                Ok(survived) => {
                    *codes.lock().unwrap().entry(survived).or_insert(0) += 1;
                    let why = on.unjudged.take().map(|why| format!("{fault}: {why}"));
                    unjudged.lock().unwrap().extend(why);
                }
                Err(why) => {
                    let why =
                        format!("{fault}: {why}\nrepeat: CCBENCH_FAULT={fault} make test-faults\n");
                    eprintln!("{why}");
                    failures.lock().unwrap().push(why);
                    // The next fault gets new nodes.
                    lane = None;
                }
            }
        }
    };
    std::thread::scope(|scope| (0..LANES).for_each(|_| drop(scope.spawn(work))));
    let codes = codes.into_inner().unwrap();
    println!("runs: {codes:?}");
    let count = |injected: bool| {
        codes.iter().filter(move |(of, _)| of.injected == injected).map(|(_, n)| *n)
    };
    let (missed, hit) = (count(false).sum::<u32>(), count(true).sum::<u32>());
    assert!(missed <= hit, "{missed} faults were not injected, {hit} were");
    let (cpu, unjudged) = (watch.report(), unjudged.into_inner().unwrap());
    if let Some(first) = unjudged.first() {
        skip(&format!("no CPU after {} of {all} faults; the first: {first}", unjudged.len()));
    }
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.concat());
    let few = all.div_ceil(UNJUDGED);
    assert!(
        unjudged.len() <= few || cpu.is_disturbed(),
        "{} of {all} faults were not judged, although others left the CPU to the campaign: {cpu}",
        unjudged.len()
    );
}
