//! The key columns of every table, and the trait that every table implements.

use polars::prelude::*;

use super::super::cells::{Cells, Num, Opt, OptText, Text, TimeAxis};

/// The key columns of every table.
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

/// The trial and the node that a row belongs to.
pub(crate) struct Origin<'a> {
    pub(crate) point_id: u32,
    pub(crate) trial: u16,
    pub(crate) node: &'a str,
    pub(crate) axis: &'a TimeAxis,
}

/// The time of a row on the node's clock.
pub(super) struct RowTime {
    /// Time in the columns `t_ns` and `t_s`.
    pub(super) at_ns: Option<u64>,
    /// Time that determines the phase.
    pub(super) phase_at_ns: Option<u64>,
}

impl From<u64> for RowTime {
    fn from(at_ns: u64) -> Self {
        // 0 is protobuf's default: the row has no time.
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

    pub(super) fn put(&mut self, origin: &Origin<'_>, when: &RowTime) {
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

/// The column builders of a table.
pub(crate) trait Columns: Sized {
    /// The row message.
    type Row;
    /// Name of the table and of its directory.
    const TABLE: &'static str;
    /// Sort keys of the rows of a row group.
    const SORT: &'static [&'static str];
    /// Message field and column name, without the key columns.
    #[cfg(test)]
    const FIELDS: &'static [(&'static str, &'static str)];
    /// A table without rows.
    fn new() -> Self;
    /// Appends the rows of one message and returns their number.
    fn put(&mut self, origin: &Origin<'_>, row: Self::Row) -> usize;
    /// Returns the rows and starts an empty table.
    fn take(&mut self) -> PolarsResult<DataFrame>;
}
