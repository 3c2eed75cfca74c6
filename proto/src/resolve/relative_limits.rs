//! The limits of queues that depend on a rate or a round-trip time.

use crate::plan::parse::set::join_key;
use crate::plan::{Plan, Queue};
use crate::topology::Topology;
use crate::units::{Limit, Micros, Rate};

use super::{base_rtts_in, drain_rate, normalize, resolve_queue};

/// A key, its limit, and the limit's value in bytes or packets.
type RelativeLimit = (String, Limit, Limit);

/// The limits of a point's queues that depend on a rate or a round-trip time, with those of default queues and those that changes
/// set: the key, the limit, and its value in bytes or packets.
pub fn relative_limits(plan: &Plan) -> Vec<RelativeLimit> {
    let (normalized, topology) = (normalize(plan), Topology::build(plan));
    let rtts = base_rtts_in(&normalized, &topology);
    let mut found = Vec::new();
    for (name, link) in &normalized.links {
        let Some(rate) = drain_rate(link) else { continue };
        let rtt = rtts.get(name.as_str()).copied().unwrap_or_default();
        if let Some(queue) = &link.queue {
            for (key, limit, amount) in of_queue(queue, (rate, rtt)) {
                found.push((join_key(&["links", name, "queue", key]), limit, amount));
            }
            found.extend(of_changes(&normalized, (name.as_str(), queue), (rate, rtt)));
        }
        for (class_name, class) in &link.classes {
            let Some(queue) = &class.queue else { continue };
            for (key, limit, amount) in of_queue(queue, (class.rate, rtt)) {
                let path = ["links", name, "classes", class_name, "queue", key];
                found.push((join_key(&path), limit, amount));
            }
        }
    }
    found
}

/// The relative limits of a queue, with their keys.
fn of_queue(queue: &Queue, (rate, rtt): (Rate, Micros)) -> Vec<(&'static str, Limit, Limit)> {
    let resolved = resolve_queue(Some(queue), Some(rate), rtt).limits();
    let pairs = queue.limits().into_iter().zip(resolved);
    let found = pairs.map(|((key, limit, _), (_, amount, _))| (key, limit, amount));
    found.filter(|(_, limit, _)| limit.is_relative()).collect()
}

/// The relative limits that changes give to a link's own queue.
fn of_changes(
    plan: &Plan,
    (link, queue): (&str, &Queue),
    rate_and_rtt: (Rate, Micros),
) -> Vec<RelativeLimit> {
    let prefix = format!("links.{link}.queue.");
    let mut found = Vec::new();
    for (index, change) in plan.changes.iter().enumerate() {
        let number = index.to_string();
        for (whole, value) in &change.set {
            let Some(key) = whole.strip_prefix(&prefix) else { continue };
            let Ok(changed) = queue.with(key, value) else { continue };
            let mut limits = of_queue(&changed, rate_and_rtt).into_iter();
            if let Some((_, limit, amount)) = limits.find(|(name, ..)| *name == key) {
                found.push((join_key(&["changes", &number, "set", whole]), limit, amount));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_queues_and_changes_are_listed() {
        let text = r#"
            name = "t"
            [nodes]
            a = {}
            b = {}
            [wires]
            w = ["a", "b"]
            [links.l]
            node = "a"
            toward = "b"
            rate = "100mbit"
            delay = "10ms"
            queue = { kind = "pie", limit = "1bdp" }
            classes.c = { rate = "10mbit", match = { dscp = 46 } }
            [flows.f]
            from = "a"
            to = "b"
            [[phases]]
            name = "p"
            length = "9s"
            flows = ["f"]
            [[changes]]
            at = "1s"
            set = { "links.l.queue.target" = "5ms", "links.l.queue.limit" = "40p" }
            [[changes]]
            at = "2s"
            set = { "links.l.queue.limit" = "2bdp" }
            "#;
        let plan = crate::plan::parse::parse(text).unwrap_or_else(|e| panic!("{e:?}"));
        let listed = relative_limits(&plan).into_iter();
        let listed: Vec<String> =
            listed.map(|(key, limit, amount)| format!("{key} = {limit} is {amount}")).collect();
        let expected = [
            "links.l.queue.limit = 1bdp is 83p",
            r#"changes.1.set."links.l.queue.limit" = 2bdp is 166p"#,
            "links.l.classes.c.queue.limit = 1.5bdp is 18750B",
        ];
        assert_eq!(listed, expected);
    }
}
