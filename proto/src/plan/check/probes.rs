//! Probes.

use crate::cc::refuse_kernel_name;
use crate::plan::{Plan, Probe, ProbeKind, Repeat, timeline};
use crate::schedule::MAX_SERVED_PROBES;
use crate::topology::Topology;
use crate::units::{Bytes, Micros, Rate};

use super::endpoints::ends;
use super::limits::{LENGTHS, MAX_INTERVAL};
use super::problems::Problems;

/// Rates of a stream: at least a few packets per row, and at most the rate at which one thread can send.
const STREAM_RATES: std::ops::RangeInclusive<Rate> =
    Rate::from_bits_per_sec(100_000)..=Rate::from_bits_per_sec(10_000_000_000);
/// Largest body of a fetch.
const MAX_BODY: Bytes = Bytes::new(1 << 40);

pub(super) fn check(plan: &Plan, topology: &Topology, problems: &mut Problems) {
    for (name, probe) in &plan.probes {
        ends(plan, topology, ["probes", name], (&probe.from, &probe.to), problems);
        times(plan, name, probe, problems);
        keys(plan, name, probe, problems);
        stream(name, probe, problems);
    }
    let served = plan.probes.values().filter(|probe| probe.kind.is_served()).count();
    if served > MAX_SERVED_PROBES as usize {
        problems.error_from(
            &["probes"],
            &[&["probes", "*", "kind"]],
            format!("{served} probes need a listener; at most {MAX_SERVED_PROBES} are allowed (pings need none)"),
        );
    }
}

fn times(plan: &Plan, name: &str, probe: &Probe, problems: &mut Problems) {
    let path = |key: &'static str| ["probes", name, key];
    let allowed = |time: Micros| time >= Micros::from_millis(10) && time <= MAX_INTERVAL;
    if !allowed(probe.every) {
        problems.error(&path("every"), "must be from 10ms to 1h");
    }
    if probe.timeout.is_some_and(|timeout| !allowed(timeout)) {
        problems.error(&path("timeout"), "must be from 10ms to 1h");
    }
    let end = timeline::length(plan);
    if plan.phases.is_empty() {
        return;
    }
    if probe.start >= end {
        let why = format!("{} is not inside the trial, which ends at {end}", probe.start);
        problems.error_from(&path("start"), &[LENGTHS], why);
    } else if probe.every > end && probe.repeat == Repeat::Interval {
        problems.warning_from(
            &path("every"),
            &[LENGTHS, &path("repeat")],
            format!(
                "{} is longer than the trial of {end}, so the probe measures only once",
                probe.every
            ),
        );
    }
}

/// Checks `udp_stream` and its key.
fn stream(name: &str, probe: &Probe, problems: &mut Problems) {
    let path = |key: &'static str| ["probes", name, key];
    let is_stream = probe.kind == ProbeKind::UdpStream;
    match probe.rate {
        None if is_stream => problems.error_from(
            &["probes", name],
            &[&path("rate"), &path("kind")],
            "a `udp_stream` needs `rate`, at which the other node sends, like rate = \"100mbit\"",
        ),
        Some(rate) if is_stream && !STREAM_RATES.contains(&rate) => {
            problems.error(&path("rate"), "must be from 100kbit to 10gbit");
        }
        Some(_) if !is_stream => {
            let why =
                format!("is for `udp_stream`; leave it out of a {} probe", probe.kind.as_str());
            problems.error_from(&path("rate"), &[&path("kind")], why);
        }
        _ => {}
    }
    if is_stream && probe.repeat == Repeat::Once {
        let why = "a `udp_stream` runs to the end of the trial; leave it out";
        problems.error_from(&path("repeat"), &[&path("kind")], why);
    }
}

fn keys(plan: &Plan, name: &str, probe: &Probe, problems: &mut Problems) {
    let path = |key: &'static str| ["probes", name, key];
    let kind = probe.kind.as_str();
    if probe.repeat == Repeat::BackToBack && !probe.kind.connects() {
        let why = format!(
            "back-to-back is for `tcp_connect` and `http`; give the {kind} a short `every`"
        );
        problems.error_from(&path("repeat"), &[&path("kind")], why);
    }
    let http = probe.kind == ProbeKind::Http;
    match probe.bytes {
        None if http => {
            problems.error_from(
                &["probes", name],
                &[&path("bytes"), &path("kind")],
                "an `http` probe needs `bytes`, the length of what it fetches, like bytes = \"177669B\"",
            );
        }
        Some(bytes) if http && bytes > MAX_BODY => {
            problems.error_from(&path("bytes"), &[&path("kind")], "must be at most 1024GiB");
        }
        _ => {}
    }
    for (key, given) in [
        ("bytes", probe.bytes.is_some()),
        ("cc", probe.cc.is_some()),
        ("host", probe.host.is_some()),
    ] {
        if given && !http {
            let why = format!("is for `http`; leave it out of a {kind} probe");
            problems.error_from(&path(key), &[&path("kind")], why);
        }
    }
    if let Some(cc) = probe.cc.as_ref().filter(|cc| http && !plan.cc.contains_key(*cc))
        && let Some(why) = refuse_kernel_name(cc)
    {
        problems.error_from(&path("cc"), &[&path("kind")], why);
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    if probe
        .host
        .as_ref()
        .is_some_and(|host| host.is_empty() || host.len() > 253 || !host.chars().all(fits))
    {
        problems.error(&path("host"), "is not the name of a host, like \"server.example.org\"");
    }
}
