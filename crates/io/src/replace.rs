//! Replaces a file atomically.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Replaces a file and syncs its contents to disk. Readers see either the old or the new contents, even after a kill, a crash or
/// a full disk. Returns the new file, open for appending.
///
/// # Errors
/// Those of writing, syncing and renaming a file in the same directory.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<File> {
    let staged = staged(path);
    let mut file = create(&staged)?;
    let write = || {
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&staged, path)?;
        Ok(file)
    };
    write().inspect_err(|_| {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&staged);
    })
}

/// Returns the path of the temporary file that replaces `path`.
pub fn staged(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

/// Creates a [`staged`] file, open for appending. A file of a killed process is removed first. Nothing is written through a link, which
/// another user may have put there.
///
/// # Errors
/// Those of removing and creating a file.
pub fn create(staged: &Path) -> io::Result<File> {
    match std::fs::remove_file(staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().create_new(true).append(true).open(staged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(staged(&path), "of a process that was killed").unwrap();
        replace(&path, b"old").unwrap().write_all(b", appended").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old, appended");
        // A file cannot replace a directory.
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        replace(&folder, b"new").unwrap_err();
        assert!(folder.is_dir());
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 2, "no temporary file is left");
    }

    #[test]
    fn a_link_in_place_of_the_temporary_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [path, victim] = ["file", "victim"].map(|name| dir.path().join(name));
        std::fs::write(&victim, "of the user").unwrap();
        std::os::unix::fs::symlink(&victim, staged(&path)).unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"of the user");
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert!(!path.is_symlink());
    }
}
