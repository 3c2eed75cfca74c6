//! Exports the health of a run's machines as OpenMetrics text (version 1.0.0), for Prometheus and programs that read its format.
//!
//! Samples have times, so that `promtool tsdb create-blocks-from openmetrics` can import the files.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use polars::prelude::*;

use super::error::Result;
use super::trials::{not_empty, trial_name};
use crate::error::{io_error, polars_error};
use crate::journal::TrialEnd;
use crate::model::TrialStatus;
use crate::openmetrics::{AGENT_CPU, BUSIEST_CPU, DROPPED_PACKETS, END, Family, sample};
use crate::part::write_file;
use crate::store::RunDir;
use crate::summary::query::{Lines, collect, number, scan};

const TABLE: &str = "host_samples";
const STATUSES: [TrialStatus; 4] =
    [TrialStatus::Ok, TrialStatus::Degraded, TrialStatus::Failed, TrialStatus::Aborted];

/// A family whose metrics are columns of `host_samples`. A counter's column counts since the previous sample.
struct Machine {
    family: Family,
    /// The label that distinguishes the columns; empty if there is only one.
    label: &'static str,
    /// The label's value with the column.
    columns: &'static [(&'static str, &'static str)],
    /// The size of the family's unit in units of the columns.
    scale: f64,
}

static MACHINES: [Machine; 6] = [
    Machine {
        family: Family::gauge("ccbench_node_cpu_ratio", "ratio", "Time of all CPUs by mode."),
        label: "mode",
        columns: &[
            ("user", "cpu_user_pct"),
            ("system", "cpu_system_pct"),
            ("softirq", "cpu_softirq_pct"),
            ("steal", "cpu_steal_pct"),
            ("idle", "cpu_idle_pct"),
        ],
        scale: 0.01,
    },
    Machine { family: BUSIEST_CPU, label: "", columns: &[("", "cpu_max_busy_pct")], scale: 0.01 },
    Machine { family: AGENT_CPU, label: "", columns: &[("", "agent_cpu_pct")], scale: 0.01 },
    Machine {
        family: Family::gauge(
            "ccbench_agent_memory_bytes",
            "bytes",
            "Resident memory of the agent.",
        ),
        label: "",
        columns: &[("", "agent_rss_bytes")],
        scale: 1.0,
    },
    Machine {
        family: Family::gauge(
            "ccbench_node_sample_gap_seconds",
            "seconds",
            "Time since the previous sample of the machine.",
        ),
        label: "",
        columns: &[("", "gap_ns")],
        scale: 1e-9,
    },
    Machine {
        family: DROPPED_PACKETS,
        label: "at",
        columns: &[
            ("softnet", "softnet_dropped"),
            ("nic_rx", "nic_rx_dropped"),
            ("nic_tx", "nic_tx_dropped"),
        ],
        scale: 1.0,
    },
];

const CLOCK: Family = Family::gauge(
    "ccbench_node_clock_error_seconds",
    "seconds",
    "Upper bound of the error of the node's clock during the trial.",
);
const STATUS: Family = Family {
    name: "ccbench_trial_status",
    kind: "stateset",
    unit: "",
    help: "The verdict on the trial.",
};
const DURATION: Family = Family::gauge(
    "ccbench_trial_duration_seconds",
    "seconds",
    "Time from the first phase to the end of the last.",
);
const REASONS: Family =
    Family::gauge("ccbench_trial_reasons", "", "Reasons for the verdict, by their code.");

/// Writes one file per trial into a folder: load, drops and clock of each node's machine during the trial, and the verdict at its end.
/// Trials without rows also have a file. Returns the paths written.
///
/// # Errors
/// No trial has ended, or a file cannot be written.
pub fn openmetrics(run_dir: &Path, output: &Path) -> Result<Vec<PathBuf>> {
    let run = RunDir::open(run_dir)?;
    run.check(|table| table == TABLE);
    let directory = run.name();
    let mut written = Vec::new();
    for end in run.trials() {
        let machines = machines(&run, &end)?;
        std::fs::create_dir_all(output).map_err(io_error("make the directory", output))?;
        let to = output.join(format!("{}.openmetrics", trial_name(&end)));
        write_file(&to, |out| {
            let done = write_text(out, &directory, &end, machines.as_ref());
            done.map_err(io_error("write", &to))
        })?;
        written.push(to);
    }
    not_empty(written, run_dir, "no trial has ended")
}

/// Returns the samples of the machines with their node and their time in seconds since 1970, by node and in time order.
fn machines(run: &RunDir, end: &TrialEnd) -> Result<Option<Lines>> {
    let Some(rows) = scan(run, TABLE, &[end])? else { return Ok(None) };
    let known = rows.clone().collect_schema().map_err(polars_error("read", run.path()))?;
    let time = (number("t_ns") / lit(1e9)).alias("time");
    let names = MACHINES.iter().flat_map(|machine| machine.columns).map(|(_, column)| *column);
    // Runs of an older version have fewer columns.
    let columns = names.filter(|name| known.contains(name)).map(number);
    let columns: Vec<Expr> =
        [col("node").cast(DataType::String), time].into_iter().chain(columns).collect();
    let rows = rows
        .filter(col("t_ns").is_not_null())
        .select(columns)
        .sort_by_exprs(["node", "time"].map(col), SortMultipleOptions::default());
    Ok(Some(collect(run, TABLE, rows)?))
}

fn write_text(
    out: &mut impl Write,
    run: &str,
    end: &TrialEnd,
    lines: Option<&Lines>,
) -> io::Result<()> {
    if let Some(lines) = lines {
        let nodes = lines.ranges("node");
        for machine in &MACHINES {
            write_machine(out, run, machine, lines, &nodes)?;
        }
    }
    // A time on the controller's axis is the same for every node.
    let begin_s = end.clocks.values().next().map(|clock| {
        let begin_ns = clock.t0_ns.cast_signed().saturating_add(clock.realtime_offset_ns);
        begin_ns as f64 / 1e9
    });
    CLOCK.head(out)?;
    for (node, clock) in &end.clocks {
        let error_s = clock.error_bound_ns as f64 / 1e9;
        sample(out, CLOCK.name, &[("run", run), ("node", node.as_str())], error_s, begin_s)?;
    }
    let end_s = begin_s.map(|begin_s| begin_s + end.length_s());
    let (point, trial) = (end.point_id.to_string(), end.trial.to_string());
    let labels = [("run", run), ("point", &*point), ("trial", &*trial)];
    STATUS.head(out)?;
    for status in STATUSES {
        let labels = [&labels[..], &[(STATUS.name, status.as_str())]].concat();
        let is_set = f64::from(u8::from(status == end.status));
        sample(out, STATUS.name, &labels, is_set, end_s)?;
    }
    DURATION.head(out)?;
    sample(out, DURATION.name, &labels, end.length_s(), end_s)?;
    REASONS.head(out)?;
    let mut codes: BTreeMap<&str, u32> = BTreeMap::new();
    for reason in &end.reasons {
        *codes.entry(reason.code.as_str()).or_default() += 1;
    }
    for (code, count) in codes {
        let labels = [&labels[..], &[("code", code)]].concat();
        sample(out, REASONS.name, &labels, f64::from(count), end_s)?;
    }
    writeln!(out, "{END}")
}

/// Writes a family. The points of a metric stand together, in time order.
fn write_machine(
    out: &mut impl Write,
    run: &str,
    machine: &Machine,
    lines: &Lines,
    nodes: &BTreeMap<String, Range<usize>>,
) -> io::Result<()> {
    let Machine { family, label, columns, scale } = machine;
    let (is_counter, name) = (family.is_counter(), family.sample_name());
    family.head(out)?;
    for (node, own) in nodes {
        for (of, column) in *columns {
            let mut sum = 0.0;
            for line in own.clone() {
                let Some(value) = lines.number(column, line) else { continue };
                sum += value;
                let value = scale * if is_counter { sum } else { value };
                let labels = [("run", run), ("node", node.as_str()), (*label, *of)];
                sample(out, &name, &labels, value, lines.number("time", line))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NodeClock, Reason, TrialKey};
    use crate::openmetrics::tests::violations;
    use crate::reason::ReasonCode;

    fn end() -> TrialEnd {
        let key = TrialKey { point_id: 3, trial: 2, seed: 1, epoch: 1 };
        let mut end = TrialEnd::new(key, TrialStatus::Degraded);
        let clock = NodeClock { error_bound_ns: 250_000, ..NodeClock::shared(1_000_000_000, 0) };
        end.clocks =
            [("dst", clock.clone()), ("src", clock)].map(|(n, c)| (n.to_owned(), c)).into();
        end.reasons = ["a", "b"].map(|text| Reason::new(ReasonCode::LinesUnread, text)).to_vec();
        end
    }

    fn lines() -> Lines {
        let frame = df!(
            "node" => ["dst", "dst", "src"],
            "time" => [1.5, 2.0, 1.75],
            "cpu_user_pct" => [Some(12.5), None, Some(50.0)],
            "agent_rss_bytes" => [1e6, 2e6, 3e6],
            "softnet_dropped" => [2.0, 3.0, 0.0],
        );
        Lines::new(frame.unwrap())
    }

    #[test]
    fn families_have_the_format_of_openmetrics() {
        let mut out = Vec::new();
        write_text(&mut out, "a \"run\"", &end(), Some(&lines())).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(violations(&text), [""; 0], "{text}");
        for line in [
            "ccbench_node_cpu_ratio{run=\"a \\\"run\\\"\",node=\"dst\",mode=\"user\"} 0.125 1.500000",
            "ccbench_agent_memory_bytes{run=\"a \\\"run\\\"\",node=\"src\"} 3000000 1.750000",
            "ccbench_node_dropped_packets_total{run=\"a \\\"run\\\"\",node=\"dst\",at=\"softnet\"} 5 2.000000",
            "ccbench_node_clock_error_seconds{run=\"a \\\"run\\\"\",node=\"src\"} 0.00025 1.000000",
            "ccbench_trial_reasons{run=\"a \\\"run\\\"\",point=\"3\",trial=\"2\",code=\"lines_unread\"} 2 1.000000",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is not in {text}");
        }
        let states: Vec<&str> =
            text.lines().filter(|line| line.starts_with("ccbench_trial_status{")).collect();
        assert_eq!(states.len(), STATUSES.len());
        assert!(states[1].contains("ccbench_trial_status=\"degraded\"} 1 "), "{states:?}");
    }
}
