//! The data connections that pass a link, with the header fields that queues hash.

use std::net::IpAddr;

use crate::plan::{Link, Plan};
use crate::resolve::shapes;
use crate::topology::Topology;
use crate::units::Micros;

use super::FlowTask;

/// A data connection, in the direction of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkFlow {
    /// `GROUP/NUMBER`.
    pub flow_id: String,
    /// Address of the node that sends the data.
    pub src: IpAddr,
    /// Address of the node that receives it.
    pub dst: IpAddr,
    /// TCP source port.
    pub sport: u16,
    /// TCP destination port.
    pub dport: u16,
    /// Time since the trial's beginning.
    pub start: Micros,
    /// Time since the trial's beginning.
    pub stop: Micros,
}

/// The data connections of `flows` that pass `link`, in order. `None` if the path of one of them is not known (nodes with agents).
pub(super) fn link_flows(
    plan: &Plan,
    topology: &Topology,
    link: &Link,
    flows: &[FlowTask],
) -> Option<Vec<LinkFlow>> {
    if plan.nodes.get(&link.node).is_some_and(|node| node.agent.is_some()) {
        return None;
    }
    let mut passing = Vec::new();
    for task in flows {
        let FlowTask { from_ip, to_ip, client_port, server_port, start, stop, .. } = *task;
        let (from, to) = match task.plan.reverse {
            true => (&task.plan.to, &task.plan.from),
            false => (&task.plan.from, &task.plan.to),
        };
        let path = topology.path(from, to)?;
        if !path.iter().any(|hop| shapes(link, topology, *hop)) {
            continue;
        }
        passing.extend((0..task.plan.count).map(|number| {
            let client = (from_ip, client_port + number as u16);
            let server = (to_ip, server_port);
            let (sender, receiver) =
                if task.plan.reverse { (server, client) } else { (client, server) };
            LinkFlow {
                flow_id: format!("{}/{number}", task.group),
                src: sender.0,
                dst: receiver.0,
                sport: sender.1,
                dport: receiver.1,
                start,
                stop,
            }
        }));
    }
    Some(passing)
}

#[cfg(test)]
mod tests {
    use crate::plan::{check, parse};
    use crate::schedule::{LinkTask, TrialContext, task_for};

    fn links(node: &str, nodes: &str) -> Vec<LinkTask> {
        let text = format!(
            r#"
            name = "t"
            {nodes}
            [links.there]
            node = "r"
            toward = "b"
            rate = "9mbit"
            [links.back]
            node = "r"
            toward = "a"
            delay = "1ms"
            [flows.down]
            from = "a"
            to = "b"
            reverse = true
            [flows.up]
            from = "a"
            to = "b"
            count = 2
            [[phases]]
            name = "p"
            length = "9s"
            flows = ["up", "down"]
            "#
        );
        let plan = parse::parse(&text).unwrap_or_else(|e| panic!("{e:?}"));
        let (plan, _) = check::check(plan).unwrap_or_else(|e| panic!("{e:?}"));
        task_for(&plan, node, &TrialContext::default()).links
    }

    #[test]
    fn data_passes_the_links_on_its_way() {
        let links =
            links("r", "[nodes]\na = {}\nr = {}\nb = {}\n[wires]\npath = [\"a\", \"r\", \"b\"]");
        let described = |link: &LinkTask| -> Vec<String> {
            let flows = link.flows.as_ref().unwrap();
            let one = |flow: &super::LinkFlow| {
                format!("{} {}:{} {}:{}", flow.flow_id, flow.src, flow.sport, flow.dst, flow.dport)
            };
            flows.iter().map(one).collect()
        };
        let found: Vec<(&str, Vec<String>)> =
            links.iter().map(|link| (link.config.name.as_str(), described(link))).collect();
        // Group `down` is the first in name order: its ports are 5201 and 10000.
        let up = ["up/0 10.77.1.1:10001 10.77.2.2:5202", "up/1 10.77.1.1:10002 10.77.2.2:5202"];
        let down = ["down/0 10.77.2.2:5201 10.77.1.1:10000"];
        assert_eq!(found[0], ("back", down.map(str::to_owned).to_vec()));
        assert_eq!(found[1], ("there", up.map(str::to_owned).to_vec()));
    }

    #[test]
    fn the_cabling_of_agents_is_not_known() {
        let agent = |node, host| {
            format!("{node} = {{ agent = \"h{host}:7700\", address = \"10.0.0.{host}\" }}\n")
        };
        let nodes = format!("[nodes]\n{}{}{}", agent("a", 1), agent("r", 2), agent("b", 3));
        assert!(links("r", &nodes).iter().all(|link| link.flows.is_none()));
    }
}
