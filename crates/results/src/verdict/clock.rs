//! Finds clocks that are too inaccurate to compare times of different nodes.

use super::findings::Findings;
use crate::model::{NodeClock, Status};
use crate::reason::ReasonCode;

/// Maximum error bound of clocks in a trial that is not degraded. RTTs of interest are milliseconds, and the bound is 0.1 ms over an idle
/// control network in one building.
const MAX_ERROR_NS: u64 = 1_000_000;

/// Judges a node's clock by the bound of its error during the trial.
pub(super) fn judge(node: &str, clock: &NodeClock, findings: &mut Findings) {
    if clock.error_bound_ns > MAX_ERROR_NS {
        let cause = match clock.error_bound_after_ns {
            None => "its clock was not measured after the trial".to_owned(),
            Some(after_ns) if after_ns.max(clock.rtt_ns / 2) > MAX_ERROR_NS => format!(
                "the control network's round-trip time of {:.3} ms does not allow a smaller bound",
                ms(clock.rtt_ns.max(2 * after_ns))
            ),
            Some(after_ns) => format!(
                "its clock drifted during the trial (its error after the trial was at most {:.3} ms); run chrony or ptp4l on every \
                 node, and keep the trial's traffic off the control network",
                ms(after_ns)
            ),
        };
        let message = format!(
            "{node}: its times may be off by {:.3} ms (limit: {:.0} ms): {cause}",
            ms(clock.error_bound_ns),
            ms(MAX_ERROR_NS)
        );
        findings.add(Status::Degraded, ReasonCode::ClockUncertain, node, message);
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(error_bound_ns: u64, error_bound_after_ns: Option<u64>) -> Vec<String> {
        let shared = NodeClock::shared(0, 0);
        let clock = NodeClock { error_bound_ns, error_bound_after_ns, rtt_ns: 60_000, ..shared };
        let mut findings = Findings::default();
        judge("dst", &clock, &mut findings);
        findings.0.into_iter().map(|(_, reason)| reason.message).collect()
    }

    #[test]
    fn a_clock_that_is_known_to_a_millisecond_is_good_enough() {
        assert_eq!(judged(1_000_000, Some(30_000)), Vec::<String>::new());
        let drifted = judged(1_500_000, Some(30_000));
        assert!(
            drifted[0].contains("dst: its times may be off by 1.500 ms (limit: 1 ms)"),
            "{drifted:?}"
        );
        let why =
            "drifted during the trial (its error after the trial was at most 0.030 ms); run chrony";
        assert!(drifted[0].contains(why), "{drifted:?}");
        let measured = judged(5_000_000, Some(5_000_000));
        assert!(
            measured[0].ends_with("round-trip time of 10.000 ms does not allow a smaller bound"),
            "{measured:?}"
        );
        assert!(judged(2_000_000, None)[0].ends_with("its clock was not measured after the trial"));
    }
}
