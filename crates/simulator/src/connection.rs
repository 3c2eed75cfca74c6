//! One TCP connection of a flow group: the handshake, both ends, and the applications at both ends.

use ccbench_proto::plan::Ecn;
use ccbench_proto::schedule::{FlowTask, block_bytes, block_offset_ns, paused_offset_ns};
use ccbench_proto::units::Bytes;
use ccbench_proto::wire::{self, Role, SampleSource, Side};

use crate::congestion_control::CongestionControl;
use crate::ecn_negotiation::{EcnSettings, EcnVariant};
use crate::half_connection::HalfConnection;
use crate::handshake::Handshake;
use crate::packet::{Body, MSS_BYTES, MTU_BYTES, Packet, Segment};
use crate::tcp::{Established, Receiver, Sender, SenderConfig, SocketBuffer};

/// TCP_ESTABLISHED.
const ESTABLISHED: u32 = 1;
/// `tcpi_options`: timestamps, SACK and window scaling; ECN is added to these.
const OPTIONS: u32 = 1 | 2 | 4;
const OPTION_ECN: u32 = 8;

/// A TCP connection with its part of the plan.
pub struct Connection {
    pub task: FlowTask,
    /// "group/0".
    pub id: String,
    /// Number of the connection within its group.
    pub stream: u32,
    /// The nodes of the sender and the receiver.
    pub nodes: [String; 2],
    /// Routes from the sender to the receiver, and back.
    pub routes: [u32; 2],
    /// If the congestion control's state has rows: its name in the plan, and its algorithm.
    pub instance: Option<(String, String)>,
    /// The name in the plan of the congestion control.
    pub cc_name: String,
    /// Settings of the sender. The handshake determines the feedback of marks.
    config: SenderConfig,
    /// ECN field of data packets if the congestion control counts marks.
    counted_ect: Option<Ecn>,
    /// What the handshake negotiated.
    ecn: EcnVariant,
    /// Buffer of the receiving socket.
    rcvbuf: SocketBuffer,
    cc: Option<CongestionControl>,
    handshake: Handshake,
    /// Whether connect() has returned.
    pub is_connected: bool,
    pub state: State,
    /// When the connection was established, CLOCK_MONOTONIC.
    pub established_ns: Option<u64>,
    /// When all connections of the group were established and the application began to write.
    pub started_ns: Option<u64>,
    /// When the receiver read the last byte of a finite flow.
    pub completed_ns: Option<u64>,
    /// When the application stopped.
    pub stopped_ns: Option<u64>,
    /// Blocks written by an application that has a rate.
    written_blocks: u64,
}

/// State of a connection.
pub enum State {
    Closed,
    /// A SYN was sent.
    SynSent,
    /// The sender may send.
    Established(Box<HalfConnection>),
    /// This connection, or another one of its group, got no answer.
    Failed,
    /// The application has ended and has reset the connection.
    Ended,
}

impl Connection {
    pub fn new(
        (task, stream): (FlowTask, u32),
        routes: [u32; 2],
        instance: Option<(String, String)>,
        cc: CongestionControl,
        (config, rcvbuf): (SenderConfig, SocketBuffer),
        (ecn, counted_ect): (EcnSettings, Option<Ecn>),
    ) -> Self {
        let (from, to) = (task.plan.from.clone(), task.plan.to.clone());
        let nodes = if task.plan.reverse { [to, from] } else { [from, to] };
        let [there, back] = routes;
        let handshake_routes = if task.plan.reverse { [back, there] } else { [there, back] };
        Self {
            id: format!("{}/{stream}", task.group),
            stream,
            nodes,
            routes,
            instance,
            cc_name: String::new(),
            cc: Some(cc),
            config,
            counted_ect,
            ecn: EcnVariant::NoEcn,
            rcvbuf,
            handshake: Handshake::new(handshake_routes, ecn),
            is_connected: false,
            state: State::Closed,
            established_ns: None,
            started_ns: None,
            completed_ns: None,
            stopped_ns: None,
            written_blocks: 0,
            task,
        }
    }

    /// Sends a SYN, possibly again. Returns it, and when to try again.
    pub fn open(&mut self, now_ns: u64) -> Option<(Packet, u64)> {
        if !matches!(self.state, State::Closed | State::SynSent) {
            return None;
        }
        let opened = self.handshake.open(now_ns);
        self.state = if opened.is_some() { State::SynSent } else { State::Failed };
        opened
    }

    /// Processes a segment of the handshake and returns the answer. The connection is established once its sender may send.
    pub fn on_handshake(&mut self, now_ns: u64, body: &Body) -> Option<Packet> {
        if !matches!(self.state, State::SynSent) {
            // The last segment of the handshake was lost.
            let is_open = matches!(self.state, State::Established(_));
            let again = is_open && matches!(body, Body::SynAck(_));
            return again.then(|| self.handshake.acknowledge(now_ns));
        }
        let step = self.handshake.on_segment(now_ns, body);
        let is_at_client = matches!(body, Body::SynAck(_));
        self.is_connected |= is_at_client;
        let is_at_sender = is_at_client != self.task.plan.reverse;
        if let Some(established) = step.established.filter(|_| is_at_sender) {
            self.establish(now_ns, established);
        }
        step.answer
    }

    fn establish(&mut self, now_ns: u64, established: Established) {
        let Some(cc) = self.cc.take() else { return };
        self.ecn = self.handshake.negotiated();
        self.config.ecn = self.ecn.feedback(self.counted_ect);
        let receiver = Receiver::new(self.config.ecn, self.rcvbuf, now_ns, established.rtt_ns);
        let (config, window_end) = (self.config.clone(), receiver.rcv_wnd_end());
        let sender = Sender::new(config, cc, now_ns, established, window_end);
        let half = HalfConnection::new(sender, receiver, self.routes, self.config.ecn);
        self.state = State::Established(Box::new(half));
        self.established_ns = Some(now_ns);
    }

    pub fn half(&mut self) -> Option<&mut HalfConnection> {
        match &mut self.state {
            State::Established(half) => Some(half),
            _ => None,
        }
    }

    pub fn sender(&mut self) -> Option<&mut Sender> {
        self.half().map(|half| &mut half.sender)
    }

    pub fn receiver(&mut self) -> Option<&mut Receiver> {
        self.half().map(|half| &mut half.receiver)
    }

    /// Lets the application write what it has at this time. Returns when it writes again.
    pub fn write(&mut self, now_ns: u64) -> Option<u64> {
        if self.stopped_ns.is_some() {
            return None;
        }
        let started_ns = self.started_ns?;
        let since_ns = now_ns - started_ns;
        // Without `bytes`, the end is never reached.
        let length_bytes = self.task.plan.bytes.map_or(u64::MAX / 2, Bytes::get);
        let Some(rate) = self.task.plan.rate else {
            self.sender()?.write(now_ns, length_bytes);
            return None;
        };
        // As in ccbench's generator.
        let block_bytes = block_bytes(rate);
        let pause = self.task.plan.pause;
        let due_ns = |block| paused_offset_ns(block_offset_ns(rate, block_bytes, block), pause);
        let mut blocks = self.written_blocks;
        while due_ns(blocks) <= since_ns {
            blocks += 1;
        }
        self.written_blocks = blocks;
        let written_bytes = blocks.saturating_mul(block_bytes).min(length_bytes);
        self.sender()?.write(now_ns, written_bytes);
        (written_bytes < length_bytes).then(|| started_ns.saturating_add(due_ns(blocks)))
    }

    /// Processes a segment with data.
    pub fn on_segment(&mut self, now_ns: u64, segment: &Segment, ecn: Ecn) -> Option<Packet> {
        let reply = self.half()?.on_segment(now_ns, segment, ecn);
        if let Some(length) = self.task.plan.bytes.filter(|_| self.completed_ns.is_none()) {
            let received_bytes = self.receiver()?.bytes_received();
            self.completed_ns = (received_bytes >= length.get()).then_some(now_ns);
        }
        reply
    }

    /// Returns the bytes of new data that the sender has sent.
    pub fn sent_bytes(&mut self) -> u64 {
        self.sender().map_or(0, |sender| sender.sent_bytes())
    }

    /// Returns a number that identifies the socket, like the kernel's cookie.
    pub fn cookie(&self) -> u64 {
        u64::from(self.routes[0]) + 1
    }

    /// Returns the local and remote port of one end.
    pub fn ports(&self, side: Side) -> (u32, u32) {
        let client = u32::from(self.task.client_port) + self.stream;
        let server = u32::from(self.task.server_port);
        let is_client = (side == Side::Sender) != self.task.plan.reverse;
        if is_client { (client, server) } else { (server, client) }
    }

    /// Returns the part of a sample that is the same for both ends.
    pub fn sample_base(&self, now_ns: u64, side: Side) -> wire::FlowSample {
        let (sport, dport) = self.ports(side);
        let has_ecn = self.ecn != EcnVariant::NoEcn;
        wire::FlowSample {
            at_ns: now_ns,
            flow_id: self.id.clone(),
            group: self.task.group.clone(),
            cc: if side == Side::Sender { self.cc_name.clone() } else { String::new() },
            cookie: Some(self.cookie()),
            sport,
            dport,
            state: Some(ESTABLISHED),
            options: Some(OPTIONS | if has_ecn { OPTION_ECN } else { 0 }),
            ecn_mode: Some(self.ecn as u32),
            snd_mss_bytes: Some(MSS_BYTES),
            rcv_mss_bytes: Some(MSS_BYTES),
            advmss_bytes: Some(MSS_BYTES),
            pmtu_bytes: Some(MTU_BYTES),
            side: side.into(),
            role: Role::Data.into(),
            sample_src: SampleSource::Diag.into(),
            ..wire::FlowSample::default()
        }
    }
}
