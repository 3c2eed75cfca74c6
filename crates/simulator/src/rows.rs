//! Writes the rows of the protocol as an agent of each node would send them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::resolve::TimedChange;
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::units::{Micros, Ppm, Rate};
use ccbench_proto::wire;
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{Role, Side};

use crate::T0_NS;
use crate::congestion_control::Stat;
use crate::connection::Connection;
use crate::network::SimulatedLink;
use crate::packet::{MSS_BYTES, MTU_BYTES};
use crate::tcp::TCP_FASTRETRANS_THRESH;

/// Receives a row with the name of its node.
type Emit<'a> = dyn FnMut(&str, wire::RunEvent) + 'a;

/// Receives rows, and counts them by node.
pub struct Rows<'a> {
    emit: &'a mut Emit<'a>,
    counts: BTreeMap<String, u64>,
}

impl<'a> Rows<'a> {
    pub fn new(emit: &'a mut Emit<'a>) -> Self {
        Self { emit, counts: BTreeMap::new() }
    }

    /// Emits a row of a node.
    pub fn push(&mut self, node: &str, payload: Payload) {
        match self.counts.get_mut(node) {
            Some(count) => *count += 1,
            None => drop(self.counts.insert(node.to_owned(), 1)),
        }
        (self.emit)(node, wire::RunEvent { payload: Some(payload) });
    }

    pub fn event(&mut self, at_ns: u64, node: &str, kind: Kind, subject: &str, message: &str) {
        let (subject, message) = (subject.to_owned(), message.to_owned());
        let event = wire::Event { at_ns, subject, message, kind: Some(kind) };
        self.push(node, Payload::Event(event));
    }

    pub fn flow_start(&mut self, now_ns: u64, connection: &Connection) {
        let task = &connection.task;
        self.event(now_ns, &task.plan.from, Kind::FlowStart(NoData {}), &task.group, "");
    }

    pub fn flow_end(&mut self, now_ns: u64, connection: &Connection) {
        let task = &connection.task;
        if connection.stream == 0 {
            self.event(now_ns, &task.plan.from, Kind::FlowEnd(NoData {}), &task.group, "");
        }
        if connection.established_ns.is_none() {
            let why = format!("connection {}: no answer to its SYN", connection.id);
            self.event(now_ns, &task.plan.from, Kind::FlowError(NoData {}), &task.group, &why);
        }
    }

    /// Reports that a connection was not established in time, which ends its end of the flow group.
    pub fn connect_error(&mut self, now_ns: u64, connection: &Connection) {
        let task = &connection.task;
        let server = SocketAddr::new(task.to_ip, task.server_port);
        let why = format!(
            "ccbench client: unable to connect to {server}: Connection timed out (os error 110)"
        );
        self.event(now_ns, &task.plan.from, Kind::FlowError(NoData {}), &task.group, &why);
        self.event(now_ns, &task.plan.from, Kind::FlowEnd(NoData {}), &task.group, "");
    }

    /// Reports that the listening end of such a flow group was stopped while it waited for connections.
    pub fn no_report(&mut self, now_ns: u64, connection: &Connection) {
        let (task, why) = (&connection.task, "ccbench server left no report (exit code 1)");
        self.event(now_ns, &task.plan.to, Kind::FlowError(NoData {}), &task.group, why);
    }

    /// Reports that the end of the trial cut off a connection or a fetch.
    pub fn probe_unfinished(&mut self, now_ns: u64, node: &str, probe: &str) {
        let why = "unfinished measurements at the end of the trial: 1; they have no row and count neither as measured nor as lost";
        self.event(now_ns, node, Kind::ProbeUnfinished(NoData {}), probe, why);
    }

    /// Emits the state of one of ccbench's congestion controls, after a round or when a state begins.
    pub fn cc_state(&mut self, now_ns: u64, connection: &Connection, round: u64, stats: &[Stat]) {
        let Some((cc, algorithm)) = &connection.instance else { return };
        let ports = connection.ports(Side::Sender);
        for stat in stats {
            let row = wire::CcState {
                at_ns: now_ns,
                flow_id: connection.id.clone(),
                group: connection.task.group.clone(),
                cc: cc.clone(),
                algorithm: algorithm.clone(),
                cookie: Some(connection.cookie()),
                sport: ports.0,
                dport: ports.1,
                round,
                variable: stat.name.to_owned(),
                unit: stat.unit.to_owned(),
                value: stat.value.into(),
            };
            self.push(&connection.nodes[0], Payload::CcState(row));
        }
    }

    /// Emits the initial configuration of a link.
    pub fn initial_link_change(
        &mut self,
        link: &SimulatedLink,
        nodes: &BTreeMap<String, NodeTask>,
    ) {
        let tasks = nodes.get(&link.node).map_or(&[][..], |task| &task.links);
        let Some(task) = tasks.iter().find(|task| task.config.name == link.name) else { return };
        let plan = &task.config.plan;
        let row = wire::LinkChange {
            requested_at_ns: T0_NS,
            applied_at_ns: T0_NS,
            link: link.name.clone(),
            iface: link.dev.clone(),
            rate_bps: link.link.rate().map(Rate::bits_per_sec),
            delay_us: plan.delay.map(Micros::get),
            loss_ppm: plan.loss.map(Ppm::get),
            source: "plan".to_owned(),
            rc: 0,
        };
        self.push(&link.node, Payload::LinkChange(row));
    }

    /// Emits a change of the plan.
    pub fn link_change(
        &mut self,
        now_ns: u64,
        link: &SimulatedLink,
        change: &TimedChange,
        failed: bool,
    ) {
        const EOPNOTSUPP: i32 = 95;
        let row = wire::LinkChange {
            requested_at_ns: now_ns,
            applied_at_ns: now_ns,
            link: link.name.clone(),
            iface: link.dev.clone(),
            rate_bps: change.rate.map(Rate::bits_per_sec),
            delay_us: change.delay.map(Micros::get),
            loss_ppm: change.loss.map(Ppm::get),
            source: change.source.clone(),
            rc: if failed { -EOPNOTSUPP } else { 0 },
        };
        self.push(&link.node, Payload::LinkChange(row));
    }

    /// Emits the counters of a link, and the rows of its trace and packet log since the last call.
    pub fn sample_link(&mut self, now_ns: u64, link: &mut SimulatedLink) {
        if link.last_sample_ns.replace(now_ns) == Some(now_ns) {
            return;
        }
        let sample = link.link.sample(now_ns, (&link.name, &link.dev));
        self.push(&link.node, Payload::QdiscSample(sample));
        self.link_history(now_ns, link);
    }

    /// Emits the rows of a link's trace and packet log since the last call.
    fn link_history(&mut self, now_ns: u64, link: &mut SimulatedLink) {
        let names = (link.name.as_str(), link.dev.as_str());
        let (mut changes, mut packets) = (Vec::new(), Vec::new());
        link.link.changes(now_ns, names, &mut changes);
        link.link.packets(names, &mut packets);
        changes.into_iter().for_each(|row| self.push(&link.node, Payload::LinkChange(row)));
        packets.into_iter().for_each(|row| self.push(&link.node, Payload::LinkPacket(row)));
    }

    /// Emits the last rows of a link.
    pub fn finish_link(&mut self, now_ns: u64, link: &mut SimulatedLink) {
        link.link.advance(now_ns);
        self.sample_link(now_ns, link);
        // Rows of packets that left at this instant after a sample.
        self.link_history(now_ns, link);
        let mut timing = Vec::new();
        link.link.timing(now_ns, (&link.name, &link.dev), &mut timing);
        timing.into_iter().for_each(|row| self.push(&link.node, Payload::LinkTiming(row)));
    }

    /// Emits the last rows of a node.
    pub fn finish_node(&mut self, now_ns: u64, node: &str) {
        self.event(now_ns, node, Kind::TrialEnd(NoData {}), "", "");
        let rows_sent = self.counts.get(node).copied().unwrap_or(0);
        let done = wire::Done { rows_sent, ..wire::Done::default() };
        (self.emit)(node, wire::RunEvent { payload: Some(Payload::Done(done)) });
    }
}

/// Values of earlier rows of a connection.
pub struct FlowRows {
    last_sample_ns: Option<u64>,
    interval_ns: u64,
    /// End of the last interval, with the bytes sent and received and the retransmissions until then.
    last_ns: u64,
    last_bytes: [u64; 2],
    last_retransmits: u32,
    is_finished: bool,
}

impl FlowRows {
    pub fn new(connection: &Connection) -> Self {
        Self {
            last_sample_ns: None,
            interval_ns: connection.task.plan.interval.nanos().max(1),
            last_ns: 0,
            last_bytes: [0; 2],
            last_retransmits: 0,
            is_finished: false,
        }
    }

    /// Starts the application. Returns when its first interval ends.
    pub fn begin(&mut self, now_ns: u64) -> u64 {
        self.last_ns = now_ns;
        now_ns + self.interval_ns
    }

    /// Ends an interval. Returns when the next one ends.
    pub fn interval(
        &mut self,
        now_ns: u64,
        connection: &mut Connection,
        rows: &mut Rows<'_>,
    ) -> Option<u64> {
        let started_ns = connection.started_ns?;
        let stopped = connection.stopped_ns.is_some_and(|stopped_ns| stopped_ns <= now_ns);
        let end_ns = connection.stopped_ns.unwrap_or(now_ns).min(now_ns);
        if self.is_finished || end_ns <= self.last_ns {
            return None;
        }
        let info = connection.sender()?.info(now_ns);
        let counters = connection.sender()?.counters.clone();
        let bytes = [connection.sent_bytes(), connection.receiver()?.bytes_received()];
        let seconds = |ns: u64| (ns - started_ns) as f64 / 1e9;
        let (start_s, end_s) = (seconds(self.last_ns), seconds(end_ns));
        for (side, at) in [(Side::Sender, 0), (Side::Receiver, 1)] {
            let moved = bytes[at] - self.last_bytes[at];
            let mut row = wire::Interval {
                flow_id: connection.id.clone(),
                group: connection.task.group.clone(),
                stream: connection.stream,
                at_ns: end_ns,
                start_s,
                end_s,
                seconds: end_s - start_s,
                bytes: moved,
                bits_per_second: moved as f64 * 8.0 / (end_s - start_s),
                side: side.into(),
                ..wire::Interval::default()
            };
            if side == Side::Sender {
                row.retransmits = Some(counters.total_retrans - self.last_retransmits);
                row.snd_cwnd_bytes = Some(u64::from(info.snd_cwnd) * u64::from(MSS_BYTES));
                row.snd_wnd_bytes = Some(info.snd_wnd.into());
                row.rtt_us = Some(info.srtt_us);
                row.rttvar_us = Some(info.rttvar_us);
                row.pmtu_bytes = Some(MTU_BYTES);
                row.reorder_pkts = Some(counters.reord_seen);
            }
            rows.push(&connection.nodes[at], Payload::Interval(row));
        }
        (self.last_ns, self.last_bytes) = (end_ns, bytes);
        self.last_retransmits = counters.total_retrans;
        (!stopped).then_some(now_ns + self.interval_ns)
    }

    /// Emits TCP_INFO of both ends.
    pub fn sample(&mut self, now_ns: u64, connection: &mut Connection, rows: &mut Rows<'_>) {
        if self.is_finished
            || connection.established_ns.is_none()
            || self.last_sample_ns == Some(now_ns)
        {
            return;
        }
        let gap_ns = self.last_sample_ns.map_or(0, |before_ns| now_ns - before_ns);
        self.last_sample_ns = Some(now_ns);
        for (side, at) in [(Side::Sender, 0), (Side::Receiver, 1)] {
            let mut row = connection.sample_base(now_ns, side);
            row.gap_ns = gap_ns;
            let filled = match side {
                Side::Sender => fill_sender(now_ns, connection, &mut row),
                _ => fill_receiver(connection, &mut row),
            };
            if filled.is_some() {
                rows.push(&connection.nodes[at], Payload::FlowSample(row));
            }
        }
    }

    /// Emits the last rows.
    pub fn finish(&mut self, now_ns: u64, connection: &mut Connection, rows: &mut Rows<'_>) {
        if self.is_finished {
            return;
        }
        self.sample(now_ns, connection, rows);
        self.interval(now_ns, connection, rows);
        self.is_finished = true;
        let stop_s = connection.stopped_ns.unwrap_or(now_ns).saturating_sub(T0_NS) as f64 / 1e9;
        let start_s = connection.started_ns.map(|started_ns| (started_ns - T0_NS) as f64 / 1e9);
        let completed_s = connection.completed_ns.map(|at_ns| (at_ns - T0_NS) as f64 / 1e9);
        let acked = connection.sender().map_or(0, |sender| sender.info(now_ns).bytes_acked);
        let received = connection.receiver().map_or(0, |receiver| receiver.bytes_received());
        let cc = connection.cc_name.clone();
        for (side, at, bytes) in [(Side::Sender, 0, acked), (Side::Receiver, 1, received)] {
            let task = &connection.task;
            let row = wire::Flow {
                flow_id: connection.id.clone(),
                group: task.group.clone(),
                node_src: task.plan.from.clone(),
                node_dst: task.plan.to.clone(),
                cc_requested: task.plan.cc.clone().unwrap_or_default(),
                cc_actual: if side == Side::Sender { cc.clone() } else { String::new() },
                src_ip: task.from_ip.to_string(),
                dst_ip: task.to_ip.to_string(),
                sport: u32::from(task.client_port) + connection.stream,
                dport: task.server_port.into(),
                cookie: Some(connection.cookie()),
                start_s,
                stop_s: start_s.map(|_| stop_s),
                completed_s: completed_s.filter(|_| side == Side::Receiver),
                bytes,
                tool: "simulator".to_owned(),
                role: Role::Data.into(),
                side: side.into(),
                ..wire::Flow::default()
            };
            rows.push(&connection.nodes[at], Payload::Flow(row));
        }
    }
}

/// Fills in the sending end's part of a sample. Returns `None` if there is no connection.
pub fn fill_sender(
    now_ns: u64,
    connection: &mut Connection,
    row: &mut wire::FlowSample,
) -> Option<()> {
    let sender = connection.sender()?;
    let info = sender.info(now_ns);
    let counters = &sender.counters;
    row.ca_state = Some(info.ca_state);
    row.retransmits = Some(info.retransmits);
    row.backoff = Some(info.backoff);
    row.probes = Some(0);
    row.app_limited = Some(info.is_app_limited);
    row.rto_us = Some(info.rto_us);
    row.unacked_pkts = Some(info.packets_out);
    row.sacked_pkts = Some(info.sacked_out);
    row.lost_pkts = Some(info.lost_out);
    row.retrans_pkts = Some(info.retrans_out);
    row.last_data_sent_ms = Some((info.since_sent_ns / 1_000_000) as u32);
    row.last_ack_recv_ms = Some((info.since_ack_ns / 1_000_000) as u32);
    row.rtt_us = Some(info.srtt_us);
    row.rttvar_us = Some(info.rttvar_us);
    row.snd_ssthresh_pkts = info.snd_ssthresh;
    row.snd_cwnd_pkts = Some(info.snd_cwnd);
    row.total_retrans_pkts = Some(counters.total_retrans);
    row.pacing_rate_bytes_per_s = Some(info.pacing_rate_bytes_per_s);
    row.bytes_acked = Some(info.bytes_acked);
    row.bytes_received = Some(0);
    row.segs_out_pkts = Some(counters.data_segs_out);
    row.segs_in_pkts = Some(counters.segs_in);
    row.notsent_bytes = Some(info.notsent_bytes);
    row.min_rtt_us = info.min_rtt_us;
    row.data_segs_in_pkts = Some(0);
    row.data_segs_out_pkts = Some(counters.data_segs_out);
    row.delivery_rate_bytes_per_s = Some(info.delivery_rate_bytes_per_s);
    row.busy_us = Some(counters.busy_ns / 1000);
    row.rwnd_limited_us = Some(counters.rwnd_limited_ns / 1000);
    row.sndbuf_limited_us = Some(counters.sndbuf_limited_ns / 1000);
    row.delivered_pkts = Some(info.delivered);
    row.delivered_ce_pkts = Some(info.delivered_ce);
    row.bytes_sent = Some(counters.bytes_sent);
    row.bytes_retrans = Some(counters.bytes_retrans);
    row.dsack_dups_pkts = Some(counters.dsack_dups);
    row.rcv_rtt_us = Some(0);
    row.reordering_pkts = Some(info.reordering);
    row.reord_seen = Some(counters.reord_seen);
    row.snd_wnd_bytes = Some(info.snd_wnd);
    row.total_rto = Some(counters.total_rto);
    Some(())
}

/// Fills in the receiving end's part of a sample. Returns `None` if there is no connection.
pub fn fill_receiver(connection: &mut Connection, row: &mut wire::FlowSample) -> Option<()> {
    let receiver = connection.receiver()?;
    row.ca_state = Some(0);
    row.bytes_acked = Some(0);
    row.bytes_received = Some(receiver.bytes_received());
    row.segs_out_pkts = Some(receiver.segs_out);
    row.segs_in_pkts = Some(receiver.segs_in);
    row.data_segs_in_pkts = Some(receiver.data_segs_in);
    row.data_segs_out_pkts = Some(0);
    row.rcv_ooopack_pkts = Some(receiver.rcv_ooopack);
    row.reordering_pkts = Some(TCP_FASTRETRANS_THRESH);
    row.rcv_rtt_us = Some(receiver.rcv_rtt_us());
    row.rcv_wnd_bytes = Some(receiver.rcv_wnd_bytes().min(u32::MAX.into()) as u32);
    row.received_ce_pkts = Some(receiver.ce_pkts());
    Some(())
}
