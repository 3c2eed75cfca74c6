//! Arguments of `export`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};

/// Sub-commands of `export`.
#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// Export tables as CSV.
    Csv {
        /// The run: a results directory, a directory of shards, or a URL (`s3://BUCKET/PREFIX`) of either.
        #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
        run: PathBuf,
        /// Only these tables: `flow_samples`, `intervals`, `summary_point` …
        #[arg(long = "table", value_name = "NAME", value_delimiter = ',')]
        tables: Vec<String>,
        /// The output directory; - is standard output.
        #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        output: PathBuf,
    },
    /// Export one .flent.gz file per trial, which flent opens as a test of uploads, downloads or both.
    Flent(ExportArgs),
    /// Export the JSON output of iperf3: one file per flow group and end.
    Iperf3(ExportArgs),
    /// Export one OpenMetrics file per trial for Prometheus: load, drops and clocks of the machines, and the verdict.
    #[command(name = "openmetrics")]
    OpenMetrics(ExportArgs),
    /// Export one trace per trial for Perfetto's viewer: counters, and phases and states as slices.
    Perfetto(ExportArgs),
    /// Export one qlog file per trial and sender for qvis: metrics, states and losses as recovery events.
    Qlog(ExportArgs),
}

impl ExportCommand {
    /// The output directory.
    pub fn output(&self) -> &Path {
        match self {
            Self::Csv { output, .. } => output,
            Self::Flent(args)
            | Self::Iperf3(args)
            | Self::OpenMetrics(args)
            | Self::Perfetto(args)
            | Self::Qlog(args) => &args.output,
        }
    }

    /// The run.
    pub fn run(&self) -> &Path {
        match self {
            Self::Csv { run, .. } => run,
            Self::Flent(args)
            | Self::Iperf3(args)
            | Self::OpenMetrics(args)
            | Self::Perfetto(args)
            | Self::Qlog(args) => &args.run,
        }
    }
}

/// Arguments of `export flent`, `iperf3`, `openmetrics`, `perfetto` and `qlog`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The run: a results directory, a directory of shards, or a URL (`s3://BUCKET/PREFIX`) of either.
    #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub run: PathBuf,
    /// The output directory.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: PathBuf,
}
