//! Reads the output of `ss -ti` about TCP sockets (also `ss -eipn`, with or without time stamps of ts(1)) into samples. Pure.
//!
//! `ss` prints two lines per socket: its addresses, then its `TCP_INFO`. If two loops write into one file, or a write was torn, the
//! second line may be missing, incomplete or elsewhere; `pair` finds its socket. `ss` leaves out most fields that are zero. They
//! are null here, except counts of segments in flight, lost or retransmitted, which are zero.

use std::net::{IpAddr, Ipv6Addr};

use super::{LONGEST_S, MAX_COUNT, truncate};
use crate::wire;

mod pair;

pub use pair::{Pairing, Row};

/// One end's address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Its address. An IPv4-mapped IPv6 address becomes IPv4.
    pub ip: IpAddr,
    /// Port.
    pub port: u16,
}

impl Endpoint {
    /// Parses `10.0.5.1:55026`, `[::1]:5201`, `fe80::1%eth0:22`, `::ffff:10.0.0.1:80`.
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, port) = text.rsplit_once(':')?;
        let ip = ip.strip_prefix('[').map_or(Some(ip), |ip| ip.strip_suffix(']'))?;
        let ip = ip.split('%').next()?;
        Some(Self { ip: address(ip)?, port: port.parse().ok()? })
    }
}

/// Parses an address. An IPv4-mapped IPv6 address becomes IPv4.
pub fn address(text: &str) -> Option<IpAddr> {
    match text.parse().ok()? {
        IpAddr::V6(v6) => Some(Ipv6Addr::to_canonical(&v6)),
        v4 @ IpAddr::V4(_) => Some(v4),
    }
}

/// The process that owns a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// "iperf3".
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// File descriptor: a smaller one was opened earlier.
    pub fd: u32,
}

/// A socket's first line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// The kernel's number of the state (1 is established).
    pub state: u32,
    /// This end.
    pub local: Endpoint,
    /// The other end.
    pub peer: Endpoint,
    /// Present if `ss` had permission to see it.
    pub process: Option<Process>,
}

/// Kinds of lines.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// The first line of a socket, with its fields if they are on the same line (`ss -O`).
    Socket(Socket, Option<Box<Info>>),
    /// The second line of a socket.
    Info(Box<Info>),
    /// A heading, or a socket without a peer: ignoring it loses nothing.
    Other,
}

/// A socket's second line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Info {
    /// The fields, without names, times and ports.
    pub sample: wire::FlowSample,
    /// Why the line is incomplete or partly unreadable.
    pub unread_reason: Option<String>,
    fields: u32,
}

/// Length of the longest name of a congestion control (the kernel's `TCP_CA_NAME_MAX` with its final zero).
const MAX_NAME_BYTES: usize = 15;

/// Names of TCP states and their numbers (include/net/tcp_states.h).
const STATES: [(&str, u32); 12] = [
    ("ESTAB", 1),
    ("SYN-SENT", 2),
    ("SYN-RECV", 3),
    ("FIN-WAIT-1", 4),
    ("FIN-WAIT-2", 5),
    ("TIME-WAIT", 6),
    ("UNCONN", 7),
    ("CLOSE-WAIT", 8),
    ("LAST-ACK", 9),
    ("LISTEN", 10),
    ("CLOSING", 11),
    ("NEW-SYN-RECV", 12),
];

/// Reads a line without its stamp; `None` if `ss` did not write it. `cut`: the line may be truncated.
pub fn line(text: &str, cut: bool) -> Option<Line> {
    let mut words = text.split_whitespace().peekable();
    let first = *words.peek()?;
    if matches!(first, "Netid" | "State") && text.contains("Recv-Q") {
        return Some(Line::Other);
    }
    if first == "tcp" || first == "mptcp" {
        words.next();
    }
    let state = words.peek().and_then(|word| STATES.iter().find(|(name, _)| name == word));
    let Some((_, state)) = state else {
        return info(text, cut).map(|info| Line::Info(Box::new(info)));
    };
    words.next();
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok());
    number(words.next())?;
    number(words.next())?;
    let (local, peer) = (words.next()?, words.next()?);
    if cut && words.peek().is_none() {
        return None;
    }
    let (Some(local), Some(peer)) = (Endpoint::parse(local), Endpoint::parse(peer)) else {
        // A listener's peer is `0.0.0.0:*`.
        return (local.contains(':') && peer.ends_with(":*")).then_some(Line::Other);
    };
    let users = words.clone().find_map(|word| word.strip_prefix("users:"));
    let socket = Socket { state: *state, local, peer, process: users.and_then(process) };
    Some(Line::Socket(socket, info(text, cut).map(Box::new)))
}

/// Parses `(("iperf3",pid=16828,fd=4))`. If there are several processes, the first one counts.
fn process(users: &str) -> Option<Process> {
    let (name, rest) = users.strip_prefix("((\"")?.split_once('"')?;
    let number = |key: &str| {
        let (_, digits) = rest.split_once(key)?;
        let end = digits.find(|c: char| !c.is_ascii_digit())?;
        digits[..end].parse().ok()
    };
    Some(Process { name: truncate(name), pid: number("pid=")?, fd: number("fd=")? })
}

/// A line that ends with one of these words is cut: `ss` always prints something after them.
const NEVER_LAST: [&str; 15] = [
    "wscale",
    "rto",
    "backoff",
    "rtt",
    "ato",
    "mss",
    "pmtu",
    "rcvmss",
    "advmss",
    "cwnd",
    "ssthresh",
    "bytes_sent",
    "bytes_acked",
    "bytes_received",
    "segs_out",
];

/// Reads the fields of a second line; `None` if no field identifies it as output of `ss`.
fn info(text: &str, cut: bool) -> Option<Info> {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let last = words.last().map_or("", |word| word.split(':').next().unwrap_or(word));
    let unfinished =
        NEVER_LAST.contains(&last) || ["send", "pacing_rate", "delivery_rate"].contains(&last);
    let mut info = Info::default();
    if cut || unfinished {
        // Its last number may lack digits.
        words.pop();
        info.unread_reason = Some("it ends in the middle".to_owned());
    }
    let mut wrong: Vec<&str> = vec![];
    let mut options = 0;
    let mut at = 0;
    while at < words.len() {
        let word = words[at];
        let next = words.get(at + 1).copied();
        at += 1;
        if let Some(bit) = option(word) {
            options |= bit;
        } else if let Some(rate) = rate_field(word) {
            at += 1;
            match next.and_then(|value| rate(&mut info.sample, value)) {
                Some(()) => info.fields += 1,
                None if next.is_some() => wrong.push(word),
                None => {}
            }
        } else if word == "app_limited" {
            info.sample.app_limited = Some(true);
        } else if let Some((name, value)) = word.split_once(':') {
            match field(&mut info.sample, name, value) {
                Field::Read => info.fields += 1,
                Field::Wrong => wrong.push(word),
                Field::Unknown => {}
            }
        } else if info.sample.cc.is_empty() && next.is_some_and(is_before) && is_name(word) {
            info.sample.cc = word.to_owned();
        }
    }
    (info.fields >= 2).then(|| {
        if !wrong.is_empty() {
            info.unread_reason = Some(format!("cannot read {}", wrong.join(" ")));
        }
        complete(&mut info, options);
        info
    })
}

/// Whether the word follows the name of the congestion control.
fn is_before(word: &str) -> bool {
    ["wscale:", "rto:", "cwnd:"].iter().any(|field| word.starts_with(field))
}

fn is_name(word: &str) -> bool {
    word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        && word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.len() <= MAX_NAME_BYTES
}

/// Fills in the fields that `ss` leaves out because they are zero.
fn complete(info: &mut Info, options: u32) {
    if info.unread_reason.is_some() {
        return;
    }
    let sample = &mut info.sample;
    sample.options = Some(options | if sample.snd_wscale.is_some() { 4 } else { 0 });
    sample.app_limited.get_or_insert(false);
    for count in [
        &mut sample.unacked_pkts,
        &mut sample.retrans_pkts,
        &mut sample.total_retrans_pkts,
        &mut sample.lost_pkts,
        &mut sample.sacked_pkts,
    ] {
        count.get_or_insert(0);
    }
}

/// The bit of `tcpi_options` for a word.
fn option(word: &str) -> Option<u32> {
    const OPTIONS: [(&str, u32); 7] = [
        ("ts", 1),
        ("sack", 2),
        ("ecn", 8),
        ("ecnseen", 16),
        ("fastopen", 32),
        ("usec_ts", 64),
        ("tfo_child", 128),
    ];
    OPTIONS.iter().find(|(name, _)| *name == word).map(|(_, bit)| *bit)
}

type Set = fn(&mut wire::FlowSample, &str) -> Option<()>;

/// A field whose value is the next word.
fn rate_field(word: &str) -> Option<Set> {
    Some(match word {
        // `ss` computes it from cwnd, mss and rtt, which have columns.
        "send" => |_, value| bytes_per_s(value).map(drop),
        "pacing_rate" => |sample, value| {
            let (now, most) = value.split_once('/').map_or((value, None), |(n, m)| (n, Some(m)));
            sample.pacing_rate_bytes_per_s = Some(bytes_per_s(now)?);
            if let Some(most) = most {
                sample.max_pacing_rate_bytes_per_s = Some(bytes_per_s(most)?);
            }
            Some(())
        },
        "delivery_rate" => |sample, value| {
            sample.delivery_rate_bytes_per_s = Some(bytes_per_s(value)?);
            Some(())
        },
        _ => return None,
    })
}

/// Parses `213726937bps` or `213.7Mbps`. Returns bytes per second.
fn bytes_per_s(text: &str) -> Option<u64> {
    let number = text.strip_suffix("bps")?;
    let (number, factor) = match number.as_bytes().last()? {
        b'K' => (&number[..number.len() - 1], 1e3),
        b'M' => (&number[..number.len() - 1], 1e6),
        b'G' => (&number[..number.len() - 1], 1e9),
        b'T' => (&number[..number.len() - 1], 1e12),
        _ => (number, 1.0),
    };
    Some((decimal(number)? * factor / 8.0).round())
        .filter(|rate| *rate <= MAX_COUNT)
        .map(|rate| rate as u64)
}

/// Parses a number that is not negative, as C's `%g` prints it.
fn decimal(text: &str) -> Option<f64> {
    let right = text.starts_with(|c: char| c.is_ascii_digit());
    right.then(|| text.parse::<f64>().ok())?.filter(|number| number.is_finite())
}

/// Parses milliseconds. Returns microseconds.
fn ms(text: &str) -> Option<u32> {
    let us = (decimal(text)? * 1000.0).round();
    (us <= f64::from(u32::MAX)).then_some(us as u32)
}

/// Parses `1528ms(12.5%)`. Returns microseconds.
fn limited(text: &str) -> Option<u64> {
    let (number, rest) = text.split_once("ms")?;
    let whole = rest.is_empty() || (rest.starts_with('(') && rest.ends_with("%)"));
    let number: u64 = whole.then(|| number.parse().ok())??;
    number.checked_mul(1000).filter(|us| *us as f64 <= LONGEST_S * 1e6)
}

enum Field {
    Read,
    Wrong,
    Unknown,
}

fn field(sample: &mut wire::FlowSample, name: &str, value: &str) -> Field {
    if let Some(place) = small(sample, name) {
        *place = value.parse().ok();
        return if place.is_some() { Field::Read } else { Field::Wrong };
    }
    if let Some(place) = large(sample, name) {
        *place = value.parse().ok().filter(|count| *count as f64 <= MAX_COUNT);
        return if place.is_some() { Field::Read } else { Field::Wrong };
    }
    match odd(sample, name, value) {
        Some(true) => Field::Read,
        Some(false) => Field::Wrong,
        None => Field::Unknown,
    }
}

/// The fields that are whole numbers of 32 bits.
fn small<'a>(sample: &'a mut wire::FlowSample, name: &str) -> Option<&'a mut Option<u32>> {
    Some(match name {
        "backoff" => &mut sample.backoff,
        "mss" => &mut sample.snd_mss_bytes,
        "rcvmss" => &mut sample.rcv_mss_bytes,
        "advmss" => &mut sample.advmss_bytes,
        "pmtu" => &mut sample.pmtu_bytes,
        "cwnd" => &mut sample.snd_cwnd_pkts,
        "ssthresh" => &mut sample.snd_ssthresh_pkts,
        "segs_out" => &mut sample.segs_out_pkts,
        "segs_in" => &mut sample.segs_in_pkts,
        "data_segs_out" => &mut sample.data_segs_out_pkts,
        "data_segs_in" => &mut sample.data_segs_in_pkts,
        "lastsnd" => &mut sample.last_data_sent_ms,
        "lastrcv" => &mut sample.last_data_recv_ms,
        "lastack" => &mut sample.last_ack_recv_ms,
        "delivered" => &mut sample.delivered_pkts,
        "delivered_ce" => &mut sample.delivered_ce_pkts,
        "unacked" => &mut sample.unacked_pkts,
        "lost" => &mut sample.lost_pkts,
        "sacked" => &mut sample.sacked_pkts,
        "fackets" => &mut sample.fackets_pkts,
        "dsack_dups" => &mut sample.dsack_dups_pkts,
        "reordering" => &mut sample.reordering_pkts,
        "reord_seen" => &mut sample.reord_seen,
        "rcv_space" => &mut sample.rcv_space_bytes,
        "rcv_ssthresh" => &mut sample.rcv_ssthresh_bytes,
        "notsent" => &mut sample.notsent_bytes,
        "rcv_ooopack" => &mut sample.rcv_ooopack_pkts,
        "snd_wnd" => &mut sample.snd_wnd_bytes,
        "rcv_wnd" => &mut sample.rcv_wnd_bytes,
        "rehash" => &mut sample.rehash,
        _ => return None,
    })
}

/// The fields that are whole numbers of 64 bits.
fn large<'a>(sample: &'a mut wire::FlowSample, name: &str) -> Option<&'a mut Option<u64>> {
    Some(match name {
        "bytes_sent" => &mut sample.bytes_sent,
        "bytes_retrans" => &mut sample.bytes_retrans,
        "bytes_acked" => &mut sample.bytes_acked,
        "bytes_received" => &mut sample.bytes_received,
        _ => return None,
    })
}

/// Reads times, pairs and fields of congestion controls; `Some(false)` if the field is known but cannot be read.
fn odd(sample: &mut wire::FlowSample, name: &str, value: &str) -> Option<bool> {
    let pair = |by: char| value.split_once(by);
    Some(match name {
        "rto" => set(&mut sample.rto_us, ms(value)),
        "ato" => set(&mut sample.ato_us, ms(value)),
        "rcv_rtt" => set(&mut sample.rcv_rtt_us, ms(value)),
        "minrtt" => set(&mut sample.min_rtt_us, ms(value)),
        "rtt" => match pair('/').map(|(rtt, var)| (ms(rtt), ms(var))) {
            Some((rtt @ Some(_), var @ Some(_))) => {
                (sample.rtt_us, sample.rttvar_us) = (rtt, var);
                true
            }
            _ => false,
        },
        "wscale" => match pair(',').map(|(snd, rcv)| (snd.parse().ok(), rcv.parse().ok())) {
            Some((snd @ Some(_), rcv @ Some(_))) => {
                (sample.snd_wscale, sample.rcv_wscale) = (snd, rcv);
                true
            }
            _ => false,
        },
        "retrans" => match pair('/').map(|(now, all)| (now.parse().ok(), all.parse().ok())) {
            Some((now @ Some(_), all @ Some(_))) => {
                (sample.retrans_pkts, sample.total_retrans_pkts) = (now, all);
                true
            }
            _ => false,
        },
        "busy" => set(&mut sample.busy_us, limited(value)),
        "rwnd_limited" => set(&mut sample.rwnd_limited_us, limited(value)),
        "sndbuf_limited" => set(&mut sample.sndbuf_limited_us, limited(value)),
        "bbr" => parts(value, |key, value| match key {
            "bw" => set(&mut sample.bbr_bw_bytes_per_s, bytes_per_s(value)),
            "mrtt" => set(&mut sample.bbr_min_rtt_us, ms(value)),
            _ => true,
        }),
        "dctcp" => parts(value, |key, value| match key {
            "alpha" => set(&mut sample.dctcp_alpha, value.parse().ok()),
            _ => true,
        }),
        _ => return None,
    })
}

fn set<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    *place = value;
    place.is_some()
}

/// Reads `(bw:1.2Mbps,mrtt:0.5)`. Returns whether all of it could be read.
fn parts(value: &str, mut each: impl FnMut(&str, &str) -> bool) -> bool {
    let inner = value.strip_prefix('(').and_then(|value| value.strip_suffix(')'));
    inner.is_some_and(|inner| {
        inner.split(',').all(|part| part.split_once(':').is_some_and(|(k, v)| each(k, v)))
    })
}

#[cfg(test)]
mod tests;
