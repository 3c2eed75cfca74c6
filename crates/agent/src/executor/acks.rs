//! The thread that takes rows of acknowledgements off the kernel's hands: nothing that the runtime or the samplers do
//! lets the ring run full.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use ccbench_collector::acks::{AckSource, Watch};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire::{self, run_event::Of};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use super::outbox::{Outbox, event};
use super::run;
use crate::clock;
use crate::error::AgentError;

/// Makes a source of rows, or says why there is none.
pub type OpenAcks = fn(&Watch<'_>) -> Result<Box<dyn AckSource>, String>;

/// Begins to watch this node's sockets, if the plan wants it. A trial does without where it cannot be; its readers
/// find out by the event.
pub fn watch(task: &NodeTask, open: OpenAcks) -> (Option<Box<dyn AckSource>>, Option<wire::Event>) {
    let flows = run::flow_ports(task);
    if task.sample.acks.is_off() || flows.is_empty() {
        return (None, None);
    }
    let opened = ccbench_shaper::bpf::netns_cookie()
        .map_err(|e| format!("cookie of this network namespace (Linux 5.14 or newer): {e}"))
        .and_then(|netns_cookie| {
            open(&Watch { flows: &flows, acks: task.sample.acks, netns_cookie })
        });
    match opened {
        Ok(source) => {
            let told = event("acks", "sockets", source.notes().join("; "));
            (Some(source), Some(told))
        }
        Err(why) => {
            let why = format!("no rows in `acks` and `tcp_events`, samples are polled: {why}");
            (None, Some(event("acks_off", "sockets", why)))
        }
    }
}

/// The running thread.
pub struct AckThread {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<Vec<Of>>,
}

impl AckThread {
    /// Starts it; rows go to `out`, and those that find no room there count as lost.
    ///
    /// # Errors
    /// The system has no thread or descriptor left; the source is gone then.
    pub fn start(source: Box<dyn AckSource>, out: Outbox) -> Result<Self, AgentError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| AgentError::system("make an eventfd")(e.into()))?;
        let stop = Arc::new(stop);
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("acks".to_owned())
            .spawn(move || work(source, &out, &told))
            .map_err(AgentError::system("start the thread of acknowledgements"))?;
        Ok(Self { stop, thread })
    }

    /// Ends it; what is left to send, the counts last.
    pub fn stop(self) -> Vec<Of> {
        // An eventfd takes eight bytes in the machine's order; it fails only when already full.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        self.thread.join().unwrap_or_else(|_| {
            let why = "the thread panicked: rows of acknowledgements ended there";
            vec![Of::Event(event("agent_error", "acks", why))]
        })
    }
}

fn work(mut source: Box<dyn AckSource>, out: &Outbox, stop: &OwnedFd) -> Vec<Of> {
    let period = source.period();
    let timeout =
        Timespec { tv_sec: period.as_secs() as i64, tv_nsec: i64::from(period.subsec_nanos()) };
    let mut ready = Vec::new();
    loop {
        let mut fds = [PollFd::new(stop, PollFlags::IN)];
        let stopped = matches!(poll(&mut fds, Some(&timeout)), Ok(1..));
        source.drain(clock::now_ns(), stopped, &mut ready);
        if stopped {
            let counts = source.counts(clock::now_ns());
            ready.extend(counts.into_iter().map(Of::AckCount));
            return ready;
        }
        for of in ready.drain(..) {
            if let Some(of) = out.offer_batch(of) {
                source.refused(&of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{check, parse};
    use ccbench_proto::schedule::{TrialContext, task_for};

    use super::*;

    /// What node `a` is to do.
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
    fn a_node_without_the_means_says_so_and_goes_on() {
        let here = task("every-ack", "from = \"a\"\nto = \"c\"");
        let (source, told) = watch(&here, |_| Err("no BPF here".to_owned()));
        let told = told.unwrap();
        assert!(source.is_none() && told.kind == "acks_off", "{told:?}");
        assert!(told.message.ends_with("samples are polled: no BPF here"), "{told:?}");
    }

    #[test]
    fn nothing_is_loaded_where_nobody_asks() {
        let refuse: OpenAcks = |_| Err("not to be opened".to_owned());
        let off = task("off", "from = \"a\"\nto = \"c\"");
        let elsewhere = task("every-ack", "from = \"b\"\nto = \"c\"");
        assert!(watch(&off, refuse).1.is_none() && watch(&elsewhere, refuse).1.is_none());
    }
}
