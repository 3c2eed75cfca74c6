//! Why a package of kernels cannot be written or installed.

use std::path::PathBuf;

use ccbench_proto::plan::Engine;
use ccbench_results::artifact::TarError;

use crate::exit::ExitCode;

/// The machine-readable description, which is the first file of a package.
pub const MANIFEST: &str = "kernels.json";
/// Version of the package's layout.
pub const FORMAT_VERSION: u32 = 1;

/// A package cannot be written or installed.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// There is no kernel to pack.
    #[error("no kernel `own` is built here; run `ccbench lab build` first")]
    NoKernel,
    /// The archive cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The package.
        path: PathBuf,
        /// Why.
        source: TarError,
    },
    /// The archive cannot be read.
    #[error("cannot unpack {}: {source}", path.display())]
    Unpack {
        /// The package.
        path: PathBuf,
        /// Why.
        source: TarError,
    },
    /// The file is another archive, or a package that does not fit this ccbench.
    #[error("{} is not a package that this ccbench can install: {source}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is missing or wrong.
        source: UnfitPackage,
    },
    /// A file was changed after packing, or is missing.
    #[error("{}: {name} is {what}; download the package again", path.display())]
    Damaged {
        /// The package.
        path: PathBuf,
        /// The file.
        name: String,
        /// `damaged` or `missing`.
        what: &'static str,
    },
    /// A kernel was built from another recipe.
    #[error(
        "{}: its kernel for the engine {engine} was built by ccbench {packed_by} with another recipe, so results would differ; take the package \
         of ccbench {}, or run `ccbench lab build --engine {engine}`", path.display(), env!("CARGO_PKG_VERSION")
    )]
    Recipe {
        /// The package.
        path: PathBuf,
        /// The engine.
        engine: Engine,
        /// The version of the ccbench that packed it.
        packed_by: String,
    },
}

impl PackageError {
    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoKernel => ExitCode::Unavailable,
            Self::Write { .. } | Self::Unpack { .. } | Self::Damaged { .. } => ExitCode::Failure,
            Self::Unfit { .. } | Self::Recipe { .. } => ExitCode::Usage,
        }
    }
}

/// Why an archive is not a package that this ccbench can install.
#[derive(Debug, thiserror::Error)]
pub enum UnfitPackage {
    /// The archive does not come from `ccbench lab pack`.
    #[error("its first file is not {MANIFEST}; give a file that `ccbench lab pack` wrote")]
    NoManifest,
    /// The description cannot be parsed.
    #[error("{MANIFEST}: {0}; give a file that `ccbench lab pack` wrote")]
    Json(serde_json::Error),
    /// The package has the layout of another version.
    #[error(
        "it has format {found}, but this ccbench reads format {FORMAT_VERSION}; take the package of ccbench {}",
        env!("CARGO_PKG_VERSION")
    )]
    Format {
        /// The layout version of the package.
        found: u32,
    },
    /// The kernels are for another architecture.
    #[error(
        "its kernels are for {found}, but this machine is {arch}; take the package for {arch}, or run `ccbench lab build`",
        arch = std::env::consts::ARCH
    )]
    Architecture {
        /// The architecture of the package.
        found: String,
    },
    /// The package has no kernel, or two for one engine.
    #[error("it has no kernel, or two for one engine; pack it again")]
    Kernels,
    /// A kernel has missing or additional files.
    #[error("it has missing or unexpected files for the engine {engine}; pack it again")]
    Files {
        /// The engine.
        engine: Engine,
    },
}
