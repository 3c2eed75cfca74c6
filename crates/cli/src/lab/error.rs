//! Why the lab cannot run a trial.

use std::path::{Path, PathBuf};

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::plan::{Engine, Series};
use ccbench_proto::wire::LabStep;

use super::package::error::PackageError;
use crate::exit::ExitCode;

/// Why the lab cannot run a trial.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A program or a kernel must be installed or built first.
    #[error("the lab needs {what}; {hint}")]
    Missing {
        /// What is missing.
        what: String,
        /// The command that provides it.
        hint: String,
    },
    /// A file operation failed.
    #[error("lab: cannot {op} {}: {source}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The build script of a kernel or of its modules failed. It has printed the reason.
    #[error("the lab's kernel, or its modules, could not be built ({status})")]
    Build {
        /// How the script ended.
        status: std::process::ExitStatus,
    },
    /// A package of kernels cannot be written or installed.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// The virtual machine ended before its last message.
    #[error("the lab's virtual machine {reason}; its console ends with:\n{console}")]
    Vm {
        /// "ended with exit code 1", "panicked", …
        reason: String,
        /// Last lines of the console.
        console: String,
    },
    /// The virtual machine ended before the trial started.
    #[error("the lab's virtual machine ended before the trial started")]
    NoTrial,
    /// The task that reads the guest's messages panicked.
    #[error("lab: reading the guest's messages failed: {0}")]
    Reader(#[from] tokio::task::JoinError),
    /// A step failed in the guest.
    #[error("lab: {}{}: {reason}{console}", of_node(node), step.as_text())]
    Guest {
        /// The node; empty for the topology.
        node: String,
        /// What was tried.
        step: LabStep,
        /// Why it failed.
        reason: String,
        /// See [`super::vm::console_tail`].
        console: String,
    },
    /// A node's kernel does not support what the plan asks for.
    #[error("node {node} cannot do what the plan asks for: {reason}")]
    Unsupported {
        /// The node's name in the plan.
        node: String,
        /// What is missing, and the fix.
        reason: String,
    },
    /// The plan names an agent.
    #[error("--lab builds its nodes itself, but node {node} names an agent; leave out --lab")]
    NodeWithAgent {
        /// The node.
        node: String,
    },
    /// `--dilation` was given, but nothing can be dilated.
    #[error(
        "neither a stock kernel nor the engine uml can be dilated; leave out --dilation, or use the kernel `own` and the engine qemu"
    )]
    NotDilatable,
    /// A resumed run began with another kernel or engine.
    #[error(
        "this run began in the lab with {began}, but the lab here has {here}, whose results may differ; continue it where that lab is \
         installed, or start a new run of its plan"
    )]
    OtherImage {
        /// The images with which it began.
        began: String,
        /// The image of this machine.
        here: String,
    },
    /// The engine cannot run the kernel of the command line or the plan.
    #[error("the engine {engine} cannot run the kernel {kernel}; use `--engine qemu`")]
    NotItsKernel {
        /// The engine.
        engine: Engine,
        /// The kernel.
        kernel: Series,
    },
    /// A stock kernel cannot load ccbench's modules.
    #[error(
        "the kernel {kernel} has none of ccbench's modules; use the kernel `own`, or leave out `via = \"module\"`"
    )]
    NoModules {
        /// The kernel.
        kernel: Series,
    },
    /// The kernel of a point was not opened.
    #[error("lab: kernel {kernel} for the engine {engine} is not open (a bug in ccbench)")]
    NotOpen {
        /// The engine.
        engine: Engine,
        /// The kernel.
        kernel: Series,
    },
}

fn of_node(node: &str) -> String {
    if node.is_empty() { String::new() } else { format!("node {node}: ") }
}

impl LabError {
    /// Wraps an I/O error; `op` completes "cannot … PATH".
    pub fn io(op: &'static str, path: &Path) -> impl Fn(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { op, path: path.clone(), source }
    }

    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Package(error) => error.exit_code(),
            Self::Missing { .. }
            | Self::Io { .. }
            | Self::Build { .. }
            | Self::Vm { .. }
            | Self::NoTrial
            | Self::Reader(_)
            | Self::Guest { .. } => ExitCode::Unavailable,
            Self::Unsupported { .. }
            | Self::NodeWithAgent { .. }
            | Self::NotDilatable
            | Self::OtherImage { .. }
            | Self::NotItsKernel { .. }
            | Self::NoModules { .. }
            | Self::NotOpen { .. } => ExitCode::Usage,
        }
    }
}
