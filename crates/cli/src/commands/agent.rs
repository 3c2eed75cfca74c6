//! Commands that replace this process by the agent: `ccbench cc`, `link` and `clean`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::error::CliError;
use crate::paths::{agent_binary, state_root};

/// Sub-commands that the agent parses, `--` and `--help` included.
const PASSED_ON: [&str; 2] = ["cc", "link"];

/// The sub-command and its arguments if the agent parses them.
pub fn passed_on(arguments: &[OsString]) -> Option<(&OsStr, &[OsString])> {
    let command = arguments.get(1)?;
    PASSED_ON.iter().any(|name| command == name).then(|| (command.as_os_str(), &arguments[2..]))
}

/// Replaces this process by `ccbench-agent COMMAND`, shown as `ccbench`; returns only if that fails.
#[expect(clippy::disallowed_methods, reason = "starts the agent")]
pub fn pass_on(command: &OsStr, arguments: &[OsString]) -> CliError {
    replace(Command::new(agent_binary()).arg0("ccbench").arg(command).args(arguments))
}

/// Replaces this process by `ccbench-agent clean`; returns only if that fails.
#[expect(clippy::disallowed_methods, reason = "starts the agent")]
pub fn clean() -> CliError {
    replace(Command::new(agent_binary()).arg("clean").arg("--root").arg(state_root()))
}

/// Replaces this process by `command`; returns only if that fails.
pub fn replace(command: &mut Command) -> CliError {
    let source = command.exec();
    CliError::StartProgram { path: command.get_program().into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_every_argument_after_the_command_to_the_agent() {
        let split = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let words = split("ccbench link --rate 1mbit -- sh -c true");
        assert_eq!(passed_on(&words), Some((OsStr::new("link"), &words[2..])));
        assert_eq!(passed_on(&split("ccbench run link")), None);
        assert_eq!(passed_on(&split("ccbench")), None);
    }
}
