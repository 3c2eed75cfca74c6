//! Names of the messages that agents send, for the debug log.

use ccbench_proto::wire::RunEvent;
use ccbench_proto::wire::run_event::Payload;

/// Returns the kind of a message of an agent's stream.
pub fn kind(event: &RunEvent) -> &'static str {
    match &event.payload {
        Some(Payload::FlowSample(_)) => "flow_sample",
        Some(Payload::Interval(_)) => "interval",
        Some(Payload::Probe(_)) => "probe",
        Some(Payload::QdiscSample(_)) => "qdisc_sample",
        Some(Payload::LinkChange(_)) => "link_change",
        Some(Payload::HostSample(_)) => "host_sample",
        Some(Payload::Event(_)) => "event",
        Some(Payload::Flow(_)) => "flow",
        Some(Payload::Raw(_)) => "raw",
        Some(Payload::Done(_)) => "done",
        Some(Payload::LinkTiming(_)) => "link_timing",
        Some(Payload::LinkPacket(_)) => "link_packet",
        Some(Payload::CcState(_)) => "cc_state",
        Some(Payload::Acks(_)) => "acks",
        Some(Payload::TcpEvents(_)) => "tcp_events",
        Some(Payload::AckCount(_)) => "ack_count",
        None => "unknown",
    }
}
