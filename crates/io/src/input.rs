//! Reads files that a user names, without trusting them: opening a FIFO does not block, and reading a device or a growing file
//! ends.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use ccbench_proto::cc::supplied::MAX_BYTES;
use ccbench_proto::trace::MAX_FILE_BYTES;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};

/// The size limit for one kind of file.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// In bytes.
    pub max_bytes: u64,
    /// What to do about a larger file; completes "the limit is ...; ".
    pub fix: &'static str,
}

/// A plan.
pub const PLAN: Limit = Limit {
    max_bytes: 4 << 20,
    fix: "a plan is a few kB: give the plan's own file, and put capacities into trace files",
};
/// A file to import. `ccbench_proto::tools::text` limits the length of its lines.
pub const IMPORT: Limit = Limit { max_bytes: 256 << 20, fix: "split the file" };
/// A trace.
pub const TRACE: Limit =
    Limit { max_bytes: MAX_FILE_BYTES as u64, fix: "use a trace with fewer, longer rows" };
/// A supplied congestion control: a BPF object or a kernel module.
pub const CONGESTION_CONTROL: Limit = Limit {
    max_bytes: MAX_BYTES,
    fix: "strip its debugging information (`strip -g`, `llvm-strip -g`)",
};
/// The manifest of a testbed: a few kB per node.
pub const MANIFEST: Limit =
    Limit { max_bytes: 16 << 20, fix: "save the manifest of one experiment" };
/// A certificate or a key.
pub const CERTIFICATE: Limit = Limit { max_bytes: 1 << 20, fix: "give a PEM file" };
/// A file of a results directory that is read as a whole. The journal and `run.json` have about 500 bytes per trial.
pub const RECORD: Limit =
    Limit { max_bytes: 1 << 30, fix: "ccbench writes no file this large: restore it from a copy" };

/// Why a file is not read. It is the inner error of an [`io::Error`] of the kind `InvalidInput`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is not a regular file.
    #[error("it is a {0}, not a regular file; copy its contents to a file and give that")]
    NotRegular(&'static str),
    /// It is too large.
    #[error("it is too large: the limit is {} MiB; {fix}", max_bytes >> 20)]
    TooLarge {
        /// The limit.
        max_bytes: u64,
        /// What to do.
        fix: &'static str,
    },
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(io::ErrorKind::InvalidInput, refusal)
    }
}

/// Reads a regular file.
///
/// # Errors
/// It cannot be read, is not a regular file, or is larger than the limit.
pub fn read(path: &Path, limit: &Limit) -> io::Result<Vec<u8>> {
    read_open(&open_without_waiting(path)?, limit)
}

/// Opens a regular file for a reader that reads piece by piece and has its own limit.
///
/// # Errors
/// It cannot be opened, or is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = open_without_waiting(path)?;
    regular_length(&file)?;
    Ok(file)
}

/// Opens a file with O_NONBLOCK and O_NOCTTY: a FIFO without a writer does not block, and a terminal does not become the
/// controlling one.
fn open_without_waiting(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

/// Returns the length of a regular file, and an error for any other kind of file.
fn regular_length(file: &File) -> io::Result<u64> {
    let stat = fstat(file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
        FileType::Directory => Err(io::ErrorKind::IsADirectory.into()),
        FileType::Fifo => Err(Refusal::NotRegular("FIFO").into()),
        FileType::Socket => Err(Refusal::NotRegular("socket").into()),
        _ => Err(Refusal::NotRegular("device").into()),
    }
}

/// Like [`read`], but takes an open file.
///
/// # Errors
/// Those of [`read`].
pub fn read_open(file: &File, limit: &Limit) -> io::Result<Vec<u8>> {
    let length = regular_length(file)?;
    let too_large = || Refusal::TooLarge { max_bytes: limit.max_bytes, fix: limit.fix };
    if length > limit.max_bytes {
        return Err(too_large().into());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // The file may grow, and files of /proc report a length of 0.
    file.take(limit.max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit.max_bytes {
        return Err(too_large().into());
    }
    Ok(bytes)
}

/// Like [`read`], but for text.
///
/// # Errors
/// Those of [`read`], and text that is not UTF-8.
pub fn read_to_string(path: &Path, limit: &Limit) -> io::Result<String> {
    let bytes = read(path, limit)?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].iter().filter(|&&b| b == b'\n').count() + 1;
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("line {line} is not text (UTF-8); save the file as UTF-8"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limit = Limit { max_bytes: 4, fix: "make it shorter" };

    fn refused(path: &Path) -> String {
        let error = read(path, &SMALL).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        error.to_string()
    }

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("four"), "1234").unwrap();
        std::fs::write(at("five"), "12345").unwrap();
        std::fs::write(at("latin"), b"a\n\xff").unwrap();
        assert_eq!(read(&at("four"), &SMALL).unwrap(), b"1234");
        assert!(refused(&at("five")).ends_with("MiB; make it shorter"));
        let error = read_to_string(&at("latin"), &SMALL).unwrap_err().to_string();
        assert!(error.starts_with("line 2 is not text"), "{error}");
        let kind = |path: &Path| read(path, &SMALL).unwrap_err().kind();
        assert_eq!(kind(&at("absent")), io::ErrorKind::NotFound);
        assert_eq!(kind(dir.path()), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn fifos_devices_and_endless_files_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        assert!(refused(&fifo).starts_with("it is a FIFO, not a regular file; copy"));
        assert!(refused(Path::new("/dev/zero")).starts_with("it is a device"));
        for path in [fifo.as_path(), Path::new("/dev/zero"), dir.path()] {
            open_regular(path).unwrap_err();
        }
        // `stat` reports a length of 0.
        assert!(refused(Path::new("/proc/self/status")).starts_with("it is too large"));
    }
}
