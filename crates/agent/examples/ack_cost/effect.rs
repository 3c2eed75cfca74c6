//! Measures how much slower an unlimited flow over veth is if both ends are watched.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ccbench_collector::acks::AckSource;
use ccbench_proto::plan::Acks;

use crate::other_namespace::Namespace;
use crate::traffic::Traffic;
use crate::{EVERY_10MS, median, namespace, now_ns, open_in, ports};

const PAIRS: usize = 9;
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

pub fn print() {
    println!(
        "## Goodput of one flow over veth, watched in both namespaces in every second pass: Gbit/s, medians of {PAIRS}, and \
         median, least and most of the {PAIRS} ratios of neighbours"
    );
    println!("sample.acks  segments       {}", Pairs::HEAD);
    for (mode, offloads) in
        [(EVERY_10MS, true), (EVERY_10MS, false), (Acks::Every, true), (Acks::Every, false)]
    {
        thread::spawn(move || effect(mode, offloads)).join().unwrap();
    }
}

fn shell(script: &str) {
    assert!(Command::new("sh").args(["-ec", script]).status().unwrap().success(), "{script}");
}

fn effect(mode: Acks, offloads: bool) {
    namespace(true);
    let there = Namespace::new();
    let plain = if offloads { "true" } else { "ethtool -K end tso off gso off gro off >/dev/null" };
    shell(&format!(
        "ip link add end type veth peer name end netns {} && ip addr add 10.77.0.1/24 dev end && ip link set end up && {plain}",
        there.thread_id
    ));
    let other_end = format!("ip addr add {THERE}/24 dev end && ip link set end up && {plain}");
    there.run(move || shell(&other_end));
    let cookie = || ccbench_shaper::bpf::netns_cookie().unwrap();
    let cookies = [cookie(), there.run(cookie)];
    let traffic = Traffic::between(THERE, &there);
    let watch = |cookie| open_in(cookie, mode, &ports(65_535));
    let pairs = Pairs::measure(&traffic, || cookies.into_iter().map(watch).collect());
    println!(
        "{:>11}  {:<13}  {pairs}",
        mode.to_string(),
        if offloads { "super-packets" } else { "1500 B" },
    );
    traffic.end();
}

/// Goodput of the same traffic without and with a change, in alternation, in Gbit/s.
pub struct Pairs {
    without: Vec<f64>,
    with: Vec<f64>,
}

impl Pairs {
    pub const HEAD: &str = "without   with  ratio";

    /// Measures with what `something` opens, and without.
    pub fn measure(traffic: &Traffic, something: impl Fn() -> Vec<Box<dyn AckSource>>) -> Self {
        let mut rates = [const { Vec::new() }; 2];
        for pass in 0..2 * PAIRS {
            let mut sources = if pass % 2 == 1 { something() } else { Vec::new() };
            thread::sleep(Duration::from_millis(200));
            let (from, begin) = (traffic.bytes.load(Ordering::Relaxed), Instant::now());
            while begin.elapsed() < Duration::from_secs(1) {
                thread::sleep(Duration::from_millis(10));
                for source in &mut sources {
                    source.drain(now_ns(), false, &mut Vec::new());
                }
            }
            let bits = (traffic.bytes.load(Ordering::Relaxed) - from) as f64 * 8.0;
            rates[pass % 2].push(bits / begin.elapsed().as_secs_f64() / 1e9);
        }
        let [without, with] = rates;
        Self { without, with }
    }
}

impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let neighbours = self.without.iter().zip(&self.with);
        let mut ratios: Vec<f64> = neighbours.map(|(off, on)| on / off).collect();
        ratios.sort_by(f64::total_cmp);
        write!(
            f,
            "{:>7.2}  {:>5.2}  {:.3} ({:.3} to {:.3})",
            median(self.without.iter().copied()),
            median(self.with.iter().copied()),
            ratios[PAIRS / 2],
            ratios[0],
            ratios[PAIRS - 1],
        )
    }
}
