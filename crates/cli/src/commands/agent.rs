//! Commands that replace this process with the agent: `ccbench cc`, `link` and `clean`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::error::CliError;
use crate::paths::{agent_binary, state_root};

/// Sub-commands whose arguments the agent parses, including `--` and `--help`.
const AGENT_COMMANDS: [&str; 2] = ["cc", "link"];

/// Returns the sub-command and its arguments if the agent parses them.
pub fn agent_command(arguments: &[OsString]) -> Option<(&OsStr, &[OsString])> {
    let command = arguments.get(1)?;
    AGENT_COMMANDS
        .iter()
        .any(|name| command == name)
        .then(|| (command.as_os_str(), &arguments[2..]))
}

/// Replaces this process with `ccbench-agent COMMAND`, which messages call `ccbench`. Returns only on failure.
#[expect(clippy::disallowed_methods, reason = "starts the agent")]
pub fn exec_agent(command: &OsStr, arguments: &[OsString]) -> CliError {
    replace(Command::new(agent_binary()).arg0("ccbench").arg(command).args(arguments))
}

/// Replaces this process with `ccbench-agent clean`. Returns only on failure.
#[expect(clippy::disallowed_methods, reason = "starts the agent")]
pub fn clean() -> CliError {
    replace(Command::new(agent_binary()).arg("clean").arg("--root").arg(state_root()))
}

/// Replaces this process with `command`. Returns only on failure.
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
        assert_eq!(agent_command(&words), Some((OsStr::new("link"), &words[2..])));
        assert_eq!(agent_command(&split("ccbench run link")), None);
        assert_eq!(agent_command(&split("ccbench")), None);
    }
}
