//! Packs, unpacks, damages and compares runs of three trials. Refuses archives from strangers.

use std::fs::File;
use std::io::Write as _;

use ccbench_proto::plan::expect::Test;
use ccbench_proto::plan::{Engine, Series};
use ccbench_proto::wire::{self, Role, Side, run_event::Payload};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::backend::LabImage;
use crate::expect::{Expectation, Outcome};
use crate::model::{RunInfo, TrialFilter};
use crate::record::RunRecord;
use crate::summarize::summarize;
use crate::trial::tests::{filled_at, good, info};
use crate::verify::verify;

fn simulated() -> RunInfo {
    RunInfo { backend: RunBackend::Simulator { model_version: 1 }, ..info() }
}

/// Creates a finished run with its summary.
fn finished_run(root: &Path, info: &RunInfo, trials: u16) -> PathBuf {
    let run = RunDir::create(root, info).unwrap();
    let utc_ns = 1_700_000_002_000_000_000;
    (1..=trials).for_each(|trial| filled_at(&run, trial, utc_ns).commit(&good()).unwrap());
    run.finish(RunStatus::Complete).unwrap();
    summarize(run.path(), TrialFilter::default()).unwrap().written.unwrap();
    run.path().to_path_buf()
}

/// Packs a run of three trials and unpacks it into a folder; returns the folder, too.
fn artifact(info: &RunInfo) -> (tempfile::TempDir, Artifact) {
    let root = tempfile::tempdir().unwrap();
    let artifact = artifact_of(root.path(), &finished_run(&root.path().join("results"), info, 3));
    (root, artifact)
}

/// Creates a finished run on a testbed with its summary. A flow has these bytes in each tenth of a second, and this round-trip time; both
/// grow by a percent with each trial.
fn run_with_flow(root: &Path, trials: u16, bytes: u64, rtt_us: u32) -> PathBuf {
    let run = RunDir::create(root, &info()).unwrap();
    for trial in 1..=trials {
        let mut writer = filled_at(&run, trial, 1_700_000_002_000_000_000);
        for tenth in 1..=9 {
            let at_ns = 5_000_000_000 + tenth * 100_000_000;
            let (flow_id, group) = ("f/0".to_owned(), "f".to_owned());
            let interval = wire::Interval {
                at_ns,
                flow_id: flow_id.clone(),
                group: group.clone(),
                side: Side::Receiver.into(),
                seconds: 0.1,
                bytes: bytes * (100 + u64::from(trial)) / 100,
                ..Default::default()
            };
            let sample = wire::FlowSample {
                at_ns,
                flow_id,
                group,
                side: Side::Sender.into(),
                role: Role::Data.into(),
                rtt_us: Some(rtt_us * (100 + u32::from(trial)) / 100),
                ..Default::default()
            };
            for payload in [Payload::Interval(interval), Payload::FlowSample(sample)] {
                writer.push("src", wire::RunEvent { payload: Some(payload) }).unwrap();
            }
        }
        writer.commit(&good()).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    summarize(run.path(), TrialFilter::default()).unwrap().written.unwrap();
    run.path().to_path_buf()
}

/// Packs a run and unpacks it in this folder.
fn artifact_of(root: &Path, run: &Path) -> Artifact {
    let archive = root.join("a.tar.gz");
    pack(run, &archive).unwrap();
    let dir = unpack(&archive, &root.join("there"), Limits::default()).unwrap();
    Artifact::open(&dir).unwrap()
}

/// Creates an archive with an entry of three bytes for each name.
fn archive_of(path: &Path, entries: &[&str]) {
    let mut out = GzEncoder::new(File::create(path).unwrap(), Compression::default());
    for name in entries {
        tar::append(&mut out, name, 3, &mut &b"abc"[..]).unwrap();
    }
    tar::finish(&mut out).unwrap();
    out.finish().unwrap().flush().unwrap();
}

#[test]
fn an_unpacked_run_is_the_packed_one() {
    let (root, artifact) = artifact(&simulated());
    let run = list(&root.path().join("results")).unwrap().pop().unwrap();
    let name = run.file_name().unwrap();
    assert_eq!(artifact.run().path(), root.path().join("there").join(name).join("run"));
    assert_eq!(verify(artifact.run().path()).unwrap(), verify(&run).unwrap());
    let dir = root.path().join("there").join(name);
    let names = list(&dir).unwrap().into_iter().map(|path| path.file_name().unwrap().to_owned());
    assert_eq!(names.collect::<Vec<_>>(), ["README.md", "SHA256SUMS", "artifact.json", "run"]);
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join(MANIFEST)).unwrap()).unwrap();
    let parquet = manifest["parquet"].as_object().unwrap();
    assert!(parquet.keys().any(|name| name.starts_with("run/tables/flow_samples/")), "{manifest}");
    assert_eq!(manifest["backend"]["model_version"], 1);
    // Every file except the checksums themselves.
    let sums = std::fs::read_to_string(dir.join("SHA256SUMS")).unwrap();
    assert!(sums.contains("  README.md\n") && sums.contains("  run/journal.ndjson\n"), "{sums}");
    let readme = std::fs::read_to_string(dir.join("README.md")).unwrap();
    assert!(readme.contains("## Requirements") && readme.contains("no root"), "{readme}");
}

/// The command of the README is not refused: a testbed loads the authors' congestion controls only if they are allowed.
#[test]
fn the_command_of_the_readme_allows_the_congestion_controls() {
    let command = |backend: RunBackend| {
        let ccs = [("a.bpf.o", b"first"), ("b.bpf.o", b"other")];
        let ccs = ccs.map(|(name, bytes)| (PathBuf::from(name), bytes.to_vec())).into();
        let record = RunRecord::new(&RunInfo { backend, ccs, ..info() });
        let facts = readme::Facts { name: "r", record: &record, plan: None, claims: &[] };
        let text = readme::readme(&facts);
        let rerun = text.lines().find(|line| line.starts_with("ccbench artifact rerun "));
        rerun.unwrap().to_owned()
    };
    let sha256 = |bytes: &[u8]| FileDigest::of(bytes).sha256;
    let allowed = format!(
        "ccbench artifact rerun \"$ARCHIVE\" --directory evaluation --allow-cc-digest {} --allow-cc-digest {}",
        sha256(b"first"),
        sha256(b"other")
    );
    assert_eq!(command(RunBackend::Testbed), allowed);
    let in_lab = RunBackend::Lab { images: vec![] };
    assert_eq!(command(in_lab), "ccbench artifact rerun \"$ARCHIVE\" --directory evaluation");
}

#[test]
fn the_readme_names_the_machines_and_the_certificates() {
    let record = RunRecord::new(&RunInfo { backend: RunBackend::Testbed, ..info() });
    let readme = |agent: &str| {
        let plan = PLAN.replace("AGENT", agent);
        let (plan, _) = check::read(&plan, &[]).unwrap();
        let facts = readme::Facts { name: "r", record: &record, plan: Some(&plan), claims: &[] };
        readme::readme(&facts)
    };
    let remote = readme("192.0.2.1");
    for part in [
        "; src (agent at 192.0.2.1:7700, address 10.0.0.1).\n",
        "\nccbench artifact rerun \"$ARCHIVE\" --directory evaluation --agents --pki DIR\n",
    ] {
        assert!(remote.contains(part), "no `{part}`: {remote}");
    }
    let local = readme("127.0.0.1");
    assert!(local.contains(" --directory evaluation --agents\n"), "{local}");
}

#[test]
fn the_readme_names_the_quick_ways_to_install_first() {
    let record = RunRecord::new(&RunInfo { backend: RunBackend::Lab { images: vec![] }, ..info() });
    let facts = readme::Facts { name: "r", record: &record, plan: None, claims: &[] };
    let text = readme::readme(&facts);
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no `{part}`: {text}"));
    assert!(at("pip install ./ccbench-*.whl") < at("make install"), "{text}");
    assert!(at("ccbench lab install ") < at("ccbench lab build"), "{text}");
    at("- Hardware: an x86-64 machine with Linux");
    let stock = LabImage {
        engine: Engine::Qemu,
        engine_sha256: String::new(),
        emulator: String::new(),
        kernel: Series::Debian612,
        source: String::new(),
        release: String::new(),
        dilation: None,
    };
    let backend = RunBackend::Lab { images: vec![stock] };
    let record = RunRecord::new(&RunInfo { backend, ..info() });
    let text = readme::readme(&readme::Facts { record: &record, ..facts });
    assert!(text.contains("`ccbench lab build --kernel 6.12`"), "{text}");
    assert!(!text.contains("ccbench lab install"), "no package has a stock kernel: {text}");
}

/// Any file name may be that of a results directory.
#[test]
fn commands_of_the_readme_quote_the_directory() {
    let record = RunRecord::new(&simulated());
    let claims = [measured(None, Outcome::Holds)];
    let facts = readme::Facts { name: "it's one", record: &record, plan: None, claims: &claims };
    let text = readme::readme(&facts);
    for line in [
        r"ARCHIVE='it'\''s one.tar.gz'",
        r"ccbench verify 'it'\''s one/run'",
        r"ccbench artifact claim 'evaluation/it'\''s one' 1",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "no `{line}`: {text}");
    }
}

/// What a rerun compares depends on the claims and the number of trials.
#[test]
fn the_readme_promises_only_what_is_compared() {
    let record = RunRecord::new(&info());
    let promise_of = |plan: &str, claims: &[Expectation], repeat: &str| {
        let plan = format!("repeat = {repeat}\n{}", plan.replace("AGENT", "127.0.0.1"));
        let (plan, _) = check::read(&plan, &[]).unwrap();
        let facts = readme::Facts { name: "r", record: &record, plan: Some(&plan), claims };
        let text = readme::readme(&facts);
        text.lines().find(|line| line.starts_with("Expected result: ")).unwrap().to_owned()
    };
    let with_flows = format!("{PLAN}flows = [\"f\"]\n[flows.f]\nfrom = \"src\"\nto = \"dst\"\n");
    let promise = |claims: &[Expectation], repeat: &str| promise_of(&with_flows, claims, repeat);
    let holds = [measured(None, Outcome::Holds)];
    let unmeasured = [measured(None, Outcome::NotMeasured)];
    assert!(promise(&holds, "1").contains("Every claim that this run measured has the same"));
    for none in [&unmeasured[..], &[]] {
        let several = promise(none, "3");
        assert!(several.contains("`reproduced: …`") && several.contains("means"), "{several}");
        let single = promise(none, "1");
        assert!(single.contains("`not compared: …`") && single.contains("one trial"), "{single}");
        let of_probes = promise_of(PLAN, none, "3");
        let is_true = ["`not compared: …`", "no flow groups"].iter().all(|p| of_probes.contains(p));
        assert!(is_true && !of_probes.contains("reproduced"), "{of_probes}");
    }
}

const PLAN: &str = r#"
    name = "machines"
    [nodes]
    src = { agent = "AGENT:7700", address = "10.0.0.1" }
    dst = { agent = "AGENT:7701", address = "10.0.0.2" }
    [probes.rtt]
    kind = "ping"
    from = "src"
    to = "dst"
    [[phases]]
    name = "only"
    length = "1s"
"#;

#[test]
fn an_archive_depends_only_on_the_run() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path(), &simulated(), 3);
    let packed = |name: &str| {
        let path = root.path().join(name);
        pack(&run, &path).unwrap();
        std::fs::read(path).unwrap()
    };
    assert!(packed("a.tar.gz") == packed("b.tar.gz"));
}

/// Returns the names of the items in which a rerun differs.
fn differing(comparison: &Comparison) -> Vec<&str> {
    let items = comparison.items.iter().filter(|item| item.agreement == Agreement::Differs);
    items.map(|item| item.name.as_str()).collect()
}

#[test]
fn a_rerun_with_equal_tables_is_reproduced() {
    let (root, artifact) = artifact(&simulated());
    let same = finished_run(&root.path().join("same"), &simulated(), 3);
    let comparison = compare(&artifact, &same).unwrap();
    assert_eq!(comparison.reproduction(), Reproduction::Reproduced, "{}", text(&comparison));
    assert_eq!(comparison.notes, [""; 0]);
    assert!(text(&comparison).ends_with("comparisons agree\n"), "{}", text(&comparison));
    let fewer = finished_run(&root.path().join("fewer"), &simulated(), 2);
    let comparison = compare(&artifact, &fewer).unwrap();
    assert_eq!(comparison.verdicts.agreement, Agreement::Differs);
    let names = differing(&comparison);
    assert!(names.contains(&"tables/flow_samples"), "{names:?}");
    assert!(text(&comparison).contains("\nnot reproduced: "), "{}", text(&comparison));
}

#[test]
fn files_are_not_compared_where_time_is_real() {
    let (root, artifact) = artifact(&info());
    let other = finished_run(&root.path().join("other"), &info(), 3);
    let comparison = compare(&artifact, &other).unwrap();
    // There are no claims and no flow groups.
    assert!(comparison.items.is_empty(), "{}", text(&comparison));
    assert_eq!(comparison.verdicts.agreement, Agreement::Agrees);
    // Equal verdicts reproduce no number.
    assert_eq!(comparison.reproduction(), Reproduction::NotCompared);
    let last = "not compared: 1 of 1 comparisons agree; no number was compared: ";
    assert!(text(&comparison).contains(last), "{}", text(&comparison));
    let simulated = finished_run(&root.path().join("simulated"), &simulated(), 3);
    let comparison = compare(&artifact, &simulated).unwrap();
    assert!(
        comparison.notes[0].contains("the backends differ; artifact: testbed"),
        "{:?}",
        comparison.notes
    );
}

#[test]
fn without_a_measured_claim_means_of_groups_are_compared() {
    let root = tempfile::tempdir().unwrap();
    let other = |name: &str, trials, bytes, rtt_us| {
        run_with_flow(&root.path().join(name), trials, bytes, rtt_us)
    };
    let artifact = artifact_of(root.path(), &other("packed", 3, 125_000, 20_000));
    // Each trial is a little faster, so the interval of the difference excludes 0, but those of the means overlap.
    let similar = compare(&artifact, &other("similar", 3, 125_600, 20_000)).unwrap();
    assert_eq!(similar.reproduction(), Reproduction::Reproduced, "{}", text(&similar));
    let names: Vec<&str> = similar.items.iter().map(|item| item.name.as_str()).collect();
    let (throughput, srtt) = ("throughput_sum of group f in only", "srtt of group f in only");
    assert_eq!(names, [throughput, srtt]);
    assert!(text(&similar).contains("artifact 10.2 ±0.248 Mbit/s; rerun "), "{}", text(&similar));
    // A tenth of the throughput; twice the round-trip time; no flow in the rerun, or none in the artifact.
    let slower = compare(&artifact, &other("slower", 3, 12_500, 20_000)).unwrap();
    assert_eq!(differing(&slower), [throughput], "{}", text(&slower));
    assert_eq!(slower.reproduction(), Reproduction::NotReproduced);
    assert!(text(&slower).contains("\nnot reproduced: 2 of 3 comparisons agree\n"));
    let longer = compare(&artifact, &other("longer", 3, 125_000, 40_000)).unwrap();
    assert_eq!(differing(&longer), [srtt], "{}", text(&longer));
    let without = finished_run(&root.path().join("without"), &info(), 3);
    let lost = compare(&artifact, &without).unwrap();
    assert_eq!(lost.reproduction(), Reproduction::NotReproduced, "{}", text(&lost));
    assert!(text(&lost).contains(&format!("DIFFERS  {srtt}: only the artifact has it\n")));
    let flowless = artifact_of(&root.path().join("without"), &without);
    let added = compare(&flowless, &other("added", 3, 125_000, 20_000)).unwrap();
    assert!(text(&added).contains(&format!("DIFFERS  {throughput}: only the rerun has it\n")));
}

#[test]
fn means_of_one_trial_are_not_compared() {
    let root = tempfile::tempdir().unwrap();
    let run = |name: &str, bytes| run_with_flow(&root.path().join(name), 1, bytes, 20_000);
    let artifact = artifact_of(root.path(), &run("packed", 125_000));
    let slower = compare(&artifact, &run("slower", 12_500)).unwrap();
    assert_eq!(slower.reproduction(), Reproduction::NotCompared, "{}", text(&slower));
    let printed = text(&slower);
    assert!(
        printed.contains("\n?        throughput_sum of group f in only: artifact "),
        "{printed}"
    );
    let last =
        "\nnot compared: 1 of 1 comparisons agree; not compared: 2; no number was compared: ";
    assert!(printed.contains(last), "{printed}");
    assert!(printed.ends_with(", or flow groups and `repeat` of at least 2\n"), "{printed}");
}

#[test]
fn only_complete_and_intact_runs_with_trials_are_packed() {
    let root = tempfile::tempdir().unwrap();
    let output = root.path().join("a.tar.gz");
    let refused = |run: &Path| {
        let reason = pack(run, &output).unwrap_err().to_string();
        assert!(!output.exists());
        reason
    };
    let run = RunDir::create(&root.path().join("running"), &simulated()).unwrap();
    assert!(refused(run.path()).contains("it is not complete"));
    let imported = RunInfo { backend: RunBackend::Import, ..info() };
    assert!(refused(&finished_run(&root.path().join("i"), &imported, 1)).contains("imported"));
    let run = finished_run(&root.path().join("link"), &simulated(), 1);
    std::os::unix::fs::symlink("/etc/hostname", run.join("figures")).unwrap();
    assert!(refused(&run).contains("neither a regular file nor a directory"));
    std::fs::remove_file(run.join("figures")).unwrap();
    std::fs::write(run.join("plan.toml"), "name = \"crush\"\n").unwrap();
    assert!(refused(&run).contains("the first is plan.toml: changed"));
}

#[test]
fn an_archive_inside_of_its_run_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path(), &simulated(), 1);
    let before = list(&run).unwrap();
    std::os::unix::fs::symlink(run.join("raw"), root.path().join("link")).unwrap();
    for output in [run.join("a.tar.gz"), run.join("raw/a.tar.gz"), root.path().join("link/a")] {
        let refused = pack(&run, &output).unwrap_err();
        assert!(matches!(refused, ArtifactError::OutputInRun { .. }), "{refused}");
        assert!(refused.to_string().contains("choose another --output"), "{refused}");
    }
    assert_eq!(list(&run).unwrap(), before);
    // The folder around the run is not inside the run.
    pack(&run, &run.with_extension("tar.gz")).unwrap();
}

#[test]
fn a_file_whose_digest_is_known_is_not_read_again() {
    let root = tempfile::tempdir().unwrap();
    let path = finished_run(root.path(), &simulated(), 1);
    let (run, known) = open_intact(&path).unwrap();
    let end = run.trials().remove(0);
    let files: Vec<PathBuf> = end.rows.keys().flat_map(|table| run.files(&end, table)).collect();
    assert!(!files.is_empty());
    let read = digests_of(&path, &files, &Digests::new()).unwrap();
    for file in &files {
        std::fs::remove_file(file).unwrap();
    }
    assert_eq!(digests_of(&path, &files, &known).unwrap(), read);
    digests_of(&path, &files, &Digests::new()).unwrap_err();
    // The run does not read it again either.
    run.check(|_| true);
    assert_eq!(run.trials()[0].rows, end.rows);
}

#[test]
fn damage_after_unpacking_is_found() {
    let (_root, artifact) = artifact(&simulated());
    let dir = artifact.run().path().parent().unwrap().to_path_buf();
    std::fs::write(dir.join("run/plan.toml"), "").unwrap();
    let reason = Artifact::open(&dir).unwrap_err().to_string();
    assert!(reason.contains("is damaged (files: 1); the first is plan.toml"), "{reason}");
    std::fs::write(dir.join(MANIFEST), "{\"format_version\": 2}").unwrap();
    let reason = Artifact::open(&dir).unwrap_err().to_string();
    assert!(reason.contains("it has format 2"), "{reason}");
    std::fs::remove_file(dir.join(MANIFEST)).unwrap();
    let reason = Artifact::open(&dir).unwrap_err().to_string();
    assert!(reason.contains("it has no readable artifact.json"), "{reason}");
}

/// A plan whose trace is not in the archive would read a file of the reviewer's machine.
#[test]
fn traces_of_other_folders_are_not_read() {
    let root = tempfile::tempdir().unwrap();
    let plan = r#"
        name = "crash"
        nodes = { a = {}, b = {} }
        wires = { path = ["a", "b"] }
        links.l = { node = "a", toward = "b", trace = { file = "/etc/hostname" } }
        flows.f = { from = "a", to = "b" }
        phases = [{ name = "only", length = "1s", flows = ["f"] }]
    "#;
    let info = RunInfo { resolved_text: plan.to_owned(), ..simulated() };
    let run = RunDir::create(root.path(), &info).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    let reason = pack(run.path(), &root.path().join("a.tar.gz")).unwrap_err().to_string();
    assert!(reason.contains("traces/hostname: missing"), "{reason}");
}

#[test]
fn nothing_is_left_of_a_refused_archive() {
    let root = tempfile::tempdir().unwrap();
    let there = root.path().join("there");
    let archive = root.path().join("a.tar.gz");
    let refused = |entries: &[&str], limits| {
        archive_of(&archive, entries);
        let reason = unpack(&archive, &there, limits).unwrap_err().to_string();
        assert!(list(&there).unwrap().is_empty(), "{entries:?}");
        reason
    };
    let limits = Limits::default();
    // The second entry is refused.
    for name in ["other/run/b", "b"] {
        let reason = refused(&["r/run/a", name], limits);
        assert!(reason.contains("not a path inside the archive's directory"), "{reason}");
    }
    for name in ["r/rerun/b", "r/authorized_keys", "r/run"] {
        assert!(refused(&["r/run/a", name], limits).contains("not a file of an artifact"));
    }
    assert!(refused(&["r/run/a", "r/run/a"], limits).contains("File exists"));
    assert!(refused(&["r/run/a", "r/run/a/b"], limits).starts_with("cannot create "));
    assert!(refused(&[], limits).contains("it has no files"));
    let few = Limits { max_files: 2, ..limits };
    assert!(refused(&["r/run/a", "r/run/b", "r/run/c"], few).contains("more than 2 files"));
    let small = Limits { max_bytes: 5, ..limits };
    assert!(refused(&["r/run/a", "r/run/b"], small).contains("--max-gib"));
    let bytes = std::fs::read(&archive).unwrap();
    std::fs::write(&archive, &bytes[..bytes.len() / 2]).unwrap();
    unpack(&archive, &there, limits).unwrap_err();
    std::fs::write(&archive, "text").unwrap();
    unpack(&archive, &there, limits).unwrap_err();
    assert!(list(&there).unwrap().is_empty());
}

#[test]
fn an_existing_directory_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let archive = root.path().join("a.tar.gz");
    archive_of(&archive, &["r/run/a"]);
    let dir = unpack(&archive, root.path(), Limits::default()).unwrap();
    std::fs::write(dir.join("mine"), "").unwrap();
    let again = unpack(&archive, root.path(), Limits::default()).unwrap_err();
    assert!(matches!(again, ArtifactError::Exists { .. }), "{again}");
    // The directory may be that of the run itself.
    assert!(again.to_string().ends_with("choose another --directory"), "{again}");
    // After an interrupted rerun, too, which cannot be continued.
    std::fs::create_dir(dir.join(RERUN)).unwrap();
    let again = unpack(&archive, root.path(), Limits::default()).unwrap_err();
    assert!(again.to_string().ends_with("or remove this earlier rerun"), "{again}");
    assert!(dir.join("mine").exists());
}

fn measured(interval: Option<(f64, f64)>, outcome: Outcome) -> Expectation {
    Expectation {
        index: 0,
        claim: "fast".to_owned(),
        source: None,
        published: None,
        point_id: Some(0),
        levels: String::new(),
        number: "throughput mean of group f in only".to_owned(),
        test: Some(Test { least: Some(10e6), most: None, unit: "bit/s" }),
        measured: interval.map(|(low, high)| (low + high) / 2.0),
        interval,
        n_trials: 3,
        outcome,
        reasons: vec![],
    }
}

#[test]
fn a_claim_agrees_with_the_same_outcome_and_overlapping_intervals() {
    use Outcome::{DoesNotHold, Holds, NotMeasured};
    let of_artifact = measured(Some((11e6, 13e6)), Holds);
    let agrees = |rerun: &[Expectation]| {
        compare::claim(&of_artifact, 1, rerun).agreement == Agreement::Agrees
    };
    assert!(agrees(&[measured(Some((12e6, 15e6)), Holds)]));
    assert!(!agrees(&[measured(Some((14e6, 15e6)), Holds)]), "no common value");
    assert!(!agrees(&[measured(Some((9e6, 12e6)), DoesNotHold)]));
    assert!(agrees(&[measured(None, Holds)]), "one trial has no interval");
    assert!(!agrees(&[]));
    let unmeasured = Expectation { point_id: None, ..measured(None, NotMeasured) };
    let item = compare::claim(&of_artifact, 1, std::slice::from_ref(&unmeasured));
    assert_eq!(item.agreement, Agreement::Differs);
    assert!(item.line().contains("rerun not measured"), "{}", item.line());
    let item = compare::claim(&unmeasured, 1, &[of_artifact]);
    assert_eq!(item.agreement, Agreement::Differs, "only the rerun measured it: {}", item.line());
}

#[test]
fn a_claim_that_neither_run_measured_is_no_agreement() {
    let reasons = vec!["not run".to_owned()];
    let unmeasured =
        Expectation { point_id: None, reasons, ..measured(None, Outcome::NotMeasured) };
    let item = compare::claim(&unmeasured, 1, std::slice::from_ref(&unmeasured));
    assert_eq!(item.line(), "?        claim 1, fast: not measured in either run: not run\n");
    let verdicts = Item { agreement: Agreement::Agrees, ..item.clone() };
    let mut comparison = Comparison { verdicts, items: vec![item], notes: vec![] };
    assert_eq!(comparison.reproduction(), Reproduction::NotCompared);
    let measured_claim = measured(Some((11e6, 13e6)), Outcome::Holds);
    let of_rerun = std::slice::from_ref(&measured_claim);
    comparison.items.push(compare::claim(&measured_claim, 2, of_rerun));
    assert_eq!(comparison.reproduction(), Reproduction::Reproduced);
    let last = "\nreproduced: 2 of 2 comparisons agree; not compared: 1\n";
    assert!(text(&comparison).ends_with(last), "{}", text(&comparison));
}
