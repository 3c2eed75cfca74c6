//! Tests changes of a link that the state of a flow's congestion control triggers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccbench_proto::wire::LinkChange;
use ccbench_proto::wire::run_event::Payload;

mod support;

use support::{one_link_plan, rows};

const MS: u64 = 1_000_000;

/// Returns a plan with a flow whose link is not at the sender, and this change.
fn plan(change: &str) -> String {
    let link =
        "rate = \"10mbit\"\ndelay = \"20ms\"\nqueue = { kind = \"bfifo\", limit = \"2bdp\" }";
    let rest = format!(
        r#"
[cc.probing]
algorithm = "bbr3"
[flows.one]
from = "src"
to = "dst"
cc = "probing"
[[phases]]
name = "all"
length = "3s"
flows = ["one"]
{change}
"#
    );
    one_link_plan("triggers", link, &rest)
}

/// Returns a change of the link's rate.
fn change(when: &str) -> String {
    format!(
        "[[changes]]\nwhen = {{ flow = \"one\", {when} }}\nset = {{ \"links.there.rate\" = \"9mbit\" }}"
    )
}

/// The changes that a plan makes, and kind, time and message of the events about them.
type Made = (Vec<LinkChange>, Vec<(&'static str, u64, String)>);

/// Runs a plan.
fn made(text: &str) -> Made {
    let (mut changes, mut events) = (Vec::new(), Vec::new());
    for (_, row) in rows(text, 1).unwrap() {
        match row.payload {
            Some(Payload::LinkChange(change)) if change.source != "plan" => changes.push(change),
            Some(Payload::Event(event)) if event.name().starts_with("change_") => {
                events.push((event.name(), event.at_ns, event.message));
            }
            _ => {}
        }
    }
    (changes, events)
}

/// Like [`made`], for a plan with one change.
fn run(when: &str) -> Made {
    made(&plan(&change(when)))
}

#[test]
fn a_state_changes_the_queue_for_a_time() {
    let change = "[[changes]]\nwhen = { flow = \"one\", cc_state = \"STARTUP\", for = \"1s\" }\n\
                  set = { \"links.there.queue.limit\" = \"2000B\" }";
    let beside = "[flows.two]\nfrom = \"src\"\nto = \"dst\"\ncc = \"cubic\"\n[[phases]]";
    let text = plan(change)
        .replace("[[phases]]", beside)
        .replace("flows = [\"one\"]", "flows = [\"one\", \"two\"]");
    let (mut changed_ns, mut backlogs) = (Vec::new(), Vec::new());
    for (_, row) in rows(&text, 1).unwrap() {
        match row.payload {
            Some(Payload::LinkChange(change)) if change.source != "plan" => {
                changed_ns.push(change.applied_at_ns);
            }
            Some(Payload::QdiscSample(row)) if row.link == "there" => {
                backlogs.push((row.at_ns, row.backlog_bytes));
            }
            _ => {}
        }
    }
    let [begin_ns, end_ns] = changed_ns[..] else { panic!("{changed_ns:?}") };
    assert_eq!(end_ns - begin_ns, 1000 * MS);
    // What was in the queue at the change is gone after 100 ms.
    let longest = |from_ns: u64, to_ns: u64| {
        let here = backlogs.iter().filter(|(at_ns, _)| (from_ns..to_ns).contains(at_ns));
        here.map(|(_, bytes)| *bytes).max().unwrap()
    };
    assert!(longest(begin_ns + 100 * MS, end_ns) <= 2000);
    assert!(longest(end_ns, u64::MAX) > 2000, "the first limit is back");
}

#[test]
fn a_state_changes_the_link_for_a_time() {
    let (changes, events) = run(r#"cc_state = "DRAIN", after = "3ms", for = "200ms""#);
    let [first, second] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((first.source.as_str(), first.rate_bps), ("change 1", Some(9_000_000)));
    assert_eq!((second.source.as_str(), second.rate_bps), ("change 1 ends", Some(10_000_000)));
    assert_eq!(second.applied_at_ns - first.applied_at_ns, 200 * MS);
    let message = "change 1: one/0 is in DRAIN".to_owned();
    assert_eq!(events, [("change_triggered", first.applied_at_ns, message)]);
}

#[test]
fn changes_that_overlap_restore_no_value_of_each_other() {
    let first = change(r#"cc_state = "DRAIN", for = "200ms""#);
    let second = change(r#"cc_state = "DRAIN", after = "100ms", for = "200ms""#);
    let second = second.replace("9mbit", "8mbit");
    let (changes, _) = made(&plan(&format!("{first}\n{second}")));
    let begin_ns = changes[0].applied_at_ns;
    let row = |change: &LinkChange| {
        let after_ms = (change.applied_at_ns - begin_ns) / MS;
        (change.source.clone(), after_ms, change.rate_bps)
    };
    let found: Vec<_> = changes.iter().map(row).collect();
    let wanted = [
        ("change 1", 0_u64, Some(9_000_000_u64)),
        ("change 2", 100, Some(8_000_000)),
        ("change 1 ends", 200, None),
        ("change 2 ends", 300, Some(10_000_000)),
    ];
    assert_eq!(found, wanted.map(|(source, at, rate)| (source.to_owned(), at, rate)));
}

#[test]
fn a_state_changes_the_link_each_time() {
    // DOWN follows DRAIN, and UP in each cycle of PROBE_BW, which waits for two to three seconds.
    let long = |when: &str| made(&plan(&change(when)).replace("\"3s\"", "\"10s\""));
    let (once, _) = long(r#"cc_state = "DOWN", for = "1ms""#);
    let (each, events) = long(r#"cc_state = "DOWN", for = "1ms", once = false"#);
    assert_eq!(once.len(), 2, "{once:?}");
    assert!(each.len() > once.len() && each.len() == 2 * events.len(), "{each:?}");
}

#[test]
fn a_state_that_never_comes_is_reported() {
    let (changes, events) = run(r#"cc_state = "PROBE_RTT""#);
    assert!(changes.is_empty(), "{changes:?}");
    let kinds: Vec<&str> = events.iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(kinds, ["change_not_triggered"]);
    assert!(events[0].2.contains("no flow of `one` was seen in PROBE_RTT"), "{events:?}");
}

#[test]
fn looking_at_a_state_changes_nothing() {
    let samples = |text: &str| -> Vec<_> {
        let rows = rows(text, 1).unwrap().into_iter();
        rows.filter_map(|(node, row)| match row.payload {
            Some(Payload::FlowSample(sample)) => Some((node, sample)),
            _ => None,
        })
        .collect()
    };
    // bbr3 probes the RTT after five seconds.
    let never = plan(&change(r#"cc_state = "PROBE_RTT""#));
    let (watched, alone) = (samples(&never), samples(&plan("")));
    assert!(watched.len() > 20 && watched == alone);
    assert_eq!(run(r#"cc_state = "PROBE_RTT""#).0, []);
}
