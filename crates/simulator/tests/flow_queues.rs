//! Tests that exactly those flows are reported that share a queue of a discipline that hashes flows.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccbench_proto::event::Kind;
use ccbench_proto::plan::check;
use ccbench_simulator::Simulation;

mod support;

/// Returns the flows of each shared queue at the bottleneck, for a queue with these keys and this number of flows.
fn shared(queue: &str, count: u32) -> Vec<Vec<String>> {
    let rest = format!(
        r#"
[flows.bulk]
from = "src"
to = "dst"
cc = "cubic"
count = {count}
[[phases]]
name = "all"
length = "1s"
flows = ["bulk"]
"#
    );
    let link = format!("rate = \"10mbit\"\nqueue = {queue}");
    let text = support::one_link_plan("flow-queues", &link, &rest);
    let (plan, _) = check::read(&text, &[]).unwrap();
    let replies = Simulation::of_trial(&plan, 1).unwrap().replies();
    let events = replies["router"].events.iter();
    let flows = events.filter_map(|event| match event.read() {
        Ok(Kind::FlowQueueShared(shared)) => Some(shared.flows.clone()),
        _ => None,
    });
    flows.collect()
}

#[test]
fn more_flows_than_queues_share_them() {
    for queue in [r#"{ kind = "fq_codel", flows = 4 }"#, r#"{ kind = "fq", orphan_mask = 3 }"#] {
        let found = shared(queue, 5);
        let listed: usize = found.iter().map(Vec::len).sum();
        assert!((1..=4).contains(&found.len()) && listed >= 2, "{queue}: {found:?}");
        assert!(found.iter().all(|flows| flows.len() > 1), "{queue}: {found:?}");
    }
}

#[test]
fn a_single_queue_is_not_reported() {
    for queue in [
        r#"{ kind = "fq_codel", flows = 1 }"#,
        r#"{ kind = "fq", buckets = 1 }"#,
        r#"{ kind = "codel" }"#,
    ] {
        assert_eq!(shared(queue, 5), Vec::<Vec<String>>::new(), "{queue}");
    }
}
