//! A trial on a virtual clock that all nodes share: the code that trials in the lab and in the simulator have in common.

use std::collections::BTreeMap;

use ccbench_proto::schedule::{self, Point};
use ccbench_proto::units::Micros;
use ccbench_proto::wire;
use ccbench_results::model::{NodeClock, TrialKey};
use ccbench_results::store::RunDir;
use ccbench_results::verdict::Judge;
use tokio::sync::mpsc;
use tracing::info;

use crate::backend::error::BackendError;
use crate::progress::TrialProgress;
use crate::recorder::TrialRecorder;

/// The clock of all nodes.
#[derive(Debug, Clone, Copy)]
pub struct VirtualClock {
    /// CLOCK_MONOTONIC when the trial begins, in nanoseconds.
    pub t0_ns: u64,
    /// How far CLOCK_REALTIME is ahead of CLOCK_MONOTONIC, in nanoseconds.
    pub realtime_minus_monotonic_ns: i64,
}

impl VirtualClock {
    /// Converts CLOCK_MONOTONIC to UTC, in nanoseconds since 1970.
    fn utc_ns(self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_add_signed(self.realtime_minus_monotonic_ns)
    }
}

/// The nodes' replies to Describe and Prepare, by node.
#[derive(Debug, Default)]
pub struct NodeReplies {
    /// Replies to Describe.
    pub infos: BTreeMap<String, wire::NodeInfo>,
    /// Replies to Prepare.
    pub replies: BTreeMap<String, wire::PrepareReply>,
}

/// A running trial.
pub struct VirtualTrial<'a> {
    /// Keeps its rows.
    pub recorder: TrialRecorder<'a>,
    clock: VirtualClock,
}

impl<'a> VirtualTrial<'a> {
    /// Starts to record a trial and reports its start to `progress`. `configure_judge` switches off checks that these nodes do
    /// not support.
    ///
    /// # Errors
    /// The results directory cannot be written.
    pub fn begin(
        dir: &'a RunDir,
        key: TrialKey,
        point: &Point,
        NodeReplies { infos, replies }: NodeReplies,
        clock: VirtualClock,
        progress: &TrialProgress<'_>,
        configure_judge: impl FnOnce(&mut Judge),
    ) -> Result<Self, BackendError> {
        info!(nodes = infos.len(), "run");
        dir.announce_trial(key)?;
        let node_clock = NodeClock::shared(clock.t0_ns, clock.realtime_minus_monotonic_ns);
        let clocks: BTreeMap<_, _> =
            infos.keys().map(|node| (node.clone(), node_clock.clone())).collect();
        progress.clocks(&clocks);
        let phases = schedule::phases(&point.plan);
        let mut judge = Judge::new(&point.plan, &infos, &clocks);
        configure_judge(&mut judge);
        let writer = dir.begin_announced(key, &phases, clocks)?;
        let mut recorder = TrialRecorder::new(writer, judge);
        recorder.writer.set_time(clock.utc_ns(clock.t0_ns));
        recorder.record_prepared(replies)?;
        Ok(Self { recorder, clock })
    }

    /// Returns the next message once the writer has room for it; `None` if the sender is gone.
    pub async fn next<T>(&self, receive: &mut mpsc::Receiver<T>) -> Option<T> {
        self.recorder.writer.wait_for_room().await;
        receive.recv().await
    }

    /// Sets the virtual time to `at_ns`: the controller's events get this time, and due progress is printed.
    pub fn tick(&mut self, at_ns: u64, progress: &mut TrialProgress<'_>) {
        progress.tick(Micros::new(at_ns.saturating_sub(self.clock.t0_ns) / 1000));
        progress.judge(|| self.recorder.judge.so_far());
        self.recorder.writer.set_time(self.clock.utc_ns(at_ns));
    }

    /// Records one message of a node.
    ///
    /// # Errors
    /// A table cannot be written.
    pub fn row(
        &mut self,
        node: &str,
        event: wire::RunEvent,
        progress: &mut TrialProgress<'_>,
    ) -> Result<(), BackendError> {
        progress.record(node, &event);
        Ok(self.recorder.record(node, event)?)
    }
}
