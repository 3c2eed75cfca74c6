//! `ccbench-agent`: parses the command line and runs a subcommand.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use ccbench_agent::args::{Cli, Command, ServeArgs, UndoArgs};
use ccbench_agent::{clean, enter, generator, launch, link, serve, sockets, testbed, undo};
use ccbench_io::console;
use ccbench_proto::printable;
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    if std::process::id() == 1 {
        ccbench_agent::guest::main();
    }
    match run(&Cli::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            console::message(format_args!("ccbench-agent: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<u8> {
    match command {
        Command::Serve(args) => run_serve(args).map(|()| 0),
        Command::Testbed(args) => {
            log_to_stderr();
            Ok(testbed::main(args)?)
        }
        Command::Launch(args) => Ok(launch::main(args)?),
        Command::Generate(args) => Ok(generator::main(args)),
        Command::Enter(args) => Ok(enter::main(args)?),
        Command::Link(args) => {
            log_to_stderr();
            Ok(link::main(args))
        }
        Command::Cc(args) => Ok(sockets::command::main(args)),
        Command::LinkGuard(args) => Ok(link::guard(args)),
        Command::Clean(args) => run_clean(&args.run_dir),
        Command::Undo(args) => print_outcome(&undo_left(args)?),
    }
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("CCBENCH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,ccbench_agent=info"));
    // Without colours: what a log line escapes includes their sequences.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| console::Log)
        .with_ansi(false)
        .init();
}

fn run_clean(root: &Path) -> anyhow::Result<u8> {
    let swept = testbed::sweep::sweep(root)
        .with_context(|| format!("look for dead testbeds in {}", root.display()))?;
    let mut out = std::io::stdout().lock();
    for dir in &swept.removed {
        writeln!(out, "removed: {} (its testbed has ended)", dir.display())?;
    }
    for dir in &swept.emptied {
        writeln!(out, "kept: {} (its testbed has ended; other files are in it)", dir.display())?;
    }
    drop(out);
    print_outcome(&clean::clean(root)?)
}

/// Undoes what the dead agent of a state directory left.
fn undo_left(args: &UndoArgs) -> Result<undo::Outcome, undo::JournalError> {
    if !args.state_dir.exists() {
        return Ok(undo::Outcome::default());
    }
    let _lock = undo::lock(&args.state_dir)?;
    if args.discard_damaged {
        return undo::discard_unreadable(&args.state_dir);
    }
    undo::roll_back(&args.state_dir)
}

fn print_outcome(outcome: &undo::Outcome) -> anyhow::Result<u8> {
    let mut out = std::io::stdout().lock();
    for line in &outcome.undone {
        writeln!(out, "undone: {}", printable::line(line))?;
    }
    for line in &outcome.failed {
        writeln!(out, "failed: {}", printable::line(line))?;
    }
    Ok(u8::from(!outcome.failed.is_empty()))
}

fn run_serve(args: &ServeArgs) -> anyhow::Result<()> {
    // Both apply to the calling thread, so do them before others exist.
    testbed::child::enter(args.netns.as_deref(), args.die_with_parent)?;
    log_to_stderr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        serve::serve(args, shutdown).await?;
        Ok(())
    })
}
