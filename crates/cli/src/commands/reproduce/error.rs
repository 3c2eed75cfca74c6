//! Why an experiment cannot be reproduced.

use std::path::PathBuf;

/// There is no such experiment, or its plan cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceUsageError {
    /// No experiment has this name.
    #[error("there is no experiment `{name}`{hint} (available: {})", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// "; did you mean `NAME`?", or empty.
        hint: String,
        /// The names of all experiments, and of documents with several.
        known: Vec<&'static str>,
    },
    /// A file exists.
    #[error(
        "{} already exists; choose another directory for --write, or remove it",
        .0.display()
    )]
    Exists(PathBuf),
}
