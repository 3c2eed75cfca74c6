use ccbench_proto::plan::Link;
use ccbench_proto::units::{Bytes, Micros, Ppm, Rate};
use proptest::prelude::*;

use super::*;
use crate::discipline::FifoLimit;

fn spec(rate_bps: Option<u64>, delay_ns: u64, limit: FifoLimit) -> LinkSpec {
    let rated = LinkSpec::rated(0, QueueParams::TailDrop(limit));
    let rate = rate_bps.map(Rate::from_bits_per_sec);
    let delay = Some(Micros::new(delay_ns / 1000));
    assert_eq!(delay_ns % 1000, 0);
    LinkSpec { plan: Link { rate, delay, ..Link::default() }, ..rated }
}

fn packet(slot: u32, at_ns: u64, bytes: u32) -> Packet {
    Packet { slot, bytes, at_ns, ..Packet::default() }
}

fn drain(link: &mut LinkModel) -> Vec<(u32, u64)> {
    std::iter::from_fn(|| link.pop_departed()).map(|p| (p.slot, p.at_ns)).collect()
}

#[test]
fn packet_takes_delay_plus_transmission_time() {
    let mut link = LinkModel::new(&spec(Some(8_000_000), 10_000, FifoLimit::Packets(10)), 16, 1514);
    let mut freed = Vec::new();
    assert_eq!(link.next_due_ns(), u64::MAX);
    assert_eq!(link.arrive(packet(1, 500, 1000)), Arrival::Accepted);
    assert_eq!(link.next_due_ns(), 500 + 10_000 + 1_000_000);
    link.advance(1_010_499, &mut freed);
    assert_eq!(link.next_due_ns(), 1_010_500);
    assert!(drain(&mut link).is_empty());
    link.advance(1_010_500, &mut freed);
    assert_eq!(drain(&mut link), [(1, 1_010_500)]);
}

#[test]
fn queue_limit_excludes_the_packet_in_transmission() {
    let mut link = LinkModel::new(&spec(Some(8_000_000), 0, FifoLimit::Packets(2)), 16, 1514);
    let mut freed = Vec::new();
    for slot in 0..5 {
        link.arrive(packet(slot, 0, 1000));
    }
    link.advance(0, &mut freed);
    assert_eq!(freed, [3, 4]);
    assert_eq!(link.backlog(), (2, 2000));
    link.advance(10_000_000, &mut freed);
    assert_eq!(drain(&mut link), [(0, 1_000_000), (1, 2_000_000), (2, 3_000_000)]);
    assert_eq!(link.counts().dropped, 2);
}

#[test]
fn late_wakeup_gives_the_same_times() {
    let make = || LinkModel::new(&spec(Some(1_000_000), 5_000, FifoLimit::Bytes(4_000)), 64, 1514);
    let (mut prompt, mut late) = (make(), make());
    let (mut freed_prompt, mut freed_late) = (Vec::new(), Vec::new());
    for slot in 0..20 {
        let arrival = packet(slot, u64::from(slot) * 3_000_000, 1_000);
        prompt.arrive(arrival);
        prompt.advance(arrival.at_ns, &mut freed_prompt);
        late.arrive(arrival);
    }
    prompt.advance(1_000_000_000, &mut freed_prompt);
    late.advance(1_000_000_000, &mut freed_late);
    assert_eq!(drain(&mut prompt), drain(&mut late));
    assert_eq!(freed_prompt, freed_late);
    assert!(!freed_late.is_empty());
}

#[test]
fn rate_change_applies_to_current_and_queued_packets() {
    let mut link = LinkModel::new(&spec(Some(8_000_000), 0, FifoLimit::Packets(10)), 16, 1514);
    let mut freed = Vec::new();
    link.arrive(packet(0, 0, 1000));
    link.arrive(packet(1, 0, 1000));
    link.set_rate(500_000, Some(16_000_000), &mut freed);
    link.advance(9_000_000, &mut freed);
    assert_eq!(drain(&mut link), [(0, 750_000), (1, 1_250_000)]);
}

#[test]
fn unlimited_link_only_delays() {
    let mut link = LinkModel::new(&spec(None, 10_000_000, FifoLimit::Packets(1)), 64, 1514);
    let mut freed = Vec::new();
    for slot in 0..50 {
        link.arrive(packet(slot, 100, 1514));
    }
    assert_eq!(link.next_due_ns(), 10_000_100);
    link.advance(10_000_100, &mut freed);
    assert_eq!(drain(&mut link).len(), 50);
    assert!(freed.is_empty());
}

proptest! {
    /// Every packet leaves in order or is counted as lost, dropped or in the link. None leaves before its delay and transmission time. The
    /// line never exceeds its rate.
    #[test]
    fn packets_are_conserved_and_stay_in_order(
        rate in 100_000_u64..1_000_000_000,
        delay in (0_u64..20_000).prop_map(|us| us * 1000),
        loss_ppm in prop_oneof![Just(0_u32), 0_u32..500_000],
        by_bytes in any::<bool>(),
        limit in 1_u64..50,
        arrivals in proptest::collection::vec((0_u64..2_000_000, 60_u32..1515, any::<bool>()), 1..200),
        end in 0_u64..500_000_000,
    ) {
        let limit = if by_bytes { FifoLimit::Bytes(limit * 1514) } else { FifoLimit::Packets(limit) };
        let mut spec = LinkSpec { seed: rate, ..spec(Some(rate), delay, limit) };
        spec.plan.loss = Ppm::new(loss_ppm);
        let mut link = LinkModel::new(&spec, arrivals.len(), 1514);
        let mut freed = Vec::new();
        let mut now = 0;
        let mut sent = Vec::new();
        let mut out = Vec::new();
        for (slot, (gap, bytes, advance)) in arrivals.iter().enumerate() {
            now += gap;
            let entered = link.arrive(packet(slot as u32, now, *bytes));
            sent.push((now, *bytes, entered == Arrival::Accepted));
            if *advance {
                link.advance(now, &mut freed);
                out.extend(drain(&mut link));
            }
        }
        link.advance(now + end, &mut freed);
        out.extend(drain(&mut link));

        let counts = link.counts();
        let (queued_pkts, queued) = link.backlog();
        let packets_inside = link.packets_inside();
        prop_assert_eq!(counts.arrived as usize, arrivals.len());
        prop_assert_eq!(counts.dropped as usize, freed.len());
        prop_assert_eq!(counts.departed as usize, out.len());
        prop_assert_eq!(counts.arrived, counts.lost + counts.dropped + counts.departed + packets_inside as u64);
        prop_assert!(by_bytes || queued_pkts <= 50, "{}", queued);

        prop_assert!(out.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1));
        let mut free_at = 0;
        for (slot, due) in out {
            let (arrived, bytes, entered) = sent[slot as usize];
            prop_assert!(entered);
            let takes = u64::from(bytes) * 8_000_000_000 / rate;
            let start = (arrived + delay).max(free_at);
            // Rounded down, with at most one nanosecond carried.
            prop_assert!(due >= start + takes && due <= start + takes + 1, "{due} {start} {takes}");
            free_at = due;
        }
    }
}

mod impaired {
    use ccbench_proto::plan::{BurstLoss, Distribution, Jitter, Reorder};

    use super::*;

    const MS: u64 = 1_000_000;

    fn ppm(n: u32) -> Ppm {
        Ppm::new(n).unwrap()
    }

    fn jitter(distribution: Distribution, reorder: bool) -> Option<Jitter> {
        let spread = Micros::from_millis(4);
        Some(Jitter { spread, distribution, reorder, ..Jitter::default() })
    }

    type Outcome = (Vec<(u32, u64)>, Vec<(u32, u64)>, Vec<u32>);

    /// Lets `arrivals` packets arrive. Returns slot and time of each departure (slots of copies start at 10 000), the bits to flip, and the
    /// lost packets.
    fn run(link: &Link, arrivals: u32) -> Outcome {
        let mut spec = spec(Some(1_000_000_000), 10 * MS, LIMIT);
        spec.plan = Link { rate: spec.plan.rate, delay: spec.plan.delay, ..link.clone() };
        let mut link = LinkModel::new(&spec, 20_000, 1514);
        let (mut freed, mut flips, mut lost, mut out) = (vec![], vec![], vec![], vec![]);
        for slot in 0..arrivals {
            let at_ns = u64::from(slot) * 200_000 + 1;
            let arrival = packet(slot, at_ns, 1000);
            match link.arrive(arrival) {
                Arrival::Accepted => {}
                Arrival::Lost => lost.push(slot),
                Arrival::Policed => panic!("the link has no policer"),
                Arrival::Changed { ecn, flip, copy_due_ns } => {
                    assert_eq!(ecn, None);
                    flips.extend(flip.map(|draw| (slot, draw)));
                    if let Some(at_ns) = copy_due_ns {
                        link.arrive_copy(Packet { slot: slot + 10_000, at_ns, ..arrival });
                    }
                }
            }
            // Packets that are due by now cannot be overtaken by later arrivals.
            link.advance(at_ns, &mut freed);
            out.extend(drain(&mut link));
        }
        link.advance(1 << 50, &mut freed);
        out.extend(drain(&mut link));
        let counts = link.counts();
        assert_eq!(counts.arrived + counts.duplicated, counts.lost + counts.departed);
        assert_eq!((counts.lost, counts.corrupted), (lost.len() as u64, flips.len() as u64));
        assert!(freed.is_empty() && link.packets_inside() == 0);
        assert!(out.windows(2).all(|two| two[0].1 <= two[1].1));
        (out, flips, lost)
    }

    const LIMIT: FifoLimit = FifoLimit::Packets(10_000);

    fn slots((out, ..): &Outcome) -> Vec<u32> {
        out.iter().map(|(slot, _)| *slot).collect()
    }

    #[test]
    fn same_seed_and_arrivals_give_same_result() {
        let everything = Link {
            loss: Some(ppm(10_000)),
            jitter: jitter(Distribution::Pareto, true),
            burst_loss: Some(BurstLoss {
                enter: ppm(10_000),
                leave: ppm(200_000),
                ..BurstLoss::default()
            }),
            duplicate: Some(ppm(30_000)),
            reorder: Some(Reorder::new(ppm(50_000))),
            corrupt: Some(ppm(20_000)),
            ..Link::default()
        };
        let first = run(&everything, 3_000);
        assert_eq!(first, run(&everything, 3_000));
        let twice = first.0.iter().filter(|(slot, _)| *slot >= 10_000).count();
        assert!((50..120).contains(&twice) && (30..90).contains(&first.1.len()), "{twice}");
        assert!((100..260).contains(&first.2.len()), "{}", first.2.len());
        // Fewer impairments do not change the decisions of the others.
        let fewer = Link { duplicate: None, reorder: None, ..everything };
        let other = run(&fewer, 3_000);
        assert_eq!((other.1, other.2), (first.1, first.2));
    }

    #[test]
    fn jitter_reorders_only_if_enabled() {
        for distribution in [Distribution::Uniform, Distribution::Normal, Distribution::Pareto] {
            let asked = |reorder| Link { jitter: jitter(distribution, reorder), ..Link::default() };
            let kept = run(&asked(false), 2_000);
            assert_eq!(slots(&kept), (0..2_000).collect::<Vec<_>>(), "{distribution:?}");
            let free = run(&asked(true), 2_000);
            assert!(!slots(&free).is_sorted());
            // Both use the same draws. Keeping the order only adds delay.
            let due = |of: &[(u32, u64)]| {
                let mut of = of.to_vec();
                of.sort_unstable();
                of
            };
            for (kept, free) in due(&kept.0).iter().zip(due(&free.0)) {
                assert!(kept.1 + 9_000 >= free.1, "{kept:?} {free:?}");
            }
        }
    }

    #[test]
    fn copy_directly_follows_the_original() {
        for jitter in [None, jitter(Distribution::Normal, true)] {
            let all = Link { duplicate: Some(ppm(1_000_000)), jitter, ..Link::default() };
            let first = run(&all, 200);
            for pair in first.0.chunks(2) {
                assert_eq!(pair[0].0 + 10_000, pair[1].0);
            }
        }
    }

    #[test]
    fn reordered_packets_are_undelayed_and_others_stay_in_order() {
        let reorder = Some(Reorder::new(ppm(100_000)));
        let first = run(&Link { reorder, ..Link::default() }, 1_000);
        let arrived = |slot: u32| u64::from(slot) * 200_000 + 1;
        let (soon, late): (Vec<_>, Vec<_>) =
            first.0.iter().partition(|(slot, at_ns)| at_ns - arrived(*slot) < 5 * MS);
        assert!((70..130).contains(&soon.len()), "{}", soon.len());
        // 1000 bytes take 8 us. Two packets may compete for the line.
        assert!(soon.iter().all(|(slot, at_ns)| at_ns - arrived(*slot) <= 16_000));
        assert!(late.iter().all(|(slot, at_ns)| at_ns - arrived(*slot) >= 10 * MS + 8_000));
        assert!(late.windows(2).all(|two| two[0].0 < two[1].0));
    }

    #[test]
    fn delay_change_applies_to_later_arrivals_in_order() {
        let mut link = LinkModel::new(&spec(None, 10 * MS, LIMIT), 64, 1514);
        let mut freed = Vec::new();
        link.arrive(packet(0, MS, 1000));
        link.set_delay(2 * MS, 3 * MS);
        // Passed to the model late, although it arrived before the change.
        link.arrive(packet(1, MS + 5, 1000));
        link.arrive(packet(2, 2 * MS, 1000));
        link.arrive(packet(3, 9 * MS, 1000));
        link.set_delay(10 * MS, 30 * MS);
        link.arrive(packet(4, 10 * MS, 1000));
        link.advance(100 * MS, &mut freed);
        let wanted = [(0, 11 * MS), (1, 11 * MS + 5), (2, 11 * MS + 5), (3, 12 * MS), (4, 40 * MS)];
        assert_eq!(drain(&mut link), wanted);
    }

    #[test]
    fn loss_change_applies_from_the_next_arrival() {
        let mut link = LinkModel::new(&spec(None, 0, LIMIT), 64, 1514);
        assert_eq!(link.arrive(packet(0, 1, 1000)), Arrival::Accepted);
        link.set_loss(1_000_000);
        assert_eq!(link.arrive(packet(1, 2, 1000)), Arrival::Lost);
        link.set_loss(0);
        assert_eq!(link.arrive(packet(2, 3, 1000)), Arrival::Accepted);
    }

    #[test]
    fn overhead_counts_on_the_line_not_in_the_queue() {
        for (overhead_bytes, took_ns) in [(14, 1_000_000), (38, 1_024_000), (0, 986_000)] {
            let mut spec = spec(Some(8_000_000), 0, FifoLimit::Bytes(1_000));
            spec.plan.overhead = Some(Bytes::new(overhead_bytes));
            let mut link = LinkModel::new(&spec, 16, 1514);
            let mut freed = Vec::new();
            for slot in 0..3 {
                link.arrive(packet(slot, 0, 1000));
            }
            link.advance(0, &mut freed);
            assert_eq!((link.backlog(), freed.as_slice()), ((1, 1000), &[2][..]));
            link.advance(10 * MS, &mut freed);
            assert_eq!(drain(&mut link), [(0, took_ns), (1, 2 * took_ns)]);
        }
    }
}

mod traces {
    use std::sync::Arc;

    use ccbench_proto::plan::{TraceStart, TraceUse};
    use ccbench_proto::trace::{self, Replay};

    use super::*;

    fn traced(text: &str, start: TraceStart) -> LinkSpec {
        let trace = Arc::new(trace::parse("t", text.as_bytes()).unwrap());
        let replay = Replay { trace, plan: TraceUse { start, ..TraceUse::new("t") } };
        LinkSpec { trace: Some(replay), ..spec(Some(1), 5 * MS, LIMIT) }
    }

    const MS: u64 = 1_000_000;
    const LIMIT: FifoLimit = FifoLimit::Packets(100);

    /// Returns the due times of packets of 1000 bytes that arrive at these times.
    fn due(model: &mut LinkModel, arrivals: &[u64]) -> Vec<u64> {
        let mut freed = Vec::new();
        let mut due = Vec::new();
        for (slot, &at_ns) in (0..).zip(arrivals) {
            model.arrive(Packet { at_ns, bytes: 1000, slot, ..Packet::default() });
            model.advance(at_ns, &mut freed);
        }
        model.advance(1_000_000 * MS, &mut freed);
        while let Some(packet) = model.pop_departed() {
            due.push(packet.at_ns);
        }
        due
    }

    #[test]
    fn follows_delay_and_rate_of_the_trace() {
        let text = "t_us,rate_bps,delay_us\n0,8000000,1000\n10000,4000000,\n20000,8000000,2000\n";
        let mut model = LinkModel::new(&traced(text, TraceStart::Trial), 100, 1514);
        // Before the trace begins, its first row applies.
        assert_eq!(due(&mut model, &[0]), [2 * MS]);
        model = LinkModel::new(&traced(text, TraceStart::Trial), 100, 1514);
        model.begin(100 * MS);
        // Delay and transmission: 1 and 1 ms; 5 (the configured delay) and 2 ms; 2 and 1 ms.
        let at = [100 * MS, 111 * MS, 121 * MS];
        assert_eq!(due(&mut model, &at), [102 * MS, 118 * MS, 124 * MS]);
        assert_eq!(model.trace_began_ns(), Some(100 * MS));
    }

    #[test]
    fn trace_can_begin_with_the_first_packet() {
        let text = "t_us,rate_bps\n0,8000000\n2000,4000000\n";
        let mut spec = traced(text, TraceStart::FirstPacket);
        spec.plan.delay = None;
        let mut model = LinkModel::new(&spec, 100, 1514);
        assert_eq!(due(&mut model, &[50 * MS]), [51 * MS]);
        model = LinkModel::new(&spec, 100, 1514);
        model.begin(60 * MS);
        let at = [50 * MS, 70 * MS, 71 * MS, 72 * MS];
        assert_eq!(due(&mut model, &at), [51 * MS, 71 * MS, 72 * MS, 74 * MS]);
        assert_eq!(model.trace_began_ns(), Some(70 * MS));
    }

    #[test]
    fn follows_loss_of_the_trace() {
        let text = "t_us,loss_ppm\n0,0\n10000,1000000\n20000,0\n";
        let mut spec = traced(text, TraceStart::Trial);
        spec.plan.rate = None;
        let mut model = LinkModel::new(&spec, 100, 1514);
        model.begin(0);
        let at: Vec<u64> = (0..30).map(|nth| nth * MS).collect();
        let due = due(&mut model, &at);
        assert_eq!((due.len(), model.counts().lost), (20, 10));
        assert!(due.iter().all(|&at| !(15 * MS..25 * MS).contains(&at)));
    }
}
