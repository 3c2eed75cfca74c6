//! Tests what `ccbench submit` prints for schedulers that it does not control itself.

use ccbench_tests::{Bench, source_root, text};

use crate::{err, out};

fn submit(arguments: &[&str]) -> std::process::Output {
    let plan = source_root().join("plans/quickstart.toml");
    let plan = plan.to_string_lossy();
    let fixed = ["submit", &plan, "--sim", "--set", "repeat=4"];
    Bench::new().run(&[&fixed[..], arguments].concat())
}

#[test]
fn hyperqueue_gets_a_command() {
    let done = submit(&["--hyperqueue", "--shards", "3", "--out", "s3://bucket/runs"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let command = out(&done);
    assert!(
        command.starts_with("hq submit --name ccbench-quickstart --array 1-3 --cpus 1 "),
        "{command}"
    );
    let end = " --out s3://bucket/runs --sim --jobs 1 --set repeat=4 --shard auto/3\n";
    assert!(command.ends_with(end), "{command}");
}

#[test]
fn kubernetes_gets_a_manifest() {
    let image = ["--kubernetes", "--image", "ccbench:1"];
    let done = submit(&[&image[..], &["--shards", "100", "--out", "s3://bucket"]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let manifest: serde_json::Value = serde_json::from_str(&out(&done)).unwrap();
    let job = &manifest["items"][1];
    assert_eq!((&job["kind"], &job["spec"]["completions"]), (&"Job".into(), &4.into()));
    let plan = manifest["items"][0]["data"]["plan.toml"].as_str().unwrap();
    assert!(plan.contains("quickstart"), "{plan}");
    let directory = submit(&[&image[..], &["--out", "shards"]].concat());
    assert_eq!(directory.status.code(), Some(2), "{}", text(&directory));
    assert!(err(&directory).contains("give --out s3://BUCKET/PREFIX"), "{}", text(&directory));
    let plan = source_root().join("plans/quickstart.toml").display().to_string();
    let real_time = ["submit", &plan, "--kubernetes", "--image", "x", "--out", "s3://bucket"];
    let real_time = Bench::new().run(&real_time);
    assert_eq!(real_time.status.code(), Some(2), "{}", text(&real_time));
    assert!(err(&real_time).contains("add --sim or --lab"), "{}", text(&real_time));
}

#[test]
fn shards_with_agents_run_one_after_the_other() {
    let plan = source_root().join("tests/plans/valid/testbed.toml").display().to_string();
    let submit = |arguments: &[&str]| {
        let fixed = ["submit", &plan, "--set", "repeat=4", "--shards", "2", "--out", "shards"];
        Bench::new().run(&[&fixed[..], arguments].concat())
    };
    let script = submit(&["--slurm", "--dry-run"]);
    assert_eq!(script.status.code(), Some(0), "{}", text(&script));
    assert!(out(&script).contains("\n#SBATCH --array=1-2%1\n"), "{}", text(&script));
    assert!(err(&script).contains("one run at a time"), "{}", text(&script));
    let refused = submit(&["--hyperqueue"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(err(&refused).contains("--shards 1"), "{}", text(&refused));
}

#[test]
fn a_slurm_without_a_configuration_is_not_available() {
    let bench = Bench::new();
    let answer = "sbatch: fatal: Could not establish a configuration source";
    let sbatch = bench.program("sbatch", &format!("#!/bin/sh\necho '{answer}' >&2\nexit 1\n"));
    let plan = source_root().join("plans/quickstart.toml").display().to_string();
    let mut command = bench.command(&["submit", &plan, "--sim", "--slurm", "--out", "a/shards"]);
    let done = command.env("PATH", sbatch.parent().unwrap()).output().unwrap();
    assert_eq!(done.status.code(), Some(3), "{}", text(&done));
    assert!(err(&done).contains(answer) && err(&done).contains("sinfo"), "{}", text(&done));
    assert!(!bench.path("a/shards/logs").exists(), "no job, no logs");
}

#[test]
fn a_slurm_that_does_not_answer_is_not_available() {
    let bench = Bench::new();
    let answer =
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation";
    let sbatch = bench.program("sbatch", &format!("#!/bin/sh\necho '{answer}' >&2\nexit 1\n"));
    let plan = source_root().join("plans/quickstart.toml").display().to_string();
    let mut command = bench.command(&["submit", &plan, "--sim", "--slurm", "--out", "shards"]);
    let done = command.env("PATH", sbatch.parent().unwrap()).output().unwrap();
    assert_eq!(done.status.code(), Some(3), "{}", text(&done));
    let remedy = "squeue --me --name=ccbench-quickstart";
    assert!(err(&done).contains(answer) && err(&done).contains(remedy), "{}", text(&done));
    assert!(bench.path("shards/logs").exists(), "a job may need it");
}

#[test]
fn an_error_of_squeue_is_not_waited_for() {
    let bench = Bench::new();
    let sbatch = bench.program("bin/sbatch", "#!/bin/sh\necho 7\n");
    let answer = "slurm_load_jobs error: Invalid user id";
    bench.program("bin/squeue", &format!("#!/bin/sh\necho '{answer}' >&2\nexit 1\n"));
    let plan = source_root().join("plans/quickstart.toml").display().to_string();
    let mut command = bench.command(&["submit", &plan, "--sim", "--slurm", "--out", "shards"]);
    let done = command.env("PATH", sbatch.parent().unwrap()).output().unwrap();
    assert_eq!(done.status.code(), Some(3), "{}", text(&done));
    assert!(err(&done).contains(answer) && err(&done).contains("job 7"), "{}", text(&done));
    assert!(bench.path("shards/jobs/7").exists(), "the next command finds the job");
}

/// The next command would submit the same shards again.
#[test]
fn a_job_that_cannot_be_recorded_is_named() {
    let bench = Bench::new();
    let sbatch = bench.program("sbatch", "#!/bin/sh\n: >shards/jobs\necho 7\n");
    let plan = source_root().join("plans/quickstart.toml").display().to_string();
    let mut command = bench.command(&["submit", &plan, "--sim", "--slurm", "--out", "shards"]);
    let done = command.env("PATH", sbatch.parent().unwrap()).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{}", text(&done));
    for part in ["job 7: ", "job 7 is in Slurm's queue, but", "shards/jobs", "`scancel 7`"] {
        assert!(err(&done).contains(part), "{part}: {}", text(&done));
    }
}

#[test]
fn a_scheduler_is_named() {
    let done = submit(&[]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(err(&done).contains("--slurm"), "{}", text(&done));
}
