//! Texts of columns for the enums of `agent.proto`.

use crate::plan;
use crate::wire::event::{CcMethod, EcnMode, EcnRequest, LabEngine};
use crate::wire::{
    AckHook, AckSelection, Backend, LabStep, PacketFate, Privileges, ProbeKind, Role, SampleSource,
    Side, TcpEventKind, TimingKind, Via,
};

/// An enum of `agent.proto` that a column holds as text.
pub trait ColumnText: Copy + Default + TryFrom<i32> {
    /// Its text in columns; empty if unspecified.
    fn as_text(self) -> &'static str;

    /// The value of a column's text; `None` for the text of a later version, and for an empty one.
    fn from_text(text: &str) -> Option<Self>;

    /// The text of a field; empty if unspecified or of a later version.
    fn text_of(field: i32) -> &'static str {
        Self::try_from(field).unwrap_or_default().as_text()
    }

    /// Whether a field has a value that this version knows.
    fn is_known(field: i32) -> bool {
        !Self::text_of(field).is_empty()
    }
}

/// Serialises such an enum as its text with serde: `#[serde(with = "as_text")]`.
pub mod as_text {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::ColumnText;

    /// Writes the text.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<T: ColumnText, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(value.as_text())
    }

    /// Reads the text; the text of a later version is unspecified.
    ///
    /// # Errors
    /// It is not a text.
    pub fn deserialize<'de, T: ColumnText, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        Ok(T::from_text(&text).unwrap_or_default())
    }
}

macro_rules! column_text {
    ($enum:ty { $($value:ident => $text:literal),+ $(,)? }) => {
        impl ColumnText for $enum {
            fn as_text(self) -> &'static str {
                match self {
                    Self::Unspecified => "",
                    $(Self::$value => $text,)+
                }
            }

            fn from_text(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    };
}

column_text! { Side { Sender => "snd", Receiver => "rcv" } }
column_text! { Role { Data => "data", Control => "control", Other => "other", Unknown => "unknown" } }
column_text! { SampleSource { Diag => "diag", Ss => "ss", Qlog => "qlog" } }
column_text! { Backend { Kernel => "kernel", Userspace => "userspace" } }
column_text! { Via { Bpf => "bpf", Module => "module", Builtin => "builtin" } }
column_text! { Privileges {
    Root => "root",
    UserNamespace => "user-namespace",
    Unprivileged => "unprivileged",
} }
column_text! { ProbeKind {
    Ping => "ping",
    Udp => "udp",
    TcpConnect => "tcp_connect",
    Http => "http",
    UdpStream => "udp_stream",
} }
column_text! { TimingKind { Packets => "packets", Steps => "steps", Log => "log" } }
column_text! { PacketFate {
    Sent => "sent",
    Lost => "lost",
    Overlimit => "overlimit",
    Overmemory => "overmemory",
    Early => "early",
    Unfit => "unfit",
    Device => "device",
    Policed => "policed",
    AckFilter => "ack_filter",
} }
column_text! { TcpEventKind {
    Retransmit => "retransmit",
    Rto => "rto",
    CaState => "ca_state",
    Ce => "ce",
    Cc => "cc",
} }
column_text! { AckSelection {
    EveryAck => "every-ack",
    OnChange => "on-change",
    Interval => "interval",
} }
column_text! { AckHook {
    FexitTcpAck => "fexit/tcp_ack",
    TpBtfTcpProbe => "tp_btf/tcp_probe",
} }
column_text! { CcMethod {
    BeforeConnect => "before_connect",
    NamespaceDefault => "namespace_default",
    AfterConnect => "after_connect",
} }
column_text! { EcnRequest { Accecn => "accecn", DctcpFeedback => "dctcp_feedback", None => "none" } }
column_text! { EcnMode {
    AccecnStructOps => "accecn_struct_ops",
    AccecnSysctl => "accecn_sysctl",
    DctcpFeedback => "dctcp_feedback",
    Rfc3168 => "rfc3168",
    None => "none",
} }

column_text! { LabEngine { Qemu => "qemu", Uml => "uml" } }
column_text! { LabStep {
    Build => "build",
    Connect => "connect",
    Describe => "describe",
    Prepare => "prepare",
    Run => "run",
    Reset => "reset",
} }

impl From<plan::Engine> for LabEngine {
    fn from(engine: plan::Engine) -> Self {
        match engine {
            plan::Engine::Qemu => Self::Qemu,
            plan::Engine::Uml => Self::Uml,
        }
    }
}

impl From<plan::ProbeKind> for ProbeKind {
    fn from(kind: plan::ProbeKind) -> Self {
        match kind {
            plan::ProbeKind::Ping => Self::Ping,
            plan::ProbeKind::Udp => Self::Udp,
            plan::ProbeKind::TcpConnect => Self::TcpConnect,
            plan::ProbeKind::Http => Self::Http,
            plan::ProbeKind::UdpStream => Self::UdpStream,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_kinds_are_named_as_in_plans() {
        for kind in [
            plan::ProbeKind::Ping,
            plan::ProbeKind::Udp,
            plan::ProbeKind::TcpConnect,
            plan::ProbeKind::Http,
            plan::ProbeKind::UdpStream,
        ] {
            assert_eq!(ProbeKind::from(kind).as_text(), kind.as_str());
        }
    }

    #[test]
    fn engines_are_named_as_in_plans() {
        for &engine in plan::Engine::ALL {
            assert_eq!(LabEngine::from(engine).as_text(), engine.name());
        }
    }

    #[test]
    fn only_known_values_are_read() {
        assert_eq!(TimingKind::from_text("steps"), Some(TimingKind::Steps));
        assert_eq!(TimingKind::from_text(""), None);
        assert_eq!(TimingKind::from_text("moons"), None);
        assert!(TimingKind::is_known(TimingKind::Log.into()));
        assert!(!TimingKind::is_known(0) && !TimingKind::is_known(99));
    }
}
