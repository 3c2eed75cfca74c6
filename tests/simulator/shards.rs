//! Tests shards of a run in a directory and in a bucket, and the run into which they are merged.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::LazyLock;

use ccbench_proto::sealed_line::seal;
use ccbench_tests::run_files::{Contents, assert_equal, tables, tables_and_summaries};
use ccbench_tests::s3::S3Server;
use ccbench_tests::{Bench, SETUP_TIMEOUT, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use super::repeat::{COMPARED, LOOSE, record};
use super::{MANY, PLAN, UNINTERRUPTED, plan_file, run};

pub const REPEAT: u32 = 4;

/// The files of a run with these repetitions on one machine.
pub struct Whole {
    pub tables: Contents,
    pub with_summaries: Contents,
}

/// One run for all tests.
pub static WHOLE: LazyLock<Whole> = LazyLock::new(|| {
    let (bench, _) = run(REPEAT, &[]);
    Whole { tables: tables(&bench), with_summaries: tables_and_summaries(&bench) }
});

/// Runs `ccbench run PLAN --sim --shard SHARD --out OUT`.
pub fn shard(bench: &Bench, shard: &str, out: &str) -> Output {
    let plan = plan_file(bench, REPEAT);
    bench.run(&["run", &plan, "--sim", "--shard", shard, "--out", out])
}

/// Runs shards 1 to 3, and checks how they end.
pub fn three(bench: &Bench, out: &str) {
    for number in 1..=3 {
        let done = shard(bench, &format!("{number}/3"), out);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    }
}

pub fn merge(bench: &Bench, arguments: &[&str]) -> (Option<i32>, String) {
    let done = bench.run(&[&["merge"], arguments].concat());
    (done.status.code(), text(&done))
}

/// Returns the number of files below a folder.
pub fn count(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { count(&entry.path()) } else { 1 }).sum()
}

#[test]
fn merged_shards_are_equal_to_one_run() {
    let bench = Bench::new();
    three(&bench, "shards");
    assert!(!bench.path("results").exists(), "shards leave nothing there");
    let again = shard(&bench, "2/3", "shards");
    assert_eq!(again.status.code(), Some(0), "{}", text(&again));
    assert!(text(&again).contains("shard 2/3 of shards: 0 of "), "{}", text(&again));
    assert_eq!(count(&bench.path("shards/sessions")), 3, "an idle attempt is none");
    assert_eq!(count(&bench.path("shards/commits")), 2 * REPEAT as usize);
    for hidden in ["sessions/.DS_Store", "commits/point=0/._trial-01.json"] {
        bench.write(&format!("shards/{hidden}"), "of a file manager");
    }
    let (code, printed) = merge(&bench, &["shards"]);
    assert_eq!(code, Some(0), "{printed}");
    assert_equal(&tables_and_summaries(&bench), &WHOLE.with_summaries);
    assert!(!bench.results().join("backend.json").exists(), "only shards need it");
    let dir = bench.results().display().to_string();
    let verified = bench.run(&["verify", &dir]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified));
    let left = bench.run(&["run", "--resume", &dir, "--sim"]);
    assert_eq!(left.status.code(), Some(0), "{}", text(&left));
    assert!(text(&left).contains("nothing is left to run"), "{}", text(&left));
}

#[test]
fn missing_trials_are_named_by_shard_and_can_be_run_later() {
    let bench = Bench::new();
    for number in ["1/3", "3/3"] {
        assert_eq!(shard(&bench, number, "shards").status.code(), Some(0));
    }
    let (code, printed) = merge(&bench, &["shards"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("missing: shard 2/3 lacks "), "{printed}");
    assert!(bench.all_results().is_empty(), "nothing is merged");
    let (code, printed) = merge(&bench, &["shards", "--partial"]);
    assert_eq!(code, Some(1), "{printed}");
    let dir = bench.results().display().to_string();
    let resumed = bench.run(&["run", "--resume", &dir, "--sim"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed));
    assert_equal(&tables(&bench), &WHOLE.tables);
}

/// Two machines run the same shard.
#[test]
fn every_trial_is_committed_once_by_attempts_at_the_same_time() {
    let bench = Bench::new();
    let plan = plan_file(&bench, REPEAT);
    let attempts: Vec<_> = (0..3)
        .map(|_| {
            let arguments = ["run", &plan, "--sim", "--shard", "1/1", "--out", "shards"];
            let mut command = bench.command(&arguments);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for attempt in attempts {
        let done = attempt.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        let printed = text(&done);
        assert!(printed.contains("shard 1/1: 8 of 8 trials are committed"), "{printed}");
    }
    assert_eq!(count(&bench.path("shards/commits")), 8);
    let duplicates = count(&bench.path("shards/duplicates"));
    let (code, printed) = merge(&bench, &["shards"]);
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(printed.matches("their tables are equal").count(), duplicates, "{printed}");
    assert_equal(&tables(&bench), &WHOLE.tables);
}

/// SIGTERM, which schedulers send, ends the attempt. The next one runs what is left.
#[test]
fn a_terminated_shard_goes_on() {
    let bench = Bench::new();
    let plan = plan_file(&bench, MANY);
    let arguments = ["run", &plan, "--sim", "--jobs", "1", "--shard", "1/1", "--out", "shards"];
    let mut attempt = bench.spawn(&arguments);
    let commits = || count(&bench.path("shards/commits"));
    wait_for("two trials", SETUP_TIMEOUT, || commits() >= 2);
    let pid = Pid::from_raw(i32::try_from(attempt.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(attempt.wait().unwrap().code(), Some(143), "{}", bench.printed());
    let committed = commits();
    let done = bench.run(&arguments);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let left = format!("{} of {} trials are left", 2 * MANY as usize - committed, 2 * MANY);
    assert!(text(&done).contains(&left), "{left}: {}", text(&done));
    let (code, printed) = merge(&bench, &["shards"]);
    assert_eq!(code, Some(0), "{printed}");
    assert_equal(&tables(&bench), &UNINTERRUPTED);
}

/// Exit code 2: a scheduler must not try again.
#[test]
fn what_fails_again_exits_with_2() {
    let bench = Bench::new();
    assert_eq!(shard(&bench, "1/3", "shards").status.code(), Some(0));
    let plan = plan_file(&bench, REPEAT);
    let refused = |arguments: &[&str], message: &str| {
        let done = bench.run(&[&["run", &plan, "--sim"], arguments].concat());
        assert_eq!(done.status.code(), Some(2), "{}", text(&done));
        assert!(text(&done).contains(message), "{message}: {}", text(&done));
    };
    let other = ["--shard", "2/3", "--out", "shards", "--set", "seed=2"];
    refused(&other, "shards has shards of another plan");
    refused(&["--shard", "4/3"], "`4/3` is not a shard");
    refused(&["--shard", "1/3"], "--out <DIR>");
    refused(&["--shard", "auto", "--out", "shards"], "--shard auto needs SLURM_ARRAY_TASK_ID");
    refused(
        &["--shard", "1/3", "--out", "ftp://bucket"],
        "`ftp://bucket` is not the URL of a bucket",
    );
    refused(&["--out", "s3://bucket"], "only shards are put into a bucket");
    for (place, message) in [("nowhere", "is not a directory"), ("shards/commits", "has no shards")]
    {
        let (code, printed) = merge(&bench, &[place]);
        assert_eq!(code, Some(2), "{printed}");
        assert!(printed.contains(message), "{printed}");
    }
}

/// The tasks of an array start at the same time, when no trial is committed yet.
#[test]
fn the_first_attempt_decides_the_backend() {
    let bench = Bench::new();
    assert_eq!(shard(&bench, "1/3", "shards").status.code(), Some(0));
    for folder in ["commits", "files", "sessions"] {
        std::fs::remove_dir_all(bench.path(&format!("shards/{folder}"))).unwrap();
    }
    let backend = bench.path("shards/run/backend.json");
    let own = std::fs::read_to_string(&backend).unwrap();
    let other = seal(r#"{"attempt":"a","backend":{"kind":"testbed"}}"#);
    std::fs::write(&backend, other).unwrap();
    let refused = shard(&bench, "1/3", "shards");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("attempt a in shards ran on another"), "{}", text(&refused));
    assert_eq!(count(&bench.path("shards/sessions")), 0, "no trial runs");
    std::fs::write(&backend, own).unwrap();
    three(&bench, "shards");
    // A store of a version that did not record the backend.
    std::fs::remove_file(&backend).unwrap();
    let (code, printed) = merge(&bench, &["shards"]);
    assert_eq!(code, Some(0), "{printed}");
}

/// Returns the decisions in `run.json`.
fn decisions(bench: &Bench) -> serde_json::Value {
    let record = record(bench);
    assert_eq!(record["status"], "complete");
    serde_json::json!([record["decisions"], record["planned_trials"]])
}

/// Rules end the repetition of each point, and a comparison that of two points, independent of shards and attempts.
#[test]
fn rules_are_decided_as_on_one_machine() {
    for (rest, groups) in [("", 2), (COMPARED, 1)] {
        let plan = PLAN.replace("seed = 1", &format!("seed = 1\n{LOOSE}")) + rest;
        let whole = Bench::new();
        let file = whole.write("plan.toml", &plan).display().to_string();
        let done = whole.run(&["run", &file, "--sim"]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        let bench = Bench::new();
        let file = bench.write("plan.toml", &plan).display().to_string();
        let run = |shard: &str| {
            bench.run(&["run", &file, "--sim", "--jobs", "1", "--shard", shard, "--out", "shards"])
        };
        let mut used = 0;
        for number in ["1/3", "2/3", "3/3"] {
            let done = run(number);
            assert_eq!(done.status.code(), Some(0), "{}", text(&done));
            used += usize::from(!text(&done).contains(": 0 of 0 trials are left"));
            let again = run(number);
            assert_eq!(again.status.code(), Some(0), "{}", text(&again));
            assert!(text(&again).contains(": 0 of "), "{}", text(&again));
        }
        assert_eq!(used, groups, "points that are compared are in one shard");
        // An attempt at a trial that a lost one has committed: a decision needs its values.
        let last = std::fs::read_dir(bench.path("shards/commits/point=0")).unwrap().count();
        assert!(last >= 5, "{last}");
        std::fs::remove_file(bench.path(&format!("shards/commits/point=0/trial-{last:02}.json")))
            .unwrap();
        let (code, printed) = merge(&bench, &["shards"]);
        assert_eq!(code, Some(1), "{printed}");
        assert!(printed.contains(&format!("point 0 repetition {last}")), "{printed}");
        for number in ["1/3", "2/3", "3/3"] {
            let done = run(number);
            assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        }
        let (code, printed) = merge(&bench, &["shards"]);
        assert_eq!(code, Some(0), "{printed}");
        assert_equal(&tables_and_summaries(&bench), &tables_and_summaries(&whole));
        assert_eq!(decisions(&bench), decisions(&whole));
    }
}

/// The resolved plan has no digests of files that are factors.
#[test]
fn all_machines_must_have_the_same_traces() {
    let bench = Bench::new();
    let plan = PLAN
        .replace("rate = \"20mbit\"", "trace = { file = \"a.csv\", on_end = \"loop\" }")
        .replace("[matrix]", "[matrix]\n\"links.bottleneck.trace.file\" = [\"a.csv\", \"b.csv\"]");
    let plan = bench.write("plan.toml", &plan).display().to_string();
    let trace = |name: &str, rate: u32| {
        bench.write(name, &format!("rate_mbit,dwell_s\n{rate},1\n20,2\n"));
    };
    trace("a.csv", 10);
    trace("b.csv", 5);
    let shard =
        |shard: &str| bench.run(&["run", &plan, "--sim", "--shard", shard, "--out", "shards"]);
    let done = shard("1/2");
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    trace("b.csv", 6);
    let refused = shard("2/2");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(
        text(&refused).contains("shards/run/traces/b.csv differs from the file on this machine"),
        "{}",
        text(&refused)
    );
    trace("b.csv", 5);
    let done = shard("2/2");
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let (code, printed) = merge(&bench, &["shards"]);
    assert_eq!(code, Some(0), "{printed}");
}

/// What the store holds is decisive, and damage in it is found.
#[test]
fn a_damaged_file_names_its_shard() {
    let bench = Bench::new();
    three(&bench, "shards");
    let commit = |trial: u32| bench.path(&format!("shards/commits/point=0/trial-0{trial}.json"));
    let second = std::fs::read(commit(2)).unwrap();
    std::fs::copy(commit(1), commit(2)).unwrap();
    let (code, printed) = merge(&bench, &["shards"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("point=0/trial-02.json is damaged; remove it"), "{printed}");
    std::fs::write(commit(2), second).unwrap();
    let attempt = std::fs::read_dir(bench.path("shards/files")).unwrap().next().unwrap().unwrap();
    let table = attempt.path().join("tables/flow_samples");
    let file = std::fs::read_dir(std::fs::read_dir(table).unwrap().next().unwrap().unwrap().path());
    let file = file.unwrap().next().unwrap().unwrap().path().join("part-0.parquet");
    let length = std::fs::read(&file).unwrap().len();
    std::fs::write(&file, vec![0; length]).unwrap();
    let (code, printed) = merge(&bench, &["shards"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("its SHA-256 differs"), "{printed}");
    assert!(printed.contains("and run shard "), "{printed}");
    std::fs::remove_file(&file).unwrap();
    let (code, printed) = merge(&bench, &["shards"]);
    assert_eq!(code, Some(1), "{printed}");
    let missing = ["part-0.parquet is damaged (missing); remove commits/", "and run shard "];
    assert!(missing.iter().all(|part| printed.contains(part)), "{printed}");
    assert_eq!(count(&bench.path("results")), 0, "nothing is left");
}

#[test]
fn a_bucket_holds_shards_too() {
    let Some(server) = S3Server::start() else { return };
    server.create_bucket("ccbench");
    let bench = Bench::new();
    let plan = plan_file(&bench, REPEAT);
    let url = "s3://ccbench/runs/one";
    let with_server = |arguments: &[&str]| {
        let mut command = bench.command(arguments);
        command.envs(server.environment()).output().unwrap()
    };
    for number in 1..=3 {
        let number = format!("{number}/3");
        let arguments = ["run", &plan, "--sim", "--shard", &number, "--out", url];
        for left in [true, false] {
            let done = with_server(&arguments);
            assert_eq!(done.status.code(), Some(0), "{}", text(&done));
            assert_eq!(text(&done).contains(": 0 of "), !left, "{}", text(&done));
        }
    }
    let done = with_server(&["merge", url]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    assert_equal(&tables_and_summaries(&bench), &WHOLE.with_summaries);
    let other =
        with_server(&["run", &plan, "--sim", "--set", "seed=2", "--shard", "1/3", "--out", url]);
    assert_eq!(other.status.code(), Some(2), "{}", text(&other));
    let empty = with_server(&["merge", "s3://ccbench/runs/two"]);
    assert_eq!(empty.status.code(), Some(2), "{}", text(&empty));
    assert!(text(&empty).contains("has no shards"), "{}", text(&empty));
}

/// A stand-in for Slurm. `sbatch` runs the tasks of the array one after another, but loses task 2 of the first job. `squeue` fails once
/// with what is in the file `down`, then prints what is in `queue` once, and then nothing. `make test-slurm` uses a real Slurm.
fn fake_slurm(bench: &Bench) -> String {
    let sbatch = r#"#!/bin/sh
echo "$@" >>options
cat >script
jobs=$(cat jobs 2>/dev/null || echo 0)
jobs=$((jobs + 1))
echo $jobs >jobs
for task in $(sed -n 's/^#SBATCH --array=//p' script | tr , ' '); do
    for id in $(seq "${task%-*}" "${task#*-}"); do
        [ "$jobs-$id" = 1-2 ] || SLURM_JOB_ID=$jobs SLURM_ARRAY_TASK_ID=$id sh script >>tasks 2>&1
    done
done
echo $jobs
"#;
    let squeue = r#"#!/bin/sh
echo "$@" >>asked
[ ! -e down ] || { cat down >&2; rm down; exit 1; }
[ ! -e queue ] || cat queue
rm -f queue
"#;
    for (name, script) in [("bin/sbatch", sbatch), ("bin/squeue", squeue)] {
        bench.program(name, script);
    }
    format!("{}:{}", bench.path("bin").display(), std::env::var("PATH").unwrap())
}

#[test]
fn submit_runs_the_array_and_what_it_lost_and_merges() {
    let bench = Bench::new();
    let (plan, path) = (plan_file(&bench, REPEAT), fake_slurm(&bench));
    let submit = |arguments: &[&str]| {
        let fixed = ["submit", &plan, "--slurm", "--sim", "--shards", "3", "--out", "shards"];
        let mut command = bench.command(&[&fixed[..], arguments].concat());
        command.env("PATH", &path).output().unwrap()
    };
    let script = submit(&["--dry-run"]);
    assert_eq!(script.status.code(), Some(0), "{}", text(&script));
    assert!(text(&script).contains("\n#SBATCH --array=1-3\n"), "{}", text(&script));
    assert!(!bench.path("jobs").exists(), "nothing is submitted");
    let done = submit(&["--", "--partition=short"]);
    let tasks = std::fs::read_to_string(bench.path("tasks")).unwrap_or_default();
    assert_eq!(done.status.code(), Some(0), "{}\n{tasks}", text(&done));
    let options = std::fs::read_to_string(bench.path("options")).unwrap();
    assert_eq!(options, "--parsable --partition=short\n".repeat(2));
    let script = std::fs::read_to_string(bench.path("script")).unwrap();
    assert!(script.contains("\n#SBATCH --array=2\n"), "only what is missing: {script}");
    assert_equal(&tables(&bench), &WHOLE.tables);
}

#[test]
fn submit_waits_for_a_job_of_an_earlier_command() {
    let bench = Bench::new();
    let (plan, path) = (plan_file(&bench, REPEAT), fake_slurm(&bench));
    let submit = |arguments: &[&str]| {
        let fixed = ["submit", &plan, "--slurm", "--sim", "--shards", "1", "--out", "shards"];
        let mut command = bench.command(&[&fixed[..], arguments].concat());
        command.env("PATH", &path).output().unwrap()
    };
    std::fs::create_dir_all(bench.path("shards/jobs")).unwrap();
    bench.write("shards/jobs/7", "7");
    bench.write("queue", "RUNNING\n");
    let outage = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)";
    bench.write("down", outage);
    let done = submit(&[]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let printed = text(&done);
    assert!(printed.contains(outage) && printed.contains("answers again after"), "{printed}");
    let asked = std::fs::read_to_string(bench.path("asked")).unwrap();
    let jobs: Vec<&str> = asked.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(jobs, ["7", "7", "7", "1"]);
    assert_eq!(count(&bench.path("shards/jobs")), 2);
    // A plan whose trials have the same names.
    let other = submit(&["--set", "seed=2"]);
    assert_eq!(other.status.code(), Some(2), "{}", text(&other));
    assert!(text(&other).contains("has shards of another plan"), "{}", text(&other));
}
