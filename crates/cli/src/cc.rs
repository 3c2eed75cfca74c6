//! `ccbench cc`: becomes the agent, which alone knows congestion controls. It shows the controller's name.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::error::CliError;
use crate::local;

/// What follows `ccbench cc`, if that is what was typed: the agent reads it, `--help` included.
pub fn arguments(typed: &[OsString]) -> Option<&[OsString]> {
    typed.get(1).filter(|word| *word == "cc").map(|_| &typed[2..])
}

/// Becomes `ccbench-agent cc`; returns only if that cannot be started.
pub fn exec(arguments: &[OsString]) -> CliError {
    let agent = local::agent_binary();
    let error = Command::new(&agent).arg0("ccbench").arg("cc").args(arguments).exec();
    CliError::Testbed(format!(
        "cannot start {}: {error}; build it (`make`) or name it with CCBENCH_AGENT",
        agent.display()
    ))
}
