//! Tables of socket states that eBPF programs collect. One `acks` message holds many rows in columnar form: a column has
//! one value per row, one value for all rows, or none.

use ccbench_proto::wire::{self, AckHook, Role, Side, TcpEventKind};
use polars::prelude::*;

use super::super::cells::{Cells, Enum, Narrow, Num, Opt, OptBool, Text, TimeAxis};
use super::keys::{Columns, Keys, Origin, RowTime};

/// A column that receives the rows of a batch at once. The kernel's value for "not set" is stored as null.
struct BatchColumn<T: PolarsNumericType> {
    cells: Opt<T>,
    none: Option<T::Native>,
}

impl<T: PolarsNumericType> BatchColumn<T>
where
    T::Native: PartialEq,
    ChunkedArray<T>: IntoColumn,
{
    fn new(name: &'static str, none: Option<T::Native>) -> Self {
        Self { cells: Opt::new(name), none }
    }

    fn put(&mut self, values: &[T::Native], rows: usize, axis: &TimeAxis) {
        let none = self.none;
        let known = |value: &T::Native| (Some(*value) != none).then_some(*value);
        match values {
            [one] => (0..rows).for_each(|_| self.cells.put(known(one), axis)),
            // ccbench agents send no column that is shorter than its batch. Missing values are stored as null.
            _ => (0..rows).for_each(|row| self.cells.put(values.get(row).and_then(known), axis)),
        }
    }
}

/// Defines `acks`. Columns with one value per batch are fields of the struct below; the others are macro arguments.
macro_rules! batch {
    ($($field:ident: $kind:ty, $none:expr;)*) => {
        /// Columns of `acks`.
        pub(crate) struct AckColumns {
            keys: Keys,
            flow_id: Text,
            group: Text,
            side: Enum<Side>,
            role: Enum<Role>,
            cc: Text,
            cookie: Num<UInt64Type>,
            sport: Narrow<UInt16Type>,
            dport: Narrow<UInt16Type>,
            $($field: BatchColumn<$kind>,)*
            app_limited: OptBool,
        }

        impl Columns for AckColumns {
            type Row = wire::Acks;
            const TABLE: &'static str = "acks";
            const SORT: &'static [&'static str] = &["flow_id", "side", "t_ns"];
            #[cfg(test)]
            const FIELDS: &'static [(&'static str, &'static str)] = &[
                ("flow_id", "flow_id"), ("group", "group"), ("side", "side"), ("role", "role"), ("cc", "cc"),
                ("cookie", "cookie"), ("sport", "sport"), ("dport", "dport"),
                $((stringify!($field), stringify!($field)),)* ("app_limited", "app_limited"),
            ];

            fn new() -> Self {
                Self {
                    keys: Keys::new(),
                    flow_id: Text::new("flow_id"),
                    group: Text::new("group"),
                    side: Enum::new("side"),
                    role: Enum::new("role"),
                    cc: Text::new("cc"),
                    cookie: Num::new("cookie"),
                    sport: Narrow::new("sport"),
                    dport: Narrow::new("dport"),
                    $($field: BatchColumn::new(stringify!($field), $none),)*
                    app_limited: OptBool::new("app_limited"),
                }
            }

            fn put(&mut self, origin: &Origin<'_>, batch: wire::Acks) -> usize {
                let (rows, axis) = (batch.at_ns.len(), origin.axis);
                for (row, &at_ns) in batch.at_ns.iter().enumerate() {
                    self.keys.put(origin, &RowTime::from(at_ns));
                    self.cookie.put(batch.cookie, axis);
                    self.sport.put(batch.sport, axis);
                    self.dport.put(batch.dport, axis);
                    let limited = batch.app_limited.get(row).or(batch.app_limited.first());
                    self.app_limited.put(limited.copied(), axis);
                }
                self.flow_id.repeat(&batch.flow_id, rows);
                self.group.repeat(&batch.group, rows);
                self.side.repeat(batch.side, rows);
                self.role.repeat(batch.role, rows);
                self.cc.repeat(&batch.cc, rows);
                $(self.$field.put(&batch.$field, rows, axis);)*
                rows
            }

            fn take(&mut self) -> PolarsResult<DataFrame> {
                let mut columns = self.keys.take();
                columns.extend([
                    self.flow_id.take(), self.group.take(), self.side.take(), self.role.take(), self.cc.take(),
                    self.cookie.take(), self.sport.take(), self.dport.take(),
                ]);
                $(columns.push(self.$field.cells.take());)*
                columns.push(self.app_limited.take());
                DataFrame::new_infer_height(columns)
            }
        }
    };
}

batch! {
    segments: UInt64Type, None;
    lost_rows: UInt64Type, None;
    bytes_acked: UInt64Type, None;
    bytes_received: UInt64Type, None;
    bytes_sent: UInt64Type, None;
    bytes_retrans: UInt64Type, None;
    pacing_rate_bytes_per_s: UInt64Type, Some(u64::MAX);
    rtt_us: UInt32Type, None;
    rttvar_us: UInt32Type, None;
    min_rtt_us: UInt32Type, Some(u32::MAX);
    rto_us: UInt32Type, None;
    ato_us: UInt32Type, None;
    snd_cwnd_pkts: UInt32Type, None;
    snd_ssthresh_pkts: UInt32Type, Some(0x7fff_ffff);
    unacked_pkts: UInt32Type, None;
    sacked_pkts: UInt32Type, None;
    lost_pkts: UInt32Type, None;
    retrans_pkts: UInt32Type, None;
    reordering_pkts: UInt32Type, None;
    delivered_pkts: UInt32Type, None;
    delivered_ce_pkts: UInt32Type, None;
    rate_delivered_pkts: UInt32Type, None;
    rate_interval_us: UInt32Type, None;
    total_retrans_pkts: UInt32Type, None;
    segs_out_pkts: UInt32Type, None;
    segs_in_pkts: UInt32Type, None;
    data_segs_out_pkts: UInt32Type, None;
    data_segs_in_pkts: UInt32Type, None;
    notsent_bytes: UInt32Type, None;
    snd_wnd_bytes: UInt32Type, None;
    rcv_wnd_bytes: UInt32Type, None;
    rcv_ssthresh_bytes: UInt32Type, None;
    rcv_rtt_us: UInt32Type, None;
    rcv_space_bytes: UInt32Type, None;
    rcv_ooopack_pkts: UInt32Type, None;
    dsack_dups_pkts: UInt32Type, None;
    reord_seen: UInt32Type, None;
    pmtu_bytes: UInt32Type, None;
    snd_mss_bytes: UInt32Type, None;
    rcv_mss_bytes: UInt32Type, None;
    advmss_bytes: UInt32Type, None;
    rehash: UInt32Type, None;
    busy_us: UInt64Type, None;
    rwnd_limited_us: UInt64Type, None;
    sndbuf_limited_us: UInt64Type, None;
    total_rto: UInt32Type, None;
    total_rto_recoveries: UInt32Type, None;
    total_rto_time_ms: UInt32Type, None;
    received_ce_pkts: UInt32Type, None;
    delivered_e1_bytes: UInt32Type, None;
    delivered_e0_bytes: UInt32Type, None;
    delivered_ce_bytes: UInt32Type, None;
    received_e1_bytes: UInt32Type, None;
    received_e0_bytes: UInt32Type, None;
    received_ce_bytes: UInt32Type, None;
    accecn_fail_mode: UInt32Type, None;
    accecn_opt_seen: UInt32Type, None;
    ca_state: UInt32Type, None;
    retransmits: UInt32Type, None;
    backoff: UInt32Type, None;
    probes: UInt32Type, None;
    ecn_flags: UInt32Type, None;
}

table! { TcpEventColumns, "tcp_events", wire::TcpEvent, |row, _| row.at_ns.into(), ["flow_id", "side", "t_ns"], {
    flow_id: Text,
    group: Text,
    side: Enum<Side>,
    role: Enum<Role>,
    kind: Enum<TcpEventKind>,
    cookie: Num<UInt64Type>,
    sport: Narrow<UInt16Type>,
    dport: Narrow<UInt16Type>,
    cc: Text,
    count: Num<UInt32Type>,
    ca_state: Num<UInt32Type>,
    ca_state_before: Opt<UInt32Type>,
    snd_cwnd_pkts: Num<UInt32Type>,
    snd_ssthresh_pkts: Opt<UInt32Type>,
    rtt_us: Num<UInt32Type>,
    unacked_pkts: Num<UInt32Type>,
    lost_pkts: Num<UInt32Type>,
    total_retrans_pkts: Num<UInt32Type>,
} }

/// The mode in force as text; written with a dictionary.
pub(crate) struct ModeText(Text);

impl Cells for ModeText {
    type In = Option<wire::AckMode>;
    fn new(name: &'static str) -> Self {
        Self(Text::new(name))
    }
    fn put(&mut self, mode: Option<wire::AckMode>, axis: &TimeAxis) {
        self.0.put(mode.map_or(String::new(), |mode| mode.text()), axis);
    }
    fn take(&mut self) -> Column {
        self.0.take()
    }
}

table! { AckCountColumns, "ack_counts", wire::AckCount, |row, _| row.at_ns.into(), ["flow_id", "side"], {
    flow_id: Text,
    group: Text,
    side: Enum<Side>,
    role: Enum<Role>,
    cookie: Num<UInt64Type>,
    mode: ModeText,
    hook: Enum<AckHook>,
    segments: Num<UInt64Type>,
    rows: Num<UInt64Type>,
    lost_rows: Num<UInt64Type>,
    refused_rows: Num<UInt64Type>,
    events: Num<UInt64Type>,
    lost_events: Num<UInt64Type>,
    coalesced_segments: Num<UInt64Type>,
    missed_segments: Num<UInt64Type>,
    missed_events: Num<UInt64Type>,
} }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_has_one_row_per_timestamp_and_nulls_for_missing_values() {
        let axis = TimeAxis { t0_ns: 1_000, realtime_offset_ns: 0, drift_ppb: 0, phases: vec![] };
        let origin = Origin { point_id: 3, trial: 1, node: "src", axis: &axis };
        let batch = wire::Acks {
            flow_id: "a/0".into(),
            at_ns: vec![1_000, 2_000],
            snd_cwnd_pkts: vec![10, 11],
            snd_ssthresh_pkts: vec![0x7fff_ffff, 8],
            rtt_us: vec![5_000],
            app_limited: vec![true],
            ..Default::default()
        };
        let mut columns = AckColumns::new();
        assert_eq!(columns.put(&origin, batch), 2);
        let frame = columns.take().unwrap();
        let column = |name: &str| -> Vec<Option<u32>> {
            frame.column(name).unwrap().u32().unwrap().iter().collect()
        };
        assert_eq!(frame.height(), 2);
        assert_eq!(column("snd_cwnd_pkts"), [Some(10), Some(11)]);
        assert_eq!(column("snd_ssthresh_pkts"), [None, Some(8)]);
        assert_eq!(column("rtt_us"), [Some(5_000); 2]);
        assert_eq!(column("received_ce_pkts"), [None; 2]);
        let limited: Vec<_> = frame.column("app_limited").unwrap().bool().unwrap().iter().collect();
        assert_eq!(limited, [Some(true); 2]);
        assert_eq!(columns.take().unwrap().height(), 0);
    }
}
