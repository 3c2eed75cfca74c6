//! Did each link have the rate that the plan gives it, and did the userspace path keep its times?

use std::collections::BTreeMap;

use ccbench_proto::plan::{Link, Plan, Queue};
use ccbench_proto::units::FRAME_BYTES;
use ccbench_proto::wire::{LinkChange, QdiscSample};

use super::{Findings, Span, Status};

/// A backlogged link must send; 3 % is several times what HTB's rate table and the sampling instant account for.
pub const LOW_SHARE: f64 = 0.03;
/// A token bucket cannot send more than its rate over a second, but for its burst.
pub const HIGH_SHARE: f64 = 0.02;
/// Rates are taken over a second: long against bursts and against the jitter of the sampling instant.
pub const WINDOW_NS: u64 = 1_000_000_000;
/// One second in ten may be low (something else ran for a moment) as long as the whole is not.
pub const LOW_WINDOWS_SHARE: f64 = 0.1;
/// Bytes by which a window may be off at any rate: a burst, and the packet at either end.
pub const SLACK_BYTES: f64 = 4.0 * FRAME_BYTES as f64;
/// Packets that the userspace path may release more than 1 ms late.
pub const LATE_SHARE: f64 = 0.01;

/// Which link of which node.
type Key = (String, String);

/// Counters per link.
#[derive(Debug)]
pub(crate) struct LinkCheck {
    /// Links whose rate never changes; `true` if they send whenever they have something to send.
    rates_bps: BTreeMap<String, (u64, bool)>,
    series: BTreeMap<Key, Series>,
    failed_changes: BTreeMap<String, (u32, String)>,
}

#[derive(Debug, Default)]
struct Series {
    sent_pkts: u64,
    late_pkts: u64,
    max_late_us: u64,
    /// The rows of one instant, until one of the next comes.
    instant: Option<Instant>,
    window: Option<Window>,
    /// Windows with a backlog throughout.
    full: Vec<Rate>,
    /// The fastest window of all.
    fastest: Option<Rate>,
}

/// The counters of all qdiscs and classes of a link, read together. The root qdisc has sent everything; its backlog
/// need not hold that of the queues below it, and above a netem it holds packets that wait for their delay.
#[derive(Debug, Clone, Copy, Default)]
struct Instant {
    at_ns: u64,
    root_sent_bytes: Option<u64>,
    most_sent_bytes: u64,
    root_waits: bool,
    queue_waits: bool,
    delays: bool,
}

impl Instant {
    fn add(&mut self, row: &QdiscSample) {
        let waits = row.backlog_bytes > 0 || row.qlen_pkts > 0;
        let class = row.kind.ends_with(" class");
        self.most_sent_bytes = self.most_sent_bytes.max(row.sent_bytes);
        self.delays |= row.kind == "netem";
        if !class && row.parent == "root" {
            self.root_sent_bytes = Some(row.sent_bytes);
            self.root_waits |= waits;
        } else if !class && row.kind != "netem" {
            self.queue_waits |= waits;
        }
    }

    fn window(self) -> Window {
        Window {
            at_ns: self.at_ns,
            sent_bytes: self.root_sent_bytes.unwrap_or(self.most_sent_bytes),
            backlogged: self.queue_waits || (self.root_waits && !self.delays),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Window {
    at_ns: u64,
    sent_bytes: u64,
    backlogged: bool,
}

/// Bytes in a time.
#[derive(Debug, Clone, Copy)]
struct Rate {
    bytes: u64,
    ns: u64,
}

/// Windows kept per series; a longer trial is judged by its first hours.
const MOST_WINDOWS: usize = 20_000;

impl Rate {
    fn bps(self) -> f64 {
        self.bytes as f64 * 8e9 / self.ns.max(1) as f64
    }

    /// What a link of this rate would have sent in this time.
    fn ideal_bytes(self, rate_bps: u64) -> f64 {
        rate_bps as f64 / 8e9 * self.ns as f64
    }

    fn is_low(self, rate_bps: u64) -> bool {
        (self.bytes as f64) < self.ideal_bytes(rate_bps) * (1.0 - LOW_SHARE) - SLACK_BYTES
    }

    fn is_high(self, rate_bps: u64) -> bool {
        self.bytes as f64 > self.ideal_bytes(rate_bps) * (1.0 + HIGH_SHARE) + SLACK_BYTES
    }
}

impl LinkCheck {
    pub(crate) fn new(plan: &Plan) -> Self {
        let changes = |link: &str| {
            let key = format!("links.{link}.rate");
            plan.changes.iter().any(|change| change.set.contains_key(&key))
        };
        let constant = plan.links.iter().filter(|(name, _)| !changes(name));
        Self {
            rates_bps: constant
                .filter_map(|(name, link)| {
                    Some((name.clone(), (link.rate?.bits_per_sec(), conserves_work(link))))
                })
                .collect(),
            series: BTreeMap::new(),
            failed_changes: BTreeMap::new(),
        }
    }

    pub(crate) fn change(&mut self, row: &LinkChange) {
        if row.rc != 0 {
            let first = || (0, format!("{} on {}: error {}", row.source, row.iface, row.rc));
            self.failed_changes.entry(row.link.clone()).or_insert_with(first).0 += 1;
        }
    }

    pub(crate) fn sample(&mut self, node: &str, span: Span, row: &QdiscSample) {
        if !span.holds(row.at_ns) {
            return;
        }
        let key = (node.to_owned(), row.link.clone());
        let series = self.series.entry(key).or_default();
        if let Some(late_pkts) = row.late_pkts {
            series.sent_pkts = row.sent_pkts;
            series.late_pkts = late_pkts;
            series.max_late_us = series.max_late_us.max(row.max_late_us.unwrap_or(0));
        }
        if series.instant.is_some_and(|instant| instant.at_ns != row.at_ns) {
            series.advance();
        }
        let fresh = Instant { at_ns: row.at_ns, ..Instant::default() };
        series.instant.get_or_insert(fresh).add(row);
    }

    pub(crate) fn finish(mut self, findings: &mut Findings) {
        for (link, (count, first)) in self.failed_changes {
            let message = format!("link {link}: {count} changes failed; the first: {first}");
            findings.add(Status::Degraded, "link_change_failed", message);
        }
        for (link, (rate_bps, conserves_work)) in &self.rates_bps {
            for (_, series) in self.series.iter_mut().filter(|((_, name), _)| name == link) {
                series.advance();
                series.judge_high(link, *rate_bps, findings);
                if *conserves_work {
                    series.judge_low(link, *rate_bps, findings);
                }
            }
        }
        for ((_, link), series) in &self.series {
            let share = series.late_pkts as f64 / series.sent_pkts.max(1) as f64;
            if share > LATE_SHARE {
                let message = format!(
                    "link {link}: {:.1} % of {} packets left more than 1 ms late, the worst {} us (limit {:.0} %)",
                    share * 100.0,
                    series.sent_pkts,
                    series.max_late_us,
                    LATE_SHARE * 100.0
                );
                findings.add(Status::Degraded, "link_late", message);
            }
        }
    }
}

fn mbit(bps: f64) -> String {
    format!("{:.3} Mbit/s", bps / 1e6)
}

/// sch_fq paces: packets may wait in it although the link is free.
fn conserves_work(link: &Link) -> bool {
    let paces = |queue: Option<&Queue>| matches!(queue, Some(Queue::Fq { .. }));
    !paces(link.queue.as_ref()) && !link.classes.values().any(|class| paces(class.queue.as_ref()))
}

impl Series {
    /// Takes the instant that is complete.
    fn advance(&mut self) {
        let Some(fresh) = self.instant.take().map(Instant::window) else { return };
        let Some(window) = &mut self.window else {
            self.window = Some(fresh);
            return;
        };
        window.backlogged &= fresh.backlogged;
        let ns = fresh.at_ns.saturating_sub(window.at_ns);
        let Some(bytes) = fresh.sent_bytes.checked_sub(window.sent_bytes) else {
            self.window = Some(fresh);
            return;
        };
        if ns < WINDOW_NS {
            return;
        }
        let rate = Rate { bytes, ns };
        if window.backlogged && self.full.len() < MOST_WINDOWS {
            self.full.push(rate);
        }
        if self.fastest.is_none_or(|fastest| rate.bps() > fastest.bps()) {
            self.fastest = Some(rate);
        }
        self.window = Some(fresh);
    }

    fn judge_high(&self, link: &str, rate_bps: u64, findings: &mut Findings) {
        if let Some(fastest) = self.fastest.filter(|rate| rate.is_high(rate_bps)) {
            let message = format!(
                "link {link}: {} in one second, the plan says {} (limit {:.0} % over)",
                mbit(fastest.bps()),
                mbit(rate_bps as f64),
                HIGH_SHARE * 100.0
            );
            findings.add(Status::Degraded, "link_rate_high", message);
        }
    }

    fn judge_low(&self, link: &str, rate_bps: u64, findings: &mut Findings) {
        let low = self.full.iter().filter(|rate| rate.is_low(rate_bps)).count();
        let low_share = low as f64 / self.full.len().max(1) as f64;
        let add =
            |sum: Rate, one: &Rate| Rate { bytes: sum.bytes + one.bytes, ns: sum.ns + one.ns };
        let whole = self.full.iter().fold(Rate { bytes: 0, ns: 0 }, add);
        if whole.is_low(rate_bps) || low_share > LOW_WINDOWS_SHARE {
            let message = format!(
                "link {link}: {} while its queue was not empty, low in {low} of {} seconds; the plan says {} \
                 (limit {:.0} % under)",
                mbit(whole.bps()),
                self.full.len(),
                mbit(rate_bps as f64),
                LOW_SHARE * 100.0
            );
            findings.add(Status::Degraded, "link_rate_low", message);
        }
    }
}
