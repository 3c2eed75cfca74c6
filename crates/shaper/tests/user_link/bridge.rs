//! Tests a link between two interfaces.

use ccbench_proto::wire::{PacketFate, TimingKind};
use ccbench_shaper::user_link::{Bridge, bridge};

use super::*;

/// Number of rows that fit in the log, and size of a row.
const LOGGED: u64 = 10;
const ROW_BYTES: u64 = 48;

fn join(lab: &Lab, forward: LinkConfig, backward: LinkConfig) -> Bridge {
    lab.router.run(move || bridge("r0", "r1", &forward, &backward).unwrap())
}

#[test]
fn bridge_forwards_every_protocol() {
    let lab = Lab::flat();
    // Neighbour discovery needs broadcast and multicast in both directions.
    let slow = with(plan::Link { rate: mbit(200), ..delayed(1).plan });
    let mut link = join(&lab, slow.clone(), slow);
    transfer(&lab, FLAT_DST, 5_000_000);
    transfer(&lab, FLAT_DST6, 5_000_000);
    let (there, back) = (sample(&mut link.forward), sample(&mut link.backward));
    assert!(there.sent_pkts >= 10_000_000 / 1448, "{there:?}");
    assert!(back.sent_pkts > 100 && back.sent_bytes < there.sent_bytes / 10, "{back:?}");
    assert_eq!((there.iface.as_str(), back.iface.as_str()), ("r1", "r0"));
    let wrong = lab.dst.command("nstat -az TcpInCsumErrors IpInHdrErrors Ip6InHdrErrors");
    assert!(
        wrong.lines().skip(1).all(|line| line.split_whitespace().nth(1) == Some("0")),
        "{wrong}"
    );
    link.forward.remove().unwrap();
    link.backward.remove().unwrap();
    assert!(lab.router.ip("-d link show r1").contains("promiscuity 1"));
    drop(link);
    // Until its exec, a child process of another test holds copies of the sockets.
    let is_off = || lab.router.ip("-d link show r1").contains("promiscuity 0");
    ccbench_tests::wait_for("the end of the promiscuous mode", WAIT_TIMEOUT, is_off);
}

#[test]
fn bridge_rejects_identical_or_missing_interfaces() {
    let lab = Lab::flat();
    let same = lab.router.run(|| bridge("r0", "r0", &config(), &config()).map(|_| ()));
    assert!(matches!(same, Err(ShaperError::Unsupported { .. })), "{same:?}");
    let none = lab.router.run(|| bridge("r0", "nosuchdev", &config(), &config()).map(|_| ()));
    assert!(
        matches!(none, Err(ShaperError::NotFound { .. } | ShaperError::Netlink { .. })),
        "{none:?}"
    );
}

#[test]
fn packet_log_records_packets_up_to_its_size_limit() {
    let lab = Lab::alone();
    let socket = receiver(&lab);
    warm_up(&lab, &socket);
    let queue = Queue::pfifo(Limit::Packets(Packets::new(3)));
    let packet_log = Some(Bytes::new(LOGGED * ROW_BYTES));
    let logged = with(plan::Link { rate: mbit(1), packet_log, ..plan::Link::default() });
    let mut link = shape(&lab, LinkConfig { queue, ..logged });
    let watch = CpuWatch::start();
    send(&lab, 0..12, Duration::ZERO);
    let row = await_sample(&mut link, |row| row.sent_pkts + row.drops_pkts == 12);
    let mut packets = Vec::new();
    let cpu = watch.report();
    link.packets(&mut packets);
    assert_eq!(packets.len() as u64, LOGGED);
    let sent: Vec<_> = packets.iter().filter(|packet| packet.fate() == PacketFate::Sent).collect();
    let dropped = packets.iter().filter(|packet| packet.fate() == PacketFate::Overlimit).count();
    assert_eq!(sent.len() + dropped, packets.len());
    // All packets arrive while the first is transmitted, so drops are logged before the second packet.
    let checked = cpu.check(Duration::from_millis(5), || {
        assert_eq!(dropped as u64, row.drops_pkts);
    });
    if checked.is_none() {
        return;
    }
    for packet in &sent {
        assert_eq!((packet.bytes, packet.ecn, packet.marked), (FRAME as u32, 0, false));
        let (queued, due, sent) = (packet.queued_ns, packet.due_ns, packet.sent_ns);
        assert!(queued == Some(packet.at_ns) && due > queued && sent >= due, "{packet:?}");
        // 1042 B at 1 Mbit/s.
        let on_the_line_us = 8_336;
        let waited_us = (due.unwrap() - queued.unwrap()) / 1000 - on_the_line_us;
        assert!(packet.sojourn_us.unwrap().abs_diff(waited_us) <= 1, "{packet:?}");
    }
    assert!(packets.iter().all(|packet| packet.flow == packets[0].flow && packet.flow != 0));
    let mut timing = Vec::new();
    link.timing(&mut timing);
    let of = |kind| timing.iter().find(|row| row.kind() == kind).unwrap();
    let log = of(TimingKind::Log);
    assert_eq!((log.count, log.missed), (LOGGED, 12 - LOGGED));
    let released = of(TimingKind::Packets);
    assert_eq!((released.count, Some(released.late)), (row.sent_pkts, row.late_pkts));
    assert!(released.p50_us <= released.p99_us && released.p99_us <= released.max_us);
    assert_eq!(row.max_late_us, Some((released.max_us).ceil() as u64));
}
