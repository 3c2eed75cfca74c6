//! Measures the CPU time that agents of other namespaces cost: each one's programs run for every segment of the machine
//! and return at once.

use std::thread;
use std::time::Duration;

use ccbench_collector::acks::AckSource;

use crate::effect::Pairs;
use crate::kernel::Stats;
use crate::traffic::Traffic;
use crate::{EVERY_10MS, namespace, open_in, ports};

/// A cookie that no namespace has.
const NOBODYS: u64 = 1 << 60;

pub fn print() {
    println!(
        "## Agents of other namespaces: goodput of one flow over loopback that none of them watches, Gbit/s, in turns without \
         and with them (ratios: median, least and most)"
    );
    println!("agents  segments       bpf_ns/agent  {}", Pairs::HEAD);
    for offloads in [true, false] {
        for agents in [2, 4, 8] {
            thread::spawn(move || neighbours(agents, offloads)).join().unwrap();
        }
    }
}

fn neighbours(agents: u64, offloads: bool) {
    namespace(offloads);
    let traffic = Traffic::start(1);
    let others = || -> Vec<Box<dyn AckSource>> {
        let open = |other| open_in(NOBODYS + other, EVERY_10MS, &ports(65_535));
        (0..agents).map(open).collect()
    };
    let pairs = Pairs::measure(&traffic, others);
    // The cost of measuring time must not reduce the goodput.
    let (stats, held) = (Stats::on(), others());
    thread::sleep(Duration::from_secs(1));
    let (runs, ns) = stats.runs();
    drop(held);
    println!(
        "{agents:>6}  {:<13}  {:>12.0}  {pairs}",
        if offloads { "super-packets" } else { "1500 B" },
        ns as f64 / runs.max(1) as f64,
    );
    traffic.end();
}
