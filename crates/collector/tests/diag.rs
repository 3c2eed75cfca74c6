//! Compares inet_diag samples of real TCP sockets with `ss`. Each test has its own network namespace.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic, and is no library")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use ccbench_collector::{DiagSampler, Drained, FlowPorts, HostSampler, Sampler, clock};
use ccbench_proto::wire::{FlowSample, Role, Side};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};

const INTERVAL_NS: u64 = 100_000_000;
const SERVER_PORT: u16 = 5201;
/// Below the ephemeral port range.
const CLIENT_PORT: u16 = 20_000;
const ESTABLISHED: u32 = 1;

/// Runs `test` on a thread in a new network namespace with loopback only.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET)
            .expect("a network namespace: run these tests as root, or under `unshare -Urn`");
        let status = Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status()
            .expect("iproute2 is installed");
        assert!(status.success());
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn flow(listens: bool, count: u32) -> FlowPorts {
    FlowPorts {
        group: "bulk".to_owned(),
        server_port: SERVER_PORT,
        client_port: CLIENT_PORT,
        count,
        listens,
        reverse: false,
    }
}

/// Opens a connection from a local port (0: any) with a congestion control.
fn connection(listener: &TcpListener, from_port: u16, cc: Option<&str>) -> (TcpStream, TcpStream) {
    let to = listener.local_addr().unwrap();
    let to = SocketAddr::new("127.0.0.1".parse().unwrap(), to.port());
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    if let Some(name) = cc {
        setsockopt(&fd, sockopt::TcpCongestion, &name.into()).unwrap();
    }
    let from: SocketAddr = ([127, 0, 0, 1], from_port).into();
    setsockopt(&fd, sockopt::ReuseAddr, &true).unwrap();
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrStorage::from(from)).unwrap();
    connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrStorage::from(to)).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    (TcpStream::from(fd), accepted)
}

/// Transfers `bytes` and waits until they are acknowledged.
fn transfer((sender, receiver): &mut (TcpStream, TcpStream), bytes: usize) {
    let mut sending = sender.try_clone().unwrap();
    let writer = thread::spawn(move || sending.write_all(&vec![7; bytes]).unwrap());
    let mut left = bytes;
    let mut buffer = vec![0; 65_536];
    while left > 0 {
        let want = left.min(buffer.len());
        left -= receiver.read(&mut buffer[..want]).unwrap();
    }
    writer.join().unwrap();
    // The byte in the other direction carries the acknowledgement of everything before it.
    receiver.write_all(&[1]).unwrap();
    sender.read_exact(&mut [0]).unwrap();
}

fn drain(sampler: &mut DiagSampler, at_ns: u64) -> (Drained, Vec<FlowSample>) {
    let mut rows = Vec::new();
    let drained = sampler.drain(at_ns, &mut rows).unwrap();
    assert_eq!(drained.rows, rows.len() as u64);
    (drained, rows)
}

fn row<'a>(rows: &'a [FlowSample], flow_id: &str, side: Side) -> &'a FlowSample {
    rows.iter()
        .find(|row| row.flow_id == flow_id && row.side() == side)
        .unwrap_or_else(|| panic!("no row {flow_id} {side:?} in {rows:#?}"))
}

#[test]
fn distinguishes_data_and_control_connections() {
    in_namespace(|| {
        let listener = TcpListener::bind(("127.0.0.1", SERVER_PORT)).unwrap();
        let control = connection(&listener, 0, None);
        let mut first = connection(&listener, CLIENT_PORT, Some("cubic"));
        let mut second = connection(&listener, CLIENT_PORT + 1, Some("reno"));
        let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let _unrelated = connection(&other, 0, None);

        let mut sampler = DiagSampler::new();
        sampler.start(&[flow(false, 2), flow(true, 2)], INTERVAL_NS).unwrap();
        assert!(sampler.filters_in_kernel());
        transfer(&mut first, 100_000);
        transfer(&mut second, 50_000);
        let (_, before) = drain(&mut sampler, 1_000_000_000);
        assert_eq!(before.len(), 6, "three connections, both ends: {before:#?}");
        assert!(before.iter().all(|row| row.gap_ns == 0));

        transfer(&mut first, 200_000);
        let (drained, rows) = drain(&mut sampler, 1_100_000_000);
        assert_eq!((drained.late, drained.lost), (0, 0));
        let sent = row(&rows, "bulk/0", Side::Sender);
        assert_eq!((&*sent.cc, sent.state), ("cubic", Some(ESTABLISHED)));
        assert_eq!((sent.sport, sent.dport), (u32::from(CLIENT_PORT), u32::from(SERVER_PORT)));
        assert_eq!(sent.gap_ns, INTERVAL_NS);
        assert!(row(&before, "bulk/0", Side::Sender).bytes_acked >= Some(100_000));
        assert!(sent.bytes_acked >= Some(300_000), "{:?}", sent.bytes_acked);
        assert!(sent.rtt_us > Some(0) && sent.snd_cwnd_pkts > Some(0));
        assert_eq!(sent.snd_ssthresh_pkts, None, "no loss yet");
        let received = row(&rows, "bulk/0", Side::Receiver);
        assert_eq!(received.bytes_received, Some(300_000));
        assert_ne!(received.cookie, sent.cookie);
        assert_eq!(row(&rows, "bulk/1", Side::Sender).cc, "reno");
        let control_row = row(&rows, "bulk/control", Side::Sender);
        // The kernel counts the SYN as a byte.
        assert_eq!((control_row.role(), control_row.bytes_acked), (Role::Control, Some(1)));
        drop(control);
    });
}

#[test]
fn samples_both_ends_of_ipv4_over_a_dual_stack_listener() {
    in_namespace(|| {
        let listener = TcpListener::bind(("::", SERVER_PORT)).unwrap();
        let _pair = connection(&listener, CLIENT_PORT, None);
        let mut sampler = DiagSampler::new();
        sampler.start(&[flow(false, 1), flow(true, 1)], INTERVAL_NS).unwrap();
        let (_, rows) = drain(&mut sampler, 1);
        assert_eq!(rows.len(), 2);
        row(&rows, "bulk/0", Side::Sender);
        row(&rows, "bulk/0", Side::Receiver);
    });
}

#[test]
fn counts_late_and_lost_samples() {
    in_namespace(|| {
        let listener = TcpListener::bind(("127.0.0.1", SERVER_PORT)).unwrap();
        let _pair = connection(&listener, CLIENT_PORT, None);
        let mut sampler = DiagSampler::new();
        sampler.start(&[flow(false, 1)], INTERVAL_NS).unwrap();
        drain(&mut sampler, 1_000_000_000);
        let (drained, _) = drain(&mut sampler, 1_149_000_000);
        assert_eq!((drained.late, drained.lost), (0, 0));
        let (drained, rows) = drain(&mut sampler, 1_452_000_000);
        assert_eq!((drained.late, drained.lost), (1, 2));
        assert_eq!(rows[0].gap_ns, 303_000_000);
        assert_eq!(rows[0].at_ns, 1_452_000_000);
    });
}

#[test]
fn forgets_closed_sockets() {
    in_namespace(|| {
        let listener = TcpListener::bind(("127.0.0.1", SERVER_PORT)).unwrap();
        let mut sampler = DiagSampler::new();
        sampler.start(&[flow(false, 1)], INTERVAL_NS).unwrap();
        assert_eq!(drain(&mut sampler, 1).1, []);
        let (client, server) = connection(&listener, CLIENT_PORT, None);
        let first = drain(&mut sampler, 2).1[0].cookie;
        // The server closes first, so that TIME_WAIT stays on its side and the client's port is free. `shutdown` closes the
        // connection at once, even if a child process of another test holds copies of the descriptors.
        server.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        (&client).read_to_end(&mut rest).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        // The kernel closes the socket when the acknowledgement of its FIN arrives, perhaps in another thread.
        let mut at_ns = 3;
        while !drain(&mut sampler, at_ns).1.is_empty() {
            at_ns += 1;
            assert!(at_ns < 5_000, "the sampler still has a closed socket");
            thread::sleep(Duration::from_millis(1));
        }
        let again = TcpListener::bind(("127.0.0.1", SERVER_PORT + 1)).unwrap();
        let mut moved = flow(false, 1);
        moved.server_port += 1;
        sampler.start(&[moved], INTERVAL_NS).unwrap();
        let _pair = connection(&again, CLIENT_PORT, None);
        let (_, rows) = drain(&mut sampler, at_ns + 1);
        assert_eq!((rows.len(), rows[0].gap_ns), (1, 0));
        assert_ne!(rows[0].cookie, first);
        sampler.stop();
        sampler.stop();
        assert_eq!(drain(&mut sampler, at_ns + 2).0, Drained::default());
    });
}

#[test]
fn finds_sockets_without_a_kernel_filter() {
    in_namespace(|| {
        let listener = TcpListener::bind(("127.0.0.1", SERVER_PORT)).unwrap();
        let _pair = connection(&listener, CLIENT_PORT, None);
        let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let _unrelated = connection(&other, 0, None);
        // Uses every second port, so that no two merge into a range.
        let many = (0..6_000u16).map(|index| FlowPorts {
            server_port: 2 * index + SERVER_PORT % 2 + 1_000 - SERVER_PORT % 2,
            ..flow(false, 1)
        });
        let mut flows: Vec<FlowPorts> = many.collect();
        flows.push(flow(false, 1));
        let mut sampler = DiagSampler::new();
        sampler.start(&flows, INTERVAL_NS).unwrap();
        assert!(!sampler.filters_in_kernel());
        let (_, rows) = drain(&mut sampler, 1);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].flow_id, "bulk/0");
    });
}

#[test]
fn returns_every_socket_of_a_dump_with_several_messages() {
    in_namespace(|| {
        let listener = TcpListener::bind(("127.0.0.1", SERVER_PORT)).unwrap();
        let count = 300;
        let _pairs: Vec<_> =
            (0..count).map(|index| connection(&listener, CLIENT_PORT + index, None)).collect();
        let mut sampler = DiagSampler::new();
        sampler.start(&[flow(false, 300), flow(true, 300)], INTERVAL_NS).unwrap();
        for pass in 1..4 {
            let (drained, rows) = drain(&mut sampler, pass * INTERVAL_NS);
            assert_eq!((rows.len(), drained.late), (600, 0));
            let ids: BTreeSet<_> = rows.iter().map(|row| (&row.flow_id, row.side)).collect();
            assert_eq!(ids.len(), 600);
        }
    });
}

/// Returns the value of a key in a line of `ss`, such as "10.04/0.02" in "rtt:10.04/0.02".
fn ss_value<'a>(line: &'a str, key: &str) -> &'a str {
    line.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("no {key} in {line}"))
}

#[test]
fn agrees_with_ss() {
    in_namespace(|| {
        let listener = TcpListener::bind(("127.0.0.1", SERVER_PORT)).unwrap();
        let mut pair = connection(&listener, CLIENT_PORT, Some("bbr"));
        transfer(&mut pair, 3_000_000);
        let mut sampler = DiagSampler::new();
        sampler.start(&[flow(false, 1)], INTERVAL_NS).unwrap();
        let (_, rows) = drain(&mut sampler, clock::monotonic_ns());
        let output = Command::new("ss")
            .args(["-tinHO", "sport", "=", &CLIENT_PORT.to_string()])
            .output()
            .expect("iproute2 is installed");
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().next().expect("a line for the socket");
        let ours = &rows[0];
        assert!(line.contains(" bbr "), "{line}");
        assert_eq!(ours.cc, "bbr");
        // The connection is idle, so both read the same values.
        let number = |key| ss_value(line, key).parse::<u64>().unwrap();
        let (rtt_ms, rttvar_ms) = ss_value(line, "rtt").split_once('/').unwrap();
        let us = |ms: &str| (ms.parse::<f64>().unwrap() * 1e3).round() as u32;
        assert_eq!(ours.rtt_us, Some(us(rtt_ms)));
        assert_eq!(ours.rttvar_us, Some(us(rttvar_ms)));
        assert_eq!(ours.min_rtt_us, Some(us(ss_value(line, "minrtt"))));
        assert_eq!(ours.snd_mss_bytes.map(u64::from), Some(number("mss")));
        assert_eq!(ours.pmtu_bytes.map(u64::from), Some(number("pmtu")));
        assert_eq!(ours.snd_cwnd_pkts.map(u64::from), Some(number("cwnd")));
        assert_eq!(ours.bytes_acked, Some(number("bytes_acked")));
        assert_eq!(ours.bytes_sent, Some(number("bytes_sent")));
        assert_eq!(ours.segs_out_pkts.map(u64::from), Some(number("segs_out")));
        assert_eq!(ours.delivered_pkts.map(u64::from), Some(number("delivered")));
        let wscale = format!("{},{}", ours.snd_wscale.unwrap(), ours.rcv_wscale.unwrap());
        assert_eq!(ss_value(line, "wscale"), wscale);
        assert_eq!(ours.app_limited.unwrap(), line.contains(" app_limited"));
        assert!(ours.bbr_bw_bytes_per_s > Some(0) && ours.cc_info.len() >= 20);
        let bbr = ss_value(line, "bbr");
        let bbr_rtt = bbr.split("mrtt:").nth(1).unwrap();
        assert_eq!(ours.bbr_min_rtt_us, Some(us(bbr_rtt.split(',').next().unwrap())));
    });
}

#[test]
fn host_sampler_stays_in_its_namespace() {
    in_namespace(|| {
        let mut sampler = HostSampler::new(std::process::id()).unwrap();
        // Activity in other namespaces must not appear in this sample.
        let elsewhere = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            for arguments in
                ["link set lo up", "address add 10.9.0.1/32 dev lo", "route add 10.9.0.2 dev lo"]
            {
                let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
                assert!(status.success(), "ip {arguments}");
            }
            let mut other = HostSampler::new(std::process::id()).unwrap();
            sampler.sample(1_000_000_000).unwrap();
            // Nobody has this address, so the SYN is sent again, for the first time after 1 s.
            let nobody = SocketAddr::from(([10, 9, 0, 2], SERVER_PORT));
            TcpStream::connect_timeout(&nobody, Duration::from_secs(3)).unwrap_err();
            (sampler.sample(2_000_000_000).unwrap(), other.sample(2_000_000_000).unwrap())
        });
        let (sample, other) = elsewhere.join().unwrap();
        assert!(other.tcp_retrans_segs > 0, "{other:?}");
        assert_eq!(sample.tcp_retrans_segs, 0);
        assert_eq!((sample.nic_rx_dropped, sample.nic_tx_dropped), (0, 0));
    });
}
