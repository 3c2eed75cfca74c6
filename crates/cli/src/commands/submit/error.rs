//! Why shards are not submitted, or not waited for.

use std::io;

use crate::exit::ExitCode;
use crate::shard::ShardRunError;

/// The plan does not fit the scheduler, or the scheduler does not take or describe its jobs.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// HyperQueue would run shards at the same time that share agents.
    #[error(
        "--hyperqueue: all shards use the agents of the plan, and HyperQueue runs them at the same time; add --shards 1, or use --slurm"
    )]
    SharedAgents,
    /// Pods lack files of the plan, or a place for the shards.
    #[error(
        "--kubernetes: pods can read only the plan and a bucket; leave out traces and files of congestion controls, and give --out \
         s3://BUCKET/PREFIX"
    )]
    FilesOfPods,
    /// Pods would run trials in real time.
    #[error(
        "--kubernetes: pods share machines, and trials in real time disturb each other; add --sim or --lab"
    )]
    RealTimeInPods,
    /// The path of this program, which the jobs run, is unknown.
    #[error("cannot find this program: {0}")]
    OwnProgram(#[source] io::Error),
    /// Slurm is not configured on this machine.
    #[error(
        "Slurm is not available on this machine: {reason}; run this command where `sinfo` lists partitions"
    )]
    NoSlurm {
        /// The message of sbatch.
        reason: String,
    },
    /// Slurm rejected the job.
    #[error(
        "sbatch refused the job: {reason}; options after `--` go to sbatch, and --dry-run prints the script"
    )]
    Refused {
        /// The message of sbatch.
        reason: String,
    },
    /// Slurm did not answer when the job was submitted, and may have the job.
    #[error(
        "sbatch got no answer from Slurm: {reason}; the job may be in the queue: cancel it (`scancel --me --name={name}`) or wait for \
         its end (`squeue --me --name={name}`), then repeat the command"
    )]
    MaybeSubmitted {
        /// The message of sbatch.
        reason: String,
        /// The name of the job.
        name: String,
    },
    /// Slurm did not answer for too long.
    #[error(
        "Slurm has not answered for {limit_min} min ({program}: {reason}); jobs in its queue continue: repeat the command when Slurm \
         answers"
    )]
    Outage {
        /// How long this command waits for an answer, in minutes.
        limit_min: u64,
        /// The program that got no answer.
        program: &'static str,
        /// Its message.
        reason: String,
    },
    /// Slurm does not describe a job.
    #[error(
        "squeue does not print the state of job {id}: {reason}; the job continues: repeat the command when `squeue --jobs {id}` works"
    )]
    NoState {
        /// The job.
        id: String,
        /// The message of squeue.
        reason: String,
    },
    /// A job is in Slurm's queue but not in the store, where the next command would look for it.
    #[error(
        "job {id} is in Slurm's queue, but the store cannot keep its ID: {source}; cancel the job (`scancel {id}`) or wait for its end \
         (`squeue --jobs {id}`), then repeat the command: it does not know this job and would run the same shards again"
    )]
    NotRecorded {
        /// The job.
        id: String,
        /// Why.
        source: Box<ShardRunError>,
    },
}

impl SubmitError {
    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::SharedAgents
            | Self::FilesOfPods
            | Self::RealTimeInPods
            | Self::Refused { .. } => ExitCode::Usage,
            Self::OwnProgram(_) => ExitCode::Failure,
            Self::NoSlurm { .. }
            | Self::MaybeSubmitted { .. }
            | Self::Outage { .. }
            | Self::NoState { .. } => ExitCode::Unavailable,
            Self::NotRecorded { source, .. } => source.exit_code(),
        }
    }
}
