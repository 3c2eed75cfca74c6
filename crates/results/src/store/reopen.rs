//! Opens a results directory to continue or to end its run.

use std::path::Path;

use super::{FileCopy, Result, StoreError, check_record, refuse_lost};
use crate::damage::{self, Depth, compare_with_digest};
use crate::digest::{Digests, FileDigest};
use crate::journal::Journal;
use crate::layout::{leftovers, remove};
use crate::observer::Observer;
use crate::record::RunRecord;

/// Returns the record and the locked journal of a run of this plan with these copies of its files. Repairs what a killed session left, and adds notes.
pub(super) fn reopen(
    path: &Path,
    plan_sha256: &str,
    copies: &[FileCopy<'_>],
    utc: &str,
    depth: Depth,
) -> Result<(RunRecord, Journal)> {
    // The error says what is wrong if this is no results directory.
    RunRecord::read(path)?;
    let mut journal = Journal::reopen(path)?;
    // Read with the lock: a session replaces the file when it ends, shortly before it releases the lock.
    let (mut record, digest) = RunRecord::read(path)?;
    if record.plan_sha256 != plan_sha256 {
        return Err(StoreError::OtherPlan {
            path: path.to_path_buf(),
            found: record.plan_sha256,
            expected: plan_sha256.to_owned(),
        });
    }
    if journal.state().is_compacted() {
        return Err(StoreError::Compacted { path: path.to_path_buf() });
    }
    check_copies(path, copies, &journal.state().run_files)?;
    refuse_lost(path, &record, journal.state())?;
    check_record(path, (&record, &digest), journal.state())?;
    // The next append removes it.
    let torn = journal.state().torn_bytes;
    if torn > 0 {
        record.notes.push(format!(
            "{utc}: removed {torn} bytes of an unfinished line from the end of the journal"
        ));
    }
    damage::mark(path, journal.state_mut(), depth, |_| true, &Observer::default());
    for leftover in leftovers(path, journal.state())? {
        remove(&leftover)?;
        let name = leftover.strip_prefix(path).unwrap_or(&leftover);
        record.notes.push(format!(
            "{utc}: removed {}, left by a trial that was not committed",
            name.display()
        ));
    }
    Ok((record, journal))
}

/// Refuses a file of the plan that is not the one with which the run began. The resolved plan has no digests of files that factors name.
fn check_copies(path: &Path, copies: &[FileCopy<'_>], known: &Digests) -> Result<()> {
    for (file, content) in copies {
        let name = file.to_string_lossy().into_owned();
        // Earlier versions kept no digests.
        let Some(expected) = known.get(&name) else { continue };
        if FileDigest::of(content) != *expected {
            let what = compare_with_digest(&path.join(file), Some(expected), Depth::Digests);
            let what = what.unwrap_or_else(|| "another one was read".to_owned());
            return Err(StoreError::OtherFile { path: path.to_path_buf(), file: name, what });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::journal::JournalError;
    use crate::model::RunInfo;
    use crate::store::{RunDir, StoreError};
    use crate::trial::tests::info;

    #[test]
    fn reopen_compares_the_plan_after_it_has_the_lock() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &info()).unwrap();
        let path = run.path().to_path_buf();
        let other = RunInfo { plan_sha256: "fedcba9876543210".into(), ..info() };
        // The record does not count before the other session has ended.
        let error = RunDir::resume(&path, &other).unwrap_err();
        assert!(matches!(error, StoreError::Journal(JournalError::Locked { .. })), "{error}");
        drop(run);
        let error = RunDir::resume(&path, &other).unwrap_err();
        assert!(matches!(error, StoreError::OtherPlan { .. }), "{error}");
        // `--resume` accepts no plan.
        let advice = "continue with the version of ccbench that began it (run.json names it)";
        assert!(error.to_string().contains(advice), "{error}");
    }

    #[test]
    fn a_refused_run_keeps_its_journal() {
        use std::io::Write as _;

        let root = tempfile::tempdir().unwrap();
        let path = RunDir::create(root.path(), &info()).unwrap().path().to_path_buf();
        let journal = path.join("journal.ndjson");
        std::fs::File::options().append(true).open(&journal).unwrap().write_all(b"torn").unwrap();
        let before = std::fs::read(&journal).unwrap();
        RunDir::reopen(&path, "of another plan", info().started_utc).unwrap_err();
        assert_eq!(std::fs::read(&journal).unwrap(), before);
        let run = RunDir::reopen(&path, &info().plan_sha256, info().started_utc).unwrap();
        assert!(
            run.notes().iter().any(|note| note.contains("removed 4 bytes")),
            "{:?}",
            run.notes()
        );
    }

    #[test]
    fn a_trace_that_has_changed_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let with = |text: &str| RunInfo {
            traces: [(PathBuf::from("cell.csv"), text.into())].into(),
            ..info()
        };
        let path = RunDir::create(root.path(), &with("old")).unwrap().path().to_path_buf();
        let copy = path.join("traces/cell.csv");
        std::fs::write(&copy, "new").unwrap();
        let error = RunDir::resume(&path, &with("new")).unwrap_err();
        assert!(matches!(error, StoreError::OtherFile { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains("traces/cell.csv") && error.contains("SHA-256 differs"), "{error}");
        std::fs::remove_file(&copy).unwrap();
        let error = RunDir::resume(&path, &with("new")).unwrap_err().to_string();
        assert!(error.contains("(missing)"), "{error}");
        std::fs::write(&copy, "old").unwrap();
        RunDir::resume(&path, &with("old")).unwrap();
    }
}
