//! Messages that this controller cannot read: the agent is of another version. What they hold cannot be judged, so a trial
//! with one is degraded.

use std::collections::BTreeMap;

use ccbench_proto::event::UnreadableEvent;
use ccbench_proto::wire::{Event, NodeInfo};

use super::findings::Findings;
use crate::model::Status;

/// Unreadable messages per node.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    agents: BTreeMap<String, String>,
    nodes: BTreeMap<String, Count>,
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

    /// Counts a message of a type that this build does not know.
    pub(crate) fn add_message(&mut self, node: &str) {
        self.count(node, || "a message of an unknown type".to_owned());
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
                "{node}: events that cannot be read: {messages} (the first: {first}); {versions}; install the same build \
                 on both"
            );
            findings.add(Status::Degraded, "event_unreadable", message);
        }
    }
}
