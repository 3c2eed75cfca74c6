//! Tasks of captures.

use std::net::IpAddr;

use crate::plan::{Capture, Plan};
use crate::resolve::Egress;

/// A capture on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureTask {
    /// Its name in the plan.
    pub name: String,
    /// Its keys in the plan.
    pub plan: Capture,
    /// Its interface.
    pub egress: Egress,
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
        plan: capture.clone(),
    })
    .collect()
}
