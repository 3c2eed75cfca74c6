//! `ccbench run`: what happens around the trials.

use ccbench_proto::schedule;
use tokio::sync::watch;

use crate::args::RunArgs;
use crate::coordinate::Experiment;
use crate::error::CliError;
use crate::lab::boots::{AskedOfLab, Boots, LAB_NOTE};
use crate::live::Live;
use crate::source::Source;
use crate::trials::{About, Ground};
use crate::{print, terminal_width};
use ccbench_results::expect::Outcome;
use ccbench_results::store::{RunDir, RunInfo, RunStatus};
use ccbench_results::summarize::summarize;
use ccbench_results::summary::Choice;
use ccbench_results::table;

/// Exit code where a claim does not hold.
const CLAIM_REFUTED: i32 = 4;

/// What is printed of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Every number and the claims.
    Summary,
    /// The claims.
    Claims,
}

/// How a run went and where its results are.
pub struct Ran {
    dir: RunDir,
    ended: Result<(), CliError>,
}

/// The plan that is asked for, or that of the results directory to go on with.
///
/// # Errors
/// There is none, or it cannot be read.
pub fn source(args: &RunArgs) -> Result<Source, CliError> {
    match (&args.resume, &args.plan) {
        (Some(_), _) if args.how.quick => Err(CliError::Usage(
            "--quick changes the plan, and --resume goes on with the one that was run: leave out --quick".into(),
        )),
        (Some(dir), _) => {
            RunDir::open(dir)?;
            Source::read(&dir.join("plan.resolved.toml"))
        }
        (None, Some(plan)) => Source::read(plan),
        (None, None) => {
            Err(CliError::Usage("name a plan, or --resume a results directory".into()))
        }
    }
}

/// Runs what is asked for and not done yet.
///
/// # Errors
/// What kept it from even beginning; how it ended is in [`Ran`].
pub async fn run_plan(args: &RunArgs, source: Source) -> Result<Ran, CliError> {
    let mut interrupt = interrupts()?;
    let sets = source.sets(&args.sets, args.how.quick)?;
    let loaded = source.load(&sets)?;
    let text = loaded.text.clone();
    let experiment =
        Experiment::new(loaded, args.how.rootless, args.how.tls.pki.clone(), args.how.keep_going);
    let of_lab = of_lab(args, &experiment)?;
    if let Some(path) = &args.resume {
        let dir = RunDir::open(path)?;
        where_it_began(&dir, of_lab.is_some())?;
        if experiment.left(&dir, args.retry_failed).is_empty() {
            eprintln!("{}: nothing is left to run", path.display());
            return Ok(Ran { dir, ended: Ok(()) });
        }
    }
    let asked = Asked { args, experiment: &experiment, plan_text: &text, sets: &sets };
    if let Some(of_lab) = of_lab {
        let boots = Boots::open(&experiment, of_lab, &mut interrupt).await?;
        return asked.run_on(boots, interrupt).await;
    }
    asked.run_on(experiment.open().await?, interrupt).await
}

/// What the lab is asked for, by the command or by the plan; `None`: the plan runs elsewhere.
fn of_lab(args: &RunArgs, experiment: &Experiment) -> Result<Option<AskedOfLab>, CliError> {
    let named = experiment.plan.points().iter().find_map(|point| point.plan.plan().kernel());
    match (named, args.how.kernel) {
        (Some(named), Some(kernel)) => Err(CliError::Usage(format!(
            "--kernel {kernel}, but the plan names its kernels itself ({named} for one): leave out --kernel, or \
             change the plan with `--set lab.kernel={kernel}`"
        ))),
        (None, _)
            if !args.how.lab && (args.how.kernel.is_some() || args.how.dilation.is_some()) =>
        {
            Err(CliError::Usage("--kernel and --dilation are the lab's: add --lab".to_owned()))
        }
        (None, _) if !args.how.lab => Ok(None),
        (_, kernel) => {
            Ok(Some(AskedOfLab { kernel: kernel.unwrap_or_default(), dilation: args.how.dilation }))
        }
    }
}

/// Refuses to go on elsewhere: trials in the lab and outside are not repetitions of one point.
fn where_it_began(dir: &RunDir, in_lab: bool) -> Result<(), CliError> {
    let began_in_lab = dir.notes().iter().any(|note| note.starts_with(LAB_NOTE));
    match (began_in_lab, in_lab) {
        (true, false) => Err("this run began in the lab: add --lab"),
        (false, true) => Err("this run did not begin in the lab: leave out --lab"),
        _ => Ok(()),
    }
    .map_err(|why| CliError::Usage(format!("{}: {why}", dir.path().display())))
}

/// What is to be run.
struct Asked<'a> {
    args: &'a RunArgs,
    experiment: &'a Experiment,
    plan_text: &'a str,
    /// Overrides, those of a quick look too.
    sets: &'a [String],
}

impl Asked<'_> {
    /// Runs it, from making the results directory to its last line.
    async fn run_on(
        &self,
        mut ground: impl Ground,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Ran, CliError> {
        let Self { args, experiment, .. } = *self;
        let mut about = ground.about(experiment);
        let missing = std::mem::take(&mut about.missing);
        let info = run_info(self, about);
        let made = match &args.resume {
            Some(path) => RunDir::resume(path, &info),
            None => RunDir::create(&args.how.out, &info),
        };
        let dir = match made {
            Ok(dir) => dir,
            Err(error) => {
                ground.close().await;
                return Err(error.into());
            }
        };
        let left = experiment.left(&dir, args.retry_failed);
        let mut live = Live::new(args.how.json, left.len() as u32);
        if ground.is_virtual() {
            live.in_lab();
        }
        for note in info.notes.iter().chain(&missing) {
            live.say("note", &format!("note: {note}"));
        }
        live.say("results", &format!("results: {}", dir.path().display()));
        let ended = experiment.run(&mut ground, &dir, left, &mut live, interrupt).await;
        ground.close().await;
        live.finish();
        dir.finish(match &ended {
            Ok(()) if experiment.left(&dir, false).is_empty() => RunStatus::Complete,
            Err(CliError::Interrupted) => RunStatus::Interrupted,
            _ => RunStatus::Failed,
        })?;
        Ok(Ran { dir, ended })
    }
}

/// Summary and table; outside the runtime, because Polars has one of its own. Returns the exit code.
///
/// # Errors
/// How the run ended, or that its results cannot be read.
pub fn report(args: &RunArgs, ran: Ran, shown: Shown) -> Result<i32, CliError> {
    let (ok, degraded, failed) = ran.dir.counts();
    let mut refuted = false;
    if ok + degraded + failed > 0 {
        let summary = summarize(ran.dir.path(), Choice::default())?;
        let claims = &summary.expectations;
        refuted = claims.iter().any(|claim| claim.outcome == Outcome::DoesNotHold);
        if args.how.json {
            claims.iter().try_for_each(|claim| print(&format!("{}\n", claim.json())).map(drop))?;
        } else {
            let (out, width) = (&mut std::io::stdout(), terminal_width());
            match shown {
                Shown::Summary => table::print(&summary, out, width)?,
                Shown::Claims => table::print_claims(&summary, out, width)?,
            }
        }
        // Shown first: the numbers are there even where the disk is full.
        summary.written?;
    }
    if args.how.json {
        let path = ran.dir.path();
        let end = serde_json::json!({
            "event": "end", "results": path, "status": ran.dir.status().as_str(),
            "ok": ok, "degraded": degraded, "failed": failed,
        });
        print(&format!("{end}\n"))?;
    }
    if matches!(ran.ended, Err(CliError::Interrupted)) {
        eprintln!("go on with: ccbench run --resume {}", ran.dir.path().display());
    }
    ran.ended?;
    Ok(match failed > 0 || (args.how.strict && degraded > 0) {
        true => 1,
        false if refuted => CLAIM_REFUTED,
        false => 0,
    })
}

/// Turns true at the first SIGINT or SIGTERM; the second one ends the process at once.
fn interrupts() -> Result<watch::Receiver<bool>, CliError> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen =
        |kind| signal(kind).map_err(|e| CliError::Usage(format!("cannot catch signals: {e}")));
    let (mut int, mut term) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let (send, receive) = watch::channel(false);
    tokio::spawn(async move {
        let mut asked = false;
        loop {
            tokio::select! { _ = int.recv() => {}, _ = term.recv() => {} }
            if asked {
                std::process::exit(130);
            }
            asked = true;
            eprintln!(
                "stopping: this trial is abandoned, finished ones are kept (again to stop at once)"
            );
            // The receiver is gone only when everything has ended anyway.
            let _ = send.send(true);
        }
    });
    Ok(receive)
}

fn run_info(asked: &Asked<'_>, about: About) -> RunInfo {
    let Asked { experiment, plan_text, sets, .. } = *asked;
    let plan = experiment.plan.plan();
    let points = experiment.plan.points().into_iter();
    RunInfo {
        plan_name: plan.name.clone(),
        plan_text: plan_text.to_owned(),
        resolved_text: experiment.resolved.clone(),
        plan_sha256: ccbench_proto::plan::digest(&experiment.resolved),
        points: points.map(|schedule::Point { id, factors, .. }| (id, factors)).collect(),
        repeat: plan.repeat,
        seed: plan.seed,
        command_line: std::env::args().collect(),
        started_utc: jiff::Timestamp::now(),
        topology: about.topology,
        ccbench_version: env!("CARGO_PKG_VERSION").to_owned(),
        sets: sets.to_vec(),
        nodes: about.nodes,
        notes: about.notes,
        traces: experiment.stored_traces(),
        imported: vec![],
    }
}
