//! `ccbench link`: becomes the agent, which alone knows links. It shows the controller's name.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::error::CliError;
use crate::local;

/// What follows `ccbench link`, if that is what was typed: the agent reads it, `--` and `--help` included.
pub fn arguments(typed: &[OsString]) -> Option<&[OsString]> {
    typed.get(1).filter(|word| *word == "link").map(|_| &typed[2..])
}

/// Becomes `ccbench-agent link`; returns only if that cannot be started.
pub fn exec(arguments: &[OsString]) -> CliError {
    let agent = local::agent_binary();
    let error = Command::new(&agent).arg0("ccbench").arg("link").args(arguments).exec();
    CliError::Testbed(format!(
        "cannot start {}: {error}; build it (`make`) or name it with CCBENCH_AGENT",
        agent.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_behind_the_word_is_the_agents() {
        let typed = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let words = typed("ccbench link --rate 1mbit -- sh -c true");
        assert_eq!(arguments(&words), Some(&words[2..]));
        assert_eq!(arguments(&typed("ccbench run link")), None);
        assert_eq!(arguments(&typed("ccbench")), None);
    }
}
