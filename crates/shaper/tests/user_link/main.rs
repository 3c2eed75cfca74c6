//! Tests the userspace link in network namespaces with real traffic. These tests need root, iproute2 and ethtool, and a kernel with clsact,
//! u32, mirred and veth; without them they fail.
#![allow(clippy::disallowed_methods, reason = "a test measures real time")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ccbench_proto::plan::{self, Queue};
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::units::{Bytes, Limit, Micros, Packets, Ppm, Rate};
use ccbench_proto::wire::QdiscSample;
use ccbench_shaper::user_link::{UserLink, cleanup};
use ccbench_shaper::{Link, ShaperError};
use ccbench_tests::cpu::CpuWatch;
use ccbench_tests::retry_on_intr;

use lab::{DST, DST6, FLAT_DST, FLAT_DST6, Lab, SRC};

mod aqm;
mod bridge;
mod impair;
mod lab;

/// Timeout of expected conditions.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// Payload of a test datagram, and its Ethernet frame.
const DATAGRAM: usize = 1000;
const FRAME: u64 = 1042;
/// Maximum number of datagrams per test. A receive buffer of the default size holds 92.
const MAX_DATAGRAMS: u32 = 80;

fn config() -> LinkConfig {
    with(plan::Link::default())
}

/// Returns the configuration of a link with these keys.
fn with(plan: plan::Link) -> LinkConfig {
    let queue = Queue::bfifo(Limit::Bytes(Bytes::new(187_500)));
    LinkConfig { seed: 11, ..LinkConfig::new("bottleneck", plan, queue) }
}

fn rated(rate: Option<Rate>) -> LinkConfig {
    with(plan::Link { rate, ..plan::Link::default() })
}

fn delayed(ms: u64) -> LinkConfig {
    with(plan::Link { delay: Some(Micros::from_millis(ms)), ..plan::Link::default() })
}

fn mbit(rate: u64) -> Option<Rate> {
    Some(Rate::from_bits_per_sec(rate * 1_000_000))
}

/// Shapes the router's egress toward dst.
fn shape(lab: &Lab, config: LinkConfig) -> UserLink {
    lab.router.run(move || UserLink::open(&config, "r1").unwrap())
}

fn sample(link: &mut UserLink) -> QdiscSample {
    let mut rows = Vec::new();
    link.counters(1, &mut rows).unwrap();
    rows.pop().unwrap()
}

/// Waits until `fact` holds for the link's counters.
fn await_sample(link: &mut UserLink, fact: impl Fn(&QdiscSample) -> bool) -> QdiscSample {
    let start = Instant::now();
    loop {
        let row = sample(link);
        if fact(&row) {
            return row;
        }
        assert!(start.elapsed() < WAIT_TIMEOUT, "condition not reached: {row:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn receiver(lab: &Lab) -> UdpSocket {
    let socket = lab.dst.run(|| UdpSocket::bind((DST, 9000)).unwrap());
    socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    socket
}

/// Sends numbered datagrams from src, `every` apart.
fn send(lab: &Lab, numbers: std::ops::Range<u32>, every: Duration) {
    lab.src.run(move || {
        let socket = UdpSocket::bind((SRC, 0)).unwrap();
        for number in numbers {
            let mut datagram = [0; DATAGRAM];
            datagram[..4].copy_from_slice(&number.to_be_bytes());
            socket.send_to(&datagram, (DST, 9000)).unwrap();
            std::thread::sleep(every);
        }
    });
}

/// Receives `count` numbered datagrams.
fn receive(socket: &UdpSocket, count: u64) -> Vec<u32> {
    let mut datagram = [0; 2000];
    (0..count)
        .map(|nth| {
            let length = retry_on_intr(|| socket.recv(&mut datagram))
                .unwrap_or_else(|e| panic!("datagram {nth}: {e}"));
            assert_eq!(length, DATAGRAM);
            u32::from_be_bytes(datagram[..4].try_into().unwrap())
        })
        .collect()
}

fn assert_nothing_more(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut [0; 2000]).is_err(), "a datagram came twice");
    socket.set_nonblocking(false).unwrap();
}

/// Resolves the neighbours of src, so that no packet waits for ARP.
fn warm_up(lab: &Lab, socket: &UdpSocket) {
    send(lab, 0..1, Duration::ZERO);
    assert_eq!(receive(socket, 1), [0]);
}

#[test]
fn applies_the_configured_delay() {
    let lab = Lab::alone();
    let socket = receiver(&lab);
    warm_up(&lab, &socket);
    let mut link = shape(&lab, delayed(10));
    let echo = lab.dst.start(move || {
        for _ in 0..200 {
            let mut datagram = [0; 64];
            let (length, from) = retry_on_intr(|| socket.recv_from(&mut datagram)).unwrap();
            socket.send_to(&datagram[..length], from).unwrap();
        }
    });
    let watch = CpuWatch::start();
    let mut rtts_us = lab.src.run(|| {
        let socket = UdpSocket::bind((SRC, 0)).unwrap();
        socket.connect((DST, 9000)).unwrap();
        socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        (0..200)
            .map(|_| {
                let sent = Instant::now();
                socket.send(b"ping").unwrap();
                retry_on_intr(|| socket.recv(&mut [0; 64])).unwrap();
                sent.elapsed().as_micros()
            })
            .collect::<Vec<_>>()
    });
    echo.recv().unwrap();
    let cpu = watch.report();
    rtts_us.sort_unstable();
    assert!(rtts_us[0] >= 10_000, "earlier than the delay: {} us", rtts_us[0]);
    let row = await_sample(&mut link, |row| row.sent_pkts == 200);
    assert_eq!((row.drops_pkts, row.rate_bps), (0, None));
    assert_eq!((row.kind.as_str(), row.iface.as_str()), ("userspace", "r1"));
    // The median fails only if 100 of 200 round trips are 1.5 ms late.
    cpu.check(Duration::from_millis(100), || {
        assert!((10_000..11_500).contains(&rtts_us[100]), "median {} us", rtts_us[100]);
    });
}

/// Returns a byte of a stream that does not repeat for long.
fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Sends a stream from src to dst through a shaped link and compares every byte.
fn transfer(lab: &Lab, address: &'static str, bytes: u64) {
    let listener = lab.dst.run(move || TcpListener::bind((address, 9001)).unwrap());
    let arrived = lab.dst.start(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        let mut buffer = vec![0; 1 << 16];
        let mut position = 0;
        loop {
            let length = retry_on_intr(|| stream.read(&mut buffer)).unwrap();
            if length == 0 {
                return position;
            }
            for &byte in &buffer[..length] {
                assert_eq!(byte, byte_at(position), "byte {position}");
                position += 1;
            }
        }
    });
    lab.src.run(move || {
        let mut stream = TcpStream::connect((address, 9001)).unwrap();
        stream.set_write_timeout(Some(WAIT_TIMEOUT)).unwrap();
        let all: Vec<u8> = (0..bytes).map(byte_at).collect();
        stream.write_all(&all).unwrap();
    });
    assert_eq!(arrived.recv().expect("every byte was right"), bytes);
}

#[test]
fn tcp_passes_intact_and_super_packets_are_cut() {
    let lab = Lab::new();
    // Now r1 completes checksums and d0 verifies them. A wrong checksum would be lost again and again.
    lab.router.command("ethtool -K r1 tx off");
    let mut link = shape(&lab, with(plan::Link { rate: mbit(100), ..delayed(2).plan }));
    let mut before = sample(&mut link);
    for address in [DST, DST6] {
        transfer(&lab, address, 10_000_000);
        let after = sample(&mut link);
        let pkts = after.sent_pkts - before.sent_pkts;
        assert!(pkts >= 10_000_000 / 1448, "{address}: only {pkts} frames");
        before = after;
    }
    let wrong = lab.dst.command("nstat -az TcpInCsumErrors IpInHdrErrors Ip6InHdrErrors");
    let counts: Vec<&str> = wrong
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().nth(1).unwrap_or("?"))
        .collect();
    assert_eq!(counts, ["0", "0", "0"], "{wrong}");
    assert_eq!(before.late_pkts.is_some(), before.max_late_us.is_some());
}

#[test]
fn without_gso_every_packet_is_written_by_itself() {
    let lab = Lab::new();
    let written = || {
        let text = lab.router.command("ip -s -j link show r1");
        let all: serde_json::Value = serde_json::from_str(&text).unwrap();
        all[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
    };
    let mut together = [0, 0];
    for (gso, together) in [false, true].into_iter().zip(&mut together) {
        let mut link = shape(&lab, with(plan::Link { gso: Some(gso), ..delayed(2).plan }));
        let before = (sample(&mut link).sent_pkts, written());
        transfer(&lab, DST, 10_000_000);
        let after = (sample(&mut link).sent_pkts, written());
        *together = (after.0 - before.0).saturating_sub(after.1 - before.1);
    }
    // The last packets of the connection may leave between two readings.
    assert!(together[0] < 20 && together[1] > 1000, "{together:?}");
}

#[test]
fn counts_queue_drops_and_keeps_the_order() {
    let lab = Lab::new();
    let socket = receiver(&lab);
    warm_up(&lab, &socket);
    let queue = Queue::bfifo(Limit::Bytes(Bytes::new(20 * FRAME)));
    let mut link = shape(&lab, LinkConfig { queue, ..rated(mbit(1)) });
    send(&lab, 0..300, Duration::ZERO);
    let row = await_sample(&mut link, |row| {
        row.sent_pkts + row.drops_pkts == 300 && row.qlen_pkts == 0 && row.backlog_bytes == 0
    });
    assert_eq!(row.drop_overlimit_pkts, Some(row.drops_pkts));
    assert!(row.drops_pkts > 0 && row.sent_pkts >= 21, "{row:?}");
    assert_eq!(row.sent_bytes, row.sent_pkts * FRAME);
    let numbers = receive(&socket, row.sent_pkts);
    assert!(numbers.windows(2).all(|two| two[0] < two[1]), "out of order: {numbers:?}");
    // No drop before the queue was full: one packet was in transmission, and twenty were queued.
    assert_eq!(numbers[..21], (0..21).collect::<Vec<_>>());
    assert_nothing_more(&socket);
}

#[test]
fn rate_change_applies_to_queued_packets() {
    let lab = Lab::new();
    let socket = receiver(&lab);
    warm_up(&lab, &socket);
    let queue = Queue::pfifo(Limit::Packets(Packets::new(100)));
    let slow = Some(Rate::from_bits_per_sec(1));
    let mut link = shape(&lab, LinkConfig { queue, ..rated(slow) });
    send(&lab, 0..MAX_DATAGRAMS, Duration::ZERO);
    // At one bit per second, the first frame alone would take more than two hours.
    await_sample(&mut link, |row| {
        row.qlen_pkts == u64::from(MAX_DATAGRAMS - 1) && row.sent_pkts == 0
    });
    link.set_rate(Rate::from_bits_per_sec(100_000_000)).unwrap();
    assert_eq!(receive(&socket, u64::from(MAX_DATAGRAMS)), (0..MAX_DATAGRAMS).collect::<Vec<_>>());
    let row = await_sample(&mut link, |row| row.sent_pkts == u64::from(MAX_DATAGRAMS));
    assert_eq!((row.rate_bps, row.drops_pkts), (Some(100_000_000), 0));
}

#[test]
fn random_loss_depends_only_on_the_seed() {
    let lab = Lab::new();
    let socket = receiver(&lab);
    warm_up(&lab, &socket);
    let pass = |seed| {
        let lossy = plan::Link { loss: Ppm::new(200_000), ..plan::Link::default() };
        let mut link = shape(&lab, LinkConfig { seed, ..with(lossy) });
        send(&lab, 0..MAX_DATAGRAMS, Duration::from_micros(100));
        let row = await_sample(&mut link, |row| {
            row.sent_pkts + row.drops_pkts == u64::from(MAX_DATAGRAMS)
        });
        receive(&socket, row.sent_pkts)
    };
    let first = pass(5);
    assert!((1..MAX_DATAGRAMS as usize).contains(&first.len()), "{first:?}");
    assert_eq!(pass(5), first);
    assert_ne!(pass(6), first);
}

/// Returns policy and real-time priority of the threads with this name.
fn scheduling(name: &str) -> Vec<(u64, u64)> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of = |path: std::path::PathBuf| {
        let stat = std::fs::read_to_string(path.join("stat")).ok()?;
        let (head, tail) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = tail.split(' ').collect();
        let is_ours = head.ends_with(&format!("({name}"));
        is_ours.then(|| (fields[38].parse().unwrap(), fields[37].parse().unwrap()))
    };
    threads.filter_map(|thread| of(thread.path())).collect()
}

#[test]
fn state_reports_the_scheduling_class() {
    let lab = Lab::new();
    let link = shape(&lab, config());
    let state = link.state();
    let got = scheduling("ccbench-link");
    let reported = &state.qdiscs[2];
    // Concurrent tests have links with the same privileges.
    if reported.contains("SCHED_FIFO refused") {
        assert!(got.iter().all(|&(policy, _)| policy == 0), "{reported}: {got:?}");
    } else {
        assert!(reported.contains("SCHED_FIFO 10"), "{reported}");
        // A thread that has run late is demoted, and the link reports that.
        let demoted = link.state().qdiscs[2].contains("demoted");
        assert!(demoted || got.contains(&(1, 10)), "{reported}: {got:?}");
    }
}

#[test]
fn removal_restores_the_interface() {
    let lab = Lab::new();
    let before = lab.router.network("r1");
    let mut link = shape(&lab, rated(mbit(10)));
    assert_ne!(lab.router.network("r1"), before);
    let again = lab.router.run(|| UserLink::open(&config(), "r1").map(|_| ()));
    assert!(matches!(again, Err(ShaperError::Occupied { .. })), "{again:?}");
    link.remove().unwrap();
    assert_eq!(lab.router.network("r1"), before);
    link.remove().unwrap();
    assert!(link.set_rate(Rate::from_bits_per_sec(1)).is_err());
    drop(shape(&lab, config()));
    assert_eq!(lab.router.network("r1"), before);
}

#[test]
fn removal_keeps_foreign_qdiscs_and_filters() {
    let lab = Lab::new();
    lab.router.command("tc qdisc add dev r1 clsact");
    let before = lab.router.network("r1");
    drop(shape(&lab, config()));
    assert_eq!(lab.router.network("r1"), before);
    lab.router.command("tc qdisc del dev r1 clsact");

    let link = shape(&lab, config());
    lab.router.command(
        "tc filter add dev r1 ingress protocol ip prio 7 u32 match u32 0 0 action mirred egress mirror dev r0",
    );
    drop(link);
    let ingress = lab.router.command("tc filter show dev r1 ingress");
    assert!(ingress.contains("pref 7"), "{ingress}");
}

#[test]
fn removal_after_interface_deletion_succeeds() {
    let lab = Lab::new();
    let mut link = shape(&lab, config());
    lab.router.ip("link del r1");
    link.remove().unwrap();
    assert!(!lab.router.ip("-o -br link").contains("ccbu"));
}

/// Not a test: the process that [`cleanup_removes_the_link_of_a_killed_process`] kills.
#[test]
#[ignore = "helper of another test"]
fn helper_process_to_be_killed() {
    let _link = UserLink::open(&config(), "r1").unwrap();
    std::thread::sleep(WAIT_TIMEOUT);
}

#[test]
fn cleanup_removes_the_link_of_a_killed_process() {
    let lab = Lab::new();
    let before = lab.router.network("r1");
    let mut owner = lab.router.run(|| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "helper_process_to_be_killed"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    });
    let start = Instant::now();
    while !lab.router.command("tc filter show dev r1 egress").contains("ipv6") {
        assert!(start.elapsed() < WAIT_TIMEOUT, "the helper process created no link");
        std::thread::sleep(Duration::from_millis(10));
    }
    owner.kill().unwrap();
    assert_eq!(owner.wait().unwrap().signal(), Some(9));
    assert_ne!(lab.router.network("r1"), before);
    assert!(lab.router.run(|| cleanup("r1").unwrap()));
    assert_eq!(lab.router.network("r1"), before);
    assert!(!lab.router.run(|| cleanup("r1").unwrap()));
    assert!(!lab.router.run(|| cleanup("nosuchdev").unwrap()));
}
