//! Checks whether another user can change the contents of a directory.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Checks that no other user can replace what is in a directory of running experiments and undo journals: it may be in /tmp.
///
/// # Errors
/// The directory does not exist, or another user has made it or can change it.
pub fn check_state_root(root: &Path) -> io::Result<()> {
    check_owner(root, &std::env::temp_dir())
}

/// Checks the owner of a directory in the directory `shared`, where every user can create it first. Others are the user's choice.
///
/// # Errors
/// The directory is in `shared`, and does not exist, or another user has made it or can change it.
pub fn check_owner(dir: &Path, shared: &Path) -> io::Result<()> {
    if dir.parent() != Some(shared) {
        return Ok(());
    }
    // A symbolic link is not followed.
    let found = dir.symlink_metadata()?;
    let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    // Members of the directory's group can replace what is in it, too.
    if is_own && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = format!(
        "another user has made {} or can change it; set CCBENCH_STATE to a directory of your own",
        dir.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_state_directory_that_others_can_replace_is_refused() {
        let shared = tempfile::tempdir().unwrap();
        let dir = shared.path().join("ccbench-1000");
        let check = |dir: &Path| check_owner(dir, shared.path());
        assert_eq!(check(&dir).unwrap_err().kind(), io::ErrorKind::NotFound);
        create_dir(&dir).unwrap();
        set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        check(&dir).unwrap();
        let link = shared.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        for (mode, refused) in [(0o755, &link), (0o777, &dir), (0o775, &dir)] {
            set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
            let why = check(refused).unwrap_err().to_string();
            assert!(why.contains("set CCBENCH_STATE"), "{mode:o}: {why}");
        }
        let elsewhere = dir.join("chosen");
        create_dir(&elsewhere).unwrap();
        set_permissions(&elsewhere, Permissions::from_mode(0o777)).unwrap();
        check(&elsewhere).unwrap();
    }
}
