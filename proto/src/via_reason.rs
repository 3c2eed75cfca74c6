//! Messages about why a congestion control is loaded as BPF, as a module, or is the kernel's own.

use crate::wire::via_reason::{
    BpfSupported, BpfUnavailable, Configured, KernelAlgorithm, Reason, Simulated,
};
use crate::wire::{CongestionControl, ViaReason};

impl ViaReason {
    /// The plan names the way.
    pub fn configured() -> Self {
        Self { reason: Some(Reason::Configured(Configured {})) }
    }

    /// The kernel accepts BPF congestion controls, and the plan leaves the choice open.
    pub fn bpf_supported() -> Self {
        Self { reason: Some(Reason::BpfSupported(BpfSupported {})) }
    }

    /// BPF is not possible because of `error`, and the plan leaves the choice open.
    pub fn bpf_unavailable(error: String) -> Self {
        Self { reason: Some(Reason::BpfUnavailable(BpfUnavailable { error })) }
    }

    /// The algorithm is one of the kernel's.
    pub fn kernel_algorithm() -> Self {
        Self { reason: Some(Reason::KernelAlgorithm(KernelAlgorithm {})) }
    }

    /// The simulator contains it.
    pub fn simulated() -> Self {
        Self { reason: Some(Reason::Simulated(Simulated {})) }
    }

    /// The reason for people; empty if it is not known.
    pub fn text(&self) -> String {
        match &self.reason {
            None => String::new(),
            Some(Reason::Configured(_)) => "set in the plan".to_owned(),
            Some(Reason::BpfSupported(_)) => "this kernel takes BPF congestion controls".to_owned(),
            Some(Reason::BpfUnavailable(BpfUnavailable { error })) => {
                format!("not by BPF: {error}")
            }
            Some(Reason::KernelAlgorithm(_)) => "the kernel's own".to_owned(),
            Some(Reason::Simulated(_)) => "it is part of the simulator".to_owned(),
        }
    }
}

impl CongestionControl {
    /// [`ViaReason::text`] of its reason; empty without one.
    pub fn reason_text(&self) -> String {
        self.reason.as_ref().map_or(String::new(), ViaReason::text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Kind, NodeCongestionControl};
    use crate::wire::{Event, Via};

    #[test]
    fn stored_events_keep_the_text_of_every_reason() {
        let stored = |reason| {
            let cc = CongestionControl {
                via: Via::Module.into(),
                reason: Some(reason),
                ..CongestionControl::default()
            };
            let data = NodeCongestionControl { node: "a".into(), cc: Some(cc) };
            let event = Event { kind: Some(Kind::CongestionControl(data)), ..Event::default() };
            assert!(event.read().is_ok());
            let body: serde_json::Value = serde_json::from_str(&event.data_json()).unwrap();
            body["reason"].as_str().unwrap().to_owned()
        };
        assert_eq!(stored(ViaReason::configured()), "set in the plan");
        let supported = "this kernel takes BPF congestion controls";
        assert_eq!(stored(ViaReason::bpf_supported()), supported);
        assert_eq!(stored(ViaReason::bpf_unavailable("no BTF".to_owned())), "not by BPF: no BTF");
        assert_eq!(stored(ViaReason::kernel_algorithm()), "the kernel's own");
        assert_eq!(stored(ViaReason::simulated()), "it is part of the simulator");
    }

    #[test]
    fn an_instance_without_a_reason_is_unreadable() {
        let cc = CongestionControl { via: Via::Bpf.into(), ..CongestionControl::default() };
        assert_eq!(cc.reason_text(), "");
        let data = NodeCongestionControl { node: "a".into(), cc: Some(cc) };
        let event = Event { kind: Some(Kind::CongestionControl(data)), ..Event::default() };
        assert!(event.read().is_err());
    }
}
