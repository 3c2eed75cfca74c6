//! Benchmarks a userspace link between two interfaces, alternating with plain routing over veth. The ratios are comparable between
//! machines. Creates network namespaces; needs root.
//!
//! `link_bench [REPETITIONS]` prints the median, minimum and maximum.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::io::{IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ccbench_proto::plan::{self, Backend, Queue};
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::units::{Bytes, Limit, Micros, Rate};
use ccbench_shaper::Link;
use ccbench_shaper::keep_awake::KeepAwake;
use ccbench_shaper::user_link::{Bridge, UserLink, bridge};
use nix::sys::socket::sockopt::{RcvBufForce, ReceiveTimestampns};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};

use lab::{DST, FLAT_DST, Lab};

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/user_link/lab.rs"]
mod lab;

const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
const FLOW: Duration = Duration::from_secs(3);
const PROBES: u64 = 1_000;
const GAPS: u64 = 3_000;
/// Bytes of a full Ethernet frame.
const FRAME: f64 = 1514.0;

fn main() {
    let repetitions = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3);
    println!("{:<44}{:>10}  least .. most of {repetitions}", "", "median");
    let veth = report("plain veth, one TCP flow, Gbit/s", repetitions, || tcp(&Lab::new(), DST).0);
    let link = report("link, unshaped, one TCP flow, Gbit/s", repetitions, || unshaped("bfifo"));
    println!("{:<44}{:>10.3}", "  of veth", link / veth);
    let veth = report("plain veth, 64 B UDP, kpps", repetitions, || udp(&Lab::new(), DST));
    let link = report("link, unshaped, 64 B UDP, kpps", repetitions, || {
        let (lab, _link) = linked(&config(0, 0, "bfifo"));
        udp(&lab, FLAT_DST)
    });
    println!("{:<44}{:>10.3}", "  of veth", link / veth);
    for mbit in [10, 100, 1000, 3000] {
        shares(mbit, "bfifo", repetitions);
    }
    for queue in ["fq", "dualpi2"] {
        shares(1000, queue, repetitions);
    }
    let fifo = report("a rate out of reach, bfifo, Gbit/s", repetitions, || fastest("bfifo"));
    for queue in ["fq", "dualpi2"] {
        let name = format!("a rate out of reach, {queue}, Gbit/s");
        let other = report(&name, repetitions, || fastest(queue));
        println!("{:<44}{:>10.3}", "  of bfifo", other / fifo);
    }
    for awake in [false, true] {
        scheduling_errors(awake, repetitions);
    }
}

/// Prints the utilization of one TCP flow, and the CPU time of its link.
fn shares(mbit: u64, queue: &str, repetitions: usize) {
    let mut cores = Vec::new();
    report(&format!("{mbit} Mbit/s, {queue}: sent / configured"), repetitions, || {
        let (lab, mut link) = linked(&config(mbit, 0, queue));
        let watched = &mut link.forward;
        let (bits_per_s, used) = std::thread::scope(|scope| {
            let watch = scope.spawn(move || {
                std::thread::sleep(FLOW / 3);
                let (before, start) = (sent_bytes(watched), Instant::now());
                std::thread::sleep(FLOW / 2);
                (sent_bytes(watched) - before) as f64 * 8.0 / start.elapsed().as_secs_f64()
            });
            let (_, used) = tcp(&lab, FLAT_DST);
            (watch.join().unwrap(), used)
        });
        cores.push(used);
        bits_per_s / (mbit * 1_000_000) as f64
    });
    show("  cores", cores);
}

fn sent_bytes(link: &mut UserLink) -> u64 {
    let mut rows = Vec::new();
    link.counters(0, &mut rows).unwrap();
    rows[0].sent_bytes
}

fn scheduling_errors(awake: bool, repetitions: usize) {
    let with = if awake { ", kept awake" } else { "" };
    let _awake = awake.then(|| KeepAwake::start().unwrap());
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        let mut late = wakeup_latencies();
        late.sort_by(f64::total_cmp);
        p50.push(late[late.len() / 2]);
        p99.push(late[late.len() * 99 / 100]);
    }
    show(&format!("floor: a sleep's scheduling error p50, us{with}"), p50);
    show(&format!("floor: a sleep's scheduling error p99, us{with}"), p99);
    for (what, config) in
        [("10 ms delay", config(0, 10, "bfifo")), ("12 Mbit/s gap", config(12, 0, "bfifo"))]
    {
        let (mut p50, mut p99) = (Vec::new(), Vec::new());
        for _ in 0..repetitions {
            let (lab, _link) = linked(&config);
            let mut errors = if config.plan.rate.is_some() { gaps(&lab) } else { delays(&lab) };
            errors.sort_by(f64::total_cmp);
            p50.push(errors[errors.len() / 2]);
            p99.push(errors[errors.len() * 99 / 100]);
        }
        show(&format!("{what}: error p50, us{with}"), p50);
        show(&format!("{what}: error p99, us{with}"), p99);
    }
}

fn report(what: &str, repetitions: usize, mut measure: impl FnMut() -> f64) -> f64 {
    show(what, (0..repetitions).map(|_| measure()).collect())
}

fn show(what: &str, mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let median = values[values.len() / 2];
    println!("{what:<44}{median:>10.3}  {:.3} .. {:.3}", values[0], values[values.len() - 1]);
    median
}

fn config(mbit: u64, delay_ms: u64, queue: &str) -> LinkConfig {
    let limit = (mbit * 1_000_000 / 8 / 50).max(64 * 1514);
    let queue = match queue {
        "bfifo" => Queue::bfifo(Limit::Bytes(Bytes::new(limit))),
        kind => serde_json::from_value(serde_json::json!({ "kind": kind })).unwrap(),
    };
    let plan = plan::Link {
        rate: (mbit > 0).then(|| Rate::from_bits_per_sec(mbit * 1_000_000)),
        delay: Some(Micros::from_millis(delay_ms)),
        backend: Backend::Userspace,
        ..plan::Link::default()
    };
    LinkConfig { seed: 1, ..LinkConfig::new("bench", plan, queue) }
}

fn linked(config: &LinkConfig) -> (Lab, Bridge) {
    let lab = Lab::flat();
    let config = config.clone();
    let link = lab.router.run(move || bridge("r0", "r1", &config, &config).unwrap());
    (lab, link)
}

fn unshaped(queue: &str) -> f64 {
    let (lab, _link) = linked(&config(0, 0, queue));
    tcp(&lab, FLAT_DST).0
}

/// Returns the goodput of a CPU-limited link with this queue, Gbit/s.
fn fastest(queue: &str) -> f64 {
    let (lab, _link) = linked(&config(100_000, 0, queue));
    tcp(&lab, FLAT_DST).0
}

/// Returns the goodput of one flow in Gbit/s, and the number of CPUs that packet loops use.
fn tcp(lab: &Lab, address: &'static str) -> (f64, f64) {
    let listener = lab.dst.run(move || TcpListener::bind((address, 9001)).unwrap());
    let received = lab.dst.start(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        let mut buffer = vec![0; 1 << 18];
        let start = Instant::now();
        // Skip slow start.
        let (warm, mut counted, mut from) = (FLOW / 6, 0_u64, None);
        loop {
            let length = ccbench_tests::retry_on_intr(|| stream.read(&mut buffer)).unwrap();
            if start.elapsed() >= warm {
                counted += length as u64;
                from.get_or_insert_with(Instant::now);
            }
            if length == 0 || start.elapsed() >= FLOW {
                return counted as f64 * 8e-9 / from.unwrap().elapsed().as_secs_f64();
            }
        }
    });
    let before = (loops_cpu_s(), Instant::now());
    lab.src.run(move || {
        let mut stream = TcpStream::connect((address, 9001)).unwrap();
        stream.set_write_timeout(Some(WAIT_TIMEOUT)).unwrap();
        let chunk = vec![7; 1 << 17];
        let start = Instant::now();
        while start.elapsed() < FLOW + FLOW / 10 && stream.write_all(&chunk).is_ok() {}
    });
    let cores = (loops_cpu_s() - before.0) / before.1.elapsed().as_secs_f64();
    (received.recv().unwrap(), cores)
}

/// Returns the CPU time of this process's packet loops, seconds.
fn loops_cpu_s() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of = |path: std::path::PathBuf| {
        let stat = std::fs::read_to_string(path.join("stat")).ok()?;
        let (head, tail) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = tail.split(' ').collect();
        let ticks: f64 = fields[11].parse::<f64>().ok()? + fields[12].parse::<f64>().ok()?;
        head.ends_with("(ccbench-link").then_some(ticks / 100.0)
    };
    threads.filter_map(|thread| of(thread.path())).sum()
}

/// Returns received datagrams, thousands per second.
fn udp(lab: &Lab, address: &'static str) -> f64 {
    let socket = receiver(lab, address);
    let counted = lab.dst.start(move || {
        let (mut count, mut first, mut last) = (0_u32, None, Instant::now());
        while ccbench_tests::retry_on_intr(|| socket.recv(&mut [0; 128])).is_ok() {
            last = Instant::now();
            first.get_or_insert(last);
            count += 1;
        }
        f64::from(count) / 1000.0 / (last - first.unwrap()).as_secs_f64()
    });
    lab.src.run(move || {
        let socket = sender(address);
        let start = Instant::now();
        while start.elapsed() < FLOW {
            for _ in 0..256 {
                let _ = socket.send(&[7; 64]);
            }
        }
    });
    counted.recv().unwrap()
}

fn sender(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    socket.connect((address, 9000)).unwrap();
    // This packet resolves the neighbour.
    socket.send(&[0; 16]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    socket
}

/// Returns a socket with receive timestamps and a timeout of one second.
fn receiver(lab: &Lab, address: &'static str) -> UdpSocket {
    let socket = lab.dst.run(move || UdpSocket::bind((address, 9000)).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    setsockopt(&socket, RcvBufForce, &(32 << 20)).unwrap();
    setsockopt(&socket, ReceiveTimestampns, &true).unwrap();
    socket
}

/// Receives datagrams until the timeout. Returns the first eight bytes and the receive time of each.
fn timestamps(socket: &UdpSocket) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    let mut bytes = [0; 2000];
    loop {
        let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let (fd, none) = (socket.as_raw_fd(), MsgFlags::empty());
        let Ok(message) = recvmsg::<()>(fd, &mut parts, Some(&mut control), none) else {
            return all;
        };
        let at_ns = message.cmsgs().unwrap().find_map(|found| match found {
            ControlMessageOwned::ScmTimestampns(at) => {
                Some(at.tv_sec() as u64 * 1_000_000_000 + at.tv_nsec() as u64)
            }
            _ => None,
        });
        all.push((u64::from_be_bytes(*bytes.first_chunk().unwrap()), at_ns.unwrap()));
    }
}

fn send_every(lab: &Lab, count: u64, every: Duration, bytes: usize) {
    lab.src.run(move || {
        let socket = sender(FLAT_DST);
        let mut datagram = vec![0; bytes];
        let start = Instant::now();
        for nth in 0..count {
            std::thread::sleep((every * nth as u32).saturating_sub(start.elapsed()));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            datagram[..8].copy_from_slice(&(now.as_nanos() as u64).to_be_bytes());
            socket.send(&datagram).unwrap();
        }
    });
}

/// Returns the wakeup latency of an idle thread after sleeps of one millisecond, microseconds: the baseline of this machine.
fn wakeup_latencies() -> Vec<f64> {
    let sleeper = std::thread::spawn(|| {
        nix::sys::prctl::set_timerslack(1).unwrap();
        let nap = Duration::from_millis(1);
        (0..3000)
            .map(|_| {
                let start = Instant::now();
                std::thread::sleep(nap);
                (start.elapsed() - nap).as_nanos() as f64 / 1e3
            })
            .collect()
    });
    sleeper.join().unwrap()
}

/// Returns the errors of a one-way delay of 10 ms, microseconds.
fn delays(lab: &Lab) -> Vec<f64> {
    let socket = receiver(lab, FLAT_DST);
    let received = lab.dst.start(move || timestamps(&socket));
    send_every(lab, PROBES, Duration::from_millis(2), 100);
    let received = received.recv().unwrap();
    let probes = received.iter().filter(|(sent_ns, _)| *sent_ns > 0);
    probes.map(|&(sent_ns, at_ns)| (at_ns as f64 - sent_ns as f64 - 1e7).abs() / 1e3).collect()
}

/// Returns the errors of the gaps between full frames at 12 Mbit/s, microseconds.
fn gaps(lab: &Lab) -> Vec<f64> {
    let socket = receiver(lab, FLAT_DST);
    let received = lab.dst.start(move || timestamps(&socket));
    send_every(lab, GAPS, Duration::from_micros(770), 1472);
    let received = received.recv().unwrap();
    let times: Vec<f64> = received
        .iter()
        .filter(|(sent_ns, _)| *sent_ns > 0)
        .map(|&(_, at_ns)| at_ns as f64)
        .collect();
    // The queue fills in the first second.
    let busy = times.windows(2).skip(times.len() / 4).take(times.len() / 2);
    busy.map(|two| (two[1] - two[0] - FRAME * 8e9 / 12e6).abs() / 1e3).collect()
}
