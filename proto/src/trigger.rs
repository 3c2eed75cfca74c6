//! Changes of a link that a state of a flow's congestion control triggers: a state machine on its owner's clock, in
//! nanoseconds.

use std::collections::BTreeSet;

use crate::resolve::{LinkConfig, TimedChange, TriggeredChange};
use crate::units::{Micros, Ppm, Rate};

/// The values of a link that changes set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkValues {
    rate: Option<Rate>,
    delay: Micros,
    loss: Ppm,
}

impl LinkValues {
    /// Those that a link begins with.
    pub fn of(config: &LinkConfig) -> Self {
        Self {
            rate: config.plan.rate,
            delay: config.plan.delay.unwrap_or_default(),
            loss: config.plan.loss.unwrap_or_default(),
        }
    }

    /// Takes over what a change has set.
    pub fn apply(&mut self, change: &TimedChange) {
        self.rate = change.rate.or(self.rate);
        self.delay = change.delay.unwrap_or(self.delay);
        self.loss = change.loss.unwrap_or(self.loss);
    }

    /// The change that sets these values again after `change`.
    fn restored_after(&self, change: &TimedChange) -> TimedChange {
        TimedChange {
            at: change.at,
            rate: change.rate.and(self.rate),
            delay: change.delay.map(|_| self.delay),
            loss: change.loss.map(|_| self.loss),
            queue: None,
            source: format!("{} ends", change.source),
        }
    }
}

/// A change that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// When it was due.
    pub due_ns: u64,
    /// What to set.
    pub change: TimedChange,
    /// For people: what triggered it; `None`: it sets the former values again.
    pub reason: Option<String>,
}

/// A triggered change.
#[derive(Debug, Clone)]
pub struct Trigger {
    task: TriggeredChange,
    /// Flows that are in the state.
    inside: BTreeSet<String>,
    /// When the change is due, and the flow that triggered it.
    due: Option<(u64, String)>,
    /// When the former values are due, and these.
    end: Option<(u64, TimedChange)>,
    /// A flow has entered the state.
    entered: bool,
    /// The change has been made.
    fired: bool,
}

impl Trigger {
    /// Before any flow has a state.
    pub fn new(task: TriggeredChange) -> Self {
        let inside = BTreeSet::new();
        Self { task, inside, due: None, end: None, entered: false, fired: false }
    }

    /// Whether it depends on a variable of a flow group's congestion control.
    pub fn watches(&self, group: &str, variable: &str) -> bool {
        self.task.flow == group && self.task.state.variable == variable
    }

    /// The flow group.
    pub fn group(&self) -> &str {
        &self.task.flow
    }

    /// The variable of a flow that it watches has this value at `at_ns`.
    pub fn observe(&mut self, at_ns: u64, flow_id: &str, value: u32) {
        if value != self.task.state.number {
            self.inside.remove(flow_id);
            return;
        }
        if self.inside.contains(flow_id) {
            return;
        }
        self.inside.insert(flow_id.to_owned());
        let is_busy = self.due.is_some() || self.end.is_some();
        if is_busy || (self.task.once && self.entered) {
            return;
        }
        self.entered = true;
        self.due = Some((at_ns.saturating_add(self.task.after.nanos()), flow_id.to_owned()));
    }

    /// When [`Self::take`] has a change next; `u64::MAX`: not known yet.
    pub fn due_ns(&self) -> u64 {
        let due_ns = self.due.as_ref().map_or(u64::MAX, |(due_ns, _)| *due_ns);
        due_ns.min(self.end.as_ref().map_or(u64::MAX, |(end_ns, _)| *end_ns))
    }

    /// The next change that is due by `now_ns`. `values`: the link's until then.
    pub fn take(&mut self, now_ns: u64, values: &LinkValues) -> Option<Step> {
        if let Some((due_ns, flow_id)) = self.due.take_if(|(due_ns, _)| *due_ns <= now_ns) {
            self.fired = true;
            let change = self.task.change.clone();
            self.end = self.task.duration.map(|duration| {
                (now_ns.saturating_add(duration.nanos()), values.restored_after(&change))
            });
            let state = self.task.state.name;
            let reason = Some(format!("{}: {flow_id} is in {state}", change.source));
            return Some(Step { due_ns, change, reason });
        }
        let (due_ns, change) = self.end.take_if(|(end_ns, _)| *end_ns <= now_ns)?;
        Some(Step { due_ns, change, reason: None })
    }

    /// For people: why the change was never made; `None`: it was.
    pub fn missing(&self) -> Option<String> {
        let (source, state, group) =
            (&self.task.change.source, self.task.state.name, &self.task.flow);
        match (self.fired, self.entered) {
            (true, _) => None,
            (false, true) => {
                Some(format!("{source} was not made: the trial ended before it was due"))
            }
            (false, false) => {
                Some(format!("{source} was not made: no flow of `{group}` was seen in {state}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::NamedState;

    const MS: u64 = 1_000_000;
    const DRAIN: u32 = 1;

    fn mbit(mbit: u64) -> Rate {
        Rate::from_bits_per_sec(mbit * 1_000_000)
    }

    fn trigger(after_ms: u64, duration_ms: Option<u64>, once: bool) -> Trigger {
        Trigger::new(TriggeredChange {
            flow: "one".to_owned(),
            state: NamedState { variable: "mode", number: DRAIN, name: "DRAIN" },
            after: Micros::from_millis(after_ms),
            duration: duration_ms.map(Micros::from_millis),
            once,
            change: TimedChange {
                at: Micros::default(),
                rate: Some(mbit(9)),
                delay: None,
                loss: None,
                queue: None,
                source: "change 1".to_owned(),
            },
        })
    }

    /// A link of 10 Mbit/s.
    fn values() -> LinkValues {
        LinkValues { rate: Some(mbit(10)), ..LinkValues::default() }
    }

    #[test]
    fn a_change_follows_the_first_entry_into_the_state() {
        let mut trigger = trigger(5, None, true);
        assert!(trigger.watches("one", "mode") && !trigger.watches("one", "bw_kbps"));
        assert!(!trigger.watches("two", "mode"));
        trigger.observe(MS, "one/0", 0);
        assert_eq!(trigger.due_ns(), u64::MAX);
        trigger.observe(2 * MS, "one/0", DRAIN);
        trigger.observe(3 * MS, "one/0", DRAIN);
        assert_eq!(trigger.due_ns(), 7 * MS);
        assert_eq!(trigger.take(7 * MS - 1, &values()), None);
        assert!(trigger.missing().unwrap().contains("ended before it was due"));
        let step = trigger.take(8 * MS, &values()).unwrap();
        assert_eq!((step.due_ns, step.change.rate), (7 * MS, Some(mbit(9))));
        assert_eq!(step.reason.as_deref(), Some("change 1: one/0 is in DRAIN"));
        assert_eq!((trigger.due_ns(), trigger.missing()), (u64::MAX, None));
        trigger.observe(9 * MS, "one/0", 2);
        trigger.observe(10 * MS, "one/0", DRAIN);
        assert_eq!(trigger.due_ns(), u64::MAX, "only once");
    }

    #[test]
    fn a_change_for_a_time_restores_the_values_before_it() {
        let mut trigger = trigger(0, Some(20), false);
        trigger.observe(MS, "one/1", DRAIN);
        let mut values = values();
        let step = trigger.take(2 * MS, &values).unwrap();
        values.apply(&step.change);
        assert_eq!(values.rate, Some(mbit(9)));
        // Another flow enters meanwhile, and the first again afterwards.
        trigger.observe(3 * MS, "one/0", DRAIN);
        trigger.observe(4 * MS, "one/1", 2);
        assert_eq!(trigger.due_ns(), 22 * MS, "from the change on");
        let step = trigger.take(22 * MS, &values).unwrap();
        assert_eq!((step.change.rate, step.change.delay), (Some(mbit(10)), None));
        assert_eq!((step.change.source.as_str(), step.reason), ("change 1 ends", None));
        trigger.observe(30 * MS, "one/1", DRAIN);
        assert_eq!(trigger.due_ns(), 30 * MS);
    }

    #[test]
    fn a_state_that_no_flow_enters_is_reported() {
        let mut trigger = trigger(0, None, true);
        trigger.observe(MS, "one/0", 0);
        let missing = trigger.missing().unwrap();
        assert_eq!(missing, "change 1 was not made: no flow of `one` was seen in DRAIN");
    }
}
