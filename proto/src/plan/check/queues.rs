//! Queues: parameters that the kernel would refuse, or worse, take.

use crate::plan::Queue;
use crate::units::{FRAME_BYTES, Limit, Micros, Packets, Rate};

use super::Problems;

pub(super) fn check(path: &[&str], queue: &Queue, rate: Option<Rate>, problems: &mut Problems) {
    let mut wrong = |key: &'static str, why: String| {
        problems.error(&[path, &[key]].concat(), why);
    };
    let no_packets = |limit: Option<Packets>| limit == Some(Packets::new(0));
    let zero = |time: Option<Micros>| time == Some(Micros::new(0));
    let holds_none = || "is zero: it would hold no packet".to_owned();
    match queue {
        Queue::Pfifo { limit } | Queue::Bfifo { limit } => {
            let bytes_kind = matches!(queue, Queue::Bfifo { .. });
            if let Some(why) = refuse_limit(*limit, bytes_kind, rate) {
                wrong("limit", why);
            }
        }
        Queue::Fq { limit, flow_limit, buckets, .. } => {
            if no_packets(*limit) {
                wrong("limit", holds_none());
            }
            if no_packets(*flow_limit) {
                wrong("flow_limit", holds_none());
            }
            if buckets.is_some_and(|n| !n.is_power_of_two() || n > 262_144) {
                wrong("buckets", "must be a power of two from 1 to 262144".to_owned());
            }
        }
        Queue::Codel { limit, target, interval, .. } => {
            if no_packets(*limit) {
                wrong("limit", holds_none());
            }
            if zero(*target) {
                wrong("target", "must be more than zero".to_owned());
            }
            if zero(*interval) {
                wrong("interval", "must be more than zero".to_owned());
            }
        }
        Queue::FqCodel { limit, flows, target, interval, quantum, memory_limit, .. } => {
            if no_packets(*limit) {
                wrong("limit", holds_none());
            }
            if flows.is_some_and(|n| n == 0 || n > 65_536) {
                wrong("flows", "must be from 1 to 65536".to_owned());
            }
            if zero(*target) {
                wrong("target", "must be more than zero".to_owned());
            }
            if zero(*interval) {
                wrong("interval", "must be more than zero".to_owned());
            }
            if quantum.is_some_and(|q| q.get() < 256 || q.get() > 1 << 20) {
                wrong("quantum", "must be from 256B to 1048576B".to_owned());
            }
            if memory_limit.is_some_and(|m| m.get() == 0 || m.get() > u64::from(u32::MAX)) {
                wrong("memory_limit", "must be from 1B to 4294967295B".to_owned());
            }
        }
        Queue::Cake { rtt, memory_limit } => {
            if zero(*rtt) {
                wrong("rtt", "must be more than zero".to_owned());
            }
            if memory_limit.is_some_and(|m| m.get() == 0 || m.get() > u64::from(u32::MAX)) {
                wrong("memory_limit", "must be from 1B to 4294967295B".to_owned());
            }
        }
        Queue::Dualpi2 { limit, target, tupdate, alpha, beta, coupling, .. } => {
            if no_packets(*limit) {
                wrong("limit", holds_none());
            }
            if zero(*target) {
                wrong("target", "must be more than zero".to_owned());
            }
            if zero(*tupdate) {
                wrong("tupdate", "must be more than zero".to_owned());
            }
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
    }
}

/// A plain decimal number from 0 to 256.
fn is_gain(text: &str) -> bool {
    text.len() <= 16
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.')
        && text.parse::<f64>().is_ok_and(|gain| gain <= 256.0)
}

fn refuse_limit(limit: Limit, bytes_kind: bool, rate: Option<Rate>) -> Option<String> {
    let zero = match limit {
        Limit::Bytes(bytes) => bytes.get() == 0,
        Limit::Packets(packets) => packets.get() == 0,
        Limit::MilliBdp(milli) => milli == 0,
        Limit::Time(time) => time.get() == 0,
    };
    if zero {
        return Some("is zero: it would hold no packet".to_owned());
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
        return Some(format!("is {bytes}B: less than one full frame of {FRAME_BYTES}B"));
    }
    if bytes_kind && bytes > u64::from(u32::MAX) {
        return Some(format!("is {bytes}B; the kernel's queue holds at most {}B", u32::MAX));
    }
    None
}
