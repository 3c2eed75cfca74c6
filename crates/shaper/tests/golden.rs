//! Compares our requests with those of the real `tc`, captured by `golden/capture.sh`. dualpi2 is derived from the kernel's headers,
//! because no released `tc` that we could capture from supported it. The lab's kernel (7.3) accepts it and marks like all others
//! (`tests/lab/judge.rs`).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccbench_proto::plan::{
    self, BurstLoss, Distribution, Jitter, Link, Policer, Queue, Reorder, Slot,
};
use ccbench_proto::resolve::PacketMatch;
use ccbench_proto::units::{Bytes, Limit, Micros, Packets, Ppm, Rate};
use ccbench_shaper::netlink::message::{HEADER_BYTES, Message, TCMSG_BYTES, attrs};
use ccbench_shaper::qdisc::netem::Netem;
use ccbench_shaper::qdisc::{ROOT, filter, htb, police::Police, tbf};
use ccbench_shaper::{queue_qdisc, with_ack_filter};

const IFINDEX: u32 = 3;
const LEAF: u32 = 0x1_0010;
/// Rate tables: `TCA_HTB_CTAB`, `TCA_HTB_RTAB`. `tc` sends them, but no kernel since 3.8 reads them for Ethernet.
const HTB_TABLES: &[u16] = &[3, 4];
/// `TCA_RED_FLAGS`.
const RED_FLAGS: &[u16] = &[4];
/// `TCA_TBF_RTAB`.
const TBF_TABLES: &[u16] = &[2];

/// Reads a golden file. Sets time and interface to those of our requests.
fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    let mut bytes: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect();
    bytes[8..12].fill(0);
    bytes[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&IFINDEX.to_ne_bytes());
    bytes
}

/// Returns the message without these attributes of its options.
fn without(message: &[u8], kinds: &[u16]) -> Vec<u8> {
    let fixed = HEADER_BYTES + TCMSG_BYTES;
    let mut rebuilt = Message::attributes().raw(&message[..fixed]);
    for attr in attrs(&message[fixed..]) {
        rebuilt = if attr.kind == 2 {
            rebuilt.nested(2, |mut m| {
                for inner in attr.attrs().filter(|a| !kinds.contains(&a.kind)) {
                    m = m.attr(inner.kind, inner.value);
                }
                m
            })
        } else {
            rebuilt.attr(attr.kind, attr.value)
        };
    }
    rebuilt.finish()
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    digits.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n").collect()
}

#[track_caller]
fn same(ours: &[u8], name: &str, leave_out: &[u16]) {
    let theirs = golden(name);
    let theirs = if leave_out.is_empty() { theirs } else { without(&theirs, leave_out) };
    assert_eq!(hex(ours), hex(&theirs), "{name}: ours left, tc right");
}

#[track_caller]
fn queue_is(queue: &Queue, name: &str) {
    same(&queue_qdisc(queue, None).unwrap().add(IFINDEX, 0x10_0000, LEAF), name, &[]);
}

fn mbit(rate: u64) -> Rate {
    Rate::from_bits_per_sec(rate * 1_000_000)
}

fn class(rate: u64, ceil: u64, burst: u32, cburst: u32, quantum: u32) -> htb::Class {
    htb::Class {
        rate: mbit(rate),
        ceil: mbit(ceil),
        burst_bytes: burst,
        cburst_bytes: cburst,
        quantum_bytes: quantum,
        priority: 0,
        overhead_bytes: 0,
    }
}

#[test]
fn htb_is_what_tc_sends() {
    same(&htb::root(0x10).add(IFINDEX, 0x1_0000, ROOT), "htb_qdisc", &[]);
    let add = |class: htb::Class, id, parent| class.add(IFINDEX, id, parent);
    let root = 0x1_0000;
    same(&add(class(100, 100, 3200, 3200, 1514), 0x1_0010, root), "htb_class", HTB_TABLES);
    same(&add(class(20, 100, 1600, 3200, 1514), 0x1_0011, 0x1_0001), "htb_class_ceil", HTB_TABLES);
    let fast = class(40_000, 40_000, 1_250_000, 1_250_000, 60_000);
    same(&add(fast, 0x1_0010, root), "htb_class_fast", HTB_TABLES);
    let ranked = htb::Class { priority: 3, overhead_bytes: 24, ..class(20, 100, 1600, 3200, 1514) };
    // With an overhead, `tc` computes the buffers from its rate tables, which no kernel since 3.8 reads.
    let ours = add(ranked, 0x1_0011, 0x1_0001);
    let mut theirs = without(&golden("htb_class_prio"), HTB_TABLES);
    let buffers = HEADER_BYTES + TCMSG_BYTES + 8 + 4 + 4 + 24;
    theirs[buffers..buffers + 8].copy_from_slice(&ours[buffers..buffers + 8]);
    assert_eq!(hex(&ours), hex(&theirs));
}

#[test]
fn an_htb_change_is_what_tc_sends_plus_rate64() {
    let ours = class(50, 50, 1600, 1600, 1514).change(IFINDEX, 0x1_0001, 0x1_0000);
    // Attributes 6 and 7 keep our message's size fixed, so that a new rate can be patched in.
    same(&without(&ours, &[6, 7]), "htb_class_change", HTB_TABLES);
    assert_eq!(ours.len(), without(&ours, &[6, 7]).len() + 24);
}

fn tbf_of(rate: u64, burst_bytes: u32) -> tbf::Tbf {
    tbf::Tbf { rate: mbit(rate), burst_bytes, limit: 187_500, overhead_bytes: 0, peak: None }
}

#[test]
fn tbf_is_what_tc_sends() {
    let ours = tbf_of(100, 3200).encode().add(IFINDEX, 0x1_0000, ROOT);
    same(&ours, "tbf", TBF_TABLES);
    let with_overhead = tbf::Tbf { overhead_bytes: 24, ..tbf_of(100, 3200) };
    let ours = with_overhead.encode().add(IFINDEX, 0x1_0000, ROOT);
    same(&ours, "tbf_overhead", TBF_TABLES);
}

#[test]
fn a_fast_tbf_differs_from_tc_only_in_the_buffer_that_the_kernel_ignores() {
    // tc 6.1 computes the buffer from the 32-bit rate. Over that limit, the kernel takes the burst in bytes.
    let ours = tbf_of(40_000, 1_250_000).encode().add(IFINDEX, 0x1_0000, ROOT);
    let mut theirs = without(&golden("tbf_fast"), TBF_TABLES);
    let buffer = HEADER_BYTES + TCMSG_BYTES + 8 + 4 + 4 + 28;
    theirs[buffer..buffer + 4].copy_from_slice(&ours[buffer..buffer + 4]);
    assert_eq!(hex(&ours), hex(&theirs));
}

#[test]
fn fifos_are_what_tc_sends() {
    queue_is(&Queue::pfifo(Limit::Packets(Packets::new(100))), "pfifo");
    queue_is(&Queue::bfifo(Limit::Bytes(Bytes::new(187_500))), "bfifo");
}

#[test]
fn netem_is_what_tc_sends() {
    let ms = Micros::from_millis;
    let ppm = |n| Ppm::new(n).unwrap();
    let is = |delay, loss, limit_pkts, name| {
        let plan = Link { delay: Some(delay), loss: Some(loss), ..Link::default() };
        let netem = Netem { plan, limit_pkts, seed: 0 };
        same(&netem.encode().add(IFINDEX, 0x10_0000, LEAF), name, &[]);
    };
    is(ms(15), ppm(0), 1000, "netem_delay");
    is(ms(0), ppm(1000), 1000, "netem_loss");
    is(ms(5000), ppm(500_000), 100_000, "netem_both");
}

#[test]
fn impairments_are_what_tc_sends() {
    let ms = Micros::from_millis;
    let ppm = |n| Ppm::new(n).unwrap();
    let sent = |link: Link| {
        let plan = Link { delay: Some(ms(20)), ..link };
        let netem = Netem { plan, limit_pkts: 1000, seed: 0 };
        netem.encode().add(IFINDEX, 0x10_0000, LEAF)
    };
    let jitter = |distribution, correlation, reorder| Link {
        jitter: Some(Jitter { spread: ms(5), distribution, correlation, reorder, hold: None }),
        ..Link::default()
    };
    let quarter = Some(ppm(250_000));
    same(&sent(jitter(Distribution::Uniform, quarter, true)), "netem_jitter", &[]);
    let burst = BurstLoss {
        enter: ppm(10_000),
        leave: ppm(250_000),
        bad: Some(ppm(500_000)),
        good: Some(ppm(1_000)),
    };
    same(&sent(Link { burst_loss: Some(burst), ..Link::default() }), "netem_gemodel", &[]);
    let damage = Link {
        reorder: Some(Reorder::new(ppm(20_000))),
        duplicate: Some(ppm(10_000)),
        corrupt: Some(ppm(5_000)),
        ..Link::default()
    };
    same(&sent(damage), "netem_damage", &[]);
    // A rate keeps the order. The largest rate of tc is 8 times ours.
    let mut ordered = sent(jitter(Distribution::Uniform, None, false));
    let rate64 = HEADER_BYTES + TCMSG_BYTES + 12 + 4 + 24 + 4;
    ordered[rate64..rate64 + 8].copy_from_slice(&1_000_000_000_000_u64.to_ne_bytes());
    same(&ordered, "netem_ordered", &[]);
}

#[test]
fn slots_are_what_tc_sends() {
    let ms = Micros::from_millis;
    let slot = Slot {
        every: ms(5),
        max: Some(ms(10)),
        packets: Some(Packets::new(32)),
        bytes: Some(Bytes::new(12_500)),
    };
    let plan = Link { slot: Some(slot), ..Link::default() };
    let netem = Netem { plan, limit_pkts: 40, seed: 0 };
    same(&netem.encode().add(IFINDEX, 0x10_0000, LEAF), "netem_slot", &[]);
}

#[test]
fn head_drop_pie_and_red_are_what_tc_sends_but_for_the_place_of_flags() {
    let limit = Limit::Packets(Packets::new(100));
    queue_is(&Queue::PfifoHeadDrop(plan::PfifoHeadDrop { limit }), "pfifo_head_drop");
    let pie = Queue::Pie(plan::Pie {
        limit: Some(Limit::Packets(Packets::new(500))),
        target: Some(Micros::from_millis(20)),
        tupdate: Some(Micros::from_millis(30)),
        alpha: Some(4),
        beta: Some(25),
        ecn: Some(true),
        bytemode: Some(true),
    });
    queue_is(&pie, "pie");
    let plain = Queue::Pie(plan::Pie::default());
    queue_is(&plain, "pie_plain");
    let red = |probability: Option<u32>, burst, on| {
        Queue::Red(plan::Red {
            limit: Limit::Bytes(Bytes::new(400_000)),
            min: Limit::Bytes(Bytes::new(30_000)),
            max: Limit::Bytes(Bytes::new(90_000)),
            probability: probability.and_then(Ppm::new),
            avpkt: Some(Bytes::new(1000)),
            burst,
            ecn: on,
            harddrop: on,
            adaptive: on,
            nodrop: None,
        })
    };
    let is = |queue: Queue, rate, flags, name| {
        let ours = queue_qdisc(&queue, Some(mbit(rate))).unwrap().add(IFINDEX, 0x10_0000, LEAF);
        // `tc` sends the flags in an attribute, with which the kernel does not start the adaptation.
        let mut theirs = without(&golden(name), RED_FLAGS);
        theirs[HEADER_BYTES + TCMSG_BYTES + 8 + 4 + 4 + 15] = flags;
        assert_eq!(hex(&ours), hex(&theirs), "{name}");
    };
    is(red(Some(50_000), Some(55), Some(true)), 100, 7, "red");
    is(red(None, None, None), 10, 0, "red_plain");
}

#[test]
fn fq_is_what_tc_sends() {
    queue_is(
        &Queue::Fq(plan::Fq {
            limit: Some(Limit::Packets(Packets::new(1000))),
            flow_limit: Some(Limit::Packets(Packets::new(200))),
            buckets: Some(2),
            ce_threshold: Some(Micros::from_millis(1)),
            orphan_mask: Some(1023),
            ..plan::Fq::default()
        }),
        "fq",
    );
    let plain = Queue::Fq(plan::Fq::default());
    queue_is(&plain, "fq_plain");
}

#[test]
fn codel_is_what_tc_sends() {
    queue_is(
        &Queue::Codel(plan::Codel {
            limit: Some(Limit::Packets(Packets::new(500))),
            target: Some(Micros::from_millis(5)),
            interval: Some(Micros::from_millis(100)),
            ecn: Some(true),
            ce_threshold: Some(Micros::from_millis(1)),
        }),
        "codel",
    );
    let plain = Queue::Codel(plan::Codel { ecn: Some(false), ..plan::Codel::default() });
    queue_is(&plain, "codel_noecn");
}

#[test]
fn fq_codel_is_what_tc_sends() {
    queue_is(
        &Queue::FqCodel(plan::FqCodel {
            limit: Some(Limit::Packets(Packets::new(500))),
            flows: Some(64),
            target: Some(Micros::from_millis(5)),
            interval: Some(Micros::from_millis(100)),
            quantum: Some(Bytes::new(1514)),
            ecn: Some(true),
            ce_threshold: Some(Micros::from_millis(1)),
            memory_limit: Some(Limit::Bytes(Bytes::new(4 << 20))),
            ..plan::FqCodel::default()
        }),
        "fq_codel",
    );
    let plain = Queue::FqCodel(plan::FqCodel::default());
    queue_is(&plain, "fq_codel_plain");
}

#[test]
fn cake_is_what_tc_sends() {
    let (rtt, memory) = (Micros::from_millis(50), Limit::Bytes(Bytes::new(4 << 20)));
    queue_is(&Queue::Cake(plan::Cake { rtt: Some(rtt), memory_limit: Some(memory) }), "cake");
    queue_is(&Queue::Cake(plan::Cake::default()), "cake_plain");
    let cake = Queue::Cake(plan::Cake { rtt: Some(rtt), memory_limit: None });
    let filters = with_ack_filter(queue_qdisc(&cake, None).unwrap());
    same(&filters.add(IFINDEX, 0x10_0000, LEAF), "cake_ack_filter", &[]);
}

#[test]
fn dualpi2_is_what_the_kernels_header_says() {
    queue_is(
        &Queue::Dualpi2(plan::Dualpi2 {
            limit: Some(Limit::Packets(Packets::new(10_000))),
            target: Some(Micros::from_millis(15)),
            tupdate: Some(Micros::from_millis(16)),
            alpha: Some("0.16".to_owned()),
            beta: Some("3.2".to_owned()),
            step_thresh: Some(Micros::from_millis(1)),
            coupling_factor: Some(2),
            drop_on_overload: Some(true),
            drop_dequeue: Some(true),
            split_gso: Some(true),
            classic_protection: Ppm::new(100_000),
            ..plan::Dualpi2::default()
        }),
        "dualpi2",
    );
}

#[test]
fn policer_is_what_tc_sends_but_for_the_largest_packet_and_the_rate_table() {
    let policer = Policer { rate: mbit(10), burst: Bytes::new(100_000) };
    let ours = Police { policer, overhead_bytes: 24 }.add(IFINDEX, 0x1_0000, 0x1_0001);
    let mut theirs = golden("u32_police");
    // The parameters follow the kind, the class, and the headers of the action, its options and its parameters.
    let parms = HEADER_BYTES + TCMSG_BYTES + 8 + 4 + 8 + 4 + 4 + 12 + 4 + 4;
    let (largest, table) = (parms + 16, parms + 56 + 4);
    theirs[largest..largest + 4].copy_from_slice(&ours[largest..largest + 4]);
    theirs[table..table + 1024].fill(0);
    assert_eq!(hex(&ours), hex(&theirs));
}

#[test]
fn filters_are_what_tc_sends() {
    let is = |wanted: &PacketMatch, which: usize, name| {
        let ours = filter::filters(wanted)[which].add(IFINDEX, 0x1_0000, 0x1_0011);
        same(&ours, name, &[]);
    };
    let (v4, v6) = ("10.0.1.2".parse().ok(), "fd00::1".parse().ok());
    let none = PacketMatch::default();
    is(&PacketMatch { dst: v4, dscp: Some(46), ..none.clone() }, 0, "u32_dst");
    let ports = PacketMatch { src: v4, sport: Some(5201), dport: Some(40_000), ..none.clone() };
    is(&ports, 0, "u32_ports");
    is(&PacketMatch { dst: v6, dport: Some(5201), ..none.clone() }, 1, "u32_v6");
    let l4s = PacketMatch { dst: v4, dscp: Some(46), ecn: Some(1), ..none.clone() };
    is(&l4s, 0, "u32_ecn");
    is(&PacketMatch { dst: v6, ecn: Some(1), ..none }, 0, "u32_v6_ecn");
}
