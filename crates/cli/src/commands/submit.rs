//! `ccbench submit`: runs the shards of a plan as jobs of a scheduler.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use ccbench_proto::plan::Engine;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::{resolve, schedule};
use ccbench_results::shard::{COMMITS, PLAN_KEY, trial_of_key};
use ccbench_store::ShardStore;

use self::error::SubmitError;
use super::merge;
use crate::args::RunOptions;
use crate::args::shard::MergeArgs;
use crate::args::submit::SubmitArgs;
use crate::clock;
use crate::cluster::outage::{self, Outage, Unanswered};
use crate::cluster::{
    Job, JobKind, QueueState, has_no_configuration, is_outage, is_unreachable, queue_state,
    shards_left, submitted_job, time_limit,
};
use crate::console::{message, print, print_json};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::file::{FileError, is_missing};
use crate::lab::engine;
use crate::plan_source::{LoadedPlan, PlanSource};
use crate::runtime::block_on;
use crate::shard::{ShardRunError, rules_after};

pub mod error;

/// Default number of shards.
const SHARDS: u32 = 8;
/// Time between two queries of the queue and the store.
const POLL: Duration = Duration::from_secs(5);
/// Folder of the store with one object per submitted job.
const JOBS: &str = "jobs";

/// Runs the command.
///
/// # Errors
/// The plan is invalid, or the scheduler or the store is not available.
pub fn run(args: SubmitArgs) -> Result<ExitCode, CliError> {
    let RunOptions { lab, sim, .. } = args.options;
    let source = PlanSource::read(&args.plan)?.for_backend(lab, sim);
    let sets = source.sets(&args.sets, args.options.quick)?;
    let LoadedPlan { text, plan, traces, ccs } = source.load(&sets)?;
    let job = job(&args, &plan)?;
    if args.hyperqueue {
        if job.shares_nodes && job.shards > 1 {
            return Err(SubmitError::SharedAgents.into());
        }
        print(&format!("{}\n", job.hyperqueue_command()));
        return Ok(ExitCode::Success);
    }
    if let Some(image) = &args.image {
        let out = args.options.out.to_string_lossy();
        if !traces.is_empty() || !ccs.is_empty() || !ccbench_store::is_url(&out) {
            return Err(SubmitError::FilesOfPods.into());
        }
        if job.kind == JobKind::Testbed {
            return Err(SubmitError::RealTimeInPods.into());
        }
        print_json(&job.kubernetes_manifest(image, &text));
        return Ok(ExitCode::Success);
    }
    let out = location(&args.options)?;
    if job.shares_nodes && job.shards > 1 {
        message(format_args!(
            "note: all shards use the agents of the plan, so the script lets one run at a time (`%1` in --array)"
        ));
    }
    if args.dry_run {
        let all: Vec<u32> = (1..=job.shards).collect();
        print(&job.slurm_script(&all));
        return Ok(ExitCode::Success);
    }
    let resolved = resolved(&source, &sets, &plan, job.kind)?;
    block_on(submit_until_complete(&args, &job, (&plan, &resolved), &out))?;
    let SubmitArgs { merged, options: RunOptions { json, strict, .. }, .. } = args;
    let (partial, compact) = (false, false);
    merge::run(&MergeArgs { shards: out, out: merged, partial, compact, json, strict })
}

/// Returns the possible texts of the shards' resolved plan: in the lab, each machine may choose the engine.
fn resolved(
    source: &PlanSource,
    sets: &[String],
    plan: &CheckedPlan,
    kind: JobKind,
) -> Result<Vec<String>, CliError> {
    let mut texts = vec![resolve::to_toml(plan)];
    if kind == JobKind::Lab {
        for engine in Engine::ALL {
            let sets = [sets, &[engine::as_override(*engine)]].concat();
            if source.first_error(&sets).is_none() {
                texts.push(resolve::to_toml(&source.load_quietly(&sets)?));
            }
        }
    }
    Ok(texts)
}

/// Returns where the shards put their trials: a URL, or the absolute path of a directory.
fn location(options: &RunOptions) -> Result<String, CliError> {
    let out = options.out.to_string_lossy().into_owned();
    if ccbench_store::is_url(&out) {
        return Ok(out);
    }
    Ok(absolute(&options.out)?.to_string_lossy().into_owned())
}

/// Returns the absolute path, because jobs start in other directories.
fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    Ok(std::path::absolute(path).map_err(FileError::io("find", path))?)
}

/// Returns the jobs of a plan.
fn job(args: &SubmitArgs, plan: &CheckedPlan) -> Result<Job, CliError> {
    let options = &args.options;
    let in_lab = || plan.points().iter().any(|point| point.plan.plan().in_lab());
    let has_agents = || plan.plan().nodes.values().any(|node| node.agent.is_some());
    let kind = match (options.sim, options.lab || in_lab()) {
        (true, _) => JobKind::Simulator,
        (false, true) => JobKind::Lab,
        (false, false) => JobKind::Testbed,
    };
    let trials = u32::try_from(schedule::trials(plan).len()).unwrap_or(u32::MAX).max(1);
    let shards = args.shards.unwrap_or(SHARDS).min(trials);
    let out = location(options)?;
    let (program, plan_file) = if args.kubernetes {
        ("ccbench".to_owned(), "/plan/plan.toml".to_owned())
    } else {
        let program = std::env::current_exe().map_err(SubmitError::OwnProgram)?;
        let plan_file = absolute(&args.plan)?;
        (program.to_string_lossy().into_owned(), plan_file.to_string_lossy().into_owned())
    };
    let mut command = vec![program, "run".to_owned(), plan_file, "--out".to_owned(), out.clone()];
    command.extend(run_options(options, kind)?);
    command.extend(args.sets.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
    Ok(Job {
        name: plan.plan().name.clone(),
        kind,
        shards,
        command,
        limit: time_limit(plan, shards, kind),
        logs: (!ccbench_store::is_url(&out)).then(|| format!("{out}/logs")),
        cpus: options.jobs,
        shares_nodes: kind == JobKind::Testbed && has_agents(),
    })
}

/// Returns the options of `ccbench run` that affect what a shard does.
fn run_options(options: &RunOptions, kind: JobKind) -> Result<Vec<String>, CliError> {
    let flags = [
        ("--quick", options.quick),
        ("--keep-going", options.keep_going),
        ("--rootless", options.rootless),
        ("--lab", options.lab),
        ("--sim", options.sim),
    ];
    let flags = flags.iter().filter(|(_, given)| *given).map(|(flag, _)| (*flag).to_owned());
    // Several shards may share a machine.
    let jobs = match kind {
        JobKind::Testbed => options.jobs,
        JobKind::Lab | JobKind::Simulator => Some(options.jobs.unwrap_or(1)),
    };
    let file = |path: Option<&PathBuf>| -> Result<Option<String>, CliError> {
        let path = path.map(|path| absolute(path)).transpose()?;
        Ok(path.map(|path| path.display().to_string()))
    };
    let values = [
        ("--await-nodes", options.await_nodes.map(|time| time.to_string())),
        ("--await-reboot", options.await_reboot.map(|time| time.to_string())),
        ("--engine", options.engine.map(|engine| engine.to_string())),
        ("--kernel", options.kernel.map(|kernel| kernel.to_string())),
        ("--dilation", options.dilation.map(|dilation| dilation.to_string())),
        ("--jobs", jobs.map(|jobs| jobs.to_string())),
        ("--pki", file(options.tls.pki.as_ref())?),
        ("--crl", file(options.tls.crl.as_ref())?),
    ];
    let values = values.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
    Ok(flags.chain(values.flatten()).collect())
}

/// Submits the remaining shards and waits for them. Submits what is still missing again, unless a job has added nothing.
async fn submit_until_complete(
    args: &SubmitArgs,
    job: &Job,
    (plan, resolved): (&CheckedPlan, &[String]),
    out: &str,
) -> Result<(), CliError> {
    let store = ccbench_store::open(out)?;
    // Trials of another plan would count as those of this one.
    let found = store.read(PLAN_KEY).await?;
    if found.is_some_and(|found| resolved.iter().all(|text| found != text.as_bytes())) {
        return Err(ShardRunError::OtherPlan { location: out.to_owned() }.into());
    }
    let made = job.logs.as_ref().map_or_else(|| Ok(vec![]), |logs| create(Path::new(logs)))?;
    // An earlier command may have ended before its job. The same shards must not be in the queue twice.
    let jobs = earlier_jobs(&*store).await?;
    if !jobs.is_empty() {
        let before = committed(&*store).await?;
        if !remaining_shards(&*store, plan, job.shards, &before).await?.is_empty() {
            wait_for_job(&jobs.join(","), &*store, schedule::trials(plan).len()).await?;
        }
    }
    for _ in 0..=args.resubmit {
        let before = committed(&*store).await?;
        let left = remaining_shards(&*store, plan, job.shards, &before).await?;
        if left.is_empty() {
            break;
        }
        let id = submit(job, &left, &args.sbatch).await.inspect_err(|error| {
            // Without a job there are no logs. Directories that are not empty stay.
            if !matches!(error, CliError::Submit(SubmitError::MaybeSubmitted { .. })) {
                made.iter().for_each(|dir| drop(std::fs::remove_dir(dir)));
            }
        })?;
        // This command may be interrupted before the store has the ID.
        message(format_args!("job {id}: {} of {} shards", left.len(), job.shards));
        record(&*store, &id).await?;
        message(format_args!(
            "job {id} continues if this command ends: then repeat the command, or run `ccbench merge {out}`"
        ));
        wait_for_job(&id, &*store, schedule::trials(plan).len()).await?;
        if committed(&*store).await?.len() == before.len() {
            let logs = job.logs.as_deref().unwrap_or(".");
            message(format_args!(
                "job {id} has ended without a committed trial; {logs}/slurm-{id}_*.log has the reason"
            ));
            break;
        }
    }
    Ok(())
}

/// Creates a directory. Returns the directories that did not exist before, the deepest first.
fn create(dir: &Path) -> Result<Vec<PathBuf>, CliError> {
    let absent = dir.ancestors().take_while(|dir| is_missing(dir)).map(Path::to_owned).collect();
    std::fs::create_dir_all(dir).map_err(FileError::io("create", dir))?;
    Ok(absent)
}

/// Waits until no task of a job array, or of several (`12,13`), runs or waits. Prints the progress.
async fn wait_for_job(id: &str, store: &dyn ShardStore, trials: usize) -> Result<(), CliError> {
    let (mut printed, mut outage) = (None, Outage::default());
    loop {
        // While the controller restarts, the job continues.
        if let Some(state) = answer_of("squeue", queue(id)?, &mut outage)? {
            let progress = (committed(store).await?.len(), state);
            if printed.replace(progress) != Some(progress) {
                let (count, QueueState { running, pending }) = progress;
                message(format_args!(
                    "job {id}: {count} of {trials} trials; {running} shards are running, {pending} are waiting"
                ));
            }
            if state.is_empty() {
                return Ok(());
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Puts the ID of a job into the store, where the next command looks for it.
async fn record(store: &dyn ShardStore, id: &str) -> Result<(), CliError> {
    let created = store.create(&format!("{JOBS}/{id}"), id.as_bytes().to_vec()).await;
    created.map(drop).map_err(|error| {
        let (id, source) = (id.to_owned(), Box::new(ShardRunError::from(error)));
        SubmitError::NotRecorded { id, source }.into()
    })
}

/// Returns the jobs that earlier commands submitted.
async fn earlier_jobs(store: &dyn ShardStore) -> Result<Vec<String>, CliError> {
    let keys = store.list(JOBS).await?;
    let ids = keys.iter().filter_map(|key| key.strip_prefix(JOBS)?.strip_prefix('/'));
    // Skips hidden files, such as those of file managers.
    let ids = ids.filter(|id| !id.starts_with('.'));
    Ok(ids.map(str::to_owned).collect())
}

/// Returns the trials in the store.
async fn committed(store: &dyn ShardStore) -> Result<BTreeSet<(u32, u16)>, CliError> {
    let keys = store.list(COMMITS).await?;
    Ok(keys.iter().filter_map(|key| trial_of_key(key)).collect())
}

/// Returns the shards with trials that are neither in the store (`committed`) nor unnecessary by the plan's rules.
async fn remaining_shards(
    store: &dyn ShardStore,
    plan: &CheckedPlan,
    shards: u32,
    committed: &BTreeSet<(u32, u16)>,
) -> Result<Vec<u32>, CliError> {
    let rules = rules_after(store, plan, committed).await?;
    let trials = schedule::trials(plan).into_iter().map(|trial| (trial.point_id, trial.trial));
    let is_settled = |key: &(u32, u16)| committed.contains(key) || !rules.is_needed(key.0, key.1);
    Ok(shards_left(plan, shards, &trials.filter(is_settled).collect()))
}

/// Slurm's answer, or why there is none.
enum Answer<T> {
    Given(T),
    None(String),
}

/// Returns the answer that a program got. Reports the beginning and the end of an outage, and returns an error if it lasts too
/// long.
fn answer_of<T>(
    program: &'static str,
    answer: Answer<T>,
    outage: &mut Outage,
) -> Result<Option<T>, SubmitError> {
    let limit_min = outage::MAX_OUTAGE.as_secs() / 60;
    let reason = match answer {
        Answer::Given(answer) => {
            if let Some(time) = outage.answered(clock::now()) {
                message(format_args!("{program}: Slurm answers again after {} s", time.as_secs()));
            }
            return Ok(Some(answer));
        }
        Answer::None(reason) => reason,
    };
    match outage.unanswered(clock::now()) {
        Unanswered::First => message(format_args!(
            "{program}: {reason}; trying again every {} s, for at most {limit_min} min",
            POLL.as_secs()
        )),
        Unanswered::Again => {}
        Unanswered::TooLong => {
            return Err(SubmitError::Outage { limit_min, program, reason });
        }
    }
    Ok(None)
}

/// Submits these shards and returns the job's ID. Waits while the controller restarts.
async fn submit(job: &Job, shards: &[u32], options: &[String]) -> Result<String, CliError> {
    let (script, mut outage) = (job.slurm_script(shards), Outage::default());
    loop {
        let answer = sbatch(&script, options, &job.plain_name())?;
        if let Some(id) = answer_of("sbatch", answer, &mut outage)? {
            return Ok(id);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Submits a script whose job has this name. Returns the job's ID, or no answer if Slurm has no job because its controller could
/// not be reached.
#[expect(clippy::disallowed_methods, reason = "starts sbatch")]
fn sbatch(script: &str, options: &[String], name: &str) -> Result<Answer<String>, CliError> {
    let mut command = Command::new("sbatch");
    command.arg("--parsable").args(options);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |source| CliError::StartProgram { path: "sbatch".into(), source };
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // `sbatch` may already have rejected its options. Its message is then the one to print.
        let _ = input.write_all(script.as_bytes());
    }
    let Output { status, stdout, stderr } = child.wait_with_output().map_err(failed)?;
    let id = String::from_utf8_lossy(&stdout);
    if let Some(id) = submitted_job(&id).filter(|_| status.success()) {
        return Ok(Answer::Given(id.to_owned()));
    }
    let stderr = String::from_utf8_lossy(&stderr);
    let reason = stderr.trim().to_owned();
    if is_unreachable(&reason) {
        return Ok(Answer::None(reason));
    }
    let error = if has_no_configuration(&reason) {
        SubmitError::NoSlurm { reason }
    } else if is_outage(&reason) {
        SubmitError::MaybeSubmitted { reason, name: name.to_owned() }
    } else {
        SubmitError::Refused { reason }
    };
    Err(error.into())
}

/// Returns the state of a job array.
#[expect(clippy::disallowed_methods, reason = "starts squeue")]
fn queue(id: &str) -> Result<Answer<QueueState>, CliError> {
    let mut command = Command::new("squeue");
    command.args(["--noheader", "--array", "--format=%T", "--jobs", id]);
    let output = command.stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } =
        output.map_err(|source| CliError::StartProgram { path: "squeue".into(), source })?;
    if status.success() {
        return Ok(Answer::Given(queue_state(&String::from_utf8_lossy(&stdout))));
    }
    let stderr = String::from_utf8_lossy(&stderr);
    // Slurm forgets a job some minutes after its end.
    if stderr.contains("Invalid job id") {
        return Ok(Answer::Given(QueueState::default()));
    }
    let reason = stderr.trim().to_owned();
    // Programs that get their configuration from the controller have none while it is down.
    if is_outage(&reason) || has_no_configuration(&reason) {
        return Ok(Answer::None(reason));
    }
    Err(SubmitError::NoState { id: id.to_owned(), reason }.into())
}
