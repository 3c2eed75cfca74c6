//! Emulates one direction of a link: its rate, delay and queue, constant or from a trace. Two backends implement one trait:
//!
//! ```text
//!            open(config, dev)
//!                 │ auto: the kernel's qdiscs if this kernel has all that are needed, else userspace
//!        ┌────────┴─────────┐
//!   kernel_link        user_link ── control side
//!   rtnetlink:         clsact redirect → veth → AF_PACKET → datapath (own thread) → AF_PACKET
//!   htb/tbf + leaf
//! ```
//!
//! [`virtual_link`] is the model of a userspace link without threads, sockets and interfaces, for the simulator.
//!
//! The crate uses neither gRPC nor tokio and reads no plan files. Its calls block; its hot threads never allocate, log or lock.

pub mod bpf;
pub mod capture;
pub mod clock;
mod datapath;
mod discipline;
pub mod error;
pub mod flow_queues;
#[doc(hidden)]
pub mod fuzzing;
pub mod keep_awake;
pub mod kernel_link;
pub mod netlink;
pub mod offload;
pub mod probe;
pub mod qdisc;
mod replay;
mod replay_thread;
pub mod route;
pub mod saved;
pub mod settings;
pub mod stack;
mod sys;
pub mod user_link;
pub mod virtual_link;

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::plan::Backend;
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::units::{Micros, Ppm, Rate};
use ccbench_proto::wire::{self, BackendReason};

#[cfg(feature = "bench")]
pub use discipline::cost::{QueueCost, queue_costs};
pub use discipline::{kind as queue_kind, qdisc as queue_qdisc, with_ack_filter};
pub use error::ShaperError;
use kernel_link::KernelLink;
pub use sys::tcp_info;
use user_link::UserLink;

/// One shaped direction of one interface. [`open`] creates it; [`Link::remove`] or dropping it undoes it.
pub trait Link: Send {
    /// Returns the current state: device, backend and why it was chosen, and the qdiscs as the kernel lists them.
    fn state(&self) -> wire::LinkState;
    /// Changes the rate at once. On the hot path: one system call or one atomic store, no allocation, no logging.
    fn set_rate(&mut self, rate: Rate) -> Result<(), ShaperError>;
    /// Changes the constant one-way delay at once, for packets that arrive from now on.
    fn set_delay(&mut self, _delay: Micros) -> Result<(), ShaperError> {
        Err(unsupported_change(&self.state(), "delay"))
    }
    /// Changes the independent random loss at once.
    fn set_loss(&mut self, _loss: Ppm) -> Result<(), ShaperError> {
        Err(unsupported_change(&self.state(), "loss"))
    }
    /// Changes the parameters of the link's own queue at once, to the entry of this index in [`LinkConfig::changed_queues`].
    fn set_queue(&mut self, _number: usize) -> Result<(), ShaperError> {
        Err(unsupported_change(&self.state(), "queue"))
    }
    /// Appends this link's counters at `at_ns`: one row per qdisc and class, or one row for a userspace link.
    fn counters(
        &mut self,
        at_ns: u64,
        into: &mut Vec<wire::QdiscSample>,
    ) -> Result<(), ShaperError>;
    /// Replays the link's trace from `at_ns` (`CLOCK_MONOTONIC`) on. Does nothing for a link without a trace.
    fn begin(&mut self, _at_ns: u64) -> Result<(), ShaperError> {
        Ok(())
    }
    /// Appends the changes that the trace has made since the last call.
    fn changes(&mut self, _into: &mut Vec<wire::LinkChange>) {}
    /// Appends the packet log's rows since the last call. Appends nothing without `packet_log`.
    fn packets(&mut self, _into: &mut Vec<wire::LinkPacket>) {}
    /// Appends the scheduling errors so far: one row for packets (userspace), one for the steps of a trace.
    fn timing(&mut self, _into: &mut Vec<wire::LinkTiming>) {}
    /// Removes the link and restores what was on the interface before. Idempotent.
    fn remove(&mut self) -> Result<(), ShaperError>;
}

fn unsupported_change(state: &wire::LinkState, what: &str) -> ShaperError {
    ShaperError::Unsupported {
        link: state.link.clone(),
        backend: state.backend().as_text(),
        what: format!("a change of its {what}"),
        hint: "write `backend = \"userspace\"`, or leave the change out".to_owned(),
    }
}

/// Applies `config` to the egress of `dev` in the calling thread's network namespace. [`saved::snapshot`] can first save what is there.
///
/// # Errors
/// Fails if the kernel lacks a qdisc (the error names the kernel option and gives a hint) or refuses a request.
pub fn open(config: &LinkConfig, dev: &str) -> Result<Box<dyn Link>, ShaperError> {
    match config.plan.backend {
        Backend::Kernel => {
            Ok(Box::new(KernelLink::open(config, dev, BackendReason::configured())?))
        }
        Backend::Userspace => userspace(config, dev, BackendReason::configured()),
        Backend::Auto => {
            let supported = BackendReason::supported(&KernelLink::needs(config));
            match KernelLink::open(config, dev, supported) {
                Ok(link) => Ok(Box::new(link)),
                Err(ShaperError::Missing { what, config: option, .. })
                    if kernel_link::userspace_can(config) =>
                {
                    userspace(config, dev, BackendReason::missing(&what, option))
                }
                Err(ShaperError::Unsupported { what, .. })
                    if kernel_link::userspace_can(config) =>
                {
                    userspace(config, dev, BackendReason::unsupported(&what))
                }
                Err(error) => Err(error),
            }
        }
    }
}

fn userspace(
    config: &LinkConfig,
    dev: &str,
    reason: BackendReason,
) -> Result<Box<dyn Link>, ShaperError> {
    Ok(Box::new(SelectedLink { link: UserLink::open(config, dev)?, reason }))
}

/// A userspace link with the reason why it was selected.
struct SelectedLink {
    link: UserLink,
    reason: BackendReason,
}

impl Link for SelectedLink {
    fn state(&self) -> wire::LinkState {
        wire::LinkState { reason: Some(self.reason.clone()), ..self.link.state() }
    }
    fn set_rate(&mut self, rate: Rate) -> Result<(), ShaperError> {
        self.link.set_rate(rate)
    }
    fn set_delay(&mut self, delay: Micros) -> Result<(), ShaperError> {
        self.link.set_delay(delay)
    }
    fn set_loss(&mut self, loss: Ppm) -> Result<(), ShaperError> {
        self.link.set_loss(loss)
    }
    fn set_queue(&mut self, number: usize) -> Result<(), ShaperError> {
        self.link.set_queue(number)
    }
    fn counters(
        &mut self,
        at_ns: u64,
        into: &mut Vec<wire::QdiscSample>,
    ) -> Result<(), ShaperError> {
        self.link.counters(at_ns, into)
    }
    fn begin(&mut self, at_ns: u64) -> Result<(), ShaperError> {
        self.link.begin(at_ns)
    }
    fn changes(&mut self, into: &mut Vec<wire::LinkChange>) {
        self.link.changes(into);
    }
    fn packets(&mut self, into: &mut Vec<wire::LinkPacket>) {
        self.link.packets(into);
    }
    fn timing(&mut self, into: &mut Vec<wire::LinkTiming>) {
        self.link.timing(into);
    }
    fn remove(&mut self) -> Result<(), ShaperError> {
        self.link.remove()
    }
}
