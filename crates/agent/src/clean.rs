//! `ccbench-agent clean`: undoes what dead agents and trials left on this machine, and removes state directories that
//! hold nothing else.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ccbench_io::owner::check_state_root;

use crate::sockets::journal;
use crate::undo::{
    Discard, JournalError, Outcome, STATE_DIR_PREFIX, default_state_dir, lock, netns_inode,
    remove_if_empty, roll_back,
};

/// The result of cleaning.
#[derive(Debug, Default)]
pub struct Cleaned {
    /// The outcome of the undo steps.
    pub outcome: Outcome,
    /// Removed state directories of dead agents.
    pub removed: Vec<PathBuf>,
    /// State directories of dead agents that were kept, with their files. The audit log stays, and so does the
    /// generation, by which the next agent refuses a controller that another one has replaced.
    pub kept: Vec<(PathBuf, Vec<String>)>,
}

/// Rolls back every journal under `root` that belongs to this network namespace and to no living agent. Removes the
/// state directories of dead agents, in any namespace, that hold no journal entries and no other files. Leaves `root` alone if another
/// user has made it or can change it; [`sweep`](crate::testbed::sweep::sweep) reports that.
///
/// # Errors
/// A journal cannot be read or rewritten.
pub fn clean(root: &Path) -> Result<Cleaned, JournalError> {
    let mut cleaned = Cleaned { outcome: journal::sweep(), ..Cleaned::default() };
    clean_state_dirs(root, &mut cleaned)?;
    Ok(cleaned)
}

fn clean_state_dirs(root: &Path, cleaned: &mut Cleaned) -> Result<(), JournalError> {
    let own = default_state_dir();
    // The directories of `ccbench link --dev` also carry the interface's index.
    let of_links = format!("link-{}-", netns_inode());
    let is_own = |name: &OsStr| {
        Some(name) == own.file_name() || name.to_string_lossy().starts_with(&of_links)
    };
    // An error of this check has no number. `sweep` reports it.
    let is_foreign = |error: &io::Error| {
        error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
    };
    let list = |error: io::Error| format!("list {}: {error}", root.display());
    let entries = match check_state_root(root).and_then(|()| std::fs::read_dir(root)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_foreign(&error) => {
            return Ok(());
        }
        Err(error) => {
            cleaned.outcome.failed.push(list(error));
            return Ok(());
        }
    };
    let mut dirs: Vec<(OsString, PathBuf)> = Vec::new();
    for entry in entries {
        match entry {
            Ok(entry) => dirs.push((entry.file_name(), entry.path())),
            Err(error) => cleaned.outcome.failed.push(list(error)),
        }
    }
    dirs.retain(|(name, dir)| (is_own(name) || is_state_dir(name)) && dir.is_dir());
    dirs.sort();
    for (name, dir) in dirs {
        match lock(&dir) {
            Ok(lock) => {
                // Journals of earlier versions do not record their namespace.
                if is_own(&name) {
                    cleaned.outcome.merge(roll_back(&dir, None, Discard::default())?);
                }
                cleaned.remove(dir, lock);
            }
            // The agent of another namespace is alive.
            Err(error) if !is_own(&name) && error.source.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => cleaned.outcome.failed.push(error.to_string()),
        }
    }
    Ok(())
}

/// Whether the name is that of an agent's state directory, of any network namespace. Testbeds use arbitrary names.
fn is_state_dir(name: &OsStr) -> bool {
    let inode = name.to_str().and_then(|name| name.strip_prefix(STATE_DIR_PREFIX));
    inode.is_some_and(|inode| inode.parse::<u64>().is_ok())
}

impl Cleaned {
    /// Returns whether there was nothing to undo and no state directory of a dead agent.
    pub fn is_nothing(&self) -> bool {
        let Outcome { undone, failed, dropped } = &self.outcome;
        let is_undone = [undone, failed, dropped].iter().any(|steps| !steps.is_empty());
        !is_undone && self.removed.is_empty() && self.kept.is_empty()
    }

    fn remove(&mut self, dir: PathBuf, lock: File) {
        match remove_if_empty(&dir, lock) {
            Ok(files) if files.is_empty() => self.removed.push(dir),
            Ok(files) => self.kept.push((dir, files)),
            Err(error) => self.outcome.failed.push(format!("remove {}: {error}", dir.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_directories_without_entries_are_removed_and_others_named() {
        let root = tempfile::tempdir().unwrap();
        let make = |name: &str, files: &[(&str, &str)]| {
            let dir = root.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            files.iter().for_each(|(name, text)| std::fs::write(dir.join(name), text).unwrap());
            dir
        };
        let own = default_state_dir().file_name().unwrap().to_str().unwrap().to_owned();
        let own = make(&own, &[("undo.ndjson", ""), ("lock", "")]);
        // Belongs to no namespace.
        let audited = make("agent-1", &[("undo.ndjson", ""), ("audit.ndjson", "{}")]);
        let changed = make("agent-2", &[("undo.ndjson", "of another namespace")]);
        let live = make("agent-3", &[]);
        let other = [make("other", &[]), make("agent-of-a-testbed", &[])];
        let held = lock(&live).unwrap();
        let mut cleaned = Cleaned::default();
        assert!(cleaned.is_nothing());
        clean_state_dirs(root.path(), &mut cleaned).unwrap();
        assert!(!cleaned.is_nothing());
        assert_eq!(cleaned.removed, [own]);
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let kept: [(PathBuf, Vec<String>); 2] =
            [(audited, files(&["audit.ndjson"])), (changed.clone(), files(&["undo.ndjson"]))];
        assert_eq!(cleaned.kept, kept);
        let journal = std::fs::read_to_string(changed.join("undo.ndjson")).unwrap();
        assert_eq!(journal, "of another namespace");
        assert!(live.exists() && other.iter().all(|dir| dir.exists()));
        drop(held);
    }

    #[test]
    fn a_root_that_cannot_be_listed_is_no_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("agents");
        let mut cleaned = Cleaned::default();
        clean_state_dirs(&file, &mut cleaned).unwrap();
        assert!(cleaned.is_nothing(), "it does not exist: {cleaned:?}");
        std::fs::write(&file, "").unwrap();
        clean_state_dirs(&file, &mut cleaned).unwrap();
        let [failed] = &cleaned.outcome.failed[..] else { panic!("{cleaned:?}") };
        assert!(failed.starts_with(&format!("list {}: ", file.display())), "{failed}");
    }

    #[test]
    fn journals_below_a_root_that_others_can_change_are_left_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join(default_state_dir().file_name().unwrap());
        std::fs::create_dir(&dir).unwrap();
        let [journal, victim] = ["undo.ndjson", "victim"].map(|name| dir.join(name));
        std::fs::write(&journal, "chosen by another user\n").unwrap();
        std::fs::write(&victim, "of the user").unwrap();
        std::os::unix::fs::symlink(&victim, ccbench_io::replace::staged(&journal)).unwrap();
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let mut cleaned = Cleaned::default();
        clean_state_dirs(root.path(), &mut cleaned).unwrap();
        assert!(cleaned.is_nothing(), "{cleaned:?}");
        assert!(!dir.join("lock").exists() && victim.exists());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "of the user");
    }
}
