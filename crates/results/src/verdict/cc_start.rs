//! Checks that no other congestion control set up a sender's socket first: pacing that BBR enables stays on after the switch to another
//! algorithm.

use ccbench_proto::event::{CcMethod, CcSockets, InitialCc};

use super::findings::Findings;
use crate::model::Status;
use crate::reason::ReasonCode;

/// Checks with which congestion control the sockets at one end of a flow group started.
pub(crate) fn judge(node: &str, group: &str, start: &InitialCc, findings: &mut Findings) {
    let Some(pacing_cc) = &start.paced_by else { return };
    let no_hook = start.no_hook.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
    let message = format!(
        "flows.{group}: {} was set {} on {node}{no_hook}: its sockets started with {pacing_cc}, which leaves pacing on; set \
         net.ipv4.tcp_congestion_control on {node} to an algorithm without pacing (cubic, reno)",
        start.cc,
        method_text(start.method()),
    );
    findings.add(Status::Degraded, ReasonCode::CcLate, format!("flows.{group}"), message);
}

/// Returns when or by what the congestion control was set.
fn method_text(method: CcMethod) -> &'static str {
    match method {
        CcMethod::BeforeConnect => "before connect",
        CcMethod::NamespaceDefault => "by the namespace's default",
        CcMethod::AfterConnect => "after connect",
        // `Event::read` refuses this value.
        CcMethod::Unspecified => "in an unknown way",
    }
}

/// Counts the sockets on which the kernel refused the congestion control before the handshake.
pub(crate) fn judge_sockets(node: &str, group: &str, sockets: &CcSockets, findings: &mut Findings) {
    let (set, refused) = (sockets.set(), sockets.refused());
    if refused > 0 {
        let message = format!(
            "flows.{group}: {node}'s kernel refused {} to {refused} of {} sockets before their handshake",
            sockets.cc,
            set.saturating_add(refused)
        );
        findings.add(Status::Degraded, ReasonCode::CcLate, format!("flows.{group}"), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(findings: Findings) -> Vec<String> {
        let reasons = findings.verdict().reasons;
        reasons.iter().map(|reason| format!("{} {}", reason.code, reason.message)).collect()
    }

    fn started(start: &InitialCc) -> Vec<String> {
        let mut findings = Findings::default();
        judge("src", "delay", start, &mut findings);
        reasons(findings)
    }

    #[test]
    fn degrades_if_another_cc_left_pacing_on() {
        let late = InitialCc {
            cc: "vegas".into(),
            method: CcMethod::AfterConnect.into(),
            paced_by: Some("bbr".into()),
            no_hook: Some("no BPF".into()),
            ..InitialCc::default()
        };
        let reasons = started(&late);
        let [reason] = &reasons[..] else { panic!("one reason: {reasons:?}") };
        assert!(
            reason.starts_with("cc_late flows.delay: vegas was set after connect on src (no BPF)")
        );
        let method = CcMethod::BeforeConnect.into();
        let fine = InitialCc { paced_by: None, no_hook: None, method, ..late };
        assert_eq!(started(&fine), Vec::<String>::new());
    }

    #[test]
    fn degrades_if_the_kernel_refused_the_cc() {
        let of = |refused: u64| {
            let mut findings = Findings::default();
            let seen = CcSockets {
                cc: "vegas".into(),
                set: Some(3),
                refused: Some(refused),
                ..CcSockets::default()
            };
            judge_sockets("src", "delay", &seen, &mut findings);
            reasons(findings)
        };
        assert_eq!(of(0), Vec::<String>::new());
        assert!(of(1)[0].ends_with("refused vegas to 1 of 4 sockets before their handshake"));
    }
}
