//! ECN of real flows between two namespaces over a userspace link that marks: what is on the wire, what is counted, which flows have
//! ECN and which do not, and that nothing is left behind. Needs root, iperf3 and a kernel that accepts BPF congestion controls.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::wire::agent_client::AgentClient;
use ccbench_proto::wire::{self, Role, Side, run_event::Payload};
use ccbench_tests::cpu::{CpuReport, CpuWatch};
use serde_json::Value;
use support::{
    Agent, Namespace, Turn, difference, now_ns, prepare, read_state, wait_for, wired_namespaces,
};
use tonic::transport::Channel;

/// A link that marks above 1 ms, a flow that counts marks, and one without ECN.
const PLAN: &str = r#"
name = "ecn"
[nodes.one]
address = "10.9.0.1"
agent = "10.9.0.1:7700"
[nodes.two]
address = "10.9.0.2"
agent = "10.9.0.2:7700"
[links.marking]
node = "one"
toward = "two"
rate = "20mbit"
delay = "5ms"
backend = "userspace"
queue = { kind = "fq", limit = "1000p", buckets = 1, ce_threshold = "1ms" }
[cc.l4s]
algorithm = "ALGORITHM"
[flows.marked]
from = "one"
to = "two"
cc = "l4s"
[flows.plain]
from = "one"
to = "two"
cc = "cubic"
rate = "1mbit"
[[phases]]
name = "only"
length = "4s"
flows = ["marked", "plain"]
"#;

struct Nodes {
    namespaces: [Namespace; 2],
    agents: [Agent; 2],
    clients: [AgentClient<Channel>; 2],
    before: [String; 2],
    /// The kernel names of their congestion controls.
    registered: Vec<String>,
}

#[derive(Default)]
struct Seen {
    events: Vec<wire::Event>,
    flows: Vec<wire::Flow>,
    samples: Vec<wire::FlowSample>,
    queue: Vec<wire::QdiscSample>,
    cpu: Option<CpuReport>,
}

impl Nodes {
    async fn start() -> Self {
        let namespaces = wired_namespaces();
        for (namespace, dev) in namespaces.iter().zip(["v0", "v1"]) {
            let sure = || !namespace.run(&["ip", "addr", "show", dev]).contains("tentative");
            wait_for("sure addresses", sure).await;
        }
        let before = [read_state(&namespaces[0], &["v0"]), read_state(&namespaces[1], &["v1"])];
        let agents = [Agent::inside(&namespaces[0]), Agent::inside(&namespaces[1])];
        let clients = [agents[0].connect().await, agents[1].connect().await];
        Self { namespaces, agents, clients, before, registered: Vec::new() }
    }

    /// Prepares the first or the second node, and returns what it reports.
    async fn prepare(&mut self, plan: &str, index: usize) -> Seen {
        let mut request = prepare(plan, ["one", "two"][index], 1);
        // Makes the names of its congestion controls differ from another test's.
        request.run_id = self.agents[0].dir.path().display().to_string();
        request.addresses.insert("one".into(), "10.9.0.1".into());
        request.addresses.insert("two".into(), "10.9.0.2".into());
        let reply = self.clients[index].prepare(request).await.unwrap().into_inner();
        self.registered.extend(reply.congestion_controls.into_iter().map(|cc| cc.kernel_name));
        Seen { events: reply.events, ..Seen::default() }
    }

    async fn run(&mut self, algorithm: &str) -> [Seen; 2] {
        let plan = PLAN.replace("ALGORITHM", algorithm);
        let mut seen = [self.prepare(&plan, 0).await, self.prepare(&plan, 1).await];
        let watch = CpuWatch::start();
        let run = wire::RunRequest { start_at_ns: now_ns() + 300_000_000, epoch: 1 };
        let [one, two] = &mut self.clients;
        let (one, two) = (one.run(run).await.unwrap(), two.run(run).await.unwrap());
        let [first, second] = &mut seen;
        tokio::join!(first.all(one.into_inner()), second.all(two.into_inner()));
        first.cpu = Some(watch.report());
        seen
    }

    /// Returns the number of programs that the agents hold in the kernel.
    fn held(&self) -> usize {
        let files = self.agents.iter().flat_map(|agent| {
            std::fs::read_dir(format!("/proc/{}/fd", agent.child.id())).unwrap().flatten()
        });
        let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("bpf")).count()
    }

    async fn reset(&mut self) {
        for client in &mut self.clients {
            let reply = client.reset(wire::ResetRequest::default()).await.unwrap().into_inner();
            assert!(reply.failed.is_empty(), "{reply:?}");
        }
        for ((namespace, dev), before) in self.namespaces.iter().zip(["v0", "v1"]).zip(&self.before)
        {
            assert_eq!(difference(before, &read_state(namespace, &[dev])), "");
        }
        let list = "/proc/sys/net/ipv4/tcp_available_congestion_control";
        let left = std::fs::read_to_string(list).unwrap();
        assert!(!self.registered.is_empty());
        for name in &self.registered {
            assert!(!left.split_whitespace().any(|there| there == name), "{name} is left: {left}");
        }
        assert_eq!(self.held(), 0, "BPF programs, maps or links are left");
    }
}

impl Seen {
    async fn all(&mut self, mut stream: tonic::Streaming<wire::RunEvent>) {
        while let Some(event) = stream.message().await.unwrap() {
            match event.payload.unwrap() {
                Payload::Event(row) => self.events.push(row),
                Payload::Flow(row) => self.flows.push(row),
                Payload::FlowSample(row) => self.samples.push(row),
                Payload::QdiscSample(row) => self.queue.push(row),
                _ => {}
            }
        }
    }

    fn data(&self, kind: &str) -> Vec<Value> {
        let of_kind = self.events.iter().filter(|event| event.name() == kind);
        of_kind.map(|event| serde_json::from_str(&event.data_json()).unwrap()).collect()
    }

    /// Returns whether the handshakes of a group's connections agreed on ECN.
    fn negotiated(&self, group: &str, role: Role) -> BTreeSet<bool> {
        let own = self.samples.iter().filter(|s| s.group == group && s.role() == role);
        own.filter_map(|s| s.options).map(|options| options & 8 != 0).collect()
    }
}

/// Returns the queue's marks so far, of both kinds.
fn marks(row: &wire::QdiscSample) -> u64 {
    row.ce_mark_pkts.unwrap_or(0) + row.ecn_mark_pkts.unwrap_or(0)
}

/// Checks that the counted marks equal those made until the last sample, less those still on their way.
fn counted_are_marked(sender: &Seen) {
    let own = sender.samples.iter().filter(|s| s.group == "marked" && s.role() == Role::Data);
    let last = own.max_by_key(|s| s.at_ns).unwrap();
    let counted = u64::from(last.delivered_ce_pkts.unwrap());
    let until = |at_ns| sender.queue.iter().filter(|row| row.at_ns <= at_ns).map(marks).max();
    let least = until(last.at_ns - 400_000_000).unwrap();
    let most = sender.queue.iter().map(marks).max().unwrap();
    // Compares the last samples, which are 100 ms apart.
    sender.cpu.unwrap().check(Duration::from_millis(100), || {
        assert!(least > 20, "the link marked: {least}");
        assert!(
            (least * 98 / 100..=most + most / 50 + 2).contains(&counted),
            "counted {counted}, marked {least} to {most}"
        );
    });
}

#[tokio::test]
async fn prague_has_ect1_and_exact_counts() {
    let _alone = Turn::alone().await;
    let mut nodes = Nodes::start().await;
    let best = {
        let info = nodes.clients[0].describe(wire::DescribeRequest {}).await.unwrap().into_inner();
        info.ecn.first().cloned().unwrap()
    };
    assert_ne!(best, "rfc3168", "this kernel takes BPF congestion controls");
    let [sender, receiver] = nodes.run("prague").await;
    for (seen, side) in [(&sender, Side::Sender), (&receiver, Side::Receiver)] {
        let events = seen.data("ecn");
        assert_eq!(events.len(), 1, "one end of one group: {events:?}");
        assert_eq!(
            (&events[0]["mode"], &events[0]["side"]),
            (&best.clone().into(), &side.as_text().into())
        );
        assert_eq!(seen.negotiated("marked", Role::Data), [true].into(), "{side:?}");
        assert_eq!(seen.negotiated("plain", Role::Data), [false].into(), "{side:?}");
        assert_eq!(seen.negotiated("marked", Role::Control), [false].into(), "{side:?}");
        for sockets in seen.data("cc_sockets") {
            assert!(sockets["refused"] == 0 && sockets["set"].as_u64().unwrap() > 0, "{sockets}");
            // Only Prague paces.
            assert_eq!(sockets["paced"].as_u64().unwrap() > 0, sockets["cc"] == "l4s", "{sockets}");
        }
    }
    let ect1 = &sender.data("ecn_ect1")[0];
    let sent = sender.samples.iter().filter(|s| s.group == "marked" && s.role() == Role::Data);
    let sent = sent.filter_map(|s| s.data_segs_out_pkts).max().unwrap();
    let rewritten = ect1["rewritten"].as_u64().unwrap();
    assert!(rewritten >= u64::from(sent) * 95 / 100, "{rewritten} of {sent} segments");
    assert!(receiver.data("ecn_ect1").is_empty(), "only a sender's data");
    if best == "accecn_struct_ops" {
        let own = receiver.samples.iter().filter(|s| s.group == "marked" && s.role() == Role::Data);
        let of = |field: fn(&wire::FlowSample) -> Option<u32>| {
            own.clone().filter_map(field).max().unwrap_or(0)
        };
        let (ect1, ect0) = (of(|s| s.received_e1_bytes), of(|s| s.received_e0_bytes));
        assert!(
            ect1 > 0 && ect0 == 0,
            "the receiver's kernel saw {ect1} B ECT(1), {ect0} B ECT(0)"
        );
    }
    counted_are_marked(&sender);
    let data = sender.flows.iter().find(|f| f.group == "marked" && f.role() == Role::Data).unwrap();
    assert_eq!(data.cc_actual, "l4s", "by its name in the plan");
    nodes.reset().await;
}

#[tokio::test]
async fn dctcp_counts_echoes_and_sends_ect0() {
    let _alone = Turn::alone().await;
    let mut nodes = Nodes::start().await;
    let [sender, receiver] = nodes.run("dctcp").await;
    for seen in [&sender, &receiver] {
        assert_eq!(seen.data("ecn")[0]["mode"], "dctcp_feedback");
        assert_eq!(seen.negotiated("marked", Role::Data), [true].into());
        assert_eq!(seen.negotiated("plain", Role::Data), [false].into());
    }
    assert!(sender.data("ecn_ect1").is_empty());
    counted_are_marked(&sender);
    nodes.reset().await;
}

#[tokio::test]
async fn a_plan_can_disable_ecn() {
    let _beside = Turn::beside().await;
    let mut nodes = Nodes::start().await;
    let off = PLAN.replace("[nodes.one]\n", "[nodes.one]\nsysctl = { \"net.ipv4.tcp_ecn\" = 0 }\n");
    let seen = nodes.prepare(&off.replace("ALGORITHM", "prague"), 0).await;
    let events = &seen.data("ecn")[0];
    assert_eq!(events["mode"], "none");
    assert!(events["reason"].as_str().unwrap().contains("tcp_ecn = 0"), "{events}");
    nodes.reset().await;
}
