//! Probes: whether each measured anything, and what failed that should not.
//!
//! A lost echo is a measurement: queues drop packets. A connection or a fetch is carried by TCP, which repeats what is
//! lost; one that fails or takes longer than its `timeout` says that something is wrong.

use std::collections::BTreeMap;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::wire::Probe;

use super::findings::Findings;
use crate::model::Status;

/// Judges the probes of a trial.
#[derive(Debug)]
pub(crate) struct ProbeCheck(BTreeMap<String, Counted>);

#[derive(Debug, Default)]
struct Counted {
    kind: String,
    connects: bool,
    asked: u32,
    failed: u32,
    /// Of the first failure.
    error: String,
}

impl ProbeCheck {
    pub(crate) fn new(plan: &CheckedPlan) -> Self {
        let probes = plan.plan().probes.iter();
        let counted = probes.map(|(name, probe)| {
            let (kind, connects) = (probe.kind.as_str().to_owned(), probe.kind.connects());
            (name.clone(), Counted { kind, connects, ..Counted::default() })
        });
        Self(counted.collect())
    }

    pub(crate) fn row(&mut self, row: &Probe) {
        let Some(counted) = self.0.get_mut(&row.probe_id) else { return };
        counted.asked += 1;
        if row.lost {
            counted.failed += 1;
            if counted.error.is_empty() {
                counted.error.clone_from(&row.error);
            }
        }
    }

    pub(crate) fn finish(self, findings: &mut Findings) {
        for (name, counted) in self.0 {
            let Counted { kind, connects, asked, failed, error } = counted;
            let because = if error.is_empty() { error } else { format!("; the first: {error}") };
            let mut degraded = |code, message| findings.add(Status::Degraded, code, message);
            if asked == 0 {
                degraded("probe_dead", format!("{name}: no {kind} came to an end in this trial"));
            } else if asked == failed {
                degraded(
                    "probe_dead",
                    format!("{name}: none of {asked} {kind} was answered{because}"),
                );
            } else if connects && failed > 0 {
                degraded(
                    "probe_failed",
                    format!("{name}: {failed} of {asked} {kind} failed{because}"),
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
        findings.verdict().reasons.into_iter().map(|r| (r.code, r.message)).collect()
    }

    #[test]
    fn a_lost_echo_is_a_measurement_and_a_failed_fetch_is_not() {
        let fine = verdict(&[("rtt", true, ""), ("rtt", false, ""), ("page", false, "")]);
        assert_eq!(fine, []);
        let failed =
            verdict(&[("rtt", false, ""), ("page", false, ""), ("page", true, "timed out")]);
        let expected = ("probe_failed", "page: 1 of 2 http failed; the first: timed out");
        assert_eq!(failed, [(expected.0.to_owned(), expected.1.to_owned())]);
    }

    #[test]
    fn a_probe_without_an_answer_is_dead() {
        let dead = verdict(&[("rtt", true, ""), ("rtt", true, "")]);
        let messages: Vec<&str> = dead.iter().map(|(_, message)| message.as_str()).collect();
        assert_eq!(
            messages,
            ["page: no http came to an end in this trial", "rtt: none of 2 ping was answered"]
        );
        assert!(dead.iter().all(|(code, _)| code == "probe_dead"));
    }
}
