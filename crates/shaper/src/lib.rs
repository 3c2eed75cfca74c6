//! Makes a link have a rate, a delay and a queue, and change in time. Two back ends, one seam:
//!
//! ```text
//!            open(config, dev)
//!                 │ auto: the kernel's qdiscs if this kernel has all that is asked, else userspace
//!        ┌────────┴─────────┐
//!   kernel_link        user_link ── control face
//!   rtnetlink:         clsact redirect → veth → AF_PACKET → datapath (own thread) → AF_PACKET
//!   htb/tbf + leaf
//! ```
//!
//! This crate knows no gRPC, no plan file and no tokio; it blocks, and its hot threads never allocate,
//! log or lock.

pub mod error;
pub mod netlink;
pub mod qdisc;

use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::units::Rate;
use ccbench_proto::wire;

pub use error::ShaperError;

/// One shaped direction of one interface. Made by [`open`]; undone by [`Link::remove`] and on drop.
pub trait Link: Send {
    /// What this link became: device, back end, why, qdiscs as read back.
    fn state(&self) -> wire::LinkState;
    /// Changes the rate at once. Hot: one system call or one atomic store, no allocation, no log.
    fn set_rate(&mut self, rate: Rate) -> Result<(), ShaperError>;
    /// Appends this link's counters at `at_ns`, one row per qdisc and class (or one for a userspace link).
    fn counters(
        &mut self,
        at_ns: u64,
        into: &mut Vec<wire::QdiscSample>,
    ) -> Result<(), ShaperError>;
    /// Takes the link away and puts back what was there before. Idempotent.
    fn remove(&mut self) -> Result<(), ShaperError>;
}

/// Applies `config` to the egress of `dev` (in the calling thread's network namespace).
///
/// # Errors
/// What the kernel lacks or refuses, with the kernel option and the way out.
pub fn open(config: &LinkConfig, dev: &str) -> Result<Box<dyn Link>, ShaperError> {
    let _ = (config, dev);
    Err(ShaperError::NotFound { what: "back end", name: String::new() })
}
