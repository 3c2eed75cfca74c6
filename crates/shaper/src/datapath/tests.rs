//! Tests the size of a link's memory.

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
    // 187 500 B of queue and 125 000 B of delay, in frames of 60 B.
    let e1 = spec(Some(100_000_000), 10, FifoLimit::Bytes(187_500));
    assert_eq!(slots_for(&e1, 1600), 16_384 + 3_125 + 2_083);
    // Packets that are reordered behind later ones stay in the link three times as long.
    let late = Some(Micros::from_millis(20));
    let reorder = Some(Reorder { late, ..Reorder::new(Ppm::new(500_000).unwrap()) });
    let reordered = LinkSpec { plan: Link { reorder, ..e1.plan.clone() }, ..e1 };
    assert_eq!(slots_for(&reordered, 1600), 16_384 + 3_125 + 3 * 2_083 + 1);
    let huge = spec(None, 10_000, FifoLimit::Packets(u64::MAX));
    assert_eq!(slots_for(&huge, 1600), (512 << 20) / 1600);
}
