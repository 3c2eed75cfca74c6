//! What nodes capture.

use std::net::IpAddr;

use crate::plan::Plan;
use crate::resolve::Egress;

/// A capture on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureTask {
    /// Its name in the plan.
    pub name: String,
    /// Which interface.
    pub egress: Egress,
    /// How much of each packet is kept.
    pub snap_bytes: u32,
    /// Length of a file.
    pub file_bytes: u64,
    /// Number of files.
    pub files: u32,
}

pub(super) fn tasks(
    plan: &Plan,
    node: &str,
    address: &impl Fn(&str) -> IpAddr,
) -> Vec<CaptureTask> {
    let here = plan.capture.iter().filter(|(_, capture)| capture.node == node);
    here.map(|(name, capture)| CaptureTask {
        name: name.clone(),
        egress: match (&capture.dev, &capture.toward) {
            (Some(dev), _) => Egress::Dev(dev.clone()),
            (None, toward) => Egress::Toward(address(toward.as_deref().unwrap_or_default())),
        },
        snap_bytes: u32::try_from(capture.snap.get()).unwrap_or(u32::MAX),
        file_bytes: capture.size.get(),
        files: capture.files,
    })
    .collect()
}
