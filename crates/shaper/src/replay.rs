//! Trace replay: code that both backends share.

use std::borrow::Cow;

use ccbench_proto::plan::Link;
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::trace::{Cursor, Replay, StepSpan, Trace};
use ccbench_proto::units::Rate;
use ccbench_proto::wire;

use crate::ShaperError;

/// Maximum number of rows returned by one call.
const MAX_ROWS: usize = 100_000;

/// Returns `config` with the mean rate of its trace if it has a trace but no rate.
pub(crate) fn with_mean_rate(config: &LinkConfig) -> Cow<'_, LinkConfig> {
    let mean = match (&config.trace, config.plan.rate) {
        (Some(replay), None) => mean_rate(replay),
        _ => None,
    };
    match mean {
        None => Cow::Borrowed(config),
        rate => {
            let plan = Link { rate, ..config.plan.clone() };
            Cow::Owned(LinkConfig { plan, ..config.clone() })
        }
    }
}

/// Returns the mean rate. Rates below the floor count as the floor.
fn mean_rate(replay: &Replay) -> Option<Rate> {
    match (&*replay.trace, replay.plan.floor) {
        (Trace::Steps(steps), Some(floor)) => {
            let sum = steps.spans().try_fold(0_u128, |sum, (step, length_ns)| {
                let rate = step.rate?.max(floor);
                Some(sum + u128::from(rate.bits_per_sec()) * u128::from(length_ns))
            })?;
            let mean = sum / u128::from(steps.length_ns.max(1));
            Some(Rate::from_bits_per_sec(mean as u64))
        }
        (trace, _) => trace.mean_rate(),
    }
}

/// The trace rows that a userspace link has applied. They are computed from the trace, because a userspace link applies each row exactly
/// when it is due.
#[derive(Debug)]
pub(crate) struct PlayedRows {
    /// Position of the last returned row.
    cursor: Option<Cursor>,
    /// When the trace began. A trace of delivery opportunities has a single row, at this time.
    begin_ns: Option<u64>,
    mean: Option<Rate>,
    rows: u64,
}

impl PlayedRows {
    /// Creates it for a trace that has not begun.
    pub(crate) fn new(replay: &Replay) -> Self {
        let cursor = Cursor::new(replay, u64::MAX);
        Self { cursor, begin_ns: None, mean: replay.trace.mean_rate(), rows: 0 }
    }

    /// Begins the trace at `at_ns`. Further calls have no effect.
    pub(crate) fn begin(&mut self, at_ns: u64) {
        if self.begin_ns.is_none() {
            self.begin_ns = Some(at_ns);
            if let Some(cursor) = &mut self.cursor {
                cursor.begin(at_ns);
            }
        }
    }

    /// Appends the rows that have become due since the last call, up to `now_ns`.
    pub(crate) fn rows(
        &mut self,
        now_ns: u64,
        names: (&str, &str),
        into: &mut Vec<wire::LinkChange>,
    ) {
        let Some(begin_ns) = self.begin_ns else { return };
        let Some(cursor) = &mut self.cursor else {
            if self.rows == 0 && begin_ns <= now_ns {
                self.rows = 1;
                let rate_bps = self.mean.map(Rate::bits_per_sec);
                let source = "trace: opportunities, at this mean".to_owned();
                into.push(wire::LinkChange { rate_bps, source, ..at(begin_ns, begin_ns, names) });
            }
            return;
        };
        for _ in 0..MAX_ROWS {
            if cursor.span().until_ns > now_ns || !cursor.advance() {
                return;
            }
            let span = cursor.span();
            self.rows += 1;
            into.push(change(&span, span.from_ns, names));
        }
    }

    /// Number of rows returned so far.
    pub(crate) fn count(&self) -> u64 {
        self.rows
    }
}

fn at(requested_at_ns: u64, applied_at_ns: u64, (link, iface): (&str, &str)) -> wire::LinkChange {
    wire::LinkChange {
        requested_at_ns,
        applied_at_ns,
        link: link.to_owned(),
        iface: iface.to_owned(),
        ..wire::LinkChange::default()
    }
}

/// Returns the row of a step that was applied at `applied_at_ns`. `names`: of the link and its interface.
fn change(span: &StepSpan, applied_at_ns: u64, names: (&str, &str)) -> wire::LinkChange {
    wire::LinkChange {
        rate_bps: span.rate.map(Rate::bits_per_sec),
        delay_us: span.delay_ns.map(|ns| ns / 1000),
        loss_ppm: span.loss.map(ccbench_proto::units::Ppm::get),
        source: source(span.row),
        ..at(span.from_ns, applied_at_ns, names)
    }
}

/// Returns the name of a change's trace row.
pub(crate) fn source(row: u32) -> String {
    match row {
        0 => "trace: its end".to_owned(),
        row => format!("trace row {row}"),
    }
}

/// Returns the error for a rate change on a link with a trace.
pub(crate) fn rate_change_with_trace(link: &str, backend: &'static str) -> ShaperError {
    ShaperError::Unsupported {
        link: link.to_owned(),
        backend,
        what: "a rate change on a link with a trace".to_owned(),
        hint: "write the change into the trace, or leave one of the two out".to_owned(),
    }
}
