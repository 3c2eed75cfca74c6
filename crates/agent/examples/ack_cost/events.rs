//! Measures the CPU time of an event in the kernel and in user space, and the highest rate of events without loss.

use std::thread;
use std::time::{Duration, Instant};

use ccbench_collector::FlowPorts;
use ccbench_collector::acks::AckSource;
use ccbench_proto::plan::Acks;
use ccbench_proto::wire::{AckCount, run_event::Payload};
use prost::Message as _;

use crate::kernel::Stats;
use crate::traffic::Traffic;
use crate::{EVERY_10MS, namespace, now_ns, open, own_cpu_ns, ports, senders};

const SECONDS: u64 = 4;
const FLOWS: u32 = 2;
/// Payload of a paced flow's segment: 1500 bytes less headers.
const SEGMENT_BYTES: usize = 1448;

pub fn print() {
    println!(
        "## Per event: segments of 1500 B over loopback, both ends on one kernel, {SECONDS} s each"
    );
    println!(
        "sample.acks             flows  segments/s  rows/s  lost  bpf_ns/run  user_ns/row  wire_B/row"
    );
    for (mode, flows) in [(Acks::Every, 1), (Acks::Every, 4), (Acks::Change, 4), (EVERY_10MS, 4)] {
        thread::spawn(move || per_event(mode, flows, false)).join().unwrap();
    }
    for flows in [1, 4] {
        thread::spawn(move || per_event(Acks::Every, flows, true)).join().unwrap();
    }
    println!(
        "\n## Rows in a second: every segment of {FLOWS} paced flows leaves one, the ring is emptied every 10 ms, {SECONDS} s each"
    );
    println!("offered/s  segments/s  rows/s   lost  lost_%");
    for offered in [100_000, 200_000, 300_000, 400_000, 500_000, 600_000, 800_000] {
        thread::spawn(move || rate(offered)).join().unwrap();
    }
}

/// The output of a source.
#[derive(Default)]
struct Seen {
    rows: u64,
    user_ns: i64,
    wire_bytes: usize,
    counts: Vec<AckCount>,
}

impl Seen {
    /// Drains the source for [`SECONDS`].
    fn drain(source: &mut dyn AckSource) -> Self {
        let mut seen = Self::default();
        let (mut ready, mut buffer) = (Vec::new(), Vec::new());
        let end = Instant::now() + Duration::from_secs(SECONDS);
        while Instant::now() < end {
            thread::sleep(source.period());
            let begin = own_cpu_ns();
            source.drain(now_ns(), false, &mut ready);
            seen.user_ns += own_cpu_ns() - begin;
            for payload in ready.drain(..) {
                if let Payload::Acks(batch) = payload {
                    seen.rows += batch.at_ns.len() as u64;
                    buffer.clear();
                    batch.encode(&mut buffer).unwrap();
                    seen.wire_bytes += buffer.len();
                }
            }
        }
        seen.counts = source.counts(now_ns());
        seen
    }

    fn sum(&self, field: fn(&AckCount) -> u64) -> u64 {
        self.counts.iter().map(field).sum()
    }
}

/// Returns the watched ports. With `all`, both ends count as senders, so that every segment makes a row, including those with data.
fn flows(all: bool) -> [FlowPorts; 2] {
    if all { senders() } else { ports(65_535) }
}

fn per_event(mode: Acks, count: u32, all: bool) {
    namespace(false);
    let stats = Stats::on();
    let mut source = open(mode, &flows(all));
    let traffic = Traffic::start(count);
    let seen = Seen::drain(&mut *source);
    let (runs, ns) = stats.runs();
    println!(
        "{:<22}  {count:>5}  {:>10}  {:>6}  {:>4}  {:>10.0}  {:>11.0}  {:>10.1}",
        format!("{mode}{}", if all { ", data too" } else { "" }),
        seen.sum(|count| count.segments) / SECONDS,
        seen.rows / SECONDS,
        seen.sum(|count| count.lost_rows),
        ns as f64 / runs.max(1) as f64,
        seen.user_ns as f64 / seen.rows.max(1) as f64,
        seen.wire_bytes as f64 / seen.rows.max(1) as f64,
    );
    drop(source);
    traffic.end();
}

fn rate(offered: usize) {
    namespace(false);
    let mut source = open(Acks::Every, &flows(true));
    let turn_bytes = offered / 1000 / FLOWS as usize * SEGMENT_BYTES;
    let traffic = Traffic::paced(FLOWS, Some(turn_bytes));
    let seen = Seen::drain(&mut *source);
    let (segments, lost) = (seen.sum(|count| count.segments), seen.sum(|count| count.lost_rows));
    println!(
        "{offered:>9}  {:>10}  {:>6}  {lost:>5}  {:>6.2}",
        segments / SECONDS,
        seen.rows / SECONDS,
        lost as f64 / segments.max(1) as f64 * 100.0,
    );
    drop(source);
    traffic.end();
}
