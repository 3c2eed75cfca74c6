//! `[capture.NAME]`: packets written to files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Name;
use crate::units::Bytes;

/// Captures the packets of an interface in both directions during a trial, as pcapng files in the results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// Node of the interface.
    #[schemars(with = "Name")]
    pub node: String,
    /// The interface on the route to this node. Either `toward` or `dev` is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub toward: Option<String>,
    /// The interface, by its device name. Either `toward` or `dev` is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// Bytes of each packet that are kept (snap length).
    #[serde(default = "default_snap")]
    #[schemars(extend("x-from" = "48B", "x-to" = "65535B"))]
    pub snap: Bytes,
    /// Maximum size of a file.
    #[serde(default = "default_size")]
    #[schemars(extend("x-from" = "100kB"))]
    pub size: Bytes,
    /// Number of files. Once a single file is full, packets are only counted (`capture_full`); several files are a ring, in which
    /// the oldest is overwritten.
    #[serde(default = "default_files")]
    #[schemars(range(min = 1, max = 1000))]
    pub files: u32,
}

fn default_snap() -> Bytes {
    Bytes::new(128)
}

fn default_size() -> Bytes {
    Bytes::new(64_000_000)
}

fn default_files() -> u32 {
    1
}
