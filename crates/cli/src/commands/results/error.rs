//! Why runs cannot be compared.

/// The command line of `ccbench compare` is incomplete or contradicts itself.
#[derive(Debug, thiserror::Error)]
pub enum CompareUsageError {
    /// Two tables are for standard output.
    #[error("--csv - and --claims-csv - are both for standard output; write one of them to a file")]
    TwoOnStdout,
    /// There is nothing to compare the run with.
    #[error("give a second run, or --by")]
    NothingToCompare,
}
