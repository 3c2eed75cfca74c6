//! Limits the log lines of refused and failed calls. Otherwise, a client without any permission could fill the log
//! until older lines are gone. Pure: the time is an argument.

use std::collections::BTreeMap;

/// Limit of lines for one certificate's refused calls within [`WINDOW_NS`].
pub(super) const MAX_LINES: u32 = 60;
/// One hour.
pub(super) const WINDOW_NS: u64 = 3_600_000_000_000;

/// Refused calls without a line of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unlogged {
    pub(super) identity: String,
    pub(super) serial: String,
    pub(super) calls: u64,
}

#[derive(Debug)]
struct Window {
    /// Start of the window, on CLOCK_REALTIME.
    begin_ns: i64,
    lines: u32,
    unlogged: u64,
}

/// Refused or failed calls, by the client's name and serial number.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<(String, String), Window>);

impl Refusals {
    /// Counts a call. Returns whether it gets its own line.
    pub(super) fn add(&mut self, identity: &str, serial: &str, now_ns: i64) -> bool {
        let key = (identity.to_owned(), serial.to_owned());
        let new = Window { begin_ns: now_ns, lines: 0, unlogged: 0 };
        let window = self.0.entry(key).or_insert(new);
        if window.lines < MAX_LINES {
            window.lines += 1;
            return true;
        }
        window.unlogged += 1;
        false
    }

    /// Ends the windows that are over, or that a clock step has invalidated. Returns the calls that they left out.
    pub(super) fn end(&mut self, now_ns: i64) -> Vec<Unlogged> {
        let is_over = |window: &Window| window.begin_ns.abs_diff(now_ns) >= WINDOW_NS;
        let mut ended = Vec::new();
        self.0.retain(|key, window| {
            if is_over(window) {
                ended.extend(unlogged(key, window));
            }
            !is_over(window)
        });
        ended
    }

    /// Returns the calls that all windows have left out so far. The windows continue.
    pub(super) fn take(&mut self) -> Vec<Unlogged> {
        self.0.iter_mut().filter_map(|(key, window)| unlogged(key, window)).collect()
    }

    /// Whether [`Self::take`] would return anything.
    pub(super) fn has_unlogged(&self) -> bool {
        self.0.values().any(|window| window.unlogged > 0)
    }
}

fn unlogged((identity, serial): &(String, String), window: &mut Window) -> Option<Unlogged> {
    let calls = std::mem::take(&mut window.unlogged);
    let (identity, serial) = (identity.clone(), serial.clone());
    (calls > 0).then_some(Unlogged { identity, serial, calls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_beyond_the_limit_are_counted_for_each_client() {
        const HOUR_NS: i64 = WINDOW_NS.cast_signed();
        let mut refusals = Refusals::default();
        for _ in 0..MAX_LINES {
            assert!(refusals.add("alice", "4a", 0));
        }
        assert!(!refusals.has_unlogged());
        for at_ns in 1..4 {
            assert!(!refusals.add("alice", "4a", at_ns));
        }
        assert!(refusals.add("alice", "4b", 4), "another certificate");
        assert!(refusals.end(HOUR_NS - 1).is_empty());
        let unlogged =
            |calls| vec![Unlogged { identity: "alice".to_owned(), serial: "4a".to_owned(), calls }];
        assert_eq!(refusals.take(), unlogged(3));
        assert!(refusals.take().is_empty());
        assert!(!refusals.add("alice", "4a", 5), "its hour goes on");
        assert_eq!(refusals.end(HOUR_NS), unlogged(1));
        assert!(refusals.add("alice", "4a", HOUR_NS));
        // The clock was set back by a day.
        assert!(refusals.end(-24 * HOUR_NS).is_empty());
        assert!(refusals.0.is_empty());
    }
}
