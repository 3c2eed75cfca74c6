//! Fuzzes traces in every format.

use std::sync::Arc;

use ccbench_proto::plan::{OnEnd, TraceUse};
use ccbench_proto::trace::{
    self, Cursor, Format, MAX_DELAY_NS, MAX_LENGTH_NS, MAX_RATE, MAX_ROWS, OpportunityCursor,
    Replay, Trace,
};

/// Longer traces are only checked for their limits, because all formats of a long trace take seconds.
const MAX_CHECKED_ROWS: usize = 1_000;
/// Steps of a cursor.
const MAX_STEPS: usize = 300;

/// Reads a text trace in the format that it appears to have, and in every other.
pub fn trace(data: &[u8]) {
    if let Ok(trace) = trace::parse("t.csv", data) {
        check(&trace);
    }
    for format in Format::ALL.into_iter().filter(|format| *format != Format::Netem) {
        match trace::parse_as("t", data, format) {
            Ok(trace) => check(&trace),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// A trace in JSON.
pub fn json(data: &[u8]) {
    // Millions of repetitions are allowed, but each takes seconds.
    let counts = data.windows(8).enumerate().filter(|(_, word)| word == b"\"count\":");
    let digits = |at: usize| data[at + 8..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    if counts.map(|(at, _)| digits(at)).max().unwrap_or(0) > 5 {
        return;
    }
    if let Ok(trace) = trace::parse_as("t.json", data, Format::Netem) {
        check(&trace);
    }
}

fn check(trace: &Trace) {
    limits(trace);
    let summary = trace.summary();
    assert_eq!(trace.rates().iter().map(|(_, ns)| ns).sum::<u64>(), trace.length_ns());
    assert!(summary.max_rate >= trace.mean_rate() || trace.mean_rate().is_none(), "{summary:?}");
    if trace.rows() > MAX_CHECKED_ROWS {
        return;
    }
    // One line per packet.
    let bits = trace.mean_rate().map_or(0, |rate| u128::from(rate.bits_per_sec()));
    let packets = bits * u128::from(trace.length_ns()) / 12_000_000_000_000;
    let many = packets > 20_000;
    for format in Format::ALL.into_iter().filter(|format| !many || *format != Format::Mahimahi) {
        let Ok(text) = trace::write(trace, format) else { continue };
        let again = trace::parse_as("t", text.as_bytes(), format)
            .unwrap_or_else(|error| panic!("written as {format:?}: {error}"));
        limits(&again);
        // The first text may be rounded.
        let twice = trace::write(&again, format);
        assert_eq!(twice.as_ref(), Ok(&text), "{format:?}");
    }
    for on_end in [OnEnd::Hold, OnEnd::Loop, OnEnd::Stop] {
        replay(trace, on_end);
    }
}

/// Checks what holds for every valid trace.
fn limits(trace: &Trace) {
    assert!((1..=MAX_ROWS).contains(&trace.rows()));
    assert!((1..=MAX_LENGTH_NS).contains(&trace.length_ns()));
    match trace {
        Trace::Steps(steps) => {
            assert_eq!(steps.steps[0].at_ns, 0);
            assert!(steps.steps.is_sorted_by(|a, b| a.at_ns < b.at_ns));
            assert!(steps.steps.iter().all(|step| step.at_ns < steps.length_ns));
            assert!(steps.steps.iter().all(|step| step.rate.is_none_or(|rate| rate <= MAX_RATE)));
            let delays = steps.steps.iter().filter_map(|step| step.delay_ns);
            assert!(delays.max().unwrap_or(0) <= MAX_DELAY_NS);
        }
        Trace::Opportunities(all) => {
            assert!(all.at_ns.is_sorted() && all.at_ns.last() <= Some(&all.length_ns));
        }
    }
}

/// Replays the trace for some steps.
fn replay(trace: &Trace, on_end: OnEnd) {
    let plan = TraceUse { on_end, ..TraceUse::new("t") };
    let replay = Replay { trace: Arc::new(trace.clone()), plan };
    if let Some(mut cursor) = Cursor::new(&replay, 1_000) {
        for _ in 0..MAX_STEPS {
            let _ = cursor.span();
            if !cursor.advance() {
                break;
            }
        }
        cursor.seek(u64::MAX / 2);
        let _ = cursor.span();
    }
    if let Some(mut cursor) = OpportunityCursor::new(&replay, 1_000) {
        let mut before = 0;
        for _ in 0..MAX_STEPS {
            assert!(cursor.at_ns() >= before);
            before = cursor.at_ns();
            cursor.advance();
        }
        cursor.seek(before.saturating_add(trace.length_ns()));
    }
}
