//! Tests marking queues with real traffic.

use ccbench_proto::plan;

use super::*;

/// Returns a kernel counter of a node.
fn nstat(node: &lab::Node, name: &str) -> u64 {
    let text = node.command(&format!("nstat -asz {name}"));
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn dualpi2(target: Option<Micros>) -> Queue {
    Queue::Dualpi2(plan::Dualpi2 { target, ..plan::Dualpi2::default() })
}

#[test]
fn step_aqm_marks_l4s_burst_and_receiver_counts_every_mark() {
    let lab = Lab::alone();
    let socket = receiver(&lab);
    warm_up(&lab, &socket);
    // The receiver verifies UDP and IP checksums.
    lab.router.command("ethtool -K r1 tx off");
    let mut link = shape(&lab, LinkConfig { queue: dualpi2(None), ..rated(mbit(10)) });
    let watch = CpuWatch::start();
    lab.src.run(|| {
        let socket = UdpSocket::bind((SRC, 0)).unwrap();
        rustix::net::sockopt::set_ip_tos(&socket, 1).unwrap();
        for number in 0..30_u32 {
            let mut datagram = [0; DATAGRAM];
            datagram[..4].copy_from_slice(&number.to_be_bytes());
            socket.send_to(&datagram, (DST, 9000)).unwrap();
        }
    });
    assert_eq!(receive(&socket, 30), (0..30).collect::<Vec<_>>());
    let cpu = watch.report();
    let row = await_sample(&mut link, |row| row.sent_pkts == 30);
    assert_eq!((row.pkts_in_l, row.pkts_in_c, row.drops_pkts), (Some(30), Some(0), 0));
    let marks = row.step_mark_pkts.unwrap();
    assert_eq!(nstat(&lab.dst, "IpExtInCEPkts"), marks);
    assert_eq!(nstat(&lab.dst, "IpInHdrErrors"), 0);
    // A frame takes 0.83 ms. Unless the sender is interrupted, the third frame and all later ones wait for over 1 ms.
    cpu.check(Duration::from_millis(1), || {
        assert!((10..=28).contains(&marks), "{marks} marks");
    });
}

#[test]
fn classic_ecn_tcp_is_marked_and_delay_stays_near_the_target() {
    let lab = Lab::alone();
    for node in [&lab.src, &lab.dst] {
        node.run(|| std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").unwrap());
    }
    let mut link = shape(&lab, LinkConfig { queue: dualpi2(None), ..rated(mbit(20)) });
    let mut marks = 0;
    for address in [DST, DST6] {
        let lab = &lab;
        let (sender, receiver) = std::sync::mpsc::channel();
        let watch = CpuWatch::start();
        let mut delays_us = std::thread::scope(|scope| {
            scope.spawn(move || {
                transfer(lab, address, 8_000_000);
                sender.send(()).unwrap();
            });
            let mut delays_us = Vec::new();
            while receiver.recv_timeout(Duration::from_millis(10)).is_err() {
                let row = sample(&mut link);
                delays_us.extend(row.delay_c_us.filter(|_| row.qlen_pkts > 0));
                if delays_us.len() > 10_000 {
                    break;
                }
            }
            delays_us
        });
        delays_us.sort_unstable();
        let row = sample(&mut link);
        let so_far = row.ecn_mark_pkts.unwrap();
        // A sender that gets no CPU does not fill the queue.
        let checked = watch.report().check(Duration::from_millis(100), || {
            let median = delays_us[delays_us.len() / 2];
            assert!((4_000..45_000).contains(&median), "{address}: median of {median} us");
            assert!(so_far > marks, "{address}: {row:?}");
            assert!(row.prob.unwrap() < 0.5, "{row:?}");
            // All packets except those of the handshakes are ECN-capable. Others are dropped only if the link runs late.
            assert!(row.drops_pkts <= 2, "{row:?}");
        });
        if checked.is_none() {
            return;
        }
        marks = so_far;
    }
    let seen = nstat(&lab.src, "TcpExtTCPDeliveredCE");
    assert!(seen > 0, "the sender received no feedback for {marks} marks");
}

#[test]
fn every_queue_except_cake_carries_traffic() {
    let ecn = Some(true);
    let threshold = Some(Micros::from_millis(1));
    let bytes = |bytes| Limit::Bytes(Bytes::new(bytes));
    let queues = [
        Queue::Codel(plan::Codel { ecn, ce_threshold: threshold, ..plan::Codel::default() }),
        Queue::FqCodel(plan::FqCodel { ecn, ce_threshold: threshold, ..plan::FqCodel::default() }),
        Queue::Fq(plan::Fq {
            flow_limit: Some(Limit::Packets(Packets::new(1000))),
            buckets: Some(1),
            ce_threshold: threshold,
            ..plan::Fq::default()
        }),
        dualpi2(threshold),
        Queue::Red(plan::Red {
            limit: bytes(187_500),
            min: bytes(30_000),
            max: bytes(90_000),
            probability: None,
            avpkt: None,
            burst: None,
            ecn: None,
            harddrop: None,
            adaptive: None,
            nodrop: None,
        }),
        Queue::PfifoHeadDrop(plan::PfifoHeadDrop { limit: Limit::Packets(Packets::new(100)) }),
        Queue::BfifoHeadDrop(plan::BfifoHeadDrop { limit: bytes(187_500) }),
        Queue::pfifo(Limit::Packets(Packets::new(100))),
        Queue::bfifo(bytes(187_500)),
    ];
    let kinds = queues.each_ref().map(ccbench_shaper::queue_kind);
    // Those of other kinds have the kernel's defaults. None of them requires keys, but the kernel may be required.
    let others = Queue::kinds().iter().copied().filter(|kind| !kinds.contains(kind));
    let others = others.map(|kind| {
        let fields = serde_json::json!({ "kind": kind });
        serde_json::from_value::<Queue>(fields).unwrap_or_else(|error| panic!("{kind}: {error}"))
    });
    let queues = queues.into_iter().chain(others.filter(|queue| !queue.needs_kernel()));
    let lab = Lab::alone();
    for node in [&lab.src, &lab.dst] {
        node.run(|| std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").unwrap());
    }
    for queue in queues {
        let kind = ccbench_shaper::queue_kind(&queue);
        let mut link = shape(&lab, LinkConfig { queue, ..rated(mbit(50)) });
        let watch = CpuWatch::start();
        // DualPI2 marks packets of its classic queue with the square of its probability.
        transfer(&lab, DST, if kind == "dualpi2" { 15_000_000 } else { 5_000_000 });
        let cpu = watch.report();
        let row = sample(&mut link);
        let marks = row.ecn_mark_pkts.unwrap_or(0) + row.ce_mark_pkts.unwrap_or(0);
        // A sender that gets no CPU does not fill the queue. The transfer takes at least 0.8 s.
        if ["codel", "fq_codel", "fq", "dualpi2"].contains(&kind) {
            cpu.check(Duration::from_millis(100), || assert!(marks > 0, "{kind}: {row:?}"));
        }
        assert!(link.state().qdiscs[1].contains(&format!("userspace {kind} ")), "{kind}");
    }
}
