//! The size of a link's memory, and when its loop receives.

use ccbench_proto::plan::{Link, Reorder};
use ccbench_proto::units::{Micros, Ppm, Rate};

use super::*;
use crate::discipline::{FifoLimit, QueueParams};

#[test]
fn memory_is_sized_for_the_link_and_limited() {
    let spec = |rate_bps: Option<u64>, delay_ms, limit| LinkSpec {
        plan: Link {
            rate: rate_bps.map(Rate::from_bits_per_sec),
            delay: Some(Micros::from_millis(delay_ms)),
            ..Link::default()
        },
        queue: QueueParams::TailDrop(limit),
        ..LinkSpec::default()
    };
    // 187 500 B of queue and 125 000 B of delay in frames of 60 B.
    let e1 = spec(Some(100_000_000), 10, FifoLimit::Bytes(187_500));
    assert_eq!(slots_for(&e1, 1600), 16_384 + 3_125 + 2_083);
    // Late packets are in the link three times as long.
    let late = Some(Micros::from_millis(20));
    let reorder = Some(Reorder { late, ..Reorder::new(Ppm::new(500_000).unwrap()) });
    let reordered = LinkSpec { plan: Link { reorder, ..e1.plan.clone() }, ..e1 };
    assert_eq!(slots_for(&reordered, 1600), 16_384 + 3_125 + 3 * 2_083 + 1);
    let huge = spec(None, 10_000, FifoLimit::Packets(u64::MAX));
    assert_eq!(slots_for(&huge, 1600), (512 << 20) / 1600);
}

/// A packet loop without sockets.
fn idle_loop(plan: Link) -> Datapath {
    use rustix::event::{EventfdFlags, eventfd};
    let fd = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let ends = Ends { rx: fd(), tx: fd(), own_address: None, mtu_bytes: 1500 };
    let queue = QueueParams::TailDrop(FifoLimit::Packets(100));
    let spec = LinkSpec { plan, queue, ..LinkSpec::default() };
    Datapath::new(ends, &spec, Arc::new(fd()), Arc::new(Shared::new(None)))
}

/// Of a packet of 121 us that arrived at 1 ms.
#[test]
fn packets_that_cannot_leave_yet_are_received_later() {
    const US: u64 = 1_000;
    let plan = Link { rate: Some(Rate::from_bits_per_sec(100_000_000)), ..Link::default() };
    let with_packet = |plan: &Link| {
        let mut path = idle_loop(plan.clone());
        path.model.arrive(Packet { at_ns: 1_000 * US, bytes: 1514, ..Packet::default() });
        path
    };
    let delayed = Link { delay: Some(Micros::from_millis(10)), ..plan.clone() };
    let delayed = with_packet(&delayed);
    assert!(delayed.needs_none_since(10_700 * US, 11_122 * US), "no other leaves before 20.7 ms");
    assert!(!delayed.needs_none_since(10_600 * US, 11_122 * US), "too long ago for the socket");
    let plain = with_packet(&plan);
    assert!(!plain.needs_none_since(1_100 * US, 1_122 * US), "another may have joined it");
    assert!(plain.needs_none_since(1_122 * US, 1_124 * US));
}
