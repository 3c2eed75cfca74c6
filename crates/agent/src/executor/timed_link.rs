//! A link of a trial, with the plan's changes to it.

use ccbench_proto::resolve::TimedChange;
use ccbench_proto::schedule::LinkTask;
use ccbench_proto::trigger::LinkChanges;
use ccbench_proto::wire;
use ccbench_shaper::{Link, ShaperError};

/// A link and its changes.
pub struct TimedLink {
    /// The link.
    pub link: Box<dyn Link>,
    /// The interface.
    pub dev: String,
    /// The changes at given times, sorted by time.
    pub changes: Vec<TimedChange>,
    /// The changes that flow states trigger.
    pub triggered: LinkChanges,
}

impl TimedLink {
    /// Wraps a link that is in place, before its trial.
    pub fn new(link: Box<dyn Link>, dev: String, task: &LinkTask) -> Self {
        Self {
            link,
            dev,
            changes: task.changes.clone(),
            triggered: LinkChanges::new(&task.config, &task.triggered),
        }
    }

    /// Wraps a link that changes no more.
    pub fn unchanging(link: Box<dyn Link>) -> Self {
        let dev = link.state().dev;
        Self { link, dev, changes: Vec::new(), triggered: LinkChanges::default() }
    }

    /// Applies everything that the change sets, and stops at the first error.
    pub fn apply(&mut self, change: &TimedChange) -> Result<(), ShaperError> {
        if let Some(rate) = change.rate {
            self.link.set_rate(rate)?;
        }
        if let Some(delay) = change.delay {
            self.link.set_delay(delay)?;
        }
        if let Some(loss) = change.loss {
            self.link.set_loss(loss)?;
        }
        change.queue.map_or(Ok(()), |number| self.link.set_queue(number))
    }

    /// Passes on a variable of a flow's congestion control.
    pub fn observe(&mut self, row: &wire::CcState) {
        let flow = (row.group.as_str(), row.flow_id.as_str());
        self.triggered.observe(row.at_ns, flow, (row.variable.as_str(), row.value as u32));
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::cc::NamedState;
    use ccbench_proto::plan::{self, Queue};
    use ccbench_proto::resolve::{Egress, LinkConfig, TriggeredChange};
    use ccbench_proto::units::{Limit, Micros, Packets, Rate};

    use super::*;

    struct FakeLink;

    impl Link for FakeLink {
        fn state(&self) -> wire::LinkState {
            wire::LinkState::default()
        }
        fn set_rate(&mut self, _: Rate) -> Result<(), ShaperError> {
            Ok(())
        }
        fn counters(&mut self, _: u64, _: &mut Vec<wire::QdiscSample>) -> Result<(), ShaperError> {
            Ok(())
        }
        fn remove(&mut self) -> Result<(), ShaperError> {
            Ok(())
        }
    }

    fn mbit(mbit: u64) -> Rate {
        Rate::from_bits_per_sec(mbit * 1_000_000)
    }

    /// A link of 10 Mbit/s that drops to 9 Mbit/s for 2 ms when a flow of `one` is in DRAIN.
    fn task() -> LinkTask {
        let plan = plan::Link { rate: Some(mbit(10)), ..plan::Link::default() };
        let queue = Queue::pfifo(Limit::Packets(Packets::new(100)));
        let change = TimedChange {
            at: Micros::default(),
            rate: Some(mbit(9)),
            delay: None,
            loss: None,
            queue: None,
            source: "change 1".to_owned(),
        };
        LinkTask {
            config: LinkConfig::new("l", plan, queue),
            egress: Egress::Dev("eth0".to_owned()),
            changes: Vec::new(),
            triggered: vec![TriggeredChange {
                flow: "one".to_owned(),
                state: NamedState { variable: "mode", number: 1, name: "DRAIN" },
                after: Micros::default(),
                duration: Some(Micros::from_millis(2)),
                once: true,
                change,
            }],
            flows: None,
        }
    }

    #[test]
    fn rows_of_cc_state_trigger_a_change_and_its_end() {
        let mut timed = TimedLink::new(Box::new(FakeLink), "eth0".to_owned(), &task());
        let row = |group: &str, variable: &str, value: f64| wire::CcState {
            at_ns: 5_000_000,
            flow_id: format!("{group}/0"),
            group: group.to_owned(),
            variable: variable.to_owned(),
            value,
            ..wire::CcState::default()
        };
        timed.observe(&row("two", "mode", 1.0));
        timed.observe(&row("one", "full_pipe", 1.0));
        timed.observe(&row("one", "mode", 0.0));
        assert_eq!(timed.triggered.due_ns(), u64::MAX);
        timed.observe(&row("one", "mode", 1.0));
        assert_eq!(timed.triggered.due_ns(), 5_000_000);
        // The ring is read after the state began.
        let step = timed.triggered.take(8_000_000).unwrap();
        assert_eq!((step.due_ns, step.change.rate), (5_000_000, Some(mbit(9))));
        timed.apply(&step.change).unwrap();
        assert_eq!(timed.triggered.take(8_000_000), None);
        let step = timed.triggered.take(10_000_000).unwrap();
        assert_eq!((step.due_ns, step.change.rate), (10_000_000, Some(mbit(10))));
    }
}
