//! Compares ccbench's queues with the kernel's in each engine, and the engines with each other: the same plans with five seeds each.
//! `elements.rs` compares elements of links in one engine, with more seeds.

use std::collections::BTreeMap;

use ccbench_tests::{Bench, csv, source_root, text};

/// What is compared: scope, subject, metric, statistic, and the allowed difference of the means over the seeds, both relative to the
/// kernel's mean and in the metric's own unit (the larger applies). Both are about twice the spread of five seeds.
pub type Measure = (&'static str, &'static str, &'static str, &'static str, f64, f64);

pub const SUM: Measure = ("net", "all", "throughput_sum", "mean", 0.02, 0.0);
pub const SRTT_ONE: Measure = ("group", "one", "srtt", "mean", 0.06, 300.0);
pub const SRTT_TWO: Measure = ("group", "two", "srtt", "mean", 0.06, 300.0);
pub const LOST_ONE: Measure = ("group", "one", "retransmission_share", "mean", 0.25, 0.001);
pub const LOST_TWO: Measure = ("group", "two", "retransmission_share", "mean", 0.25, 0.001);

/// A full packet on the line of 10 Mbit/s. The kernel's shapers release a packet when its transmission time begins; ccbench's line, like a
/// real one, when it ends. Every round trip in userspace is longer by this.
pub const PACKET_US: f64 = 1514.0 * 8.0 / 10.0;

/// An engine with the options that select it.
type Engine = (&'static str, &'static [&'static str]);

const QEMU: Engine = ("qemu", &["--engine", "qemu", "--dilation", "2"]);
pub const UML: Engine = ("uml", &["--engine", "uml"]);
const BACKENDS: [&str; 2] = ["kernel", "userspace"];

/// What is run: the plan, its factor, the number of seeds, and how much longer round trips in userspace are by design.
pub struct Comparison<'a> {
    pub plan: &'a str,
    pub factor: &'a str,
    pub seeds: usize,
    pub line_us: f64,
    /// Where few packets are lost, their number varies more from seed to seed than the tolerance. Two means of retransmission shares then
    /// differ only if they are this many standard errors apart: the quantile 0.9995 of Student's t with `2 * seeds - 2` degrees of freedom.
    pub standard_errors: f64,
}

/// A number measured in two ways.
pub struct Pair {
    level: String,
    measure: Measure,
    /// Engine and backend of each way.
    names: [String; 2],
    values: [Vec<f64>; 2],
    /// A difference of so many standard errors is chance.
    standard_errors: f64,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the standard deviation over the seeds.
fn spread(values: &[f64]) -> f64 {
    let m = mean(values);
    (values.iter().map(|v| (v - m).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

impl Pair {
    /// Whether the difference of the means is at most the tolerance, or chance.
    fn agrees(&self) -> bool {
        let (_, _, _, _, share, own) = self.measure;
        let [one, other] = self.values.each_ref().map(|values| mean(values));
        let variances = self.values.each_ref().map(|v| spread(v).powi(2) / v.len() as f64);
        let error = variances.iter().sum::<f64>().sqrt();
        (one - other).abs() <= (share * one.abs()).max(own).max(self.standard_errors * error)
    }

    fn line(&self) -> String {
        let (_, subject, metric, _, _, _) = self.measure;
        let digits = if mean(&self.values[0]) > 10.0 { 0 } else { 5 };
        let shown =
            |values: &Vec<f64>| format!("{:.digits$} ± {:.digits$}", mean(values), spread(values));
        let [one, other] = self.values.each_ref().map(shown);
        let [of_one, of_other] = &self.names;
        let verdict = if self.agrees() { "" } else { "   <- apart" };
        format!(
            "{:17} {subject:6} {metric:20} {of_one:>15} {one:>22}  {of_other:>15} {other:>22}{verdict}",
            self.level,
        )
    }
}

/// Results of one engine for some levels of a factor of a plan.
struct Cells<'a> {
    engine: &'static str,
    of: &'a Comparison<'a>,
    points: BTreeMap<String, BTreeMap<String, String>>,
    rows: Vec<BTreeMap<String, String>>,
}

impl<'a> Cells<'a> {
    fn run((engine, options): Engine, of: &'a Comparison<'a>, levels: &[&str]) -> Self {
        let bench = Bench::new();
        let plan = source_root().join("plans/lab").join(of.plan);
        let chosen: Vec<String> = levels.iter().map(|level| format!("\"{level}\"")).collect();
        let set = format!("matrix.{}=[{}]", of.factor, chosen.join(", "));
        let repeat = format!("repeat={}", of.seeds);
        let words = ["run", &plan.to_string_lossy(), "--lab", "--set", &set, "--set", &repeat];
        let done = bench.run(&[&words, options].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        let points = csv(&bench.results().join("points.csv"));
        let points = points.into_iter().map(|row| (row["point_id"].clone(), row)).collect();
        Self { engine, of, points, rows: csv(&bench.results().join("summary_phase.csv")) }
    }

    /// Returns the values by seed.
    fn values(
        &self,
        level: &str,
        backend: &str,
        (scope, subject, metric, stat, _, _): Measure,
    ) -> Vec<f64> {
        let fits = |row: &&BTreeMap<String, String>| {
            // A factor with a single level is not a factor any more.
            let point = &self.points[&row["point_id"]];
            let wanted = [
                ("phase", "steady"),
                ("scope", scope),
                ("subject", subject),
                ("metric", metric),
                ("stat", stat),
            ];
            point.get(self.of.factor).is_none_or(|l| l == level)
                && point["backend"] == backend
                && wanted.iter().all(|(column, value)| row[*column] == *value)
        };
        let found: Vec<f64> =
            self.rows.iter().filter(fits).map(|row| row["value"].parse().unwrap()).collect();
        assert_eq!(found.len(), self.of.seeds, "{level} {backend} {subject} {metric}: all seeds");
        let on_line =
            if metric == "srtt" && backend == "userspace" { self.of.line_us } else { 0.0 };
        found.into_iter().map(|value| value - on_line).collect()
    }
}

/// Runs these levels of a factor of a plan in these engines. Pairs the results of both backends in each engine, and the results of two
/// engines for each backend.
pub fn compare(
    of: &Comparison<'_>,
    engines: &[Engine],
    levels: &[&str],
    measures: &[Measure],
) -> Vec<Pair> {
    let cells: Vec<Cells<'_>> =
        engines.iter().map(|engine| Cells::run(*engine, of, levels)).collect();
    let mut ways: Vec<[(&Cells<'_>, &str); 2]> =
        cells.iter().map(|of| BACKENDS.map(|backend| (of, backend))).collect();
    if let [one, other] = &cells[..] {
        ways.extend(BACKENDS.map(|backend| [(one, backend), (other, backend)]));
    }
    let pair = |level: &str, measure: Measure, way: &[(&Cells<'_>, &str); 2]| Pair {
        level: level.to_owned(),
        measure,
        names: way.map(|(of, backend)| format!("{} {backend}", of.engine)),
        values: way.map(|(of, backend)| of.values(level, backend, measure)),
        standard_errors: if measure.2 == LOST_ONE.2 { of.standard_errors } else { 0.0 },
    };
    let mut pairs = Vec::new();
    for level in levels {
        for measure in measures {
            pairs.extend(ways.iter().map(|way| pair(level, *measure, way)));
        }
    }
    pairs
}

pub fn assert_all(pairs: &[Pair]) {
    let table: Vec<String> = pairs.iter().map(Pair::line).collect();
    eprintln!("{}", table.join("\n"));
    assert!(pairs.iter().all(Pair::agrees), "\n{}", table.join("\n"));
}

pub const ALL: [Measure; 5] = [SUM, SRTT_ONE, SRTT_TWO, LOST_ONE, LOST_TWO];

fn assert_alike(levels: &[&str], measures: &[Measure]) {
    let queues = Comparison {
        plan: "judge.toml",
        factor: "discipline",
        seeds: 5,
        line_us: PACKET_US,
        standard_errors: 5.04,
    };
    assert_all(&compare(&queues, &[QEMU, UML], levels, measures));
}

#[test]
fn fifos_and_codels_are_the_kernels() {
    assert_alike(&["bfifo", "codel", "fq_codel"], &ALL);
}

/// The position of random losses within eight seconds decides how long the queue gets: the round trips of one kernel vary by 3 ms.
#[test]
fn jitter_and_losses_are_the_kernels() {
    let scattered =
        |(scope, subject, metric, stat, _, own): Measure| (scope, subject, metric, stat, 0.12, own);
    let measures = [SUM, scattered(SRTT_ONE), scattered(SRTT_TWO), LOST_ONE, LOST_TWO];
    assert_alike(&["netem"], &measures);
}

#[test]
fn early_droppers_and_markers_are_the_kernels() {
    assert_alike(&["pie", "red", "dualpi2"], &ALL);
}

/// The threshold is so low that the queue runs empty. HTB saves tokens for a packet or two meanwhile, a line does not: less gets through,
/// and the queue is shorter.
#[test]
fn a_marking_threshold_is_the_kernels_but_for_its_bucket() {
    let measures = [
        ("net", "all", "throughput_sum", "mean", 0.08, 0.0),
        ("group", "one", "srtt", "mean", 0.1, 0.0),
        ("group", "two", "srtt", "mean", 0.1, 0.0),
        LOST_ONE,
        LOST_TWO,
    ];
    assert_alike(&["fq"], &measures);
}
