//! Measures the clocks of all nodes before and after trials.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ccbench_proto::units::Micros;
use futures_util::future::join_all;
use tracing::warn;

use super::{Address, AgentError, Agents};
use crate::clock;
use crate::clock_offset::{ClockOffset, ClockPrediction, needs_drift};

impl Agents {
    /// Returns how long to wait before a trial of this length, so that the measurement before it gives the drift of every clock exactly
    /// enough. Measures the clocks that have not been measured yet.
    ///
    /// # Errors
    /// A node does not answer.
    pub async fn wait_for_drift(&mut self, trial: Micros) -> Result<Duration, AgentError> {
        let trial_ns = trial.nanos();
        if !needs_drift(trial_ns) {
            return Ok(Duration::ZERO);
        }
        let waits = self.by_node.iter_mut().map(|(node, agent)| async move {
            if agent.clock.is_empty() {
                let measured = agent.measure_clock_offset(node).await?;
                agent.clock.add(measured);
            }
            Ok(agent.clock.wait_ns(clock::monotonic_ns(), trial_ns))
        });
        let waits_ns: Result<Vec<u64>, AgentError> = join_all(waits).await.into_iter().collect();
        Ok(Duration::from_nanos(waits_ns?.into_iter().max().unwrap_or(0)))
    }

    /// Measures the offset of every node's clock before a trial.
    ///
    /// # Errors
    /// A node does not answer.
    pub async fn clock_offsets(&mut self) -> Result<BTreeMap<String, ClockPrediction>, AgentError> {
        let measured = self.by_node.iter_mut().map(|(node, agent)| async move {
            let measured = agent.measure_clock_offset(node).await?;
            Ok((node.clone(), agent.clock.add(measured)))
        });
        join_all(measured).await.into_iter().collect()
    }

    /// Measures the offset of the clocks of `nodes` after a trial. Nodes that do not answer are missing from the result.
    pub async fn clock_offsets_after(
        &mut self,
        nodes: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, ClockOffset> {
        let asked = self.by_node.iter_mut().filter(|(node, _)| nodes(node));
        let measured = asked.map(|(node, agent)| async move {
            let measured = agent.measure_clock_offset(node).await;
            let measured = measured.inspect_err(|error| warn!("{error}")).ok()?;
            agent.clock.add(measured);
            Some((node.clone(), measured))
        });
        join_all(measured).await.into_iter().flatten().collect()
    }
}

/// Measures the offset of an agent's clock `count` times, each with one exchange of timestamps.
///
/// # Errors
/// The agent does not answer.
#[doc(hidden)]
pub async fn exchange_timestamps(
    socket: PathBuf,
    count: usize,
) -> Result<Vec<ClockOffset>, AgentError> {
    const NODE: &str = "node";
    let addresses = BTreeMap::from([(NODE.to_owned(), Address::Socket(socket))]);
    let agents = Agents::connect(addresses, None).await?;
    let mut offsets = Vec::with_capacity(count);
    for _ in 0..count {
        offsets.push(agents.by_node[NODE].exchange_timestamps(NODE).await?);
    }
    Ok(offsets)
}
