//! netem: constant delay, jitter, loss, duplication, reordering, corruption and slots.
//!
//! Differences from a userspace link: correlation mixes two draws, which reduces the variance of correlated jitter. Corruption may hit any
//! header.

use ccbench_proto::plan::qdiscs::{NETEM_PARETO_SPREADS, NETEM_TABLE_ENTRIES};
use ccbench_proto::plan::{BurstLoss, Distribution, Jitter, Link, Slot};
use ccbench_proto::units::{Micros, Packets, Ppm};

use super::{Qdisc, size};
use crate::datapath::impair::{normal_cdf, typical_jitter_ns};
use crate::netlink::Message;
use crate::netlink::message::NESTED;

const TCA_NETEM_CORR: u16 = 1;
const TCA_NETEM_DELAY_DIST: u16 = 2;
const TCA_NETEM_REORDER: u16 = 3;
const TCA_NETEM_CORRUPT: u16 = 4;
const TCA_NETEM_LOSS: u16 = 5;
const TCA_NETEM_RATE: u16 = 6;
const TCA_NETEM_RATE64: u16 = 8;
const TCA_NETEM_LATENCY64: u16 = 10;
const TCA_NETEM_JITTER64: u16 = 11;
const TCA_NETEM_SLOT: u16 = 12;
const TCA_NETEM_PRNG_SEED: u16 = 14;
const NETEM_LOSS_GE: u16 = 2;
/// Size of the smallest Ethernet frame without preamble and FCS.
const SMALLEST_FRAME_BYTES: u64 = 60;
const MIN_LIMIT_PKTS: u64 = 100_000;
const MAX_LIMIT_PKTS: u64 = 4_000_000;
/// A rate at which every packet takes less than a nanosecond, bytes per second. With a rate, netem keeps packets in order under jitter.
const IN_ORDER_RATE: u64 = 1_000_000_000_000;
/// Entries of a distribution table (`NETEM_DIST_SCALE` units per spread).
const TABLE_ENTRIES: u32 = 4096;
const TABLE_SCALE: f64 = 8192.0;

/// The keys of a link that netem implements.
pub const KEYS: [&str; 9] = [
    "delay",
    "loss",
    "jitter",
    "burst_loss",
    "duplicate",
    "reorder",
    "corrupt",
    "slot",
    "path_switch",
];

/// Returns whether `link` needs netem.
pub fn is_needed(link: &Link) -> bool {
    link.delay.is_some_and(|delay| delay.get() > 0) || link.slot.is_some() || is_random(link)
}

/// Returns whether netem makes random decisions about packets of `link`.
fn is_random(link: &Link) -> bool {
    let shares = [link.loss, link.duplicate, link.corrupt];
    link.jitter.is_some()
        || link.burst_loss.is_some()
        || link.reorder.is_some()
        || shares.iter().flatten().any(|share| share.get() > 0)
}

/// Parameters of a netem qdisc.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Netem {
    /// The link's keys in the plan; only [`KEYS`] are read.
    pub plan: Link,
    /// Maximum number of packets, including those of the child qdisc.
    pub limit_pkts: u32,
    /// Seed of the random streams, which kernels before Linux 6.6 ignore. Zero: the kernel chooses.
    pub seed: u64,
}

impl Netem {
    /// Encodes the qdisc.
    pub fn encode(&self) -> Qdisc {
        self.encode_in_order(self.plan.jitter.is_some_and(|jitter| !jitter.reorder))
    }

    /// Applies a change and returns the qdisc. Packets that arrive after a change to a shorter delay keep their order, except on a link
    /// with `path_switch` or with reordering that enforcing the order would undo.
    pub fn changed(&mut self, change: impl FnOnce(&mut Link)) -> Qdisc {
        change(&mut self.plan);
        if self.plan.slot.is_none() {
            self.limit_pkts = self.limit_pkts.max(limit_pkts(&self.plan, 0));
        }
        if self.seed != 0 {
            // A new seed restarts the random numbers.
            self.seed = self.seed.wrapping_add(1).max(1);
        }
        self.encode_in_order(match self.plan.jitter {
            Some(jitter) => !jitter.reorder,
            None => !self.plan.path_switch && self.late_ns() == 0,
        })
    }

    /// Returns how much later reordered packets leave the delay; 0: they skip it, or there are none.
    fn late_ns(&self) -> u64 {
        self.plan.reorder.and_then(|reorder| reorder.late).map_or(0, Micros::nanos)
    }

    fn encode_in_order(&self, in_order: bool) -> Qdisc {
        let Link { jitter, burst_loss, slot, .. } = self.plan;
        // A table of delays makes packets late.
        let late_ns = self.late_ns();
        let reorder = self.plan.reorder.filter(|_| late_ns == 0);
        let Link { delay, loss, duplicate, corrupt, .. } = self.plan;
        let delay_ns = delay.unwrap_or_default().nanos();
        let [loss, duplicate, corrupt] = [loss, duplicate, corrupt].map(Option::unwrap_or_default);
        let spread_ns = jitter.map_or(late_ns, Jitter::netem_ns);
        let independent = if burst_loss.is_some() { 0 } else { probability(loss) };
        let words = [
            ticks(delay_ns),
            self.limit_pkts,
            independent,
            // gap = 1: every packet may be reordered.
            u32::from(reorder.is_some()),
            probability(duplicate),
            ticks(spread_ns),
        ];
        let options: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut message = Message::attributes().raw(&options);
        if let Some(correlation) = jitter.and_then(|jitter| jitter.correlation) {
            message =
                message.attr(TCA_NETEM_CORR, &encode_words(&[probability(correlation), 0, 0]));
        }
        if let Some(reorder) = reorder {
            message =
                message.attr(TCA_NETEM_REORDER, &encode_words(&[probability(reorder.share), 0]));
        }
        if corrupt.get() > 0 {
            message = message.attr(TCA_NETEM_CORRUPT, &encode_words(&[probability(corrupt), 0]));
        }
        if let Some(burst) = burst_loss {
            let model = gilbert(burst, loss);
            message = message
                .nested(TCA_NETEM_LOSS | NESTED, |m| m.attr(NETEM_LOSS_GE, &encode_words(&model)));
        }
        message = attr_if_inexact(message, TCA_NETEM_LATENCY64, delay_ns);
        message = attr_if_inexact(message, TCA_NETEM_JITTER64, spread_ns);
        if in_order {
            message = message
                .attr_u64(TCA_NETEM_RATE64, IN_ORDER_RATE)
                .attr(TCA_NETEM_RATE, &encode_words(&[u32::MAX, 0, 0, 0]));
        }
        if is_random(&self.plan) && self.seed != 0 {
            message = message.attr_u64(TCA_NETEM_PRNG_SEED, self.seed);
        }
        if let Some(slot) = slot {
            message = message.attr(TCA_NETEM_SLOT, &encode_slot(slot));
        }
        let table = match (jitter, self.plan.reorder.filter(|_| late_ns > 0)) {
            (Some(jitter), _) => table(jitter.distribution),
            (None, late) => late.and_then(|reorder| reorder.late_entries()).map(late_table),
        };
        if let Some(table) = table {
            message = message.attr(TCA_NETEM_DELAY_DIST, &table);
        }
        Qdisc { kind: "netem", options: message.into_attributes() }
    }
}

/// Returns `struct tc_netem_slot`. A limit of zero means no limit.
fn encode_slot(slot: Slot) -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..8].copy_from_slice(&slot.every.nanos().to_ne_bytes());
    bytes[8..16].copy_from_slice(&slot.max.unwrap_or(slot.every).nanos().to_ne_bytes());
    let most = |number: u32| number.min(i32::MAX.cast_unsigned()).to_ne_bytes();
    bytes[16..20].copy_from_slice(&most(slot.packets.map_or(0, Packets::get)));
    bytes[20..24].copy_from_slice(&most(slot.bytes.map_or(0, size)));
    bytes
}

fn encode_words(words: &[u32]) -> Vec<u8> {
    words.iter().copied().flat_map(u32::to_ne_bytes).collect()
}

fn ticks(ns: u64) -> u32 {
    u32::try_from(ns >> 6).unwrap_or(u32::MAX)
}

/// Adds the time in nanoseconds if ticks of 64 ns (32 bits, up to 275 s) cannot represent it.
fn attr_if_inexact(message: Message, attribute: u16, ns: u64) -> Message {
    if u64::from(ticks(ns)) << 6 == ns { message } else { message.attr_u64(attribute, ns) }
}

/// Combines the Gilbert-Elliott model with independent loss. Returns p, r, 1-h (delivery probability in the bad state) and 1-k (loss
/// probability in the good state).
fn gilbert(burst: BurstLoss, loss: Ppm) -> [u32; 4] {
    // A packet is lost if either of the two loses it.
    let either = |state: u32| {
        let kept = u64::from(1_000_000 - state) * u64::from(1_000_000 - loss.get());
        1_000_000_000_000 - kept
    };
    let fine = |lost: u64| {
        let scaled = u128::from(lost) * u128::from(u32::MAX) + 500_000_000_000;
        u32::try_from(scaled / 1_000_000_000_000).unwrap_or(u32::MAX)
    };
    let bad = fine(either(burst.bad.map_or(1_000_000, Ppm::get)));
    let good = fine(either(burst.good.map_or(0, Ppm::get)));
    [probability(burst.enter), probability(burst.leave), u32::MAX - bad, good]
}

/// Returns netem's distribution table: quantiles at the midpoints of equal steps. Without a table, jitter is uniform.
fn table(distribution: Distribution) -> Option<Vec<u8>> {
    let quantile = |rank: f64| match distribution {
        Distribution::Uniform => None,
        Distribution::Normal => Some(normal_quantile(rank)),
        Distribution::Pareto => {
            Some(2.0 * ((1.0 - rank).powf(-1.0 / 3.0) - 1.0) / NETEM_PARETO_SPREADS as f64)
        }
    };
    let mut table = Vec::with_capacity(2 * TABLE_ENTRIES as usize);
    for entry in 0..TABLE_ENTRIES {
        let value = quantile((f64::from(entry) + 0.5) / f64::from(TABLE_ENTRIES))? * TABLE_SCALE;
        let value = value.round().clamp(f64::from(i16::MIN), f64::from(i16::MAX)) as i16;
        table.extend(value.to_ne_bytes());
    }
    Some(table)
}

/// Returns a distribution table in which this many entries are one spread, and the others no delay.
fn late_table(late_entries: u32) -> Vec<u8> {
    let entry = |number| if number < late_entries { TABLE_SCALE as i16 } else { 0 };
    (0..NETEM_TABLE_ENTRIES).flat_map(|number| entry(number).to_ne_bytes()).collect()
}

fn normal_quantile(rank: f64) -> f64 {
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if normal_cdf(middle) < rank {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Returns a probability scaled to 2^32 - 1, rounded to nearest.
fn probability(loss: Ppm) -> u32 {
    let scaled = u64::from(loss.get()) * u64::from(u32::MAX) + 500_000;
    u32::try_from(scaled / 1_000_000).unwrap_or(u32::MAX)
}

/// Returns netem's packet limit, which includes its child qdisc. It is so large that netem itself never drops packets (its default of 1000
/// packets is 120 ms at 100 Mbit/s). Packets arrive at the rate of the previous hop, so the limit covers minimum-size frames at ten times
/// the link's rate.
pub fn limit_pkts(link: &Link, queue_pkts: u32) -> u32 {
    let delay = link.delay.unwrap_or_default();
    let late = link.reorder.and_then(|reorder| reorder.late).unwrap_or_default();
    let jitter = Micros::new(typical_jitter_ns(link.jitter) / 1000);
    let longest = delay + jitter + late;
    let in_flight = link.rate.map_or(MAX_LIMIT_PKTS, |rate| {
        rate.bytes_in(longest).get().saturating_mul(10) / SMALLEST_FRAME_BYTES
    });
    let limit = in_flight.clamp(MIN_LIMIT_PKTS, MAX_LIMIT_PKTS) + u64::from(queue_pkts);
    u32::try_from(limit).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::Reorder;
    use ccbench_proto::units::Rate;

    use super::*;
    use crate::netlink::message::attrs;

    #[test]
    fn limit_covers_the_delay() {
        let rate = Some(Rate::from_bits_per_sec(1_000_000_000));
        let ms = Micros::from_millis;
        let delayed = |delay| Link { delay: Some(delay), ..Link::default() };
        assert_eq!(limit_pkts(&Link { rate, ..delayed(ms(10)) }, 0), 208_333);
        assert_eq!(limit_pkts(&delayed(ms(10)), 0), 4_000_000);
        assert_eq!(limit_pkts(&Link { rate, ..delayed(Micros::new(1)) }, 50), 100_050);
        let jitter = Some(Jitter { spread: ms(5), ..Jitter::default() });
        assert_eq!(limit_pkts(&Link { rate, jitter, ..delayed(ms(10)) }, 0), 625_000);
    }

    #[test]
    fn sends_sub_tick_delays_in_nanoseconds() {
        let encoded = |us| {
            let plan = Link { delay: Some(Micros::new(us)), ..Link::default() };
            Netem { plan, limit_pkts: 1000, seed: 0 }.encode().options.len()
        };
        assert_eq!(encoded(8), 24);
        assert_eq!(encoded(1), 24 + 12);
        assert_eq!(encoded(300_000_000), 24 + 12);
    }

    /// Returns kind and payload of the attributes behind the fixed part.
    fn attributes(qdisc: &Qdisc) -> Vec<(u16, Vec<u8>)> {
        attrs(&qdisc.options[24..]).map(|attr| (attr.kind, attr.value.to_vec())).collect()
    }

    #[test]
    fn late_packets_have_a_delay_of_a_table_and_nothing_keeps_their_order() {
        let reorder =
            Reorder { share: Ppm::new(10_000).unwrap(), late: Some(Micros::from_millis(2)) };
        let delay = Some(Micros::from_millis(10));
        let plan = Link { delay, reorder: Some(reorder), ..Link::default() };
        let mut netem = Netem { plan, limit_pkts: 1000, seed: 0 };
        for qdisc in [netem.encode(), netem.changed(|_| {})] {
            // Neither gap, which lets packets skip the delay, nor jitter.
            assert_eq!(qdisc.options[12..16], [0; 4]);
            assert_eq!(qdisc.options[20..24], ticks(2_000_000).to_ne_bytes());
            let found = attributes(&qdisc);
            let [(TCA_NETEM_DELAY_DIST, table)] = &found[..] else { panic!("{found:?}") };
            let entries: Vec<i16> =
                table.chunks(2).map(|b| i16::from_ne_bytes([b[0], b[1]])).collect();
            assert_eq!(entries.len(), 16_384);
            assert_eq!(entries.iter().filter(|&&entry| entry == 8192).count(), 164);
            assert_eq!(entries.iter().filter(|&&entry| entry == 0).count(), 16_384 - 164);
        }
        let ms = Micros::from_millis;
        let rate = Some(Rate::from_bits_per_sec(1_000_000_000));
        let link = Link { rate, delay: Some(ms(8)), reorder: Some(reorder), ..Link::default() };
        assert_eq!(limit_pkts(&link, 0), 208_333);
    }

    #[test]
    fn change_of_the_delay_keeps_the_order_except_of_another_path() {
        let kinds = |plan: Link| -> Vec<u16> {
            let mut netem = Netem { plan, limit_pkts: 1000, seed: 0 };
            let qdisc = netem.changed(|link| link.delay = Some(Micros::from_millis(5)));
            assert_eq!(qdisc.options[..4], ticks(5_000_000).to_ne_bytes());
            attributes(&qdisc).into_iter().map(|(kind, _)| kind).collect()
        };
        let link = Link { delay: Some(Micros::from_millis(10)), ..Link::default() };
        assert_eq!(kinds(link.clone()), [TCA_NETEM_RATE64, TCA_NETEM_RATE]);
        assert!(kinds(Link { path_switch: true, ..link }).is_empty());
    }

    #[test]
    fn change_has_other_random_numbers_and_room_for_a_longer_delay() {
        let rate = Some(Rate::from_bits_per_sec(1_000_000_000));
        let plan = Link { rate, loss: Ppm::new(1000), ..Link::default() };
        let mut netem = Netem { plan, limit_pkts: 100_000, seed: u64::MAX };
        for seed in [1_u64, 2] {
            let qdisc = netem.changed(|link| link.loss = Ppm::new(2000));
            assert_eq!(qdisc.options[4..8], 100_000_u32.to_ne_bytes());
            assert_eq!(
                attributes(&qdisc).last().unwrap(),
                &(TCA_NETEM_PRNG_SEED, seed.to_ne_bytes().to_vec())
            );
        }
        let qdisc = netem.changed(|link| link.delay = Some(Micros::from_millis(10)));
        assert_eq!(qdisc.options[4..8], 208_333_u32.to_ne_bytes());
    }

    #[test]
    fn scales_probabilities_to_32_bits() {
        let ppm = |n| probability(Ppm::new(n).unwrap());
        assert_eq!(ppm(0), 0);
        assert_eq!(ppm(500_000), 0x8000_0000);
        assert_eq!(ppm(1_000_000), u32::MAX);
    }

    #[test]
    fn independent_loss_applies_in_both_states() {
        let ppm = |n| Ppm::new(n).unwrap();
        let burst = BurstLoss {
            enter: ppm(10_000),
            leave: ppm(250_000),
            bad: Some(ppm(500_000)),
            ..BurstLoss::default()
        };
        // 1 - (1-0.5)(1-0.2) = 0.6 is lost, 0.4 kept; 0.2 in the good state.
        let [_, _, kept, good] = gilbert(burst, ppm(200_000));
        let part = |share: u32| f64::from(share) / f64::from(u32::MAX);
        assert!((part(kept) - 0.4).abs() < 1e-9 && (part(good) - 0.2).abs() < 1e-9);
        assert_eq!(gilbert(BurstLoss { bad: None, ..burst }, ppm(0))[2..], [0, 0]);
    }

    #[test]
    fn tables_have_the_expected_moments() {
        let values = |distribution| -> Vec<f64> {
            let bytes = table(distribution).unwrap();
            let words = bytes.chunks(2).map(|b| i16::from_ne_bytes([b[0], b[1]]));
            words.map(|v| f64::from(v) / TABLE_SCALE).collect()
        };
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        let normal = values(Distribution::Normal);
        assert_eq!((normal.len(), table(Distribution::Uniform)), (4096, None));
        let squares: Vec<f64> = normal.iter().map(|x| x * x).collect();
        assert!(mean(&normal).abs() < 1e-4 && (mean(&squares) - 1.0).abs() < 2e-3);
        let pareto = values(Distribution::Pareto);
        let scaled = mean(&pareto) * NETEM_PARETO_SPREADS as f64;
        assert!((scaled - 1.0).abs() < 0.01 && pareto.iter().all(|&x| x >= 0.0), "{scaled}");
    }
}
