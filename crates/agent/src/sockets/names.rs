//! Names of instances in the kernel. Kernel names are short and global to the machine, across network namespaces; names
//! in a plan are not. So each agent registers a unique name and translates it back in every row.

use std::collections::BTreeMap;

use ccbench_proto::cc::{self, MAX_KERNEL_NAME};
use ccbench_proto::schedule::{FlowTask, NodeTask};
use ccbench_proto::wire::run_event::Payload;

/// Identifies a trial of a run; unique on a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrialId {
    /// The run's id.
    pub run_id: String,
    /// The trial's epoch.
    pub epoch: u64,
}

/// Length of the part that makes a name unique.
const UNIQUE: usize = 5;
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Returns the kernel name of an instance that a node registers: the algorithm, truncated if necessary, and a unique
/// suffix, like `ta_grad.4x0v9`.
pub fn kernel_name(trial: &TrialId, node: &str, instance: &str, algorithm: &str) -> String {
    let text = format!("{} {} {node} {instance}", trial.run_id, trial.epoch);
    // FNV-1a is enough: names must differ on one machine, and no input is adversarial.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let digit = |at: usize| char::from(DIGITS[(hash >> (64 - 5 * (at + 1))) as usize & 31]);
    let unique: String = (0..UNIQUE).map(digit).collect();
    // The characters that struct_ops accepts; a plan's algorithm is one of ours.
    let good = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    let kind: String = algorithm.chars().filter(good).take(MAX_KERNEL_NAME - UNIQUE - 1).collect();
    format!("{kind}.{unique}")
}

/// Returns the node that sends the data of a flow, and so registers its congestion control.
pub fn sender(flow: &FlowTask) -> &str {
    if flow.plan.reverse { &flow.plan.to } else { &flow.plan.from }
}

/// Translates kernel names to plan names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// By flow group: the name in the plan, and in the sender's kernel.
    flows: BTreeMap<String, (String, String)>,
    /// Plan names by kernel name.
    instances: BTreeMap<String, String>,
}

impl Names {
    /// Returns the names of all flows of this node with an instance; `node` is the node's name.
    pub fn new(task: &NodeTask, trial: &TrialId, node: &str) -> Self {
        let mut names = Self::default();
        for flow in task.clients.iter().chain(&task.servers) {
            let named = flow.plan.cc.as_ref().and_then(|cc| task.cc.get_key_value(cc));
            let Some((plan, cc)) = named else { continue };
            let of = |node: &str| {
                if cc::has_fixed_name(cc) {
                    return cc.algorithm.clone();
                }
                kernel_name(trial, node, plan, &cc.algorithm)
            };
            let in_kernel = of(sender(flow));
            for name in [&in_kernel, &of(node)] {
                names.instances.entry(name.clone()).or_insert_with(|| plan.clone());
            }
            names.flows.insert(flow.group.clone(), (plan.clone(), in_kernel));
        }
        names
    }

    /// Returns the name of this flow's congestion control in the sender's kernel.
    pub fn of_flow(&self, flow: &FlowTask) -> Option<&str> {
        self.flows.get(&flow.group).map(|(_, name)| name.as_str())
    }

    /// Returns the flow groups with an instance, each with its name in the plan.
    pub fn groups(&self) -> impl Iterator<Item = (&str, &str)> {
        self.flows.iter().map(|(group, (plan, _))| (group.as_str(), plan.as_str()))
    }

    /// Returns the plan's name of an instance from its kernel name. If an instance has the same name in every kernel,
    /// the flow group that uses it tells it apart from the plain congestion control.
    fn in_plan(&self, group: &str, kernel_name: &str) -> Option<&str> {
        match self.flows.get(group) {
            Some((plan, name)) if name == kernel_name => Some(plan),
            _ if kernel_name.contains('.') => self.instances.get(kernel_name).map(String::as_str),
            _ => None,
        }
    }

    /// Replaces kernel names by the plan's in a row.
    pub fn translate(&self, payload: &mut Payload) {
        let put = |group: &str, cc: &mut String| {
            if let Some(plan) = self.in_plan(group, cc) {
                plan.clone_into(cc);
            }
        };
        match payload {
            _ if self.flows.is_empty() => {}
            Payload::FlowSample(row) => put(&row.group, &mut row.cc),
            Payload::Acks(rows) => put(&rows.group, &mut rows.cc),
            Payload::TcpEvents(rows) => {
                rows.events.iter_mut().for_each(|row| put(&row.group, &mut row.cc));
            }
            Payload::Flow(row) => {
                put(&row.group, &mut row.cc_requested);
                put(&row.group, &mut row.cc_actual);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use ccbench_proto::plan::{Cc, Flow};
    use ccbench_proto::wire;

    use super::*;

    fn trial(epoch: u64) -> TrialId {
        TrialId { run_id: "r".into(), epoch }
    }

    #[test]
    fn kernel_names_are_short_and_unique() {
        let name = kernel_name(&trial(1), "src", "scheme", "cx_rttvar");
        assert!(name.starts_with("cx_rttvar.") && name.len() == 15, "{name}");
        assert!(kernel_name(&trial(1), "src", "scheme", "cx15_rttvar").starts_with("cx15_rttv."));
        let different = [
            kernel_name(&trial(2), "src", "scheme", "cx_rttvar"),
            kernel_name(&trial(1), "dst", "scheme", "cx_rttvar"),
            kernel_name(&trial(1), "src", "other", "cx_rttvar"),
        ];
        assert!(different.iter().all(|other| *other != name), "{name} {different:?}");
        assert_eq!(name, kernel_name(&trial(1), "src", "scheme", "cx_rttvar"));
    }

    pub(crate) fn flow(group: &str, from: &str, cc: &str) -> FlowTask {
        FlowTask {
            group: group.into(),
            plan: Flow { cc: Some(cc.into()), count: 2, ..Flow::new(from, "dst") },
            ..crate::flow::example_task()
        }
    }

    #[test]
    fn rows_have_the_names_of_the_plan() {
        let task = NodeTask {
            cc: [("fast".to_owned(), Cc::new("ta")), ("tuned".to_owned(), Cc::new("cubic"))].into(),
            clients: vec![
                flow("a", "src", "fast"),
                flow("b", "src", "tuned"),
                flow("c", "src", "cubic"),
            ],
            ..ccbench_proto::schedule::NodeTask::default()
        };
        let names = Names::new(&task, &trial(1), "src");
        let kernel_name = names.of_flow(&task.clients[0]).unwrap().to_owned();
        assert_eq!(names.of_flow(&task.clients[1]), Some("cubic"));
        assert_eq!(names.of_flow(&task.clients[2]), None);
        let seen = |group: &str, cc: &str| {
            let mut payload = Payload::FlowSample(wire::FlowSample {
                group: group.into(),
                cc: cc.into(),
                ..Default::default()
            });
            names.translate(&mut payload);
            let Payload::FlowSample(row) = payload else { panic!("it was one") };
            row.cc
        };
        assert_eq!(seen("a", &kernel_name), "fast");
        assert_eq!(seen("c", &kernel_name), "fast", "a flow under the wrong one is seen to be");
        assert_eq!(seen("b", "cubic"), "tuned");
        assert_eq!(seen("c", "cubic"), "cubic");
        assert_eq!(seen("a", "reno"), "reno");
    }
}
