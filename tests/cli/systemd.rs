//! The unit of the agent for systemd.

use std::process::Command;

use ccbench_tests::skip::skip;
use ccbench_tests::{binary, source_root};

/// The highest exposure of the unit, in tenths, as `systemd-analyze security` rates it. A unit without restrictions has 96. What
/// the agent is for costs 37: root with CAP_NET_ADMIN and CAP_SYS_ADMIN in the machine's network, sysctls, control groups,
/// packet sockets and real-time threads. The rest leaves room for the ratings of other versions of systemd.
const MAX_EXPOSURE: u32 = 45;
/// Older ones cannot rate a file.
const FIRST_VERSION: u32 = 250;

const UNIT: &str = "systemd/ccbench-agent.service";

#[test]
fn the_unit_of_the_agent_is_confined() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        return skip("systemd-analyze is not installed");
    };
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let number = version.split_whitespace().nth(1).and_then(|number| number.parse::<u32>().ok());
    if number.is_none_or(|number| number < FIRST_VERSION) {
        return skip(&format!("systemd-analyze cannot rate a file: {version}"));
    }
    let output = Command::new("systemd-analyze")
        .args(["security", "--no-pager", "--offline=true"])
        .arg(format!("--threshold={MAX_EXPOSURE}"))
        .arg(source_root().join(UNIT))
        .output()
        .unwrap();
    let rated = String::from_utf8_lossy(&output.stdout);
    assert!(rated.contains("Overall exposure level"), "{output:?}");
    assert!(output.status.success(), "more exposed than {MAX_EXPOSURE}:\n{rated}");
}

/// With ProtectClock=, no device but the clock's can be opened.
#[test]
fn the_drop_in_for_modules_permits_their_devices() {
    let unit = std::fs::read_to_string(source_root().join(UNIT)).unwrap();
    let drop_in: Vec<&str> = unit.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
    for setting in ["PrivateDevices=", "ProtectClock="] {
        assert!(unit.lines().any(|line| line == format!("{setting}yes")), "{setting}");
        assert!(drop_in.contains(&format!("{setting}no").as_str()), "{setting}: {drop_in:?}");
    }
}

#[test]
fn the_unit_of_the_agent_uses_arguments_that_exist() {
    let unit = std::fs::read_to_string(source_root().join(UNIT)).unwrap().replace("\\\n", " ");
    let mut commands = Vec::new();
    for line in unit.lines() {
        let of = |key: &str| line.strip_prefix(key)?.strip_prefix('=');
        let Some(command) = of("ExecStart").or_else(|| of("ExecStopPost")) else { continue };
        let words: Vec<&str> = command.split_whitespace().collect();
        let [program, subcommand, arguments @ ..] = &words[..] else { panic!("{line}") };
        assert!(program.ends_with("/ccbench-agent"), "{line}");
        let help = Command::new(binary("ccbench-agent")).args([*subcommand, "--help"]).output();
        let help = String::from_utf8(help.unwrap().stdout).unwrap();
        for flag in arguments.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(&format!("{flag} ")), "{subcommand} has no {flag}");
        }
        commands.push(*subcommand);
    }
    assert_eq!(commands, ["serve", "undo", "clean"]);
    assert!(unit.contains("\nType=notify\n") && unit.contains("\nWatchdogSec="), "{unit}");
}
