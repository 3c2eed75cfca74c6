//! **rpm**: round trips per minute of new connections, the foreign responsiveness of draft-ietf-ippm-responsiveness-08 in its
//! case without TLS: a minute over the mean of `TM(tcp_f)` and `TM(http_f)`.
//!
//! - `TM` is the draft's trimmed mean over the measurements of the phase ([`statistics::trimmed_mean`]).
//! - `tcp_f` is the duration of connect(), of probes of kinds `tcp_connect` and `http`.
//! - `http_f` is the time from the request to the first byte of the response, of kind `http`. The draft measures until the end
//!   of a response of one byte, which is the same; a longer file has no effect here. Probes of kind `tcp_connect` have only the
//!   handshake.
//! - Not measured: the TLS handshake, and requests on the connections of the load (`http_l`), whose responsiveness the draft
//!   averages with the foreign one.
//!
//! Measurements that failed have no duration; they are counted as `undefined`.

use ccbench_proto::metric::Scope;
use ccbench_proto::plan::ProbeKind;

use super::rows::{GroupedRows, each_slice};
use super::statistics;
use super::tables::PhaseRow;
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::store::RunDir;

const MINUTE_US: f64 = 60e6;

/// The measurements of one probe in a phase: durations in us.
#[derive(Debug, Default)]
struct Measurements {
    tcp_us: Vec<f64>,
    http_us: Vec<f64>,
    failed: u32,
}

/// Responsiveness of each probe that connects, in each measured phase of a trial.
pub(super) fn responsiveness(run: &RunDir, end: &TrialEnd) -> Result<Vec<PhaseRow>> {
    const COLUMNS: [&str; 7] =
        ["phase", "probe_id", "kind", "lost", "dns_us", "connect_us", "ttfb_us"];
    let mut found: GroupedRows<Measurements> = GroupedRows::new();
    each_slice(run, "probes", end, &COLUMNS, |slice| {
        let [phase, probe, kind] = ["phase", "probe_id", "kind"].map(|name| slice.texts(name));
        let [dns_us, connect_us, first_byte_us] =
            ["dns_us", "connect_us", "ttfb_us"].map(|name| slice.numbers(name));
        for row in 0..slice.len() {
            let names = phase.get(row).zip(probe.get(row)).zip(kind.get(row));
            let Some(((phase, probe), kind)) = names.filter(|(_, kind)| connects(kind)) else {
                continue;
            };
            let of_probe = found.at([phase, probe, kind]);
            if slice.flag("lost", row) != Some(false) {
                of_probe.failed += 1;
                continue;
            }
            let Some(connect_us) = connect_us.get(row) else { continue };
            of_probe.tcp_us.push(connect_us);
            let begun_us = dns_us.get(row).unwrap_or(0.0) + connect_us;
            of_probe.http_us.extend(first_byte_us.get(row).map(|us| us - begun_us));
        }
    })?;
    let is_measured = |name: &str| end.phases.iter().any(|p| p.measure && p.name == name);
    let measured = found.sorted().into_iter().filter(|([phase, ..], _)| is_measured(phase));
    Ok(measured
        .flat_map(|([phase, probe, kind], mut of_probe)| {
            rows(end, (&phase, &probe), kind == ProbeKind::Http.as_str(), &mut of_probe)
        })
        .collect())
}

fn connects(kind: &str) -> bool {
    [ProbeKind::TcpConnect, ProbeKind::Http].iter().any(|known| known.as_str() == kind)
}

impl Measurements {
    /// Round trips per minute; `None` without a measurement.
    fn rpm(&mut self, is_fetch: bool) -> Option<f64> {
        let tcp_us = statistics::trimmed_mean(&mut self.tcp_us)?;
        let mean_us = if is_fetch {
            f64::midpoint(tcp_us, statistics::trimmed_mean(&mut self.http_us)?)
        } else {
            tcp_us
        };
        Some(MINUTE_US / mean_us).filter(|rpm| rpm.is_finite())
    }
}

/// The rows of one probe in a phase.
fn rows(
    end: &TrialEnd,
    (phase, probe): (&str, &str),
    is_fetch: bool,
    of_probe: &mut Measurements,
) -> Vec<PhaseRow> {
    let row = |unit, stat, value, n| PhaseRow {
        point_id: end.point_id,
        trial: end.trial,
        phase: phase.to_owned(),
        scope: Scope::Probe,
        subject: probe.to_owned(),
        metric: "rpm",
        unit,
        stat,
        value,
        n,
    };
    let measured = of_probe.tcp_us.len() as u32;
    let mut found = Vec::new();
    found.extend(of_probe.rpm(is_fetch).map(|rpm| row("1/min", "mean", rpm, measured)));
    let failed = of_probe.failed;
    if failed > 0 {
        found.push(row("1", "undefined", f64::from(failed), measured + failed));
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{TrialKey, TrialStatus};

    fn rpm(tcp_us: &[f64], http_us: &[f64]) -> Option<f64> {
        let (tcp_us, http_us) = (tcp_us.to_vec(), http_us.to_vec());
        let is_fetch = !http_us.is_empty();
        Measurements { tcp_us, http_us, failed: 0 }.rpm(is_fetch)
    }

    #[test]
    fn components_have_equal_weight() {
        // 20 ms and 40 ms: two round trips in 60 ms.
        assert_eq!(rpm(&[20e3; 3], &[40e3; 3]), Some(2000.0));
        assert_eq!(rpm(&[20e3, 40e3], &[]), Some(2000.0), "only the handshake");
        assert_eq!(rpm(&[], &[]), None);
        // The slowest of twenty is left out, of each component.
        let mut slow = vec![20e3; 20];
        slow[7] = 5e6;
        assert_eq!(rpm(&slow, &[40e3; 20]), Some(2000.0));
        assert!(rpm(&slow[..19], &[40e3; 19]) < Some(500.0));
    }

    #[test]
    fn failed_measurements_are_counted() {
        let key = TrialKey { point_id: 0, trial: 1, seed: 1, epoch: 1 };
        let end = TrialEnd::new(key, TrialStatus::Ok);
        let of = |tcp_us: Vec<f64>| {
            let mut measured = Measurements { tcp_us, http_us: vec![], failed: 2 };
            let found = rows(&end, ("loaded", "syn"), false, &mut measured);
            let brief = |row: PhaseRow| (row.stat, row.unit, row.value, row.n);
            found.into_iter().map(brief).collect::<Vec<_>>()
        };
        assert_eq!(of(vec![60e3]), [("mean", "1/min", 1000.0, 1), ("undefined", "1", 2.0, 3)]);
        assert_eq!(of(vec![]), [("undefined", "1", 2.0, 2)]);
    }

    proptest! {
        #[test]
        fn slower_is_less_responsive(
            times in prop::collection::vec((1e3..1e6_f64, 1e3..1e6_f64), 1..60), more in 1.0..9.0_f64,
        ) {
            let (tcp_us, http_us): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
            let plain = rpm(&tcp_us, &http_us).unwrap();
            let slower: Vec<f64> = http_us.iter().map(|us| us * more).collect();
            prop_assert!(rpm(&tcp_us, &slower).unwrap() <= plain * (1.0 + 1e-12));
            // Between those of the components.
            let (tcp, http) = (rpm(&tcp_us, &[]).unwrap(), rpm(&http_us, &[]).unwrap());
            prop_assert!(plain >= tcp.min(http) * (1.0 - 1e-12));
            prop_assert!(plain <= tcp.max(http) * (1.0 + 1e-12));
        }
    }
}
