//! A controller: `ccbench run`, and `ccbench run --resume` as often as its run needs it. Results are files.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccbench_proto::sealed_line::{self, seal};
use ccbench_results::TrialStatus;
use ccbench_results::journal::{Entry, FILE_NAME, TrialEnd};
use ccbench_results::reason::ReasonCode;
use ccbench_results::store::RunDir;
use ccbench_results::verify::verify;
use polars::prelude::*;

use crate::Flaw;
use crate::node::{NODES, plan_address};
use crate::violation::RunViolation;

/// Length of a trial: long enough that a node that misses the loss of its controller stays in use for too long.
pub const TRIAL_S: u64 = 10;
/// Number of trials of a run.
pub const TRIALS: usize = 2;
/// Pause before a run is resumed. Each controller has another one, so that they do not refuse each other forever.
const PAUSE_MS: u64 = 2_000;
/// A run that needs more attempts makes no progress: one has at most 30 while faults last.
const MAX_ATTEMPTS: usize = 60;
/// Texts of errors that faults and the other controller cause.
const EXPECTED: [&str; 10] = [
    // The node is in use by the other controller, or has been since.
    "this node is busy: run ",
    "this node is held by run ",
    "another controller has used this node meanwhile",
    // The node has freed itself, because it did not hear of its controller for too long.
    "nothing is prepared on this node",
    // The connection is lost or refused.
    "transport error",
    "h2 protocol error",
    "keep-alive timed out",
    "no answer within 15 s",
    // Faults of the model of the kernel.
    "model: the agent is dead",
    "model: it fails once",
];

/// The links are named after the controller.
const PLAN: &str = r#"
name = "turmoil-NAME"
repeat = TRIALS
seed = 1
[nodes]
n1 = { agent = "AGENT1", address = "127.0.0.NET1" }
n2 = { agent = "AGENT2", address = "127.0.0.NET2" }
[links.NAME1]
node = "n1"
toward = "n2"
rate = "10mbit"
queue = { kind = "pfifo", limit = "40p" }
[links.NAME2]
node = "n2"
toward = "n1"
rate = "10mbit"
queue = { kind = "pfifo", limit = "40p" }
[flows.f]
from = "n1"
to = "n2"
tool = "iperf3"
[sample]
acks = "off"
[[phases]]
name = "only"
length = "TRIAL_Ss"
flows = ["f"]
"#;

/// What outlives a controller's process.
pub struct Controller {
    pub name: &'static str,
    folder: PathBuf,
    is_done: AtomicBool,
    attempts: AtomicUsize,
    /// Why its attempts ended early.
    errors: Mutex<Vec<String>>,
}

impl Controller {
    /// Writes its plan into a new folder. The nodes' addresses are those of this machine, on which agents look for free ports. `network` makes
    /// them differ from those of other simulations.
    pub fn new(name: &'static str, folder: PathBuf, network: u8) -> Self {
        std::fs::create_dir(&folder).unwrap();
        let plan = PLAN
            .replace("NAME", name)
            .replace("TRIALS", &TRIALS.to_string())
            .replace("TRIAL_S", &TRIAL_S.to_string())
            .replace("NET", &network.to_string())
            .replace("AGENT1", &plan_address(0))
            .replace("AGENT2", &plan_address(1));
        std::fs::write(folder.join("plan.toml"), plan).unwrap();
        Self {
            name,
            folder,
            is_done: AtomicBool::default(),
            attempts: AtomicUsize::default(),
            errors: Mutex::default(),
        }
    }

    /// Returns whether its run is complete.
    pub fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }

    /// Returns why its attempts ended early.
    pub fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }

    /// Returns the results directory, once there is one.
    fn results(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.folder.join("results")).ok()?.flatten();
        entries.map(|entry| entry.path()).find(|path| path.join(FILE_NAME).is_file())
    }

    async fn run(&self) -> Result<(), impl Error> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        match self.results() {
            Some(dir) => {
                let dir = text(&dir);
                ccbench::run_simulated(&["ccbench", "run", "--resume", &dir, "--retry-failed"])
                    .await
            }
            None => {
                let plan = text(&self.folder.join("plan.toml"));
                let out = text(&self.folder.join("results"));
                ccbench::run_simulated(&["ccbench", "run", &plan, "--out", &out]).await
            }
        }
    }

    fn is_complete(&self) -> bool {
        let dir = self.results().and_then(|dir| RunDir::open(&dir).ok());
        dir.is_some_and(|dir| dir.is_complete() && dir.failed().is_empty())
    }

    fn journal(&self) -> Result<Vec<Entry>, RunViolation> {
        let dir = self.results().ok_or(RunViolation::NoResults)?;
        let journal = std::fs::read(dir.join(FILE_NAME)).map_err(unreadable(&dir))?;
        let objects = sealed_line::lines(&journal).into_iter().filter_map(|line| line.object);
        Ok(objects.map(|object| serde_json::from_slice(&object).unwrap()).collect())
    }

    /// Returns the numbers of trials that began again and of nodes that were lost.
    pub fn repeated_and_lost(&self) -> (usize, usize) {
        let (mut begun, mut lost) = (0_usize, 0);
        for entry in self.journal().unwrap_or_default() {
            match entry {
                Entry::TrialBegin { .. } => begun += 1,
                Entry::TrialEnd(TrialEnd { reasons, .. }) => {
                    let is_lost = |code: &ReasonCode| *code == ReasonCode::NodeLost;
                    lost += reasons.iter().filter(|reason| is_lost(&reason.code)).count();
                }
                _ => {}
            }
        }
        (begun.saturating_sub(TRIALS), lost)
    }

    /// Returns the committed trials whose data count.
    ///
    /// # Errors
    /// One is missing, was committed twice, or lacks the report of a node; a file is damaged; or an attempt failed for an unexpected reason.
    pub fn committed(&self, flaw: Flaw) -> Result<Vec<TrialEnd>, RunViolation> {
        let path = self.results().ok_or(RunViolation::NoResults)?;
        let dir = RunDir::open(&path).map_err(unreadable(&path))?;
        plant(flaw, &path, &dir);
        let ends = self.journal()?.into_iter().filter_map(|entry| match entry {
            Entry::TrialEnd(end) => Some(end),
            _ => None,
        });
        let (ends, others): (Vec<_>, Vec<_>) =
            ends.partition(|end| matches!(end.status, TrialStatus::Ok | TrialStatus::Degraded));
        let mut counts: BTreeMap<(u32, u16), usize> = BTreeMap::new();
        for end in &ends {
            *counts.entry((end.point_id, end.trial)).or_default() += 1;
        }
        if counts.len() != TRIALS || counts.values().any(|count| *count != 1) {
            return Err(RunViolation::Commits(counts));
        }
        for end in &ends {
            let nodes = nodes_with_end(&dir, end)?;
            if nodes != NODES.map(str::to_owned).into() {
                return Err(RunViolation::LacksEnd { end: Box::new(end.clone()), nodes });
            }
        }
        let damaged = verify(&path).map_err(unreadable(&path))?.damaged;
        if !damaged.is_empty() {
            let damaged = damaged.into_iter().map(|(file, why)| format!("{file}: {why}"));
            return Err(RunViolation::Damaged(damaged.collect()));
        }
        self.check_errors(ends.iter().chain(&others))?;
        Ok(ends)
    }

    /// # Errors
    /// An attempt or a trial failed for an unexpected reason.
    fn check_errors<'a>(
        &self,
        ends: impl Iterator<Item = &'a TrialEnd>,
    ) -> Result<(), RunViolation> {
        let mut texts = self.errors();
        for reason in ends.flat_map(|end| &end.reasons) {
            match reason.code {
                ReasonCode::AgentError => {
                    return Err(RunViolation::AgentError(reason.message.clone()));
                }
                ReasonCode::Error | ReasonCode::NotRun => texts.push(reason.message.clone()),
                _ => {}
            }
        }
        // An attempt may fail on several nodes.
        let mut parts = texts.iter().flat_map(|text| text.split("; node "));
        match parts.find(|part| !EXPECTED.iter().any(|expected| part.contains(expected))) {
            Some(part) => Err(RunViolation::UnexpectedError(part.to_owned())),
            None => Ok(()),
        }
    }
}

fn unreadable<E: Error + 'static>(path: &Path) -> impl FnOnce(E) -> RunViolation {
    let path = path.to_owned();
    move |error| RunViolation::Unreadable { path, source: Box::new(error) }
}

/// Returns the nodes whose events include the end of the trial.
fn nodes_with_end(dir: &RunDir, end: &TrialEnd) -> Result<BTreeSet<String>, RunViolation> {
    let mut nodes = BTreeSet::new();
    for path in dir.files(end, "events") {
        let file = File::open(&path).map_err(unreadable(&path))?;
        let rows = ParquetReader::new(file).finish().map_err(unreadable(&path))?;
        let [of_node, kinds] =
            ["node", "kind"].map(|name| rows.column(name).unwrap().str().unwrap());
        let ends = of_node.iter().zip(kinds.iter()).filter(|(_, kind)| *kind == Some("trial_end"));
        nodes.extend(ends.filter_map(|(node, _)| node.map(str::to_owned)));
    }
    Ok(nodes)
}

/// Changes results as a controller with this flaw would write them.
fn plant(flaw: Flaw, path: &Path, dir: &RunDir) {
    match flaw {
        Flaw::CommitsTwice => {
            let end = Entry::TrialEnd(dir.trials().remove(0));
            let line = seal(&serde_json::to_string(&end).unwrap());
            let mut journal = std::fs::read_to_string(path.join(FILE_NAME)).unwrap();
            journal.push_str(&line);
            std::fs::write(path.join(FILE_NAME), journal).unwrap();
        }
        Flaw::CommitsTooEarly => {
            let file = dir.files(&dir.trials()[0], "events").remove(0);
            let rows = ParquetReader::new(File::open(&file).unwrap()).finish().unwrap();
            let of_one = rows.lazy().filter(col("node").eq(lit(NODES[0])));
            ParquetWriter::new(File::create(&file).unwrap())
                .finish(&mut of_one.collect().unwrap())
                .unwrap();
        }
        Flaw::DamagesFile => {
            let file = dir.files(&dir.trials()[0], "clock").remove(0);
            let mut bytes = std::fs::read(&file).unwrap();
            bytes[0] ^= 1;
            std::fs::write(file, bytes).unwrap();
        }
        _ => {}
    }
}

/// Runs `ccbench run`, and resumes the run until it is complete.
pub async fn control(controller: Arc<Controller>) -> turmoil::Result {
    let own_ms = u64::from(controller.name.as_bytes()[0]) * 37 % 1_000;
    for attempt in 0_u64.. {
        if controller.attempts.fetch_add(1, Ordering::Relaxed) == MAX_ATTEMPTS {
            return Err(format!("{MAX_ATTEMPTS} attempts: {:?}", controller.errors()).into());
        }
        if let Err(why) = controller.run().await {
            controller.errors.lock().unwrap().push(why.to_string());
        }
        if controller.is_complete() {
            controller.is_done.store(true, Ordering::Relaxed);
            break;
        }
        let pause_ms = PAUSE_MS + (own_ms * (attempt + 1)) % 3_000;
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
    Ok(())
}
