//! Finds messages that this controller cannot read because the agent has another version: unknown types, and rows without a value that
//! other checks need. Such a message degrades the trial, because those checks skip it.

use std::collections::BTreeMap;

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::event::{UnreadableEvent, first_invalid};
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{
    AckHook, AckSelection, Event, NodeInfo, PacketFate, ProbeKind, Role, Side, TcpEvent,
    TcpEventKind, TimingKind,
};

use super::findings::Findings;
use crate::model::Status;
use crate::reason::ReasonCode;

/// Unreadable messages per node.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    agents: BTreeMap<String, String>,
    nodes: BTreeMap<String, Count>,
}

/// Returns the field of a row that is absent or has a value that this build does not know.
fn invalid_field(payload: &Payload) -> Option<&'static str> {
    let side = |field: i32| ("side", Side::is_known(field));
    let role = |field: i32| ("role", Role::is_known(field));
    match payload {
        Payload::FlowSample(row) => first_invalid(&[side(row.side), role(row.role)]),
        Payload::Flow(row) => first_invalid(&[side(row.side), role(row.role)]),
        Payload::Acks(batch) => first_invalid(&[side(batch.side), role(batch.role)]),
        Payload::TcpEvents(batch) => batch.events.iter().find_map(|row: &TcpEvent| {
            first_invalid(&[
                side(row.side),
                role(row.role),
                ("kind", TcpEventKind::is_known(row.kind)),
            ])
        }),
        // Rows that belong to no flow have neither.
        Payload::AckCount(row) if row.flow_id.is_empty() => None,
        Payload::AckCount(row) => first_invalid(&[
            side(row.side),
            role(row.role),
            ("mode", row.mode.is_some_and(|mode| AckSelection::is_known(mode.selection))),
            ("hook", AckHook::is_known(row.hook)),
        ]),
        Payload::Interval(row) => first_invalid(&[side(row.side)]),
        Payload::Probe(row) => first_invalid(&[("kind", ProbeKind::is_known(row.kind))]),
        Payload::LinkTiming(row) => first_invalid(&[("kind", TimingKind::is_known(row.kind))]),
        Payload::LinkPacket(row) => first_invalid(&[("fate", PacketFate::is_known(row.fate))]),
        // These rows have no enums; `Event::read` checks those of events.
        Payload::QdiscSample(_)
        | Payload::LinkChange(_)
        | Payload::HostSample(_)
        | Payload::CcState(_) => None,
        Payload::Event(_) | Payload::Raw(_) | Payload::Done(_) => None,
    }
}

/// The number of messages, with a description of the first.
#[derive(Debug)]
struct Count {
    messages: u64,
    first: String,
}

impl Unreadable {
    pub(crate) fn new(nodes: &BTreeMap<String, NodeInfo>) -> Self {
        let version =
            |(node, info): (&String, &NodeInfo)| (node.clone(), info.agent_version.clone());
        Self { agents: nodes.iter().map(version).collect(), nodes: BTreeMap::new() }
    }

    /// Counts an event.
    pub(crate) fn add(&mut self, node: &str, event: &Event, error: UnreadableEvent) {
        self.count(node, || {
            let about = [event.subject.as_str(), event.message.as_str()];
            let about: Vec<&str> = about.into_iter().filter(|text| !text.is_empty()).collect();
            match about.is_empty() {
                true => error.to_string(),
                false => format!("{error}: {}", about.join(": ")),
            }
        });
    }

    /// Counts messages of types that this build does not know, and rows with an invalid field.
    pub(crate) fn message(&mut self, node: &str, payload: Option<&Payload>) {
        let Some(payload) = payload else {
            return self.count(node, || "a message of an unknown type".to_owned());
        };
        if let Some(field) = invalid_field(payload) {
            self.count(node, || format!("a row without a valid `{field}`"));
        }
    }

    fn count(&mut self, node: &str, first: impl FnOnce() -> String) {
        let entry = self.nodes.entry(node.to_owned());
        entry.or_insert_with(|| Count { messages: 0, first: first() }).messages += 1;
    }

    pub(crate) fn finish(self, findings: &mut Findings) {
        const OWN: &str = env!("CARGO_PKG_VERSION");
        for (node, Count { messages, first }) in &self.nodes {
            let agent = self.agents.get(node).map_or("", String::as_str);
            let versions = match agent {
                "" => format!("its agent reports no version, this is ccbench {OWN}"),
                agent => format!("its agent is ccbench-agent {agent}, this is ccbench {OWN}"),
            };
            let message = format!(
                "{node}: messages that cannot be read: {messages} (the first: {first}); {versions}; install the same build \
                 on both"
            );
            findings.add(Status::Degraded, ReasonCode::EventUnreadable, node, message);
        }
    }
}
