//! Fuzzes messages between the parts of ccbench.

use ccbench_proto::wire::{self, run_event::Payload};
use prost::Message;

/// A message of any kind, which the first byte selects. What is decoded is encoded and decoded again.
pub fn message(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 12 {
        0 => drop(round_trip::<wire::DescribeRequest>(data)),
        1 => drop(round_trip::<wire::NodeInfo>(data)),
        2 => drop(round_trip::<wire::ClockReply>(data)),
        3 => drop(round_trip::<wire::FileChunk>(data)),
        4 => drop(round_trip::<wire::PrepareRequest>(data)),
        5 => drop(round_trip::<wire::RunRequest>(data)),
        6 => drop(round_trip::<wire::ResetRequest>(data)),
        7 => drop(round_trip::<wire::LabTask>(data)),
        8 => drop(round_trip::<wire::ResetReply>(data)),
        9 => {
            let reply = round_trip::<wire::PrepareReply>(data).unwrap_or_default();
            for link in &reply.links {
                let _ = (link.reason_text(), link.fallback().map(|fallback| fallback.cause()));
            }
            reply.events.iter().for_each(event);
        }
        _ => {
            let message = round_trip::<wire::RunEvent>(data).unwrap_or_default();
            if let Some(Payload::Event(one)) = &message.payload {
                event(one);
            }
        }
    }
}

fn round_trip<M: Message + Default>(data: &[u8]) -> Option<M> {
    let message = M::decode(data).ok()?;
    let bytes = message.encode_to_vec();
    let same = M::decode(bytes.as_slice());
    // NaN is not equal to itself, but its bytes are.
    assert_eq!(same.map(|same| same.encode_to_vec()).ok(), Some(bytes));
    Some(message)
}

fn event(event: &wire::Event) {
    if let Err(error) = event.read() {
        assert!(!error.to_string().is_empty());
    }
    assert!(!event.name().is_empty());
    let data = event.data_json();
    assert!(data.is_empty() || serde_json::from_str::<serde_json::Value>(&data).is_ok(), "{data}");
}

/// What the lab's guest writes: a sequence of whole messages.
pub fn lab_messages(data: &[u8]) {
    let mut rest = data;
    while let Some(message) = wire::next_lab_message(&mut rest) {
        let Ok(message) = message else { break };
        assert!(message.encoded_len() <= 11 * data.len());
    }
}
