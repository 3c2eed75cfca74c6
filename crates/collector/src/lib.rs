//! Turns kernel state into rows: `TCP_INFO` of sockets, and counters of the host. Independent of gRPC, plan files and tokio.
//! Callers decide when to sample and pass the time.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

pub mod acks;
mod bytes;
pub mod cc_info;
pub mod clock;
pub mod describe;
pub mod diag_msg;
mod diag_request;
pub mod error;
pub mod flow_sample;
pub mod host;
pub mod inet_diag;
mod owner;
pub mod ports;
pub mod tcp_info;

use ccbench_proto::wire;

pub use describe::describe;
pub use error::SampleError;
pub use host::{HostSampler, KeptAwakeBy};
pub use inet_diag::DiagSampler;
pub use owner::socket_owner;

/// The sockets of a flow group on this node. Ports identify them, never descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowPorts {
    /// The group's name.
    pub group: String,
    /// The listener's port.
    pub server_port: u16,
    /// Data connection `i` has client port `client_port + i`; any other peer of the listener is a control connection.
    pub client_port: u16,
    /// Number of data connections.
    pub count: u32,
    /// Whether this node listens (otherwise it connects).
    pub listens: bool,
    /// Whether the listener sends.
    pub reverse: bool,
}

/// The result of one pass over the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Rows appended.
    pub rows: u64,
    /// Samples that came more than 1.5 intervals after the socket's previous one.
    pub late: u64,
    /// Samples known to be lost.
    pub lost: u64,
}

/// A source of `TCP_INFO` samples: inet_diag, or a fake in the agent's tests.
pub trait Sampler: Send {
    /// Starts to sample these flow groups; `interval_ns` is the configured interval.
    fn start(&mut self, flows: &[FlowPorts], interval_ns: u64) -> Result<(), SampleError>;
    /// Appends one row per socket, taken at `at_ns` (this node's CLOCK_MONOTONIC).
    fn drain(
        &mut self,
        at_ns: u64,
        into: &mut Vec<wire::FlowSample>,
    ) -> Result<Drained, SampleError>;
    /// Stops sampling. Idempotent.
    fn stop(&mut self);
}

/// Returns the sampler of this node: always inet_diag, which every kernel has. The column `sample_src` names it.
#[must_use]
pub fn default_sampler() -> Box<dyn Sampler> {
    Box::new(DiagSampler::new())
}
