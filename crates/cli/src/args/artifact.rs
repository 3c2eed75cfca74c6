//! Arguments of `artifact`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::TlsArgs;

/// Sub-commands of `artifact`.
#[derive(Debug, Subcommand)]
pub enum ArtifactCommand {
    /// Pack a complete run into one archive: plan, traces, results, versions, digests and claims, with a README that lists a
    /// command for each claim. The same run always gives the same archive.
    Pack {
        /// The run: a results directory, a directory of shards, or a URL of either.
        #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
        run: PathBuf,
        /// The archive to write, gzip over tar: `artifact.tar.gz`. An existing one is replaced.
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
    /// Unpack an artifact, run it again in the same way, and compare. In the lab and the simulator, every Parquet file must be
    /// equal; elsewhere, each claim must have the same outcome and overlapping 95 % confidence intervals. Without a measured
    /// claim, the means of throughput and smoothed RTT of each flow group are compared instead.
    #[command(
        after_help = "Exit codes: 0 nothing differs (`not compared` in the last line: no number could be compared) · 1 the archive is \
damaged, or has files or a size that are refused · 2 it cannot be read or is not a complete artifact of this format, its plan is refused, \
or its directory exists · 4 something differs; others as of `ccbench run`."
    )]
    Rerun(ArtifactRerunArgs),
    /// Print one claim of an unpacked artifact, with the values that the artifact and its last rerun measured.
    #[command(
        after_help = "Exit codes: 0 both agree, or neither measured the claim · 2 there is no such claim or no complete rerun · 4 they differ."
    )]
    Claim {
        /// The directory that `rerun` made: `evaluation/NAME` with the command of the artifact's README.
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
        /// The claim's number in the artifact's README.
        number: usize,
    },
}

/// Arguments of `artifact rerun`.
#[derive(Debug, Args)]
pub struct ArtifactRerunArgs {
    /// The archive.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Where to unpack it: one new directory there gets the artifact and the new results.
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Maximum size of the unpacked files in GiB.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_gib: u32,
    /// Also run a plan that names agents. Read `run/plan.resolved.toml` in the archive first.
    #[arg(long)]
    pub agents: bool,
    /// Also load the artifact's congestion control (`file` or `module` in `[cc.NAME]`) with this SHA-256 into this machine's
    /// kernel; may be repeated. Not needed for a run in the lab.
    #[arg(long, value_name = "SHA256")]
    pub allow_cc_digest: Vec<String>,
    /// Build the topology in a user namespace even as root [default: if the artifact's run did so].
    #[arg(long)]
    pub rootless: bool,
    /// Trials that run at the same time, as in `ccbench run`.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub jobs: Option<u32>,
    /// Options for agents over TCP.
    #[command(flatten)]
    pub tls: TlsArgs,
}
