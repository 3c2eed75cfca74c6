//! The live view of a run: what its rows show so far, in bounded memory.
//!
//! - [`LiveState`] takes the same rows as the results and aggregates them in time bins. [`series`] holds one quantity, `link` the
//!   queues of a link, [`trial`] a trial, and [`state`] the run.
//! - [`update`] makes what a subscriber gets: everything at first, then what has changed since its last update. There is no queue
//!   per subscriber, so a slow one gets fewer and larger updates and delays nobody.
//! - [`openmetrics`] converts an update for Prometheus.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use state::LiveState;

mod link;
pub mod openmetrics;
pub mod series;
pub mod state;
pub mod trial;
pub mod update;

/// The state that the run's thread writes and the server's thread reads. The run's thread holds the lock for a microsecond per
/// row, the server's thread while it collects an update.
#[derive(Debug, Clone, Default)]
pub struct Live(Arc<Mutex<LiveState>>);

impl Live {
    /// Locks the state.
    pub fn state(&self) -> MutexGuard<'_, LiveState> {
        // A panic may leave the numbers incomplete, but the results do not depend on them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
