//! Tests what a request may ask for, and the names of the resulting files.

use super::*;

#[test]
fn metrics_of_fixed_kinds_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    for kind in [Kind::OperatingPoint, Kind::Plane, Kind::Ecdf, Kind::Strips] {
        let request = Request { metrics: vec!["srtt".to_owned()], ..request(kind, &[]) };
        let error = figure::draw(&run, &request).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("phases, series, heatmap") && text.contains(kind.name()), "{text}");
        assert!(error.class() == ErrorClass::Usage);
    }
}

#[test]
fn names_of_metrics_are_checked_before_the_run_is_read() {
    let nowhere = Path::new("there is no such run");
    let draw = |kind, metric: &str| {
        let request = Request { metrics: vec![metric.to_owned()], ..request(kind, &[]) };
        figure::draw(nowhere, &request).unwrap_err()
    };
    for (kind, metric, hint) in [
        (Kind::Phases, "throughput_share", "`--kind heatmap` and `--kind lines` have it"),
        (Kind::Phases, "srt", "did you mean `srtt`?"),
        (Kind::Heatmap, "srtt:p96", "the statistics of `srtt` are mean, median, p5"),
    ] {
        let error = draw(kind, metric).to_string();
        assert!(error.contains(metric) && error.contains(hint), "{error}");
        assert!(error.len() < 150, "a list of all names helps nobody: {error}");
    }
    // The share is a known metric of heatmaps; this error is about the missing run.
    let opened = draw(Kind::Heatmap, "throughput_share").to_string();
    assert!(opened.contains("no such run") && !opened.contains("metric"), "{opened}");
    let with = Comparison::Levels("buffer", "20", "40");
    let metrics = ["throughput_share".to_owned()];
    let (filter, observer) = (TrialFilter::default(), Observer::default());
    let error = compare(nowhere, &with, &metrics, &[], filter, &observer).unwrap_err();
    assert!(error.to_string().contains("`--kind heatmap`"), "{error}");
    assert!(error.class() == ErrorClass::Usage);
}

#[test]
fn metrics_without_bars_name_the_kind_that_has_them() {
    let root = tempfile::tempdir().unwrap();
    let request = Request { metrics: vec!["backlog".to_owned()], ..request(Kind::Phases, &[]) };
    let error = figure::draw(&made_up(root.path()), &request).unwrap_err().to_string();
    assert!(error.contains("`backlog`") && error.ends_with("use --kind heatmap"), "{error}");
}

#[test]
fn degraded_trials_of_figures_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let note = |kind, filters: &[(&str, &str)]| {
        figure::draw_with_note(&run, &request(kind, filters)).unwrap().1
    };
    // The failed trial is not in the figure.
    let all = note(Kind::Heatmap, &[("phase", "compete")]);
    assert_eq!(all.as_deref(), Some("1 of 3 trials is degraded (cpu_bound, samples_late)"));
    assert_eq!(note(Kind::Heatmap, &[("phase", "compete"), ("trial", "1")]), None);
    // A series shows the first trial of each point.
    assert_eq!(note(Kind::Series, &[]), None);
    let second = note(Kind::Series, &[("scheme", "cubic"), ("trial", "2")]);
    assert_eq!(second.as_deref(), Some("1 of 1 trials is degraded (cpu_bound, samples_late)"));
}

#[test]
fn two_values_for_a_column_are_refused() {
    // Rows, trials and points.
    for (column, [one, other]) in
        [("group", ["cross", "under_test"]), ("trial", ["1", "0"]), ("scheme", ["cubic", "ta"])]
    {
        let two = draw_error(Kind::Ecdf, &[(column, one), (column, other)]);
        let both = format!("--where {column}={one} and --where {column}={other}: ");
        assert!(two.starts_with(&both) && two.contains("one value per column"), "{two}");
    }
    let twice = [("group", "cross"), ("phase", "compete"), ("group", "cross")];
    assert!(!draw(Kind::Ecdf, &twice).is_empty());
}

#[test]
fn file_names_include_filters() {
    let stem = |kind, filters: &[(&str, &str)]| draw(kind, filters).remove(0).stem;
    let both = [("group", "under_test"), ("scheme", "reno, \"classic\"")];
    assert_eq!(stem(Kind::Phases, &both), "phases-group=under_test-scheme=reno___classic_");
    assert_eq!(stem(Kind::Strips, &[("flow_id", "cross/0")]), "strips-flow_id=cross_0");
    assert_eq!(stem(Kind::Series, &[("trial", "1")]), "series-trial=1-cubic-20");
    let root = tempfile::tempdir().unwrap();
    let mut request_all = request(Kind::Heatmap, &[]);
    request_all.metrics = vec!["throughput_sum".to_owned()];
    request_all.trial_filter.include_failed = true;
    let stem = figure::draw(&made_up(root.path()), &request_all).unwrap().remove(0).stem;
    assert_eq!(stem, "heatmap-metric=throughput_sum-include-failed");
}

#[test]
fn different_levels_have_different_file_names() {
    let root = tempfile::tempdir().unwrap();
    let levels = ["a b", "a/b", "a_b", "c d"];
    let points = (0..).zip(levels);
    let points = points.map(|(id, level)| (id, vec![("x".to_owned(), level.to_owned())]));
    let run = RunDir::create(root.path(), &RunInfo { points: points.collect(), ..info() }).unwrap();
    for (point_id, _) in (0..).zip(levels) {
        let mut writer = begin(&run, point_id, 1);
        fill(&mut writer, 0.0);
        writer.commit(&verdict(Status::Ok, &[])).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    let stem = |level| {
        let one = request(Kind::Series, &[("x", level)]);
        figure::draw(run.path(), &one).unwrap().remove(0).stem
    };
    // Only levels that would have the same name as another one contain part of their digest.
    let [spaced, divided, plain, other] = levels.map(stem);
    assert_eq!((plain.as_str(), other.as_str()), ("series-x=a_b", "series-x=c_d"));
    let digest = |stem: &str| stem.strip_prefix("series-x=a_b-").unwrap().to_owned();
    assert!(digest(&spaced).len() == 8 && digest(&divided).len() == 8);
    assert_ne!(spaced, divided);
    let all = figure::draw(run.path(), &request(Kind::Series, &[])).unwrap();
    let stems: Vec<&str> = all.iter().map(|figure| figure.stem.as_str()).collect();
    let of = |stem: &str| stem.replace("series-x=", "series-");
    assert_eq!(stems, [spaced, divided, plain, other].map(|stem| of(&stem)));
}
