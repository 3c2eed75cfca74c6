//! One trial in the lab's virtual machine, with the same plan, rows, verdicts and tables as on the testbed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ccbench_proto::plan::Engine;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule::{self, Point};
use ccbench_proto::topology::Topology;
use ccbench_proto::wire::lab_message::Payload;
use ccbench_proto::{event, resolve, wire};
use ccbench_results::model::{Reason, Status, TrialKey, Verdict};
use ccbench_results::reason::ReasonCode;
use ccbench_results::store::RunDir;
use tokio::sync::mpsc;
use tracing::info;

use super::boot_directory::BootDirectory;
use super::error::LabError;
use super::jobs::GuestResources;
use super::kernel::Kernel;
use super::vm::{VmImage, console_tail};
use crate::backend::error::BackendError;
use crate::backend::record_not_run;
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::progress::TrialProgress;
use crate::recorder::TrialRecorder;
use crate::runner::Trial;
use crate::virtual_trial::{NodeReplies, VirtualClock, VirtualTrial};

/// Guest time from "all nodes are ready" to the first phase, in which the base RTT is measured.
const LEAD_NS: u64 = 350_000_000;
/// Guest time for a node's report after the last phase.
const REPORT_NS: u64 = 12_000_000_000;
/// Lease of a prepared node in the guest; long enough that the node never resets itself.
const LEASE_MS: u32 = 600_000;
/// Messages queued between the reader of the guest's messages and the recorder.
pub const MAX_QUEUED_MESSAGES: usize = 4096;
/// CPU load of the guest above which its network may be distorted, and above which it certainly is.
const BUSY_DEGRADED_PCT: f64 = 60.0;
const BUSY_FAILED_PCT: f64 = 90.0;

/// Runs a trial with these resources and commits it.
///
/// # Errors
/// The trial could not run. The results directory has a record of that.
pub async fn run(
    (image, dilation): (&VmImage, Option<u32>),
    resources: &GuestResources,
    Trial { experiment, point, scheduled, dir, epoch }: Trial<'_>,
    progress: &mut TrialProgress<'_>,
    interrupt: &mut Interrupt,
) -> Result<Verdict, BackendError> {
    let (point_id, trial, seed) = (scheduled.point_id, scheduled.trial, scheduled.seed);
    let key = TrialKey { point_id, trial, seed, epoch };
    let task = task(experiment, point, &point.plan, (scheduled.trial, scheduled.seed));
    let booted = BootDirectory::new().and_then(|files| {
        let vm = image.boot(files.path(), &task, scheduled.seed, dilation, resources)?;
        Ok((files, vm))
    });
    let (files, vm) = booted.map_err(|error| record_not_run(dir, key, error))?;
    let (send, mut receive) = mpsc::channel(MAX_QUEUED_MESSAGES);
    let reader = vm.read(send);
    let mut guest = GuestTrial::new(key, point, dir, (image.kernel().engine, files.path()));
    loop {
        let message = tokio::select! {
            biased;
            () = interrupt.requested() => {
                reader.kill().await;
                if let Some(trial) = guest.trial {
                    trial.recorder.writer.abandon("interrupted")?;
                }
                return Err(BackendError::Interrupted);
            }
            message = guest.next(&mut receive) => message,
        };
        let Some(message) = message else { break };
        if let Err(error) = guest.handle(message, progress) {
            reader.kill().await;
            return Err(error);
        }
    }
    let ended = reader.ended().await;
    let Some(VirtualTrial { mut recorder, .. }) = guest.trial else {
        return Err(record_not_run(dir, key, ended.err().unwrap_or(LabError::NoTrial)));
    };
    recorder.errors = guest.errors;
    if guest.rows_before_start > 0 {
        let lost = guest.rows_before_start;
        recorder.errors.push(format!(
            "the guest sent {lost} rows before the start of the trial; they are lost"
        ));
    }
    if let Some(first) = recorder.errors.first_mut() {
        // The message of an agent's panic is only on the console.
        first.push_str(&console_tail(files.path()));
    }
    recorder.errors.extend(ended.err().map(|error| error.to_string()));
    let busy_pct = image.kernel().engine.has_cpu_time().then_some(guest.busy_pct);
    note_machine(&mut recorder, image, dilation, scheduled.seed, busy_pct)?;
    info!(busy_pct, "the guest has ended");
    let amended = |verdict| match busy_pct {
        Some(busy_pct) => with_busy(verdict, busy_pct, &busy_hint(image.kernel(), dilation)),
        None => verdict,
    };
    Ok(recorder.commit(amended).await?)
}

/// Returns how to reduce the load of the guest's CPU.
fn busy_hint(kernel: &Kernel, dilation: Option<u32>) -> String {
    if let Some(dilation) = dilation.filter(|_| kernel.can_dilate()) {
        return format!("use a dilation larger than {dilation} (--dilation)");
    }
    "a stock kernel cannot be dilated: reduce the traffic, or use the kernel `own`".to_owned()
}

/// Records the trial's virtual machine.
fn note_machine(
    recorder: &mut TrialRecorder<'_>,
    image: &VmImage,
    dilation: Option<u32>,
    seed: u64,
    busy_pct: Option<f64>,
) -> Result<(), BackendError> {
    let Kernel { version, release, engine, recipe_sha256, .. } = image.kernel();
    let mut message = format!("{}; {version} {release}; seed {seed}", image.emulator);
    if let (Some(dilation), Some(busy_pct)) = (dilation, busy_pct) {
        message = format!("{message}; dilation {dilation}; guest busy {busy_pct:.1} %");
    }
    let data = event::Lab {
        engine: event::LabEngine::from(*engine).into(),
        engine_sha256: recipe_sha256.clone(),
        emulator: image.emulator.clone(),
        kernel: release.clone(),
        source: version.clone(),
        userland_sha256: image.userland_sha256.clone(),
        dilation,
        seed,
        busy_pct,
    };
    Ok(recorder.writer.note(event::Kind::Lab(data), "machine", &message)?)
}

/// Handles a guest's messages during one trial.
struct GuestTrial<'a> {
    key: TrialKey,
    point: &'a Point,
    dir: &'a RunDir,
    engine: Engine,
    folder: PathBuf,
    answers: NodeReplies,
    /// `None` until the trial has started.
    trial: Option<VirtualTrial<'a>>,
    errors: Vec<String>,
    /// Rows before the trial's start, which fit no table. Only a guest of another version sends them.
    rows_before_start: u64,
    busy_pct: f64,
}

impl<'a> GuestTrial<'a> {
    fn new(
        key: TrialKey,
        point: &'a Point,
        dir: &'a RunDir,
        (engine, folder): (Engine, &Path),
    ) -> Self {
        Self {
            key,
            point,
            dir,
            engine,
            folder: folder.to_owned(),
            answers: NodeReplies::default(),
            trial: None,
            errors: Vec::new(),
            rows_before_start: 0,
            busy_pct: 0.0,
        }
    }

    /// Returns the next message once the writer has room for it.
    async fn next<T>(&self, receive: &mut mpsc::Receiver<T>) -> Option<T> {
        match &self.trial {
            Some(trial) => trial.next(receive).await,
            None => receive.recv().await,
        }
    }

    fn handle(
        &mut self,
        message: wire::LabMessage,
        progress: &mut TrialProgress<'_>,
    ) -> Result<(), BackendError> {
        let Some(payload) = message.payload else {
            let text = "the guest sent a message of a type that this version does not know";
            if !self.errors.iter().any(|error| error == text) {
                self.errors.push(text.to_owned());
            }
            return Ok(());
        };
        match (payload, &mut self.trial) {
            (Payload::Node(node), _) => {
                self.answers.infos.insert(node.node, node.info.unwrap_or_default());
            }
            (Payload::Prepared(prepared), _) => {
                info!(node = prepared.node, "prepared");
                let reply = prepared.reply.unwrap_or_default();
                self.answers.replies.insert(prepared.node, reply);
            }
            (Payload::Start(start), _) => self.start(start, progress)?,
            (Payload::Row(row), Some(trial)) => {
                let mut event = row.event.unwrap_or_default();
                if let Some(wire::run_event::Payload::HostSample(sample)) = &mut event.payload {
                    // Signal frames are as large as the registers of the host's CPU, so the resident pages depend on it.
                    if !self.engine.has_cpu_time() {
                        sample.agent_rss_bytes = None;
                    }
                    trial.tick(sample.at_ns, progress);
                }
                trial.row(&row.node, event, progress)?;
            }
            (Payload::End(end), _) if !end.reason.is_empty() => {
                self.errors.push(format!("node {}: stream failed: {}", end.node, end.reason));
            }
            (Payload::Undone(undone), _) if !undone.failed.is_empty() => {
                let failed = undone.failed.join("; ");
                self.errors.push(format!("{}: reset failed: {failed}", undone.node));
            }
            (Payload::Failed(failure), None) => {
                let error = error(failure, &self.folder);
                return Err(record_not_run(self.dir, self.key, error));
            }
            (Payload::Failed(failure), Some(_)) => {
                self.errors.push(error(failure, &self.folder).to_string());
            }
            (Payload::Done(done), _) => self.busy_pct = done.busy_pct,
            (Payload::Row(_), None) => self.rows_before_start += 1,
            (Payload::End(_) | Payload::Undone(_), _) => {}
        }
        Ok(())
    }

    fn start(
        &mut self,
        start: wire::LabStart,
        progress: &TrialProgress<'_>,
    ) -> Result<(), BackendError> {
        let wire::LabStart { t0_ns, realtime_minus_monotonic_ns } = start;
        let clock = VirtualClock { t0_ns, realtime_minus_monotonic_ns };
        let answers = std::mem::take(&mut self.answers);
        let Self { key, point, dir, engine, .. } = *self;
        let trial = VirtualTrial::begin(dir, key, point, answers, clock, progress, |judge| {
            if !engine.has_cpu_time() {
                judge.ignore_cpu_utilisation();
            }
        })?;
        self.trial = Some(trial);
        Ok(())
    }
}

fn with_busy(mut verdict: Verdict, busy_pct: f64, hint: &str) -> Verdict {
    if busy_pct > BUSY_DEGRADED_PCT {
        let why = format!(
            "the guest's CPU was busy for {busy_pct:.0} % of the time, which may delay traffic; {hint}"
        );
        let status = if busy_pct > BUSY_FAILED_PCT { Status::Failed } else { Status::Degraded };
        verdict.status = verdict.status.max(status);
        verdict.reasons.push(Reason::about(ReasonCode::LabBusy, "", why));
    }
    verdict
}

/// Returns the guest's task. It depends only on the plan and the seed, not on this host or the time.
pub fn task(
    experiment: &Experiment,
    point: &Point,
    plan: &CheckedPlan,
    (trial, seed): (u16, u64),
) -> wire::LabTask {
    let plan_toml = resolve::to_toml(&plan.with_lab_defaults());
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
        generation: None,
        boot_id: None,
        file_digests: BTreeMap::new(),
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

/// Converts a guest's report of a failure. `folder` has the files of the boot.
pub fn error(failure: wire::LabFailed, folder: &Path) -> LabError {
    let step = failure.step();
    let wire::LabFailed { node, reason, impossible, .. } = failure;
    if impossible && !node.is_empty() {
        LabError::Unsupported { node, reason }
    } else {
        LabError::Guest { node, step, reason, console: console_tail(folder) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ccbench_proto::plan::check;
    use ccbench_results::backend::RunBackend;
    use ccbench_results::model::RunInfo;
    use ccbench_tests::plans;

    use super::*;
    use crate::clock;
    use crate::progress::{Progress, TrialSchedule};

    const KEY: TrialKey = TrialKey { point_id: 0, trial: 1, seed: 9, epoch: 1 };

    fn run_dir(root: &Path) -> RunDir {
        let info = RunInfo {
            plan_name: "lab".to_owned(),
            plan_text: String::new(),
            resolved_text: String::new(),
            plan_sha256: "0123456789abcdef".to_owned(),
            points: vec![(0, vec![])],
            repeat: 1,
            seed: 1,
            command_line: vec![],
            ccbench_version: "0.1.0".to_owned(),
            started_utc: clock::utc(),
            nodes: BTreeMap::new(),
            backend: RunBackend::Testbed,
            topology: serde_json::Value::Null,
            notes: vec![],
            sets: vec![],
            traces: BTreeMap::new(),
            ccs: BTreeMap::new(),
            imported: vec![],
        };
        RunDir::create(root, &info).unwrap()
    }

    #[test]
    fn a_trial_whose_machine_cannot_start_is_recorded() {
        let root = tempfile::tempdir().unwrap();
        let dir = run_dir(root.path());
        let full = std::io::ErrorKind::StorageFull.into();
        let error = record_not_run(&dir, KEY, LabError::io("write", root.path())(full));
        assert!(matches!(error, BackendError::Lab(_)), "{error}");
        assert_eq!(dir.counts(), (0, 0, 1));
        assert!(dir.trial(0, 1).unwrap().needs_repeat());
    }

    #[test]
    fn an_unknown_message_is_an_error_of_the_trial_and_not_its_end() {
        let root = tempfile::tempdir().unwrap();
        let dir = run_dir(root.path());
        let text = plans::of_lengths("name = \"lab\"", &["10s"]);
        let (plan, _) = check::read(&text, &[]).unwrap();
        let (points, trials) = (plan.points(), schedule::trials(&plan));
        let progress = Progress::new(true, 1);
        let parts = TrialSchedule::from_plan(&points[0].plan);
        let mut progress =
            progress.trial_start(0, &trials[0], "lab", parts, (Duration::ZERO, None));
        let mut guest = GuestTrial::new(KEY, &points[0], &dir, (Engine::Uml, root.path()));
        for _ in 0..2 {
            guest.handle(wire::LabMessage { payload: None }, &mut progress).unwrap();
        }
        let unknown = "the guest sent a message of a type that this version does not know";
        assert_eq!(guest.errors, [unknown], "once");
    }

    #[test]
    fn judges_a_busy_guest() {
        let ok = || Verdict { status: Status::Ok, reasons: Vec::new() };
        assert_eq!(with_busy(ok(), 60.0, "").status, Status::Ok);
        assert_eq!(with_busy(ok(), 61.0, "").status, Status::Degraded);
        assert_eq!(with_busy(ok(), 91.0, "").status, Status::Failed);
        let hint = "a stock kernel cannot be dilated: reduce the traffic";
        assert_eq!(
            with_busy(ok(), 61.0, hint).reasons[0].subject(),
            "",
            "it has no measured value"
        );
    }
}
