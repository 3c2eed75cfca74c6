//! The bytes that a sender sent, as packets.

use serde_json::json;

use super::{Event, Sample};

/// Returns a packet for each time between two samples in which the sender sent data, because TCP reports bytes and not packets. The first
/// packet has what was sent before the first sample. qvis takes the range of its time axis from packets: without them it shows 10 ms.
pub(super) fn sent_packets(samples: &[Sample]) -> Vec<Event> {
    // TCP counts from the start of the connection.
    let mut before = 0.0;
    let mut events = Vec::new();
    for sample in samples {
        let Some(sent_bytes) = sample.sent_bytes else { continue };
        let length = sent_bytes - std::mem::replace(&mut before, sent_bytes);
        if length > 0.0 {
            let header = json!({ "packet_type": "unknown" });
            let raw = json!({ "length": length.round() as u64 });
            let data = [("header", header), ("raw", raw)];
            events.push(Event::new(sample.time_ms, "transport:packet_sent", data));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::qlog::METRICS;

    #[test]
    fn a_packet_has_what_was_sent_since_the_previous_sample_or_the_start() {
        let metrics = [None; METRICS.len()];
        let at = |time_ms, sent_bytes| Sample { time_ms, metrics, sent_bytes, ca_state: None };
        let samples = [
            at(1.0, Some(1000.0)),
            at(2.0, None),
            at(3.0, Some(4000.0)),
            at(4.0, Some(4000.0)),
            at(5.0, Some(4500.0)),
        ];
        let packet = |time, length: u64| {
            let header = json!({ "packet_type": "unknown" });
            let data = [("header", header), ("raw", json!({ "length": length }))];
            Event::new(time, "transport:packet_sent", data)
        };
        let expected = [packet(1.0, 1000), packet(3.0, 3000), packet(5.0, 500)];
        assert_eq!(sent_packets(&samples), expected, "all 4500 bytes");
    }
}
