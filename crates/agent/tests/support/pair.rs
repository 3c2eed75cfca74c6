//! Two agents in one namespace, and what they send.

use std::collections::BTreeMap;

use ccbench_proto::wire::agent_client::AgentClient;
use ccbench_proto::wire::{self, run_event::Payload};
use ccbench_tests::cpu::{CpuReport, CpuWatch};
use tonic::transport::Channel;

use super::{Agent, Namespace, Turn, now_ns, prepare};

/// Two agents in one namespace: "one" connects, "two" listens.
pub struct Pair {
    pub namespace: Namespace,
    pub one: Agent,
    pub two: Agent,
    pub clients: [AgentClient<Channel>; 2],
    /// The state before the test.
    pub before: String,
    /// Held until everything is gone.
    _turn: Turn,
}

impl Pair {
    /// Starts beside other tests.
    pub async fn start() -> Self {
        Self::start_in(Turn::beside().await).await
    }

    /// Starts without other tests of this binary, to measure.
    pub async fn start_alone() -> Self {
        Self::start_in(Turn::alone().await).await
    }

    async fn start_in(turn: Turn) -> Self {
        let namespace = Namespace::new();
        let before = state_of(&namespace);
        let (one, two) = (Agent::inside(&namespace), Agent::inside(&namespace));
        let clients = [one.connect().await, two.connect().await];
        Self { namespace, one, two, clients, before, _turn: turn }
    }

    pub async fn prepare(&mut self, plan: &str, epoch: u64) {
        for (client, node) in self.clients.iter_mut().zip(["one", "two"]) {
            client.prepare(prepare(plan, node, epoch)).await.unwrap();
        }
    }

    pub async fn run(&mut self, epoch: u64) -> [tonic::Streaming<wire::RunEvent>; 2] {
        let run = wire::RunRequest { start_at_ns: now_ns() + 300_000_000, epoch };
        let [one, two] = &mut self.clients;
        [one.run(run).await.unwrap().into_inner(), two.run(run).await.unwrap().into_inner()]
    }

    /// Runs a prepared trial to its end. Returns the rows of each agent, and a report on the available CPU time.
    pub async fn trial(&mut self, epoch: u64) -> ([Rows; 2], CpuReport) {
        let watch = CpuWatch::start();
        let [one, two] = self.run(epoch).await;
        let (one, two) = tokio::join!(Rows::all(one), Rows::all(two));
        ([one, two], watch.report())
    }

    pub async fn reset(&mut self) {
        for client in &mut self.clients {
            let reply = client.reset(wire::ResetRequest::default()).await.unwrap().into_inner();
            assert!(reply.failed.is_empty(), "{reply:?}");
        }
    }

    /// Whether all settings, offloads, qdiscs and processes are as before.
    pub fn is_as_found(&self) -> bool {
        state_of(&self.namespace) == self.before
            && self.one.children().is_empty()
            && self.two.children().is_empty()
    }
}

/// Returns the state that a trial may change.
fn state_of(namespace: &Namespace) -> String {
    let features = namespace.run(&["ethtool", "-k", "lo"]);
    let qdiscs = namespace.run(&["tc", "qdisc"]);
    let setting = "/proc/sys/net/ipv4/tcp_slow_start_after_idle";
    format!("{features}{qdiscs}{}", namespace.run(&["cat", setting]))
}

#[derive(Default)]
pub struct Rows {
    pub events: Vec<wire::Event>,
    pub flows: Vec<wire::Flow>,
    pub samples: Vec<wire::FlowSample>,
    pub intervals: Vec<wire::Interval>,
    pub probes: Vec<wire::Probe>,
    pub hosts: usize,
    pub states: Vec<wire::CcState>,
    pub queue: Vec<wire::QdiscSample>,
    pub acks: Vec<wire::Acks>,
    pub tcp_events: Vec<wire::TcpEvent>,
    pub ack_counts: Vec<wire::AckCount>,
    pub raw: BTreeMap<String, Vec<u8>>,
    pub done: Option<wire::Done>,
}

impl Rows {
    pub async fn all(mut stream: tonic::Streaming<wire::RunEvent>) -> Self {
        let mut rows = Self::default();
        while let Some(event) = stream.message().await.unwrap() {
            rows.take(event);
        }
        rows
    }

    /// Takes one more message.
    pub fn take(&mut self, event: wire::RunEvent) {
        assert!(self.done.is_none(), "Done is the last");
        match event.payload.unwrap() {
            Payload::FlowSample(row) => self.samples.push(row),
            Payload::Interval(row) => self.intervals.push(row),
            Payload::Probe(row) => self.probes.push(row),
            Payload::HostSample(_) => self.hosts += 1,
            Payload::CcState(row) => self.states.push(row),
            Payload::Event(row) => self.events.push(row),
            Payload::Flow(row) => self.flows.push(row),
            Payload::Raw(raw) => self.raw.entry(raw.name).or_default().extend(raw.data),
            Payload::Done(done) => self.done = Some(done),
            Payload::QdiscSample(row) => self.queue.push(row),
            Payload::Acks(rows) => self.acks.push(rows),
            Payload::TcpEvents(rows) => self.tcp_events.extend(rows.events),
            Payload::AckCount(row) => self.ack_counts.push(row),
            Payload::LinkChange(_) | Payload::LinkTiming(_) | Payload::LinkPacket(_) => {}
        }
    }

    pub fn events_of(&self, kind: &str) -> Vec<&wire::Event> {
        self.events.iter().filter(|event| event.name() == kind).collect()
    }
}
