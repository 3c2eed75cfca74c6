//! Messages that this controller cannot read: the agent is of another version. What they hold cannot be judged, so a trial
//! with one is degraded.

use std::collections::BTreeMap;

use ccbench_proto::event::UnreadableEvent;
use ccbench_proto::wire::run_event::Of;
use ccbench_proto::wire::{Event, NodeInfo, Role, Side};

use super::findings::Findings;
use crate::model::Status;

/// Unreadable messages per node.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    agents: BTreeMap<String, String>,
    nodes: BTreeMap<String, Count>,
}

/// Whether a row about a socket has the end and the role of its connection.
fn has_valid_socket(of: &Of) -> bool {
    let valid = |side: Side, role: Role| side != Side::Unspecified && role != Role::Unspecified;
    match of {
        Of::FlowSample(row) => valid(row.side(), row.role()),
        Of::Flow(row) => valid(row.side(), row.role()),
        Of::Acks(batch) => valid(batch.side(), batch.role()),
        Of::TcpEvents(batch) => batch.events.iter().all(|row| valid(row.side(), row.role())),
        // The row of what belongs to no flow has neither.
        Of::AckCount(row) => row.flow_id.is_empty() || valid(row.side(), row.role()),
        Of::Interval(row) => row.side() != Side::Unspecified,
        _ => true,
    }
}

/// How many there were, and a description of the first.
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

    /// Counts a message of a type that this build does not know, and a row without a valid side or role.
    pub(crate) fn message(&mut self, node: &str, of: Option<&Of>) {
        match of {
            None => self.count(node, || "a message of an unknown type".to_owned()),
            Some(of) if !has_valid_socket(of) => {
                self.count(node, || "a row without a valid `side` or `role`".to_owned());
            }
            Some(_) => {}
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
            findings.add(Status::Degraded, "event_unreadable", message);
        }
    }
}
