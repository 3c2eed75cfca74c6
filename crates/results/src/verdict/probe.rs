//! Checks whether each probe measured anything, and counts failures that TCP should prevent.
//!
//! A lost echo is a measurement, because queues drop packets. Connections and fetches use TCP, which retransmits. If one fails or exceeds
//! its `timeout`, something is wrong.

use std::collections::BTreeMap;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::wire::Probe;

use super::findings::Findings;
use crate::model::Status;
use crate::reason::ReasonCode;

/// Judges the probes of a trial.
#[derive(Debug)]
pub(crate) struct ProbeCheck(BTreeMap<String, Counts>);

#[derive(Debug, Default)]
struct Counts {
    kind: String,
    connects: bool,
    sent: u32,
    failed: u32,
    /// The error of the first failure.
    error: String,
}

impl ProbeCheck {
    pub(crate) fn new(plan: &CheckedPlan) -> Self {
        let probes = plan.plan().probes.iter();
        let counts = probes.map(|(name, probe)| {
            let (kind, connects) = (probe.kind.as_str().to_owned(), probe.kind.connects());
            (name.clone(), Counts { kind, connects, ..Counts::default() })
        });
        Self(counts.collect())
    }

    pub(crate) fn row(&mut self, row: &Probe) {
        let Some(counts) = self.0.get_mut(&row.probe_id) else { return };
        counts.sent += 1;
        if row.lost {
            counts.failed += 1;
            if counts.error.is_empty() {
                counts.error.clone_from(&row.error);
            }
        }
    }

    pub(crate) fn finish(self, findings: &mut Findings) {
        for (name, counts) in self.0 {
            let Counts { kind, connects, sent, failed, error } = counts;
            let because = if error.is_empty() { error } else { format!("; first error: {error}") };
            let mut degraded =
                |code, message| findings.add(Status::Degraded, code, name.as_str(), message);
            if sent == 0 {
                degraded(
                    ReasonCode::ProbeDead,
                    format!("{name}: no {kind} probe finished in this trial"),
                );
            } else if sent == failed {
                degraded(
                    ReasonCode::ProbeDead,
                    format!("{name}: none of {sent} {kind} probes was answered{because}"),
                );
            } else if connects && failed > 0 {
                degraded(
                    ReasonCode::ProbeFailed,
                    format!("{name}: {failed} of {sent} {kind} probes failed{because}"),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccbench_proto::plan::{check, parse};

    fn verdict(rows: &[(&str, bool, &str)]) -> Vec<(String, String)> {
        let text = r#"
            name = "t"
            [nodes]
            a = {}
            b = {}
            [wires]
            w = ["a", "b"]
            [probes.rtt]
            kind = "ping"
            from = "a"
            to = "b"
            [probes.page]
            kind = "http"
            bytes = "177669B"
            from = "a"
            to = "b"
            [[phases]]
            name = "all"
            length = "5s"
        "#;
        let (plan, _) = check::check(parse::parse(text).unwrap()).unwrap();
        let mut check = ProbeCheck::new(&plan);
        for (id, lost, error) in rows {
            let (probe_id, error) = ((*id).to_owned(), (*error).to_owned());
            check.row(&Probe { probe_id, lost: *lost, error, ..Probe::default() });
        }
        let mut findings = Findings::default();
        check.finish(&mut findings);
        findings.verdict().reasons.into_iter().map(|r| (r.code.to_string(), r.message)).collect()
    }

    #[test]
    fn lost_echo_is_ok_and_failed_fetch_degrades() {
        let fine = verdict(&[("rtt", true, ""), ("rtt", false, ""), ("page", false, "")]);
        assert_eq!(fine, []);
        let failed =
            verdict(&[("rtt", false, ""), ("page", false, ""), ("page", true, "timed out")]);
        let expected = ("probe_failed", "page: 1 of 2 http probes failed; first error: timed out");
        assert_eq!(failed, [(expected.0.to_owned(), expected.1.to_owned())]);
    }

    #[test]
    fn probe_without_answers_is_dead() {
        let dead = verdict(&[("rtt", true, ""), ("rtt", true, "")]);
        let messages: Vec<&str> = dead.iter().map(|(_, message)| message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "page: no http probe finished in this trial",
                "rtt: none of 2 ping probes was answered"
            ]
        );
        assert!(dead.iter().all(|(code, _)| code == "probe_dead"));
    }
}
