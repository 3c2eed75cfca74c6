//! Trials in the lab: the same plan, rows, verdicts and tables as on this machine's own namespaces.

use std::collections::BTreeMap;

use ccbench_proto::plan::check::{CheckedPlan, PlanProblem, Severity, check};
use ccbench_proto::schedule::{self, Point};
use ccbench_proto::topology::Topology;
use ccbench_proto::units::Micros;
use ccbench_proto::wire::lab_said::Of;
use ccbench_proto::{event, resolve, wire};
use tokio::sync::{mpsc, watch};

use super::{Kernel, Lab};
use crate::coordinate::{Book, Experiment};
use crate::error::CliError;
use crate::live::Live;
use crate::trials::{Trial, interrupted};
use ccbench_results::store::{NodeClock, RunDir, TrialKey};
use ccbench_results::verdict::{Judge, Reason, Status, Verdict};

/// From "all are ready" to the first phase, guest time: the base RTT is measured meanwhile.
const LEAD_NS: u64 = 350_000_000;
/// What a node may still be reporting after the last phase, guest time.
const REPORT_NS: u64 = 12_000_000_000;
/// Nothing may pass in the guest that undoes a prepared node.
const LEASE_MS: u32 = 600_000;
/// Messages between the reader of the guest's words and the book.
const WORDS_WAITING: usize = 4096;
/// Share of the guest's processor from which its network may be distorted, and from which it surely is.
const BUSY_DEGRADED_PCT: f64 = 60.0;
const BUSY_FAILED_PCT: f64 = 90.0;
/// How long the calibration runs.
const CALIBRATION: Micros = Micros::from_millis(1500);

/// What a machine said about itself before any trial.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// By node.
    pub nodes: BTreeMap<String, wire::NodeInfo>,
    /// Share of the processor that was busy while flows ran, percent.
    pub busy_pct: f64,
}

impl Lab {
    /// Boots once to ask every node of this point what it is, and runs the first instants of the busiest phase to
    /// see what its traffic costs.
    ///
    /// # Errors
    /// The machine did not come up, or the plan cannot be run in it.
    pub(super) async fn survey(
        &self,
        experiment: &Experiment,
        point: &Point,
        dilation: u32,
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<Survey, CliError> {
        let short = shortened(&point.plan).unwrap_or_else(|why| {
            eprintln!("lab: this look takes a whole trial, as a short one would be no plan: {why}");
            point.plan.clone()
        });
        let task = task(experiment, point, &short, (1, 1));
        let dir = folder()?;
        let boot = self.boot(dir.path(), &task, 1, dilation)?;
        let (send, mut receive) = mpsc::channel(WORDS_WAITING);
        let follow = tokio::spawn(boot.follow(send));
        let (mut survey, mut failed) = (Survey::default(), None);
        loop {
            let said = tokio::select! {
                biased;
                () = interrupted(interrupt) => {
                    follow.abort();
                    return Err(CliError::Interrupted);
                }
                said = receive.recv() => said,
            };
            let Some(said) = said else { break };
            match said.of {
                Some(Of::Node(node)) => {
                    survey.nodes.insert(node.node, node.info.unwrap_or_default());
                }
                Some(Of::Failed(why)) => failed = Some(failure(why)),
                Some(Of::Done(done)) => survey.busy_pct = done.busy_pct,
                _ => {}
            }
        }
        follow.await.map_err(|e| CliError::Testbed(e.to_string()))??;
        failed.map_or(Ok(survey), Err)
    }

    pub(super) async fn trial(
        &self,
        Trial { experiment, point, run, dir }: Trial<'_>,
        dilation: u32,
        live: &mut Live,
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<Verdict, CliError> {
        let (point_id, trial, seed) = (run.point_id, run.trial, run.seed);
        let key = TrialKey { point_id, trial, seed, epoch: dir.next_epoch() };
        let task = task(experiment, point, &point.plan, (run.trial, run.seed));
        let files = folder()?;
        let boot = self.boot(files.path(), &task, run.seed, dilation)?;
        let (send, mut receive) = mpsc::channel(WORDS_WAITING);
        let follow = tokio::spawn(boot.follow(send));
        let mut ear = Ear::new(key, point, dir);
        loop {
            let said = tokio::select! {
                biased;
                () = interrupted(interrupt) => {
                    follow.abort();
                    if let Some(book) = ear.book {
                        book.writer.abandon("interrupted")?;
                    }
                    return Err(CliError::Interrupted);
                }
                said = ear.next(&mut receive) => said,
            };
            let Some(of) = said.and_then(|said| said.of) else { break };
            ear.hear(of, live)?;
        }
        let ended = follow.await.map_err(|e| CliError::Testbed(e.to_string()))?;
        let Some(mut book) = ear.book else {
            let error = ended.err().map_or_else(
                || CliError::Testbed("the lab's machine ended without a trial".into()),
                CliError::from,
            );
            dir.record_not_run(key, &Reason::new("not_run", error.to_string()))?;
            return Err(error);
        };
        book.errors = ear.errors;
        book.errors.extend(ended.err().map(|error| error.to_string()));
        let busy_pct = ear.busy_pct;
        self.note(&mut book, dilation, run.seed, busy_pct)?;
        let verdict = book.judge.finish(&book.done, &book.errors);
        let verdict = with_busy(verdict, busy_pct, &self.way_out_of_busy(dilation));
        book.writer.commit(&verdict)?;
        Ok(verdict)
    }

    fn way_out_of_busy(&self, dilation: u32) -> String {
        if self.kernel().dilates() {
            return format!("use a larger dilation than {dilation} (--dilation)");
        }
        "a stock kernel cannot be dilated: ask for less traffic, or for the kernel `own`".to_owned()
    }

    /// What the trial ran in.
    fn note(
        &self,
        book: &mut Book<'_>,
        dilation: u32,
        seed: u64,
        busy_pct: f64,
    ) -> Result<(), CliError> {
        let Kernel { version, release, .. } = self.kernel();
        let message = format!(
            "{}; {version} {release}; dilation {dilation}; seed {seed}; guest busy {busy_pct:.1} %",
            self.emulator
        );
        let data = event::Lab {
            emulator: self.emulator.clone(),
            kernel: release.clone(),
            source: version.clone(),
            userland_sha256: self.userland_sha256.clone(),
            dilation,
            seed,
            busy_pct,
        };
        Ok(book.writer.note(event::Kind::Lab(data), "machine", &message)?)
    }
}

/// Keeps what a guest says of one trial.
struct Ear<'a> {
    key: TrialKey,
    point: &'a Point,
    dir: &'a RunDir,
    infos: BTreeMap<String, wire::NodeInfo>,
    replies: BTreeMap<String, wire::PrepareReply>,
    /// From the start of the trial on.
    book: Option<Book<'a>>,
    errors: Vec<String>,
    t0_ns: u64,
    utc_minus_guest_ns: i64,
    busy_pct: f64,
}

impl<'a> Ear<'a> {
    fn new(key: TrialKey, point: &'a Point, dir: &'a RunDir) -> Self {
        Self {
            key,
            point,
            dir,
            infos: BTreeMap::new(),
            replies: BTreeMap::new(),
            book: None,
            errors: Vec::new(),
            t0_ns: 0,
            utc_minus_guest_ns: 0,
            busy_pct: 0.0,
        }
    }

    /// The next message, once there is room for what it holds.
    async fn next<T>(&self, receive: &mut mpsc::Receiver<T>) -> Option<T> {
        if let Some(book) = &self.book {
            book.writer.room().await;
        }
        receive.recv().await
    }

    fn hear(&mut self, of: Of, live: &mut Live) -> Result<(), CliError> {
        match (of, &mut self.book) {
            (Of::Node(node), _) => {
                self.infos.insert(node.node, node.info.unwrap_or_default());
            }
            (Of::Prepared(prepared), _) => {
                self.replies.insert(prepared.node, prepared.reply.unwrap_or_default());
            }
            (Of::Start(start), _) => self.begin(start)?,
            (Of::Row(row), Some(book)) => {
                let event = row.event.unwrap_or_default();
                if let Some(wire::run_event::Of::HostSample(sample)) = &event.of {
                    live.tick(Micros::new(sample.at_ns.saturating_sub(self.t0_ns) / 1000));
                    let utc_ns = sample.at_ns.saturating_add_signed(self.utc_minus_guest_ns);
                    book.writer.tell_time(utc_ns);
                }
                live.row(&row.node, &event);
                book.keep(&row.node, event)?;
            }
            (Of::End(end), _) if !end.why.is_empty() => {
                self.errors.push(format!("node {}: its stream broke: {}", end.node, end.why));
            }
            (Of::Undone(undone), _) if !undone.failed.is_empty() => {
                let what = undone.failed.join("; ");
                self.errors.push(format!("{}: could not be left as found: {what}", undone.node));
            }
            (Of::Failed(why), None) => {
                let error = failure(why);
                let reason = Reason::new("not_run", error.to_string());
                self.dir.record_not_run(self.key, &reason)?;
                return Err(error);
            }
            (Of::Failed(why), Some(_)) => self.errors.push(failure(why).to_string()),
            (Of::Done(done), _) => self.busy_pct = done.busy_pct,
            (Of::Row(_) | Of::End(_) | Of::Undone(_), _) => {}
        }
        Ok(())
    }

    fn begin(&mut self, start: wire::LabStart) -> Result<(), CliError> {
        self.t0_ns = start.t0_ns;
        self.utc_minus_guest_ns = start.realtime_minus_monotonic_ns;
        self.dir.announce_trial(self.key)?;
        let clock = NodeClock {
            t0_ns: start.t0_ns,
            realtime_offset_ns: start.realtime_minus_monotonic_ns,
            error_bound_ns: 0,
            source: "shared".to_owned(),
            rtt_ns: 0,
        };
        let clocks: BTreeMap<_, _> =
            self.infos.keys().map(|node| (node.clone(), clock.clone())).collect();
        let phases = schedule::phases(&self.point.plan);
        let judge = Judge::new(&self.point.plan, &self.infos, &clocks);
        let writer = self.dir.begin_announced(self.key, &phases, clocks)?;
        let mut book = Book::new(writer, judge);
        book.writer.tell_time(self.t0_ns.saturating_add_signed(self.utc_minus_guest_ns));
        book.links(std::mem::take(&mut self.replies))?;
        self.book = Some(book);
        Ok(())
    }
}

fn with_busy(mut verdict: Verdict, busy_pct: f64, way_out: &str) -> Verdict {
    if busy_pct > BUSY_DEGRADED_PCT {
        let why = format!(
            "the lab's processor was busy for {busy_pct:.0} % of the time: traffic may have waited for it; \
             {way_out}"
        );
        let status = if busy_pct > BUSY_FAILED_PCT { Status::Failed } else { Status::Degraded };
        verdict.status = verdict.status.max(status);
        verdict.reasons.push(Reason::new("lab_busy", why));
    }
    verdict
}

/// The plan with the flows of its busiest phase, and those that begin by themselves, in one short phase: what the
/// calibration runs. Otherwise why that is no plan.
fn shortened(plan: &CheckedPlan) -> Result<CheckedPlan, String> {
    let mut short = plan.plan().clone();
    let busiest = short.phases.iter().max_by_key(|phase| phase.flows.len()).cloned();
    if let Some(mut phase) = busiest {
        let by_themselves = short.flows.iter().filter(|(_, flow)| flow.start.is_some());
        let missing =
            by_themselves.map(|(name, _)| name).filter(|name| !phase.flows.contains(name));
        let missing: Vec<String> = missing.cloned().collect();
        phase.flows.extend(missing);
        phase.length = CALIBRATION;
        short.phases = vec![phase];
        short.changes.clear();
        short.expect.clear();
        for flow in short.flows.values_mut() {
            (flow.start, flow.stop) = (None, None);
        }
        for probe in short.probes.values_mut() {
            probe.start = Micros::default();
        }
    }
    let told = |problem: PlanProblem| format!("{}: {}", problem.path, problem.why);
    let first = |problems: Vec<PlanProblem>| {
        let error = problems.into_iter().find(|problem| problem.severity == Severity::Error);
        error.map_or(String::new(), told)
    };
    check(short).map(|(plan, _)| plan).map_err(first)
}

/// What the guest is to do. Nothing in it depends on this machine or on the time.
fn task(
    experiment: &Experiment,
    point: &Point,
    plan: &CheckedPlan,
    (trial, seed): (u16, u64),
) -> wire::LabTask {
    let plan_toml = resolve::to_toml(plan);
    let topology = Topology::build(plan.plan());
    let address = |name: &String| Some((name.clone(), topology.address(name)?.to_string()));
    let addresses: BTreeMap<String, String> =
        plan.plan().nodes.keys().filter_map(address).collect();
    let prepare = |node: &String| wire::PrepareRequest {
        run_id: "lab".to_owned(),
        node: node.clone(),
        plan_toml: plan_toml.clone(),
        point_id: point.id,
        trial: u32::from(trial),
        seed,
        epoch: 1,
        addresses: addresses.clone().into_iter().collect(),
        port_slot: 0,
        lease_ms: LEASE_MS,
        files: experiment.files_for(point, node),
    };
    wire::LabTask {
        resolved_toml: plan_toml.clone(),
        prepare: plan.plan().nodes.keys().map(prepare).collect(),
        lead_ns: LEAD_NS,
        limit_ns: schedule::length(plan).nanos() + REPORT_NS,
    }
}

fn failure(why: wire::LabFailed) -> CliError {
    let wire::LabFailed { node, step, why, impossible } = why;
    match (node.is_empty(), impossible) {
        (false, true) => CliError::Impossible { node, why },
        (true, _) => CliError::Testbed(format!("in the lab, {step}: {why}")),
        (false, false) => CliError::Testbed(format!("in the lab, node {node}, {step}: {why}")),
    }
}

/// For a boot's files.
fn folder() -> Result<tempfile::TempDir, CliError> {
    tempfile::Builder::new().prefix("ccbench-lab-").tempdir().map_err(|source| CliError::File {
        op: "make a folder in",
        path: std::env::temp_dir(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ccbench_proto::plan::parse::parse;

    use super::*;
    use crate::source::Source;

    /// Flows that begin by themselves, late probes, changes and claims about phases do not make it run for minutes.
    #[test]
    fn the_calibration_is_short() {
        let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
        for name in ["bufferbloat", "l4s/step", "dumbbell/fairness", "dumbbell/responsiveness"] {
            let path = plans.join(name).with_extension("toml");
            let plan = Source::read(&path).unwrap().load_quietly(&[]).unwrap();
            for point in plan.points() {
                let short = shortened(&point.plan).unwrap();
                assert_eq!(schedule::length(&short), CALIBRATION, "{name} {:?}", point.factors);
                let flows = short.plan().phases.iter().map(|phase| phase.flows.len()).max();
                assert_eq!(flows, Some(plan.plan().flows.len()), "{name}");
            }
        }
    }

    #[test]
    fn why_a_trial_cannot_be_shortened_is_told() {
        let text = r#"
            name = "turns"
            nodes = { src = {}, dst = {} }
            wires = { path = ["src", "dst"] }
            flows.first = { from = "src", to = "dst" }
            flows.second = { from = "src", to = "dst" }
            phases = [
                { name = "one", length = "9s", flows = ["first"] },
                { name = "other", length = "9s", flows = ["second"] },
            ]
        "#;
        let (plan, _) = parse(text).and_then(check).unwrap();
        let why = shortened(&plan).unwrap_err();
        assert!(why.starts_with("flows.first: never runs"), "{why}");
    }

    #[test]
    fn a_busy_guest_is_judged() {
        let ok = || Verdict { status: Status::Ok, reasons: Vec::new() };
        assert_eq!(with_busy(ok(), 60.0, "").status, Status::Ok);
        assert_eq!(with_busy(ok(), 61.0, "").status, Status::Degraded);
        assert_eq!(with_busy(ok(), 91.0, "").status, Status::Failed);
    }
}
