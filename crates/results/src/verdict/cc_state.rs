//! Checks that every flow with one of ccbench's congestion controls reported its state. Without memory for a socket's state, the algorithm
//! does nothing, and the flow continues with its current window.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::wire::{CcState, CongestionControl, FlowSample, Role, Side, Via};

use super::findings::Findings;
use crate::model::Status;
use crate::reason::ReasonCode;

/// A flow that has delivered fewer packets may be too short to complete a round.
const MIN_PKTS: u32 = 1_000;

/// What is known about flows and their congestion controls.
#[derive(Debug, Default)]
pub(crate) struct CcStateCheck {
    /// Names of the instances that ccbench loaded, as in the plan.
    loaded: BTreeSet<String>,
    /// The congestion control and the delivered packets of each flow.
    flows: BTreeMap<String, (String, u32)>,
    reported: BTreeSet<String>,
    /// Nodes that reported that they cannot read the state of their sockets.
    unreadable: BTreeSet<String>,
}

impl CcStateCheck {
    /// Notes that an instance is in a node's kernel. The user's own congestion controls report no state.
    pub(crate) fn loaded(&mut self, cc: &CongestionControl) {
        if cc.sha256.is_empty() && matches!(cc.via(), Via::Bpf | Via::Module) {
            self.loaded.insert(cc.name.clone());
        }
    }

    /// Notes that a node cannot read its sockets' state, or not all of it.
    pub(crate) fn unreadable(&mut self, node: &str) {
        self.unreadable.insert(node.to_owned());
    }

    pub(crate) fn sample(&mut self, node: &str, row: &FlowSample) {
        let is_sender = row.side() == Side::Sender && row.role() == Role::Data;
        if !is_sender || self.unreadable.contains(node) || !self.loaded.contains(&row.cc) {
            return;
        }
        let delivered = row.delivered_pkts.unwrap_or(0);
        match self.flows.get_mut(&row.flow_id) {
            Some(flow) => flow.1 = flow.1.max(delivered),
            None => drop(self.flows.insert(row.flow_id.clone(), (row.cc.clone(), delivered))),
        }
    }

    pub(crate) fn state(&mut self, row: &CcState) {
        if !self.reported.contains(&row.flow_id) {
            self.reported.insert(row.flow_id.clone());
        }
    }

    pub(crate) fn finish(&self, findings: &mut Findings) {
        let silent = self.flows.iter().filter(|(flow, (_, delivered))| {
            *delivered >= MIN_PKTS && !self.reported.contains(*flow)
        });
        for (flow, (cc, _)) in silent {
            let message = format!(
                "flow {flow}: {cc} has no state in the kernel, so it did nothing and the window stayed as it was: use another \
                 kernel (in the lab another --engine), or `via = \"module\"`"
            );
            findings.add(
                Status::Failed,
                ReasonCode::CcStateMissing,
                format!("flow {flow}"),
                message,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(check: &CcStateCheck) -> Vec<String> {
        let mut findings = Findings::default();
        check.finish(&mut findings);
        let verdict = findings.verdict();
        verdict.reasons.iter().map(|reason| format!("{} {}", reason.code, reason.message)).collect()
    }

    fn check(via: Via, delivered: u32) -> CcStateCheck {
        let mut check = CcStateCheck::default();
        let cc = CongestionControl { name: "mine".into(), via: via.into(), ..Default::default() };
        check.loaded(&cc);
        check.sample(
            "src",
            &FlowSample {
                flow_id: "f/0".into(),
                cc: "mine".into(),
                delivered_pkts: Some(delivered),
                side: Side::Sender.into(),
                role: Role::Data.into(),
                ..FlowSample::default()
            },
        );
        check
    }

    #[test]
    fn a_congestion_control_without_state_fails_the_trial() {
        let silent = reasons(&check(Via::Bpf, 2_000));
        assert!(
            silent[0].starts_with("cc_state_missing flow f/0: mine has no state"),
            "{silent:?}"
        );
        let mut reported = check(Via::Bpf, 2_000);
        reported.state(&CcState { flow_id: "f/0".into(), ..CcState::default() });
        assert!(reasons(&reported).is_empty());
        assert!(reasons(&check(Via::Bpf, 10)).is_empty(), "too short for a round");
        assert!(reasons(&check(Via::Builtin, 2_000)).is_empty(), "the kernel's own has no rows");
    }

    #[test]
    fn a_congestion_control_of_the_user_has_no_state() {
        let mut check = CcStateCheck::default();
        let (name, sha256) = ("mine".into(), "0".repeat(64));
        check.loaded(&CongestionControl {
            name,
            sha256,
            via: Via::Bpf.into(),
            ..Default::default()
        });
        let row = FlowSample {
            delivered_pkts: Some(9_000),
            cc: "mine".into(),
            side: Side::Sender.into(),
            role: Role::Data.into(),
            ..FlowSample::default()
        };
        check.sample("src", &row);
        assert!(reasons(&check).is_empty());
    }

    #[test]
    fn a_node_that_cannot_read_says_so_itself() {
        let mut check = CcStateCheck::default();
        check.unreadable("src");
        let cc =
            CongestionControl { name: "mine".into(), via: Via::Bpf.into(), ..Default::default() };
        check.loaded(&cc);
        let row =
            FlowSample { delivered_pkts: Some(9_000), cc: "mine".into(), ..Default::default() };
        check.sample("src", &row);
        assert!(reasons(&check).is_empty());
    }
}
