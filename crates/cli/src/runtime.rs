//! The asynchronous runtime.

use std::io;

/// The asynchronous runtime or its signal handlers are not available.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The runtime cannot be started.
    #[error("cannot start the runtime: {0}")]
    Start(#[source] io::Error),
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(#[source] io::Error),
}

/// Runs a future on this thread. The load is small, and child processes die with the thread that started them.
///
/// # Errors
/// The runtime cannot be started, or the future failed.
pub fn block_on<T, E: From<RuntimeError>>(
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(RuntimeError::Start)?.block_on(future)
}

/// Runs work on another thread: work that takes long, or that Polars must not do in this runtime. Meanwhile this thread answers others:
/// the pages of a run, and the agents, which otherwise close the connection ([`KEEPALIVE_TIMEOUT`]). Continues a panic.
///
/// [`KEEPALIVE_TIMEOUT`]: ccbench_proto::wire::KEEPALIVE_TIMEOUT
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
