//! SIGINT and SIGTERM end a run in an orderly way: running trials are discarded and the nodes are reset.

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::console::message;
use crate::exit::ExitCode;
use crate::view::terminal;

/// The user's request to stop, shared by all tasks of a run.
#[derive(Clone)]
pub struct Interrupt(watch::Receiver<Option<Request>>);

/// What asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Interrupt {
    /// Installs handlers for SIGINT and SIGTERM. A second signal ends the process at once.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub fn on_signals() -> std::io::Result<Self> {
        let mut sigint = signal(SignalKind::interrupt())?;
        let mut sigterm = signal(SignalKind::terminate())?;
        let (send, receive) = watch::channel(None);
        tokio::spawn(async move {
            let mut stopping = false;
            loop {
                let request = tokio::select! {
                    _ = sigint.recv() => Request::Interrupt,
                    _ = sigterm.recv() => Request::Terminate,
                };
                if stopping {
                    terminal::close();
                    std::process::exit(ExitCode::Interrupted.number());
                }
                stopping = true;
                // The screen of a live view prints the message itself.
                if !terminal::is_open() {
                    message(format_args!(
                        "stopping: running trials are discarded, finished trials are kept (press Ctrl-C again to stop at once)"
                    ));
                }
                // Sending fails only after the run has ended.
                let _ = send.send(Some(request));
            }
        });
        Ok(Self(receive))
    }

    /// Returns a request that never comes.
    pub fn never() -> Self {
        Self(watch::channel(None).1)
    }

    /// Completes when the user wants to stop.
    pub async fn requested(&mut self) {
        if self.0.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns whether the request was SIGTERM, with which schedulers end jobs.
    pub fn is_termination(&self) -> bool {
        *self.0.borrow() == Some(Request::Terminate)
    }
}

/// Lets SIGINT and SIGTERM end the process at once until it is dropped. A process that has caught them once ([`Interrupt`]) ignores
/// them when its runtime has ended.
pub struct EndsProcess {
    /// Dropping it ends the thread.
    _watched: oneshot::Sender<()>,
}

impl EndsProcess {
    /// Waits for the signals in a thread. If it cannot start, the signals stay without effect.
    pub fn start() -> Self {
        let (send, dropped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("signals".to_owned());
        let _ = thread.spawn(move || {
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
            if runtime.block_on(signalled(dropped)) {
                std::process::exit(ExitCode::Interrupted.number());
            }
        });
        Self { _watched: send }
    }
}

/// Returns true at SIGINT or SIGTERM, or false when nobody wants to know any more.
async fn signalled(dropped: oneshot::Receiver<()>) -> bool {
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut sigint), Ok(mut sigterm)) = signals else { return false };
    tokio::select! {
        _ = sigint.recv() => true,
        _ = sigterm.recv() => true,
        _ = dropped => false,
    }
}
