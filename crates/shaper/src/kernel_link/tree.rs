//! Converts a link's configuration to netlink requests, and computes the parameters of each class at any rate.
//!
//! ```text
//! rate                 htb 1: ── class 1:1 ── [netem 100:] ── queue 10:
//! rate, tbf            tbf 1: ── [netem 100:] ── queue 10:
//! rate, classes        htb 1: ── class 1:1 ┬─ class 1:10 ── [netem 100:] ── queue 10:     the remainder
//!                                          ├─ class 1:11 ── [netem 101:] ── queue 11:     first class
//!                                          └─ ...
//! no rate              [netem 100:] ── [queue 10:]
//! rate, tbf, slot      tbf 1: ── netem 100:                                                 netem is the queue
//! ```
//!
//! A policer is a filter of `htb 1:`.
//!
//! netem is between the class and the queue, so that a packet is delayed before it enters the queue: netem passes a packet to its child
//! when the delay is over, and the class dequeues at the link's rate. The opposite order (queue, rate, delay) would need a second interface
//! and is equivalent for both ends of a path. This order keeps delayed packets out of the queue's counters.

use std::ops::Range;

use ccbench_proto::plan::{Backend, Class, Queue, Shaper, Tbf};
use ccbench_proto::resolve::{ETHERNET_BYTES, LinkConfig};
use ccbench_proto::units::{Bytes, Rate};

use crate::discipline;
use crate::qdisc::{
    self, BadQueue, Qdisc, ROOT, burst_bytes, filter, handle_text, htb, netem, netem::Netem,
    police::Police, tbf,
};

/// Handle of the root qdisc.
pub(crate) const ROOT_HANDLE: u32 = 0x1_0000;
const LINK_CLASS: u32 = 0x1_0001;
const FIRST_QUEUE: u32 = 0x10;
const FIRST_NETEM: u32 = 0x100;
/// Minimum rate. A shaper cannot have a rate of zero, and HTB keeps the debt of a packet for up to a minute.
const MIN_RATE: Rate = Rate::from_bits_per_sec(8_000);
/// Assumed rate of an unshaped link.
const UNSHAPED: Rate = Rate::from_bits_per_sec(10_000_000_000);
/// HTB logs a warning for larger quanta.
const MAX_QUANTUM_BYTES: u64 = 200_000;

/// The link keys that qdiscs implement, in addition to those of netem. Any other key requires the userspace backend.
const KEYS: [&str; 12] = [
    "node",
    "toward",
    "dev",
    "rate",
    "overhead",
    "gso",
    "backend",
    "shaper",
    "tbf",
    "policer",
    "ack_filter",
    "allow_control_interface",
];
/// The class keys that qdiscs implement.
const CLASS_KEYS: [&str; 4] = ["rate", "ceil", "priority", "match"];

/// One request of the setup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// "add qdisc htb 1:" ...
    pub(crate) op: String,
    /// The kind of the kernel module: that of a qdisc, `"u32"` or `"police"`.
    pub(crate) kind: &'static str,
    /// The message.
    pub(crate) bytes: Vec<u8>,
}

/// The rate limiter with its parameters for a rate change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RateControl {
    /// No rate limit.
    Unlimited,
    /// A token bucket with this queue limit, and the buckets that the plan sets, if any.
    Tbf { limit: u32, overhead: u16, buckets: Option<Tbf> },
    /// Classes. The first is the link's root class.
    Htb { base: Rate, classes: Vec<ClassSlot> },
}

/// A class: its position in the tree and its share of the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClassSlot {
    pub(crate) class: u32,
    pub(crate) parent: u32,
    /// Guaranteed rate when the link has its base rate.
    rate: Rate,
    /// Ceil when the link has its base rate.
    ceil: Rate,
    quantum_bytes: u32,
    priority: u32,
    overhead_bytes: u16,
}

/// The qdisc tree of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) requests: Vec<Request>,
    pub(crate) control: RateControl,
    pub(crate) frame_bytes: u32,
    /// Handle and parent of the link's own queue.
    pub(crate) queue: Option<(u32, u32)>,
    pub(crate) netems: Vec<PlacedNetem>,
}

/// A netem qdisc and its place in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlacedNetem {
    pub(crate) handle: u32,
    pub(crate) parent: u32,
    pub(crate) netem: Netem,
}

/// Returns the kinds of qdisc that a link needs, each once.
pub(crate) fn kinds(config: &LinkConfig) -> Vec<&'static str> {
    let mut kinds = Vec::new();
    if config.plan.rate.is_some() {
        kinds.push(if has_tbf(config) { "tbf" } else { "htb" });
    }
    if netem::is_needed(&config.plan) {
        kinds.push("netem");
    }
    if needs_queue(config) {
        kinds.push(discipline::kind(&config.queue));
    }
    for class in &config.classes {
        let kind = discipline::kind(&class.queue);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// Returns whether tbf limits the rate. Classes need htb.
fn has_tbf(config: &LinkConfig) -> bool {
    let is_asked = config.plan.shaper == Shaper::Tbf || config.plan.tbf.is_some();
    is_asked && config.classes.is_empty()
}

/// Returns whether the link needs a queue. Without a rate no queue builds up, and a short one would drop packets that leave netem together.
/// But an AQM there was requested explicitly, for its pacing or its marks. With slots, netem is the queue.
fn needs_queue(config: &LinkConfig) -> bool {
    let is_fifo = matches!(config.queue, Queue::Pfifo(_) | Queue::Bfifo(_));
    config.plan.slot.is_none()
        && (config.plan.rate.is_some() || !netem::is_needed(&config.plan) || !is_fifo)
}

/// Plans a link's tree for an interface whose largest frame has `frame_bytes`.
pub(crate) fn plan(config: &LinkConfig, ifindex: u32, frame_bytes: u32) -> Result<Tree, BadQueue> {
    let overhead = overhead(config)?;
    check_supported(config)?;
    let mut builder = Builder { ifindex, requests: Vec::new(), queue: None, netems: Vec::new() };
    let control = match (config.plan.rate, has_tbf(config)) {
        (None, _) => {
            builder.leaf(config, (&config.queue, UNSHAPED), ROOT, None)?;
            RateControl::Unlimited
        }
        (Some(rate), true) => {
            // Above an AQM or netem, the kernel ignores this limit, but it must not be zero.
            let limit = qdisc::fifo_limit(&config.queue).unwrap_or(1);
            let buckets = config.plan.tbf;
            let tbf = tbf_qdisc(rate, frame_bytes, (limit, overhead), buckets);
            builder.qdisc(&tbf.encode(), ROOT_HANDLE, ROOT);
            builder.leaf(config, (&config.queue, rate), ROOT_HANDLE | 1, Some(0))?;
            RateControl::Tbf { limit, overhead, buckets }
        }
        (Some(rate), false) => {
            let slots = class_slots(config, rate, frame_bytes, overhead);
            let first_leaf = usize::from(slots.len() > 1);
            let default = (slots[first_leaf].class & 0xffff) as u16;
            builder.qdisc(&htb::root(default), ROOT_HANDLE, ROOT);
            for slot in &slots {
                builder.class(slot, &slot.at(rate, rate, frame_bytes));
            }
            let class_queues = config.classes.iter().map(|class| (&class.queue, class.plan.rate));
            let queues = std::iter::once((&config.queue, rate)).chain(class_queues);
            for (index, (slot, queue)) in (0..).zip(slots[first_leaf..].iter().zip(queues)) {
                builder.leaf(config, queue, slot.class, Some(index))?;
            }
            for (slot, class) in slots[first_leaf..].iter().skip(1).zip(&config.classes) {
                for filter in class.matches.iter().flat_map(filter::filters) {
                    builder.filter(&filter, slot.class);
                }
            }
            if let Some(policer) = config.plan.policer {
                builder.police(&Police { policer, overhead_bytes: overhead });
            }
            RateControl::Htb { base: rate, classes: slots }
        }
    };
    let Builder { requests, queue, netems, .. } = builder;
    Ok(Tree { requests, control, frame_bytes, queue, netems })
}

/// Writes the rate to the messages that change it, one per class.
pub(crate) fn patch(
    control: &RateControl,
    rate: Rate,
    frame_bytes: u32,
    messages: &mut [u8],
    parts: &[Range<usize>],
) {
    match control {
        RateControl::Unlimited => {}
        RateControl::Tbf { limit, overhead, buckets } => {
            tbf_qdisc(rate, frame_bytes, (*limit, *overhead), *buckets).patch(messages);
        }
        RateControl::Htb { base, classes } => {
            for (slot, part) in classes.iter().zip(parts) {
                slot.at(*base, rate, frame_bytes).patch(&mut messages[part.clone()]);
            }
        }
    }
}

/// Returns the `tbf` qdisc for this rate. Without `buckets`, its burst is as small as the kernel's timers permit.
pub(crate) fn tbf_qdisc(
    rate: Rate,
    frame_bytes: u32,
    (limit, overhead_bytes): (u32, u16),
    buckets: Option<Tbf>,
) -> tbf::Tbf {
    let rate = rate.max(MIN_RATE);
    let narrow = |bytes: Bytes| u32::try_from(bytes.get()).unwrap_or(u32::MAX);
    let least = burst_bytes(rate, frame_bytes);
    let peak = buckets.and_then(|plan| {
        let mtu_bytes = plan.mtu.map_or(frame_bytes, narrow);
        plan.peakrate.map(|rate| tbf::Peak { rate, mtu_bytes })
    });
    let burst_bytes = buckets.map_or(least, |plan| narrow(plan.burst));
    tbf::Tbf { rate, burst_bytes, limit, overhead_bytes, peak }
}

/// Returns the overhead that the kernel adds to every packet: the link-layer overhead beyond the Ethernet header.
fn overhead(config: &LinkConfig) -> Result<u16, BadQueue> {
    let asked = config.plan.overhead.unwrap_or(ETHERNET_BYTES).get();
    let more = asked.checked_sub(ETHERNET_BYTES.get()).and_then(|more| u16::try_from(more).ok());
    match (more, config.plan.rate) {
        (Some(more), _) => Ok(more),
        // Without a rate, overhead does not matter.
        (None, None) => Ok(0),
        (None, Some(_)) => Err(BadQueue {
            problem: format!(
                "overhead = \"{asked}B\", because its qdiscs count the Ethernet header (14 B)"
            ),
            hint: "write `backend = \"userspace\"` for this link, or an overhead of 14B or more"
                .to_owned(),
        }),
    }
}

/// Rejects configurations that qdiscs do not implement.
fn check_supported(config: &LinkConfig) -> Result<(), BadQueue> {
    let bad = |problem: &str| {
        let hint = "write `backend = \"userspace\"` for this link".to_owned();
        Err(BadQueue { problem: problem.to_owned(), hint })
    };
    if config.plan.packet_log.is_some() {
        return bad("a packet log");
    }
    if config.plan.gso == Some(false) {
        return bad("a link's own `gso`");
    }
    let is_below_tbf = has_tbf(config) && qdisc::fifo_limit(&config.queue).is_some();
    if is_below_tbf && config.plan.trace.is_some() && !config.changed_queues.is_empty() {
        return bad(
            "changes of a FIFO below a tbf with a trace, because each trace step restores the FIFO's first limit",
        );
    }
    let unsupported =
        config.plan.unsupported_by_qdiscs(Some(&config.queue), !config.classes.is_empty());
    if let Some(feature) = unsupported.first() {
        return bad(feature.description);
    }
    let class_queues = config.classes.iter().map(|class| &class.queue);
    let mut queues = std::iter::once(&config.queue).chain(class_queues);
    if let Some(feature) = queues.find_map(Queue::unsupported_by_qdisc) {
        return bad(feature.description);
    }
    if config.plan.slot.is_some() && config.plan.backend != Backend::Kernel {
        return bad("slots at regular times (write `backend = \"kernel\"` for netem's slots)");
    }
    if config.plan.slot.is_some() && !config.changed_queues.is_empty() {
        return bad("changes of the queue of a link with slots");
    }
    if let Some(key) = first_unknown(&config.plan.keys(), &[&KEYS, &netem::KEYS]) {
        return bad(&format!("a link's `{key}`"));
    }
    let mut classes = config.classes.iter().map(|class| class.plan.keys());
    if let Some(key) = classes.find_map(|keys| first_unknown(&keys, &[&CLASS_KEYS])) {
        return bad(&format!("a class's `{key}`"));
    }
    // Since 6.16, a tree with several netem qdiscs must not contain one with duplication.
    if config.plan.duplicate.unwrap_or_default().get() > 0 && !config.classes.is_empty() {
        return bad("duplication on a link with classes");
    }
    Ok(())
}

/// Returns the first of these keys that is not known.
fn first_unknown(keys: &[String], known: &[&[&str]]) -> Option<String> {
    let is_known = |key: &str| known.iter().any(|known| known.contains(&key));
    keys.iter().find(|key| !is_known(key)).cloned()
}

/// Returns the classes, root class first. Without configured classes, the root class is also the leaf. Otherwise the default class follows,
/// then the configured classes.
fn class_slots(
    config: &LinkConfig,
    rate: Rate,
    frame_bytes: u32,
    overhead_bytes: u16,
) -> Vec<ClassSlot> {
    let bits = Rate::bits_per_sec;
    let guaranteed: u64 = config.classes.iter().map(|class| bits(class.plan.rate)).sum();
    // HTB rejects a rate of zero. The default class can borrow up to the link's rate.
    let remainder = Rate::from_bits_per_sec(
        bits(rate).saturating_sub(guaranteed).max(bits(rate) / 100).max(bits(MIN_RATE)),
    );
    let leaves = config.classes.iter().map(|class| class.plan.rate).chain([remainder]);
    let least = leaves.map(bits).min().unwrap_or(1).max(1);
    // Classes share borrowed bandwidth in proportion to their quanta, hence to their rates.
    let quantum = |rate: Rate| {
        let share = u128::from(frame_bytes) * u128::from(bits(rate)) / u128::from(least);
        (share.min(u128::from(MAX_QUANTUM_BYTES)) as u32).max(frame_bytes)
    };
    let slot = |class, parent, rate, ceil, priority| ClassSlot {
        class,
        parent,
        rate,
        ceil,
        quantum_bytes: quantum(rate),
        priority: u32::from(priority),
        overhead_bytes,
    };
    let mut slots = vec![slot(LINK_CLASS, ROOT_HANDLE, rate, rate, 0)];
    slots[0].quantum_bytes = frame_bytes;
    if config.classes.is_empty() {
        return slots;
    }
    slots.push(slot(ROOT_HANDLE | FIRST_QUEUE, LINK_CLASS, remainder, rate, 0));
    for (index, class) in (1..).zip(&config.classes) {
        let id = ROOT_HANDLE | (FIRST_QUEUE + index);
        let Class { rate, ceil, priority, .. } = class.plan;
        let ceil = ceil.unwrap_or(rate).max(rate);
        slots.push(slot(id, LINK_CLASS, rate, ceil, priority.unwrap_or_default()));
    }
    slots
}

impl ClassSlot {
    /// Returns this class for a link rate of `now` instead of `base`. Classes keep their share, because HTB gives a class its guaranteed
    /// rate even if its parent has less.
    pub(crate) fn at(&self, base: Rate, now: Rate, frame_bytes: u32) -> htb::Class {
        let scaled = |rate: Rate| {
            if now == base {
                return rate.max(MIN_RATE);
            }
            let bits = u128::from(rate.bits_per_sec()) * u128::from(now.bits_per_sec())
                / u128::from(base.bits_per_sec().max(1));
            Rate::from_bits_per_sec(u64::try_from(bits).unwrap_or(u64::MAX)).max(MIN_RATE)
        };
        let (rate, ceil) = (scaled(self.rate), scaled(self.ceil));
        htb::Class {
            rate,
            ceil,
            burst_bytes: burst_bytes(rate, frame_bytes),
            cburst_bytes: burst_bytes(ceil, frame_bytes),
            quantum_bytes: self.quantum_bytes,
            priority: self.priority,
            overhead_bytes: self.overhead_bytes,
        }
    }
}

struct Builder {
    ifindex: u32,
    requests: Vec<Request>,
    /// Handle and parent of the first queue.
    queue: Option<(u32, u32)>,
    netems: Vec<PlacedNetem>,
}

impl Builder {
    fn qdisc(&mut self, qdisc: &Qdisc, handle: u32, parent: u32) {
        self.requests.push(Request {
            op: format!("add qdisc {} {}", qdisc.kind, handle_text(handle)),
            kind: qdisc.kind,
            bytes: qdisc.add(self.ifindex, handle, parent),
        });
    }

    fn class(&mut self, slot: &ClassSlot, class: &htb::Class) {
        self.requests.push(Request {
            op: format!("add class htb {}", handle_text(slot.class)),
            kind: "htb",
            bytes: class.add(self.ifindex, slot.class, slot.parent),
        });
    }

    fn filter(&mut self, filter: &filter::Filter, class: u32) {
        self.requests.push(Request {
            op: format!("add filter u32 to class {}", handle_text(class)),
            kind: "u32",
            bytes: filter.add(self.ifindex, ROOT_HANDLE, class),
        });
    }

    /// Adds a policer in front of the class. Only for a link without other classes.
    fn police(&mut self, police: &Police) {
        self.requests.push(Request {
            op: format!("add filter police to class {}", handle_text(LINK_CLASS)),
            kind: "police",
            bytes: police.add(self.ifindex, ROOT_HANDLE, LINK_CLASS),
        });
    }

    /// Adds netem if needed, then the queue and its drain rate, below `parent`. `index` numbers the leaves of a shaper; `None`: there is no
    /// shaper, and the first qdisc is the root.
    fn leaf(
        &mut self,
        config: &LinkConfig,
        (queue, rate): (&Queue, Rate),
        mut parent: u32,
        index: Option<u32>,
    ) -> Result<(), BadQueue> {
        let handle = |first: u32| index.map_or(ROOT_HANDLE, |index| (first + index) << 16);
        let mut queue_handle = handle(FIRST_QUEUE);
        if netem::is_needed(&config.plan) {
            let queued = qdisc::fifo_limit(queue).unwrap_or(0);
            let limit_pkts = match config.plan.slot {
                Some(_) => queued,
                None => netem::limit_pkts(&config.plan, queued),
            };
            let netem = Netem { plan: config.plan.clone(), limit_pkts, seed: config.seed };
            self.qdisc(&netem.encode(), handle(FIRST_NETEM), parent);
            self.netems.push(PlacedNetem { handle: handle(FIRST_NETEM), parent, netem });
            parent = handle(FIRST_NETEM) | 1;
            queue_handle = (FIRST_QUEUE + index.unwrap_or(0)) << 16;
        }
        if needs_queue(config) {
            self.queue.get_or_insert((queue_handle, parent));
            let qdisc = discipline::qdisc(queue, Some(rate))?;
            let filters = config.plan.ack_filter;
            let qdisc = if filters { discipline::with_ack_filter(qdisc) } else { qdisc };
            self.qdisc(&qdisc, queue_handle, parent);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
