//! Checks for packets that neither the trial's flows and probes nor ccbench sent through a link (reason `foreign_traffic`).

use std::collections::BTreeMap;

use ccbench_proto::wire::QdiscSample;

use super::findings::{Findings, Span};
use crate::model::Status;
use crate::reason::ReasonCode;

/// Share of the bytes that a link sent that may be foreign. On links that send little, only [`FOREIGN_BYTES`] matters.
pub const FOREIGN_SHARE: f64 = 0.001;
/// Foreign bytes that a link may carry at any rate: some neighbour discovery, and errors of routers.
pub const FOREIGN_BYTES: u64 = 10_000;

/// The traffic of each link that tells packets of the trial from others, by node and link.
#[derive(Debug, Default)]
pub(crate) struct ForeignCheck(BTreeMap<(String, String), Traffic>);

#[derive(Debug)]
struct Traffic {
    first: Counters,
    last: Counters,
}

/// Counters since the link was created.
#[derive(Debug, Clone, Copy)]
struct Counters {
    foreign_pkts: u64,
    foreign_bytes: u64,
    sent_bytes: u64,
}

impl ForeignCheck {
    pub(crate) fn sample(&mut self, node: &str, span: Span, row: &QdiscSample) {
        let (Some(foreign_pkts), Some(foreign_bytes)) = (row.foreign_pkts, row.foreign_bytes)
        else {
            return;
        };
        if !span.contains(row.at_ns) {
            return;
        }
        let last = Counters { foreign_pkts, foreign_bytes, sent_bytes: row.sent_bytes };
        let key = (node.to_owned(), row.link.clone());
        self.0.entry(key).or_insert(Traffic { first: last, last }).last = last;
    }

    pub(crate) fn finish(&self, findings: &mut Findings) {
        for ((_, link), Traffic { first, last }) in &self.0 {
            let bytes = last.foreign_bytes.saturating_sub(first.foreign_bytes);
            let packets = last.foreign_pkts.saturating_sub(first.foreign_pkts);
            let sent = last.sent_bytes.saturating_sub(first.sent_bytes);
            let share = bytes as f64 / sent.max(1) as f64;
            if bytes <= FOREIGN_BYTES || share <= FOREIGN_SHARE {
                continue;
            }
            let subject = format!("link {link}");
            let message = format!(
                "{subject}: {bytes} bytes in {packets} foreign packets arrived, {:.2} % of the bytes that it sent (limits {:.1} % and \
                 {FOREIGN_BYTES} bytes), sent neither by the trial's flows and probes nor by ccbench; keep logins, downloads and other \
                 experiments away from the link",
                share * 100.0,
                FOREIGN_SHARE * 100.0
            );
            findings.add(Status::Degraded, ReasonCode::ForeignTraffic, subject, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span { t0_ns: 100, end_ns: 200 };

    /// Returns the reasons after samples with these times, foreign bytes and sent bytes.
    fn reasons(samples: &[(u64, Option<u64>, u64)]) -> Vec<(ReasonCode, String)> {
        let mut check = ForeignCheck::default();
        for &(at_ns, foreign_bytes, sent_bytes) in samples {
            let row = QdiscSample {
                at_ns,
                link: "l".into(),
                sent_bytes,
                foreign_pkts: foreign_bytes.map(|bytes| bytes / 100),
                foreign_bytes,
                ..QdiscSample::default()
            };
            check.sample("r", SPAN, &row);
        }
        let mut findings = Findings::default();
        check.finish(&mut findings);
        let verdict = findings.verdict();
        let expected = if verdict.reasons.is_empty() { Status::Ok } else { Status::Degraded };
        assert_eq!(verdict.status, expected);
        verdict.reasons.into_iter().map(|reason| (reason.code, reason.message)).collect()
    }

    #[test]
    fn foreign_traffic_above_both_limits_degrades() {
        let found = reasons(&[(100, Some(500), 1_000), (200, Some(20_500), 1_001_000)]);
        let [(code, message)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(*code, ReasonCode::ForeignTraffic);
        let begin = "link l: 20000 bytes in 200 foreign packets arrived, 2.00 % of the bytes that it sent (limits 0.1 % and 10000 bytes)";
        assert!(message.starts_with(begin), "{message}");
        let by = "sent neither by the trial's flows and probes nor by ccbench; keep";
        assert!(message.contains(by), "{message}");
    }

    #[test]
    fn control_noise_and_what_came_before_the_trial_are_tolerated() {
        assert!(reasons(&[(100, Some(0), 0), (200, Some(10_000), 10_000)]).is_empty());
        assert!(reasons(&[(100, Some(0), 0), (200, Some(99_000), 99_000_000)]).is_empty());
        assert!(reasons(&[(100, Some(90_000), 0), (200, Some(90_000), 1_000)]).is_empty());
        let outside = [(50, Some(0), 0), (150, Some(90_000), 1), (250, Some(900_000), 1_000)];
        assert!(reasons(&outside).is_empty());
        assert!(reasons(&[(100, None, 0), (200, None, 1_000_000)]).is_empty(), "not known");
    }
}
