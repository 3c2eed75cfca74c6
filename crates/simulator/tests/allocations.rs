//! In the steady state, a simulated packet needs no memory allocation: a trial at a higher rate has as many rows, and allocates only for
//! the growth of its queues. A probe's measurement leaves nothing behind.
//!
//! A separate program, because the counter counts the allocations of all tests that run at the same time.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::alloc::System;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use ccbench_proto::wire::RunEvent;
use ccbench_proto::wire::run_event::Payload;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

mod support;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;
/// The test that runs holds this lock.
static TURN: Mutex<()> = Mutex::new(());

/// Returns a plan with two flows over this rate and 10 ms each way.
fn plan(cc: &str, queue: &str, loss: &str, rate_mbit: u32) -> String {
    let link =
        format!("rate = \"{rate_mbit}mbit\"\ndelay = \"10ms\"\nqueue = {{ {queue} }}\n{loss}");
    let rest = format!(
        r#"
[links.back]
node = "router"
toward = "src"
delay = "10ms"
[flows.f]
from = "src"
to = "dst"
cc = "{cc}"
count = 2
interval = "1s"
[sample]
tcp = "1s"
qdisc = "1s"
acks = "off"
[[phases]]
name = "only"
length = "10s"
flows = ["f"]
"#
    );
    support::one_link_plan("allocations", &link, &rest)
}

/// Returns the number of packets that passed both links, and the number of allocations.
fn run(text: &str) -> (u64, usize) {
    let region = Region::new(ALLOCATOR);
    let rows = support::rows(text, 1).unwrap();
    let change = region.change();
    let mut sent = BTreeMap::new();
    for (_, event) in &rows {
        if let Some(Payload::QdiscSample(row)) = &event.payload {
            sent.insert(row.link.as_str(), row.sent_pkts);
        }
    }
    (sent.values().sum(), change.allocations + change.reallocations)
}

#[test]
fn no_packet_needs_an_allocation() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fifo = "kind = \"bfifo\", limit = \"1.5bdp\"";
    for (cc, queue, loss) in [
        ("cubic", fifo, ""),
        ("reno", "kind = \"fq_codel\"", ""),
        ("bbr", "kind = \"dualpi2\"", ""),
        ("cubic", fifo, "loss = \"0.1%\""),
    ] {
        let [slow, fast] = [20, 200].map(|rate_mbit| run(&plan(cc, queue, loss, rate_mbit)));
        let (packets, allocations) = (fast.0 - slow.0, fast.1.saturating_sub(slow.1));
        println!("{cc} {queue} {loss}: {allocations} of {packets}");
        assert!(packets > 20_000, "{cc} {queue} {loss}: {packets} packets");
        assert!(allocations < 100, "{cc} {queue} {loss}: {allocations} of {packets} packets");
    }
}

/// Connects for 20 s, with a delay of 1 ms each way.
const CONNECTS: &str = r#"
name = "allocations"
[nodes]
src = {}
dst = {}
[wires]
path = ["src", "dst"]
[links.there]
node = "src"
toward = "dst"
delay = "1ms"
[links.back]
node = "dst"
toward = "src"
delay = "1ms"
[probes.p]
kind = "tcp_connect"
repeat = "back-to-back"
timeout = "100ms"
from = "src"
to = "dst"
[[phases]]
name = "only"
length = "20s"
"#;

#[test]
fn a_measurement_leaves_no_memory_behind() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let region = Region::new(ALLOCATOR);
    let (mut count, mut early_bytes, mut late_bytes) = (0, 0, 0);
    let emit = &mut |_: &str, event: RunEvent| {
        if !matches!(event.payload, Some(Payload::Probe(_))) {
            return;
        }
        let change = region.change();
        late_bytes = change.bytes_allocated as isize - change.bytes_deallocated as isize;
        count += 1;
        // Until then the event queue grows: events of handshakes that did not need them stay queued for a second.
        if count == 2000 {
            early_bytes = late_bytes;
        }
    };
    support::run(CONNECTS, 1, emit).unwrap();
    assert!(count > 9000, "{count} measurements");
    assert!(late_bytes < early_bytes + 16_384, "{early_bytes} B, and {late_bytes} B at the end");
}
