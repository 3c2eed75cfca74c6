//! Queues: parameters that the kernel would refuse, or worse, take.

use crate::plan::Queue;
use crate::units::{Bytes, FRAME_BYTES, Limit, Micros, Packets, Rate};

use super::Problems;
use super::limits::MAX_RATE;

/// Longest time that a parameter of a queue may be.
const MAX_TIME: Micros = Micros::from_secs(60);

/// Checks the queue at the path. `rate`: what it drains at, and the places that decide on that.
pub(super) fn check(
    path: &[&str],
    queue: &Queue,
    (rate, rate_reads): (Option<Rate>, &[&[&str]]),
    problems: &mut Problems,
) {
    if let Queue::Pfifo { limit }
    | Queue::Bfifo { limit }
    | Queue::PfifoHeadDrop { limit }
    | Queue::BfifoHeadDrop { limit } = queue
    {
        limit_of_fifo(path, *limit, (rate, rate_reads), problems);
    }
    let mut wrong = |key: &'static str, why: String| problems.error(&[path, &[key]].concat(), why);
    for (key, limit) in packet_limits(queue) {
        if limit == Some(Packets::new(0)) {
            wrong(key, "is zero: it would hold no packet; raise it".to_owned());
        }
    }
    for (key, time, zero_ok) in times(queue) {
        if time.is_some_and(|t| t > MAX_TIME || (t.get() == 0 && !zero_ok)) {
            wrong(key, format!("must be more than zero, and {MAX_TIME} or less"));
        }
    }
    if memory(queue).is_some_and(|m| m.get() == 0 || m.get() > u64::from(u32::MAX)) {
        wrong("memory_limit", "must be from 1B to 4294967295B".to_owned());
    }
    match queue {
        Queue::Fq { buckets: Some(n), .. } if !n.is_power_of_two() || *n > 262_144 => {
            wrong("buckets", "must be a power of two from 1 to 262144".to_owned());
        }
        Queue::FqCodel { flows, quantum, .. } => {
            if flows.is_some_and(|n| n == 0 || n > 65_536) {
                wrong("flows", "must be from 1 to 65536".to_owned());
            }
            if quantum.is_some_and(|q| q.get() < 256 || q.get() > 1 << 20) {
                wrong("quantum", "must be from 256B to 1048576B".to_owned());
            }
        }
        Queue::Pie { alpha, beta, .. } => {
            for (key, gain) in [("alpha", alpha), ("beta", beta)] {
                if gain.is_some_and(|gain| gain > 32) {
                    wrong(key, "must be from 0 to 32, in sixteenths of a hertz".to_owned());
                }
            }
        }
        Queue::Red { .. } => red(queue, wrong),
        Queue::Dualpi2 { alpha, beta, coupling, .. } => {
            if alpha.as_deref().is_some_and(|gain| !is_gain(gain)) {
                wrong(
                    "alpha",
                    "must be a number from 0 to 256 as text, like \"0.15625\"".to_owned(),
                );
            }
            if beta.as_deref().is_some_and(|gain| !is_gain(gain)) {
                wrong(
                    "beta",
                    "must be a number from 0 to 256 as text, like \"3.195312\"".to_owned(),
                );
            }
            if coupling.is_some_and(|k| k == 0 || k > 255) {
                wrong("coupling", "must be from 1 to 255".to_owned());
            }
        }
        _ => {}
    }
}

/// Random early detection: what `tc` would refuse, and what would never drop.
fn red(queue: &Queue, mut wrong: impl FnMut(&'static str, String)) {
    let Queue::Red { limit, min, max, probability, avpkt, burst, .. } = queue else { return };
    let most = Bytes::new(u64::from(u32::MAX));
    let packet = avpkt.unwrap_or(Bytes::new(1000)).get();
    if limit.get() < FRAME_BYTES || *limit > most {
        wrong("limit", format!("must be from {FRAME_BYTES}B (a full frame) to {most}"));
    }
    if packet == 0 || packet > 65_535 {
        return wrong("avpkt", "must be from 1B to 65535B".to_owned());
    }
    if min.get() == 0 || min >= max {
        return wrong("min", "must be more than zero and less than `max`".to_owned());
    }
    if max > limit {
        let why = format!("is above the queue's `limit` of {limit}, so it would never be reached");
        wrong("max", why);
    }
    if probability.is_some_and(|share| share.get() == 0) {
        wrong("probability", "is zero: nothing would be dropped before `max`; raise it".to_owned());
    }
    // The weight of the average is chosen so that such a burst stays below `min`.
    let usual = (2 * min.get() + max.get()) / (3 * packet);
    let least = min.get().div_ceil(packet);
    if burst.map_or(usual, u64::from) < least {
        let key = if burst.is_some() { "burst" } else { "avpkt" };
        wrong(key, format!("leaves no weight for the average: `burst` must be {least} or more"));
    }
}

fn packet_limits(queue: &Queue) -> Vec<(&'static str, Option<Packets>)> {
    match queue {
        Queue::Fq { limit, flow_limit, .. } => {
            vec![("limit", *limit), ("flow_limit", *flow_limit)]
        }
        Queue::Codel { limit, .. }
        | Queue::FqCodel { limit, .. }
        | Queue::Dualpi2 { limit, .. } => vec![("limit", *limit)],
        Queue::Pie { limit, .. } => vec![("limit", *limit)],
        _ => Vec::new(),
    }
}

/// Key, time, and whether zero means something.
fn times(queue: &Queue) -> Vec<(&'static str, Option<Micros>, bool)> {
    match queue {
        Queue::Fq { ce_threshold, .. } => vec![("ce_threshold", *ce_threshold, true)],
        Queue::Codel { target, interval, ce_threshold, .. }
        | Queue::FqCodel { target, interval, ce_threshold, .. } => vec![
            ("target", *target, false),
            ("interval", *interval, false),
            ("ce_threshold", *ce_threshold, true),
        ],
        Queue::Cake { rtt, .. } => vec![("rtt", *rtt, false)],
        Queue::Dualpi2 { target, tupdate, step, .. } => {
            vec![("target", *target, false), ("tupdate", *tupdate, false), ("step", *step, true)]
        }
        Queue::Pie { target, tupdate, .. } => {
            vec![("target", *target, false), ("tupdate", *tupdate, false)]
        }
        _ => Vec::new(),
    }
}

fn memory(queue: &Queue) -> Option<Bytes> {
    match queue {
        Queue::FqCodel { memory_limit, .. } | Queue::Cake { memory_limit, .. } => *memory_limit,
        _ => None,
    }
}

/// A plain decimal number from 0 to 256.
fn is_gain(text: &str) -> bool {
    text.len() <= 16
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.')
        && text.parse::<f64>().is_ok_and(|gain| gain <= 256.0)
}

fn limit_of_fifo(
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
    problems.doubt(&place);
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
