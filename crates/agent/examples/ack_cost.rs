//! What watching acknowledgements costs, in network namespaces of this program's own (root): per event in the kernel
//! and in user space, how many events in a second are taken without a loss, what a fast flow pays, and the processor
//! time of each way to look at 10, 100 and 1000 sockets. Ratios within one run are what to watch.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ccbench_collector::acks::{self, AckSource, Watch};
use ccbench_collector::{DiagSampler, FlowPorts, Sampler as _};
use ccbench_proto::plan::Acks;
use ccbench_proto::units::Micros;
use ccbench_proto::wire::run_event::Of;
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike as _;
use prost::Message as _;
use rustix::time::{ClockId, clock_gettime};

const PORT: u16 = 5201;
const SECONDS: u64 = 4;
const EVERY_10MS: Acks = Acks::AtMost(Micros::from_millis(10));
const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

fn main() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most.min(8192), most).unwrap();
    println!(
        "## Per event: segments of 1500 B over loopback, both ends on one kernel, {SECONDS} s each"
    );
    println!(
        "sample.acks  flows  segments/s  rows/s  lost  refused  bpf_ns/run  user_ns/row  wire_B/row"
    );
    for (mode, flows) in [(Acks::Every, 1), (Acks::Every, 4), (Acks::Change, 4), (EVERY_10MS, 4)] {
        thread::spawn(move || per_event(mode, flows)).join().unwrap();
    }
    println!("\n## Goodput of one flow, Gbit/s: without, with, without, with ...");
    for offloads in [false, true] {
        thread::spawn(move || effect(offloads)).join().unwrap();
    }
    println!("\n## Processor time of one look at all sockets, us, and its share of a processor");
    println!("sockets  exec_ss  inet_diag  ss/inet_diag  ss@10ms  ss@100ms  diag@10ms  diag@100ms");
    for sockets in [10, 100, 1000] {
        thread::spawn(move || looks(sockets)).join().unwrap();
    }
    println!(
        "\n## eBPF beside them: sockets that each get 100 segments in a second, share of a processor"
    );
    println!("sockets  acks@10ms  acks@100ms  (kernel + reader)");
    for sockets in [10, 100, 1000] {
        thread::spawn(move || watched(sockets)).join().unwrap();
    }
}

fn namespace(offloads: bool) {
    unshare(CloneFlags::CLONE_NEWNET).expect("run as root");
    let features = "ethtool -K lo tso off gso off gro off >/dev/null";
    let features = if offloads { "true" } else { features };
    let set = format!("ip link set lo mtu 1500 up && {features}");
    assert!(Command::new("sh").args(["-c", &set]).status().unwrap().success());
}

fn ports(count: u32) -> [FlowPorts; 2] {
    [false, true].map(|listens| FlowPorts {
        group: "bulk".to_owned(),
        server_port: PORT,
        client_port: 1,
        count: count.max(1),
        listens,
        reverse: false,
    })
}

fn open(mode: Acks, flows: &[FlowPorts]) -> Box<dyn AckSource> {
    let netns_cookie = ccbench_shaper::bpf::netns_cookie().unwrap();
    acks::open(&Watch { flows, acks: mode, netns_cookie }).unwrap()
}

/// Connections that send as fast as they can until told to stop.
struct Traffic {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Traffic {
    fn start(flows: u32) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", PORT)).unwrap();
        let (stop, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for _ in 0..flows {
            let mut sender = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
            let mut receiver = listener.accept().unwrap().0;
            let (told, count) = (Arc::clone(&stop), Arc::clone(&bytes));
            threads.push(thread::spawn(move || {
                let block = vec![7; 1 << 17];
                while !told.load(Ordering::Relaxed) && sender.write_all(&block).is_ok() {}
            }));
            threads.push(thread::spawn(move || {
                let mut block = vec![0; 1 << 17];
                while let Ok(read @ 1..) = receiver.read(&mut block) {
                    count.fetch_add(read as u64, Ordering::Relaxed);
                }
            }));
        }
        Self { stop, bytes, threads }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// (runs, nanoseconds) of every BPF program that this process holds.
fn program_stats() -> BTreeMap<String, (u64, u64)> {
    let mut found = BTreeMap::new();
    for file in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().parse::<u64>().ok()
        };
        if let (Some(id), Some(runs), Some(ns)) =
            (value("prog_id:"), value("run_cnt:"), value("run_time_ns:"))
        {
            found.insert(id.to_string(), (runs, ns));
        }
    }
    found
}

fn per_event(mode: Acks, flows: u32) {
    namespace(false);
    std::fs::write(STATS, "1").expect("run as root");
    let mut source = open(mode, &ports(65_535));
    let traffic = Traffic::start(flows);
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let (mut ready, mut rows, mut user_ns, mut wire) = (Vec::new(), 0, 0, 0);
    let mut buffer = Vec::new();
    while Instant::now() < end {
        thread::sleep(source.period());
        let begin = own_cpu_ns();
        source.drain(now_ns(), false, &mut ready);
        user_ns += own_cpu_ns() - begin;
        for of in ready.drain(..) {
            if let Of::Acks(batch) = of {
                rows += batch.at_ns.len() as u64;
                buffer.clear();
                batch.encode(&mut buffer).unwrap();
                wire += buffer.len() as u64;
            }
        }
    }
    let (runs, ns) =
        program_stats().values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let counts = source.counts(now_ns());
    let sum =
        |field: fn(&ccbench_proto::wire::AckCount) -> u64| counts.iter().map(field).sum::<u64>();
    println!(
        "{:>11}  {flows:>5}  {:>10}  {:>6}  {:>4}  {:>7}  {:>10.0}  {:>11.0}  {:>10.1}",
        mode.to_string(),
        sum(|count| count.segments) / SECONDS,
        rows / SECONDS,
        sum(|count| count.lost_rows),
        sum(|count| count.refused_rows),
        ns as f64 / runs.max(1) as f64,
        user_ns as f64 / rows.max(1) as f64,
        wire as f64 / rows.max(1) as f64,
    );
    drop(source);
    traffic.end();
    std::fs::write(STATS, "0").unwrap();
}

fn effect(offloads: bool) {
    namespace(offloads);
    let traffic = Traffic::start(1);
    let mut told = Vec::new();
    for pass in 0..10 {
        let mut source = (pass % 2 == 1).then(|| open(EVERY_10MS, &ports(65_535)));
        thread::sleep(Duration::from_millis(200));
        let (from, begin) = (traffic.bytes.load(Ordering::Relaxed), Instant::now());
        while begin.elapsed() < Duration::from_secs(1) {
            thread::sleep(Duration::from_millis(100));
            if let Some(source) = &mut source {
                source.drain(now_ns(), false, &mut Vec::new());
            }
        }
        let bits = (traffic.bytes.load(Ordering::Relaxed) - from) as f64 * 8.0;
        told.push(bits / begin.elapsed().as_secs_f64() / 1e9);
    }
    let mean = |with: usize| told.iter().skip(with).step_by(2).sum::<f64>() / 5.0;
    let list: Vec<String> = told.iter().map(|gbit| format!("{gbit:.2}")).collect();
    let segments = if offloads { "super-packets" } else { "1500 B" };
    println!("{segments}: {}; mean without {:.2}, with {:.2}", list.join(" "), mean(0), mean(1));
    traffic.end();
}

fn connections(sockets: u16) -> Vec<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", PORT)).unwrap();
    let connect = |_| {
        let client = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
        (client, listener.accept().unwrap().0)
    };
    (0..sockets / 2).map(connect).collect()
}

fn looks(sockets: u16) {
    namespace(false);
    let pairs = connections(sockets);
    let mut sampler = DiagSampler::new();
    sampler.start(&ports(65_535), 1).unwrap();
    let (mut rows, begin, passes) = (Vec::new(), own_cpu_ns(), 500);
    for pass in 0..passes {
        rows.clear();
        sampler.drain(pass + 1, &mut rows).unwrap();
        assert_eq!(rows.len(), usize::from(sockets));
    }
    let diag_us = (own_cpu_ns() - begin) as f64 / passes as f64 / 1e3;
    let (begin, passes) = (childrens_cpu_ns(), 20);
    for _ in 0..passes {
        let status = Command::new("ss").arg("-tinH").stdout(Stdio::null()).status();
        assert!(status.expect("iproute2 is installed").success());
    }
    let ss_us = (childrens_cpu_ns() - begin) as f64 / f64::from(passes) / 1e3;
    println!(
        "{sockets:>7}  {ss_us:>7.0}  {diag_us:>9.0}  {:>12.1}  {:>5.1} %  {:>6.2} %  {:>7.2} %  {:>8.3} %",
        ss_us / diag_us,
        ss_us / 100.0,
        ss_us / 1000.0,
        diag_us / 100.0,
        diag_us / 1000.0
    );
    drop(pairs);
}

/// 100 segments in a second for every socket: 50 messages there, each with its answer.
fn watched(sockets: u16) {
    let mut shares = Vec::new();
    for ms in [10, 100] {
        let share = thread::spawn(move || {
            namespace(false);
            std::fs::write(STATS, "1").expect("run as root");
            let mut pairs = connections(sockets);
            let mut source = open(Acks::AtMost(Micros::from_millis(ms)), &ports(65_535));
            let (mut user_ns, mut next, begin) = (0, Instant::now(), Instant::now());
            while begin.elapsed() < Duration::from_secs(2) {
                for (client, server) in &mut pairs {
                    client.write_all(&[1; 100]).unwrap();
                    server.read_exact(&mut [0; 100]).unwrap();
                    server.write_all(&[1; 100]).unwrap();
                    client.read_exact(&mut [0; 100]).unwrap();
                }
                let from = own_cpu_ns();
                source.drain(now_ns(), false, &mut Vec::new());
                user_ns += own_cpu_ns() - from;
                next += Duration::from_millis(20);
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            let kernel_ns: u64 = program_stats().values().map(|(_, ns)| ns).sum();
            std::fs::write(STATS, "0").unwrap();
            (kernel_ns as f64 + user_ns as f64) / begin.elapsed().as_nanos() as f64 * 100.0
        });
        shares.push(share.join().unwrap());
    }
    println!("{sockets:>7}  {:>7.2} %  {:>8.2} %", shares[0], shares[1]);
}

fn now_ns() -> u64 {
    ccbench_agent::clock::now_ns()
}

fn own_cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn childrens_cpu_ns() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    usage.user_time().num_nanoseconds() + usage.system_time().num_nanoseconds()
}
