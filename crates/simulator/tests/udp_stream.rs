//! Tests streams over UDP: the received rate is that of the stream, or else the capacity of the path.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccbench_proto::wire::ProbeKind;
use ccbench_proto::wire::run_event::Payload;
use ccbench_simulator::T0_NS;

mod support;

/// The stream begins at 1 s. Its packets occupy the link for 1 ms at 12 Mbit/s, without Ethernet headers.
const PLAN: &str = r#"
name = "stream"
[nodes]
src = {}
dst = {}
[wires]
path = ["src", "dst"]
[links.there]
node = "src"
toward = "dst"
rate = "12mbit"
overhead = "0B"
delay = "10ms"
queue = { kind = "pfifo", limit = "100p" }
[probes.stream]
kind = "udp_stream"
from = "dst"
to = "src"
start = "1s"
every = "100ms"
rate = "RATE"
[[phases]]
name = "only"
length = "3s"
"#;

/// Returns the number of packets that arrived in each interval, and when the first interval begins.
fn packets(rate: &str) -> (u64, Vec<u64>) {
    let rows = support::rows(&PLAN.replace("RATE", rate), 1).unwrap();
    let of_probe = |(node, event): (String, ccbench_proto::wire::RunEvent)| match event.payload {
        Some(Payload::Probe(row)) => Some((node, row)),
        _ => None,
    };
    let rows: Vec<_> = rows.into_iter().filter_map(of_probe).collect();
    for ((node, row), seq) in rows.iter().zip(0..) {
        assert_eq!((node.as_str(), row.seq, row.kind()), ("dst", seq, ProbeKind::UdpStream));
        assert!(!row.lost && row.rtt_us.is_none(), "{row:?}");
        assert_eq!(row.at_ns, rows[0].1.at_ns + u64::from(seq) * 100_000_000);
    }
    let packets = rows.iter().map(|(_, row)| row.bytes.unwrap() / 1500).collect();
    (rows[0].1.at_ns - T0_NS, packets)
}

#[test]
fn above_the_capacity_the_capacity_arrives() {
    let (first_ns, packets) = packets("24mbit");
    assert_eq!((first_ns, packets.len()), (1_000_000_000, 20));
    // A delay of 10 ms, and a packet on the line.
    assert!((88..=90).contains(&packets[0]), "{packets:?}");
    assert!(packets[1..].iter().all(|packets| *packets == 100), "{packets:?}");
}

#[test]
fn below_the_capacity_the_rate_arrives() {
    let (_, packets) = packets("6mbit");
    assert!(packets[1..].iter().all(|packets| *packets == 50), "{packets:?}");
}
