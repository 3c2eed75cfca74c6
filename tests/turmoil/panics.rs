//! Counts panics: tokio catches those of tasks, and a thread's panic ends only that thread.

use std::cell::Cell;
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Number of panics of this thread; `None` on threads that run no simulation.
    static HERE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Number of panics of threads that run no simulation, such as a writer of tables. The simulation that has started them is not known.
static ELSEWHERE: AtomicU64 = AtomicU64::new(0);

/// Counts panics from now on, beside what happens at a panic anyway.
pub fn count_from_now() {
    static HOOK: Once = Once::new();
    HERE.set(Some(HERE.get().unwrap_or(0)));
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            match HERE.get() {
                Some(count) => HERE.set(Some(count + 1)),
                None => drop(ELSEWHERE.fetch_add(1, Ordering::Relaxed)),
            }
            before(info);
        }));
    });
}

/// Returns the number of panics so far, without those of other simulations' threads.
pub fn count() -> u64 {
    HERE.get().unwrap_or(0) + ELSEWHERE.load(Ordering::Relaxed)
}
