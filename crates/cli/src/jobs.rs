//! Concurrent trials (`--jobs`): trials on a virtual clock do not disturb each other.

use futures_util::future::join_all;

use crate::lab::cpu;

/// Returns the number of concurrent trials: `wanted`, or the number of CPUs, but at most the number of trials.
pub fn count(wanted: Option<u32>, trials: usize) -> usize {
    wanted.map_or_else(|| cpu::allowed().len(), |jobs| jobs as usize).min(trials).max(1)
}

/// Runs `work` in all places at the same time until `next` returns `None`.
pub async fn run_in<P, T>(
    places: &[P],
    next: impl AsyncFn() -> Option<T>,
    work: impl AsyncFn(&P, T),
) {
    let (next, work) = (&next, &work);
    let worker = |place| async move {
        while let Some(item) = next().await {
            work(place, item).await;
        }
    };
    join_all(places.iter().map(worker)).await;
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn no_more_jobs_than_trials() {
        assert_eq!(count(Some(4), 9), 4);
        assert_eq!(count(Some(4), 2), 2);
        assert_eq!(count(Some(4), 0), 1);
        assert!(count(None, usize::MAX) >= 1);
    }

    /// Runs five items in places. Each item takes the given number of scheduler turns. Returns the order in which they begin and
    /// end.
    fn run(places: usize, lengths: [usize; 5], last: usize) -> (Vec<usize>, Vec<usize>) {
        let (begun, ended) = (RefCell::new(vec![]), RefCell::new(vec![]));
        let next = async || {
            let item = begun.borrow().len();
            // No item begins after `last` has ended.
            let go_on = item < lengths.len() && !ended.borrow().contains(&last);
            go_on.then(|| begun.borrow_mut().push(item)).map(|()| item)
        };
        let work = async |_: &usize, item: usize| {
            for _ in 0..lengths[item] {
                tokio::task::yield_now().await;
            }
            ended.borrow_mut().push(item);
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let places: Vec<usize> = (0..places).collect();
        runtime.block_on(run_in(&places, next, work));
        (begun.into_inner(), ended.into_inner())
    }

    #[test]
    fn items_begin_in_their_order_and_end_in_any() {
        let none = usize::MAX;
        assert_eq!(run(1, [9, 1, 1, 1, 1], none).1, [0, 1, 2, 3, 4]);
        let (begun, ended) = run(2, [9, 1, 1, 1, 1], none);
        assert_eq!(begun, [0, 1, 2, 3, 4]);
        assert_eq!(ended, [1, 2, 3, 4, 0], "the long one does not delay the others");
        let (begun, ended) = run(2, [9, 1, 1, 1, 1], 1);
        assert_eq!((begun, ended), (vec![0, 1], vec![1, 0]), "what runs is not stopped");
        assert_eq!(run(8, [1; 5], none).0, [0, 1, 2, 3, 4]);
    }
}
