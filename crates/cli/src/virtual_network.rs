//! A simulated clock and network in place of this machine's, for the tests in `tests/turmoil`. Programs never install one.

use std::io;
use std::pin::Pin;
use std::sync::OnceLock;

use tokio::io::{AsyncRead, AsyncWrite};

/// The bytes of a connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection that is being opened.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

/// A simulated clock and network.
#[derive(Debug, Clone, Copy)]
pub struct VirtualNetwork {
    /// Returns the simulated CLOCK_MONOTONIC in nanoseconds; `None` on a thread that runs no simulation.
    pub now_ns: fn() -> Option<u64>,
    /// Opens a connection to `host:port`.
    pub connect: fn(String) -> Connecting,
}

static INSTALLED: OnceLock<VirtualNetwork> = OnceLock::new();

impl VirtualNetwork {
    /// Uses it from now on, on threads that run a simulation. Only the first call in a process has an effect.
    pub fn install(self) {
        let _ = INSTALLED.set(self);
    }
}

/// Returns the simulated CLOCK_MONOTONIC in nanoseconds; `None` outside of a simulation.
pub fn now_ns() -> Option<u64> {
    INSTALLED.get().and_then(|network| (network.now_ns)())
}

/// Returns the function that opens connections in a simulation; `None` outside of one.
pub fn connector() -> Option<fn(String) -> Connecting> {
    now_ns().and(INSTALLED.get()).map(|network| network.connect)
}
