//! One simulated trial, with the same plan, rows, verdicts and tables as in the lab.

use ccbench_proto::schedule::Point;
use ccbench_proto::wire::RunEvent;
use ccbench_proto::wire::run_event::Payload;
use ccbench_results::model::{TrialKey, Verdict};
use ccbench_results::verdict::Judge;
use ccbench_simulator::{REALTIME_MINUS_MONOTONIC_NS, Simulation, SimulatorError, T0_NS};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tracing::info;

use super::error::SimulatedTrialError;
use crate::backend::error::BackendError;
use crate::backend::record_not_run;
use crate::interrupt::Interrupt;
use crate::progress::TrialProgress;
use crate::runner::Trial;
use crate::virtual_trial::{NodeReplies, VirtualClock, VirtualTrial};

/// Rows per batch that the simulation's thread sends.
const BATCH_ROWS: usize = 256;
/// Batches queued between that thread and the recorder. Together with the writer's queue they bound the memory of a trial.
const QUEUED_BATCHES: usize = 16;

/// Rows with their nodes, in the order in which the simulation emitted them.
type Batch = Vec<(String, RunEvent)>;

/// Runs a trial and commits it.
///
/// # Errors
/// The trial could not run. The results directory has a record of that.
pub async fn run(
    Trial { point, scheduled, dir, epoch, .. }: Trial<'_>,
    progress: &mut TrialProgress<'_>,
    interrupt: &mut Interrupt,
) -> Result<Verdict, BackendError> {
    let (point_id, trial, seed) = (scheduled.point_id, scheduled.trial, scheduled.seed);
    let key = TrialKey { point_id, trial, seed, epoch };
    let simulation = simulation(point, seed).map_err(|error| record_not_run(dir, key, error))?;
    let answers = NodeReplies { infos: simulation.infos(), replies: simulation.replies() };
    let realtime_minus_monotonic_ns = REALTIME_MINUS_MONOTONIC_NS;
    let clock = VirtualClock { t0_ns: T0_NS, realtime_minus_monotonic_ns };
    let configure = Judge::ignore_machines;
    let mut trial = VirtualTrial::begin(dir, key, point, answers, clock, progress, configure)?;
    let (send, receive) = mpsc::channel(QUEUED_BATCHES);
    let thread = spawn_blocking(move || simulate(simulation, &send));
    let recorded = record(&mut trial, receive, progress, interrupt).await;
    // If the recorder has stopped, the channel is closed and the simulation ends.
    let ended = thread.await;
    match recorded {
        Ok(()) => {}
        Err(BackendError::Interrupted) => {
            trial.recorder.writer.abandon("interrupted")?;
            return Err(BackendError::Interrupted);
        }
        Err(error) => return Err(error),
    }
    let error = match ended {
        Ok(result) => result.err().map(SimulatedTrialError::Failed),
        Err(_) => Some(SimulatedTrialError::Panicked),
    };
    info!(failed = error.is_some(), "the simulation has ended");
    trial.recorder.errors.extend(error.map(|error| error.to_string()));
    Ok(trial.recorder.commit(|verdict| verdict).await?)
}

/// Makes the simulation of a trial.
///
/// # Errors
/// The simulator has no model of what the plan asks for.
pub fn simulation(point: &Point, seed: u64) -> Result<Simulation, SimulatedTrialError> {
    Ok(Simulation::of_trial(&point.plan, seed)?)
}

/// Runs a simulation to its end, or until the receiver is dropped.
///
/// # Errors
/// The simulation failed.
fn simulate(simulation: Simulation, send: &mpsc::Sender<Batch>) -> Result<(), SimulatorError> {
    let (mut batch, mut rows) = (Batch::with_capacity(BATCH_ROWS), 0);
    let emit = &mut |node: &str, event: RunEvent| {
        rows += match &event.payload {
            Some(Payload::Acks(acks)) => acks.at_ns.len(),
            _ => 1,
        };
        batch.push((node.to_owned(), event));
        if rows >= BATCH_ROWS {
            rows = 0;
            let full = std::mem::replace(&mut batch, Batch::with_capacity(BATCH_ROWS));
            // Sending fails only after the trial has ended.
            let _ = send.blocking_send(full);
        }
    };
    let ended = simulation.run(emit, &|| !send.is_closed());
    let _ = send.blocking_send(batch);
    ended
}

/// Records rows until the simulation ends or the user stops it.
async fn record(
    trial: &mut VirtualTrial<'_>,
    mut receive: mpsc::Receiver<Batch>,
    progress: &mut TrialProgress<'_>,
    interrupt: &mut Interrupt,
) -> Result<(), BackendError> {
    loop {
        let batch = tokio::select! {
            biased;
            () = interrupt.requested() => return Err(BackendError::Interrupted),
            batch = trial.next(&mut receive) => batch,
        };
        let Some(batch) = batch else { return Ok(()) };
        for (node, event) in batch {
            tokio::select! {
                biased;
                () = interrupt.requested() => return Err(BackendError::Interrupted),
                () = trial.recorder.writer.wait_for_room() => {}
            }
            if let Some(at_ns) = sampled_at_ns(&event) {
                trial.tick(at_ns, progress);
            }
            trial.row(&node, event, progress)?;
        }
    }
}

/// Returns when a sample was taken, on the virtual clock. Other rows may be older than rows before them.
fn sampled_at_ns(event: &RunEvent) -> Option<u64> {
    match event.payload.as_ref()? {
        Payload::FlowSample(row) => Some(row.at_ns),
        Payload::QdiscSample(row) => Some(row.at_ns),
        Payload::Event(row) => Some(row.at_ns),
        _ => None,
    }
}
