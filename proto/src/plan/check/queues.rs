//! Checks queues for parameters that the kernel would refuse, or accept with another meaning.

use crate::plan::{Backend, Change, LimitUnit, Link, Queue, Setting};
use crate::resolve::{drain_rate, limit_bytes, resolve_queue};
use crate::units::{FRAME_BYTES, Limit, Micros, Rate};

use super::Target;
use super::limits::MAX_RATE;
use super::problems::Problems;

/// Longest time that a parameter of a queue may be.
const MAX_TIME: Micros = Micros::from_secs(60);

/// Checks the queue at the path. `rate` is the rate at which it drains, and the places that determine it.
pub(super) fn check(
    path: &[&str],
    queue: &Queue,
    (rate, rate_reads): (Option<Rate>, &[&[&str]]),
    problems: &mut Problems,
) {
    let limits = queue.limits();
    for (key, limit, unit) in &limits {
        check_limit(&[path, &[*key]].concat(), (*limit, *unit), (rate, rate_reads), problems);
    }
    let mut error = |key: &'static str, why: String| problems.error(&[path, &[key]].concat(), why);
    let parameters = queue.parameters();
    for (key, time, zero_is_valid) in parameters.times() {
        if let Some(why) = refuse_time(time, zero_is_valid) {
            error(key, why);
        }
    }
    parameters.check(&mut error);
    // `lints` compares relative limits once they are resolved.
    if limits.iter().all(|(_, limit, _)| !limit.is_relative()) {
        parameters.check_limits(&mut error);
    }
}

/// The problems of a queue's parameters whose times and limits are valid by themselves: keys and reasons. `rtt` is the base
/// round-trip time; if it is not known (`None`), limits that depend on it are not compared.
pub(super) fn contradictions(
    queue: &Queue,
    (rate, rtt): (Rate, Option<Micros>),
) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let parameters = queue.parameters();
    parameters.check(&mut |key, why| found.push((key, why)));
    found.extend(rtt.and_then(|rtt| refuse_bfifo(queue, (rate, rtt))).map(|why| ("limit", why)));
    if queue.limits().iter().all(|(_, limit, _)| !limit.is_relative()) {
        parameters.check_limits(&mut |key, why| found.push((key, why)));
    } else if let Some(rtt) = rtt {
        found.extend(relative_limits(queue, (rate, rtt)));
    }
    found
}

/// Why the kernel's `bfifo` cannot hold as many bytes; `None` if it can, and for other kinds.
pub(super) fn refuse_bfifo(queue: &Queue, (rate, rtt): (Rate, Micros)) -> Option<String> {
    let (limit, _) = queue.fifo_limit().filter(|_| matches!(queue, Queue::Bfifo(_)))?;
    let (bytes, most) = (limit_bytes(limit, rate, rtt).get(), u32::MAX);
    (bytes > u64::from(most))
        .then(|| format!("`{limit}` is {bytes}B; the kernel's queue holds at most {most}B"))
}

/// The problems of limits that depend on the rate and the round-trip time, after their conversion to bytes and packets: keys and
/// reasons.
pub(super) fn relative_limits(
    queue: &Queue,
    (rate, rtt): (Rate, Micros),
) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let limits = queue.limits();
    for (key, limit, unit) in &limits {
        let bytes = limit_bytes(*limit, rate, rtt).get();
        let packets = bytes.div_ceil(FRAME_BYTES);
        let most = u64::from(u32::MAX);
        let why = match unit {
            LimitUnit::Memory if limit.is_relative() && bytes > most => {
                format!("`{limit}` is {bytes}B; the kernel's queue holds at most {most}B")
            }
            LimitUnit::Packets if packets > most => {
                format!("`{limit}` is {packets} packets; a queue holds at most {most}")
            }
            _ => continue,
        };
        found.push((*key, why));
    }
    if limits.iter().any(|(_, limit, _)| limit.is_relative()) {
        let resolved = resolve_queue(Some(queue), Some(rate), rtt);
        resolved.parameters().check_limits(&mut |key, why| {
            let why = format!("{why} (limits at {rate} and a base round-trip time of {rtt})");
            found.push((key, why));
        });
    }
    found
}

/// Checks the value that a change gives to a key of the link's own queue, at this path, by itself.
pub(super) fn check_change(
    (link, change): (&Link, &Change),
    path: &[&str],
    (key, value): (&str, &Setting),
    problems: &mut Problems,
) {
    let is_userspace = link.backend == Backend::Userspace || problems.target == Target::Simulator;
    let mut error = |why: String| problems.error(path, why);
    let (Some(queue), Some(rate)) = (&link.queue, drain_rate(link)) else {
        return error("the link has no queue: give it a rate".to_owned());
    };
    if key == "kind" || queue.parameters().fixed_keys().contains(&key) {
        return error("cannot change during a trial; write it in the link's `queue`".to_owned());
    }
    let changed = match queue.with(key, value) {
        Ok(changed) => changed,
        Err(invalid) => return error(invalid.message().to_owned()),
    };
    let ends = change.when.as_ref().is_some_and(|when| when.duration.is_some());
    if ends && !queue.has(key) {
        error("has an end, so the link's `queue` must set the value to return to".to_owned());
    }
    for (_, limit, unit) in changed.limits().iter().filter(|(name, ..)| *name == key) {
        refuse_limit(*limit, *unit, Some(rate)).into_iter().for_each(&mut error);
    }
    let parameters = changed.parameters();
    for (_, time, zero_is_valid) in parameters.times().into_iter().filter(|time| time.0 == key) {
        refuse_time(time, zero_is_valid).into_iter().for_each(&mut error);
    }
    if let Some((name, remedy)) = parameters.kernel_only()
        && name == key
        && is_userspace
    {
        error(format!("only the kernel's qdisc has it: {remedy}"));
    }
}

fn refuse_time(time: Option<Micros>, zero_is_valid: bool) -> Option<String> {
    time.filter(|time| *time > MAX_TIME || (time.get() == 0 && !zero_is_valid))
        .map(|_| format!("must be more than zero, and {MAX_TIME} or less"))
}

/// Rejects what the kernel's qdisc cannot do of a queue without relative limits, on a link with `backend = "kernel"`.
pub(super) fn check_qdisc(path: &[&str], backend: Backend, queue: &Queue, problems: &mut Problems) {
    let unsupported = queue.unsupported_by_qdisc().filter(|_| backend == Backend::Kernel);
    let Some(feature) = unsupported else { return };
    let why = format!(
        "the kernel's qdiscs cannot do {}; leave out the link's `backend`, or change this key",
        feature.description
    );
    problems.error_from(&[path, feature.key].concat(), &[path], why);
}

/// Rejects keys that the link's backend lacks; `auto` selects a backend that has them.
pub(super) fn check_backend(
    path: &[&str],
    backend: Backend,
    queue: &Queue,
    problems: &mut Problems,
) {
    // `lints` checks relative limits once they are resolved.
    if queue.limits().iter().all(|(_, limit, _)| !limit.is_relative()) {
        check_qdisc(path, backend, queue, problems);
    }
    if backend != Backend::Userspace {
        return;
    }
    if let Some((key, remedy)) = queue.parameters().kernel_only() {
        let why =
            format!("only the kernel's qdisc has it: write `backend = \"kernel\"`, or {remedy}");
        problems.error(&[path, &[key]].concat(), why);
    }
}

/// Checks the limit at `place`.
fn check_limit(
    place: &[&str],
    (limit, unit): (Limit, LimitUnit),
    (rate, rate_reads): (Option<Rate>, &[&[&str]]),
    problems: &mut Problems,
) {
    let Some(why) = refuse_limit(limit, unit, rate) else { return };
    let at_any_rate = !limit.is_relative() || refuse_limit(limit, unit, Some(MAX_RATE)).is_some();
    problems.error_from(place, if at_any_rate { &[] } else { rate_reads }, why);
    problems.mark_uncertain(place);
}

fn refuse_limit(limit: Limit, unit: LimitUnit, rate: Option<Rate>) -> Option<String> {
    let zero = match limit {
        Limit::Bytes(bytes) => bytes.get() == 0,
        Limit::Packets(packets) => packets.get() == 0,
        Limit::MilliBdp(milli) => milli == 0,
        Limit::Time(time) => time.get() == 0,
    };
    match (unit, limit) {
        (LimitUnit::Memory, Limit::Bytes(bytes)) if bytes.get() > u64::from(u32::MAX) => {
            return Some("must be 4294967295B or less".to_owned());
        }
        // `Parameters::check_limits` compares thresholds with each other.
        (LimitUnit::Threshold, Limit::Bytes(_) | Limit::Packets(_)) => return None,
        _ if zero => return Some("is zero: it would hold no packet; raise it".to_owned()),
        _ => {}
    }
    if matches!(limit, Limit::Time(time) if time > MAX_TIME) {
        return Some(format!("must be {MAX_TIME} or less"));
    }
    if limit.is_relative() && rate.is_none() {
        return Some(format!(
            "`{limit}` needs a rate to be a number of bytes; add `rate`, or write it in bytes (\"187500B\") or packets (\"40p\")"
        ));
    }
    let bytes = match limit {
        Limit::Bytes(bytes) => bytes.get(),
        Limit::Time(time) => rate.map_or(FRAME_BYTES, |rate| rate.bytes_in(time).get()),
        Limit::Packets(_) | Limit::MilliBdp(_) => FRAME_BYTES,
    };
    if bytes < FRAME_BYTES && unit != LimitUnit::Threshold {
        return Some(format!(
            "is {bytes}B: less than one full frame of {FRAME_BYTES}B, so nothing would fit; raise it"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::check::changes::tests::{errors_of, plan};
    use crate::units::Packets;

    /// The errors of a plan whose link has these further keys.
    fn errors(keys: &str) -> Vec<String> {
        errors_of(&plan(keys, &[]))
    }

    #[test]
    fn a_limit_in_packets_is_not_clamped() {
        let rate = Rate::from_bits_per_sec(1_000_000_000_000);
        let found = |limit| relative_limits(&Queue::pfifo(limit), (rate, Micros::from_secs(1)));
        let minute = found(Limit::Time(Micros::from_secs(60)));
        let why = "`60s` is 4953764862 packets; a queue holds at most 4294967295";
        assert_eq!(minute, [("limit", why.to_owned())]);
        assert!(found(Limit::Time(Micros::from_secs(50))).is_empty());
        assert!(found(Limit::Packets(Packets::new(u32::MAX))).is_empty());
    }

    #[test]
    fn thresholds_that_the_kernel_refuses_need_userspace() {
        let red = r#"{ kind = "red", limit = "4000000B", min = "1000000B", max = "3000000B" }"#;
        let relative = r#"{ kind = "red", limit = "32bdp", min = "8bdp", max = "24bdp" }"#;
        let of_class =
            format!("classes.c = {{ rate = \"10mbit\", match = {{ dscp = 46 }}, queue = {red} }}");
        let cases = [
            (format!("queue = {red}"), "links.l.queue.max"),
            (format!("queue = {relative}"), "links.l.queue.max"),
            (of_class, "links.l.classes.c.queue.max"),
        ];
        for (keys, path) in cases {
            let found = errors(&format!("{keys}\nbackend = \"kernel\""));
            let why = "the kernel's qdiscs cannot do thresholds of `red`";
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(&format!("{path}: {why}")), "{found:?}");
            for backend in ["auto", "userspace"] {
                let found = errors(&format!("{keys}\nbackend = \"{backend}\""));
                assert_eq!(found, Vec::<String>::new());
            }
        }
    }

    #[test]
    fn adaptation_without_drops_needs_userspace() {
        let red = r#"kind = "red", limit = "400000B", min = "30000B", max = "90000B", ecn = true"#;
        let queue = format!("queue = {{ {red}, adaptive = true, nodrop = true }}");
        assert_eq!(errors(&queue), Vec::<String>::new());
        let found = errors(&format!("{queue}\nbackend = \"kernel\""));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("links.l.queue.adaptive: "), "{found:?}");
    }
}
