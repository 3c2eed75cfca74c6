//! Arguments of `merge`, and the value of `run --shard`.

use std::path::PathBuf;
use std::str::FromStr;

use ccbench_proto::schedule::{MAX_SHARDS, Shard, ShardError};
use clap::{Args, ValueHint};

/// Which shard a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardChoice {
    /// `I/N`.
    Given(Shard),
    /// `auto`: the scheduler's task is the shard, and the scheduler knows the number of tasks.
    Auto,
    /// `auto/N`: the scheduler's task is the shard.
    AutoOf(u32),
}

impl FromStr for ShardChoice {
    type Err = ShardError;
    fn from_str(text: &str) -> Result<Self, ShardError> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let count = text.strip_prefix("auto/").and_then(|count| count.parse().ok());
        match count.filter(|count| (1..=MAX_SHARDS).contains(count)) {
            Some(count) => Ok(Self::AutoOf(count)),
            None => text.parse().map(Self::Given),
        }
    }
}

/// Arguments of `merge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// Where the shards wrote their results: the directory or the URL of their `--out`.
    #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub shards: String,
    /// Parent directory of the merged run, or the URL of a folder in a bucket.
    #[arg(long, default_value = "results", value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Also merge when trials are missing; `ccbench run --resume` runs them.
    #[arg(long)]
    pub partial: bool,
    /// Put the rows of all trials into a few large files for each table, instead of one file for each trial. Such a run cannot be
    /// resumed or packed.
    #[arg(long, conflicts_with = "partial")]
    pub compact: bool,
    /// Print one JSON object per line instead of text.
    #[arg(long)]
    pub json: bool,
    /// Exit with 1 if a trial is degraded, too.
    #[arg(long)]
    pub strict: bool,
}
