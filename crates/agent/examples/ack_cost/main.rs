//! Measures the cost of watching sockets. Needs root; creates its own network namespaces. The results are the CPU time
//! per event in the kernel and in user space, the highest rate of events without loss, the slowdown of a fast flow, and
//! the CPU time of each way to dump 10, 100 and 1000 sockets. Only ratios within one run are comparable.
//!
//! `ack_cost [events] [effect] [neighbours] [looks]`: runs only these parts.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

use std::process::Command;

use ccbench_collector::FlowPorts;
use ccbench_collector::acks::{self, AckSource, Watch};
use ccbench_proto::plan::Acks;
use ccbench_proto::units::Micros;
use kernel::own_cpu_ns;
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[allow(dead_code, reason = "shared with the build scripts, which use more of it")]
#[path = "../../../collector/build/clang.rs"]
mod clang;
mod effect;
mod events;
mod kernel;
mod looks;
mod neighbours;
mod other_namespace;
mod traffic;

const PORT: u16 = 5201;
const EVERY_10MS: Acks = Acks::AtMost(Micros::from_millis(10));

fn main() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most.min(8192), most).unwrap();
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let parts: [(&str, fn()); 4] = [
        ("events", events::print),
        ("effect", effect::print),
        ("neighbours", neighbours::print),
        ("looks", looks::print),
    ];
    for (name, print) in parts {
        if wanted.is_empty() || wanted.iter().any(|one| one == name) {
            print();
            println!();
        }
    }
}

/// Moves the calling thread into a new namespace.
fn namespace(offloads: bool) {
    unshare(CloneFlags::CLONE_NEWNET).expect("run as root");
    let features = "ethtool -K lo tso off gso off gro off >/dev/null";
    let features = if offloads { "true" } else { features };
    let set = format!("ip link set lo mtu 1500 up && {features}");
    assert!(Command::new("sh").args(["-c", &set]).status().unwrap().success());
}

/// Returns the ports of both ends of connections to [`PORT`]. The connecting end sends.
fn ports(count: u32) -> [FlowPorts; 2] {
    [false, true].map(|listens| FlowPorts {
        group: "bulk".to_owned(),
        server_port: PORT,
        client_port: 1,
        count,
        listens,
        reverse: false,
    })
}

/// Like [`ports`], as if both ends sent.
fn senders() -> [FlowPorts; 2] {
    ports(65_535).map(|flow| FlowPorts { reverse: flow.listens, ..flow })
}

fn open(mode: Acks, flows: &[FlowPorts]) -> Box<dyn AckSource> {
    open_in(ccbench_shaper::bpf::netns_cookie().unwrap(), mode, flows)
}

fn open_in(netns_cookie: u64, mode: Acks, flows: &[FlowPorts]) -> Box<dyn AckSource> {
    acks::open(&Watch { flows, acks: mode, netns_cookie }).unwrap()
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn now_ns() -> u64 {
    ccbench_agent::clock::now_ns()
}
