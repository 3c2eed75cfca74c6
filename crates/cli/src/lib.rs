//! The controller: `ccbench run plan.toml` drives agents, stores, summarises and judges the rows that they send. It changes no
//! kernel settings itself and knows nodes only through the wire protocol.
//!
//! - `args` is the command line; `commands` has one module per sub-command.
//! - `runner` queues the trials of an `experiment` for a `backend`: `testbed` (agents on nodes), `lab` (virtual machines) or
//!   `simulator`. `repetition` decides which trials are needed, `recorder` stores a trial's rows, and `progress` prints what
//!   happens. `shard` runs a part of the trials and puts them into the shard store; `cluster` makes what schedulers need to start
//!   shards. `provision` writes requests for the nodes of testbeds.
//! - `readable_run` opens a run for the commands that read it, from any location: `collect` reads a shard store, and `run_cache`
//!   keeps copies.
//! - `live` holds the state of a run in progress in bounded memory; `view` shows it in the terminal and in the browser.
//! - `error` maps every error to an exit code, and `docs` maps it to the section of the documents that explains it.
#![forbid(unsafe_code)]

mod agents;
mod args;
mod backend;
mod cc_files;
mod clock;
mod clock_offset;
mod cluster;
mod collect;
mod commands;
mod console;
mod docs;
mod error;
mod exit;
mod experiment;
mod file;
mod interrupt;
mod jobs;
mod lab;
mod live;
mod message;
mod paths;
mod pki;
mod plan_source;
mod progress;
mod provision;
mod readable_run;
mod recorder;
mod repetition;
mod run_cache;
mod runner;
mod runtime;
mod shard;
mod simulator;
mod testbed;
mod tls;
mod trace_files;
mod view;
#[doc(hidden)]
pub mod virtual_network;
mod virtual_trial;

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory, Parser};
use tracing_subscriber::EnvFilter;

/// Used by the model of the protocol in `tests/protocol`.
#[doc(hidden)]
pub use agents::after_loss;
/// Used by `examples/clock_bounds.rs`.
#[doc(hidden)]
pub use agents::exchange_timestamps;
use args::{Cli, Command};
use commands::{
    agent, artifact, check, describe, doctor, exec, import, merge, new, plan, reproduce, reset,
    results, run, scorecard, submit, trace, view as views,
};
use console::{message, print};
/// Used by `tests/docs`, which checks that the sections exist.
#[doc(hidden)]
pub use docs::sections;
use error::CliError;
use exit::ExitCode;
use file::FileError;
use runtime::block_on;

/// Runs one command line and returns the process's exit code (see `ccbench --help`).
pub fn run(arguments: impl Iterator<Item = OsString>) -> i32 {
    let arguments: Vec<OsString> = arguments.collect();
    let result = match agent::agent_command(&arguments) {
        Some((command, rest)) => Err(agent::exec_agent(command, rest)),
        None => match Cli::try_parse_from(arguments) {
            Ok(cli) => {
                log_to_stderr(cli.verbose);
                dispatch(cli.command)
            }
            Err(error) => {
                // `--help` and `--version` go to standard output and are not errors.
                let _ = error.print();
                Ok(if error.use_stderr() { ExitCode::Usage } else { ExitCode::Success })
            }
        },
    };
    let code = result.unwrap_or_else(|error| {
        message(format_args!("ccbench: {error}"));
        let sections = docs::of(&error);
        if !sections.is_empty() {
            message(format_args!("see {}", sections.join(", ")));
        }
        error.exit_code()
    });
    code.number()
}

/// Runs `ccbench run` with these arguments on the installed [`virtual_network`], in the caller's runtime. Used by `tests/turmoil`.
///
/// # Errors
/// The arguments are no `ccbench run`, the run could not start, or an error has stopped it.
#[doc(hidden)]
pub async fn run_simulated(arguments: &[&str]) -> Result<(), CliError> {
    match Cli::try_parse_from(arguments).map(|cli| cli.command) {
        Ok(Command::Run(args)) => run::run_simulated(&args).await,
        _ => Err(run::error::RunUsageError::NothingToRun.into()),
    }
}

/// Logs to standard error: steps with `-v`, messages with `-vv`. A filter in `CCBENCH_LOG` overrides both.
fn log_to_stderr(verbose: u8) {
    let filter = match verbose {
        0 => "warn",
        1 => "warn,ccbench=info",
        _ => "warn,ccbench=debug",
    };
    let filter = EnvFilter::try_from_env("CCBENCH_LOG").unwrap_or_else(|_| EnvFilter::new(filter));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        // No colours, because the writer escapes control sequences.
        .with_ansi(false)
        .with_writer(|| console::Log)
        .init();
}

fn dispatch(command: Command) -> Result<ExitCode, CliError> {
    match command {
        Command::New(args) => new::run(args),
        Command::Doctor { json } => doctor::run(json),
        Command::Run(args) => run::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Submit(args) => submit::run(args),
        Command::Testbed(args) => commands::testbed::run(&args),
        Command::Plan(command) => Ok(plan::run(&command)?),
        Command::Reproduce(args) => reproduce::run(args),
        Command::Scorecard(args) => scorecard::run(args),
        Command::Check(args) => check::run(&args),
        Command::Summarize(args) => results::summarize(&args),
        Command::Verify(args) => results::verify(&args),
        Command::Import(args) => import::run(&args),
        Command::Report(args) => results::report(&args),
        Command::Index(args) => results::index(&args),
        Command::Artifact(command) => artifact::run(command),
        Command::Compare(args) => results::compare(&args),
        Command::Export(command) => results::export(&command),
        Command::Plot(args) => results::plot(args),
        Command::Describe(args) => block_on(describe::run(args)),
        Command::Exec(args) => Err(exec::exec(&args)),
        Command::Lab(command) => commands::lab::run(&command),
        Command::Cc { arguments } => Err(agent::exec_agent("cc".as_ref(), &arguments)),
        Command::Link { arguments } => Err(agent::exec_agent("link".as_ref(), &arguments)),
        Command::Trace(command) => trace::run(command),
        Command::Top(args) => views::top(&args),
        Command::View(args) => views::view(&args),
        Command::Clean => Err(agent::clean()),
        Command::Reset(args) => block_on(reset::run(&args)),
        Command::Pki(command) => commands::pki::run(&command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ccbench", &mut script);
            print(&String::from_utf8_lossy(&script));
            Ok(ExitCode::Success)
        }
        Command::Man { dir } => write_man_pages(&dir),
    }
}

fn write_man_pages(dir: &Path) -> Result<ExitCode, CliError> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .map_err(FileError::io("write man pages to", dir))?;
    Ok(ExitCode::Success)
}
