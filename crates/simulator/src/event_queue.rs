//! Pending events in order of time. Events of the same instant keep the order in which they were added, so that a run is exactly
//! repeatable.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events of type `E`, ordered by time.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at_ns: u64,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ns, self.sequence) == (other.at_ns, other.sequence)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.sequence).cmp(&(other.at_ns, other.sequence))
    }
}

impl<E> EventQueue<E> {
    /// Returns an empty queue.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }

    /// Adds an event, which must not be in the past.
    pub fn add(&mut self, at_ns: u64, event: E) {
        self.added += 1;
        self.heap.push(Reverse(Entry { at_ns, sequence: self.added, event }));
    }

    /// Removes the next event and returns it with its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at_ns, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_instant_keep_their_order() {
        let mut queue = EventQueue::new();
        for (at_ns, event) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd')] {
            queue.add(at_ns, event);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(3, 'b'), (3, 'd'), (5, 'a'), (5, 'c')]);
    }
}
