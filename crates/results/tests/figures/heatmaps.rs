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
            push(writer, "dst", Payload::Interval(interval));
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
        let filters = [("phase", "alone")];
        let request = Request { metrics, ..request(Kind::Heatmap, &filters) };
        let figure = figure::draw(run.path(), &request).unwrap().remove(0);
        let column = |name| cells(&figure, &[("point_id", "0")], name).remove(0);
        (column("stat"), column("mean"))
    };
    let shown = |stat: &str, mean: &str| (stat.to_owned(), mean.to_owned());
    assert_eq!(of("jain_convergence_time"), shown("mean", ""));
    assert_eq!(of("jain_convergence_time:undefined"), shown("undefined", "1"));
}

/// Of these metrics, summaries have the minimum, or the Kaplan-Meier median, before the mean.
#[test]
fn heatmap_without_a_statistic_shows_the_default_one() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    for point_id in 0..2 {
        let mut writer = begin(&run, point_id, 1);
        push_rates(&mut writer, [10, 10]);
        for (s, mbit_per_s, fetch_us) in [(2, 10.0, 1e5), (3, 20.0, 2e5), (4, 60.0, 6e5)] {
            let at_ns = T0_NS[0].1 + s * 1_000_000_000;
            for (variable, value) in [("mode", 0.0), ("bw_kbps", mbit_per_s * 1e3)] {
                let state = wire::CcState {
                    at_ns,
                    flow_id: "under_test/0".into(),
                    group: "under_test".into(),
                    cc: "bbr3".into(),
                    algorithm: "bbr3".into(),
                    round: s,
                    variable: variable.into(),
                    value,
                    ..Default::default()
                };
                push(&mut writer, "src", Payload::CcState(state));
            }
            let fetch = wire::Probe {
                at_ns,
                probe_id: "page".into(),
                kind: wire::ProbeKind::Http.into(),
                seq: s as u32,
                total_us: Some(fetch_us),
                ..Default::default()
            };
            push(&mut writer, "src", Payload::Probe(fetch));
        }
        writer.commit(&verdict(Status::Ok, &[])).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    for (metric, stat, value, title) in [
        ("bbr_bw", "mean", 30e6, ">Bbr bw of under_test, "),
        ("bbr_bw:min", "min", 10e6, ">Bbr bw min of under_test, "),
        ("fetch_time", "mean", 3e5, ">Fetch time of page, "),
        ("fetch_time:km_median", "km_median", 2e5, ">Fetch time km_median of page, "),
        // Its default, the time in STARTUP, is 2 s.
        ("cc_state_time", "STARTUP", 2e6, ">Cc state time STARTUP of under_test, "),
    ] {
        for kind in [Kind::Heatmap, Kind::Lines] {
            let metrics = vec![metric.to_owned()];
            let request = Request { metrics, ..request(kind, &[("phase", "alone")]) };
            let figure = figure::draw(run.path(), &request).unwrap().remove(0);
            let point = [("point_id", "0")];
            assert_eq!(cells(&figure, &point, "stat"), [stat], "{metric}");
            let mean = number(&figure, &point, "mean");
            assert!((mean - value).abs() < 1e-6 * value, "{metric}: {mean}");
            assert!(figure.svg.contains(title), "{metric}: {}", figure.svg);
        }
    }
}

/// Summaries and reports do not read `acks`, which may have gigabytes, so they also accept trials with damage there.
#[test]
fn figures_of_the_summary_do_not_read_acks() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    for point_id in 0..2 {
        let mut writer = begin(&run, point_id, 1);
        push_rates(&mut writer, [10, 10]);
        let at_ns = vec![T0_NS[0].1 + 2_000_000_000];
        let acks = wire::Acks {
            at_ns,
            flow_id: "under_test/0".into(),
            group: "under_test".into(),
            side: Side::Sender.into(),
            role: Role::Data.into(),
            ..Default::default()
        };
        push(&mut writer, "src", Payload::Acks(acks));
        writer.commit(&verdict(Status::Ok, &[])).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    let path = run.path();
    for point_id in 0..2 {
        let file = path.join(format!("tables/acks/point={point_id}/trial-01/part-0.parquet"));
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(file, bytes).unwrap();
    }
    for kind in [Kind::Heatmap, Kind::Lines] {
        let figures = figure::draw(path, &request(kind, &[("phase", "alone")])).unwrap();
        let mean = number(&figures[0], &[("point_id", "0")], "mean");
        assert!((mean - 20e6).abs() < 1.0, "{}: {mean}", kind.name());
    }
    // Other kinds compare every table with its digest.
    let error = figure::draw(path, &request(Kind::Ecdf, &[])).unwrap_err().to_string();
    assert!(error.contains("no trial matches"), "{error}");
}
