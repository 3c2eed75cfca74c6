//! Lints: warnings about valid plans whose results may mislead.

use crate::plan::problem::Severity;
use crate::plan::{Backend, Flow, LimitUnit, Link, Plan, Queue, Tbf};
use crate::resolve::{
    MIN_FRAMES, amount_bytes, base_rtts_in, bdp, bottleneck_in, drain_rate, limit_bytes, preset,
    resolve_queue,
};
use crate::topology::Topology;
use crate::units::{Bytes, FRAME_BYTES, Limit, Micros, Rate};

use super::impair::MAX_BURST;
use super::limits::{AGENTS, LENGTHS, SOCKETS, has_only_namespaces, sockets_here};
use super::problems::Problems;
use super::{classes, queues, traces};

/// A bandwidth-delay product or a threshold below this many packets is noise.
const FEW_PACKETS: u64 = 4;
/// A buffer above this many bandwidth-delay products is bufferbloat, wanted or not.
const MANY_BDP: u64 = 10;
/// Phases shorter than this many round trips end before the flows have settled.
const FEW_ROUND_TRIPS: u64 = 10;
/// Below this interval, reading many sockets costs noticeable CPU time.
const FAST_SAMPLE: Micros = Micros::from_millis(10);
/// More sockets than this are many.
const MANY_SOCKETS: u64 = 50;

/// The keys that determine the base round-trip time of a link.
pub(super) const ROUND_TRIP: &[&[&str]] = &[
    &["wires"],
    &["path"],
    AGENTS,
    &["links", "*", "node"],
    &["links", "*", "toward"],
    &["links", "*", "dev"],
    &["links", "*", "path"],
    &["links", "*", "delay"],
    &["flows", "*", "from"],
    &["flows", "*", "to"],
];

/// Warns about a plan. `normalized` is the plan with its presets merged.
pub(super) fn check(
    (plan, normalized): (&Plan, &Plan),
    topology: &Topology,
    problems: &mut Problems,
) {
    let rtts = base_rtts_in(normalized, topology);
    for (name, link) in &normalized.links {
        let Some(rate) = drain_rate(link).filter(|rate| rate.bits_per_sec() > 0) else { continue };
        let key = if link.rate.is_some() { "rate" } else { "trace" };
        if problems.is_unread(ROUND_TRIP) || problems.is_unread(&[&["links", name, key]]) {
            continue;
        }
        let rtt = rtts.get(name.as_str()).copied().unwrap_or_default();
        bandwidth_delay(&["links", name, key], rate, rtt, problems);
        if rate.bits_per_sec() < FRAME_BYTES * 8 {
            let why = format!("{rate}: a full packet takes more than a second");
            problems.warning_from(&["links", name, key], &[], why);
        }
        if let Some(queue) = &link.queue {
            let path = ["links", name, "queue"];
            buffer(&path, (queue, link.backend), rate, rtt, problems);
            if plan.links.get(name).is_some_and(|link| has_own_queue(plan, link)) {
                warn_of_clamped_limits(&path, queue, (rate, rtt), problems);
            }
        }
        if let Some(tbf) = &link.tbf {
            full_bucket((name.as_str(), tbf), rate, normalized, problems);
        }
        for (class_name, class) in &link.classes {
            if let Some(queue) = &class.queue
                && class.rate.bits_per_sec() > 0
                && !problems.is_unread(&[&["links", name, "classes", class_name, "rate"]])
            {
                let path = ["links", name, "classes", class_name, "queue"];
                buffer(&path, (queue, link.backend), class.rate, rtt, problems);
                let written = plan.links.get(name).and_then(|link| link.classes.get(class_name));
                if written.is_some_and(|class| class.queue.is_some()) {
                    warn_of_clamped_limits(&path, queue, (class.rate, rtt), problems);
                }
            }
        }
    }
    unlimited(plan, normalized, problems);
    bypasses(normalized, topology, problems);
    senders(normalized, topology, problems);
    classes::check(normalized, topology, problems);
    offloads(plan, problems);
    sampling(plan, problems);
    short_phases(normalized, rtts.into_values().max().unwrap_or_default(), problems);
}

fn bandwidth_delay(path: &[&str], rate: Rate, rtt: Micros, problems: &mut Problems) {
    let packets = bdp(rate, rtt).get() / FRAME_BYTES;
    if rtt.get() == 0 {
        problems.warning_from(
            path,
            &[],
            "no link on its paths has a delay: the base round-trip time is the machine's own, and a few packets fill the path",
        );
    } else if packets < FEW_PACKETS {
        problems.warning_from(
            path,
            &[],
            format!(
                "{rate} times the base round-trip time of {rtt} is {}B, less than {FEW_PACKETS} packets: \
                 congestion windows cannot get small enough to be fair",
                bdp(rate, rtt).get()
            ),
        );
    }
}

fn buffer(
    path: &[&str],
    (queue, backend): (&Queue, Backend),
    rate: Rate,
    rtt: Micros,
    problems: &mut Problems,
) {
    let product = bdp(rate, rtt).get();
    if let Some((limit, _)) = queue.fifo_limit() {
        if let Some(why) = queues::refuse_bfifo(queue, (rate, rtt)) {
            problems.error(&[path, &["limit"]].concat(), why);
            return;
        }
        let bytes = limit_bytes(limit, rate, rtt);
        let chosen =
            !matches!(limit, Limit::MilliBdp(milli) if u64::from(milli) <= MANY_BDP * 1000);
        if chosen && rtt.get() > 0 && bytes.get() > product.saturating_mul(MANY_BDP) {
            problems.warning_from(
                &[path, &["limit"]].concat(),
                &[],
                format!(
                    "`{limit}` is {} bandwidth-delay products ({} when full): a loss-based flow needs very long to fill it",
                    bytes.get() / product.max(1),
                    drain_time(rate, bytes)
                ),
            );
        }
    }
    for (key, why) in queues::relative_limits(queue, (rate, rtt)) {
        problems.error(&[path, &[key]].concat(), why);
    }
    if queue.limits().iter().any(|(_, limit, _)| limit.is_relative()) {
        let resolved = resolve_queue(Some(queue), Some(rate), rtt);
        queues::check_qdisc(path, backend, &resolved, problems);
    }
    let Some((key, threshold)) = queue.parameters().mark_threshold() else { return };
    let least = drain_time(rate, Bytes::new(FEW_PACKETS * FRAME_BYTES));
    if threshold < least {
        problems.warning_from(
            &[path, &[key]].concat(),
            &[],
            format!(
                "{threshold} is less than the {least} that {FEW_PACKETS} full packets take at {rate}, so it marks \
                 packets even without a standing queue"
            ),
        );
    }
}

/// Whether a link or its preset has a queue. Otherwise, the link gets the default queue.
fn has_own_queue(plan: &Plan, link: &Link) -> bool {
    link.queue.is_some() || preset(&plan.path, link).is_some_and(|preset| preset.queue.is_some())
}

/// Warns about limits of a queue that are raised to the minimum.
fn warn_of_clamped_limits(
    path: &[&str],
    queue: &Queue,
    (rate, rtt): (Rate, Micros),
    problems: &mut Problems,
) {
    for (key, why) in clamped_limits(queue, (rate, rtt)) {
        problems.warning_from(&[path, &[key]].concat(), &[], why);
    }
}

/// The limits in bandwidth-delay products below the minimum, which replaces them: levels of a factor may become equal. Keys and
/// warnings; a warning is the same at all points, so it is reported once.
pub(super) fn clamped_limits(
    queue: &Queue,
    (rate, rtt): (Rate, Micros),
) -> Vec<(&'static str, String)> {
    let least = MIN_FRAMES * FRAME_BYTES;
    let mut found = Vec::new();
    for (key, limit, unit) in queue.limits() {
        let is_low = amount_bytes(limit, rate, rtt).get() < least;
        // Zero is an error.
        let in_bdp = matches!(limit, Limit::MilliBdp(milli) if milli > 0);
        if in_bdp && is_low && unit != LimitUnit::Threshold {
            let why = format!(
                "is less than {MIN_FRAMES} full frames, so the limit is raised to {least}B, like every other \
                 limit below that; `check --expand` prints limits in bytes or packets"
            );
            found.push((key, why));
        }
    }
    found
}

/// Warns about a token bucket that may not limit the flows at all, because it is full when the trial begins.
fn full_bucket((name, tbf): (&str, &Tbf), rate: Rate, normalized: &Plan, problems: &mut Problems) {
    let measured = normalized.phases.iter().filter(|p| p.measure && p.length.get() > 0);
    let Some(shortest) = measured.min_by_key(|phase| phase.length) else { return };
    // A larger bucket is an error.
    if tbf.burst > rate.bytes_in(shortest.length) && tbf.burst <= MAX_BURST {
        problems.warning_from(
            &["links", name, "tbf", "burst"],
            &[LENGTHS, &["phases", "*", "measure"]],
            format!(
                "{rate} takes {} to send {}, longer than phase `{}`, {}: the bucket begins full, and the link does \
                 not limit the flows until it is empty",
                drain_time(rate, tbf.burst),
                tbf.burst,
                shortest.name,
                shortest.length
            ),
        );
    }
}

/// How long a queue takes to drain: rounded up to microseconds, above 10 ms to milliseconds.
fn drain_time(rate: Rate, bytes: Bytes) -> Micros {
    let us = rate.ns_for(bytes).div_ceil(1000);
    Micros::new(if us < 10_000 { us } else { us.div_ceil(1000).saturating_mul(1000) })
}

fn unlimited(plan: &Plan, normalized: &Plan, problems: &mut Problems) {
    let greedy = plan.flows.values().any(|flow| flow.rate.is_none());
    let doubtful =
        problems.found.iter().any(|p| p.severity == Severity::Error && p.path.starts_with("links"));
    if !doubtful
        && greedy
        && has_only_namespaces(plan)
        && normalized.links.values().all(|l| l.rate.is_none() && l.trace.is_none())
    {
        problems.warning_from(
            &["links"],
            &[
                &["links", "*", "rate"],
                &["links", "*", "path"],
                &["path"],
                &["flows", "*", "rate"],
                AGENTS,
            ],
            "no link has a rate, so this machine's CPU limits the flows, and that is what the trials measure",
        );
    }
}

/// Warns about a group that passes no bottleneck while another one does, usually because its receiver is behind another interface.
fn bypasses(normalized: &Plan, topology: &Topology, problems: &mut Problems) {
    // A trace that has not been read may have a rate.
    if normalized.links.values().any(|l| l.trace.is_some() && !traces::is_known(l, problems)) {
        return;
    }
    let bottleneck = |group: &str| bottleneck_in(normalized, topology, group).map(|(name, _)| name);
    let groups: Vec<(&String, &Flow, Option<&str>)> =
        normalized.flows.iter().map(|(name, flow)| (name, flow, bottleneck(name))).collect();
    let first = groups.iter().find_map(|(name, _, found)| Some((*name, (*found)?)));
    let Some((other, link)) = first else { return };
    for (name, flow, found) in groups {
        if found.is_none() {
            let limit = match flow.rate {
                Some(_) => String::new(),
                None => format!(", and this machine's CPU limits `{name}`"),
            };
            problems.warning_from(
                &["flows", name],
                &[
                    &["flows", name, "rate"],
                    &["links"],
                    &["wires"],
                    &["path"],
                    &["flows", "*", "from"],
                    &["flows", "*", "to"],
                    &["flows", "*", "reverse"],
                    AGENTS,
                ],
                format!(
                    "its data passes no link with a rate, but that of `{other}` passes `{link}`: they share no \
                     bottleneck{limit}"
                ),
            );
        }
    }
}

/// Warns about senders at a bottleneck's own node: TCP sees its machine's queues (TCP small queues) and does not fill them.
fn senders(normalized: &Plan, topology: &Topology, problems: &mut Problems) {
    let ends = normalized.flows.values().map(|flow| match flow.reverse {
        true => (&flow.to, &flow.from),
        false => (&flow.from, &flow.to),
    });
    let ends: Vec<(&String, &String)> = ends.collect();
    let limited = |link: &Link| link.rate.is_some() || link.trace.is_some();
    for (name, link) in normalized.links.iter().filter(|(_, link)| limited(link)) {
        let receivers: Vec<&String> = ends
            .iter()
            .filter(|(sender, _)| **sender == link.node)
            .map(|(_, receiver)| *receiver)
            .collect();
        let has_agent = normalized.nodes.get(&link.node).is_some_and(|node| node.agent.is_some());
        let leaves_here = |receiver: &String| match (&link.toward, has_agent) {
            (Some(toward), true) => toward == receiver,
            (Some(toward), false) => {
                let device = topology.egress(&link.node, toward);
                device.is_some() && topology.egress(&link.node, receiver) == device
            }
            (None, _) => false,
        };
        let node = &link.node;
        let why = if receivers.iter().any(|receiver| leaves_here(receiver)) {
            format!(
                "`{node}` sends flows through its own queue: its TCP sees that queue and does not fill it; put the \
                 bottleneck on a node in between"
            )
        } else if has_agent && !receivers.is_empty() {
            // The plan does not contain the node's routes.
            format!(
                "`{node}` sends flows, and if they leave by this interface, its TCP sees their queue and does not \
                 fill it; put the bottleneck on a node in between"
            )
        } else {
            continue;
        };
        let reads: &[&[&str]] = &[
            &["links", name, "toward"],
            &["links", name, "dev"],
            &["flows", "*", "from"],
            &["flows", "*", "to"],
            &["flows", "*", "reverse"],
            &["wires"],
            AGENTS,
        ];
        problems.warning_from(&["links", name, "node"], reads, why);
    }
}

fn offloads(plan: &Plan, problems: &mut Problems) {
    for (name, _) in plan.nodes.iter().filter(|(_, node)| node.offloads) {
        if plan.links.values().any(|link| link.node == *name) {
            problems.warning_from(
                &["nodes", name, "offloads"],
                &[&["links", "*", "node"]],
                "segmentation offloads stay on at a node with links: queues count and drop super-packets of up to 64 KiB",
            );
        }
    }
}

fn sampling(plan: &Plan, problems: &mut Problems) {
    let sockets = sockets_here(plan, problems);
    if plan.sample.tcp < FAST_SAMPLE && sockets > MANY_SOCKETS {
        problems.warning_from(
            &["sample", "tcp"],
            &SOCKETS,
            format!("{} with {sockets} sockets costs CPU time that the flows may need; {FAST_SAMPLE} is safe", plan.sample.tcp),
        );
    }
}

/// Warns about short phases. `rtt` is the longest of all paths.
fn short_phases(normalized: &Plan, rtt: Micros, problems: &mut Problems) {
    let least = Micros::new(rtt.get().saturating_mul(FEW_ROUND_TRIPS));
    for (index, phase) in normalized.phases.iter().enumerate() {
        let number = index.to_string();
        if problems.is_unread(&[&["phases", &number, "measure"]]) {
            continue;
        }
        if phase.measure && phase.length.get() > 0 && phase.length < least {
            problems.warning_from(
                &["phases", &number, "length"],
                ROUND_TRIP,
                format!("{} is less than {FEW_ROUND_TRIPS} round trips of {rtt}: the flows will not have settled", phase.length),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    /// The warnings of links' nodes of a plan with agents, whose bottleneck is at this place.
    fn at_senders(place: &str) -> Vec<String> {
        let text = format!(
            "name = \"agents\"\nrepeat = 2\n[nodes]\n\
             src = {{ agent = \"192.0.2.1:7700\", address = \"10.0.1.1\" }}\n\
             router = {{ agent = \"192.0.2.2:7700\", address = \"10.0.1.254\" }}\n\
             dst = {{ agent = \"192.0.2.3:7700\", address = \"10.0.3.1\" }}\n\
             [links.bottleneck]\n{place}\nrate = \"20mbit\"\ndelay = \"20ms\"\n\
             [flows.one]\nfrom = \"src\"\nto = \"dst\"\ncc = \"cubic\"\n\
             [[phases]]\nname = \"run\"\nlength = \"20s\"\nflows = [\"one\"]\n"
        );
        let (_, warnings) = crate::plan::check::read(&text, &[]).unwrap();
        let of_node = warnings.into_iter().filter(|w| w.path == "links.bottleneck.node");
        of_node.map(|warning| warning.to_string()).collect()
    }

    #[test]
    fn warns_of_a_queue_at_a_sender_with_an_agent() {
        let sends = at_senders("node = \"src\"\ntoward = \"dst\"");
        assert!(sends.len() == 1 && sends[0].contains("`src` sends flows through"), "{sends:?}");
        for place in ["toward = \"router\"", "dev = \"eth1\""] {
            let may = at_senders(&format!("node = \"src\"\n{place}"));
            assert!(may.len() == 1 && may[0].contains("if they leave by"), "{may:?}");
        }
        assert_eq!(at_senders("node = \"router\"\ntoward = \"dst\""), [""; 0]);
        assert_eq!(at_senders("node = \"dst\"\ntoward = \"src\""), [""; 0]);
    }

    #[test]
    fn warns_of_a_plan_without_links() {
        let text = "name = \"t\"\n[nodes]\na = {}\nb = {}\n[wires]\nw = [\"a\", \"b\"]\n\
                    [flows.f]\nfrom = \"a\"\nto = \"b\"\n[[phases]]\nname = \"p\"\nlength = \"9s\"\nflows = [\"f\"]\n";
        let warned = |text: &str| {
            let (_, warnings) = crate::plan::check::read(text, &[]).unwrap();
            warnings.iter().any(|warning| warning.reason.starts_with("no link has a rate"))
        };
        assert!(warned(text));
        assert!(!warned(&text.replace("[flows.f]", "[flows.f]\nrate = \"1mbit\"")));
    }

    #[test]
    fn warns_of_any_group_that_passes_no_bottleneck() {
        let warned = |toward: &str, rate: &str| {
            let text = format!(
                "name = \"t\"\n[nodes]\na = {{}}\nr = {{}}\nb = {{}}\nc = {{}}\n\
                 [wires]\nup = [\"a\", \"r\"]\none = [\"r\", \"b\"]\nother = [\"r\", \"c\"]\n\
                 [links.l]\nnode = \"r\"\ntoward = \"b\"\nrate = \"20mbit\"\ndelay = \"10ms\"\n\
                 [flows.f]\nfrom = \"a\"\nto = \"b\"\n[flows.other]\nfrom = \"a\"\nto = \"{toward}\"\n{rate}\n\
                 [[phases]]\nname = \"p\"\nlength = \"9s\"\nflows = [\"f\", \"other\"]\n"
            );
            let (_, warnings) = crate::plan::check::read(&text, &[]).unwrap();
            let found = warnings.into_iter().find(|warning| warning.path == "flows.other");
            found.map(|warning| warning.reason)
        };
        let why = "its data passes no link with a rate, but that of `f` passes `l`: they share no bottleneck";
        assert_eq!(warned("c", "rate = \"10mbit\"").as_deref(), Some(why));
        let cpu = format!("{why}, and this machine's CPU limits `other`");
        assert_eq!(warned("c", ""), Some(cpu));
        assert_eq!(warned("b", "rate = \"10mbit\""), None);
        assert_eq!(warned("b", ""), None);
    }

    #[test]
    fn warns_once_of_limits_that_become_equal() {
        let warned = |rate: &str, queue: &str, levels: &str| -> Vec<String> {
            let text = format!(
                "name = \"low\"\nrepeat = 2\n[nodes]\na = {{}}\nr = {{}}\nb = {{}}\n[wires]\nw = [\"a\", \"r\", \"b\"]\n\
                 [links.l]\nnode = \"r\"\ntoward = \"b\"\nrate = \"{rate}\"\ndelay = \"10ms\"\n{queue}\n\
                 [flows.f]\nfrom = \"a\"\nto = \"b\"\ncc = \"cubic\"\n\
                 [[phases]]\nname = \"p\"\nlength = \"9s\"\nflows = [\"f\"]\n{levels}"
            );
            let (_, warnings) = crate::plan::check::read(&text, &[]).unwrap();
            let raised = warnings.iter().filter(|w| w.reason.contains("less than 10 full frames"));
            raised.map(ToString::to_string).collect()
        };
        let queue = "queue = { kind = \"bfifo\", limit = \"1bdp\" }";
        let levels =
            "[matrix]\n\"links.l.queue.limit\" = [\"0.5bdp\", \"1bdp\", \"2bdp\", \"3bdp\"]\n";
        let low = warned("5mbit", queue, levels);
        assert!(low.len() == 1 && low[0].contains("the limit is raised to 15140B"), "{low:?}");
        assert!(
            low[0].contains("links.l.queue.limit") && low[0].contains("2 more points"),
            "{low:?}"
        );
        assert_eq!(warned("50mbit", queue, levels), [""; 0]);
        // The queue of a preset, whose place is the link.
        let path = "path = \"p\"";
        let preset = "[path.p]\nqueue = { kind = \"bfifo\", limit = \"1bdp\" }\nrate = \"5mbit\"\n";
        assert_eq!(warned("5mbit", path, preset).len(), 1);
        assert_eq!(warned("50mbit", path, preset), [""; 0]);
        // Not of the default, and thresholds have no minimum.
        assert_eq!(warned("5mbit", "", ""), [""; 0]);
        let red = "queue = { kind = \"red\", limit = \"4bdp\", min = \"0.6bdp\", max = \"1.8bdp\", probability = \"10%\" }";
        assert_eq!(warned("5mbit", red, ""), [""; 0]);
    }
}
