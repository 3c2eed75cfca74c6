//! Tests impairments and classes with real packets.

use ccbench_proto::plan::{self, Class, Jitter, Policer, Reorder};
use ccbench_proto::resolve::{ClassConfig, PacketMatch};

use super::*;

fn impaired(link: plan::Link) -> LinkConfig {
    with(plan::Link { delay: Some(Micros::from_millis(5)), ..link })
}

#[test]
fn duplicates_every_packet() {
    let lab = Lab::new();
    let socket = receiver(&lab);
    warm_up(&lab, &socket);
    let twice = plan::Link { duplicate: Ppm::new(1_000_000), ..plan::Link::default() };
    let _link = shape(&lab, impaired(twice));
    send(&lab, 0..20, Duration::from_millis(1));
    let wanted: Vec<u32> = (0..20).flat_map(|number| [number, number]).collect();
    assert_eq!(receive(&socket, 40), wanted);
    assert_nothing_more(&socket);
}

#[test]
fn policer_drops_what_exceeds_its_burst() {
    let lab = Lab::new();
    let socket = receiver(&lab);
    warm_up(&lab, &socket);
    // At one byte per second, only the burst passes.
    let policer = Policer { rate: Rate::from_bits_per_sec(8), burst: Bytes::new(10 * FRAME) };
    let policed = plan::Link { policer: Some(policer), ..plan::Link::default() };
    let mut link = shape(&lab, impaired(policed));
    send(&lab, 0..40, Duration::ZERO);
    let row = await_sample(&mut link, |row| row.sent_pkts + row.drops_pkts >= 40);
    assert_eq!((row.sent_pkts, row.drops_pkts, row.drop_policed_pkts), (10, 30, Some(30)));
    assert_eq!(receive(&socket, 10), (0..10).collect::<Vec<_>>());
    assert_nothing_more(&socket);
}

#[test]
fn receiver_checksum_detects_corruption() {
    let lab = Lab::new();
    let socket = receiver(&lab);
    warm_up(&lab, &socket);
    let corrupt = plan::Link { corrupt: Ppm::new(1_000_000), ..plan::Link::default() };
    let mut link = shape(&lab, impaired(corrupt));
    send(&lab, 0..40, Duration::ZERO);
    await_sample(&mut link, |row| row.sent_pkts >= 40);
    link.remove().unwrap();
    // The last datagram is not corrupted, and it arrives after the others.
    send(&lab, 99..100, Duration::ZERO);
    let mut first = receive(&socket, 1);
    while first.last() != Some(&99) {
        first.extend(receive(&socket, 1));
    }
    // A flipped bit in length or port may cause an error other than a bad checksum.
    assert_eq!(first, [99]);
    let counted = |name: &str| -> u64 {
        let text = lab.dst.command(&format!("nstat -asz {name}"));
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    assert!(counted("UdpInCsumErrors") >= 30, "{}", counted("UdpInCsumErrors"));
}

#[test]
fn reorders_only_if_configured() {
    let spread = Micros::from_millis(3);
    let jitter = |reorder| plan::Link {
        jitter: Some(Jitter { spread, reorder, ..Jitter::default() }),
        ..plan::Link::default()
    };
    let overtakers =
        plan::Link { reorder: Ppm::new(200_000).map(Reorder::new), ..plan::Link::default() };
    for (keys, in_order) in [(jitter(false), true), (jitter(true), false), (overtakers, false)] {
        let lab = Lab::new();
        let socket = receiver(&lab);
        warm_up(&lab, &socket);
        let _link = shape(&lab, impaired(keys.clone()));
        // All at once: a sender that waits for a CPU between two packets leaves them too far apart to be reordered.
        send(&lab, 0..60, Duration::ZERO);
        let mut numbers = receive(&socket, 60);
        assert_eq!(numbers.is_sorted(), in_order, "{keys:?}: {numbers:?}");
        numbers.sort_unstable();
        assert_eq!(numbers, (0..60).collect::<Vec<_>>());
    }
}

#[test]
fn class_overtakes_the_default_queue() {
    let lab = Lab::alone();
    let socket = receiver(&lab);
    warm_up(&lab, &socket);
    let voice = ClassConfig {
        name: "voice".to_owned(),
        plan: Class {
            ceil: Some(Rate::from_bits_per_sec(2_000_000)),
            ..Class::new(Rate::from_bits_per_sec(1_000_000))
        },
        matches: vec![PacketMatch { dscp: Some(46), ..PacketMatch::default() }],
        queue: config().queue,
    };
    let mut link = shape(&lab, LinkConfig { classes: vec![voice], ..rated(mbit(2)) });
    let watch = CpuWatch::start();
    lab.src.run(|| {
        let socket = UdpSocket::bind((SRC, 0)).unwrap();
        for number in 0..50_u32 {
            if number == 40 {
                rustix::net::sockopt::set_ip_tos(&socket, 46 << 2).unwrap();
            }
            let mut datagram = [0; DATAGRAM];
            datagram[..4].copy_from_slice(&number.to_be_bytes());
            socket.send_to(&datagram, (DST, 9000)).unwrap();
        }
    });
    let numbers = receive(&socket, 50);
    let cpu = watch.report();
    for (from, to) in [(0, 40), (40, 50)] {
        let of: Vec<u32> = numbers.iter().copied().filter(|n| (from..to).contains(n)).collect();
        assert_eq!(of, (from..to).collect::<Vec<_>>());
    }
    assert_eq!(sample(&mut link).drops_pkts, 0);
    // 40 frames wait for 160 ms. The class's frames, sent last, get every other transmission and arrive 80 ms before the queue is empty.
    let last = |from: u32, to: u32| numbers.iter().rposition(|n| (from..to).contains(n)).unwrap();
    cpu.check(Duration::from_millis(50), || {
        assert!(last(40, 50) < last(0, 40), "{numbers:?}");
    });
}
