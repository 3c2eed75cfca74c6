//! Shards as scheduler jobs: Slurm's script and the parsing of its answers, HyperQueue's command line, and the manifest for
//! Kubernetes. This module only makes and parses text; [`crate::commands::submit`] starts the programs.

use std::collections::BTreeSet;
use std::time::Duration;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule;
use serde_json::{Value, json};

pub mod outage;

/// Wall-clock time that a shard needs besides its trials: start, and the first and last access to the store.
const SHARD_OVERHEAD: Duration = Duration::from_secs(300);
/// Wall-clock time that a trial needs besides its own length.
const TRIAL_OVERHEAD: Duration = Duration::from_secs(10);
/// Margin for the length of a trial: links settle, machines differ.
const TIME_FACTOR: f64 = 1.25;
/// The same margin for the lab, whose clock is slower than the machine's.
const LAB_TIME_FACTOR: f64 = 20.0;
/// Number of restarts after which HyperQueue (lost workers) and Kubernetes (failures) give up on a shard.
const MAX_RESTARTS: u32 = 5;

/// Where the trials of a job run. This decides what the job needs of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Real time in network namespaces: nothing else may run on the machine.
    Testbed,
    /// A virtual clock: the machine may be loaded.
    Lab,
    /// Like the lab, but most plans run at least as fast as real time.
    Simulator,
}

/// Jobs that run all shards of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The plan's name.
    pub name: String,
    /// Where the trials run.
    pub kind: JobKind,
    /// The number of shards.
    pub shards: u32,
    /// `ccbench` and its arguments without `--shard`.
    pub command: Vec<String>,
    /// Time limit of a shard.
    pub limit: Duration,
    /// Directory of the output files; `None` is the current one.
    pub logs: Option<String>,
    /// Number of concurrent trials, if given.
    pub cpus: Option<u32>,
    /// Whether the plan names agents. Then all shards use the same nodes, one shard at a time.
    pub shares_nodes: bool,
}

/// Returns the time limit of a shard: the length of its trials and of the pauses between them, with a margin. A shard that is stopped at
/// the limit continues when it is submitted again.
pub fn time_limit(plan: &CheckedPlan, shards: u32, kind: JobKind) -> Duration {
    let numbers = schedule::partition(plan, shards);
    let lengths = plan.trial_lengths();
    // The lab and the simulator have no pauses.
    let gap = match kind {
        JobKind::Testbed => plan.plan().gap.duration(),
        JobKind::Lab | JobKind::Simulator => Duration::ZERO,
    };
    let mut loads = vec![Duration::ZERO; shards as usize];
    for (trial, number) in schedule::trials(plan).iter().zip(numbers) {
        let load = loads.get_mut(number.saturating_sub(1) as usize);
        if let (Some(load), Some(length)) = (load, lengths.get(trial.point_id as usize)) {
            *load += length.duration() + gap + TRIAL_OVERHEAD;
        }
    }
    let factor = if kind == JobKind::Lab { LAB_TIME_FACTOR } else { TIME_FACTOR };
    loads.into_iter().max().unwrap_or_default().mul_f64(factor) + SHARD_OVERHEAD
}

/// Returns the shards with trials that are not settled, that is, neither committed nor unnecessary.
pub fn shards_left(plan: &CheckedPlan, shards: u32, settled: &BTreeSet<(u32, u16)>) -> Vec<u32> {
    let numbers = schedule::partition(plan, shards).into_iter();
    let trials = schedule::trials(plan).into_iter().zip(numbers);
    let left = trials.filter(|(trial, _)| !settled.contains(&(trial.point_id, trial.trial)));
    left.map(|(_, number)| number).collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Quotes an argument for a POSIX shell.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

fn quoted_command(command: &[String]) -> String {
    let quoted: Vec<String> = command.iter().map(|argument| quoted(argument)).collect();
    quoted.join(" ")
}

/// Formats numbers for Slurm's `--array`: `1-3,5`.
pub fn array(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

impl Job {
    /// Returns the name without characters that are special in a script or a manifest.
    pub fn plain_name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = self.name.chars().map(plain).take(40).collect();
        format!("ccbench-{}", name.trim_matches('-')).trim_end_matches('-').to_owned()
    }

    /// Returns the `sbatch` script of a job array for these shards.
    pub fn slurm_script(&self, shards: &[u32]) -> String {
        let minutes = self.limit.as_secs().div_ceil(60);
        let logs = self.logs.as_ref().map(|logs| format!("{logs}/")).unwrap_or_default();
        // `%` is special in the names of output files.
        let logs = logs.replace('%', "%%");
        let share = match self.kind {
            JobKind::Testbed => "--exclusive".to_owned(),
            JobKind::Lab | JobKind::Simulator => {
                format!("--cpus-per-task={}", self.cpus.unwrap_or(1))
            }
        };
        let at_a_time = if self.shares_nodes { "%1" } else { "" };
        let mut lines = vec!["#!/bin/sh".to_owned()];
        let options = [
            format!("--job-name={}", self.plain_name()),
            format!("--array={}{at_a_time}", array(shards)),
            format!("--time={minutes}"),
            "--requeue".to_owned(),
            "--open-mode=append".to_owned(),
            // Slurm sends SIGTERM to ccbench itself, which replaces the shell. That leaves half a minute to discard the running
            // trials.
            "--signal=B:TERM@30".to_owned(),
            format!("--output={logs}slurm-%A_%a.log"),
            share,
        ];
        lines.extend(options.map(|option| format!("#SBATCH {}", slurm_quoted(&option))));
        let command = quoted_command(&self.command);
        lines.push(format!("exec {command} --shard \"$SLURM_ARRAY_TASK_ID/{}\"\n", self.shards));
        lines.join("\n")
    }

    /// Returns the command that submits all shards to HyperQueue.
    pub fn hyperqueue_command(&self) -> String {
        let (shards, seconds) = (self.shards, self.limit.as_secs());
        let cpus = match self.kind {
            JobKind::Testbed => "all".to_owned(),
            JobKind::Lab | JobKind::Simulator => self.cpus.unwrap_or(1).to_string(),
        };
        format!(
            "hq submit --name {} --array 1-{shards} --cpus {cpus} --crash-limit {MAX_RESTARTS} --time-limit {seconds}s -- {} --shard \
             auto/{shards}",
            self.plain_name(),
            quoted_command(&self.command)
        )
    }

    /// Returns the manifest of an Indexed Job and of a ConfigMap with the plan, for `kubectl apply -f`. The plan is
    /// `/plan/plan.toml`. The command's first word is left out, because it is the image's entry point.
    pub fn kubernetes_manifest(&self, image: &str, plan_text: &str) -> Value {
        let name = self.plain_name();
        let shard = ["--shard".to_owned(), format!("auto/{}", self.shards)];
        let arguments: Vec<&String> = self.command.iter().skip(1).chain(&shard).collect();
        let container = json!({
            "name": "ccbench",
            "image": image,
            "args": arguments,
            "volumeMounts": [{ "name": "plan", "mountPath": "/plan" }],
            // The credentials and the endpoint of the store: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL.
            "envFrom": [{ "secretRef": { "name": "ccbench-store", "optional": true } }],
            "resources": { "requests": { "cpu": self.cpus.unwrap_or(1).to_string() } },
        });
        let config = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
            "data": { "plan.toml": plan_text },
        });
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name },
            "spec": {
                "completionMode": "Indexed",
                "completions": self.shards,
                "parallelism": self.shards,
                "backoffLimitPerIndex": MAX_RESTARTS,
                "podFailurePolicy": { "rules": [
                    // The same command would fail again.
                    { "action": "FailIndex", "onExitCodes": { "operator": "In", "values": [2] } },
                    // SIGTERM is not a failure of the shard.
                    { "action": "Ignore", "onExitCodes": { "operator": "In", "values": [143] } },
                ] },
                "template": { "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 30,
                    "activeDeadlineSeconds": self.limit.as_secs(),
                    "containers": [container],
                    "volumes": [{ "name": "plan", "configMap": { "name": name } }],
                } },
            },
        });
        json!({ "apiVersion": "v1", "kind": "List", "items": [config, job] })
    }
}

/// Quotes an option of an `#SBATCH` line, which Slurm splits at spaces.
fn slurm_quoted(option: &str) -> String {
    if option.contains(char::is_whitespace) { format!("\"{option}\"") } else { option.to_owned() }
}

/// Returns the job ID in the output of `sbatch --parsable`: `12` or `12;cluster`.
pub fn submitted_job(output: &str) -> Option<&str> {
    let id = output.trim().split(';').next()?;
    (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())).then_some(id)
}

/// Returns whether `sbatch` could not reach Slurm's controller. Then Slurm has no job, and `sbatch` can be started again.
pub fn is_unreachable(stderr: &str) -> bool {
    stderr.contains("Unable to contact slurm controller (connect failure)")
}

/// Returns whether Slurm's controller did not answer, so that the same command may succeed later. If the command was `sbatch`,
/// Slurm may have the job nevertheless. The texts are from `slurm_errno.c` and the C library.
pub fn is_outage(stderr: &str) -> bool {
    // Earlier lines are warnings.
    let last = stderr.trim_end().lines().last().unwrap_or_default();
    let marks = [
        "Unable to contact slurm controller",
        "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
        "Communication connection failure",
        "Communication send failure",
        "Communication receive failure",
        "Slurm backup controller in standby mode",
        "Connection refused",
        "Connection reset by peer",
        "Connection timed out",
        "No route to host",
        "Resource temporarily unavailable",
    ];
    marks.iter().any(|mark| last.contains(mark))
}

/// Returns whether `sbatch` found no configuration, so that it knows no controller.
pub fn has_no_configuration(stderr: &str) -> bool {
    let marks = ["configuration source", "configuration file", "slurm.conf"];
    marks.iter().any(|mark| stderr.contains(mark))
}

/// Tasks of a job array that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueState {
    /// Tasks that run, start or complete.
    pub running: u32,
    /// Tasks that wait.
    pub pending: u32,
}

impl QueueState {
    /// Returns whether every task has ended.
    pub const fn is_empty(self) -> bool {
        self.running == 0 && self.pending == 0
    }
}

/// Parses the output of `squeue --noheader --array --format=%T`: one line per task, with its state. Slurm keeps ended tasks for a
/// while.
pub fn queue_state(output: &str) -> QueueState {
    let mut state = QueueState::default();
    for line in output.lines() {
        match line.trim() {
            "RUNNING" | "COMPLETING" | "CONFIGURING" | "STAGE_OUT" | "SIGNALING" | "STOPPED"
            | "SUSPENDED" | "RESIZING" => state.running += 1,
            "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
            | "RESV_DEL_HOLD" => state.pending += 1,
            _ => {}
        }
    }
    state
}

#[cfg(test)]
mod kubernetes;

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::check;
    use ccbench_tests::plans;

    use super::*;

    pub(super) fn job(kind: JobKind) -> Job {
        let command = ["/opt/ccbench", "run", "/home/a b/it's.toml", "--out", "/data/x"];
        Job {
            name: "L4S sweep/1".into(),
            kind,
            shards: 5,
            command: command.map(str::to_owned).to_vec(),
            limit: Duration::from_secs(3601),
            logs: Some("/data/x/logs".into()),
            cpus: None,
            shares_nodes: false,
        }
    }

    #[test]
    fn the_script_of_an_array_runs_one_shard_per_task() {
        let script = job(JobKind::Testbed).slurm_script(&[1, 2, 3, 5]);
        let expected = "#!/bin/sh
#SBATCH --job-name=ccbench-l4s-sweep-1
#SBATCH --array=1-3,5
#SBATCH --time=61
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@30
#SBATCH --output=/data/x/logs/slurm-%A_%a.log
#SBATCH --exclusive
exec /opt/ccbench run '/home/a b/it'\\''s.toml' --out /data/x --shard \"$SLURM_ARRAY_TASK_ID/5\"
";
        assert_eq!(script, expected);
        let shared = Job { cpus: Some(4), logs: None, ..job(JobKind::Simulator) };
        let script = shared.slurm_script(&[2]);
        assert!(script.contains("\n#SBATCH --cpus-per-task=4\n"), "{script}");
        assert!(script.contains("\n#SBATCH --output=slurm-%A_%a.log\n"), "{script}");
        assert!(!script.contains("--exclusive"), "{script}");
        let agents = Job { shares_nodes: true, ..job(JobKind::Testbed) };
        let script = agents.slurm_script(&[1, 2, 3, 5]);
        assert!(script.contains("\n#SBATCH --array=1-3,5%1\n"), "{script}");
    }

    #[test]
    fn hyperqueue_and_kubernetes_number_the_shards() {
        let command = job(JobKind::Lab).hyperqueue_command();
        let expected = "hq submit --name ccbench-l4s-sweep-1 --array 1-5 --cpus 1 --crash-limit 5 --time-limit 3601s -- /opt/ccbench run \
                        '/home/a b/it'\\''s.toml' --out /data/x --shard auto/5";
        assert_eq!(command, expected);
        let manifest =
            job(JobKind::Lab).kubernetes_manifest("registry.example/ccbench:1", "name = 1");
        assert_eq!(manifest["items"][0]["data"]["plan.toml"], "name = 1");
        let spec = &manifest["items"][1]["spec"];
        assert_eq!((&spec["completions"], &spec["completionMode"]), (&json!(5), &json!("Indexed")));
        let arguments = &spec["template"]["spec"]["containers"][0]["args"];
        let expected = ["run", "/home/a b/it's.toml", "--out", "/data/x", "--shard", "auto/5"];
        assert_eq!(arguments, &json!(expected));
    }

    #[test]
    fn ranges_of_an_array() {
        assert_eq!(array(&[]), "");
        assert_eq!(array(&[4]), "4");
        assert_eq!(array(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
    }

    #[test]
    fn answers_of_slurm() {
        assert_eq!(submitted_job("12\n"), Some("12"));
        assert_eq!(submitted_job("12;cluster\n"), Some("12"));
        for output in ["", "\n", "Submitted batch job 12", ";x"] {
            assert_eq!(submitted_job(output), None, "{output}");
        }
        let refused = "sbatch: error: Batch job submission failed: ";
        let unreachable = format!("{refused}Unable to contact slurm controller (connect failure)");
        assert!(is_unreachable(&unreachable));
        // Slurm may have the job.
        let lost = format!("{refused}Socket timed out on send/recv operation");
        assert!(!is_unreachable(&lost) && !is_unreachable("sbatch: error: invalid partition"));
        let partial = format!("{refused}Unable to contact slurm controller (send failure)");
        let down =
            "sbatch: error: slurm_set_addr: failed\nsbatch: error: connect: Connection refused\n";
        for outage in [unreachable.as_str(), &lost, &partial, down] {
            assert!(is_outage(outage), "{outage}");
        }
        // A real refusal, after a message that a part of Slurm was unreachable.
        let invalid =
            format!("{down}{refused}Invalid account or account/partition combination specified");
        assert!(!is_outage(&invalid) && !is_outage(""), "{invalid}");
        for none in [
            "sbatch: fatal: Could not establish a configuration source",
            "sbatch: fatal: Unable to process configuration file",
            "sbatch: error: s_p_parse_file: unable to status file /etc/slurm/slurm.conf: No such file or directory",
        ] {
            assert!(has_no_configuration(none), "{none}");
        }
        assert!(!has_no_configuration("sbatch: error: invalid partition specified: short"));
        let state = queue_state("RUNNING\nRUNNING\n COMPLETING\nPENDING\nCOMPLETED\nFAILED\n");
        assert_eq!(state, QueueState { running: 3, pending: 1 });
        assert!(queue_state("COMPLETED\n").is_empty() && queue_state("").is_empty());
    }

    fn plan() -> CheckedPlan {
        plan_with("")
    }

    /// Returns the plan with another key.
    fn plan_with(key: &str) -> CheckedPlan {
        let head = format!("name = \"limit\"\nrepeat = 3\n{key}");
        let text = plans::of_lengths(&head, &["10s", "30s"]);
        check::read(&text, &[]).unwrap().0
    }

    #[test]
    fn shards_without_trials_that_are_left_are_not_submitted_again() {
        let plan = plan();
        assert_eq!(shards_left(&plan, 3, &BTreeSet::new()), [1, 2, 3]);
        let shard = schedule::Shard::new(2, 3).unwrap();
        let mut committed: BTreeSet<(u32, u16)> = schedule::shard_trials(&plan, shard)
            .iter()
            .map(|trial| (trial.point_id, trial.trial))
            .collect();
        assert_eq!(shards_left(&plan, 3, &committed), [1, 3]);
        let first = *committed.first().unwrap();
        committed.remove(&first);
        assert_eq!(shards_left(&plan, 3, &committed), [1, 2, 3]);
        // More shards than trials.
        assert_eq!(shards_left(&plan, 100, &BTreeSet::new()).len(), 6);
    }

    #[test]
    fn the_time_limit_is_that_of_the_longest_shard() {
        let plan = plan();
        let seconds =
            |shards, kind| (time_limit(&plan, shards, kind) - SHARD_OVERHEAD).as_secs_f64();
        // The phases and the overhead of six trials.
        let all = seconds(1, JobKind::Testbed);
        assert!((all / TIME_FACTOR - 180.0).abs() < 10.0, "{all}");
        let half = seconds(2, JobKind::Simulator);
        assert!(half < 0.7 * all && half >= 0.5 * all, "{half} of {all}");
        assert!(seconds(1, JobKind::Lab) > 10.0 * all);
        let paused = plan_with("gap = \"10min\"");
        let pauses = |kind| {
            let limits = [&paused, &plan].map(|plan| time_limit(plan, 1, kind).as_secs_f64());
            (limits[0] - limits[1]).round()
        };
        // Six pauses.
        assert_eq!(pauses(JobKind::Testbed), 3600.0 * TIME_FACTOR);
        assert_eq!((pauses(JobKind::Lab), pauses(JobKind::Simulator)), (0.0, 0.0));
    }
}
