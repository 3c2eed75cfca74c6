//! Finds iperf3's time zero on CLOCK_MONOTONIC, which iperf3 does not report (ccbench's own generator does).
//!
//! An interrupted end closes its last interval at the interrupt, and its report gives the end of that interval in
//! seconds since zero.
//!
//! For any other end, zero is later than the connect of its last data connection (they connect one after the other). A
//! sample gives the bytes that the application had written (or the kernel had received) at an instant; the report gives
//! the bytes at the end of each interval. So each sample lies between the ends of two intervals, which gives a range
//! for zero. The estimate lies where most of these ranges overlap: it is the median of the interpolated values there.
//! The error is less than an interval, and about a millisecond if bytes flow evenly. If too few samples match, zero is
//! about when the last connection was ready. With `--json-stream` (3.17) a row's time is when its line was read.

use super::FlowRun;
use crate::executor::samples::{SocketHistories, SocketHistory};
use crate::flow::FlowEndpoint;
use ccbench_proto::tools::iperf3::Report;

/// With fewer samples, one outlier would decide.
const MIN_MATCHES: usize = 3;
/// iperf3's cookie, which a client writes to each data connection before the test.
const COOKIE_BYTES: u64 = 37;

/// Returns iperf3's time zero on CLOCK_MONOTONIC.
pub fn zero_ns(ran: &FlowRun<'_>, report: &Report, seen: &SocketHistories) -> u64 {
    let launched_ns = match ran.end {
        FlowEndpoint::Client => ran.launched_at_ns,
        // The server has been listening since long before.
        FlowEndpoint::Server => ran.start_at_ns + ran.task.start.nanos(),
    };
    if let Some(zero_ns) = report.zero_ns {
        return zero_ns;
    }
    if let Some(zero_ns) = interrupted_zero_ns(ran, report) {
        return zero_ns.max(launched_ns);
    }
    let Some((_, last)) = ran.sockets(seen).max_by_key(|(_, s)| s.first_at_ns) else {
        return launched_ns;
    };
    let not_before_ns = last.not_before_ns.max(launched_ns);
    let spans: Vec<Span> =
        ran.sockets(seen).flat_map(|(stream, s)| spans(ran, report, stream, s)).collect();
    if spans.len() >= MIN_MATCHES {
        return common_ns(&spans).max(not_before_ns);
    }
    ready_ns(last, not_before_ns, ran.end == FlowEndpoint::Client)
}

fn interrupted_zero_ns(ran: &FlowRun<'_>, report: &Report) -> Option<u64> {
    report.error.as_deref().filter(|error| error.starts_with("interrupt"))?;
    let end_s = report.totals.values().map(|t| t.end_s).reduce(f64::max).filter(|s| *s > 0.0)?;
    ran.interrupted_at_ns?.checked_sub((end_s * 1e9) as u64)
}

/// The range for time zero that follows from one sample.
#[derive(Debug, Clone, Copy)]
struct Span {
    from_ns: u64,
    to_ns: u64,
    /// Time zero by interpolation; exact if bytes flowed evenly.
    interpolated_ns: Option<u64>,
}

fn spans(ran: &FlowRun<'_>, report: &Report, stream: u32, seen: &SocketHistory) -> Vec<Span> {
    let mut ends = vec![(0.0, 0.0)];
    let mut total = 0.0;
    for i in report.intervals.iter().filter(|i| i.stream == stream) {
        total += i.values.bytes;
        ends.push((i.values.end, total));
    }
    let cookie = if ran.task.plan.reverse { 0 } else { COOKIE_BYTES };
    let points = seen.points.iter().filter(|(_, bytes)| *bytes > COOKIE_BYTES);
    points.filter_map(|&(at_ns, bytes)| span(&ends, at_ns, (bytes - cookie) as f64)).collect()
}

/// Returns the range for one sample. `ends`: seconds and bytes at the end of each interval, from (0, 0).
fn span(ends: &[(f64, f64)], at_ns: u64, bytes: f64) -> Option<Span> {
    let before = ends.iter().rposition(|end| end.1 < bytes)?;
    let after = before + ends[before..].iter().position(|end| end.1 > bytes)?;
    let zero = |elapsed_s: f64| at_ns.saturating_sub((elapsed_s.max(0.0) * 1e9) as u64);
    let ((from_s, from), (to_s, to)) = (ends[before], ends[after]);
    let elapsed_s = match after - before {
        1 => Some(from_s + (to_s - from_s) * (bytes - from) / (to - from)),
        // Exactly at the boundary of the two intervals.
        2 => Some(ends[before + 1].0),
        // Nothing flowed for whole intervals.
        _ => None,
    };
    Some(Span { from_ns: zero(to_s), to_ns: zero(from_s), interpolated_ns: elapsed_s.map(zero) })
}

/// Returns time zero from the range in which most spans overlap.
fn common_ns(spans: &[Span]) -> u64 {
    let opens = spans.iter().map(|span| (span.from_ns, 1));
    let closes = spans.iter().map(|span| (span.to_ns, -1));
    let mut edges: Vec<(u64, i64)> = opens.chain(closes).collect();
    // A span that ends where another begins does not overlap it.
    edges.sort_unstable();
    let (mut open, mut most, mut best) = (0, 0, (0, 0));
    for pair in edges.windows(2) {
        open += pair[0].1;
        let wide = pair[1].0 - pair[0].0;
        if wide > 0 && open > most {
            (most, best) = (open, (pair[0].0, pair[1].0));
        }
    }
    let within = |zero: &u64| (best.0..=best.1).contains(zero);
    let mut interpolated: Vec<u64> =
        spans.iter().filter_map(|s| s.interpolated_ns).filter(within).collect();
    interpolated.sort_unstable();
    if interpolated.len() >= MIN_MATCHES {
        interpolated[interpolated.len() / 2]
    } else {
        best.0.midpoint(best.1)
    }
}

/// Returns when the last connection was ready for the test.
fn ready_ns(last: &SocketHistory, not_before_ns: u64, client: bool) -> u64 {
    let low = not_before_ns.min(last.first_at_ns);
    // A client starts one round trip after it wrote its last cookie.
    let rtt_ns = if client { u64::from(last.first_min_rtt_us.unwrap_or(0)) * 1000 } else { 0 };
    let ready = match last.first_busy_us {
        Some(busy_us) if busy_us > 0 => {
            (last.first_at_ns + rtt_ns).saturating_sub(busy_us.saturating_mul(1000))
        }
        _ => low.midpoint(last.first_at_ns) + rtt_ns,
    };
    ready.clamp(low, last.first_at_ns + rtt_ns)
}
