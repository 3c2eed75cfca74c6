//! The features of a link that the kernel's qdiscs lack, for the checks of a plan and for the selection of a backend.

use super::{Link, Policer, Queue, Reorder, Shaper, Slot};
use crate::units::{FRAME_BYTES, Micros};

/// Entries of netem's largest table of delays (`NETEM_DIST_MAX`).
pub const NETEM_TABLE_ENTRIES: u32 = 16_384;
/// Longest reordering delay: netem computes random delays in 32 bits of nanoseconds.
const NETEM_MAX_LATE: Micros = Micros::from_millis(2_000);
/// Longest time in which a bucket fills: the kernel stores a bucket as this time, in 32 bits of 64 ns.
const MAX_BUCKET_S: u64 = 274;

/// A key of a link that qdiscs do not implement, on this link or at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsupportedFeature {
    /// The key, below the link.
    pub key: &'static [&'static str],
    /// What they cannot do: "an `ecn_rewrite`" ...
    pub what: &'static str,
}

impl Link {
    /// The features that the kernel's qdiscs lack for this link. `queue` is the queue in front of its rate. The link may have a
    /// trace instead of a rate.
    pub fn unsupported_by_qdiscs(
        &self,
        queue: Option<&Queue>,
        has_classes: bool,
    ) -> Vec<UnsupportedFeature> {
        let features: [(&'static [&'static str], Option<&'static str>); 8] = [
            (&["ecn_rewrite"], self.ecn_rewrite.map(|_| "an `ecn_rewrite`")),
            (&["ack_aggregation"], self.ack_aggregation.map(|_| "an `ack_aggregation`")),
            (&["ack_filter"], self.ack_filter.then(|| unsupported_ack_filter(queue)).flatten()),
            (
                &["policer"],
                self.policer.and_then(|policer| self.unsupported_policer(policer, has_classes)),
            ),
            (&["slot"], self.slot.and_then(|slot| slot.unsupported(self, queue))),
            (&["jitter", "hold"], self.jitter.and_then(|j| j.hold).map(|_| "jitter with a `hold`")),
            (&["reorder", "late"], self.reorder.and_then(|reorder| reorder.unsupported(self))),
            (&["path_switch"], self.unsupported_path_switch()),
        ];
        features
            .into_iter()
            .filter_map(|(key, what)| Some(UnsupportedFeature { key, what: what? }))
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
    use crate::plan::{Jitter, Pfifo, Policer, Tbf};
    use crate::units::{Bytes, Limit, Packets, Ppm, Rate};

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
