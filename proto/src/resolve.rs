//! From the plan to the configuration of a node: presets and defaults filled in, queue limits in bytes or
//! packets, node names replaced by addresses.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::cc::{self, NamedState};
use crate::plan::checked::CheckedPlan;
use crate::plan::{Class, LimitUnit, Link, PathPreset, Plan, Queue};
use crate::topology::Topology;
use crate::trace::Replay;
use crate::units::{Bytes, FRAME_BYTES, Limit, Micros, Packets, Ppm, Rate};

mod matches;
mod own_traffic;
mod relative_limits;
mod unscheduled;

pub use matches::PacketMatch;
pub(crate) use matches::{FlowAddress, packet_matches};
pub use own_traffic::OwnTraffic;
pub use relative_limits::relative_limits;
pub(crate) use unscheduled::remove_unscheduled;

/// Everything a link's backend needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkConfig {
    /// The link's name in the plan.
    pub name: String,
    /// Its keys as in the normalized plan (see [`normalize`]), without those that are resolved below: `queue`, `classes` and
    /// `trace`.
    pub plan: Link,
    /// The queue in front of the rate. Its [`crate::units::Limit`] is `Packets` (pfifo) or `Bytes` (bfifo).
    pub queue: Queue,
    /// Its classes.
    pub classes: Vec<ClassConfig>,
    /// How it changes in time.
    pub trace: Option<Replay>,
    /// Seeds everything random in this link in this trial.
    pub seed: u64,
    /// The queues that the plan's changes give it, with their limits as in `queue`: first those at given times, in order, then
    /// those that states trigger. If states trigger any, the initial queue is last.
    pub changed_queues: Vec<Queue>,
    /// The packets of the trial; `None` if they are not known, so that no packet counts as foreign.
    pub own_traffic: Option<OwnTraffic>,
}

impl LinkConfig {
    /// A link without classes and without a trace.
    pub fn new(name: impl Into<String>, plan: Link, queue: Queue) -> Self {
        Self {
            name: name.into(),
            plan,
            queue,
            classes: Vec::new(),
            trace: None,
            seed: 0,
            changed_queues: Vec::new(),
            own_traffic: None,
        }
    }
}

/// Header of an Ethernet frame, in bytes.
pub const ETHERNET_BYTES: Bytes = Bytes::new(14);

/// A class of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassConfig {
    /// Its name in the plan.
    pub name: String,
    /// Its keys in the plan, without `match` and `queue`, which are resolved below.
    pub plan: Class,
    /// A packet belongs to the class if any of these matches.
    pub matches: Vec<PacketMatch>,
    /// Its queue, with its limit in packets or bytes.
    pub queue: Queue,
}

/// The interface whose egress is shaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Egress {
    /// By device name.
    Dev(String),
    /// The interface of the route to this address.
    Toward(IpAddr),
}

/// A change of a link at an instant of the trial. Absent settings stay unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedChange {
    /// Time since the trial's beginning.
    pub at: Micros,
    /// The new rate.
    pub rate: Option<Rate>,
    /// The new constant one-way delay.
    pub delay: Option<Micros>,
    /// The new independent random loss.
    pub loss: Option<Ppm>,
    /// The new queue: an index of [`LinkConfig::changed_queues`].
    pub queue: Option<usize>,
    /// The plan's change: `"change 1"`.
    pub source: String,
}

/// A change of a link that a state of a flow's congestion control triggers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggeredChange {
    /// Flow group.
    pub flow: String,
    /// The state.
    pub state: NamedState,
    /// Time from the beginning of the state to the change.
    pub after: Micros,
    /// How long it lasts; `None`: to the end.
    pub duration: Option<Micros>,
    /// Only the first time.
    pub once: bool,
    /// What it sets; `at` is zero.
    pub change: TimedChange,
}

/// A queue that is never full: for links without a rate.
const ENDLESS: Packets = Packets::new(100_000);
/// The default queue, in thousandths of the bandwidth-delay product.
const DEFAULT_MILLI_BDP: u32 = 1500;
/// Minimum, in full frames, of a queue limit that is given in bandwidth-delay products.
pub(crate) const MIN_FRAMES: u64 = 10;

/// The canonical text of a plan: [`crate::plan::parse::parse`] and [`crate::plan::check::check`] read it
/// back to the same plan. Defaults are written out, except switches that are off and keys that have no meaning when absent.
pub fn to_toml(plan: &CheckedPlan) -> String {
    toml::to_string(plan.plan()).expect(
        "a checked plan holds texts, whole numbers below 2^63, booleans, lists and tables only",
    )
}

/// The built-in paths: those of Pantheon's calibrated emulators and of the WINDS satellite (rate, one-way delay, loss, queue).
/// Paths without a rate forward packets at random (Poisson), at the times of a trace. A plan's own `[path]` tables take precedence.
pub fn builtin_paths() -> BTreeMap<String, PathPreset> {
    let paths: [(&str, u64, u64, u32, u32); 8] = [
        ("default", 8_000_000, 30, 0, 20),
        ("india-aws-india", 100_420_000, 27, 0, 173),
        ("aws-korea-china", 77_720_000, 51, 600, 94),
        ("aws-california-mexico", 114_680_000, 45, 0, 450),
        ("winds-satellite", 42_000_000, 400, 7_400, 2_800),
        ("nepal-aws-india", 0, 28, 47_700, 14),
        ("mexico-cellular", 0, 88, 0, 130),
        ("brazil-colombia-cellular", 0, 130, 0, 426),
    ];
    paths
        .into_iter()
        .map(|(name, rate_bps, delay_ms, loss_ppm, queue_pkts)| {
            let preset = PathPreset {
                rate: (rate_bps > 0).then_some(Rate::from_bits_per_sec(rate_bps)),
                delay: Some(Micros::from_millis(delay_ms)),
                loss: Ppm::new(loss_ppm).filter(|loss| loss.get() > 0),
                queue: Some(Queue::pfifo(Limit::Packets(Packets::new(queue_pkts)))),
            };
            (name.to_owned(), preset)
        })
        .collect()
}

/// The plan with every link's preset merged into it, every shaped link's and class's queue written out,
/// no presets left, and the current names of parameters of congestion controls. Normalizing twice changes nothing.
pub fn normalize(plan: &Plan) -> Plan {
    let mut normalized = plan.clone();
    for link in normalized.links.values_mut() {
        if let Some(preset) = preset(&plan.path, link) {
            merge(link, preset);
        }
        link.path = None;
        if drain_rate(link).is_some() {
            link.queue.get_or_insert_with(default_queue);
        }
        for class in link.classes.values_mut() {
            class.queue.get_or_insert_with(default_queue);
        }
    }
    normalized.path.clear();
    normalized.cc.values_mut().for_each(cc::rename_deprecated_params);
    normalized
}

/// The preset that a link names: one of the plan's, or a built-in one.
pub(crate) fn preset(paths: &BTreeMap<String, PathPreset>, link: &Link) -> Option<PathPreset> {
    let name = link.path.as_ref()?;
    paths.get(name).cloned().or_else(|| builtin_paths().remove(name))
}

/// As [`normalize`]; a plan with nothing to normalize is not copied.
pub(crate) fn as_normalized(plan: &Plan) -> Cow<'_, Plan> {
    let is_normalized = |link: &Link| {
        link.path.is_none()
            && (link.queue.is_some() || drain_rate(link).is_none())
            && link.classes.values().all(|class| class.queue.is_some())
    };
    let has_deprecated = plan.cc.values().any(|cc| cc::deprecated_params(cc).next().is_some());
    if plan.path.is_empty() && !has_deprecated && plan.links.values().all(is_normalized) {
        Cow::Borrowed(plan)
    } else {
        Cow::Owned(normalize(plan))
    }
}

/// The rate at which a link's queue drains: its trace's mean rate, or its own; `None` if it has neither, or the trace has not been
/// read yet.
pub fn drain_rate(link: &Link) -> Option<Rate> {
    link.trace.as_ref().and_then(|used| used.mean_rate).or(link.rate)
}

fn merge(link: &mut Link, preset: PathPreset) {
    let traced = link.trace.as_ref().is_some_and(|trace| trace.mean_rate.is_some());
    if !traced {
        link.rate = link.rate.or(preset.rate);
    }
    link.delay = link.delay.or(preset.delay);
    link.loss = link.loss.or(preset.loss);
    if link.queue.is_none() {
        link.queue = preset.queue;
    }
}

/// A `bfifo` of 1.5 bandwidth-delay products.
fn default_queue() -> Queue {
    Queue::bfifo(Limit::MilliBdp(DEFAULT_MILLI_BDP))
}

/// The interfaces (node and device) that the plan's flows and probes pass on the round trip, one list per pair of nodes. Empty for
/// nodes with agents: ccbench does not know their cabling.
pub(crate) fn round_trips<'t>(plan: &Plan, topology: &'t Topology) -> Vec<Vec<(&'t str, &'t str)>> {
    let flows = plan.flows.values().map(|f| (&f.from, &f.to));
    let probes = plan.probes.values().map(|p| (&p.from, &p.to));
    let mut pairs: Vec<(&String, &String)> = flows.chain(probes).collect();
    pairs.sort();
    pairs.dedup();
    pairs.into_iter().filter_map(|(from, to)| topology.round_trip(from, to)).collect()
}

/// Whether a link shapes this interface (node and device).
pub fn shapes(link: &Link, topology: &Topology, hop: (&str, &str)) -> bool {
    if link.node != hop.0 {
        return false;
    }
    match (&link.dev, &link.toward) {
        (Some(dev), _) => dev == hop.1,
        (None, Some(toward)) => topology.egress(&link.node, toward) == Some(hop.1),
        (None, None) => false,
    }
}

/// The round-trip time of an idle path through `link`: the sum of the delays of all links on the path, in both directions. If
/// several pairs of nodes use the link, the longest. If the cabling is not known (nodes with agents) or nothing uses the link, the
/// sum of all links' delays.
pub fn base_rtt(plan: &Plan, link: &str) -> Micros {
    base_rtt_in(plan, &Topology::build(plan), link)
}

/// As [`base_rtt`], in the topology of this plan.
pub fn base_rtt_in(plan: &Plan, topology: &Topology, link: &str) -> Micros {
    base_rtt_on(plan, topology, &round_trips(plan, topology), link)
}

/// The base round-trip time of every link.
pub(crate) fn base_rtts_in<'p>(plan: &'p Plan, topology: &Topology) -> BTreeMap<&'p str, Micros> {
    let trips = round_trips(plan, topology);
    let rtt = |name: &'p String| (name.as_str(), base_rtt_on(plan, topology, &trips, name));
    plan.links.keys().map(rtt).collect()
}

/// The base round-trip time of one link, given the interfaces that the plan's flows and probes pass.
fn base_rtt_on(
    plan: &Plan,
    topology: &Topology,
    trips: &[Vec<(&str, &str)>],
    link: &str,
) -> Micros {
    let delay_of = |link: &Link| {
        let preset = || preset(&plan.path, link)?.delay;
        link.delay.or_else(preset).unwrap_or_default()
    };
    let all = || plan.links.values().map(delay_of).fold(Micros::default(), std::ops::Add::add);
    let Some(this) = plan.links.get(link) else { return all() };
    trips
        .iter()
        .filter(|trip| trip.iter().any(|hop| shapes(this, topology, *hop)))
        .map(|trip| {
            let on_it = |l: &&Link| trip.iter().any(|hop| shapes(l, topology, *hop));
            plan.links.values().filter(on_it).map(delay_of).fold(Micros::default(), |a, b| a + b)
        })
        .max()
        .unwrap_or_else(all)
}

/// The links that a flow group's data pass in the topology of this plan, with their names; all links if the cabling is not known
/// (nodes with agents).
pub fn path_links_in<'p>(
    plan: &'p Plan,
    topology: &Topology,
    group: &str,
) -> Vec<(&'p str, &'p Link)> {
    let Some(flow) = plan.flows.get(group) else { return vec![] };
    let (from, to) = if flow.reverse { (&flow.to, &flow.from) } else { (&flow.from, &flow.to) };
    links_on(plan, topology, topology.path(from, to).as_deref())
}

/// The links that a flow group's data and acknowledgements pass in the topology of this plan, with their names; all links if the
/// cabling is not known (nodes with agents).
pub fn on_round_trip<'p>(
    plan: &'p Plan,
    topology: &Topology,
    group: &str,
) -> Vec<(&'p str, &'p Link)> {
    let Some(flow) = plan.flows.get(group) else { return vec![] };
    links_on(plan, topology, topology.round_trip(&flow.from, &flow.to).as_deref())
}

/// The links that shape one of these interfaces (node and device); `None`: all.
fn links_on<'p>(
    plan: &'p Plan,
    topology: &Topology,
    hops: Option<&[(&str, &str)]>,
) -> Vec<(&'p str, &'p Link)> {
    let on_it =
        |link: &Link| hops.is_none_or(|hops| hops.iter().any(|hop| shapes(link, topology, *hop)));
    let links = plan.links.iter().filter(|(_, link)| on_it(link));
    links.map(|(name, link)| (name.as_str(), link)).collect()
}

/// The slowest link that a flow group's data pass in the topology of this plan, by the rate at which its queue drains, with its name.
/// `None` if no link has a rate.
pub(crate) fn bottleneck_in<'p>(
    plan: &'p Plan,
    topology: &Topology,
    group: &str,
) -> Option<(&'p str, &'p Link)> {
    let rated = path_links_in(plan, topology, group)
        .into_iter()
        .filter(|(_, link)| drain_rate(link).is_some());
    rated.min_by_key(|(_, link)| drain_rate(link))
}

/// Bandwidth-delay product of `rate` and `rtt` in bytes, rounded down.
pub fn bdp(rate: Rate, rtt: Micros) -> Bytes {
    rate.bytes_in(rtt)
}

/// Converts a limit of a queue's capacity to bytes.
pub(crate) fn limit_bytes(limit: Limit, rate: Rate, rtt: Micros) -> Bytes {
    let bytes = amount_bytes(limit, rate, rtt);
    match limit {
        Limit::MilliBdp(_) => bytes.max(Bytes::new(MIN_FRAMES * FRAME_BYTES)),
        Limit::Bytes(_) | Limit::Packets(_) | Limit::Time(_) => bytes,
    }
}

/// Converts a limit to bytes; unlike [`limit_bytes`], without a minimum.
pub(crate) fn amount_bytes(limit: Limit, rate: Rate, rtt: Micros) -> Bytes {
    match limit {
        Limit::Bytes(bytes) => bytes,
        Limit::Packets(packets) => Bytes::new(u64::from(packets.get()) * FRAME_BYTES),
        Limit::Time(time) => rate.bytes_in(time),
        Limit::MilliBdp(milli) => {
            let bytes = u128::from(rate.bytes_in(rtt).get()) * u128::from(milli) / 1000;
            Bytes::new(bytes.min(u128::from(u64::MAX)) as u64)
        }
    }
}

/// Converts the limits of a queue to the unit that its kind counts: packets (rounded up to full frames) or bytes. `rate: None` is a
/// link without a rate, whose queue never fills.
pub fn resolve_queue(queue: Option<&Queue>, rate: Option<Rate>, rtt: Micros) -> Queue {
    let Some(rate) = rate else { return Queue::pfifo(Limit::Packets(ENDLESS)) };
    let mut queue = queue.cloned().unwrap_or_else(default_queue);
    for (_, limit, unit) in queue.limits_mut() {
        *limit = resolve_limit((*limit, unit), rate, rtt);
    }
    queue
}

/// Converts a limit to the unit that its queue counts.
fn resolve_limit((limit, unit): (Limit, LimitUnit), rate: Rate, rtt: Micros) -> Limit {
    match (unit, limit) {
        (LimitUnit::Packets, Limit::Packets(packets)) => Limit::Packets(packets),
        (LimitUnit::Packets, limit) => {
            let packets = limit_bytes(limit, rate, rtt).get().div_ceil(FRAME_BYTES).max(1);
            Limit::Packets(Packets::new(u32::try_from(packets).unwrap_or(u32::MAX)))
        }
        (LimitUnit::Bytes | LimitUnit::Memory, limit) => {
            Limit::Bytes(limit_bytes(limit, rate, rtt))
        }
        (LimitUnit::Threshold, limit) => Limit::Bytes(amount_bytes(limit, rate, rtt)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Dualpi2, FifoUnit, Fq, FqCodel, Pie, Red};

    fn plan(links: &str) -> Plan {
        let text = format!(
            r#"
            name = "t"
            [nodes]
            a = {{}}
            r = {{}}
            b = {{}}
            c = {{}}
            [wires]
            one = ["a", "r", "b"]
            two = ["r", "c"]
            [flows.f]
            from = "a"
            to = "b"
            [[phases]]
            name = "p"
            length = "9s"
            flows = ["f"]
            {links}
            "#
        );
        crate::plan::parse::parse(&text).unwrap_or_else(|e| panic!("{e:?}"))
    }

    fn ms(ms: u64) -> Micros {
        Micros::from_millis(ms)
    }

    #[test]
    fn base_rtt_sums_delays_of_both_directions() {
        let plan = plan(
            r#"
            [links.there]
            node = "r"
            toward = "b"
            rate = "100mbit"
            delay = "10ms"
            [links.back]
            node = "b"
            dev = "to-r"
            delay = "5ms"
            [links.elsewhere]
            node = "r"
            toward = "c"
            path = "default"
            "#,
        );
        assert_eq!(base_rtt(&plan, "there"), ms(15));
        assert_eq!(base_rtt(&plan, "back"), ms(15));
        assert_eq!(base_rtt(&plan, "elsewhere"), ms(45), "no flow passes: the sum of all");
        assert_eq!(base_rtt(&normalize(&plan), "elsewhere"), ms(45));
        let topology = Topology::build(&plan);
        let of_data = path_links_in(&plan, &topology, "f");
        let of_data: Vec<&str> = of_data.into_iter().map(|(name, _)| name).collect();
        let both = on_round_trip(&plan, &topology, "f");
        let both: Vec<&str> = both.into_iter().map(|(name, _)| name).collect();
        assert_eq!((of_data, both), (vec!["there"], vec!["back", "there"]));
    }

    #[test]
    fn link_overrides_preset_and_settling_is_idempotent() {
        let plan = plan(
            r#"
            [links.l]
            node = "r"
            toward = "b"
            path = "aws-korea-china"
            rate = "10mbit"
            "#,
        );
        let normalized = normalize(&plan);
        let link = &normalized.links["l"];
        assert_eq!(link.rate, Some(Rate::from_bits_per_sec(10_000_000)));
        assert_eq!(link.delay, Some(ms(51)));
        assert_eq!(link.loss, Ppm::new(600));
        assert_eq!(link.queue, Some(Queue::pfifo(Limit::Packets(Packets::new(94)))));
        assert_eq!(link.path, None);
        assert_eq!(normalize(&normalized), normalized);
        assert_eq!(*as_normalized(&plan), normalized);
        assert!(matches!(as_normalized(&normalized), Cow::Borrowed(_)));
        // Links with a rate have a default queue, others none.
        let mut other = normalized.clone();
        other.links.get_mut("l").unwrap().queue = None;
        assert_eq!(*as_normalized(&other), normalize(&other));
        assert_ne!(*as_normalized(&other), other);
        other.links.get_mut("l").unwrap().rate = None;
        assert!(matches!(as_normalized(&other), Cow::Borrowed(_)));
    }

    #[test]
    fn limits_are_in_the_unit_of_the_queue() {
        let rate = Rate::from_bits_per_sec(100_000_000);
        let pfifo = |limit| match resolve_queue(Some(&Queue::pfifo(limit)), Some(rate), ms(10))
            .fifo_limit()
        {
            Some((Limit::Packets(packets), FifoUnit::Packets)) => packets.get(),
            other => panic!("{other:?}"),
        };
        let bfifo = |limit| match resolve_queue(Some(&Queue::bfifo(limit)), Some(rate), ms(10))
            .fifo_limit()
        {
            Some((Limit::Bytes(bytes), FifoUnit::Bytes)) => bytes.get(),
            other => panic!("{other:?}"),
        };
        assert_eq!(bfifo(Limit::MilliBdp(1500)), 187_500);
        assert_eq!(bfifo(Limit::Time(ms(15))), 187_500);
        assert_eq!(bfifo(Limit::Packets(Packets::new(40))), 40 * 1514);
        assert_eq!(bfifo(Limit::MilliBdp(1)), 15_140, "ten frames at least");
        assert_eq!(pfifo(Limit::MilliBdp(1500)), 124, "rounded up");
        assert_eq!(pfifo(Limit::Bytes(Bytes::new(1))), 1);
        assert_eq!(pfifo(Limit::Packets(Packets::new(40))), 40);
        let default = resolve_queue(None, Some(rate), ms(10));
        assert_eq!(default, Queue::bfifo(Limit::Bytes(Bytes::new(187_500))));
        let endless = resolve_queue(None, None, ms(10));
        assert_eq!(endless, Queue::pfifo(Limit::Packets(ENDLESS)));
    }

    #[test]
    fn limits_of_every_kind_are_in_its_unit() {
        // The BDP is 125 000 bytes.
        let rate = Rate::from_bits_per_sec(100_000_000);
        let resolved = |queue: Queue| resolve_queue(Some(&queue), Some(rate), ms(10));
        let (bdp, time) = (|milli| Some(Limit::MilliBdp(milli)), |t| Some(Limit::Time(ms(t))));
        let packets = |packets| Some(Limit::Packets(Packets::new(packets)));
        let bytes = |bytes| Some(Limit::Bytes(Bytes::new(bytes)));
        let pie = |limit| Queue::Pie(Pie { limit, ..Pie::default() });
        assert_eq!(resolved(pie(bdp(2000))), pie(packets(166)), "250 000 bytes, rounded up");
        assert_eq!(resolved(pie(bytes(3029))), pie(packets(3)));
        assert_eq!(resolved(pie(packets(7))), pie(packets(7)));
        assert_eq!(resolved(pie(None)), pie(None), "the kernel's");
        let fq = |limit, flow_limit| Queue::Fq(Fq { limit, flow_limit, ..Fq::default() });
        assert_eq!(resolved(fq(time(15), bdp(1))), fq(packets(124), packets(10)));
        let codel = |limit, memory_limit| {
            Queue::FqCodel(FqCodel { limit, memory_limit, ..FqCodel::default() })
        };
        assert_eq!(resolved(codel(bdp(1000), time(20))), codel(packets(83), bytes(250_000)));
        let dualpi2 = |memory_limit| Queue::Dualpi2(Dualpi2 { memory_limit, ..Dualpi2::default() });
        assert_eq!(resolved(dualpi2(packets(2))), dualpi2(bytes(3028)));
        let red = |[limit, min, max]: [Option<Limit>; 3]| {
            Queue::Red(Red {
                limit: limit.unwrap(),
                min: min.unwrap(),
                max: max.unwrap(),
                probability: None,
                avpkt: None,
                burst: None,
                ecn: None,
                harddrop: None,
                adaptive: None,
                nodrop: None,
            })
        };
        assert_eq!(
            resolved(red([bdp(2000), bdp(100), time(3)])),
            red([bytes(250_000), bytes(12_500), bytes(37_500)]),
            "thresholds may be less than ten frames"
        );
    }
}
