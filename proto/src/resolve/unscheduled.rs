//! Points at which not all flow groups run. A limit in bandwidth-delay products is computed from the plan with all groups:
//! otherwise points with and without a group would differ in their queues, too. Agents cannot compute it, because they get the plan
//! of one point.

use std::collections::BTreeMap;

use crate::plan::timeline::is_scheduled;
use crate::plan::{Change, Plan, Queue, Setting};
use crate::topology::Topology;
use crate::units::{Limit, Micros, Rate};

use super::{base_rtts_in, drain_rate, resolve_limit};

/// Removes the flow groups that do not run from a normalized plan that has been checked. Limits in bandwidth-delay products become
/// bytes or packets if a base round-trip time differs without these groups.
pub(crate) fn remove_unscheduled(normalized: &mut Plan) {
    if normalized.flows.iter().all(|(name, flow)| is_scheduled(normalized, name, flow)) {
        return;
    }
    // The topology does not depend on the groups.
    let topology = Topology::build(normalized);
    let with_all = rtts(normalized, &topology);
    let mut flows = std::mem::take(&mut normalized.flows);
    flows.retain(|name, flow| is_scheduled(normalized, name, flow));
    normalized.flows = flows;
    let left = rtts(normalized, &topology);
    for (name, rtt) in with_all.iter().filter(|(name, rtt)| left.get(*name) != Some(*rtt)) {
        fix_limits(normalized, name, *rtt);
    }
}

fn rtts(plan: &Plan, topology: &Topology) -> BTreeMap<String, Micros> {
    let rtts = base_rtts_in(plan, topology).into_iter();
    rtts.map(|(name, rtt)| (name.to_owned(), rtt)).collect()
}

/// Resolves the limits in bandwidth-delay products of a link's queues and of changes of its own queue.
fn fix_limits(normalized: &mut Plan, name: &str, rtt: Micros) {
    let Plan { links, changes, .. } = normalized;
    let Some(link) = links.get_mut(name) else { return };
    for class in link.classes.values_mut() {
        let rate = class.rate;
        class.queue.iter_mut().for_each(|queue| fix_queue(queue, rate, rtt));
    }
    let rate = drain_rate(link);
    let (Some(queue), Some(rate)) = (&mut link.queue, rate) else { return };
    for change in changes {
        fix_change(change, (name, &*queue), rate, rtt);
    }
    fix_queue(queue, rate, rtt);
}

fn fix_queue(queue: &mut Queue, rate: Rate, rtt: Micros) {
    for (_, limit, unit) in queue.limits_mut() {
        if matches!(limit, Limit::MilliBdp(_)) {
            *limit = resolve_limit((*limit, unit), rate, rtt);
        }
    }
}

fn fix_change(change: &mut Change, (link, queue): (&str, &Queue), rate: Rate, rtt: Micros) {
    let prefix = format!("links.{link}.queue.");
    for (whole, value) in &mut change.set {
        let Some(key) = whole.strip_prefix(&prefix) else { continue };
        let Ok(changed) = queue.with(key, value) else { continue };
        let limit = changed.limits().into_iter().find(|(name, ..)| *name == key);
        if let Some((_, limit @ Limit::MilliBdp(_), unit)) = limit {
            *value = Setting::Text(resolve_limit((limit, unit), rate, rtt).to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Queue;
    use crate::plan::check::{CheckedPlan, read};
    use crate::resolve::to_toml;
    use crate::schedule::{TrialContext, task_for};
    use crate::units::{Bytes, Limit, Packets};

    const PLAN: &str = r#"
name = "t"
repeat = 2
[nodes]
src = {}
left = {}
right = {}
near = {}
far = {}
[wires]
path = ["src", "left", "right", "near"]
other = ["right", "far"]
[links.bottleneck]
node = "left"
toward = "right"
rate = "10mbit"
[links.bottleneck.classes.urgent]
rate = "1mbit"
match = { dscp = 46 }
queue = { kind = "pfifo", limit = "1bdp" }
[links.near]
node = "right"
toward = "near"
rate = "100mbit"
delay = "20ms"
queue = { kind = "bfifo", limit = "1bdp" }
[links.far]
node = "right"
toward = "far"
delay = "200ms"
[flows.bulk]
from = "src"
to = "near"
[flows.web]
from = "src"
to = "far"
[[phases]]
name = "p"
length = "9s"
flows = ["bulk", "web"]
[[changes]]
at = "5s"
set = { "links.bottleneck.queue.limit" = "2bdp", "links.bottleneck.rate" = "20mbit" }
[matrix.load]
alone = { "phases.0.flows" = ["bulk"] }
beside = { "phases.0.flows" = ["bulk", "web"] }
"#;

    fn bytes(bytes: u64) -> Queue {
        Queue::bfifo(Limit::Bytes(Bytes::new(bytes)))
    }

    /// The queues of `bottleneck`: its own, that of the class, and that of the change.
    fn queues(plan: &CheckedPlan) -> [Queue; 3] {
        let mut links = task_for(plan, "left", &TrialContext::default()).links;
        let mut config = links.remove(0).config;
        [config.queue, config.classes.remove(0).queue, config.changed_queues.remove(0)]
    }

    #[test]
    fn queues_are_the_same_at_points_without_a_group() {
        let (plan, _) = read(PLAN, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
        // Of 200 ms, the longer round trip: 250 000 and 25 000 bytes are a BDP.
        let packets = Queue::pfifo(Limit::Packets(Packets::new(17)));
        let expected = [bytes(375_000), packets, bytes(500_000)];
        let groups: Vec<usize> =
            plan.points().iter().map(|point| point.plan.plan().flows.len()).collect();
        assert_eq!(groups, [1, 2]);
        for point in plan.points() {
            assert_eq!(queues(&point.plan), expected, "{:?}", point.factors);
            // As an agent reads it.
            let (of_agent, _) = read(&to_toml(&point.plan), &[]).unwrap();
            assert_eq!(queues(&of_agent), expected, "{:?}", point.factors);
        }
    }

    #[test]
    fn limits_stay_as_written_where_the_round_trip_is_that_of_a_group_that_runs() {
        let (plan, _) = read(PLAN, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
        for point in plan.points() {
            let queue = point.plan.plan().links["near"].queue.clone();
            assert_eq!(queue, Some(Queue::bfifo(Limit::MilliBdp(1000))), "{:?}", point.factors);
        }
    }
}
