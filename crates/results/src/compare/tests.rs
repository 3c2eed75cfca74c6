use std::path::PathBuf;

use super::*;
use crate::backend::RunBackend;
use crate::model::{RunStatus, TrialKey, TrialStatus};
use crate::summary::PhaseRow;

/// Returns a run of ten trials, in this number of which the flows do not converge.
fn summary(failed: u16) -> Summary {
    let row = |trial: u16| {
        let (unit, stat, value) =
            if trial <= failed { ("1", UNDEFINED, 1.0) } else { ("us", "mean", 4e6) };
        PhaseRow {
            point_id: 0,
            trial,
            phase: "main".to_owned(),
            scope: Scope::Net,
            subject: "all".to_owned(),
            metric: "convergence_time",
            unit,
            stat,
            value,
            n: 1,
        }
    };
    let end = |trial: u16| {
        let key = TrialKey { point_id: 0, trial, seed: u64::from(trial), epoch: 1 };
        TrialEnd::new(key, TrialStatus::Ok)
    };
    Summary {
        run_dir: PathBuf::new(),
        status: RunStatus::Complete,
        backend: RunBackend::Testbed,
        trial_filter: TrialFilter::default(),
        factors: vec![],
        points: BTreeMap::from([(0, vec![])]),
        ccs: BTreeMap::new(),
        trials: (1..=10).map(end).collect(),
        phases: vec!["main".to_owned()],
        phase_rows: (1..=10).map(row).collect(),
        point_rows: vec![],
        planned: 10,
        fallbacks: vec![],
        steal_pct: BTreeMap::new(),
        completion_bounds_us: BTreeMap::new(),
        notes: vec![],
    }
}

#[test]
fn trial_without_undefined_values_counts_as_zero() {
    let mut order = RowOrder::new(vec!["main".to_owned()]);
    let points = BTreeSet::from([0]);
    let [a, b] = [("a", 1), ("b", 0)]
        .map(|(name, failed)| order.side(&summary(failed), name.to_owned(), &[], &points));
    let requested = ["convergence_time:undefined".to_owned()];
    let found = order.differences(a, b, &Metrics::new(&requested, &[], false)).unwrap();
    let of: Vec<_> = found.rows.iter().map(|row| (row.stat, row.numbers.means)).collect();
    assert_eq!(of, [(UNDEFINED, (0.1, 0.0))]);
    assert_eq!((found.rows[0].numbers.n, found.rows[0].numbers.paired), ((10, 10), true));
}
