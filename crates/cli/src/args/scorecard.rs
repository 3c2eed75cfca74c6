//! Arguments of `scorecard`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::RunOptions;

/// Arguments of `scorecard`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ccbench scorecard [OPTIONS] <CC>\n       ccbench scorecard [OPTIONS] --resume <DIR>"
)]
pub struct ScorecardArgs {
    /// The congestion control: one of ccbench's own (`ccbench cc list`), of the kernel, or the file of your own (`mine.bpf.o`,
    /// `tcp_mine.ko`).
    #[arg(value_name = "CC", required_unless_present = "resume")]
    pub cc: Option<String>,
    /// Override a key of the plan, as in `ccbench run`; keys of `cc.CC`, such as `cc.vegas.via=builtin`, are those of the
    /// congestion control under test. Of a file `mine.bpf.o`, CC is `mine`.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "cc")]
    pub sets: Vec<String>,
    /// Continue the scorecard in this results directory, or print it again.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    #[arg(conflicts_with_all = ["cc", "quick"])]
    pub resume: Option<PathBuf>,
    /// Options of the run.
    #[command(flatten)]
    pub options: RunOptions,
}
