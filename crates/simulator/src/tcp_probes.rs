//! Probes over TCP: the duration of connect() (`tcp_connect`), and fetches of a file (`http`). Like the agent's
//! (`crates/agent/src/probe/tcp.rs`), a probe makes one measurement after another, each over a new connection with its own port.
//!
//! A connection has two half-connections. Their acknowledgements are not piggybacked on data, and the connection ends without FIN: packets
//! of an earlier connection pass the links and are ignored where they arrive.

use std::net::SocketAddr;

use ccbench_proto::http;
use ccbench_proto::plan::{Ecn, ProbeKind, Repeat};
use ccbench_proto::schedule::ProbeTask;
use ccbench_proto::wire;

use crate::congestion_control::{CongestionControl, Violation};
use crate::ecn_negotiation::{EcnSettings, EcnVariant};
use crate::half_connection::{HalfConnection, SocketTimer};
use crate::handshake::Handshake;
use crate::network::Network;
use crate::packet::{Body, HandshakeSegment, Packet, Segment};
use crate::probes::row;
use crate::tcp::{Established, Receiver, Sender, SenderConfig, SocketBuffer};

/// Minimum time between the beginnings of back-to-back measurements, as in an agent.
const PAUSE_NS: u64 = 1_000_000;
/// `ip_local_port_range`: the first port, and the number of ports.
const FIRST_LOCAL_PORT: u16 = 32_768;
const LOCAL_PORTS: u64 = 28_232;
/// Distance between the first ports of two probes.
const PORTS_PER_PROBE: u64 = 800;
/// What an agent reports for a measurement that reaches its timeout, and for a connect() on which the kernel gives up (ETIMEDOUT).
const TIMED_OUT: &str = "timed out";
const SYN_TIMED_OUT: &str = "Connection timed out (os error 110)";

/// The settings of one node's sockets.
pub struct Socket {
    /// The congestion control before its first call.
    pub cc: CongestionControl,
    /// ECN field of data if the congestion control counts marks.
    pub counted_ect: Option<Ecn>,
    pub config: SenderConfig,
    pub rcvbuf: SocketBuffer,
}

/// Direction of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the node that measures.
    Request,
    /// From the node that answers.
    Response,
}

impl Direction {
    const ALL: [Self; 2] = [Self::Request, Self::Response];

    fn reversed(self) -> Self {
        match self {
            Self::Request => Self::Response,
            Self::Response => Self::Request,
        }
    }
}

/// An event of a probe. Numbers are those of measurements.
#[derive(Debug, Clone, Copy)]
pub enum MeasurementEvent {
    Begin,
    /// The handshake's timer expires.
    Connect(u32),
    Timer(Direction, SocketTimer),
    Timeout(u32),
}

/// A probe and its current measurement.
pub struct TcpProbe {
    /// The node that measures.
    pub node: String,
    task: ProbeTask,
    /// The sockets of the node that measures and of the node that answers.
    sockets: [Socket; 2],
    ecn: EcnSettings,
    /// Number of its path in the network, which counts the probes of the trial.
    path: u32,
    /// End of the trial. From then on, no measurement begins or fails.
    end_ns: u64,
    request_bytes: u64,
    /// Bytes of the response's head.
    head_bytes: u64,
    /// Bytes of the response's body.
    body_bytes: u64,
    next_seq: u32,
    due_ns: u64,
    measurement: Option<Measurement>,
    /// An invariant that a congestion control of an earlier measurement violated.
    violation: Option<Violation>,
    /// Packets to send.
    pub outbox: Vec<Packet>,
    /// Events to queue, with their times.
    pub events: Vec<(u64, MeasurementEvent)>,
    /// The row of a measurement that has ended.
    pub ended: Option<wire::Probe>,
}

/// A measurement in progress.
struct Measurement {
    /// The row, as far as it is known.
    row: wire::Probe,
    /// Routes from the node that measures, and back.
    routes: [u32; 2],
    handshake: Handshake,
    /// When connect() returned, and the RTT of the handshake at that time.
    connected_ns: u64,
    handshake_rtt_ns: u64,
    /// Indexed by [`Direction`]. Each exists from the moment at which its sender may send.
    halves: [Option<Box<HalfConnection>>; 2],
}

impl Measurement {
    fn violation(&self) -> Option<Violation> {
        self.halves.iter().flatten().find_map(|half| half.sender.violation())
    }
}

impl TcpProbe {
    /// Creates a probe. `path`: number of its path in the network; `start_ns` and `end_ns`: when the probe begins and the trial ends.
    pub fn new(
        (node, path): (String, u32),
        task: ProbeTask,
        (sockets, ecn): ([Socket; 2], EcnSettings),
        (start_ns, end_ns): (u64, u64),
    ) -> Self {
        let host = SocketAddr::new(task.to_ip, task.port).to_string();
        let body_bytes = task.plan.bytes.unwrap_or_default().get();
        Self {
            node,
            sockets,
            ecn,
            path,
            end_ns,
            request_bytes: http::request(&host).len() as u64,
            head_bytes: http::response(200, body_bytes).len() as u64,
            body_bytes,
            next_seq: 0,
            due_ns: start_ns,
            measurement: None,
            violation: None,
            outbox: Vec::new(),
            events: Vec::new(),
            ended: None,
            task,
        }
    }

    /// Returns when the first measurement begins.
    pub fn start_ns(&self) -> u64 {
        self.due_ns
    }

    /// Returns its name in the plan.
    pub fn id(&self) -> &str {
        &self.task.id
    }

    /// Returns whether a measurement is in progress.
    pub fn is_measuring(&self) -> bool {
        self.measurement.is_some()
    }

    /// Returns whether a route belongs to the current connection.
    pub fn has_route(&self, route: u32) -> bool {
        self.measurement.as_ref().is_some_and(|measurement| measurement.routes.contains(&route))
    }

    /// Returns an invariant that a congestion control violated, in the current measurement or an earlier one.
    pub fn violation(&self) -> Option<Violation> {
        self.violation.or_else(|| self.measurement.as_ref()?.violation())
    }

    /// Processes an event.
    pub fn on_event(&mut self, now_ns: u64, event: MeasurementEvent, network: &mut Network) {
        match event {
            MeasurementEvent::Begin => self.begin(now_ns, network),
            MeasurementEvent::Connect(seq) => self.send_syn(now_ns, seq),
            MeasurementEvent::Timer(direction, timer) => {
                if let Some(half) = self.half(direction)
                    && half.take_event(now_ns, timer)
                {
                    let ack = half.on_timer(now_ns, timer);
                    self.outbox.extend(ack);
                }
            }
            MeasurementEvent::Timeout(seq) => {
                let present = self.measurement.as_ref().map(|measurement| measurement.row.seq);
                if present == Some(seq) && now_ns < self.end_ns {
                    self.fail(now_ns, TIMED_OUT);
                }
            }
        }
        self.after_sockets(now_ns);
    }

    /// Processes a packet of the current connection.
    pub fn on_packet(&mut self, now_ns: u64, packet: &Packet) {
        let Some(measurement) = &self.measurement else { return };
        let direction = match packet.route == measurement.routes[0] {
            true => Direction::Request,
            false => Direction::Response,
        };
        match &packet.body {
            Body::Segment(segment) => self.on_segment(now_ns, direction, segment, packet.ecn),
            Body::Ack(ack) => {
                if let Some(half) = self.half(direction.reversed()) {
                    half.sender.on_ack(now_ns, ack);
                    half.sender.data_snd_check(now_ns);
                }
            }
            body => self.on_handshake(now_ns, body),
        }
        self.after_sockets(now_ns);
    }

    fn half(&mut self, direction: Direction) -> Option<&mut HalfConnection> {
        self.measurement.as_mut()?.halves[direction as usize].as_deref_mut()
    }

    fn begin(&mut self, now_ns: u64, network: &mut Network) {
        if now_ns >= self.end_ns {
            return;
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        let routes = network.connect(self.path, local_port(self.path, seq));
        self.measurement = Some(Measurement {
            row: row(&self.task, seq, now_ns),
            routes,
            handshake: Handshake::new(routes, self.ecn),
            connected_ns: 0,
            handshake_rtt_ns: 0,
            halves: [None, None],
        });
        let timeout_ns = now_ns + self.task.plan.timeout().nanos();
        self.events.push((timeout_ns, MeasurementEvent::Timeout(seq)));
        self.send_syn(now_ns, seq);
    }

    /// Sends a SYN, possibly again.
    fn send_syn(&mut self, now_ns: u64, seq: u32) {
        let Some(measurement) = &mut self.measurement else { return };
        if measurement.row.seq != seq || measurement.row.connect_us.is_some() {
            return;
        }
        match measurement.handshake.open(now_ns) {
            Some((syn, retry_ns)) => {
                self.outbox.push(syn);
                self.events.push((retry_ns, MeasurementEvent::Connect(seq)));
            }
            None => self.fail(now_ns, SYN_TIMED_OUT),
        }
    }

    fn on_handshake(&mut self, now_ns: u64, body: &Body) {
        let Some(measurement) = &mut self.measurement else { return };
        let step = measurement.handshake.on_segment(now_ns, body);
        self.outbox.extend(step.answer);
        let Some(established) = step.established else { return };
        match body {
            Body::SynAck(_) if measurement.row.connect_us.is_none() => {
                self.connected(now_ns, established);
            }
            Body::HandshakeAck(_) => self.accepted(now_ns, established),
            _ => {}
        }
    }

    /// Processes the return of connect(). A fetch sends its request.
    fn connected(&mut self, now_ns: u64, established: Established) {
        let Some(measurement) = &mut self.measurement else { return };
        (measurement.connected_ns, measurement.handshake_rtt_ns) = (now_ns, established.rtt_ns);
        let row = &mut measurement.row;
        row.connect_us = Some(us(row.at_ns, now_ns));
        if self.task.plan.kind == ProbeKind::TcpConnect {
            row.rtt_us = row.connect_us;
            return self.end(now_ns);
        }
        self.open_half(now_ns, Direction::Request, established);
        let request_bytes = self.request_bytes;
        if let Some(half) = self.half(Direction::Request) {
            half.sender.write(now_ns, request_bytes);
        }
    }

    /// Records that the answering node's socket exists.
    fn accepted(&mut self, now_ns: u64, established: Established) {
        if self.half(Direction::Response).is_none() {
            self.open_half(now_ns, Direction::Response, established);
        }
    }

    fn open_half(&mut self, now_ns: u64, direction: Direction, established: Established) {
        let Some(measurement) = &mut self.measurement else { return };
        let [client, server] = &self.sockets;
        let (sending, receiving) = match direction {
            Direction::Request => (client, server),
            Direction::Response => (server, client),
        };
        let mut config = sending.config.clone();
        config.seed ^= (u64::from(measurement.row.seq) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (negotiated, routes) = (measurement.handshake.negotiated(), measurement.routes);
        // Only AccECN echoes every mark, because the two nodes have different congestion controls.
        let counted_ect = sending.counted_ect.filter(|_| negotiated == EcnVariant::AccEcn);
        let ecn = negotiated.feedback(counted_ect);
        config.ecn = ecn;
        let routes = match direction {
            Direction::Request => routes,
            Direction::Response => [routes[1], routes[0]],
        };
        // The receiver of the node that measures is as old as its socket.
        let Measurement { connected_ns, handshake_rtt_ns, .. } = *measurement;
        let receiver = Receiver::new(ecn, receiving.rcvbuf, connected_ns, handshake_rtt_ns);
        let (cc, window_end) = (sending.cc.clone(), receiver.rcv_wnd_end());
        let sender = Sender::new(config, cc, now_ns, established, window_end);
        let half = HalfConnection::new(sender, receiver, routes, ecn);
        measurement.halves[direction as usize] = Some(Box::new(half));
    }

    /// Processes data, which the application reads at once.
    fn on_segment(&mut self, now_ns: u64, direction: Direction, segment: &Segment, ecn: Ecn) {
        if direction == Direction::Request {
            // It also acknowledges the SYN-ACK.
            let Segment { tsval_ns, tsecr_ns, .. } = *segment;
            let ack = HandshakeSegment { tsval_ns, tsecr_ns, ..HandshakeSegment::default() };
            self.on_handshake(now_ns, &Body::HandshakeAck(ack));
        }
        let Some(half) = self.half(direction) else { return };
        let ack = half.on_segment(now_ns, segment, ecn);
        let received_bytes = half.receiver.bytes_received();
        self.outbox.extend(ack);
        match direction {
            Direction::Request if received_bytes >= self.request_bytes => {
                let response_bytes = self.head_bytes + self.body_bytes;
                if let Some(half) = self.half(Direction::Response) {
                    half.sender.write(now_ns, response_bytes);
                }
            }
            Direction::Request => {}
            Direction::Response => self.read_response(now_ns, received_bytes),
        }
    }

    fn read_response(&mut self, now_ns: u64, received_bytes: u64) {
        let Some(measurement) = &mut self.measurement else { return };
        if received_bytes == 0 {
            return;
        }
        let row = &mut measurement.row;
        let since_begin_us = us(row.at_ns, now_ns);
        row.ttfb_us.get_or_insert(since_begin_us);
        row.status = (received_bytes >= self.head_bytes).then_some(200);
        row.bytes = Some(received_bytes.saturating_sub(self.head_bytes));
        if received_bytes >= self.head_bytes + self.body_bytes {
            row.total_us = Some(since_begin_us);
            self.end(now_ns);
        }
    }

    fn fail(&mut self, now_ns: u64, error: &str) {
        let Some(measurement) = &mut self.measurement else { return };
        let to = SocketAddr::new(self.task.to_ip, self.task.port);
        let row = &mut measurement.row;
        let operation = if row.connect_us.is_none() { "connect to" } else { "fetch from" };
        (row.lost, row.error) = (true, format!("{operation} {to}: {error}"));
        self.end(now_ns);
    }

    /// Ends the measurement and queues the next one.
    fn end(&mut self, now_ns: u64) {
        let Some(measurement) = self.measurement.take() else { return };
        self.violation = self.violation.or_else(|| measurement.violation());
        let begin_ns = measurement.row.at_ns;
        self.ended = Some(measurement.row);
        let every_ns = self.task.plan.every.nanos().max(1);
        self.due_ns = match self.task.plan.repeat {
            Repeat::Once => return,
            Repeat::BackToBack => now_ns.max(begin_ns + PAUSE_NS),
            // A measurement that is longer than the interval skips the ones it missed.
            Repeat::Interval => self.due_ns + every_ns * (1 + (now_ns - self.due_ns) / every_ns),
        };
        self.events.push((self.due_ns, MeasurementEvent::Begin));
    }

    /// Transmits what the senders have output, and queues the timers of both half-connections.
    fn after_sockets(&mut self, now_ns: u64) {
        for direction in Direction::ALL {
            let Some(measurement) = &mut self.measurement else { return };
            let Some(half) = &mut measurement.halves[direction as usize] else { continue };
            self.outbox.extend(half.sent());
            for timer in SocketTimer::ALL {
                if let Some(at_ns) = half.queue_event(now_ns, timer) {
                    self.events.push((at_ns, MeasurementEvent::Timer(direction, timer)));
                }
            }
        }
    }
}

/// Returns the port that connect() uses for a measurement of a probe: every second one, as in Linux.
fn local_port(probe: u32, seq: u32) -> u16 {
    let offset = u64::from(probe) * PORTS_PER_PROBE + u64::from(seq) * 2;
    FIRST_LOCAL_PORT + (offset % LOCAL_PORTS) as u16
}

fn us(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns - from_ns) as f64 / 1000.0
}

#[cfg(test)]
mod tests;
