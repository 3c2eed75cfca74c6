//! Why shards cannot be merged.

/// The command line names no shards, or a place that is taken.
#[derive(Debug, thiserror::Error)]
pub enum MergeUsageError {
    /// The place of the shards is no directory.
    #[error(
        "{location} is not a directory; give the DIR of `ccbench run PLAN --shard I/N --out DIR`, or its URL"
    )]
    NotADirectory {
        /// The place.
        location: String,
    },
    /// There are no shards.
    #[error(
        "{location} has no shards; `ccbench run PLAN --shard I/N --out {location}` puts them there"
    )]
    NoShards {
        /// The store.
        location: String,
    },
    /// The destination has another run.
    #[error("{url} already has another run; give another place (--out), or remove that run")]
    OtherRun {
        /// The destination.
        url: String,
    },
}
