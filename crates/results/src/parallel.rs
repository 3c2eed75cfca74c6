//! The same work on each of several things, on the machine's processors.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most things that are worked on at a time: bounds the memory on machines of many processors.
const MOST_AT_A_TIME: usize = 8;

/// Asked for once: it reads several files.
static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// What `work` makes of each thing, in their order. A panic goes on in the caller.
pub(crate) fn in_parallel<T: Sync, M: Send>(things: &[T], work: impl Fn(&T) -> M + Sync) -> Vec<M> {
    let workers = PROCESSORS.min(MOST_AT_A_TIME).min(things.len());
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
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(take)).collect();
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
    fn every_thing_is_worked_on_once_and_the_order_stays() {
        let things: Vec<u32> = (0..1000).collect();
        assert_eq!(in_parallel(&things, |n| n * 2), (0..2000).step_by(2).collect::<Vec<_>>());
        assert_eq!(in_parallel(&[] as &[u32], |n| *n), Vec::<u32>::new());
    }
}
