//! Tests `--sim` before the first trial: what cannot be simulated, and options that contradict it.

use ccbench_tests::{Bench, source_root, text};

use crate::{err, out};

/// Writes the quickstart with this line inserted before the first line that begins with `place`. Returns the number of the new line, too.
fn quickstart(bench: &Bench, line: &str, place: &str) -> (String, usize) {
    let plan = std::fs::read_to_string(source_root().join("plans/quickstart.toml")).unwrap();
    let mut lines: Vec<&str> = plan.lines().collect();
    let at = lines.iter().position(|line| line.starts_with(place)).unwrap();
    lines.insert(at, line);
    let path = bench.write("plan.toml", &(lines.join("\n") + "\n"));
    (path.to_string_lossy().into_owned(), at + 1)
}

#[test]
fn simulator_takes_shipped_plans() {
    for plan in ["quickstart.toml", "l4s/sweep.toml", "bufferbloat.toml"] {
        let path = source_root().join("plans").join(plan);
        let done = Bench::new().run(&["check", &path.to_string_lossy(), "--sim"]);
        assert_eq!(done.status.code(), Some(0), "{plan}: {}", text(&done));
        assert!(out(&done).contains("trial(s)"), "{plan}: {}", text(&done));
    }
}

#[test]
fn check_and_run_name_file_line_and_fix() {
    let bench = Bench::new();
    let capture = "[capture.c]\nnode = \"router\"\ntoward = \"dst\"";
    let (plan, line) = quickstart(&bench, capture, "[[phases]]");
    let without = bench.run(&["check", &plan]);
    assert_eq!(without.status.code(), Some(0), "{}", text(&without));
    for command in ["check", "run"] {
        let done = bench.run(&[command, &plan, "--sim"]);
        assert_eq!(done.status.code(), Some(2), "{command}: {}", text(&done));
        let expected = format!("error: {plan}:{line}: capture.c: simulated packets");
        assert!(err(&done).contains(&expected), "{command}: {}", text(&done));
        assert!(err(&done).contains("remove it, or run without --sim"), "{command}");
    }
    assert!(bench.all_results().is_empty(), "nothing may run");
}

#[test]
fn what_has_no_effect_is_a_warning() {
    let bench = Bench::new();
    let (plan, line) = quickstart(&bench, "backend = \"kernel\"", "delay");
    let done = bench.run(&["check", &plan, "--sim"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let expected =
        format!("warning: {plan}:{line}: links.delay.backend: the simulator has no kernel qdiscs");
    assert!(err(&done).contains(&expected), "{}", text(&done));
}

#[test]
fn reproduce_names_what_cannot_be_simulated() {
    let bench = Bench::new();
    let kernel = ["--set", "lab.kernel=\"6.12\""];
    let done =
        bench.run(&[&["reproduce", "bufferbloat", "--quick", "--sim"][..], &kernel].concat());
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(err(&done).contains("the simulator runs no kernel"), "{}", text(&done));
    assert!(bench.all_results().is_empty(), "nothing may run");
}

#[test]
fn sim_contradicts_options_of_other_backends() {
    let bench = Bench::new();
    let plan = source_root().join("plans/quickstart.toml");
    let plan = plan.to_string_lossy();
    for other in [&["--lab"][..], &["--kernel", "6.1"], &["--dilation", "5"], &["--rootless"]] {
        let done = bench.run(&[&["run", &plan, "--sim"], other].concat());
        assert_eq!(done.status.code(), Some(2), "{other:?}: {}", text(&done));
        assert!(err(&done).contains("cannot be used with"), "{other:?}: {}", text(&done));
    }
    let done = bench.run(&["check", &plan, "--sim", "--lab"]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(bench.all_results().is_empty());
}
