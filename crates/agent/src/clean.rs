//! `ccbench-agent clean`: undoes what dead agents and trials left on this machine.

use std::path::Path;

use crate::sockets::journal;
use crate::undo::{JournalError, Outcome, default_state_dir, lock, netns_inode, roll_back};

/// Rolls back every journal under `root` that belongs to this network namespace and no living agent.
///
/// # Errors
/// A journal cannot be read or rewritten.
pub fn clean(root: &Path) -> Result<Outcome, JournalError> {
    let mut outcome = journal::sweep();
    let own = default_state_dir();
    let mut dirs = vec![root.join(own.file_name().unwrap_or_default())];
    // Those of `ccbench link --dev` bear the interface's index too.
    let of_links = format!("link-{}-", netns_inode());
    dirs.extend(std::fs::read_dir(root).into_iter().flatten().flatten().filter_map(|entry| {
        entry.file_name().to_string_lossy().starts_with(&of_links).then(|| entry.path())
    }));
    for dir in dirs.into_iter().filter(|dir| dir.is_dir()) {
        match lock(&dir) {
            Ok(_lock) => outcome.merge(roll_back(&dir, None)?),
            Err(error) => outcome.failed.push(error.to_string()),
        }
    }
    Ok(outcome)
}
