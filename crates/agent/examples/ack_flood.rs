//! An agent with simulated acknowledgements. It produces more rows per second than any real flow here, which then take
//! the real path (gathering, outbox, gRPC, tables). For `tests/bench/ack_soak.sh`.
//!
//! `ack_flood LISTEN ROWS_PER_SECOND SOCKETS`: listens on a loopback address.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ccbench_agent::args::{Cli, Command};
use ccbench_agent::executor::{self, Dependencies};
use ccbench_agent::flow::process::Generators;
use ccbench_agent::interfaces::Machine;
use ccbench_agent::service::AgentService;
use ccbench_agent::sockets::allowed::AllowedModules;
use ccbench_agent::sockets::journal;
use ccbench_agent::sockets::supplied::AllowedDigests;
use ccbench_agent::undo::Undo;
use ccbench_collector::FlowPorts;
use ccbench_collector::acks::batcher::Batcher;
use ccbench_collector::acks::record::ROW_BYTES;
use ccbench_collector::acks::{AckSource, Watch};
use ccbench_proto::plan::Acks;
use ccbench_proto::wire::agent_server::AgentServer;
use ccbench_proto::wire::{self, run_event::Payload};
use clap::Parser as _;
use tokio_stream::wrappers::TcpListenerStream;

static ROWS_PER_SECOND: AtomicU64 = AtomicU64::new(0);
static SOCKETS: AtomicU64 = AtomicU64::new(0);
const SECOND_NS: u64 = 1_000_000_000;
const TICK_US: u64 = 4000;

fn main() {
    // Traffic starts through this program, as it would through the agent's.
    if std::env::args().nth(1).as_deref() == Some("launch")
        && let Command::Launch(args) = Cli::parse().command
    {
        std::process::exit(ccbench_agent::launch::main(&args).unwrap().into());
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, rows, sockets] = &arguments[..] else { panic!("LISTEN ROWS_PER_SECOND SOCKETS") };
    let address: SocketAddr = listen.parse().unwrap();
    assert!(address.ip().is_loopback(), "there are no certificates");
    ROWS_PER_SECOND.store(rows.parse().unwrap(), Ordering::Relaxed);
    SOCKETS.store(sockets.parse().unwrap(), Ordering::Relaxed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let generators = Arc::new(Generators::in_group(None));
        let executor = executor::spawn(Dependencies {
            interfaces: Arc::new(Machine),
            source: generators.clone(),
            sampler: ccbench_collector::default_sampler,
            acks: |watch| Ok(Box::new(Flood::new(watch))),
            undo: Undo::in_memory(),
            generation_file: None,
            cc_journals: journal::FOLDER.into(),
            traffic_group: None,
            cc_digests: AllowedDigests::Any,
            modules: AllowedModules::default(),
            boot: None,
        });
        let service = AgentServer::new(AgentService::new(executor, generators, vec![]));
        let service = service.max_decoding_message_size(wire::MAX_MESSAGE_BYTES);
        let incoming =
            TcpListenerStream::new(tokio::net::TcpListener::bind(address).await.unwrap());
        tonic::transport::Server::builder().serve_with_incoming(service, incoming).await.unwrap();
    });
}

/// A socket that sends at a constant rate through a queue that fills and drains.
struct Socket {
    ports: u32,
    cookie: u64,
    segments: u64,
    bytes_acked: u64,
    delivered: u32,
    cwnd: u32,
    rtt_us: u32,
}

struct Flood {
    batcher: Batcher,
    sockets: Vec<Socket>,
    /// The socket of the next row.
    turn: usize,
    made: u64,
    begin_ns: Option<u64>,
    last_ns: u64,
    noise: u64,
}

impl Flood {
    fn new(watch: &Watch<'_>) -> Self {
        let flow: &FlowPorts = &watch.flows[0];
        let socket = |number: u64| Socket {
            ports: (u32::from(flow.client_port) + number as u32)
                | u32::from(flow.server_port) << 16,
            cookie: (1 << 40) | number,
            segments: 0,
            bytes_acked: 1,
            delivered: 1,
            cwnd: 10,
            rtt_us: 20_000,
        };
        Self {
            batcher: Batcher::new(watch.flows, TICK_US),
            sockets: (0..SOCKETS.load(Ordering::Relaxed)).map(socket).collect(),
            turn: 0,
            made: 0,
            begin_ns: None,
            last_ns: 0,
            noise: 88_172_645_463_325_252,
        }
    }

    /// Xorshift noise: rows of a real flow are never regular.
    fn noise(&mut self, below: u64) -> u64 {
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        self.noise % below
    }

    fn make(&mut self, at_ns: u64) {
        let [few, some, many] = [2, 64, 4096].map(|below| self.noise(below));
        let socket = &mut self.sockets[self.turn];
        let packets = 1 + few as u32;
        socket.segments += 1;
        socket.bytes_acked += 1448 * u64::from(packets);
        socket.delivered = socket.delivered.wrapping_add(packets);
        socket.cwnd =
            if many == 0 { socket.cwnd / 2 + 2 } else { socket.cwnd + u32::from(many < 40) };
        socket.rtt_us = (socket.rtt_us + some as u32).saturating_sub(31).clamp(15_000, 60_000);
        let mut row = [0; ROW_BYTES];
        let mut put = |at: usize, bytes: &[u8]| row[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &1u32.to_ne_bytes());
        put(4, &socket.ports.to_ne_bytes());
        let pacing = u64::from(socket.cwnd) * 1448 * 1_200_000 / u64::from(socket.rtt_us);
        let sent = socket.bytes_acked + u64::from(socket.cwnd) * 1448;
        // The order of `struct row`: time, cookie, segments, lost; acked, received, sent, retransmitted, pacing.
        let long =
            [at_ns, socket.cookie, socket.segments, 0, socket.bytes_acked, 37, sent, 0, pacing];
        put(8, &long.map(u64::to_ne_bytes).concat());
        let (rtt, cwnd, delivered) = (socket.rtt_us, socket.cwnd, socket.delivered);
        let sent = delivered.wrapping_add(cwnd);
        let in_s = socket.segments as u32;
        // rtt, rttvar, min rtt, rto, ato; cwnd, ssthresh, unacked, sacked, lost, retrans, reordering; delivered, ce,
        // rate sample; retransmissions, segments out and in, data out and in, not sent, windows.
        let short = [
            rtt,
            300 + some as u32,
            15_000,
            55,
            10,
            cwnd,
            cwnd - 1,
            cwnd - packets,
            0,
            0,
            0,
            3,
            delivered,
            0,
            cwnd,
            rtt + many as u32,
            0,
            sent,
            in_s,
            sent,
            2,
            14_480,
            3_145_728,
            65_536,
        ];
        put(80, &short.map(u32::to_ne_bytes).concat());
        self.batcher.push(&row);
        self.turn = (self.turn + 1) % self.sockets.len();
    }
}

impl AckSource for Flood {
    fn drain(&mut self, now_ns: u64, all: bool, into: &mut Vec<Payload>) {
        let begin_ns = *self.begin_ns.get_or_insert(now_ns);
        let rate = ROWS_PER_SECOND.load(Ordering::Relaxed);
        let due = (u128::from(now_ns - begin_ns) * u128::from(rate) / u128::from(SECOND_NS)) as u64;
        let (from_ns, count) = (self.last_ns.max(begin_ns), due - self.made);
        for row in 0..count {
            let jitter = self.noise(SECOND_NS / rate);
            self.make(from_ns + (now_ns - from_ns) * row / count + jitter);
        }
        (self.made, self.last_ns) = (due, now_ns);
        self.batcher.drain(now_ns, all, into);
    }

    fn count_refused(&mut self, payload: &Payload) {
        self.batcher.count_refused(payload);
    }

    fn counts(&mut self, at_ns: u64) -> Vec<wire::AckCount> {
        let mut counts = Vec::new();
        for socket in &self.sockets {
            let (sport, dport) = ((socket.ports & 0xffff) as u16, (socket.ports >> 16) as u16);
            let Some(count) = self.batcher.count(at_ns, socket.cookie, sport, dport) else {
                continue;
            };
            counts.push(wire::AckCount {
                mode: Some(wire::AckMode::of_sockets(Acks::Every, 1)),
                hook: wire::AckHook::TpBtfTcpProbe.into(),
                segments: socket.segments,
                ..count
            });
        }
        counts
    }

    fn period(&self) -> Duration {
        Duration::from_millis(10)
    }

    fn notes(&self) -> &[String] {
        &[]
    }
}
