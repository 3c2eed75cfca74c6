//! Live views of a run, in the terminal and in the browser.
//!
//! - [`socket`]: a run serves [`crate::live`] on a Unix socket, one JSON object per line. `ccbench top` and `ccbench view` find
//!   the socket by the results directory. It is an abstract socket, so a killed run leaves nothing behind.
//! - [`server`] is the thread of a run that serves the socket and, with `--view`, the page.
//! - [`http`] serves the page: it relays the socket's lines as server-sent events, and then the report, which [`report`] makes.
//! - [`terminal`] draws [`screen`] on a terminal.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use crate::args::view::ViewPlace;
use crate::console::message;
use crate::exit::ExitCode;
use crate::live::Live;
use crate::progress::Progress;
use server::Server;
use terminal::CtrlC;

pub mod http;
pub mod report;
pub mod screen;
pub mod server;
pub mod socket;
pub mod terminal;

/// A view cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// No run of this user is in progress in this directory.
    #[error("{}: no run is in progress there; `ccbench view {}` shows the report of a run that has ended", .0.display(), .0.display())]
    NotRunning(PathBuf),
    /// A run is in progress in this directory, but this process cannot reach its socket.
    #[error(
        "{}: the run there is in progress, but not where this command looks: it has just begun, or it belongs to another user, network \
         namespace or machine. Run this command as that user, there (`sudo`, `ip netns exec NAME`, `nsenter --net=PATH`)",
        .0.display()
    )]
    Elsewhere(PathBuf),
    /// No run of this user is in progress.
    #[error("none of your runs is in progress in this network namespace; give a results directory")]
    NothingRuns,
    /// More than one run is in progress.
    #[error("several runs are in progress; give the results directory of one of them: {}", .0.join(", "))]
    Several(Vec<String>),
    /// The screen needs a terminal.
    #[error("the live view needs a terminal as standard output; {0}")]
    NoTerminal(&'static str),
    /// An operation failed.
    #[error("cannot {op}: {source}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl ViewError {
    /// Wraps an I/O error; `op` completes "cannot …".
    pub(crate) fn io(op: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { op, source }
    }

    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NotRunning(_)
            | Self::Elsewhere(_)
            | Self::NothingRuns
            | Self::Several(_)
            | Self::NoTerminal(_) => ExitCode::Usage,
            Self::Io { .. } => ExitCode::Failure,
        }
    }
}

/// Returns the absolute path of a directory, without symbolic links.
pub fn absolute(dir: &Path) -> PathBuf {
    std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned())
}

/// The live views of this process's run.
pub struct Views {
    server: Server,
    screen: Option<JoinHandle<()>>,
}

impl Views {
    /// Checks whether the views can be shown here.
    ///
    /// # Errors
    /// A screen is requested without a terminal.
    pub fn check(place: Option<ViewPlace>, json: bool) -> Result<(), ViewError> {
        if place != Some(ViewPlace::Terminal) {
            return Ok(());
        }
        if json {
            return Err(ViewError::NoTerminal("leave out --json, which prints lines there"));
        }
        if !io::stdout().is_terminal() {
            return Err(ViewError::NoTerminal("leave out --view=terminal to print lines"));
        }
        Ok(())
    }

    /// Serves the views of the run in this directory. Without `place`, failing to serve them is not an error.
    ///
    /// # Errors
    /// A view cannot be served.
    pub fn start(
        progress: &mut Progress,
        dir: &Path,
        place: Option<ViewPlace>,
    ) -> Result<Option<Self>, ViewError> {
        let live = progress.live().clone();
        let server = match Server::start(&live, dir, place == Some(ViewPlace::Browser)) {
            Ok(server) => server,
            Err(error) if place.is_none() => {
                let text =
                    format!("note: `ccbench top` and `ccbench view` do not show this run: {error}");
                progress.message("note", &text);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if let Some(url) = server.url() {
            progress.message("view", &format!("view: {url}"));
        }
        let is_wanted = place == Some(ViewPlace::Terminal);
        let screen = is_wanted.then(|| open_screen(progress, dir, live)).transpose()?;
        Ok(Some(Self { server, screen }))
    }

    /// Closes the screen after the end of the run, which the shown state already reports.
    pub fn run_ended(&mut self) {
        if let Some(screen) = self.screen.take() {
            // A panic has already been printed to standard error.
            let _ = screen.join();
        }
    }

    /// Waits until subscribers have received the last update, and open pages the report.
    pub fn finish(self) {
        self.server.finish();
    }
}

/// Shows the screen in a thread. When it closes, it prints the messages that it has covered; later messages are printed directly.
fn open_screen(
    progress: &mut Progress,
    dir: &Path,
    live: Live,
) -> Result<JoinHandle<()>, ViewError> {
    let stream = socket::find(Some(dir))?;
    let hidden = progress.hide();
    let screen = move || {
        let shown = terminal::show(stream, CtrlC::StopsRun);
        let run = {
            let mut state = live.state();
            // From here on messages are printed directly, so none is lost.
            hidden.store(false, Ordering::Relaxed);
            state.update(None).0.run
        };
        if run.messages_left_out > 0 {
            message(format_args!("{} earlier messages", run.messages_left_out));
        }
        for text in &run.messages {
            message(text);
        }
        if let Err(error) = shown {
            message(format_args!("ccbench: {error}"));
        }
    };
    let thread = std::thread::Builder::new().name("screen".to_owned());
    thread.spawn(screen).map_err(ViewError::io("start the thread of the screen"))
}
