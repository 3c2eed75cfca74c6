//! Arguments of `artifact`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::TlsArgs;

/// Sub-commands of `artifact`.
#[derive(Debug, Subcommand)]
pub enum ArtifactCommand {
    /// Pack a complete run into one archive: plan, traces, results, versions, digests and claims, with a README that has a
    /// command for each claim. The archive depends only on the run.
    Pack {
        /// The run: a results directory, a directory of shards, or a URL of either.
        #[arg(value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
        run: PathBuf,
        /// The archive to write, gzip over tar: `artifact.tar.gz`. An existing one is replaced.
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
    /// Unpack an artifact, run it again as it was run, and compare: after the lab and the simulator every Parquet file must be equal,
    /// elsewhere each claim must have the same outcome, and overlapping 95 % confidence intervals.
    #[command(
        after_help = "Exit codes: 0 everything agrees · 1 the archive is damaged or refused · 4 something differs; others as of \
`ccbench run`."
    )]
    Rerun(ArtifactRerunArgs),
    /// Print one claim of an unpacked artifact, with what it and its last rerun measured.
    Claim {
        /// The directory that `rerun` made.
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
    /// Where to unpack it; one new directory is made there, which has the artifact and the new results.
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// How many GiB the unpacked files may have.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_gib: u32,
    /// Also run a plan that names agents; read `run/plan.resolved.toml` in the archive first.
    #[arg(long)]
    pub agents: bool,
    /// Also load a congestion control of the artifact (`file` or `module` in `[cc.NAME]`) whose SHA-256 this is into this machine's
    /// kernel; repeat it for more. Not needed for a run in the lab.
    #[arg(long, value_name = "SHA256")]
    pub allow_cc_digest: Vec<String>,
    /// Build the topology in a user namespace even as root; also if the artifact's run did so.
    #[arg(long)]
    pub rootless: bool,
    /// Trials that run at the same time, as in `ccbench run`.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub jobs: Option<u32>,
    /// Options for agents over TCP.
    #[command(flatten)]
    pub tls: TlsArgs,
}
