//! Arguments of `index`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Arguments of `index`.
#[derive(Debug, Args)]
pub struct IndexArgs {
    /// The directory that contains the results directories.
    #[arg(default_value = "results", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// First write the report of each run that has ended and has none.
    #[arg(long)]
    pub reports: bool,
}
