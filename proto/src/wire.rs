//! The generated messages and service stubs of `ccbench/v1/agent.proto`.
#![allow(missing_docs, clippy::all, unreachable_pub)]

tonic::include_proto!("ccbench.v1");

/// The encoded descriptor set, so that a test can compare row messages with result columns.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.descriptors.bin"));

/// Longest message between controller and agent, in bytes: a request with its trace files.
pub const MESSAGE_LIMIT: usize = 64 << 20;
