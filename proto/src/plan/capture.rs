//! Packets written to files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::Name;
use crate::units::Bytes;

/// What passes an interface, both ways, during a trial, as pcapng files in the results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// Whose interface.
    #[schemars(with = "Name")]
    pub node: String,
    /// The interface is the one that the route to this node leaves by. One of `toward` and `dev` must be
    /// there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub toward: Option<String>,
    /// The interface, by its device name. One of `toward` and `dev` must be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// How much of each packet is kept.
    #[serde(default = "headers")]
    #[schemars(extend("x-from" = "48B", "x-to" = "65535B"))]
    pub snap: Bytes,
    /// Length of a file.
    #[serde(default = "file")]
    #[schemars(extend("x-from" = "100kB"))]
    pub size: Bytes,
    /// With one, packets that come when it is full are only counted (`capture_full`); with more, the oldest
    /// file is overwritten: a ring.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
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
