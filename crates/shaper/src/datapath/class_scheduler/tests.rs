use ccbench_proto::plan::{Class, Link};
use ccbench_proto::units::Rate;
use proptest::prelude::*;

use super::*;
use crate::datapath::classes::ClassSpec;
use crate::datapath::model::{LinkModel, LinkSpec};
use crate::discipline::red::RedParams;
use crate::discipline::{FifoLimit, QueueParams};

const MBIT: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

fn bps(mbit: u64) -> Rate {
    Rate::from_bits_per_sec(mbit * MBIT)
}

fn class(rate: u64, ceil: u64, priority: u8) -> ClassSpec {
    ClassSpec {
        plan: Class { ceil: Some(bps(ceil)), priority: Some(priority), ..Class::new(bps(rate)) },
        queue: QueueParams::TailDrop(FifoLimit::Packets(100)),
        matches: Vec::new(),
    }
}

fn link(rate: u64, classes: Vec<ClassSpec>) -> LinkSpec {
    LinkSpec {
        plan: Link { rate: Some(bps(rate)), ..Link::default() },
        queue: QueueParams::TailDrop(FifoLimit::Packets(100)),
        classes,
        ..LinkSpec::default()
    }
}

/// Offers frames of 1250 bytes at these rates (Mbit/s per class; 0 is the default class) for `seconds`. Returns the throughput of each
/// class in the second half, Mbit/s.
fn shares(spec: &LinkSpec, offered: &[u64], seconds: u64) -> Vec<f64> {
    let mut model = LinkModel::new(spec, 4096, 1514);
    let mut free: Vec<u32> = (0..4096).collect();
    let mut sent = vec![0_u64; offered.len()];
    let mut owed = vec![0_u64; offered.len()];
    // One frame of 1250 bytes per millisecond is 10 Mbit/s.
    let (step_ns, end_ns) = (100_000, seconds * SECOND);
    for now_ns in (0..end_ns).step_by(step_ns as usize) {
        for (class, rate) in offered.iter().enumerate() {
            owed[class] += rate;
            while owed[class] >= 100 {
                owed[class] -= 100;
                let slot = free.pop().unwrap();
                let (class, at_ns) = (class as u8, now_ns);
                model.arrive(Packet { slot, bytes: 1250, at_ns, class, ..Packet::default() });
            }
        }
        model.advance(now_ns, &mut free);
        while let Some(packet) = model.pop_departed() {
            free.push(packet.slot);
            if packet.at_ns >= end_ns / 2 {
                sent[usize::from(packet.class)] += 10_000;
            }
        }
    }
    sent.iter().map(|bits| *bits as f64 / (end_ns / 2) as f64 * 1e9 / 1e6).collect()
}

#[track_caller]
fn assert_close(found: &[f64], wanted: &[f64]) {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 0.02 * b + 0.05;
    assert!(found.iter().zip(wanted).all(close), "{found:?}, not {wanted:?}");
}

#[test]
fn classes_get_their_rate_and_share_the_excess_by_rate() {
    // Guaranteed: 20, 30, and 50 for the default class.
    let spec = link(100, vec![class(20, 100, 0), class(30, 100, 0)]);
    assert_close(&shares(&spec, &[200, 200, 200], 4), &[50.0, 20.0, 30.0]);
    // The default class is idle: its 50 are shared 2:3.
    assert_close(&shares(&spec, &[0, 200, 200], 4), &[0.0, 40.0, 60.0]);
    // A single active class gets the whole rate.
    assert_close(&shares(&spec, &[0, 200, 0], 4), &[0.0, 100.0, 0.0]);
    // A class that offers less than its rate gets what it offers.
    assert_close(&shares(&spec, &[5, 200, 10], 4), &[5.0, 85.0, 10.0]);
}

#[test]
fn ceil_is_exact_and_not_work_conserving() {
    let spec = link(100, vec![class(20, 35, 0), class(30, 100, 0)]);
    assert_close(&shares(&spec, &[0, 200, 0], 4), &[0.0, 35.0, 0.0]);
    assert_close(&shares(&spec, &[0, 200, 200], 4), &[0.0, 35.0, 65.0]);
    // Packets of a class at its ceil are equally far apart, to the nanosecond.
    let mut model = LinkModel::new(&link(100, vec![class(7, 7, 0)]), 256, 1514);
    for slot in 0..100 {
        let packet = Packet { slot, bytes: 1000, at_ns: 1, class: 1, ..Packet::default() };
        model.arrive(packet);
    }
    model.advance(SECOND, &mut Vec::new());
    let times: Vec<u64> = std::iter::from_fn(|| model.pop_departed()).map(|p| p.at_ns).collect();
    assert_eq!(times.len(), 100);
    // 8000 bits at 7 Mbit/s take 1142857.14 ns. The full bucket first allowed a burst.
    let steady: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).skip(20).collect();
    assert!(steady.iter().all(|gap| (1_142_857..=1_142_858).contains(gap)), "{steady:?}");
    let mean = steady.iter().sum::<u64>() as f64 / steady.len() as f64;
    assert!((mean - 1_142_857.142_857).abs() < 0.02, "{mean}");
}

#[test]
fn excess_goes_to_the_highest_priority() {
    let spec = link(100, vec![class(20, 100, 1), class(30, 100, 2)]);
    // The default class has priority 0.
    assert_close(&shares(&spec, &[200, 200, 200], 4), &[50.0, 20.0, 30.0]);
    assert_close(&shares(&spec, &[0, 200, 200], 4), &[0.0, 70.0, 30.0]);
    assert_close(&shares(&spec, &[10, 200, 200], 4), &[10.0, 60.0, 30.0]);
    assert_close(&shares(&spec, &[200, 0, 200], 4), &[70.0, 0.0, 30.0]);
}

#[test]
fn unequal_rates_keep_their_weights() {
    let spec = link(100, vec![class(1, 100, 0), class(50, 100, 0), class(10, 100, 0)]);
    let wanted: Vec<f64> = [1.0, 50.0, 10.0].iter().map(|r| r * 100.0 / 61.0).collect();
    assert_close(&shares(&spec, &[0, 300, 300, 300], 20), &[0.0, wanted[0], wanted[1], wanted[2]]);
}

#[test]
fn link_rate_change_scales_all_classes() {
    let spec = link(100, vec![class(20, 40, 0), class(30, 100, 0)]);
    let mut model = LinkModel::new(&spec, 4096, 1514);
    let mut freed = Vec::new();
    model.set_rate(0, Some(50 * MBIT), &mut freed);
    let mut sent = [0; 3];
    let mut free: Vec<u32> = (0..4096).collect();
    for ms in 0..2000 {
        for class in [1, 2] {
            for _ in 0..10 {
                let slot = free.pop().unwrap();
                let at_ns = ms * 1_000_000;
                model.arrive(Packet { slot, bytes: 1250, at_ns, class, ..Packet::default() });
            }
        }
        model.advance(ms * 1_000_000, &mut free);
        while let Some(packet) = model.pop_departed() {
            free.push(packet.slot);
            if packet.at_ns >= SECOND {
                sent[usize::from(packet.class)] += 1;
            }
        }
    }
    // 5000 frames per second. The first class has a ceil of 20 Mbit/s, 2000 frames.
    assert!((1990..=2010).contains(&sent[1]) && (2985..=3010).contains(&sent[2]), "{sent:?}");
}

#[test]
fn average_of_a_red_class_decays_while_it_is_idle() {
    let red = RedParams {
        limit: 1_000_000,
        qth_min: 1000,
        qth_max: 500_000,
        max_p_ppm: 10,
        wlog: 1,
        packet_time_ns: 100_000,
        ecn: false,
        harddrop: false,
        adaptive: false,
        nodrop: false,
    };
    let spec = link(100, vec![ClassSpec { queue: QueueParams::Red(red), ..class(50, 100, 0) }]);
    // Another class keeps the line busy, or none does.
    for others in [0, 50] {
        let mut model = LinkModel::new(&spec, 256, 1514);
        let mut freed = Vec::new();
        let frame =
            |slot, at_ns, class| Packet { slot, bytes: 1250, at_ns, class, ..<_>::default() };
        for slot in 0..20 {
            model.arrive(frame(slot, 1, 1));
        }
        for slot in 0..others {
            model.arrive(frame(100 + slot, 2, 0));
        }
        model.advance(SECOND / 100, &mut freed);
        assert!(model.queue_stats().prob > 0);
        // More than 100 packet times after the class was found empty.
        model.arrive(frame(50, SECOND / 50, 1));
        model.advance(SECOND, &mut freed);
        assert_eq!((model.queue_stats().prob, freed.len()), (0, 0), "{others}");
    }
}

#[test]
fn reports_when_a_class_below_its_ceil_may_send() {
    let mut model = LinkModel::new(&link(100, vec![class(1, 1, 0)]), 64, 1514);
    for slot in 0..20 {
        let packet = Packet { slot, bytes: 1250, at_ns: 0, class: 1, ..Packet::default() };
        model.arrive(packet);
    }
    let mut freed = Vec::new();
    let (mut left, mut last_ns, mut now_ns) = (0, 0, 0);
    while left < 20 {
        model.advance(now_ns, &mut freed);
        while let Some(packet) = model.pop_departed() {
            left += 1;
            last_ns = packet.at_ns;
        }
        let due_ns = model.next_due_ns();
        assert!(left == 20 || due_ns > now_ns, "{left} at {now_ns}");
        now_ns = due_ns;
    }
    // 20 frames of 10 ms each, minus the initial burst from the full bucket.
    assert!((150_000_000..=180_000_000).contains(&last_ns), "{last_ns}");
    assert!(freed.is_empty());
}

proptest! {
    /// The line never idles while a class below its ceil has packets; no class exceeds its ceil; in = out + queued.
    #[test]
    fn work_conserving_below_the_ceils(
        classes in proptest::collection::vec((1_u64..40, 0_u64..80, 0_u8..3), 1..5),
        arrivals in proptest::collection::vec((0_u64..300_000, 60_u32..1515, 0_u8..6), 1..300),
    ) {
        let specs: Vec<ClassSpec> =
            classes.iter().map(|&(rate, more, priority)| class(rate, rate + more, priority)).collect();
        let spec = link(100, specs.clone());
        let mut model = LinkModel::new(&spec, arrivals.len(), 1514);
        let (mut now_ns, mut freed) = (0, Vec::new());
        for (slot, &(gap_ns, bytes, class)) in arrivals.iter().enumerate() {
            now_ns += gap_ns;
            let slot = slot as u32;
            model.arrive(Packet { slot, bytes, at_ns: now_ns, class, ..Packet::default() });
        }
        model.advance(now_ns + 3_600 * SECOND, &mut freed);
        let out: Vec<Packet> = std::iter::from_fn(|| model.pop_departed()).collect();
        prop_assert_eq!(out.len() + freed.len(), arrivals.len());
        prop_assert_eq!(model.backlog(), (0, 0));
        for (nth, class) in (1_u8..).zip(&specs) {
            let of: Vec<&Packet> = out.iter().filter(|p| p.class == nth).collect();
            // Packets of a class stay in order.
            prop_assert!(of.windows(2).all(|two| two[0].slot < two[1].slot));
            if class.ceil_bps() < 100 * MBIT {
                let burst = 8.0 * 1514.0 * (2.0 * classes.len() as f64 + 6.0);
                let bits: u64 = of.iter().map(|p| u64::from(p.bytes) * 8).sum();
                if let (Some(first), Some(last)) = (of.first(), of.last()) {
                    let allowed = class.ceil_bps() as f64 * (last.at_ns - first.at_ns) as f64 / 1e9;
                    prop_assert!(bits as f64 <= allowed + burst, "{bits} {allowed}");
                }
            }
        }
        // The default class may use the whole link, so the line is busy while one of its packets waits.
        let rest: Vec<&Packet> = out
            .iter()
            .filter(|p| p.class == 0 || usize::from(p.class) > specs.len())
            .collect();
        let mut arrived = vec![0; arrivals.len()];
        let mut at_ns = 0;
        for (slot, (gap_ns, _, _)) in arrivals.iter().enumerate() {
            at_ns += gap_ns;
            arrived[slot] = at_ns;
        }
        for packet in rest {
            let since_ns = arrived[packet.slot as usize];
            let busy: u64 = out
                .iter()
                .map(|p| {
                    let begins = p.at_ns.saturating_sub(u64::from(p.bytes) * 80);
                    p.at_ns.min(packet.at_ns).saturating_sub(begins.max(since_ns))
                })
                .sum();
            let waited_ns = packet.at_ns - since_ns;
            prop_assert!(busy + 2 * out.len() as u64 >= waited_ns, "idle for {}", waited_ns - busy);
        }
    }
}
