//! Tests plans that change the parameters of a queue during a trial.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccbench_proto::wire::run_event::Payload;
use ccbench_simulator::T0_NS;

mod support;

use support::rows;

const PLAN: &str = r#"
name = "queue-changes"
[nodes]
src = {}
router = {}
dst = {}
[wires]
path = ["src", "router", "dst"]
[links.there]
node = "router"
toward = "dst"
rate = "10mbit"
delay = "20ms"
queue = { kind = "bfifo", limit = "200000B" }
[flows.one]
from = "src"
to = "dst"
cc = "reno"
[[phases]]
name = "all"
length = "4s"
flows = ["one"]
[[changes]]
at = "2s"
set = { "links.there.queue.limit" = "20000B" }
"#;

#[test]
fn a_lower_limit_bounds_the_backlog() {
    let (mut changes, mut before, mut after) = (Vec::new(), 0, 0);
    for (_, row) in rows(PLAN, 1).unwrap() {
        match row.payload {
            Some(Payload::LinkChange(change)) if change.source != "plan" => changes.push(change),
            Some(Payload::QdiscSample(sample)) => {
                let since_ms = sample.at_ns.saturating_sub(T0_NS) / 1_000_000;
                if since_ms <= 2000 {
                    before = before.max(sample.backlog_bytes);
                } else if since_ms > 2500 {
                    // What is in the queue at the change leaves within 160 ms.
                    after = after.max(sample.backlog_bytes);
                }
            }
            _ => {}
        }
    }
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((change.source.as_str(), change.rc, change.rate_bps), ("change 1", 0, None));
    assert_eq!(change.applied_at_ns, T0_NS + 2_000_000_000);
    assert!(before > 100_000, "{before}");
    assert!(0 < after && after <= 20_000, "{after}");
}
