//! The undo stack and its journal. A step is on the stack, and on disk where the machine outlives this process, before
//! its change is made, so the next start can undo everything after a crash.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::kernel::{Kernel, Machine};
use crate::sysctl::{self, Saved};

/// The undo journal, or what is kept beside it, could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{op} the undo journal's {}: {source}{}", .path.display(), hint(.source))]
pub struct JournalError {
    /// "write", "read" ...
    pub op: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::ReadOnlyFilesystem => {
            "; nothing was changed that cannot be undone: free some space there, or start the agent with another \
             --state-dir"
        }
        _ => "",
    }
}

/// A change to undo, with everything that undoing it needs after a kill -9.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Step {
    /// Restore a sysctl.
    Sysctl(Saved),
    /// Restore the segmentation offloads of an interface.
    Offloads {
        /// The interface.
        dev: String,
        /// As the shaper saved them.
        before: serde_json::Value,
    },
    /// Remove a link and restore the root qdisc of its interface.
    Link {
        /// The link's name in the plan.
        link: String,
        /// The interface.
        dev: String,
        /// As the shaper saved it.
        before: serde_json::Value,
    },
    /// Remove a classifier from the egress of an interface, where the kernel does not remove it when the agent exits.
    Classifier {
        /// Index of the interface; the kernel does not reuse it before the next boot.
        ifindex: u32,
        /// Its name.
        dev: String,
        /// Whether the agent added the qdisc clsact too.
        own_clsact: bool,
    },
    /// Kill the processes left in the cgroup of traffic and remove it. Every agent process names its cgroup differently.
    TrafficGroup {
        /// Its folder.
        folder: PathBuf,
    },
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sysctl(saved) => write!(f, "sysctl {} = {}", saved.name, saved.before),
            Self::Offloads { dev, .. } => write!(f, "offloads of {dev}"),
            Self::Link { link, dev, .. } => write!(f, "link {link} on {dev}"),
            Self::Classifier { dev, .. } => write!(f, "classifier of {dev}"),
            Self::TrafficGroup { folder } => write!(f, "control group {}", folder.display()),
        }
    }
}

/// The result of undoing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Done.
    pub undone: Vec<String>,
    /// Not done, each with its reason.
    pub failed: Vec<String>,
}

impl Outcome {
    /// Records one step.
    pub fn note(
        &mut self,
        what: impl std::fmt::Display,
        result: Result<(), impl std::fmt::Display>,
    ) {
        match result {
            Ok(()) => self.undone.push(what.to_string()),
            Err(error) => self.failed.push(format!("{what}: {error}")),
        }
    }

    /// Appends another outcome.
    pub fn merge(&mut self, other: Self) {
        self.undone.extend(other.undone);
        self.failed.extend(other.failed);
    }
}

const FILE: &str = "undo.ndjson";

/// The stack, and its copy on disk.
#[derive(Debug, Default)]
pub struct Undo {
    steps: Vec<Step>,
    journal: Option<Journal>,
}

#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: File,
    boot_id: String,
}

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
struct Line<'a> {
    /// Steps of an earlier boot are not undone: their changes ended with that boot.
    boot_id: Cow<'a, str>,
    #[serde(flatten)]
    step: Cow<'a, Step>,
}

impl Undo {
    /// A stack without a copy on disk: for a namespace that dies with us.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// A stack with a journal in `state_dir`, which is created if missing. Call [`roll_back`] first: it undoes the steps that
    /// an earlier agent left there.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn journaled(state_dir: &Path) -> Result<Self, JournalError> {
        let path = state_dir.join(FILE);
        let open = || {
            std::fs::create_dir_all(state_dir)?;
            let file = OpenOptions::new().create(true).append(true).open(&path)?;
            // The folder entry must be on disk as well, or a lost power takes the file away.
            File::open(state_dir)?.sync_all()?;
            Ok(file)
        };
        let file = open().map_err(failed("open", &path))?;
        let journal = Journal { path, file, boot_id: boot_id() };
        Ok(Self { steps: Vec::new(), journal: Some(journal) })
    }

    /// Records how to undo a change; only after this may the change be made.
    ///
    /// # Errors
    /// It could not be written; then the change must not be made.
    pub fn push(&mut self, step: Step) -> Result<(), JournalError> {
        if let Some(journal) = &mut self.journal {
            journal.append(&step).map_err(failed("write", &journal.path))?;
        }
        self.steps.push(step);
        Ok(())
    }

    /// The links on the stack are gone by other means: their steps are no longer needed in this process.
    pub fn forget_link(&mut self, name: &str) {
        self.steps.retain(|step| !matches!(step, Step::Link { link, .. } if link == name));
    }

    /// Undoes everything, last first. What fails stays, here and in the journal: it is tried again at the
    /// next reset and at the next start.
    pub fn undo_all(&mut self, kernel: &dyn Kernel) -> Outcome {
        let (outcome, left) = undo_steps(std::mem::take(&mut self.steps), kernel);
        self.steps.clone_from(&left);
        if let Some(journal) = &mut self.journal
            && let Err(error) = journal.rewrite(&left)
        {
            tracing::error!(path = %journal.path.display(), %error, "rewrite the undo journal");
        }
        outcome
    }
}

fn failed(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError { op, path, source }
}

fn undo_steps(steps: Vec<Step>, kernel: &dyn Kernel) -> (Outcome, Vec<Step>) {
    let (mut outcome, mut left) = (Outcome::default(), Vec::new());
    for step in steps.into_iter().rev() {
        let result = match &step {
            Step::Sysctl(saved) => sysctl::restore(saved).map_err(|e| e.to_string()),
            Step::Offloads { dev, before } => {
                kernel.restore_offloads(dev, before).map_err(|e| e.to_string())
            }
            Step::Link { dev, before, .. } => {
                kernel.restore_root(dev, before).map_err(|e| e.to_string())
            }
            Step::Classifier { ifindex, own_clsact, .. } => {
                ccbench_shaper::bpf::remove_classifier(*ifindex, *own_clsact)
                    .map_err(|e| e.to_string())
            }
            Step::TrafficGroup { folder } => cgroup::remove(folder).map_err(|e| e.to_string()),
        };
        let ok = result.is_ok();
        outcome.note(&step, result);
        if !ok {
            left.push(step);
        }
    }
    left.reverse();
    (outcome, left)
}

impl Journal {
    fn append(&mut self, step: &Step) -> io::Result<()> {
        self.file.write_all(&line(step, &self.boot_id)?)?;
        self.file.sync_data()
    }

    /// Atomic: a crash leaves the old journal or the new one.
    fn rewrite(&mut self, steps: &[Step]) -> io::Result<()> {
        if steps.is_empty() {
            self.file.set_len(0)?;
            return self.file.sync_data();
        }
        let fresh = self.path.with_extension("new");
        let mut file = OpenOptions::new().create(true).append(true).open(&fresh)?;
        file.set_len(0)?;
        for step in steps {
            file.write_all(&line(step, &self.boot_id)?)?;
        }
        file.sync_data()?;
        std::fs::rename(&fresh, &self.path)?;
        self.file = file;
        Ok(())
    }
}

fn line(step: &Step, boot_id: &str) -> io::Result<Vec<u8>> {
    let line = Line { boot_id: Cow::Borrowed(boot_id), step: Cow::Borrowed(step) };
    let mut line = serde_json::to_vec(&line)?;
    line.push(b'\n');
    Ok(line)
}

/// Of the running kernel; empty without /proc.
fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}

/// Reads a journal: what is to be undone, and how many steps are of an earlier boot, whose kernel took the
/// changes with it. A torn last line is of a change that was never made.
fn read_steps(text: &str, boot_id: &str) -> (Vec<Step>, usize) {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line<'_>>(line).ok());
    let (now, earlier): (Vec<_>, Vec<_>) = lines.partition(|line| line.boot_id == boot_id);
    (now.into_iter().map(|line| line.step.into_owned()).collect(), earlier.len())
}

/// Undoes what the dead agent of `state_dir` left, if anything; what fails stays in its journal.
///
/// # Errors
/// The journal cannot be read or rewritten.
pub fn roll_back(state_dir: &Path) -> Result<Outcome, JournalError> {
    roll_back_with(state_dir, &Machine)
}

fn roll_back_with(state_dir: &Path, kernel: &dyn Kernel) -> Result<Outcome, JournalError> {
    let path = state_dir.join(FILE);
    let text = match std::fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Outcome::default()),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let (steps, discarded) = read_steps(&text, &boot_id());
    if discarded > 0 {
        tracing::info!(discarded, path = %path.display(), "left alone what an earlier boot did");
    }
    let (outcome, left) = undo_steps(steps, kernel);
    let mut undo = Undo::journaled(state_dir)?;
    if let Some(journal) = &mut undo.journal {
        journal.rewrite(&left).map_err(failed("write", &path))?;
    }
    Ok(outcome)
}

/// Where the journal of an agent in this network namespace is.
pub fn default_state_dir() -> PathBuf {
    PathBuf::from(format!("/run/ccbench/agent-{}", netns_inode()))
}

/// The inode of this thread's network namespace; 0 without /proc.
pub fn netns_inode() -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self/ns/net").map_or(0, |m| m.ino())
}

/// Holds a state directory for the life of the returned file: two agents must not share one.
///
/// # Errors
/// Another agent holds it, or the folder cannot be made.
pub fn lock(state_dir: &Path) -> Result<File, JournalError> {
    let path = state_dir.join("lock");
    let open = || {
        std::fs::create_dir_all(state_dir)?;
        OpenOptions::new().create(true).truncate(false).write(true).open(&path)
    };
    let file = open().map_err(failed("open", &path))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(
        |e| {
            let why = format!("another agent holds it ({e}); give this one its own --state-dir");
            failed("lock", &path)(io::Error::other(why))
        },
    )?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::fake::FakeKernel;

    fn offloads(dev: &str) -> Step {
        Step::Offloads { dev: dev.into(), before: serde_json::json!({"tso": true}) }
    }
    fn link(dev: &str) -> Step {
        Step::Link { link: "l".into(), dev: dev.into(), before: serde_json::Value::Null }
    }

    #[test]
    fn undoes_in_reverse_order() {
        let kernel = FakeKernel::default();
        let mut undo = Undo::in_memory();
        undo.push(offloads("a")).unwrap();
        undo.push(link("a")).unwrap();
        let outcome = undo.undo_all(&kernel);
        assert_eq!(outcome.undone, ["link l on a", "offloads of a"]);
        assert_eq!(kernel.calls(), ["restore_root a", "restore_offloads a"]);
        assert_eq!(undo.undo_all(&kernel), Outcome::default(), "nothing is undone twice");
    }

    #[test]
    fn replay_undoes_the_steps_of_a_dead_agent() {
        let dir = tempfile::tempdir().unwrap();
        let mut undo = Undo::journaled(dir.path()).unwrap();
        undo.push(offloads("a")).unwrap();
        undo.push(link("b")).unwrap();
        drop(undo);
        let kernel = FakeKernel::default();
        assert_eq!(roll_back_with(dir.path(), &kernel).unwrap().undone.len(), 2);
        assert_eq!(kernel.calls(), ["restore_root b", "restore_offloads a"]);
        assert_eq!(roll_back_with(dir.path(), &kernel).unwrap(), Outcome::default());
    }

    #[test]
    fn what_fails_stays_in_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let mut undo = Undo::journaled(dir.path()).unwrap();
        undo.push(offloads("a")).unwrap();
        undo.push(offloads("b")).unwrap();
        let kernel = FakeKernel::failing("restore_offloads a");
        let outcome = undo.undo_all(&kernel);
        assert_eq!((outcome.undone.len(), outcome.failed.len()), (1, 1));
        assert!(outcome.failed[0].starts_with("offloads of a: "), "{outcome:?}");
        let kernel = FakeKernel::default();
        roll_back_with(dir.path(), &kernel).unwrap();
        assert_eq!(kernel.calls(), ["restore_offloads a"]);
    }

    #[test]
    fn ignores_a_torn_line_and_a_missing_file() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(roll_back(dir.path()).unwrap(), Outcome::default());
        let whole = String::from_utf8(line(&offloads("a"), "now").unwrap()).unwrap();
        let text = format!("{whole}{}", &whole[..60]);
        assert_eq!(read_steps(&text, "now"), (vec![offloads("a")], 0));
    }

    #[test]
    fn discards_steps_of_an_earlier_boot() {
        let dir = tempfile::tempdir().unwrap();
        let group = Step::TrafficGroup { folder: "/x".into() };
        let saved = Saved { name: "net.x".into(), before: "1".into() };
        let text: Vec<u8> = [
            line(&offloads("a"), "an-earlier-boot").unwrap(),
            line(&group, "an-earlier-boot").unwrap(),
            line(&Step::Sysctl(saved), "an-earlier-boot").unwrap(),
            line(&offloads("b"), &boot_id()).unwrap(),
        ]
        .concat();
        assert_eq!(read_steps(std::str::from_utf8(&text).unwrap(), &boot_id()).1, 3);
        std::fs::write(dir.path().join(FILE), text).unwrap();
        let kernel = FakeKernel::default();
        roll_back_with(dir.path(), &kernel).unwrap();
        assert_eq!(kernel.calls(), ["restore_offloads b"]);
        assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), b"");
    }

    #[test]
    fn failed_steps_are_retried() {
        let dir = tempfile::tempdir().unwrap();
        let mut undo = Undo::journaled(dir.path()).unwrap();
        undo.push(offloads("a")).unwrap();
        let kernel = FakeKernel::failing("restore_offloads a");
        assert_eq!(undo.undo_all(&kernel).failed.len(), 1);
        undo.push(offloads("b")).unwrap();
        assert_eq!(undo.undo_all(&kernel).failed.len(), 1);
        drop(undo);
        let kernel = FakeKernel::default();
        roll_back_with(dir.path(), &kernel).unwrap();
        assert_eq!(kernel.calls(), ["restore_offloads a"]);
    }

    #[test]
    fn a_state_directory_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        assert!(lock(dir.path()).unwrap_err().to_string().contains("another agent"));
        drop(held);
        assert!(lock(dir.path()).is_ok());
    }
}
