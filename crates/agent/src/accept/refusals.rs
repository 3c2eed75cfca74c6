//! Decides which refused connections are logged: a flood must not fill the log.

use super::RefusedConnection;
use crate::audit::Audit;
use crate::clock;

/// Refused connections logged per second; the rest are counted.
const LOGGED_PER_SECOND: u32 = 5;

/// Logs a few refused connections per second, to the log and to the audit log. The rest are counted; their number is
/// logged when the second is over, and when this is dropped.
pub(super) struct RefusalLog {
    pub(super) audit: Audit,
    count: RefusalCount,
}

impl RefusalLog {
    pub(super) fn new(audit: Audit) -> Self {
        Self { audit, count: RefusalCount::default() }
    }

    pub(super) fn refused(&mut self, peer: &str, why: &RefusedConnection) {
        let now_ns = clock::now_ns();
        self.summarize(now_ns);
        if self.count.add(now_ns) {
            tracing::warn!(peer, %why, "refused a connection");
            self.audit.refused(peer, &why.to_string());
        }
    }

    /// Resolves when [`Self::summarize`] has something to log; never, if no unlogged connection was counted.
    pub(super) async fn summary_due(&self) {
        match self.count.due_ns() {
            Some(due_ns) => tokio::time::sleep(clock::until(due_ns)).await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn summarize(&mut self, now_ns: u64) {
        if self.count.due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.log_counted();
        }
    }

    fn log_counted(&mut self) {
        let connections = self.count.take();
        if connections > 0 {
            tracing::warn!(connections, "refused more connections");
            self.audit.refused_more(connections);
        }
    }
}

impl Drop for RefusalLog {
    fn drop(&mut self) {
        self.log_counted();
    }
}

/// Decides which refused connections are logged, and counts the others. Pure: the time is an argument.
#[derive(Debug, Default)]
struct RefusalCount {
    /// When the current second began.
    second_ns: Option<u64>,
    logged: u32,
    unlogged: u64,
}

impl RefusalCount {
    const SECOND_NS: u64 = 1_000_000_000;

    /// Counts a connection. Returns whether it gets its own log entry.
    fn add(&mut self, now_ns: u64) -> bool {
        if self.second_ns.is_none_or(|second_ns| now_ns - second_ns >= Self::SECOND_NS) {
            (self.second_ns, self.logged) = (Some(now_ns), 0);
        }
        let is_logged = self.logged < LOGGED_PER_SECOND;
        if is_logged {
            self.logged += 1;
        } else {
            self.unlogged += 1;
        }
        is_logged
    }

    /// Returns when to log the number of the others, which is the end of their second; `None` if there are none.
    fn due_ns(&self) -> Option<u64> {
        let second_ns = self.second_ns.filter(|_| self.unlogged > 0)?;
        Some(second_ns + Self::SECOND_NS)
    }

    /// Returns the number of the others since the last call.
    fn take(&mut self) -> u64 {
        std::mem::take(&mut self.unlogged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refused_connection_is_logged_or_counted() {
        const BEGIN_NS: u64 = 77;
        let mut count = RefusalCount::default();
        assert_eq!(count.due_ns(), None);
        let logged: Vec<bool> = (0..8).map(|n| count.add(BEGIN_NS + n)).collect();
        assert_eq!(logged, [true, true, true, true, true, false, false, false]);
        // The summary needs no further connection.
        let end_ns = BEGIN_NS + RefusalCount::SECOND_NS;
        assert_eq!(count.due_ns(), Some(end_ns));
        assert_eq!((count.take(), count.due_ns(), count.take()), (3, None, 0));
        assert!(!count.add(end_ns - 1), "still the same second");
        assert_eq!(count.due_ns(), Some(end_ns));
        // The next second has its own summary, and the last second's count is kept.
        assert!(count.add(end_ns));
        assert_eq!((count.due_ns(), count.take()), (Some(end_ns + RefusalCount::SECOND_NS), 1));
    }

    #[test]
    fn the_report_waits_for_the_end_of_the_second() {
        let mut log = RefusalLog::new(Audit::default());
        for at_ns in 0..=u64::from(LOGGED_PER_SECOND) {
            log.count.add(at_ns);
        }
        log.summarize(RefusalCount::SECOND_NS - 1);
        assert_eq!(log.count.due_ns(), Some(RefusalCount::SECOND_NS));
        log.summarize(RefusalCount::SECOND_NS);
        assert_eq!(log.count.due_ns(), None);
    }
}
