//! The processes that run the shards of a run.

use serde::{Deserialize, Serialize};

/// One process that runs a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The attempt's ID, unique among the attempts at a run.
    pub id: String,
    /// The attempt's shard, from 1.
    pub shard: u32,
    /// The number of shards.
    pub shards: u32,
    /// The host's name.
    pub host: String,
    /// The job that started the attempt; `None` without a scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<SchedulerJob>,
}

/// A scheduler's job and how often it has been started, which serves as a fencing epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerJob {
    /// `slurm`, `hyperqueue` or `kubernetes`.
    pub scheduler: String,
    /// The scheduler's name for the job, including the task.
    pub id: String,
    /// Slurm's SLURM_RESTART_COUNT or HyperQueue's HQ_INSTANCE_ID; `None` if the scheduler does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
}
