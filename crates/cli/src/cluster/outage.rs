//! Tracks how long a scheduler has not answered.

use std::time::Duration;

use tokio::time::Instant;

/// How long a command waits for a scheduler that does not answer. Upgrading a controller takes less.
pub const MAX_OUTAGE: Duration = Duration::from_secs(3600);

/// Remembers since when a scheduler has not answered.
#[derive(Debug, Default)]
pub struct Outage {
    since: Option<Instant>,
}

/// What to do about an unanswered request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The outage begins: report it and ask again.
    First,
    /// Ask again.
    Again,
    /// The outage lasts longer than [`MAX_OUTAGE`]: give up.
    TooLong,
}

impl Outage {
    /// Records that there was no answer at this time.
    pub fn unanswered(&mut self, now: Instant) -> Unanswered {
        match self.since {
            None => {
                self.since = Some(now);
                Unanswered::First
            }
            Some(since) if now.saturating_duration_since(since) < MAX_OUTAGE => Unanswered::Again,
            Some(_) => Unanswered::TooLong,
        }
    }

    /// Records an answer at this time. Returns the length of the outage that it ends, if any.
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
        assert_eq!(outage.unanswered(begin + MAX_OUTAGE - second), Unanswered::Again);
        assert_eq!(outage.answered(begin + MAX_OUTAGE), Some(MAX_OUTAGE));
        // Each outage counts separately.
        assert_eq!(outage.unanswered(begin + MAX_OUTAGE), Unanswered::First);
        assert_eq!(outage.unanswered(begin + MAX_OUTAGE * 2 - second), Unanswered::Again);
        assert_eq!(outage.unanswered(begin + MAX_OUTAGE * 2), Unanswered::TooLong);
    }
}
