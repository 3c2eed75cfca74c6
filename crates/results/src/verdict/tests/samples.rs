//! Tests missing rows and samples.

use super::*;

#[test]
fn dropped_rows_and_late_or_missing_samples_degrade() {
    let done = |rows_dropped, samples_late| Done { rows_dropped, samples_late, ..Done::default() };
    let dropped = Scenario { done: Done { rows_sent: 9, ..done(1, 0) }, ..Scenario::default() };
    let message = only(&dropped, Status::Degraded, "rows_dropped");
    let expected = "src: 1 of 10 rows dropped because the queue to the controller was full; use";
    assert!(message.starts_with(expected), "{message}");
    only(&Scenario { done: done(0, 12), ..Scenario::default() }, Status::Degraded, "samples_late");
    fine(&Scenario { done: done(0, 9), ..Scenario::default() });
    let messages = missing(&Scenario { sample_every_ms: 120, ..Scenario::default() });
    let counts = "83 of 98 samples, 15 % missing (at least 90 % required)";
    let expected = ["dst", "src"]
        .map(|node| format!("{node}: table flow_samples, flows.main (2 of 2 flows): {counts}"));
    assert_eq!(messages, expected);
    fine(&Scenario { sample_every_ms: 108, ..Scenario::default() });
}

/// Returns the messages of a scenario whose only problem is missing samples.
#[track_caller]
fn missing(scenario: &Scenario) -> Vec<String> {
    let verdict = scenario.judged();
    assert_eq!(verdict.status, Status::Degraded);
    let is_gap = |reason: &Reason| reason.code == ReasonCode::SamplesMissing;
    assert!(verdict.reasons.iter().all(is_gap), "{:?}", verdict.reasons);
    verdict.reasons.into_iter().map(|reason| reason.message).collect()
}

#[test]
fn gap_of_any_node_and_table_degrades() {
    let stopped = |node, from, to| Scenario {
        stopped: Some((node, from, to)),
        busy_samples: 0,
        ..Scenario::default()
    };
    let gap = "no sample for 3.10 s from 3.90 s to 7.00 s (limit 1.00 s); \
               69 of 98 samples, 30 % missing (at least 90 % required)";
    let links = gap.replace("69 of 98", "70 of 100");
    let host = "no sample for 3.50 s from 3.50 s to 7.00 s (limit 1.75 s); \
                14 of 20 samples, 30 % missing (at least 90 % required)";
    assert_eq!(
        missing(&stopped("dst", 4_000, 7_000)),
        [
            format!("dst: table flow_samples, flows.main (2 of 2 flows): {gap}"),
            format!("dst: table host_samples, its machine: {host}"),
        ]
    );
    assert_eq!(
        missing(&stopped("mid", 4_000, 7_000)),
        [
            format!("mid: table host_samples, its machine: {host}"),
            format!("mid: table qdisc_samples, links.bottleneck: {links}"),
        ]
    );
    assert_eq!(missing(&stopped("src", 4_000, 7_000)).len(), 3, "sockets, a link, the machine");
    assert_eq!(missing(&stopped("mid", 0, 10_000)).len(), 2, "no sample at all");
    assert_eq!(missing(&stopped("dst", 0, 1_500)).len(), 1, "at the beginning of the flow");
    assert_eq!(missing(&stopped("dst", 8_800, 10_000)).len(), 1, "at its end");
    let twice = missing(&stopped("dst", 0, 10_000));
    assert!(twice.iter().all(|m| m.contains("100 % missing")), "{twice:?}");
    fine(&stopped("mid", 4_000, 4_800));
    fine(&stopped("dst", 4_000, 4_800));
}

#[test]
fn lost_node_has_one_reason() {
    let stopped = Some(("dst", 4_000, 10_000));
    let scenario = Scenario { lost: true, stopped, busy_samples: 0, ..Scenario::default() };
    only(&scenario, Status::Failed, "node_lost");
}

#[test]
fn nodes_without_machines_need_no_samples_of_them() {
    fine(&Scenario { without_machines: true, ..Scenario::default() });
    let stopped = Some(("mid", 4_000, 7_000));
    let messages = missing(&Scenario { without_machines: true, stopped, ..Scenario::default() });
    assert_eq!(messages.len(), 1, "of the link alone: {messages:?}");
}
