//! What a traffic process may do: all privileges of the agent that it does not need are gone. Needs root.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const AGENT: &str = env!("CARGO_BIN_EXE_ccbench-agent");
const CAP_NET_ADMIN: u64 = 1 << 12;

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns `/proc/self/status` of a launched program.
fn status(before: &[&str], arguments: &[&str]) -> BTreeMap<String, String> {
    let words = [
        before,
        &[AGENT, "launch", "--unprivileged"],
        arguments,
        &["--", "cat", "/proc/self/status"],
    ]
    .concat();
    let text = output(Command::new(words[0]).args(&words[1..]));
    let entries = text.lines().filter_map(|line| line.split_once(":\t"));
    entries.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

fn capabilities(status: &BTreeMap<String, String>) -> [u64; 5] {
    ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
        .map(|set| u64::from_str_radix(&status[set], 16).unwrap())
}

#[test]
fn a_launched_program_has_no_privileges() {
    let status = status(&[], &[]);
    let ids: Vec<u32> = status["Uid"]
        .split('\t')
        .chain(status["Gid"].split('\t'))
        .map(|id| id.parse().unwrap())
        .collect();
    assert!(ids.len() == 8 && ids.iter().all(|id| *id != 0), "{ids:?}");
    assert_eq!(status["Groups"], "");
    assert_eq!(capabilities(&status), [0; 5]);
    assert_eq!(status["NoNewPrivs"], "1");
    assert_eq!(status["Umask"], "0077");
}

#[test]
fn a_program_that_is_no_traffic_keeps_its_privileges() {
    let uid = output(Command::new(AGENT).args(["launch", "--", "id", "-u"]));
    assert_eq!(uid, output(Command::new("id").arg("-u")));
}

#[test]
fn a_launched_program_keeps_one_capability_and_takes_the_user_it_is_told() {
    let status = status(&[], &["--user", "12345:23456", "--net-admin"]);
    assert_eq!(status["Uid"], ["12345"; 4].join("\t"));
    assert_eq!(status["Gid"], ["23456"; 4].join("\t"));
    assert_eq!(capabilities(&status), [CAP_NET_ADMIN; 5]);
    let refused =
        Command::new(AGENT).args(["launch", "--user", "root", "--", "true"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not root"), "{refused:?}");
}

#[test]
fn drops_capabilities_without_mapped_user() {
    let status = status(&["unshare", "--user", "--map-root-user"], &[]);
    assert_eq!(status["Uid"], ["0"; 4].join("\t"));
    assert_eq!(capabilities(&status), [0; 5]);
    assert_eq!(status["NoNewPrivs"], "1");
}

#[test]
fn an_unprivileged_agent_launches_programs() {
    let user = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"];
    let (folder, program) = root_only_folder();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let words = [
        &user[..],
        &[program.to_str().unwrap(), "launch", "--unprivileged", "--", "cat", "/proc/self/status"],
    ]
    .concat();
    let text = output(Command::new(words[0]).args(&words[1..]));
    assert!(text.contains("Uid:\t12345\t") && text.contains("CapEff:\t0000000000000000"), "{text}");
}

#[test]
fn descriptors_of_the_agent_do_not_reach_a_launched_program() {
    let script =
        "exec 7</dev/null 9</dev/null; exec \"$0\" launch --unprivileged -- ls /proc/self/fd";
    let listed = output(Command::new("sh").args(["-c", script, AGENT]));
    // ls reads the folder through descriptor 3.
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
}

/// Returns a folder that only root may enter, with a copy of the agent.
fn root_only_folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let program = folder.path().join("ccbench-agent");
    // Copied by another process: if a thread of this one forked meanwhile, its child would keep the copy open for writing (ETXTBSY).
    output(Command::new("cp").arg(AGENT).arg(&program));
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    (folder, program)
}

#[test]
fn a_program_in_roots_folder_can_be_launched() {
    let (folder, program) = root_only_folder();
    let program = program.to_str().unwrap();
    let launch_itself = || {
        let words = ["launch", "--unprivileged", "--", program, "--version"];
        let version = output(Command::new(program).args(words));
        assert!(version.starts_with("ccbench-agent "), "{version}");
    };
    launch_itself();
    // Also found through PATH.
    let mut command = Command::new(program);
    command
        .args(["launch", "--unprivileged", "--", "ccbench-agent", "--version"])
        .env("PATH", folder.path());
    assert!(output(&mut command).starts_with("ccbench-agent "));
    // Only root may execute it, so it runs as root, without capabilities.
    std::fs::set_permissions(program, PermissionsExt::from_mode(0o700)).unwrap();
    launch_itself();
}

#[test]
fn temporary_files_have_a_folder() {
    let (folder, _program) = root_only_folder();
    let script = "mktemp -u >/dev/null && echo \"$TMPDIR\" && rm \"$(mktemp)\"";
    let mut command = Command::new(AGENT);
    command
        .args(["launch", "--unprivileged", "--", "sh", "-c", script])
        .env("TMPDIR", folder.path());
    assert_eq!(output(&mut command), "/tmp\n");
}
