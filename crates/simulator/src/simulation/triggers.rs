//! Changes of links that the states of flows trigger. An agent reads rows of states later; the simulator looks at the state whenever a
//! sender has done something.

use ccbench_proto::event::{Kind, NoData};

use super::{Event, Simulation};
use crate::rows::Rows;

impl Simulation {
    /// Passes the state of a sender's congestion control to the changes that depend on it.
    pub(super) fn observe_state(&mut self, now_ns: u64, index: usize) {
        let group = &self.connections[index].task.group;
        if !self.network.links.iter().any(|link| link.triggered.watches(group)) {
            return;
        }
        let Some(sender) = self.connections[index].sender() else { return };
        let stats = sender.observed_state(now_ns);
        let connection = &self.connections[index];
        let flow = (connection.task.group.as_str(), connection.id.as_str());
        for link in &mut self.network.links {
            for stat in &stats {
                link.triggered.observe(now_ns, flow, (stat.name, stat.value));
            }
        }
        for number in 0..self.network.links.len() {
            self.queue_triggered_changes(number);
        }
    }

    /// Queues the event for a link's next triggered change.
    fn queue_triggered_changes(&mut self, index: usize) {
        let link = &mut self.network.links[index];
        let due_ns = link.triggered.due_ns();
        if due_ns < link.trigger_queued_ns {
            link.trigger_queued_ns = due_ns;
            self.events.add(due_ns, Event::Trigger(index));
        }
    }

    /// Makes the changes of a link that are due.
    pub(super) fn make_triggered_changes(
        &mut self,
        now_ns: u64,
        index: usize,
        rows: &mut Rows<'_>,
    ) {
        // Stale: the event was queued again for another time.
        if self.network.links[index].trigger_queued_ns != now_ns {
            return;
        }
        self.network.links[index].trigger_queued_ns = u64::MAX;
        while let Some(step) = self.network.links[index].triggered.take(now_ns) {
            if let Some(reason) = &step.reason {
                let link = &self.network.links[index];
                let kind = Kind::ChangeTriggered(NoData {});
                rows.event(now_ns, &link.node, kind, &link.name, reason);
            }
            self.change_link(now_ns, index, &step.change, rows);
        }
        self.queue_triggered_changes(index);
    }

    /// Reports changes that no state has triggered.
    pub(super) fn report_missing_changes(&self, rows: &mut Rows<'_>) {
        for link in &self.network.links {
            for missing in link.triggered.missing() {
                let kind = Kind::ChangeNotTriggered(NoData {});
                rows.event(self.end_ns, &link.node, kind, &link.name, &missing);
            }
        }
    }
}
