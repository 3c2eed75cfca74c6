//! The live view of a run: what its rows show now, in bounded memory.
//!
//! - [`LiveState`] takes the rows that the results get, and aggregates them in time bins: [`series`] one quantity, `link` the
//!   queues of a link, [`trial`] a trial, [`state`] the run.
//! - [`update`] is what a subscriber gets: everything at first, then what has changed since its last update. There is no queue
//!   per subscriber, so one that is slow gets fewer and larger updates, and delays nobody.
//! - [`openmetrics`] is what Prometheus gets of an update.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use state::LiveState;

mod link;
pub mod openmetrics;
pub mod series;
pub mod state;
pub mod trial;
pub mod update;

/// The state that the run's thread writes and the server's thread reads. The run's thread holds the lock for a microsecond per row, the
/// server's while it collects an update.
#[derive(Debug, Clone, Default)]
pub struct Live(Arc<Mutex<LiveState>>);

impl Live {
    /// Locks the state.
    pub fn state(&self) -> MutexGuard<'_, LiveState> {
        // After a panic the numbers may be incomplete; the results do not depend on them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
