//! The undo stack and its journal. A step is on the stack, and on disk where the machine outlives this process, before
//! its change is made, so the next start can undo everything after a crash.
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
mod state_lock;

use journal::{Found, Journal, UnreadableLine};
pub use journal::{JournalError, read_journal};
pub use state_lock::{lock, lock_soon, remove_locked};

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

/// The stack, and its copy on disk.
#[derive(Debug, Default)]
pub struct Undo {
    steps: Vec<Step>,
    /// Lines of the journal that cannot be read.
    unreadable: Vec<UnreadableLine>,
    journal: Option<Journal>,
    audit: Audit,
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
        Self::open_with(state_dir, &Machine)
    }

    fn open_with(
        state_dir: &Path,
        interfaces: &dyn Interfaces,
    ) -> Result<(Self, Outcome), JournalError> {
        let (journal, Found { steps, unreadable }) = Journal::open(state_dir)?;
        let mut undo = Self { steps, unreadable, journal: Some(journal), audit: Audit::default() };
        let outcome = undo.undo_all(interfaces);
        Ok((undo, outcome))
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
        if let Some(journal) = &mut self.journal {
            journal.append(&step)?;
        }
        self.audit.change(&step);
        self.steps.push(step);
        Ok(())
    }

    /// Drops the steps of a link that was removed by other means.
    pub fn forget_link(&mut self, name: &str) {
        self.steps.retain(|step| !matches!(step, Step::Link { link, .. } if link == name));
    }

    /// Whether nothing is left to undo.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.unreadable.is_empty()
    }

    /// Undoes everything, last first. What fails stays, here and in the journal: it is tried again at the next reset and at the
    /// next start. So do lines that cannot be read, until [`discard_unreadable`].
    pub fn undo_all(&mut self, interfaces: &dyn Interfaces) -> Outcome {
        let (mut outcome, left) = undo_steps(std::mem::take(&mut self.steps), interfaces);
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

/// Undoes what the dead agent of `state_dir` left, if anything; what fails stays in its journal.
///
/// # Errors
/// The journal cannot be read or rewritten.
pub fn roll_back(state_dir: &Path) -> Result<Outcome, JournalError> {
    if !state_dir.join(journal::FILE).exists() {
        return Ok(Outcome::default());
    }
    Undo::open(state_dir).map(|(_, outcome)| outcome)
}

/// Removes the lines that cannot be read from the journal in `state_dir`, and undoes the others. For a node whose operator has
/// restored by hand what those lines stood for.
///
/// # Errors
/// The journal cannot be read or rewritten.
pub fn discard_unreadable(state_dir: &Path) -> Result<Outcome, JournalError> {
    let (mut undo, _) = Undo::open(state_dir)?;
    undo.unreadable.clear();
    Ok(undo.undo_all(&Machine))
}

fn undo_steps(steps: Vec<Step>, interfaces: &dyn Interfaces) -> (Outcome, Vec<Step>) {
    let (mut outcome, mut left) = (Outcome::default(), Vec::new());
    for step in steps.into_iter().rev() {
        let result = match &step {
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
        outcome.note(&step, result);
        if !ok {
            left.push(step);
        }
    }
    left.reverse();
    (outcome, left)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interfaces::fake::FakeInterfaces;

    fn offloads(dev: &str) -> Step {
        Step::Offloads { dev: dev.into(), before: serde_json::json!({"tso": true}) }
    }
    fn link(dev: &str) -> Step {
        Step::Link { link: "l".into(), dev: dev.into(), before: serde_json::Value::Null }
    }

    /// A journal that a dead agent left with these steps.
    fn left(steps: &[Step]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let (mut undo, _) = Undo::open(dir.path()).unwrap();
        steps.iter().for_each(|step| undo.push(step.clone()).unwrap());
        dir
    }

    /// What the next start undoes.
    fn next_start(dir: &tempfile::TempDir) -> (Vec<String>, Outcome) {
        let interfaces = FakeInterfaces::default();
        let (_, outcome) = Undo::open_with(dir.path(), &interfaces).unwrap();
        (interfaces.calls(), outcome)
    }

    fn text(dir: &tempfile::TempDir) -> String {
        std::fs::read_to_string(dir.path().join(journal::FILE)).unwrap()
    }

    fn set_text(dir: &tempfile::TempDir, text: &str) {
        std::fs::write(dir.path().join(journal::FILE), text).unwrap();
    }

    #[test]
    fn undoes_in_reverse_order() {
        let interfaces = FakeInterfaces::default();
        let mut undo = Undo::in_memory();
        undo.push(offloads("a")).unwrap();
        undo.push(link("a")).unwrap();
        let outcome = undo.undo_all(&interfaces);
        assert_eq!(outcome.undone, ["link l on a", "offloads of a"]);
        assert_eq!(interfaces.calls(), ["restore_root a", "restore_offloads a"]);
        assert_eq!(undo.undo_all(&interfaces), Outcome::default(), "nothing is undone twice");
    }

    #[test]
    fn the_next_start_undoes_the_steps_of_a_dead_agent() {
        let dir = left(&[offloads("a"), link("b")]);
        assert_eq!(next_start(&dir).0, ["restore_root b", "restore_offloads a"]);
        assert_eq!(next_start(&dir), (vec![], Outcome::default()));
        assert_eq!(text(&dir), "");
    }

    #[test]
    fn what_fails_stays_and_is_tried_again() {
        let dir = left(&[offloads("a"), offloads("b")]);
        let interfaces = FakeInterfaces::failing("restore_offloads a");
        let (mut undo, outcome) = Undo::open_with(dir.path(), &interfaces).unwrap();
        assert_eq!((outcome.undone.len(), outcome.failed.len()), (1, 1));
        assert!(outcome.failed[0].starts_with("offloads of a: "), "{outcome:?}");
        // Undoing what this agent did keeps what the dead one left.
        undo.push(offloads("c")).unwrap();
        assert_eq!(undo.undo_all(&interfaces).failed.len(), 1);
        assert!(!undo.is_empty());
        drop(undo);
        assert_eq!(next_start(&dir).0, ["restore_offloads a"]);
    }

    #[test]
    fn a_torn_line_is_of_a_change_that_was_not_made() {
        let dir = left(&[offloads("a"), link("b")]);
        let whole = text(&dir);
        for cut in 1..whole.lines().next_back().unwrap().len() {
            set_text(&dir, &whole[..whole.len() - 1 - cut]);
            let (calls, outcome) = next_start(&dir);
            assert_eq!((calls, outcome.failed), (vec!["restore_offloads a".to_owned()], vec![]));
        }
        // Only the line feed is missing: the change may have been made.
        set_text(&dir, &whole[..whole.len() - 1]);
        assert_eq!(next_start(&dir).0.len(), 2);
    }

    #[test]
    fn a_damaged_line_stays_and_the_others_are_undone() {
        let dir = left(&[offloads("a"), link("b"), offloads("c")]);
        set_text(&dir, &text(&dir).replacen("\"b\"", "\"d\"", 1));
        let (calls, outcome) = next_start(&dir);
        assert_eq!(calls, ["restore_offloads c", "restore_offloads a"]);
        let [failed] = &outcome.failed[..] else { panic!("{outcome:?}") };
        for part in ["line 2 is damaged", "undo.ndjson", "--discard-damaged"] {
            assert!(failed.contains(part), "no `{part}`: {outcome:?}");
        }
        let (calls, again) = next_start(&dir);
        assert_eq!((calls.len(), again.failed.len()), (0, 1), "{again:?}");
        assert_eq!(discard_unreadable(dir.path()).unwrap(), Outcome::default());
        assert_eq!(text(&dir), "");
    }

    #[test]
    fn steps_of_another_version_stay() {
        let dir = left(&[offloads("a")]);
        let object = |line: &str| {
            let object = ccbench_proto::sealed_line::unseal(line.as_bytes()).unwrap();
            String::from_utf8(object).unwrap()
        };
        let known = object(text(&dir).trim_end());
        let later = [
            known.replace("\"version\":1", "\"version\":2"),
            known.replace("\"offloads\"", "\"moon_phase\""),
        ];
        for object in later {
            set_text(&dir, &ccbench_proto::sealed_line::seal(&object));
            let (calls, outcome) = next_start(&dir);
            assert_eq!(calls, Vec::<String>::new(), "{object}");
            assert!(outcome.failed[0].contains("line 1 is of another version"), "{outcome:?}");
            assert_eq!(text(&dir), ccbench_proto::sealed_line::seal(&object));
        }
    }

    #[test]
    fn discards_steps_of_an_earlier_boot() {
        let group = Step::TrafficGroup { folder: "/x".into() };
        let saved = Saved { name: "net.x".into(), before: "1".into() };
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let earlier = |line: &str| {
            let object = ccbench_proto::sealed_line::unseal(line.as_bytes()).unwrap();
            let object = String::from_utf8(object).unwrap();
            ccbench_proto::sealed_line::seal(&object.replace(boot_id.trim(), "an-earlier-boot"))
        };
        let of_earlier = text(&left(&[offloads("a"), group, Step::Sysctl(saved)]));
        let of_earlier: String = of_earlier.lines().map(earlier).collect();
        let dir = left(&[offloads("b")]);
        set_text(&dir, &(of_earlier + &text(&dir)));
        assert_eq!(next_start(&dir).0, ["restore_offloads b"]);
        assert_eq!(text(&dir), "");
    }

    #[test]
    fn nothing_is_made_where_there_is_no_journal() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        assert_eq!(roll_back(&missing).unwrap(), Outcome::default());
        assert!(!missing.exists());
    }
}
