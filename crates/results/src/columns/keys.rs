//! The columns that every table begins with, and what every table's columns can do.

use polars::prelude::*;

use super::super::cells::{Axis, Cells, Num, Opt, OptText, Text};

/// The columns that every table begins with.
pub(super) struct Keys {
    point_id: Num<UInt32Type>,
    trial: Num<UInt16Type>,
    node: Text,
    t_ns: Opt<Int64Type>,
    t_s: Opt<Float64Type>,
    phase: OptText,
}

/// Names of the key columns, in order.
pub const KEYS: [&str; 6] = ["point_id", "trial", "node", "t_ns", "t_s", "phase"];

/// Which trial and node a row belongs to.
pub(crate) struct Origin<'a> {
    pub(crate) point_id: u32,
    pub(crate) trial: u16,
    pub(crate) node: &'a str,
    pub(crate) axis: &'a Axis,
}

/// A row's place on the node's clock.
pub(super) struct When {
    /// Becomes `t_ns` and `t_s`.
    pub(super) at_ns: Option<u64>,
    /// Decides the phase.
    pub(super) phase_at_ns: Option<u64>,
}

impl From<u64> for When {
    fn from(at_ns: u64) -> Self {
        // Protobuf's default: the row has no instant.
        let at_ns = (at_ns > 0).then_some(at_ns);
        Self { at_ns, phase_at_ns: at_ns }
    }
}

impl Keys {
    pub(super) fn new() -> Self {
        let [point_id, trial, node, t_ns, t_s, phase] = KEYS;
        Self {
            point_id: Num::new(point_id),
            trial: Num::new(trial),
            node: Text::new(node),
            t_ns: Opt::new(t_ns),
            t_s: Opt::new(t_s),
            phase: OptText::new(phase),
        }
    }

    pub(super) fn put(&mut self, origin: &Origin<'_>, when: &When) {
        let axis = origin.axis;
        self.point_id.put(origin.point_id, axis);
        self.trial.put(origin.trial, axis);
        self.node.repeat(origin.node, 1);
        self.t_ns.put(when.at_ns.map(|at| axis.utc_ns(at)), axis);
        self.t_s.put(when.at_ns.map(|at| axis.seconds(at)), axis);
        let phase = when.phase_at_ns.and_then(|at| axis.phase(at));
        self.phase.put_str(phase);
    }

    pub(super) fn take(&mut self) -> Vec<Column> {
        vec![
            self.point_id.take(),
            self.trial.take(),
            self.node.take(),
            self.t_ns.take(),
            self.t_s.take(),
            self.phase.take(),
        ]
    }
}

/// Rows of one table, column by column.
pub(crate) trait Columns: Sized {
    /// The row's message.
    type Row;
    /// The table's name, and its directory's.
    const TABLE: &'static str;
    /// What the rows of a row group are sorted by.
    const SORT: &'static [&'static str];
    /// Field of the message and name of its column; the keys are not among them.
    #[cfg(test)]
    const FIELDS: &'static [(&'static str, &'static str)];
    /// Empty.
    fn new() -> Self;
    /// What one message holds more: how many rows.
    fn put(&mut self, origin: &Origin<'_>, row: Self::Row) -> usize;
    /// The rows so far; starts anew.
    fn take(&mut self) -> PolarsResult<DataFrame>;
}
