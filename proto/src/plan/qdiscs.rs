//! The features of a link that the kernel's qdiscs lack, for the checks of a plan and for the selection of a backend.

use super::{Distribution, Jitter, Link, Policer, Queue, Reorder, Shaper, Slot};
use crate::units::{FRAME_BYTES, Limit, Micros};

/// Entries of netem's largest table of delays (`NETEM_DIST_MAX`).
pub const NETEM_TABLE_ENTRIES: u32 = 16_384;
/// Longest reordering delay: netem computes random delays in 32 bits of nanoseconds.
const NETEM_MAX_LATE: Micros = Micros::from_millis(2_000);
/// Largest jitter that netem gets: it reduces a larger one to this (`INT_MAX` ns).
const NETEM_MAX_JITTER_NS: u64 = i32::MAX as u64;
/// Spreads of the Pareto distribution in one spread that netem gets. netem's table ends at four spreads, but the tail of this distribution is
/// longer.
pub const NETEM_PARETO_SPREADS: u64 = 8;
/// Longest time in which a bucket fills: the kernel stores a bucket as this time, in 32 bits of 64 ns.
const MAX_BUCKET_S: u64 = 274;

/// A key of a link or a queue that qdiscs do not implement, on this link, with these values or at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsupportedFeature {
    /// The key, below the link or the queue.
    pub key: &'static [&'static str],
    /// What they cannot do: "an `ecn_rewrite`" ...
    pub description: &'static str,
}

impl Link {
    /// The features that the kernel's qdiscs lack for this link. `queue` is the queue in front of its rate; for its own keys see
    /// [`Queue::unsupported_by_qdisc`]. The link may have a trace instead of a rate.
    pub fn unsupported_by_qdiscs(
        &self,
        queue: Option<&Queue>,
        has_classes: bool,
    ) -> Vec<UnsupportedFeature> {
        let features: [(&'static [&'static str], Option<&'static str>); 9] = [
            (&["ecn_rewrite"], self.ecn_rewrite.map(|_| "an `ecn_rewrite`")),
            (&["ack_aggregation"], self.ack_aggregation.map(|_| "an `ack_aggregation`")),
            (&["ack_filter"], self.ack_filter.then(|| unsupported_ack_filter(queue)).flatten()),
            (
                &["policer"],
                self.policer.and_then(|policer| self.unsupported_policer(policer, has_classes)),
            ),
            (&["slot"], self.slot.and_then(|slot| slot.unsupported(self, queue))),
            (&["jitter", "spread"], self.jitter.and_then(Jitter::unsupported)),
            (&["jitter", "hold"], self.jitter.and_then(|j| j.hold).map(|_| "jitter with a `hold`")),
            (&["reorder", "late"], self.reorder.and_then(|reorder| reorder.unsupported(self))),
            (&["path_switch"], self.unsupported_path_switch()),
        ];
        features
            .into_iter()
            .filter_map(|(key, description)| {
                Some(UnsupportedFeature { key, description: description? })
            })
            .collect()
    }

    /// Why the kernel cannot police this link: its policer is a filter of HTB, in front of netem.
    fn unsupported_policer(&self, policer: Policer, has_classes: bool) -> Option<&'static str> {
        if policer.burst.get() > policer.rate.bytes_per_sec().saturating_mul(MAX_BUCKET_S) {
            return Some("a `policer` whose bucket takes more than 274 s to fill");
        }
        let is_unshaped = self.rate.is_none() && self.trace.is_none();
        if is_unshaped || has_classes || self.tbf.is_some() || self.shaper == Shaper::Tbf {
            return Some("a `policer` without a rate, with classes or with tbf");
        }
        let shares = [self.loss, self.duplicate];
        let is_random = shares.iter().flatten().any(|share| share.get() > 0);
        (is_random || self.burst_loss.is_some())
            .then_some("a `policer` behind random loss or duplication")
    }

    /// Why netem lets no packet overtake after a change of the delay: what keeps the order under jitter applies to all packets.
    fn unsupported_path_switch(&self) -> Option<&'static str> {
        let keeps_order = self.jitter.is_some_and(|jitter| !jitter.reorder);
        (self.path_switch && keeps_order)
            .then_some("a `path_switch` with `jitter` that keeps the order")
    }
}

/// Why the kernel cannot filter acknowledgements: only CAKE does.
fn unsupported_ack_filter(queue: Option<&Queue>) -> Option<&'static str> {
    let is_cake = matches!(queue, Some(Queue::Cake(_)));
    (!is_cake).then_some("an `ack_filter` with a queue other than `cake`")
}

impl Queue {
    /// What the kernel's qdisc of this kind cannot do of this queue, whose limits are bytes or packets; relative ones are not compared.
    pub fn unsupported_by_qdisc(&self) -> Option<UnsupportedFeature> {
        let Self::Red(red) = self else { return None };
        if red.adaptive == Some(true) && red.nodrop == Some(true) {
            let description = "`adaptive` of `red` with `nodrop`";
            return Some(UnsupportedFeature { key: &["adaptive"], description });
        }
        let bytes = |limit: Limit| match limit {
            Limit::Bytes(bytes) => Some(bytes.get()),
            Limit::Packets(packets) => Some(u64::from(packets.get()) * FRAME_BYTES),
            Limit::MilliBdp(_) | Limit::Time(_) => None,
        };
        let bytes = |limit| bytes(limit).and_then(|bytes| u32::try_from(bytes).ok());
        let (qth_min, qth_max) = (bytes(red.min)?, bytes(red.max)?);
        // Thresholds shifted left by Wlog must fit into 31 bits (`red_check_params`).
        let threshold_bits = u32::BITS - qth_min.max(qth_max).leading_zeros();
        let description = "thresholds of `red` that are too large for the weight of its average";
        (threshold_bits + red.wlog(qth_min, qth_max)? >= 32)
            .then_some(UnsupportedFeature { key: &["max"], description })
    }
}

impl Jitter {
    /// The jitter that netem gets, nanoseconds.
    pub fn netem_ns(self) -> u64 {
        let spreads =
            if self.distribution == Distribution::Pareto { NETEM_PARETO_SPREADS } else { 1 };
        self.spread.nanos().saturating_mul(spreads)
    }

    /// Why netem cannot do this jitter.
    fn unsupported(self) -> Option<&'static str> {
        (self.netem_ns() > NETEM_MAX_JITTER_NS)
            .then_some("jitter with a `spread` above 2.147 s (`pareto`: 268 ms)")
    }
}

impl Slot {
    /// The most bytes of full frames that leave in a slot; `None`: any number.
    fn longest_burst_bytes(&self) -> Option<u64> {
        let counted = self.packets.map(|packets| u64::from(packets.get()) * FRAME_BYTES);
        let sized = self.bytes.map(|bytes| bytes.get().saturating_add(FRAME_BYTES - 1));
        [counted, sized].into_iter().flatten().min()
    }

    /// Why netem cannot do these slots. It holds packets in its own queue, which is also that of its delay. It times a slot from
    /// the end of the previous burst, so a burst must take no time.
    fn unsupported(&self, link: &Link, queue: Option<&Queue>) -> Option<&'static str> {
        if !matches!(queue, Some(Queue::Pfifo(_))) {
            return Some("slots with a queue other than `pfifo`");
        }
        let is_delayed = link.delay.is_some_and(|delay| delay.get() > 0) || link.jitter.is_some();
        if is_delayed || link.reorder.is_some() {
            return Some("slots on a link with `delay`, `jitter` or `reorder`");
        }
        let tbf = link.tbf.filter(|tbf| tbf.peakrate.is_none());
        let bucket_bytes = tbf.map_or(0, |tbf| tbf.burst.get());
        let fits = self.longest_burst_bytes().is_some_and(|bytes| bytes <= bucket_bytes);
        (!fits).then_some("slots that hold more than a `tbf` without `peakrate` lets pass at once")
    }
}

impl Reorder {
    /// The number of late packets among [`NETEM_TABLE_ENTRIES`]; `None` if no number is within 1 % of the share.
    pub fn late_entries(&self) -> Option<u32> {
        let (share, table) = (u64::from(self.share.get()), u64::from(NETEM_TABLE_ENTRIES));
        let entries = (share * table + 500_000) / 1_000_000;
        let off = (entries * 1_000_000).abs_diff(share * table);
        (off * 100 <= share * table).then_some(entries as u32)
    }

    /// Why netem cannot do this reordering. With `late`, its table of delays has two values, so it has no others for jitter.
    fn unsupported(&self, link: &Link) -> Option<&'static str> {
        let late = self.late?;
        if link.jitter.is_some() {
            return Some("reordering with both `late` and `jitter`");
        }
        if late > NETEM_MAX_LATE {
            return Some("reordering with a `late` above 2 s");
        }
        self.late_entries().is_none().then_some("reordering with `late` and such a small `share`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Pfifo, Red, Tbf};
    use crate::units::{Bytes, Packets, Ppm, Rate};

    fn lacks(link: &Link, queue: &Queue) -> Vec<&'static str> {
        link.unsupported_by_qdiscs(Some(queue), false)
            .into_iter()
            .map(|feature| feature.key[0])
            .collect()
    }

    fn pfifo() -> Queue {
        Queue::Pfifo(Pfifo { limit: Limit::Packets(Packets::new(40)) })
    }

    #[test]
    fn policer_needs_htb_and_no_random_loss() {
        let rate = Rate::from_bits_per_sec(10_000_000);
        let policer = Some(Policer { rate, burst: Bytes::new(30_000) });
        let link = Link { rate: Some(rate), policer, ..Link::default() };
        assert_eq!(link.unsupported_by_qdiscs(None, false), []);
        assert_eq!(link.unsupported_by_qdiscs(None, true).len(), 1);
        let lost = Link { loss: Ppm::new(1), ..link.clone() };
        assert_eq!(lacks(&lost, &pfifo()), ["policer"]);
        let kept = Link { loss: Ppm::new(0), ..link.clone() };
        assert!(lacks(&kept, &pfifo()).is_empty());
        let unshaped = Link { rate: None, ..link.clone() };
        assert_eq!(lacks(&unshaped, &pfifo()), ["policer"]);
        let shaped = Link { shaper: Shaper::Tbf, ..link.clone() };
        assert_eq!(lacks(&shaped, &pfifo()), ["policer"]);
        let slow = Policer { rate: Rate::from_bits_per_sec(800), burst: Bytes::new(27_401) };
        assert_eq!(lacks(&Link { policer: Some(slow), ..link }, &pfifo()), ["policer"]);
    }

    #[test]
    fn slot_needs_a_pfifo_and_a_bucket_for_its_burst() {
        let slot = Slot { bytes: Some(Bytes::new(12_500)), ..Slot::default() };
        let tbf = Tbf { burst: Bytes::new(14_013), ..Tbf::default() };
        let link = Link { slot: Some(slot), tbf: Some(tbf), ..Link::default() };
        assert!(lacks(&link, &pfifo()).is_empty());
        assert_eq!(lacks(&link, &Queue::bfifo(Limit::Packets(Packets::new(40)))), ["slot"]);
        let less = Tbf { burst: Bytes::new(14_012), ..tbf };
        assert_eq!(lacks(&Link { tbf: Some(less), ..link.clone() }, &pfifo()), ["slot"]);
        let few = Slot { packets: Some(Packets::new(2)), ..slot };
        let small = Link { slot: Some(few), tbf: Some(less), ..link.clone() };
        assert!(lacks(&small, &pfifo()).is_empty());
        let endless = Slot { bytes: None, ..slot };
        assert_eq!(lacks(&Link { slot: Some(endless), ..link.clone() }, &pfifo()), ["slot"]);
        let delayed = Link { delay: Some(Micros::new(1)), ..link };
        assert_eq!(lacks(&delayed, &pfifo()), ["slot"]);
    }

    #[test]
    fn late_packets_are_entries_of_a_table() {
        let reorder = |ppm, ms| Reorder {
            share: Ppm::new(ppm).unwrap(),
            late: Some(Micros::from_millis(ms)),
        };
        assert_eq!(reorder(10_000, 2).late_entries(), Some(164));
        assert_eq!(reorder(0, 2).late_entries(), Some(0));
        assert_eq!(reorder(100, 2).late_entries(), None);
        let with = |reorder| Link { reorder: Some(reorder), ..Link::default() };
        assert!(lacks(&with(reorder(10_000, 2)), &pfifo()).is_empty());
        assert_eq!(lacks(&with(reorder(10_000, 2_001)), &pfifo()), ["reorder"]);
        let jitter = Some(Jitter::default());
        assert_eq!(lacks(&Link { jitter, ..with(reorder(10_000, 2)) }, &pfifo()), ["reorder"]);
        let skips = Reorder::new(Ppm::new(100).unwrap());
        assert!(lacks(&Link { jitter, ..with(skips) }, &pfifo()).is_empty());
    }

    #[test]
    fn jitter_must_fit_into_31_bits_of_nanoseconds() {
        let with = |distribution, spread| {
            let jitter = Jitter { spread: Micros::new(spread), distribution, ..Jitter::default() };
            lacks(&Link { jitter: Some(jitter), ..Link::default() }, &pfifo())
        };
        for (distribution, most_us) in [
            (Distribution::Uniform, 2_147_483),
            (Distribution::Normal, 2_147_483),
            (Distribution::Pareto, 268_435),
        ] {
            assert!(with(distribution, most_us).is_empty(), "{distribution:?}");
            assert_eq!(with(distribution, most_us + 1), ["jitter"], "{distribution:?}");
        }
        // A delay has 64 bits.
        let delay = Some(Micros::from_millis(60_000));
        assert!(lacks(&Link { delay, ..Link::default() }, &pfifo()).is_empty());
    }

    /// A `red` with these thresholds.
    fn red(min: Limit, max: Limit) -> Red {
        Red {
            limit: Limit::Bytes(Bytes::new(8_000_000)),
            min,
            max,
            probability: None,
            avpkt: None,
            burst: None,
            ecn: None,
            harddrop: None,
            adaptive: None,
            nodrop: None,
        }
    }

    fn unsupported(red: &Red) -> Option<&'static str> {
        Queue::Red(red.clone()).unsupported_by_qdisc().map(|feature| feature.key[0])
    }

    #[test]
    fn thresholds_of_red_must_fit_into_31_bits_with_its_weight() {
        let bytes = |bytes| Limit::Bytes(Bytes::new(bytes));
        let large = red(bytes(1_000_000), bytes(3_000_000));
        // Wlog is 10, and 3000000 has 22 bits.
        assert_eq!(
            (large.burst_pkts(1_000_000, 3_000_000), large.wlog(1_000_000, 3_000_000)),
            (1666, Some(10))
        );
        assert_eq!(unsupported(&large), Some("max"));
        assert_eq!(unsupported(&red(bytes(30_000), bytes(90_000))), None);
        // A smaller burst has a smaller Wlog.
        assert_eq!(unsupported(&Red { burst: Some(1_000), ..large }), None);
        // In packets, the thresholds are multiples of 1514 bytes; relative ones are not known here.
        let packets = |packets| Limit::Packets(Packets::new(packets));
        assert_eq!(unsupported(&red(packets(661), packets(1_982))), Some("max"));
        assert_eq!(unsupported(&red(Limit::MilliBdp(1000), Limit::MilliBdp(3000))), None);
    }

    #[test]
    fn adaptation_of_red_excludes_nodrop() {
        let bytes = |bytes| Limit::Bytes(Bytes::new(bytes));
        let adaptive = Red { adaptive: Some(true), ..red(bytes(30_000), bytes(90_000)) };
        assert_eq!(unsupported(&adaptive), None);
        let both = Red { ecn: Some(true), nodrop: Some(true), ..adaptive };
        assert_eq!(unsupported(&both), Some("adaptive"));
        assert_eq!(unsupported(&Red { adaptive: None, ..both }), None);
    }

    #[test]
    fn path_switch_needs_no_jitter_or_one_that_reorders() {
        let link = Link { path_switch: true, ..Link::default() };
        assert!(lacks(&link, &pfifo()).is_empty());
        let in_order = Some(Jitter::default());
        let jittered = Link { jitter: in_order, ..link.clone() };
        assert_eq!(lacks(&jittered, &pfifo()), ["path_switch"]);
        let jitter = Some(Jitter { reorder: true, ..Jitter::default() });
        assert!(lacks(&Link { jitter, ..link }, &pfifo()).is_empty());
    }
}
