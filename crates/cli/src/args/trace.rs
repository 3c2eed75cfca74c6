//! Arguments of `trace`.

use std::path::PathBuf;

use ccbench_proto::trace::Format;
use ccbench_proto::trace::generate::{Between, Kind};
use ccbench_proto::units::{Micros, Rate};
use clap::{Args, Subcommand, ValueHint};

use super::record::RecordArgs;
use super::values::{TraceFormat, whole_number};

/// Sub-commands of `trace`.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Print format, length, rows and rates of traces, or every invalid line.
    Info {
        /// The files: mahimahi, `rate_mbit,dwell_s`, `t_s rate_mbit`, netem-trace JSON, TheaterQ, ccbench's CSV or Parquet.
        #[arg(required = true, value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
    /// Convert a trace to another format.
    Convert(ConvertArgs),
    /// Plot the rate over time as SVG.
    Plot {
        /// The trace.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The SVG file; - is standard output.
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
    /// Generate a trace. The same kind, seed and length give the same bytes.
    Generate(GenerateArgs),
    /// Record a path as traces that links replay: its capacity in both directions, by UDP streams that exceed it, and its delay.
    Record(Box<RecordArgs>),
}

/// Arguments of `trace convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The trace to read.
    #[arg(value_hint = ValueHint::FilePath)]
    pub input: PathBuf,
    /// The file to write; - is standard output.
    #[arg(value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// mahimahi, dwell, timed, netem-trace, theaterq, ccbench or parquet [default: from the output's extension, ccbench without one].
    #[arg(long)]
    pub format: Option<TraceFormat>,
    /// Format of the input, if it cannot be detected.
    #[arg(long, value_name = "FORMAT")]
    pub from: Option<Format>,
}

/// Arguments of `trace generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// 60 GHz WLAN: sl (static), sb and lb (short, long blockages), mobb (mobility); lte, poisson; steps, sawtooth, random-walk.
    pub kind: Kind,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1, value_parser = whole_number, allow_hyphen_values = true)]
    pub seed: u64,
    /// Length of the trace.
    #[arg(long, default_value = "120s", allow_hyphen_values = true)]
    pub length: Micros,
    /// The highest rate of steps, sawtooth and random-walk [default: 100mbit], or the mean rate of poisson [default: 3mbit]. The
    /// other kinds have fixed rates.
    #[arg(long, allow_hyphen_values = true)]
    pub rate: Option<Rate>,
    /// Limits of random-walk; their unit selects the quantity: 10ms..60ms the delay, 0%..1% the loss, 5mbit..40mbit the rate
    /// [default: the rate, from a tenth of --rate to all of it].
    #[arg(long, value_name = "LOW..HIGH")]
    pub between: Option<Between>,
    /// The file to write; - is standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// mahimahi, dwell, timed, netem-trace, theaterq, ccbench or parquet [default: the usual format of the kind].
    #[arg(long)]
    pub format: Option<TraceFormat>,
}
