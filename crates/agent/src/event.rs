//! Events of a trial.

use ccbench_proto::event::Kind;
use ccbench_proto::wire;

use crate::clock;

/// Returns an event with the current time.
pub fn event(kind: Kind, subject: &str, message: impl Into<String>) -> wire::Event {
    wire::Event {
        at_ns: clock::now_ns(),
        subject: subject.to_owned(),
        message: message.into(),
        kind: Some(kind),
    }
}
