//! Writes the rows of the tables `acks` and `tcp_events` when the eBPF programs of real runs write them
//! (`crates/collector/bpf/acks.bpf.c`): for a sender after `tcp_ack()`, for a receiver before it processes a segment (`tcp_probe`).

use std::collections::BTreeMap;

use ccbench_proto::plan::{Acks, Ecn};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{self, FlowSample, Side, TcpEvent, TcpEventKind};

use crate::connection::Connection;
use crate::rows::{Rows, fill_receiver, fill_sender};
use crate::tcp::{TCP_INFINITE_SSTHRESH, TCP_INIT_CWND};

/// Rows of a socket in one message: enough to make the cost of the message's other fields negligible.
const BATCH_ROWS: usize = 128;
/// Minimum time between two rows of a receiver, except in the mode that sets an interval.
const RECEIVER_MIN_INTERVAL_NS: u64 = 10_000_000;

/// The rows of both ends of a connection.
pub struct AckRows {
    sender: SocketRows,
    receiver: SocketRows,
    /// `delivered_ce` at the last acknowledgement.
    delivered_ce: u32,
    /// The values that the mode `on-change` compares, at the last acknowledgement.
    compared: Option<[u32; 7]>,
}

impl AckRows {
    pub fn new(connection: &Connection, nodes: &BTreeMap<String, NodeTask>) -> Self {
        let socket = |at: usize, side| SocketRows::new(nodes.get(&connection.nodes[at]), side);
        Self {
            sender: socket(0, Side::Sender),
            receiver: socket(1, Side::Receiver),
            delivered_ce: 0,
            compared: None,
        }
    }

    /// Records that the handshake has ended. `tcp_ack()` also processes the acknowledgement of a sender's SYN or SYN-ACK.
    pub fn established(&mut self, now_ns: u64, connection: &mut Connection, rows: &mut Rows<'_>) {
        let Some(sender) = connection.sender().filter(|_| !self.sender.mode.is_off()) else {
            return;
        };
        sender.events = Some(Vec::new());
        sender.push_event(now_ns, TcpEventKind::Cc, 0);
        self.on_ack(now_ns, connection, rows);
    }

    /// Records that the sender has processed an acknowledgement. It has not sent yet what the acknowledgement permits.
    pub fn on_ack(&mut self, now_ns: u64, connection: &mut Connection, rows: &mut Rows<'_>) {
        if self.sender.mode.is_off() {
            return;
        }
        let Some(sender) = connection.sender() else { return };
        self.sender.segments += 1;
        let info = sender.info(now_ns);
        let marks = info.delivered_ce.wrapping_sub(self.delivered_ce);
        if marks != 0 {
            sender.push_event(now_ns, TcpEventKind::Ce, marks);
        }
        self.delivered_ce = info.delivered_ce;
        if self.sender.mode == Acks::Change {
            let compared = [
                info.snd_cwnd,
                info.snd_ssthresh.unwrap_or(TCP_INFINITE_SSTHRESH),
                sender.counters.total_retrans,
                info.lost_out,
                info.delivered_ce,
                info.min_rtt_us.unwrap_or(u32::MAX),
                info.ca_state,
            ];
            if self.compared.replace(compared) == Some(compared) {
                return;
            }
        }
        let mut row = FlowSample::default();
        if !self.sender.is_due(now_ns) || fill_sender(now_ns, connection, &mut row).is_none() {
            return;
        }
        // A column has a value in every row. This is the kernel's value for "none".
        row.min_rtt_us.get_or_insert(u32::MAX);
        row.snd_ssthresh_pkts.get_or_insert(TCP_INFINITE_SSTHRESH);
        let batch = &mut self.sender.batch;
        batch.rate_delivered_pkts.push(info.rate_delivered);
        batch.rate_interval_us.push(info.rate_interval_us);
        self.sender.push_row(now_ns, &row, connection, rows);
    }

    /// Records that a segment arrives at the receiver, which has not processed it yet.
    pub fn on_segment(
        &mut self,
        now_ns: u64,
        connection: &mut Connection,
        field: Ecn,
        rows: &mut Rows<'_>,
    ) {
        if self.receiver.mode.is_off() {
            return;
        }
        let Some(receiver) = connection.receiver() else { return };
        self.receiver.segments += 1;
        if field == Ecn::Ce {
            // Window and RTT of a socket that sends no data.
            let event = TcpEvent {
                at_ns: now_ns,
                kind: TcpEventKind::Ce.into(),
                count: 1,
                snd_cwnd_pkts: TCP_INIT_CWND,
                rtt_us: receiver.handshake_rtt_us(),
                ..TcpEvent::default()
            };
            events(vec![event], Side::Receiver, connection, rows);
        }
        let mut row = FlowSample::default();
        if !self.receiver.is_due(now_ns) || fill_receiver(connection, &mut row).is_none() {
            return;
        }
        // The kernel counts a segment in `tcp_segs_in()`, before it processes the segment.
        row.segs_in_pkts = row.segs_in_pkts.map(|pkts| pkts + 1);
        row.data_segs_in_pkts = row.data_segs_in_pkts.map(|pkts| pkts + 1);
        self.receiver.push_row(now_ns, &row, connection, rows);
    }

    /// Writes the sender's events since the last call.
    pub fn sender_events(connection: &mut Connection, rows: &mut Rows<'_>) {
        let reported = connection.sender().and_then(|sender| sender.events.as_mut());
        if let Some(reported) = reported.filter(|reported| !reported.is_empty()) {
            events(std::mem::take(reported), Side::Sender, connection, rows);
        }
    }

    /// Writes the last rows.
    pub fn finish(&mut self, connection: &mut Connection, rows: &mut Rows<'_>) {
        self.sender.flush(connection, rows);
        self.receiver.flush(connection, rows);
    }
}

fn events(mut events: Vec<TcpEvent>, side: Side, connection: &mut Connection, rows: &mut Rows<'_>) {
    for event in &mut events {
        let base = connection.sample_base(event.at_ns, side);
        (event.flow_id, event.group, event.cc) = (base.flow_id, base.group, base.cc);
        (event.sport, event.dport) = (base.sport, base.dport);
        event.cookie = base.cookie.unwrap_or_default();
        (event.side, event.role) = (base.side, base.role);
    }
    rows.push(node_of(side, connection), Payload::TcpEvents(wire::TcpEvents { events }));
}

fn node_of(side: Side, connection: &Connection) -> &str {
    &connection.nodes[usize::from(side != Side::Sender)]
}

/// The rows of one end.
struct SocketRows {
    side: Side,
    /// The mode, with [`Acks::Auto`] resolved.
    mode: Acks,
    /// Minimum time between two rows.
    min_interval_ns: u64,
    /// Time of the last row.
    last_row_ns: Option<u64>,
    /// Segments that have arrived so far.
    segments: u64,
    /// Rows that have not been sent yet. The fields that name the flow are empty.
    batch: wire::Acks,
}

impl SocketRows {
    fn new(node: Option<&NodeTask>, side: Side) -> Self {
        let mode = node.map_or(Acks::Off, |node| {
            // Count like a node's agent: a group also has a control connection.
            let groups = node.clients.iter().chain(&node.servers);
            let sockets = groups.map(|flow| u64::from(flow.plan.count) + 1).sum();
            node.sample.acks.of_sockets(sockets)
        });
        let min_interval_ns = match (mode, side) {
            (Acks::AtMost(gap), _) => gap.nanos(),
            (_, Side::Receiver) => RECEIVER_MIN_INTERVAL_NS,
            _ => 0,
        };
        let batch = wire::Acks::default();
        Self { side, mode, min_interval_ns, last_row_ns: None, segments: 0, batch }
    }

    /// Returns whether the last row is old enough for another one. If so, the caller must add a row.
    fn is_due(&mut self, now_ns: u64) -> bool {
        let due =
            self.last_row_ns.is_none_or(|last_row_ns| now_ns - last_row_ns >= self.min_interval_ns);
        if due {
            self.last_row_ns = Some(now_ns);
        }
        due
    }

    /// Adds a row with the columns that are also in `flow_samples`.
    fn push_row(
        &mut self,
        now_ns: u64,
        row: &FlowSample,
        connection: &mut Connection,
        rows: &mut Rows<'_>,
    ) {
        let batch = &mut self.batch;
        batch.at_ns.push(now_ns);
        batch.segments.push(self.segments);
        macro_rules! columns {
            ($($column:ident)*) => { $(batch.$column.extend(row.$column);)* };
        }
        columns! {
            bytes_acked bytes_received bytes_sent bytes_retrans pacing_rate_bytes_per_s rtt_us rttvar_us min_rtt_us rto_us
            snd_cwnd_pkts snd_ssthresh_pkts unacked_pkts sacked_pkts lost_pkts retrans_pkts delivered_pkts delivered_ce_pkts
            total_retrans_pkts segs_out_pkts segs_in_pkts data_segs_out_pkts data_segs_in_pkts notsent_bytes snd_wnd_bytes
            rcv_wnd_bytes rcv_rtt_us rcv_ooopack_pkts dsack_dups_pkts reordering_pkts reord_seen busy_us rwnd_limited_us
            sndbuf_limited_us total_rto received_ce_pkts ca_state retransmits backoff probes app_limited
        }
        if self.batch.at_ns.len() >= BATCH_ROWS {
            self.flush(connection, rows);
        }
    }

    /// Sends the rows so far. A column with only one value has that value in every row.
    fn flush(&mut self, connection: &mut Connection, rows: &mut Rows<'_>) {
        if self.batch.at_ns.is_empty() {
            return;
        }
        let base = connection.sample_base(0, self.side);
        let acks = wire::Acks {
            flow_id: base.flow_id,
            group: base.group,
            side: base.side,
            role: base.role,
            cc: base.cc,
            cookie: base.cookie.unwrap_or_default(),
            sport: base.sport,
            dport: base.dport,
            lost_rows: vec![0],
            snd_mss_bytes: base.snd_mss_bytes.into_iter().collect(),
            rcv_mss_bytes: base.rcv_mss_bytes.into_iter().collect(),
            advmss_bytes: base.advmss_bytes.into_iter().collect(),
            pmtu_bytes: base.pmtu_bytes.into_iter().collect(),
            ..std::mem::take(&mut self.batch)
        };
        rows.push(node_of(self.side, connection), Payload::Acks(acks));
    }
}
