//! `ccbench-agent launch`: becomes a traffic process. Between fork and exec, a multithreaded program may only call
//! async-signal-safe functions. So the agent executes this command, which drops privileges and then executes the program.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::AtFlags;
use nix::sys::signal::SigSet;
use rustix::fs::{Mode, OFlags};

use crate::cgroup;
use crate::testbed::child::{ChildSetupError, tie_to_parent};
use ccbench_io::console::message;

mod privileges;

use privileges::{Credentials, CredentialsError};

/// `ccbench-agent launch`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Move into this control group first; without it nothing is started
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// The pid of the process that starts this one; if that is no longer the parent, exit at once
    #[arg(long, value_name = "PID")]
    pub parent: Option<u32>,
    /// Take an unprivileged user, and drop all capabilities and descriptors first: for traffic
    #[arg(long)]
    pub unprivileged: bool,
    /// The user that an unprivileged program runs as if this process is root: a name, UID or UID:GID
    /// [default: ccbench-traffic if there is such a user, else nobody]
    #[arg(long, value_name = "USER", env = USER_VARIABLE)]
    pub user: Option<Credentials>,
    /// Keep CAP_NET_ADMIN, for a congestion control that is not in net.ipv4.tcp_allowed_congestion_control
    #[arg(long, requires = "unprivileged")]
    pub net_admin: bool,
    /// The program and its arguments; no shell is involved
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The environment variable that selects the traffic user.
pub const USER_VARIABLE: &str = "CCBENCH_TRAFFIC_USER";

/// Returns the user and group that this process's traffic runs as: `UID:GID (NAME)`; `None` if that is the user of this
/// process. A program that only this process's user may execute keeps that user.
///
/// # Errors
/// [`USER_VARIABLE`] names no user.
pub fn traffic_user() -> Result<Option<String>, CredentialsError> {
    Ok(traffic_credentials()?.map(|credentials| credentials.to_string()))
}

/// Whether this process's traffic runs as this user, and not as the user of this process.
pub fn is_traffic_user(uid: u32) -> bool {
    // If the user cannot be determined, no traffic is started.
    traffic_credentials()
        .is_ok_and(|credentials| credentials.is_some_and(|traffic| traffic.uid() == uid))
}

fn traffic_credentials() -> Result<Option<Credentials>, CredentialsError> {
    let given = std::env::var_os(USER_VARIABLE);
    let given = given.map(|user| user.to_string_lossy().parse::<Credentials>()).transpose()?;
    Ok(Some(given.unwrap_or_default()).filter(|credentials| credentials.is_usable(None)))
}

/// Exit code if the program is not found.
const NOT_FOUND: u8 = 127;
/// Exit code if the program cannot be started.
const NOT_STARTED: u8 = 126;

/// Executes the program. Returns only when the program cannot be started: 127 if it is not found, else 126, with the
/// reason on standard error.
///
/// The kernel kills the program when the *thread* that started this process ends, so spawn it from a thread that stays.
///
/// # Errors
/// The parent has ended, or this process could not be tied to it.
pub fn main(args: &Args) -> Result<u8, ChildSetupError> {
    tie_to_parent(args.parent)?;
    // The limits of the agent's own group would distort the traffic, so start nothing there.
    if let Some(group) = &args.cgroup
        && let Err(error) = cgroup::join(group)
    {
        message(format_args!("ccbench-agent: join control group {}: {error}", group.display()));
        return Ok(NOT_STARTED);
    }
    // The agent may have an OOM score adjustment and blocked signals; exec preserves both.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    let _ = SigSet::empty().thread_set_mask();
    if !args.unprivileged {
        return Ok(exec(&args.command));
    }
    privileges::close_descriptors();
    // Opened with the agent's privileges: the program may be in a folder that only root can read.
    let program = args.command.first().and_then(|program| open_program(program));
    let metadata = program.as_ref().and_then(|file| file.metadata().ok());
    let credentials = args.user.unwrap_or_default();
    if let Err(error) = privileges::drop_all(credentials, args.net_admin, metadata.as_ref()) {
        message(format_args!("ccbench-agent: {error}"));
        return Ok(NOT_STARTED);
    }
    // The kernel clears the parent-death signal when a process changes its user.
    tie_to_parent(args.parent)?;
    let folder = privileges::temporary_folder();
    Ok(exec_program(&args.command, program.as_ref(), folder.as_deref()))
}

/// Opens the program's file: at its path, or the first match in PATH.
fn open_program(program: &OsStr) -> Option<File> {
    let open = |path: &Path| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).ok().map(File::from)
    };
    if program.as_bytes().contains(&b'/') {
        return open(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |file: &File| {
        use std::os::unix::fs::MetadataExt as _;
        file.metadata().is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).find_map(|dir| open(&dir.join(program)).filter(is_program))
}

/// Executes `command`, by descriptor if its path is no longer accessible. Returns the exit code if that fails.
#[expect(clippy::disallowed_methods, reason = "starts the launched command")]
fn exec_program(command: &[OsString], program: Option<&File>, folder: Option<&Path>) -> u8 {
    let Some((name, arguments)) = command.split_first() else {
        message("ccbench-agent: no command was given");
        return NOT_STARTED;
    };
    let mut path = Command::new(name);
    path.args(arguments);
    if let Some(folder) = folder {
        path.env("TMPDIR", folder);
    }
    let error = path.exec();
    match program.filter(|_| error.kind() == ErrorKind::PermissionDenied) {
        Some(program) => failed(name, &exec_descriptor(command, program, folder)),
        None => failed(name, &error),
    }
}

/// Executes the open file `program`. Returns the error.
fn exec_descriptor(command: &[OsString], program: &File, folder: Option<&Path>) -> io::Error {
    let folder = folder.map(|folder| ("TMPDIR".into(), folder.as_os_str().to_owned()));
    let kept = std::env::vars_os().filter(|(name, _)| folder.is_none() || name != "TMPDIR");
    let entry = |(name, value): (OsString, OsString)| [name, value].join(OsStr::new("="));
    let environment = kept.chain(folder.clone()).map(entry);
    let c = |text: OsString| CString::new(text.into_vec());
    let (Ok(arguments), Ok(environment)) = (
        command.iter().cloned().map(c).collect::<Result<Vec<_>, _>>(),
        environment.map(c).collect::<Result<Vec<_>, _>>(),
    ) else {
        return ErrorKind::InvalidInput.into();
    };
    let done =
        nix::unistd::execveat(program, c"", &arguments, &environment, AtFlags::AT_EMPTY_PATH);
    match done {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}

/// Executes `command`, whose first word is the program. Returns the exit code if that fails.
pub(crate) fn exec(command: &[OsString]) -> u8 {
    exec_program(command, None, None)
}

/// Prints why a program was not started, and returns the exit code.
fn failed(name: &OsStr, error: &io::Error) -> u8 {
    let name = name.to_string_lossy();
    // If a folder in PATH is not readable, exec reports EACCES instead of "not found".
    let hidden = error.kind() == ErrorKind::PermissionDenied && !name.contains('/');
    if hidden || error.kind() == ErrorKind::NotFound {
        message(format_args!(
            "ccbench-agent: run {name}: not found; is it installed and on the PATH?"
        ));
        return NOT_FOUND;
    }
    message(format_args!("ccbench-agent: run {name}: {error}"));
    NOT_STARTED
}
