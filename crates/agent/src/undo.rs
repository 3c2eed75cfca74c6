//! The undo stack and its journal. A step is on the stack, and on disk where the machine outlives this process, before
//! its change is made, so the next start can undo everything after a crash. Each is undone in the network namespace that it was
//! made in (`namespace.rs`).
//!
//! What belongs to an interface that is gone counts as undone: the kernel removed it with the interface. That is decided
//! for offloads and links by `Saved::is_same_interface` ([`crate::interfaces`]), for sysctls by [`sysctl::restore`], for
//! classifiers by [`ccbench_shaper::bpf::remove_classifier`]. The first asks for the interface by its name: the kernel's ENODEV
//! becomes `ShaperError::NotFound` in [`ccbench_shaper::netlink::ifindex`]. The last compares with ENODEV itself.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::audit::Audit;
use crate::cgroup;
use crate::interfaces::{Interfaces, Machine};
use crate::sysctl::{self, Saved};

mod journal;
mod namespace;
mod state_lock;

use journal::{Found, Journal, Recorded, UnreadableLine};
pub use journal::{JournalError, read_journal};
use namespace::{Namespaces, NotEntered};
pub use state_lock::{lock, lock_namespace, lock_soon, remove_if_empty, remove_locked};

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
    /// Not to be done any more, each with its reason.
    pub dropped: Vec<String>,
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
        self.dropped.extend(other.dropped);
    }
}

/// The stack, and its copy on disk.
#[derive(Debug, Default)]
pub struct Undo {
    steps: Vec<Recorded>,
    /// Lines of the journal that cannot be read.
    unreadable: Vec<UnreadableLine>,
    journal: Option<Journal>,
    namespaces: Namespaces,
    audit: Audit,
}

/// What an operator has the journal of a dead agent lose, after a look at the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Discard {
    /// Lines that cannot be read, after what they stood for was restored by hand.
    pub damaged: bool,
    /// Steps of network namespaces that are not found or cannot be entered.
    pub unreachable: bool,
}

impl Undo {
    /// A stack without a copy on disk: for a namespace that dies with us.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// A stack with a journal in `state_dir`, which is created if missing. Undoes what a dead agent left there; what fails, and
    /// what cannot be read, stays.
    ///
    /// # Errors
    /// The journal cannot be read or written.
    pub fn open(state_dir: &Path) -> Result<(Self, Outcome), JournalError> {
        Self::open_in(state_dir, None)
    }

    /// The same for a process that has entered the network namespace with the file `netns`, which the journal records.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in(
        state_dir: &Path,
        netns: Option<&Path>,
    ) -> Result<(Self, Outcome), JournalError> {
        Self::open_with(state_dir, &Machine, Namespaces::here(netns))
    }

    fn open_with(
        state_dir: &Path,
        interfaces: &dyn Interfaces,
        namespaces: Namespaces,
    ) -> Result<(Self, Outcome), JournalError> {
        let mut undo = Self::read(state_dir, namespaces)?;
        let outcome = undo.undo_all(interfaces);
        Ok((undo, outcome))
    }

    /// What the journal holds, of which nothing is undone yet.
    fn read(state_dir: &Path, namespaces: Namespaces) -> Result<Self, JournalError> {
        let (journal, Found { steps, unreadable }) = Journal::open(state_dir)?;
        Ok(Self { steps, unreadable, journal: Some(journal), namespaces, ..Self::default() })
    }

    /// Records changes and what is undone in the audit log from now on.
    pub fn set_audit(&mut self, audit: Audit) {
        self.audit = audit;
    }

    /// The audit log.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Records how to undo a change; only after this may the change be made.
    ///
    /// # Errors
    /// It could not be written; then the change must not be made.
    pub fn push(&mut self, step: Step) -> Result<(), JournalError> {
        let netns = match step {
            // It is the machine's.
            Step::TrafficGroup { .. } => None,
            _ => self.namespaces.own().cloned(),
        };
        let recorded = Recorded { netns, step };
        if let Some(journal) = &mut self.journal {
            journal.append(&recorded)?;
        }
        self.audit.change(&recorded.step);
        self.steps.push(recorded);
        Ok(())
    }

    /// Drops the steps of a link that was removed by other means.
    pub fn forget_link(&mut self, name: &str) {
        let Self { steps, namespaces, .. } = self;
        steps.retain(|Recorded { netns, step }| {
            !matches!(step, Step::Link { link, .. } if link == name)
                || !namespaces.is_own(netns.as_ref())
        });
    }

    /// Whether nothing is left to undo.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.unreadable.is_empty()
    }

    /// Undoes everything, last first, each step in the network namespace that it was made in. What fails stays, here and in the
    /// journal: it is tried again at the next reset and at the next start. So do lines that cannot be read, until an operator
    /// [discards](Discard) them.
    pub fn undo_all(&mut self, interfaces: &dyn Interfaces) -> Outcome {
        self.undo_and_discard(interfaces, Discard::default())
    }

    fn undo_and_discard(&mut self, interfaces: &dyn Interfaces, discard: Discard) -> Outcome {
        if discard.damaged {
            self.unreadable.clear();
        }
        let steps = std::mem::take(&mut self.steps);
        let (mut outcome, left) =
            undo_recorded(&steps, &self.namespaces, discard.unreachable, interfaces);
        self.steps = left;
        if let Some(journal) = &mut self.journal {
            let unreadable = self.unreadable.iter().map(|line| line.describe(journal.path()));
            outcome.failed.extend(unreadable);
            if let Err(error) = journal.rewrite(&self.steps, &self.unreadable) {
                outcome.failed.push(error.to_string());
            }
        }
        self.audit.undone(&outcome);
        outcome
    }
}

/// Undoes what the dead agent of `state_dir` left, if anything; what fails stays in its journal. With `netns`, the file of the
/// network namespace that this process has entered, what was changed in other ones stays too. What `discard` names is removed from
/// the journal; the outcome names each dropped step.
///
/// # Errors
/// The journal cannot be read or rewritten.
pub fn roll_back(
    state_dir: &Path,
    netns: Option<&Path>,
    discard: Discard,
) -> Result<Outcome, JournalError> {
    let namespaces = netns.map_or_else(|| Namespaces::here(None), Namespaces::only_here);
    roll_back_with(state_dir, &Machine, namespaces, discard)
}

fn roll_back_with(
    state_dir: &Path,
    interfaces: &dyn Interfaces,
    namespaces: Namespaces,
    discard: Discard,
) -> Result<Outcome, JournalError> {
    if !state_dir.join(journal::FILE).exists() {
        return Ok(Outcome::default());
    }
    Ok(Undo::read(state_dir, namespaces)?.undo_and_discard(interfaces, discard))
}

/// Undoes each step in its network namespace. What was changed in one that is gone went with it; with `discards_unreachable`, what
/// was changed in one that cannot be entered is dropped, too.
fn undo_recorded(
    recorded: &[Recorded],
    namespaces: &Namespaces,
    discards_unreachable: bool,
    interfaces: &dyn Interfaces,
) -> (Outcome, Vec<Recorded>) {
    let (mut outcome, mut left) = (Outcome::default(), Vec::new());
    for group in recorded.chunk_by(|one, next| one.netns == next.netns).rev() {
        let netns = group.first().and_then(|one| one.netns.as_ref());
        match namespaces.within(netns, || undo_here(group, interfaces)) {
            Ok((of_group, kept)) => {
                outcome.merge(of_group);
                left.extend(kept);
            }
            Err(error) => {
                let unreachable = error.unreachable().filter(|_| discards_unreachable);
                let is_gone = matches!(error, NotEntered::Gone(_));
                let why = unreachable.clone().unwrap_or_else(|| error.to_string());
                let all = group.iter().rev().map(|one| format!("{}: {why}", one.step));
                if is_gone || unreachable.is_some() {
                    outcome.dropped.extend(all);
                } else {
                    outcome.failed.extend(all);
                    left.extend(group.iter().rev().cloned());
                }
            }
        }
    }
    left.reverse();
    (outcome, left)
}

/// Undoes steps in the network namespace of the calling thread, last first. Returns those that failed, last first.
fn undo_here(recorded: &[Recorded], interfaces: &dyn Interfaces) -> (Outcome, Vec<Recorded>) {
    let (mut outcome, mut left) = (Outcome::default(), Vec::new());
    for one in recorded.iter().rev() {
        let result = match &one.step {
            Step::Sysctl(saved) => sysctl::restore(saved).map_err(|e| e.to_string()),
            Step::Offloads { dev, before } => {
                interfaces.restore_offloads(dev, before).map_err(|e| e.to_string())
            }
            Step::Link { dev, before, .. } => {
                interfaces.restore_root(dev, before).map_err(|e| e.to_string())
            }
            Step::Classifier { ifindex, own_clsact, .. } => {
                ccbench_shaper::bpf::remove_classifier(*ifindex, *own_clsact)
                    .map_err(|e| e.to_string())
            }
            Step::TrafficGroup { folder } => cgroup::remove(folder).map_err(|e| e.to_string()),
        };
        let ok = result.is_ok();
        outcome.note(&one.step, result);
        if !ok {
            left.push(one.clone());
        }
    }
    (outcome, left)
}

/// The beginning of the name of a state directory that no `--state-dir` names.
pub const STATE_DIR_PREFIX: &str = "agent-";

/// Where the journal of an agent in this network namespace is.
pub fn default_state_dir() -> PathBuf {
    PathBuf::from(format!("/run/ccbench/{STATE_DIR_PREFIX}{}", netns_inode()))
}

/// Whether these names of files in a state directory have that of the journal.
pub fn have_journal(files: &[String]) -> bool {
    files.iter().any(|name| name == journal::FILE)
}

/// The inode of this thread's network namespace; 0 without /proc.
pub fn netns_inode() -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self/ns/net").map_or(0, |m| m.ino())
}

#[cfg(test)]
mod tests;
