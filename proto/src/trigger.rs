//! Changes of a link during a trial, at given times or triggered by the state of a flow's congestion control. It is a state machine
//! on its owner's clock, in nanoseconds, which agents and the simulator share.
//!
//! A triggered change with a duration is temporary; every other change is lasting. A key of the link has the value of the latest
//! temporary change in force that sets the key, or otherwise its lasting value. A change that ends therefore never restores the
//! value of a change that has ended before, and a lasting change waits for the temporary ones.

use std::collections::BTreeSet;

use crate::resolve::{LinkConfig, TimedChange, TriggeredChange};
use crate::units::{Micros, Ppm, Rate};

/// The keys of a link that a state can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Values {
    rate: Option<Rate>,
    delay: Option<Micros>,
    loss: Option<Ppm>,
    /// All parameters of its queue: an index of [`LinkConfig::changed_queues`]. All changes set the same parameters.
    queue: Option<usize>,
}

impl Values {
    /// The initial values of a link. `queue` is set if states of flows change it.
    fn of_link(config: &LinkConfig, queue: Option<usize>) -> Self {
        Self {
            queue,
            rate: config.plan.rate,
            delay: Some(config.plan.delay.unwrap_or_default()),
            loss: Some(config.plan.loss.unwrap_or_default()),
        }
    }

    /// The values that a change sets.
    fn of_change(change: &TimedChange) -> Self {
        let TimedChange { rate, delay, loss, queue, .. } = *change;
        Self { rate, delay, loss, queue }
    }

    /// As [`Option::or`], for each key.
    fn or(self, other: Self) -> Self {
        Self {
            rate: self.rate.or(other.rate),
            delay: self.delay.or(other.delay),
            loss: self.loss.or(other.loss),
            queue: self.queue.or(other.queue),
        }
    }

    /// The change that sets these values for its own keys, except those that are `held`.
    fn set_by(self, change: TimedChange, held: Self) -> TimedChange {
        TimedChange {
            rate: change.rate.filter(|_| held.rate.is_none()).and(self.rate),
            delay: change.delay.filter(|_| held.delay.is_none()).and(self.delay),
            loss: change.loss.filter(|_| held.loss.is_none()).and(self.loss),
            queue: change.queue.filter(|_| held.queue.is_none()).and(self.queue),
            ..change
        }
    }
}

/// A change that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// When it was due.
    pub due_ns: u64,
    /// What to set. Keys that another change holds are absent.
    pub change: TimedChange,
    /// For people: the trigger; `None` if a temporary change ends.
    pub reason: Option<String>,
}

/// The changes that states of flows trigger at a link, and the current values of its keys.
#[derive(Debug, Clone, Default)]
pub struct LinkChanges {
    triggers: Vec<Trigger>,
    lasting: Values,
    /// The temporary changes that are in force, in the order of their starts: the index of the trigger, and what it sets.
    temporary: Vec<(usize, Values)>,
}

impl LinkChanges {
    /// The initial state, before any flow has a state.
    pub fn new(config: &LinkConfig, triggered: &[TriggeredChange]) -> Self {
        let changes_queue = triggered.iter().any(|triggered| triggered.change.queue.is_some());
        let queue = config.changed_queues.len().checked_sub(1).filter(|_| changes_queue);
        Self {
            triggers: triggered.iter().cloned().map(Trigger::new).collect(),
            lasting: Values::of_link(config, queue),
            temporary: Vec::new(),
        }
    }

    /// Whether states of flows change the link.
    pub fn has_triggers(&self) -> bool {
        !self.triggers.is_empty()
    }

    /// Whether states of this flow group change the link.
    pub fn watches(&self, group: &str) -> bool {
        self.triggers.iter().any(|trigger| trigger.task.flow == group)
    }

    /// Records that a variable of a flow's congestion control has this value at `at_ns`.
    pub fn observe(
        &mut self,
        at_ns: u64,
        (group, flow_id): (&str, &str),
        (variable, value): (&str, u32),
    ) {
        for trigger in &mut self.triggers {
            if trigger.task.flow == group && trigger.task.state.variable == variable {
                trigger.observe(at_ns, flow_id, value);
            }
        }
    }

    /// When [`Self::take`] next has a change; `u64::MAX` if that is not known yet.
    pub fn due_ns(&self) -> u64 {
        self.triggers.iter().map(Trigger::due_ns).min().unwrap_or(u64::MAX)
    }

    /// Takes the earliest change that is due by `now_ns`.
    pub fn take(&mut self, now_ns: u64) -> Option<Step> {
        let due_ns = self.due_ns();
        let index = self.triggers.iter().position(|trigger| trigger.due_ns() == due_ns)?;
        if due_ns > now_ns {
            return None;
        }
        let trigger = &mut self.triggers[index];
        let change = trigger.task.change.clone();
        let Some((_, flow_id)) = trigger.start.take() else {
            trigger.end_ns = None;
            return Some(Step { due_ns, change: self.end(index, change), reason: None });
        };
        trigger.fired = true;
        trigger.end_ns =
            trigger.task.duration.map(|duration| now_ns.saturating_add(duration.nanos()));
        let is_temporary = trigger.end_ns.is_some();
        let reason = format!("{}: {flow_id} is in {}", change.source, trigger.task.state.name);
        let change = if is_temporary {
            self.temporary.push((index, Values::of_change(&change)));
            change
        } else {
            self.make_lasting(change)
        };
        Some(Step { due_ns, change, reason: Some(reason) })
    }

    /// Records a lasting change of the plan. Returns the values that it sets now; keys that temporary changes hold get theirs
    /// later.
    pub fn make_lasting(&mut self, change: TimedChange) -> TimedChange {
        self.lasting = Values::of_change(&change).or(self.lasting);
        self.lasting.set_by(change, together(self.temporary.iter().rev()))
    }

    /// Ends the temporary change of a trigger. Returns the values that its keys have then.
    fn end(&mut self, index: usize, change: TimedChange) -> TimedChange {
        let held = together(self.temporary.iter().rev().take_while(|(of, _)| *of != index));
        self.temporary.retain(|(of, _)| *of != index);
        let values = together(self.temporary.iter().rev()).or(self.lasting);
        let source = format!("{} ends", change.source);
        TimedChange { source, ..values.set_by(change, held) }
    }

    /// Why changes were never made, for people.
    pub fn missing(&self) -> impl Iterator<Item = String> {
        self.triggers.iter().filter_map(Trigger::missing)
    }
}

/// The values that temporary changes set together.
fn together<'v>(latest_first: impl Iterator<Item = &'v (usize, Values)>) -> Values {
    latest_first.fold(Values::default(), |all, (_, values)| all.or(*values))
}

/// A triggered change.
#[derive(Debug, Clone)]
struct Trigger {
    task: TriggeredChange,
    /// Flows that are in the state.
    inside: BTreeSet<String>,
    /// When the change is due, and the flow that triggered it.
    start: Option<(u64, String)>,
    /// When the change that is in force ends.
    end_ns: Option<u64>,
    /// Whether a flow has entered the state.
    entered: bool,
    /// Whether the change has been made.
    fired: bool,
}

impl Trigger {
    /// The initial state, before any flow has a state.
    fn new(task: TriggeredChange) -> Self {
        let inside = BTreeSet::new();
        Self { task, inside, start: None, end_ns: None, entered: false, fired: false }
    }

    /// Records that the variable that it watches has this value at `at_ns`.
    fn observe(&mut self, at_ns: u64, flow_id: &str, value: u32) {
        if value != self.task.state.number {
            self.inside.remove(flow_id);
            return;
        }
        if self.inside.contains(flow_id) {
            return;
        }
        self.inside.insert(flow_id.to_owned());
        let is_busy = self.start.is_some() || self.end_ns.is_some();
        if is_busy || (self.task.once && self.entered) {
            return;
        }
        self.entered = true;
        self.start = Some((at_ns.saturating_add(self.task.after.nanos()), flow_id.to_owned()));
    }

    /// When it next starts or ends; `u64::MAX` if that is not known yet.
    fn due_ns(&self) -> u64 {
        let start_ns = self.start.as_ref().map(|(start_ns, _)| *start_ns);
        start_ns.or(self.end_ns).unwrap_or(u64::MAX)
    }

    /// Why the change was never made, for people; `None` if it was.
    fn missing(&self) -> Option<String> {
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
    use crate::plan::{Link, Queue};
    use crate::units::{Limit, Packets};

    const MS: u64 = 1_000_000;
    const DRAIN: u32 = 1;

    fn mbit(mbit: u64) -> Rate {
        Rate::from_bits_per_sec(mbit * 1_000_000)
    }

    /// A change of the rate.
    fn rate(mbit: u64, source: &str) -> TimedChange {
        TimedChange {
            at: Micros::default(),
            rate: Some(self::mbit(mbit)),
            delay: None,
            loss: None,
            queue: None,
            source: source.to_owned(),
        }
    }

    /// This change when a flow is in DRAIN.
    fn when(after_ms: u64, duration_ms: Option<u64>, change: TimedChange) -> TriggeredChange {
        TriggeredChange {
            flow: "one".to_owned(),
            state: NamedState { variable: "mode", number: DRAIN, name: "DRAIN" },
            after: Micros::from_millis(after_ms),
            duration: duration_ms.map(Micros::from_millis),
            once: true,
            change,
        }
    }

    /// A link of 10 Mbit/s and 20 ms with these changes.
    fn link(triggered: &[TriggeredChange]) -> LinkChanges {
        let delay = Some(Micros::from_millis(20));
        let plan = Link { rate: Some(mbit(10)), delay, ..Link::default() };
        let queue = Queue::pfifo(Limit::Packets(Packets::new(100)));
        LinkChanges::new(&LinkConfig::new("l", plan, queue), triggered)
    }

    /// The mode of a flow of group `one`.
    fn enter(link: &mut LinkChanges, at_ms: u64, flow_id: &str, mode: u32) {
        link.observe(at_ms * MS, ("one", flow_id), ("mode", mode));
    }

    /// The changes until `end_ms`, each when it is due: the time in ms, the source and the rate.
    fn rates(link: &mut LinkChanges, end_ms: u64) -> Vec<(u64, String, Option<Rate>)> {
        let mut made = Vec::new();
        while link.due_ns() <= end_ms * MS {
            let step = link.take(link.due_ns()).unwrap();
            made.push((step.due_ns / MS, step.change.source, step.change.rate));
        }
        made
    }

    /// As the result of [`rates`].
    fn made(at_ms: u64, source: &str, mbit: Option<u64>) -> (u64, String, Option<Rate>) {
        (at_ms, source.to_owned(), mbit.map(self::mbit))
    }

    #[test]
    fn a_change_follows_the_first_entry_into_the_state() {
        let mut link = link(&[when(5, None, rate(9, "change 1"))]);
        assert!(link.has_triggers() && link.watches("one") && !link.watches("two"));
        link.observe(MS, ("two", "two/0"), ("mode", DRAIN));
        link.observe(MS, ("one", "one/0"), ("bw_kbps", DRAIN));
        enter(&mut link, 1, "one/0", 0);
        assert_eq!(link.due_ns(), u64::MAX);
        enter(&mut link, 2, "one/0", DRAIN);
        enter(&mut link, 3, "one/0", DRAIN);
        assert_eq!(link.due_ns(), 7 * MS);
        assert_eq!(link.take(7 * MS - 1), None);
        assert!(link.missing().all(|missing| missing.contains("ended before it was due")));
        assert_eq!(link.missing().count(), 1);
        let step = link.take(8 * MS).unwrap();
        assert_eq!((step.due_ns, step.change.rate), (7 * MS, Some(mbit(9))));
        assert_eq!(step.reason.as_deref(), Some("change 1: one/0 is in DRAIN"));
        assert_eq!((link.due_ns(), link.missing().count()), (u64::MAX, 0));
        enter(&mut link, 9, "one/0", 2);
        enter(&mut link, 10, "one/0", DRAIN);
        assert_eq!(link.due_ns(), u64::MAX, "only once");
    }

    #[test]
    fn a_change_for_a_time_restores_the_values_before_it() {
        let task = when(0, Some(20), rate(9, "change 1"));
        let mut link = link(&[TriggeredChange { once: false, ..task }]);
        enter(&mut link, 1, "one/1", DRAIN);
        assert_eq!(link.take(2 * MS).unwrap().change.rate, Some(mbit(9)));
        // Another flow enters meanwhile, and the first again afterwards.
        enter(&mut link, 3, "one/0", DRAIN);
        enter(&mut link, 4, "one/1", 2);
        assert_eq!(link.due_ns(), 22 * MS, "from the change on");
        let step = link.take(22 * MS).unwrap();
        assert_eq!((step.change.rate, step.change.delay), (Some(mbit(10)), None));
        assert_eq!((step.change.source.as_str(), step.reason), ("change 1 ends", None));
        enter(&mut link, 30, "one/1", DRAIN);
        assert_eq!(link.due_ns(), 30 * MS);
    }

    #[test]
    fn the_change_that_started_last_holds_until_it_ends() {
        let first = when(0, Some(20), rate(9, "change 1"));
        // The second outlasts the first.
        let mut link = self::link(&[first.clone(), when(10, Some(20), rate(8, "change 2"))]);
        enter(&mut link, 1, "one/0", DRAIN);
        let wanted = [
            made(1, "change 1", Some(9)),
            made(11, "change 2", Some(8)),
            made(21, "change 1 ends", None),
            made(31, "change 2 ends", Some(10)),
        ];
        assert_eq!(rates(&mut link, 100), wanted);
        // The second ends within the first.
        let mut link = self::link(&[first.clone(), when(5, Some(5), rate(8, "change 2"))]);
        enter(&mut link, 1, "one/0", DRAIN);
        let wanted = [
            made(1, "change 1", Some(9)),
            made(6, "change 2", Some(8)),
            made(11, "change 2 ends", Some(9)),
            made(21, "change 1 ends", Some(10)),
        ];
        assert_eq!(rates(&mut link, 100), wanted);
        // Each key on its own.
        let delay = Some(Micros::from_millis(50));
        let second = TimedChange { rate: None, delay, ..rate(8, "change 2") };
        let mut link = self::link(&[first, when(10, Some(20), second)]);
        enter(&mut link, 1, "one/0", DRAIN);
        let at_21 = made(21, "change 1 ends", Some(10));
        assert_eq!(rates(&mut link, 30).pop(), Some(at_21));
        let step = link.take(31 * MS).unwrap();
        assert_eq!((step.change.rate, step.change.delay), (None, Some(Micros::from_millis(20))));
    }

    #[test]
    fn a_lasting_change_waits_for_temporary_ones() {
        let lasting = when(5, None, rate(7, "change 2"));
        let mut link = self::link(&[when(0, Some(20), rate(9, "change 1")), lasting]);
        enter(&mut link, 1, "one/0", DRAIN);
        let first = [made(1, "change 1", Some(9)), made(6, "change 2", None)];
        assert_eq!(rates(&mut link, 10), first);
        let loss = Ppm::new(10);
        let set = link.make_lasting(TimedChange { loss, ..rate(6, "change 3") });
        assert_eq!((set.rate, set.loss), (None, loss));
        assert_eq!(rates(&mut link, 100), [made(21, "change 1 ends", Some(6))]);
        assert_eq!(link.make_lasting(rate(5, "change 4")).rate, Some(mbit(5)));
    }

    #[test]
    fn a_queue_returns_to_the_one_before() {
        let queue =
            |number, source| TimedChange { rate: None, queue: Some(number), ..rate(1, source) };
        let of = |limit| Queue::pfifo(Limit::Packets(Packets::new(limit)));
        let mut config = LinkConfig::new("l", Link::default(), of(100));
        // At a time, in a state, and the first one.
        config.changed_queues = [70, 20, 100].map(of).into();
        let mut link = LinkChanges::new(&config, &[when(0, Some(20), queue(1, "change 1"))]);
        enter(&mut link, 1, "one/0", DRAIN);
        assert_eq!(link.take(MS).unwrap().change.queue, Some(1));
        let again = link.clone();
        assert_eq!(link.take(21 * MS).unwrap().change.queue, Some(2));
        assert_eq!(link.make_lasting(queue(0, "change 2")).queue, Some(0));
        // A lasting change waits.
        let mut link = again;
        assert_eq!(link.make_lasting(queue(0, "change 2")).queue, None);
        assert_eq!(link.take(21 * MS).unwrap().change.queue, Some(0));
    }

    #[test]
    fn changes_that_are_read_late_are_made_in_the_order_of_their_times() {
        let late = when(10, Some(20), rate(9, "change 1"));
        let mut link = self::link(&[late, when(5, Some(50), rate(8, "change 2"))]);
        enter(&mut link, 1, "one/0", DRAIN);
        let sources = [(); 2].map(|()| link.take(15 * MS).unwrap().change.source);
        assert_eq!(sources, ["change 2", "change 1"]);
        let wanted = [made(35, "change 1 ends", Some(8)), made(65, "change 2 ends", Some(10))];
        assert_eq!(rates(&mut link, 100), wanted);
    }

    #[test]
    fn a_state_that_no_flow_enters_is_reported() {
        let mut link = link(&[when(0, None, rate(9, "change 1"))]);
        enter(&mut link, 1, "one/0", 0);
        let missing: Vec<String> = link.missing().collect();
        assert_eq!(missing, ["change 1 was not made: no flow of `one` was seen in DRAIN"]);
    }
}
