//! One TCP connection of a flow group: handshake, both ends, and the application at both.

use ccbench_proto::plan::Ecn;
use ccbench_proto::schedule::{FlowTask, block_bytes, block_offset_ns};
use ccbench_proto::wire::{self, Role, SampleSource, Side};

use crate::core::CongestionControl;
use crate::packet::{Body, MSS_BYTES, MTU_BYTES, Packet, Segment};
use crate::tcp::{EcnMode, Receiver, Sender, SenderConfig, TCP_TIMEOUT_INIT_US, wheel_ns};

/// `tcp_syn_linear_timeouts`: so many timeouts come before the first that doubles.
const LINEAR_TIMEOUTS: u32 = 4;
/// Attempts of a handshake: `tcp_syn_retries` + `tcp_syn_linear_timeouts` + 1.
const MAX_ATTEMPTS: u32 = 11;

/// TCP_ESTABLISHED.
const ESTABLISHED: u32 = 1;
/// Timestamps, SACK and window scaling in `tcpi_options`; with ECN in addition.
const OPTIONS: u32 = 1 | 2 | 4;
const OPTION_ECN: u32 = 8;

/// A TCP connection and its part of the plan.
pub struct Connection {
    pub task: FlowTask,
    /// "group/0".
    pub id: String,
    /// Number of the connection within its group.
    pub stream: u32,
    /// Nodes with the sender and the receiver.
    pub nodes: [String; 2],
    /// From the sender to the receiver, and back.
    pub routes: [u32; 2],
    /// The name in the plan of the congestion control and its algorithm, if its state has rows.
    pub instance: Option<(String, String)>,
    /// The name in the plan of the congestion control.
    pub cc_name: String,
    pub config: SenderConfig,
    /// Buffer of the receiving socket, bytes.
    pub rcvbuf_bytes: u64,
    cc: Option<CongestionControl>,
    pub state: State,
    /// CLOCK_MONOTONIC when the connection was made.
    pub established_ns: Option<u64>,
    /// All connections of the group were made, and the application began to write.
    pub started_ns: Option<u64>,
    /// The application has stopped.
    pub stopped_ns: Option<u64>,
    /// Blocks that an application with a rate has written.
    written_blocks: u64,
    /// Times of the events that are queued: timer and pacing of the sender, timer of the receiver.
    pub queued_event_ns: [u64; 3],
}

/// Where a connection is.
pub enum State {
    Closed,
    /// A SYN was sent so often, last at this time; the listener has answered at that time.
    SynSent {
        attempts: u32,
        syn_sent_ns: u64,
        syn_ack_sent_ns: Option<u64>,
    },
    Established {
        sender: Box<Sender>,
        receiver: Box<Receiver>,
    },
    /// No answer.
    Failed,
    /// The application has ended and reset the connection.
    Ended,
}

impl Connection {
    pub fn new(
        (task, stream): (FlowTask, u32),
        routes: [u32; 2],
        instance: Option<(String, String)>,
        cc: CongestionControl,
        config: SenderConfig,
        rcvbuf_bytes: u64,
    ) -> Self {
        let (from, to) = (task.plan.from.clone(), task.plan.to.clone());
        let nodes = if task.plan.reverse { [to, from] } else { [from, to] };
        Self {
            id: format!("{}/{stream}", task.group),
            stream,
            nodes,
            routes,
            instance,
            cc_name: String::new(),
            cc: Some(cc),
            config,
            rcvbuf_bytes,
            state: State::Closed,
            established_ns: None,
            started_ns: None,
            stopped_ns: None,
            written_blocks: 0,
            queued_event_ns: [u64::MAX; 3],
            task,
        }
    }

    /// Route of packets of the node that connects, or of the other one.
    fn route_of(&self, is_client: bool) -> u32 {
        self.routes[usize::from(is_client == self.task.plan.reverse)]
    }

    /// Sends a SYN, also again; returns it and when to try again.
    pub fn open(&mut self, now_ns: u64) -> Option<(Packet, u64)> {
        let attempts = match self.state {
            State::Closed => 0,
            State::SynSent { attempts, .. } => attempts,
            _ => return None,
        };
        if attempts >= MAX_ATTEMPTS {
            self.state = State::Failed;
            return None;
        }
        let syn_ack_sent_ns = None;
        self.state =
            State::SynSent { attempts: attempts + 1, syn_sent_ns: now_ns, syn_ack_sent_ns };
        let timeout_ns = (TCP_TIMEOUT_INIT_US * 1000) << attempts.saturating_sub(LINEAR_TIMEOUTS);
        let retry_ns = wheel_ns(now_ns, timeout_ns);
        Some((Packet::new(self.route_of(true), Ecn::NotEct, Body::Syn), retry_ns))
    }

    /// A segment of the handshake arrives; returns the answer. The connection is established once its sender may send.
    pub fn on_handshake(&mut self, now_ns: u64, body: &Body) -> Option<Packet> {
        let State::SynSent { syn_sent_ns, syn_ack_sent_ns, .. } = &mut self.state else {
            // The last segment of the handshake was lost.
            let is_open = matches!(self.state, State::Established { .. });
            let again = is_open && matches!(body, Body::SynAck);
            return again
                .then(|| Packet::new(self.route_of(true), Ecn::NotEct, Body::HandshakeAck));
        };
        let syn_sent_ns = *syn_sent_ns;
        match body {
            Body::Syn => {
                syn_ack_sent_ns.get_or_insert(now_ns);
                Some(Packet::new(self.route_of(false), Ecn::NotEct, Body::SynAck))
            }
            Body::SynAck => {
                if !self.task.plan.reverse {
                    self.establish(now_ns, now_ns - syn_sent_ns);
                }
                Some(Packet::new(self.route_of(true), Ecn::NotEct, Body::HandshakeAck))
            }
            _ => {
                if let Some(syn_ack_sent_ns) = *syn_ack_sent_ns {
                    self.establish(now_ns, now_ns - syn_ack_sent_ns);
                }
                None
            }
        }
    }

    fn establish(&mut self, now_ns: u64, rtt_ns: u64) {
        let Some(cc) = self.cc.take() else { return };
        let receiver = Receiver::new(self.config.ecn, self.rcvbuf_bytes, now_ns, rtt_ns);
        let rtt_us = (rtt_ns / 1000) as u32;
        let sender = Sender::new(self.config.clone(), cc, now_ns, rtt_us, receiver.rcv_wnd_end());
        self.state = State::Established { sender: Box::new(sender), receiver: Box::new(receiver) };
        self.established_ns = Some(now_ns);
    }

    pub fn sender(&mut self) -> Option<&mut Sender> {
        match &mut self.state {
            State::Established { sender, .. } => Some(sender),
            _ => None,
        }
    }

    pub fn receiver(&mut self) -> Option<&mut Receiver> {
        match &mut self.state {
            State::Established { receiver, .. } => Some(receiver),
            _ => None,
        }
    }

    /// The application writes what it has at this time; returns when it writes again.
    pub fn write(&mut self, now_ns: u64) -> Option<u64> {
        if self.stopped_ns.is_some() {
            return None;
        }
        let started_ns = self.started_ns?;
        let since_ns = now_ns - started_ns;
        let Some(rate) = self.task.plan.rate else {
            // Never at its end, and never idle.
            self.sender()?.write(now_ns, u64::MAX / 2);
            return None;
        };
        // As ccbench's generator.
        let block_bytes = block_bytes(rate);
        let due_ns = |block| block_offset_ns(rate, block_bytes, block);
        let mut blocks = self.written_blocks;
        while due_ns(blocks) <= since_ns {
            blocks += 1;
        }
        self.written_blocks = blocks;
        self.sender()?.write(now_ns, blocks * block_bytes);
        Some(started_ns.saturating_add(due_ns(blocks)))
    }

    /// A segment with data arrives.
    pub fn on_segment(&mut self, now_ns: u64, segment: &Segment, ecn: Ecn) -> Option<Packet> {
        let route = self.routes[1];
        let reply = self.receiver()?.on_segment(now_ns, segment, ecn);
        reply.map(|ack| Packet::new(route, Ecn::NotEct, Body::Ack(ack)))
    }

    /// Whether packets carry an ECN-capable code point.
    pub fn ecn(&self) -> EcnMode {
        self.config.ecn
    }

    /// Bytes of new data that the sender has sent.
    pub fn sent_bytes(&mut self) -> u64 {
        self.sender().map_or(0, |sender| sender.sent_bytes())
    }

    /// A number that identifies the socket, as the kernel's cookie.
    pub fn cookie(&self) -> u64 {
        u64::from(self.routes[0]) + 1
    }

    /// Local and remote port of one end.
    pub fn ports(&self, side: Side) -> (u32, u32) {
        let client = u32::from(self.task.client_port) + self.stream;
        let server = u32::from(self.task.server_port);
        let is_client = (side == Side::Sender) != self.task.plan.reverse;
        if is_client { (client, server) } else { (server, client) }
    }

    /// The part of a sample that both ends have.
    pub fn sample_base(&self, now_ns: u64, side: Side) -> wire::FlowSample {
        let (sport, dport) = self.ports(side);
        let has_ecn = self.ecn() != EcnMode::Off;
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
