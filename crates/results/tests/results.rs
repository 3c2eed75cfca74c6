//! Tests a made-up run with known answers, which passes through the same store, verdicts and summary as a real one. `UPDATE_GOLDEN=1`
//! rewrites the golden files.

#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ccbench_proto::sealed_line::{seal, unseal};
use ccbench_proto::wire::{
    self, Backend, BackendReason, Role, SampleSource, Side, run_event::Payload,
};
use ccbench_proto::{
    column_text::ColumnText as _, event::Kind, metric::Scope, schedule::PhaseSpan, units::Micros,
};
use ccbench_results::backend::RunBackend;
use ccbench_results::digest::FileDigest;
use ccbench_results::model::{
    NodeClock, Reason, RunInfo, RunStatus, Status, TrialFilter, TrialKey, Verdict,
};
use ccbench_results::store::RunDir;
use ccbench_results::summarize::{self, RunSummary};
use ccbench_results::trial::TrialWriter;
use ccbench_results::{ErrorClass, StoreError, SummaryError, six_columns, table};

/// Returns the plan of a made-up run: two nodes, and the given text.
macro_rules! two_nodes {
    ($rest:literal) => {
        concat!(
            "name = \"made-up\"\n[nodes]\nsrc = {}\ndst = {}\n[wires]\npath = [\"src\", \"dst\"]\n",
            $rest
        )
    };
}

mod browser;
mod ends;
mod figures;
mod golden;
mod index;
mod lost;
mod metrics;
mod order;
mod qlog;
mod reasons;

use golden::{golden, rounded};

/// CLOCK_MONOTONIC at the trial's beginning, which differs between nodes.
const T0_NS: [(&str, u64); 2] = [("src", 7_000_000_000), ("dst", 91_000_000_000)];
/// UTC at the trial's beginning.
const T0_UTC_NS: u64 = 1_700_000_000_000_000_000;
const STEP_NS: u64 = 100_000_000;

fn info() -> RunInfo {
    let level = |scheme: &str, buffer: &str| {
        vec![("scheme".into(), scheme.into()), ("buffer".into(), buffer.into())]
    };
    RunInfo {
        plan_name: "made-up".into(),
        plan_text: "name = \"made-up\"\n".into(),
        resolved_text: "# made-up: there is no plan\n".into(),
        plan_sha256: "5f3a".repeat(16),
        points: vec![(0, level("cubic", "20")), (1, level("reno, \"classic\"", "40"))],
        repeat: 2,
        seed: 1,
        command_line: vec!["ccbench".into(), "run".into(), "plan.toml".into()],
        ccbench_version: "0.1.0".into(),
        started_utc: jiff::Timestamp::from_second(1_700_000_000).unwrap(),
        nodes: BTreeMap::from([("src".into(), wire::NodeInfo::default())]),
        backend: RunBackend::Testbed,
        topology: serde_json::Value::Null,
        notes: vec![],
        sets: vec![],
        traces: BTreeMap::new(),
        ccs: BTreeMap::new(),
        imported: vec![],
    }
}

fn phase(name: &str, start_s: u64, end_s: u64, measure: bool) -> PhaseSpan {
    let span = PhaseSpan::new(name, Micros::from_secs(start_s), Micros::from_secs(end_s));
    PhaseSpan { measure, ..span }
}

/// Returns three phases: a second of warm-up, four seconds alone, four seconds together.
fn phases() -> Vec<PhaseSpan> {
    vec![phase("warm-up", 0, 1, false), phase("alone", 1, 5, true), phase("compete", 5, 9, true)]
}

fn clocks() -> BTreeMap<String, NodeClock> {
    let clock = |t0_ns: u64| NodeClock {
        error_bound_ns: 1_000,
        ..NodeClock::shared(t0_ns, (T0_UTC_NS - t0_ns).cast_signed())
    };
    T0_NS.into_iter().map(|(node, t0_ns)| (node.to_owned(), clock(t0_ns))).collect()
}

fn begin(run: &RunDir, point_id: u32, trial: u16) -> TrialWriter<'_> {
    let key = TrialKey { point_id, trial, seed: 3, epoch: run.next_epoch() };
    run.begin_trial(key, &phases(), clocks()).unwrap()
}

/// A made-up flow, with rates in bit/s and round trips in us.
struct Flow {
    group: &'static str,
    index: u32,
    start_s: f64,
    rate_bps: [f64; 2],
    rtt_us: [u32; 2],
    retrans_per_s: u32,
}

impl Flow {
    fn id(&self) -> String {
        format!("{}/{}", self.group, self.index)
    }

    /// Pushes the receiver's intervals, which are not aligned with the phases, and the sender's samples, until the end.
    fn push(&self, writer: &mut TrialWriter<'_>, intervals: bool) {
        let at = |node: &str, s: f64| {
            let t0 = T0_NS.iter().find(|(name, _)| *name == node).unwrap().1;
            t0 + (s * 1e9).round() as u64
        };
        let index = |s: f64| usize::from(s >= 5.0);
        let mut acked = 0.0;
        let steps = ((9.0 - self.start_s) * 10.0).round() as u64;
        for step in 0..steps {
            let begin_s = self.start_s + 0.03 + step as f64 * 0.1;
            let bytes = self.rate_bps[index(begin_s + 0.05)] * 0.1 / 8.0;
            let interval = wire::Interval {
                at_ns: at("dst", begin_s + 0.1),
                flow_id: self.id(),
                group: self.group.into(),
                side: Side::Receiver.into(),
                start_s: step as f64 * 0.1,
                end_s: (step + 1) as f64 * 0.1,
                seconds: 0.1,
                bytes: bytes.round() as u64,
                bits_per_second: bytes * 80.0,
                ..Default::default()
            };
            if intervals {
                push(writer, "dst", Payload::Interval(interval));
            }
            let sample_s = self.start_s + step as f64 * 0.1;
            acked += self.rate_bps[index(sample_s)] * 0.1 / 8.0;
            let sample = wire::FlowSample {
                at_ns: at("src", sample_s),
                flow_id: self.id(),
                group: self.group.into(),
                side: Side::Sender.into(),
                role: Role::Data.into(),
                sample_src: SampleSource::Diag.into(),
                gap_ns: STEP_NS,
                cc: "cubic".into(),
                sport: 10_000 + self.index,
                rtt_us: Some(self.rtt_us[index(sample_s)]),
                snd_cwnd_pkts: Some(10),
                total_retrans_pkts: Some(
                    (f64::from(self.retrans_per_s) * (sample_s + 1e-9)).floor() as u32,
                ),
                data_segs_out_pkts: Some((sample_s * 1000.0).round() as u32),
                bytes_acked: Some(acked.round() as u64),
                ..Default::default()
            };
            push(writer, "src", Payload::FlowSample(sample));
        }
        let flow = wire::Flow {
            flow_id: self.id(),
            group: self.group.into(),
            cc_actual: if self.group == "cross" { "cubic" } else { "bbr" }.into(),
            role: Role::Data.into(),
            side: Side::Sender.into(),
            ..Default::default()
        };
        push(writer, "src", Payload::Flow(flow));
        // iperf3's control connection must not count.
        let control = wire::FlowSample {
            at_ns: at("src", 2.0),
            flow_id: format!("{}/control", self.group),
            group: self.group.into(),
            side: Side::Sender.into(),
            role: Role::Control.into(),
            rtt_us: Some(9_999_999),
            ..Default::default()
        };
        push(writer, "src", Payload::FlowSample(control));
    }
}

fn push(writer: &mut TrialWriter<'_>, node: &str, payload: Payload) {
    writer.push(node, wire::RunEvent { payload: Some(payload) }).unwrap();
}

/// Returns two flows of `under_test` throughout, and one of `cross` in the last phase.
fn flows(shift: f64) -> [Flow; 3] {
    let flow = |group, index, start_s, rate_bps, rtt_us, retrans_per_s| Flow {
        group,
        index,
        start_s,
        rate_bps,
        rtt_us,
        retrans_per_s,
    };
    [
        flow("under_test", 0, 0.0, [60e6 + shift, 20e6], [11_000, 24_000], 2),
        flow("under_test", 1, 0.0, [30e6, 10e6], [13_000, 26_000], 0),
        flow("cross", 0, 5.0, [0.0, 60e6], [0, 25_000], 10),
    ]
}

fn fill(writer: &mut TrialWriter<'_>, shift: f64) {
    for flow in flows(shift) {
        flow.push(writer, true);
    }
    for seq in 0..90u32 {
        let probe = wire::Probe {
            at_ns: T0_NS[0].1 + u64::from(seq) * STEP_NS,
            probe_id: "rtt".into(),
            kind: wire::ProbeKind::Ping.into(),
            seq,
            rtt_us: (seq % 10 != 0).then(|| 10_000.0 + f64::from(seq % 10)),
            lost: seq % 10 == 0,
            tos: 0,
            ..Default::default()
        };
        push(writer, "src", Payload::Probe(probe));
        // As in the kernel: class and root have the same bytes, and the inner class counts no drops.
        for (kind, handle, parent, queued) in [
            ("htb", "1:", "root", 0),
            ("htb class", "1:1", "root", 0),
            ("htb class", "1:10", "1:1", 1),
            ("bfifo", "10:", "1:10", 1),
            ("bfifo", "11:", "1:11", 2),
        ] {
            let counters = wire::QdiscSample {
                at_ns: T0_NS[0].1 + u64::from(seq) * STEP_NS,
                link: "bottleneck".into(),
                iface: "to-dst".into(),
                handle: handle.into(),
                parent: parent.into(),
                kind: kind.into(),
                sent_bytes: u64::from(seq) * 1_125_000 / (1 + queued),
                drops_pkts: u64::from(seq / 10) * queued,
                backlog_bytes: 1000 * queued,
                rate_bps: (handle == "1:10").then_some(100_000_000),
                ..Default::default()
            };
            push(writer, "src", Payload::QdiscSample(counters));
        }
    }
}

fn verdict(status: Status, reasons: &[(&str, &str)]) -> Verdict {
    Verdict {
        status,
        reasons: reasons.iter().map(|(code, why)| Reason::new((*code).into(), *why)).collect(),
    }
}

const LONG_FACTOR: &str = "links.bottleneck.trace_of_the_day.file";

/// Gives a factor of the made-up run a long name.
fn with_long_factor(run: &Path) {
    ccbench_tests::run_files::rename_factor(run, "scheme", LONG_FACTOR);
}

/// Replaces the resolved plan of a run, and its digest in the journal.
fn put_plan(run: &Path, text: &str) {
    std::fs::write(run.join("plan.resolved.toml"), text).unwrap();
    let path = run.join("journal.ndjson");
    let journal = std::fs::read_to_string(&path).unwrap();
    let (first, rest) = journal.split_once('\n').unwrap();
    let object = unseal(first.as_bytes()).unwrap();
    let mut start: serde_json::Value = serde_json::from_slice(&object).unwrap();
    let digest = serde_json::to_value(FileDigest::of(text.as_bytes())).unwrap();
    start["files"]["plan.resolved.toml"] = digest;
    std::fs::write(&path, seal(&start.to_string()) + rest).unwrap();
}

/// Creates a run. Point 0 has an ok and a degraded trial, 2 Mbit/s apart; point 1 has an ok and a failed one.
fn made_up(root: &Path) -> PathBuf {
    let trials = [
        (0, 1, 0.0, verdict(Status::Ok, &[])),
        (
            0,
            2,
            2e6,
            verdict(Status::Degraded, &[("cpu_bound", "src: busy"), ("samples_late", "src: late")]),
        ),
        (1, 1, 0.0, verdict(Status::Ok, &[])),
        (
            1,
            2,
            30e6,
            verdict(Status::Failed, &[("flow_dead", "flows.cross: not one byte of data")]),
        ),
    ];
    made_of(root, trials)
}

/// Creates a run of these trials: point, number, how much faster than usual, verdict.
fn made_of<const N: usize>(root: &Path, trials: [(u32, u16, f64, Verdict); N]) -> PathBuf {
    let run = RunDir::create(root, &info()).unwrap();
    for (point_id, trial, shift, verdict) in trials {
        let mut writer = begin(&run, point_id, trial);
        fill(&mut writer, shift);
        let mut link = |name: &str, dev: &str, backend: Backend, reason: BackendReason| {
            let (message, backend) = (format!("{} on {dev}", backend.as_text()), backend.into());
            let state =
                wire::LinkState { backend, reason: Some(reason), ..wire::LinkState::default() };
            writer.note(Kind::Link(state), name, &message).unwrap();
        };
        let missing = BackendReason::missing("qdisc netem", "NET_SCH_NETEM");
        link("delay", "to-src", Backend::Userspace, missing);
        link("bottleneck", "to-dst", Backend::Kernel, BackendReason::supported(&["htb", "bfifo"]));
        link("asked-for", "to-dst", Backend::Userspace, BackendReason::configured());
        writer.commit(&verdict).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    run.path().to_path_buf()
}

#[test]
fn summary_reproduces_known_values() {
    let root = tempfile::tempdir().unwrap();
    let path = made_up(root.path());
    let summary = summarize::summarize(&path, TrialFilter::default()).unwrap();
    let value = |phase, scope, subject, metric, stat| {
        summary
            .summary
            .find(0, phase, scope, subject, metric, stat)
            .map(|row| (row.value * 1e3).round() / 1e3)
    };
    // Trials of 90 and 92 Mbit/s.
    let sum = summary
        .summary
        .find(0, "alone", Scope::Group, "under_test", "throughput_sum", "mean")
        .unwrap();
    assert!((sum.value - 91e6).abs() < 1.0, "{sum:?}");
    let (low, high) = sum.interval.unwrap();
    let half = 12.706_204_736 * 1e6;
    assert!(
        (low - (91e6 - half)).abs() < 10.0 && (high - (91e6 + half)).abs() < 10.0,
        "{low} {high}"
    );
    assert_eq!(sum.n_trials, 2);
    assert_eq!(
        value("alone", Scope::Group, "under_test", "throughput_per_flow_mean", "mean"),
        Some(45.5e6)
    );
    // 30 ms of the interval from 4.93 to 5.03 s are in the phase, at 90 or 92 Mbit/s. `cross` begins after this interval.
    let net = value("compete", Scope::Net, "all", "throughput_sum", "mean").unwrap();
    assert!((net - 90.007_5e6).abs() < 1.0, "{net}");
    assert_eq!(value("alone", Scope::Group, "under_test", "srtt", "mean"), Some(12_000.0));
    assert_eq!(value("compete", Scope::Group, "under_test", "srtt", "mean"), Some(25_000.0));
    assert_eq!(value("compete", Scope::Flow, "under_test/1", "srtt", "max"), Some(26_000.0));
    // 2 per second: floor(2 · 5) - floor(2 · 1), then floor(2 · 8.9) - floor(2 · 5), because the last sample is at 8.9 s.
    assert_eq!(value("alone", Scope::Group, "under_test", "retransmissions", "sum"), Some(8.0));
    assert_eq!(value("compete", Scope::Group, "under_test", "retransmissions", "sum"), Some(7.0));
    assert_eq!(value("compete", Scope::Group, "cross", "throughput_sum", "mean"), Some(60e6));
    assert_eq!(
        value("alone", Scope::Group, "cross", "throughput_sum", "mean"),
        None,
        "it does not run then"
    );
    assert_eq!(value("warm-up", Scope::Group, "under_test", "throughput_sum", "mean"), None);
    let fairness = value("compete", Scope::Net, "all", "jain_fairness_of_mean", "mean").unwrap();
    let bits: [f64; 3] = [0.03 * 61.0 + 3.97 * 20.0, 0.03 * 30.0 + 3.97 * 10.0, 3.97 * 60.0];
    let squares: f64 = bits.iter().map(|bits| bits * bits).sum();
    assert!((fairness - bits.iter().sum::<f64>().powi(2) / (3.0 * squares)).abs() < 1e-3);
    assert_eq!(value("alone", Scope::Probe, "rtt", "loss_share", "mean"), Some(0.1));
    assert_eq!(value("alone", Scope::Probe, "rtt", "rtt", "median"), Some(10_005.0));
    assert_eq!(value("alone", Scope::Link, "bottleneck", "throughput", "mean"), Some(90e6));
    assert_eq!(value("alone", Scope::Link, "bottleneck", "drops", "sum"), Some(12.0));
    assert_eq!(value("compete", Scope::Link, "bottleneck", "drops", "sum"), Some(9.0));
    assert_eq!(value("alone", Scope::Link, "bottleneck", "backlog", "mean"), Some(3000.0));

    let one = summary
        .summary
        .find(1, "alone", Scope::Group, "under_test", "throughput_sum", "mean")
        .unwrap();
    assert_eq!((one.n_trials, one.interval), (1, None), "the failed trial does not count");
    let all = TrialFilter { include_failed: true, ..TrialFilter::default() };
    let with_failed = summarize::summarize(&path, all).unwrap();
    let two = with_failed
        .summary
        .find(1, "alone", Scope::Group, "under_test", "throughput_sum", "mean")
        .unwrap();
    assert_eq!(two.n_trials, 2);
}

#[test]
fn written_summary_and_printed_table_match_golden_files() {
    let root = tempfile::tempdir().unwrap();
    let path = made_up(root.path());
    let summary = summarize::summarize(&path, TrialFilter::default()).unwrap();
    for name in ["trials", "points", "summary_phase", "summary_point"] {
        let csv = std::fs::read_to_string(path.join(name).with_extension("csv")).unwrap();
        // Per-trial rows repeat those of points.
        if name != "summary_phase" {
            golden(&format!("{name}.csv"), &rounded(&csv));
        }
        assert!(path.join(name).with_extension("parquet").is_file());
    }
    golden("six_columns.csv", &six_columns::csv(&summary.summary, "under_test").unwrap());
    let mut out = Vec::new();
    table::print(&summary, &mut out, 120).unwrap();
    let printed = String::from_utf8(out).unwrap().replace(&path.display().to_string(), "RESULTS");
    golden("table.txt", &printed);
    let widest =
        printed.lines().take_while(|line| !line.is_empty()).map(|line| line.chars().count()).max();
    assert!(widest <= Some(120));
}

#[test]
fn the_overview_shows_the_first_points() {
    let root = tempfile::tempdir().unwrap();
    let mut run = RunSummary::compute(&made_up(root.path()), TrialFilter::default()).unwrap();
    assert_eq!(table::overview(&run, 120), table::text(&run, 120));
    let far = |(factor, _): &(String, String)| (factor.clone(), "faraway".to_owned());
    let far: Vec<_> = run.summary.points[&1].iter().map(far).collect();
    run.summary.points.extend((2..30).map(|id| (id, far.clone())));
    run.summary.point_rows.iter_mut().filter(|r| r.point_id == 1).for_each(|r| r.point_id = 25);
    let (all, overview) = (table::text(&run, 120), table::overview(&run, 120));
    assert!(all.contains("faraway") && !overview.contains("faraway"), "{overview}");
    assert!(overview.contains("\n20 of 30 points; all of them: ccbench summarize "));
}

#[test]
fn factor_names_wrap_after_dots_and_underscores_only() {
    let root = tempfile::tempdir().unwrap();
    let path = made_up(root.path());
    with_long_factor(&path);
    let printed = table::text(&RunSummary::compute(&path, TrialFilter::default()).unwrap(), 100);
    let head: Vec<&str> = printed.lines().take_while(|line| !line.contains('─')).collect();
    let first: Vec<&str> = head.iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(first.concat(), LONG_FACTOR, "{printed}");
    let (_, broken) = first.split_last().unwrap();
    assert!(
        !broken.is_empty() && broken.iter().all(|part| part.ends_with(['.', '_'])),
        "{printed}"
    );
}

#[test]
fn every_summary_number_is_a_known_metric() {
    let root = tempfile::tempdir().unwrap();
    let path = made_up(root.path());
    let summary = RunSummary::compute(&path, TrialFilter::default()).unwrap();
    for row in &summary.summary.phase_rows {
        let metric = ccbench_proto::metric::find(row.metric, row.scope)
            .unwrap_or_else(|| panic!("{row:?} is of no metric"));
        assert!(metric.stats.contains(&row.stat), "{row:?}");
        assert_eq!(metric.unit_of(row.stat), row.unit, "{row:?}");
    }
}

#[test]
fn without_intervals_throughput_uses_acknowledged_bytes_with_a_note() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let mut writer = begin(&run, 0, 1);
    for flow in flows(0.0) {
        flow.push(&mut writer, false);
    }
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    let summary = summarize::summarize(run.path(), TrialFilter::default()).unwrap();
    let sum = summary
        .summary
        .find(0, "compete", Scope::Group, "under_test", "throughput_sum", "mean")
        .unwrap();
    assert!((sum.value - 30e6).abs() < 1.0, "{sum:?}");
    assert!(summary.summary.notes[0].contains("acknowledged"), "{:?}", summary.summary.notes);
}

/// As the made-up flows, but the plan ends `cross` when it actually begins.
const ENDS_EARLY: &str = two_nodes!(
    r#"
[flows.under_test]
from = "src"
to = "dst"
[flows.cross]
from = "src"
to = "dst"
[[phases]]
name = "warm-up"
length = "1s"
measure = false
flows = ["under_test", "cross"]
[[phases]]
name = "alone"
length = "4s"
flows = ["under_test", "cross"]
[[phases]]
name = "compete"
length = "4s"
flows = ["under_test"]
"#
);

#[test]
fn unwritable_summary_is_still_printed_without_partial_files() {
    let root = tempfile::tempdir().unwrap();
    let path = made_up(root.path());
    // For root, no file mode prevents replacing a file, but a directory in its place does.
    std::fs::create_dir(path.join("summary_phase.csv")).unwrap();
    let summary = summarize::summarize(&path, TrialFilter::default()).unwrap();
    let error = summary.written.as_ref().unwrap_err().to_string();
    assert!(error.contains("replace") && error.contains("summary_phase.csv"), "{error}");
    let printed = table::text(&summary, 120);
    assert!(printed.contains("91.00±12.71") && printed.contains(&error), "{printed}");
    let names = std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name());
    let staged: Vec<_> = names.filter(|n| n.to_string_lossy().ends_with(".new")).collect();
    assert!(staged.is_empty(), "{staged:?}");
}

#[test]
fn a_summary_in_another_directory_is_named_there() {
    let root = tempfile::tempdir().unwrap();
    let (run, other) = (made_up(root.path()), root.path().join("other"));
    let mut summary = RunSummary::compute(&run, TrialFilter::default()).unwrap();
    summary.write_to(&other).unwrap();
    let printed = table::text(&summary, 120);
    let named = format!("\nresults: {}\n  trials.csv ", other.display());
    let samples = format!("all samples are under {}/tables/;", run.display());
    assert!(printed.contains(&named) && printed.contains(&samples), "{printed}");
}

#[test]
fn run_without_committed_trials_has_an_empty_summary() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let summary = summarize::summarize(run.path(), TrialFilter::default()).unwrap();
    assert!(summary.summary.point_rows.is_empty());
    let printed = table::text(&summary, 100);
    assert!(
        printed.starts_with("0 of 4 trials; the run is running\n\nNo counted trial"),
        "{printed}"
    );
    let error = six_columns::csv(&summary.summary, "x").unwrap_err();
    assert!(error.to_string().contains("there are: none"), "{error}");
    assert_eq!(ccbench_results::Error::from(error).class(), ErrorClass::Usage);
}

#[test]
fn rejects_directory_that_is_not_a_run_with_a_hint() {
    let root = tempfile::tempdir().unwrap();
    let error = summarize::summarize(root.path(), TrialFilter::default()).unwrap_err();
    assert!(matches!(error, SummaryError::Store(StoreError::NotResults { .. })));
    assert!(error.to_string().contains("give the directory that `ccbench run` printed"), "{error}");
    let plan = root.path().join("mine.toml");
    std::fs::write(&plan, "name = \"mine\"\n").unwrap();
    let error = summarize::summarize(&plan, TrialFilter::default()).unwrap_err();
    assert!(
        error.class() == ErrorClass::Usage && error.to_string().contains("`ccbench run "),
        "{error}"
    );
}

#[test]
fn resumed_run_keeps_finished_trials_and_both_sessions() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let path = run.path().to_path_buf();
    assert!(path.ends_with("made-up-20231114T221320Z-5f3a5f3a"));
    for trial in [1, 2] {
        let mut writer = begin(&run, 1, trial);
        fill(&mut writer, 0.0);
        writer.commit(&verdict(Status::Ok, &[])).unwrap();
    }
    run.finish(RunStatus::Interrupted).unwrap();
    drop(run);
    let printed = table::text(&RunSummary::compute(&path, TrialFilter::default()).unwrap(), 100);
    assert!(printed.starts_with("2 of 4 trials; the run was interrupted\n"), "{printed}");
    std::fs::remove_file(path.join("tables/probes/point=1/trial-02/part-0.parquet")).unwrap();
    let run = RunDir::resume(&path, &info()).unwrap();
    assert_eq!(
        run.finished().into_iter().collect::<Vec<_>>(),
        [(1, 1)],
        "a trial with a file gone is done again"
    );
    let mut writer = begin(&run, 1, 2);
    fill(&mut writer, 0.0);
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    assert_eq!(run.finished().len(), 2);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path.join("run.json")).unwrap()).unwrap();
    assert_eq!(json["status"], "complete");
    assert_eq!(json["sessions"].as_array().unwrap().len(), 2);
    assert_eq!(json["trials"][1]["clocks"]["dst"]["error_bound_ns"], 1000);
    let again = RunDir::create(root.path(), &info()).unwrap();
    assert!(again.path().ends_with("made-up-20231114T221320Z-5f3a5f3a-2"));
}
