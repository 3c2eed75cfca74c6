//! What a packet costs in each queue, through the whole link, without interfaces:
//! `cargo run -p ccbench-shaper --features bench --example queue_cost`.

use super::*;
use crate::datapath::classes::ClassSpec;
use crate::datapath::header::Ecn;
use crate::datapath::model::{Arrival, LinkModel, LinkSpec};

const PACKETS: u64 = 1_000_000;
const SLOTS: u32 = 16_384;
const FRAME: u32 = 1514;

/// What packets of 1514 bytes cost.
#[derive(Debug, Clone)]
pub struct QueueCost {
    /// `fifo`, `codel` … as in a plan, or what is special about the link.
    pub queue: &'static str,
    /// Packets that stand in the queue, about.
    pub standing_packets: u64,
    /// Flows that they belong to.
    pub flows: u64,
    /// Nanoseconds per packet, arrival to departure; the least of five runs.
    pub packet_ns: f64,
}

/// Nanoseconds per packet behind a standing queue of about `standing` packets, at 5 Gbit/s; the least of five.
fn cost(spec: &LinkSpec, standing: u64, flows: u64) -> f64 {
    (0..5).map(|_| once(spec, standing, flows)).fold(f64::INFINITY, f64::min)
}

fn once(spec: &LinkSpec, standing: u64, flows: u64) -> f64 {
    let mut link = LinkModel::new(spec, SLOTS as usize, FRAME);
    let mut free: Vec<u32> = (0..SLOTS).rev().collect();
    let gap_ns = u64::from(FRAME) * 8 * 1_000_000_000 / spec.rate_bps.unwrap_or(u64::MAX);
    let mut now_ns = 1_000_000_000;
    let began_ns = crate::clock::monotonic_ns();
    for number in 0..PACKETS {
        // As the data path does: what a super-packet was cut into arrives together.
        now_ns += if number < standing || number % 16 > 0 { 0 } else { 16 * gap_ns };
        let Some(slot) = free.pop() else { continue };
        let flow = ((number / 16 % flows) as u32).wrapping_mul(0x9e37_79b1) >> 8;
        let ecn = [Ecn::Ect0, Ecn::Ect1][(number / 16) as usize % 2];
        let class = (number / 16 % 3) as u8;
        let packet =
            Packet { slot, bytes: FRAME, at_ns: now_ns, flow, ecn, class, ..<_>::default() };
        if link.arrive(packet) == Arrival::Lost {
            free.push(slot);
        }
        if number % 16 == 15 {
            link.advance(now_ns, &mut free);
            while link.next_marked().is_some() {}
            while let Some(packet) = link.pop_departed() {
                free.push(packet.slot);
            }
        }
    }
    (crate::clock::monotonic_ns() - began_ns) as f64 / PACKETS as f64
}

/// Measures every queue empty and with packets standing in it. Takes about a minute.
pub fn queue_costs() -> Vec<QueueCost> {
    let law = codel::LawSpec { ecn: true, ..codel::LawSpec::default() };
    let red = RedSpec {
        limit: 4 << 20,
        min: 500_000,
        max: 3_000_000,
        probability_ppm: 100_000,
        weight_log: 9,
        idle_packet_ns: 2_000,
        ecn: true,
        harddrop: false,
        adaptive: true,
    };
    let queues = [
        ("fifo", QueueSpec::Fifo(FifoLimit::Packets(4000))),
        ("head drop", QueueSpec::HeadDrop(FifoLimit::Packets(4000))),
        ("codel", QueueSpec::Codel(CodelSpec { limit: 4000, law })),
        ("pie", QueueSpec::Pie(PieSpec { limit: 4000, ecn: true, ..PieSpec::default() })),
        ("red", QueueSpec::Red(red)),
        ("fq", QueueSpec::Fq(FqSpec { flow_limit: 4000, ..FqSpec::default() })),
        ("fq_codel", QueueSpec::FqCodel(FqCodelSpec::default())),
        ("dualpi2", QueueSpec::Dualpi2(Dualpi2Spec::default())),
    ];
    let link = |queue| LinkSpec { rate_bps: Some(5_000_000_000), seed: 1, queue, ..<_>::default() };
    let mut costs = Vec::new();
    let mut measure = |queue, spec: &LinkSpec, standing_packets, flows| {
        let packet_ns = cost(spec, standing_packets, flows);
        costs.push(QueueCost { queue, standing_packets, flows, packet_ns });
    };
    for (name, queue) in queues {
        for (standing, flows) in [(0, 1), (1000, 1), (1000, 16), (1000, 1000)] {
            measure(name, &link(queue), standing, flows);
        }
    }
    let class = |rate: u64| ClassSpec {
        name: String::new(),
        rate_bps: rate,
        ceil_bps: 5_000_000_000,
        priority: 0,
        queue: QueueSpec::Fifo(FifoLimit::Packets(4000)),
        matches: Vec::new(),
    };
    let classes = vec![class(1_000_000_000), class(2_000_000_000)];
    let sliced = LinkSpec { classes, ..link(QueueSpec::Fifo(FifoLimit::Packets(4000))) };
    measure("two classes", &sliced, 1000, 1);
    let lossy = LinkSpec { loss_ppm: 1, ..link(QueueSpec::Fifo(FifoLimit::Packets(4000))) };
    measure("fifo, loss", &lossy, 1000, 1);
    costs
}
