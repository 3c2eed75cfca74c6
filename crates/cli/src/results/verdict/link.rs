//! Did each link have the rate that the plan gives it, and did the userspace path keep its times?

use std::collections::BTreeMap;

use ccbench_proto::plan::{Link, Plan, Queue, Setting};
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
/// Left out on either side of a change of the rate: the change is as late as its thread, and a burst of the old rate
/// may follow.
pub const CHANGE_NS: u64 = 200_000_000;
/// Packets that the userspace path may release more than 1 ms late.
pub const LATE_SHARE: f64 = 0.01;

/// Which link of which node.
type Key = (String, String);

/// Counters per link.
#[derive(Debug)]
pub(crate) struct LinkCheck {
    /// Links that have a rate.
    rated: BTreeMap<String, Rated>,
    series: BTreeMap<Key, Series>,
    failed_changes: BTreeMap<String, (u32, String)>,
}

/// What the plan says of a link's rate.
#[derive(Debug)]
struct Rated {
    legs: Vec<Leg>,
    /// It sends whenever it has something to send.
    conserves_work: bool,
    /// It has slices, which may be full while the link is not.
    sliced: bool,
}

/// The queue of what is in no slice, the one that may always take all that the link has left.
const REMAINDER: &str = "10:";

/// A time of one rate, in nanoseconds since the trial's beginning.
#[derive(Debug, Clone, Copy)]
struct Leg {
    from_ns: u64,
    to_ns: u64,
    rate_bps: u64,
}

impl Rated {
    fn new(name: &str, link: &Link, plan: &Plan) -> Option<Self> {
        let key = format!("links.{name}.rate");
        let mut changes: Vec<(u64, u64)> = plan
            .changes
            .iter()
            .filter_map(|change| match change.set.get(&key)? {
                Setting::Rate(rate) => Some((change.at.nanos(), rate.bits_per_sec())),
                Setting::Delay(_) | Setting::Loss(_) => None,
            })
            .collect();
        changes.sort_by_key(|(at_ns, _)| *at_ns);
        let mut legs =
            vec![Leg { from_ns: 0, to_ns: u64::MAX, rate_bps: link.rate?.bits_per_sec() }];
        for (at_ns, rate_bps) in changes {
            if let Some(last) = legs.last_mut() {
                last.to_ns = at_ns.saturating_sub(CHANGE_NS);
            }
            legs.push(Leg { from_ns: at_ns.saturating_add(CHANGE_NS), to_ns: u64::MAX, rate_bps });
        }
        Some(Self { legs, conserves_work: conserves_work(link), sliced: !link.classes.is_empty() })
    }

    fn leg(&self, since_ns: u64) -> Option<usize> {
        self.legs.iter().position(|leg| leg.from_ns <= since_ns && since_ns <= leg.to_ns)
    }
}

#[derive(Debug, Default)]
struct Series {
    sent_pkts: u64,
    late_pkts: u64,
    max_late_us: u64,
    /// The rows of one instant, until one of the next comes.
    instant: Option<Instant>,
    window: Option<Window>,
    /// By leg.
    seen: BTreeMap<usize, Seen>,
}

/// Windows within one leg.
#[derive(Debug, Default)]
struct Seen {
    /// Those with a backlog throughout.
    full: Vec<Rate>,
    /// The fastest of all.
    fastest: Option<Rate>,
}

/// The counters of all qdiscs and classes of a link, read together. The root qdisc has sent everything; its backlog
/// need not hold that of the queues below it, and above a netem it holds packets that wait for their delay.
#[derive(Debug, Clone, Copy, Default)]
struct Instant {
    at_ns: u64,
    leg: Option<usize>,
    sliced: bool,
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
            self.queue_waits |= waits && (!self.sliced || row.handle == REMAINDER);
        }
    }

    fn window(self) -> Window {
        Window {
            at_ns: self.at_ns,
            leg: self.leg,
            sent_bytes: self.root_sent_bytes.unwrap_or(self.most_sent_bytes),
            backlogged: self.queue_waits || (self.root_waits && !self.delays && !self.sliced),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Window {
    at_ns: u64,
    leg: Option<usize>,
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
        let rated =
            |(name, link): (&String, &Link)| Some((name.clone(), Rated::new(name, link, plan)?));
        Self {
            rated: plan.links.iter().filter_map(rated).collect(),
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
        let rated = self.rated.get(&row.link);
        let leg = rated.and_then(|rated| rated.leg(row.at_ns.saturating_sub(span.t0_ns)));
        let sliced = rated.is_some_and(|rated| rated.sliced);
        let fresh = Instant { at_ns: row.at_ns, leg, sliced, ..Instant::default() };
        series.instant.get_or_insert(fresh).add(row);
    }

    pub(crate) fn finish(mut self, findings: &mut Findings) {
        for (link, (count, first)) in self.failed_changes {
            let message = format!("link {link}: {count} changes failed; the first: {first}");
            findings.add(Status::Degraded, "link_change_failed", message);
        }
        for ((_, link), series) in &mut self.series {
            series.advance();
            let Some(rated) = self.rated.get(link) else { continue };
            for (leg, seen) in &series.seen {
                let Some(leg) = rated.legs.get(*leg) else { continue };
                let name = match rated.legs.len() {
                    1 => format!("link {link}"),
                    _ => format!("link {link} from {:.1} s on", leg.from_ns as f64 / 1e9),
                };
                seen.judge_high(&name, leg.rate_bps, findings);
                if rated.conserves_work {
                    seen.judge_low(&name, leg.rate_bps, findings);
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
        let bytes = fresh.sent_bytes.checked_sub(window.sent_bytes);
        let (Some(bytes), Some(leg), true) = (bytes, fresh.leg, fresh.leg == window.leg) else {
            self.window = Some(fresh);
            return;
        };
        if ns < WINDOW_NS {
            return;
        }
        let rate = Rate { bytes, ns };
        let seen = self.seen.entry(leg).or_default();
        if window.backlogged && seen.full.len() < MOST_WINDOWS {
            seen.full.push(rate);
        }
        if seen.fastest.is_none_or(|fastest| rate.bps() > fastest.bps()) {
            seen.fastest = Some(rate);
        }
        self.window = Some(fresh);
    }
}

impl Seen {
    fn judge_high(&self, link: &str, rate_bps: u64, findings: &mut Findings) {
        if let Some(fastest) = self.fastest.filter(|rate| rate.is_high(rate_bps)) {
            let message = format!(
                "{link}: {} in one second, the plan says {} (limit {:.0} % over)",
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
                "{link}: {} while its queue was not empty, low in {low} of {} seconds; the plan says {} \
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
