//! Checks what must hold of probes' measurements: they begin as `every` and `repeat` require, and none is faster than the links.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::plan::{Probe, ProbeKind, Repeat};
use ccbench_proto::units::Bytes;
use ccbench_proto::wire;
use ccbench_proto::wire::run_event::Payload;
use ccbench_simulator::T0_NS;

use super::Trial;
use super::streams::least_rtt_ns;

/// Minimum time between the beginnings of back-to-back measurements.
const MIN_DISTANCE_NS: u64 = 1_000_000;

pub(super) fn check(trial: &Trial) {
    let mut measured = BTreeMap::<&str, Vec<&wire::Probe>>::new();
    for (_, event) in &trial.rows {
        if let Some(Payload::Probe(row)) = event.payload.as_ref() {
            measured.entry(&row.probe_id).or_default().push(row);
        }
    }
    for (name, rows) in measured {
        let probe = &trial.plan.plan().probes[name];
        match probe.kind {
            ProbeKind::UdpStream => stream(probe, &rows),
            ProbeKind::TcpConnect | ProbeKind::Http => measurements(trial, probe, &rows),
            ProbeKind::Ping | ProbeKind::Udp => echoes(trial, probe, &rows),
        }
    }
}

/// Checks that each interval has one row and whole packets.
fn stream(probe: &Probe, rows: &[&wire::Probe]) {
    for (row, seq) in rows.iter().zip(0..) {
        let begin_ns = T0_NS + probe.start.nanos() + u64::from(seq) * probe.every.nanos();
        assert_eq!((row.seq, row.at_ns), (seq, begin_ns), "{row:?}");
        assert!(row.bytes.is_some_and(|bytes| bytes % 1500 == 0), "{row:?}");
        assert!(!row.lost && row.rtt_us.is_none() && row.error.is_empty(), "{row:?}");
    }
}

/// Checks that each echo has one row, and that none is faster than the links.
fn echoes(trial: &Trial, probe: &Probe, rows: &[&wire::Probe]) {
    let mut seen = BTreeSet::new();
    for row in rows {
        assert!(seen.insert(row.seq), "twice: {row:?}");
        let every_ns = u64::from(row.seq) * probe.every.nanos();
        assert_eq!(row.at_ns, T0_NS + probe.start.nanos() + every_ns, "{row:?}");
        assert_eq!(row.lost, row.rtt_us.is_none(), "{row:?}");
        if let Some(rtt_us) = row.rtt_us {
            let least_us = least_rtt_ns(trial, &probe.from, &probe.to) as f64 / 1e3;
            let timeout_us = probe.timeout().nanos() as f64 / 1e3;
            assert!((least_us..=timeout_us).contains(&rtt_us), "{row:?}: from {least_us} us");
        }
    }
}

/// Checks that measurements over TCP follow each other.
fn measurements(trial: &Trial, probe: &Probe, rows: &[&wire::Probe]) {
    let every_ns = probe.every.nanos();
    let mut due_ns = Some(T0_NS + probe.start.nanos());
    for (row, seq) in rows.iter().zip(0..) {
        assert_eq!((row.seq, Some(row.at_ns)), (seq, due_ns), "{row:?}");
        let took_ns = took_ns(trial, probe, row);
        due_ns = match probe.repeat {
            Repeat::Once => None,
            Repeat::BackToBack => Some(row.at_ns + took_ns.max(MIN_DISTANCE_NS)),
            // A measurement that is longer than the interval skips the ones it missed.
            Repeat::Interval => Some(row.at_ns + every_ns * (1 + took_ns / every_ns)),
        };
    }
}

/// Returns how long a measurement took.
fn took_ns(trial: &Trial, probe: &Probe, row: &wire::Probe) -> u64 {
    let timeout_ns = probe.timeout().nanos();
    if row.lost {
        assert!(row.error.ends_with(": timed out"), "{row:?}");
        assert_eq!((row.rtt_us, row.total_us), (None, None), "{row:?}");
        assert!(row.at_ns + timeout_ns < trial.end_ns, "{row:?}");
        return timeout_ns;
    }
    let least_ns = least_rtt_ns(trial, &probe.from, &probe.to);
    let ns = |us: Option<f64>| us.map(|us| (us * 1e3).round() as u64);
    let Some(connect_ns) = ns(row.connect_us) else { panic!("it did not connect: {row:?}") };
    assert!(connect_ns >= least_ns, "{row:?}: from {least_ns} ns");
    let mut took_ns = connect_ns;
    if probe.kind == ProbeKind::Http {
        let (Some(ttfb_ns), Some(total_ns)) = (ns(row.ttfb_us), ns(row.total_us)) else {
            panic!("it has no end: {row:?}")
        };
        assert!(ttfb_ns >= connect_ns + least_ns, "{row:?}: from {least_ns} ns");
        assert!(total_ns >= ttfb_ns, "{row:?}");
        assert_eq!((row.status, row.bytes), (Some(200), probe.bytes.map(Bytes::get)), "{row:?}");
        took_ns = total_ns;
    } else {
        assert_eq!(row.rtt_us, row.connect_us, "{row:?}");
    }
    assert!(took_ns <= timeout_ns, "{row:?}: longer than {timeout_ns} ns");
    took_ns
}
