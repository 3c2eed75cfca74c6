//! Properties of all userspace queues.

use ccbench_proto::units::Micros;
use proptest::prelude::*;

use super::codel::{self, CodelQueueParams};
use super::dualpi2::Dualpi2Params;
use super::fq::FqParams;
use super::fq_codel::FqCodelParams;
use super::pie::PieParams;
use super::red::RedParams;
use super::*;
use crate::datapath::header::Ecn;
use crate::datapath::model::{LinkModel, LinkSpec};
use crate::datapath::random::Purpose;

const US: u64 = 1_000;

/// One queue of each kind, small enough to reach all limits.
fn specs() -> Vec<QueueParams> {
    let codel = codel::CodelParams {
        target_ns: 500 * US,
        interval_ns: 5_000 * US,
        ecn: true,
        ce_threshold_ns: Some(2_000 * US),
        ..codel::CodelParams::default()
    };
    let early = Dualpi2Params { limit: 40, target_ns: 1_000 * US, ..Dualpi2Params::default() };
    let pie = PieParams { ecn: true, alpha: 32, beta: 32, ..PieParams::default() };
    vec![
        QueueParams::TailDrop(FifoLimit::Packets(20)),
        QueueParams::Codel(CodelQueueParams { limit: 30, codel }),
        QueueParams::Codel(CodelQueueParams {
            limit: 30,
            codel: codel::CodelParams { ecn: false, ..codel },
        }),
        QueueParams::FqCodel(FqCodelParams {
            limit: 30,
            flows: 4,
            codel,
            ..FqCodelParams::default()
        }),
        QueueParams::FqCodel(FqCodelParams {
            memory_limit: 20_000,
            codel,
            ..FqCodelParams::default()
        }),
        QueueParams::Fq(FqParams {
            limit: 30,
            flow_limit: 12,
            orphan_mask: 3,
            ce_threshold_ns: Some(US),
            ..FqParams::default()
        }),
        QueueParams::HeadDrop(FifoLimit::Packets(20)),
        QueueParams::HeadDrop(FifoLimit::Bytes(9_000)),
        QueueParams::Pie(PieParams {
            limit: 40,
            target_ns: 1_000 * US,
            tupdate_ns: 900 * US,
            ..pie
        }),
        QueueParams::Pie(PieParams { limit: 40, ecn: false, bytemode: true, ..pie }),
        QueueParams::Red(RedParams { limit: 40_000, qth_min: 3_000, qth_max: 20_000, ..red() }),
        QueueParams::Red(RedParams {
            limit: 30_000,
            qth_max: 15_001,
            ecn: true,
            adaptive: true,
            ..red()
        }),
        QueueParams::Dualpi2(early),
        QueueParams::Dualpi2(Dualpi2Params { drop_dequeue: false, drop_overload: false, ..early }),
    ]
}

fn red() -> RedParams {
    RedParams {
        limit: 120_000,
        qth_min: 15_000,
        qth_max: 60_000,
        max_p_ppm: 100_000,
        wlog: 4,
        packet_time_ns: 1_200_000,
        ecn: false,
        harddrop: false,
        adaptive: false,
        nodrop: false,
    }
}

fn random(seed: u64) -> Random {
    Random::new(seed, Purpose::Queue(0))
}

fn ecn(number: u64) -> Ecn {
    [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce][number as usize % 4]
}

proptest! {
    /// Every packet leaves once, in its flow's order and unchanged except for a mark, or is counted as dropped.
    #[test]
    fn packets_are_conserved_and_flows_keep_their_order(
        which in 0..specs().len(),
        events in proptest::collection::vec((0_u64..400 * US, 60_u32..1515, 0_u64..16, 0_u8..3), 1..400),
    ) {
        let mut queue = specs()[which].build(Setup { capacity: events.len(), frame_bytes: 1514, random: random(5) });
        let (mut now_ns, mut sent, mut out, mut dropped) = (0, Vec::new(), Vec::new(), Vec::new());
        for &(gap_ns, bytes, kind, dequeues) in &events {
            now_ns += gap_ns;
            let packet = Packet {
                slot: sent.len() as u32,
                bytes,
                flow: (kind / 4) as u32,
                ecn: ecn(kind),
                ..Packet::default()
            };
            sent.push(packet);
            queue.enqueue(now_ns, packet, &mut dropped);
            for _ in 0..dequeues {
                out.extend(queue.dequeue(now_ns, &mut dropped));
            }
        }
        let (packets, bytes) = queue.backlog();
        let stats = queue.stats(now_ns);
        prop_assert_eq!(sent.len(), out.len() + dropped.len() + packets as usize);
        prop_assert_eq!(stats.dropped(), dropped.len() as u64);
        let most = specs()[which].max_packets(60);
        prop_assert!(packets <= most, "{packets} of {most}");
        while let Some(packet) = queue.dequeue(now_ns, &mut dropped) {
            out.push(packet);
        }
        prop_assert_eq!((sent.len(), queue.backlog()), (out.len() + dropped.len(), (0, 0)));
        prop_assert_eq!(queue.dequeue(now_ns, &mut dropped), None);
        prop_assert!(packets > 0 || bytes == 0);

        let mut seen: Vec<u32> = out.iter().map(|p| p.slot).chain(dropped.iter().copied()).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..sent.len() as u32).collect::<Vec<_>>());
        for packet in &out {
            let before = sent[packet.slot as usize];
            prop_assert_eq!((packet.bytes, packet.flow), (before.bytes, before.flow));
            let may_mark = matches!(before.ecn, Ecn::Ect0 | Ecn::Ect1);
            let right = if packet.marked {
                may_mark && packet.ecn == Ecn::Ce
            } else {
                packet.ecn == before.ecn
            };
            prop_assert!(right, "{packet:?}");
        }
        // DualPI2 keeps the order of the packets in each of its queues.
        let is_low = |p: &Packet| matches!(sent[p.slot as usize].ecn, Ecn::Ect1 | Ecn::Ce);
        for flow in 0..4 {
            for low in [false, true] {
                let of: Vec<u32> = out
                    .iter()
                    .filter(|p| p.flow == flow && is_low(p) == low)
                    .map(|p| p.slot)
                    .collect();
                prop_assert!(of.is_sorted(), "{:?}", of);
            }
        }
    }

    /// Removing a packet from any place leaves the others unchanged.
    #[test]
    fn removed_packets_are_gone_and_no_others(
        which in 0..specs().len(),
        events in proptest::collection::vec((60_u32..1515, 0_u64..16, any::<proptest::sample::Index>()), 1..120),
    ) {
        let mut queue = specs()[which].build(Setup { capacity: events.len(), frame_bytes: 1514, random: random(5) });
        let (mut inside, mut removed, mut dropped) = (Vec::new(), 0, Vec::new());
        for (slot, &(bytes, kind, index)) in (0_u32..).zip(&events) {
            let flow = (kind / 4) as u32;
            queue.enqueue(0, Packet { slot, bytes, flow, ecn: ecn(kind), ..Packet::default() }, &mut dropped);
            inside.push((slot, bytes, flow));
            inside.retain(|(slot, ..)| !dropped.contains(slot));
            if kind.is_multiple_of(3) && !inside.is_empty() {
                let (slot, bytes, flow) = inside.remove(index.index(inside.len()));
                prop_assert_eq!(queue.remove(slot, flow).map(|packet| (packet.slot, packet.bytes)), Some((slot, bytes)));
                prop_assert_eq!(queue.remove(slot, flow), None);
                removed += 1;
            }
            let bytes: u64 = inside.iter().map(|(_, bytes, _)| u64::from(*bytes)).sum();
            prop_assert_eq!(queue.backlog(), (inside.len() as u64, bytes));
        }
        let mut out: Vec<u32> = std::iter::from_fn(|| queue.dequeue(0, &mut dropped)).map(|packet| packet.slot).collect();
        prop_assert_eq!(out.len() + dropped.len() + removed, events.len());
        out.retain(|slot| !inside.iter().any(|(of, ..)| of == slot));
        prop_assert!(out.is_empty(), "{:?}", out);
    }

    /// With any parameters that a plan may have: every packet is counted, nothing panics, the limits hold.
    #[test]
    fn any_parameters_conserve_packets(
        kind in 0..8,
        (limit, small, any) in (1_u32..60, 0_u32..40, any::<u32>()),
        (time_ns, other_ns) in (1_000..60_000_000_000_u64, 1_000..60_000_000_000_u64),
        (a, b, c, d) in any::<(bool, bool, bool, bool)>(),
        events in proptest::collection::vec((0_u64..3_000 * US, 60_u32..1515, 0_u64..16, 0_u8..3), 1..150),
    ) {
        let spec = any_spec(kind, (limit, small, any), (time_ns, other_ns), (a, b, c, d));
        let mut queue = spec.build(Setup { capacity: events.len(), frame_bytes: 1514, random: random(9) });
        let (mut now_ns, mut out, mut dropped) = (0, Vec::new(), Vec::new());
        for (slot, &(gap_ns, bytes, kind, dequeues)) in events.iter().enumerate() {
            now_ns += gap_ns;
            let (slot, flow) = (slot as u32, (kind / 4) as u32);
            let packet = Packet { slot, bytes, flow, ecn: ecn(kind), ..Packet::default() };
            queue.enqueue(now_ns, packet, &mut dropped);
            for _ in 0..dequeues {
                out.extend(queue.dequeue(now_ns, &mut dropped).map(|packet| packet.slot));
            }
            prop_assert!(queue.backlog().0 <= spec.max_packets(60));
        }
        now_ns += 3_000_000_000;
        queue.advance_to(now_ns);
        out.extend(std::iter::from_fn(|| queue.dequeue(now_ns, &mut dropped)).map(|p| p.slot));
        prop_assert_eq!(queue.stats(now_ns).dropped(), dropped.len() as u64);
        prop_assert_eq!(queue.backlog(), (0, 0));
        out.extend(&dropped);
        out.sort_unstable();
        prop_assert_eq!(out, (0..events.len() as u32).collect::<Vec<_>>());
    }

    /// A thread that is scheduled late makes the same decisions.
    #[test]
    fn decisions_depend_only_on_packet_times(
        which in 0..specs().len(),
        arrivals in proptest::collection::vec((0_u64..200 * US, 60_u32..1515, 0_u64..16), 1..200),
        looks in proptest::collection::vec(any::<bool>(), 200),
    ) {
        let mut spec = LinkSpec { seed: 3, ..LinkSpec::rated(50_000_000, specs()[which]) };
        spec.plan.delay = Some(Micros::new(100));
        let run = |prompt: bool| {
            let mut link = LinkModel::new(&spec, arrivals.len(), 1514);
            let (mut now_ns, mut freed, mut marked) = (1_000, Vec::new(), Vec::new());
            link.advance(0, &mut freed);
            for (nth, &(gap_ns, bytes, kind)) in arrivals.iter().enumerate() {
                now_ns += gap_ns;
                let (slot, flow) = (nth as u32, (kind / 4) as u32);
                link.arrive(Packet { slot, bytes, at_ns: now_ns, flow, ecn: ecn(kind), ..Packet::default() });
                if prompt || looks[nth] {
                    link.advance(now_ns, &mut freed);
                }
            }
            link.advance(now_ns + 1_000_000 * US, &mut freed);
            while let Some(slot) = link.next_marked() {
                marked.push(slot);
            }
            marked.sort_unstable();
            let out: Vec<Packet> = std::iter::from_fn(|| link.pop_departed()).collect();
            assert_eq!(link.counts().arrived, (out.len() + freed.len()) as u64);
            assert_eq!(marked.len(), out.iter().filter(|p| p.marked).count());
            (out, freed, marked)
        };
        prop_assert_eq!(run(true), run(false));
    }
}

/// Frames of 1500 bytes arrive at 12 Mbit/s at a line of 10 Mbit/s, in turn ECT(1), Not-ECT, ECT(0) and CE; then none. Returns the dropped
/// packets (`-`), then the marked ones (`*`) in order of departure.
fn signals(queue: QueueParams) -> String {
    let spec = LinkSpec { seed: 7, ..LinkSpec::rated(10_000_000, queue) };
    let mut link = LinkModel::new(&spec, 400, 1514);
    let mut freed = Vec::new();
    link.advance(0, &mut freed);
    for slot in 0..400_u32 {
        let at_ns = 1_000 + u64::from(slot) * 1_000_000;
        let kind = u64::from(slot);
        link.arrive(Packet {
            slot,
            bytes: 1500,
            at_ns,
            flow: slot % 3,
            ecn: ecn(kind),
            ..Packet::default()
        });
    }
    link.advance(10_000_000_000, &mut freed);
    freed.sort_unstable();
    let marked: Vec<String> = std::iter::from_fn(|| link.pop_departed())
        .filter(|p| p.marked)
        .map(|p| format!("*{}", p.slot))
        .collect();
    let dropped: Vec<String> = freed.iter().map(|slot| format!("-{slot}")).collect();
    [dropped, marked].concat().join(" ")
}

/// Makes a queue of this kind from these numbers, with parameters that a plan may have.
fn any_spec(
    kind: i32,
    (limit, small, any): (u32, u32, u32),
    (time_ns, other_ns): (u64, u64),
    (a, b, c, d): (bool, bool, bool, bool),
) -> QueueParams {
    let bytes = u64::from(limit) * 100 + 1514;
    let ce_threshold_ns = a.then_some(other_ns % 5_000_000);
    // Short times as well, so that CoDel acts at all.
    let (time_ns, other_ns) = if b {
        (time_ns % 3_000_000 + 1_000, other_ns % 9_000_000 + 1_000)
    } else {
        (time_ns, other_ns)
    };
    let codel = codel::CodelParams {
        target_ns: time_ns,
        interval_ns: other_ns,
        ecn: c,
        ce_threshold_ns,
        ce_threshold_selector: (any & 1) as u8,
        ce_threshold_mask: (any & 3) as u8,
    };
    match kind {
        0 => QueueParams::HeadDrop(FifoLimit::Bytes(bytes)),
        1 => QueueParams::HeadDrop(FifoLimit::Packets(u64::from(limit))),
        2 => QueueParams::Codel(CodelQueueParams { limit, codel }),
        3 => QueueParams::FqCodel(FqCodelParams {
            limit,
            flows: any % 65_536 + 1,
            quantum: d.then_some(256 + any % (1 << 20)),
            memory_limit: if a { bytes } else { 1 },
            drop_batch: small + 1,
            codel,
        }),
        4 => QueueParams::Fq(FqParams {
            limit,
            flow_limit: small + 1,
            orphan_mask: any,
            ce_threshold_ns,
            quantum: b.then_some(small + 100),
            initial_quantum: d.then_some(small + 100),
        }),
        5 => QueueParams::Pie(PieParams {
            limit,
            target_ns: time_ns,
            tupdate_ns: other_ns,
            alpha: any % 33,
            beta: small.min(32),
            ecn: c,
            bytemode: d,
        }),
        6 => QueueParams::Red(RedParams {
            limit: bytes,
            qth_min: bytes / 3,
            qth_max: bytes - u64::from(small),
            max_p_ppm: any % 1_000_000 + 1,
            wlog: any % 31 + 1,
            packet_time_ns: time_ns,
            ecn: c,
            harddrop: d,
            adaptive: a,
            nodrop: b,
        }),
        _ => QueueParams::Dualpi2(any_dualpi2(
            (limit, small, any),
            (time_ns, other_ns),
            (a, b, c, d),
        )),
    }
}

/// As [`any_spec`], for DualPI2.
fn any_dualpi2(
    (limit, small, any): (u32, u32, u32),
    (time_ns, other_ns): (u64, u64),
    (a, b, c, d): (bool, bool, bool, bool),
) -> Dualpi2Params {
    Dualpi2Params {
        limit,
        target_ns: time_ns,
        tupdate_ns: other_ns,
        alpha: any % 65_537,
        beta: any / 65_537 + 1,
        step_thresh_ns: time_ns % 2_000_000,
        coupling_factor: (any % 255) as u8 + 1,
        drop_overload: a,
        drop_dequeue: c,
        c_protection: (any % 101) as u8,
        step_thresh_pkts: b.then_some(small),
        min_qlen_step: small % 8,
        memory_limit: d.then_some(u64::from(limit) * 100 + 1514),
        any_ect: b,
    }
}

/// PIE that reacts faster than with its defaults.
fn prompt_pie() -> PieParams {
    PieParams {
        target_ns: 5_000 * US,
        tupdate_ns: 3_000 * US,
        alpha: 8,
        beta: 32,
        ..PieParams::default()
    }
}

/// Queues with the packets that they drop (-) and mark (*).
fn golden_cases() -> Vec<(QueueParams, &'static str)> {
    let codel = codel::CodelParams { ecn: true, ..codel::CodelParams::default() };
    vec![
        (
            QueueParams::TailDrop(FifoLimit::Packets(50)),
            "-301 -307 -313 -319 -325 -331 -337 -343 -349 -355 -361 -367 -373 -379 -385 -391 -397",
        ),
        (
            QueueParams::Codel(CodelQueueParams { codel, ..CodelQueueParams::default() }),
            "-252 -380 *109 *193 *301",
        ),
        (QueueParams::Codel(CodelQueueParams::default()), "-109 -194 -254 -303 -346 -384"),
        (
            QueueParams::FqCodel(FqCodelParams::default()),
            "-344 *109 *110 *193 *194 *253 *254 *301 *302 *345 *381",
        ),
        (
            QueueParams::Fq(FqParams { ce_threshold_ns: Some(60_000 * US), ..FqParams::default() }),
            "*293 *298 *302 *305 *309 *310 *313 *314 *318 *317 *321 *322 *325 *326 *329 *330 *333 *334 \
             *337 *338 *341 *342 *345 *346 *349 *350 *353 *354 *357 *358 *361 *362 *365 *366 *369 *370 \
             *373 *374 *377 *378 *381 *382 *385 *386 *389 *390 *393 *394 *397 *398",
        ),
        (
            QueueParams::Dualpi2(Dualpi2Params {
                step_thresh_ns: 60_000 * US,
                ..Dualpi2Params::default()
            }),
            "-132 -136 -188 -228 -256 -258 -260 -266 -270 -274 -280 -294 -300 -304 -308 -328 -340 -344 -377 \
             -384 -385 -389 *93 *101 *153 *161 *169 *173 *189 *213 *217 *229 *233 *166 *241 *245 *249 *261 \
             *265 *269 *277 *289 *297 *301 *305 *309 *313 *317 *321 *222 *325 *329 *337 *341 *345 *349 *353 \
             *357 *361 *365 *369 *373 *381 *393 *397 *342 *350 *366 *386",
        ),
        (
            QueueParams::HeadDrop(FifoLimit::Bytes(75_000)),
            "-251 -257 -263 -269 -275 -281 -287 -293 -299 -305 -311 -317 -323 -329 -335 -341 -347",
        ),
        (
            QueueParams::Pie(prompt_pie()),
            "-171 -179 -197 -204 -208 -211 -215 -219 -222 -225 -233 -235 -237 -241 -251 -253 -255 \
             -257 -260 -265 -267 -269 -272 -275 -277 -280 -282 -285 -287 -290 -292 -294 -296 -299 \
             -301 -303 -305 -307 -309 -313 -315 -319 -321 -323 -325 -327 -329 -331 -333 -336 -338 \
             -340 -342 -344 -347 -350 -357 -362 -368 -375 -380 -386 -393 -398",
        ),
        (
            QueueParams::Pie(PieParams { ecn: true, bytemode: true, ..prompt_pie() }),
            "-171 -179 -197 -204 -208 -211 -215 -219 -222 -225 -234 -237 -241 -251 -253 -255 -257 \
             -260 -265 -267 -269 -272 -275 -277 -280 -282 -285 -287 -289 -291 -293 -295 -297 -300 \
             -302 -304 -306 -308 -310 -314 -316 -320 -322 -324 -326 -328 -330 -332 -334 -337 -339 \
             -341 -343 -345 -348 -350 -357 -362 -368 -375 -380 -386 -393 -398",
        ),
        (
            QueueParams::Red(red()),
            "-116 -126 -149 -156 -179 -197 -198 -209 -211 -226 -241 -249 -265 -273 -277 -282 -291 \
             -298 -307 -320 -325 -328 -334 -344 -350 -354 -357 -358 -365 -369 -375 -377 -380 -381 \
             -393",
        ),
        (
            QueueParams::Red(RedParams { ecn: true, adaptive: true, ..red() }),
            "-116 -148 -192 -236 -256 -276 -292 -296 -300 -304 -308 -312 -316 -320 -332 -336 -340 \
             -348 -352 -364 -368 -372 -376 -380 -384 *126 *154 *193 *205 *217 *229 *249 *270 *293 \
             *294 *297 *298 *301 *302 *305 *306 *309 *310 *313 *314 *317 *318 *321 *322 *330 *333 \
             *334 *337 *338 *358 *362 *365 *366 *369 *370 *373 *374 *377 *378 *389 *393 *394",
        ),
    ]
}

#[test]
fn golden_sequences() {
    let wrong: Vec<String> = golden_cases()
        .into_iter()
        .filter_map(|(queue, wanted)| {
            let found = signals(queue);
            (found != wanted).then(|| format!("{queue:?}\n{found}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Also prints nanoseconds per packet, through the whole link with a standing queue of 100 packets:
/// `cargo test --workspace --features netns,browser --lib returns_every_slot -- --nocapture`.
#[test]
fn returns_every_slot_behind_a_standing_queue() {
    const PACKETS: u64 = 200_000;
    let codel = codel::CodelParams { ecn: true, ..codel::CodelParams::default() };
    for queue in [
        QueueParams::TailDrop(FifoLimit::Packets(1000)),
        QueueParams::HeadDrop(FifoLimit::Packets(1000)),
        QueueParams::Pie(PieParams::default()),
        QueueParams::Red(RedParams { limit: 1 << 20, qth_max: 1 << 19, ..red() }),
        QueueParams::Codel(CodelQueueParams { codel, ..CodelQueueParams::default() }),
        QueueParams::FqCodel(FqCodelParams::default()),
        QueueParams::Fq(FqParams { flow_limit: 1000, ..FqParams::default() }),
        QueueParams::Dualpi2(Dualpi2Params { limit: 1000, ..Dualpi2Params::default() }),
    ] {
        let spec = LinkSpec::rated(4_000_000_000, queue);
        let mut link = LinkModel::new(&spec, 2048, 1514);
        let mut free: Vec<u32> = (0..2048).collect();
        let began_ns = crate::clock::monotonic_ns();
        let mut now_ns = 0;
        for number in 0..PACKETS {
            // 1500 bytes take 3 us. First a burst, then arrivals at the line's rate.
            now_ns += if number < 100 { 0 } else { 3_000 };
            let slot = free.pop().unwrap();
            let flow = (number % 16) as u32;
            let kind = [Ecn::Ect0, Ecn::Ect1][number as usize % 2];
            link.arrive(Packet {
                slot,
                bytes: 1500,
                at_ns: now_ns,
                flow,
                ecn: kind,
                ..Packet::default()
            });
            link.advance(now_ns, &mut free);
            while link.next_marked().is_some() {}
            while let Some(packet) = link.pop_departed() {
                free.push(packet.slot);
            }
        }
        let took_ns = crate::clock::monotonic_ns() - began_ns;
        println!("{:5} ns: {}", took_ns / PACKETS, format!("{queue:?}").split('(').next().unwrap());
        link.advance(now_ns + 1_000_000_000, &mut free);
        while let Some(packet) = link.pop_departed() {
            free.push(packet.slot);
        }
        free.sort_unstable();
        free.dedup();
        assert_eq!(free.len(), 2048, "{queue:?}: every slot is returned once");
    }
}

#[test]
fn a_lower_limit_drops_and_counts_the_excess() {
    let codel = CodelQueueParams { limit: 4, ..CodelQueueParams::default() };
    let fifo = |packets| QueueParams::TailDrop(FifoLimit::Packets(packets));
    let changes = [
        (QueueParams::Codel(CodelQueueParams::default()), QueueParams::Codel(codel), 6),
        (
            QueueParams::Pie(PieParams::default()),
            QueueParams::Pie(PieParams { limit: 4, ..PieParams::default() }),
            6,
        ),
        (
            QueueParams::Fq(FqParams::default()),
            QueueParams::Fq(FqParams { limit: 4, ..FqParams::default() }),
            6,
        ),
        // Half of the bytes of the fattest flow, twice: five packets and three.
        (
            QueueParams::FqCodel(FqCodelParams::default()),
            QueueParams::FqCodel(FqCodelParams { limit: 4, ..FqCodelParams::default() }),
            8,
        ),
        (
            QueueParams::Dualpi2(Dualpi2Params::default()),
            QueueParams::Dualpi2(Dualpi2Params { limit: 4, ..Dualpi2Params::default() }),
            6,
        ),
        // As with `pfifo`, only arrivals are dropped.
        (fifo(20), fifo(4), 0),
    ];
    for (before, after, drops) in changes {
        let mut queue = before.build(Setup { capacity: 16, frame_bytes: 1514, random: random(1) });
        let mut dropped = Vec::new();
        for slot in 0..10 {
            let packet = Packet { slot, bytes: 100, flow: 1, ..Packet::default() };
            queue.enqueue(0, packet, &mut dropped);
        }
        queue.set_params(after, &mut dropped);
        let counted = (dropped.len() as u64, queue.backlog().0, queue.stats(0).dropped());
        assert_eq!(counted, (drops, 10 - drops, drops), "{after:?}");
    }
    // Parameters of another kind have no effect.
    let mut queue = fifo(20).build(Setup { capacity: 16, frame_bytes: 1514, random: random(1) });
    queue.set_params(QueueParams::Codel(codel), &mut Vec::new());
    queue.set_params(fifo(1), &mut Vec::new());
    let mut dropped = Vec::new();
    for slot in 0..3 {
        queue.enqueue(0, Packet { slot, bytes: 100, ..Packet::default() }, &mut dropped);
    }
    assert_eq!(dropped, [1, 2]);
}
