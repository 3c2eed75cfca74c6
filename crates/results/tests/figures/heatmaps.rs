//! Tests which numbers heatmaps show.

use super::*;

/// Pushes the intervals of two flows in the phase from 1 to 5 s.
fn push_rates(writer: &mut TrialWriter<'_>, mbit_per_s: [u64; 2]) {
    for (flow, mbit_per_s) in mbit_per_s.into_iter().enumerate() {
        for step in 0..40_u64 {
            let interval = wire::Interval {
                at_ns: T0_NS[1].1 + (1100 + step * 100) * 1_000_000,
                flow_id: format!("under_test/{flow}"),
                group: "under_test".into(),
                side: Side::Receiver.into(),
                seconds: 0.1,
                bytes: mbit_per_s * 12_500,
                ..Default::default()
            };
            push(writer, "dst", Of::Interval(interval));
        }
    }
}

/// The flows of the first point never have equal rates, those of the second always.
#[test]
fn heatmap_shows_values_although_the_first_trial_has_none() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    for (point_id, mbit_per_s) in [(0, [30, 2]), (1, [10, 10])] {
        let mut writer = begin(&run, point_id, 1);
        push_rates(&mut writer, mbit_per_s);
        writer.commit(&verdict(Status::Ok, &[])).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    let of = |metric: &str| {
        let metrics = vec![metric.to_owned()];
        let wheres = [("phase", "alone")];
        let request = Request { metrics, ..request(Kind::Heatmap, &wheres) };
        let figure = figure::draw(run.path(), &request).unwrap().remove(0);
        let column = |name| cells(&figure, &[("point_id", "0")], name).remove(0);
        (column("stat"), column("mean"))
    };
    let shown = |stat: &str, mean: &str| (stat.to_owned(), mean.to_owned());
    assert_eq!(of("jain_convergence_time"), shown("mean", ""));
    assert_eq!(of("jain_convergence_time:undefined"), shown("undefined", "1"));
}
