//! Who is next among many queues: those that just became busy, then the others in a circle. The lists of
//! FQ and FQ-CoDel.

use std::collections::VecDeque;

/// Two lists of queues' indices. A queue is in at most one of them.
#[derive(Debug)]
pub(crate) struct Turns {
    new: VecDeque<u32>,
    old: VecDeque<u32>,
}

impl Turns {
    /// Never allocates for indices below `queues`, each listed once.
    pub(crate) fn new(queues: usize) -> Self {
        Self { new: VecDeque::with_capacity(queues), old: VecDeque::with_capacity(queues) }
    }

    /// A queue that was in no list has become busy.
    #[inline]
    pub(crate) fn join(&mut self, queue: u32) {
        self.new.push_back(queue);
    }

    /// Whose turn it is, and whether it is in the list of the new.
    #[inline]
    pub(crate) fn front(&self) -> Option<(u32, bool)> {
        match self.new.front() {
            Some(&queue) => Some((queue, true)),
            None => self.old.front().map(|&queue| (queue, false)),
        }
    }

    /// Its turn is over: it joins the end of the old.
    #[inline]
    pub(crate) fn rotate(&mut self) {
        if let Some(queue) = self.leave() {
            self.old.push_back(queue);
        }
    }

    /// It leaves both lists.
    #[inline]
    pub(crate) fn leave(&mut self) -> Option<u32> {
        self.new.pop_front().or_else(|| self.old.pop_front())
    }

    /// Whether none is among the old.
    pub(crate) fn no_old(&self) -> bool {
        self.old.is_empty()
    }

    /// Queues in both lists.
    pub(crate) fn len(&self) -> usize {
        self.new.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_come_first_and_the_old_in_a_circle() {
        let mut turns = Turns::new(4);
        assert_eq!(turns.front(), None);
        for queue in 0..3 {
            turns.join(queue);
        }
        assert_eq!(turns.front(), Some((0, true)));
        turns.rotate();
        turns.rotate();
        assert_eq!(turns.leave(), Some(2));
        assert_eq!(turns.front(), Some((0, false)));
        turns.rotate();
        assert_eq!(turns.front(), Some((1, false)));
        turns.join(3);
        assert_eq!((turns.front(), turns.len(), turns.no_old()), (Some((3, true)), 3, false));
    }
}
