//! **rpm**: round trips per minute, the responsiveness of draft-ietf-ippm-responsiveness-08 in the variant without TLS. It is the mean of
//! two values: **foreign_responsiveness**, of new connections, is a minute over the mean of `TM(tcp_f)` and `TM(http_f)`.
//! **loaded_responsiveness**, of the connections that load the path, is a minute over `TM(http_l)`.
//!
//! - `TM` is the draft's trimmed mean over the measurements of the phase ([`statistics::trimmed_mean`]).
//! - `tcp_f` is the duration of connect(), from probes of the kinds `tcp_connect` and `http`.
//! - `http_f` is the time from the request to the first byte of the response, from kind `http`. The draft measures until the end
//!   of a response of one byte, which is the same; a longer file has no effect here. Probes of kind `tcp_connect` have only the
//!   handshake, and so no rpm.
//! - `http_l` is the time of a request on a connection of the load. Here, these connections have no requests; the draft permits
//!   TCP's RTT estimate instead. The samples are `tcpi_rtt` of all flows between the two nodes of the probe while they have data in
//!   flight. The estimate of an idle flow is that of its last data.
//! - Not measured: the TLS handshake.
//!
//! Failed measurements have no duration; they are counted as `undefined`.

use std::collections::BTreeMap;

use ccbench_proto::metric::{Scope, UNDEFINED};
use ccbench_proto::plan::ProbeKind;

use super::rows::{GroupedRows, each_slice};
use super::schedule::Schedule;
use super::statistics;
use super::tables::PhaseRow;
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::store::RunDir;

const MINUTE_US: f64 = 60e6;

/// The measurements of one probe in a phase, as durations in us.
#[derive(Debug, Default)]
struct Measurements {
    tcp_us: Vec<f64>,
    http_us: Vec<f64>,
    failed: u32,
}

/// Smoothed RTTs of the senders of a group in a phase, in us, by phase and group.
type LoadRtts = BTreeMap<(String, String), Vec<f64>>;

/// Returns the responsiveness of each probe that connects, in each measured phase of a trial.
pub(super) fn responsiveness(
    run: &RunDir,
    end: &TrialEnd,
    schedule: &Schedule,
) -> Result<Vec<PhaseRow>> {
    let probes = measurements(run, end)?;
    // Most trials have no such probe.
    if probes.is_empty() {
        return Ok(Vec::new());
    }
    let loads_of = |probe: &str| schedule.groups_between_nodes_of(end.point_id, probe);
    let loads: Vec<&str> = probes.iter().flat_map(|([_, probe, _], _)| loads_of(probe)).collect();
    let rtts = load_rtts(run, end, &loads)?;
    Ok(probes
        .into_iter()
        .flat_map(|([phase, probe, kind], mut of_probe)| {
            let of_group = |group: &str| rtts.get(&(phase.clone(), group.to_owned()));
            let of_load = loads_of(&probe).into_iter().filter_map(of_group);
            let mut load_us: Vec<f64> = of_load.flatten().copied().collect();
            let is_fetch = kind == ProbeKind::Http.as_str();
            rows(end, (&phase, &probe), is_fetch, &mut of_probe, &mut load_us)
        })
        .collect())
}

/// Returns the measurements of each measured phase, probe and kind.
fn measurements(run: &RunDir, end: &TrialEnd) -> Result<Vec<([String; 3], Measurements)>> {
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
    Ok(found.sorted().into_iter().filter(|([phase, ..], _)| is_measured(phase)).collect())
}

fn connects(kind: &str) -> bool {
    [ProbeKind::TcpConnect, ProbeKind::Http].iter().any(|known| known.as_str() == kind)
}

/// Returns the samples of these groups, without those of idle connections, which load nothing.
fn load_rtts(run: &RunDir, end: &TrialEnd, groups: &[&str]) -> Result<LoadRtts> {
    let mut found = LoadRtts::new();
    if groups.is_empty() {
        return Ok(found);
    }
    let columns = ["phase", "group", "role", "side", "rtt_us", "unacked_pkts"];
    each_slice(run, "flow_samples", end, &columns, |slice| {
        let [phase, group, role, side] =
            ["phase", "group", "role", "side"].map(|name| slice.texts(name));
        let [rtt_us, unacked_pkts] = ["rtt_us", "unacked_pkts"].map(|name| slice.numbers(name));
        for row in 0..slice.len() {
            let is_idle = unacked_pkts.get(row).is_some_and(|pkts| pkts < 1.0);
            let sends = role.get(row) == Some("data") && side.get(row) == Some("snd") && !is_idle;
            let names = phase.get(row).zip(group.get(row));
            let Some((phase, group)) = names.filter(|(_, group)| sends && groups.contains(group))
            else {
                continue;
            };
            // 0: not measured yet.
            if let Some(us) = rtt_us.get(row).filter(|us| *us > 0.0) {
                found.entry((phase.to_owned(), group.to_owned())).or_default().push(us);
            }
        }
    })?;
    Ok(found)
}

/// Returns round trips per minute for this duration.
fn per_minute(us: f64) -> Option<f64> {
    Some(MINUTE_US / us).filter(|rpm| rpm.is_finite())
}

impl Measurements {
    /// Returns the responsiveness of new connections; `None` without a measurement.
    fn foreign(&mut self, is_fetch: bool) -> Option<f64> {
        let tcp_us = statistics::trimmed_mean(&mut self.tcp_us)?;
        per_minute(if is_fetch {
            f64::midpoint(tcp_us, statistics::trimmed_mean(&mut self.http_us)?)
        } else {
            tcp_us
        })
    }
}

/// Returns the rows of one probe in a phase. `load_us` has the RTTs of the flows that load its path.
fn rows(
    end: &TrialEnd,
    (phase, probe): (&str, &str),
    is_fetch: bool,
    of_probe: &mut Measurements,
    load_us: &mut [f64],
) -> Vec<PhaseRow> {
    let row = |metric, unit, stat, value, n| PhaseRow {
        point_id: end.point_id,
        trial: end.trial,
        phase: phase.to_owned(),
        scope: Scope::Probe,
        subject: probe.to_owned(),
        metric,
        unit,
        stat,
        value,
        n,
    };
    let (measured, failed) = (of_probe.tcp_us.len() as u32, of_probe.failed);
    let foreign = of_probe.foreign(is_fetch);
    let loaded = statistics::trimmed_mean(load_us).and_then(per_minute);
    let both = foreign.zip(loaded).map(|(foreign, loaded)| f64::midpoint(foreign, loaded));
    let mut found = Vec::new();
    let mut add = |metric, value: Option<f64>, n| {
        found.extend(value.map(|rpm| row(metric, "1/min", "mean", rpm, n)));
        if failed > 0 && metric != LOADED {
            found.push(row(metric, "1", UNDEFINED, f64::from(failed), measured + failed));
        }
    };
    add(FOREIGN, foreign, measured);
    if loaded.is_some() {
        add(LOADED, loaded, load_us.len() as u32);
        if is_fetch {
            add("rpm", both, measured);
        }
    }
    found
}

const FOREIGN: &str = "foreign_responsiveness";
const LOADED: &str = "loaded_responsiveness";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{TrialKey, TrialStatus};

    fn foreign(tcp_us: &[f64], http_us: &[f64]) -> Option<f64> {
        let (tcp_us, http_us) = (tcp_us.to_vec(), http_us.to_vec());
        let is_fetch = !http_us.is_empty();
        Measurements { tcp_us, http_us, failed: 0 }.foreign(is_fetch)
    }

    /// Returns metric, statistic, value and number of the rows of a probe with these times.
    fn found(
        (tcp_us, http_us, failed): (&[f64], &[f64], u32),
        load_us: &[f64],
    ) -> Vec<(&'static str, &'static str, f64, u32)> {
        let key = TrialKey { point_id: 0, trial: 1, seed: 1, epoch: 1 };
        let end = TrialEnd::new(key, TrialStatus::Ok);
        let is_fetch = !http_us.is_empty();
        let (tcp_us, http_us) = (tcp_us.to_vec(), http_us.to_vec());
        let mut measured = Measurements { tcp_us, http_us, failed };
        let found = rows(&end, ("p", "page"), is_fetch, &mut measured, &mut load_us.to_vec());
        found.into_iter().map(|row| (row.metric, row.stat, row.value, row.n)).collect()
    }

    #[test]
    fn components_of_new_connections_have_equal_weight() {
        // 20 ms and 40 ms: two round trips in 60 ms.
        assert_eq!(foreign(&[20e3; 3], &[40e3; 3]), Some(2000.0));
        assert_eq!(foreign(&[20e3, 40e3], &[]), Some(2000.0), "only the handshake");
        assert_eq!(foreign(&[], &[]), None);
        // In each component, the slowest of twenty is left out.
        let mut slow = vec![20e3; 20];
        slow[7] = 5e6;
        assert_eq!(foreign(&slow, &[40e3; 20]), Some(2000.0));
        assert!(foreign(&slow[..19], &[40e3; 19]) < Some(500.0));
    }

    #[test]
    fn new_connections_and_those_of_the_load_have_equal_weight() {
        let loaded = [60e3; 5];
        let wanted =
            [(FOREIGN, "mean", 2000.0, 3), (LOADED, "mean", 1000.0, 5), ("rpm", "mean", 1500.0, 3)];
        assert_eq!(found((&[20e3; 3], &[40e3; 3], 0), &loaded), wanted);
        // Without a load and without requests.
        assert_eq!(found((&[20e3; 3], &[40e3; 3], 0), &[]), wanted[..1]);
        assert_eq!(found((&[30e3; 3], &[], 0), &loaded), wanted[..2]);
    }

    #[test]
    fn failed_measurements_are_counted() {
        let of_foreign = |tcp_us: &[f64]| found((tcp_us, &[], 2), &[]);
        let undefined = |n| (FOREIGN, "undefined", 2.0, n);
        assert_eq!(of_foreign(&[60e3]), [(FOREIGN, "mean", 1000.0, 1), undefined(3)]);
        assert_eq!(of_foreign(&[]), [undefined(2)]);
        let all = found((&[60e3], &[60e3], 2), &[60e3]);
        let counted = all.iter().filter(|row| row.1 == "undefined").map(|row| row.0);
        assert_eq!(counted.collect::<Vec<_>>(), [FOREIGN, "rpm"]);
    }

    proptest! {
        #[test]
        fn slower_is_less_responsive(
            times in prop::collection::vec((1e3..1e6_f64, 1e3..1e6_f64), 1..60), more in 1.0..9.0_f64,
        ) {
            let (tcp_us, http_us): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
            let plain = foreign(&tcp_us, &http_us).unwrap();
            let slower: Vec<f64> = http_us.iter().map(|us| us * more).collect();
            prop_assert!(foreign(&tcp_us, &slower).unwrap() <= plain * (1.0 + 1e-12));
            // Between the values of the components.
            let (tcp, http) = (foreign(&tcp_us, &[]).unwrap(), foreign(&http_us, &[]).unwrap());
            prop_assert!(plain >= tcp.min(http) * (1.0 - 1e-12));
            prop_assert!(plain <= tcp.max(http) * (1.0 + 1e-12));
        }

        #[test]
        fn rpm_is_between_its_two_parts(
            tcp_us in 1e3..1e6_f64, http_us in 1e3..1e6_f64,
            load_us in prop::collection::vec(1e3..1e6_f64, 1..60),
        ) {
            let rows = found((&[tcp_us], &[http_us], 0), &load_us);
            let of = |metric| rows.iter().find(|row| row.0 == metric).unwrap().2;
            let (foreign, loaded, rpm) = (of(FOREIGN), of(LOADED), of("rpm"));
            prop_assert!(rpm >= foreign.min(loaded) && rpm <= foreign.max(loaded));
        }
    }
}
