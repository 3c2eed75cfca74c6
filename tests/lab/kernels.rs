//! Tests that plans with several kernels run on each of them.

use ccbench_tests::{Bench, csv, text};

use crate::plan;

#[test]
fn a_plan_runs_on_every_kernel_that_its_matrix_names() {
    let bench = Bench::new();
    for kernel in ["6.1", "6.12"] {
        let built = bench.run(&["lab", "build", "--kernel", kernel]);
        assert_eq!(built.status.code(), Some(0), "{}", text(&built));
    }
    let matrix = "[matrix]\n\"lab.kernel\" = [\"own\", \"6.1\", \"6.12\"]\n";
    let path = bench.write("plan.toml", &(plan(1) + matrix));
    // A plan that names a kernel needs no `--lab`.
    let done = bench.run(&["run", &path.to_string_lossy()]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let points = csv(&bench.results().join("points.csv"));
    let kernels: Vec<&str> = points.iter().map(|row| row["lab.kernel"].as_str()).collect();
    assert_eq!(kernels, ["own", "6.1", "6.12"]);
    let rates: Vec<f64> = csv(&bench.results().join("summary_point.csv"))
        .iter()
        .filter(|row| row["scope"] == "group" && row["metric"] == "throughput_sum")
        .map(|row| row["value"].parse().unwrap())
        .collect();
    assert_eq!(rates.len(), 3, "{rates:?}");
    assert!(rates.iter().all(|bps| (3e6..1e7).contains(bps)), "{rates:?}");
    let nodes = std::fs::read_to_string(bench.results().join("run.json")).unwrap();
    for series in ["7.3", "6.1.0", "6.12"] {
        assert!(nodes.contains(series), "{series}: {nodes}");
    }
}

#[test]
fn a_prompt_answers_on_a_stock_kernel() {
    use std::io::{Read as _, Write as _};
    use std::process::Stdio;
    let bench = Bench::new();
    let built = bench.run(&["lab", "build", "--kernel", "6.1"]);
    assert_eq!(built.status.code(), Some(0), "{}", text(&built));
    let mut command = bench.command(&["lab", "shell", "--kernel", "6.1"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Input before the prompt may be lost.
    let mut out = child.stdout.take().unwrap();
    let (mut output, mut byte) = (Vec::new(), [0]);
    while !output.ends_with(b"# ") && out.read(&mut byte).unwrap() == 1 {
        output.push(byte[0]);
    }
    let typed =
        "echo the kernel is $(cat /proc/sys/kernel/osrelease)\necho b > /proc/sysrq-trigger\n";
    child.stdin.as_mut().unwrap().write_all(typed.as_bytes()).unwrap();
    out.read_to_end(&mut output).unwrap();
    let done = child.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&output).into_owned();
    assert!(output.contains("the kernel is 6.1."), "{output}{}", text(&done));
}
