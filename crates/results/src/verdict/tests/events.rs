//! Events whose kind degrades the trial.

use ccbench_proto::event::FlowQueueShared;

use super::*;

#[test]
fn flows_that_share_a_queue_degrade() {
    let flows = vec!["main/0".to_owned(), "main/1".to_owned()];
    let shared = Kind::FlowQueueShared(FlowQueueShared { class: None, flows });
    let scenario = Scenario {
        event: Some((Some(shared), "main/0, main/1 share a queue")),
        ..Scenario::default()
    };
    let message = only(&scenario, Status::Degraded, "flow_queue_shared");
    assert_eq!(message, "src: main: main/0, main/1 share a queue");
    let unknown = Kind::FlowQueuesUnknown(NoData {});
    fine(&Scenario { event: Some((Some(unknown), "")), ..Scenario::default() });
}
