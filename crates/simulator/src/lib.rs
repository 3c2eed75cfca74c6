//! Simulates a trial with discrete events. Links are the shaper's own models on virtual time ([`ccbench_shaper::virtual_link`]). Congestion
//! controls are the C cores from which the kernel modules and BPF programs are built (`congestion_control`). TCP around them follows Linux
//! (`tcp`). Time is in integer nanoseconds, each element has its own random stream, and nothing depends on the machine: the same plan and
//! seed give the same rows everywhere.
//!
//! - `simulation` is the event loop.
//! - `network` has links and routes, `connection` a TCP connection of a flow with its applications, `probes` echoes, and `tcp_probes` the
//!   connections and fetches of probes.
//! - `rows` turns their state into the rows that an agent would send; `acks` makes the rows that eBPF programs write.

mod acks;
mod congestion_control;
mod connection;
mod ecn_events;
mod ecn_negotiation;
mod error;
mod event_queue;
mod half_connection;
mod handshake;
mod network;
mod packet;
mod prepare;
mod probes;
mod rows;
mod simulation;
mod sysctls;
mod tcp;
mod tcp_probes;

pub use congestion_control::{CoreError, Violation};
pub use error::SimulatorError;
pub use simulation::Simulation;

/// Version of the model. Results of different versions may differ.
pub const MODEL_VERSION: u32 = 10;
/// CLOCK_MONOTONIC of every node when the trial begins, nanoseconds. All nodes share one clock.
pub const T0_NS: u64 = 1_000_000_000;
/// CLOCK_REALTIME minus CLOCK_MONOTONIC in every run, nanoseconds: CLOCK_MONOTONIC 0 is 2026-01-01T00:00:00Z.
pub const REALTIME_MINUS_MONOTONIC_NS: i64 = 1_767_225_600_000_000_000;
