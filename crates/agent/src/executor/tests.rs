use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use crate::audit::{Audit, FILE};
use crate::flow::{BoxFuture, FlowEndpoint, FlowOutput, Progress, Stop, Traffic};
use crate::interfaces::fake::FakeInterfaces;
use ccbench_collector::acks::{AckSource, AcksError};
use ccbench_collector::{Drained, FlowPorts, SampleError};
use ccbench_proto::plan::{Acks, Tool};
use ccbench_proto::schedule::FlowTask;
use ccbench_proto::wire::Side;

mod access;
mod audit;
mod boot;
mod pulse;
mod requests;
mod reset;
mod settings;
mod undo;

/// A plan with one of each: a link that changes, a flow from this node, and one to it.
const PLAN: &str = r#"
name = "fake"
keep_awake = true
[sample]
acks = "10ms"
[nodes.one]
address = "10.0.0.1"
agent = "10.0.0.1:7700"
[nodes.two]
address = "10.0.0.2"
agent = "10.0.0.2:7700"
[links.l]
node = "one"
dev = "eth0"
rate = "10mbit"
backend = "userspace"
queue = { kind = "pfifo", limit = "40p" }
[flows.there]
from = "one"
to = "two"
[flows.back]
from = "two"
to = "one"
[[phases]]
name = "only"
length = "500ms"
flows = ["there", "back"]
[[changes]]
at = "60ms"
set = { "links.l.rate" = "5mbit", "links.l.delay" = "7ms" }
"#;

#[derive(Clone, Copy, PartialEq)]
enum Script {
    /// Ends on request, with a good report.
    Good,
    /// Never listens.
    Deaf,
    /// Ends only when killed.
    Stubborn,
}

/// Scripted traffic; records the calls.
struct FakeSource {
    script: Script,
    calls: Arc<Mutex<Vec<String>>>,
}

struct FakeTraffic {
    name: String,
    script: Script,
    calls: Arc<Mutex<Vec<String>>>,
    over: watch::Sender<bool>,
}

fn write(calls: &Mutex<Vec<String>>, what: String) {
    calls.lock().expect("no test panics while it holds this").push(what);
}

impl FlowSource for FakeSource {
    fn find(&self, _: Tool) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async { Ok(()) })
    }
    fn version(&self, _: Tool) -> String {
        "fake 1".into()
    }
    fn start(&self, task: &FlowTask, end: FlowEndpoint) -> Result<Box<dyn Traffic>, AgentError> {
        let name = format!("{} {}", task.group, end.name());
        write(&self.calls, format!("start {name}"));
        let calls = Arc::clone(&self.calls);
        Ok(Box::new(FakeTraffic {
            name,
            script: self.script,
            calls,
            over: watch::channel(false).0,
        }))
    }
}

const REPORT: &str = r#"{"start":{},"intervals":[{"streams":[{"start":0,"end":0.1,"seconds":0.1,
    "bytes":1000}]}],"end":{}}"#;

impl Traffic for FakeTraffic {
    fn listening(&mut self) -> BoxFuture<'_, Result<(), crate::error::ListenError>> {
        let late = crate::error::ListenError::Timeout { limit: Duration::from_secs(8) };
        let result = if self.script == Script::Deaf { Err(late) } else { Ok(()) };
        Box::pin(async move { result })
    }
    fn next(&mut self) -> BoxFuture<'_, Progress> {
        let mut over = self.over.subscribe();
        Box::pin(async move {
            drop(over.wait_for(|&over| over).await);
            Progress::Ended(FlowOutput { output: REPORT.into(), ..FlowOutput::default() })
        })
    }
    fn stop(&mut self, how: Stop) {
        write(&self.calls, format!("{how:?} {}", self.name));
        if self.script != Script::Stubborn || how == Stop::Kill {
            self.over.send_replace(true);
        }
    }
}

/// Returns its rows, one per pass.
struct FakeSampler(VecDeque<wire::FlowSample>);

impl Sampler for FakeSampler {
    fn start(&mut self, flows: &[FlowPorts], _: u64) -> Result<(), SampleError> {
        let row = |ports: &FlowPorts| wire::FlowSample {
            flow_id: format!("{}/0", ports.group),
            side: if ports.listens { Side::Receiver } else { Side::Sender }.into(),
            cc: "fakecc".into(),
            ..Default::default()
        };
        self.0 = flows.iter().map(row).collect();
        Ok(())
    }
    fn drain(
        &mut self,
        at_ns: u64,
        into: &mut Vec<wire::FlowSample>,
    ) -> Result<Drained, SampleError> {
        into.extend(self.0.pop_front().map(|row| wire::FlowSample { at_ns, ..row }));
        Ok(Drained::default())
    }
    fn stop(&mut self) {}
}

/// Returns this many rows at every pass.
pub(super) struct RowsPerPass(pub(super) usize);

impl Sampler for RowsPerPass {
    fn start(&mut self, _: &[FlowPorts], _: u64) -> Result<(), SampleError> {
        Ok(())
    }
    fn drain(
        &mut self,
        at_ns: u64,
        into: &mut Vec<wire::FlowSample>,
    ) -> Result<Drained, SampleError> {
        into.extend((0..self.0).map(|_| wire::FlowSample { at_ns, ..Default::default() }));
        Ok(Drained::default())
    }
    fn stop(&mut self) {}
}

/// Returns a batch, and a socket that lost a row.
struct FakeAcks(Vec<String>);

impl AckSource for FakeAcks {
    fn drain(&mut self, now_ns: u64, all: bool, into: &mut Vec<Payload>) {
        if all {
            into.push(Payload::Acks(wire::Acks { at_ns: vec![now_ns], ..Default::default() }));
        }
    }
    fn count_refused(&mut self, _: &Payload) {}
    fn counts(&mut self, at_ns: u64) -> Vec<wire::AckCount> {
        vec![wire::AckCount { at_ns, lost_rows: 1, ..Default::default() }]
    }
    fn period(&self) -> Duration {
        Duration::from_millis(5)
    }
    fn notes(&self) -> &[String] {
        &self.0
    }
}

fn dependencies(
    source: FakeSource,
    interfaces: FakeInterfaces,
    sampler: fn() -> Box<dyn Sampler>,
    undo: Undo,
) -> Dependencies {
    Dependencies {
        interfaces: Arc::new(interfaces),
        source: Arc::new(source),
        sampler,
        acks: |watch| match watch.acks {
            Acks::Every => Err(AcksError::NotBuilt),
            acks => Ok(Box::new(FakeAcks(vec![acks.to_string()]))),
        },
        undo,
        generation_file: None,
        cc_journals: "/nonexistent/ccbench".into(),
        traffic_group: None,
        cc_digests: AllowedDigests::Any,
        modules: AllowedModules::default(),
        boot: None,
    }
}

struct Rig {
    handle: Handle,
    interfaces: FakeInterfaces,
    calls: Arc<Mutex<Vec<String>>>,
}

fn request() -> wire::PrepareRequest {
    wire::PrepareRequest {
        run_id: "r".into(),
        node: "one".into(),
        plan_toml: PLAN.into(),
        epoch: 1,
        lease_ms: 60_000,
        ..Default::default()
    }
}

impl Rig {
    fn new(script: Script, interfaces: FakeInterfaces) -> Self {
        Self::sampled(script, interfaces, || Box::new(FakeSampler(VecDeque::new())))
    }

    fn sampled(
        script: Script,
        interfaces: FakeInterfaces,
        sampler: fn() -> Box<dyn Sampler>,
    ) -> Self {
        Self::with_undo(script, interfaces, sampler, Undo::in_memory())
    }

    fn with_undo(
        script: Script,
        interfaces: FakeInterfaces,
        sampler: fn() -> Box<dyn Sampler>,
        undo: Undo,
    ) -> Self {
        Self::with_boot(script, interfaces, sampler, undo, None)
    }

    /// A rig that writes an audit log, and the log: the events of one kind.
    fn with_audit() -> (Self, impl Fn(&str) -> Vec<serde_json::Value>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let audit = Audit::open(&path, 1 << 20).unwrap();
        let mut undo = Undo::in_memory();
        undo.set_audit(audit.clone());
        let sampler = || -> Box<dyn Sampler> { Box::new(FakeSampler(VecDeque::new())) };
        let rig = Self::with_undo(Script::Good, FakeInterfaces::default(), sampler, undo);
        let events = move |event: &str| {
            let _keep = &dir;
            audit.flush();
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            lines.filter(|line: &serde_json::Value| line["event"] == event).collect()
        };
        (rig, events)
    }

    fn with_boot(
        script: Script,
        interfaces: FakeInterfaces,
        sampler: fn() -> Box<dyn Sampler>,
        undo: Undo,
        boot: Option<Boot>,
    ) -> Self {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let source = FakeSource { script, calls: Arc::clone(&calls) };
        let deps = dependencies(source, interfaces.clone(), sampler, undo);
        let handle = spawn(Dependencies { boot, ..deps });
        Self { handle, interfaces, calls }
    }

    fn request(&self) -> wire::PrepareRequest {
        request()
    }

    async fn prepare(&self) -> Result<wire::PrepareReply, AgentError> {
        self.handle.prepare(self.request(), None).await
    }

    async fn run(&self) -> mpsc::Receiver<Outgoing> {
        self.run_at(clock::now_ns() + 20_000_000).await
    }

    async fn run_at(&self, start_at_ns: u64) -> mpsc::Receiver<Outgoing> {
        let run = wire::RunRequest { start_at_ns, epoch: 1 };
        self.handle.run(run, None).await.expect("it is prepared")
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().expect("no test panics while it holds this").clone()
    }
}

async fn all(mut rows: mpsc::Receiver<Outgoing>) -> Vec<Payload> {
    let mut found = Vec::new();
    while let Some(outgoing) = rows.recv().await {
        found.extend(outgoing.event.payload);
    }
    found
}

const UNDONE: [&str; 3] = ["remove l", "restore_offloads to-10.0.0.2", "restore_offloads eth0"];

#[tokio::test]
async fn a_trial_is_prepared_run_and_reset() {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    let reply = rig.prepare().await.unwrap();
    assert_eq!(reply.links.len(), 1);
    let kinds: Vec<_> = reply.events.iter().map(wire::Event::name).collect();
    assert_eq!(kinds, ["offloads_off", "offloads_off", "link_up", "acks"]);
    assert_eq!(reply.events[3].message, "10ms", "the plan's");
    assert_eq!(rig.calls(), ["start back server"]);

    let rows = all(rig.run().await).await;
    let has = |test: fn(&Payload) -> bool| rows.iter().any(test);
    let Some(Payload::LinkChange(first)) = rows.first() else { panic!("{:?}", rows.first()) };
    assert_eq!((first.link.as_str(), first.iface.as_str()), ("l", "eth0"));
    assert_eq!((first.source.as_str(), first.rc), ("plan", 0));
    assert_eq!(
        (first.rate_bps, first.delay_us, first.loss_ppm),
        (Some(10_000_000), Some(0), Some(0))
    );
    assert!(first.requested_at_ns > 0 && first.applied_at_ns >= first.requested_at_ns, "{first:?}");
    assert!(has(|payload| matches!(payload, Payload::FlowSample(s) if s.flow_id == "there/0")));
    assert!(has(|payload| matches!(payload, Payload::QdiscSample(s) if s.link == "l")));
    assert!(has(|payload| matches!(payload, Payload::LinkChange(c)
        if c.rate_bps == Some(5_000_000) && c.delay_us == Some(7_000) && c.rc == 0 && c.applied_at_ns >= c.requested_at_ns)));
    assert!(has(|payload| matches!(payload, Payload::LinkChange(c) if c.source == "trace row 2")));
    assert!(has(|payload| matches!(payload, Payload::LinkPacket(_))));
    assert!(has(|payload| matches!(payload, Payload::Acks(rows) if rows.at_ns.len() == 1)));
    assert!(has(|payload| matches!(payload, Payload::AckCount(count) if count.lost_rows == 1)));
    let timing = |payload: &Payload| matches!(payload, Payload::LinkTiming(row) if row.link == "l");
    assert_eq!(rows.iter().filter(|payload| timing(payload)).count(), 1, "once, at the end");
    assert!(has(|payload| matches!(payload, Payload::Event(e) if e.name() == "keep_awake")));
    assert!(has(
        |payload| matches!(payload, Payload::Interval(i) if i.group == "there" && i.side() == Side::Sender)
    ));
    assert!(has(
        |payload| matches!(payload, Payload::Interval(i) if i.group == "back" && i.side() == Side::Receiver)
    ));
    assert!(has(|payload| matches!(payload, Payload::Flow(f)
        if f.flow_id == "there/0" && f.cc_actual == "fakecc" && f.tool == "fake 1")));
    assert!(has(
        |payload| matches!(payload, Payload::Raw(raw) if raw.name == "iperf3-back-server.json")
    ));
    assert!(matches!(rows.last(), Some(Payload::Done(_))));
    assert!(!rig.interfaces.calls().contains(&"remove l".to_owned()), "before the reset");

    let reply = rig.handle.reset(wire::ResetRequest::default()).await.unwrap();
    assert!(reply.failed.is_empty(), "{reply:?}");
    let calls = rig.interfaces.calls();
    assert_eq!(calls[calls.len() - 3..], UNDONE);
    let on_time = ["keep_awake", "set_rate l 5mbit", "set_delay l 7ms"].map(str::to_owned);
    assert!(on_time.iter().all(|call| calls.contains(call)), "{calls:?}");
    assert_eq!(calls.iter().filter(|call| *call == "begin l").count(), 1);
}

#[tokio::test]
async fn a_prepare_that_fails_half_way_is_undone() {
    let rig = Rig::new(Script::Good, FakeInterfaces::failing("open l on eth0"));
    let error = rig.prepare().await.unwrap_err().to_string();
    assert!(error.starts_with("link l: "), "{error}");
    let calls = rig.interfaces.calls();
    assert_eq!(
        calls,
        [
            "offloads_off eth0",
            "offloads_off to-10.0.0.2",
            "open l on eth0",
            "restore_root eth0",
            "restore_offloads to-10.0.0.2",
            "restore_offloads eth0",
        ]
    );
    assert!(rig.calls().is_empty());
}

#[tokio::test]
async fn a_server_that_does_not_listen_fails_the_prepare() {
    let rig = Rig::new(Script::Deaf, FakeInterfaces::default());
    let error = rig.prepare().await.unwrap_err().to_string();
    assert!(
        error.contains("iperf3 server on 10.0.0.1:5201: it did not listen within 8 s"),
        "{error}"
    );
    assert_eq!(rig.calls(), ["start back server", "Kill back server"]);
    assert!(rig.interfaces.calls().contains(&"remove l".to_owned()));
}

#[tokio::test]
async fn a_lost_stream_undoes_everything() {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    rig.prepare().await.unwrap();
    let mut rows = rig.run().await;
    rows.recv().await.expect("it began");
    drop(rows);
    // A reset waits in the queue behind the undo.
    let reply = rig.handle.reset(wire::ResetRequest::default()).await.unwrap();
    let calls = rig.interfaces.calls();
    assert_eq!(calls[calls.len() - 3..], UNDONE, "{reply:?}");
    assert!(rig.calls().contains(&"Kill back server".to_owned()), "{:?}", rig.calls());
    assert!(rig.prepare().await.is_ok(), "the node is free again");
}

#[tokio::test]
async fn the_interface_of_the_controller_is_not_shaped() {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    let controller = "10.8.0.9".parse().ok();
    let prepare = async |plan: String, peer| {
        let request = wire::PrepareRequest { plan_toml: plan, epoch: 1, ..rig.request() };
        let (_end, connection) = ConnectionHandle::example_from(peer);
        let reply = rig.handle.prepare(request, Some(connection)).await;
        rig.handle.reset(wire::ResetRequest::default()).await.unwrap();
        reply.map(drop).map_err(|error| error.to_string())
    };
    let shaped = PLAN.replace("eth0", "to-10.8.0.9");
    let refused = prepare(shaped.clone(), controller).await.unwrap_err();
    let expected = "link l: to-10.8.0.9 is on the route to the controller (10.8.0.9)";
    assert!(refused.starts_with(expected), "{refused}");
    assert!(!rig.interfaces.calls().iter().any(|call| call.starts_with("open ")));
    let allowed = shaped.replace("backend =", "allow_control_interface = true\nbackend =");
    assert_eq!(prepare(allowed, controller).await, Ok(()));
    assert_eq!(prepare(PLAN.to_owned(), controller).await, Ok(()), "another interface");
    assert_eq!(prepare(shaped, None).await, Ok(()), "a controller on this machine");
}

#[test]
fn a_start_that_has_passed_is_reported() {
    assert!(super::start_late(1_030_000_000, 1_000_000_000).is_none());
    let event = super::start_late(1_000_000_000, 1_030_000_000).unwrap();
    assert_eq!(event.name(), "start_late");
    assert!(event.message.contains(" 30.000 ms after the start"), "{}", event.message);
}

#[tokio::test]
async fn a_reset_ends_a_running_trial() {
    let rig = Rig::new(Script::Stubborn, FakeInterfaces::default());
    rig.prepare().await.unwrap();
    let rows = rig.run().await;
    let reply = rig.handle.reset(wire::ResetRequest::default()).await.unwrap();
    assert!(reply.failed.is_empty(), "{reply:?}");
    assert!(reply.undone.contains(&"traffic processes".to_owned()), "{reply:?}");
    assert!(
        !all(rows).await.iter().any(|payload| matches!(payload, Payload::Done(_))),
        "it was not finished"
    );
}

#[tokio::test]
async fn hanging_flows_are_interrupted_terminated_then_killed() {
    let rig = Rig::new(Script::Stubborn, FakeInterfaces::default());
    rig.prepare().await.unwrap();
    let rows = all(rig.run().await).await;
    let client: Vec<_> =
        rig.calls().into_iter().filter(|call| call.ends_with("there client")).collect();
    assert_eq!(
        client,
        [
            "start there client",
            "Interrupt there client",
            "Terminate there client",
            "Kill there client",
        ]
    );
    let killed = |payload: &&Payload| matches!(payload, Payload::Event(e) if e.name() == "flow_error" && e.message.contains("was killed"));
    assert_eq!(rows.iter().filter(killed).count(), 2, "client and server");
}

#[tokio::test]
async fn dropping_the_last_handle_undoes_everything() {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    rig.prepare().await.unwrap();
    let Rig { handle, interfaces, .. } = rig;
    drop(handle);
    while !interfaces.calls().contains(&UNDONE[2].to_owned()) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_slow_controller_still_gets_the_last_message() {
    // More rows than any controller reads.
    let sampler = || -> Box<dyn Sampler> { Box::new(RowsPerPass(10_000)) };
    let rig = Rig::sampled(Script::Good, FakeInterfaces::default(), sampler);
    rig.prepare().await.unwrap();
    let rows = rig.run().await;
    let mut naps = 0;
    while !rows.is_closed() {
        naps += 1;
        assert!(naps < 2000, "the trial does not end");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let rows = all(rows).await;
    let Some(Payload::Done(done)) = rows.last() else { panic!("{:?}", rows.last()) };
    assert!(done.rows_dropped > 0, "{done:?}");
    assert_eq!(done.rows_sent, rows.len() as u64 - 1);
    assert!(rows.len() < 10_000, "{} rows waited", rows.len());
    assert!(rig.handle.reset(wire::ResetRequest::default()).await.unwrap().failed.is_empty());
}

/// Panics at its first pass.
struct Broken;

impl Sampler for Broken {
    fn start(&mut self, _: &[FlowPorts], _: u64) -> Result<(), SampleError> {
        Ok(())
    }
    fn drain(&mut self, _: u64, _: &mut Vec<wire::FlowSample>) -> Result<Drained, SampleError> {
        panic!("as the test wants")
    }
    fn stop(&mut self) {}
}

#[tokio::test]
async fn a_panicking_sampler_is_reported_and_its_links_are_undone() {
    let rig = Rig::sampled(Script::Good, FakeInterfaces::default(), || Box::new(Broken));
    rig.prepare().await.unwrap();
    let rows = all(rig.run().await).await;
    let reported = |payload: &Payload| matches!(payload, Payload::Event(e) if e.name() == "agent_error" && e.subject == "samples");
    assert_eq!(rows.iter().filter(|payload| reported(payload)).count(), 1);
    assert!(matches!(rows.last(), Some(Payload::Done(_))));
    assert!(rig.interfaces.calls().contains(&"remove l".to_owned()));
    assert!(rig.handle.reset(wire::ResetRequest::default()).await.unwrap().failed.is_empty());
}

/// Its end waits until the runtime has run another task.
struct Lingering;

static LINGERS: AtomicBool = AtomicBool::new(false);
static OTHER_RAN: AtomicBool = AtomicBool::new(false);

impl Sampler for Lingering {
    fn start(&mut self, _: &[FlowPorts], _: u64) -> Result<(), SampleError> {
        Ok(())
    }
    fn drain(&mut self, _: u64, _: &mut Vec<wire::FlowSample>) -> Result<Drained, SampleError> {
        Ok(Drained::default())
    }
    fn stop(&mut self) {
        LINGERS.store(true, Ordering::SeqCst);
        // A runtime that waits for this thread never runs the task. The limit only keeps the test from hanging.
        for _ in 0..10_000 {
            if OTHER_RAN.load(Ordering::SeqCst) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the runtime was blocked");
    }
}

#[tokio::test]
async fn the_runtime_runs_other_tasks_while_threads_end() {
    let rig = Rig::sampled(Script::Good, FakeInterfaces::default(), || Box::new(Lingering));
    rig.prepare().await.unwrap();
    let rows = rig.run().await;
    let other = tokio::spawn(async {
        while !LINGERS.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        OTHER_RAN.store(true, Ordering::SeqCst);
    });
    let rows = all(rows).await;
    other.await.unwrap();
    let broken = |payload: &Payload| matches!(payload, Payload::Event(event) if event.name() == "agent_error");
    assert!(!rows.iter().any(broken), "{rows:?}");
    assert!(rig.handle.reset(wire::ResetRequest::default()).await.unwrap().failed.is_empty());
}
