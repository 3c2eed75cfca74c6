//! `ccbench run`: what happens around the trials.

use ccbench_proto::schedule;
use ccbench_proto::topology::Topology;
use tokio::sync::watch;

use crate::args::RunArgs;
use crate::coordinate::Experiment;
use crate::error::CliError;
use crate::lab::Lab;
use crate::lab::trial::{Survey, dilation_for};
use crate::live::Live;
use crate::results::store::{RunDir, RunInfo, RunStatus};
use crate::results::{summary, table};
use crate::{load, print, terminal_width};

/// How a run went and where its results are.
pub struct Ran {
    dir: RunDir,
    ended: Result<(), CliError>,
}

/// Runs what is asked for and not done yet.
///
/// # Errors
/// What kept it from even beginning; how it ended is in [`Ran`].
pub async fn run_plan(args: &RunArgs) -> Result<Ran, CliError> {
    let interrupt = interrupts()?;
    let loaded = match (&args.resume, &args.plan) {
        (Some(dir), _) => {
            RunDir::open(dir)?;
            load(&dir.join("plan.resolved.toml"), &[])?
        }
        (None, Some(plan)) => load(plan, &args.sets)?,
        (None, None) => {
            return Err(CliError::Usage("name a plan, or --resume a results directory".into()));
        }
    };
    let text = loaded.text.clone();
    let experiment = Experiment::new(loaded, args.rootless, args.tls.pki.clone(), args.keep_going);
    if let Some(path) = &args.resume {
        let dir = RunDir::open(path)?;
        if experiment.left(&dir, args.retry_failed).is_empty() {
            eprintln!("{}: nothing is left to run", path.display());
            return Ok(Ran { dir, ended: Ok(()) });
        }
    }
    if args.lab {
        return run_in_lab(args, &experiment, &text, interrupt).await;
    }
    let nodes = experiment.open().await?;
    let about = About {
        topology: nodes.topology.clone(),
        nodes: nodes.fleet.agents.iter().map(|(node, a)| (node.clone(), a.info.clone())).collect(),
        notes: nodes.notes.clone(),
    };
    let info = run_info(&experiment, &text, args, about);
    let made = match &args.resume {
        Some(path) => RunDir::resume(path, &info),
        None => RunDir::create(&args.out, &info),
    };
    let dir = match made {
        Ok(dir) => dir,
        Err(error) => {
            nodes.close().await;
            return Err(error.into());
        }
    };
    let left = experiment.left(&dir, args.retry_failed);
    let mut live = Live::new(args.json, left.len() as u32);
    for note in nodes.notes.iter().chain(&nodes.missing(&experiment.plan)) {
        live.say("note", &format!("note: {note}"));
    }
    live.say("results", &format!("results: {}", dir.path().display()));
    let ended = experiment.run(nodes, &dir, left, &mut live, interrupt).await;
    live.finish();
    dir.finish(match &ended {
        Ok(()) if experiment.left(&dir, false).is_empty() => RunStatus::Complete,
        Err(CliError::Interrupted) => RunStatus::Interrupted,
        _ => RunStatus::Failed,
    })?;
    Ok(Ran { dir, ended })
}

/// Summary and table; outside the runtime, because Polars has one of its own. Returns the exit code.
///
/// # Errors
/// How the run ended, or that its results cannot be read.
pub fn report(args: &RunArgs, ran: Ran) -> Result<i32, CliError> {
    let (ok, degraded, failed) = ran.dir.counts();
    if ok + degraded + failed > 0 {
        let summary = summary::summarize(ran.dir.path())?;
        if !args.json {
            table::print(&summary, &mut std::io::stdout(), terminal_width())?;
        }
        // Shown first: the numbers are there even where the disk is full.
        summary.written?;
    }
    if args.json {
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
    Ok(i32::from(failed > 0 || (args.strict && degraded > 0)))
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

/// The same plan in the lab.
async fn run_in_lab(
    args: &RunArgs,
    experiment: &Experiment,
    plan_text: &str,
    interrupt: watch::Receiver<bool>,
) -> Result<Ran, CliError> {
    let plan = experiment.plan.plan();
    if let Some((node, _)) = plan.nodes.iter().find(|(_, node)| node.agent.is_some()) {
        let why = format!("--lab builds its nodes itself, but node {node} names an agent");
        return Err(CliError::Usage(why));
    }
    let lab = Lab::open(args.kernel)?;
    let points = experiment.plan.points();
    let mut survey = Survey::default();
    // Every point may cost another: the dearest decides, so that points can be compared.
    for point in &points {
        let seen = lab.survey(experiment, point).await?;
        survey.busy_pct = survey.busy_pct.max(seen.busy_pct);
        survey.nodes.extend(seen.nodes);
    }
    let dilation = args.dilation.unwrap_or_else(|| dilation_for(survey.busy_pct));
    let how = if args.dilation.is_some() { "as asked" } else { "chosen by a short calibration" };
    let about = About {
        topology: format!("{:#?}", Topology::build(plan)),
        nodes: survey.nodes,
        notes: vec![format!(
            "lab: {} {}, {}, dilation {dilation} ({how})",
            lab.kernel().version,
            lab.kernel().release,
            lab.emulator
        )],
    };
    let info = run_info(experiment, plan_text, args, about);
    let dir = match &args.resume {
        Some(path) => RunDir::resume(path, &info),
        None => RunDir::create(&args.out, &info),
    }?;
    let left = experiment.left(&dir, args.retry_failed);
    let mut live = Live::new(args.json, left.len() as u32);
    live.in_lab();
    for note in &info.notes {
        live.say("note", &format!("note: {note}"));
    }
    live.say("results", &format!("results: {}", dir.path().display()));
    let ended = experiment.run_in_lab(&lab, dilation, &dir, left, &mut live, interrupt).await;
    live.finish();
    dir.finish(match &ended {
        Ok(()) if experiment.left(&dir, false).is_empty() => RunStatus::Complete,
        Err(CliError::Interrupted) => RunStatus::Interrupted,
        _ => RunStatus::Failed,
    })?;
    Ok(Ran { dir, ended })
}

/// What is known of the nodes before the first trial.
struct About {
    topology: String,
    nodes: std::collections::BTreeMap<String, ccbench_proto::wire::NodeInfo>,
    notes: Vec<String>,
}

fn run_info(experiment: &Experiment, plan_text: &str, args: &RunArgs, about: About) -> RunInfo {
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
        sets: args.sets.clone(),
        nodes: about.nodes,
        notes: about.notes,
        traces: experiment.stored_traces(),
        imported: vec![],
    }
}
