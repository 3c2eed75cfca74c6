//! Tests DualPI2's rules one at a time.

use super::*;
use crate::datapath::random::Purpose;
use crate::discipline::tests::{Numbers, Samples};

const MS: u64 = 1_000_000;

impl Samples for Dualpi2 {
    fn small() -> Vec<Dualpi2Params> {
        let early = Dualpi2Params { limit: 40, target_ns: MS, ..Dualpi2Params::default() };
        vec![early, Dualpi2Params { drop_dequeue: false, drop_overload: false, ..early }]
    }

    fn any(numbers: &Numbers) -> Dualpi2Params {
        let Numbers { limit, bytes, small, any, time_ns, other_ns, flags } = *numbers;
        Dualpi2Params {
            limit,
            target_ns: time_ns,
            tupdate_ns: other_ns,
            alpha: any % 65_537,
            beta: any / 65_537 + 1,
            step_thresh_ns: time_ns % 2_000_000,
            coupling_factor: (any % 255) as u8 + 1,
            drop_overload: flags[0],
            drop_dequeue: flags[2],
            c_protection: (any % 101) as u8,
            step_thresh_pkts: flags[1].then_some(small),
            min_qlen_step: small % 8,
            memory_limit: flags[3].then_some(bytes),
            any_ect: flags[1],
        }
    }

    fn golden() -> Vec<(Dualpi2Params, &'static str)> {
        let late = Dualpi2Params { step_thresh_ns: 60 * MS, ..Dualpi2Params::default() };
        vec![(
            late,
            "-132 -136 -188 -228 -256 -258 -260 -266 -270 -274 -280 -294 -300 -304 -308 -328 -340 -344 -377 \
             -384 -385 -389 *93 *101 *153 *161 *169 *173 *189 *213 *217 *229 *233 *166 *241 *245 *249 *261 \
             *265 *269 *277 *289 *297 *301 *305 *309 *313 *317 *321 *222 *325 *329 *337 *341 *345 *349 *353 \
             *357 *361 *365 *369 *373 *381 *393 *397 *342 *350 *366 *386",
        )]
    }
}

fn empty(params: Dualpi2Params, capacity: usize, frame_bytes: u32, seed: u64) -> Dualpi2 {
    Dualpi2::new(params, capacity, frame_bytes, Random::new(seed, Purpose::Queue(0)))
}

fn packet(slot: u32, ecn: Ecn, at_ns: u64) -> Packet {
    Packet { slot, bytes: 1514, ecn, at_ns, ..Packet::default() }
}

fn filled(params: Dualpi2Params, classic: u32, low: u32) -> Dualpi2 {
    let mut queue = empty(params, 10_000, 1514, 1);
    for slot in 0..classic + low {
        let ecn = if slot < classic { Ecn::NotEct } else { Ecn::Ect1 };
        queue.enqueue(packet(slot, ecn, 0), &mut Vec::new());
    }
    queue
}

#[test]
fn probability_follows_the_pi_controller() {
    let mut queue = filled(Dualpi2Params::default(), 3, 0);
    // After 16 ms, the head has waited 16 ms: 1 ms above the target, and 16 ms more than at the last update.
    // 0.001 s x 41/256 Hz + 0.016 s x 819/256 Hz = 0.00016016 + 0.0511875 = 0.05134766.
    queue.advance_to(16 * MS);
    let share = |queue: &Dualpi2| queue.stats(0).prob as f64 / ONE as f64;
    assert!((share(&queue) - 0.051_347_656).abs() < 1e-9, "{}", share(&queue));
    // Then 32 ms: 0.017 x 41/256 + 0.016 x 819/256 = 0.00272266 + 0.0511875.
    queue.advance_to(32 * MS);
    assert!((share(&queue) - 0.105_257_813).abs() < 1e-9, "{}", share(&queue));
    // An empty queue: -0.015 x 41/256 - 0.032 x 819/256 = -0.00240234 - 0.102375.
    while queue.dequeue(32 * MS, &mut Vec::new()).is_some() {}
    queue.advance_to(48 * MS);
    assert!((share(&queue) - 0.000_480_469).abs() < 1e-9, "{}", share(&queue));
    queue.advance_to(64 * MS);
    assert_eq!(share(&queue), 0.0);
}

#[test]
fn skips_updates_of_a_long_idle_time() {
    let mut queue = filled(Dualpi2Params { tupdate_ns: 1, ..Dualpi2Params::default() }, 0, 0);
    queue.advance_to(5);
    queue.advance_to(3_600_000 * MS);
    assert_eq!(queue.next_update_ns, Some(3_600_000 * MS + 1));
}

/// Returns the shares of packets marked and dropped at a fixed probability.
fn fate(params: Dualpi2Params, prob: u64, ecn: Ecn) -> (f64, f64) {
    let mut queue = empty(params, 64, 100, 9);
    queue.prob = prob;
    let never = u64::MAX / 4;
    queue.next_update_ns = Some(never);
    let (mut freed, mut marked) = (Vec::new(), 0);
    for _ in 0..50_000 {
        while queue.backlog().0 < 30 {
            queue.enqueue(packet(0, ecn, 0), &mut freed);
        }
        let out = queue.dequeue(0, &mut freed).unwrap();
        marked += u64::from(out.marked);
    }
    let all = 50_000.0 + freed.len() as f64;
    (marked as f64 / all, freed.len() as f64 / all)
}

fn near((a, b): (f64, f64), (x, y): (f64, f64)) {
    assert!((a - x).abs() < 0.006 && (b - y).abs() < 0.006, "{a} {b}, not {x} {y}");
}

#[test]
fn l_marks_are_coupled_and_c_drops_are_squared() {
    for drop_dequeue in [true, false] {
        let params = Dualpi2Params { drop_dequeue, ..Dualpi2Params::default() };
        let fifth = ONE / 5;
        near(fate(params, fifth, Ecn::Ect1), (0.4, 0.0));
        near(fate(params, fifth, Ecn::Ect0), (0.04, 0.0));
        near(fate(params, fifth, Ecn::NotEct), (0.0, 0.04));
        near(fate(Dualpi2Params { coupling_factor: 1, ..params }, fifth, Ecn::Ect1), (0.2, 0.0));
    }
}

#[test]
fn overload_drops_from_both_queues_or_from_none() {
    let params = Dualpi2Params::default();
    let most = ONE / 5 * 3;
    near(fate(params, most, Ecn::Ect1), (0.64, 0.36));
    near(fate(params, most, Ecn::Ect0), (0.0, 0.36));
    near(fate(Dualpi2Params { drop_overload: false, ..params }, most, Ecn::Ect1), (1.0, 0.0));
    let mut capped = filled(Dualpi2Params { drop_overload: false, ..params }, 5, 0);
    capped.advance_to(100_000 * MS);
    assert_eq!(capped.prob, ONE / 2);
    let mut free = filled(params, 5, 0);
    free.advance_to(100_000 * MS);
    assert_eq!(free.prob, ONE);
}

#[test]
fn step_marks_longer_sojourn() {
    let mut queue = filled(Dualpi2Params::default(), 1, 4);
    let fates: Vec<(u32, bool)> = [MS / 2, MS, MS + 1, 2 * MS, 2 * MS]
        .map(|now_ns| queue.dequeue(now_ns, &mut Vec::new()).unwrap())
        .map(|p| (p.slot, p.marked))
        .into();
    assert_eq!(fates, [(1, false), (2, false), (3, true), (4, true), (0, false)]);
    let stats = queue.stats(2 * MS);
    assert_eq!((stats.step_mark, stats.ecn_mark, stats.pkts_in_c, stats.pkts_in_l), (2, 2, 1, 4));
}

#[test]
fn packet_marked_twice_counts_once() {
    let params = Dualpi2Params { drop_overload: false, ..Dualpi2Params::default() };
    let mut queue = filled(params, 0, 4);
    queue.prob = ONE / 2; // coupled: every packet is marked
    for _ in 0..4 {
        assert!(queue.dequeue(2 * MS, &mut Vec::new()).unwrap().marked);
    }
    let stats = queue.stats(2 * MS);
    assert_eq!((stats.ecn_mark, stats.step_mark), (4, 4));
}

#[test]
fn ce_packets_enter_the_l_queue() {
    let mut queue = empty(Dualpi2Params::default(), 8, 1514, 1);
    queue.enqueue(packet(0, Ecn::Ce, 0), &mut Vec::new());
    assert_eq!(queue.stats(0).pkts_in_l, 1);
}

#[test]
fn c_queue_gets_its_share() {
    for (percent, turns) in [(10, 100), (50, 500), (25, 250)] {
        let params = Dualpi2Params {
            c_protection: percent,
            step_thresh_ns: u64::MAX,
            ..Dualpi2Params::default()
        };
        let mut queue = filled(params, 1500, 1500);
        let classic =
            (0..1000).filter(|_| queue.dequeue(0, &mut Vec::new()).unwrap().slot < 1500).count();
        assert!(classic.abs_diff(turns) <= 2, "{percent} %: {classic} of 1000");
    }
}

#[test]
fn full_queue_drops_arrivals_of_both_queues() {
    let mut queue = filled(Dualpi2Params { limit: 5, ..Dualpi2Params::default() }, 3, 2);
    let mut dropped = Vec::new();
    queue.enqueue(packet(8, Ecn::Ect1, 0), &mut dropped);
    queue.enqueue(packet(9, Ecn::NotEct, 0), &mut dropped);
    assert_eq!((dropped, queue.stats(0).drop_overlimit), (vec![8, 9], 2));
}

#[test]
fn leaves_a_backlog_of_two_frames_alone() {
    let mut queue =
        filled(Dualpi2Params { step_thresh_ns: u64::MAX, ..Dualpi2Params::default() }, 2, 0);
    queue.advance_to(100_000 * MS);
    let mut dropped = Vec::new();
    assert!(queue.dequeue(100_000 * MS, &mut dropped).is_some());
    assert!(queue.dequeue(100_000 * MS, &mut dropped).is_some());
    assert!(dropped.is_empty());
}

/// Returns which of these packets are marked if all leave at `now_ns`.
fn marks(queue: &mut Dualpi2, packets: u32, now_ns: u64) -> Vec<u32> {
    let departed = (0..packets).map(|_| queue.dequeue(now_ns, &mut Vec::new()).unwrap());
    departed.filter(|packet| packet.marked).map(|packet| packet.slot).collect()
}

#[test]
fn step_in_packets_marks_what_leaves_a_longer_queue() {
    let params = Dualpi2Params { step_thresh_pkts: Some(2), ..Dualpi2Params::default() };
    // 5, 4, 3, 2, 1 and 0 packets are behind them. Their sojourn time does not matter.
    assert_eq!(marks(&mut filled(params, 0, 6), 6, 0), [0, 1, 2]);
    assert_eq!(marks(&mut filled(params, 0, 3), 3, 5 * MS), [0; 0]);
}

#[test]
fn packets_that_find_a_short_queue_are_not_marked_by_the_step() {
    let params = Dualpi2Params { min_qlen_step: 3, ..Dualpi2Params::default() };
    assert_eq!(marks(&mut filled(params, 0, 6), 6, 2 * MS), [3, 4, 5]);
}

#[test]
fn any_ect_puts_every_ecn_capable_packet_into_the_l_queue() {
    for (any_ect, in_l) in [(false, 2), (true, 3)] {
        let params = Dualpi2Params { any_ect, ..Dualpi2Params::default() };
        let mut queue = empty(params, 8, 1514, 1);
        for (slot, ecn) in (0..4).zip([Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce]) {
            queue.enqueue(packet(slot, ecn, 0), &mut Vec::new());
        }
        let stats = queue.stats(0);
        assert_eq!((stats.pkts_in_l, stats.pkts_in_c), (in_l, 4 - in_l));
    }
}

#[test]
fn memory_limit_drops_arrivals_and_is_counted_apart() {
    let params = Dualpi2Params { memory_limit: Some(3 * 1514), ..Dualpi2Params::default() };
    let mut queue = filled(params, 2, 1);
    let mut dropped = Vec::new();
    queue.enqueue(packet(9, Ecn::Ect1, 0), &mut dropped);
    let stats = queue.stats(0);
    assert_eq!((dropped, stats.drop_overmemory, stats.drop_overlimit), (vec![9], 1, 0));
}
