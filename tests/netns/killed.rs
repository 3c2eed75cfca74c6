//! Killed at random moments, ccbench leaves nothing of its own behind and finished trials stay readable.

use std::time::Duration;

use ccbench_tests::{Bench, beside_others, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use crate::plan;

const ROUNDS: u32 = 50;
/// Rounds at the same time. Nothing here depends on their speed.
const LANES: u32 = 4;
/// The experiment of a round takes about this long.
const MAX_DELAY_MS: u64 = 4000;

/// Small, seeded, good enough to choose victims and moments; a failure names its round.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[test]
fn fifty_random_kills_leave_nothing_behind() {
    let _beside = beside_others();
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || {
                let mut dice = Dice(20_260_101 + u64::from(lane));
                (lane..ROUNDS).step_by(LANES as usize).for_each(|round| kill_one(round, &mut dice));
            });
        }
    });
}

/// Starts an experiment, kills one of its processes at a random moment and checks what is left.
fn kill_one(round: u32, dice: &mut Dice) {
    let bench = Bench::new();
    let plan = bench.write("plan.toml", &plan("killed", "400ms", 2));
    let mut controller = bench.spawn(&["run", &plan.to_string_lossy()]);
    std::thread::sleep(Duration::from_millis(dice.roll(MAX_DELAY_MS)));
    let (program, command) = [
        ("ccbench", "run"),
        ("ccbench-agent", "serve"),
        ("ccbench-agent", "testbed"),
        ("iperf3", "iperf3"),
    ][dice.roll(4) as usize];
    let made = bench.namespaces();
    let mut victims = bench.processes();
    victims.retain(|(_, line)| line.contains(program) && line.contains(command));
    let victim = victims.get(dice.roll(victims.len().max(1) as u64) as usize).map(|(pid, _)| *pid);
    if let Some(pid) = victim.and_then(|pid| Pid::from_raw(pid as i32)) {
        // It may have ended by itself meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
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
    let mut command = std::process::Command::new("find");
    let left = command.arg(bench.path("state")).args(["-mindepth", "1"]).output().unwrap();
    assert!(left.stdout.is_empty(), "{killed}: clean leaves {}{}", text(&left), text(&cleaned));
}
