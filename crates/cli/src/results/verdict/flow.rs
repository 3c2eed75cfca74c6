//! Did every flow run when it should, under the congestion control it should, and was it watched?

use std::collections::BTreeMap;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule::{self, FlowTask, TrialContext};
use ccbench_proto::units::Micros;
use ccbench_proto::wire::{Done, Flow, FlowSample, Interval};

use super::{Findings, Span, Status};

/// iperf3 needs two handshakes and a round of control messages before its first byte: tenths of a second on the
/// longest paths of the plans. A second late is another experiment.
pub const LATE_S: f64 = 1.0;
/// A flow whose socket is gone this long before its end has not run its time.
pub const EARLY_S: f64 = 1.0;
/// Nine of ten samples must be there: fewer and a phase's mean is some other phase's.
pub const LEAST_SAMPLES_SHARE: f64 = 0.9;
/// A count is not judged below this: the first and the last sample may fall either side.
pub const FEWEST_EXPECTED: f64 = 10.0;
/// Samples that may come at more than 1.5 times their interval.
pub const LATE_SAMPLES_SHARE: f64 = 0.05;

/// What each data flow did.
#[derive(Debug)]
pub(crate) struct FlowCheck {
    groups: BTreeMap<String, FlowTask>,
    every: Micros,
    end_s: f64,
    flows: BTreeMap<String, Seen>,
    samples_by_node: BTreeMap<String, u64>,
}

/// One data flow, in seconds since the trial's beginning.
#[derive(Debug, Default)]
struct Seen {
    first_data_s: Option<f64>,
    first_sample_s: Option<f64>,
    last_sample_s: f64,
    samples: u64,
    /// As the kernel last said on the sending side.
    cc: String,
    exit_code: Option<i32>,
}

impl FlowCheck {
    pub(crate) fn new(plan: &CheckedPlan) -> Self {
        let context = TrialContext { addresses: BTreeMap::new(), port_slot: 0, seed: 0 };
        let clients = plan
            .plan()
            .nodes
            .keys()
            .flat_map(|node| schedule::task_for(plan, node, &context).clients);
        let groups: BTreeMap<String, FlowTask> =
            clients.map(|task| (task.group.clone(), task)).collect();
        let ids =
            groups.values().flat_map(|task| (0..task.count).map(|i| format!("{}/{i}", task.group)));
        Self {
            flows: ids.map(|id| (id, Seen::default())).collect(),
            groups,
            every: plan.plan().sample.tcp,
            end_s: schedule::length(plan).as_secs_f64(),
            samples_by_node: BTreeMap::new(),
        }
    }

    pub(crate) fn sample(&mut self, node: &str, span: Span, row: &FlowSample) {
        *self.samples_by_node.entry(node.to_owned()).or_default() += 1;
        let Some(flow) = self.flows.get_mut(&row.flow_id) else { return };
        if row.role != "data" {
            return;
        }
        let at_s = span.seconds(row.at_ns);
        if row.bytes_acked.unwrap_or(0) > 0 || row.bytes_received.unwrap_or(0) > 0 {
            flow.data_at(at_s);
        }
        if row.side != "snd" {
            return;
        }
        let stop_s = self.groups.get(&row.group).map_or(self.end_s, |task| task.stop.as_secs_f64());
        if at_s <= stop_s {
            flow.samples += 1;
        }
        flow.first_sample_s.get_or_insert(at_s);
        flow.last_sample_s = flow.last_sample_s.max(at_s);
        if !row.cc.is_empty() {
            flow.cc.clone_from(&row.cc);
        }
    }

    pub(crate) fn interval(&mut self, span: Span, row: &Interval) {
        if let Some(flow) = self.flows.get_mut(&row.flow_id).filter(|_| row.bytes > 0) {
            flow.data_at(span.seconds(row.at_ns) - row.seconds);
        }
    }

    pub(crate) fn flow(&mut self, row: &Flow) {
        let Some(flow) = self.flows.get_mut(&row.flow_id).filter(|_| row.role == "data") else {
            return;
        };
        if row.bytes > 0
            && let Some(start_s) = row.start_s
        {
            flow.data_at(start_s);
        }
        if flow.cc.is_empty() {
            flow.cc.clone_from(&row.cc_actual);
        }
        if let Some(code) = row.exit_code.filter(|code| *code != 0) {
            flow.exit_code = Some(code);
        }
    }

    pub(crate) fn finish(self, done: &BTreeMap<String, Done>, findings: &mut Findings) {
        let late_samples = |(node, done): (&String, &Done)| {
            let seen =
                self.samples_by_node.get(node).copied().unwrap_or(0).max(done.samples_late).max(1);
            let share = done.samples_late as f64 / seen as f64;
            (share > LATE_SAMPLES_SHARE).then(|| {
                format!(
                    "{node}: {:.0} % of {seen} TCP samples came at more than 1.5 times their interval \
                     (limit {:.0} %), {} were missed",
                    share * 100.0,
                    LATE_SAMPLES_SHARE * 100.0,
                    done.samples_missed
                )
            })
        };
        for message in done.iter().filter_map(late_samples) {
            findings.add(Status::Degraded, "samples_late", message);
        }
        for task in self.groups.values() {
            let mut told = Told::default();
            for index in 0..task.count {
                if let Some(flow) = self.flows.get(&format!("{}/{index}", task.group)) {
                    flow.judge(task, self.every, self.end_s, &mut told);
                }
            }
            told.into_findings(task, findings);
        }
    }
}

/// What is wrong with how many flows of a group: one finding for each kind, however many sockets.
#[derive(Debug, Default)]
struct Told(BTreeMap<&'static str, (Status, u32, String)>);

impl Told {
    fn add(&mut self, status: Status, code: &'static str, first: String) {
        self.0.entry(code).or_insert((status, 0, first)).1 += 1;
    }

    fn into_findings(self, task: &FlowTask, findings: &mut Findings) {
        for (code, (status, count, first)) in self.0 {
            let of = if task.count > 1 {
                format!(" ({count} of {} flows)", task.count)
            } else {
                String::new()
            };
            findings.add(status, code, format!("flows.{}{of}: {first}", task.group));
        }
    }
}

impl Seen {
    fn data_at(&mut self, at_s: f64) {
        self.first_data_s = Some(self.first_data_s.map_or(at_s, |first| first.min(at_s)));
    }

    fn judge(&self, task: &FlowTask, every: Micros, end_s: f64, told: &mut Told) {
        let (start_s, stop_s) = (task.start.as_secs_f64(), task.stop.as_secs_f64().min(end_s));
        if let Some(code) = self.exit_code {
            told.add(Status::Degraded, "flow_exit", format!("iperf3 ended with exit code {code}"));
        }
        let Some(first_s) = self.first_data_s else {
            told.add(Status::Failed, "flow_dead", "not one byte of data".to_owned());
            return;
        };
        let late_s = first_s - start_s;
        if late_s > LATE_S {
            let why = format!(
                "first data {late_s:.2} s after its start at {start_s:.1} s (limit {LATE_S:.0} s)"
            );
            told.add(Status::Degraded, "flow_late", why);
        }
        if let Some(wanted) = task.cc.as_ref().filter(|cc| !self.cc.is_empty() && **cc != self.cc) {
            let why = format!("the kernel used `{}`, the plan says `{wanted}`", self.cc);
            told.add(Status::Failed, "cc_not_in_force", why);
        }
        self.judge_samples(stop_s, every, told);
    }

    fn judge_samples(&self, stop_s: f64, every: Micros, told: &mut Told) {
        let Some(first_s) = self.first_sample_s else {
            told.add(Status::Degraded, "samples_missing", "no TCP sample of its sender".to_owned());
            return;
        };
        let interval_s = every.as_secs_f64();
        let early_s = stop_s - self.last_sample_s;
        if early_s > EARLY_S + 2.0 * interval_s {
            let why =
                format!("its socket was gone {early_s:.2} s before its end (limit {EARLY_S:.0} s)");
            told.add(Status::Degraded, "flow_early", why);
        }
        let expected = (stop_s - first_s) / interval_s;
        let share = self.samples as f64 / expected;
        if expected >= FEWEST_EXPECTED && share < LEAST_SAMPLES_SHARE {
            let why = format!(
                "{} of {expected:.0} TCP samples ({:.0} %, at least {:.0} % wanted)",
                self.samples,
                share * 100.0,
                LEAST_SAMPLES_SHARE * 100.0
            );
            told.add(Status::Degraded, "samples_missing", why);
        }
    }
}
