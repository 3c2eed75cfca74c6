//! Special files, endless files, and files with numbers or nesting that no tool writes: every command must reject them at once.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ccbench_tests::{Bench, wait_for};

/// Output of ping.
pub const PING: &str = "PING 10.0.0.1 (10.0.0.1) 56(84) bytes of data.\n\
    64 bytes from 10.0.0.1: icmp_seq=1 ttl=64 time=0.045 ms\n";

/// Runs a command, which must end. Returns its exit code and output.
fn ends(bench: &Bench, arguments: &[&str]) -> (i32, String) {
    let mut child = bench.spawn(arguments);
    let mut status = None;
    wait_for(&format!("{arguments:?} ends"), Duration::from_secs(60), || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    (status.and_then(|status| status.code()).unwrap_or(-1), bench.printed())
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn files_of_results_that_are_none_are_refused() {
    let bench = Bench::new();
    let ping = bench.write("ping.txt", PING);
    let ping = ping.to_string_lossy();
    for (number, file) in
        ["journal.ndjson", "run.json", "points.parquet", "summary.sha256", "plan.resolved.toml"]
            .into_iter()
            .enumerate()
    {
        for kind in ["fifo", "zero"] {
            let results = format!("results-{number}-{kind}");
            assert_eq!(
                ends(&bench, &["import", &ping, "-o", &results]).0,
                0,
                "{}",
                bench.printed()
            );
            let path = bench.path(&results).join(file);
            let _ = std::fs::remove_file(&path);
            match kind {
                "fifo" => make_fifo(&path),
                _ => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            }
            for command in ["verify", "summarize"] {
                let (code, printed) = ends(&bench, &[command, &results]);
                // A summary is printed even if a derived file cannot be written.
                let needs_it =
                    command == "verify" || ["journal.ndjson", "run.json"].contains(&file);
                let codes = if needs_it { 1..=3 } else { 0..=3 };
                assert!(codes.contains(&code), "{command} {results} {file}: {printed}");
                assert!(!printed.contains("panicked"), "{command} {results} {file}: {printed}");
            }
        }
    }
}

#[test]
fn a_line_of_a_gigabyte_is_refused() {
    let bench = Bench::new();
    let long = bench.path("long");
    // A hole, which takes no space on the disk.
    std::fs::File::create(&long).unwrap().set_len(1 << 30).unwrap();
    let long = long.to_string_lossy();
    for arguments in
        [&["check", &long][..], &["trace", "info", &long], &["import", &long, "-o", "results"]]
    {
        let (code, printed) = ends(&bench, arguments);
        assert_ne!(code, 0, "{arguments:?}");
        assert!(printed.contains("it is too large"), "{arguments:?}: {printed}");
    }
}

#[test]
fn deep_nesting_and_huge_numbers_are_refused() {
    let bench = Bench::new();
    let deep = "[".repeat(100_000);
    let plan = bench.write("deep.toml", &format!("x = {deep}"));
    let trace = bench.write("deep.json", &format!("{{\"RepeatedBwPatternConfig\":{deep}"));
    let numbers = bench.write("numbers.csv", "t_us,rate_bps\n0,1e308\n1e308,-1e308\n");
    let report = bench.write("deep-report.json", &format!("{{\"start\":{deep}"));
    let [plan, trace, numbers, report] =
        [plan, trace, numbers, report].map(|p| p.display().to_string());
    for arguments in [
        vec!["check", plan.as_str()],
        vec!["trace", "info", &trace],
        vec!["trace", "info", &numbers],
        vec!["import", &report, "-o", "results"],
    ] {
        let (code, printed) = ends(&bench, &arguments);
        assert!([1, 2].contains(&code), "{arguments:?}: {code}: {printed}");
        assert!(!printed.contains("panicked"), "{arguments:?}: {printed}");
    }
}
