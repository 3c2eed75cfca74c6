//! Tests figures, comparisons and exports of the made-up run.

use ccbench_results::compare::{Comparison, compare};
use ccbench_results::export;
use ccbench_results::figure::{self, Figure, Format, Kind, Request};
use ccbench_results::observer::Observer;
use ccbench_tests::run_files::rename_factor;

use super::*;

mod flent;
mod groups;
mod heatmaps;
mod lines;
mod openmetrics;
mod operating;
mod request;
mod sequence;

pub fn request(kind: Kind, filters: &[(&str, &str)]) -> Request {
    Request {
        kind,
        filters: filters.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
        metrics: vec![],
        x: None,
        y: None,
        by: None,
        width_mm: None,
        height_mm: None,
        trial_filter: TrialFilter::default(),
    }
}

fn draw(kind: Kind, filters: &[(&str, &str)]) -> Vec<Figure> {
    let root = tempfile::tempdir().unwrap();
    figure::draw(&made_up(root.path()), &request(kind, filters)).unwrap()
}

fn draw_error(kind: Kind, filters: &[(&str, &str)]) -> String {
    let root = tempfile::tempdir().unwrap();
    let error = figure::draw(&made_up(root.path()), &request(kind, filters)).unwrap_err();
    assert!(error.class() == ErrorClass::Usage, "{error}");
    error.to_string()
}

/// Returns the values of a CSV column in the rows that match `wanted`.
pub fn cells(figure: &Figure, wanted: &[(&str, &str)], column: &str) -> Vec<String> {
    let mut lines = figure.csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    let at = |name: &str| header.iter().position(|column| *column == name).unwrap();
    lines
        .filter(|line| wanted.iter().all(|(name, cell)| line[at(name)] == *cell))
        .map(|line| line[at(column)].to_owned())
        .collect()
}

fn number(figure: &Figure, wanted: &[(&str, &str)], column: &str) -> f64 {
    let found = cells(figure, wanted, column);
    assert_eq!(found.len(), 1, "{wanted:?}: {found:?} in\n{}", figure.csv);
    found[0].parse().unwrap_or_else(|_| panic!("{} in\n{}", found[0], figure.csv))
}

#[test]
fn phases_bars_equal_summary_means() {
    let figures = draw(Kind::Phases, &[("scheme", "cubic")]);
    let [one] = figures.as_slice() else { panic!("{}", figures.len()) };
    let bar = [("metric", "Throughput (Mbit/s)"), ("group", "under_test"), ("phase", "alone")];
    assert!((number(one, &bar, "mean") - 91.0).abs() < 1e-6);
    let half = 12.706_204_736;
    assert!((number(one, &bar, "ci95_low") - (91.0 - half)).abs() < 1e-4);
    assert_eq!(number(one, &bar, "trials"), 2.0);
    let rtt = [("metric", "Mean sRTT (ms)"), ("group", "under_test"), ("phase", "compete")];
    assert!((number(one, &rtt, "mean") - 25.0).abs() < 1e-6);
    // Groups have no bar in phases in which they do not run.
    assert!(cells(one, &[("group", "cross"), ("phase", "alone")], "mean").is_empty());
    assert!(one.svg.contains(">Throughput (Mbit/s)<") && !one.svg.contains("NaN"), "{}", one.svg);
}

#[test]
fn series_shows_first_counted_trial_per_point() {
    let figures = draw(Kind::Series, &[]);
    let stems: Vec<&str> = figures.iter().map(|figure| figure.stem.as_str()).collect();
    assert_eq!(stems, ["series-cubic-20", "series-reno-_classic_-40"]);
    let shown =
        cells(&figures[0], &[("panel", "Smoothed RTT"), ("subject", "under_test/0")], "value");
    assert!(shown.iter().any(|v| v == "11") && shown.iter().any(|v| v == "24"), "{shown:?}");
    let panels = |figure: &Figure| {
        let mut all = cells(figure, &[], "panel");
        all.dedup();
        all
    };
    let wanted = ["Throughput", "Smoothed RTT", "Congestion window", "In flight", "Queue"];
    // The made-up samples have no packets in flight.
    let there: Vec<&str> = wanted.into_iter().filter(|name| *name != "In flight").collect();
    assert_eq!(panels(&figures[0]), there);
    let second = draw(Kind::Series, &[("scheme", "cubic"), ("trial", "2"), ("flow_id", "cross/0")]);
    assert_eq!(
        cells(&second[0], &[("panel", "Throughput")], "subject")
            .iter()
            .filter(|s| *s != "cross/0")
            .count(),
        0
    );
    assert!(cells(&second[0], &[], "trial").iter().all(|trial| trial == "2"));
}

#[test]
fn strips_and_ecdf_use_receiver_goodput() {
    let figures = draw(Kind::Strips, &[("scheme", "cubic"), ("phase", "compete")]);
    let got = cells(&figures[0], &[("flow_id", "cross/0")], "throughput_mbit_s");
    let got: Vec<f64> = got.iter().map(|cell| cell.parse().unwrap()).collect();
    assert!(got.len() == 2 && got.iter().all(|mbit| (mbit - 60.0).abs() < 1.0), "{got:?}");
    let figures = draw(Kind::Ecdf, &[("scheme", "cubic"), ("phase", "compete")]);
    let of = [("metric", "srtt_ms"), ("flow_id", "under_test/1")];
    let shares = cells(&figures[0], &of, "share_at_most");
    assert_eq!(shares.last().map(String::as_str), Some("1"));
    assert!(cells(&figures[0], &of, "value").iter().all(|ms| ms == "26"));
}

/// Returns a sample of a group's first flow, whose unacknowledged packets are all in flight.
fn sender_sample(group: &str, at_ns: u64, rtt_us: u32, unacked_pkts: u32) -> wire::FlowSample {
    wire::FlowSample {
        at_ns,
        flow_id: format!("{group}/0"),
        group: group.to_owned(),
        side: Side::Sender.into(),
        role: Role::Data.into(),
        rtt_us: Some(rtt_us),
        unacked_pkts: Some(unacked_pkts),
        sacked_pkts: Some(0),
        lost_pkts: Some(0),
        retrans_pkts: Some(0),
        ..Default::default()
    }
}

/// Creates a run with long intervals at 40 Mbit/s and very short ones at 400, and with most samples while the queue is short.
fn run_with_unequal_intervals(root: &Path) -> PathBuf {
    run_with_unequal_intervals_of(root, &["under_test"])
}

/// As [`run_with_unequal_intervals`], with one flow in each of these groups.
fn run_with_unequal_intervals_of(root: &Path, groups: &[&str]) -> PathBuf {
    let run = RunDir::create(root, &info()).unwrap();
    let mut writer = begin(&run, 0, 1);
    let after = |node: usize, s: f64| T0_NS[node].1 + (s * 1e9).round() as u64;
    for group in groups {
        let mut end_s = 1.0;
        for nth in 0..30 {
            let (seconds, rate_bps) = if nth % 2 == 0 { (0.255, 40e6) } else { (0.009, 400e6) };
            end_s += seconds;
            let interval = wire::Interval {
                at_ns: after(1, end_s),
                flow_id: format!("{group}/0"),
                group: (*group).into(),
                side: Side::Receiver.into(),
                seconds,
                bytes: (rate_bps * seconds / 8.0).round() as u64,
                ..Default::default()
            };
            push(&mut writer, "dst", Payload::Interval(interval));
        }
        for nth in 0..200u32 {
            let (at_s, rtt_us) = match nth {
                0..180 => (1.0 + f64::from(nth) * 0.01, 10_000),
                _ => (2.8 + f64::from(nth - 180) * 0.1, 30_000),
            };
            let sample = sender_sample(group, after(0, at_s), rtt_us, rtt_us / 100);
            push(&mut writer, "src", Payload::FlowSample(sample));
        }
    }
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    run.path().to_path_buf()
}

#[test]
fn figure_means_equal_summary_means_with_unequal_intervals() {
    let root = tempfile::tempdir().unwrap();
    let run = run_with_unequal_intervals(root.path());
    let draw = |kind| figure::draw(&run, &request(kind, &[("phase", "alone")])).unwrap().remove(0);
    let near = |found: f64, wanted: f64| {
        assert!((found - wanted).abs() < 1e-4 * wanted, "{found} is not {wanted}");
    };
    // Bytes over seconds, and the mean of all samples.
    let (mbit, srtt_ms) =
        ((0.255 * 40.0 + 0.009 * 400.0) / 0.264, (180.0 * 10.0 + 20.0 * 30.0) / 200.0);
    let of = [("flow_id", "under_test/0")];
    near(number(&draw(Kind::Strips), &of, "throughput_mbit_s"), mbit);
    let plane = draw(Kind::Plane);
    near(number(&plane, &of, "throughput_mbit_s"), mbit);
    near(number(&plane, &of, "srtt_ms"), srtt_ms);
    let point = draw(Kind::OperatingPoint);
    // The joint point is the summary's net: it covers the phase of 4 s, while the flow has data for 3.96 s.
    for (subject, share) in [("under_test/0", 1.0), ("joint", 3.96 / 4.0)] {
        near(number(&point, &[("subject", subject)], "throughput_mbit_s"), mbit * share);
        near(number(&point, &[("subject", subject)], "srtt_ms"), srtt_ms);
        near(number(&point, &[("subject", subject)], "in_flight_pkts"), srtt_ms * 10.0 * share);
    }
    let bars = draw(Kind::Phases);
    near(number(&bars, &[("metric", "Throughput (Mbit/s)")], "mean"), mbit);
    near(number(&bars, &[("metric", "Mean sRTT (ms)")], "mean"), srtt_ms);
    // An instant covers several intervals, so intervals of 9 ms cannot make instants of 400 Mbit/s.
    let rates = cells(&draw(Kind::Ecdf), &[("metric", "throughput_mbit_s")], "value");
    let most = rates.iter().map(|cell| cell.parse().unwrap()).fold(0.0, f64::max);
    near(most, 94.0);
}

/// Two points with delays of 1 and 10 ms.
const TWO_PATHS: &str = two_nodes!(
    r#"
[links.bottleneck]
node = "src"
toward = "dst"
rate = "1gbit"
queue = { kind = "bfifo", limit = "100kB" }
[flows.under_test]
from = "src"
to = "dst"
count = 2
[flows.cross]
from = "src"
to = "dst"
[[phases]]
name = "warm-up"
length = "1s"
measure = false
flows = ["under_test"]
[[phases]]
name = "alone"
length = "4s"
flows = ["under_test"]
[[phases]]
name = "compete"
length = "4s"
flows = ["under_test", "cross"]
[matrix.scheme]
cubic = { "links.bottleneck.delay" = "1ms" }
reno = { "links.bottleneck.delay" = "10ms" }
"#
);

#[test]
fn plane_has_one_optimum_per_path_and_axis_covers_fair_share() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let draw = |kind, plan: &str| {
        put_plan(&run, plan);
        figure::draw(&run, &request(kind, &[("phase", "alone")])).unwrap().remove(0).svg
    };
    let optima = |svg: &str| {
        let labels: Vec<String> = svg
            .split("fill=\"#c2185b\">")
            .skip(1)
            .map(|text| text.split("</text>").next().unwrap().to_owned())
            .collect();
        (svg.matches("fill=\"#c2185b\" stroke").count(), labels)
    };
    // The legend has one star.
    let svg = draw(Kind::Plane, TWO_PATHS);
    let two = ["cubic, 20", "reno, &quot;classic&quot;, 40"].map(str::to_owned).to_vec();
    assert_eq!(optima(&svg), (3, two));
    assert!(svg.contains(">scheme, buffer:</text>"), "{svg}");
    assert_eq!(optima(&draw(Kind::Plane, &TWO_PATHS.replace("10ms", "1ms"))), (2, vec![]));
    // Each has 478 Mbit/s of payload, and uses a tenth of it.
    let svg = draw(Kind::Strips, TWO_PATHS);
    assert!(svg.contains(">500</text>") && svg.contains(">scheme, buffer</text>"), "{svg}");
    let svg = draw(Kind::Phases, TWO_PATHS);
    assert!(svg.contains(">Throughput of under_test") && svg.contains(">scheme, buffer</text>"));
}

/// Payload per byte of frames with 1500 bytes and an Ethernet header.
const PAYLOAD: f64 = 1448.0 / 1514.0;

#[test]
fn operating_point_has_one_optimum_per_path() {
    let root = tempfile::tempdir().unwrap();
    let run = run_with_unequal_intervals_of(root.path(), &["under_test", "cross"]);
    put_plan(&run, &plan_with_reverse_cross_traffic());
    let request_all = request(Kind::OperatingPoint, &[("phase", "alone")]);
    let figure = figure::draw(&run, &request_all).unwrap().remove(0);
    let best = |whose| number(&figure, &[("subject", whose)], "throughput_mbit_s");
    let of = ["optimum of under_test", "optimum of cross"].map(best);
    for (found, rate) in of.into_iter().zip([1000.0, 200.0]) {
        assert!((found - rate * PAYLOAD).abs() < 1e-6, "{of:?}");
    }
    assert!(figure.svg.contains("fill=\"#c2185b\">cross</text>"), "{}", figure.svg);
}

/// Returns a plan with two flows in one direction and one in the other, on a different path.
fn plan_with_reverse_cross_traffic() -> String {
    TWO_PATHS.replace("flows = [\"under_test\"]", "flows = [\"under_test\", \"cross\"]").replace(
        "[flows.cross]\nfrom = \"src\"\nto = \"dst\"",
        "[links.back]\nnode = \"dst\"\ntoward = \"src\"\nrate = \"200mbit\"\n\
             [flows.cross]\nfrom = \"dst\"\nto = \"src\"",
    )
}

/// Returns a plan in which one flow reaches the shared bottleneck through its own slow link.
fn plan_with_slow_access_link() -> String {
    TWO_PATHS
        .replace("src = {}\n", "src = {}\nfar = {}\n")
        .replace("[\"src\", \"dst\"]", "[\"far\", \"src\", \"dst\"]")
        .replace("flows = [\"under_test\"]", "flows = [\"under_test\", \"cross\"]")
        .replace(
            "[flows.cross]\nfrom = \"src\"",
            "[links.access]\nnode = \"far\"\ntoward = \"src\"\nrate = \"10mbit\"\n\
             [flows.cross]\nfrom = \"far\"",
        )
}

#[test]
fn fair_share_counts_only_flows_through_bottleneck() {
    let root = tempfile::tempdir().unwrap();
    let run = run_with_unequal_intervals_of(root.path(), &["under_test", "cross"]);
    for (plan, of_each) in [
        (plan_with_reverse_cross_traffic(), [500.0, 200.0]),
        (plan_with_slow_access_link(), [1000.0 / 3.0, 10.0]),
    ] {
        put_plan(&run, &plan);
        let draw =
            |kind| figure::draw(&run, &request(kind, &[("phase", "alone")])).unwrap().remove(0);
        let (strips, bars) = (draw(Kind::Strips), draw(Kind::Phases));
        let fair = |flow| number(&strips, &[("flow_id", flow)], "fair_mbit_s");
        let ideal =
            |group| number(&bars, &[("metric", "Throughput (Mbit/s)"), ("group", group)], "ideal");
        let near =
            |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-3, "{found} {wanted}");
        let of_each = of_each.map(|mbit_per_s| mbit_per_s * PAYLOAD);
        near(fair("under_test/0"), of_each[0]);
        near(fair("cross/0"), of_each[1]);
        near(ideal("under_test"), 2.0 * of_each[0]);
        near(ideal("cross"), of_each[1]);
        let dashed = strips.svg.matches("stroke-dasharray=\"3 1.5\"").count();
        assert_eq!(dashed, 3, "the legend's and one for each: {}", strips.svg);
    }
}

#[test]
fn rejects_unsupported_filters_and_unknown_values() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let error = |kind, filters: &[(&str, &str)]| {
        let error = figure::draw(&run, &request(kind, filters)).unwrap_err();
        assert!(error.class() == ErrorClass::Usage, "{error}");
        error.to_string()
    };
    let all = "point_id, trial, phase, group";
    for (kind, column, known) in [
        (
            Kind::Phases,
            "flow_id",
            format!("a phases figure can be filtered only by scheme, buffer, {all}"),
        ),
        (Kind::Plane, "cc", format!("{all}, flow_id")),
        (Kind::Strips, "link", format!("{all}, flow_id")),
        (Kind::Series, "cc", format!("{all}, flow_id, link")),
        (Kind::CcState, "link", format!("{all}, flow_id, cc")),
    ] {
        let error = error(kind, &[(column, "x")]);
        assert!(error.ends_with(&known), "{column}: {error}");
    }
    for (kind, column, known) in [
        (Kind::Strips, "flow_id", "cross/0, under_test/0, under_test/1"),
        (Kind::Phases, "group", "all, cross, under_test"),
        (Kind::Series, "link", "bottleneck"),
        (Kind::Series, "phase", "alone, compete, warm-up"),
        (Kind::Ecdf, "phase", "alone, compete"),
        (Kind::CcState, "cc", "none"),
    ] {
        let error = error(kind, &[(column, "x")]);
        assert!(error.ends_with(&format!("there are: {known}")), "{column}: {error}");
    }
    let of_link = error(Kind::Heatmap, &[("link", "bottleneck")]);
    assert!(
        of_link.contains("has no value with this filter; it has values for all, under_test"),
        "{of_link}"
    );
    // The group of the selected flow is the group under test.
    let figures = figure::draw(&run, &request(Kind::Plane, &[("flow_id", "cross/0")])).unwrap();
    assert!(!figures[0].csv.contains("under_test") && figures[0].csv.contains("cross/0"));
}

#[test]
fn factor_named_like_a_column_filters_trials() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    rename_factor(&run, "scheme", "group");
    let filters = [("phase", "alone"), ("group", "cubic")];
    let strips = figure::draw(&run, &request(Kind::Strips, &filters)).unwrap();
    let points = cells(&strips[0], &[], "point_id");
    assert!(points.len() == 4 && points.iter().all(|id| id == "0"), "{}", strips[0].csv);
}

#[test]
fn heatmap_of_three_factors_has_panels() {
    let root = tempfile::tempdir().unwrap();
    let level = |nth: u32, factor: u32| {
        (format!("f{factor}"), ["low", "high"][(nth >> factor & 1) as usize].to_owned())
    };
    let points = (0..8).map(|nth| (nth, (0..3).map(|f| level(nth, f)).collect())).collect();
    let run = RunDir::create(root.path(), &RunInfo { points, ..info() }).unwrap();
    for point_id in 0..8 {
        let mut writer = begin(&run, point_id, 1);
        fill(&mut writer, 0.0);
        writer.commit(&verdict(Status::Ok, &[])).unwrap();
    }
    let draw = |kind, filters: &[(&str, &str)], metrics: &[&str]| {
        let metrics = metrics.iter().map(|name| (*name).to_owned()).collect();
        figure::draw(run.path(), &Request { metrics, ..request(kind, filters) })
    };
    let competing = [("phase", "compete"), ("group", "under_test")];
    let figures = draw(Kind::Heatmap, &competing, &[]).unwrap();
    let [one] = figures.as_slice() else { panic!("{} figures", figures.len()) };
    assert!(
        one.svg.contains(">panels: f0<") && one.svg.contains(" 8 points, one trial each."),
        "{}",
        one.svg
    );
    let title = "Share of under_test in the throughput, phase “compete” (%)";
    assert!(one.svg.contains(title), "{}", one.svg);
    let shares = cells(one, &[("f0", "low"), ("status", "ok")], "mean");
    let is_share = |share: &String| (0.0..1.0).contains(&share.parse::<f64>().unwrap());
    assert!(shares.len() == 4 && shares.iter().all(is_share), "{shares:?}");
    let axes = Request { x: Some("f0".to_owned()), ..request(Kind::Heatmap, &[]) };
    let figures = figure::draw(run.path(), &axes).unwrap();
    assert!(figures[0].svg.contains(">panels: f1<"), "{}", figures[0].svg);
    assert_eq!(figures[0].stem, "heatmap-x=f0");
    let axes = Request { x: Some("f9".to_owned()), ..request(Kind::Heatmap, &[]) };
    let error = figure::draw(run.path(), &axes).unwrap_err().to_string();
    assert!(error.starts_with("--x f9: ") && error.ends_with("f0, f1, f2"), "{error}");
    let error = draw(Kind::CcState, &[], &[]).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "has data for: phases, series, plane, ecdf, strips, heatmap, lines, time_sequence"
        ),
        "{error}"
    );
    let jain = draw(Kind::Heatmap, &[("f0", "low")], &["jain_fairness_of_mean"]).unwrap();
    assert!(jain[0].svg.contains("index of all flows, phase "), "{}", jain[0].svg);
}

#[test]
fn only_heatmaps_have_axes() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let y = Some("buffer".to_owned());
    let error = figure::draw(&run, &Request { y: y.clone(), ..request(Kind::Phases, &[]) });
    let error = error.unwrap_err();
    assert!(error.class() == ErrorClass::Usage, "{error}");
    assert!(error.to_string().starts_with("--y is for heatmaps"), "{error}");
    // These do not hide the kinds that the run has data for.
    let one_point = Request { y, ..request(Kind::Heatmap, &[("scheme", "cubic")]) };
    let error = figure::draw(&run, &one_point).unwrap_err().to_string();
    assert!(error.contains("this run has data for: phases"), "{error}");
}

/// Both groups start together; `cross` ends when `compete` starts.
#[test]
fn settling_time_heatmap_uses_phase_with_a_change() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    put_plan(&run, ENDS_EARLY);
    let of = |filters: &[(&str, &str)]| {
        let metrics = vec!["settling_time".to_owned()];
        figure::draw(&run, &Request { metrics, ..request(Kind::Heatmap, filters) })
    };
    let figures = of(&[]).unwrap();
    assert!(figures[0].svg.contains(", phase “compete” (ms)"), "{}", figures[0].svg);
    let why = of(&[("phase", "alone")]).unwrap_err().to_string();
    assert!(why.contains("it has values in compete"), "{why}");
}

#[test]
fn heatmap_has_one_cell_per_point() {
    let figures = draw(Kind::Heatmap, &[("phase", "alone")]);
    let mean = number(&figures[0], &[("point_id", "0")], "mean");
    assert!((mean - 91e6).abs() < 10.0, "{mean}");
    assert_eq!(cells(&figures[0], &[], "buffer"), ["20", "40"]);
    assert!(draw_error(Kind::Heatmap, &[("scheme", "cubic")]).contains("one point"));
}

#[test]
fn errors_list_available_kinds_and_values() {
    let error = draw_error(Kind::CcState, &[]);
    assert!(
        error.contains("this run has data for: phases, series,") && !error.contains("cc_state,"),
        "{error}"
    );
    let error = draw_error(Kind::Series, &[("scheme", "bbr")]);
    assert!(error.contains("there are: cubic, reno"), "{error}");
    let error = draw_error(Kind::Series, &[("colour", "red")]);
    assert!(error.contains("scheme, buffer, point_id, trial, phase"), "{error}");
    let root = tempfile::tempdir().unwrap();
    let mut request_all = request(Kind::Phases, &[]);
    request_all.metrics = vec!["speed".to_owned()];
    let error = figure::draw(&made_up(root.path()), &request_all).unwrap_err().to_string();
    assert!(error.contains("no metric `speed`") && error.contains("#summaries"), "{error}");
}

#[test]
fn writes_svg_png_and_csv_at_requested_size() {
    let root = tempfile::tempdir().unwrap();
    let figures = figure::draw(&made_up(root.path()), &request(Kind::Series, &[])).unwrap();
    let formats = [Format::Svg, Format::Png];
    let folder = root.path().join("figures");
    let written = figure::write(&figures, &folder, &formats).unwrap();
    assert_eq!(written.len(), 6, "{written:?}");
    let png = std::fs::read(folder.join("series-cubic-20.png")).unwrap();
    let width = u32::from_be_bytes(png[16..20].try_into().unwrap());
    assert_eq!((&png[1..4], width), (&b"PNG"[..], 2067), "175 mm at 300 pixels per inch");
    let many = figure::write(&figures, &root.path().join("one.svg"), &formats).unwrap_err();
    assert!(many.to_string().contains("2 figures (series-cubic-20, series-reno"), "{many}");
    let one = root.path().join("one.svg");
    let other = figure::write(&figures[..1], &one, &[Format::Png]).unwrap_err().to_string();
    assert!(other.contains("one.svg") && other.contains("`png`") && !one.exists(), "{other}");
    let one = figure::write(&figures[..1], &one, &[]).unwrap();
    let names: Vec<_> = one.iter().map(|path| path.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["one.svg", "one.csv"]);
}

#[test]
fn compares_two_points_and_a_run_with_itself() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let with = Comparison::Levels("buffer", "20", "40");
    let metrics = ["throughput_sum".to_owned()];
    let (filter, observer) = (TrialFilter::default(), Observer::default());
    let found = compare(&run, &with, &metrics, &[], filter, &observer).unwrap();
    assert_eq!(found.names, ("buffer=20".to_owned(), "buffer=40".to_owned()));
    let compared = found.rows;
    let alone = compared
        .iter()
        .find(|one| one.phase == "alone" && one.subject == "under_test" && one.stat == "mean");
    let numbers = &alone.unwrap().numbers;
    // Without a statistic, the mean is meant. Metrics of groups are not repeated for flows.
    assert!(compared.iter().all(|one| one.stat == "mean" && one.scope != Scope::Flow));
    // 90 and 92 Mbit/s against 90. The failed trial is excluded.
    assert_eq!((numbers.n, numbers.paired), ((2, 1), false));
    assert!((numbers.difference + 1e6).abs() < 10.0, "{numbers:?}");
    let same = compare(&run, &Comparison::Run(&run), &[], &[], filter, &observer).unwrap();
    assert!(same.unmatched.is_empty() && same.judged.len() == 2, "{same:?}");
    assert!(same.judged.iter().all(|one| one.exceeded.is_empty()), "{same:?}");
    assert!(same.rows.iter().any(|one| one.agrees == Some(true)));
    let same = same.rows;
    assert!(same.iter().all(|one| one.numbers.difference == 0.0), "{same:?}");
    assert!(same.iter().any(|one| one.numbers.paired));
    let error = compare(&run, &Comparison::Levels("aqm", "a", "b"), &[], &[], filter, &observer)
        .unwrap_err();
    assert!(error.to_string().contains("its factors: scheme, buffer"), "{error}");
}

#[test]
fn perfetto_export_has_traces_of_trials() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("perfetto");
    let written = export::perfetto(&made_up(root.path()), &folder).unwrap();
    assert!(written.contains(&folder.join("point-0-trial-01.perfetto-trace")), "{written:?}");
    for path in written {
        let bytes = std::fs::read(&path).unwrap();
        // The key of the first packet, and the name of the first track.
        assert!(bytes[0] == 0x0a && bytes.windows(6).any(|part| part == b"phases"), "{path:?}");
    }
}

#[test]
fn csv_export_contains_all_rows() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    summarize::summarize(&run, TrialFilter::default()).unwrap();
    let folder = root.path().join("csv");
    let written = export::csv(&run, &[], &folder).unwrap();
    assert!(written.iter().any(|path| path.ends_with("flow_samples.csv")), "{written:?}");
    let rows: u64 = RunDir::open(&run).unwrap().trials().iter().map(|end| end.rows["probes"]).sum();
    let text = std::fs::read_to_string(folder.join("probes.csv")).unwrap();
    assert_eq!(text.lines().count() as u64, rows + 1);
    assert_eq!(text.lines().filter(|line| line.starts_with("point_id,")).count(), 1);
    let samples = std::fs::read_to_string(folder.join("flow_samples.csv")).unwrap();
    assert!(samples.lines().next().unwrap().contains(",rtt_us,") && !samples.contains("cc_info"));
    // The export contains the failed trial's rows and says so; a summary excludes them.
    let error = export::failed_trials(&run, &["probes".to_owned()]).unwrap().unwrap();
    assert!(error.contains("(failed)") && error.matches("trial-").count() == 1, "{error}");
    assert_eq!(export::failed_trials(&run, &["summary_point".to_owned()]).unwrap(), None);
    let unknown = export::csv(&run, &["flow_sample".to_owned()], &folder).unwrap_err();
    assert!(unknown.to_string().ends_with("; did you mean `flow_samples`?"), "{unknown}");
}

#[test]
fn csv_export_into_the_run_keeps_its_files() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    summarize::summarize(&run, TrialFilter::default()).unwrap();
    let names = ["trials.csv", "summary_phase.csv", "summary_point.csv"];
    let read = || names.map(|name| std::fs::read_to_string(run.join(name)).unwrap());
    let before = read();
    let written = export::csv(&run, &[], &run).unwrap();
    assert!(names.iter().all(|name| written.contains(&run.join(name))), "{written:?}");
    assert_eq!(read(), before);
    assert!(before.iter().all(|text| text.lines().count() > 1), "{before:?}");
}
