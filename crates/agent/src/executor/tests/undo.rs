//! Changes to congestion controls that cannot be undone.

use std::path::Path;

use super::*;
use crate::sockets::journal::Journal;
use crate::sockets::journal::tests::{abandon, stuck};
use crate::sockets::load::LoadedCcs;

/// Dependencies with the journals of congestion controls in this folder.
fn in_folder(journals: &Path) -> Dependencies {
    let source = FakeSource { script: Script::Good, calls: Arc::default() };
    let sampler = || -> Box<dyn Sampler> { Box::new(FakeSampler(VecDeque::new())) };
    let deps = dependencies(source, FakeInterfaces::default(), sampler, Undo::in_memory());
    Dependencies { cc_journals: journals.to_owned(), ..deps }
}

#[tokio::test]
async fn a_node_takes_no_trial_until_the_congestion_controls_of_a_dead_agent_are_undone() {
    let dir = tempfile::tempdir().unwrap();
    let (step, obstacle) = stuck(dir.path());
    let mut dead = Journal::in_folder(dir.path());
    dead.push(step).unwrap();
    abandon(&mut dead);
    let handle = spawn(in_folder(dir.path()));
    let left = handle.status().not_undone;
    assert!(matches!(&left[..], [why] if why.contains("Is a directory")), "{left:?}");
    let refused = handle.prepare(request(), None).await.unwrap_err();
    assert!(matches!(&refused, AgentError::NotUndone { left: again } if *again == left));
    let refused = handle.check(request(), None).await.unwrap_err();
    assert!(matches!(refused, AgentError::NotUndone { .. }), "{refused}");
    std::fs::remove_dir(obstacle).unwrap();
    handle.prepare(request(), None).await.unwrap();
    assert!(handle.status().not_undone.is_empty());
}

#[tokio::test]
async fn a_node_takes_no_trial_while_a_journal_cannot_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    let handle = spawn(in_folder(dir.path()));
    assert!(handle.status().not_undone.is_empty());
    let journal = dir.path().join("1-0.ndjson");
    std::fs::create_dir(&journal).unwrap();
    let refused = handle.prepare(request(), None).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("open {}", journal.display())), "{refused}");
    assert_eq!(handle.status().not_undone.len(), 1, "Describe names it");
    std::fs::remove_dir(journal).unwrap();
    handle.prepare(request(), None).await.unwrap();
}

#[tokio::test]
async fn a_congestion_control_that_a_reset_cannot_undo_blocks_the_next_trial() {
    let dir = tempfile::tempdir().unwrap();
    let (send_status, status) = watch::channel(NodeStatus::default());
    let files = Files::default();
    let mut executor = Executor::new(in_folder(dir.path()), files.clone(), send_status);
    let (step, obstacle) = stuck(dir.path());
    let mut journal = Journal::in_folder(dir.path());
    journal.push(step).unwrap();
    executor.trial.cc = LoadedCcs::of_journal(journal);
    let (requests, inbox) = mpsc::channel(1);
    let handle = Handle { requests, status, files };
    tokio::spawn(executor.serve(inbox));
    let reply = handle.reset(wire::ResetRequest::default()).await.unwrap();
    assert!(matches!(&reply.failed[..], [why] if why.contains("Is a directory")), "{reply:?}");
    assert_eq!(handle.status().not_undone, reply.failed);
    // The trial of this reset is empty.
    let again = handle.reset(wire::ResetRequest::default()).await.unwrap();
    assert_eq!((&again.failed, &handle.status().not_undone), (&reply.failed, &reply.failed));
    let refused = handle.prepare(request(), None).await.unwrap_err();
    assert!(matches!(&refused, AgentError::NotUndone { left } if *left == reply.failed));
    std::fs::remove_dir(obstacle).unwrap();
    handle.prepare(request(), None).await.unwrap();
    assert!(handle.status().not_undone.is_empty());
}
