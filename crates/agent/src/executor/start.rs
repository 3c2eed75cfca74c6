//! When a trial may start.

use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::wire;

use crate::error::AgentError;
use crate::event::event;

/// How far a trial's start may be in the past, and how far in the future.
const LATEST_START_NS: u64 = 1_000_000_000;
const EARLIEST_START_NS: u64 = 600_000_000_000;

/// Refuses a start far from now: it comes from another machine's clock.
pub(super) fn check_start(start_at_ns: u64, now_ns: u64) -> Result<(), AgentError> {
    let earliest = now_ns.saturating_sub(LATEST_START_NS);
    if (earliest..now_ns + EARLIEST_START_NS).contains(&start_at_ns) {
        return Ok(());
    }
    let off_s = (start_at_ns as f64 - now_ns as f64) / 1e9;
    Err(AgentError::Request {
        field: "start_at_ns",
        reason: format!(
            "it is {off_s:.3} s from now on this node's CLOCK_MONOTONIC; read this clock with the RPC Clock, and start between \
             1 s before and 10 min after now"
        ),
    })
}

/// Reports a start that has passed: flows and changes of the plan begin late on this node.
pub(super) fn start_late(start_at_ns: u64, now_ns: u64) -> Option<wire::Event> {
    let late_ns = now_ns.checked_sub(start_at_ns)?;
    let message = format!(
        "the request to start arrived {:.3} ms after the start; the control network or a machine is too slow",
        late_ns as f64 / 1e6
    );
    Some(event(Kind::StartLate(NoData {}), "start", message))
}
