//! Turns kernel state into rows: `TCP_INFO` of sockets, counters of the host. It knows no gRPC, no plan
//! file and no tokio; it is told the time of a sample and never decides when to take one.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod acks;
mod bytes;
pub mod cc_info;
pub mod clock;
pub mod convert;
pub mod describe;
pub mod diag_msg;
mod diag_request;
pub mod error;
pub mod host;
pub mod inet_diag;
pub mod ports;
pub mod tcp_info;

use ccbench_proto::wire;

pub use describe::describe;
pub use error::SampleError;
pub use host::{Awake, HostSampler};
pub use inet_diag::DiagSampler;

/// Which sockets belong to which flow group on this node, told apart by port (never by descriptor).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowPorts {
    /// The group's name.
    pub group: String,
    /// The listener's port.
    pub server_port: u16,
    /// Data connection `i` has client port `client_port + i`; any other peer of the listener is control.
    pub client_port: u16,
    /// Number of data connections.
    pub count: u32,
    /// This node listens (otherwise it connects).
    pub listens: bool,
    /// The listener sends.
    pub reverse: bool,
}

/// What one pass over the sockets gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Rows appended.
    pub rows: u64,
    /// Samples whose gap to the socket's previous one was over 1.5 times the interval.
    pub late: u64,
    /// Samples known to be lost.
    pub lost: u64,
}

/// A source of `TCP_INFO` samples. Real: inet_diag (and eBPF later); fake: a script, in the agent's tests.
pub trait Sampler: Send {
    /// Begins to watch these flow groups; `interval_ns` is what was asked for.
    fn start(&mut self, flows: &[FlowPorts], interval_ns: u64) -> Result<(), SampleError>;
    /// Appends what is new at `at_ns` (this node's CLOCK_MONOTONIC).
    fn drain(
        &mut self,
        at_ns: u64,
        into: &mut Vec<wire::FlowSample>,
    ) -> Result<Drained, SampleError>;
    /// Stops watching. Idempotent.
    fn stop(&mut self);
}

/// The best sampler that this node can offer: today always inet_diag, which works everywhere. An eBPF
/// sampler, tried first and given up for this one when the kernel refuses it, belongs here and nowhere
/// else; rows tell the two apart by `sample_src`.
#[must_use]
pub fn pick() -> Box<dyn Sampler> {
    Box::new(DiagSampler::new())
}
