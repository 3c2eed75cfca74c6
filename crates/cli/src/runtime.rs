//! The asynchronous runtime.

use crate::error::CliError;

/// Runs a future on this thread. The load is small, and child processes die with the thread that started them.
///
/// # Errors
/// The runtime cannot be started, or the future failed.
pub fn block_on<T>(future: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|source| CliError::Runtime { op: "start the runtime", source })?;
    runtime.block_on(future)
}
