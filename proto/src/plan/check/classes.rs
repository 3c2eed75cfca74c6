//! Lint: classes of links that get no packet.
//!
//! A warning needs certainty: the cabling is known, and the packets are those of the plan's flows and probes, in both directions.

use crate::plan::parse::set::join_key;
use crate::plan::problem::{PlanProblem, Severity};
use crate::plan::{Match, Plan};
use crate::resolve::shapes;
use crate::schedule::{
    MAX_GROUPS, MAX_SERVED_PROBES, MAX_SOCKETS, PORT_SLOTS, client_port, probe_port, server_port,
};
use crate::topology::Topology;

use super::Target;
use super::problems::Problems;

/// The sysctl for the ports of sockets that do not bind one.
const PORT_RANGE: &str = "net.ipv4.ip_local_port_range";

/// Packets from one node to another, data or acknowledgements.
struct Packets<'p> {
    from: &'p str,
    to: &'p str,
    /// The flow group; `None` for a probe.
    flow: Option<&'p str>,
    /// The interfaces through which they leave: node and device.
    hops: Vec<(&'p str, &'p str)>,
}

impl Packets<'_> {
    fn are(&self, wanted: &Match) -> bool {
        wanted.from.as_deref().is_none_or(|from| from == self.from)
            && wanted.to.as_deref().is_none_or(|to| to == self.to)
            && wanted.flow.as_deref().is_none_or(|flow| Some(flow) == self.flow)
    }
}

/// The packets of a plan; `None` if the cabling is not known.
fn packets<'p>(plan: &'p Plan, topology: &'p Topology) -> Option<Vec<Packets<'p>>> {
    let flows = plan.flows.iter().map(|(name, flow)| (Some(name.as_str()), (&flow.from, &flow.to)));
    let probes = plan.probes.values().map(|probe| (None, (&probe.from, &probe.to)));
    let both_ways = flows.chain(probes).flat_map(|(flow, (a, b))| [(flow, a, b), (flow, b, a)]);
    both_ways
        .map(|(flow, from, to)| Some(Packets { from, to, flow, hops: topology.path(from, to)? }))
        .collect()
}

/// Warns about classes of a normalized plan's links that get no packet.
pub(super) fn check(normalized: &Plan, topology: &Topology, problems: &mut Problems) {
    let links: Vec<_> =
        normalized.links.iter().filter(|(_, link)| !link.classes.is_empty()).collect();
    if links.is_empty() {
        return;
    }
    let packets = packets(normalized, topology);
    let sets_ports = normalized.nodes.values().any(|node| node.sysctl.contains_key(PORT_RANGE))
        || normalized.probes.values().any(|probe| probe.host.is_some());
    let least_port = server_port(0, 0);
    for (name, link) in links {
        let reads: [&[&str]; 5] =
            [&["links", name], &["flows"], &["probes"], &["nodes"], &["wires"]];
        let passes =
            |packets: &&Packets<'_>| packets.hops.iter().any(|hop| shapes(link, topology, *hop));
        let passing: Vec<&Packets<'_>> = packets.iter().flatten().filter(passes).collect();
        for (index, (class, config)) in link.classes.iter().enumerate() {
            let at = ["links", name.as_str(), "classes", class.as_str(), "match"];
            let dotted = join_key(&at);
            let is_wrong = |found: &PlanProblem| {
                found.severity == Severity::Error && found.path.starts_with(&dotted)
            };
            if problems.found.iter().any(is_wrong) {
                continue;
            }
            let wanted = &config.matches;
            let mut earlier = link.classes.iter().take(index);
            let same = earlier.find(|(_, other)| other.matches == *wanted);
            let why = if let Some((other, _)) = same {
                format!(
                    "is the same as that of the class `{other}`, which gets all the packets because its name sorts \
                     first; change one of them"
                )
            } else if passing.is_empty() {
                continue;
            } else if !passing.iter().any(|packets| packets.are(wanted)) {
                format!(
                    "no packet matches: the plan sends none{} over this link",
                    described(wanted)
                )
            } else if let Some(port) = wanted.port.filter(|port| *port < least_port)
                && !sets_ports
            {
                format!(
                    "no packet matches: the ports of flows and probes are {least_port} and above, not {port}"
                )
            } else if let Some(port) = wanted.port.filter(|port| differs_by_trial(*port))
                && !sets_ports
                && problems.target == Target::Kernel
                && !normalized.in_lab()
            {
                format!(
                    "outside of the lab, flows and probes have other ports in each trial, so few trials or none have {port}; \
                     select packets of a group with `flow`"
                )
            } else {
                continue;
            };
            problems.warning_from(&at, &reads, why);
        }
    }
}

/// Whether this is a port of flows and probes. Each trial takes one of several ranges, in the lab and the simulator the first one.
fn differs_by_trial(port: u16) -> bool {
    let last = PORT_SLOTS - 1;
    let ranges = [
        server_port(0, 0)..=server_port(last, MAX_GROUPS - 1),
        probe_port(0, 0)..=probe_port(last, MAX_SERVED_PROBES - 1),
        client_port(0, 0)..=client_port(last, MAX_SOCKETS - 1),
    ];
    ranges.iter().any(|range| range.contains(&port))
}

/// ` of `bulk` from `src` to `dst``.
fn described(wanted: &Match) -> String {
    let keys = [("of", &wanted.flow), ("from", &wanted.from), ("to", &wanted.to)];
    let words =
        keys.into_iter().filter_map(|(word, name)| Some(format!(" {word} `{}`", name.as_ref()?)));
    words.collect()
}

#[cfg(test)]
mod tests {
    use crate::plan::check::{Target, TraceFiles, read, read_for};

    const PLAN: &str = r#"
name = "t"
repeat = 2
[nodes]
a = {}
r = {}
b = {}
[wires]
w = ["a", "r", "b"]
[links.l]
node = "r"
toward = "b"
rate = "10mbit"
delay = "10ms"
[links.unused]
node = "b"
toward = "r"
delay = "1ms"
[flows.f]
from = "a"
to = "b"
[flows.back]
from = "b"
to = "a"
reverse = true
[probes.p]
kind = "ping"
from = "a"
to = "b"
[[phases]]
name = "p"
length = "5s"
flows = ["f", "back"]
"#;

    /// The warnings about classes of the link with these matches, named `c0`, `c1` ...
    fn warnings(plan: &str, matches: &[&str]) -> Vec<String> {
        let classes = matches.iter().enumerate().map(|(index, matches)| {
            format!("[links.l.classes.c{index}]\nrate = \"1mbit\"\nmatch = {{ {matches} }}\n")
        });
        let text = plan.to_owned() + &classes.collect::<String>();
        let found = read(&text, &[]).unwrap_or_else(|problems| panic!("{problems:?}")).1;
        assert!(found.iter().all(|problem| problem.line.is_some()), "{found:?}");
        let about = found.iter().filter(|problem| problem.path.contains(".classes."));
        about.map(ToString::to_string).collect()
    }

    #[test]
    fn classes_that_get_packets_have_no_warning() {
        let fine = [
            "to = \"b\"",
            "from = \"a\", to = \"b\"",
            "flow = \"f\"",
            "flow = \"back\", from = \"a\"",
            "port = 5201",
            "port = 50000",
            "dscp = 46",
            "ecn = \"ect1\", to = \"b\"",
        ];
        assert_eq!(warnings(PLAN, &fine), [""; 0]);
        // A resolver, or a narrower range of ports.
        let ports = PLAN
            .replace("a = {}", "a = { sysctl = { \"net.ipv4.ip_local_port_range\" = \"80 90\" } }");
        assert_eq!(warnings(&ports, &["port = 80"]), [""; 0]);
    }

    #[test]
    fn a_class_with_the_match_of_an_earlier_one_is_reported() {
        let found = warnings(PLAN, &["to = \"b\"", "flow = \"f\"", "to = \"b\""]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("links.l.classes.c2.match: is the same as that of the class `c0`"),
            "{found:?}"
        );
    }

    #[test]
    fn a_match_that_no_packet_of_the_plan_has_is_reported() {
        let found = warnings(
            PLAN,
            &["from = \"b\", to = \"a\"", "flow = \"f\", to = \"a\"", "to = \"r\"", "port = 80"],
        );
        let expected = [
            "c0.match: no packet matches: the plan sends none from `b` to `a` over this link",
            "c1.match: no packet matches: the plan sends none of `f` to `a` over this link",
            "c2.match: no packet matches: the plan sends none to `r` over this link",
            "c3.match: no packet matches: the ports of flows and probes are 5201 and above, not 80",
        ];
        assert_eq!(found, expected.map(|warning| format!("links.l.classes.{warning}")));
    }

    #[test]
    fn ports_that_differ_from_trial_to_trial_are_reported() {
        let warned = |port: u16, target, more: &str| {
            let class =
                format!("[links.l.classes.c]\nrate = \"1mbit\"\nmatch = {{ port = {port} }}\n");
            let text = PLAN.to_owned() + &class + more;
            let (_, found) = read_for(target, &text, &[], TraceFiles::new()).unwrap();
            found.iter().any(|problem| problem.reason.contains("other ports in each trial"))
        };
        for port in [5201, 6224, 6400, 29_199] {
            assert!(warned(port, Target::Kernel, ""), "{port}");
            assert!(!warned(port, Target::Kernel, "[lab]\nengine = \"qemu\"\n"), "{port}");
            // Trials in the lab and simulated ones have the first range, and a controller has checked an agent's plan.
            for other in [Target::Lab, Target::Simulator, Target::Any] {
                assert!(!warned(port, other, ""), "{port}");
            }
        }
        for port in [50_000, 8_080] {
            assert!(!warned(port, Target::Kernel, ""), "{port}");
        }
    }

    #[test]
    fn the_cabling_of_agents_is_not_known() {
        let mut plan = PLAN.replace("[wires]\nw = [\"a\", \"r\", \"b\"]\n", "");
        for (host, node) in ["a", "r", "b"].iter().enumerate() {
            let agent = format!(
                "{node} = {{ agent = \"h{host}:7700\", address = \"10.0.0.{}\" }}",
                host + 1
            );
            plan = plan.replace(&format!("{node} = {{}}"), &agent);
        }
        assert_eq!(warnings(&plan, &["from = \"b\", to = \"a\"", "port = 80"]), [""; 0]);
    }
}
