//! The lists `new_flows` and `old_flows` of `sch_fq` and `sch_fq_codel` (RFC 8290, section 4.2).

use std::collections::VecDeque;

/// Two lists of flow indices. A flow is in at most one of them.
#[derive(Debug)]
pub(crate) struct FlowLists {
    new_flows: VecDeque<u32>,
    old_flows: VecDeque<u32>,
}

impl FlowLists {
    /// Creates empty lists that never allocate for indices below `flows`.
    pub(crate) fn new(flows: usize) -> Self {
        Self {
            new_flows: VecDeque::with_capacity(flows),
            old_flows: VecDeque::with_capacity(flows),
        }
    }

    /// Appends a flow that is in neither list to `new_flows`.
    #[inline]
    pub(crate) fn add_new(&mut self, flow: u32) {
        self.new_flows.push_back(flow);
    }

    /// Returns the flow to serve, and whether it is in `new_flows`.
    #[inline]
    pub(crate) fn head(&self) -> Option<(u32, bool)> {
        match self.new_flows.front() {
            Some(&flow) => Some((flow, true)),
            None => self.old_flows.front().map(|&flow| (flow, false)),
        }
    }

    /// Moves the flow to serve to the end of `old_flows`.
    #[inline]
    pub(crate) fn move_to_old(&mut self) {
        if let Some(flow) = self.remove_head() {
            self.old_flows.push_back(flow);
        }
    }

    /// Retires the flow to serve, which is empty: moves it to the end of `old_flows` if `keep`, else removes it. Returns whether it is
    /// still listed. A new flow is kept, so that it cannot become new again at once and starve the others.
    #[inline]
    pub(crate) fn retire_head(&mut self, keep: bool) -> bool {
        if keep {
            self.move_to_old();
        } else {
            self.remove_head();
        }
        keep
    }

    /// Removes the flow to serve from its list.
    #[inline]
    fn remove_head(&mut self) -> Option<u32> {
        self.new_flows.pop_front().or_else(|| self.old_flows.pop_front())
    }

    /// Whether `old_flows` is empty.
    pub(crate) fn old_is_empty(&self) -> bool {
        self.old_flows.is_empty()
    }

    /// Flows in both lists.
    pub(crate) fn len(&self) -> usize {
        self.new_flows.len() + self.old_flows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_flows_are_served_before_old_flows() {
        let mut lists = FlowLists::new(4);
        assert_eq!(lists.head(), None);
        for flow in 0..3 {
            lists.add_new(flow);
        }
        assert_eq!(lists.head(), Some((0, true)));
        lists.move_to_old();
        lists.move_to_old();
        assert_eq!(lists.remove_head(), Some(2));
        assert_eq!(lists.head(), Some((0, false)));
        lists.move_to_old();
        assert_eq!(lists.head(), Some((1, false)));
        lists.add_new(3);
        assert_eq!((lists.head(), lists.len(), lists.old_is_empty()), (Some((3, true)), 3, false));
    }
}
