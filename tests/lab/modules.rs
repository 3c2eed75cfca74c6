//! Tests ccbench's kernel modules in the lab's kernel. Each carries a flow and reports its state, and the BBR draft's test cases have the
//! same verdicts as with the BPF programs and in the simulator.

use std::path::Path;

use ccbench_tests::{Bench, csv, text};
use serde_json::Value;

use crate::{cores, plan};

const CORES: [&str; 7] = ["vegas", "ta", "cx", "dctcp", "prague", "bbr2", "bbr3"];
/// Number of the draft's cases.
const CASES: usize = 22;

fn build_modules(bench: &Bench) {
    let built = bench.run(&["lab", "build", "--engine", "uml", "--modules"]);
    assert_eq!(built.status.code(), Some(0), "{}", text(&built));
}

/// Returns how the trials of a run loaded congestion controls, once for each instance.
fn loaded_via(results: &Path) -> Vec<String> {
    let journal = std::fs::read_to_string(results.join("journal.ndjson")).unwrap();
    let mut found = Vec::new();
    for line in journal.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let instances = entry["congestion_controls"].as_array().into_iter().flatten();
        found.extend(instances.map(|instance| instance["via"].as_str().unwrap().to_owned()));
    }
    found
}

/// Modules that want ECN are loaded on both nodes, one after the other, and the last node unloads them.
#[test]
fn every_module_carries_a_flow_and_reports_its_state() {
    let bench = Bench::new();
    build_modules(&bench);
    assert_eq!(cores(), CORES);
    let instances =
        CORES.map(|core| format!("[cc.own_{core}]\nalgorithm = \"{core}\"\nvia = \"module\"\n"));
    let names = CORES.map(|core| format!("own_{core}"));
    let matrix = format!("[matrix]\n\"flows.f.cc\" = {names:?}\n");
    let path = bench.write("plan.toml", &(plan(1) + &instances.concat() + &matrix));
    let done = bench.run(&["run", &path.to_string_lossy(), "--lab", "--engine", "uml"]);
    // A trial without rows of `cc_state` is degraded.
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let trials = csv(&bench.results().join("trials.csv"));
    assert_eq!(trials.len(), CORES.len(), "{trials:?}");
    assert!(trials.iter().all(|trial| trial["status"] == "ok"), "{trials:?}");
    let via = loaded_via(&bench.results());
    assert!(via.len() >= CORES.len() && via.iter().all(|via| via == "module"), "{via:?}");
    let rates: Vec<f64> = csv(&bench.results().join("summary_point.csv"))
        .iter()
        .filter(|row| row["scope"] == "group" && row["metric"] == "throughput_sum")
        .filter(|row| row["stat"] == "mean")
        .map(|row| row["value"].parse().unwrap())
        .collect();
    assert_eq!(rates.len(), CORES.len(), "{rates:?}");
    assert!(rates.iter().all(|bps| (4e6..1e7).contains(bps)), "{rates:?}");
}

/// The result of each case, and the text, levels and verdict of each claim.
type Verdicts = (Vec<String>, Vec<[String; 3]>);

/// Returns the results of all cases that a congestion control has, and how it was loaded.
fn verdicts(cc: &str, host: &[&str]) -> (Verdicts, Vec<String>) {
    let bench = Bench::new();
    let only = format!("matrix.cc={cc}");
    let command = ["reproduce", "conformance", "--quick", "--json", "--set", only.as_str()];
    let done = bench.run(&[&command[..], host].concat());
    assert_eq!(done.status.code(), Some(0), "{host:?}: {}", text(&done));
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    let (mut claims, mut cases) = (Vec::new(), Vec::new());
    for event in printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let field = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        match event["event"].as_str() {
            Some("expectation") => claims.push(["claim", "levels", "verdict"].map(field)),
            Some("reproduced") => cases.push([field("name"), field("result")].join(": ")),
            _ => {}
        }
    }
    assert_eq!(cases.len(), CASES, "{host:?}: {cases:?}");
    assert!(claims.len() >= CASES, "{host:?}: {claims:?}");
    let via = bench.all_results().iter().flat_map(|results| loaded_via(results)).collect();
    ((cases, claims), via)
}

/// A level of the factor `cc` with `via = "module"`.
fn cases_have_the_same_verdicts(cc: &str) {
    let module = format!("matrix.cc.{cc}.\"cc.tested\".via=module");
    let lab = ["--lab", "--engine", "uml"];
    let (by_module, via) = verdicts(cc, &[&lab[..], &["--set", module.as_str()]].concat());
    assert!(!via.is_empty() && via.iter().all(|via| via == "module"), "{via:?}");
    let (by_bpf, via) = verdicts(cc, &lab);
    assert!(!via.is_empty() && via.iter().all(|via| via == "bpf"), "{via:?}");
    assert_eq!(by_module, by_bpf, "{cc}: module and BPF");
    let (simulated, _) = verdicts(cc, &["--sim"]);
    assert_eq!(by_module, simulated, "{cc}: module and simulator");
}

#[test]
fn cases_of_the_draft_have_the_same_verdicts_on_three_hosts_with_bbr3() {
    build_modules(&Bench::new());
    cases_have_the_same_verdicts("bbr3");
}

#[test]
fn cases_of_the_draft_have_the_same_verdicts_on_three_hosts_with_bbr2() {
    build_modules(&Bench::new());
    cases_have_the_same_verdicts("bbr2");
}
