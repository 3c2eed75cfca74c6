//! Asks agents before the first trial whether they would refuse it, so that a refused run leaves no results directory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ccbench_proto::resolve;
use ccbench_proto::schedule::{self, Point, TrialContext};
use ccbench_proto::wire;

use crate::agents::{AgentError, Agents};
use crate::experiment::Experiment;

/// Asks the agents about the points of the matrix. With `--keep-going`, one accepted point is enough.
///
/// # Errors
/// An agent refuses or does not answer.
pub async fn check(
    experiment: &Experiment,
    agents: &Agents,
    addresses: &BTreeMap<String, String>,
) -> Result<(), AgentError> {
    let mut asked = BTreeSet::new();
    let mut refused = Ok(());
    for point in experiment.plan.points() {
        if !asked.insert(checked_parts(&point, addresses)) {
            continue;
        }
        match agents.check(request(&experiment.id, &point, addresses)).await {
            Ok(()) if experiment.options.keep_going => return Ok(()),
            Ok(()) => {}
            Err(error @ (AgentError::Refused { .. } | AgentError::Unsupported { .. }))
                if experiment.options.keep_going =>
            {
                refused = refused.and(Err(error));
            }
            Err(error) => return Err(error),
        }
    }
    refused
}

/// Returns the request that asks each node about a point.
pub(super) fn request(
    run_id: &str,
    point: &Point,
    addresses: &BTreeMap<String, String>,
) -> impl Fn(&str) -> wire::PrepareRequest + use<> {
    let of_all = wire::PrepareRequest {
        run_id: run_id.to_owned(),
        plan_toml: resolve::to_toml(&point.plan),
        point_id: point.id,
        addresses: addresses.clone(),
        ..wire::PrepareRequest::default()
    };
    move |node: &str| wire::PrepareRequest { node: node.to_owned(), ..of_all.clone() }
}

/// Returns the parts of a point that agents check. Points that differ only in other parts (rates, queues, times) need one request.
fn checked_parts(point: &Point, addresses: &BTreeMap<String, String>) -> String {
    let ip = |(node, text): (&String, &String)| Some((node.clone(), text.parse::<IpAddr>().ok()?));
    let addresses = addresses.iter().filter_map(ip).collect();
    let context = TrialContext { addresses, ..TrialContext::default() };
    let nodes = point.plan.plan().nodes.keys();
    let parts = nodes.map(|node| {
        let task = schedule::task_for(&point.plan, node, &context);
        let flows = task.clients.iter().chain(&task.servers).filter(|flow| flow.start < flow.stop);
        let flows = flows
            .map(|flow| (&flow.group, flow.plan.tool(), &flow.plan.cc, flow.from_ip, flow.to_ip));
        let links = task.links.iter().map(|link| {
            (&link.config.name, &link.egress, link.config.plan.allow_control_interface)
        });
        let captures = task.captures.iter().map(|capture| (&capture.name, &capture.egress));
        let sysctls = task.sysctls.iter().map(|(name, _)| name);
        let served = task.served.iter().map(|probe| &probe.plan.cc);
        format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {}",
            flows.collect::<Vec<_>>(),
            links.collect::<Vec<_>>(),
            captures.collect::<Vec<_>>(),
            sysctls.collect::<Vec<_>>(),
            served.collect::<Vec<_>>(),
            task.cc,
            task.kernel_release,
            task.keep_offloads
        )
    });
    parts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{check, parse};

    use super::*;

    #[test]
    fn points_are_asked_about_by_what_agents_look_at() {
        let text = r#"
            name = "two-factors"
            [nodes]
            one = {}
            two = {}
            [wires]
            w = ["one", "two"]
            [links.l]
            node = "one"
            toward = "two"
            rate = "10mbit"
            queue = { kind = "pfifo", limit = "40p" }
            [flows.f]
            from = "one"
            to = "two"
            [[phases]]
            name = "only"
            length = "1s"
            flows = ["f"]
            [matrix.rate]
            slow = { "links.l.rate" = "10mbit" }
            fast = { "links.l.rate" = "20mbit" }
            [matrix.cc]
            cubic = { "flows.f.cc" = "cubic" }
            reno = { "flows.f.cc" = "reno" }
        "#;
        let (plan, _) = check::check(parse::parse(text).unwrap()).unwrap();
        let points = plan.points();
        assert_eq!(points.len(), 4);
        let addresses = BTreeMap::new();
        let parts: BTreeSet<String> =
            points.iter().map(|point| checked_parts(point, &addresses)).collect();
        assert_eq!(parts.len(), 2, "by the congestion control, not by the rate: {parts:#?}");
    }
}
