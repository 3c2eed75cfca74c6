//! Checks ECN: whether each flow got the feedback that its congestion control needs, and whether senders counted the CE marks that the
//! links set.

use std::collections::BTreeMap;

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::event::Ecn;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::wire::{FlowSample, QdiscSample, Role, Side};

use super::findings::{Findings, Span};
use crate::model::Status;
use crate::reason::ReasonCode;

/// The number of counted marks may differ from the number of marks set by this share (retransmissions acknowledged twice, marks on segments
/// that the receiver coalesced) ...
pub const COUNT_SHARE: f64 = 0.02;
/// ... plus a few marks per flow: marks on the handshake are not counted.
pub const COUNT_SLACK_PKTS: f64 = 3.0;
/// Marks in this many last smoothed round trips may be acknowledged after a flow's last sample.
pub const PENDING_RTTS: f64 = 2.0;
/// The kernel's DualPI2 counts a packet in `ecn_mark` once for the coupled mark and again for the step's mark (`dualpi2_mark`).
const KERNEL_DUALPI2: &str = "dualpi2";
/// The kernel's fq counts each packet above its CE threshold in `ce_mark`, also one without ECN (`fq_dequeue`).
const KERNEL_FQ: &str = "fq";
/// `TCPI_OPT_ECN` (linux/tcp.h): the handshake negotiated ECN.
const NEGOTIATED: u32 = 8;

/// What the nodes reported, what the senders counted and what the links marked.
#[derive(Debug)]
pub(crate) struct EcnCheck {
    every_s: f64,
    /// The ends of each flow group.
    ends: BTreeMap<String, Vec<EcnEnd>>,
    flows: BTreeMap<String, SenderFlow>,
    links: BTreeMap<(String, String, String), Marks>,
}

/// One end of a flow group.
#[derive(Debug)]
struct EcnEnd {
    node: String,
    ecn: Ecn,
}

/// One data flow at its sender.
#[derive(Debug, Default)]
struct SenderFlow {
    group: String,
    negotiated: bool,
    counted_pkts: u32,
    last_s: f64,
    srtt_s: f64,
}

/// Marks and drops of one queue.
#[derive(Debug, Default)]
struct Marks {
    /// Counters over time: seconds, marks, drops.
    counters: Vec<(f64, u64, u64)>,
    /// Marks that the kernel may have counted, but not set.
    not_set: u64,
    /// CE marks that the link removed.
    removed: u64,
}

impl Marks {
    fn total(&self) -> u64 {
        self.counters.last().map_or(0, |(_, marks, _)| *marks)
    }

    fn drops(&self) -> u64 {
        self.counters.last().map_or(0, |(_, _, drops)| *drops)
    }

    /// Returns the marks within a time span, rounded up to the enclosing samples.
    fn within(&self, (from_s, to_s): (f64, f64)) -> u64 {
        let before = self.counters.iter().take_while(|(at_s, ..)| *at_s <= from_s).last();
        let after = self.counters.iter().find(|(at_s, ..)| *at_s >= to_s);
        let from = before.map_or(0, |(_, marks, _)| *marks);
        after.map_or(self.total(), |(_, marks, _)| *marks).saturating_sub(from)
    }
}

/// Returns the sum of counters. It saturates, because they come from another machine.
fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

impl EcnCheck {
    pub(crate) fn new(plan: &CheckedPlan) -> Self {
        let sample = &plan.plan().sample;
        Self {
            every_s: sample.tcp.as_secs_f64() + sample.qdisc.as_secs_f64(),
            ends: BTreeMap::new(),
            flows: BTreeMap::new(),
            links: BTreeMap::new(),
        }
    }

    pub(crate) fn event(&mut self, node: &str, group: &str, ecn: &Ecn) {
        let end = EcnEnd { node: node.to_owned(), ecn: ecn.clone() };
        self.ends.entry(group.to_owned()).or_default().push(end);
    }

    pub(crate) fn sample(&mut self, span: Span, row: &FlowSample) {
        if row.role() != Role::Data || row.side() != Side::Sender {
            return;
        }
        let flow = self.flows.entry(row.flow_id.clone()).or_default();
        flow.group.clone_from(&row.group);
        flow.negotiated |= row.options.is_some_and(|options| options & NEGOTIATED != 0);
        flow.counted_pkts = flow.counted_pkts.max(row.delivered_ce_pkts.unwrap_or(0));
        flow.last_s = flow.last_s.max(span.seconds(row.at_ns));
        flow.srtt_s = row.rtt_us.map_or(flow.srtt_s, |rtt_us| f64::from(rtt_us) / 1e6);
    }

    pub(crate) fn queue(&mut self, node: &str, span: Span, row: &QdiscSample) {
        let marks = match (row.ecn_mark_pkts, row.ce_mark_pkts) {
            (None, None) if row.ce_rewritten_pkts.or(row.drop_policed_pkts).is_none() => return,
            (law, threshold) => law.unwrap_or(0).saturating_add(threshold.unwrap_or(0)),
        };
        let key = (node.to_owned(), row.link.clone(), row.handle.clone());
        // The filter drops acknowledgements whose feedback is also in a later one.
        let drops = row.drops_pkts.saturating_sub(row.drop_ack_filter_pkts.unwrap_or(0));
        let at = (span.seconds(row.at_ns), marks, drops);
        let queue = self.links.entry(key).or_default();
        queue.counters.push(at);
        queue.removed = row.ce_rewritten_pkts.unwrap_or(0);
        queue.not_set = match row.kind.as_str() {
            KERNEL_DUALPI2 => row.step_mark_pkts.unwrap_or(0).min(marks),
            KERNEL_FQ => marks,
            _ => 0,
        };
    }

    pub(crate) fn finish(self, findings: &mut Findings) {
        let mut all_count = !self.ends.is_empty();
        for (group, ends) in &self.ends {
            if let Some(why) = fallback(ends).or_else(|| self.not_negotiated(group)) {
                all_count = false;
                let subject = format!("flows.{group}");
                let message = format!("{subject}: {why}");
                findings.add(Status::Degraded, ReasonCode::EcnFallback, subject, message);
            }
        }
        // No sender here counts marks on packets of other flows.
        let has_other_flow =
            self.flows.values().any(|flow| flow.negotiated && !self.ends.contains_key(&flow.group));
        if all_count && !has_other_flow {
            self.judge_counts(findings);
        }
    }

    fn not_negotiated(&self, group: &str) -> Option<String> {
        let own = || self.flows.values().filter(|flow| flow.group == group);
        let without = own().filter(|flow| !flow.negotiated).count();
        (without > 0)
            .then(|| format!("{without} of {} connections did not negotiate ECN", own().count()))
    }

    fn judge_counts(&self, findings: &mut Findings) {
        let flows = || self.flows.values().filter(|flow| flow.negotiated);
        let counted: f64 = flows().map(|flow| f64::from(flow.counted_pkts)).sum();
        let marked = sum(self.links.values().map(Marks::total)) as f64;
        let removed = sum(self.links.values().map(|marks| marks.removed)) as f64;
        let dropped = sum(self.links.values().map(Marks::drops)) as f64;
        let not_set = sum(self.links.values().map(|marks| marks.not_set));
        let ends = merged(flows().map(|flow| {
            let pending_s = self.every_s + PENDING_RTTS * flow.srtt_s;
            (flow.last_s - pending_s, flow.last_s + self.every_s)
        }));
        let pending = sum(ends.iter().flat_map(|end| self.links.values().map(|m| m.within(*end))));
        let slack = COUNT_SLACK_PKTS * flows().count() as f64;
        let least = marked * (1.0 - COUNT_SHARE)
            - removed
            - slack
            - pending.saturating_add(not_set) as f64
            - dropped;
        let most = marked * (1.0 + COUNT_SHARE) - removed + slack;
        if counted < least || counted > most {
            let rewritten =
                if removed > 0.0 { format!(" and removed {removed:.0}") } else { String::new() };
            let message = format!(
                "senders counted {counted:.0} CE marks, but the links set {marked:.0}{rewritten} (limits {:.0} to {most:.0}: {:.0} %, \
                 {COUNT_SLACK_PKTS:.0} per flow, {pending} in flight when flows ended, {dropped:.0} dropped packets, \
                 {not_set} that the kernel may have counted, but not set)",
                least.max(0.0),
                COUNT_SHARE * 100.0
            );
            findings.add(Status::Degraded, ReasonCode::CeCountOff, "", message);
        }
    }
}

/// Returns why the ends of a group do not have the requested feedback; `None` if they have it.
fn fallback(ends: &[EcnEnd]) -> Option<String> {
    let describe = |EcnEnd { node, ecn }: &EcnEnd| {
        let (asked, mode) = (ecn.asked().as_text(), ecn.mode().as_text());
        format!("{} requested {asked}, {node} uses {mode}: {}", ecn.cc, ecn.reason)
    };
    if let Some(end) = ends.iter().find(|end| !end.ecn.counts_marks()) {
        return Some(describe(end));
    }
    let first = ends.first()?;
    if let Some(other) = ends.iter().find(|end| end.ecn.mode != first.ecn.mode) {
        return Some(format!("the ends differ: {}; {}", describe(first), describe(other)));
    }
    let no_ect1 = ends.iter().find_map(|end| Some((end, end.ecn.ect1_error.as_ref()?)));
    no_ect1.map(|(end, why)| format!("data of {} is ECT(0), not ECT(1): {why}", end.ecn.cc))
}

/// Merges overlapping time spans.
fn merged(times: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut times: Vec<(f64, f64)> = times.collect();
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut apart: Vec<(f64, f64)> = Vec::new();
    for (from_s, to_s) in times {
        match apart.last_mut() {
            Some(last) if from_s <= last.1 => last.1 = last.1.max(to_s),
            _ => apart.push((from_s, to_s)),
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use ccbench_proto::event::{EcnMode, EcnRequest};
    use ccbench_proto::plan::{check, parse};

    use super::*;

    const SPAN: Span = Span { t0_ns: 0, end_ns: 10_000_000_000 };
    const PLAN: &str = include_str!("ecn.toml");

    /// Judges two nodes in these modes, flow `l4s/0` that counted `counted` marks, and a link that set 100 marks a second for 10 s.
    fn judge(
        modes: [EcnMode; 2],
        negotiated: bool,
        counted: u32,
        has_other_flow: bool,
    ) -> Vec<String> {
        judge_behind("", modes, negotiated, counted, has_other_flow, None)
    }

    /// As [`judge`], with this kind of qdisc, and a second link that removed this many CE marks.
    fn judge_behind(
        kind: &str,
        modes: [EcnMode; 2],
        negotiated: bool,
        counted: u32,
        has_other_flow: bool,
        rewritten: Option<u64>,
    ) -> Vec<String> {
        let (plan, _) = check::check(parse::parse(PLAN).unwrap()).unwrap();
        let mut ecn = EcnCheck::new(&plan);
        for (node, mode) in ["src", "dst"].into_iter().zip(modes) {
            let counts = matches!(mode, EcnMode::DctcpFeedback | EcnMode::AccecnStructOps);
            let end = Ecn {
                cc: "prague".into(),
                asked: EcnRequest::Accecn.into(),
                mode: mode.into(),
                reason: "so".into(),
                counts_marks: Some(counts),
                ..Default::default()
            };
            ecn.event(node, "l4s", &end);
        }
        for tenth in 1..=100u64 {
            let at_ns = tenth * 100_000_000;
            let row = |group: &str, ecn: bool, ce: u64| FlowSample {
                at_ns,
                flow_id: format!("{group}/0"),
                group: group.into(),
                side: Side::Sender.into(),
                role: Role::Data.into(),
                options: Some(if ecn { 15 } else { 7 }),
                rtt_us: Some(15_000),
                delivered_ce_pkts: Some(ce as u32),
                ..Default::default()
            };
            ecn.sample(SPAN, &row("l4s", negotiated, u64::from(counted) * tenth / 100));
            if has_other_flow {
                ecn.sample(SPAN, &row("classic", true, 0));
            }
            let link = QdiscSample {
                at_ns,
                link: "bottleneck".into(),
                kind: kind.into(),
                ce_mark_pkts: Some(tenth * 10),
                ..Default::default()
            };
            ecn.queue("router", SPAN, &link);
            let after = QdiscSample {
                at_ns,
                link: "after".into(),
                ce_rewritten_pkts: rewritten.map(|pkts| pkts * tenth / 100),
                ..Default::default()
            };
            ecn.queue("router", SPAN, &after);
        }
        let mut findings = Findings::default();
        ecn.finish(&mut findings);
        findings
            .0
            .into_iter()
            .map(|(_, reason)| {
                assert!(reason.code != ReasonCode::CeCountOff || reason.subject().is_empty());
                format!("{} {}", reason.code, reason.message)
            })
            .collect()
    }

    const ACCECN: [EcnMode; 2] = [EcnMode::AccecnStructOps; 2];

    #[test]
    fn counted_is_marked() {
        for counted in [1000, 1020, 960] {
            assert_eq!(judge(ACCECN, true, counted, false), Vec::<String>::new(), "{counted}");
        }
        for counted in [1040, 930, 0, 5000] {
            let reasons = judge(ACCECN, true, counted, false);
            assert_eq!(reasons.len(), 1, "{counted}");
            assert!(reasons[0].starts_with("ce_count_off senders counted"), "{reasons:?}");
        }
    }

    #[test]
    fn marks_that_a_link_rewrote_are_not_counted() {
        let judge = |counted| judge_behind("", ACCECN, true, counted, false, Some(400));
        for counted in [600, 620, 560] {
            assert_eq!(judge(counted), Vec::<String>::new(), "{counted}");
        }
        for counted in [1000, 0] {
            let reasons = judge(counted);
            assert!(reasons[0].contains("the links set 1000 and removed 400"), "{reasons:?}");
        }
        let all = |counted| judge_behind("", ACCECN, true, counted, false, Some(1000));
        assert_eq!(all(0), Vec::<String>::new(), "bleached");
    }

    #[test]
    fn marks_of_the_kernels_fq_are_an_upper_bound() {
        let judge = |kind, counted| judge_behind(kind, ACCECN, true, counted, false, None);
        for counted in [0, 500, 1000] {
            assert_eq!(judge("fq", counted), Vec::<String>::new(), "{counted}");
        }
        let reasons = judge("fq", 1040);
        assert!(reasons[0].contains("1000 that the kernel may have counted"), "{reasons:?}");
        assert_eq!(judge("userspace", 500).len(), 1);
    }

    #[test]
    fn without_counts_nothing_is_compared() {
        assert_eq!(judge(ACCECN, true, 0, true), Vec::<String>::new(), "marks may be the other's");
        let reasons = judge([EcnMode::Rfc3168; 2], true, 0, false);
        assert_eq!(
            reasons,
            ["ecn_fallback flows.l4s: prague requested accecn, src uses rfc3168: so"]
        );
    }

    #[test]
    fn fallback_degrades() {
        let reasons = judge([EcnMode::AccecnStructOps, EcnMode::None], true, 1000, false);
        assert_eq!(reasons, ["ecn_fallback flows.l4s: prague requested accecn, dst uses none: so"]);
        let reasons = judge([EcnMode::AccecnStructOps, EcnMode::DctcpFeedback], true, 1000, false);
        assert!(reasons[0].contains("the ends differ"), "{reasons:?}");
        let reasons = judge(ACCECN, false, 0, false);
        assert!(reasons[0].contains("1 of 1 connections did not negotiate ECN"), "{reasons:?}");
    }

    #[test]
    fn ends_of_flows_are_counted_once() {
        let times = [(5.0, 6.0), (1.0, 2.0), (1.5, 3.0), (2.5, 2.75)];
        assert_eq!(merged(times.into_iter()), [(1.0, 3.0), (5.0, 6.0)]);
    }
}
