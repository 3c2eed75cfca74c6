//! Arguments of `testbed`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

/// Where nodes are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TestbedKind {
    /// A profile with geni-lib: machines of CloudLab, Emulab, POWDER.
    Cloudlab,
    /// A notebook with fablib: virtual machines of FABRIC.
    Fabric,
    /// A topology of containers on this machine.
    Containerlab,
}

impl TestbedKind {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cloudlab => "cloudlab",
            Self::Fabric => "fabric",
            Self::Containerlab => "containerlab",
        }
    }
}

/// Arguments of `testbed`.
#[derive(Debug, Args)]
pub struct TestbedArgs {
    /// The testbed.
    #[arg(value_enum)]
    pub testbed: TestbedKind,
    /// The plan file, whose nodes have no agents.
    #[arg(value_hint = ValueHint::FilePath)]
    pub plan: PathBuf,
    /// The testbed's description of the reserved nodes: CloudLab's manifest, manifest.json of the notebook, or the output of
    /// `containerlab inspect --format json -t FILE`. The plan for the testbed gets its agents' addresses from it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub manifest: Option<PathBuf>,
    /// The directory to write to [default: PLAN-TESTBED beside the plan].
    #[arg(long, short, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
}
