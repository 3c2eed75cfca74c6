//! `ccbench top` and `ccbench view`: live views of a run that another process executes.

use std::io::{BufRead as _, BufReader, IsTerminal as _};

use ccbench_results::store::RunDir;

use crate::args::view::{TopArgs, ViewArgs};
use crate::console::{message, print, write_json};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::readable_run::ReadableRun;
use crate::runtime::{RuntimeError, block_on};
use crate::view::http::Site;
use crate::view::terminal::{CtrlC, show};
use crate::view::{ViewError, socket};

/// `ccbench top`.
///
/// # Errors
/// There is no such run, or no terminal.
pub fn top(args: &TopArgs) -> Result<ExitCode, CliError> {
    let is_terminal = std::io::stdout().is_terminal();
    if !args.json && !is_terminal {
        return Err(ViewError::NoTerminal("add --json to print the updates as lines").into());
    }
    let stream = socket::find(args.run.as_deref())?;
    if !args.json {
        show(stream, CtrlC::Closes)?;
        return Ok(ExitCode::Success);
    }
    for line in BufReader::new(stream).lines() {
        if write_json(&line.map_err(ViewError::io("read the updates of the run"))?).is_err() {
            break;
        }
    }
    Ok(ExitCode::Success)
}

/// `ccbench view`.
///
/// # Errors
/// There is no such run, or the page cannot be served.
pub fn view(args: &ViewArgs) -> Result<ExitCode, CliError> {
    let dir = match &args.run {
        Some(dir) => dir.clone(),
        None => {
            let first = socket::first_update(socket::find(None)?);
            first.ok_or(ViewError::NothingRuns)?.run.directory.into()
        }
    };
    let run = ReadableRun::open(&dir)?;
    // A directory without results is an error of the command line, not of the page.
    RunDir::open(run.path())?;
    let site = Site::bind(run.path())?;
    print(&format!("{}\n", site.url()));
    message(format_args!("press Ctrl-C to end"));
    block_on(async {
        tokio::select! {
            () = site.serve() => Ok(()),
            stopped = tokio::signal::ctrl_c() => stopped.map_err(RuntimeError::Signals),
        }
    })?;
    Ok(ExitCode::Success)
}
