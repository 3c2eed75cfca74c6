//! The lab as judge: ccbench's own queues against the kernel's, the same plans, five seeds each.

use std::collections::BTreeMap;

use ccbench_tests::{Bench, csv, source_root, text};

/// What is compared: scope, subject, metric, statistic, and how far the means over the seeds may be apart, of the
/// kernel's mean and in the metric's own unit (the larger counts). Both are about twice what five seeds scatter.
type Measure = (&'static str, &'static str, &'static str, &'static str, f64, f64);

const SUM: Measure = ("net", "all", "throughput_sum", "mean", 0.02, 0.0);
const SRTT_ONE: Measure = ("group", "one", "srtt", "mean", 0.06, 300.0);
const SRTT_TWO: Measure = ("group", "two", "srtt", "mean", 0.06, 300.0);
const LOST_ONE: Measure = ("group", "one", "retransmission_share", "mean", 0.25, 0.001);
const LOST_TWO: Measure = ("group", "two", "retransmission_share", "mean", 0.25, 0.001);

/// A full packet on the line: the kernel's shapers let a packet go when its time begins, ccbench's line when it ends, as a
/// real one does. So much longer is every round trip in userspace.
const PACKET_US: f64 = 1514.0 * 8.0 / 10.0;

/// One number by the kernel and by ccbench.
struct Pair {
    discipline: String,
    measure: Measure,
    kernel: Vec<f64>,
    userspace: Vec<f64>,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Standard deviation over the seeds.
fn spread(values: &[f64]) -> f64 {
    let m = mean(values);
    (values.iter().map(|v| (v - m).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

impl Pair {
    fn agrees(&self) -> bool {
        let (_, _, _, _, share, own) = self.measure;
        let kernel = mean(&self.kernel);
        (kernel - mean(&self.userspace)).abs() <= (share * kernel.abs()).max(own)
    }

    fn line(&self) -> String {
        let (_, subject, metric, _, _, _) = self.measure;
        let digits = if mean(&self.kernel) > 10.0 { 0 } else { 5 };
        let shown =
            |values: &[f64]| format!("{:.digits$} ± {:.digits$}", mean(values), spread(values));
        let verdict = if self.agrees() { "" } else { "   <- apart" };
        format!(
            "{:10} {subject:6} {metric:20} kernel {:>22}  userspace {:>22}{verdict}",
            self.discipline,
            shown(&self.kernel),
            shown(&self.userspace)
        )
    }
}

/// Runs these levels of a factor of a plan in the lab and pairs what both back ends gave.
fn compare(plan: &str, factor: &str, levels: &[&str], measures: &[Measure]) -> Vec<Pair> {
    let bench = Bench::new();
    let plan = source_root().join("plans/lab").join(plan);
    let chosen: Vec<String> = levels.iter().map(|level| format!("\"{level}\"")).collect();
    let set = format!("matrix.{factor}=[{}]", chosen.join(", "));
    let done =
        bench.run(&["run", &plan.to_string_lossy(), "--lab", "--dilation", "2", "--set", &set]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let points: BTreeMap<String, BTreeMap<String, String>> =
        csv(&bench.results().join("points.csv"))
            .into_iter()
            .map(|row| (row["point_id"].clone(), row))
            .collect();
    let rows = csv(&bench.results().join("summary_phase.csv"));
    let values = |level: &str, backend: &str, (scope, subject, metric, stat, _, _): Measure| {
        let fits = |row: &&BTreeMap<String, String>| {
            // One level alone is no factor any more.
            let point = &points[&row["point_id"]];
            point.get(factor).is_none_or(|l| l == level)
                && point["backend"] == backend
                && [
                    ("phase", "steady"),
                    ("scope", scope),
                    ("subject", subject),
                    ("metric", metric),
                    ("stat", stat),
                ]
                .iter()
                .all(|(column, value)| row[*column] == *value)
        };
        let found: Vec<f64> =
            rows.iter().filter(fits).map(|row| row["value"].parse().unwrap()).collect();
        assert_eq!(found.len(), 5, "{level} {backend} {subject} {metric}: five seeds");
        let on_line = if metric == "srtt" && backend == "userspace" { PACKET_US } else { 0.0 };
        found.into_iter().map(|value| value - on_line).collect()
    };
    let pair = |level: &&str, measure: &Measure| Pair {
        discipline: (*level).to_owned(),
        measure: *measure,
        kernel: values(level, "kernel", *measure),
        userspace: values(level, "userspace", *measure),
    };
    levels
        .iter()
        .flat_map(|level| measures.iter().map(move |measure| pair(level, measure)))
        .collect()
}

fn assert_alike(pairs: &[Pair]) {
    let table: Vec<String> = pairs.iter().map(Pair::line).collect();
    eprintln!("{}", table.join("\n"));
    assert!(pairs.iter().all(Pair::agrees), "\n{}", table.join("\n"));
}

const ALL: [Measure; 5] = [SUM, SRTT_ONE, SRTT_TWO, LOST_ONE, LOST_TWO];

#[test]
fn fifos_and_codels_are_the_kernels() {
    assert_alike(&compare("judge.toml", "discipline", &["bfifo", "codel", "fq_codel"], &ALL));
}

/// Where random losses fall in eight seconds decides how long the queue gets: the round trips of one kernel scatter by 3 ms.
#[test]
fn jitter_and_losses_are_the_kernels() {
    let scattered =
        |(scope, subject, metric, stat, _, own): Measure| (scope, subject, metric, stat, 0.12, own);
    let measures = [SUM, scattered(SRTT_ONE), scattered(SRTT_TWO), LOST_ONE, LOST_TWO];
    assert_alike(&compare("judge.toml", "discipline", &["netem"], &measures));
}

#[test]
fn early_droppers_and_markers_are_the_kernels() {
    assert_alike(&compare("judge.toml", "discipline", &["pie", "red", "dualpi2"], &ALL));
}

/// The threshold is so low that the queue runs empty. HTB saves up what a packet or two would have taken meanwhile, a
/// line does not: less gets through, and the queue is shorter.
#[test]
fn a_marking_threshold_is_the_kernels_but_for_its_bucket() {
    let measures = [
        ("net", "all", "throughput_sum", "mean", 0.08, 0.0),
        ("group", "one", "srtt", "mean", 0.1, 0.0),
        ("group", "two", "srtt", "mean", 0.1, 0.0),
        LOST_ONE,
        LOST_TWO,
    ];
    assert_alike(&compare("judge.toml", "discipline", &["fq"], &measures));
}
