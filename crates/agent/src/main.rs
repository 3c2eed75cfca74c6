//! `ccbench-agent`: reads the command line and hands over.

use std::process::ExitCode;

use anyhow::Context as _;
use ccbench_agent::args::{Cli, Command, ServeArgs};
use ccbench_agent::{enter, launch, serve, testbed};
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let log = tracing_subscriber::EnvFilter::try_from_env("CCBENCH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,ccbench_agent=info"));
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    match run(&cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("ccbench-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<u8> {
    match command {
        Command::Serve(args) => run_serve(args).map(|()| 0),
        Command::Testbed(args) => Ok(testbed::main(args)?),
        Command::Launch(args) => Ok(launch::main(args)?),
        Command::Enter(args) => Ok(enter::main(args)?),
        Command::Clean(_) | Command::Undo(_) => Ok(0),
    }
}

fn run_serve(args: &ServeArgs) -> anyhow::Result<()> {
    if args.die_with_parent {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)
            .context("ask to be told of the parent's end")?;
    }
    if let Some(path) = &args.netns {
        let file = std::fs::File::open(path)
            .with_context(|| format!("open network namespace {}", path.display()))?;
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("enter network namespace {}", path.display()))?;
    }
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
