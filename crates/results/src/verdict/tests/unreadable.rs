//! Tests events and rows from an agent of another version.

use ccbench_proto::event::CcSockets;

use super::*;

#[test]
fn unreadable_event_degrades() {
    let scenario =
        Scenario { event: Some((None, "what a later version sends")), ..Scenario::default() };
    let message = only(&scenario, Status::Degraded, "event_unreadable");
    assert_eq!(
        message,
        format!(
            "src: messages that cannot be read: 1 (the first: its kind is unknown: main: what a later version sends); \
             its agent reports no version, this is ccbench {}; install the same build on both",
            env!("CARGO_PKG_VERSION")
        )
    );
    let sockets = CcSockets { cc: "cubic".into(), ..CcSockets::default() };
    let scenario =
        Scenario { event: Some((Some(Kind::CcSockets(sockets)), "")), ..Scenario::default() };
    let message = only(&scenario, Status::Degraded, "event_unreadable");
    assert!(message.contains("the event `cc_sockets` has no valid `side`"), "{message}");
}

#[test]
fn row_with_an_unknown_kind_degrades() {
    for kind in [0, 99] {
        let timing = Some(LinkTiming { link: "bottleneck".into(), kind, ..LinkTiming::default() });
        let scenario = Scenario { timing, ..Scenario::default() };
        let message = only(&scenario, Status::Degraded, "event_unreadable");
        assert!(message.contains("a row without a valid `kind`"), "{message}");
    }
}
