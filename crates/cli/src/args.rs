//! The command line of `ccbench`.

use std::ffi::OsString;
use std::path::PathBuf;

use ccbench_proto::plan::{Engine, Series};
use ccbench_proto::tools::stamp::BaseDate;
use ccbench_proto::units::Micros;
use ccbench_results::compare::Tolerance;
use ccbench_results::figure;
use clap::{Args, Parser, Subcommand, ValueHint};

use artifact::ArtifactCommand;
use export::ExportCommand;
use index::IndexArgs;
use new::NewArgs;
use reset::ResetArgs;
use scorecard::ScorecardArgs;
use shard::{MergeArgs, ShardChoice};
use submit::SubmitArgs;
use testbed::TestbedArgs;
use trace::TraceCommand;
use values::{column, day, group, levels, millimetres, phase};

pub mod artifact;
pub mod export;
pub mod index;
pub mod new;
pub mod pki;
pub mod record;
pub mod reset;
pub mod scorecard;
pub mod shard;
pub mod submit;
pub mod testbed;
pub mod trace;
pub mod values;
pub mod view;
pub use pki::PkiCommand;

/// Runs congestion-control experiments from one plan file.
///
/// A plan describes nodes, links, flows and phases. `ccbench run` builds the topology in network namespaces on
/// this machine (or drives agents on other machines), runs and judges every trial, and writes Parquet tables.
#[derive(Debug, Parser)]
#[command(name = "ccbench", version, max_term_width = 110, after_help = EXIT_CODES)]
pub struct Cli {
    /// The sub-command.
    #[command(subcommand)]
    pub command: Command,
    /// Log to standard error: -v logs the steps of each trial, -vv also the messages to and from agents.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

const EXIT_CODES: &str = "Exit codes: 0 success · 1 a file is damaged, or cannot be read or written · 2 the plan or the command line is \
invalid · 3 the testbed, an agent or a scheduler is not available, or a certificate already exists or is revoked (`pki`) · 4 `artifact rerun` or `artifact claim`: not reproduced · 130 interrupted · 143 \
`run --shard` was terminated; run it again.\nOf commands that run trials (`run`, `merge`, `submit`, `reproduce`, `scorecard`, `trace record`): 0 \
every trial is ok or degraded, and every measured claim holds · 1 a trial failed · 4 a claim does not hold.\n\
First steps: `ccbench new`, then `ccbench check plan.toml` and `ccbench run plan.toml`. A package has the documents in share/doc/ccbench/docs \
below /usr or the virtual environment; begin with tutorial.md.";

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a first plan from the answers to five questions, or from options.
    New(NewArgs),
    /// Report what this machine can do, and what to install.
    Doctor {
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Run a plan: every point of its matrix, every repetition.
    Run(RunArgs),
    /// Merge the trials of all shards (`run --shard`) into one run, and summarise it.
    #[command(
        after_help = "Exit codes: 1 trials are missing, an object is damaged, or the machines disagree; others as of `ccbench run`."
    )]
    Merge(MergeArgs),
    /// Run the shards of a plan as jobs of Slurm, and merge them; or print what HyperQueue or Kubernetes needs.
    Submit(SubmitArgs),
    /// Write the request with which a testbed reserves a plan's nodes (CloudLab, FABRIC, containerlab), and the plan for these
    /// nodes.
    Testbed(TestbedArgs),
    /// Check a plan: print every problem with its line and a fix, and warn about misleading setups.
    Check(CheckArgs),
    /// Print the reference of all plan keys, or a JSON schema for editors.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Run a published experiment and check its claims on this machine. Without a name, list the experiments.
    Reproduce(ReproduceArgs),
    /// Measure a congestion control and CUBIC by the criteria of RFC 9743 (BCP 133), and print them as one table. In the lab and
    /// the simulator (`--lab`, `--sim`) the values are repeatable.
    Scorecard(ScorecardArgs),
    /// Summarise a results directory again: tables, CSV and Parquet.
    Summarize(SummarizeArgs),
    /// Compare every file of a run with its digest, where the run is stored.
    #[command(
        after_help = "Exit codes: 0 every file that has a digest is intact · 1 a file is damaged, missing or unexpected; with \
--strict also if a file has no digest · 2 there is no run."
    )]
    Verify(VerifyArgs),
    /// Import the output of ss, iperf3 and ping, files of flent and qlog files into the tables of a results directory.
    Import(ImportArgs),
    /// Write an HTML report of a results directory: a single file that also works offline.
    Report(ReportArgs),
    /// Write a page that lists all runs in a directory with their verdicts, with links to their reports.
    Index(IndexArgs),
    /// Export a run for other tools: CSV tables, flent data files, iperf3 JSON, OpenMetrics, Perfetto traces, qlog.
    #[command(subcommand)]
    Export(ExportCommand),
    /// Pack a run for reviewers, or run such an artifact again and compare.
    #[command(subcommand)]
    Artifact(ArtifactCommand),
    /// Compare two runs, or two levels of a factor: differences with confidence intervals and effect sizes.
    Compare(CompareArgs),
    /// Draw figures for a paper (SVG and PNG), each with its data as CSV.
    Plot(PlotArgs),
    /// Describe the nodes of a plan: kernel, congestion controls, qdiscs, offloads.
    Describe(DescribeArgs),
    /// Show a run in progress at the terminal: flows with sparklines, links, machines and the verdict as it forms.
    Top(view::TopArgs),
    /// Show a run in the browser: live while it is in progress, then its report.
    View(view::ViewArgs),
    /// Run a command inside a node of a running experiment: `ccbench exec src -- ss -ti`.
    Exec(ExecArgs),
    /// The lab: a virtual machine with a virtual clock (see `run --lab`).
    #[command(subcommand)]
    Lab(LabCommand),
    /// Run an emulated link on its own, or a command behind one: `ccbench link --rate 10mbit -- iperf3 …`.
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
    /// List, show, load and unload congestion controls.
    #[command(disable_help_flag = true)]
    Cc {
        /// See `ccbench cc --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
        arguments: Vec<OsString>,
    },
    /// Inspect, convert, plot, generate and record capacity traces.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Remove what crashed experiments left on this machine (and nothing else).
    Clean,
    /// Free nodes with agents: end the trial that holds them, also that of another client, and undo its changes.
    #[command(
        after_help = "Exit codes: 3 if a node cannot be reached, refuses, or has changes that cannot be undone; others as of `ccbench describe`."
    )]
    Reset(ResetArgs),
    /// Create a certificate authority, and certificates for nodes and controllers.
    #[command(subcommand)]
    Pki(PkiCommand),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages to a directory.
    Man {
        /// The directory.
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

/// Options for agents over TCP.
#[derive(Debug, Clone, Default, Args)]
pub struct TlsArgs {
    /// Directory with `ca.pem`, `controller.pem` and `controller.key` (see `ccbench pki`); required for agents that are not on loopback.
    #[arg(long, env = "CCBENCH_PKI", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub pki: Option<PathBuf>,
    /// Revoked certificates (`crl.pem` of `ccbench pki revoke`): agents that use one are refused [default: `crl.pem` in the
    /// directory of --pki, if it exists].
    #[arg(long, env = "CCBENCH_CRL", value_name = "FILE", requires = "pki", value_hint = ValueHint::FilePath)]
    pub crl: Option<PathBuf>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(mut_arg("out", |out| out.help(OUT_OF_SHARDS)))]
#[command(
    override_usage = "ccbench run [OPTIONS] <PLAN>\n       ccbench run [OPTIONS] --resume <DIR>"
)]
pub struct RunArgs {
    /// The plan file (not with --resume: the results directory has a copy).
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "resume")]
    pub plan: Option<PathBuf>,
    /// Override a key: `--set links.bottleneck.rate=50mbit`, `--set repeat=1`, `--set phases.0.length=5s`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Continue this results directory: run the trials that it lacks, and repeat those that were aborted, whose files are damaged,
    /// or that failed because of a node or an error and not because of their plan (reasons not_run, node_lost, error). Where and
    /// how the trials run is taken from the directory, except for certificates: nodes with agents need --pki again.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub resume: Option<PathBuf>,
    /// With --resume: repeat every failed trial.
    #[arg(long, requires = "resume")]
    pub retry_failed: bool,
    /// Run only shard I of N, and put its trials into --out, a directory that all machines share or a bucket
    /// (`s3://BUCKET/PREFIX`): `--shard 2/8`. `auto` uses the task of a Slurm array, `auto/N` that of Slurm, HyperQueue or
    /// Kubernetes. Repeat the command to run the trials that are left. `ccbench merge` makes one run of all shards.
    #[arg(long, value_name = "I/N", conflicts_with = "resume", requires = "out")]
    pub shard: Option<ShardChoice>,
    /// Options of the run.
    #[command(flatten)]
    pub options: RunOptions,
}

/// Help of `run --out`, the only command with `--shard`.
const OUT_OF_SHARDS: &str =
    "Parent directory of the results; with --shard the directory or the URL that all shards share";

impl RunArgs {
    /// A new run with these options, of a plan that another command gives.
    pub fn from_options(options: RunOptions) -> Self {
        let (plan, sets, resume) = (None, vec![], None);
        Self { plan, sets, resume, retry_failed: false, shard: None, options }
    }
}

/// Arguments of `reproduce`.
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// The experiment; lists all experiments if omitted.
    pub name: Option<String>,
    /// Override a key of its plan, as in `ccbench run`.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "name")]
    pub sets: Vec<String>,
    /// Write the plan and its traces to this directory, to edit and run with `ccbench run`, instead of running it.
    #[arg(long, value_name = "DIR", requires = "name", value_hint = ValueHint::DirPath)]
    pub write: Option<PathBuf>,
    /// Run in network namespaces of this machine although the lab is installed.
    #[arg(long, conflicts_with_all = ["lab", "engine", "sim", "jobs"])]
    pub no_lab: bool,
    /// Options of the run.
    #[command(flatten)]
    pub options: RunOptions,
}

/// Options of `run`, `reproduce` and `scorecard`.
#[derive(Debug, Clone, Args)]
pub struct RunOptions {
    /// Apply the plan's `[quick]` overrides (fewer trials, shorter phases). `--set` takes precedence.
    #[arg(long)]
    pub quick: bool,
    /// Parent directory of the results.
    #[arg(long, default_value = "results", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Print one JSON object per line instead of text.
    #[arg(long)]
    pub json: bool,
    /// Show the run while it is in progress: in the browser, at the printed address, or on a terminal screen (--view=terminal).
    #[arg(long, value_enum, value_name = "WHERE", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "browser")]
    pub view: Option<view::ViewPlace>,
    /// Exit with 1 if a trial is degraded, too.
    #[arg(long)]
    pub strict: bool,
    /// Continue with the other points if a trial cannot be prepared.
    #[arg(long)]
    pub keep_going: bool,
    /// How long to wait for a lost node with an agent of its own before its trial is repeated: `10min` for one that reboots
    /// [default: 30s].
    #[arg(long, value_name = "TIME")]
    pub await_nodes: Option<Micros>,
    /// How long to wait for a node that is rebooted into a kernel of the plan (`kernel_release`) [default: 15min].
    #[arg(long, value_name = "TIME")]
    pub await_reboot: Option<Micros>,
    /// Build the topology in a user namespace even as root.
    #[arg(long)]
    pub rootless: bool,
    /// Run every trial in the lab: a virtual machine with a virtual clock, so that the result depends only on the plan
    /// and its seed. Needs no root; run `ccbench lab build` once first. A plan that names a kernel or an engine always runs in the
    /// lab.
    #[arg(long)]
    pub lab: bool,
    /// Engine that runs the lab's kernel: uml, or qemu, which is several times slower and runs every plan and kernel. Same as
    /// `--set lab.engine=ENGINE` [default: uml where it can run, otherwise qemu; a note gives the reason].
    #[arg(long, requires = "lab")]
    pub engine: Option<Engine>,
    /// Kernel in the lab if the plan names none (`lab.kernel`): own, 6.1, 6.12 or 7.2 [default: own].
    #[arg(long)]
    pub kernel: Option<Series>,
    /// Dilation in the lab: how much faster the guest's CPU is relative to its network; selects the engine qemu
    /// [default: calibrated].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub dilation: Option<u32>,
    /// Simulate every trial with models of hosts, TCP and links instead of a kernel. Needs no root, and is faster than the
    /// lab; the result depends only on the plan and its seed. Some plans cannot be simulated; `ccbench check --sim` gives the
    /// reason.
    // Not with --pki: it may come from the environment.
    #[arg(long, conflicts_with_all = ["lab", "engine", "kernel", "dilation", "rootless"])]
    pub sim: bool,
    /// Trials that run at the same time: in the lab, each has its own CPU and 768 MiB; in the simulator, each is one thread. The
    /// results are the same for any number [default: the number of CPUs].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub jobs: Option<u32>,
    /// Options for agents over TCP.
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// Sub-commands of `lab`.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Build the lab's kernels into the cache (about 15 minutes each, once).
    Build {
        /// own, 6.1, 6.12 or 7.2; stock kernels are downloaded.
        #[arg(long, default_value_t)]
        kernel: Series,
        /// Build the kernel for this engine only: qemu or uml [default: both].
        #[arg(long)]
        engine: Option<Engine>,
        /// Also build ccbench's kernel modules for the kernel own (about five minutes), for `via = "module"`.
        #[arg(long)]
        modules: bool,
    },
    /// Pack the `own` kernels built here into a package for other machines.
    Pack {
        /// The package to write, gzip over tar.
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
    /// Install the kernels of a package instead of building them. The package must come from a ccbench with the same recipes.
    Install {
        /// The package.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Open a shell in the lab's virtual machine. Leave it with `poweroff -f` or Ctrl-A X.
    Shell {
        /// own, 6.1, 6.12 or 7.2.
        #[arg(long, default_value_t)]
        kernel: Series,
        /// How much faster the guest's CPU is relative to its network.
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
    /// Print each point of the plan as it will run, with presets, defaults and limits, and with relative queue limits in bytes or
    /// packets.
    #[arg(long)]
    pub expand: bool,
    /// Apply the plan's `[quick]` overrides.
    #[arg(long)]
    pub quick: bool,
    /// Also check whether the plan can run in the lab, as `ccbench run --lab`.
    #[arg(long)]
    pub lab: bool,
    /// The lab's engine: uml or qemu [default: as `ccbench run --lab`].
    #[arg(long, requires = "lab")]
    pub engine: Option<Engine>,
    /// Also check whether the plan can be simulated, as `ccbench run --sim`.
    #[arg(long, conflicts_with_all = ["lab", "engine"])]
    pub sim: bool,
}

/// Sub-commands of `plan`.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Print the keys of a table, or all of them.
    Reference {
        /// A table (`links`, `links.trace`) or a kind of queue (`pie`); all if omitted.
        table: Option<String>,
        /// Print Markdown, as in docs/plan-reference.md.
        #[arg(long, conflicts_with = "table")]
        markdown: bool,
    },
    /// Print a JSON schema of plans for completion and checks in editors: write it to a file, and put
    /// `#:schema FILE` at the top of the plan (Taplo, Even Better TOML).
    Schema,
}

/// Arguments of `summarize`.
#[derive(Debug, Args)]
pub struct SummarizeArgs {
    /// The run: a results directory, a directory of shards, or a URL (`s3://BUCKET/PREFIX`) of either.
    #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub run: PathBuf,
    /// The directory to write the files to [default: the results directory; none for shards and URLs].
    #[arg(long, short, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Also print the six columns of the coexistence study (throughput and srtt in each phase, per trial) for this flow group.
    #[arg(long, value_name = "GROUP")]
    pub six_columns: Option<String>,
    /// Check the claims (`[[expect]]`) of this plan instead of the run's own.
    #[arg(long, value_name = "PLAN", value_hint = ValueHint::FilePath)]
    pub expect: Option<PathBuf>,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Files, or directories of files: output of `ss -ti` (with or without ts(1)), iperf3 (text, -J, --json-stream) and ping, data
    /// files of flent, qlog files. Each may be compressed by gzip.
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// The results directory to create.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: PathBuf,
    /// The node of the files whose names contain PART; without PART=, of all other files [default: imported].
    #[arg(long = "node", value_name = "[PART=]NODE")]
    pub nodes: Vec<String>,
    /// Group name of the flows to this server: `--group 5201=bulk`, `--group 10.0.3.1:5201=bulk` [default: their congestion control].
    #[arg(long = "group", value_name = "SERVER=NAME", value_parser = group)]
    pub groups: Vec<String>,
    /// A phase; phases follow one another: `--phase alone=60s --phase compete=60s` [default: one phase for everything].
    #[arg(long = "phase", value_name = "NAME=LENGTH", value_parser = phase)]
    pub phases: Vec<(String, Micros)>,
    /// Take the trial from the last separate number in a file's name: `cubic-3-ss.txt` [default: one trial].
    #[arg(long)]
    pub trials: bool,
    /// The date of timestamps without a date; its year is that of timestamps without a year.
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = day)]
    pub date: Option<BaseDate>,
    /// Print every line that cannot be parsed.
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The run: a results directory, a directory of shards, or a URL (`s3://BUCKET/PREFIX`) of either.
    #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub run: PathBuf,
    /// The file [default: `report.html` in the results directory; required for shards and URLs].
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Check the claims (`[[expect]]`) of this plan instead of the run's own.
    #[arg(long, value_name = "PLAN", value_hint = ValueHint::FilePath)]
    pub expect: Option<PathBuf>,
    /// Include failed and aborted trials in the means.
    #[arg(long)]
    pub include_failed: bool,
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ccbench compare [OPTIONS] <DIR|URL> <DIR|URL>\n       ccbench compare [OPTIONS] <DIR|URL> --by <FACTOR=LEVEL,LEVEL>"
)]
pub struct CompareArgs {
    /// The first run: a results directory, a directory of shards, or a URL of either.
    #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub a: PathBuf,
    /// The second run.
    #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath, required_unless_present = "by", conflicts_with = "by")]
    pub b: Option<PathBuf>,
    /// Compare two levels of a factor of one run instead: `--by scheme=cubic,bbr`.
    #[arg(long, value_name = "FACTOR=LEVEL,LEVEL", value_parser = levels)]
    pub by: Option<(String, String, String)>,
    /// Metrics of the summary instead of the default ones: `srtt`, `srtt:p95`, `throughput_sum:mean`.
    #[arg(long = "metric", value_name = "NAME[:STAT]", value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// A and B agree if this metric differs by at most this percentage of A's mean; may be repeated. Two runs with several common
    /// points also have the tolerances throughput_sum=2, srtt=6 and retransmission_share=25 (or 0.1 percentage points).
    #[arg(long = "tolerance", value_name = "METRIC=PERCENT", value_delimiter = ',')]
    pub tolerances: Vec<Tolerance>,
    /// Also write the table as CSV; - writes CSV to standard output instead of the table.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub csv: Option<PathBuf>,
    /// Also write the claims that both runs have, with the values that each run measured, as CSV; - as with --csv.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "by")]
    pub claims_csv: Option<PathBuf>,
    /// Include failed and aborted trials.
    #[arg(long)]
    pub include_failed: bool,
}

/// Arguments of `plot`.
#[derive(Debug, Args)]
pub struct PlotArgs {
    /// The run: a results directory, a directory of shards, or a URL (`s3://BUCKET/PREFIX`) of either.
    #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub run: PathBuf,
    /// The kind of figure.
    #[arg(long, value_enum)]
    pub kind: figure::Kind,
    /// Select data by a factor of the matrix, `point_id`, `trial`, `phase`, `group`, `flow_id`, `link` or `cc`; one value per
    /// column. If one figure cannot show several points, each point gets its own figure.
    #[arg(long = "where", value_name = "COLUMN=VALUE", value_parser = column)]
    pub filters: Vec<(String, String)>,
    /// Metrics instead of the default ones: of the summary (`srtt`, `srtt:p95`) for phases, heatmap and lines; `throughput_share` for
    /// the last two; `throughput`, `srtt`, `cwnd`, `in_flight`, `queue`, `rate`, `probe_rtt`, `retransmissions` for series; variables
    /// for cc_state; `acknowledged`, `sent`, `retransmitted`, `cwnd`, `window` for time_sequence. Heatmaps and lines have a figure for
    /// each metric.
    #[arg(long = "metric", value_name = "NAME[:STAT]", value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// Factor on the horizontal axis of a heatmap or of lines [default: the last factor that varies].
    #[arg(long, value_name = "FACTOR")]
    pub x: Option<String>,
    /// Factor on the vertical axis of a heatmap [default: the last but one that varies]. Each combination of the other factors has
    /// a panel.
    #[arg(long, value_name = "FACTOR")]
    pub y: Option<String>,
    /// Factor with a line for each level, for lines [default: the other factor that varies, if there is only one]. Each combination
    /// of the rest has its own file.
    #[arg(long, value_name = "FACTOR")]
    pub by: Option<String>,
    /// A directory, or one file that ends in .svg or .png [default: `figures` in the results directory; required for shards and URLs].
    #[arg(long, short, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub output: Option<PathBuf>,
    /// Formats to write into a directory [default: svg,png].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub format: Vec<figure::Format>,
    /// Width [default: 85 (one column of a paper) or 175 (two columns), depending on the kind].
    #[arg(long, value_name = "MM", value_parser = millimetres)]
    pub width_mm: Option<f64>,
    /// Height [default: depends on the kind].
    #[arg(long, value_name = "MM", value_parser = millimetres)]
    pub height_mm: Option<f64>,
    /// Include failed and aborted trials.
    #[arg(long)]
    pub include_failed: bool,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The run: a results directory, a directory of shards, or a URL (`s3://BUCKET/PREFIX`) of either.
    #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub run: PathBuf,
    /// Exit with 1 also if a file has no digest: derived files such as `report.html`, and runs of versions without digests.
    #[arg(long)]
    pub strict: bool,
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
    /// Options for agents over TCP.
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// Arguments of `exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The node's name in the plan.
    pub node: String,
    /// The experiment if more than one is running: its results directory, or a part of its id.
    #[arg(long, value_name = "DIR|ID")]
    pub run: Option<String>,
    /// The command.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests;
