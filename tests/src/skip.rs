//! Reports tests that could not do their job as skipped, with the reason. `scripts/test.sh` counts them.

use std::io::Write as _;

/// Variable that names the file to which skipped tests are appended, one line `test<TAB>reason` for each. `scripts/test.sh` sets it.
pub const SKIP_FILE: &str = "CCBENCH_TEST_SKIPS";

/// Records that the test of this thread is skipped. `scripts/test.sh` counts the records.
///
/// # Panics
/// Panics if the record cannot be written.
#[expect(clippy::expect_used, reason = "a test may panic")]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    eprintln!("skipped: {test}: {reason}");
    if let Some(path) = std::env::var_os(SKIP_FILE) {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let line = format!("{test}\t{}\n", reason.replace('\n', " "));
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("record a skipped test");
    }
}
