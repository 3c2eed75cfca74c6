//! Applies the ECN decisions of one trial and reports the outcome. Nothing here fails a trial: a fallback's event
//! carries its reason, and the verdict takes it into account.

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::event::{Ecn, Kind};
#[cfg(feature = "ebpf")]
use ccbench_proto::event::{EcnEct1, NoData};
use ccbench_proto::resolve::Egress;
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire::{self, Side};

use super::{Capabilities, Decision, EcnEndpoint, Mode, decide};
use crate::event::event;
use crate::sockets::before_handshake;
use crate::sockets::capabilities::capabilities;
#[cfg(feature = "ebpf")]
use crate::sockets::error::BpfError;
use crate::sockets::error::SocketError;
#[cfg(feature = "ebpf")]
use crate::sockets::hook::Ect1;
use crate::sockets::node::{Node, TCP_ECN, set_sysctl};

/// ECN programs of a trial. Dropping it detaches them.
#[derive(Debug, Default)]
pub struct EcnApplied {
    #[cfg(feature = "ebpf")]
    ect1: Vec<Ect1>,
}

/// An end of a flow group that needs ECN, and the best mode that this kernel has for it.
#[derive(Debug, Clone)]
pub struct EcnAssignment {
    /// The end.
    pub end: EcnEndpoint,
    /// The ECN mode to use.
    pub decision: Decision,
}

/// Decides the modes of the ends on this node that need ECN.
pub fn decide_all(ends: Vec<EcnEndpoint>, task: &NodeTask) -> Vec<EcnAssignment> {
    let tcp_ecn = task.sysctls.iter().find(|(name, _)| name.replace('/', ".") == TCP_ECN);
    let tcp_ecn = tcp_ecn.map(|(_, value)| value.as_str());
    // Probing the kernel takes milliseconds, so skip it if no flow needs ECN.
    let can = if ends.is_empty() { &Capabilities::default() } else { capabilities() };
    let of = |end: EcnEndpoint| EcnAssignment {
        decision: decide(can, end.needs, end.via, tcp_ecn),
        end,
    };
    ends.into_iter().map(of).collect()
}

/// Applies the decisions. Call this after the congestion controls are set ([`before_handshake`]) and before any socket
/// is created. Each end gets an event with the requested mode, the applied mode and the reason.
pub fn apply(
    mut assignments: Vec<EcnAssignment>,
    attached: &before_handshake::AttachedHook,
    node: &mut Node<'_>,
) -> (EcnApplied, Vec<wire::Event>) {
    let mut applied = EcnApplied::default();
    for EcnAssignment { end, decision } in
        assignments.iter_mut().filter(|a| a.decision.mode != Mode::None)
    {
        match attached.before_handshake(&end.group, end.sends) {
            Ok(None) => {}
            Ok(Some(how)) => decision.reason += &format!("; {how}"),
            Err(why) => (decision.mode, decision.reason) = (Mode::None, why.to_string()),
        }
    }
    let by_sysctl = |a: &EcnAssignment| a.decision.mode == Mode::AccecnSysctl;
    if assignments.iter().any(by_sysctl)
        && let Err(error) = set_sysctl(TCP_ECN, "3", node)
    {
        for EcnAssignment { decision, .. } in assignments.iter_mut().filter(|a| by_sysctl(a)) {
            (decision.mode, decision.reason) = (Mode::Rfc3168, error.to_string());
        }
    }
    let events = assignments
        .iter()
        .map(|EcnAssignment { end, decision }| {
            let ect1 = match end.sends && end.needs.ect1 && decision.mode.counts_marks() {
                true => Some(applied.rewrite(end, node)),
                false => None,
            };
            report(end, decision, ect1.as_ref())
        })
        .collect();
    (applied, events)
}

fn report(
    end: &EcnEndpoint,
    decision: &Decision,
    ect1: Option<&Result<String, SocketError>>,
) -> wire::Event {
    let mode = decision.mode.on_wire();
    let side = if end.sends { Side::Sender } else { Side::Receiver };
    let ect1_text = match ect1 {
        Some(Ok(dev)) => format!("; ECT(1) is set by rewriting at the egress of {dev}"),
        Some(Err(why)) => format!("; no ECT(1): {why}"),
        None => String::new(),
    };
    let (side_text, mode_text) = (side.as_text(), mode.as_text());
    let message = format!("{} ({side_text}): {mode_text}: {}{ect1_text}", end.cc, decision.reason);
    let data = Ecn {
        side: side.into(),
        cc: end.cc.clone(),
        kernel_name: end.kernel_name.clone(),
        asked: end.needs.on_wire().into(),
        mode: mode.into(),
        reason: decision.reason.clone(),
        counts_marks: Some(decision.mode.counts_marks()),
        ect1_wanted: end.sends && end.needs.ect1,
        ect1_dev: ect1.and_then(|done| done.as_ref().ok().cloned()),
        ect1_error: ect1.and_then(|done| done.as_ref().err().map(ToString::to_string)),
    };
    event(Kind::Ecn(data), &end.group, message)
}

impl EcnApplied {
    /// Attaches the rewriting program, and returns its interface. One program serves all flows of one congestion control.
    #[cfg(feature = "ebpf")]
    fn rewrite(&mut self, end: &EcnEndpoint, node: &mut Node<'_>) -> Result<String, SocketError> {
        let dev = node.interfaces.device(&Egress::Toward(end.peer))?;
        if !self.ect1.iter().any(|there| there.dev == dev && there.cc == end.kernel_name) {
            self.ect1.push(Ect1::attach(&dev, &end.kernel_name, node.undo)?);
        }
        Ok(dev)
    }

    #[cfg(not(feature = "ebpf"))]
    fn rewrite(&mut self, end: &EcnEndpoint, node: &mut Node<'_>) -> Result<String, SocketError> {
        let dev = node.interfaces.device(&Egress::Toward(end.peer))?;
        tracing::debug!(dev, "ECT(1) is not rewritten");
        Err(SocketError::NoEbpf)
    }

    /// Returns the counters of the programs so far.
    #[cfg(feature = "ebpf")]
    pub fn counts(&self) -> Vec<wire::Event> {
        self.ect1.iter().map(|ect1| ect1_event(ect1.rewritten(), &ect1.cc, &ect1.dev)).collect()
    }

    /// Without the feature `ebpf`, there are no programs to count.
    #[cfg(not(feature = "ebpf"))]
    pub fn counts(&self) -> Vec<wire::Event> {
        Vec::new()
    }
}

/// Returns the event of the packets of a congestion control that were rewritten at an interface.
#[cfg(feature = "ebpf")]
fn ect1_event(rewritten: Result<u64, BpfError>, cc: &str, dev: &str) -> wire::Event {
    match rewritten {
        Ok(rewritten) => {
            let message = format!("{rewritten} packets of {cc} rewritten from ECT(0) to ECT(1)");
            event(Kind::EcnEct1(EcnEct1 { cc: cc.to_owned(), rewritten }), dev, message)
        }
        Err(error) => {
            let message =
                format!("the packets of {cc} rewritten from ECT(0) to ECT(1) are unknown: {error}");
            event(Kind::AgentError(NoData {}), dev, message)
        }
    }
}

#[cfg(all(test, feature = "ebpf"))]
mod tests {
    use super::*;

    #[test]
    fn counters_that_cannot_be_read_are_reported() {
        assert_eq!(ect1_event(Ok(0), "prague", "eth0").name(), "ecn_ect1");
        let error = BpfError::NoCounter { section: ".data.ect1".to_owned(), at: 0 };
        let unread = ect1_event(Err(error), "prague", "eth0");
        assert_eq!((unread.name(), &*unread.subject), ("agent_error", "eth0"));
        let why = " are unknown: the BPF map .data.ect1 has no counter at byte 0";
        assert!(unread.message.ends_with(why), "{unread:?}");
    }
}
