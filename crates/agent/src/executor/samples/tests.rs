use super::*;
use crate::executor::tests::RowsPerPass;
use crate::sockets::names::Names;

#[test]
fn what_is_due_when_it_is_stopped_is_done() {
    let (out, mut rows) = Outbox::new(Names::default());
    let task = SampleTask {
        sampler: Box::new(RowsPerPass(1)),
        flows: Vec::new(),
        cc: cc_state::Reader::default(),
        sample: Sample::default(),
        awake: KeptAwakeBy::Nobody,
        links: Vec::new(),
        start_at_ns: 0,
        out,
    };
    let host = HostSampler::new(std::process::id()).unwrap();
    // The stop is requested before the thread first checks for it.
    let stop = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    SamplerLoop::new(task, host, Arc::new(stop), Arc::default()).run();
    let first = rows.try_recv().unwrap().event.of;
    assert!(matches!(first, Some(Of::FlowSample(_))), "{first:?}");
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
