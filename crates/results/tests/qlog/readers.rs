//! Reads exports with the readers of the projects that define the formats.

use std::process::Command;

use ccbench_tests::{python, skip::skip};

use super::*;

const NO_PYTHON: &str = "run `scripts/setup.sh --test` first";

/// Runs a script of this folder on these files.
fn run_script(mut python: Command, script: &str, files: &[&Path]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/qlog").join(script);
    let done = python.arg(script).args(files).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn perfetto_and_prometheus_read_their_exports() {
    let Some(python) = python() else { return skip(NO_PYTHON) };
    let root = tempfile::tempdir().unwrap();
    let run = two_flows(root.path());
    let folder = root.path().join("exported");
    let trace = export::perfetto(&run, &folder).unwrap().remove(0);
    let metrics = export::openmetrics(&run, &folder).unwrap().remove(0);
    run_script(python, "readers.py", &[&trace, &metrics]);
}

/// Messages can be right and the trace wrong: the trace processor pairs and nests slices, and counts what it cannot use.
#[test]
fn perfettos_trace_processor_finds_no_error() {
    let Some(python) = python() else { return skip(NO_PYTHON) };
    if Command::new("node").arg("--version").output().is_err() {
        return skip("node is missing: scripts/setup.sh --test installs it");
    }
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("exported");
    let trace = export::perfetto(&two_flows(root.path()), &folder).unwrap().remove(0);
    run_script(python, "trace_processor.py", &[&trace]);
}
