//! What one look at all TCP sockets costs: the inet_diag sampler beside `ss -tinH`, for 10, 100 and 1000
//! sockets, in network namespaces of this program's own (root, or `unshare -Urn`). CPU time, so that
//! a busy machine does not blur it; the ratio is what to watch.
//!
//! With `small-hash` the namespaces get a socket table of 1024 buckets instead of sharing the machine's.
#![allow(clippy::unwrap_used)]

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use ccbench_collector::{DiagSampler, FlowPorts, Sampler};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;
use rustix::time::{ClockId, clock_gettime};

const SERVER_PORT: u16 = 5201;
const SAMPLER_PASSES: u64 = 500;
const SS_PASSES: u64 = 20;
const INTERVAL_NS: u64 = 100_000_000;

fn main() {
    let small_hash = std::env::args().any(|argument| argument == "small-hash");
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most.min(8192), most).unwrap();
    println!("sockets  sampler_us  ss_us  ss/sampler  sampler_share_at_10ms  ss_share_at_10ms");
    for sockets in [10, 100, 1000] {
        thread::spawn(move || measure(sockets, small_hash)).join().unwrap();
    }
}

fn measure(sockets: u16, small_hash: bool) {
    enter_namespace(small_hash);
    let listener = TcpListener::bind(("127.0.0.1", SERVER_PORT)).unwrap();
    let pairs: Vec<_> = (0..sockets / 2).map(|_| connect(&listener)).collect();
    let flows = [true, false].map(|listens| FlowPorts {
        group: "bulk".to_owned(),
        server_port: SERVER_PORT,
        client_port: 1,
        count: 65_535,
        listens,
        reverse: false,
    });
    let mut sampler = DiagSampler::new();
    sampler.start(&flows, INTERVAL_NS).unwrap();
    let mut rows = Vec::new();
    let begin_ns = own_cpu_ns();
    for pass in 0..SAMPLER_PASSES {
        rows.clear();
        sampler.drain((pass + 1) * INTERVAL_NS, &mut rows).unwrap();
        assert_eq!(rows.len(), usize::from(sockets));
    }
    let sampler_us = us_each(own_cpu_ns() - begin_ns, SAMPLER_PASSES);

    let begin_ns = childrens_cpu_ns();
    for _ in 0..SS_PASSES {
        let status = Command::new("ss")
            .arg("-tinH")
            .stdout(Stdio::null())
            .status()
            .expect("iproute2 is installed");
        assert!(status.success());
    }
    let ss_us = us_each(childrens_cpu_ns() - begin_ns, SS_PASSES);
    println!(
        "{sockets:>7}  {sampler_us:>10.0}  {ss_us:>5.0}  {:>10.1}  {:>19.1} %  {:>14.1} %",
        ss_us / sampler_us,
        sampler_us / 100.0,
        ss_us / 100.0,
    );
    drop(pairs);
}

/// The size of a namespace's own socket table is a setting of the namespace it is made from.
fn enter_namespace(small_hash: bool) {
    let need = "a network namespace: run as root, or under `unshare -Urn`";
    unshare(CloneFlags::CLONE_NEWNET).expect(need);
    if small_hash {
        std::fs::write("/proc/sys/net/ipv4/tcp_child_ehash_entries", "1024")
            .expect("Linux 6.1 or newer");
        unshare(CloneFlags::CLONE_NEWNET).expect(need);
    }
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(status.expect("iproute2 is installed").success());
}

fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn own_cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn childrens_cpu_ns() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    usage.user_time().num_nanoseconds() + usage.system_time().num_nanoseconds()
}

fn us_each(total_ns: i64, passes: u64) -> f64 {
    total_ns as f64 / passes as f64 / 1e3
}
