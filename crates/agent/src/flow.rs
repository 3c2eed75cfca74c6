//! The interface between the executor and traffic generators.

use std::future::Future;
use std::pin::Pin;

use ccbench_proto::plan::Tool;
use ccbench_proto::schedule::FlowTask;
use ccbench_proto::wire::{FlowSample, Side};

use crate::error::{AgentError, ListenError};

pub mod document;
pub mod generator;
pub mod iperf3;
pub mod output;
pub mod process;

use output::Output;

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Which end of a flow group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEndpoint {
    /// Connects.
    Client,
    /// Listens.
    Server,
}

impl FlowEndpoint {
    /// Returns "client" or "server".
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// Returns whether this end sends or receives the data.
    pub fn side(self, task: &FlowTask) -> Side {
        if (self == Self::Client) == task.plan.reverse { Side::Receiver } else { Side::Sender }
    }
}

/// Starts traffic. The executor's tests use a script instead of processes.
pub trait FlowSource: Send + Sync {
    /// Checks that a tool is installed. Call this before its first start.
    fn find(&self, tool: Tool) -> BoxFuture<'_, Result<(), AgentError>>;
    /// Returns a tool and its version ("iperf3 3.12").
    fn version(&self, tool: Tool) -> String;
    /// Starts one end of a flow group.
    ///
    /// # Errors
    /// The tool could not be started.
    fn start(&self, task: &FlowTask, end: FlowEndpoint) -> Result<Box<dyn Traffic>, AgentError>;
}

/// A running end of a flow group. Dropping it kills the process.
pub trait Traffic: Send {
    /// Resolves when a listening end listens, within 8 s.
    fn listening(&mut self) -> BoxFuture<'_, Result<(), ListenError>>;
    /// Returns the next step. Cancel-safe. Must not be called after [`Progress::Ended`].
    fn next(&mut self) -> BoxFuture<'_, Progress>;
    /// Sends a stop signal.
    fn stop(&mut self, how: Stop);
}

/// How to stop a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// End the test and write the report (SIGINT).
    Interrupt,
    /// End and write the report (SIGTERM).
    Terminate,
    /// Kill it (SIGKILL).
    Kill,
}

/// A step of a running end.
#[derive(Debug)]
pub enum Progress {
    /// The process wrote a line (`--json-stream`).
    Line {
        /// CLOCK_MONOTONIC when it was read.
        at_ns: u64,
        /// The line, without its end; empty if it was too long.
        line: Vec<u8>,
    },
    /// The process has ended.
    Ended(FlowOutput),
}

/// Result of one end.
#[derive(Debug, Default)]
pub struct FlowOutput {
    /// Exit code, or minus the signal that ended it.
    pub exit_code: i32,
    /// Its standard output.
    pub output: Output,
    /// The beginning of its standard error.
    pub errors: String,
}

/// Returns what iperf3 would count as sent or received, from the kernel's counters. For a sender, that is the bytes
/// sent for the first time plus those waiting to be sent.
pub(crate) fn application_bytes(sample: &FlowSample) -> Option<u64> {
    if sample.side() != Side::Sender {
        return sample.bytes_received;
    }
    let sent = sample.bytes_sent?.saturating_sub(sample.bytes_retrans?);
    Some(sent + u64::from(sample.notsent_bytes?))
}

/// A flow group of one connection from second 1 to second 3, for tests.
#[cfg(test)]
pub(crate) fn example_task() -> FlowTask {
    use ccbench_proto::{plan::Flow, units::Micros};
    FlowTask {
        group: "g".into(),
        plan: Flow::new("a", "b"),
        from_ip: [10, 0, 0, 1].into(),
        to_ip: [10, 0, 0, 2].into(),
        server_port: 5201,
        client_port: 10_000,
        start: Micros::from_secs(1),
        stop: Micros::from_secs(3),
    }
}
