//! Points without a number.

use super::*;

/// Point 0 failed twice.
pub fn half_failed(root: &Path) -> PathBuf {
    let dead = || verdict(Status::Failed, &[("flow_dead", "flows.cross: not one byte of data")]);
    let ok = verdict(Status::Ok, &[]);
    made_of(root, [(0, 1, 0.0, dead()), (0, 2, 0.0, dead()), (1, 1, 0.0, ok)])
}

#[test]
fn a_point_whose_trials_all_failed_has_a_line() {
    let root = tempfile::tempdir().unwrap();
    let path = half_failed(root.path());
    let printed = table::text(&RunSummary::compute(&path, TrialFilter::default()).unwrap(), 120);
    let line = printed.lines().find(|line| line.contains("all 2 failed")).unwrap_or(&printed);
    assert!(line.starts_with(" cubic") && line.ends_with("0/0/2"), "{printed}");
    let filter = TrialFilter { include_failed: true, ..TrialFilter::default() };
    let printed = table::text(&RunSummary::compute(&path, filter).unwrap(), 120);
    assert!(!printed.contains("all 2 failed"), "{printed}");
}
