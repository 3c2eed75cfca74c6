//! Tests that the summary depends neither on the number of threads nor on the order in which trials were committed.

use std::process::Command;

use super::*;

/// If set, the test summarises this run and returns, because Polars reads its number of threads once per process.
const RUN_TO_SUMMARIZE: &str = "CCBENCH_TEST_SUMMARIZE";
const TRIALS: [u16; 5] = [1, 2, 3, 4, 5];
/// Number of samples of a trial.
const SAMPLES: u64 = 900;

/// Writes a trial with the flows of the made-up run, two links and a probe. Samples have long fractions.
fn write_trial(run: &RunDir, trial: u16) {
    let mut writer = begin(run, 0, trial);
    for flow in flows(f64::from(trial)) {
        flow.push(&mut writer, true);
    }
    let mut state = u64::from(trial);
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for nth in 0..SAMPLES {
        let at_ns = T0_NS[0].1 + nth * 10_000_000;
        let rtt_us = Some(10_000.0 + random() as f64 / 7e5);
        let probe = wire::Probe { at_ns, probe_id: "rtt".into(), rtt_us, ..Default::default() };
        push(&mut writer, "src", Payload::Probe(probe));
        for link in ["there", "back"] {
            let backlog_bytes = random() % 100_000;
            for (kind, parent) in [("htb", "root"), ("bfifo", "1:1")] {
                let counters = wire::QdiscSample {
                    at_ns,
                    link: link.into(),
                    iface: "to-dst".into(),
                    handle: kind.into(),
                    parent: parent.into(),
                    kind: kind.into(),
                    sent_bytes: nth * 100_000,
                    backlog_bytes,
                    rate_bps: Some(77_000_000 + random() % 1_000_000),
                    ..Default::default()
                };
                push(&mut writer, "src", Payload::QdiscSample(counters));
            }
        }
        let gap_ns = 10_000_000 + random() % 1000;
        let cpu_steal_pct = random() as f64 / 7e7;
        let host = wire::HostSample { at_ns, gap_ns, cpu_steal_pct, ..Default::default() };
        push(&mut writer, "src", Payload::HostSample(host));
    }
    writer.commit(&verdict(Status::Degraded, &[("link_late", "a wakeup was late")])).unwrap();
}

fn run_of(root: &Path, trials: [u16; 5]) -> PathBuf {
    let run =
        RunDir::create(root, &RunInfo { points: vec![(0, vec![])], repeat: 5, ..info() }).unwrap();
    for trial in trials {
        write_trial(&run, trial);
    }
    run.finish(RunStatus::Complete).unwrap();
    run.path().to_path_buf()
}

/// Returns every file that the summary writes, with its content, and the printed text about CPU steal.
fn summary_files(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let summary = summarize::summarize(run, TrialFilter::default()).unwrap();
    summary.written.unwrap();
    let read = |path: &PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap())
    };
    let mut files: BTreeMap<_, _> = summary.files.iter().map(read).collect();
    assert_eq!(summary.summary.steal_pct.len(), TRIALS.len());
    files.insert("steal".to_owned(), format!("{:?}", summary.summary.steal_pct).into_bytes());
    files
}

/// Returns the names of the files that differ.
fn different(one: &BTreeMap<String, Vec<u8>>, other: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let names = one.keys().chain(other.keys());
    names.filter(|name| one.get(*name) != other.get(*name)).cloned().collect()
}

#[test]
fn summary_depends_neither_on_threads_nor_on_the_order_of_trials() {
    if let Some(run) = std::env::var_os(RUN_TO_SUMMARIZE) {
        let run = PathBuf::from(run);
        let files = summary_files(&run);
        std::fs::write(run.join("steal"), &files["steal"]).unwrap();
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let run = run_of(root.path(), TRIALS);
    let first = summary_files(&run);
    assert!(first.len() >= 9 && first.contains_key("summary_point.parquet"), "{:?}", first.keys());
    for threads in 1..=8 {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args([
            "--exact",
            "order::summary_depends_neither_on_threads_nor_on_the_order_of_trials",
        ]);
        again.env("POLARS_MAX_THREADS", threads.to_string()).env(RUN_TO_SUMMARIZE, &run);
        let output = again.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let read = |name: &String| (name.clone(), std::fs::read(run.join(name)).unwrap());
        let files = first.keys().map(read).collect();
        assert_eq!(different(&first, &files), Vec::<String>::new(), "{threads} threads");
    }
    let other_root = tempfile::tempdir().unwrap();
    let mut shuffled = summary_files(&run_of(other_root.path(), [4, 2, 5, 1, 3]));
    // These files list the trials in the order of their commits, with their epochs.
    for name in ["trials.csv", "trials.parquet"] {
        shuffled.insert(name.to_owned(), first[name].clone());
    }
    assert_eq!(different(&first, &shuffled), Vec::<String>::new(), "other order of trials");
}
