//! The undo stack and its journal. A step is recorded before its change is made: on the stack, and on disk where the machine outlives
//! this process. So the next start can undo everything after a crash. Each step is undone in the network namespace in which the
//! change was made (`namespace.rs`).
//!
//! A change to an interface that is gone counts as undone: the kernel removed it with the interface. `Saved::is_same_interface`
//! ([`crate::interfaces`]) decides this for offloads and links, [`sysctl::restore`] for sysctls, and
//! [`ccbench_shaper::bpf::remove_classifier`] for classifiers. The first looks the interface up by name:
//! [`ccbench_shaper::netlink::ifindex`] turns the kernel's ENODEV into `ShaperError::NotFound`. The last compares with ENODEV itself.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::audit::Audit;
use crate::cgroup;
use crate::interfaces::{Interfaces, Machine};
use crate::sysctl::{self, Saved};

pub mod error;
mod journal;
mod namespace;
pub mod outcome;
mod state_lock;

pub use error::JournalError;
pub(crate) use journal::append_line;
pub use journal::read_journal;
use journal::{Found, Journal, Recorded, UnreadableLine};
use namespace::{Namespaces, NotEntered};
pub use outcome::Outcome;
pub use state_lock::{lock, lock_namespace, lock_soon, remove_if_empty, remove_locked};

/// A change to undo, with everything needed to undo it after a kill -9.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Step {
    /// Restore a sysctl.
    Sysctl(Saved),
    /// Restore the segmentation offloads of an interface.
    Offloads {
        /// The interface.
        dev: String,
        /// The offloads as the shaper saved them.
        before: serde_json::Value,
    },
    /// Remove a link and restore the root qdisc of its interface.
    Link {
        /// The link's name in the plan.
        link: String,
        /// The interface.
        dev: String,
        /// The root qdisc as the shaper saved it.
        before: serde_json::Value,
    },
    /// Remove a classifier from the egress of an interface, where the kernel does not remove it when the agent exits.
    Classifier {
        /// The interface's index, which the kernel does not reuse before the next boot.
        ifindex: u32,
        /// The interface's name.
        dev: String,
        /// Whether the agent also added the qdisc clsact.
        own_clsact: bool,
    },
    /// Kill the processes left in the cgroup of traffic and remove it. Each agent process gives its cgroup a different name.
    TrafficGroup {
        /// The cgroup's folder.
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

/// What an operator discards from the journal of a dead agent, after inspecting the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Discard {
    /// Lines that cannot be read, once their changes have been restored by hand.
    pub damaged: bool,
    /// Steps of network namespaces that are not found or cannot be entered.
    pub unreachable: bool,
}

impl Undo {
    /// Returns a stack without a copy on disk, for a namespace that dies with this process.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// Returns a stack with a journal in `state_dir`, which is created if missing. Undoes what a dead agent left there.
    /// Steps that fail and lines that cannot be read stay.
    ///
    /// # Errors
    /// The journal cannot be read or written.
    pub fn open(state_dir: &Path) -> Result<(Self, Outcome), JournalError> {
        Self::open_in(state_dir, None, &Machine)
    }

    /// Like [`Self::open`], for a process that entered the network namespace with the file `netns`, which the journal records. Undoes
    /// changes of interfaces with `interfaces`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in(
        state_dir: &Path,
        netns: Option<&Path>,
        interfaces: &dyn Interfaces,
    ) -> Result<(Self, Outcome), JournalError> {
        Self::open_with(state_dir, interfaces, Namespaces::of_thread(netns))
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

    /// Reads the journal, without undoing anything yet.
    fn read(state_dir: &Path, namespaces: Namespaces) -> Result<Self, JournalError> {
        let (journal, Found { steps, unreadable }) = Journal::open(state_dir)?;
        Ok(Self { steps, unreadable, journal: Some(journal), namespaces, ..Self::default() })
    }

    /// From now on, records changes and their undoing in the audit log.
    pub fn set_audit(&mut self, audit: Audit) {
        self.audit = audit;
    }

    /// Returns the audit log.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Records how to undo a change. Make the change only after this succeeds.
    ///
    /// # Errors
    /// The step could not be written; the change must then not be made.
    pub fn push(&mut self, step: Step) -> Result<(), JournalError> {
        let netns = match step {
            // A cgroup belongs to the machine, not to a namespace.
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

    /// Returns the names of the sysctls that will be restored, with those that the kernel changed along with others ([`sysctl::save`]).
    pub fn sysctls(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|recorded| match &recorded.step {
            Step::Sysctl(saved) => Some(saved.name.as_str()),
            _ => None,
        })
    }

    /// Whether nothing is left to undo.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.unreadable.is_empty()
    }

    /// Undoes everything, last first, each step in the network namespace in which the change was made. Failed steps
    /// stay on the stack and in the journal; the next reset and the next start try them again. Unreadable lines stay,
    /// too, until an operator [discards](Discard) them.
    pub fn undo_all(&mut self, interfaces: &dyn Interfaces) -> Outcome {
        self.undo_and_discard(interfaces, Discard::default())
    }

    /// As [`Self::undo_all`], if anything is left to undo.
    pub fn undo_left(&mut self, interfaces: &dyn Interfaces) -> Outcome {
        if self.is_empty() { Outcome::default() } else { self.undo_all(interfaces) }
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

/// Undoes what the dead agent of `state_dir` left, if anything. Failed steps stay in its journal. `netns` is the file
/// of the network namespace that this process has entered; with it, changes made in other namespaces stay, too. What
/// `discard` selects is removed from the journal, and the outcome names each dropped step.
///
/// # Errors
/// The journal cannot be read or rewritten.
pub fn roll_back(
    state_dir: &Path,
    netns: Option<&Path>,
    discard: Discard,
) -> Result<Outcome, JournalError> {
    let namespaces = netns.map_or_else(|| Namespaces::of_thread(None), Namespaces::of_thread_only);
    roll_back_with(state_dir, &Machine, namespaces, discard)
}

fn roll_back_with(
    state_dir: &Path,
    interfaces: &dyn Interfaces,
    namespaces: Namespaces,
    discard: Discard,
) -> Result<Outcome, JournalError> {
    if !has_journal(state_dir) {
        return Ok(Outcome::default());
    }
    Ok(Undo::read(state_dir, namespaces)?.undo_and_discard(interfaces, discard))
}

/// Undoes each step in its network namespace. Steps of a namespace that is gone are dropped, since the changes went
/// with it. With `discards_unreachable`, those of a namespace that cannot be entered are dropped, too.
fn undo_recorded(
    recorded: &[Recorded],
    namespaces: &Namespaces,
    discards_unreachable: bool,
    interfaces: &dyn Interfaces,
) -> (Outcome, Vec<Recorded>) {
    let (mut outcome, mut left) = (Outcome::default(), Vec::new());
    for group in recorded.chunk_by(|one, next| one.netns == next.netns).rev() {
        let netns = group.first().and_then(|one| one.netns.as_ref());
        match namespaces.run_in(netns, || undo_here(group, interfaces)) {
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

/// Undoes steps in the network namespace of the calling thread, last first. Returns the failed ones in that order, too.
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

/// The prefix of default state directories, which no `--state-dir` names.
pub const STATE_DIR_PREFIX: &str = "agent-";

/// Returns the default path of the state directory of an agent in this network namespace.
pub fn default_state_dir() -> PathBuf {
    PathBuf::from(format!("/run/ccbench/{STATE_DIR_PREFIX}{}", netns_inode()))
}

/// Whether a state directory has a journal: an agent has used it. A journal that cannot be looked up counts.
pub fn has_journal(state_dir: &Path) -> bool {
    !matches!(state_dir.join(journal::FILE).try_exists(), Ok(false))
}

/// Whether these file names of a state directory include the journal.
pub fn have_journal(files: &[String]) -> bool {
    files.iter().any(|name| name == journal::FILE)
}

/// Returns the inode of this thread's network namespace; 0 without /proc.
pub fn netns_inode() -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self/ns/net").map_or(0, |m| m.ino())
}

#[cfg(test)]
mod tests;
