//! One end of one flow group, from its start to its rows. Every wait has a limit, so this always ends.

use std::sync::{Arc, Mutex};

use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::schedule::FlowTask;
use ccbench_proto::wire::{self, run_event::Of};
use tokio::sync::watch;

use super::outbox::Outbox;
use super::rows::{self, FlowRun};
use super::samples::{SocketHistories, lock};
use crate::clock;
use crate::flow::{FlowEndpoint, FlowOutput, FlowSource, Progress, Stop, Traffic};
use ccbench_proto::tools::iperf3::{Numbering, Report, StreamInterval};

const SECOND_NS: u64 = 1_000_000_000;
/// How long a flow may run after its stop before it is terminated, then killed. An interrupted flow reports at once,
/// whatever its round-trip time.
const GRACE_NS: u64 = 3 * SECOND_NS;
/// Time between two stop signals.
const STEP_NS: u64 = SECOND_NS;
/// How long a killed process may take to disappear.
const EXIT_TIMEOUT_NS: u64 = 2 * SECOND_NS;

/// State that all flow ends of a trial share.
#[derive(Clone)]
pub struct RunContext {
    /// Starts traffic.
    pub source: Arc<dyn FlowSource>,
    /// The trial's beginning.
    pub start_at_ns: u64,
    /// Where rows go.
    pub out: Outbox,
    /// The socket histories of the sampler.
    pub seen: Arc<Mutex<SocketHistories>>,
    /// Becomes true when the trial is cancelled; all processes are then killed at once.
    pub cancel: watch::Receiver<bool>,
}

impl RunContext {
    /// Resolves when the trial is cancelled; never, if the sender is gone.
    pub async fn cancelled(&self) {
        let mut cancel = self.cancel.clone();
        let gone = cancel.wait_for(|&cancelled| cancelled).await.is_err();
        if gone {
            std::future::pending::<()>().await;
        }
    }
}

/// When to send which signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StopStep {
    at_ns: u64,
    how: Stop,
}

/// Returns the signals to send, in order. The client is interrupted at the planned stop, because iperf3's own `-t`
/// counts from the end of its set-up, several round trips after its start. The client then ends the server. The server
/// is interrupted only if it keeps running: iperf3 3.12 sometimes crashes when a signal and the client's end message
/// arrive together.
fn stop_steps(task: &FlowTask, end: FlowEndpoint, start_at_ns: u64) -> [StopStep; 3] {
    let stop = start_at_ns + task.stop.nanos();
    let margin_ns = if end == FlowEndpoint::Server { STEP_NS } else { 0 };
    [
        StopStep { at_ns: stop + margin_ns, how: Stop::Interrupt },
        StopStep { at_ns: stop + GRACE_NS, how: Stop::Terminate },
        StopStep { at_ns: stop + GRACE_NS + STEP_NS, how: Stop::Kill },
    ]
}

/// Waits for the client's start, runs the client, and sends its rows.
pub async fn client(context: RunContext, task: FlowTask) {
    tokio::select! {
        () = clock::sleep_until(context.start_at_ns + task.start.nanos()) => {}
        () = context.cancelled() => return,
    }
    let launched_at_ns = clock::now_ns();
    match context.source.start(&task, FlowEndpoint::Client) {
        Ok(traffic) => {
            context.out.event(Kind::FlowStart(NoData {}), &task.group, "").await;
            run(&context, &task, FlowEndpoint::Client, traffic, launched_at_ns).await;
        }
        Err(error) => {
            context.out.event(Kind::FlowError(NoData {}), &task.group, error.to_string()).await;
        }
    }
}

/// Runs a server that already listens, and sends its rows.
pub async fn server(context: RunContext, task: FlowTask, traffic: Box<dyn Traffic>) {
    let launched_at_ns = clock::now_ns();
    run(&context, &task, FlowEndpoint::Server, traffic, launched_at_ns).await;
}

async fn run(
    context: &RunContext,
    task: &FlowTask,
    end: FlowEndpoint,
    mut traffic: Box<dyn Traffic>,
    launched_at_ns: u64,
) {
    let (client_port, count) = (task.client_port, task.plan.count);
    let numbering = Numbering { client_port, count, listens: end == FlowEndpoint::Server };
    let steps = stop_steps(task, end, context.start_at_ns).to_vec();
    let mut steps = steps.into_iter().peekable();
    let (mut live, mut killed, mut cancelled) = (None::<Report>, false, false);
    let mut unread = 0;
    let mut interrupted_at_ns = None;
    let left = loop {
        let next_ns = steps.peek().map_or(clock::now_ns() + EXIT_TIMEOUT_NS, |step| step.at_ns);
        tokio::select! {
            progress = traffic.next() => match progress {
                Progress::Line { at_ns, line } => {
                    let report = live.get_or_insert_default();
                    let known = report.intervals.len();
                    unread += u32::from(report.on_line(&line, numbering).is_none());
                    for row in new_rows(report, known, at_ns, (task, end)) {
                        context.out.send(Of::Interval(row)).await;
                    }
                }
                Progress::Ended(left) => break left,
            },
            () = clock::sleep_until(next_ns) => match steps.next() {
                Some(step) => {
                    if step.how == Stop::Interrupt {
                        interrupted_at_ns = Some(clock::now_ns());
                    }
                    traffic.stop(step.how);
                    killed |= step.how == Stop::Kill;
                }
                // SIGKILL did not end it: the kernel cannot remove the process.
                None => break FlowOutput { exit_code: -1, ..FlowOutput::default() },
            },
            () = context.cancelled(), if !cancelled => {
                cancelled = true;
                traffic.stop(Stop::Kill);
                steps = Vec::new().into_iter().peekable();
            }
        }
    };
    if cancelled {
        return;
    }
    if unread > 0 {
        let what = format!(
            "{unread} lines of the report of {} ({}) could not be read; they are in its raw file",
            task.plan.tool(),
            end.name()
        );
        context.out.event(Kind::Iperf3Unread(NoData {}), &task.group, what).await;
    }
    let ran = FlowRun {
        task,
        end,
        launched_at_ns,
        interrupted_at_ns,
        ended_at_ns: clock::now_ns(),
        start_at_ns: context.start_at_ns,
        tool: &context.source.version(task.plan.tool()),
    };
    report(context, &ran, numbering, live, &left, killed).await;
}

/// Returns the rows of the intervals that a line added. Their time is the interval's end, or `read_at_ns` without a time zero.
fn new_rows(
    report: &Report,
    known: usize,
    read_at_ns: u64,
    (task, end): (&FlowTask, FlowEndpoint),
) -> Vec<wire::Interval> {
    let row = |i: &StreamInterval| {
        let after_zero_ns = (i.values.end.max(0.0) * 1e9) as u64;
        let at_ns = report.zero_ns.map_or(read_at_ns, |zero_ns| zero_ns + after_zero_ns);
        i.values.row(&task.group, end.side(task), i.stream, at_ns)
    };
    report.intervals[known..].iter().map(row).collect()
}

async fn report(
    context: &RunContext,
    ran: &FlowRun<'_>,
    numbering: Numbering,
    live: Option<Report>,
    left: &FlowOutput,
    killed: bool,
) {
    let streamed = live.is_some();
    let mut report = live.unwrap_or_else(|| Report::from_json(&left.output, numbering));
    let (zero_ns, flows) = {
        let seen = lock(&context.seen);
        let zero_ns = rows::zero_ns(ran, &report, &seen);
        if !streamed {
            rows::add_rest(ran, &mut report, zero_ns);
        }
        (zero_ns, rows::flows(ran, &report, left.exit_code, zero_ns, &seen))
    };
    if !streamed {
        for row in rows::intervals(ran, &report, zero_ns) {
            context.out.send(Of::Interval(row)).await;
        }
    }
    for row in flows {
        context.out.send(Of::Flow(row)).await;
    }
    let group = &ran.task.group;
    context
        .out
        .raw(&format!("{}-{group}-{}.json", ran.task.plan.tool(), ran.end.name()), &left.output)
        .await;
    if let Some(flow_error) = rows::flow_error(ran, left, &report, killed) {
        context.out.event(Kind::FlowError(NoData {}), group, flow_error).await;
    }
    if ran.end == FlowEndpoint::Client {
        context.out.event(Kind::FlowEnd(NoData {}), group, "").await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccbench_proto::units::Micros;

    use crate::flow::example_task;

    #[test]
    fn flows_end_at_their_stop() {
        let mut task = example_task();
        let steps =
            |task: &FlowTask, end| stop_steps(task, end, 0).map(|s| (s.at_ns / 1_000_000, s.how));
        assert_eq!(
            steps(&task, FlowEndpoint::Client),
            [(3_000, Stop::Interrupt), (6_000, Stop::Terminate), (7_000, Stop::Kill)]
        );
        task.stop = Micros::from_millis(2_500);
        assert_eq!(steps(&task, FlowEndpoint::Client)[0], (2_500, Stop::Interrupt));
        assert_eq!(
            steps(&task, FlowEndpoint::Server)[0],
            (3_500, Stop::Interrupt),
            "if the client does not end it"
        );
    }
}
