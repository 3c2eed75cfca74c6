//! Archives in the ustar interchange format (POSIX.1-2001, pax) with regular files only. The bytes depend only on names and contents. The
//! reader is for archives from strangers: it accepts only what [`append`] writes, so that no entry is a link or a device, or leaves its
//! folder.

use std::io::{self, Read, Write};

use crate::layout::is_inside;

const BLOCK_BYTES: usize = 512;
/// Length of the field `name`.
const NAME_BYTES: usize = 100;
/// Length of the field `prefix`.
const PREFIX_BYTES: usize = 155;
/// The largest number with eleven octal digits.
const MAX_FILE_BYTES: u64 = 0o777_7777_7777;
/// 1 January 2000, the date of every file: tar warns about dates near 1970.
const MTIME_S: u64 = 946_684_800;
const MAGIC: &[u8] = b"ustar\0";

/// An archive cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The archive or a file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The name is too long for the format.
    #[error("{name}: its name is too long for an archive; shorten it")]
    LongName {
        /// The file.
        name: String,
    },
    /// The file is too large for the format.
    #[error("{name} has {bytes} bytes; a file in an archive can have at most 8 GiB")]
    LargeFile {
        /// The file.
        name: String,
        /// The file's size.
        bytes: u64,
    },
    /// The file has become shorter.
    #[error("{name} changed while it was packed; pack it again when no process writes to it")]
    Changed {
        /// The file.
        name: String,
    },
    /// The archive ends before its end marker.
    #[error("the archive is incomplete; copy it again")]
    Truncated,
    /// An entry's header does not match its checksum.
    #[error(
        "the header of entry {number} does not match its checksum: the copy is damaged, or ccbench did not write the archive; copy it \
         again, or pack it again if the original has the same error"
    )]
    Checksum {
        /// The entry's number, from 1.
        number: u64,
    },
    /// An entry's header is not one of this format.
    #[error("entry {number} {what}; ccbench did not write it")]
    Header {
        /// The entry's number, from 1.
        number: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// An entry is not a regular file.
    #[error("{name:?} is {kind}; a ccbench archive has only regular files")]
    Kind {
        /// The entry.
        name: String,
        /// What the entry is.
        kind: &'static str,
    },
    /// A path leaves the archive's directory.
    #[error("{name:?} is not a path inside the archive's directory")]
    Outside {
        /// The path.
        name: String,
    },
    /// The file is none that artifacts have.
    #[error("{name:?} is not a file of an artifact; `ccbench artifact pack` did not write it")]
    Foreign {
        /// The path.
        name: String,
    },
    /// Too many files.
    #[error("it has more than {max_files} files")]
    TooMany {
        /// The limit.
        max_files: u64,
    },
    /// Too many bytes.
    #[error("its files are larger than {} GiB in total", max_bytes >> 30)]
    TooLarge {
        /// The limit.
        max_bytes: u64,
    },
}

/// How much an archive may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of files, and of folders.
    pub max_files: u64,
    /// Bytes of all files together.
    pub max_bytes: u64,
}

impl Default for Limits {
    /// More files than any run of 10 000 points with ten tables has, and 8 GiB.
    fn default() -> Self {
        Self { max_files: 1 << 20, max_bytes: 8 << 30 }
    }
}

/// Writes a file of `bytes` bytes.
///
/// # Errors
/// The archive cannot be written, the name or the size does not fit the format, or `content` is shorter.
pub fn append(
    out: &mut impl Write,
    name: &str,
    bytes: u64,
    content: &mut impl Read,
) -> Result<(), TarError> {
    out.write_all(&header(name, bytes)?)?;
    if io::copy(&mut content.take(bytes), out)? != bytes {
        return Err(TarError::Changed { name: name.to_owned() });
    }
    Ok(out.write_all(&[0; BLOCK_BYTES][..padding(bytes)])?)
}

/// Writes the end of the archive.
///
/// # Errors
/// The archive cannot be written.
pub fn finish(out: &mut impl Write) -> Result<(), TarError> {
    Ok(out.write_all(&[0; 2 * BLOCK_BYTES])?)
}

fn header(name: &str, bytes: u64) -> Result<[u8; BLOCK_BYTES], TarError> {
    if !is_inside(name) {
        return Err(TarError::Outside { name: name.to_owned() });
    }
    let Some((prefix, base)) = split(name) else {
        return Err(TarError::LongName { name: name.to_owned() });
    };
    if bytes > MAX_FILE_BYTES {
        return Err(TarError::LargeFile { name: name.to_owned(), bytes });
    }
    let mut block = [0_u8; BLOCK_BYTES];
    let mut put = |at: usize, field: &[u8]| block[at..at + field.len()].copy_from_slice(field);
    put(0, base.as_bytes());
    // Mode, owner, group.
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{bytes:011o}\0").as_bytes());
    put(136, format!("{MTIME_S:011o}\0").as_bytes());
    // The checksum is computed with blanks in its own field.
    put(148, b"        ");
    put(156, b"0");
    put(257, MAGIC);
    put(263, b"00");
    put(345, prefix.as_bytes());
    let sum = format!("{:06o}\0 ", checksum(&block));
    block[148..156].copy_from_slice(sum.as_bytes());
    Ok(block)
}

/// Splits a path into the fields `prefix` and `name`, which a slash joins; `None` if the path does not fit.
fn split(path: &str) -> Option<(&str, &str)> {
    if path.len() <= NAME_BYTES {
        return Some(("", path));
    }
    let mut parts = path.match_indices('/').map(|(at, _)| (&path[..at], &path[at + 1..]));
    parts.find(|(prefix, base)| prefix.len() <= PREFIX_BYTES && base.len() <= NAME_BYTES)
}

fn checksum(block: &[u8; BLOCK_BYTES]) -> u64 {
    block.iter().map(|byte| u64::from(*byte)).sum()
}

/// Returns the number of bytes from the end of a file to the next block.
fn padding(bytes: u64) -> usize {
    (bytes.next_multiple_of(BLOCK_BYTES as u64) - bytes) as usize
}

/// An archive that is read entry by entry.
#[derive(Debug)]
pub struct Archive<R> {
    input: R,
    limits: Limits,
    files: u64,
    folders: u64,
    /// The path of the previous entry.
    last: String,
    bytes: u64,
}

/// A regular file of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The file's path, which stays inside the archive's folder.
    pub name: String,
    /// The file's size.
    pub bytes: u64,
}

impl<R: Read> Archive<R> {
    /// Creates a reader of an archive with these limits.
    pub fn new(input: R, limits: Limits) -> Self {
        Self { input, limits, files: 0, folders: 0, last: String::new(), bytes: 0 }
    }

    /// Returns the next file; `None` at the end. The content of the previous file must have been read.
    ///
    /// # Errors
    /// The archive cannot be read, is damaged or too large, or has an entry that is not a regular file inside its folder.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        let mut block = [0_u8; BLOCK_BYTES];
        self.fill(&mut block)?;
        if block.iter().all(|byte| *byte == 0) {
            // The end marker has a second block. Reading up to the end also checks gzip's checksum.
            self.fill(&mut block)?;
            let mut more = [0_u8];
            if block.iter().any(|byte| *byte != 0) || self.input.read(&mut more)? != 0 {
                let (number, what) = (self.files + 1, "follows the archive's end");
                return Err(TarError::Header { number, what });
            }
            return Ok(None);
        }
        self.files += 1;
        let entry = parse(&block, self.files)?;
        self.folders += new_folders(&entry.name, &self.last);
        self.last.clone_from(&entry.name);
        self.bytes = self.bytes.saturating_add(entry.bytes);
        let Limits { max_files, max_bytes } = self.limits;
        if self.files.max(self.folders) > max_files {
            return Err(TarError::TooMany { max_files });
        }
        if self.bytes > max_bytes {
            return Err(TarError::TooLarge { max_bytes });
        }
        Ok(Some(entry))
    }

    /// Copies the content of an entry that was just read.
    ///
    /// # Errors
    /// The archive cannot be read or is incomplete, or `out` cannot be written.
    pub fn copy(&mut self, entry: &Entry, out: &mut impl Write) -> Result<(), TarError> {
        if io::copy(&mut self.input.by_ref().take(entry.bytes), out)? != entry.bytes {
            return Err(TarError::Truncated);
        }
        let mut rest = [0_u8; BLOCK_BYTES];
        self.fill(&mut rest[..padding(entry.bytes)])
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), TarError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => TarError::Truncated,
            _ => TarError::Io(error),
        })
    }
}

/// Returns the number of folders in a path that the previous path does not have. The result is exact for a sorted archive, otherwise an
/// upper bound.
fn new_folders(name: &str, before: &str) -> u64 {
    let same = name.split('/').zip(before.split('/')).take_while(|(a, b)| a == b).count();
    name.matches('/').count().saturating_sub(same) as u64
}

fn parse(block: &[u8; BLOCK_BYTES], number: u64) -> Result<Entry, TarError> {
    let wrong = |what| TarError::Header { number, what };
    let mut blank = *block;
    blank[148..156].fill(b' ');
    if octal(&block[148..156]) != Some(checksum(&blank)) {
        return Err(TarError::Checksum { number });
    }
    if &block[257..263] != MAGIC {
        return Err(wrong("is not in the ustar format"));
    }
    let text = |field: &[u8]| {
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        String::from_utf8(field[..end].to_vec()).map_err(|_| wrong("has a name that is not UTF-8"))
    };
    let (prefix, base) = (text(&block[345..500])?, text(&block[..NAME_BYTES])?);
    let name = if prefix.is_empty() { base } else { format!("{prefix}/{base}") };
    let kind = match block[156] {
        b'0' => None,
        b'1' => Some("a hard link"),
        b'2' => Some("a symbolic link"),
        b'3' | b'4' => Some("a device"),
        b'5' => Some("a directory"),
        b'6' => Some("a FIFO"),
        _ => Some("an entry of unknown type"),
    };
    if let Some(kind) = kind {
        return Err(TarError::Kind { name, kind });
    }
    if !is_inside(&name) {
        return Err(TarError::Outside { name });
    }
    let bytes = octal(&block[124..136]).filter(|bytes| *bytes <= MAX_FILE_BYTES);
    Ok(Entry { name, bytes: bytes.ok_or_else(|| wrong("has no size"))? })
}

/// Parses octal digits that end with NUL or a blank.
fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?.trim_end_matches(['\0', ' ']);
    u64::from_str_radix(text, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits = Limits { max_files: 3, max_bytes: 2000 };

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, content) in files {
            append(&mut out, name, content.len() as u64, &mut &content[..]).unwrap();
        }
        finish(&mut out).unwrap();
        out
    }

    fn read(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, TarError> {
        let (mut archive, mut files) = (Archive::new(bytes, SMALL), vec![]);
        while let Some(entry) = archive.next_entry()? {
            let mut content = Vec::new();
            archive.copy(&entry, &mut content)?;
            files.push((entry.name, content));
        }
        Ok(files)
    }

    /// Returns the first header with one field changed and the checksum corrected.
    fn with_field(at: usize, field: &[u8]) -> Vec<u8> {
        let mut bytes = archive(&[("run/a", b"abc")]);
        bytes[at..at + field.len()].copy_from_slice(field);
        bytes[148..156].fill(b' ');
        let block: [u8; BLOCK_BYTES] = bytes[..BLOCK_BYTES].try_into().unwrap();
        bytes[148..156].copy_from_slice(format!("{:06o}\0 ", checksum(&block)).as_bytes());
        bytes
    }

    fn refused(bytes: &[u8]) -> String {
        read(bytes).unwrap_err().to_string()
    }

    #[test]
    fn files_are_read_as_they_were_written() {
        let long = format!("run/{}/{}", "d".repeat(100), "f".repeat(90));
        let files: [(&str, &[u8]); 3] = [("run/a", b"abc"), ("run/empty", b""), (&long, &[7; 512])];
        let bytes = archive(&files);
        assert_eq!(bytes.len() % BLOCK_BYTES, 0);
        let found = read(&bytes).unwrap();
        assert_eq!(found, files.map(|(name, content)| (name.to_owned(), content.to_vec())));
    }

    #[test]
    fn a_header_is_that_of_gnu_tar() {
        // As written by `tar --format=ustar --owner=0 --group=0 --numeric-owner --mtime=2000-01-01T00:00Z`, except for the owners' names.
        let block = header("run/a", 3).unwrap();
        assert_eq!(&block[..8], b"run/a\0\0\0");
        assert_eq!(&block[124..136], b"00000000003\0");
        assert_eq!(&block[136..148], b"07033241600\0");
        assert_eq!(&block[156..157], b"0");
        assert_eq!(&block[257..265], b"ustar\x0000");
    }

    #[test]
    fn paths_that_leave_the_folder_are_refused() {
        for name in ["/etc/a", "../aa", "a/../b", "run/.", "./run", "a//bc", ""] {
            let mut field = [0; NAME_BYTES];
            field[..name.len()].copy_from_slice(name.as_bytes());
            let reason = refused(&with_field(0, &field));
            assert!(reason.contains("not a path inside the archive's directory"), "{reason}");
        }
        let reason = refused(&with_field(345, b".."));
        assert!(reason.contains("../run/a"), "{reason}");
    }

    #[test]
    fn links_devices_and_other_formats_are_refused() {
        for (flag, kind) in
            [(b'1', "hard link"), (b'2', "symbolic link"), (b'3', "device"), (b'6', "FIFO")]
        {
            let reason = refused(&with_field(156, &[flag]));
            assert_eq!(
                reason,
                format!("\"run/a\" is a {kind}; a ccbench archive has only regular files")
            );
        }
        assert!(refused(&with_field(156, b"x")).contains("an entry of unknown type"));
        assert!(refused(&with_field(257, b"ustar  ")).contains("not in the ustar format"));
        assert!(refused(&with_field(0, b"\xff")).contains("not UTF-8"));
        assert!(refused(&with_field(124, b"99999999999")).contains("has no size"));
    }

    #[test]
    fn damage_and_missing_ends_are_found() {
        let bytes = archive(&[("run/a", b"abc"), ("run/b", b"")]);
        let mut changed = bytes.clone();
        changed[2] ^= 1;
        assert_eq!(
            refused(&changed),
            "the header of entry 1 does not match its checksum: the copy is damaged, or ccbench did not write the archive; copy it again, \
             or pack it again if the original has the same error"
        );
        for length in 0..bytes.len() {
            let reason = refused(&bytes[..length]);
            assert!(reason.contains("incomplete"), "{length}: {reason}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(refused(&longer).contains("follows the archive's end"));
    }

    #[test]
    fn size_and_number_are_limited_before_anything_is_copied() {
        let four: [(&str, &[u8]); 4] = [("r/a", b""), ("r/b", b""), ("r/c", b""), ("r/d", b"")];
        assert_eq!(refused(&archive(&four)), "it has more than 3 files");
        assert_eq!(refused(&archive(&[("r/a/b/c/d", b"")])), "it has more than 3 files");
        // A header that announces 8 GiB without content.
        let reason = refused(&with_field(124, b"77777777777"));
        assert!(reason.contains("larger than 0 GiB"), "{reason}");
        let two: [(&str, &[u8]); 2] = [("r/a", &[1; 1001]), ("r/b", &[2; 1000])];
        assert!(matches!(read(&archive(&two)), Err(TarError::TooLarge { max_bytes: 2000 })));
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let write =
            |name: &str, bytes| append(&mut Vec::<u8>::new(), name, bytes, &mut &b"abc"[..]);
        assert!(matches!(write(&"n".repeat(101), 3), Err(TarError::LongName { .. })));
        assert!(matches!(write("a", 8 << 30), Err(TarError::LargeFile { .. })));
        assert!(matches!(write("a", 4), Err(TarError::Changed { .. })));
    }
}
