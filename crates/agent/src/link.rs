//! `ccbench link`: an emulated link between two interfaces, at the egress of one, or around a command. It cleans up
//! after itself, even after an interrupt or SIGKILL.

use ccbench_io::console::message;
use ccbench_shaper::keep_awake::KeepAwake;
use nix::sys::signal::Signal;

mod addresses;
pub mod args;
mod bridge;
mod control;
mod egress;
mod error;
mod flag_message;
mod no_effect;
mod output;
mod report;
mod rtnl;
mod session;
mod shell;
mod signals;
mod spec;
pub(crate) mod text;
mod trace_file;

pub use args::Args;
pub use egress::{GuardArgs, guard};
pub use error::{FormError, LinkError};

use crate::testbed::userns;
use egress::Egress;
use output::Output;
use session::{Direction, LinkSession};
use shell::Shell;
use signals::{ReceivedSignal, Signals};
use spec::Spec;

/// The form of the command line.
enum Form<'a> {
    Bridge(&'a str, &'a str),
    Egress(&'a str),
    Shell,
}

impl<'a> Form<'a> {
    /// Returns the interfaces of this machine that the link uses, with their flags.
    fn interfaces(&self) -> Vec<(&'static str, &'a str)> {
        match *self {
            Self::Bridge(left, right) => vec![("--left", left), ("--right", right)],
            Self::Egress(dev) => vec![("--dev", dev)],
            Self::Shell => Vec::new(),
        }
    }
}

/// Runs the link, prints errors and returns the exit code. Must run on the main thread of a process without other threads.
pub fn main(args: &Args) -> u8 {
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            let code = error.exit_code();
            message(format_args!("ccbench link: {error}"));
            code
        }
    }
}

fn run(args: &Args) -> Result<u8, LinkError> {
    let form = form(args)?;
    if !args.allow_control_interface {
        control::check(&form.interfaces())?;
    }
    if args.interval.get() == 0 {
        return Err(LinkError::ZeroInterval);
    }
    if args.length.is_some_and(|length| length.get() == 0) {
        return Err(LinkError::ZeroLength);
    }
    let spec = spec::build(args, trace_file::read)?;
    let output = Output::open(args)?;
    for warning in &spec.warnings {
        output.log(&format!("warning: {warning}"));
    }
    // Opened before any thread starts, so that all threads inherit the blocked signals.
    let signals = Signals::open()?;
    match form {
        Form::Bridge(left, right) => run_bridge(args, (left, right), &spec, output, &signals),
        Form::Egress(dev) => run_egress(args, dev, &spec, output, &signals),
        Form::Shell => run_shell(args, &spec, output, &signals),
    }
}

fn form(args: &Args) -> Result<Form<'_>, FormError> {
    let form = match (&args.left, &args.right, &args.dev, args.command.is_empty()) {
        (Some(left), Some(right), None, true) => Form::Bridge(left, right),
        (None, None, Some(dev), true) => Form::Egress(dev),
        (None, None, None, false) => Form::Shell,
        (_, _, _, false) => return Err(FormError::CommandWithInterfaces),
        _ => return Err(FormError::NoLink),
    };
    match (&form, &args.outside, args.rootless) {
        (Form::Shell, _, _) | (_, None, false) => Ok(form),
        _ => Err(FormError::WithoutCommand),
    }
}

/// Keeps the CPUs awake until the guard is dropped.
fn keep_awake(args: &Args, output: &Output) -> Option<KeepAwake> {
    if !args.keep_awake {
        return None;
    }
    KeepAwake::start().inspect_err(|e| output.log(&format!("warning: --keep-awake: {e}"))).ok()
}

/// Ends the link at SIGINT, SIGTERM or SIGHUP.
fn stop_on_signal(received: ReceivedSignal) -> Option<u8> {
    (received.signal != Signal::SIGCHLD).then_some(0)
}

fn log_all(output: &Output, directions: &[Direction]) {
    for one in directions {
        output.log(&one.describe());
    }
}

fn run_bridge(
    args: &Args,
    (left, right): (&str, &str),
    spec: &Spec,
    output: Output,
    signals: &Signals,
) -> Result<u8, LinkError> {
    let (_locks, warnings) = bridge::take(left, right)?;
    for warning in warnings {
        output.log(&format!("warning: {warning}"));
    }
    let directions = bridge::join((left, right), (left, right), spec)?;
    let _awake = keep_awake(args, &output);
    log_all(&output, &directions);
    LinkSession::begin(args, directions, output)?.run(signals, stop_on_signal)
}

fn run_egress(
    args: &Args,
    dev: &str,
    spec: &Spec,
    output: Output,
    signals: &Signals,
) -> Result<u8, LinkError> {
    let (egress, direction) = Egress::open(dev, spec)?;
    let _awake = keep_awake(args, &output);
    let directions = vec![direction];
    log_all(&output, &directions);
    let code = LinkSession::begin(args, directions, output)?.run(signals, stop_on_signal)?;
    let left = egress.close().failed;
    if left.is_empty() { Ok(code) } else { Err(LinkError::NotRestored { left }) }
}

fn run_shell(args: &Args, spec: &Spec, output: Output, signals: &Signals) -> Result<u8, LinkError> {
    let rootless = args.rootless || !shell::may_make_namespaces();
    if rootless {
        userns::isolate(true)?;
        output.log(
            "without root, the command can reach the other end of the link but nothing else on this machine; \
             start servers there with --outside, or `nsenter --net=$CCBENCH_LINK_OUTSIDE SERVER`",
        );
    }
    let mut shell = Shell::make(rootless)?;
    if let Some(text) = &args.outside {
        shell.start_server(text)?;
    }
    let directions = bridge::join((shell::OUTER, shell::INNER), ("outside", "command"), spec)?;
    let _awake = keep_awake(args, &output);
    log_all(&output, &directions);
    output.log(&shell.describe());
    let session = LinkSession::begin(args, directions, output)?;
    shell.start(&args.command)?;
    session.run(signals, |received| shell.on_signal(received))
}
