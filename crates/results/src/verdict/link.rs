//! Checks each link's rate against the plan, and the timing of the userspace datapath.

use std::collections::BTreeMap;
use std::sync::Arc;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::{Link, Plan, Queue, Setting};
use ccbench_proto::units::FRAME_BYTES;
use ccbench_proto::wire::{LinkChange, LinkTiming, QdiscSample};

use super::findings::{Findings, Span};
use super::timing::Timing;
use crate::curve::{self, CapacityCurve};
use crate::model::Status;
use crate::reason::ReasonCode;

/// Share by which a backlogged link may fall below its rate: several times the error of HTB's rate table and of the sampling instant.
pub const LOW_SHARE: f64 = 0.03;
/// Share by which a link may exceed its rate over a second, in addition to its burst.
pub const HIGH_SHARE: f64 = 0.02;
/// Length of the windows over which rates are taken: long compared with bursts and with the jitter of the sampling instant.
pub const WINDOW_NS: u64 = 1_000_000_000;
/// Share of low windows that is permitted as long as the total is not low.
pub const LOW_WINDOWS_SHARE: f64 = 0.1;
/// Bytes by which a window may deviate at any rate: a burst, and a packet at either end.
pub const SLACK_BYTES: f64 = 4.0 * FRAME_BYTES as f64;
/// Time excluded before and after a rate change: the change may be applied late, and a burst at the old rate may follow.
pub const CHANGE_NS: u64 = 200_000_000;
/// Timing error of applying a traced rate and of sampling; at a rate step it amounts to many bytes.
pub const STEP_NS: u64 = 2_000_000;
/// Share of a window in which a userspace link may have nothing to send for the window to count as backlogged. Samples do not show such
/// times: bursts arrive more often than samples are taken.
pub const IDLE_SHARE: f64 = 0.001;
/// A kernel link does not count its idle time. Windows in which at least this share of samples have a queue are used to estimate it.
pub const WAITING_SHARE: f64 = 0.8;
/// Maximum share of samples without a queue for a low window to count despite possible idle time between its samples.
pub const SELDOM_EMPTY_SHARE: f64 = 0.01;
/// Number of standard errors by which the estimated share of time with a queue may be too large.
pub const STANDARD_ERRORS: f64 = 3.0;
/// A kernel link may have been idle between two samples with a queue. Its low windows count if the probability that samples miss that much
/// idle time is at most 0.00135, as for [`STANDARD_ERRORS`]. This is its negative logarithm.
pub const UNLIKELY: f64 = 6.6;
/// Share of a delivery opportunity that a packet may leave unused.
pub const LOW_OPPORTUNITY_SHARE: f64 = 0.1;

/// Node and link.
type Key = (String, String);

/// Counters of each link.
#[derive(Debug)]
pub(crate) struct LinkCheck {
    /// Links with a rate.
    rated: BTreeMap<String, RatedLink>,
    series: BTreeMap<Key, Series>,
    failed_changes: BTreeMap<String, (u32, String)>,
    timing: Timing,
}

/// A link's rate according to the plan.
#[derive(Debug)]
struct RatedLink {
    capacity: Capacity,
    /// Bytes per packet that count against the rate but not in the counters.
    extra_bytes: f64,
    /// Size of the shaper's bucket, which the link may send in addition.
    burst_bytes: f64,
    /// Whether the link's queues send whenever they hold packets.
    work_conserving: bool,
    /// Whether the link has classes, which may be backlogged while the link is idle.
    has_classes: bool,
}

/// What a link may send, over time.
#[derive(Debug)]
enum Capacity {
    /// A constant rate between changes of the plan.
    RateIntervals(Vec<RateInterval>),
    /// The capacity of a trace, with the share by which the link may fall below it.
    Curve(Arc<CapacityCurve>, f64),
}

/// Handle of the default class's queue. It takes packets that no class matches, and may use all remaining capacity.
const DEFAULT_CLASS_QUEUE: &str = "10:";

/// A time with a constant rate, in nanoseconds since the trial's beginning.
#[derive(Debug, Clone, Copy)]
struct RateInterval {
    from_ns: u64,
    to_ns: u64,
    rate_bps: u64,
}

impl RatedLink {
    fn new(
        name: &str,
        link: &Link,
        plan: &Plan,
        curve: Option<&Arc<CapacityCurve>>,
    ) -> Option<Self> {
        let capacity = match curve {
            Some(curve) => {
                let low_share = if curve.is_discrete() { LOW_OPPORTUNITY_SHARE } else { LOW_SHARE };
                Capacity::Curve(Arc::clone(curve), low_share)
            }
            None => Capacity::RateIntervals(intervals(name, link, plan)?),
        };
        Some(Self {
            capacity,
            extra_bytes: curve::extra_bytes(link),
            burst_bytes: link.tbf.map_or(0.0, |tbf| tbf.burst.get() as f64),
            work_conserving: work_conserving(link),
            has_classes: !link.classes.is_empty(),
        })
    }

    /// Returns the index of the interval at an instant. A window lies within one interval.
    fn interval(&self, since_ns: u64) -> Option<usize> {
        match &self.capacity {
            Capacity::RateIntervals(intervals) => intervals
                .iter()
                .position(|interval| interval.from_ns <= since_ns && since_ns <= interval.to_ns),
            Capacity::Curve(..) => Some(0),
        }
    }

    /// Returns the bytes that a window of an interval can send, and their tolerance.
    fn ideal_bytes(&self, interval: usize, (from_ns, to_ns): (u64, u64)) -> (f64, f64) {
        match &self.capacity {
            Capacity::RateIntervals(intervals) => {
                let rate_bps = intervals.get(interval).map_or(0, |interval| interval.rate_bps);
                let slack = SLACK_BYTES + self.burst_bytes;
                (rate_bps as f64 / 8e9 * (to_ns - from_ns) as f64, slack)
            }
            Capacity::Curve(curve, _) => {
                let slack = SLACK_BYTES + curve.burst((from_ns, to_ns), STEP_NS);
                (curve.bytes(from_ns, to_ns), slack)
            }
        }
    }

    fn low_share(&self) -> f64 {
        match self.capacity {
            Capacity::RateIntervals(_) => LOW_SHARE,
            Capacity::Curve(_, share) => share,
        }
    }

    /// Describes the link in an interval, for people.
    fn name(&self, link: &str, interval: usize) -> String {
        match &self.capacity {
            Capacity::RateIntervals(intervals) if intervals.len() > 1 => {
                let from_ns = intervals.get(interval).map_or(0, |interval| interval.from_ns);
                format!("link {link} from {:.1} s on", from_ns as f64 / 1e9)
            }
            Capacity::RateIntervals(_) => format!("link {link}"),
            Capacity::Curve(..) => format!("link {link}, by its trace"),
        }
    }
}

/// Returns the successive rates of a link without a trace; `None` if a trace changes its rate, or if a flow's state does, at times that the
/// plan does not have.
fn intervals(name: &str, link: &Link, plan: &Plan) -> Option<Vec<RateInterval>> {
    let key = format!("links.{name}.rate");
    if link.trace.as_ref().is_some_and(|used| used.mean_rate.is_some()) {
        return None;
    }
    if plan.changes.iter().any(|change| change.when.is_some() && change.set.contains_key(&key)) {
        return None;
    }
    let mut changes: Vec<(u64, u64)> = plan
        .changes
        .iter()
        .filter_map(|change| match change.set.get(&key)? {
            Setting::Rate(rate) => Some((change.at?.nanos(), rate.bits_per_sec())),
            _ => None,
        })
        .collect();
    changes.sort_by_key(|(at_ns, _)| *at_ns);
    let mut intervals =
        vec![RateInterval { from_ns: 0, to_ns: u64::MAX, rate_bps: link.rate?.bits_per_sec() }];
    for (at_ns, rate_bps) in changes {
        if let Some(last) = intervals.last_mut() {
            last.to_ns = at_ns.saturating_sub(CHANGE_NS);
        }
        intervals.push(RateInterval {
            from_ns: at_ns.saturating_add(CHANGE_NS),
            to_ns: u64::MAX,
            rate_bps,
        });
    }
    Some(intervals)
}

#[derive(Debug, Default)]
struct Series {
    /// The rows of one instant, until a row of the next instant arrives.
    instant: Option<Instant>,
    window: Option<Window>,
    /// Windows, by interval.
    seen: BTreeMap<usize, Windows>,
}

/// Windows within one interval.
#[derive(Debug, Default)]
struct Windows {
    backlogged: BackloggedWindows,
    /// The window that exceeded its limit most.
    fastest: Option<SentBytes>,
}

/// Windows with a backlog (for a kernel link: in most samples). Only sums are kept, because a trial may last a week.
#[derive(Debug, Default)]
struct BackloggedWindows {
    /// Number of windows with a queue at every sample, and of those among them that are low.
    count: u64,
    low: u64,
    /// How unlikely it is that the low windows were idle between samples: the negative logarithm of the probability.
    low_unlikely: f64,
    /// All windows. The ideal is that of the time with a queue.
    total: SentBytes,
    queue: QueueSamples,
    /// The window with the smallest share of its ideal.
    lowest: Option<SentBytes>,
}

/// The counters of all qdiscs and classes of a link, read together. The root qdisc has sent everything. Its backlog does not always include
/// that of the queues below it; above a netem, it holds packets that wait for their delay.
#[derive(Debug, Clone, Copy, Default)]
struct Instant {
    at_ns: u64,
    interval: Option<usize>,
    has_classes: bool,
    root_sent: Option<(u64, u64)>,
    most_sent: (u64, u64),
    root_waits: bool,
    queue_waits: bool,
    delays: bool,
    idle_us: Option<u64>,
}

impl Instant {
    fn add(&mut self, row: &QdiscSample) {
        let waits = row.backlog_bytes > 0 || row.qlen_pkts > 0;
        let class = row.kind.ends_with(" class");
        let sent = (row.sent_bytes, row.sent_pkts);
        self.most_sent = self.most_sent.max(sent);
        self.delays |= row.kind == "netem";
        self.idle_us = self.idle_us.or(row.idle_us);
        if !class && row.parent == "root" {
            self.root_sent = Some(sent);
            self.root_waits |= waits;
        } else if !class && row.kind != "netem" {
            self.queue_waits |= waits && (!self.has_classes || row.handle == DEFAULT_CLASS_QUEUE);
        }
    }

    fn window(self) -> Window {
        let waits = self.queue_waits || (self.root_waits && !self.delays && !self.has_classes);
        Window {
            at_ns: self.at_ns,
            interval: self.interval,
            sent: self.root_sent.unwrap_or(self.most_sent),
            queue: QueueSamples { count: 1, waiting: u64::from(waits) },
            idle_us: self.idle_us,
        }
    }
}

/// The number of samples of a queue, and of those that found packets.
#[derive(Debug, Clone, Copy, Default)]
struct QueueSamples {
    count: u64,
    waiting: u64,
}

impl QueueSamples {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.waiting += other.waiting;
    }

    fn always_waits(self) -> bool {
        self.waiting == self.count
    }

    fn waiting_share(self) -> f64 {
        self.waiting as f64 / self.count.max(1) as f64
    }

    /// Returns the standard error of the share of samples as an estimate of the share of time.
    fn standard_error(self) -> f64 {
        let share = self.waiting_share();
        (share * (1.0 - share) / self.count.max(1) as f64).sqrt()
    }
}

#[derive(Debug, Clone, Copy)]
struct Window {
    at_ns: u64,
    interval: Option<usize>,
    /// Bytes and packets sent.
    sent: (u64, u64),
    queue: QueueSamples,
    /// Time without a transmission of a userspace link; only differences have a meaning.
    idle_us: Option<u64>,
}

impl Window {
    /// Returns whether the link had a packet to send until `end`, except for a short time.
    fn is_busy_until(&self, end: &Self, ns: u64) -> bool {
        let idle_us = end.idle_us.zip(self.idle_us).map(|(end, begin)| end.saturating_sub(begin));
        idle_us.is_none_or(|us| us as f64 * 1e3 <= IDLE_SHARE * ns as f64)
    }

    /// Returns whether the window until `end` counts as backlogged.
    ///
    /// A flow whose packets arrive in bursts leaves a kernel link idle for part of every round trip. Some windows of such a flow have a
    /// queue at every sample by chance; alone, they would make the link look slow. So windows in which a few samples found no queue also
    /// count, with the ideal of the other samples. This does not apply to a traced link, whose queue is empty when its rate is high.
    fn is_backlogged(&self, end: &Self, ns: u64, capacity: &Capacity) -> bool {
        let estimates = end.idle_us.is_none() && matches!(capacity, Capacity::RateIntervals(_));
        let waits = match estimates {
            true => self.queue.waiting_share() >= WAITING_SHARE,
            false => self.queue.always_waits(),
        };
        waits && self.is_busy_until(end, ns)
    }
}

/// Bytes sent in a window, and the window's ideal.
#[derive(Debug, Clone, Copy, Default)]
struct SentBytes {
    bytes: f64,
    ideal_bytes: f64,
    slack_bytes: f64,
    ns: u64,
}

impl SentBytes {
    fn is_low(self, share: f64) -> bool {
        self.bytes < self.ideal_bytes * (1.0 - share) - self.slack_bytes
    }

    /// Returns how unlikely it is that every sample found a queue if the link was idle for the missing time: the negative logarithm of the
    /// probability. To the first order, a single gap is missed with the same probability: one minus its share of the time between two
    /// samples.
    fn unlikely(self, queue: QueueSamples) -> f64 {
        queue.count as f64 * (self.ideal_bytes / self.bytes).ln()
    }

    fn is_high(self) -> bool {
        self.above() > 0.0
    }

    /// Returns the bytes above the limit.
    fn above(self) -> f64 {
        self.bytes - self.ideal_bytes * (1.0 + HIGH_SHARE) - self.slack_bytes
    }

    /// Formats a number of bytes as a rate, for people.
    fn mbit(self, bytes: f64) -> String {
        format!("{:.3} Mbit/s", bytes * 8e3 / self.ns.max(1) as f64)
    }
}

impl LinkCheck {
    /// Creates the check. `curves` are those of the links with a trace.
    pub(super) fn new(plan: &CheckedPlan, curves: &BTreeMap<String, Arc<CapacityCurve>>) -> Self {
        let plan = plan.plan();
        let rated = |(name, link): (&String, &Link)| {
            Some((name.clone(), RatedLink::new(name, link, plan, curves.get(name))?))
        };
        Self {
            rated: plan.links.iter().filter_map(rated).collect(),
            series: BTreeMap::new(),
            failed_changes: BTreeMap::new(),
            timing: Timing::default(),
        }
    }

    pub(crate) fn timing(&mut self, node: &str, row: &LinkTiming) {
        self.timing.row(node, row);
    }

    pub(crate) fn change(&mut self, row: &LinkChange) {
        if row.rc != 0 {
            let first = || (0, format!("{} on {}: error {}", row.source, row.iface, row.rc));
            self.failed_changes.entry(row.link.clone()).or_insert_with(first).0 += 1;
        }
    }

    pub(crate) fn sample(&mut self, node: &str, span: Span, row: &QdiscSample) {
        if !span.contains(row.at_ns) {
            return;
        }
        self.timing.sample(node, row);
        let key = (node.to_owned(), row.link.clone());
        let series = self.series.entry(key).or_default();
        let rated = self.rated.get(&row.link);
        if series.instant.is_some_and(|instant| instant.at_ns != row.at_ns) {
            series.advance(rated, span);
        }
        let interval = rated.and_then(|rated| rated.interval(row.at_ns.saturating_sub(span.t0_ns)));
        let has_classes = rated.is_some_and(|rated| rated.has_classes);
        let fresh = Instant { at_ns: row.at_ns, interval, has_classes, ..Instant::default() };
        series.instant.get_or_insert(fresh).add(row);
    }

    /// Judges the links. `spans` is the trial on each node's clock.
    pub(crate) fn finish(mut self, spans: &BTreeMap<String, Span>, findings: &mut Findings) {
        for (link, (count, first)) in self.failed_changes {
            let subject = format!("link {link}");
            let message = format!("{subject}: failed changes: {count}; first error: {first}");
            findings.add(Status::Degraded, ReasonCode::LinkChangeFailed, subject, message);
        }
        for ((node, link), series) in &mut self.series {
            let (Some(rated), Some(span)) = (self.rated.get(link), spans.get(node)) else {
                continue;
            };
            series.advance(Some(rated), *span);
            for (interval, seen) in &series.seen {
                let name = rated.name(link, *interval);
                seen.judge_high(&name, findings);
                if rated.work_conserving {
                    seen.backlogged.judge(&name, rated.low_share(), findings);
                }
            }
        }
        self.timing.finish(findings);
    }
}

/// Returns whether the link sends whenever it has packets. A queue may pace, and slots have limits: packets may wait although the link is free.
fn work_conserving(link: &Link) -> bool {
    let paces = |queue: Option<&Queue>| queue.is_some_and(Queue::paces);
    link.slot.is_none()
        && !paces(link.queue.as_ref())
        && !link.classes.values().any(|class| paces(class.queue.as_ref()))
}

impl Series {
    /// Processes the complete instant.
    fn advance(&mut self, rated: Option<&RatedLink>, span: Span) {
        let Some(fresh) = self.instant.take().map(Instant::window) else { return };
        let Some(window) = &mut self.window else {
            self.window = Some(fresh);
            return;
        };
        window.queue.add(fresh.queue);
        let ns = fresh.at_ns.saturating_sub(window.at_ns);
        let bytes = fresh.sent.0.checked_sub(window.sent.0);
        let same_interval = fresh.interval == window.interval;
        let (Some(bytes), Some(interval), Some(rated), true) =
            (bytes, fresh.interval, rated, same_interval)
        else {
            self.window = Some(fresh);
            return;
        };
        if ns < WINDOW_NS {
            return;
        }
        let since = |at_ns: u64| at_ns.saturating_sub(span.t0_ns);
        let (ideal_bytes, slack_bytes) =
            rated.ideal_bytes(interval, (since(window.at_ns), since(fresh.at_ns)));
        let packets = fresh.sent.1.saturating_sub(window.sent.1) as f64;
        let bytes = curve::line_bytes(bytes as f64, packets, rated.extra_bytes);
        let sent = SentBytes { bytes, ideal_bytes, slack_bytes, ns };
        let seen = self.seen.entry(interval).or_default();
        if window.is_backlogged(&fresh, ns, &rated.capacity) {
            let knows_idle = fresh.idle_us.is_some();
            seen.backlogged.add(sent, (window.queue, knows_idle), rated.low_share());
        }
        if seen.fastest.is_none_or(|fastest| sent.above() > fastest.above()) {
            seen.fastest = Some(sent);
        }
        self.window = Some(fresh);
    }
}

impl Windows {
    fn judge_high(&self, link: &str, findings: &mut Findings) {
        if let Some(fastest) = self.fastest.filter(|sent| sent.is_high()) {
            let message = format!(
                "{link}: sent {} in one second, but the plan sets {} (limit {:.0} % above that)",
                fastest.mbit(fastest.bytes),
                fastest.mbit(fastest.ideal_bytes),
                HIGH_SHARE * 100.0
            );
            findings.add(Status::Degraded, ReasonCode::LinkRateHigh, link, message);
        }
    }
}

impl BackloggedWindows {
    /// Adds a window. It is low if it falls below its ideal by `share`. `knows_idle` says whether the link counts its idle time.
    fn add(&mut self, sent: SentBytes, (queue, knows_idle): (QueueSamples, bool), share: f64) {
        self.queue.add(queue);
        self.total = SentBytes {
            bytes: self.total.bytes + sent.bytes,
            ideal_bytes: self.total.ideal_bytes + sent.ideal_bytes * queue.waiting_share(),
            slack_bytes: SLACK_BYTES,
            ns: self.total.ns + sent.ns,
        };
        if !queue.always_waits() {
            return;
        }
        self.count += 1;
        if sent.is_low(share) {
            self.low += 1;
            self.low_unlikely += if knows_idle { f64::INFINITY } else { sent.unlikely(queue) };
        }
        let part = |sent: SentBytes| sent.bytes / sent.ideal_bytes;
        if sent.ideal_bytes > 0.0 && self.lowest.is_none_or(|lowest| part(sent) < part(lowest)) {
            self.lowest = Some(sent);
        }
    }

    fn judge(&self, link: &str, share: f64, findings: &mut Findings) {
        let Self { count, low, low_unlikely, total, queue, lowest: Some(lowest) } = self else {
            return;
        };
        let low_share = *low as f64 / *count as f64;
        let seldom_empty = queue.waiting_share() >= 1.0 - SELDOM_EMPTY_SHARE;
        // A kernel link may have been without a queue for a moment between two samples.
        let is_idle_excluded = seldom_empty && *low_unlikely >= UNLIKELY;
        let often_low = *low > 1 && low_share > LOW_WINDOWS_SHARE && is_idle_excluded;
        if total.is_low(share + STANDARD_ERRORS * queue.standard_error()) || often_low {
            let message = format!(
                "{link}: sent {} while its queue was not empty, and was low in {low} of {count} seconds (lowest: {} instead of {}); \
                 the plan permits {}, and a second is low if its rate is {:.0} % below the plan's",
                total.mbit(total.bytes),
                lowest.mbit(lowest.bytes),
                lowest.mbit(lowest.ideal_bytes),
                total.mbit(total.ideal_bytes),
                share * 100.0
            );
            findings.add(Status::Degraded, ReasonCode::LinkRateLow, link, message);
        }
    }
}

#[cfg(test)]
mod tests;
