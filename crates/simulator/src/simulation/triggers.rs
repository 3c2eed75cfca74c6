//! Changes of links that states of flows trigger. Unlike an agent, which reads a state once per round trip, this looks at it
//! whenever a sender has done something.

use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::trigger::Trigger;

use super::{Event, Simulation};
use crate::rows::Rows;

impl Simulation {
    /// Passes the state of a sender's congestion control to the changes that depend on it.
    pub(super) fn observe_state(&mut self, now_ns: u64, index: usize) {
        let group = &self.connections[index].task.group;
        let mut triggers = self.network.links.iter().flat_map(|link| &link.triggers);
        if !triggers.any(|trigger| trigger.group() == group) {
            return;
        }
        let Some(sender) = self.connections[index].sender() else { return };
        let stats = sender.observed_state(now_ns);
        let connection = &self.connections[index];
        for (number, link) in self.network.links.iter_mut().enumerate() {
            for trigger in &mut link.triggers {
                let watches = |name| trigger.watches(&connection.task.group, name);
                let Some(stat) = stats.iter().find(|stat| watches(stat.name)) else { continue };
                let before_ns = trigger.due_ns();
                trigger.observe(now_ns, &connection.id, stat.value);
                if trigger.due_ns() < before_ns {
                    self.events.add(trigger.due_ns(), Event::Trigger(number));
                }
            }
        }
    }

    /// Makes the changes of a link that are due.
    pub(super) fn make_triggered_changes(
        &mut self,
        now_ns: u64,
        index: usize,
        rows: &mut Rows<'_>,
    ) {
        for number in 0..self.network.links[index].triggers.len() {
            let link = &mut self.network.links[index];
            let Some(step) = link.triggers[number].take(now_ns, &link.values) else { continue };
            let next_ns = link.triggers[number].due_ns();
            if let Some(reason) = &step.reason {
                let kind = Kind::ChangeTriggered(NoData {});
                rows.event(now_ns, &link.node, kind, &link.name, reason);
            }
            self.change_link(now_ns, index, &step.change, rows);
            if next_ns < u64::MAX {
                self.events.add(next_ns.max(now_ns), Event::Trigger(index));
            }
        }
    }

    /// Reports changes that no state has triggered.
    pub(super) fn report_missing_changes(&self, rows: &mut Rows<'_>) {
        for link in &self.network.links {
            for missing in link.triggers.iter().filter_map(Trigger::missing) {
                let kind = Kind::ChangeNotTriggered(NoData {});
                rows.event(self.end_ns, &link.node, kind, &link.name, &missing);
            }
        }
    }
}
