//! Tests line charts, figures of all flows together, and the ranges of metrics.

use super::*;

/// Creates a run whose points are the combinations of factors with two levels.
fn run_of_factors(root: &Path, factors: u32) -> PathBuf {
    let level = |nth: u32, factor: u32| {
        (format!("f{factor}"), ["20ms", "5ms"][(nth >> factor & 1) as usize].to_owned())
    };
    let count = 1 << factors;
    let points = (0..count).map(|nth| (nth, (0..factors).map(|f| level(nth, f)).collect()));
    let run = RunDir::create(root, &RunInfo { points: points.collect(), ..info() }).unwrap();
    for point_id in 0..count {
        for (trial, shift) in [(1, 0.0), (2, 1e6)] {
            let mut writer = begin(&run, point_id, trial);
            fill(&mut writer, shift);
            writer.commit(&verdict(Status::Ok, &[])).unwrap();
        }
    }
    run.finish(RunStatus::Complete).unwrap();
    run.path().to_path_buf()
}

fn of_metric(metric: &str, kind: Kind, filters: &[(&str, &str)]) -> Request {
    Request { metrics: vec![metric.to_owned()], ..request(kind, filters) }
}

#[test]
fn lines_draw_a_metric_over_a_factor() {
    let root = tempfile::tempdir().unwrap();
    let run = run_of_factors(root.path(), 2);
    let x = Some("f0".to_owned());
    let filters = [("phase", "compete")];
    let request = Request { x, ..of_metric("jain_fairness_of_mean", Kind::Lines, &filters) };
    let figures = figure::draw(&run, &request).unwrap();
    let [one] = figures.as_slice() else { panic!("{} figures", figures.len()) };
    assert_eq!(one.stem, "lines-phase=compete-x=f0-metric=jain_fairness_of_mean");
    // Two lines over two sorted levels; the other factor is in the legend.
    assert_eq!(cells(one, &[], "f0"), ["5ms", "20ms", "5ms", "20ms"]);
    assert_eq!(cells(one, &[], "f1"), ["5ms", "5ms", "20ms", "20ms"]);
    for text in ["f0", "f1:", "5ms", "20ms"] {
        assert!(one.svg.contains(&format!(">{text}<")), "{text}: {}", one.svg);
    }
    let title = "index of all flows, phase “compete”<";
    assert!(one.svg.contains(title) && !one.svg.contains("NaN"), "{}", one.svg);
    // Rates of 20, 10 and 60 Mbit/s.
    for mean in cells(one, &[("subject", "all")], "mean") {
        assert!((mean.parse::<f64>().unwrap() - 8100.0 / 12_300.0).abs() < 0.02, "{mean}");
    }
    assert_eq!(cells(one, &[("trials", "2")], "ci95_low").len(), 4);
}

#[test]
fn heatmaps_and_lines_have_a_figure_for_each_metric() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let names = ["throughput_sum", "srtt"];
    for kind in [Kind::Heatmap, Kind::Lines] {
        let metrics = names.map(str::to_owned).to_vec();
        let request = Request { metrics, ..request(kind, &[("phase", "compete")]) };
        let figures = figure::draw(&run, &request).unwrap();
        let [one, other] = figures.as_slice() else { panic!("{} figures", figures.len()) };
        for (figure, name) in [(one, names[0]), (other, names[1])] {
            assert_eq!(cells(figure, &[("point_id", "0")], "metric"), [name]);
            let stem = format!("{}-phase=compete-metric={name}", kind.name());
            assert_eq!(figure.stem, stem);
        }
        let file = root.path().join("one.svg");
        let error = figure::write(&figures, &file, &[]).unwrap_err().to_string();
        assert!(error.contains("2 figures") && error.contains("--metric"), "{error}");
    }
}

#[test]
fn lines_need_a_factor_for_the_lines() {
    let root = tempfile::tempdir().unwrap();
    let run = run_of_factors(root.path(), 3);
    let draw = |by: Option<&str>, filters: &[(&str, &str)]| {
        let by = by.map(str::to_owned);
        figure::draw(&run, &Request { by, ..request(Kind::Lines, filters) })
    };
    let error = draw(None, &[]).unwrap_err();
    assert!(error.class() == ErrorClass::Usage && error.to_string().ends_with("f0, f1"), "{error}");
    let figures = draw(Some("f1"), &[]).unwrap();
    let stems: Vec<&str> = figures.iter().map(|figure| figure.stem.as_str()).collect();
    assert_eq!(stems, ["lines-by=f1-f0=5ms", "lines-by=f1-f0=20ms"]);
    assert!(figures[0].svg.contains(">f0 = 5ms<"), "{}", figures[0].svg);
    assert_eq!(draw(None, &[("f0", "5ms")]).unwrap().len(), 1);
    let other = Request { by: Some("f0".to_owned()), ..request(Kind::Heatmap, &[]) };
    let error = figure::draw(&run, &other).unwrap_err().to_string();
    assert!(error.starts_with("--by is for lines;"), "{error}");
}

#[test]
fn fairness_without_a_group_is_that_of_all_flows() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let jain = |kind, group: Option<&str>| {
        let mut filters = vec![("phase", "compete")];
        filters.extend(group.map(|group| ("group", group)));
        // Bars need no factor that varies.
        filters.extend((kind == Kind::Phases).then_some(("scheme", "cubic")));
        let request = of_metric("jain_fairness_of_mean", kind, &filters);
        let figure = figure::draw(&run, &request).unwrap().remove(0);
        let mean: f64 = cells(&figure, &[("point_id", "0")], "mean")[0].parse().unwrap();
        (figure.svg, mean)
    };
    for kind in [Kind::Heatmap, Kind::Phases, Kind::Lines] {
        for group in [None, Some("all")] {
            let (svg, mean) = jain(kind, group);
            // Rates of 20, 10 and 60 Mbit/s; those of the group are 20 and 10.
            assert!((mean - 8100.0 / 12_300.0).abs() < 0.02, "{}: {mean}", kind.name());
            assert!(svg.contains("index of all flows"), "{}: {svg}", kind.name());
        }
        let (svg, mean) = jain(kind, Some("under_test"));
        assert!((mean - 0.9).abs() < 0.02, "{}: {mean}", kind.name());
        assert!(!svg.contains("all flows"), "{}: {svg}", kind.name());
    }
    // The default of a heatmap is the throughput of a group.
    let heatmap = |request: &Request| figure::draw(&run, request).unwrap().remove(0);
    let default = heatmap(&request(Kind::Heatmap, &[("phase", "compete")]));
    assert_ne!(cells(&default, &[("point_id", "0")], "subject"), ["all"]);
    let sum = heatmap(&of_metric("throughput_sum", Kind::Heatmap, &[("phase", "compete")]));
    assert_eq!(cells(&sum, &[("point_id", "0")], "subject"), ["all"]);
}

#[test]
fn all_flows_together_can_be_selected() {
    let all = [("phase", "compete"), ("group", "all")];
    let phases = draw(Kind::Phases, &[&all[..], &[("scheme", "cubic")]].concat()).remove(0);
    assert_eq!(cells(&phases, &[], "metric"), ["Throughput (Mbit/s)"]);
    assert!((number(&phases, &[("group", "all")], "mean") - 90.0).abs() < 1.0);
    let heatmap = draw(Kind::Heatmap, &all).remove(0);
    assert_eq!(cells(&heatmap, &[("point_id", "0")], "subject"), ["all"]);
    let error = draw_error(Kind::Strips, &all);
    assert!(error.ends_with("there are: cross, under_test"), "{error}");
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let error = figure::draw(&run, &of_metric("srtt", Kind::Phases, &all)).unwrap_err();
    assert!(error.to_string().ends_with("no value for all flows together"), "{error}");
}

#[test]
fn intervals_are_drawn_within_the_range_of_the_metric() {
    let root = tempfile::tempdir().unwrap();
    let ok = || verdict(Status::Ok, &[]);
    // Jain's indices are 0.9 and 0.98.
    let run = made_of(
        root.path(),
        [(0, 1, 0.0, ok()), (0, 2, -20e6, ok()), (1, 1, 0.0, ok()), (1, 2, -20e6, ok())],
    );
    let (phase, scheme) = (("phase", "alone"), ("scheme", "cubic"));
    for (kind, filters) in [(Kind::Phases, vec![phase, scheme]), (Kind::Lines, vec![phase])] {
        let request = of_metric("jain_fairness_of_mean", kind, &filters);
        let figure = figure::draw(&run, &request).unwrap().remove(0);
        let high = number(&figure, &[("point_id", "0")], "ci95_high");
        assert!(high > 1.4, "the data has the computed interval: {high}");
        let svg = &figure.svg;
        assert!(svg.contains(">1</text>") && !svg.contains(">1.5</text>"), "{svg}");
    }
}

#[test]
fn series_mark_changes_of_links() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let svg = |changes: &str, filters: &[(&str, &str)]| {
        put_plan(&run, &format!("{TWO_PATHS}{changes}"));
        figure::draw(&run, &request(Kind::Series, filters)).unwrap().remove(0).svg
    };
    let lines = |svg: &str| svg.matches("stroke-dasharray=\"4 1.5 1 1.5\"").count();
    let change = "[[changes]]\nat = \"7s\"\nset = { \"links.bottleneck.rate\" = \"500mbit\" }\n";
    assert_eq!(lines(&svg("", &[])), 0);
    let changed = svg(change, &[]);
    // One in the legend, and one in each diagram.
    assert!(lines(&changed) > 2 && changed.contains(">change of a link<"), "{changed}");
    assert_eq!(lines(&svg(change, &[("phase", "alone")])), 0, "it is in the other phase");
}
