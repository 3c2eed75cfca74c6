//! What the end of a trial leaves in the audit log.

use super::*;
use crate::audit::{Audit, FILE};

#[tokio::test]
async fn what_is_removed_without_the_undo_stack_is_in_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let audit = Audit::open(&path, 1 << 20).unwrap();
    let mut undo = Undo::in_memory();
    undo.set_audit(audit.clone());
    let sampler = || -> Box<dyn Sampler> { Box::new(FakeSampler(VecDeque::new())) };
    let rig = Rig::with_undo(Script::Good, FakeInterfaces::default(), sampler, undo);
    rig.prepare().await.unwrap();
    rig.handle.reset(wire::ResetRequest::default()).await.unwrap();
    audit.flush();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let undone: Vec<_> = lines.filter(|line| line["event"] == "undo").collect();
    let has = |what: &str| {
        let names = |line: &serde_json::Value| {
            line["undone"].as_array().unwrap().iter().filter(|name| *name == what).count()
        };
        undone.iter().map(names).sum::<usize>()
    };
    assert_eq!((has("link l on eth0"), has("offloads of eth0")), (1, 1), "{undone:?}");
    assert!(undone.iter().all(|line| line["run_id"] == "r"), "{undone:?}");
}
