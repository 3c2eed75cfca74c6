//! ECN feedback modes for congestion controls that need one echo per mark. This module decides which mode both ends use, from
//! what this kernel accepts ([`capabilities`](super::capabilities)), and reports it. [`apply`] changes the machine.
//!
//! The congestion control is set before the handshake, on both ends and only on the flow's sockets
//! ([`super::before_handshake`]). Its flags then negotiate ECN, so no sysctl changes.

use ccbench_proto::cc;
use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::event::{EcnMode, EcnRequest};
use ccbench_proto::plan::{Cc, Via};
use ccbench_proto::schedule::{FlowTask, NodeTask};

pub mod apply;

/// Flags of the kernel's `struct tcp_congestion_ops`.
pub mod flag {
    /// A namespace may use it as its default.
    pub const NON_RESTRICTED: u32 = 1;
    /// Negotiates ECN regardless of `tcp_ecn`, and sends ECT.
    pub const NEEDS_ECN: u32 = 2;
    /// Negotiates AccECN.
    pub const NEEDS_ACCECN: u32 = 4;
    /// Sends ECT(1) in the handshake.
    pub const ECT_1_NEGOTIATION: u32 = 8;
    /// Uses no ECN if the other end lacks AccECN.
    pub const NO_FALLBACK_RFC3168: u32 = 16;
    /// The flags that AccECN needs.
    pub const ACCECN: u32 = NON_RESTRICTED | NEEDS_ECN | NEEDS_ACCECN | ECT_1_NEGOTIATION;
}

/// How the receiver reports CE marks to the sender, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// AccECN (RFC 9768), requested by the congestion control's flags.
    AccecnStructOps,
    /// AccECN, requested by `tcp_ecn = 3`; every flow of the node then negotiates it.
    AccecnSysctl,
    /// The receiver's congestion control echoes every mark, as DCTCP does (RFC 8257).
    DctcpFeedback,
    /// One echo per round trip (RFC 3168), so marks cannot be counted.
    Rfc3168,
    /// No ECN.
    None,
}

impl Mode {
    /// Returns the mode as events report it.
    pub fn on_wire(self) -> EcnMode {
        match self {
            Self::AccecnStructOps => EcnMode::AccecnStructOps,
            Self::AccecnSysctl => EcnMode::AccecnSysctl,
            Self::DctcpFeedback => EcnMode::DctcpFeedback,
            Self::Rfc3168 => EcnMode::Rfc3168,
            Self::None => EcnMode::None,
        }
    }

    /// Whether a sender can count its marks.
    pub fn counts_marks(self) -> bool {
        matches!(self, Self::AccecnStructOps | Self::AccecnSysctl | Self::DctcpFeedback)
    }
}

/// The ECN modes that this kernel accepts, probed at run time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Whether `tcp_ecn` may be 3: AccECN for all flows.
    pub accecn_sysctl: bool,
    /// The largest set of flags with which a BPF congestion control could be registered; 0 if none could be.
    pub ops_flags: u32,
    /// Why BPF congestion controls cannot be registered; empty if they can.
    pub ops_reason: String,
}

impl Capabilities {
    /// Returns the possible feedback modes, best first, as in `NodeInfo.ecn`.
    pub fn modes(&self) -> Vec<&'static str> {
        let accecn = self.ops_flags & flag::ACCECN == flag::ACCECN;
        let possible = [
            (Mode::AccecnStructOps, accecn),
            (Mode::AccecnSysctl, self.accecn_sysctl),
            (Mode::DctcpFeedback, self.ops_flags & flag::NEEDS_ECN != 0),
            (Mode::Rfc3168, true),
        ];
        possible
            .into_iter()
            .filter(|(_, can)| *can)
            .map(|(mode, _)| mode.on_wire().as_text())
            .collect()
    }
}

/// The ECN feedback that an algorithm needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EcnNeeds {
    /// It counts marks, through AccECN if available.
    pub accecn: bool,
    /// It counts marks, through an echo that its own receiver sends.
    pub echo: bool,
    /// It needs ECT(1) on data, which the kernel does not set.
    pub ect1: bool,
}

impl EcnNeeds {
    /// Whether it needs any feedback.
    pub fn any(self) -> bool {
        self.accecn || self.echo
    }

    /// Returns the requirements as events report them.
    pub fn on_wire(self) -> EcnRequest {
        match self {
            Self { accecn: true, .. } => EcnRequest::Accecn,
            Self { echo: true, .. } => EcnRequest::DctcpFeedback,
            _ => EcnRequest::None,
        }
    }
}

/// Returns the ECN requirements of a flow's congestion control: an instance of the plan, or one of the kernel's.
pub fn ecn_needs(name: &str, instance: Option<&Cc>) -> EcnNeeds {
    // A supplied congestion control requests ECN by its own flags.
    if instance.is_some_and(|cc| cc.supplied().is_some()) {
        return EcnNeeds::default();
    }
    let algorithm = instance.map_or(name, |cc| cc.algorithm.as_str());
    let is_builtin = instance.is_none_or(cc::is_kernel_algorithm);
    let own = match (is_builtin, algorithm) {
        (true, "dctcp") => EcnNeeds { echo: true, ..EcnNeeds::default() },
        (true, "prague") => EcnNeeds { accecn: true, ..EcnNeeds::default() },
        (true, _) => EcnNeeds::default(),
        (false, _) => cc::scheme(algorithm).map_or_else(EcnNeeds::default, |(_, core)| EcnNeeds {
            accecn: core.wants_ecn && core.wants_ect1,
            echo: instance.is_some_and(cc::counts_marks),
            ect1: core.wants_ect1,
        }),
    };
    EcnNeeds { ect1: instance.and_then(|cc| cc.ect1).unwrap_or(own.ect1), ..own }
}

/// The chosen mode and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The feedback mode.
    pub mode: Mode,
    /// The flags for a BPF congestion control.
    pub flags: u32,
    /// The reason, as text.
    pub reason: String,
}

/// Returns the best mode that this kernel has for an algorithm. `via` is the algorithm's backend; `tcp_ecn` is the
/// plan's setting on this node, if any.
pub fn decide(can: &Capabilities, needs: EcnNeeds, via: Via, tcp_ecn: Option<&str>) -> Decision {
    let plain = flag::NON_RESTRICTED;
    let (mode, flags, reason) = if !needs.any() {
        (Mode::None, plain, "the algorithm does not ask for ECN".to_owned())
    } else if tcp_ecn == Some("0") {
        (Mode::None, plain, "the plan sets tcp_ecn = 0 on this node".to_owned())
    } else if via == Via::Builtin || via == Via::Auto {
        let (mode, reason) = decide_builtin(can, needs);
        (mode, plain, reason)
    } else {
        decide_own(can, needs, via)
    };
    Decision { mode, flags, reason }
}

fn decide_builtin(can: &Capabilities, needs: EcnNeeds) -> (Mode, String) {
    if needs.echo {
        (
            Mode::DctcpFeedback,
            "the kernel's own congestion control echoes every mark, on both ends".to_owned(),
        )
    } else if can.accecn_sysctl {
        let all = "tcp_ecn = 3 works here; with it, every flow of this node negotiates AccECN";
        (Mode::AccecnSysctl, all.to_owned())
    } else {
        (Mode::Rfc3168, "this kernel refuses tcp_ecn = 3 (AccECN)".to_owned())
    }
}

fn decide_own(can: &Capabilities, needs: EcnNeeds, via: Via) -> (Mode, u32, String) {
    let accecn = can.ops_flags & flag::ACCECN == flag::ACCECN;
    let echo = flag::NON_RESTRICTED | flag::NEEDS_ECN;
    if needs.accecn && accecn {
        let reason = format!(
            "this kernel accepts AccECN through the flags {:#x} of a congestion control",
            can.ops_flags
        );
        return (Mode::AccecnStructOps, can.ops_flags, reason);
    }
    if needs.accecn && can.accecn_sysctl {
        let reason = format!(
            "tcp_ecn = 3 works here, flags do not ({:#x} accepted, {:#x} needed); with tcp_ecn = 3, every flow of this \
             node negotiates AccECN",
            can.ops_flags,
            flag::ACCECN
        );
        return (Mode::AccecnSysctl, echo, reason);
    }
    if !needs.accecn {
        return (
            Mode::DctcpFeedback,
            echo,
            "the algorithm's receiver echoes every mark".to_owned(),
        );
    }
    let why = match (via, can.ops_flags) {
        (Via::Bpf, 0) => format!("no BPF congestion control can be registered: {}", can.ops_reason),
        (_, flags) => format!(
            "this kernel has no AccECN for a congestion control (flags {:#x} accepted, {:#x} needed); the receiver echoes every mark",
            flags,
            flag::ACCECN
        ),
    };
    (Mode::DctcpFeedback, echo, why)
}

/// One end of a flow group on this node whose congestion control needs ECN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EcnEndpoint {
    /// The flow group.
    pub group: String,
    /// The congestion control's name in the plan.
    pub cc: String,
    /// Its name in this node's kernel.
    pub kernel_name: String,
    /// Its ECN requirements.
    pub needs: EcnNeeds,
    /// The backend that registered it.
    pub via: Via,
    /// Whether this end sends the data.
    pub sends: bool,
    /// The other end's address.
    pub peer: std::net::IpAddr,
}

/// Returns the ends on this node that need ECN. `outcome_of` maps a name of the plan to the kernel's name and the backend.
pub fn endpoints(
    task: &NodeTask,
    outcome_of: impl Fn(&str) -> Option<(String, Via)>,
) -> Vec<EcnEndpoint> {
    let end = |flow: &FlowTask, listens: bool| {
        let name = flow.plan.cc.as_deref()?;
        let needs = ecn_needs(name, task.cc.get(name));
        let (kernel_name, via) = outcome_of(name)?;
        needs.any().then(|| EcnEndpoint {
            group: flow.group.clone(),
            cc: name.to_owned(),
            kernel_name,
            needs,
            via,
            sends: listens == flow.plan.reverse,
            peer: if listens { flow.from_ip } else { flow.to_ip },
        })
    };
    let clients = task.clients.iter().filter_map(|flow| end(flow, false));
    clients.chain(task.servers.iter().filter_map(|flow| end(flow, true))).collect()
}

#[cfg(test)]
mod tests;
