//! `ccbench-agent`: parses the command line and runs a subcommand.
#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;

use ccbench_agent::args::{
    CleanArgs, Cli, Command, ServeArgs, UndoArgs, command_hint, may_name_token,
};
use ccbench_agent::audit::Audit;
use ccbench_agent::error::{AgentError, with_causes};
use ccbench_agent::join::JoinError;
use ccbench_agent::renew::RenewError;
use ccbench_agent::testbed::{TestbedError, child};
use ccbench_agent::undo::{Discard, JournalError};
use ccbench_agent::{
    clean, enter, generator, join, launch, link, loader, probe, renew, serve, sockets, testbed,
    undo,
};
use ccbench_io::console;
use ccbench_proto::printable;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser as _};
use rustix::fs::Mode;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    if std::process::id() == 1 {
        ccbench_agent::guest::main();
    }
    match run(&parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            console::message(format_args!("ccbench-agent: {}", with_causes(&error)));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Reads the command line. An error ends the process.
fn parse() -> Cli {
    let words: Vec<_> = std::env::args_os().collect();
    Cli::try_parse_from(&words).unwrap_or_else(|mut error| {
        if let Some(hint) = command_hint(&error, &words) {
            let hint = ContextValue::StyledStrs(vec![hint.into()]);
            error.insert(ContextKind::Suggested, hint);
        }
        if may_name_token(&error, &words) {
            error.insert(ContextKind::InvalidArg, ContextValue::String("…".to_owned()));
        }
        error.exit()
    })
}

/// Why a subcommand failed. `generate`, `link`, `cc` and `link-guard` report their errors themselves.
#[derive(Debug, thiserror::Error)]
enum MainError {
    /// `serve`, `front`, `worker` and `loader`.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// `join`.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// `renew`.
    #[error(transparent)]
    Renew(#[from] RenewError),
    /// `testbed`.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// `launch`.
    #[error(transparent)]
    Launch(#[from] child::ChildSetupError),
    /// `enter`.
    #[error(transparent)]
    Enter(#[from] enter::EnterError),
    /// `clean`.
    #[error(transparent)]
    Clean(#[from] CleanError),
    /// `undo`.
    #[error(transparent)]
    Undo(#[from] UndoError),
    /// `man`.
    #[error(transparent)]
    Man(#[from] ManError),
}

impl MainError {
    /// 2 for a wrong command line, as for those that clap refuses; otherwise 1.
    fn exit_code(&self) -> u8 {
        match self {
            Self::Join(error) => error.exit_code(),
            Self::Serve(_)
            | Self::Renew(_)
            | Self::Testbed(_)
            | Self::Launch(_)
            | Self::Enter(_)
            | Self::Clean(_)
            | Self::Undo(_)
            | Self::Man(_) => 1,
        }
    }
}

/// Why `serve`, `front`, `worker` or `loader` failed.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    /// The process could not be tied to its parent or enter its namespace.
    #[error(transparent)]
    Enter(#[from] child::ChildSetupError),
    /// The tokio runtime could not be set up.
    #[error("{op}: {source}")]
    Runtime {
        /// The operation.
        op: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The node failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl ServeError {
    fn runtime(op: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Runtime { op, source }
    }
}

/// Why `clean` failed.
#[derive(Debug, thiserror::Error)]
enum CleanError {
    /// The folder of the testbeds cannot be read.
    #[error("look for dead testbeds in {}: {source}", .root.display())]
    Sweep {
        /// The folder.
        root: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A journal of a dead agent could not be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The result cannot be printed.
    #[error("write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Why `undo` failed.
#[derive(Debug, thiserror::Error)]
enum UndoError {
    /// The namespace that `--netns` names could not be entered.
    #[error(transparent)]
    Enter(#[from] child::ChildSetupError),
    /// The journal of the dead agent could not be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The result cannot be printed.
    #[error("write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Why `man` failed.
#[derive(Debug, thiserror::Error)]
#[error("write man pages to {}: {source}", .dir.display())]
struct ManError {
    /// The directory.
    dir: PathBuf,
    /// The system's answer.
    source: io::Error,
}

fn run(command: &Command) -> Result<u8, MainError> {
    use Command::{Front, Loader, Serve, Worker};
    if matches!(command, Serve(_) | Front(_) | Worker(_) | Loader(_)) {
        // As in the systemd units: no other user reads journals and audit logs.
        rustix::process::umask(Mode::from_raw_mode(0o077));
    }
    match command {
        Command::Serve(args) => Ok(run_serve(args).map(|()| 0)?),
        Command::Front(args) => {
            Ok(run_until_signal(|shutdown| serve::front(args, shutdown)).map(|()| 0)?)
        }
        Command::Loader(args) => {
            log_to_stderr();
            Ok(loader::main(args).map(|()| 0).map_err(ServeError::from)?)
        }
        Command::Worker(args) => {
            Ok(run_until_signal(|shutdown| serve::worker(args, shutdown)).map(|()| 0)?)
        }
        Command::Join(args) => Ok(join::main(args).map(|()| 0)?),
        Command::Renew(args) => Ok(renew::main(args).map(|()| 0)?),
        Command::Testbed(args) => {
            log_to_stderr();
            Ok(testbed::main(args)?)
        }
        Command::Launch(args) => Ok(launch::main(args)?),
        Command::Generate(args) => Ok(generator::main(args)),
        Command::Probe(args) => Ok(probe::process::main(args)),
        Command::Enter(args) => Ok(enter::main(args)?),
        Command::Link(args) => {
            log_to_stderr();
            Ok(link::main(args))
        }
        Command::Cc(args) => Ok(sockets::command::main(args)),
        Command::LinkGuard(args) => Ok(link::guard(args)),
        Command::Clean(args) => Ok(run_clean(args)?),
        Command::Undo(args) => {
            log_to_stderr();
            Ok(run_undo(args)?)
        }
        Command::Man(args) => Ok(write_man_pages(&args.dir).map(|()| 0)?),
    }
}

fn write_man_pages(dir: &Path) -> Result<(), ManError> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .map_err(|source| ManError { dir: dir.to_owned(), source })
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("CCBENCH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,ccbench_agent=info"));
    // No colours: the log formatter escapes their sequences, too.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| console::Log)
        .with_ansi(false)
        .init();
}

fn run_clean(args: &CleanArgs) -> Result<u8, CleanError> {
    if args.run_dir.is_some() {
        console::message("ccbench-agent: `--run-dir` is deprecated; use `--root`");
    }
    let root = args.run_dir.as_ref().unwrap_or(&args.root);
    let swept = testbed::sweep::sweep(root)
        .map_err(|source| CleanError::Sweep { root: root.clone(), source })?;
    let mut out = std::io::stdout().lock();
    for dir in &swept.removed {
        writeln!(out, "removed: {} (its testbed has ended)", dir.display())?;
    }
    for dir in &swept.emptied {
        writeln!(out, "kept: {} (its testbed has ended; it contains other files)", dir.display())?;
    }
    drop(out);
    let mut cleaned = clean::clean(root)?;
    let is_swept = !swept.removed.is_empty() || !swept.emptied.is_empty();
    cleaned.outcome.failed.extend(swept.failed);
    if !is_swept && cleaned.is_nothing() {
        console::print(&format!(
            "nothing to undo under {}; for agents with --state-dir: `ccbench-agent undo --state-dir DIR`\n",
            root.display()
        ));
    }
    let code = print_outcome(&cleaned.outcome)?;
    print_state_dirs(&cleaned)?;
    Ok(code)
}

fn print_state_dirs(cleaned: &clean::Cleaned) -> io::Result<()> {
    let mut out = std::io::stdout().lock();
    for dir in &cleaned.removed {
        writeln!(out, "removed: {} (its agent has ended)", dir.display())?;
    }
    for (dir, files) in &cleaned.kept {
        let dir = dir.display();
        write!(out, "kept: {dir} (its agent has ended; it contains {}", files.join(", "))?;
        if undo::have_journal(files) {
            write!(out, "; `ccbench-agent undo --state-dir {dir}` undoes its changes")?;
        }
        writeln!(out, ")")?;
    }
    Ok(())
}

fn run_undo(args: &UndoArgs) -> Result<u8, UndoError> {
    // Affects only the calling thread, so it must run before other threads exist.
    child::enter(args.netns.as_deref(), false)?;
    let outcome = undo_left(args)?;
    match Audit::of_dead_agent(&args.state_dir) {
        Ok(audit) => {
            audit.undone(&outcome);
            audit.flush();
        }
        // This error does not affect what has been undone.
        Err(error) => console::message(format_args!("ccbench-agent: {error}")),
    }
    Ok(print_outcome(&outcome)?)
}

/// Undoes what the dead agent of a state directory left.
fn undo_left(args: &UndoArgs) -> Result<undo::Outcome, JournalError> {
    if !args.state_dir.exists() {
        return Ok(undo::Outcome::default());
    }
    let _lock = undo::lock(&args.state_dir)?;
    let netns = args.netns.as_deref();
    let discard = Discard { damaged: args.discard_damaged, unreachable: args.discard_unreachable };
    undo::roll_back(&args.state_dir, netns, discard)
}

fn print_outcome(outcome: &undo::Outcome) -> io::Result<u8> {
    let mut out = std::io::stdout().lock();
    for line in &outcome.undone {
        writeln!(out, "undone: {}", printable::line(line))?;
    }
    for line in &outcome.dropped {
        writeln!(out, "dropped: {}", printable::line(line))?;
    }
    for line in &outcome.failed {
        writeln!(out, "failed: {}", printable::line(line))?;
    }
    Ok(u8::from(!outcome.failed.is_empty()))
}

fn run_serve(args: &ServeArgs) -> Result<(), ServeError> {
    // Both settings affect only the calling thread, so they must precede other threads.
    testbed::child::enter(args.netns.as_deref(), args.die_with_parent)?;
    run_until_signal(|shutdown| serve::serve(args, shutdown))
}

/// Resolves at SIGTERM and SIGINT.
type Shutdown = Pin<Box<dyn Future<Output = ()>>>;

fn run_until_signal<F: Future<Output = Result<(), AgentError>>>(
    serve: impl FnOnce(Shutdown) -> F,
) -> Result<(), ServeError> {
    log_to_stderr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ServeError::runtime("start the tokio runtime"))?;
    runtime.block_on(async {
        let mut terminate =
            signal(SignalKind::terminate()).map_err(ServeError::runtime("handle SIGTERM"))?;
        let mut interrupt =
            signal(SignalKind::interrupt()).map_err(ServeError::runtime("handle SIGINT"))?;
        let shutdown = Box::pin(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        Ok(serve(shutdown).await?)
    })
}

#[cfg(test)]
mod tests {
    use ccbench_proto::join::JoinToken;

    use super::*;

    #[test]
    fn only_a_wrong_command_line_ends_with_code_2() {
        let token = "no token".parse::<JoinToken>().unwrap_err();
        assert_eq!(MainError::from(JoinError::from(token)).exit_code(), 2);
        let exists = JoinError::Exists("/etc/ccbench/node.key".into());
        assert_eq!(MainError::from(exists).exit_code(), 1);
        let source = io::Error::other("out of descriptors");
        let error = ManError { dir: "/x".into(), source };
        assert_eq!(MainError::from(error).exit_code(), 1);
    }

    #[test]
    fn causes_are_named_once() {
        let source = || io::Error::other("out of descriptors");
        let text =
            with_causes(&MainError::from(ServeError::Runtime { op: "start", source: source() }));
        assert_eq!(text, "start: out of descriptors");

        #[derive(Debug, thiserror::Error)]
        #[error("transport error")]
        struct Opaque(#[source] io::Error);
        assert_eq!(with_causes(&Opaque(source())), "transport error: out of descriptors");
    }
}
