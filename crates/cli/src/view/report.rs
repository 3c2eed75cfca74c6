//! The report of a run for its page. It is made once for each state of the results, however many pages ask for it.
//!
//! The file `report.html` of `ccbench report` is not sent instead. It does not record whether it has the claims of another plan
//! (`--expect`) or the failed trials (`--include-failed`), and no digest covers it, so a copied run may bring any script with it.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ccbench_results::model::TrialFilter;
use ccbench_results::summarize::RunSummary;
use ccbench_results::{journal, report};
use tokio::sync::{oneshot, watch};

use crate::readable_run::RUN_RECORD;

/// A report as HTML, or why there is none.
pub type Report = Result<Bytes, Arc<MakeError>>;

/// Reads a results directory and returns its report as HTML.
pub type Make = Box<dyn Fn(&Path) -> Result<String, ccbench_results::Error> + Send + Sync>;

/// A report cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The results cannot be read.
    #[error(transparent)]
    Results(#[from] ccbench_results::Error),
    /// No thread can be started.
    #[error("cannot start the thread that makes the report: {0}")]
    Thread(io::Error),
    /// The thread panicked.
    #[error("no report has been made; the standard error of ccbench has the reason")]
    Panicked,
}

/// Makes the reports of a run and keeps the latest one.
pub struct Reports {
    dir: PathBuf,
    make: Make,
    progress: Mutex<Progress>,
    latest: watch::Sender<Latest>,
}

/// The report that was made last.
struct Latest {
    /// Position in the order of all reports of this process, from 1; 0 if there is none yet.
    number: u64,
    report: Report,
}

/// What is made, and for whom.
#[derive(Debug, Default)]
struct Progress {
    /// What the latest report shows; `None` if it could not be made.
    made_of: Option<Version>,
    /// The number of the report that is being made, and what it shows.
    making: Option<(u64, Version)>,
    /// The highest number of a report that a page waits for.
    wanted: u64,
    /// Tickets that no page has used and that have not expired.
    tickets: BTreeSet<u64>,
    last_ticket: u64,
}

/// Identifies a state of the results without reading them: inode, length and time of the last change (s, ns) of the journal and of
/// `run.json`. A file that cannot be examined has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version([Option<(u64, u64, i64, i64)>; 2]);

impl Version {
    fn of(dir: &Path) -> Self {
        Self([journal::FILE_NAME, RUN_RECORD].map(|name| {
            let file = std::fs::metadata(dir.join(name)).ok()?;
            Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
        }))
    }
}

/// Reads a run and renders its report.
fn make(dir: &Path) -> Result<String, ccbench_results::Error> {
    let summary = RunSummary::compute(dir, TrialFilter::default())?;
    Ok(report::html(&summary)?)
}

impl Reports {
    /// Returns the reports of the run in this directory. None is made before a [request](Self::request).
    pub fn new(dir: &Path) -> Arc<Self> {
        Self::made_by(dir, Box::new(make))
    }

    /// As [`Self::new`], with another function that makes them.
    pub fn made_by(dir: &Path, make: Make) -> Arc<Self> {
        let none = Latest { number: 0, report: Err(Arc::new(MakeError::Panicked)) };
        let (latest, _) = watch::channel(none);
        Arc::new(Self { dir: dir.to_owned(), make, progress: Mutex::default(), latest })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // No code can panic while it holds the lock.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the report that answers a request now: the latest one if it shows the current state of the run or the page
    /// [had a ticket](Self::take_ticket), and otherwise one that is being made. A report that could not be made is made again,
    /// except for pages that had a ticket.
    ///
    /// # Panics
    /// Panics outside a Tokio runtime.
    pub fn request(self: &Arc<Self>, had_ticket: bool) -> u64 {
        let version = Version::of(&self.dir);
        let mut progress = self.progress();
        let made = self.latest.borrow().number;
        if had_ticket || progress.made_of == Some(version) {
            return made;
        }
        let making = progress.making;
        match making {
            Some((number, of)) if of == version => number,
            Some((number, _)) => {
                // That one will be out of date.
                progress.wanted = number + 1;
                progress.wanted
            }
            None => {
                let number = made + 1;
                progress.making = Some((number, version));
                tokio::spawn(Arc::clone(self).make_wanted(number, version));
                number
            }
        }
    }

    /// Waits for the report with this number, and returns it or a later one.
    pub async fn made(&self, number: u64) -> Report {
        let mut latest = self.latest.subscribe();
        match latest.wait_for(|latest| latest.number >= number).await {
            Ok(latest) => latest.report.clone(),
            // Cannot happen: `self` has the other end.
            Err(_) => Err(Arc::new(MakeError::Panicked)),
        }
    }

    /// Returns a ticket for a page that has waited. A request with it gets the latest report at once, even if the run has gone on: the page
    /// of a run in progress would otherwise wait forever.
    pub fn ticket(&self) -> u64 {
        let mut progress = self.progress();
        progress.last_ticket += 1;
        let ticket = progress.last_ticket;
        progress.tickets.insert(ticket);
        ticket
    }

    /// Uses up a ticket. Returns whether it was valid.
    pub fn take_ticket(&self, ticket: u64) -> bool {
        self.progress().tickets.remove(&ticket)
    }

    /// Makes this report, and further ones as long as pages wait for them.
    async fn make_wanted(self: Arc<Self>, number: u64, version: Version) {
        let mut next = Some((number, version));
        while let Some((number, version)) = next {
            let report = self.make_one().await;
            next = self.publish(number, version, report);
        }
    }

    async fn make_one(self: &Arc<Self>) -> Report {
        let (send, made) = oneshot::channel();
        let reports = Arc::clone(self);
        // Polars must not run in the runtime, whose own threads the process would wait for after Ctrl-C.
        let thread = std::thread::Builder::new().name("report".to_owned());
        let started = thread.spawn(move || {
            // Fails if the server has ended.
            let _ = send.send((reports.make)(&reports.dir));
        });
        if let Err(error) = started {
            return Err(Arc::new(MakeError::Thread(error)));
        }
        match made.await {
            Ok(Ok(page)) => Ok(Bytes::from(page)),
            Ok(Err(error)) => Err(Arc::new(error.into())),
            Err(_) => Err(Arc::new(MakeError::Panicked)),
        }
    }

    /// Replaces the latest report, and returns the next one to make if a page waits for it.
    fn publish(&self, number: u64, version: Version, report: Report) -> Option<(u64, Version)> {
        let mut progress = self.progress();
        progress.made_of = report.is_ok().then_some(version);
        // Read again: the pages that wait have seen a later state.
        let next = (progress.wanted > number).then(|| (number + 1, Version::of(&self.dir)));
        progress.making = next;
        self.latest.send_replace(Latest { number, report });
        next
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write as _;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// Reports that are made when the test permits it.
    struct Fixture {
        reports: Arc<Reports>,
        /// Number of reports that were begun.
        begun: Arc<AtomicU64>,
        permits: mpsc::Sender<()>,
        dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let begun = Arc::new(AtomicU64::new(0));
            let (permits, permitted) = mpsc::channel::<()>();
            let (counter, permitted) = (Arc::clone(&begun), Mutex::new(permitted));
            let make = move |_: &Path| {
                let nth = counter.fetch_add(1, Ordering::Relaxed) + 1;
                permitted.lock().unwrap().recv().unwrap();
                Ok(format!("report {nth}"))
            };
            let reports = Reports::made_by(dir.path(), Box::new(make));
            let fixture = Self { reports, begun, permits, dir };
            fixture.commit();
            fixture
        }

        /// Appends to the journal.
        fn commit(&self) {
            let mut options = OpenOptions::new();
            let path = self.dir.path().join(journal::FILE_NAME);
            let mut journal = options.append(true).create(true).open(path).unwrap();
            journal.write_all(b"line\n").unwrap();
        }

        /// Permits a report and returns the one with this number.
        async fn permit(&self, number: u64) -> String {
            self.permits.send(()).unwrap();
            text(&self.reports.made(number).await)
        }
    }

    fn text(report: &Report) -> String {
        String::from_utf8(report.as_ref().unwrap().to_vec()).unwrap()
    }

    fn block_on(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    #[test]
    fn requests_of_one_state_make_one_report() {
        let fixture = Fixture::new();
        let reports = &fixture.reports;
        block_on(async {
            // Pages that ask at the same time wait for the same report, and later ones get it.
            assert_eq!([reports.request(false), reports.request(false)], [1, 1]);
            assert_eq!(fixture.permit(1).await, "report 1");
            assert_eq!(reports.request(false), 1);
            assert_eq!(text(&reports.made(1).await), "report 1");
            assert_eq!(fixture.begun.load(Ordering::Relaxed), 1);
            // A line of the journal, and another `run.json`, are other states.
            fixture.commit();
            assert_eq!([reports.request(false), reports.request(false)], [2, 2]);
            assert_eq!(fixture.permit(2).await, "report 2");
            std::fs::write(fixture.dir.path().join(RUN_RECORD), "{}").unwrap();
            assert_eq!(reports.request(false), 3);
            assert_eq!(fixture.permit(3).await, "report 3");
            assert_eq!(reports.request(false), 3);
        });
        assert_eq!(fixture.begun.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_run_that_goes_on_delays_no_page_forever() {
        let fixture = Fixture::new();
        let reports = &fixture.reports;
        block_on(async {
            assert_eq!(reports.request(false), 1);
            // A trial ends while the report is made: who asks now must not get a report without it.
            fixture.commit();
            assert_eq!([reports.request(false), reports.request(false)], [2, 2]);
            assert_eq!(fixture.permit(1).await, "report 1");
            let ticket = reports.ticket();
            assert_eq!(reports.request(reports.take_ticket(ticket)), 1, "the page that has waited");
            assert_eq!(
                reports.request(reports.take_ticket(ticket)),
                2,
                "a ticket is good for one request"
            );
            assert_eq!(fixture.permit(2).await, "report 2");
            assert_eq!(reports.request(false), 2);
        });
        assert_eq!(fixture.begun.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn an_error_is_for_the_pages_that_waited() {
        let dir = tempfile::tempdir().unwrap();
        let reports = Reports::new(dir.path());
        block_on(async {
            assert_eq!(reports.request(false), 1);
            let error = reports.made(1).await.unwrap_err();
            assert!(matches!(*error, MakeError::Results(_)), "{error}");
            let ticket = reports.ticket();
            assert_eq!(reports.request(reports.take_ticket(ticket)), 1);
            assert_eq!(reports.request(false), 2, "the cause may be gone");
            assert!(reports.made(2).await.is_err());
        });
    }

    #[test]
    fn a_panic_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let reports = Reports::made_by(dir.path(), Box::new(|_| panic!("in a test")));
        block_on(async {
            let number = reports.request(false);
            let error = reports.made(number).await.unwrap_err();
            assert!(matches!(*error, MakeError::Panicked), "{error}");
        });
    }
}
