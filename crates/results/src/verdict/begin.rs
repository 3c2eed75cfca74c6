//! Was every sender's congestion control alone with its socket? What another one left there (pacing, by bbr) stays.

use ccbench_proto::event::{CcInForce, CcSockets};

use super::findings::Findings;
use crate::model::Status;

/// Judges what the sockets of one end of a flow group started with.
pub(crate) fn began(node: &str, group: &str, start: &CcInForce, findings: &mut Findings) {
    let Some(by) = &start.paced_by else { return };
    let why = start.no_hook.as_ref().map_or(String::new(), |why| format!(" ({why})"));
    let message = format!(
        "flows.{group}: {} was set {} on {node}{why}: its sockets began with {by}, which leaves them paced; set \
         net.ipv4.tcp_congestion_control there to one that does not pace (cubic, reno)",
        start.cc,
        start.how.replace('_', " "),
    );
    findings.add(Status::Degraded, "cc_late", message);
}

/// Judges what was set before the handshake.
pub(crate) fn sockets(node: &str, group: &str, sockets: &CcSockets, findings: &mut Findings) {
    let (set, refused) = (sockets.set(), sockets.refused());
    if refused > 0 {
        let message = format!(
            "flows.{group}: {node}'s kernel refused {} to {refused} of {} sockets before their handshake",
            sockets.cc,
            set + refused
        );
        findings.add(Status::Degraded, "cc_late", message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(findings: Findings) -> Vec<String> {
        let reasons = findings.verdict().reasons;
        reasons.iter().map(|reason| format!("{} {}", reason.code, reason.message)).collect()
    }

    fn started(start: &CcInForce) -> Vec<String> {
        let mut findings = Findings::default();
        began("src", "delay", start, &mut findings);
        reasons(findings)
    }

    #[test]
    fn leftovers_of_another_one_degrade() {
        let late = CcInForce {
            cc: "vegas".into(),
            how: "after_connect".into(),
            paced_by: Some("bbr".into()),
            no_hook: Some("no BPF".into()),
            ..CcInForce::default()
        };
        let reasons = started(&late);
        let [why] = &reasons[..] else { panic!("one reason: {reasons:?}") };
        assert!(
            why.starts_with("cc_late flows.delay: vegas was set after connect on src (no BPF)")
        );
        let fine =
            CcInForce { paced_by: None, no_hook: None, how: "before_connect".into(), ..late };
        assert_eq!(started(&fine), Vec::<String>::new());
    }

    #[test]
    fn refusals_degrade() {
        let of = |refused: u64| {
            let mut findings = Findings::default();
            let seen = CcSockets {
                cc: "vegas".into(),
                set: Some(3),
                refused: Some(refused),
                ..CcSockets::default()
            };
            sockets("src", "delay", &seen, &mut findings);
            reasons(findings)
        };
        assert_eq!(of(0), Vec::<String>::new());
        assert!(of(1)[0].ends_with("refused vegas to 1 of 4 sockets before their handshake"));
    }
}
