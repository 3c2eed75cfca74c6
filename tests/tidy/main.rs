//! The style guide as a test: dependency rule, file and function length, `unsafe` only where allowed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use ccbench_tests::source_root;

const MOST_LINES: usize = 600;
const MOST_FUNCTION_LINES: usize = 70;

fn files(ending: &str) -> Vec<PathBuf> {
    fn walk(dir: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            let hidden =
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if path.is_dir() && !hidden && !path.ends_with("target") && !path.ends_with("results") {
                walk(&path, ending, found);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&source_root(), ending, &mut found);
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(source_root()).unwrap_or(path).display().to_string()
}

#[test]
fn crates_depend_only_downwards() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(source_root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("ccbench-proto", &[] as &[&str]),
        ("ccbench-shaper", &["ccbench-proto"]),
        ("ccbench-collector", &["ccbench-proto"]),
        ("ccbench-agent", &["ccbench-proto", "ccbench-shaper", "ccbench-collector"]),
        ("ccbench-results", &["ccbench-proto"]),
        ("ccbench", &["ccbench-proto", "ccbench-results"]),
    ]);
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let Some(allowed) = allowed.get(name) else { continue };
        let only = |owner: &str, users: &[&str], dependency: &str| {
            assert!(
                dependency != owner || users.contains(&name),
                "{name} must not use {owner}; only {users:?} may"
            );
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let (kind, dependency) = (&dependency["kind"], dependency["name"].as_str().unwrap());
            if dependency.starts_with("ccbench") {
                assert!(allowed.contains(&dependency), "{name} must not depend on {dependency}");
            }
            if kind.is_null() {
                only("polars", &["ccbench-results"], dependency);
                only("tonic", &["ccbench-proto", "ccbench-agent", "ccbench"], dependency);
                only("tokio", &["ccbench-agent", "ccbench-results", "ccbench"], dependency);
                only(
                    "netlink-sys",
                    &["ccbench-shaper", "ccbench-collector", "ccbench-agent"],
                    dependency,
                );
            }
        }
    }
}

#[test]
fn files_and_functions_are_short() {
    let mut long = Vec::new();
    for path in files(".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() > MOST_LINES {
            long.push(format!("{}: {} lines (at most {MOST_LINES})", shown(&path), lines.len()));
        }
        // rustfmt guarantees that a function ends with a brace at the indentation it began with.
        for (start, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let head =
                line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            let head = head.trim_start_matches("const ").trim_start_matches("async ");
            if !head.starts_with("fn ") {
                continue;
            }
            // A trait's function without a body ends with its signature.
            let signature = lines[start..].iter().find(|line| line.ends_with(['{', ';', '}']));
            if signature.is_some_and(|line| line.ends_with(';')) {
                continue;
            }
            let end = (start..lines.len()).find(|&i| {
                lines[i].len() > indent && lines[i].trim() == "}" && lines[i].len() - 1 == indent
            });
            let length = end.map_or(0, |end| end - start + 1);
            if length > MOST_FUNCTION_LINES {
                long.push(format!(
                    "{}:{}: {length} lines (at most {MOST_FUNCTION_LINES})",
                    shown(&path),
                    start + 1
                ));
            }
        }
    }
    assert!(long.is_empty(), "too long:\n{}", long.join("\n"));
}

#[test]
fn unsafe_code_stays_behind_its_doors() {
    let doors: BTreeSet<&str> =
        BTreeSet::from(["crates/shaper/src/sys.rs", "crates/collector/src/abi.rs"]);
    for path in files(".rs") {
        let name = shown(&path);
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let uses = code
            .filter(|line| {
                line.contains(concat!("unsafe", " {")) || line.contains(concat!("unsafe", " fn"))
            })
            .count();
        assert!(uses == 0 || doors.contains(name.as_str()), "{name} uses unsafe code");
    }
}

#[test]
fn nothing_names_a_path_of_a_developers_machine() {
    for ending in [".rs", ".md", ".toml", ".sh", ".proto", "Makefile"] {
        for path in files(ending) {
            let text = std::fs::read_to_string(&path).unwrap();
            for place in [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/tar", "get")]
            {
                assert!(!text.contains(place), "{} names {place}", shown(&path));
            }
        }
    }
}

#[test]
fn every_column_is_in_the_manual() {
    let proto =
        std::fs::read_to_string(source_root().join("proto/ccbench/v1/agent.proto")).unwrap();
    let manual = std::fs::read_to_string(source_root().join("docs/results.md")).unwrap();
    for message in [
        "Flow",
        "FlowSample",
        "Interval",
        "Probe",
        "QdiscSample",
        "LinkChange",
        "LinkTiming",
        "LinkPacket",
        "Acks",
        "TcpEvent",
        "AckCount",
        "HostSample",
        "Event",
    ] {
        let body = proto
            .split(&format!("message {message} {{"))
            .nth(1)
            .and_then(|rest| rest.split("\n}").next());
        for field in body.unwrap_or_else(|| panic!("no message {message}")).lines() {
            let Some(name) =
                field.split(" = ").next().and_then(|left| left.split_whitespace().last())
            else {
                continue;
            };
            let column = name.replace("_at_ns", "_t_ns").replace("at_ns", "t_ns");
            let is_field = field.contains(" = ");
            assert!(
                !is_field || manual.contains(&format!("| {column} |")),
                "docs/results.md lacks {message}'s {column}"
            );
        }
    }
}
