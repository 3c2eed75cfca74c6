//! Packets written to files.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// What passes an interface, both ways, during a trial, as pcapng files in the results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// Node of the interface.
    pub node: String,
    /// The interface is the one that the route to this node leaves by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toward: Option<String>,
    /// The interface by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// How much of each packet is kept.
    #[serde(default = "headers")]
    pub snap: Bytes,
    /// Length of a file.
    #[serde(default = "file")]
    pub size: Bytes,
    /// Files: when the last is full the first is overwritten; with one, the capture ends.
    #[serde(default = "one")]
    pub files: u32,
}

fn headers() -> Bytes {
    Bytes::new(128)
}

fn file() -> Bytes {
    Bytes::new(64_000_000)
}

fn one() -> u32 {
    1
}
