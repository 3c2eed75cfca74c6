//! Tests handshakes that take long: the first RTT after a SYN was sent again, and the limit of the application's connect().
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccbench_proto::event::Kind;
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{Event, FlowSample, RunEvent, Side};
use ccbench_simulator::T0_NS;

mod support;

use support::{one_link_plan, rows};

/// Returns a plan with two connections over a path with this delay in each direction. `there` has more keys of the link to `dst`.
fn plan(delay: &str, there: &str, flow: &str, more: &str) -> String {
    let link = format!("rate = \"10mbit\"\ndelay = \"{delay}\"\n{there}");
    let rest = format!(
        r#"
[links.back]
node = "router"
toward = "src"
delay = "{delay}"
[flows.f]
from = "src"
to = "dst"
cc = "reno"
{flow}
[[phases]]
name = "only"
length = "8s"
flows = ["f"]
{more}"#
    );
    one_link_plan("handshake", &link, &rest)
}

/// Returns the first sample of the first connection's sender.
fn first_sample(rows: &[(String, RunEvent)]) -> &FlowSample {
    let mut samples = rows.iter().filter_map(|(_, event)| match &event.payload {
        Some(Payload::FlowSample(row)) => Some(row),
        _ => None,
    });
    samples.find(|row| row.side() == Side::Sender && row.flow_id == "f/0").unwrap()
}

/// Returns the flow group's events with their nodes.
fn events(rows: &[(String, RunEvent)]) -> Vec<(&str, &Event)> {
    let mut events = Vec::new();
    for (node, row) in rows {
        if let Some(Payload::Event(event)) = &row.payload
            && event.subject == "f"
        {
            events.push((node.as_str(), event));
        }
    }
    events
}

/// Returns the failures: when, on which node, and why.
fn errors(rows: &[(String, RunEvent)]) -> Vec<(f64, &str, &str)> {
    let mut errors = Vec::new();
    for (node, event) in events(rows) {
        if matches!(event.kind, Some(Kind::FlowError(_))) {
            let after_s = (event.at_ns - T0_NS) as f64 / 1e9;
            errors.push((after_s, node, event.message.as_str()));
        }
    }
    errors
}

#[test]
fn a_late_answer_to_the_first_syn_gives_the_whole_rtt() {
    // The second SYN leaves after a second, before the answer to the first SYN arrives after 1.2 s.
    for flow in ["", "reverse = true"] {
        let rows = rows(&plan("600ms", "", flow, ""), 1).unwrap();
        let sample = first_sample(&rows);
        let rtt_us = sample.min_rtt_us.unwrap();
        assert!((1_199_000..1_203_000).contains(&rtt_us), "{flow}: {rtt_us} us");
        assert!(errors(&rows).is_empty(), "{flow}: {:?}", errors(&rows));
    }
}

#[test]
fn the_answer_to_a_repeated_syn_gives_the_rtt_in_milliseconds() {
    let change = "[[changes]]\nat = \"500ms\"\nset = { \"links.there.loss\" = \"0%\" }\n";
    let rows = rows(&plan("10ms", "loss = \"99.99%\"", "", change), 1).unwrap();
    let rtt_us = first_sample(&rows).min_rtt_us.unwrap();
    assert!((19_000..22_000).contains(&rtt_us) && rtt_us.is_multiple_of(1000), "{rtt_us} us");
}

#[test]
fn a_connection_that_is_not_made_in_time_fails_its_flow_group() {
    for flow in ["", "count = 2", "reverse = true"] {
        let rows = rows(&plan("10ms", "loss = \"99.99%\"", flow, ""), 1).unwrap();
        let errors = errors(&rows);
        let [(gave_up_s, "src", why), (stopped_s, "dst", server)] = errors[..] else {
            panic!("{flow}: {errors:?}")
        };
        // The kernel's timer wheel rounds the limit up.
        assert!((3.0..3.065).contains(&gave_up_s), "{flow}: {gave_up_s} s");
        assert!(why.starts_with("ccbench client: unable to connect to 10."), "{why}");
        assert!(why.ends_with(": Connection timed out (os error 110)"), "{why}");
        assert_eq!((stopped_s, server), (8.0, "ccbench server left no report (exit code 1)"));
        let events = events(&rows);
        let is_end = |(_, event): &&(&str, &Event)| matches!(event.kind, Some(Kind::FlowEnd(_)));
        assert_eq!(events.iter().filter(is_end).count(), 1, "{flow}");
        let moved = |(_, row): &&(String, RunEvent)| match &row.payload {
            Some(Payload::Flow(row)) => row.bytes > 0 || row.start_s.is_some(),
            _ => false,
        };
        assert_eq!(rows.iter().filter(moved).count(), 0, "{flow}");
    }
}

#[test]
fn a_path_that_lives_again_within_the_limit_makes_the_connection() {
    let change = "[[changes]]\nat = \"1500ms\"\nset = { \"links.there.loss\" = \"0%\" }\n";
    let rows = rows(&plan("10ms", "loss = \"99.99%\"", "count = 2", change), 1).unwrap();
    assert!(errors(&rows).is_empty(), "{:?}", errors(&rows));
    // Two SYNs were lost, so the first window is one segment.
    assert_eq!(first_sample(&rows).snd_cwnd_pkts, Some(1));
}
