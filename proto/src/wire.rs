//! The generated messages and service stubs of `ccbench/v1/agent.proto`.

use std::time::Duration;

use prost::Message as _;

mod generated {
    #![allow(missing_docs, clippy::all, unreachable_pub, reason = "generated")]

    tonic::include_proto!("ccbench.v1");
}

pub use generated::*;

/// The encoded descriptor set, so that a test can compare row messages with result columns.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.descriptors.bin"));

/// Encodes a length-delimited field with its key, as an agent of another version may send it. For compatibility tests.
#[doc(hidden)]
pub fn encoded_field(number: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut bytes);
    prost::encoding::encode_varint(payload.len() as u64, &mut bytes);
    bytes.extend(payload);
    bytes
}

/// HTTP/2 keepalive of both ends: a peer that is silent for 5 s is lost. TCP retransmits lost segments after 0.2, 0.6, 1.4 and 3.0
/// s (RFC 6298, with Linux's minimum RTO), so interruptions of the control network of up to 3 s lose no node.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// How long the answer to a keepalive may take.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(4500);

/// Longest message between controller and agent on one machine, in bytes: a request with its trace files.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Longest request over a network, in bytes. Trace files are sent before it, in parts.
pub const MAX_REMOTE_MESSAGE_BYTES: usize = 1 << 20;
/// Maximum size of all trace files that a node holds, in bytes.
pub const MAX_FILES_BYTES: usize = 56 << 20;
/// Size of a part of a file, in bytes.
pub const FILE_CHUNK_BYTES: usize = 256 << 10;

/// Why a message of the lab's guest cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LabMessageError {
    /// Its length is not a number, or exceeds [`MAX_MESSAGE_BYTES`].
    #[error("invalid length, or longer than {} MiB", MAX_MESSAGE_BYTES >> 20)]
    Length,
    /// It cannot be decoded.
    #[error(transparent)]
    Decode(#[from] prost::DecodeError),
}

/// Takes the first message from the output of the lab's guest; `None` if it is not complete yet.
pub fn next_lab_message(bytes: &mut &[u8]) -> Option<Result<LabMessage, LabMessageError>> {
    let mut peek = *bytes;
    let length = match prost::decode_length_delimiter(&mut peek) {
        Ok(length) if length <= MAX_MESSAGE_BYTES => length,
        // The length itself may not be complete.
        Err(_) if bytes.len() < MAX_VARINT_BYTES => return None,
        _ => return Some(Err(LabMessageError::Length)),
    };
    let message = peek.get(..length)?;
    *bytes = &peek[length..];
    Some(LabMessage::decode(message).map_err(LabMessageError::from))
}

/// Maximum length of a varint, in bytes.
const MAX_VARINT_BYTES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<u8> {
        let one =
            LabMessage { payload: Some(lab_message::Payload::Done(LabDone { busy_pct: 12.5 })) };
        [one.encode_length_delimited_to_vec(), one.encode_length_delimited_to_vec()].concat()
    }

    #[test]
    fn takes_only_complete_messages_of_the_guest() {
        let bytes = messages();
        let mut rest = &bytes[..bytes.len() - 1];
        assert!(next_lab_message(&mut rest).unwrap().is_ok());
        assert!(next_lab_message(&mut rest).is_none(), "the second is not complete");
        assert_eq!(rest.len(), bytes.len() / 2 - 1);
        assert!(next_lab_message(&mut [].as_slice()).is_none());
    }

    #[test]
    fn garbage_of_the_guest_is_not_waited_for() {
        // A length of 2^56, and a number without an end.
        for garbage in [[0xff_u8; 7].iter().chain(&[1]).copied().collect(), vec![0xff; 64]] {
            let next = next_lab_message(&mut garbage.as_slice());
            assert!(matches!(next, Some(Err(LabMessageError::Length))), "{garbage:?}");
        }
        assert!(next_lab_message(&mut [0xff; 9].as_slice()).is_none(), "it may go on");
    }
}
