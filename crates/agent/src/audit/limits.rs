//! Limits the log lines of calls. Otherwise, a client with few permissions or none could fill the log until older lines are gone.
//! Pure: the time is an argument.

use std::collections::BTreeMap;

use ccbench_proto::scope::Scope;

use super::{ACCEPTED, Call};

/// Limit of lines within [`WINDOW_NS`] for one certificate's refused calls, and for its accepted ones of each RPC with the scope `read`.
pub(super) const MAX_LINES: u32 = 60;
/// The same for its accepted calls of every other RPC: a run calls most of them once in a trial.
pub(super) const MAX_RUN_LINES: u32 = 600;
/// One hour.
pub(super) const WINDOW_NS: u64 = 3_600_000_000_000;

/// The calls that share a limit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Calls {
    pub(super) identity: String,
    pub(super) serial: String,
    /// The RPC of accepted calls. `None`: refused and failed calls, of all RPCs.
    pub(super) accepted: Option<&'static str>,
}

/// Calls without a line of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unlogged {
    pub(super) of: Calls,
    pub(super) calls: u64,
}

#[derive(Debug)]
struct Window {
    /// Start of the window, on CLOCK_REALTIME.
    begin_ns: i64,
    lines: u32,
    unlogged: u64,
}

/// The windows of calls that share a limit.
#[derive(Debug, Default)]
pub(super) struct Limits(BTreeMap<Calls, Window>);

impl Limits {
    /// Counts a call. Returns whether it gets its own line.
    pub(super) fn add(&mut self, call: &Call, now_ns: i64) -> bool {
        let accepted = (call.result == ACCEPTED).then_some(call.rpc);
        let max_lines = match accepted {
            Some(_) if call.scope != Scope::Read.name() => MAX_RUN_LINES,
            _ => MAX_LINES,
        };
        let (identity, serial) = (call.identity.clone(), call.serial.clone());
        let new = Window { begin_ns: now_ns, lines: 0, unlogged: 0 };
        let window = self.0.entry(Calls { identity, serial, accepted }).or_insert(new);
        if window.lines < max_lines {
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
        self.0.retain(|of, window| {
            if is_over(window) {
                ended.extend(unlogged(of, window));
            }
            !is_over(window)
        });
        ended
    }

    /// Returns the calls that all windows have left out so far. The windows continue.
    pub(super) fn take(&mut self) -> Vec<Unlogged> {
        self.0.iter_mut().filter_map(|(of, window)| unlogged(of, window)).collect()
    }

    /// Whether [`Self::take`] would return anything.
    pub(super) fn has_unlogged(&self) -> bool {
        self.0.values().any(|window| window.unlogged > 0)
    }
}

fn unlogged(of: &Calls, window: &mut Window) -> Option<Unlogged> {
    let calls = std::mem::take(&mut window.unlogged);
    (calls > 0).then(|| Unlogged { of: of.clone(), calls })
}

#[cfg(test)]
mod tests {
    use ccbench_proto::scope::Rpc;

    use super::*;

    fn call(serial: &str, rpc: Rpc, result: &str) -> Call {
        Call {
            rpc: rpc.name(),
            scope: rpc.scope().name(),
            identity: "alice".to_owned(),
            serial: serial.to_owned(),
            peer: None,
            result: result.to_owned(),
            message: String::new(),
            run_id: String::new(),
        }
    }

    #[test]
    fn refusals_beyond_the_limit_are_counted_for_each_client() {
        const HOUR_NS: i64 = WINDOW_NS.cast_signed();
        let mut limits = Limits::default();
        let refused = |serial| call(serial, Rpc::Run, "PermissionDenied");
        for _ in 0..MAX_LINES {
            assert!(limits.add(&refused("4a"), 0));
        }
        assert!(!limits.has_unlogged());
        for at_ns in 1..4 {
            assert!(!limits.add(&refused("4a"), at_ns));
        }
        assert!(limits.add(&refused("4b"), 4), "another certificate");
        assert!(limits.end(HOUR_NS - 1).is_empty());
        let of = Calls { identity: "alice".into(), serial: "4a".into(), accepted: None };
        let unlogged = |calls| vec![Unlogged { of: of.clone(), calls }];
        assert_eq!(limits.take(), unlogged(3));
        assert!(limits.take().is_empty());
        assert!(!limits.add(&refused("4a"), 5), "its hour goes on");
        assert_eq!(limits.end(HOUR_NS), unlogged(1));
        assert!(limits.add(&refused("4a"), HOUR_NS));
        // The clock was set back by a day.
        assert!(limits.end(-24 * HOUR_NS).is_empty());
        assert!(limits.0.is_empty());
    }

    #[test]
    fn accepted_calls_have_a_limit_for_each_rpc() {
        let mut limits = Limits::default();
        for (rpc, max_lines) in [(Rpc::Describe, MAX_LINES), (Rpc::PutFile, MAX_RUN_LINES)] {
            let accepted = call("4a", rpc, ACCEPTED);
            assert!((0..max_lines).all(|_| limits.add(&accepted, 0)), "{accepted:?}");
            assert!(!limits.add(&accepted, 0), "{accepted:?}");
            assert!(limits.add(&call("4a", rpc, "PermissionDenied"), 0), "{accepted:?}");
        }
        assert!(limits.add(&call("4a", Rpc::Prepare, ACCEPTED), 0), "another RPC");
        assert!(limits.add(&call("4b", Rpc::Describe, ACCEPTED), 0), "another certificate");
        let counted = limits.take().into_iter().map(|one| (one.of.accepted, one.calls));
        let expected = [(Some("Describe"), 1), (Some("PutFile"), 1)];
        assert_eq!(counted.collect::<Vec<_>>(), expected);
    }
}
