//! Arguments of `top` and `view`, and the value of `--view`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

/// Where a run is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ViewPlace {
    /// A page on 127.0.0.1, whose address is printed.
    Browser,
    /// A screen in this terminal.
    Terminal,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The results directory of a run in progress [default: the only one].
    #[arg(value_hint = ValueHint::DirPath)]
    pub run: Option<PathBuf>,
    /// Print the updates as JSON, one object per line, instead of a screen.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `view`.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// The run, in progress or ended: a results directory, a directory of shards, or a URL of either [default: the only run in
    /// progress].
    #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub run: Option<PathBuf>,
}
