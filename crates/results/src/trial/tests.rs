//! Crashes at every step of the commit, and the state that a resumed run then finds.

use std::fs::File;

use ccbench_proto::event::NoData;
use ccbench_proto::units::Micros;
use polars::prelude::*;

use super::*;
use crate::journal::JournalError;
use crate::model::{RunInfo, RunStatus, Status, TrialFilter};
use crate::store::{RunDir, StoreError};

pub(crate) fn info() -> RunInfo {
    RunInfo {
        plan_name: "crash".into(),
        plan_text: "name = \"crash\"\n".into(),
        resolved_text: "# crash: there is no plan\n".into(),
        plan_sha256: "0123456789abcdef".into(),
        points: vec![(0, vec![])],
        repeat: 3,
        seed: 1,
        command_line: vec!["ccbench".into(), "run".into()],
        ccbench_version: "0.1.0".into(),
        started_utc: jiff::Timestamp::from_second(1_700_000_000).unwrap(),
        nodes: BTreeMap::new(),
        backend: crate::backend::RunBackend::Testbed,
        topology: serde_json::Value::Null,
        notes: vec![],
        sets: vec![],
        traces: BTreeMap::new(),
        ccs: BTreeMap::new(),
        imported: vec![],
    }
}

fn phases() -> Vec<PhaseSpan> {
    vec![PhaseSpan::new("only", Micros::new(0), Micros::from_secs(1))]
}

fn clocks() -> BTreeMap<String, NodeClock> {
    let clock = NodeClock {
        error_bound_ns: 100,
        ..NodeClock::shared(5_000_000_000, 1_700_000_000_000_000_000)
    };
    BTreeMap::from([("src".to_owned(), clock)])
}

fn key(run: &RunDir, trial: u16) -> TrialKey {
    TrialKey { point_id: 0, trial, seed: 9, epoch: run.next_epoch() }
}

fn event(payload: Payload) -> wire::RunEvent {
    wire::RunEvent { payload: Some(payload) }
}

/// Starts a trial with rows in three tables and a raw file: including `clock`, four tables and five renames.
pub(crate) fn filled(run: &RunDir, trial: u16) -> TrialWriter<'_> {
    fill(run.begin_trial(key(run, trial), &phases(), clocks()).unwrap())
}

/// As [`filled`], on a virtual clock.
pub(crate) fn filled_at(run: &RunDir, trial: u16, utc_ns: u64) -> TrialWriter<'_> {
    let mut writer = run.begin_trial(key(run, trial), &phases(), clocks()).unwrap();
    writer.set_time(utc_ns);
    fill(writer)
}

fn fill(mut writer: TrialWriter<'_>) -> TrialWriter<'_> {
    for i in 0..10u64 {
        let sample = wire::FlowSample {
            at_ns: 5_000_000_000 + i * 100_000_000,
            flow_id: format!("main/{}", 9 - i),
            ..Default::default()
        };
        writer.push("src", event(Payload::FlowSample(sample))).unwrap();
    }
    writer.push("src", event(Payload::Probe(wire::Probe::default()))).unwrap();
    writer
        .push("src", event(Payload::Done(wire::Done { rows_sent: 11, ..Default::default() })))
        .unwrap();
    for piece in ["one ", "two"] {
        let raw = wire::Raw { name: "agent.log".into(), data: piece.into() };
        writer.push("src", event(Payload::Raw(raw))).unwrap();
    }
    writer
}

pub(crate) fn good() -> Verdict {
    Verdict { status: Status::Ok, reasons: vec![] }
}

fn leftovers(run: &RunDir) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut dirs = vec![run.path().to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with(STAGING) || name == "trial-02" {
                found.push(path);
            } else if path.is_dir() {
                dirs.push(path);
            }
        }
    }
    found
}

#[test]
fn crash_between_renames_leaves_no_trial_and_resume_repeats_it() {
    for renames in 0..=5 {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &info()).unwrap();
        filled(&run, 1).commit(&good()).unwrap();
        let staged = filled(&run, 2).stage(TrialStatus::Ok, &[]).unwrap();
        assert_eq!(staged.moves.len(), 5);
        staged.rename_first(renames).unwrap();
        drop(staged);
        assert!(!leftovers(&run).is_empty());
        let path = run.path().to_path_buf();
        assert_eq!(
            RunDir::open(&path).unwrap().finished().len(),
            1,
            "a reader believes the journal only"
        );
        drop(run);

        let run = RunDir::resume(&path, &info()).unwrap();
        assert_eq!(leftovers(&run), Vec::<PathBuf>::new(), "after {renames} renames");
        assert!(run.notes().iter().any(|note| note.contains("not committed")));
        assert_eq!(run.finished().into_iter().collect::<Vec<_>>(), [(0, 1)]);
        filled(&run, 2).commit(&good()).unwrap();
        assert_eq!(run.finished().into_iter().collect::<Vec<_>>(), [(0, 1), (0, 2)]);
        assert!(run.part("flow_samples", 0, 2).is_file());
        assert_eq!(
            std::fs::read_to_string(run.raw(0, 2).join("src/agent.log")).unwrap(),
            "one two"
        );
    }
}

#[test]
fn crash_after_trial_end_line_leaves_a_committed_trial() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    filled(&run, 2).commit(&good()).unwrap();
    let path = run.path().to_path_buf();
    // As if killed before the staging directory was removed.
    std::fs::create_dir(path.join(".tmp-77")).unwrap();
    drop(run);
    let run = RunDir::resume(&path, &info()).unwrap();
    assert_eq!(run.finished().len(), 1);
    assert!(!path.join(".tmp-77").exists());
}

#[test]
fn committed_trial_whose_staging_directory_stays_is_no_error() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let staged = filled(&run, 1).stage(TrialStatus::Ok, &[]).unwrap();
    // Removing this path fails.
    Staged { staging: run.path().join("absent"), ..staged }.publish().unwrap();
    assert_eq!(run.counts(), (1, 0, 0));
    assert!(run.notes().iter().any(|note| note.contains("absent")), "{:?}", run.notes());
}

#[test]
fn run_that_lacks_nothing_but_its_end_is_finished_without_a_session() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    (1..=3).for_each(|trial| filled(&run, trial).commit(&good()).unwrap());
    let path = run.path().to_path_buf();
    let digest = info().plan_sha256;
    let now = info().started_utc;
    let locked = RunDir::reopen(&path, &digest, now).unwrap_err();
    assert!(matches!(locked, StoreError::Journal(JournalError::Locked { .. })), "{locked}");
    drop(run);
    let summary = crate::summarize::summarize(&path, TrialFilter::default()).unwrap();
    let note = summary.summary.incomplete_run().unwrap();
    assert!(note.starts_with("3 of 3 trials; the run was not finished"), "{note}");
    let other = RunDir::reopen(&path, "fedcba9876543210", now).unwrap_err();
    assert!(matches!(other, StoreError::OtherPlan { .. }), "{other}");
    let run = RunDir::reopen(&path, &digest, now).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    drop(run);
    let run = RunDir::open(&path).unwrap();
    assert_eq!((run.status(), run.counts()), (RunStatus::Complete, (3, 0, 0)));
    assert!(crate::verify::verify(&path).unwrap().damaged.is_empty());
    let summary = crate::summarize::summarize(&path, TrialFilter::default()).unwrap();
    assert_eq!(summary.summary.incomplete_run(), None);
    let record = std::fs::read_to_string(path.join("run.json")).unwrap();
    assert_eq!(record.matches("command_line").count(), 1, "no other session");
}

#[test]
fn end_that_only_the_journal_has_is_the_status_of_the_run() {
    for status in [RunStatus::Failed, RunStatus::Complete] {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &info()).unwrap();
        filled(&run, 1).commit(&good()).unwrap();
        let path = run.path().to_path_buf();
        // As on a full disk: the line fits, but the new file does not.
        let staged = ccbench_io::replace::staged(&path.join("run.json"));
        std::fs::create_dir(&staged).unwrap();
        let error = run.finish(status).unwrap_err().to_string();
        assert!(error.contains("cannot replace") && error.contains("run.json"), "{error}");
        assert_eq!(run.status(), status);
        drop(run);
        std::fs::remove_dir(&staged).unwrap();
        let summary = crate::summarize::summarize(&path, TrialFilter::default()).unwrap();
        assert_eq!(summary.summary.status, status);
        assert!(!RunDir::open(&path).unwrap().is_complete());
        assert!(crate::verify::verify(&path).unwrap().damaged.is_empty());
        // Another session works on the run, and ends.
        let run = RunDir::resume(&path, &info()).unwrap();
        assert_eq!(RunDir::open(&path).unwrap().status(), RunStatus::Running);
        run.finish(status).unwrap();
        drop(run);
        let run = RunDir::open(&path).unwrap();
        assert_eq!((run.status(), run.is_complete()), (status, status == RunStatus::Complete));
    }
}

#[test]
fn torn_last_line_is_cut_off_noted_and_its_trial_repeated() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    filled(&run, 1).commit(&good()).unwrap();
    filled(&run, 2).commit(&good()).unwrap();
    let path = run.path().to_path_buf();
    drop(run);
    let journal = path.join("journal.ndjson");
    let bytes = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &bytes[..bytes.len() - 7]).unwrap();
    assert_eq!(RunDir::open(&path).unwrap().finished().len(), 1, "reading does not mend");

    let run = RunDir::resume(&path, &info()).unwrap();
    assert_eq!(run.finished().into_iter().collect::<Vec<_>>(), [(0, 1)]);
    assert!(run.notes()[0].contains("unfinished line"), "{:?}", run.notes());
    assert!(!run.part("flow_samples", 0, 2).exists());
    filled(&run, 2).commit(&good()).unwrap();
    assert_eq!(run.finished().len(), 2);
}

#[test]
fn abandoned_trial_is_readable_marked_and_repeated() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    filled(&run, 1).abandon("interrupted").unwrap();
    assert!(run.finished().is_empty());
    let trials = run.trials();
    assert_eq!(trials[0].status, TrialStatus::Aborted);
    assert_eq!(trials[0].reasons[0].message, "interrupted");
    assert_eq!(trials[0].rows["flow_samples"], 10);
    assert!(run.part("flow_samples", 0, 1).is_file());
    filled(&run, 1).commit(&good()).unwrap();
    assert_eq!(run.finished().len(), 1);
}

#[test]
fn trial_that_cannot_be_prepared_is_recorded_as_failed() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    filled(&run, 1).commit(&good()).unwrap();
    let failed =
        Verdict { status: Status::Failed, reasons: vec![Reason::new(ReasonCode::FlowDead, "why")] };
    filled(&run, 2).commit(&failed).unwrap();
    run.record_not_run(key(&run, 2), &Reason::new(ReasonCode::NotRun, "a port is taken")).unwrap();
    run.record_not_run(key(&run, 3), &Reason::new(ReasonCode::NotRun, "a port is taken")).unwrap();
    filled(&run, 4).abandon("interrupted").unwrap();
    assert!(!run.part("flow_samples", 0, 2).exists(), "what the failed attempt left is replaced");
    let path = run.path().to_path_buf();
    drop(run);

    let run = RunDir::resume(&path, &info()).unwrap();
    assert_eq!(run.counts(), (1, 0, 2));
    assert_eq!(run.failed().into_iter().collect::<Vec<_>>(), [(0, 2), (0, 3)]);
    assert_eq!(run.finished().into_iter().collect::<Vec<_>>(), [(0, 1)], "the rest is repeated");
    let summary = crate::summarize::summarize(&path, TrialFilter::default()).unwrap();
    assert_eq!(summary.summary.trials.len(), 4);
    let trials = std::fs::read_to_string(path.join("trials.csv")).unwrap();
    assert!(trials.contains("0,3,failed,not_run: a port is taken,"), "{trials}");
    filled(&run, 3).commit(&good()).unwrap();
    assert_eq!((run.counts(), run.failed().len()), ((2, 0, 1), 1));
    assert!(run.part("flow_samples", 0, 3).is_file());
}

#[test]
fn resume_repeats_what_the_infrastructure_failed_and_keeps_what_the_plan_failed() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let failed = |codes: &[&str]| Verdict {
        status: Status::Failed,
        reasons: codes.iter().map(|code| Reason::new((*code).into(), "why")).collect(),
    };
    filled(&run, 1).commit(&failed(&["flow_dead"])).unwrap();
    filled(&run, 2).commit(&failed(&["flow_dead", "node_lost"])).unwrap();
    filled(&run, 3).commit(&failed(&["error"])).unwrap();
    let degraded = vec![Reason::new(ReasonCode::NodeLost, "only failed trials are repeated")];
    filled(&run, 4).commit(&Verdict { status: Status::Degraded, reasons: degraded }).unwrap();
    let path = run.path().to_path_buf();
    drop(run);

    let run = RunDir::resume(&path, &info()).unwrap();
    assert_eq!(run.finished().into_iter().collect::<Vec<_>>(), [(0, 1), (0, 4)]);
    assert_eq!(run.failed().len(), 3, "with --retry-failed the first, too");
    filled(&run, 2).commit(&good()).unwrap();
    filled(&run, 3).commit(&good()).unwrap();
    assert_eq!(run.finished().len(), 4);
    let summary = crate::summarize::summarize(&path, TrialFilter::default()).unwrap();
    let statuses = summary.summary.trials.iter().map(|end| end.status.as_str());
    assert_eq!(statuses.collect::<Vec<_>>(), ["failed", "ok", "ok", "degraded"]);
    let journal = std::fs::read_to_string(path.join("journal.ndjson")).unwrap();
    assert_eq!(journal.matches("node_lost").count(), 2, "the journal keeps the history");
}

#[test]
fn removed_renamed_or_replaced_directory_takes_no_trial() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 3] = [
        ("removed", |path| std::fs::remove_dir_all(path).unwrap()),
        ("renamed", |path| std::fs::rename(path, path.with_extension("old")).unwrap()),
        ("replaced", |path| {
            std::fs::rename(path, path.with_extension("old")).unwrap();
            RunDir::create_at(path, &info()).unwrap();
        }),
    ];
    for (name, change) in changes {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &info()).unwrap();
        filled(&run, 1).commit(&good()).unwrap();
        let writer = filled(&run, 2);
        change(run.path());
        let expected = "was removed, renamed or replaced while it was written";
        let error = writer.commit(&good()).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
        let error = run.announce_trial(key(&run, 3)).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
        let error =
            run.record_not_run(key(&run, 3), &Reason::new(ReasonCode::NotRun, "")).unwrap_err();
        assert!(error.to_string().contains(expected), "{name}: {error}");
        let error = run.finish(RunStatus::Failed).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
        assert_eq!(run.path().exists(), name == "replaced", "{name}: not made again");
    }
}

#[test]
fn resume_rejects_a_locked_run() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let error = RunDir::resume(run.path(), &info()).unwrap_err();
    assert!(matches!(error, StoreError::Journal(JournalError::Locked { .. })), "{error}");
    let reader = RunDir::open(run.path()).unwrap();
    let error = reader.begin_trial(key(&reader, 1), &phases(), clocks()).err().unwrap();
    assert!(matches!(error, TrialError::Journal(JournalError::ReadOnly { .. })), "{error}");
}

#[test]
fn controller_events_have_its_time_and_rows_without_instant_none() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let mut writer = filled(&run, 1);
    let begun_ns = crate::clock::realtime_ns();
    writer.note(Kind::Link(wire::LinkState::default()), "bottleneck", "kernel on to-dst").unwrap();
    let flow = wire::Flow { cc_actual: "cubic".into(), ..Default::default() };
    writer.push("src", event(Payload::Flow(flow))).unwrap();
    for at_ns in [0, 5_500_000_000] {
        let change = wire::LinkChange { applied_at_ns: at_ns, ..Default::default() };
        writer.push("src", event(Payload::LinkChange(change))).unwrap();
        let kind = Some(Kind::SampleError(NoData {}));
        let event_row = wire::Event { at_ns, kind, ..Default::default() };
        writer.push("src", event(Payload::Event(event_row))).unwrap();
    }
    writer.commit(&good()).unwrap();

    let read = |table| {
        let file = File::open(run.part(table, 0, 1)).unwrap();
        ParquetReader::new(file).finish().unwrap()
    };
    let events = read("events");
    let texts = |name| events.column(name).unwrap().str().unwrap().iter().collect::<Vec<_>>();
    let at: Vec<Option<i64>> = events.column("t_ns").unwrap().i64().unwrap().iter().collect();
    for (kind, at_ns) in texts("kind").into_iter().zip(&at) {
        if kind != Some("sample_error") {
            assert!(at_ns.unwrap() >= begun_ns - 60_000_000_000, "{kind:?} {at_ns:?}");
        }
    }
    assert_eq!(at.iter().filter(|at_ns| at_ns.is_none()).count(), 1);
    assert_eq!(events.column("t_s").unwrap().null_count(), 1);
    let flows = read("flows");
    assert_eq!(flows.column("cc_requested").unwrap().null_count(), 1, "the kernel's default");
    assert_eq!(flows.column("cc_actual").unwrap().null_count(), 0);
    let changes = read("link_changes");
    assert_eq!(changes.column("requested_t_ns").unwrap().null_count(), 2);
    assert_eq!(changes.column("applied_t_ns").unwrap().null_count(), 1);
    assert_eq!(changes.column("t_s").unwrap().null_count(), 1);
}

#[test]
fn loaded_cc_parameters_are_recorded_also_after_resume() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let mut writer = filled(&run, 1);
    let cc = wire::CongestionControl {
        name: "scheme".into(),
        algorithm: "ta".into(),
        kernel_name: "ta.0a1b2".into(),
        via: wire::Via::Bpf.into(),
        reason: Some(wire::ViaReason::bpf_supported()),
        params: [("betao".to_owned(), "3000".to_owned())].into(),
        sha256: String::new(),
    };
    writer.congestion_control("src", cc).unwrap();
    writer.commit(&good()).unwrap();
    let path = run.path().to_path_buf();
    run.finish(RunStatus::Interrupted).unwrap();
    drop(run);
    let record = || -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(path.join("run.json")).unwrap()).unwrap()
    };
    let in_use = |record: &serde_json::Value| record["trials"][0]["congestion_controls"].clone();
    let first = in_use(&record());
    assert_eq!((&first[0]["node"], &first[0]["name"]), (&"src".into(), &"scheme".into()));
    assert_eq!((&first[0]["via"], &first[0]["params"]["betao"]), (&"bpf".into(), &"3000".into()));
    assert_eq!(first[0]["reason"], "this kernel takes BPF congestion controls");
    let run = RunDir::resume(&path, &info()).unwrap();
    filled(&run, 2).commit(&good()).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    assert_eq!(in_use(&record()), first);
    assert!(record()["trials"][1].get("congestion_controls").is_none(), "the trial has none");
}

#[test]
fn raw_files_cannot_leave_their_directory() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let mut writer = run.begin_trial(key(&run, 1), &phases(), clocks()).unwrap();
    for name in ["../up", "", ".hidden", "a/b"] {
        let raw = wire::Raw { name: name.into(), data: vec![1] };
        let error = writer.push("src", event(Payload::Raw(raw))).unwrap_err();
        assert!(matches!(error, TrialError::RawFile { .. }), "{name}");
    }
    let error = writer.push("unknown", event(Payload::Probe(wire::Probe::default()))).unwrap_err();
    assert!(matches!(error, TrialError::UnknownNode { .. }));
}

#[test]
fn counters_round_trip() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let mut writer = run.begin_trial(key(&run, 1), &phases(), clocks()).unwrap();
    // Beyond the positive range of the signed numbers in Parquet: in the middle, and wrapping.
    let small = |i: u64| (2_147_000_000 + i * 100_000) as u32;
    let large = |i: u64| u64::MAX - 100 + i * 7;
    for i in 0..20_000u64 {
        let row = wire::FlowSample {
            at_ns: 5_000_000_000 + i * 90_000 + i % 7,
            flow_id: "a/0".into(),
            segs_in_pkts: (i % 5 > 0).then(|| small(i)),
            bytes_acked: Some(large(i % 14)),
            rtt_us: Some(4_000_000_000 * (i % 2) as u32),
            snd_cwnd_pkts: Some((i / 900) as u32),
            ..Default::default()
        };
        writer.push("src", event(Payload::FlowSample(row))).unwrap();
    }
    writer.commit(&good()).unwrap();
    let file = File::open(run.part("flow_samples", 0, 1)).unwrap();
    let frame = ParquetReader::new(file).finish().unwrap();
    let u32s = |name: &str| frame.column(name).unwrap().u32().unwrap().clone();
    let (segs, rtt, cwnd) = (u32s("segs_in_pkts"), u32s("rtt_us"), u32s("snd_cwnd_pkts"));
    let acked = frame.column("bytes_acked").unwrap().u64().unwrap();
    for i in 0..20_000u64 {
        let row = i as usize;
        assert_eq!(segs.get(row), (i % 5 > 0).then(|| small(i)));
        assert_eq!(acked.get(row), Some(large(i % 14)));
        assert_eq!(rtt.get(row), Some(4_000_000_000 * (i % 2) as u32));
        assert_eq!(cwnd.get(row), Some((i / 900) as u32));
    }
}

/// Starts a trial with 1050 probes, in row groups of four rows.
fn in_small_groups(run: &RunDir, trial: u16) -> TrialWriter<'_> {
    let mut writer = run.begin_trial(key(run, trial), &phases(), clocks()).unwrap();
    for i in 0..1050u32 {
        let at_ns = 5_000_000_000 + u64::from(i) * 900_000;
        let probe =
            wire::Probe { at_ns, probe_id: "rtt".into(), seq: i, tos: 300, ..Default::default() };
        writer.push("src", event(Payload::Probe(probe))).unwrap();
    }
    writer
}

#[test]
fn rows_become_row_groups_sorted_by_flow() {
    let root = tempfile::tempdir().unwrap();
    let mut run = RunDir::create(root.path(), &info()).unwrap();
    filled(&run, 1).commit(&good()).unwrap();
    run.shared.row_group_rows = 4;
    let writer = in_small_groups(&run, 2);
    let first = writer.staging.join("probes/part-0.parquet");
    let left = (0..3000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        first.is_file()
    });
    assert!(left, "row groups leave before the end");
    writer.commit(&good()).unwrap();

    let trials = run.trials();
    let read = |trial: usize, table| {
        let files = run.files(&trials[trial], table).into_iter();
        let read = |path| ParquetReader::new(File::open(path).unwrap()).finish().unwrap();
        files.map(read).collect::<Vec<DataFrame>>()
    };
    let probes = read(1, "probes");
    let heights: Vec<usize> = probes.iter().map(DataFrame::height).collect();
    assert_eq!(heights, [1024, 26], "a file has 256 row groups");
    assert_eq!(
        probes[0].column("tos").unwrap().null_count(),
        1024,
        "too large for its column: null, not wrapped"
    );
    let last = probes[1].column("t_s").unwrap().f64().unwrap().get(25).unwrap();
    assert!((last - 0.9441).abs() < 1e-9);
    let samples = read(0, "flow_samples").remove(0);
    let flows = samples.column("flow_id").unwrap().str().unwrap();
    assert_eq!((flows.get(0), flows.get(9)), (Some("main/0"), Some("main/9")));
    let t_ns = samples.column("t_ns").unwrap().i64().unwrap().get(9).unwrap();
    assert_eq!(t_ns, 1_700_000_005_000_000_000);
    assert_eq!(samples.column("rtt_us").unwrap().null_count(), 10, "absent is null, never 0");
    assert!(!run.part("intervals", 0, 1).exists(), "a table without rows has no file");
    let clock = read(0, "clock").remove(0);
    assert_eq!(clock.column("monotonic_t0_ns").unwrap().u64().unwrap().get(0), Some(5_000_000_000));
}

#[test]
fn trial_with_a_missing_file_is_repeated() {
    let root = tempfile::tempdir().unwrap();
    let mut run = RunDir::create(root.path(), &info()).unwrap();
    run.shared.row_group_rows = 4;
    for trial in [1, 2] {
        in_small_groups(&run, trial).commit(&good()).unwrap();
    }
    let path = run.path().to_path_buf();
    drop(run);
    let run = RunDir::open(&path).unwrap();
    assert_eq!(run.finished().len(), 2);
    let trials = run.trials();
    assert_eq!(trials[1].files, BTreeMap::from([("probes".to_owned(), 2)]), "and only that one");
    let files = run.files(&trials[1], "probes");
    assert!(files.len() == 2 && files[1].ends_with("part-1.parquet"), "{files:?}");
    std::fs::remove_file(&files[1]).unwrap();
    let run = RunDir::open(&path).unwrap();
    assert_eq!(run.finished().into_iter().collect::<Vec<_>>(), [(0, 1)]);
    let damaged = &run.trials()[1].reasons[0];
    assert!(damaged.message.contains("part-1.parquet: missing"), "{damaged:?}");
}

#[test]
fn write_error_is_returned_by_every_later_call_and_nothing_is_committed() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let blocked = |trial| {
        let writer = filled(&run, trial);
        std::fs::write(writer.staging.join("probes"), "in the way").unwrap();
        writer
    };
    let is_write_error = |error: TrialError| {
        let text = error.to_string();
        assert!(text.starts_with("cannot create") && text.contains("/probes"), "{text}");
    };
    is_write_error(blocked(1).commit(&good()).unwrap_err());
    is_write_error(blocked(2).abandon("why").unwrap_err());
    let mut writer = blocked(3);
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    rt.block_on(writer.finished());
    rt.block_on(writer.wait_for_room());
    is_write_error(writer.push("src", event(Payload::Probe(wire::Probe::default()))).unwrap_err());
    is_write_error(writer.commit(&good()).unwrap_err());
    assert!(run.trials().is_empty());
}
