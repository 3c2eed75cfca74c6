//! Events `ecn`: the feedback that congestion controls request, and the feedback that their connections have. An agent reports both in its
//! reply to Prepare. From them the verdict knows which senders must count every mark.

use ccbench_proto::cc;
use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::event::{Ecn, EcnMode, EcnRequest, Kind};
use ccbench_proto::schedule::{FlowTask, NodeTask};
use ccbench_proto::wire::{self, Side};

use crate::sysctls::Sysctls;

/// Returns an event for each end of a flow group on this node whose congestion control counts marks.
pub fn ecn_events(task: &NodeTask) -> Vec<wire::Event> {
    let clients = task.clients.iter().filter_map(|flow| ecn_event(task, flow, false));
    clients.chain(task.servers.iter().filter_map(|flow| ecn_event(task, flow, true))).collect()
}

fn ecn_event(task: &NodeTask, flow: &FlowTask, listens: bool) -> Option<wire::Event> {
    let name = flow.plan.cc.as_deref()?;
    // None of the kernel's congestion controls that the simulator models counts marks.
    let instance = task.cc.get(name).filter(|instance| cc::counts_marks(instance))?;
    let (_, core) = cc::scheme(&instance.algorithm)?;
    let asked = match core.wants_ecn && core.wants_ect1 {
        true => EcnRequest::Accecn,
        false => EcnRequest::DctcpFeedback,
    };
    let (mode, reason) = match (Sysctls(task).ecn(), asked) {
        (0, _) => (EcnMode::None, "the plan sets tcp_ecn = 0 on this node"),
        (_, EcnRequest::Accecn) => (EcnMode::AccecnStructOps, "the simulator counts every mark"),
        _ => (EcnMode::DctcpFeedback, "the simulator counts every mark"),
    };
    let is_sender = listens == flow.plan.reverse;
    let side = if is_sender { Side::Sender } else { Side::Receiver };
    let message = format!("{name} ({}): {}: {reason}", side.as_text(), mode.as_text());
    let data = Ecn {
        side: side.into(),
        cc: name.to_owned(),
        kernel_name: instance.algorithm.clone(),
        asked: asked.into(),
        mode: mode.into(),
        reason: reason.to_owned(),
        counts_marks: Some(mode != EcnMode::None),
        ect1_wanted: is_sender && instance.ect1.unwrap_or(core.wants_ect1),
        ..Ecn::default()
    };
    let (subject, kind) = (flow.group.clone(), Some(Kind::Ecn(data)));
    Some(wire::Event { at_ns: 0, subject, message, kind })
}
