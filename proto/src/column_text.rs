//! Texts of columns for the enums of `agent.proto`.

use crate::wire::{Backend, Role, SampleSource, Side, Via};

/// An enum of `agent.proto` that a column holds as text.
pub trait ColumnText: Copy + Default + TryFrom<i32> {
    /// As columns hold it; empty if unspecified.
    fn as_text(self) -> &'static str;

    /// The text of a field; empty if unspecified or of a later version.
    fn text_of(field: i32) -> &'static str {
        Self::try_from(field).unwrap_or_default().as_text()
    }
}

impl ColumnText for Side {
    fn as_text(self) -> &'static str {
        match self {
            Self::Unspecified => "",
            Self::Sender => "snd",
            Self::Receiver => "rcv",
        }
    }
}

impl ColumnText for Role {
    fn as_text(self) -> &'static str {
        match self {
            Self::Unspecified => "",
            Self::Data => "data",
            Self::Control => "control",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }
}

impl ColumnText for SampleSource {
    fn as_text(self) -> &'static str {
        match self {
            Self::Unspecified => "",
            Self::Diag => "diag",
            Self::Ss => "ss",
        }
    }
}

impl ColumnText for Backend {
    fn as_text(self) -> &'static str {
        match self {
            Self::Unspecified => "",
            Self::Kernel => "kernel",
            Self::Userspace => "userspace",
        }
    }
}

impl ColumnText for Via {
    fn as_text(self) -> &'static str {
        match self {
            Self::Unspecified => "",
            Self::Bpf => "bpf",
            Self::Module => "module",
            Self::Builtin => "builtin",
        }
    }
}
