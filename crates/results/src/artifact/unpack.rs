//! Unpacks an archive from a stranger into a new directory.

use std::fs::OpenOptions;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use ccbench_io::input;
use flate2::bufread::GzDecoder;
use tempfile::TempDir;

use super::tar::{Archive, Limits, TarError};
use super::{ArtifactError, MANIFEST, RUN, Result};
use crate::error::io_error;
use crate::layout::rename_new;

/// Unpacks an artifact into a new directory in `parent`, and returns the new directory. It gets its name when it is complete. After an
/// error nothing is left; after a kill, a directory `.unpacking-…` may remain.
///
/// # Errors
/// The archive cannot be read, is not an archive, exceeds the limits, or has an entry that is not a regular file inside its directory; the
/// directory exists or cannot be written.
pub fn unpack(archive: &Path, parent: &Path, limits: Limits) -> Result<PathBuf> {
    let unreadable = |source| ArtifactError::Unreadable { path: archive.to_path_buf(), source };
    let file = input::open_regular(archive).map_err(unreadable)?;
    let mut entries = Archive::new(GzDecoder::new(BufReader::new(file)), limits);
    Unpacker { archive, parent, staging: None }.run(&mut entries)
}

/// An archive that is being unpacked.
struct Unpacker<'a> {
    archive: &'a Path,
    parent: &'a Path,
    staging: Option<Staging>,
}

/// Where the artifact's directory is until it is complete. Removed when dropped.
struct Staging {
    dir: TempDir,
    /// The name of the artifact's directory.
    name: String,
}

impl Unpacker<'_> {
    fn refused(&self, source: TarError) -> ArtifactError {
        ArtifactError::Unpack { path: self.archive.to_path_buf(), source }
    }

    fn run(mut self, entries: &mut Archive<impl Read>) -> Result<PathBuf> {
        while let Some(entry) = entries.next_entry().map_err(|error| self.refused(error))? {
            let path = self.place(&entry.name)?;
            // Never follow a link or write a file twice: everything in the directory comes from this archive.
            let new = OpenOptions::new().write(true).create_new(true).open(&path);
            let mut file = new.map_err(io_error("create", &path))?;
            entries.copy(&entry, &mut file).map_err(|error| self.refused(error))?;
        }
        self.publish()
    }

    /// Returns the path of a file, and creates its folders.
    fn place(&mut self, name: &str) -> Result<PathBuf> {
        let outside = || TarError::Outside { name: name.to_owned() };
        let Some((first, rest)) = name.split_once('/') else {
            return Err(self.refused(outside()));
        };
        // Other programs might act on other names, or a name might be mistaken for a rerun.
        let in_run = rest.strip_prefix(RUN).is_some_and(|rest| rest.starts_with('/'));
        if !in_run && !["README.md", MANIFEST, "SHA256SUMS"].contains(&rest) {
            return Err(self.refused(TarError::Foreign { name: name.to_owned() }));
        }
        if self.staging.is_none() {
            self.staging = Some(self.make(first)?);
        }
        let Some(staging) = self.staging.as_ref().filter(|staging| staging.name == first) else {
            return Err(self.refused(outside()));
        };
        let path = staging.dir.path().join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        }
        Ok(path)
    }

    fn make(&self, name: &str) -> Result<Staging> {
        let root = self.parent.join(name);
        // Check before anything is unpacked, although `publish` does not replace anything either.
        if root.symlink_metadata().is_ok() {
            return Err(ArtifactError::Exists { path: root });
        }
        std::fs::create_dir_all(self.parent).map_err(io_error("create", self.parent))?;
        let dir = tempfile::Builder::new().prefix(".unpacking-").tempdir_in(self.parent);
        let dir = dir.map_err(io_error("create a directory in", self.parent))?;
        Ok(Staging { dir, name: name.to_owned() })
    }

    fn publish(self) -> Result<PathBuf> {
        let Some(Staging { dir, name }) = self.staging else {
            return Err(ArtifactError::NotAnArtifact {
                path: self.archive.to_path_buf(),
                reason: "it has no files".to_owned(),
            });
        };
        let root = self.parent.join(&name);
        match rename_new(&dir.path().join(&name), &root) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(ArtifactError::Exists { path: root })
            }
            renamed => {
                renamed.map_err(io_error("rename to", &root))?;
                Ok(root)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tar;
    use super::*;

    /// Passes an archive's bytes on, and fails if the artifact's directory appears before all are read.
    struct Watched<'a> {
        bytes: &'a [u8],
        root: PathBuf,
    }

    impl Read for Watched<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            assert!(!self.root.exists(), "{} bytes are missing", self.bytes.len());
            self.bytes.read(into)
        }
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn the_directory_appears_when_it_is_complete() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("r");
        let mut bytes = Vec::new();
        for name in ["r/README.md", "r/run/a", "r/run/b"] {
            tar::append(&mut bytes, name, 3, &mut &b"abc"[..]).unwrap();
        }
        tar::finish(&mut bytes).unwrap();
        let unpack = |bytes: &[u8]| {
            let watched = Watched { bytes, root: root.clone() };
            let unpacker =
                Unpacker { archive: Path::new("a"), parent: parent.path(), staging: None };
            unpacker.run(&mut Archive::new(watched, Limits::default()))
        };
        unpack(&bytes[..bytes.len() - 1]).unwrap_err();
        assert_eq!(names(parent.path()), [""; 0]);
        assert_eq!(unpack(&bytes).unwrap(), root);
        assert_eq!(std::fs::read(root.join("run/b")).unwrap(), b"abc");
        assert_eq!(names(parent.path()), ["r"]);
    }
}
