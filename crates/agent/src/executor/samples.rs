//! The sampler thread: takes samples and changes links at absolute deadlines. It runs outside the async runtime, whose
//! work would delay samples. It stops on request and returns the links.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ccbench_collector::ports::PortMap;
use ccbench_collector::{FlowPorts, HostSampler, KeptAwakeBy, Sampler};
use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::plan::Sample;
use ccbench_proto::resolve::TimedChange;
use ccbench_proto::trigger::Step;
use ccbench_proto::units::{Micros, Ppm, Rate};
use ccbench_proto::wire::{self, Side, run_event::Payload};
use ccbench_shaper::{Link, ShaperError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use super::outbox::Outbox;
use super::timed_link::TimedLink;
use crate::clock;
use crate::error::AgentError;
use crate::event::event;
use crate::flow::application_bytes;
use crate::sockets::cc_state;

/// The work of the sampler thread.
pub struct SampleTask {
    /// The sampler of TCP sockets.
    pub sampler: Box<dyn Sampler>,
    /// The sockets to sample.
    pub flows: Vec<FlowPorts>,
    /// Reads the internal state of congestion controls.
    pub cc: cc_state::Reader,
    /// The sampling intervals.
    pub sample: Sample,
    /// The process that keeps the CPUs from halting.
    pub awake: KeptAwakeBy,
    /// All links of this node.
    pub links: Vec<TimedLink>,
    /// The trial's beginning.
    pub start_at_ns: u64,
    /// Where the rows go.
    pub out: Outbox,
}

/// The samples of one socket, summarised for flow rows and for placing iperf3's intervals in time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SocketHistory {
    /// When the last dump without this socket was taken. It did not exist then.
    pub not_before_ns: u64,
    /// When the first dump with this socket was taken.
    pub first_at_ns: u64,
    /// `tcpi_busy_time` in that dump.
    pub first_busy_us: Option<u64>,
    /// `tcpi_min_rtt` in that dump.
    pub first_min_rtt_us: Option<u32>,
    /// Last congestion control.
    pub cc: String,
    /// The kernel's name for the socket.
    pub cookie: Option<u64>,
    /// This end's port.
    pub sport: u16,
    /// The other end's port.
    pub dport: u16,
    /// Last value of `tcpi_bytes_acked`.
    pub bytes_acked: Option<u64>,
    /// Last value of `tcpi_bytes_received`.
    pub bytes_received: Option<u64>,
    /// Time, and bytes that the application had written (sender) or the kernel had received (receiver).
    pub points: Vec<(u64, u64)>,
}

/// Enough points to place a report in time by the median.
const MAX_POINTS: usize = 64;
const POINT_GAP_NS: u64 = 50_000_000;

/// How often the channel's capacity is checked while packets wait for it.
const PACKETS_GAP_NS: u64 = 10_000_000;

/// The longest time between two reads of internal state, without and with changes that depend on it.
const STATE_GAP_NS: u64 = 100_000_000;
const TRIGGER_GAP_NS: u64 = 5_000_000;

/// Histories by flow_id and side.
pub type SocketHistories = BTreeMap<(String, Side), SocketHistory>;

/// Result of the sampler thread.
pub struct Finished {
    /// The links, still in place.
    pub links: Vec<Box<dyn Link>>,
    /// TCP samples that were taken late.
    pub late: u64,
    /// TCP samples that are missing in the gaps of sockets.
    pub missed: u64,
    /// The last rows: packets that did not fit into the channel, and the timing of the links.
    pub rows: Vec<Payload>,
    /// The thread panicked; its links were dropped, which undoes them.
    pub broken: bool,
}

/// Why the thread did not start, and the links that it would have changed.
pub struct NotStarted {
    /// Why.
    pub error: AgentError,
    /// The links, still in place.
    pub links: Vec<Box<dyn Link>>,
}

/// The running thread.
pub struct SamplerThread {
    stop: Arc<OwnedFd>,
    seen: Arc<Mutex<SocketHistories>>,
    sampling: Sampling,
}

/// Where the loop runs.
enum Sampling {
    Thread(JoinHandle<Finished>),
    /// In a simulation, whose time does not wait for a thread: one pass when it is stopped.
    AtEnd(Box<SamplerLoop>),
}

impl SamplerThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread could not start, or the samplers could not be opened. The error returns the links.
    pub fn start(task: SampleTask) -> Result<Self, Box<NotStarted>> {
        let mut task = task;
        let mut open = || {
            let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|e| AgentError::system("make an eventfd")(e.into()))?;
            task.sampler
                .start(&task.flows, task.sample.tcp.nanos())
                .map_err(|source| AgentError::Sample { what: "TCP sockets", source })?;
            let host = HostSampler::new(std::process::id())
                .map_err(|source| AgentError::Sample { what: "the host", source })?;
            Ok((stop, host.awake(task.awake)))
        };
        let (stop, host) = match open() {
            Ok(opened) => opened,
            Err(error) => {
                return Err(Box::new(NotStarted { error, links: unwrap_links(task.links) }));
            }
        };
        let (stop, seen) = (Arc::new(stop), Arc::new(Mutex::new(SocketHistories::new())));
        let sampling = SamplerLoop::new(task, host, Arc::clone(&stop), Arc::clone(&seen));
        if clock::is_simulated() {
            return Ok(Self { stop, seen, sampling: Sampling::AtEnd(Box::new(sampling)) });
        }
        // If the thread cannot start, its closure is dropped with the links, which undoes them.
        let thread = std::thread::Builder::new()
            .name("samples".to_owned())
            .spawn(move || sampling.run())
            .map_err(|e| NotStarted {
                error: AgentError::system("start the sampler thread")(e),
                links: Vec::new(),
            })?;
        Ok(Self { stop, seen, sampling: Sampling::Thread(thread) })
    }

    /// Returns the histories of all sockets so far, shared with the thread.
    pub fn seen(&self) -> Arc<Mutex<SocketHistories>> {
        Arc::clone(&self.seen)
    }

    /// Stops the thread after the work that is due, within two passes.
    pub fn stop(self) -> Finished {
        // An eventfd takes eight bytes in native byte order; the write fails only if the counter is full.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        let thread = match self.sampling {
            Sampling::Thread(thread) => thread,
            Sampling::AtEnd(sampling) => return sampling.run(),
        };
        thread.join().unwrap_or_else(|_| {
            tracing::error!("the sampler thread panicked; its links were dropped");
            Finished { links: Vec::new(), late: 0, missed: 0, rows: Vec::new(), broken: true }
        })
    }
}

fn unwrap_links(links: Vec<TimedLink>) -> Vec<Box<dyn Link>> {
    links.into_iter().map(|timed| timed.link).collect()
}

/// Locks even if another thread panicked: the map is valid after every single step.
pub fn lock(seen: &Mutex<SocketHistories>) -> MutexGuard<'_, SocketHistories> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A period and its next due time.
#[derive(Debug, Clone, Copy)]
struct Periodic {
    period_ns: u64,
    due_ns: u64,
}

impl Periodic {
    fn new(period_ns: u64, start_ns: u64) -> Self {
        Self { period_ns: period_ns.max(1_000_000), due_ns: start_ns }
    }

    /// Whether a sample is due. If so, moves the due time into the future.
    fn take(&mut self, now_ns: u64) -> bool {
        let due = now_ns >= self.due_ns;
        if due {
            self.due_ns = clock::next_due_ns(self.due_ns, self.period_ns, now_ns);
        }
        due
    }
}

struct Change {
    due_ns: u64,
    link: usize,
    change: TimedChange,
}

struct SamplerLoop {
    task: SampleTask,
    host: HostSampler,
    stop: Arc<OwnedFd>,
    seen: Arc<Mutex<SocketHistories>>,
    /// The next one is last.
    changes: Vec<Change>,
    late: u64,
    missed: u64,
    last_pass_ns: u64,
    failed: BTreeMap<&'static str, ()>,
    ports: PortMap,
    states: Vec<wire::CcState>,
    samples: Vec<wire::FlowSample>,
    counters: Vec<wire::QdiscSample>,
    by_trace: Vec<wire::LinkChange>,
    /// Packets of all links that wait to be sent.
    packets: Vec<wire::LinkPacket>,
    /// How many of them, from the front, have been sent.
    packets_sent: usize,
}

impl SamplerLoop {
    fn new(
        task: SampleTask,
        host: HostSampler,
        stop: Arc<OwnedFd>,
        seen: Arc<Mutex<SocketHistories>>,
    ) -> Self {
        let start = task.start_at_ns;
        let mut changes: Vec<Change> = task
            .links
            .iter()
            .enumerate()
            .flat_map(|(link, timed)| timed.changes.iter().map(move |change| (link, change)))
            .map(|(link, change)| Change {
                due_ns: start + change.at.nanos(),
                link,
                change: change.clone(),
            })
            .collect();
        // Taken from the end. Changes of one instant keep the plan's order, since each queue includes the changes before it.
        changes.sort_by_key(|change| change.due_ns);
        changes.reverse();
        let ports = PortMap::new(&task.flows);
        Self {
            last_pass_ns: start,
            task,
            host,
            stop,
            seen,
            changes,
            late: 0,
            missed: 0,
            failed: BTreeMap::new(),
            ports,
            states: Vec::new(),
            samples: Vec::new(),
            counters: Vec::new(),
            by_trace: Vec::new(),
            packets: Vec::new(),
            packets_sent: 0,
        }
    }

    fn run(mut self) -> Finished {
        // Samples before a late start do not count as missed.
        let (sample, start) =
            (self.task.sample.clone(), self.task.start_at_ns.max(clock::now_ns()));
        let mut tcp = Periodic::new(sample.tcp.nanos(), start);
        // The rings are small, so they are drained however rarely sockets are sampled.
        let state_ns = match self.task.links.iter().any(|link| link.triggered.has_triggers()) {
            _ if self.task.cc.is_empty() => u64::MAX / 4,
            true => TRIGGER_GAP_NS,
            false => STATE_GAP_NS,
        };
        let mut state = Periodic::new(state_ns.min(sample.tcp.nanos().max(1)), start);
        let mut qdisc = Periodic::new(sample.qdisc.nanos(), start);
        let mut host = Periodic::new(sample.host.nanos(), start);
        loop {
            let change_ns = self.changes.last().map_or(u64::MAX, |change| change.due_ns);
            let trigger_ns = self.task.links.iter().map(|timed| timed.triggered.due_ns()).min();
            let change_ns = change_ns.min(trigger_ns.unwrap_or(u64::MAX));
            let next =
                change_ns.min(tcp.due_ns).min(qdisc.due_ns).min(host.due_ns).min(state.due_ns);
            let next = if self.packets.is_empty() {
                next
            } else {
                next.min(clock::now_ns() + PACKETS_GAP_NS)
            };
            // The last pass does what is due by then: a thread that had no CPU until the end would otherwise skip changes unnoticed.
            let is_last = self.stopped_before(next);
            self.change_links();
            if tcp.take(clock::now_ns()) {
                self.sample_tcp();
            }
            if state.take(clock::now_ns()) {
                self.sample_states();
            }
            self.make_triggered_changes();
            // A final sample completes the counters of the trial.
            if qdisc.take(clock::now_ns()) || is_last {
                self.sample_links();
            }
            if host.take(clock::now_ns()) {
                self.sample_host();
            }
            self.send_packets();
            if is_last {
                break;
            }
        }
        self.task.sampler.stop();
        Finished {
            rows: self.last_rows(),
            links: unwrap_links(self.task.links),
            late: self.late,
            missed: self.missed,
            broken: false,
        }
    }

    /// Sleeps until `at_ns`. Returns true if a stop was requested meanwhile.
    fn stopped_before(&self, at_ns: u64) -> bool {
        loop {
            let left = clock::until(at_ns);
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = [PollFd::new(&*self.stop, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) if clock::now_ns() >= at_ns => return false,
                Ok(0) | Err(_) => {}
                Ok(_) => return true,
            }
        }
    }

    fn change_links(&mut self) {
        while let Some(next) = self.changes.last()
            && next.due_ns <= clock::now_ns()
            && let Some(Change { due_ns, link, change }) = self.changes.pop()
        {
            let change = self.task.links[link].triggered.make_lasting(change);
            self.change_link(Change { due_ns, link, change });
        }
    }

    fn change_link(&mut self, Change { due_ns, link, change }: Change) {
        let timed = &mut self.task.links[link];
        let result = timed.apply(&change);
        let applied_at_ns = clock::now_ns();
        self.task.out.offer(Payload::LinkChange(wire::LinkChange {
            requested_at_ns: due_ns,
            applied_at_ns,
            link: timed.link.state().link,
            iface: timed.dev.clone(),
            rate_bps: change.rate.map(Rate::bits_per_sec),
            delay_us: change.delay.map(Micros::get),
            loss_ppm: change.loss.map(Ppm::get),
            source: change.source,
            rc: result.as_ref().map_or_else(errno, |()| 0),
        }));
        if let Err(error) = result {
            let subject = timed.link.state().link;
            self.task.out.offer(Payload::Event(event(
                Kind::LinkError(NoData {}),
                &subject,
                error.to_string(),
            )));
        }
    }

    /// Makes the due changes that flow states have triggered.
    fn make_triggered_changes(&mut self) {
        for link in 0..self.task.links.len() {
            while let Some(step) = self.task.links[link].triggered.take(clock::now_ns()) {
                let Step { due_ns, change, reason } = step;
                self.change_link(Change { due_ns, link, change });
                if let Some(reason) = reason {
                    let subject = self.task.links[link].link.state().link;
                    let made = event(Kind::ChangeTriggered(NoData {}), &subject, reason);
                    self.task.out.offer(Payload::Event(made));
                }
            }
        }
    }

    fn sample_tcp(&mut self) {
        let at_ns = clock::now_ns();
        match self.task.sampler.drain(at_ns, &mut self.samples) {
            // Late and failed passes are gaps of the sockets, which the sampler counts.
            Ok(drained) => {
                self.late += drained.late;
                self.missed += drained.lost;
            }
            Err(error) => self.fail("TCP sockets", &error.to_string()),
        }
        let mut seen = lock(&self.seen);
        for sample in &self.samples {
            note(&mut seen, sample, self.last_pass_ns);
        }
        drop(seen);
        self.last_pass_ns = at_ns;
        for sample in self.samples.drain(..) {
            self.task.out.offer(Payload::FlowSample(sample));
        }
    }

    /// Sends rows of internal state. Returns whether there may be more.
    fn sample_states(&mut self) -> bool {
        let has_more = self.task.cc.drain(&self.ports, &mut self.states);
        for timed in &mut self.task.links {
            self.states.iter().for_each(|row| timed.observe(row));
        }
        for state in self.states.drain(..) {
            self.task.out.offer(Payload::CcState(state));
        }
        has_more
    }

    fn sample_links(&mut self) {
        let mut errors = Vec::new();
        for timed in &mut self.task.links {
            if let Err(error) = timed.link.counters(clock::now_ns(), &mut self.counters) {
                errors.push(error.to_string());
            }
        }
        for counters in self.counters.drain(..) {
            self.task.out.offer(Payload::QdiscSample(counters));
        }
        for error in errors {
            self.fail("links", &error);
        }
        self.read_links();
    }

    /// Reads the changes, timing and packets of the links.
    fn read_links(&mut self) {
        for timed in &mut self.task.links {
            timed.link.changes(&mut self.by_trace);
            timed.link.packets(&mut self.packets);
        }
        for change in self.by_trace.drain(..) {
            self.task.out.offer(Payload::LinkChange(change));
        }
    }

    /// Sends waiting packets. There are thousands, so they leave half of the capacity to all other rows.
    fn send_packets(&mut self) {
        let capacity = self.task.out.capacity_for_rows();
        let end = self.packets.len().min(self.packets_sent + capacity);
        for packet in self.packets.get(self.packets_sent..end).unwrap_or_default() {
            self.task.out.offer(Payload::LinkPacket(packet.clone()));
        }
        self.packets_sent = end;
        if end == self.packets.len() {
            self.packets.clear();
            self.packets_sent = 0;
        }
    }

    fn last_rows(&mut self) -> Vec<Payload> {
        // No flow runs any more, so the loop ends.
        while self.sample_states() {}
        if self.task.cc.thinned() > 0 {
            let message = format!(
                "{} rounds of internal state were skipped to stay within the row limit",
                self.task.cc.thinned()
            );
            self.task.out.offer(Payload::Event(event(
                Kind::CcStateThinned(NoData {}),
                "",
                message,
            )));
        }
        self.task.cc.losses().for_each(|lost| self.task.out.offer(Payload::Event(lost)));
        for timed in &self.task.links {
            for missing in timed.triggered.missing() {
                let subject = timed.link.state().link;
                let missed = event(Kind::ChangeNotTriggered(NoData {}), &subject, missing);
                self.task.out.offer(Payload::Event(missed));
            }
        }
        self.read_links();
        let mut timing = Vec::new();
        for timed in &mut self.task.links {
            timed.link.timing(&mut timing);
            // Every packet counted in the timing needs a row.
            timed.link.packets(&mut self.packets);
        }
        let packets = self.packets.drain(..).skip(self.packets_sent);
        let timing = timing.into_iter().map(Payload::LinkTiming);
        timing.chain(packets.map(Payload::LinkPacket)).collect()
    }

    fn sample_host(&mut self) {
        match self.host.sample(clock::now_ns()) {
            Ok(sample) => self.task.out.offer(Payload::HostSample(sample)),
            Err(error) => self.fail("host", &error.to_string()),
        }
    }

    /// Reports an error once: a failing sampler fails at every pass.
    fn fail(&mut self, what: &'static str, error: &str) {
        if self.failed.insert(what, ()).is_none() {
            self.task.out.offer(Payload::Event(event(Kind::SampleError(NoData {}), what, error)));
        }
    }
}

fn errno(error: &ShaperError) -> i32 {
    let code = match error {
        ShaperError::Netlink { source, .. } | ShaperError::System { source, .. } => {
            source.raw_os_error()
        }
        _ => None,
    };
    -code.unwrap_or(libc::EIO)
}

fn note(seen: &mut SocketHistories, sample: &wire::FlowSample, last_pass_ns: u64) {
    let port = |port: u32| u16::try_from(port).unwrap_or_default();
    let known =
        seen.entry((sample.flow_id.clone(), sample.side())).or_insert_with(|| SocketHistory {
            not_before_ns: last_pass_ns,
            first_at_ns: sample.at_ns,
            first_busy_us: sample.busy_us,
            first_min_rtt_us: sample.min_rtt_us,
            sport: port(sample.sport),
            dport: port(sample.dport),
            ..SocketHistory::default()
        });
    if known.cc != sample.cc && !sample.cc.is_empty() {
        known.cc.clone_from(&sample.cc);
    }
    let spaced = known.points.last().is_none_or(|last| sample.at_ns >= last.0 + POINT_GAP_NS);
    if known.points.len() < MAX_POINTS
        && spaced
        && let Some(bytes) = application_bytes(sample)
    {
        known.points.push((sample.at_ns, bytes));
    }
    known.cookie = sample.cookie.or(known.cookie);
    known.bytes_acked = sample.bytes_acked.or(known.bytes_acked);
    known.bytes_received = sample.bytes_received.or(known.bytes_received);
}

#[cfg(test)]
mod tests;
