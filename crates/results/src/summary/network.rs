//! What the plan makes possible at a point: capacities and base RTTs of the flow groups' paths, and max-min fair shares.

use std::collections::BTreeMap;

use ccbench_proto::plan::{Flow, Link, Plan, Setting, TraceUse};
use ccbench_proto::resolve;
use ccbench_proto::topology::Topology;
use ccbench_proto::units::{FRAME_BYTES, Micros};

use super::fair_share::{self, FlowClass};
use super::span::{Group, Span};
use crate::curve::{CapacityCurve, extra_bytes, overhead};

mod steps;

use steps::Steps;

/// Payload of a full packet with MTU 1500, IPv4, and TCP with timestamps.
const PAYLOAD_BYTES: f64 = 1448.0;
const MTU_BYTES: f64 = 1500.0;

/// Returns the payload of a full packet per byte that counts against a link's rate.
pub(crate) fn payload_share(link: &Link) -> f64 {
    PAYLOAD_BYTES / (MTU_BYTES + overhead(link))
}

/// The capacity curve of a link, if it has a trace.
pub(super) type Curves<'a, 'c> = &'a (dyn Fn(&str) -> Option<&'c CapacityCurve> + 'a);

/// The properties of a link that limit flows.
#[derive(Debug, Clone)]
struct PathLink {
    name: String,
    /// Rate in bit/s; `None` if not shaped. For a link with a trace, the trace's mean, which is used if the trace has no curve.
    rate_bps: Option<Steps>,
    /// One-way delay in us; `None` if a trace sets it.
    delay_us: Option<Steps>,
    /// Payload per byte that counts against the rate.
    payload_share: f64,
    /// Bytes per packet that count against the rate but not in the link's counters.
    extra_bytes: f64,
    /// Rate of the policer in bit/s; the policer drops what exceeds it.
    policed_bps: Option<f64>,
    /// Whether classes divide the link's capacity.
    has_classes: bool,
    /// Whether states of flows change the rate or the delay, at times that the plan does not have.
    rate_is_triggered: bool,
    delay_is_triggered: bool,
}

impl PathLink {
    /// Returns whether the capacity for a flow is unknown: classes divide it, or states of flows change it.
    fn has_unknown_capacity(&self) -> bool {
        self.has_classes || self.rate_is_triggered
    }
}

/// The path of a group, as indices of links.
#[derive(Debug, Clone)]
struct Path {
    data: Vec<usize>,
    round_trip: Vec<usize>,
    /// Rate limit of each flow's application in bit/s.
    limit_bps: f64,
    /// Whether each flow sends a fixed number of bytes.
    is_finite: bool,
}

/// The links of a point, and the paths of its flow groups.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    links: Vec<PathLink>,
    /// Paths of groups, if known: the plan does not have the cabling between nodes with agents.
    paths: BTreeMap<String, Path>,
    /// Paths of the other groups, with every link.
    assumed_paths: BTreeMap<String, Path>,
}

/// What a group's path permits in a span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PathLimits<'n> {
    /// Name of the bottleneck.
    pub(crate) link: &'n str,
    /// The bottleneck's mean rate in bit/s. Where the policer is slower than the line, the rate is the policer's.
    pub(crate) rate_bps: f64,
    /// Base RTT in us; `None` if it changes, or if a trace or states of flows set it.
    pub(crate) base_rtt_us: Option<f64>,
    /// Whether the bottleneck's policer is not always faster than its line.
    pub(crate) is_policed: bool,
}

/// The slowest link of a path in a span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bottleneck {
    /// The link's index.
    pub(super) link: usize,
    /// The link's mean rate in bit/s, as in [`PathLimits`].
    pub(super) rate_bps: f64,
}

impl Bottleneck {
    /// Returns the bandwidth-delay product in full frames.
    pub(super) fn bdp_packets(self, rtt_us: f64) -> f64 {
        self.rate_bps * rtt_us / 8e6 / FRAME_BYTES as f64
    }
}

impl Network {
    /// Returns the network of a point's plan. `sets_delay` says whether a trace has delays.
    pub(super) fn from_plan(plan: &Plan, sets_delay: impl Fn(&TraceUse) -> bool) -> Self {
        let changed = |name: &str, key: &str| -> Vec<(f64, Setting)> {
            let key = format!("links.{name}.{key}");
            let change =
                |at: Option<Micros>, set: Option<&Setting>| Some((at?.as_secs_f64(), set?.clone()));
            plan.changes.iter().filter_map(|entry| change(entry.at, entry.set.get(&key))).collect()
        };
        let is_triggered = |name: &str, key: &str| {
            let key = format!("links.{name}.{key}");
            plan.changes.iter().any(|entry| entry.when.is_some() && entry.set.contains_key(&key))
        };
        let link = |(name, link): (&String, &Link)| {
            let rates = changed(name, "rate").into_iter().filter_map(|(at_s, set)| match set {
                Setting::Rate(rate) => Some((at_s, rate.bits_per_sec() as f64)),
                _ => None,
            });
            let delays = changed(name, "delay").into_iter().filter_map(|(at_s, set)| match set {
                Setting::Delay(delay) => Some((at_s, delay.get() as f64)),
                _ => None,
            });
            let rate = resolve::drain_rate(link).map(|rate| rate.bits_per_sec() as f64);
            let delay_us = link.delay.unwrap_or_default().get() as f64;
            PathLink {
                name: name.clone(),
                rate_bps: rate.map(|rate| Steps::new(rate, rates)),
                delay_us: (!link.trace.as_ref().is_some_and(&sets_delay))
                    .then(|| Steps::new(delay_us, delays)),
                payload_share: payload_share(link),
                extra_bytes: extra_bytes(link),
                policed_bps: link.policer.as_ref().map(|p| p.rate.bits_per_sec() as f64),
                has_classes: !link.classes.is_empty(),
                rate_is_triggered: is_triggered(name, "rate"),
                delay_is_triggered: is_triggered(name, "delay"),
            }
        };
        let links: Vec<PathLink> = plan.links.iter().map(link).collect();
        let topology = Topology::build(plan);
        let indices = |passed: Vec<(&str, &Link)>| -> Vec<usize> {
            let position = |name: &str| links.iter().position(|link| link.name == name);
            passed.into_iter().filter_map(|(name, _)| position(name)).collect()
        };
        let path = |(group, flow): (&String, &Flow)| {
            let path = Path {
                data: indices(resolve::path_links_in(plan, &topology, group)),
                round_trip: indices(resolve::on_round_trip(plan, &topology, group)),
                limit_bps: flow.rate.map_or(f64::INFINITY, |rate| rate.bits_per_sec() as f64),
                is_finite: flow.bytes.is_some(),
            };
            (group.clone(), path)
        };
        let (known, unknown): (Vec<_>, Vec<_>) = plan
            .flows
            .iter()
            .partition(|(_, flow)| topology.round_trip(&flow.from, &flow.to).is_some());
        let paths = known.into_iter().map(path).collect();
        let assumed_paths = unknown.into_iter().map(path).collect();
        Self { links, paths, assumed_paths }
    }

    /// Returns whether the paths of these groups are known.
    pub(super) fn has_paths(&self, groups: &[(&str, Group)]) -> bool {
        groups.iter().all(|(name, _)| self.paths.contains_key(*name))
    }

    /// Returns whether the max-min fair shares of these groups are unknown: data passes a link with an unknown capacity, or a flow is
    /// finite and leaves its share to the others when it is complete.
    pub(super) fn has_unknown_shares<T>(&self, groups: &[(&str, T)]) -> bool {
        let mut paths = groups.iter().filter_map(|(name, _)| self.paths.get(*name));
        let is_unknown = |link: &usize| self.links[*link].has_unknown_capacity();
        paths.any(|path| path.is_finite || path.data.iter().any(is_unknown))
    }

    /// Returns whether a group's data passes a link; `None` if the group's path is unknown.
    pub(super) fn passes(&self, group: &str, link: &str) -> Option<bool> {
        let path = self.paths.get(group)?;
        Some(path.data.iter().any(|nth| self.links[*nth].name == link))
    }

    /// Returns the longest base RTT, at any time of the trial, of the paths without traces that set delays.
    pub(super) fn longest_rtt(&self) -> Micros {
        let longest_us = self.paths.values().map(|path| self.longest_rtt_us(path));
        Micros::new(longest_us.fold(0.0, f64::max) as u64)
    }

    /// Returns the highest sum of the delays of a path at any time of the trial.
    fn longest_rtt_us(&self, path: &Path) -> f64 {
        let delays = path.round_trip.iter().filter_map(|nth| self.links[*nth].delay_us.as_ref());
        let mut differences: Vec<(f64, f64)> = delays.flat_map(Steps::differences).collect();
        differences.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut sum_us, mut longest_us) = (0.0, 0.0_f64);
        for at_once in differences.chunk_by(|a, b| a.0 == b.0) {
            sum_us += at_once.iter().map(|(_, us)| us).sum::<f64>();
            longest_us = longest_us.max(sum_us);
        }
        longest_us
    }

    /// Returns the base RTT of a group in us: the sum of the delays on its path. `None` if it changes in this span, or if a trace sets it.
    pub(super) fn base_rtt_us(&self, group: &str, span: Span) -> Option<f64> {
        self.round_trip_us(self.paths.get(group)?, span)
    }

    fn round_trip_us(&self, path: &Path, span: Span) -> Option<f64> {
        let delay_us = |nth: &usize| {
            let link = &self.links[*nth];
            link.delay_us.as_ref().filter(|_| !link.delay_is_triggered)?.constant(span)
        };
        path.round_trip.iter().map(delay_us).sum()
    }

    /// Returns the bytes per packet that count against the rate of this link but not in its counters.
    pub(super) fn extra_bytes(&self, link: &str) -> f64 {
        self.links.iter().find(|known| known.name == link).map_or(0.0, |link| link.extra_bytes)
    }

    /// Returns whether a link has such bytes.
    pub(super) fn has_extra_bytes(&self) -> bool {
        self.links.iter().any(|link| link.extra_bytes != 0.0)
    }

    /// Returns the mean rate of this link in a span; infinite if the link is not shaped, or not in the plan.
    pub(super) fn mean_rate_bps(&self, link: &str, span: Span, curves: Curves<'_, '_>) -> f64 {
        let nth = self.links.iter().position(|known| known.name == link);
        nth.and_then(|nth| self.rate_bps(nth, span, curves)).unwrap_or(f64::INFINITY)
    }

    /// Returns the mean rate of a link in a span; `None` if it is not shaped.
    fn rate_bps(&self, link: usize, span: Span, curves: Curves<'_, '_>) -> Option<f64> {
        let link = &self.links[link];
        let line_bps =
            link.line_bps(span, curves).map(|(line_bps, above_bps)| line_bps - above_bps);
        [line_bps, link.policed_bps].into_iter().flatten().reduce(f64::min)
    }

    /// Returns the slowest link that a group's data passes; `None` if no link of its path has a rate.
    pub(super) fn bottleneck(
        &self,
        group: &str,
        span: Span,
        curves: Curves<'_, '_>,
    ) -> Option<Bottleneck> {
        self.slowest(&self.paths.get(group)?.data, span, curves)
    }

    fn slowest(&self, links: &[usize], span: Span, curves: Curves<'_, '_>) -> Option<Bottleneck> {
        if links.iter().any(|link| self.links[*link].rate_is_triggered) {
            return None;
        }
        let rated = links.iter().filter_map(|link| {
            Some(Bottleneck { link: *link, rate_bps: self.rate_bps(*link, span, curves)? })
        });
        rated.min_by(|a, b| a.rate_bps.total_cmp(&b.rate_bps))
    }

    /// Returns the path of a group. If the cabling is not known, assumes that the path has every link.
    fn known_or_assumed(&self, group: &str) -> Option<&Path> {
        self.paths.get(group).or_else(|| self.assumed_paths.get(group))
    }

    /// Returns bottleneck and base RTT of a group; `None` without a bottleneck. If the cabling is not known, the path has every link.
    pub(crate) fn limits(
        &self,
        group: &str,
        span: Span,
        curves: Curves<'_, '_>,
    ) -> Option<PathLimits<'_>> {
        let path = self.known_or_assumed(group)?;
        let Bottleneck { link, rate_bps } = self.slowest(&path.data, span, curves)?;
        let base_rtt_us = self.round_trip_us(path, span);
        let link = &self.links[link];
        let is_policed = link.is_policed(span, curves);
        let limits = PathLimits { link: &link.name, rate_bps, base_rtt_us, is_policed };
        (rate_bps > 0.0).then_some(limits)
    }

    /// Returns whether a group's data passes a link. If the cabling is not known, it passes every link.
    pub(crate) fn may_pass(&self, group: &str, link: &str) -> bool {
        let path = self.known_or_assumed(group);
        path.is_some_and(|path| path.data.iter().any(|nth| self.links[*nth].name == link))
    }

    /// Returns whether a trace sets the rate of a link.
    pub(super) fn has_curves(&self, curves: Curves<'_, '_>) -> bool {
        self.links.iter().any(|link| curves(&link.name).is_some())
    }

    /// Returns times at which the network changes, without the steps of traces.
    pub(super) fn changes_s(&self) -> impl Iterator<Item = f64> {
        self.links.iter().flat_map(PathLink::changes_s)
    }

    /// Returns the max-min fair goodput of one flow of each of these groups in bit/s, if all of them run throughout the span; infinite if
    /// nothing limits it. `None` in the cases of [`Self::has_unknown_shares`], or if a group is not in the plan.
    fn max_min(
        &self,
        groups: &[(&str, u32)],
        span: Span,
        curves: Curves<'_, '_>,
    ) -> Option<Vec<f64>> {
        let paths: Option<Vec<&Path>> =
            groups.iter().map(|(group, _)| self.paths.get(*group)).collect();
        let paths = paths?;
        if self.has_unknown_shares(groups) {
            return None;
        }
        let capacity = |link: usize| {
            let rate = self.rate_bps(link, span, curves);
            rate.map_or(f64::INFINITY, |rate| rate * self.links[link].payload_share)
        };
        let capacities: Vec<f64> = (0..self.links.len()).map(capacity).collect();
        let classes: Vec<FlowClass<'_>> = paths
            .iter()
            .zip(groups)
            .map(|(path, (_, flows))| FlowClass {
                flows: f64::from(*flows),
                limit: path.limit_bps,
                links: &path.data,
            })
            .collect();
        Some(fair_share::max_min(&capacities, &classes))
    }

    /// Returns the max-min fair goodput of one flow of each group in bit/s, averaged over the time that the group runs in this span. Groups
    /// that do not run, or that nothing limits, are left out. `None` in the cases of [`Self::max_min`].
    pub(super) fn fair_shares<'g>(
        &self,
        all: &[(&'g str, Group)],
        (from_s, to_s): Span,
        curves: Curves<'_, '_>,
    ) -> Option<BTreeMap<&'g str, f64>> {
        let ends = all.iter().flat_map(|(_, group)| [group.span.0, group.span.1]);
        let mut times: Vec<f64> = ends.chain(self.changes_s()).chain([from_s, to_s]).collect();
        times.retain(|at_s| (from_s..=to_s).contains(at_s));
        times.sort_by(f64::total_cmp);
        times.dedup();
        let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for pair in times.windows(2) {
            let span = (pair[0], pair[1]);
            let runs = |group: &Group| group.span.0 <= span.0 && group.span.1 >= span.1;
            let running: Vec<(&'g str, u32)> = all
                .iter()
                .filter(|(_, group)| runs(group))
                .map(|(name, group)| (*name, group.flows))
                .collect();
            let length_s = span.1 - span.0;
            for ((name, _), share) in running.iter().zip(self.max_min(&running, span, curves)?) {
                let (sum, seconds) = sums.entry(*name).or_default();
                *sum += share * length_s;
                *seconds += length_s;
            }
        }
        let means = sums.into_iter().map(|(name, (sum, seconds))| (name, sum / seconds));
        Some(means.filter(|(_, share)| share.is_finite()).collect())
    }
}

impl PathLink {
    /// Returns the mean rate of the line in a span, and the part of it that exceeds the policer's rate; `None` if it is not shaped.
    fn line_bps(&self, span: Span, curves: Curves<'_, '_>) -> Option<(f64, f64)> {
        let Some(curve) = curves(&self.name) else {
            let rate = self.rate_bps.as_ref()?;
            let above_bps = self.policed_bps.map_or(0.0, |bps| rate.above(bps).mean(span));
            return Some((rate.mean(span), above_bps));
        };
        let ns = |s: f64| (s * 1e9).round() as u64;
        let (from_ns, to_ns) = (ns(span.0), ns(span.1));
        let above = |bps: f64| curve.bytes_above((from_ns, to_ns), bps / 8e9);
        let mean_bps = |bytes: f64| bytes * 8.0 / (span.1 - span.0);
        let above_bps = mean_bps(self.policed_bps.map_or(0.0, above));
        Some((mean_bps(curve.bytes(from_ns, to_ns)), above_bps))
    }

    /// Returns whether the policer is slower than the line at a time of the span, or as fast.
    fn is_policed(&self, span: Span, curves: Curves<'_, '_>) -> bool {
        let both = self.line_bps(span, curves).zip(self.policed_bps);
        both.is_some_and(|((line_bps, above_bps), policed_bps)| {
            above_bps > 0.0 || policed_bps <= line_bps
        })
    }

    /// Returns times at which the link changes.
    fn changes_s(&self) -> impl Iterator<Item = f64> {
        let steps = self.rate_bps.iter().chain(&self.delay_us);
        steps.flat_map(Steps::changes_s)
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::parse::parse;

    use super::*;

    /// Two bottlenecks in a row: `long` passes both, `first` and `second` one each.
    const PARKING_LOT: &str = r#"
        name = "t"
        [nodes]
        a = {}
        b = {}
        c = {}
        [wires]
        path = ["a", "b", "c"]
        [links.one]
        node = "a"
        toward = "b"
        rate = "12mbit"
        delay = "10ms"
        [links.two]
        node = "b"
        toward = "c"
        rate = "30mbit"
        delay = "5ms"
        [links.back]
        node = "c"
        toward = "b"
        delay = "7ms"
        [flows.long]
        from = "a"
        to = "c"
        [flows.first]
        from = "a"
        to = "b"
        [flows.second]
        from = "b"
        to = "c"
        count = 2
        [[phases]]
        name = "p"
        length = "20s"
        flows = ["long", "first", "second"]
        [[changes]]
        at = "10s"
        set = { "links.one.rate" = "24mbit", "links.back.delay" = "27ms" }
    "#;
    const PAYLOAD: f64 = 1448.0 / 1514.0;

    fn none(_: &str) -> Option<&'static CapacityCurve> {
        None
    }

    fn network(text: &str) -> Network {
        Network::from_plan(&parse(text).unwrap_or_else(|e| panic!("{e:?}")), |_| false)
    }

    fn groups(spans: [(&'static str, u32, Span); 3]) -> Vec<(&'static str, Group)> {
        spans.into_iter().map(|(name, flows, span)| (name, Group { flows, span })).collect()
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs().max(1.0)
    }

    #[test]
    fn path_has_bottleneck_and_base_rtt() {
        let network = network(PARKING_LOT);
        let slowest = |group, span| network.bottleneck(group, span, &none).unwrap();
        assert_eq!(slowest("long", (0.0, 10.0)).rate_bps, 12e6);
        assert_eq!(slowest("long", (5.0, 15.0)).rate_bps, 18e6, "the mean of both rates");
        assert_eq!(slowest("second", (0.0, 10.0)).rate_bps, 30e6);
        assert_eq!(network.base_rtt_us("long", (0.0, 10.0)), Some(22_000.0));
        assert_eq!(network.base_rtt_us("long", (5.0, 15.0)), None, "it changes");
        assert_eq!(network.base_rtt_us("long", (10.0, 15.0)), Some(42_000.0));
        assert_eq!(network.base_rtt_us("first", (0.0, 20.0)), Some(10_000.0));
        assert_eq!(network.longest_rtt(), Micros::from_millis(42));
        let bdp = Bottleneck { link: 0, rate_bps: 32e6 }.bdp_packets(15_000.0);
        assert!((bdp - 39.63).abs() < 0.01, "{bdp}");
    }

    #[test]
    fn longest_rtt_is_that_of_one_instant() {
        let change = "[[changes]]\nat = \"10s\"\nset = { \"links.one.delay\" = \"3ms\" }\n";
        let slower = PARKING_LOT.replace("delay = \"10ms\"", "delay = \"17ms\"");
        let lot = network(&(slower + change));
        // `long`: 17 + 5 + 7, then 3 + 5 + 27.
        assert_eq!(lot.longest_rtt(), Micros::from_millis(35));
        let back = "[[changes]]\nat = \"12s\"\nset = { \"links.two.delay\" = \"1ms\" }\n";
        let shorter = network(&(PARKING_LOT.to_owned() + back));
        assert_eq!(shorter.longest_rtt(), Micros::from_millis(42), "from 10 s to 12 s");
    }

    #[test]
    fn links_of_a_path_are_known_by_name() {
        let lot = network(PARKING_LOT);
        assert_eq!(lot.passes("long", "two"), Some(true));
        assert_eq!(lot.passes("first", "two"), Some(false));
        assert_eq!(lot.passes("long", "back"), Some(false), "acknowledgements pass it");
        assert_eq!(lot.passes("nobody", "one"), None);
        assert_eq!(lot.mean_rate_bps("one", (5.0, 15.0), &none), 18e6);
        assert_eq!(lot.mean_rate_bps("back", (5.0, 15.0), &none), f64::INFINITY);
        assert!(!lot.has_extra_bytes());
        let longer = "rate = \"12mbit\"\noverhead = \"38B\"\n";
        let framed = network(&PARKING_LOT.replace("rate = \"12mbit\"\n", longer));
        assert!(framed.has_extra_bytes());
        assert_eq!(
            ["one", "two", "nowhere"].map(|link| framed.extra_bytes(link)),
            [24.0, 0.0, 0.0]
        );
    }

    #[test]
    fn fair_shares_are_those_of_the_time_that_a_group_runs() {
        let network = network(PARKING_LOT);
        let always = (0.0, 20.0);
        let all = groups([("long", 1, always), ("first", 1, (5.0, 10.0)), ("second", 2, always)]);
        let shares = |span| network.fair_shares(&all, span, &none).unwrap();
        // While `long` is alone on the first link, it gets a third of the second one.
        let alone = shares((0.0, 5.0));
        assert!(close(alone["long"], 10e6 * PAYLOAD) && !alone.contains_key("first"), "{alone:?}");
        // `first` takes half of the first link; `second` gets the rest of the second one.
        let crossed = shares((5.0, 10.0));
        assert!(close(crossed["long"], 6e6 * PAYLOAD) && close(crossed["first"], 6e6 * PAYLOAD));
        assert!(close(crossed["second"], 12e6 * PAYLOAD), "{crossed:?}");
        // Averages over the time that each group runs.
        let both = shares((0.0, 10.0));
        assert!(close(both["long"], 8e6 * PAYLOAD) && close(both["first"], 6e6 * PAYLOAD));
        assert!(close(both["second"], 11e6 * PAYLOAD), "{both:?}");
    }

    #[test]
    fn links_between_agents_are_on_no_path() {
        let agents = ["a", "b", "c"].into_iter().fold(PARKING_LOT.to_owned(), |text, node| {
            let agent = format!("{node} = {{ agent = \"192.0.2.1:7700\" }}");
            text.replace(&format!("{node} = {{}}"), &agent)
        });
        let (network, span) = (network(&agents), (0.0, 9.0));
        assert_eq!(network.bottleneck("long", span, &none), None);
        assert_eq!(network.base_rtt_us("long", span), None);
        assert_eq!(network.longest_rtt(), Micros::new(0));
        // For figures, every path has every link.
        let base_rtt_us = Some(22_000.0);
        let limits = PathLimits { link: "one", rate_bps: 12e6, base_rtt_us, is_policed: false };
        assert_eq!(network.limits("second", span, &none), Some(limits));
        assert!(network.may_pass("second", "one") && !network.may_pass("nobody", "one"));
        let all = [("long", Group { flows: 1, span })];
        assert!(!network.has_paths(&all));
        assert_eq!(network.fair_shares(&all, span, &none), None);
    }

    #[test]
    fn rate_limited_groups_get_their_rate_and_classes_have_no_shares() {
        let limited = PARKING_LOT.replace("to = \"b\"\n", "to = \"b\"\nrate = \"1mbit\"\n");
        let all = [("long", 1), ("first", 1), ("second", 2)]
            .map(|(name, flows)| (name, Group { flows, span: (0.0, 9.0) }));
        let shares = network(&limited).fair_shares(&all, (0.0, 9.0), &none).unwrap();
        assert!(close(shares["first"], 1e6) && close(shares["long"], 10e6 * PAYLOAD), "{shares:?}");
        let class = "[links.two.classes.c]\nrate = \"1mbit\"\nmatch = { flow = \"long\" }\n";
        let divided = network(&(PARKING_LOT.to_owned() + class));
        assert_eq!(divided.fair_shares(&all, (0.0, 9.0), &none), None);
        let keys = "to = \"b\"\ntool = \"ccbench\"\nbytes = \"1MB\"\n";
        let finite = network(&PARKING_LOT.replace("to = \"b\"\n", keys));
        assert_eq!(finite.fair_shares(&all, (0.0, 9.0), &none), None, "until it is complete");
    }

    #[test]
    fn a_policer_limits_the_capacity() {
        let policer = "delay = \"5ms\"\npolicer = { rate = \"8mbit\", burst = \"30kB\" }\n";
        let lot = network(&PARKING_LOT.replace("delay = \"5ms\"\n", policer));
        let slowest = lot.bottleneck("second", (0.0, 9.0), &none).unwrap();
        assert_eq!((slowest.link, slowest.rate_bps), (2, 8e6));
        // The line's rate comes from the plan.
        assert!(close(lot.bottleneck("first", (0.0, 9.0), &none).unwrap().rate_bps, 12e6));
    }

    #[test]
    fn what_states_of_flows_change_is_not_known() {
        let span = (0.0, 9.0);
        let when = "[[changes]]\nwhen = { flow = \"first\", cc_state = \"DRAIN\" }\n";
        let of = |set: &str| network(&format!("{PARKING_LOT}{when}set = {{ {set} }}\n"));
        let rate = of("\"links.one.rate\" = \"5mbit\"");
        assert_eq!(rate.bottleneck("long", span, &none), None);
        assert!(rate.bottleneck("second", span, &none).is_some());
        let all = [("long", 1), ("second", 2)].map(|(name, flows)| (name, Group { flows, span }));
        assert!(rate.has_unknown_shares(&all) && !rate.has_unknown_shares(&all[1..]));
        assert_eq!(rate.fair_shares(&all, span, &none), None);
        assert_eq!(rate.base_rtt_us("long", span), Some(22_000.0));
        let delay = of("\"links.one.delay\" = \"60ms\"");
        assert_eq!(delay.base_rtt_us("long", span), None);
        assert_eq!(delay.base_rtt_us("second", span), Some(12_000.0));
        assert!(delay.bottleneck("long", span, &none).is_some());
    }
}
