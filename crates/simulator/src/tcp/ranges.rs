//! Disjoint ranges of sequence numbers: what a receiver holds out of order, and what its sender knows about that.

use crate::packet::SeqRange;

/// Ranges in ascending order, separated by gaps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(Vec<SeqRange>);

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the end of the last range.
    pub fn end(&self) -> Option<u64> {
        self.0.last().map(|range| range.end_seq)
    }

    /// Returns the range that contains this byte.
    pub fn containing(&self, at: u64) -> Option<SeqRange> {
        let index = self.0.partition_point(|range| range.end_seq <= at);
        self.0.get(index).copied().filter(|range| range.start_seq <= at)
    }

    /// Adds a range. Passes the parts of it that are new to `added`.
    pub fn insert(&mut self, range: SeqRange, mut added: impl FnMut(SeqRange)) {
        if range.start_seq >= range.end_seq {
            return;
        }
        let first = self.0.partition_point(|known| known.end_seq < range.start_seq);
        let (mut merged, mut at, mut last) = (range, range.start_seq, first);
        while let Some(known) = self.0.get(last).filter(|known| known.start_seq <= range.end_seq) {
            if known.start_seq > at {
                added(SeqRange { start_seq: at, end_seq: known.start_seq });
            }
            at = at.max(known.end_seq);
            merged.start_seq = merged.start_seq.min(known.start_seq);
            merged.end_seq = merged.end_seq.max(known.end_seq);
            last += 1;
        }
        if at < range.end_seq {
            added(SeqRange { start_seq: at, end_seq: range.end_seq });
        }
        if last == first + 1 {
            self.0[first] = merged;
        } else {
            self.0.splice(first..last, [merged]);
        }
    }

    /// Removes everything below `at`. Returns the number of bytes removed.
    pub fn remove_below(&mut self, at: u64) -> u64 {
        let gone = self.0.partition_point(|range| range.end_seq <= at);
        let whole: u64 = self.0.drain(..gone).map(|range| range.end_seq - range.start_seq).sum();
        let Some(first) = self.0.first_mut().filter(|first| first.start_seq < at) else {
            return whole;
        };
        let part = at - std::mem::replace(&mut first.start_seq, at);
        whole + part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(begin: u64, end: u64) -> SeqRange {
        SeqRange { start_seq: begin, end_seq: end }
    }

    #[test]
    fn insert_reports_only_new_ranges() {
        let mut ranges = Ranges::default();
        let mut insert = |begin, end| {
            let mut added = Vec::new();
            ranges.insert(range(begin, end), |part| added.push((part.start_seq, part.end_seq)));
            added
        };
        assert_eq!(insert(10, 20), [(10, 20)]);
        assert_eq!(insert(30, 40), [(30, 40)]);
        assert_eq!(insert(12, 18), []);
        assert_eq!(insert(5, 35), [(5, 10), (20, 30)]);
        assert_eq!(insert(40, 41), [(40, 41)]);
        assert_eq!(insert(7, 7), []);
        assert_eq!(ranges.0, [range(5, 41)]);
        assert_eq!(ranges.containing(40), Some(range(5, 41)));
        assert_eq!(ranges.containing(41), None);
        assert_eq!(ranges.remove_below(11), 6);
        assert_eq!(ranges.0, [range(11, 41)]);
        ranges.insert(range(50, 60), |_| {});
        assert_eq!((ranges.remove_below(45), ranges.remove_below(60)), (30, 10));
        assert!(ranges.is_empty());
    }
}
