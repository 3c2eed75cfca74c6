//! The thread that drains the ring buffer of acknowledgements. It does nothing else, so the ring does not overflow
//! while the runtime or the samplers are busy.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use ccbench_collector::acks::{AckSource, AcksError, Watch};
use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire::{self, run_event::Payload};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use super::outbox::Outbox;
use super::run::flow_ports;
use crate::clock;
use crate::error::AgentError;
use crate::event::event;

/// Opens a source of acknowledgement rows.
pub type OpenAcks = fn(&Watch<'_>) -> Result<Box<dyn AckSource>, AcksError>;

/// Starts to watch this node's sockets, if the plan requests it. If that fails, the trial runs without, and the event
/// has the reason.
pub fn watch(task: &NodeTask, open: OpenAcks) -> (Option<Box<dyn AckSource>>, Option<wire::Event>) {
    let flows = flow_ports(task);
    if task.sample.acks.is_off() || flows.is_empty() {
        return (None, None);
    }
    let opened = ccbench_shaper::bpf::netns_cookie()
        .map_err(|e| format!("read the cookie of this network namespace (needs Linux 5.14): {e}"))
        .and_then(|netns_cookie| {
            let watch = Watch { flows: &flows, acks: task.sample.acks, netns_cookie };
            open(&watch).map_err(|e| e.to_string())
        });
    match opened {
        Ok(source) => {
            let notice = event(Kind::Acks(NoData {}), "sockets", source.notes().join("; "));
            (Some(source), Some(notice))
        }
        Err(why) => {
            let why = format!("no rows in `acks` and `tcp_events`, and samples are polled: {why}");
            (None, Some(event(Kind::AcksOff(NoData {}), "sockets", why)))
        }
    }
}

/// The running thread.
pub struct AckThread {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<AckRemainder>,
}

/// Rows and counts that the thread has not sent when it ends.
#[derive(Default)]
pub struct AckRemainder {
    /// `None` if the thread panicked.
    source: Option<Box<dyn AckSource>>,
    rows: Vec<Payload>,
}

impl AckRemainder {
    /// Sends the last rows, then the counts, which include the rows that could not be sent.
    pub async fn send(self, out: &Outbox) {
        let Some(mut source) = self.source else {
            let why = "the thread panicked (a bug in ccbench): later rows of acknowledgements are missing";
            return out.event(Kind::AgentError(NoData {}), "acks", why).await;
        };
        for row in self.rows {
            if let Some(row) = out.try_to_send(row).await {
                source.count_refused(&row);
            }
        }
        for count in source.counts(clock::now_ns()) {
            out.send(Payload::AckCount(count)).await;
        }
        if let Some(why) = source.uncounted() {
            out.event(Kind::AcksError(NoData {}), "sockets", why).await;
        }
    }
}

impl AckThread {
    /// Starts the thread, which sends rows to `out`. Rows above its capacity are [refused](AckSource::count_refused).
    ///
    /// # Errors
    /// No thread or descriptor is available; the source is then dropped.
    pub fn start(source: Box<dyn AckSource>, out: Outbox) -> Result<Self, AgentError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| AgentError::system("make an eventfd")(e.into()))?;
        let stop = Arc::new(stop);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("acks".to_owned())
            .spawn(move || run(source, &out, &stopped))
            .map_err(AgentError::system("start the acknowledgement thread"))?;
        Ok(Self { stop, thread })
    }

    /// Stops the thread.
    pub fn stop(self) -> AckRemainder {
        // An eventfd takes eight bytes in native byte order; the write fails only if the counter is full.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        self.thread.join().unwrap_or_default()
    }
}

fn run(mut source: Box<dyn AckSource>, out: &Outbox, stop: &OwnedFd) -> AckRemainder {
    let period = source.period();
    let timeout =
        Timespec { tv_sec: period.as_secs() as i64, tv_nsec: i64::from(period.subsec_nanos()) };
    let mut ready = Vec::new();
    loop {
        let burst = source.burst().unwrap_or(stop.as_fd());
        let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::new(&burst, PollFlags::IN)];
        // On an error no descriptor is ready, and the drain is only early.
        let stopped = poll(&mut fds, Some(&timeout)).is_ok() && !fds[0].revents().is_empty();
        source.drain(clock::now_ns(), stopped, &mut ready);
        if stopped {
            return AckRemainder { source: Some(source), rows: ready };
        }
        for payload in ready.drain(..) {
            if let Some(payload) = out.offer_batch(payload) {
                source.count_refused(&payload);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    use ccbench_proto::plan::{check, parse};
    use ccbench_proto::schedule::{TrialContext, task_for};

    use super::*;
    use crate::sockets::names::Names;

    /// Returns the task of node `a`.
    fn task(acks: &str, flows: &str) -> NodeTask {
        let text = format!(
            "name = \"t\"\n[sample]\nacks = \"{acks}\"\n[nodes]\na = {{}}\nb = {{}}\nc = {{}}\n\
             [wires]\nw = [\"a\", \"b\", \"c\"]\n[flows.f]\n{flows}\n\
             [[phases]]\nname = \"p\"\nlength = \"1s\"\nflows = [\"f\"]\n"
        );
        let (plan, _) = check::check(parse::parse(&text).unwrap()).unwrap();
        let address = |node: &str| (node.to_owned(), "127.0.0.1".parse().unwrap());
        let addresses = [address("a"), address("b"), address("c")].into();
        task_for(&plan, "a", &TrialContext { addresses, ..TrialContext::default() })
    }

    #[test]
    fn missing_bpf_is_reported_and_not_fatal() {
        let here = task("every-ack", "from = \"a\"\nto = \"c\"");
        let (source, notice) = watch(&here, |_| Err(AcksError::NotBuilt));
        let notice = notice.unwrap();
        assert!(source.is_none() && notice.name() == "acks_off", "{notice:?}");
        let expected = format!("samples are polled: {}", AcksError::NotBuilt);
        assert!(notice.message.ends_with(&expected), "{notice:?}");
    }

    /// Records the calls made to it.
    struct FakeSource(Arc<Mutex<Vec<&'static str>>>);

    impl FakeSource {
        fn note(&self, what: &'static str) {
            self.0.lock().unwrap().push(what);
        }
    }

    impl AckSource for FakeSource {
        fn drain(&mut self, _: u64, _: bool, _: &mut Vec<Payload>) {}
        fn count_refused(&mut self, payload: &Payload) {
            assert!(matches!(payload, Payload::Acks(rows) if rows.at_ns == [1, 2]));
            self.note("refused");
        }
        fn counts(&mut self, _: u64) -> Vec<wire::AckCount> {
            self.note("counts");
            vec![wire::AckCount::default()]
        }
        fn uncounted(&self) -> Option<String> {
            Some("1 reads of counts failed".to_owned())
        }
        fn period(&self) -> Duration {
            Duration::ZERO
        }
        fn notes(&self) -> &[String] {
            &[]
        }
    }

    #[tokio::test]
    async fn counts_include_the_last_rows() {
        let calls = Arc::default();
        let left = || {
            let rows = vec![Payload::Acks(wire::Acks { at_ns: vec![1, 2], ..Default::default() })];
            AckRemainder { source: Some(Box::new(FakeSource(Arc::clone(&calls)))), rows }
        };
        let (out, mut sent) = Outbox::new(Names::default());
        left().send(&out).await;
        assert!(matches!(sent.recv().await.unwrap().event.payload, Some(Payload::Acks(_))));
        assert!(matches!(sent.recv().await.unwrap().event.payload, Some(Payload::AckCount(_))));
        let Some(Payload::Event(failed)) = sent.recv().await.unwrap().event.payload else {
            panic!("a failed read of counts is reported")
        };
        assert_eq!((failed.name(), &*failed.message), ("acks_error", "1 reads of counts failed"));
        drop(sent);
        left().send(&out).await;
        assert_eq!(*calls.lock().unwrap(), ["counts", "refused", "counts"]);
    }

    /// Has a burst, and a period that does not end during the test.
    struct Burst {
        readable: OwnedFd,
        drained: mpsc::Sender<()>,
    }

    impl AckSource for Burst {
        fn drain(&mut self, _: u64, _: bool, _: &mut Vec<Payload>) {
            if rustix::io::read(&self.readable, &mut [0; 8]).is_ok() {
                self.drained.send(()).unwrap();
            }
        }
        fn count_refused(&mut self, _: &Payload) {}
        fn counts(&mut self, _: u64) -> Vec<wire::AckCount> {
            Vec::new()
        }
        fn period(&self) -> Duration {
            Duration::from_secs(3600)
        }
        fn burst(&self) -> Option<BorrowedFd<'_>> {
            Some(self.readable.as_fd())
        }
        fn notes(&self) -> &[String] {
            &[]
        }
    }

    #[tokio::test]
    async fn a_burst_is_drained_before_the_period_ends() {
        let readable = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let (drained, wait) = mpsc::channel();
        let (out, _rows) = Outbox::new(Names::default());
        let thread = AckThread::start(Box::new(Burst { readable, drained }), out).unwrap();
        wait.recv_timeout(Duration::from_secs(60)).unwrap();
        thread.stop();
    }

    #[test]
    fn loads_no_program_when_acks_is_off() {
        let refuse: OpenAcks = |_| Err(AcksError::NotBuilt);
        let off = task("off", "from = \"a\"\nto = \"c\"");
        let elsewhere = task("every-ack", "from = \"b\"\nto = \"c\"");
        assert!(watch(&off, refuse).1.is_none() && watch(&elsewhere, refuse).1.is_none());
    }
}
