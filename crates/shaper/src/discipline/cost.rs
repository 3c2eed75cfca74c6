//! Benchmarks the CPU time per packet of each queue, through the whole link model but without interfaces:
//! `cargo run -p ccbench-shaper --features bench --example queue_cost`.

use ccbench_proto::plan::Class;
use ccbench_proto::units::{Ppm, Rate};

use super::codel::{self, CodelQueueParams};
use super::dualpi2::Dualpi2Params;
use super::fq::FqParams;
use super::fq_codel::FqCodelParams;
use super::pie::PieParams;
use super::red::RedParams;
use super::{FifoLimit, QueueParams};
use crate::datapath::classes::ClassSpec;
use crate::datapath::header::Ecn;
use crate::datapath::model::{Arrival, LinkModel, LinkSpec};
use crate::datapath::packet::Packet;

const PACKETS: u64 = 1_000_000;
const SLOTS: u32 = 16_384;
const FRAME: u32 = 1514;

/// Time per packet of 1514 bytes.
#[derive(Debug, Clone)]
pub struct QueueCost {
    /// `fifo`, `codel` … as in a plan, or a feature of the link.
    pub queue: &'static str,
    /// Approximate number of packets in the standing queue.
    pub standing_packets: u64,
    /// Number of flows.
    pub flows: u64,
    /// Nanoseconds per packet, from arrival to departure; minimum of five runs.
    pub packet_ns: f64,
}

/// Returns nanoseconds per packet behind a standing queue of about `standing` packets, at 5 Gbit/s; minimum of five runs.
fn cost(spec: &LinkSpec, standing: u64, flows: u64) -> f64 {
    (0..5).map(|_| once(spec, standing, flows)).fold(f64::INFINITY, f64::min)
}

fn once(spec: &LinkSpec, standing: u64, flows: u64) -> f64 {
    let mut link = LinkModel::new(spec, SLOTS as usize, FRAME);
    let mut free: Vec<u32> = (0..SLOTS).rev().collect();
    let gap_ns = u64::from(FRAME) * 8 * 1_000_000_000 / spec.rate_bps().unwrap_or(u64::MAX);
    let mut now_ns = 1_000_000_000;
    let began_ns = crate::clock::monotonic_ns();
    for number in 0..PACKETS {
        // As in the datapath, the segments of a super-packet arrive together.
        now_ns += if number < standing || number % 16 > 0 { 0 } else { 16 * gap_ns };
        let Some(slot) = free.pop() else { continue };
        let flow = ((number / 16 % flows) as u32).wrapping_mul(0x9e37_79b1) >> 8;
        let ecn = [Ecn::Ect0, Ecn::Ect1][(number / 16) as usize % 2];
        let class = (number / 16 % 3) as u8;
        let packet =
            Packet { slot, bytes: FRAME, at_ns: now_ns, flow, ecn, class, ..<_>::default() };
        if matches!(link.arrive(packet), Arrival::Lost | Arrival::Policed) {
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
    let codel = codel::CodelParams { ecn: true, ..codel::CodelParams::default() };
    let red = RedParams {
        limit: 4 << 20,
        qth_min: 500_000,
        qth_max: 3_000_000,
        max_p_ppm: 100_000,
        wlog: 9,
        packet_time_ns: 2_000,
        ecn: true,
        harddrop: false,
        adaptive: true,
        nodrop: false,
    };
    let queues = [
        ("fifo", QueueParams::TailDrop(FifoLimit::Packets(4000))),
        ("head drop", QueueParams::HeadDrop(FifoLimit::Packets(4000))),
        ("codel", QueueParams::Codel(CodelQueueParams { limit: 4000, codel })),
        ("pie", QueueParams::Pie(PieParams { limit: 4000, ecn: true, ..PieParams::default() })),
        ("red", QueueParams::Red(red)),
        ("fq", QueueParams::Fq(FqParams { flow_limit: 4000, ..FqParams::default() })),
        ("fq_codel", QueueParams::FqCodel(FqCodelParams::default())),
        ("dualpi2", QueueParams::Dualpi2(Dualpi2Params::default())),
    ];
    let link = |queue| LinkSpec::rated(5_000_000_000, queue);
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
        plan: Class {
            ceil: Some(Rate::from_bits_per_sec(5_000_000_000)),
            ..Class::new(Rate::from_bits_per_sec(rate))
        },
        queue: QueueParams::TailDrop(FifoLimit::Packets(4000)),
        matches: Vec::new(),
    };
    let classes = vec![class(1_000_000_000), class(2_000_000_000)];
    let sliced = LinkSpec { classes, ..link(QueueParams::TailDrop(FifoLimit::Packets(4000))) };
    measure("two classes", &sliced, 1000, 1);
    let mut lossy = link(QueueParams::TailDrop(FifoLimit::Packets(4000)));
    lossy.plan.loss = Ppm::new(1);
    measure("fifo, loss", &lossy, 1000, 1);
    costs
}
