//! SHA-256 digests of the files of a results directory, computed while files are written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, IntoInnerError, Read as _, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes per write.
const BUFFER_BYTES: usize = 64 << 10;

/// The size and the digest of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// The file's size.
    pub bytes: u64,
    /// The file's SHA-256, in hexadecimal.
    pub sha256: String,
}

/// Files, by their paths relative to the results directory.
pub type Digests = BTreeMap<String, FileDigest>;

impl FileDigest {
    /// Returns the digest of a file's content.
    pub fn of(content: &[u8]) -> Self {
        Self { bytes: content.len() as u64, sha256: hexadecimal(Sha256::digest(content).as_ref()) }
    }

    /// Reads a file and returns its digest.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        const PIECE_BYTES: usize = 256 * 1024;
        let (mut file, mut hash, mut bytes) = (File::open(path)?, Sha256::new(), 0);
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let read = file.read(&mut piece)?;
            if read == 0 {
                return Ok(Self { bytes, sha256: hexadecimal(hash.finalize().as_ref()) });
            }
            hash.update(piece.get(..read).unwrap_or_default());
            bytes += read as u64;
        }
    }
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A new file, with the digest of everything that is written to it. It is buffered because Polars writes metadata in single bytes.
pub(crate) struct DigestedFile(BufWriter<Hashed>);

struct Hashed {
    file: File,
    hash: Sha256,
    bytes: u64,
}

impl DigestedFile {
    /// Wraps a file, which must be empty.
    pub(crate) fn new(file: File) -> Self {
        Self(BufWriter::with_capacity(BUFFER_BYTES, Hashed { file, hash: Sha256::new(), bytes: 0 }))
    }

    /// Syncs the file to disk and returns its digest.
    pub(crate) fn finish(self) -> io::Result<FileDigest> {
        let Hashed { file, hash, bytes } =
            self.0.into_inner().map_err(IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(FileDigest { bytes, sha256: hexadecimal(hash.finalize().as_ref()) })
    }
}

impl Write for DigestedFile {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        self.0.write(content)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Write for Hashed {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        let written = self.file.write(content)?;
        self.hash.update(content.get(..written).unwrap_or_default());
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_while_writing_is_that_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut file = DigestedFile::new(File::create_new(&path).unwrap());
        file.write_all(b"ab").unwrap();
        file.write_all(b"c").unwrap();
        let digest = file.finish().unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest, FileDigest { bytes: 3, sha256: abc.to_owned() });
        assert_eq!(FileDigest::of_file(&path).unwrap(), digest);
        assert_eq!(FileDigest::of(b"abc"), digest);
    }
}
