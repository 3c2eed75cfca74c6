use std::time::Duration;

use ccbench_collector::{Drained, SampleError};
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

/// Runs a trial until `stop` is readable. Returns its result and its rows.
fn run(
    sampler: Box<dyn Sampler>,
    links: Vec<TimedLink>,
    stop: Arc<OwnedFd>,
) -> (Finished, mpsc::Receiver<Outgoing>) {
    let (out, rows) = Outbox::new(Names::default());
    let task = SampleTask {
        sampler,
        flows: Vec::new(),
        cc: cc_state::Reader::default(),
        sample: Sample::default(),
        awake: KeptAwakeBy::Nobody,
        links,
        start_at_ns: 0,
        out,
    };
    let host = HostSampler::new(std::process::id()).unwrap();
    (SamplerLoop::new(task, host, stop, Arc::default()).run(), rows)
}

fn stop_event(count: u32) -> Arc<OwnedFd> {
    Arc::new(eventfd(count, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
}

/// Returns the rows of a trial that is stopped before its thread first checks for it.
fn run_stopped(links: Vec<TimedLink>) -> mpsc::Receiver<Outgoing> {
    run(Box::new(RowsPerPass(1)), links, stop_event(1)).1
}

#[test]
fn what_is_due_when_it_is_stopped_is_done() {
    let first = run_stopped(Vec::new()).try_recv().unwrap().event.payload;
    assert!(matches!(first, Some(Payload::FlowSample(_))), "{first:?}");
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
    let sources = [(); 3].map(|()| match rows.try_recv().unwrap().event.payload {
        Some(Payload::LinkChange(change)) => change.source,
        other => panic!("{other:?}"),
    });
    assert_eq!(sources, ["change 1", "change 2", "change 3"]);
}

#[test]
fn a_late_pass_keeps_the_rhythm() {
    let mut periodic = Periodic::new(100_000_000, 1_000_000_000);
    assert!(!periodic.take(999_999_999));
    assert!(periodic.take(1_000_000_500));
    assert_eq!(periodic.due_ns, 1_100_000_000);
    assert!(periodic.take(1_350_000_000));
    assert_eq!(periodic.due_ns, 1_400_000_000);
}

/// Its first pass lasts for several intervals, and its second one fails. The third one counts both as two sockets' gaps, and
/// ends the trial.
struct Slow {
    passes: u32,
    stop: Arc<OwnedFd>,
}

impl Sampler for Slow {
    fn start(&mut self, _: &[FlowPorts], _: u64) -> Result<(), SampleError> {
        Ok(())
    }
    fn drain(&mut self, _: u64, _: &mut Vec<wire::FlowSample>) -> Result<Drained, SampleError> {
        self.passes += 1;
        match self.passes {
            1 => clock::sleep_thread_until(clock::now_ns() + 4 * Sample::default().tcp.nanos()),
            2 => return Err(SampleError::NoReply { timeout: Duration::from_secs(1) }),
            3 => {
                rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).unwrap();
                return Ok(Drained { rows: 2, late: 2, lost: 10 });
            }
            _ => {}
        }
        Ok(Drained::default())
    }
    fn stop(&mut self) {}
}

#[test]
fn a_missed_sample_counts_once() {
    let stop = stop_event(0);
    let sampler = Slow { passes: 0, stop: Arc::clone(&stop) };
    let (finished, _rows) = run(Box::new(sampler), Vec::new(), stop);
    assert_eq!((finished.late, finished.missed), (2, 10));
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
