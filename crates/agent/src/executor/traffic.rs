//! One end of one flow group, from its start to its rows. Every wait has a limit, so this always ends.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::schedule::FlowTask;
use ccbench_proto::wire::{self, run_event::Payload};
use tokio::sync::watch;

use super::outbox::Outbox;
use super::report::{self, BoundedReport};
use super::rows::{self, FlowRun};
use super::samples::{SocketHistories, lock};
use crate::clock;
use crate::flow::output::Output;
use crate::flow::{FlowEndpoint, FlowOutput, FlowSource, Progress, Stop, Traffic};
use ccbench_proto::tools::iperf3::{Numbering, StreamInterval};

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
    /// The control group of traffic, unless it is the agent's own.
    pub traffic_group: Option<PathBuf>,
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
    let (mut live, mut killed, mut cancelled) = (None::<BoundedReport>, false, false);
    let mut interrupted_at_ns = None;
    let left = loop {
        let next_ns = steps.peek().map_or(clock::now_ns() + EXIT_TIMEOUT_NS, |step| step.at_ns);
        tokio::select! {
            progress = traffic.next() => match progress {
                Progress::Line { at_ns, line } => {
                    let live = live.get_or_insert_default();
                    let added = live.on_line(&line, numbering);
                    for row in new_rows(&added, live.report.zero_ns, at_ns, (task, end)) {
                        context.out.send(Payload::Interval(row)).await;
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
    let ran = FlowRun {
        task,
        end,
        launched_at_ns,
        interrupted_at_ns,
        ended_at_ns: clock::now_ns(),
        start_at_ns: context.start_at_ns,
        tool: &context.source.version(task.plan.tool()),
    };
    send_report(context, &ran, numbering, live, left, killed).await;
}

/// Returns the rows of the intervals that a line added. Their time is the interval's end, or `read_at_ns` without a time zero.
fn new_rows(
    added: &[StreamInterval],
    zero_ns: Option<u64>,
    read_at_ns: u64,
    (task, end): (&FlowTask, FlowEndpoint),
) -> Vec<wire::Interval> {
    let row = |i: &StreamInterval| {
        let after_zero_ns = (i.values.end.max(0.0) * 1e9) as u64;
        let at_ns = zero_ns.map_or(read_at_ns, |zero_ns| zero_ns + after_zero_ns);
        i.values.row(&task.group, end.side(task), i.stream, at_ns)
    };
    added.iter().map(row).collect()
}

/// Sends the rows and the raw file of an end. `live` is its report, if its intervals were sent while it ran.
async fn send_report(
    context: &RunContext,
    ran: &FlowRun<'_>,
    numbering: Numbering,
    live: Option<BoundedReport>,
    mut left: FlowOutput,
    killed: bool,
) {
    let (out, group) = (&context.out, &ran.task.group);
    let streamed = live.is_some();
    let read = match live {
        Some(live) => Ok(live),
        None => report::read(&mut left.output, numbering).await,
    };
    let (read, mut unread) = match read {
        Ok(read) => (read, None),
        Err(error) => (BoundedReport::default(), Some(error)),
    };
    let process = format!("{} ({})", ran.task.plan.tool(), ran.end.name());
    if read.unread > 0 {
        let parts = if streamed { "lines" } else { "parts" };
        let what = format!(
            "{} {parts} of the report of {process} could not be read; they are in its raw file",
            read.unread
        );
        out.event(Kind::Iperf3Unread(NoData {}), group, what).await;
    }
    let mut report = read.report;
    let (zero_ns, flows, rest) = {
        let seen = lock(&context.seen);
        let zero_ns = rows::zero_ns(ran, &report, &seen);
        let known = report.intervals.len();
        if !streamed {
            rows::add_rest(ran, &mut report, zero_ns);
        }
        let flows = rows::flows(ran, &report, left.exit_code, zero_ns, &seen);
        (zero_ns, flows, report.intervals[known..].to_vec())
    };
    if !streamed {
        let sent = send_intervals(ran, numbering, zero_ns, &mut left.output, out).await;
        unread = unread.or(sent.err());
        for row in rows::intervals(ran, &rest, zero_ns) {
            out.send(Payload::Interval(row)).await;
        }
    }
    for row in flows {
        out.send(Payload::Flow(row)).await;
    }
    let name = format!("{}-{group}-{}.json", ran.task.plan.tool(), ran.end.name());
    unread = unread.or(send_raw(&name, &mut left.output, out).await.err());
    // The rows of a live report are complete even if its file is not.
    let dropped_bytes = if streamed { 0 } else { left.output.dropped_bytes() };
    let error = rows::flow_error(ran, &left, &report, killed)
        .or_else(|| rows::lost_rows(ran, dropped_bytes))
        .or_else(|| Some(format!("read the output of {process}: {}", unread?)));
    if let Some(error) = error {
        out.event(Kind::FlowError(NoData {}), group, error).await;
    }
    if ran.end == FlowEndpoint::Client {
        out.event(Kind::FlowEnd(NoData {}), group, "").await;
    }
}

/// Sends the intervals of a report that is one document. It is read once more: their times depend on the whole report.
async fn send_intervals(
    ran: &FlowRun<'_>,
    numbering: Numbering,
    zero_ns: u64,
    output: &mut Output,
    out: &Outbox,
) -> io::Result<()> {
    let mut again = BoundedReport::default();
    let mut pieces = report::pieces(output)?;
    while let Some(lines) = pieces.next().await? {
        for line in lines {
            for row in rows::intervals(ran, &again.on_line(&line, numbering), zero_ns) {
                out.send(Payload::Interval(row)).await;
            }
        }
    }
    Ok(())
}

async fn send_raw(name: &str, output: &mut Output, out: &Outbox) -> io::Result<()> {
    let dropped_bytes = output.dropped_bytes();
    out.raw(name, &mut output.reader()?, dropped_bytes).await
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
