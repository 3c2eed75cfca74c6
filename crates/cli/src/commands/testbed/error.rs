//! Why no request to a testbed, or no plan for its nodes, can be written.

use std::path::PathBuf;

use ccbench_proto::manifest::ManifestError;

/// The manifest of the testbed, or a file that the plan names, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TestbedUsageError {
    /// The manifest cannot be used.
    #[error("{}: {source}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ManifestError,
    },
    /// A file of the plan is outside the plan's directory.
    #[error(
        "the plan names `{0}`, which is outside its directory; move the file there, because the notebook copies only files in it"
    )]
    Outside(String),
}
