//! The generated messages and service stubs of `ccbench/v1/agent.proto`.
#![allow(missing_docs, clippy::all, unreachable_pub)]

use std::time::Duration;

tonic::include_proto!("ccbench.v1");

/// The encoded descriptor set, so that a test can compare row messages with result columns.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.descriptors.bin"));

/// A length-delimited field with its key, as an agent of another version may send it: for tests of compatibility.
#[doc(hidden)]
pub fn encoded_field(number: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut bytes);
    prost::encoding::encode_varint(payload.len() as u64, &mut bytes);
    bytes.extend(payload);
    bytes
}

/// HTTP/2 keepalive of both ends: a peer that is silent for 3 s is lost. Shorter interruptions of the control network do no
/// harm.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// How long the answer to a keepalive may take.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(2500);

/// Longest message between controller and agent on one machine, in bytes: a request with its trace files.
pub const MESSAGE_LIMIT: usize = 64 << 20;
/// Longest request over a network, in bytes. Trace files are sent before, in parts.
pub const REMOTE_MESSAGE_LIMIT: usize = 1 << 20;
/// Trace files that a node holds, in bytes.
pub const FILES_LIMIT: usize = 56 << 20;
/// One of the parts, in bytes.
pub const FILE_CHUNK: usize = 256 << 10;
