//! Commands that replace this process by the agent: `ccbench cc`, `link`, `clean` and `exec`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::args::ExecArgs;
use crate::error::CliError;
use crate::paths::{agent_binary, running, state_root};

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

/// Replaces this process by a command in a node of a running experiment; returns only if that fails.
#[expect(clippy::disallowed_methods, reason = "starts the agent")]
pub fn exec(args: &ExecArgs) -> CliError {
    let mut experiments = running();
    if let Some(part) = &args.run {
        experiments.retain(|dir| {
            dir.file_name().is_some_and(|name| name.to_string_lossy().contains(part))
        });
    }
    let dir = match experiments.as_slice() {
        [one] => one,
        [] => {
            return CliError::Usage("none of your experiments is running on this machine".into());
        }
        many => {
            let ids: Vec<_> = many.iter().filter_map(|dir| dir.file_name()?.to_str()).collect();
            return CliError::Usage(format!(
                "several experiments are running; choose one with --run: {}",
                ids.join(", ")
            ));
        }
    };
    let mut enter = Command::new(agent_binary());
    replace(enter.arg("enter").arg("--dir").arg(dir).arg(&args.node).arg("--").args(&args.command))
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
