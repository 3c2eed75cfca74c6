//! Checks whether rows are missing from `acks` and `tcp_events`: lost in the ring, refused by the queue to the controller, or never
//! written.

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::wire::{AckCount, AckSelection};

use super::findings::Findings;
use crate::model::Status;
use crate::reason::ReasonCode;

/// Judges the counts of one socket. A single missing row degrades the trial, because `acks` is meant to be complete.
pub(crate) fn lost(node: &str, row: &AckCount, findings: &mut Findings) {
    let (lost, refused) = (row.lost_rows, row.refused_rows);
    if row.flow_id.is_empty() {
        if lost > 0 {
            let message = format!(
                "{node}: {lost} segments have no row in `acks`: they belong to sockets beyond the 4096 that a node can watch"
            );
            findings.add(Status::Degraded, ReasonCode::AcksLost, node, message);
        }
        if refused > 0 {
            let message = format!(
                "{node}: {refused} records of BPF programs could not be read: the agent and its BPF programs come from different \
                 builds; reinstall the agent, or set `sample.acks = \"off\"`"
            );
            findings.add(Status::Degraded, ReasonCode::AcksLost, node, message);
        }
        return;
    }
    let whose = format!("{node}: {} ({})", row.flow_id, row.side().as_text());
    let mode = row.mode.unwrap_or_default();
    let missing = lost.saturating_add(refused);
    if missing > 0 {
        // The automatic mode already writes at most one row in 10 ms.
        let fewer = if mode.automatic {
            "`sample.acks = \"100ms\"`, or \"off\""
        } else {
            "`sample.acks = \"10ms\"`"
        };
        let message = format!(
            "{whose}: {} missing from `acks`: {lost} because the ring buffer between kernel and agent was full, \
             {refused} because the queue to the controller was full; reduce the rate: {fewer}",
            of(missing, row.rows)
        );
        findings.add(Status::Degraded, ReasonCode::AcksLost, node, message);
    }
    // If rows are written at intervals or on change, the next segment makes up for a missed one.
    if row.missed_segments > 0 && mode.selection() == AckSelection::EveryAck {
        // Not the rows: merged segments share one, and a receiver writes one in 10 ms.
        let missed = row.missed_segments;
        let segments = row.segments.saturating_add(row.coalesced_segments).saturating_add(missed);
        let message = format!(
            "{whose}: the kernel ran no BPF program for {missed} of {segments} segments, so their rows are missing from `acks`"
        );
        findings.add(Status::Degraded, ReasonCode::AcksLost, node, message);
    }
    if row.missed_events > 0 {
        let missed = row.missed_events;
        let events = row.events.saturating_add(missed);
        let message = format!(
            "{whose}: the kernel ran no BPF program for {missed} of {events} events, so `tcp_events` is incomplete"
        );
        findings.add(Status::Degraded, ReasonCode::TcpEventsLost, node, message);
    }
    if row.lost_events > 0 {
        let message = format!(
            "{whose}: {} missing from `tcp_events`: the ring buffer between kernel and agent, or the queue to the controller, was full",
            of(row.lost_events, row.events)
        );
        findings.add(Status::Degraded, ReasonCode::TcpEventsLost, node, message);
    }
}

/// Formats 1 lost and 5 other rows as "1 of 6 rows is".
fn of(lost: u64, others: u64) -> String {
    let all = lost.saturating_add(others);
    format!("{lost} of {all} rows {}", if lost == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use ccbench_proto::wire::{AckMode, Side};

    use super::*;

    fn mode(configured: &str) -> Option<AckMode> {
        Some(AckMode::of_sockets(configured.parse().unwrap(), 1))
    }

    fn judged(count: &AckCount) -> Vec<(String, String)> {
        let mut findings = Findings::default();
        lost("src", count, &mut findings);
        let verdict = findings.verdict();
        assert_eq!(verdict.status == Status::Ok, verdict.reasons.is_empty());
        verdict
            .reasons
            .into_iter()
            .map(|reason| (reason.code.to_string(), reason.message))
            .collect()
    }

    #[test]
    fn single_missing_row_degrades() {
        let count = AckCount {
            flow_id: "a/0".into(),
            side: Side::Sender.into(),
            segments: 100,
            rows: 97,
            lost_rows: 2,
            refused_rows: 1,
            ..AckCount::default()
        };
        let expected = "src: a/0 (snd): 3 of 100 rows are missing from `acks`: 2 because the ring buffer between kernel and \
                        agent was full, 1 because the queue to the controller was full; reduce the rate: `sample.acks = \"10ms\"`";
        assert_eq!(judged(&count), [("acks_lost".to_owned(), expected.to_owned())]);
        assert_eq!(judged(&AckCount { lost_rows: 0, refused_rows: 0, ..count }), []);
    }

    #[test]
    fn lost_events_and_unwatched_sockets_degrade() {
        let events = AckCount {
            flow_id: "a/0".into(),
            side: Side::Receiver.into(),
            events: 5,
            lost_events: 1,
            ..Default::default()
        };
        let expected = "src: a/0 (rcv): 1 of 6 rows is missing from `tcp_events`: the ring buffer between kernel and agent, \
                        or the queue to the controller, was full";
        assert_eq!(judged(&events), [("tcp_events_lost".to_owned(), expected.to_owned())]);
        let missed = AckCount {
            flow_id: "a/0".into(),
            side: Side::Sender.into(),
            mode: mode("every-ack"),
            segments: 400,
            rows: 9,
            coalesced_segments: 9,
            missed_segments: 1,
            ..Default::default()
        };
        let expected = "src: a/0 (snd): the kernel ran no BPF program for 1 of 410 segments, so their rows are missing \
                        from `acks`";
        assert_eq!(judged(&missed), [("acks_lost".to_owned(), expected.to_owned())]);
        assert_eq!(judged(&AckCount { mode: mode("10ms"), ..missed.clone() }), []);
        let missed = judged(&AckCount { missed_segments: 0, missed_events: 2, ..missed });
        let expected = "src: a/0 (snd): the kernel ran no BPF program for 2 of 2 events, so `tcp_events` is incomplete";
        assert_eq!(missed, [("tcp_events_lost".to_owned(), expected.to_owned())]);
        let unread = judged(&AckCount { refused_rows: 2, ..Default::default() });
        assert!(unread[0].1.starts_with("src: 2 records of BPF programs could not be read"));
        let automatic = AckCount {
            flow_id: "a/0".into(),
            mode: mode("auto"),
            lost_rows: 1,
            ..Default::default()
        };
        assert!(judged(&automatic)[0].1.ends_with("`sample.acks = \"100ms\"`, or \"off\""));
        let beyond = judged(&AckCount { lost_rows: 7, ..Default::default() });
        assert!(
            beyond[0].1.starts_with(
                "src: 7 segments have no row in `acks`: they belong to sockets beyond"
            ),
            "{beyond:?}"
        );
    }
}
