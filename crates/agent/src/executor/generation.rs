//! The generation on disk: after a restart, an agent must still refuse a controller that another one has replaced.

use std::io;
use std::path::Path;

use ccbench_io::replace::replace;

use crate::undo::JournalError;

/// Returns the generation and the run of the last Prepare; 0 and an empty name if there was none, or if the file is damaged.
pub(super) fn read(file: &Path) -> (u64, String) {
    let text = match std::fs::read(file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Default::default(),
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "cannot read the generation; the node counts from 0 again");
            return Default::default();
        }
    };
    let (generation, run_id) = text.trim_end_matches('\n').split_once(' ').unwrap_or_default();
    match generation.parse() {
        Ok(generation) => (generation, run_id.to_owned()),
        Err(_) => {
            tracing::warn!(file = %file.display(), "the file contains no generation; the node counts from 0 again");
            Default::default()
        }
    }
}

/// Writes atomically and durably.
pub(super) fn write(file: &Path, generation: u64, run_id: &str) -> Result<(), JournalError> {
    let failed = |source| JournalError { op: "write", path: file.to_owned(), source };
    replace(file, format!("{generation} {run_id}\n").as_bytes()).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("generation");
        assert_eq!(read(&file), (0, String::new()));
        for (generation, run_id) in [(7, "a run"), (u64::MAX, "")] {
            write(&file, generation, run_id).unwrap();
            assert_eq!(read(&file), (generation, run_id.to_owned()));
        }
        std::fs::write(&file, b"7 \xff\n").unwrap();
        assert_eq!(read(&file), (7, "\u{fffd}".to_owned()));
        std::fs::write(&file, "many run").unwrap();
        assert_eq!(read(&file), (0, String::new()));
        assert_eq!(read(dir.path()), (0, String::new()));
    }
}
