//! The traffic of a trial, from the tasks of all nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{FlowTask, ProbeTask};
use crate::plan::Plan;
use crate::resolve::OwnTraffic;

/// Returns the traffic of flows and probes; `None` if the address of a node is not known.
pub(super) fn own_traffic(
    plan: &Plan,
    flows: &[FlowTask],
    probes: &[ProbeTask],
    address: &impl Fn(&str) -> IpAddr,
) -> Option<OwnTraffic> {
    let of_flows = flows.iter().map(|flow| (flow.to_ip, flow.server_port));
    let served = probes.iter().filter(|probe| probe.plan.kind.is_served());
    let of_probes = served.map(|probe| (probe.to_ip, probe.port));
    let ends_of_flows = flows.iter().flat_map(|flow| [flow.from_ip, flow.to_ip]);
    let ends_of_probes = probes.iter().flat_map(|probe| [address(&probe.plan.from), probe.to_ip]);
    let resolving = probes.iter().filter(|probe| probe.plan.host.is_some());
    let agents = plan.nodes.values().filter_map(|node| node.agent.as_ref());
    let own = OwnTraffic {
        services: of_flows.chain(of_probes).collect(),
        hosts: distinct(ends_of_flows.chain(ends_of_probes)),
        controllers: Vec::new(),
        control_ports: distinct(agents.filter_map(|agent| port_of(agent))),
        resolvers: distinct(resolving.map(|probe| address(&probe.plan.from))),
    };
    own.hosts.iter().all(|ip| !ip.is_unspecified()).then_some(own)
}

/// Returns the port of an agent's address, `host:port`.
fn port_of(agent: &str) -> Option<u16> {
    agent.rsplit_once(':')?.1.parse().ok()
}

fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.collect::<BTreeSet<T>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::plan::check::CheckedPlan;
    use crate::plan::{check, parse};
    use crate::schedule::{TrialContext, flows, task_for};
    use crate::topology::Topology;

    const PLAN: &str = r#"
        name = "own"
        [nodes]
        a = {}
        r = {}
        b = {}
        [wires]
        path = ["a", "r", "b"]
        [links.l]
        node = "r"
        toward = "b"
        rate = "10mbit"
        [flows.one]
        from = "a"
        to = "b"
        [flows.two]
        from = "b"
        to = "a"
        [probes.echo]
        kind = "ping"
        from = "a"
        to = "b"
        every = "200ms"
        [probes.udp]
        kind = "udp"
        from = "a"
        to = "b"
        every = "200ms"
        [[phases]]
        name = "only"
        length = "9s"
        flows = ["one", "two"]
        "#;

    const PAGE: &str = r#"
        [probes.page]
        kind = "http"
        from = "b"
        to = "a"
        bytes = "1000B"
        "#;

    /// Returns what is known of the traffic at the link of router `r`.
    fn own_at_link(plan: &CheckedPlan) -> OwnTraffic {
        let task = task_for(plan, "r", &TrialContext::default()).links.remove(0);
        task.config.own_traffic.unwrap()
    }

    fn checked(plan: &str) -> CheckedPlan {
        let plan = parse::parse(plan).unwrap_or_else(|e| panic!("{e:?}"));
        check::check(plan).unwrap_or_else(|e| panic!("{e:?}")).0
    }

    #[test]
    fn listeners_and_ends_of_all_flows_and_probes_are_known_at_a_link() {
        let plan = checked(PLAN);
        let topology = Topology::build(plan.plan());
        let [a, b] = ["a", "b"].map(|node| topology.address(node).unwrap());
        let own = own_at_link(&plan);
        assert_eq!(own.services, [(b, 5201), (a, 5202), (b, 6400)]);
        let mut hosts = vec![a, b];
        hosts.sort_unstable();
        assert_eq!((own.hosts, own.controllers), (hosts, Vec::new()));
        assert_eq!((own.control_ports, own.resolvers), (Vec::new(), Vec::new()));

        let unspecified = |_: &str| IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        assert_eq!(own_traffic(plan.plan(), &flows(&plan), &[], &unspecified), None);
    }

    #[test]
    fn ports_of_agents_and_nodes_that_resolve_names_are_known() {
        let nodes = PLAN
            .replace("a = {}", "a = { agent = \"192.0.2.1:7701\", address = \"10.0.0.1\" }")
            .replace("r = {}", "r = { agent = \"[2001:db8::2]:7700\", address = \"10.0.0.2\" }")
            .replace("b = {}", "b = { agent = \"b.example:7700\", address = \"10.0.0.3\" }")
            .replace("[wires]\n        path = [\"a\", \"r\", \"b\"]\n", "");
        let own = own_at_link(&checked(&(nodes.clone() + PAGE)));
        assert_eq!((own.control_ports, own.resolvers), (vec![7700, 7701], Vec::new()));
        let own = own_at_link(&checked(&(nodes + PAGE + "host = \"a.example\"\n")));
        assert_eq!(own.resolvers, [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3))]);
    }
}
