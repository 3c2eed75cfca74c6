//! Queues: parameters that the kernel would refuse, or accept with another meaning.

use crate::plan::Queue;
use crate::units::{FRAME_BYTES, Limit, Micros, Packets, Rate};

use super::limits::MAX_RATE;
use super::problems::Problems;

/// Longest time that a parameter of a queue may be.
const MAX_TIME: Micros = Micros::from_secs(60);

/// Checks the queue at the path. `rate`: the rate that it drains at, and the places that determine it.
pub(super) fn check(
    path: &[&str],
    queue: &Queue,
    (rate, rate_reads): (Option<Rate>, &[&[&str]]),
    problems: &mut Problems,
) {
    if let Some((limit, _)) = queue.fifo_limit() {
        check_fifo_limit(path, limit, (rate, rate_reads), problems);
    }
    let mut error = |key: &'static str, why: String| problems.error(&[path, &[key]].concat(), why);
    let parameters = queue.parameters();
    for (key, limit) in parameters.packets() {
        if limit == Some(Packets::new(0)) {
            error(key, "is zero: it would hold no packet; raise it".to_owned());
        }
    }
    for (key, time, zero_is_valid) in parameters.times() {
        if time.is_some_and(|t| t > MAX_TIME || (t.get() == 0 && !zero_is_valid)) {
            error(key, format!("must be more than zero, and {MAX_TIME} or less"));
        }
    }
    if parameters.memory_limit().is_some_and(|m| m.get() == 0 || m.get() > u64::from(u32::MAX)) {
        error("memory_limit", "must be from 1B to 4294967295B".to_owned());
    }
    parameters.check(&mut error);
}

fn check_fifo_limit(
    path: &[&str],
    limit: Limit,
    (rate, rate_reads): (Option<Rate>, &[&[&str]]),
    problems: &mut Problems,
) {
    let place = [path, &["limit"]].concat();
    let Some(why) = refuse_limit(limit, rate) else { return };
    let by_rate = matches!(limit, Limit::MilliBdp(_) | Limit::Time(_));
    let whatever_the_rate = !by_rate || refuse_limit(limit, Some(MAX_RATE)).is_some();
    problems.error_from(&place, if whatever_the_rate { &[] } else { rate_reads }, why);
    problems.mark_uncertain(&place);
}

fn refuse_limit(limit: Limit, rate: Option<Rate>) -> Option<String> {
    let zero = match limit {
        Limit::Bytes(bytes) => bytes.get() == 0,
        Limit::Packets(packets) => packets.get() == 0,
        Limit::MilliBdp(milli) => milli == 0,
        Limit::Time(time) => time.get() == 0,
    };
    if zero {
        return Some("is zero: it would hold no packet; raise it".to_owned());
    }
    if matches!(limit, Limit::Time(time) if time > MAX_TIME) {
        return Some(format!("must be {MAX_TIME} or less"));
    }
    let relative = matches!(limit, Limit::MilliBdp(_) | Limit::Time(_));
    if relative && rate.is_none() {
        return Some(format!(
            "`{limit}` needs a rate to be a number of bytes; add `rate`, or write it in bytes (\"187500B\") or packets (\"40p\")"
        ));
    }
    let bytes = match limit {
        Limit::Bytes(bytes) => bytes.get(),
        Limit::Time(time) => rate.map_or(FRAME_BYTES, |rate| rate.over(time).get()),
        Limit::Packets(_) | Limit::MilliBdp(_) => FRAME_BYTES,
    };
    if bytes < FRAME_BYTES {
        return Some(format!(
            "is {bytes}B: less than one full frame of {FRAME_BYTES}B, so nothing would fit; raise it"
        ));
    }
    None
}
