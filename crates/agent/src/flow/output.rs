//! The standard output of a traffic generator. The beginning is kept in memory, the rest in an unnamed file in the directory for temporary
//! files, which the file system frees when the agent dies.

use std::io::{self, Read, Seek as _, SeekFrom, Write as _};

use tempfile::SpooledTempFile;

/// Limit of the output kept of a process: 128 streams at 10 rows a second for 25 minutes. iperf3 itself keeps its whole report in memory.
pub const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// What is kept in memory: all of most reports.
const MEMORY_BYTES: usize = 128 << 10;
/// How much of it [`Output::beginning`] returns.
const BEGINNING_BYTES: u64 = 64 << 10;

/// The output of a process: its beginning without gaps, up to a limit.
#[derive(Debug)]
pub struct Output {
    file: SpooledTempFile,
    kept_bytes: u64,
    dropped_bytes: u64,
}

impl Default for Output {
    fn default() -> Self {
        Self { file: SpooledTempFile::new(MEMORY_BYTES), kept_bytes: 0, dropped_bytes: 0 }
    }
}

impl Output {
    /// Appends bytes. Beyond the limit, or once a file cannot be written, they are dropped and counted.
    pub fn keep(&mut self, bytes: &[u8]) {
        let room = MAX_OUTPUT_BYTES - self.kept_bytes;
        let room =
            if self.dropped_bytes > 0 { 0 } else { usize::try_from(room).unwrap_or(usize::MAX) };
        let (kept, dropped) = bytes.split_at(bytes.len().min(room));
        match self.file.write_all(kept) {
            Ok(()) => {
                self.kept_bytes += kept.len() as u64;
                self.dropped_bytes += dropped.len() as u64;
            }
            Err(error) => {
                tracing::warn!(%error, "keep the output of a traffic generator in a temporary file");
                self.dropped_bytes += bytes.len() as u64;
            }
        }
    }

    /// Returns the number of bytes that were dropped.
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    /// Returns the kept bytes, from the first one on.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn reader(&mut self) -> io::Result<impl Read + Send> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok((&mut self.file).take(self.kept_bytes))
    }

    /// Returns the first 64 KiB; less if the file cannot be read.
    pub fn beginning(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok(reader) = self.reader() {
            let _ = reader.take(BEGINNING_BYTES).read_to_end(&mut bytes);
        }
        bytes
    }
}

#[cfg(test)]
impl From<&str> for Output {
    fn from(text: &str) -> Self {
        let mut output = Self::default();
        output.keep(text.as_bytes());
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &mut Output) -> Vec<u8> {
        let mut bytes = Vec::new();
        output.reader().unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_long_output_is_in_a_file() {
        let mut output = Output::from("{\"start\"");
        assert!(!output.file.is_rolled());
        output.keep(&b"x".repeat(MEMORY_BYTES));
        assert!(output.file.is_rolled(), "it is in memory");
        assert_eq!((output.beginning().len() as u64, output.dropped_bytes()), (BEGINNING_BYTES, 0));
        let bytes = read(&mut output);
        assert_eq!((bytes.len(), &bytes[..8]), (8 + MEMORY_BYTES, &b"{\"start\""[..]));
    }

    #[test]
    fn what_is_beyond_the_limit_is_counted() {
        let mut output = Output::default();
        output.keep(b"begin");
        output.kept_bytes = MAX_OUTPUT_BYTES - 3;
        output.keep(b"12345");
        output.keep(b"6");
        assert_eq!((output.kept_bytes, output.dropped_bytes()), (MAX_OUTPUT_BYTES, 3));
        assert_eq!(read(&mut output), b"begin123", "there is no gap");
    }

    #[test]
    fn an_output_without_a_file_ends_where_the_memory_does() {
        let mut output = Output {
            file: SpooledTempFile::new_in(4, "/nonexistent/ccbench"),
            ..Output::default()
        };
        for part in ["ab", "cdefg", "h"] {
            output.keep(part.as_bytes());
        }
        assert_eq!((read(&mut output), output.dropped_bytes()), (b"ab".to_vec(), 6));
    }
}
