//! Tests kills. Killed at random moments, ccbench leaves nothing of its own behind, and finished trials stay readable. When something is
//! killed, interrupted or removed at a certain moment, the trial or the run ends with the reason, and a resumed run completes it.
//!
//! The tests of this module run side by side: the kills at random moments take as long as all others.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ccbench_tests::cpu::CpuWatch;
use ccbench_tests::{Bench, SETUP_TIMEOUT, beside_others, binary, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use crate::experiment::kernel_plan;
use crate::plan;

const ROUNDS: u32 = 50;
/// Rounds that run at the same time. Nothing here depends on their speed.
const LANES: u32 = 4;
/// The experiment of a round takes about this long.
const MAX_DELAY_MS: u64 = 4000;

/// Small and seeded, but good enough to choose victims and moments. A failure names its round.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn fifty_random_kills_leave_nothing_behind() {
    let _beside = beside_others();
    let killed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let killed = &killed;
            scope.spawn(move || {
                let mut random = Random(20_260_101 + u64::from(lane));
                for round in (lane..ROUNDS).step_by(LANES as usize) {
                    killed.fetch_add(u32::from(kill_one(round, &mut random)), Ordering::Relaxed);
                }
            });
        }
    });
    // Some victims have not yet started or have ended.
    let killed = killed.into_inner();
    assert!(killed >= ROUNDS / 5, "only {killed} of {ROUNDS} rounds killed a process");
}

/// Starts an experiment, kills one of its processes at a random moment, and checks what is left. Returns whether there was such a process.
fn kill_one(round: u32, random: &mut Random) -> bool {
    let (bench, mut controller) = start(&plan("killed", "400ms", 2));
    std::thread::sleep(Duration::from_millis(random.below(MAX_DELAY_MS)));
    let (program, command) = [
        ("ccbench", "run"),
        ("ccbench-agent", "serve"),
        ("ccbench-agent", "testbed"),
        ("iperf3", "iperf3"),
    ][random.below(4) as usize];
    let made = bench.namespaces();
    let mut victims = bench.processes();
    victims.retain(|(_, line)| line.contains(program) && line.contains(command));
    let victim =
        victims.get(random.below(victims.len().max(1) as u64) as usize).map(|(pid, _)| *pid);
    // It may have ended by itself.
    let was_killed = victim
        .and_then(|pid| Pid::from_raw(pid as i32))
        .is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok());
    let killed = format!("round {round}, {program} {command}");
    wait_for(&format!("{killed}: the controller's end"), Duration::from_secs(40), || {
        controller.try_wait().unwrap().is_some()
    });
    wait_for(&format!("{killed}: no process is left"), Duration::from_secs(5), || {
        bench.processes().is_empty()
    });
    wait_for(&format!("{killed}: no namespace is left"), Duration::from_secs(5), || {
        bench.processes_in(&made).is_empty()
    });
    // run.json is the last file of a new results directory: without it, the run had not begun.
    for results in bench.all_results().iter().filter(|dir| dir.join("run.json").exists()) {
        let output = bench.run(&["summarize", &results.to_string_lossy()]);
        assert!(output.status.code().is_some_and(|code| code < 2), "{killed}: {}", text(&output));
    }
    let cleaned = bench.run(&["clean"]);
    assert_eq!(cleaned.status.code(), Some(0), "{killed}: {}", text(&cleaned));
    let mut command = Command::new("find");
    let left = command.arg(bench.path("state")).args(["-mindepth", "1"]).output().unwrap();
    assert!(left.stdout.is_empty(), "{killed}: clean leaves {}{}", text(&left), text(&cleaned));
    was_killed
}

/// Starts a run of a plan.
pub(crate) fn start(plan: &str) -> (Bench, Child) {
    let bench = Bench::new();
    let plan = bench.write("plan.toml", plan);
    let controller = bench.spawn(&["run", &plan.to_string_lossy()]);
    (bench, controller)
}

/// Returns whether a command line is that of a flow's client.
pub(crate) fn is_client(line: &str) -> bool {
    line.starts_with("iperf3") && line.contains(" -c ")
}

/// Waits until a flow has a client.
pub(crate) fn wait_for_flow(bench: &Bench) {
    wait_for("an iperf3 client", SETUP_TIMEOUT, || {
        bench.processes().iter().any(|(_, line)| is_client(line))
    });
}

/// Returns the agent of a node.
pub(crate) fn agent(bench: &Bench, node: &str) -> Pid {
    let (serve, node) = ("ccbench-agent serve".to_owned(), format!("--node {node} "));
    let is_agent = |line: &str| line.contains(&serve) && line.contains(&node);
    let all = bench.processes();
    let found =
        all.iter().find(|(_, line)| is_agent(line)).and_then(|(pid, _)| Pid::from_raw(*pid as i32));
    found.unwrap_or_else(|| panic!("no agent with {node}: {all:?}"))
}

#[test]
fn resume_repeats_a_trial_whose_agent_died() {
    let _beside = beside_others();
    let plan = kernel_plan("lost", 1).replace("length = \"1s\"", "length = \"2s\"");
    let (bench, mut child) = start(&plan);
    wait_for_flow(&bench);
    kill_process(agent(&bench, "dst"), Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{}", bench.printed());
    let results = bench.results();
    let file = |name: &str| std::fs::read_to_string(results.join(name)).unwrap();
    assert!(file("trials.csv").contains("node_lost"), "{}", file("trials.csv"));
    let output = bench.run(&["run", "--resume", &results.to_string_lossy()]);
    assert!(!text(&output).contains("nothing is left to run"), "{}", text(&output));
    assert!(!file("trials.csv").contains("node_lost"), "replaced: {}", file("trials.csv"));
    let journal = file("journal.ndjson");
    assert_eq!(journal.matches("\"trial_end\"").count(), 2, "both attempts: {journal}");
    assert!(journal.contains("node_lost"), "{journal}");
}

#[test]
fn resume_completes_an_interrupted_run() {
    let _beside = beside_others();
    let (bench, mut child) = start(&kernel_plan("resume", 3));
    let err = || std::fs::read_to_string(bench.path("err")).unwrap_or_default();
    wait_for("the second trial", SETUP_TIMEOUT, || err().contains("trial 2/3"));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{}", err());
    assert!(bench.processes().is_empty());
    let results = bench.results();
    let part =
        |trial: u32| results.join(format!("tables/flows/point=0/trial-{trial:02}/part-0.parquet"));
    assert!(part(1).exists(), "{}", err());
    let first = std::fs::metadata(part(1)).unwrap().modified().unwrap();
    let watch = CpuWatch::start();
    let output = bench.run(&["run", "--resume", &results.to_string_lossy()]);
    let cpu = watch.report();
    assert!((1..=3).all(|trial| part(trial).exists()), "{}", text(&output));
    assert_eq!(
        std::fs::metadata(part(1)).unwrap().modified().unwrap(),
        first,
        "a finished trial is not run again"
    );
    cpu.check_short_run(&bench.all_results(), || {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    });
}

#[test]
fn killed_flow_fails_the_trial() {
    let _beside = beside_others();
    let (bench, mut child) = start(&plan("dead", "4s", 1));
    wait_for_flow(&bench);
    let all = bench.processes();
    let (pid, _) = all.iter().find(|(_, line)| is_client(line)).unwrap();
    kill_process(Pid::from_raw(*pid as i32).unwrap(), Signal::KILL).unwrap();
    let code = child.wait().unwrap().code();
    let err = std::fs::read_to_string(bench.path("err")).unwrap_or_default();
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("failed"), "{err}");
    assert!(bench.results().join("tables/flow_samples/point=0/trial-01/part-0.parquet").exists());
}

#[test]
fn removed_results_directory_ends_the_run() {
    let _beside = beside_others();
    let (bench, mut child) = start(&kernel_plan("removed", 3));
    wait_for("the first trial", SETUP_TIMEOUT, || {
        bench.printed().contains("trial 1/3") && !bench.all_results().is_empty()
    });
    std::fs::rename(bench.results(), bench.path("elsewhere")).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{}", bench.printed());
    let printed = bench.printed();
    assert!(printed.contains("was removed, renamed or replaced"), "{printed}");
    assert!(!printed.contains("trial 3/3"), "no other trial is begun: {printed}");
    assert_eq!(bench.all_results(), [""; 0].map(std::path::PathBuf::from), "not made again");
    assert!(bench.processes().is_empty());
}

#[test]
fn resume_completes_a_run_after_a_full_disk() {
    let _beside = beside_others();
    let bench = Bench::new();
    let plan = bench.write("plan.toml", &kernel_plan("full", 2));
    std::fs::create_dir(bench.path("results")).unwrap();
    // The disk is full from the end of the first trial until the run has ended.
    let script = r#"
        mount -t tmpfs -o size=16m none results
        "$0" run "$1" & run=$!
        until grep -qs trial_end results/*/journal.ndjson; do kill -0 $run || exit 1; sleep 0.02; done
        dd if=/dev/zero of=results/fill bs=4k 2> dd
        wait $run; echo "ended: $?"
        rm results/fill
        "$0" run --resume results/*; echo "resumed: $?"
        cp results/*/journal.ndjson .
        grep -c trial_end journal.ndjson; ls -A results/*
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(binary("ccbench")).arg(plan);
    command.current_dir(bench.path("")).env("CCBENCH_STATE", bench.path("state"));
    let watch = CpuWatch::start();
    let output = text(&command.output().unwrap());
    let cpu = watch.report();
    // First the table of the committed trial, then the reason why there is no other.
    let end = output.find("ended: 1\n").unwrap_or(0);
    let table = output.find("1 of 2 trials; the run failed");
    assert!(table.is_some_and(|at| at < end), "{output}");
    for part in
        ["No space left on device", "free space there", "ended: 1\n", "\n2\njournal.ndjson\n"]
    {
        assert!(output.contains(part), "{part:?}: {output}");
    }
    assert!(!output.contains("\n.tmp-"), "{output}");
    assert!(bench.processes().is_empty());
    cpu.check_short_run(&[bench.path("")], || assert!(output.contains("resumed: 0\n"), "{output}"));
}
