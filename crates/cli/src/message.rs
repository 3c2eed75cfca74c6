//! Names of the messages that agents send, for the debug log.

use ccbench_proto::wire::RunEvent;
use ccbench_proto::wire::run_event::Of;

/// Returns the kind of a message of an agent's stream.
pub fn kind(event: &RunEvent) -> &'static str {
    match &event.of {
        Some(Of::FlowSample(_)) => "flow_sample",
        Some(Of::Interval(_)) => "interval",
        Some(Of::Probe(_)) => "probe",
        Some(Of::QdiscSample(_)) => "qdisc_sample",
        Some(Of::LinkChange(_)) => "link_change",
        Some(Of::HostSample(_)) => "host_sample",
        Some(Of::Event(_)) => "event",
        Some(Of::Flow(_)) => "flow",
        Some(Of::Raw(_)) => "raw",
        Some(Of::Done(_)) => "done",
        Some(Of::LinkTiming(_)) => "link_timing",
        Some(Of::LinkPacket(_)) => "link_packet",
        Some(Of::CcState(_)) => "cc_state",
        Some(Of::Acks(_)) => "acks",
        Some(Of::TcpEvents(_)) => "tcp_events",
        Some(Of::AckCount(_)) => "ack_count",
        None => "unknown",
    }
}
