//! A controller: `ccbench run`, and `ccbench run --resume` as often as its run needs it. Results are files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccbench_proto::sealed_line;
use ccbench_results::TrialStatus;
use ccbench_results::journal::{Entry, FILE_NAME, TrialEnd};
use ccbench_results::store::RunDir;

/// Length of a trial: long enough that a node that misses the loss of its controller stays in use for too long.
pub const TRIAL_S: u64 = 10;
/// Number of trials of a run.
const TRIALS: usize = 2;
/// Pause before a run is resumed. Each controller has another one, so that they do not refuse each other forever.
const PAUSE_MS: u64 = 2_000;

/// The links are named after the controller.
const PLAN: &str = r#"
name = "turmoil-NAME"
repeat = TRIALS
seed = 1
[nodes]
n1 = { agent = "127.0.0.1:7701", address = "127.0.0.11" }
n2 = { agent = "127.0.0.1:7702", address = "127.0.0.12" }
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
    last_error: Mutex<String>,
}

impl Controller {
    /// Writes its plan into a new folder.
    pub fn new(name: &'static str, folder: PathBuf) -> Self {
        std::fs::create_dir(&folder).unwrap();
        let plan = PLAN
            .replace("NAME", name)
            .replace("TRIALS", &TRIALS.to_string())
            .replace("TRIAL_S", &TRIAL_S.to_string());
        std::fs::write(folder.join("plan.toml"), plan).unwrap();
        Self { name, folder, is_done: AtomicBool::new(false), last_error: Mutex::default() }
    }

    /// Returns whether its run is complete.
    pub fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }

    /// Returns why its run last ended early.
    pub fn last_error(&self) -> String {
        self.last_error.lock().unwrap().clone()
    }

    /// Returns the results directory, once there is one.
    fn results(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.folder.join("results")).ok()?.flatten();
        entries.map(|entry| entry.path()).find(|path| path.join(FILE_NAME).is_file())
    }

    async fn run(&self) -> Result<(), String> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let result = match self.results() {
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
        };
        result.map_err(|error| error.to_string())
    }

    fn is_complete(&self) -> bool {
        let dir = self.results().and_then(|dir| RunDir::open(&dir).ok());
        dir.is_some_and(|dir| dir.is_complete() && dir.failed().is_empty())
    }

    /// Returns the committed trials whose data count.
    ///
    /// # Errors
    /// One is missing or was committed twice.
    pub fn committed(&self) -> Result<Vec<TrialEnd>, String> {
        let dir = self.results().ok_or("it has no results")?;
        let journal = std::fs::read(dir.join(FILE_NAME)).map_err(|error| error.to_string())?;
        let objects = sealed_line::lines(&journal).into_iter().filter_map(|line| line.object);
        let ends: Vec<TrialEnd> = objects
            .filter_map(|object| match serde_json::from_slice::<Entry>(&object).unwrap() {
                Entry::TrialEnd(end) => Some(end),
                _ => None,
            })
            .filter(|end| matches!(end.status, TrialStatus::Ok | TrialStatus::Degraded))
            .collect();
        let mut counts: BTreeMap<(u32, u16), usize> = BTreeMap::new();
        for end in &ends {
            *counts.entry((end.point_id, end.trial)).or_default() += 1;
        }
        if counts.len() == TRIALS && counts.values().all(|count| *count == 1) {
            Ok(ends)
        } else {
            Err(format!("commits by point and trial: {counts:?}"))
        }
    }
}

/// Runs `ccbench run`, and resumes the run until it is complete.
pub async fn control(controller: Arc<Controller>) -> turmoil::Result {
    let own_ms = u64::from(controller.name.as_bytes()[0]) * 37 % 1_000;
    for attempt in 0_u64.. {
        if let Err(why) = controller.run().await {
            *controller.last_error.lock().unwrap() = why;
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
