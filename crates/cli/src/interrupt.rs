//! SIGINT and SIGTERM end a run in order: running trials are discarded, the nodes are reset.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::console::message;
use crate::exit::ExitCode;

/// The user's request to stop, shared by all tasks of a run.
#[derive(Clone)]
pub struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// Catches SIGINT and SIGTERM. The second signal ends the process at once.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub fn on_signals() -> std::io::Result<Self> {
        let mut sigint = signal(SignalKind::interrupt())?;
        let mut sigterm = signal(SignalKind::terminate())?;
        let (send, receive) = watch::channel(false);
        tokio::spawn(async move {
            let mut stopping = false;
            loop {
                tokio::select! { _ = sigint.recv() => {}, _ = sigterm.recv() => {} }
                if stopping {
                    std::process::exit(ExitCode::Interrupted.number());
                }
                stopping = true;
                message(format_args!(
                    "stopping: trials that run are discarded, finished trials are kept (press Ctrl-C again to stop at once)"
                ));
                // A send fails only when the run has ended already.
                let _ = send.send(true);
            }
        });
        Ok(Self(receive))
    }

    /// Completes when the user wants to stop.
    pub async fn requested(&mut self) {
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
