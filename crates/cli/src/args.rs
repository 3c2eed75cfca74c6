//! What can be typed after `ccbench`.

use std::ffi::OsString;
use std::path::PathBuf;

use ccbench_proto::plan::Series;
use ccbench_proto::tools::stamp::Base;
use ccbench_proto::trace::Format;
use ccbench_proto::trace::generate::{Between, Kind};
use ccbench_proto::units::{Micros, Rate};
use clap::{Args, Parser, Subcommand, ValueHint};

use crate::trace::Output;
use ccbench_results::figure;

/// Congestion-control experiments from one plan file.
///
/// A plan names nodes, links, flows and phases; `ccbench run` builds the topology in network namespaces of
/// this machine (or drives agents on real nodes), runs every trial, judges it, and writes Parquet tables.
#[derive(Debug, Parser)]
#[command(name = "ccbench", version, max_term_width = 110, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Log what happens to standard error (-v steps, -vv messages).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

const EXIT_CODES: &str = "Exit codes: 0 every trial is ok or degraded, and every claim that was measured holds · \
1 a trial failed · 2 the plan or the command is wrong · 3 the testbed or an agent cannot be had · 4 a claim does not \
hold · 130 interrupted.\nFirst steps: `ccbench check \
plans/quickstart.toml`, then `ccbench run plans/quickstart.toml`.";

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a plan: every point of its matrix, every repetition.
    Run(RunArgs),
    /// Check a plan: print every problem with its place and its fix, and warn of what misleads.
    Check(CheckArgs),
    /// What a plan may hold: every key with its type, default and meaning, for people and for editors.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Run a published experiment, and say which of its claims hold here. Without a name: which there are.
    Reproduce(ReproduceArgs),
    /// Summarise a results directory again: tables, CSV and Parquet.
    Summarize(SummarizeArgs),
    /// Put what ss, iperf3 and ping wrote elsewhere into the tables of a results directory.
    Import(ImportArgs),
    /// Put a results directory on one page: a single HTML file for a browser, also offline.
    Report(ReportArgs),
    /// Write a run for other tools: tables as CSV, flent's data files, iperf3's JSON.
    #[command(subcommand)]
    Export(ExportCommand),
    /// Compare two runs, or two levels of a factor: differences with intervals and effect sizes.
    Compare(CompareArgs),
    /// Draw figures for a paper (SVG and PNG), each with the CSV behind it.
    Plot(PlotArgs),
    /// Show what the nodes of a plan are and can do (kernel, congestion controls, qdiscs, offloads).
    Describe(DescribeArgs),
    /// Run a command inside a node of a running experiment: `ccbench exec src -- ss -ti`.
    Exec(ExecArgs),
    /// The lab: a virtual machine whose clock counts instructions (see `run --lab`).
    #[command(subcommand)]
    Lab(LabCommand),
    /// Run an emulated link by itself, or a command behind one: `ccbench link --rate 10mbit -- iperf3 …`.
    #[command(disable_help_flag = true)]
    Link {
        /// See `ccbench link --help`.
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "OPTIONS AND COMMAND"
        )]
        arguments: Vec<OsString>,
    },
    /// Congestion controls: list, show, load and unload them by hand.
    #[command(disable_help_flag = true)]
    Cc {
        /// See `ccbench cc --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
        arguments: Vec<OsString>,
    },
    /// Look at capacity traces, convert them, draw them, or make some up.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Remove what dead experiments of this machine left behind (and nothing else).
    Clean,
    /// Make a certificate authority, and certificates for nodes and controllers.
    #[command(subcommand)]
    Pki(PkiCommand),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages to a folder.
    Man {
        /// The folder.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

/// A plan and its overrides.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The plan file.
    #[arg(value_hint = ValueHint::FilePath)]
    pub plan: PathBuf,
    /// Override a key: `--set links.bottleneck.rate=50mbit`, `--set repeat=1`, `--set phases.0.length=5s`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
}

/// How to reach agents over TCP.
#[derive(Debug, Args)]
pub struct TlsArgs {
    /// Folder with `ca.pem`, `controller.pem` and `controller.key` (see `ccbench pki`); needed for agents beyond loopback.
    #[arg(long, env = "CCBENCH_PKI", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub pki: Option<PathBuf>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The plan file (not with --resume, which has its own copy).
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "resume")]
    pub plan: Option<PathBuf>,
    /// Override a key: `--set links.bottleneck.rate=50mbit`, `--set repeat=1`, `--set phases.0.length=5s`.
    #[arg(long = "set", value_name = "KEY=VALUE", conflicts_with = "resume")]
    pub sets: Vec<String>,
    /// Go on with this results directory after its last finished trial.
    #[arg(long, value_name = "DIR", conflicts_with = "plan", value_hint = ValueHint::DirPath)]
    pub resume: Option<PathBuf>,
    /// With --resume: run trials anew that were judged failed.
    #[arg(long, requires = "resume")]
    pub retry_failed: bool,
    /// How to run it.
    #[command(flatten)]
    pub how: HowArgs,
}

/// Arguments of `reproduce`.
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// Which one; left out: a list of them.
    pub name: Option<String>,
    /// Override a key of its plan, as in `ccbench run`.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "name")]
    pub sets: Vec<String>,
    /// Write its plan and its traces into this folder, to be changed and run with `ccbench run`, instead of running it.
    #[arg(long, value_name = "DIR", requires = "name", value_hint = ValueHint::DirPath)]
    pub write: Option<PathBuf>,
    /// How to run it.
    #[command(flatten)]
    pub how: HowArgs,
}

/// How a plan is run.
#[derive(Debug, Args)]
pub struct HowArgs {
    /// A first look: the overrides of the plan's own `[quick]` (fewer trials, shorter phases). `--set` wins over them.
    #[arg(long)]
    pub quick: bool,
    /// Where results directories are made.
    #[arg(long, default_value = "results", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Print one JSON object per line instead of text.
    #[arg(long)]
    pub json: bool,
    /// Exit with 1 for a degraded trial too.
    #[arg(long)]
    pub strict: bool,
    /// Go on with the other points when a trial cannot even be prepared.
    #[arg(long)]
    pub keep_going: bool,
    /// Build the topology in a user namespace even as root.
    #[arg(long)]
    pub rootless: bool,
    /// Run every trial in the lab: a virtual machine of its own whose clock counts instructions, so that the
    /// result depends on the plan and its seed alone. Needs no root; `ccbench lab build` once before. A plan that
    /// names a kernel runs there anyway.
    #[arg(long)]
    pub lab: bool,
    /// In the lab: own, 6.1, 6.12 or 7.2, where the plan names none (`lab.kernel`) [default: own].
    #[arg(long)]
    pub kernel: Option<Series>,
    /// In the lab: how many times faster the guest's processor is against its network, instead of measuring.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub dilation: Option<u32>,
    /// How to reach agents.
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// Sub-commands of `lab`.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Build the lab's kernel into the cache (about 15 minutes, once); at once if it is there.
    Build {
        /// own, 6.1, 6.12 or 7.2; stock ones are fetched.
        #[arg(long, default_value_t)]
        kernel: Series,
    },
    /// Open a prompt in the lab's machine. `poweroff -f` or Ctrl-A X leaves.
    Shell {
        /// own, 6.1, 6.12 or 7.2.
        #[arg(long, default_value_t)]
        kernel: Series,
        /// How many times faster the guest's processor is against its network.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=500))]
        dilation: u32,
    },
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The plan.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Print the plan as it will run: presets, defaults and limits filled in, one point after the other.
    #[arg(long)]
    pub expand: bool,
    /// With the overrides of its `[quick]`.
    #[arg(long)]
    pub quick: bool,
}

/// Sub-commands of `plan`.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Print the keys of a table, or all of them.
    Reference {
        /// A table, `links`, `links.trace`, or a kind of queue, `pie`; left out: all.
        table: Option<String>,
        /// As a chapter of the manual.
        #[arg(long, conflicts_with = "table")]
        markdown: bool,
    },
    /// Print a JSON schema of plans, with which editors complete and check them: write it to a file, and
    /// `#:schema FILE` above the plan (Taplo, Even Better TOML).
    Schema,
}

/// Arguments of `summarize`.
#[derive(Debug, Args)]
pub struct SummarizeArgs {
    /// The results directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub run: PathBuf,
    /// Also print the six columns of the coexistence study (throughput and srtt in each phase, per trial) for this flow group.
    #[arg(long, value_name = "GROUP")]
    pub six_columns: Option<String>,
    /// Hold the claims (`[[expect]]`) of this plan against the numbers, in place of those that the run was made with.
    #[arg(long, value_name = "PLAN", value_hint = ValueHint::FilePath)]
    pub expect: Option<PathBuf>,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Files of `ss -ti` (with ts(1) in front or not), iperf3 (text, -J, --json-stream) and ping, and folders of them.
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// The results directory to make.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: PathBuf,
    /// The node that a file is from, if its name holds PART; without PART=, all others [default: imported].
    #[arg(long = "node", value_name = "[PART=]NODE")]
    pub nodes: Vec<String>,
    /// Name of the flows to this server: `--group 5201=bulk`, `--group 10.0.3.1:5201=bulk` [default: their congestion control].
    #[arg(long = "group", value_name = "SERVER=NAME", value_parser = group)]
    pub groups: Vec<String>,
    /// A phase, after the ones before it: `--phase alone=60s --phase compete=60s` [default: one over everything].
    #[arg(long = "phase", value_name = "NAME=LENGTH", value_parser = phase)]
    pub phases: Vec<(String, Micros)>,
    /// The last number that stands alone in a file's name is its trial: `cubic-3-ss.txt` [default: one trial].
    #[arg(long)]
    pub trials: bool,
    /// The day, where time stamps do not say it; year, where they do not say that.
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = day)]
    pub date: Option<Base>,
    /// Print every line that could not be read.
    #[arg(long)]
    pub all: bool,
}

fn group(text: &str) -> Result<String, String> {
    let (server, name) = text.split_once('=').ok_or("write SERVER=NAME, as in 5201=bulk")?;
    let port = server.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
    match port && !name.is_empty() {
        true => Ok(text.to_owned()),
        false => Err("SERVER is a port, or an address and a port, as in 10.0.3.1:5201".to_owned()),
    }
}

fn phase(text: &str) -> Result<(String, Micros), String> {
    let (name, length) = text.split_once('=').ok_or("write NAME=LENGTH, as in alone=60s")?;
    let length: Micros = length.parse().map_err(|why| format!("{why}"))?;
    Ok((name.to_owned(), length))
}

fn day(text: &str) -> Result<Base, String> {
    Base::parse(text).ok_or_else(|| "write a day as 2024-09-30".to_owned())
}

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The results directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub run: PathBuf,
    /// The file; left out, `report.html` in the results directory.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Hold the claims (`[[expect]]`) of this plan against the numbers, in place of those that the run was made with.
    #[arg(long, value_name = "PLAN", value_hint = ValueHint::FilePath)]
    pub expect: Option<PathBuf>,
    /// Count failed and aborted trials in the means too.
    #[arg(long)]
    pub include_failed: bool,
}

/// Sub-commands of `export`.
#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// Tables as CSV, all or some of them.
    Csv {
        /// The results directory.
        #[arg(value_hint = ValueHint::DirPath)]
        run: PathBuf,
        /// Only these: `flow_samples`, `intervals`, `summary_point` …
        #[arg(long = "table", value_name = "NAME", value_delimiter = ',')]
        tables: Vec<String>,
        /// The folder; - is standard output.
        #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        output: PathBuf,
    },
    /// A .flent.gz file per trial, which flent and its GUI open as a test of its kind tcp_nup.
    Flent(ExportArgs),
    /// The JSON that each iperf3 wrote, a file per flow group and end.
    Iperf3(ExportArgs),
}

/// Arguments of `export flent` and `export iperf3`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The results directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub run: PathBuf,
    /// The folder.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: PathBuf,
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// A results directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub a: PathBuf,
    /// Another one.
    #[arg(value_hint = ValueHint::DirPath, required_unless_present = "by", conflicts_with = "by")]
    pub b: Option<PathBuf>,
    /// Two levels of a factor of the one run instead: `--by scheme=cubic,bbr`.
    #[arg(long, value_name = "FACTOR=LEVEL,LEVEL", value_parser = levels)]
    pub by: Option<(String, String, String)>,
    /// Metrics of the summary instead of the usual ones: `srtt`, `srtt:p95`, `throughput_sum:mean`.
    #[arg(long = "metric", value_name = "NAME[:STAT]", value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// Write the table as CSV too; - is standard output, instead of the table.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub csv: Option<PathBuf>,
    /// Take failed and aborted trials too.
    #[arg(long)]
    pub include_failed: bool,
}

fn levels(text: &str) -> Result<(String, String, String), String> {
    let how = || "write FACTOR=LEVEL,LEVEL, as in scheme=cubic,bbr".to_owned();
    let (factor, levels) = text.split_once('=').ok_or_else(how)?;
    let (one, other) = levels.split_once(',').ok_or_else(how)?;
    Ok((factor.to_owned(), one.to_owned(), other.to_owned()))
}

/// Arguments of `plot`.
#[derive(Debug, Args)]
pub struct PlotArgs {
    /// The results directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub run: PathBuf,
    /// What to draw.
    #[arg(long, value_enum)]
    pub kind: figure::Kind,
    /// Only of these: a factor of the matrix, `point_id`, `trial`, `phase`, `group`, `flow_id`, `link` or `cc`, and its
    /// value. Of several points there is a figure each, where one cannot hold them all.
    #[arg(long = "where", value_name = "COLUMN=VALUE", value_parser = column)]
    pub wheres: Vec<(String, String)>,
    /// Metrics instead of the usual ones: of the summary (`srtt`, `srtt:p95`) for phases and heatmap; `throughput`, `srtt`, `cwnd`,
    /// `in_flight`, `queue`, `rate`, `probe_rtt`, `retransmissions` for series; variables for cc_state.
    #[arg(long = "metric", value_name = "NAME[:STAT]", value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// A folder, or one file that ends in .svg or .png; left out, `figures` in the results directory.
    #[arg(long, short, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub output: Option<PathBuf>,
    /// What to write into a folder.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["svg", "png"])]
    pub format: Vec<figure::Format>,
    /// Width; left out, 85 (a column of a paper) or 175 (two), by the kind.
    #[arg(long, value_name = "MM", value_parser = millimetres)]
    pub width_mm: Option<f64>,
    /// Height; left out, what the kind needs.
    #[arg(long, value_name = "MM", value_parser = millimetres)]
    pub height_mm: Option<f64>,
    /// Take failed and aborted trials too.
    #[arg(long)]
    pub include_failed: bool,
}

fn column(text: &str) -> Result<(String, String), String> {
    let (column, value) = text.split_once('=').ok_or("write COLUMN=VALUE, as in trial=2")?;
    Ok((column.to_owned(), value.to_owned()))
}

fn millimetres(text: &str) -> Result<f64, String> {
    let mm: f64 = text.parse().map_err(|e| format!("{e}"))?;
    match (30.0..=600.0).contains(&mm) {
        true => Ok(mm),
        false => Err("a figure is 30 to 600 mm wide and high".to_owned()),
    }
}

/// Arguments of `describe`.
#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// The plan.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Build the topology in a user namespace even as root.
    #[arg(long)]
    pub rootless: bool,
    /// How to reach agents.
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// Arguments of `exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The node's name in the plan.
    pub node: String,
    /// Which experiment, when more than one is running (a part of its id is enough).
    #[arg(long, value_name = "ID")]
    pub run: Option<String>,
    /// The command.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Sub-commands of `pki`.
#[derive(Debug, Subcommand)]
pub enum PkiCommand {
    /// Make a certificate authority and the controller's certificate.
    Init {
        /// The folder to make.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Make a node's certificate, to be copied to that node with `ca.pem`.
    Node {
        /// The folder of `pki init`.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Host name or address by which controllers reach the node.
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// Sub-commands of `trace`.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Print format, length, rows and rates of traces, or every line that is wrong.
    Info {
        /// The files: mahimahi, `rate_mbit,dwell_s`, `t_s rate_mbit`, netem-trace JSON, TheaterQ, ccbench's CSV or Parquet.
        #[arg(required = true, value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
    /// Write a trace in another format.
    Convert(ConvertArgs),
    /// Draw the rate over time as SVG.
    Plot {
        /// The trace.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The picture to write; - is standard output.
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
    /// Make a trace up. The same kind, seed and length give the same bytes.
    Generate(GenerateArgs),
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
    /// mahimahi, dwell, timed, netem-trace, theaterq, ccbench or parquet [default: by the output's ending, else ccbench].
    #[arg(long)]
    pub format: Option<Output>,
    /// What the input is, if that cannot be told.
    #[arg(long, value_name = "FORMAT")]
    pub from: Option<Format>,
}

/// Arguments of `trace generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// 60 GHz WLAN: sl (static), sb and lb (short, long blockages), mobb (mobility); lte, poisson; steps, sawtooth, random-walk.
    pub kind: Kind,
    /// What is random in it.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long it lasts.
    #[arg(long, default_value = "120s")]
    pub length: Micros,
    /// The highest rate of steps, sawtooth and random-walk [default: 100mbit], the mean of poisson [default: 3mbit]; the others have
    /// their own.
    #[arg(long)]
    pub rate: Option<Rate>,
    /// The ends of random-walk; their unit says what walks: 10ms..60ms the delay, 0%..1% the loss, 5mbit..40mbit the rate
    /// [default: the rate, from a tenth of --rate to all of it].
    #[arg(long, value_name = "LOW..HIGH")]
    pub between: Option<Between>,
    /// The file to write; - is standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// mahimahi, dwell, timed, netem-trace, theaterq, ccbench or parquet [default: what the kind usually comes in].
    #[arg(long)]
    pub format: Option<Output>,
}
