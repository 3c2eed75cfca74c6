//! The health of a run in progress as OpenMetrics text: the nodes' machines, trials, and the verdict so far. Pure.

use std::io::{self, Write};

use ccbench_results::openmetrics::{AGENT_CPU, BUSIEST_CPU, DROPPED_PACKETS, END, Family, sample};

use super::update::{HostView, TrialView, Update};

const CPU: Family = Family::gauge(
    "ccbench_node_cpu_ratio",
    "ratio",
    "Time of all CPUs by mode, in the last sample.",
);
const PLANNED: Family =
    Family::gauge("ccbench_run_planned_trials", "trials", "Maximum number of trials of the run.");
const ENDED: Family = Family::gauge(
    "ccbench_run_ended_trials",
    "trials",
    "Trials that have ended, by their verdict.",
);
const LEFT: Family = Family::gauge("ccbench_run_left_seconds", "seconds", "Estimated time left.");
const STATUS: Family = Family {
    name: "ccbench_run_trial_status",
    kind: "stateset",
    unit: "",
    help: "Verdict so far on the running trial.",
};
const REASONS: Family = Family::gauge(
    "ccbench_run_trial_reasons",
    "",
    "Number of reasons for the verdict so far on the running trial.",
);
const STATUSES: [&str; 4] = ["ok", "degraded", "failed", "discarded"];

/// Reads one number of a machine.
type HostValue = fn(&HostView) -> f64;
/// A metric of machines: the name of its label, and the numbers by label value.
type HostMetric = (&'static Family, &'static str, &'static [(&'static str, HostValue)]);

const HOSTS: [HostMetric; 4] = [
    (
        &CPU,
        "mode",
        &[("busy", |host| ratio(host.busy_pct)), ("steal", |host| ratio(host.steal_pct))],
    ),
    (&BUSIEST_CPU, "", &[("", |host| ratio(host.max_busy_pct))]),
    (&AGENT_CPU, "", &[("", |host| ratio(host.agent_pct))]),
    (&DROPPED_PACKETS, "at", &[("softnet", |host| host.softnet_dropped as f64)]),
];

/// Converts percent to a ratio, with as many digits as a view has.
fn ratio(pct: f32) -> f64 {
    (f64::from(pct) * 100.0).round() / 1e4
}

/// Returns the metrics of an update. They have no timestamps, because the time of the scrape applies.
pub fn text(update: &Update) -> Vec<u8> {
    let mut out = Vec::new();
    // Writing to memory cannot fail.
    let _ = write_text(&mut out, update);
    out
}

fn write_text(out: &mut impl Write, update: &Update) -> io::Result<()> {
    let run = &update.run;
    let own = ("run", run.name.as_str());
    PLANNED.head(out)?;
    sample(out, PLANNED.name, &[own], run.trials as f64, None)?;
    ENDED.head(out)?;
    for (status, count) in &run.ended {
        sample(out, ENDED.name, &[own, ("status", status.as_str())], f64::from(*count), None)?;
    }
    LEFT.head(out)?;
    if let Some(left_s) = run.left_s {
        sample(out, LEFT.name, &[own], left_s as f64, None)?;
    }
    if let Some(trial) = &update.trial {
        write_trial(out, own, trial)?;
    }
    writeln!(out, "{END}")
}

fn write_trial(out: &mut impl Write, own: (&str, &str), trial: &TrialView) -> io::Result<()> {
    STATUS.head(out)?;
    for status in STATUSES {
        let is_set = f64::from(u8::from(trial.status == status));
        sample(out, STATUS.name, &[own, (STATUS.name, status)], is_set, None)?;
    }
    REASONS.head(out)?;
    sample(out, REASONS.name, &[own], trial.reasons.len() as f64, None)?;
    for (family, label, columns) in &HOSTS {
        family.head(out)?;
        let name = family.sample_name();
        for (node, host) in &trial.hosts {
            for (value, of) in *columns {
                let labels = [own, ("node", node.as_str()), (*label, *value)];
                sample(out, &name, &labels, of(host), None)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::update::RunView;

    #[test]
    fn a_run_has_its_trials_its_machines_and_the_verdict_so_far() {
        let host =
            HostView { busy_pct: 12.5, steal_pct: 1.5, softnet_dropped: 3, ..HostView::default() };
        let run = RunView {
            name: "a \"run\"".to_owned(),
            trials: 4,
            ended: [("ok".to_owned(), 2)].into(),
            left_s: Some(65),
            ..RunView::default()
        };
        let trial = TrialView {
            status: "degraded".to_owned(),
            reasons: vec!["src: steal".to_owned()],
            hosts: [("src".to_owned(), host)].into(),
            ..TrialView::default()
        };
        let text = String::from_utf8(text(&Update { run, trial: Some(trial) })).unwrap();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "ccbench_run_planned_trials{run=\"a \\\"run\\\"\"} 4",
            "ccbench_run_ended_trials{run=\"a \\\"run\\\"\",status=\"ok\"} 2",
            "ccbench_run_left_seconds{run=\"a \\\"run\\\"\"} 65",
            "ccbench_run_trial_status{run=\"a \\\"run\\\"\",ccbench_run_trial_status=\"ok\"} 0",
            "ccbench_run_trial_status{run=\"a \\\"run\\\"\",ccbench_run_trial_status=\"degraded\"} 1",
            "ccbench_run_trial_status{run=\"a \\\"run\\\"\",ccbench_run_trial_status=\"failed\"} 0",
            "ccbench_run_trial_status{run=\"a \\\"run\\\"\",ccbench_run_trial_status=\"discarded\"} 0",
            "ccbench_run_trial_reasons{run=\"a \\\"run\\\"\"} 1",
            "ccbench_node_cpu_ratio{run=\"a \\\"run\\\"\",node=\"src\",mode=\"busy\"} 0.125",
            "ccbench_node_cpu_ratio{run=\"a \\\"run\\\"\",node=\"src\",mode=\"steal\"} 0.015",
            "ccbench_node_busiest_cpu_ratio{run=\"a \\\"run\\\"\",node=\"src\"} 0",
            "ccbench_agent_cpu_ratio{run=\"a \\\"run\\\"\",node=\"src\"} 0",
            "ccbench_node_dropped_packets_total{run=\"a \\\"run\\\"\",node=\"src\",at=\"softnet\"} 3",
        ];
        assert_eq!(samples, expected);
        assert!(
            text.contains("# TYPE ccbench_node_dropped_packets counter\n")
                && text.ends_with("# EOF\n")
        );
    }
}
