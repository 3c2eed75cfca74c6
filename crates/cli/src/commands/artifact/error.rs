//! Why an artifact is not rerun.

use std::path::PathBuf;

/// The plan of an artifact asks for what the user has not allowed.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactUsageError {
    /// It loads a congestion control.
    #[error(
        "{}: the plan loads the congestion control `{cc}` (sha256 {sha256}) into this machine's kernel; if you trust it, add \
         --allow-cc-digest {sha256}",
        file.display()
    )]
    CcNotAllowed {
        /// The artifact.
        file: PathBuf,
        /// The name of the congestion control's file in the plan.
        cc: String,
        /// The SHA-256 digest of this file.
        sha256: String,
    },
    /// It uses agents on other machines.
    #[error(
        "{archive}: the plan uses the agent {agent}; read the plan (`tar -xOf {archive} --wildcards '*/run/plan.resolved.toml'`), then \
         add --agents",
        archive = file.display()
    )]
    AgentsNotAllowed {
        /// The artifact.
        file: PathBuf,
        /// The address of an agent.
        agent: String,
    },
}
