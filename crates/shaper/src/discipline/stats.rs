//! Converts the counters of a listed qdisc or class to a row of `qdisc_samples`. Does no I/O.

use ccbench_proto::wire::QdiscSample;

use crate::netlink::message::{Attrs, u32_at, u64_at};
use crate::qdisc::{TcMessage, handle_text, htb, tbf, word};

const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_APP: u16 = 4;
const TCA_STATS_PKT64: u16 = 8;

/// Fills in all columns but time, link and interface. `class`: `listed` is a class.
pub(crate) fn fill_row(listed: &TcMessage<'_>, class: bool, into: &mut QdiscSample) {
    let kind = listed.kind();
    into.handle = handle_text(listed.handle);
    into.parent = handle_text(listed.parent);
    if let Some(stats) = listed.stats() {
        general(stats.clone(), into);
        if let Some(own) = stats.clone().find_kind(TCA_STATS_APP) {
            match kind.as_str() {
                "htb" if class => htb_class(own, into),
                kind => super::read_xstats(kind, own, into),
            }
        }
    }
    into.rate_bps = match kind.as_str() {
        "htb" if class => listed.rate_bps(htb::TCA_HTB_PARMS, htb::TCA_HTB_RATE64),
        "tbf" => listed.rate_bps(tbf::TCA_TBF_PARMS, tbf::TCA_TBF_RATE64),
        _ => None,
    };
    into.kind = if class { format!("{kind} class") } else { kind };
}

fn signed(bytes: &[u8], at: usize) -> Option<i64> {
    u32_at(bytes, at).map(|value| i64::from(value.cast_signed()))
}

fn general(stats: Attrs<'_>, into: &mut QdiscSample) {
    if let Some(basic) = stats.clone().find_kind(TCA_STATS_BASIC) {
        into.sent_bytes = u64_at(basic, 0).unwrap_or(0);
        into.sent_pkts = word(basic, 8).unwrap_or(0);
    }
    // The 32-bit counter above wraps within minutes at 10 Gbit/s. Kernels from 5.5 have this 64-bit counter, too.
    if let Some(packets) = stats.clone().find_kind(TCA_STATS_PKT64).and_then(|v| u64_at(v, 0)) {
        into.sent_pkts = packets;
    }
    if let Some(queue) = stats.find_kind(TCA_STATS_QUEUE) {
        let field = |index: usize| word(queue, index * 4).unwrap_or(0);
        into.qlen_pkts = field(0);
        into.backlog_bytes = field(1);
        into.drops_pkts = field(2);
        into.requeues_pkts = field(3);
        into.overlimits = field(4);
    }
}

/// `struct tc_htb_xstats`.
fn htb_class(own: &[u8], into: &mut QdiscSample) {
    into.lended = word(own, 0);
    into.borrowed = word(own, 4);
    into.tokens = signed(own, 12);
    into.ctokens = signed(own, 16);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Message;
    use crate::netlink::tc_message::{TCA_KIND, TCA_OPTIONS, TCA_STATS2};

    const TCA_CAKE_STATS_MEMORY_USED: u16 = 4;
    const TCA_CAKE_STATS_TIN_STATS: u16 = 10;
    const TCA_CAKE_TIN_STATS_ACKS_DROPPED_PACKETS: u16 = 6;
    const TCA_CAKE_TIN_STATS_ECN_MARKED_PACKETS: u16 = 8;

    /// Returns the body of a listed qdisc with these options and statistics of its own.
    fn body(kind: &str, options: &[u8], own: &[u8]) -> Vec<u8> {
        let mut basic = 7_000_000_000_u64.to_ne_bytes().to_vec();
        basic.extend(5_u32.to_ne_bytes());
        let queue: Vec<u8> =
            [3_u32, 4542, 2, 1, 9].into_iter().flat_map(u32::to_ne_bytes).collect();
        Message::attributes()
            .tcmsg(7, 0x10_0000, 0x1_0010, 0)
            .attr_str(TCA_KIND, kind)
            .attr(TCA_OPTIONS, options)
            .nested(TCA_STATS2, |m| {
                m.attr(TCA_STATS_BASIC, &basic)
                    .attr_u64(TCA_STATS_PKT64, 1 << 33)
                    .attr(TCA_STATS_QUEUE, &queue)
                    .attr(TCA_STATS_APP, own)
            })
            .into_attributes()
    }

    fn row(kind: &str, own: &[u8], class: bool) -> QdiscSample {
        let bytes = body(kind, &[], own);
        let listed = TcMessage::parse(&bytes).unwrap();
        assert_eq!((listed.ifindex, listed.is_root()), (7, false));
        let mut row = QdiscSample::default();
        fill_row(&listed, class, &mut row);
        row
    }

    /// Returns a kernel structure that consists of the words 100, 101, 102 ...
    fn words(count: u32) -> Vec<u8> {
        (100..100 + count).flat_map(u32::to_ne_bytes).collect()
    }

    #[test]
    fn general_counters_have_64_bits() {
        let row = row("bfifo", &[], false);
        assert_eq!((row.sent_bytes, row.sent_pkts), (7_000_000_000, 1 << 33));
        assert_eq!((row.qlen_pkts, row.backlog_bytes, row.drops_pkts), (3, 4542, 2));
        assert_eq!((row.requeues_pkts, row.overlimits), (1, 9));
        assert_eq!((row.handle.as_str(), row.parent.as_str()), ("10:", "1:10"));
        assert_eq!((row.kind.as_str(), row.ecn_mark_pkts), ("bfifo", None));
    }

    #[test]
    fn each_kind_has_its_own_counters() {
        let codel = row("codel", &words(9), false);
        assert_eq!(codel.drop_overlimit_pkts, Some(105));
        assert_eq!((codel.ecn_mark_pkts, codel.ce_mark_pkts), (Some(106), Some(108)));

        let mut own = words(10);
        own[..4].fill(0);
        own[8..12].copy_from_slice(&150_u32.to_ne_bytes());
        let fq_codel = row("fq_codel", &own, false);
        // The kernel counts a packet that the memory limit drops in both.
        assert_eq!(fq_codel.drop_overlimit_pkts, Some(150 - 109));
        assert_eq!(fq_codel.flows, Some(105 + 106));
        assert_eq!(
            (fq_codel.memory_used_bytes, fq_codel.drop_overmemory_pkts),
            (Some(108), Some(109))
        );

        let dualpi2 = row("dualpi2", &words(12), false);
        assert_eq!((dualpi2.delay_c_us, dualpi2.step_mark_pkts), (Some(101), Some(107)));
        assert_eq!((dualpi2.credit, dualpi2.memory_used_bytes), (Some(108), Some(109)));

        let mut own = (1_u64 << 62).to_ne_bytes().to_vec();
        own.extend(words(8));
        let pie = row("pie", &own, false);
        assert_eq!((pie.prob, pie.delay_c_us, pie.maxq_pkts), (Some(0.25), Some(100), Some(106)));
        assert_eq!((pie.ecn_mark_pkts, pie.drop_overlimit_pkts), (Some(107), Some(105)));
        assert_eq!(row("red", &words(4), false).ecn_mark_pkts, Some(103));

        let fq = row("fq", &words(26), false);
        assert_eq!(fq.flows, Some(116));
        assert_eq!(fq.ce_mark_pkts, Some(120 | 121 << 32));

        let mut own = words(3);
        own.extend((-5_i32).to_ne_bytes());
        own.extend(6_i32.to_ne_bytes());
        let class = row("htb", &own, true);
        assert_eq!(class.kind, "htb class");
        assert_eq!((class.lended, class.borrowed), (Some(100), Some(101)));
        assert_eq!((class.tokens, class.ctokens), (Some(-5), Some(6)));

        let cake = Message::attributes()
            .attr_u32(TCA_CAKE_STATS_MEMORY_USED, 77)
            .nested(TCA_CAKE_STATS_TIN_STATS, |m| {
                let tin = |m: Message| {
                    m.attr_u32(TCA_CAKE_TIN_STATS_ACKS_DROPPED_PACKETS, 3)
                        .attr_u32(TCA_CAKE_TIN_STATS_ECN_MARKED_PACKETS, 4)
                };
                m.nested(1, tin).nested(2, tin)
            })
            .into_attributes();
        let cake = row("cake", &cake, false);
        assert_eq!((cake.memory_used_bytes, cake.ecn_mark_pkts), (Some(77), Some(8)));
        assert_eq!(cake.drop_ack_filter_pkts, Some(6));
    }

    #[test]
    fn fields_that_an_older_kernel_lacks_are_none() {
        let codel = row("codel", &words(8), false);
        assert_eq!((codel.ecn_mark_pkts, codel.ce_mark_pkts), (Some(106), None));
    }

    #[test]
    fn reads_the_configured_rate() {
        use crate::qdisc::tbf::Tbf;
        use ccbench_proto::units::Rate;
        for bits in [100_000_000, 80_000_000_000] {
            let rate = Rate::from_bits_per_sec(bits);
            let tbf = Tbf { rate, burst_bytes: 3000, limit: 9, overhead_bytes: 0, peak: None };
            let bytes = body("tbf", &tbf.encode().options, &[]);
            let mut row = QdiscSample::default();
            fill_row(&TcMessage::parse(&bytes).unwrap(), false, &mut row);
            assert_eq!(row.rate_bps, Some(bits));
        }
    }
}
