use ccbench_proto::plan::{self, Queue};
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::trigger::LinkChanges;
use ccbench_proto::units::{Limit, Packets};
use tokio::sync::mpsc;

use super::*;
use crate::executor::Outgoing;
use crate::executor::tests::RowsPerPass;
use crate::interfaces::Interfaces as _;
use crate::interfaces::fake::FakeInterfaces;
use crate::sockets::names::Names;

/// Returns the rows of a trial that is stopped before its thread first checks for it.
fn run_stopped(links: Vec<TimedLink>) -> mpsc::Receiver<Outgoing> {
    let (out, rows) = Outbox::new(Names::default());
    let task = SampleTask {
        sampler: Box::new(RowsPerPass(1)),
        flows: Vec::new(),
        cc: cc_state::Reader::default(),
        sample: Sample::default(),
        awake: KeptAwakeBy::Nobody,
        links,
        start_at_ns: 0,
        out,
    };
    let host = HostSampler::new(std::process::id()).unwrap();
    let stop = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    SamplerLoop::new(task, host, Arc::new(stop), Arc::default()).run();
    rows
}

#[test]
fn what_is_due_when_it_is_stopped_is_done() {
    let first = run_stopped(Vec::new()).try_recv().unwrap().event.of;
    assert!(matches!(first, Some(Of::FlowSample(_))), "{first:?}");
}

#[test]
fn changes_of_one_instant_are_made_in_their_order() {
    let queue = Queue::pfifo(Limit::Packets(Packets::new(100)));
    let config = LinkConfig::new("l", plan::Link::default(), queue);
    let change = |number: u64| TimedChange {
        at: Micros::default(),
        rate: Some(Rate::from_bits_per_sec(number * 1_000_000)),
        delay: None,
        loss: None,
        queue: None,
        source: format!("change {number}"),
    };
    let link = TimedLink {
        link: FakeInterfaces::default().open(&config, "eth0").unwrap(),
        dev: "eth0".to_owned(),
        changes: [1, 2, 3].map(change).to_vec(),
        triggered: LinkChanges::default(),
    };
    let mut rows = run_stopped(vec![link]);
    let sources = [(); 3].map(|()| match rows.try_recv().unwrap().event.of {
        Some(Of::LinkChange(change)) => change.source,
        other => panic!("{other:?}"),
    });
    assert_eq!(sources, ["change 1", "change 2", "change 3"]);
}

#[test]
fn a_late_pass_counts_what_it_missed_and_keeps_the_rhythm() {
    let mut periodic = Periodic::new(100_000_000, 1_000_000_000);
    assert_eq!(periodic.take(999_999_999), None);
    assert_eq!(periodic.take(1_000_000_500), Some(0));
    assert_eq!(periodic.due_ns, 1_100_000_000);
    assert_eq!(periodic.take(1_350_000_000), Some(2));
    assert_eq!(periodic.due_ns, 1_400_000_000);
}

#[test]
fn keeps_the_first_sample_of_a_socket() {
    let mut seen = SocketHistories::new();
    let sample = |at_ns, cc: &str, busy_us| wire::FlowSample {
        at_ns,
        flow_id: "a/0".into(),
        side: Side::Sender.into(),
        cc: cc.into(),
        busy_us: Some(busy_us),
        bytes_acked: Some(at_ns),
        ..Default::default()
    };
    note(&mut seen, &sample(200, "cubic", 30), 100);
    note(&mut seen, &sample(300, "reno", 60), 200);
    let known = &seen[&("a/0".to_owned(), Side::Sender)];
    assert_eq!((known.not_before_ns, known.first_at_ns), (100, 200));
    assert_eq!((known.first_busy_us, known.cc.as_str()), (Some(30), "reno"));
    assert_eq!(known.bytes_acked, Some(300));
}
