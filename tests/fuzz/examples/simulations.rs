//! Simulates the generated plans of some seeds, without libFuzzer: `simulations FIRST-SEED COUNT`. A failure prints the seed, and to
//! standard error what failed and the plan. The last line has the totals. Exits with 1 if any plan failed. `scripts/fuzz_plans.sh` runs it
//! for hours.

use std::panic::catch_unwind;
use std::process::ExitCode;

use ccbench_fuzz::simulation;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Option<Vec<u64>> = arguments.iter().map(|text| text.parse().ok()).collect();
    let Some([first, count]) = numbers.as_deref() else {
        eprintln!("usage: simulations FIRST-SEED COUNT");
        return ExitCode::from(2);
    };
    let mut failed = 0;
    for seed in *first..first.saturating_add(*count) {
        let input = simulation::input(seed);
        if catch_unwind(|| simulation::simulation(&input)).is_err() {
            println!("seed {seed} failed");
            failed += 1;
        }
    }
    println!("{count} plans, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
