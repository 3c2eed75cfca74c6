//! The columns of every table.
//!
//! Each table has a row message in `agent.proto`, and its columns have the names of the message's fields. Times of a node's clock are the
//! exception: `at_ns` is stored in the key columns `t_ns` and `t_s`, and a field `X_at_ns` in the column `X_t_ns`. `t_ns` columns are in
//! nanoseconds since 1970 on the controller's clock. A test checks with the descriptor set that every field has a column. docs/results.md
//! says what each column means. Readers accept the names that columns had in earlier versions.
//!
//! The first columns of every table are the same keys: `point_id` u32, `trial` u16, `node`, `t_ns` i64 (UTC, ns since 1970), `t_s` f64
//! (seconds since the start of the trial on the node's own clock), `phase` (null before the first phase and after the last). The `t_ns` of
//! an interval is its end; its phase is the one that contains its midpoint.

use ccbench_proto::wire::{self, PacketFate, ProbeKind, Role, SampleSource, Side, TimingKind};
use polars::prelude::*;

use super::cells::{
    Blob, Bool, Cells, Enum, Narrow, NonEmptyText, Num, Opt, OptBool, Text, TimeAxis, UtcNs,
};

mod keys;
mod renamed;

pub use keys::KEYS;
pub(crate) use keys::{Columns, Origin};
use keys::{Keys, RowTime};
pub(crate) use renamed::RenamedColumns;

/// Returns the column name of a field: the field's name, or the name after `as`.
macro_rules! column {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $column:ident) => {
        stringify!($column)
    };
}

/// Defines one table: row message, time of a row, sort keys and columns.
macro_rules! table {
    ($columns:ident, $table:literal, $row:ty, $when:expr, $sort:expr,
     { $($field:ident $(as $column:ident)? : $cells:ty,)* }) => {
        #[doc = concat!("Columns of `", $table, "`.")]
        pub(crate) struct $columns { keys: Keys, $($field: $cells,)* }

        impl Columns for $columns {
            type Row = $row;
            const TABLE: &'static str = $table;
            const SORT: &'static [&'static str] = &$sort;
            #[cfg(test)]
            const FIELDS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), column!($field $($column)?)),)*];

            fn new() -> Self {
                Self { keys: Keys::new(), $($field: <$cells>::new(column!($field $($column)?)),)* }
            }

            fn put(&mut self, origin: &Origin<'_>, row: $row) -> usize {
                let when: fn(&$row, &TimeAxis) -> RowTime = $when;
                self.keys.put(origin, &when(&row, origin.axis));
                $(self.$field.put(row.$field, origin.axis);)*
                1
            }

            fn take(&mut self) -> PolarsResult<DataFrame> {
                let mut columns = self.keys.take();
                $(columns.push(self.$field.take());)*
                DataFrame::new_infer_height(columns)
            }
        }
    };
}

// After the macros, because this module uses them.
mod acks;
pub(crate) use acks::{AckColumns, AckCountColumns, TcpEventColumns};

/// Returns the time of a flow's start; a flow that did not start has none.
fn flow_start(row: &wire::Flow, axis: &TimeAxis) -> RowTime {
    let at_ns = row.start_s.map(|s| axis.at(s));
    RowTime { at_ns, phase_at_ns: at_ns }
}

/// Returns the time and phase of an interval: its end, and the phase of its midpoint.
fn interval_midpoint(row: &wire::Interval, _: &TimeAxis) -> RowTime {
    let half_ns = (row.seconds.max(0.0) * 5e8) as u64;
    let RowTime { at_ns, .. } = row.at_ns.into();
    RowTime { at_ns, phase_at_ns: at_ns.map(|at_ns| at_ns.saturating_sub(half_ns)) }
}

/// How a node's clock maps to the controller's in a trial.
pub(crate) struct ClockRow {
    pub(crate) at_ns: u64,
    pub(crate) monotonic_t0_ns: u64,
    pub(crate) offset_ns: i64,
    pub(crate) drift_ppb: i64,
    pub(crate) error_bound_ns: u64,
    pub(crate) error_bound_after_ns: Option<u64>,
    pub(crate) rtt_ns: u64,
    pub(crate) source: String,
}

table! { FlowColumns, "flows", wire::Flow, flow_start, ["flow_id", "side"], {
    flow_id: Text,
    group: Text,
    node_src: Text,
    node_dst: Text,
    cc_requested: NonEmptyText,
    cc_actual: NonEmptyText,
    role: Enum<Role>,
    src_ip: Text,
    dst_ip: Text,
    sport: Narrow<UInt16Type>,
    dport: Narrow<UInt16Type>,
    cookie: Opt<UInt64Type>,
    start_s: Opt<Float64Type>,
    stop_s: Opt<Float64Type>,
    completed_s: Opt<Float64Type>,
    exit_code: Opt<Int32Type>,
    bytes: Num<UInt64Type>,
    side: Enum<Side>,
    tool: Text,
} }

table! { FlowSampleColumns, "flow_samples", wire::FlowSample, |row, _| row.at_ns.into(), ["flow_id", "side", "t_ns"], {
    flow_id: Text,
    group: Text,
    side: Enum<Side>,
    role: Enum<Role>,
    sample_src: Enum<SampleSource>,
    gap_ns: Num<UInt64Type>,
    cc: Text,
    cookie: Opt<UInt64Type>,
    sport: Narrow<UInt16Type>,
    dport: Narrow<UInt16Type>,
    state: Opt<UInt32Type>,
    ca_state: Opt<UInt32Type>,
    retransmits: Opt<UInt32Type>,
    probes: Opt<UInt32Type>,
    backoff: Opt<UInt32Type>,
    options: Opt<UInt32Type>,
    snd_wscale: Opt<UInt32Type>,
    rcv_wscale: Opt<UInt32Type>,
    app_limited: OptBool,
    fastopen_client_fail: Opt<UInt32Type>,
    rto_us: Opt<UInt32Type>,
    ato_us: Opt<UInt32Type>,
    snd_mss_bytes: Opt<UInt32Type>,
    rcv_mss_bytes: Opt<UInt32Type>,
    unacked_pkts: Opt<UInt32Type>,
    sacked_pkts: Opt<UInt32Type>,
    lost_pkts: Opt<UInt32Type>,
    retrans_pkts: Opt<UInt32Type>,
    fackets_pkts: Opt<UInt32Type>,
    last_data_sent_ms: Opt<UInt32Type>,
    last_data_recv_ms: Opt<UInt32Type>,
    last_ack_recv_ms: Opt<UInt32Type>,
    pmtu_bytes: Opt<UInt32Type>,
    rcv_ssthresh_bytes: Opt<UInt32Type>,
    rtt_us: Opt<UInt32Type>,
    rttvar_us: Opt<UInt32Type>,
    snd_ssthresh_pkts: Opt<UInt32Type>,
    snd_cwnd_pkts: Opt<UInt32Type>,
    advmss_bytes: Opt<UInt32Type>,
    reordering_pkts: Opt<UInt32Type>,
    rcv_rtt_us: Opt<UInt32Type>,
    rcv_space_bytes: Opt<UInt32Type>,
    total_retrans_pkts: Opt<UInt32Type>,
    pacing_rate_bytes_per_s: Opt<UInt64Type>,
    max_pacing_rate_bytes_per_s: Opt<UInt64Type>,
    bytes_acked: Opt<UInt64Type>,
    bytes_received: Opt<UInt64Type>,
    segs_out_pkts: Opt<UInt32Type>,
    segs_in_pkts: Opt<UInt32Type>,
    notsent_bytes: Opt<UInt32Type>,
    min_rtt_us: Opt<UInt32Type>,
    data_segs_in_pkts: Opt<UInt32Type>,
    data_segs_out_pkts: Opt<UInt32Type>,
    delivery_rate_bytes_per_s: Opt<UInt64Type>,
    busy_us: Opt<UInt64Type>,
    rwnd_limited_us: Opt<UInt64Type>,
    sndbuf_limited_us: Opt<UInt64Type>,
    delivered_pkts: Opt<UInt32Type>,
    delivered_ce_pkts: Opt<UInt32Type>,
    bytes_sent: Opt<UInt64Type>,
    bytes_retrans: Opt<UInt64Type>,
    dsack_dups_pkts: Opt<UInt32Type>,
    reord_seen: Opt<UInt32Type>,
    rcv_ooopack_pkts: Opt<UInt32Type>,
    snd_wnd_bytes: Opt<UInt32Type>,
    rcv_wnd_bytes: Opt<UInt32Type>,
    rehash: Opt<UInt32Type>,
    total_rto: Opt<UInt32Type>,
    total_rto_recoveries: Opt<UInt32Type>,
    total_rto_time_ms: Opt<UInt32Type>,
    received_ce_pkts: Opt<UInt32Type>,
    delivered_e1_bytes: Opt<UInt32Type>,
    delivered_e0_bytes: Opt<UInt32Type>,
    delivered_ce_bytes: Opt<UInt32Type>,
    received_e1_bytes: Opt<UInt32Type>,
    received_e0_bytes: Opt<UInt32Type>,
    received_ce_bytes: Opt<UInt32Type>,
    accecn_fail_mode: Opt<UInt32Type>,
    accecn_opt_seen: Opt<UInt32Type>,
    ecn_mode: Opt<UInt32Type>,
    cc_info: Blob,
    bbr_bw_bytes_per_s: Opt<UInt64Type>,
    bbr_min_rtt_us: Opt<UInt32Type>,
    dctcp_alpha: Opt<UInt32Type>,
    vegas_rtt_us: Opt<UInt32Type>,
    vegas_min_rtt_us: Opt<UInt32Type>,
} }

table! { IntervalColumns, "intervals", wire::Interval, interval_midpoint, ["flow_id", "side", "t_ns"], {
    flow_id: Text,
    group: Text,
    side: Enum<Side>,
    stream: Num<UInt32Type>,
    start_s: Num<Float64Type>,
    end_s: Num<Float64Type>,
    seconds: Num<Float64Type>,
    bytes: Num<UInt64Type>,
    bits_per_second: Num<Float64Type>,
    retransmits: Opt<UInt32Type>,
    snd_cwnd_bytes: Opt<UInt64Type>,
    snd_wnd_bytes: Opt<UInt64Type>,
    rtt_us: Opt<UInt32Type>,
    rttvar_us: Opt<UInt32Type>,
    pmtu_bytes: Opt<UInt32Type>,
    reorder_pkts: Opt<UInt32Type>,
    jitter_ms: Opt<Float64Type>,
    lost_packets: Opt<UInt64Type>,
    packets: Opt<UInt64Type>,
    omitted: Bool,
} }

table! { ProbeColumns, "probes", wire::Probe, |row, _| row.at_ns.into(), ["probe_id", "t_ns"], {
    probe_id: Text,
    kind: Enum<ProbeKind>,
    seq: Num<UInt32Type>,
    rtt_us: Opt<Float64Type>,
    lost: Bool,
    tos: Narrow<UInt8Type>,
    bytes: Opt<UInt64Type>,
    dns_us: Opt<Float64Type>,
    connect_us: Opt<Float64Type>,
    ttfb_us: Opt<Float64Type>,
    total_us: Opt<Float64Type>,
    status: Opt<UInt32Type>,
    error: NonEmptyText,
} }

table! { QdiscSampleColumns, "qdisc_samples", wire::QdiscSample, |row, _| row.at_ns.into(), ["link", "handle", "t_ns"], {
    link: Text,
    iface: Text,
    handle: Text,
    parent: Text,
    kind: Text,
    sent_bytes: Num<UInt64Type>,
    sent_pkts: Num<UInt64Type>,
    drops_pkts: Num<UInt64Type>,
    overlimits: Num<UInt64Type>,
    requeues_pkts: Num<UInt64Type>,
    backlog_bytes: Num<UInt64Type>,
    qlen_pkts: Num<UInt64Type>,
    ecn_mark_pkts: Opt<UInt64Type>,
    ce_mark_pkts: Opt<UInt64Type>,
    step_mark_pkts: Opt<UInt64Type>,
    drop_overlimit_pkts: Opt<UInt64Type>,
    drop_overmemory_pkts: Opt<UInt64Type>,
    drop_early_pkts: Opt<UInt64Type>,
    drop_lost_pkts: Opt<UInt64Type>,
    drop_policed_pkts: Opt<UInt64Type>,
    drop_ack_filter_pkts: Opt<UInt64Type>,
    acks_held_pkts: Opt<UInt64Type>,
    ecn_rewritten_pkts: Opt<UInt64Type>,
    ce_rewritten_pkts: Opt<UInt64Type>,
    slots: Opt<UInt64Type>,
    prob: Opt<Float64Type>,
    delay_c_us: Opt<UInt64Type>,
    delay_l_us: Opt<UInt64Type>,
    pkts_in_c: Opt<UInt64Type>,
    pkts_in_l: Opt<UInt64Type>,
    credit: Opt<Int64Type>,
    maxq_pkts: Opt<UInt64Type>,
    flows: Opt<UInt64Type>,
    throttled: Opt<UInt64Type>,
    memory_used_bytes: Opt<UInt64Type>,
    lended: Opt<UInt64Type>,
    borrowed: Opt<UInt64Type>,
    tokens: Opt<Int64Type>,
    ctokens: Opt<Int64Type>,
    rate_bps: Opt<UInt64Type>,
    late_pkts: Opt<UInt64Type>,
    max_late_us: Opt<UInt64Type>,
    idle_us: Opt<UInt64Type>,
    foreign_pkts: Opt<UInt64Type>,
    foreign_bytes: Opt<UInt64Type>,
} }

table! { LinkChangeColumns, "link_changes", wire::LinkChange, |row, _| row.applied_at_ns.into(), ["link", "t_ns"], {
    requested_at_ns as requested_t_ns: UtcNs,
    applied_at_ns as applied_t_ns: UtcNs,
    link: Text,
    iface: Text,
    rate_bps: Opt<UInt64Type>,
    delay_us: Opt<UInt64Type>,
    loss_ppm: Opt<UInt32Type>,
    source: Text,
    rc: Num<Int32Type>,
} }

table! { LinkTimingColumns, "link_timing", wire::LinkTiming, |row, _| row.at_ns.into(), ["link", "kind"], {
    link: Text,
    iface: Text,
    kind: Enum<TimingKind>,
    count: Num<UInt64Type>,
    late: Num<UInt64Type>,
    missed: Num<UInt64Type>,
    p50_us: Num<Float64Type>,
    p90_us: Num<Float64Type>,
    p99_us: Num<Float64Type>,
    max_us: Num<Float64Type>,
} }

table! { LinkPacketColumns, "link_packets", wire::LinkPacket, |row, _| row.at_ns.into(), ["link", "t_ns"], {
    link: Text,
    iface: Text,
    bytes: Num<UInt32Type>,
    flow: Num<UInt32Type>,
    ecn: Narrow<UInt8Type>,
    fate: Enum<PacketFate>,
    marked: Bool,
    queued_ns: Opt<UInt64Type>,
    due_ns: Opt<UInt64Type>,
    sent_ns: Opt<UInt64Type>,
    sojourn_us: Opt<UInt64Type>,
} }

table! { CcStateColumns, "cc_state", wire::CcState, |row, _| row.at_ns.into(), ["flow_id", "t_ns"], {
    flow_id: Text,
    group: Text,
    cc: Text,
    algorithm: Text,
    cookie: Opt<UInt64Type>,
    sport: Narrow<UInt16Type>,
    dport: Narrow<UInt16Type>,
    round: Num<UInt64Type>,
    variable: Text,
    unit: Text,
    value: Num<Float64Type>,
} }

table! { HostSampleColumns, "host_samples", wire::HostSample, |row, _| row.at_ns.into(), ["node", "t_ns"], {
    gap_ns: Num<UInt64Type>,
    cpu_user_pct: Num<Float64Type>,
    cpu_system_pct: Num<Float64Type>,
    cpu_softirq_pct: Num<Float64Type>,
    cpu_steal_pct: Num<Float64Type>,
    cpu_idle_pct: Num<Float64Type>,
    cpu_max_busy_pct: Num<Float64Type>,
    softnet_dropped: Num<UInt64Type>,
    softnet_squeezed: Num<UInt64Type>,
    nic_rx_dropped: Num<UInt64Type>,
    nic_tx_dropped: Num<UInt64Type>,
    tcp_retrans_segs: Num<UInt64Type>,
    agent_cpu_pct: Num<Float64Type>,
    agent_rss_bytes: Opt<UInt64Type>,
} }

/// A row of `events`, with the kind and the data as text.
pub(crate) struct EventRow {
    at_ns: u64,
    kind: String,
    subject: String,
    message: String,
    data_json: String,
}

impl From<wire::Event> for EventRow {
    fn from(event: wire::Event) -> Self {
        let (kind, data_json) = (event.name().to_owned(), event.data_json());
        let wire::Event { at_ns, subject, message, .. } = event;
        Self { at_ns, kind, subject, message, data_json }
    }
}

table! { EventColumns, "events", EventRow, |row, _| row.at_ns.into(), ["t_ns", "node"], {
    kind: Text,
    subject: Text,
    message: Text,
    data_json: Text,
} }

table! { ClockColumns, "clock", ClockRow, |row, _| row.at_ns.into(), ["node", "t_ns"], {
    monotonic_t0_ns: Num<UInt64Type>,
    offset_ns: Num<Int64Type>,
    drift_ppb: Num<Int64Type>,
    error_bound_ns: Num<UInt64Type>,
    error_bound_after_ns: Opt<UInt64Type>,
    rtt_ns: Num<UInt64Type>,
    source: Text,
} }

/// Names of all tables and of their directories.
pub const TABLES: [&str; 15] = [
    FlowColumns::TABLE,
    FlowSampleColumns::TABLE,
    IntervalColumns::TABLE,
    ProbeColumns::TABLE,
    QdiscSampleColumns::TABLE,
    LinkChangeColumns::TABLE,
    LinkTimingColumns::TABLE,
    LinkPacketColumns::TABLE,
    CcStateColumns::TABLE,
    AckColumns::TABLE,
    TcpEventColumns::TABLE,
    AckCountColumns::TABLE,
    HostSampleColumns::TABLE,
    EventColumns::TABLE,
    ClockColumns::TABLE,
];

#[cfg(test)]
mod manual;

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    fn fields_of(message: &str) -> Vec<String> {
        let set = FileDescriptorSet::decode(wire::DESCRIPTORS).unwrap();
        let messages = set.file.iter().flat_map(|f| &f.message_type);
        let found = messages.into_iter().find(|m| m.name() == message);
        found.unwrap().field.iter().map(|f| f.name().to_owned()).collect()
    }

    fn missing<C: Columns>(message: &str) -> Vec<String> {
        let has = |field: &String| {
            let column = if field == "at_ns" {
                return true;
            } else if let Some(stem) = field.strip_suffix("_at_ns") {
                format!("{stem}_t_ns")
            } else {
                field.clone()
            };
            C::FIELDS.iter().any(|(f, c)| f == field && *c == column)
        };
        let lacking = fields_of(message).into_iter().filter(|f| !has(f));
        lacking.map(|f| format!("{message}.{f}")).collect()
    }

    #[test]
    fn every_message_field_has_a_column() {
        let lacking = [
            missing::<FlowColumns>("Flow"),
            missing::<FlowSampleColumns>("FlowSample"),
            missing::<IntervalColumns>("Interval"),
            missing::<ProbeColumns>("Probe"),
            missing::<QdiscSampleColumns>("QdiscSample"),
            missing::<LinkChangeColumns>("LinkChange"),
            missing::<LinkTimingColumns>("LinkTiming"),
            missing::<LinkPacketColumns>("LinkPacket"),
            missing::<CcStateColumns>("CcState"),
            missing::<AckColumns>("Acks"),
            missing::<TcpEventColumns>("TcpEvent"),
            missing::<AckCountColumns>("AckCount"),
            missing::<HostSampleColumns>("HostSample"),
        ]
        .concat();
        assert!(lacking.is_empty(), "fields without a column: {lacking:?}");
    }

    #[test]
    fn every_stream_message_has_a_table() {
        let set = FileDescriptorSet::decode(wire::DESCRIPTORS).unwrap();
        let mut messages = set.file.iter().flat_map(|f| &f.message_type);
        let event = messages.find(|m| m.name() == "RunEvent").unwrap();
        assert_eq!(event.field.len(), 10 + 6, "a new kind of row needs a table here");
    }

    #[test]
    fn interval_belongs_to_the_phase_of_its_midpoint() {
        use ccbench_proto::{schedule::PhaseSpan, units::Micros};
        let phase = |name: &str, start: u64, end: u64| {
            PhaseSpan::new(name, Micros::from_secs(start), Micros::from_secs(end))
        };
        let axis = TimeAxis {
            t0_ns: 1_000_000_000,
            realtime_offset_ns: 0,
            drift_ppb: 0,
            phases: vec![phase("a", 0, 1), phase("b", 1, 2)],
        };
        let phase_of = |end_ns: u64| {
            let row = wire::Interval { at_ns: end_ns, seconds: 0.1, ..Default::default() };
            axis.phase(interval_midpoint(&row, &axis).phase_at_ns.unwrap())
        };
        assert_eq!(phase_of(2_040_000_000), Some("a"));
        assert_eq!(phase_of(2_060_000_000), Some("b"));
        assert_eq!(axis.phase(999_999_999), None);
        assert_eq!(axis.phase(3_000_000_000), None);
    }
}
