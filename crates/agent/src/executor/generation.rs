//! The generation on disk: after a restart, an agent must still refuse a controller that another one has replaced.

use std::io;
use std::path::{Path, PathBuf};

use ccbench_io::replace::replace;
use ccbench_proto::sealed_line::{self, seal};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use crate::undo::JournalError;

/// Random generations begin here. An agent that counts from 0 never gets so far.
const RANDOM_FROM: u64 = 1 << 51;

/// The file with the generation and the run of the last Prepare.
#[derive(Debug, Clone)]
pub struct GenerationFile {
    /// Its path.
    pub path: PathBuf,
    /// Whether an agent has used this state directory before: then a missing file was lost.
    pub ran_before: bool,
}

/// The contents of the file: a line with its checksum.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    generation: u64,
    run_id: String,
}

impl GenerationFile {
    /// Returns the generation and the run of the last Prepare; 0 and an empty name if there was none. If the file is lost or damaged, the
    /// generation is a random one above all that an agent counts to, and is kept: counted from 0, it would sooner or later be the one that
    /// an overtaken controller knows.
    pub(super) fn read(&self) -> (u64, String) {
        let why = match read(&self.path) {
            Ok(stored) => return (stored.generation, stored.run_id),
            // It is written at once: from the next start on, a missing file is a lost one.
            Err(Lost::Missing) if !self.ran_before => return self.begin(0),
            Err(why) => why,
        };
        let generation = random();
        let file = self.path.display();
        tracing::warn!(%file, %why, generation, "the generation is lost; the node counts from a random one");
        self.begin(generation)
    }

    fn begin(&self, generation: u64) -> (u64, String) {
        if let Err(error) = self.write(generation, "") {
            tracing::warn!(%error, "keep the generation");
        }
        (generation, String::new())
    }

    /// Writes atomically and durably.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, generation: u64, run_id: &str) -> Result<(), JournalError> {
        let failed = |source| JournalError { op: "write", path: self.path.clone(), source };
        let stored = Stored { generation, run_id: run_id.to_owned() };
        let line = serde_json::to_string(&stored).map_err(|error| failed(error.into()))?;
        replace(&self.path, seal(&line).as_bytes()).map(drop).map_err(failed)
    }
}

/// Why the generation is not in the file.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("it is missing, although an agent has used this state directory")]
    Missing,
    #[error("it is damaged")]
    Damaged,
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
}

fn read(file: &Path) -> Result<Stored, Lost> {
    let bytes = std::fs::read(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Lost::Missing,
        _ => Lost::Unreadable(error),
    })?;
    let line = sealed_line::lines(&bytes).into_iter().next().and_then(|line| line.object);
    let sealed = line.and_then(|object| serde_json::from_slice(&object).ok());
    sealed.or_else(|| of_earlier_version(&bytes)).ok_or(Lost::Damaged)
}

/// Reads the line `GENERATION RUN`, as versions without a checksum wrote it.
fn of_earlier_version(bytes: &[u8]) -> Option<Stored> {
    let text = String::from_utf8_lossy(bytes);
    let (line, _) = text.split_once('\n')?;
    let (generation, run_id) = line.split_once(' ')?;
    Some(Stored { generation: generation.parse().ok()?, run_id: run_id.to_owned() })
}

/// Returns a random generation of 52 bits, which JSON numbers represent exactly.
fn random() -> u64 {
    let mut bytes = [0; 8];
    if let Err(errno) = getrandom(&mut bytes[..], GetRandomFlags::empty()) {
        tracing::warn!(%errno, "get random numbers");
    }
    RANDOM_FROM | (u64::from_ne_bytes(bytes) % RANDOM_FROM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_dir(dir: &Path, ran_before: bool) -> GenerationFile {
        GenerationFile { path: dir.join("generation"), ran_before }
    }

    #[test]
    fn round_trips() {
        let dir = tempfile::tempdir().unwrap();
        let file = in_dir(dir.path(), false);
        assert_eq!(file.read(), (0, String::new()));
        let restarted = in_dir(dir.path(), true);
        assert_eq!(restarted.read(), (0, String::new()), "nothing is lost");
        for (generation, run_id) in [(7, "a run"), (u64::MAX, "")] {
            file.write(generation, run_id).unwrap();
            assert_eq!(file.read(), (generation, run_id.to_owned()));
        }
        let whole = std::fs::read(&file.path).unwrap();
        std::fs::write(&file.path, [&whole[..], b"{\"generation\":"].concat()).unwrap();
        assert_eq!(file.read(), (u64::MAX, String::new()), "a torn line was never written");
    }

    #[test]
    fn files_of_versions_without_a_checksum_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = in_dir(dir.path(), true);
        std::fs::write(&file.path, b"7 \xff\n").unwrap();
        assert_eq!(file.read(), (7, "\u{fffd}".to_owned()));
    }

    #[test]
    fn a_lost_or_damaged_generation_is_replaced_by_a_random_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = in_dir(dir.path(), true);
        let (missing, run_id) = file.read();
        assert!((RANDOM_FROM..2 * RANDOM_FROM).contains(&missing), "{missing}");
        assert_eq!((file.read(), run_id), ((missing, String::new()), String::new()), "it is kept");
        file.write(7, "a run").unwrap();
        let whole = std::fs::read(&file.path).unwrap();
        let mut found = vec![missing];
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&file.path, bytes).unwrap();
            let (generation, run_id) = file.read();
            // The line feed may be damaged although the line is complete.
            if (generation, run_id.as_str()) != (7, "a run") {
                assert!(generation >= RANDOM_FROM && run_id.is_empty(), "bit {bit}: {generation}");
                found.push(generation);
            }
        }
        assert!(found.len() > whole.len() * 8 - 8, "{} bits were noticed", found.len());
        let count = found.len();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), count, "each is another one");
        std::fs::write(&file.path, "many run\n").unwrap();
        assert!(file.read().0 >= RANDOM_FROM);
        let folder = GenerationFile { path: dir.path().to_owned(), ran_before: false };
        assert!(folder.read().0 >= RANDOM_FROM, "it cannot be read");
    }
}
