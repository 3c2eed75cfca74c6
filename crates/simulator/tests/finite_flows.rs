//! Finite flows: the application writes exactly this many bytes, and the table `flows` has the time of the last one.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{Flow, Side};

mod support;

/// A packet with a full segment occupies the link for 1 ms and is delayed by 10 ms. An acknowledgement takes 10 ms.
const PLAN: &str = r#"
name = "finite"
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
queue = { kind = "pfifo", limit = "1000p" }
[links.back]
node = "dst"
toward = "src"
delay = "10ms"
[flows.short]
from = "src"
to = "dst"
cc = "reno"
tool = "ccbench"
bytes = "BYTES"
KEYS
[[phases]]
name = "only"
length = "3s"
flows = ["short"]
"#;

/// Returns the rows of both ends, the sender's first.
fn flows(bytes: u64, keys: &str) -> [Flow; 2] {
    let text = PLAN.replace("BYTES", &format!("{bytes}B")).replace("KEYS", keys);
    let rows = support::rows(&text, 1).unwrap().into_iter();
    let mut found: Vec<Flow> = rows
        .filter_map(|(_, event)| match event.payload {
            Some(Payload::Flow(flow)) => Some(flow),
            _ => None,
        })
        .collect();
    found.sort_by_key(|flow| flow.side() == Side::Receiver);
    found.try_into().unwrap()
}

/// The acknowledgement that ends the handshake leaves just before the data: 52 bytes at 12 Mbit/s.
const HANDSHAKE_MS: f64 = 52.0 * 8.0 / 12e3;

/// Returns the time from the beginning to the last byte, ms.
fn completion_ms(receiver: &Flow) -> Option<f64> {
    Some((receiver.completed_s? - receiver.start_s?) * 1e3)
}

#[test]
fn a_window_takes_one_way_and_its_packets() {
    // The initial window of ten packets. The last one has 100 bytes of payload and 52 of headers.
    let [sender, receiver] = flows(9 * 1448 + 100, "");
    assert_eq!(receiver.bytes, 13_132);
    assert_eq!(sender.completed_s, None, "only the receiver knows");
    let found = completion_ms(&receiver).unwrap();
    let wanted = 10.0 + HANDSHAKE_MS + 9.0 + 152.0 * 8.0 / 12e3;
    assert!((found - wanted).abs() < 0.001, "{found} ms, not {wanted} ms");
    // The socket stays open until the flow stops.
    assert!(receiver.stop_s.unwrap() > 2.9, "{receiver:?}");
}

#[test]
fn one_byte_more_than_a_window_takes_a_round_trip_more() {
    let [_, ten] = flows(10 * 1448, "");
    let [_, eleven] = flows(10 * 1448 + 1, "");
    let [ten, eleven] = [ten, eleven].map(|flow| completion_ms(&flow).unwrap());
    assert!((ten - HANDSHAKE_MS - 20.0).abs() < 0.001, "{ten}");
    // It leaves with the acknowledgement of the first or second packet, after 21 or 22 ms.
    assert!((31.0..32.1).contains(&eleven), "{eleven}");
}

#[test]
fn an_application_with_a_rate_writes_its_last_block_in_part() {
    // Blocks of 10 ms are 10 kB. The third one is due after 20 ms and has 5 kB.
    let [_, receiver] = flows(25_000, "rate = \"8mbit\"");
    assert_eq!(receiver.bytes, 25_000);
    let found = completion_ms(&receiver).unwrap();
    assert!((20.0 + 10.0..100.0).contains(&found), "{found}");
}

#[test]
fn a_flow_that_is_not_complete_has_no_time() {
    let [_, receiver] = flows(1 << 30, "");
    assert!(receiver.bytes < 1 << 30);
    assert_eq!(receiver.completed_s, None);
}
