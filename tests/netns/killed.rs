//! Killed at random moments, ccbench leaves nothing of its own behind and finished trials stay readable.

use std::time::Duration;

use ccbench_tests::{Bench, alone, namespaces, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use crate::plan;

const ROUNDS: u32 = 50;

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
    let _alone = alone();
    let mut dice = Dice(20_260_101);
    for round in 0..ROUNDS {
        let bench = Bench::new();
        let plan = bench.write("plan.toml", &plan("killed", "400ms", 2));
        let mut controller = bench.spawn(&["run", &plan.to_string_lossy()]);
        std::thread::sleep(Duration::from_millis(dice.roll(2600)));
        let kind = ["ccbench run", "ccbench-agent serve", "ccbench-agent testbed", "iperf3"]
            [dice.roll(4) as usize];
        let made = bench.namespaces();
        let processes = bench.processes();
        let victims: Vec<&(u32, String)> = processes
            .iter()
            .filter(|(_, line)| {
                line.contains(kind.split(' ').next().unwrap_or(kind))
                    && line.contains(kind.split(' ').next_back().unwrap_or(kind))
            })
            .collect();
        let victim =
            victims.get(dice.roll(victims.len().max(1) as u64) as usize).map(|(pid, _)| *pid);
        if let Some(pid) = victim.and_then(|pid| Pid::from_raw(pid as i32)) {
            // It may have ended by itself meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        wait_for(
            &format!("round {round}: the controller's end after killing {kind}"),
            Duration::from_secs(40),
            || controller.try_wait().unwrap().is_some(),
        );
        wait_for(
            &format!("round {round} ({kind}): no process is left"),
            Duration::from_secs(5),
            || bench.processes().is_empty(),
        );
        wait_for(
            &format!("round {round} ({kind}): no namespace is left"),
            Duration::from_secs(5),
            || namespaces().is_disjoint(&made),
        );
        if bench.path("results").exists() {
            let results = bench.results();
            let output = bench.run(&["summarize", &results.to_string_lossy()]);
            assert!(
                output.status.code().is_some_and(|code| code < 2),
                "round {round} ({kind}): {}",
                text(&output)
            );
        }
        let cleaned = bench.run(&["clean"]);
        assert_eq!(cleaned.status.code(), Some(0), "round {round} ({kind}): {}", text(&cleaned));
        let left = std::fs::read_dir(bench.path("state")).map(Iterator::count).unwrap_or(0);
        assert_eq!(left, 0, "round {round} ({kind}): clean leaves nothing");
    }
}
