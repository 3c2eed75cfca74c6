//! `ccbench-agent launch`: becomes a traffic process. Between fork and exec a Rust program may do next to
//! nothing safely; this step in between may do it all, and then is gone.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::SigSet;

use crate::cgroup;
use crate::testbed::child::{EnterError, tie_to_parent};

/// `ccbench-agent launch`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Move into this control group first; without it nothing is started
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// The pid of the process that starts this one; if that is no longer the parent, exit at once
    #[arg(long, value_name = "PID")]
    pub parent: Option<u32>,
    /// The program and its arguments; no shell is involved
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Exit code when the program is not there.
const NOT_FOUND: u8 = 127;
/// Exit code when the program cannot be started.
const NOT_STARTED: u8 = 126;

/// Executes the program. Returns only when the program cannot be started: 127 where it is not found, else
/// 126, the reason being on standard error.
///
/// The program is killed when the *thread* that started this process ends, so the caller spawns it from a
/// thread that stays.
///
/// # Errors
/// The parent has ended, or this process could not be tied to it.
pub fn main(args: &Args) -> Result<u8, EnterError> {
    tie_to_parent(args.parent)?;
    // In the agent's own group its limits would distort the traffic: rather none at all.
    if let Some(group) = &args.cgroup
        && let Err(error) = cgroup::join(group)
    {
        eprintln!("ccbench-agent: join control group {}: {error}", group.display());
        return Ok(NOT_STARTED);
    }
    // The agent may have protected itself from the OOM killer and blocked signals; both pass through exec.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    let _ = SigSet::empty().thread_set_mask();
    Ok(exec(&args.command))
}

/// Becomes `command`, whose first word is the program; returns the exit code when that fails.
pub(crate) fn exec(command: &[OsString]) -> u8 {
    let Some((program, arguments)) = command.split_first() else {
        eprintln!("ccbench-agent: no command was given");
        return NOT_STARTED;
    };
    let error = Command::new(program).args(arguments).exec();
    let name = program.to_string_lossy();
    // A folder of the PATH that may not be read hides that the others do not have the program.
    let hidden = error.kind() == ErrorKind::PermissionDenied && !name.contains('/');
    if hidden || error.kind() == ErrorKind::NotFound {
        eprintln!("ccbench-agent: run {name}: not found; is it installed and on the PATH?");
        return NOT_FOUND;
    }
    eprintln!("ccbench-agent: run {name}: {error}");
    NOT_STARTED
}
