//! What the end of a trial leaves in the audit log.

use super::*;

#[tokio::test]
async fn what_is_removed_without_the_undo_stack_is_in_the_audit_log() {
    let (rig, events) = Rig::with_audit();
    rig.prepare().await.unwrap();
    rig.handle.reset(wire::ResetRequest::default()).await.unwrap();
    let undone = events("undo");
    let has = |what: &str| {
        let names = |line: &serde_json::Value| {
            line["undone"].as_array().unwrap().iter().filter(|name| *name == what).count()
        };
        undone.iter().map(names).sum::<usize>()
    };
    assert_eq!((has("link l on eth0"), has("offloads of eth0")), (1, 1), "{undone:?}");
    assert!(undone.iter().all(|line| line["run_id"] == "r"), "{undone:?}");
}
