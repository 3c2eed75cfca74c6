//! Unpacks an archive of a stranger into a new directory.

use std::fs::OpenOptions;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use ccbench_io::input;
use flate2::bufread::GzDecoder;

use super::tar::{Archive, Limits, TarError};
use super::{ArtifactError, MANIFEST, RUN, Result};
use crate::error::io_error;

/// Unpacks an artifact into the directory `parent`, in which it makes one directory; returns that one. After an error nothing
/// is left.
///
/// # Errors
/// The archive cannot be read, is none, exceeds the limits, or has an entry that is not a regular file inside of its directory;
/// the directory exists, or cannot be written.
pub fn unpack(archive: &Path, parent: &Path, limits: Limits) -> Result<PathBuf> {
    let unreadable = |source| ArtifactError::Unreadable { path: archive.to_path_buf(), source };
    let file = input::open_regular(archive).map_err(unreadable)?;
    let mut entries = Archive::new(GzDecoder::new(BufReader::new(file)), limits);
    let mut unpacking = Unpacking { archive, parent, root: None };
    let unpacked = unpacking.all(&mut entries);
    match (unpacked, unpacking.root) {
        (Ok(()), Some(root)) => Ok(root),
        (Ok(()), None) => Err(ArtifactError::NotAnArtifact {
            path: archive.to_path_buf(),
            reason: "it has no files".to_owned(),
        }),
        (Err(error), root) => {
            if let Some(root) = root {
                // The first error is the one to report.
                let _ = std::fs::remove_dir_all(root);
            }
            Err(error)
        }
    }
}

/// An archive on its way into a directory.
struct Unpacking<'a> {
    archive: &'a Path,
    parent: &'a Path,
    /// The directory that was made.
    root: Option<PathBuf>,
}

impl Unpacking<'_> {
    fn refused(&self, source: TarError) -> ArtifactError {
        ArtifactError::Unpack { path: self.archive.to_path_buf(), source }
    }

    fn all(&mut self, entries: &mut Archive<impl Read>) -> Result<()> {
        while let Some(entry) = entries.next_entry().map_err(|error| self.refused(error))? {
            let path = self.place(&entry.name)?;
            // Never through a link, and never twice: everything in the directory is from this archive.
            let new = OpenOptions::new().write(true).create_new(true).open(&path);
            let mut file = new.map_err(io_error("create", &path))?;
            entries.copy(&entry, &mut file).map_err(|error| self.refused(error))?;
        }
        Ok(())
    }

    /// The path of a file, whose folders exist then.
    fn place(&mut self, name: &str) -> Result<PathBuf> {
        let outside = || TarError::Outside { name: name.to_owned() };
        let Some((first, rest)) = name.split_once('/') else {
            return Err(self.refused(outside()));
        };
        // Other names might mean something to other programs, or be taken for a rerun.
        let in_run = rest.strip_prefix(RUN).is_some_and(|rest| rest.starts_with('/'));
        if !in_run && !["README.md", MANIFEST, "SHA256SUMS"].contains(&rest) {
            return Err(self.refused(TarError::Foreign { name: name.to_owned() }));
        }
        let root = self.parent.join(first);
        match &self.root {
            None => self.make(root.clone())?,
            Some(made) if *made != root => return Err(self.refused(outside())),
            Some(_) => {}
        }
        let path = root.join(rest);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        }
        Ok(path)
    }

    fn make(&mut self, root: PathBuf) -> Result<()> {
        std::fs::create_dir_all(self.parent).map_err(io_error("create", self.parent))?;
        match std::fs::create_dir(&root) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(ArtifactError::Exists { path: root });
            }
            made => made.map_err(io_error("create", &root))?,
        }
        self.root = Some(root);
        Ok(())
    }
}
