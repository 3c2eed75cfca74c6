//! How links change during a trial.

use crate::cc;
use crate::plan::{Change, Link, Plan, Queue, Setting};
use crate::resolve::{TimedChange, TriggeredChange, drain_rate, resolve_queue};
use crate::units::Micros;

/// The plan's changes of a link at given times, sorted by time, and the queues that the link gets. Everything that one entry of the
/// plan sets at a link is one change. `rtt` is the link's base round-trip time, for queue limits.
pub(super) fn timed(
    plan: &Plan,
    name: &str,
    link: &Link,
    rtt: Micros,
) -> (Vec<TimedChange>, Vec<Queue>) {
    let entries = plan.changes.iter().zip(1..);
    let mut entries: Vec<(Micros, &Change, u32)> =
        entries.filter_map(|(entry, number)| Some((entry.at?, entry, number))).collect();
    entries.sort_by_key(|(at, ..)| *at);
    let (mut changes, mut queues) = (Vec::new(), Vec::new());
    let mut queue = link.queue.clone();
    for (at, entry, number) in entries {
        let mut set = change(entry, number, name, at);
        if let Some(changed) = changed_queue(queue.as_ref(), entry, name) {
            set.queue = Some(queues.len());
            queues.push(resolve_queue(Some(&changed), drain_rate(link), rtt));
            queue = Some(changed);
        }
        if sets_anything(&set) {
            changes.push(set);
        }
    }
    (changes, queues)
}

/// The link's queue after an entry of the plan; `None`: the entry does not change it.
fn changed_queue(queue: Option<&Queue>, entry: &Change, link: &str) -> Option<Queue> {
    let prefix = format!("links.{link}.queue.");
    let keys =
        entry.set.iter().filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?, value)));
    let mut changed = None;
    for (key, value) in keys {
        changed = changed.as_ref().or(queue)?.with(key, value).ok();
    }
    changed
}

/// The changes of a link that states of flows trigger. Adds the queues that the link gets, and behind them its initial queue.
pub(super) fn triggered(
    plan: &Plan,
    (name, link): (&str, &Link),
    rtt: Micros,
    queues: &mut Vec<Queue>,
) -> Vec<TriggeredChange> {
    let resolved = |queue: Option<&Queue>| resolve_queue(queue, drain_rate(link), rtt);
    let of_entry = |(entry, number): (&Change, u32)| {
        let when = entry.when.as_ref()?;
        let instance = plan.cc.get(plan.flows.get(&when.flow)?.cc.as_ref()?)?;
        let mut states = cc::states(instance).into_iter();
        let state = states.find(|state| state.name == when.cc_state)?;
        let mut set = change(entry, number, name, Micros::default());
        if let Some(changed) = changed_queue(link.queue.as_ref(), entry, name) {
            set.queue = Some(queues.len());
            queues.push(resolved(Some(&changed)));
        }
        Some(TriggeredChange {
            flow: when.flow.clone(),
            state,
            after: when.after.unwrap_or_default(),
            duration: when.duration,
            once: when.once,
            change: Some(set).filter(sets_anything)?,
        })
    };
    let found: Vec<TriggeredChange> = plan.changes.iter().zip(1..).filter_map(of_entry).collect();
    if found.iter().any(|triggered| triggered.change.queue.is_some()) {
        queues.push(resolved(link.queue.as_ref()));
    }
    found
}

fn sets_anything(change: &TimedChange) -> bool {
    let TimedChange { rate, delay, loss, queue, .. } = change;
    rate.is_some() || delay.is_some() || loss.is_some() || queue.is_some()
}

/// The settings of a link in an entry of the plan, except the queue's.
fn change(entry: &Change, number: u32, link: &str, at: Micros) -> TimedChange {
    let of = |key| entry.set.get(&format!("links.{link}.{key}"));
    TimedChange {
        at,
        rate: of("rate").and_then(|value| match value {
            Setting::Rate(rate) => Some(*rate),
            _ => None,
        }),
        delay: of("delay").and_then(|value| match value {
            Setting::Delay(delay) => Some(*delay),
            _ => None,
        }),
        loss: of("loss").and_then(|value| match value {
            Setting::Loss(loss) => Some(*loss),
            _ => None,
        }),
        queue: None,
        source: format!("change {number}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Codel, Queue, check, parse};
    use crate::schedule::{LinkTask, TrialContext, task_for};
    use crate::units::{Limit, Micros, Packets, Rate};

    fn link(changes: &str) -> LinkTask {
        let text = format!(
            r#"
            name = "t"
            [nodes]
            a = {{}}
            b = {{}}
            [wires]
            path = ["a", "b"]
            [links.l]
            node = "a"
            toward = "b"
            rate = "100mbit"
            delay = "10ms"
            queue = {{ kind = "codel", limit = "1000p", ecn = false }}
            [flows.f]
            from = "a"
            to = "b"
            cc = "probing"
            [[phases]]
            name = "p"
            length = "9s"
            flows = ["f"]
            {changes}
            [cc.probing]
            algorithm = "bbr3"
            "#
        );
        let plan = parse::parse(&text).unwrap_or_else(|e| panic!("{e:?}"));
        let (plan, _) = check::check(plan).unwrap_or_else(|e| panic!("{e:?}"));
        task_for(&plan, "a", &TrialContext::default()).links.remove(0)
    }

    #[test]
    fn changes_of_a_queue_add_up_in_the_order_of_time() {
        let task = link(
            r#"
            [[changes]]
            at = "3s"
            set = { "links.l.queue.target" = "7ms", "links.l.rate" = "50mbit" }
            [[changes]]
            at = "2s"
            set = { "links.l.queue.limit" = "2bdp", "links.l.queue.ecn" = true }
            "#,
        );
        let second = Codel {
            // 250 000 bytes.
            limit: Some(Limit::Packets(Packets::new(166))),
            ecn: Some(true),
            ..Codel::default()
        };
        let third = Codel { target: Some(Micros::from_millis(7)), ..second.clone() };
        let queues = [Queue::Codel(second), Queue::Codel(third)];
        assert_eq!(task.config.changed_queues, queues);
        let changes: Vec<_> =
            task.changes.iter().map(|c| (c.source.as_str(), c.queue, c.rate)).collect();
        let rate = Some(Rate::from_bits_per_sec(50_000_000));
        assert_eq!(changes, [("change 2", Some(0), None), ("change 1", Some(1), rate)]);
    }

    #[test]
    fn queues_of_states_are_behind_those_of_times_and_the_first_one_is_last() {
        let task = link(
            r#"
            [[changes]]
            when = { flow = "f", cc_state = "DRAIN", for = "1s" }
            set = { "links.l.queue.limit" = "20p" }
            [[changes]]
            at = "2s"
            set = { "links.l.queue.limit" = "2bdp" }
            "#,
        );
        let limits = task.config.changed_queues.iter().map(|queue| match queue {
            Queue::Codel(codel) => codel.limit,
            other => panic!("{other:?}"),
        });
        let packets = |packets| Some(Limit::Packets(Packets::new(packets)));
        assert_eq!(limits.collect::<Vec<_>>(), [166, 20, 1000].map(packets));
        assert_eq!(task.changes[0].queue, Some(0));
        let [triggered] = &task.triggered[..] else { panic!("{:?}", task.triggered) };
        assert_eq!((triggered.change.queue, triggered.change.rate), (Some(1), None));
    }
}
