//! Resets by other clients, and resets while files are sent.

use super::captures::Stopped;
use super::*;
use crate::files::Files;
use crate::identity::Identity;
use crate::sockets::names::Names;

/// Returns a connection of this client, which ends when the first value is dropped.
fn client(name: &str) -> (watch::Sender<()>, ConnectionHandle) {
    ConnectionHandle::example_of(Identity { serial: "4a".into(), ..Identity::local(name) })
}

#[tokio::test]
async fn the_reset_of_another_client_is_in_the_audit_log_and_in_the_stream() {
    let (rig, events) = Rig::with_audit();
    for by in ["alice", "bob"] {
        let (_end, alice) = client("alice");
        let connection = Some(alice.id());
        let reply = rig.handle.prepare(rig.request(), Some(alice)).await.unwrap();
        let run = wire::RunRequest { start_at_ns: clock::now_ns(), epoch: 1 };
        let _rows = rig.handle.run(run, connection).await.unwrap();
        let ended_by = rig.handle.ended_by(reply.generation);
        let reset = wire::ResetRequest::default();
        rig.handle.reset_by(reset, Some(client(by).1)).await.unwrap();
        let why = "another client, bob (serial 4a), has reset this node, which ended the trial";
        assert_eq!(ended_by().as_deref(), (by == "bob").then_some(why));
    }
    let resets = events("reset");
    assert_eq!(resets.len(), 1, "{resets:?}");
    let keys = ["run_id", "identity", "serial", "by", "by_serial"];
    assert_eq!(keys.map(|key| &resets[0][key]), ["r", "alice", "4a", "bob", "4a"]);
}

#[tokio::test]
async fn a_reset_does_not_wait_for_files_that_nobody_takes() {
    let source = FakeSource { script: Script::Good, calls: Arc::default() };
    let sampler = || -> Box<dyn Sampler> { Box::new(FakeSampler(VecDeque::new())) };
    let deps = dependencies(source, FakeInterfaces::default(), sampler, Undo::in_memory());
    let (send_status, status) = watch::channel(NodeStatus::default());
    let files = Files::default();
    let mut executor = Executor::new(deps, files.clone(), send_status);
    let request = wire::PrepareRequest { run_id: "r".into(), epoch: 1, ..Default::default() };
    executor.step(prepare::command(&request, None)).unwrap();
    executor.step(Command::PrepareDone { ok: true }).unwrap();
    executor.step(Command::Run { epoch: 1, connection: None }).unwrap();
    let (out, rows) = Outbox::new(Names::default());
    // More than waits for a controller.
    let stopped = Stopped::example(64 << 20);
    executor.sending = Some(Sending::start(stopped, LastRows::default(), out));
    let (requests, inbox) = mpsc::channel(1);
    let handle = Handle { requests, status, files };
    tokio::spawn(executor.serve(inbox));
    handle.reset(wire::ResetRequest::default()).await.unwrap();
    let rows = all(rows).await;
    assert!(
        !rows.iter().any(|payload| matches!(payload, Payload::Done(_))),
        "the files are incomplete"
    );
}
