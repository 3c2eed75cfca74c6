//! Reads exports with the readers of the projects that define the formats.

use ccbench_tests::{python, skip::skip};

use super::*;

#[test]
fn perfetto_and_prometheus_read_their_exports() {
    let Some(mut python) = python() else { return skip("run `scripts/setup.sh --test` first") };
    let root = tempfile::tempdir().unwrap();
    let run = two_flows(root.path());
    let folder = root.path().join("exported");
    let trace = export::perfetto(&run, &folder).unwrap().remove(0);
    let metrics = export::openmetrics(&run, &folder).unwrap().remove(0);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/qlog/readers.py");
    let done = python.arg(script).args([trace, metrics]).output().unwrap();
    let message = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{message}");
}
