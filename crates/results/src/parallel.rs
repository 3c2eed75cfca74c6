//! Parallel map over a slice with a bounded number of threads.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of threads, to bound memory on machines with many CPUs.
const MAX_THREADS: usize = 8;

/// Determined once, because the call reads several files.
static CPUS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// Applies `work` to each item and returns the results in order. A panic propagates to the caller.
pub(crate) fn in_parallel<T: Sync, M: Send>(things: &[T], work: impl Fn(&T) -> M + Sync) -> Vec<M> {
    let workers = CPUS.min(MAX_THREADS).min(things.len());
    let next = AtomicUsize::new(0);
    let take = || {
        let mut made = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(thing) = things.get(at) else { return made };
            made.push((at, work(thing)));
        }
    };
    let mut made = std::thread::scope(|scope| {
        // With fewer threads than wanted, it only takes longer.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, take).ok();
        let others: Vec<_> = (1..workers).filter_map(start).collect();
        let mut made = take();
        for other in others {
            made.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        made
    });
    made.sort_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_every_item_once_in_order() {
        let things: Vec<u32> = (0..1000).collect();
        assert_eq!(in_parallel(&things, |n| n * 2), (0..2000).step_by(2).collect::<Vec<_>>());
        assert_eq!(in_parallel(&[] as &[u32], |n| *n), Vec::<u32>::new());
    }
}
