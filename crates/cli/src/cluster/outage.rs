//! A scheduler that does not answer for a while.

use std::time::Duration;

use tokio::time::Instant;

/// How long a command waits for a scheduler that does not answer: the upgrade of a controller takes less.
pub const LIMIT: Duration = Duration::from_secs(3600);

/// Since when a scheduler has not answered.
#[derive(Debug, Default)]
pub struct Outage {
    since: Option<Instant>,
}

/// What to do about a request without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The first one: report it, and ask again.
    First,
    /// Ask again.
    Again,
    /// There was none for [`LIMIT`]: give up.
    TooLong,
}

impl Outage {
    /// There was no answer at this time.
    pub fn unanswered(&mut self, now: Instant) -> Unanswered {
        match self.since {
            None => {
                self.since = Some(now);
                Unanswered::First
            }
            Some(since) if now.saturating_duration_since(since) < LIMIT => Unanswered::Again,
            Some(_) => Unanswered::TooLong,
        }
    }

    /// There was an answer at this time; how long there was none before, if so.
    pub fn answered(&mut self, now: Instant) -> Option<Duration> {
        self.since.take().map(|since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once_and_ends_at_its_limit() {
        let mut outage = Outage::default();
        let begin = crate::clock::now();
        let second = Duration::from_secs(1);
        assert_eq!(outage.answered(begin), None);
        assert_eq!(outage.unanswered(begin), Unanswered::First);
        assert_eq!(outage.unanswered(begin + LIMIT - second), Unanswered::Again);
        assert_eq!(outage.answered(begin + LIMIT), Some(LIMIT));
        // Each outage counts for itself.
        assert_eq!(outage.unanswered(begin + LIMIT), Unanswered::First);
        assert_eq!(outage.unanswered(begin + LIMIT * 2 - second), Unanswered::Again);
        assert_eq!(outage.unanswered(begin + LIMIT * 2), Unanswered::TooLong);
    }
}
