//! The rows of a finished flow end, from its report and the samples of its sockets. Pure.

use ccbench_proto::plan::Tool;
use ccbench_proto::schedule::FlowTask;
use ccbench_proto::wire::{self, Role, Side};

pub use zero::zero_ns;

use super::samples::{SocketHistories, SocketHistory};
use crate::flow::{FlowEndpoint, FlowOutput};
use ccbench_proto::tools::iperf3::{Report, StreamInterval, Totals};

mod zero;

/// One end of a flow group and when it ran.
#[derive(Debug, Clone)]
pub struct FlowRun<'a> {
    /// The group.
    pub task: &'a FlowTask,
    /// Which end.
    pub end: FlowEndpoint,
    /// CLOCK_MONOTONIC when the process was started.
    pub launched_at_ns: u64,
    /// CLOCK_MONOTONIC when the process was interrupted, if it was.
    pub interrupted_at_ns: Option<u64>,
    /// CLOCK_MONOTONIC when the process ended.
    pub ended_at_ns: u64,
    /// The trial's beginning.
    pub start_at_ns: u64,
    /// Name and version, such as "iperf3 3.12".
    pub tool: &'a str,
}

impl FlowRun<'_> {
    fn side(&self) -> Side {
        self.end.side(self.task)
    }

    fn stop_at_ns(&self) -> u64 {
        self.start_at_ns + self.task.stop.nanos()
    }

    fn sockets<'s>(
        &self,
        seen: &'s SocketHistories,
    ) -> impl Iterator<Item = (u32, &'s SocketHistory)> {
        let (group, side, count) = (self.task.group.clone(), self.side(), self.task.plan.count);
        (0..count).filter_map(move |i| Some((i, seen.get(&(format!("{group}/{i}"), side))?)))
    }
}

/// Returns the rows of table `intervals` of a report that was read after the end.
pub fn intervals(
    ran: &FlowRun<'_>,
    intervals: &[StreamInterval],
    zero_ns: u64,
) -> Vec<wire::Interval> {
    let row = |i: &StreamInterval| {
        let at_ns = zero_ns + (i.values.end.max(0.0) * 1e9) as u64;
        i.values.row(&ran.task.group, ran.side(), i.stream, at_ns)
    };
    intervals.iter().map(row).collect()
}

/// Adds the last interval, which is missing from a report if the other end closed the connection first.
pub fn add_rest(ran: &FlowRun<'_>, report: &mut Report, zero_ns: u64) {
    let terminated = report.error.as_deref().is_some_and(|e| e.ends_with("has terminated"));
    if terminated && !is_early(ran) {
        let end_s = (ran.stop_at_ns() as f64 - zero_ns as f64) / 1e9;
        report.add_rest(ran.side() == Side::Sender, end_s);
    }
}

/// Returns the rows of table `flows`: one per data connection, and one for iperf3's control connection.
pub fn flows(
    ran: &FlowRun<'_>,
    report: &Report,
    exit_code: i32,
    zero_ns: u64,
    seen: &SocketHistories,
) -> Vec<wire::Flow> {
    let (task, side) = (ran.task, ran.side());
    let look = |id: &str| seen.get(&(id.to_owned(), side));
    let base = |flow_id: String, role: Role| wire::Flow {
        flow_id,
        group: task.group.clone(),
        node_src: task.plan.from.clone(),
        node_dst: task.plan.to.clone(),
        cc_requested: task.plan.cc.clone().unwrap_or_default(),
        role: role.into(),
        src_ip: task.from_ip.to_string(),
        dst_ip: task.to_ip.to_string(),
        dport: task.server_port.into(),
        // An interrupted process exits with 1, which is not an error of the flow.
        exit_code: (!ended_by_order(ran, report)).then_some(exit_code),
        side: side.into(),
        tool: ran.tool.to_owned(),
        ..Default::default()
    };
    let mut rows: Vec<wire::Flow> = (0..task.plan.count)
        .map(|stream| {
            let flow_id = format!("{}/{stream}", task.group);
            let socket = look(&flow_id);
            let last = report.intervals.iter().rev().find(|i| i.stream == stream);
            let began = (socket.is_some() || last.is_some())
                .then(|| (zero_ns as f64 - ran.start_at_ns as f64) / 1e9);
            wire::Flow {
                sport: u32::from(task.client_port) + stream,
                cc_actual: actual_cc(side, socket, report),
                cookie: socket.and_then(|s| s.cookie),
                start_s: began,
                stop_s: began.and_then(|b| Some(b + last?.values.end)),
                completed_s: began.and_then(|b| Some(b + report.totals.get(&stream)?.completed_s?)),
                bytes: bytes(side, report.totals.get(&stream), socket, report, stream),
                ..base(flow_id, Role::Data)
            }
        })
        .collect();
    if task.plan.tool() == Tool::Ccbench {
        return rows;
    }
    let control = look(&format!("{}/control", task.group));
    let client_port = match ran.end {
        FlowEndpoint::Client => control.map(|s| s.sport),
        FlowEndpoint::Server => control.map(|s| s.dport).or(report.control_port),
    };
    rows.push(wire::Flow {
        sport: client_port.unwrap_or_default().into(),
        // No congestion control was requested for this connection.
        cc_requested: String::new(),
        cc_actual: control.map(|s| s.cc.clone()).unwrap_or_default(),
        cookie: control.and_then(|s| s.cookie),
        bytes: control.and_then(|s| s.bytes_acked).unwrap_or_default(),
        ..base(format!("{}/control", task.group), Role::Control)
    });
    rows
}

/// Returns the sending socket's congestion control; empty at the receiver.
fn actual_cc(side: Side, socket: Option<&SocketHistory>, report: &Report) -> String {
    if side != Side::Sender {
        return String::new();
    }
    let seen = socket.map(|s| s.cc.clone()).filter(|cc| !cc.is_empty());
    seen.or_else(|| report.sender_cc.clone()).unwrap_or_default()
}

/// Returns the bytes of a flow. Sender: what the receiver reported, else what the kernel last counted as acknowledged,
/// else what was written. Receiver: what it read.
fn bytes(
    side: Side,
    totals: Option<&Totals>,
    socket: Option<&SocketHistory>,
    report: &Report,
    stream: u32,
) -> u64 {
    let own: f64 =
        report.intervals.iter().filter(|i| i.stream == stream).map(|i| i.values.bytes).sum();
    let counted = |count: fn(&SocketHistory) -> Option<u64>| socket.and_then(count);
    let known = [
        totals.map(|t| t.received_bytes),
        counted(if side == Side::Sender { |s| s.bytes_acked } else { |s| s.bytes_received }),
        totals.filter(|_| side == Side::Sender).map(|t| t.sent_bytes),
        Some(own as u64),
    ];
    known.into_iter().flatten().find(|&bytes| bytes > 0).unwrap_or(0)
}

/// A flow that ends this long before its planned stop ended early.
const EARLY_NS: u64 = 300_000_000;

fn is_early(ran: &FlowRun<'_>) -> bool {
    ran.ended_at_ns + EARLY_NS < ran.stop_at_ns()
}

/// Whether our agent, or that of the other end, ended it on time. An error at that time, of an end that has data, is
/// that of the connection to the other end, which is over as well.
fn ended_by_order(ran: &FlowRun<'_>, report: &Report) -> bool {
    let has_data = !report.intervals.is_empty();
    let ordered = |error: &str| error.contains("terminated") || has_data;
    let interrupted = ran.interrupted_at_ns.is_some() && has_data;
    (interrupted || report.error.as_deref().is_some_and(ordered)) && !is_early(ran)
}

/// Returns the error of this end, if any. `killed`: it did not end when asked.
pub fn flow_error(
    ran: &FlowRun<'_>,
    output: &FlowOutput,
    report: &Report,
    killed: bool,
) -> Option<String> {
    let process = format!("{} {}", ran.task.plan.tool(), ran.end.name());
    if let Some(error) = &report.error
        && !ended_by_order(ran, report)
    {
        return Some(format!("{process}: {error}"));
    }
    let stderr = output.errors.trim();
    let stderr = if stderr.is_empty() { String::new() } else { format!(": {stderr}") };
    if killed {
        return Some(format!("{process} did not end and was killed{stderr}"));
    }
    if report.intervals.is_empty() {
        return Some(format!("{process} left no report (exit code {}){stderr}", output.exit_code));
    }
    if is_early(ran) {
        let short = (ran.stop_at_ns() - ran.ended_at_ns) as f64 / 1e9;
        return Some(format!("{process} ended {short:.1} s early{stderr}"));
    }
    None
}

/// Returns the error of an end whose rows are incomplete, because that many bytes of its report were dropped.
pub fn lost_rows(ran: &FlowRun<'_>, dropped_bytes: u64) -> Option<String> {
    let (tool, end) = (ran.task.plan.tool(), ran.end.name());
    (dropped_bytes > 0).then(|| {
        format!(
            "{tool} {end} wrote {dropped_bytes} bytes more than the agent keeps: rows are missing"
        )
    })
}

#[cfg(test)]
mod tests;
