//! A path with known capacities, and checks of what `ccbench trace record` wrote about it.

use std::path::Path;

use crate::Bench;

/// Capacity of each second in Mbit/s, towards `src` and towards `dst`. The first three seconds are before the recording.
const DOWN: [f64; 14] = [10.0, 4.0, 8.0, 2.0, 6.0, 12.0, 3.0, 9.0, 5.0, 7.0, 11.0, 2.0, 8.0, 10.0];
const UP: [f64; 14] = [5.0, 2.5, 4.0, 3.0, 6.0, 8.0, 4.0, 5.0, 2.0, 3.0, 6.0, 4.0, 7.0, 5.0];
const FIRST: usize = 3;
/// Number of seconds recorded.
const SECONDS: usize = 10;
/// By how much a second may differ.
const TOLERANCE: f64 = 0.02;
/// Delay of each link, ms.
const DELAY_MS: f64 = 10.0;

const PLAN: &str = r#"
name = "path"
[nodes]
src = {}
router = {}
dst = {}
[wires]
path = ["src", "router", "dst"]
[links.down]
node = "router"
toward = "src"
delay = "10ms"
trace = { file = "down.csv" }
queue = { kind = "bfifo", limit = "60kB" }
backend = "userspace"
[links.up]
node = "router"
toward = "dst"
delay = "10ms"
trace = { file = "up.csv" }
queue = { kind = "bfifo", limit = "60kB" }
backend = "userspace"
[probes.rtt]
kind = "ping"
from = "src"
to = "dst"
[[phases]]
name = "only"
length = "1s"
"#;

/// Writes the plan of the path. Returns the arguments that record it for ten seconds, as `NAME.down.csv` and `NAME.up.csv`.
pub fn arguments(bench: &Bench, rate: &str, name: &str) -> Vec<String> {
    for (file, rates) in [("down.csv", &DOWN), ("up.csv", &UP)] {
        let rows: String = rates.iter().map(|mbit| format!("{mbit},1\n")).collect();
        bench.write(file, &format!("rate_mbit,dwell_s\n{rows}"));
    }
    record(&bench.write("plan.toml", PLAN), rate, name)
}

/// Like [`arguments`], for a path whose links replay what was recorded as `FROM.down.csv` and `FROM.up.csv`, including its delays.
pub fn replay_arguments(bench: &Bench, rate: &str, from: &str, name: &str) -> Vec<String> {
    let plan = PLAN.replace("delay = \"10ms\"\n", "");
    let plan = plan.replace("\"down.csv\"", &format!("\"{from}.down.csv\""));
    let plan = plan.replace("\"up.csv\"", &format!("\"{from}.up.csv\""));
    record(&bench.write("replay.toml", &plan), rate, name)
}

/// Returns the arguments that record the path of a plan.
fn record(plan: &Path, rate: &str, name: &str) -> Vec<String> {
    let (plan, length) = (plan.display().to_string(), format!("{SECONDS}s"));
    let words = ["trace", "record", &plan, "--from", "src", "--to", "dst"];
    let options = ["--rate", rate, "--length", &length, "-o", name];
    words.into_iter().chain(options).map(str::to_owned).collect()
}

/// Returns the mean rate of each second of a recorded trace, bit/s. Checks that its delays are about that of a link.
///
/// # Panics
/// Panics if the file is not such a trace.
#[expect(clippy::unwrap_used, reason = "a test may panic")]
fn seconds(bench: &Bench, file: &str) -> [f64; SECONDS] {
    let text = std::fs::read_to_string(bench.path(file)).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("t_us,rate_bps,delay_us"));
    let mut rates = [0.0; SECONDS];
    let mut rows = 0;
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        // An empty row ends the trace.
        if cells[1].is_empty() {
            assert_eq!(cells[0], "10000000");
            continue;
        }
        let number = |at: usize| cells[at].parse::<f64>().unwrap();
        rates[(number(0) / 1e6) as usize] += number(1) / 10.0;
        let delay_ms = number(2) / 1e3;
        assert!((DELAY_MS..DELAY_MS + 1.0).contains(&delay_ms), "{file}: {line}");
        rows += 1;
    }
    assert_eq!(rows, SECONDS * 10, "{file}");
    rates
}

/// Compares each second with the capacity, and the delay with that of a link.
///
/// # Panics
/// Panics if they differ.
pub fn check(bench: &Bench, name: &str) {
    for (direction, known) in [("down", &DOWN), ("up", &UP)] {
        let rates = seconds(bench, &format!("{name}.{direction}.csv"));
        for (second, (found, mbit)) in rates.iter().zip(&known[FIRST..]).enumerate() {
            let error = found / (mbit * 1e6) - 1.0;
            assert!(error.abs() < TOLERANCE, "{direction}, second {second}: {found}, not {mbit}e6");
        }
    }
}

/// Compares each second of a recording with the same second of the trace that the path replayed. The recording begins at `FIRST` of that
/// trace. What follows the trace's end is not compared.
///
/// # Panics
/// Panics if they differ.
pub fn check_replay(bench: &Bench, replayed: &str, name: &str) {
    for direction in ["down", "up"] {
        let trace = seconds(bench, &format!("{replayed}.{direction}.csv"));
        let found = seconds(bench, &format!("{name}.{direction}.csv"));
        for (second, (found, rate)) in found.iter().zip(&trace[FIRST..]).enumerate() {
            let error = found / rate - 1.0;
            assert!(error.abs() < TOLERANCE, "{direction}, second {second}: {found}, not {rate}");
        }
    }
}
