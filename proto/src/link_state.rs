//! Messages about how a link is applied on a node.

use serde::{Deserialize, Serialize};

use crate::column_text::ColumnText as _;
use crate::wire::backend_reason::{Configured, Missing, Reason, Supported, Unsupported};
use crate::wire::{BackendReason, LinkState};

impl BackendReason {
    /// The plan names the backend.
    pub fn configured() -> Self {
        Self { reason: Some(Reason::Configured(Configured {})) }
    }

    /// The kernel has all qdiscs that the link needs.
    pub fn supported(qdiscs: &[&str]) -> Self {
        let qdiscs = qdiscs.iter().map(|&kind| kind.to_owned()).collect();
        Self { reason: Some(Reason::Supported(Supported { qdiscs })) }
    }

    /// The kernel lacks `feature`, which `config_option` (without `CONFIG_`) builds.
    pub fn missing(feature: &str, config_option: &str) -> Self {
        let (feature, config_option) = (feature.to_owned(), config_option.to_owned());
        Self { reason: Some(Reason::Missing(Missing { feature, config_option })) }
    }

    /// No kernel's qdiscs can do `feature`.
    pub fn unsupported(feature: &str) -> Self {
        Self { reason: Some(Reason::Unsupported(Unsupported { feature: feature.to_owned() })) }
    }
}

impl LinkState {
    /// Why the link has its backend, as a sentence; empty if the reason is not known.
    pub fn reason_text(&self) -> String {
        match self.reason.as_ref().and_then(|reason| reason.reason.as_ref()) {
            None => String::new(),
            Some(Reason::Configured(_)) => {
                format!("backend = \"{}\" in the plan", self.backend().as_text())
            }
            Some(Reason::Supported(Supported { qdiscs })) => {
                format!("auto: this kernel has {}", qdiscs.join(", "))
            }
            Some(Reason::Missing(Missing { config_option, .. })) => {
                let cause = self.fallback().map_or(String::new(), |fallback| fallback.cause());
                format!("auto: {cause} (CONFIG_{config_option})")
            }
            Some(Reason::Unsupported(_)) => {
                let cause = self.fallback().map_or(String::new(), |fallback| fallback.cause());
                format!("auto: {cause}")
            }
        }
    }

    /// Why `backend = "auto"` did not select the kernel's qdiscs; `None` if it did.
    pub fn fallback(&self) -> Option<Fallback> {
        match self.reason.as_ref()?.reason.as_ref()? {
            Reason::Missing(Missing { feature, config_option }) => {
                let (feature, config_option) = (feature.clone(), config_option.clone());
                Some(Fallback::Missing { feature, config_option })
            }
            Reason::Unsupported(Unsupported { feature }) => {
                Some(Fallback::Unsupported { feature: feature.clone() })
            }
            Reason::Configured(_) | Reason::Supported(_) => None,
        }
    }
}

/// Why a link is emulated in userspace although the plan leaves the choice open. The event `link` stores it under `fallback`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Fallback {
    /// The kernel lacks something.
    Missing {
        /// `qdisc netem`.
        #[serde(alias = "what")]
        feature: String,
        /// Kernel option that builds it, without `CONFIG_`.
        config_option: String,
    },
    /// No kernel's qdiscs can do it.
    Unsupported {
        /// What the plan requires: `reordering`.
        #[serde(alias = "what")]
        feature: String,
    },
}

impl Fallback {
    /// As a clause: `this kernel has no qdisc netem`.
    pub fn cause(&self) -> String {
        match self {
            Self::Missing { feature, .. } => format!("this kernel has no {feature}"),
            Self::Unsupported { feature } => format!("the kernel's qdiscs cannot do {feature}"),
        }
    }

    /// The fallback in the stored body of an event `link`; `None`: the link is not a fallback.
    ///
    /// # Errors
    /// The body is not JSON, or its fallback is of another version.
    pub fn of_stored_link(data_json: &str) -> Result<Option<Self>, serde_json::Error> {
        #[derive(Deserialize)]
        struct Body {
            fallback: Option<Fallback>,
        }
        serde_json::from_str::<Body>(data_json).map(|body| body.fallback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Kind;
    use crate::wire::Backend;
    use crate::wire::Event;

    fn state(backend: Backend, reason: BackendReason) -> LinkState {
        LinkState { backend: backend.into(), reason: Some(reason), ..LinkState::default() }
    }

    #[test]
    fn every_reason_has_a_sentence() {
        let text = |backend, reason| state(backend, reason).reason_text();
        assert_eq!(
            text(Backend::Userspace, BackendReason::missing("qdisc netem", "NET_SCH_NETEM")),
            "auto: this kernel has no qdisc netem (CONFIG_NET_SCH_NETEM)"
        );
        assert_eq!(
            text(Backend::Userspace, BackendReason::unsupported("reordering")),
            "auto: the kernel's qdiscs cannot do reordering"
        );
        assert_eq!(
            text(Backend::Kernel, BackendReason::supported(&["htb", "bfifo"])),
            "auto: this kernel has htb, bfifo"
        );
        assert_eq!(
            text(Backend::Userspace, BackendReason::configured()),
            "backend = \"userspace\" in the plan"
        );
        assert_eq!(LinkState::default().reason_text(), "");
    }

    #[test]
    fn a_stored_link_keeps_its_fallback() {
        let stored = |link| Event { kind: Some(Kind::Link(link)), ..Event::default() }.data_json();
        let missing = state(Backend::Userspace, BackendReason::missing("qdisc red", "NET_SCH_RED"));
        let fallback = Fallback::of_stored_link(&stored(missing)).unwrap().unwrap();
        assert_eq!(fallback.cause(), "this kernel has no qdisc red");
        let configured = stored(state(Backend::Userspace, BackendReason::configured()));
        assert_eq!(
            configured,
            r#"{"backend":"userspace","dev":"","qdiscs":[],"reason":"backend = \"userspace\" in the plan"}"#
        );
        assert_eq!(Fallback::of_stored_link(&configured).unwrap(), None);
        assert!(Fallback::of_stored_link(r#"{"fallback":{"cause":"moon"}}"#).is_err());
    }

    #[test]
    fn a_fallback_of_an_earlier_version_has_a_former_key() {
        let missing =
            r#"{"fallback":{"cause":"missing","what":"qdisc red","config_option":"NET_SCH_RED"}}"#;
        let unsupported = r#"{"fallback":{"cause":"unsupported","what":"reordering"}}"#;
        let cause = |body| Fallback::of_stored_link(body).unwrap().unwrap().cause();
        assert_eq!(cause(missing), "this kernel has no qdisc red");
        assert_eq!(cause(unsupported), "the kernel's qdiscs cannot do reordering");
        let written = serde_json::to_string(&Fallback::Unsupported { feature: "gso".into() });
        assert_eq!(written.unwrap(), r#"{"cause":"unsupported","feature":"gso"}"#);
    }
}
