//! Arguments of `submit`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::RunOptions;

/// Arguments of `submit`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("scheduler").required(true).args(["slurm", "hyperqueue", "kubernetes"]))]
pub struct SubmitArgs {
    /// The plan file; the machines of the cluster read it at the same path.
    #[arg(value_hint = ValueHint::FilePath)]
    pub plan: PathBuf,
    /// Submit a job array to Slurm, wait for it, resubmit missing trials, and merge.
    #[arg(long, requires = "out")]
    pub slurm: bool,
    /// Print the command for HyperQueue.
    #[arg(long, requires = "out")]
    pub hyperqueue: bool,
    /// Print the manifest of an Indexed Job for Kubernetes, with the plan in a ConfigMap.
    #[arg(long, requires = "image", requires = "out")]
    pub kubernetes: bool,
    /// The container image of the job, with `ccbench` as its entry point.
    #[arg(long, requires = "kubernetes")]
    pub image: Option<String>,
    /// Number of shards [default: 8, or the number of trials].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub shards: Option<u32>,
    /// How often to resubmit trials that are missing after a job.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub resubmit: u32,
    /// Print the script of the job array instead of submitting it.
    #[arg(long, requires = "slurm")]
    pub dry_run: bool,
    /// Parent directory of the merged run.
    #[arg(long, default_value = "results", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub merged: PathBuf,
    /// Override a key of the plan, as in `ccbench run`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Options of the shards. They write their trials to `--out`: a directory that all machines share, or a URL.
    #[command(flatten)]
    pub options: RunOptions,
    /// Options for `sbatch`, which take precedence over those of the script: `-- --partition=short --time=30`.
    #[arg(last = true, value_name = "SBATCH OPTIONS", requires = "slurm")]
    pub sbatch: Vec<String>,
}
