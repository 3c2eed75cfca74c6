//! `ccbench run`: runs a plan, stores the results and prints the summary.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use ccbench_proto::schedule::{self, ScheduledTrial};
use ccbench_results::backend::RunBackend;
use ccbench_results::expect::Outcome;
use ccbench_results::model::{RunInfo, RunStatus, TrialFilter};
use ccbench_results::scorecard::Scorecard;
use ccbench_results::store::{Kernel, RunDir, StoreError};
use ccbench_results::summarize::{RunSummary, summarize};
use ccbench_results::{report, table};
use tracing::info;

use self::error::RunUsageError;
use crate::args::{RunArgs, RunOptions};
use crate::backend::choice::{self, BackendChoice};
use crate::backend::error::BackendError;
use crate::backend::{Backend, BackendInfo};
use crate::clock;
use crate::console::{message, print_json, terminal_width};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::experiment::{AWAIT_NODES, AWAIT_REBOOT, Experiment, ExperimentOptions};
use crate::interrupt::{EndsProcess, Interrupt};
use crate::lab::Lab;
use crate::lab::engine::{self, LabRequest};
use crate::plan_source::{LoadedPlan, PlanSource};
use crate::progress::Progress;
use crate::repetition::Repetition;
use crate::runner::TrialQueue;
use crate::runtime::{RuntimeError, block_on, blocking};
use crate::shard::ShardRun;
use crate::simulator::Simulator;
use crate::testbed::Testbed;
use crate::view::{ViewError, Views, absolute};

pub mod error;
mod shard;

/// Runs the command.
///
/// # Errors
/// The plan is invalid, the backend is not available, or results cannot be written.
pub fn run(args: &RunArgs) -> Result<ExitCode, CliError> {
    let source = plan_source(args)?;
    if let Some(choice) = args.shard {
        return block_on(shard::run(args, choice, source));
    }
    let completed = block_on(run_plan(args, source))?;
    Ok(conclude(args, completed, Tables::All)?.exit_code)
}

/// The tables that are printed after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// The summary and the claims. A run with many points shows only the first ones.
    All,
    /// Only the claims.
    Claims,
    /// Only the scorecard.
    Scorecard,
}

/// A run that has ended, possibly with an error.
pub struct CompletedRun {
    dir: Arc<RunDir>,
    result: Result<(), BackendError>,
    /// Whether the end of the run could be recorded.
    recorded: Result<(), StoreError>,
    /// Number of trials that were repeated after the loss of a node.
    repeated: usize,
    views: Option<Views>,
}

impl CompletedRun {
    /// Returns the results directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Reads the plan of the command line, or of the results directory to resume.
///
/// # Errors
/// The plan cannot be read.
fn plan_source(args: &RunArgs) -> Result<PlanSource, CliError> {
    match (&args.resume, &args.plan) {
        (Some(_), _) if args.options.quick => Err(RunUsageError::QuickWithResume.into()),
        (Some(_), Some(plan)) => Err(RunUsageError::PlanWithResume(plan.clone()).into()),
        (Some(_), None) if !args.sets.is_empty() => Err(RunUsageError::SetWithResume.into()),
        (Some(dir), None) => {
            RunDir::open(dir)?;
            Ok(PlanSource::read(&dir.join("plan.resolved.toml"))?)
        }
        (None, Some(plan)) => Ok(PlanSource::read(plan)?),
        (None, None) => Err(RunUsageError::NothingToRun.into()),
    }
}

/// A plan that has been read, and where it runs.
struct Prepared {
    experiment: Experiment,
    /// The text as its author wrote it.
    text: String,
    /// The overrides, including those of `[quick]`.
    sets: Vec<String>,
    choice: BackendChoice,
    /// Why the lab's engine is not the usual one.
    engine_note: Option<String>,
}

/// Reads the plan.
///
/// # Errors
/// The plan is invalid, or options contradict it.
fn prepare(args: &RunArgs, source: PlanSource) -> Result<Prepared, CliError> {
    let (options, images) = match &args.resume {
        Some(path) => choice::resumed(&args.options, &RunDir::open(path)?)?,
        None => (args.options.clone(), vec![]),
    };
    let source = source.for_backend(options.lab, options.sim);
    let mut sets = source.sets(&args.sets, options.quick)?;
    sets.extend(options.engine.map(engine::as_override));
    let mut loaded = source.load(&sets)?;
    let engine_note = match args.resume {
        Some(_) => None,
        None => choose_engine(&options, &source, &mut loaded, &mut sets)?,
    };
    let text = loaded.text.clone();
    let RunOptions { rootless, keep_going, .. } = options;
    let await_nodes = options.await_nodes.unwrap_or(AWAIT_NODES);
    let await_reboot = options.await_reboot.unwrap_or(AWAIT_REBOOT);
    let tls = options.tls.clone();
    let of_run = ExperimentOptions { rootless, tls, keep_going, await_nodes, await_reboot };
    let experiment = Experiment::new(loaded, of_run);
    let choice = BackendChoice::new(&options, &experiment, images)?;
    Ok(Prepared { experiment, text, sets, choice, engine_note })
}

/// Catches signals.
fn interrupt() -> Result<Interrupt, RuntimeError> {
    Interrupt::on_signals().map_err(RuntimeError::Signals)
}

/// Runs the trials that the results directory does not hold yet.
///
/// # Errors
/// No trial could be started. Errors of later trials are in [`CompletedRun`].
pub async fn run_plan(args: &RunArgs, source: PlanSource) -> Result<CompletedRun, CliError> {
    run_plan_until(interrupt()?, args, source).await
}

/// Runs the command in a simulation, where nobody interrupts it, without summary and report.
///
/// # Errors
/// As [`run_plan`], and those of later trials.
pub async fn run_simulated(args: &RunArgs) -> Result<(), CliError> {
    let completed = run_plan_until(Interrupt::never(), args, plan_source(args)?).await?;
    completed.recorded?;
    Ok(completed.result?)
}

async fn run_plan_until(
    interrupt: Interrupt,
    args: &RunArgs,
    source: PlanSource,
) -> Result<CompletedRun, CliError> {
    Views::check(args.options.view, args.options.json)?;
    let out = args.options.out.to_string_lossy();
    if ccbench_store::is_url(&out) {
        return Err(RunUsageError::Bucket(out.into_owned()).into());
    }
    let Prepared { experiment, text, sets, choice, engine_note } = prepare(args, source)?;
    let mut earlier = None;
    if let Some(path) = &args.resume {
        let dir = Arc::new(RunDir::open(path)?);
        let first = remaining_trials(&experiment, &dir, args.retry_failed, None).await.ok();
        let (remaining, repetition) = match first {
            Some(found) if !found.0.is_empty() => found,
            // Either the rules need a table that is damaged, or all trials seem finished. Checks all tables, which takes time, so
            // that damaged trials are repeated.
            first => {
                let checked = Arc::clone(&dir);
                // In this thread, it would delay the reaction to signals.
                blocking(move || checked.check(|_| true)).await;
                let known = first.as_ref().map(|(_, repetition)| repetition);
                remaining_trials(&experiment, &dir, args.retry_failed, known).await?
            }
        };
        if remaining.is_empty() {
            message(format_args!("{}: nothing is left to run", path.display()));
            let dir = match dir.is_complete() {
                true => dir,
                false => Arc::new(finish(&experiment, path, &repetition)?),
            };
            let (result, recorded) = (Ok(()), Ok(()));
            return Ok(CompletedRun { dir, result, recorded, repeated: 0, views: None });
        }
        earlier = Some(Earlier { repetition, kernels: dir.kernels() });
    }
    let (experiment, plan_text, sets) = (&experiment, text.as_str(), sets.as_slice());
    let run = PlanRun { args, experiment, plan_text, sets, earlier, shard: None, engine_note };
    run.execute(choice, interrupt).await
}

/// Chooses the engine of a new run that names none. The choice becomes an override of the plan, so that the plan is checked for
/// it and a resumed run has the same engine. Returns a note if the engine is not the usual one.
fn choose_engine(
    options: &RunOptions,
    source: &PlanSource,
    loaded: &mut LoadedPlan,
    sets: &mut Vec<String>,
) -> Result<Option<String>, CliError> {
    let RunOptions { lab, kernel, dilation, sim, .. } = *options;
    if sim {
        return Ok(None);
    }
    let request = LabRequest { lab, kernel, dilation };
    let Some(choice) = engine::choose_for(&loaded.plan, source, sets, request) else {
        return Ok(None);
    };
    if choice.is_override() {
        sets.push(engine::as_override(choice.engine));
        *loaded = source.load_again(sets)?;
    }
    Ok(choice.note)
}

/// Returns the trials that a run lacks and needs, and the rules that decide about others. `earlier` is the result of an earlier
/// call.
async fn remaining_trials(
    experiment: &Experiment,
    dir: &Arc<RunDir>,
    retry_failed: bool,
    earlier: Option<&Repetition>,
) -> Result<(Vec<ScheduledTrial>, Repetition), ccbench_results::Error> {
    let remaining = experiment.remaining(dir, retry_failed);
    let repetition = Repetition::new(experiment, dir, &remaining, earlier).await?;
    Ok((repetition.needed(remaining), repetition))
}

/// Finishes a run that lacks no trial but whose end was not recorded, because ccbench was killed or failed after the last trial.
fn finish(
    experiment: &Experiment,
    path: &Path,
    repetition: &Repetition,
) -> Result<RunDir, CliError> {
    let digest = ccbench_proto::plan::digest(&experiment.resolved);
    let dir = RunDir::reopen(path, &digest, clock::utc())?;
    if experiment.plan.plan().repeat.adaptive().is_some() {
        dir.set_planned(repetition.needed(schedule::trials(&experiment.plan)).len() as u32);
    }
    dir.set_decisions(repetition.decisions())?;
    dir.finish(RunStatus::Complete)?;
    Ok(dir)
}

/// What a resumed run has recorded.
struct Earlier {
    /// Its rules, from the check whether trials are left.
    repetition: Repetition,
    /// The kernels of its nodes.
    kernels: BTreeMap<String, BTreeSet<Kernel>>,
}

/// A plan and how to run it.
struct PlanRun<'a> {
    args: &'a RunArgs,
    experiment: &'a Experiment,
    plan_text: &'a str,
    /// The overrides, including those of `[quick]`.
    sets: &'a [String],
    /// What a resumed run has recorded.
    earlier: Option<Earlier>,
    /// The shard to run; `None` for all trials.
    shard: Option<&'a ShardRun>,
    /// Why the lab's engine is not the usual one.
    engine_note: Option<String>,
}

impl PlanRun<'_> {
    /// Opens the backend and runs the remaining trials.
    async fn execute(
        &self,
        choice: BackendChoice,
        mut interrupt: Interrupt,
    ) -> Result<CompletedRun, CliError> {
        let experiment = self.experiment;
        match choice {
            BackendChoice::Testbed => {
                let open = async {
                    let testbed = Testbed::open(experiment).await?;
                    testbed.check_access(experiment).await?;
                    Ok::<_, BackendError>(testbed)
                };
                let testbed = tokio::select! {
                    opened = open => opened?,
                    // Dropping a testbed of this machine ends it.
                    () = interrupt.requested() => return Err(BackendError::Interrupted.into()),
                };
                self.run_on(testbed, interrupt).await
            }
            BackendChoice::Lab(options) => {
                let note = self.engine_note.as_ref();
                let lab = Lab::open(experiment, options, note.cloned(), &mut interrupt).await;
                if let (Err(_), Some(note)) = (&lab, note) {
                    message(format_args!("note: {note}"));
                }
                self.run_on(lab?, interrupt).await
            }
            BackendChoice::Simulator { jobs } => {
                self.run_on(Simulator::open(experiment, jobs)?, interrupt).await
            }
        }
    }

    /// Creates or opens the results directory and determines which trials it lacks.
    async fn open(
        &self,
        record: &Arc<RunInfo>,
    ) -> Result<(Arc<RunDir>, Vec<ScheduledTrial>, Repetition), CliError> {
        let Self { args, experiment, shard, .. } = *self;
        let dir = Arc::new(match (&args.resume, shard) {
            (Some(path), _) => {
                let kernels = self.earlier.as_ref().map(|earlier| &earlier.kernels);
                if let Some(kernels) = kernels.filter(|_| record.backend == RunBackend::Testbed) {
                    choice::check_kernels(path, kernels, experiment, &record.nodes)?;
                }
                // Compares all tables with their digests.
                let (path, record) = (path.clone(), Arc::clone(record));
                blocking(move || RunDir::resume(&path, &record)).await?
            }
            (None, Some(shard)) => RunDir::create(shard.scratch(), record)?,
            (None, None) => RunDir::create(&args.options.out, record)?,
        });
        let earlier = self.earlier.as_ref().map(|earlier| &earlier.repetition);
        let (mut remaining, mut repetition) =
            remaining_trials(experiment, &dir, args.retry_failed, earlier).await?;
        if let Some(shard) = shard {
            shard.begin(&dir).await?;
            repetition = repetition.after(shard.rules());
            remaining.retain(|trial| shard.needs(trial));
        }
        Ok((dir, remaining, repetition))
    }

    /// Runs the remaining trials and closes the backend.
    async fn run_on(
        &self,
        mut backend: impl Backend,
        interrupt: Interrupt,
    ) -> Result<CompletedRun, CliError> {
        let Self { args, experiment, .. } = *self;
        let mut info = backend.info(experiment);
        let missing = std::mem::take(&mut info.missing);
        let record = Arc::new(self.record(info));
        let (dir, remaining, repetition) = match self.open(&record).await {
            Ok(opened) => opened,
            Err(error) => {
                backend.close().await;
                return Err(error);
            }
        };
        let mut progress = Progress::new(args.options.json, remaining.len());
        if record.backend.has_virtual_clock() {
            progress.use_virtual_time();
        }
        let mut views = match self.views(&mut progress, &dir, remaining.len()) {
            Ok(views) => views,
            Err(error) => {
                backend.close().await;
                return Err(error.into());
            }
        };
        for note in record.notes.iter().chain(&missing) {
            progress.message("note", &format!("note: {note}"));
        }
        if self.shard.is_none() {
            progress.message("results", &format!("results: {}", dir.path().display()));
        }
        let queue = TrialQueue::new(experiment, &dir, &progress, &remaining, repetition)
            .of_shard(self.shard);
        backend.run_trials(&queue, interrupt).await;
        if experiment.plan.plan().repeat.adaptive().is_some() {
            dir.set_planned(queue.needed(schedule::trials(&experiment.plan)).len() as u32);
        }
        let is_complete = queue.needed(experiment.remaining(&dir, false)).is_empty();
        let decisions = queue.decisions();
        let result = queue.result();
        info!("close the backend");
        backend.close().await;
        progress.finish();
        let status = run_status(&result, is_complete);
        let recorded = dir.set_decisions(decisions).and_then(|()| dir.finish(status));
        // Open pages now load the report.
        progress.live().state().end(status.as_str());
        views.iter_mut().for_each(Views::run_ended);
        let repeated = progress.repeated();
        Ok(CompletedRun { dir, result, recorded, repeated, views })
    }

    /// Serves the live views of the run.
    fn views(
        &self,
        progress: &mut Progress,
        dir: &RunDir,
        trials: usize,
    ) -> Result<Option<Views>, ViewError> {
        let directory = absolute(dir.path()).display().to_string();
        let name = &self.experiment.plan.plan().name;
        progress.live().state().describe(name, &directory, trials);
        Views::start(progress, dir.path(), self.args.options.view)
    }

    /// Returns the contents of `run.json`.
    fn record(&self, info: BackendInfo) -> RunInfo {
        let Self { experiment, plan_text, sets, .. } = *self;
        let plan = experiment.plan.plan();
        let points = experiment.plan.points().into_iter();
        RunInfo {
            plan_name: plan.name.clone(),
            plan_text: plan_text.to_owned(),
            resolved_text: experiment.resolved.clone(),
            plan_sha256: ccbench_proto::plan::digest(&experiment.resolved),
            points: points.map(|schedule::Point { id, factors, .. }| (id, factors)).collect(),
            repeat: plan.repeat.at_most(),
            seed: plan.seed,
            command_line: std::env::args().collect(),
            started_utc: clock::utc(),
            topology: info.topology,
            notes: info.backend.notes().into_iter().chain(info.notes).collect(),
            backend: info.backend,
            ccbench_version: env!("CARGO_PKG_VERSION").to_owned(),
            sets: sets.to_vec(),
            nodes: info.nodes,
            traces: experiment.stored_traces(),
            ccs: experiment.stored_ccs(),
            imported: vec![],
        }
    }
}

/// How a run ended, and the number of its plan's claims by outcome.
#[derive(Debug, Clone, Copy)]
pub struct Conclusion {
    /// The exit code.
    pub exit_code: ExitCode,
    /// Number of claims that hold.
    pub held: usize,
    /// Number of claims that do not hold.
    pub refuted: usize,
    /// Number of claims that were not measured.
    pub unmeasured: usize,
}

/// Returns how a run ended.
const fn run_status(result: &Result<(), BackendError>, is_complete: bool) -> RunStatus {
    match result {
        Ok(()) if is_complete => RunStatus::Complete,
        Err(BackendError::Interrupted) => RunStatus::Interrupted,
        Ok(())
        | Err(
            BackendError::Agent(_)
            | BackendError::Testbed(_)
            | BackendError::Lab(_)
            | BackendError::Simulator(_)
            | BackendError::Results(_)
            | BackendError::Shard(_),
        ) => RunStatus::Failed,
    }
}

/// Writes the summary, prints it, and chooses the exit code. Must be called outside the asynchronous runtime, because Polars has
/// its own.
///
/// # Errors
/// The run ended with an error, or its results cannot be read.
pub fn conclude(
    args: &RunArgs,
    completed: CompletedRun,
    tables: Tables,
) -> Result<Conclusion, CliError> {
    let CompletedRun { dir, result, recorded, repeated, views } = completed;
    // Done even after an error: a full disk must not hide the committed trials.
    let conclusion = {
        let _ends = EndsProcess::start();
        summarize_run(&dir, tables, args.options.json, args.options.strict)
    };
    match repeated {
        0 => {}
        1 => message(format_args!("1 trial was repeated after the loss of a node")),
        count => message(format_args!("{count} trials were repeated after the loss of a node")),
    }
    if matches!(result, Err(BackendError::Interrupted)) {
        // The directory has all other options that affect trials.
        let pki = args.options.tls.pki.as_ref();
        let pki = pki.map_or(String::new(), |pki| format!(" --pki {}", pki.display()));
        message(format_args!("resume with: ccbench run --resume {}{pki}", dir.path().display()));
    }
    if let Some(views) = views {
        views.finish();
    }
    let before: [Option<CliError>; 2] =
        [result.err().map(CliError::from), recorded.err().map(CliError::from)];
    let mut before = before.into_iter().flatten();
    let Some(first) = before.next() else { return conclusion };
    for error in before.chain(conclusion.err()) {
        message(format_args!("ccbench: {error}"));
    }
    Err(first)
}

/// Writes the report of a results directory again if it has one, because its numbers may have changed. A failure is a message.
pub fn rewrite_report(summary: &RunSummary) {
    let dir = summary.summary.run_dir.as_path();
    let file = dir.join(report::REPORT_FILE);
    if !file.is_file() {
        return;
    }
    let written = report::write(summary, &file);
    let (file, dir) = (file.display(), dir.display());
    match written {
        Ok(()) => message(format_args!("{file}: written again, without options of `report`")),
        Err(error) => message(format_args!(
            "ccbench: {file} is out of date: {error}; `ccbench report {dir}` writes it again"
        )),
    }
}

/// Writes and prints the summary of a run, and the end of its JSON output.
///
/// # Errors
/// The results cannot be read, or the summary cannot be written.
pub fn summarize_run(
    dir: &RunDir,
    tables: Tables,
    json: bool,
    strict: bool,
) -> Result<Conclusion, CliError> {
    let (ok, degraded, failed) = dir.counts();
    let [mut held, mut refuted, mut unmeasured] = [0; 3];
    if ok + degraded + failed > 0 {
        let mut summary = summarize(dir.path(), TrialFilter::default())?;
        // If the end of the run could not be recorded, only this process knows it.
        summary.summary.status = dir.status();
        let claims = &summary.expectations;
        for claim in claims {
            match claim.outcome {
                Outcome::Holds => held += 1,
                Outcome::DoesNotHold => refuted += 1,
                Outcome::NotMeasured => unmeasured += 1,
            }
        }
        if json {
            claims.iter().for_each(|claim| print_json(&claim.json()));
            summary.decisions.iter().for_each(|decision| print_json(&decision.json()));
            let rows = summary.scorecard.iter().flat_map(Scorecard::json);
            rows.for_each(|row| print_json(&row));
        } else {
            let (out, width) = (&mut std::io::stdout(), terminal_width());
            match tables {
                Tables::All => table::print_overview(&summary, out, width)?,
                Tables::Claims => table::print_claims(&summary, out, width)?,
                Tables::Scorecard => table::print_scorecard(&summary, out, width)?,
            }
        }
        rewrite_report(&summary);
        // Checked after printing: a full disk must not hide the numbers.
        summary.written?;
    }
    if json {
        let end = serde_json::json!({
            "event": "end", "results": dir.path(), "status": dir.status().as_str(),
            "ok": ok, "degraded": degraded, "failed": failed,
        });
        print_json(&end);
    }
    let exit_code = if failed > 0 || (strict && degraded > 0) {
        ExitCode::Failure
    } else if refuted > 0 {
        ExitCode::ClaimRefuted
    } else {
        ExitCode::Success
    };
    Ok(Conclusion { exit_code, held, refuted, unmeasured })
}
