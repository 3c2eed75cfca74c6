//! Events of a trial.

use ccbench_proto::wire;

use crate::clock;

/// An event that happened now.
pub fn event(kind: &str, subject: &str, message: impl Into<String>) -> wire::Event {
    wire::Event {
        at_ns: clock::now_ns(),
        kind: kind.to_owned(),
        subject: subject.to_owned(),
        message: message.into(),
        data_json: String::new(),
    }
}
