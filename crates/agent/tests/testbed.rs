//! The testbed on a real kernel: what it builds, and that nothing survives, however it ends. Needs root and iperf3;
//! fails without them.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod testbed_support;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use testbed_support::{
    AGENT, Bed, NOBODY, Start, alone, processes_naming, scratch, starttime, wait_for,
};

#[test]
fn traffic_crosses_the_whole_chain() {
    let _alone = alone();
    let bed = Bed::start(Start::default());
    assert_eq!(bed.ready["rootless"], false);
    transfer(&bed, None);
    let read = |node: &str, path: &str| {
        let out = bed.enter(node, &["cat", path], None).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(read("router", "/proc/sys/net/ipv4/ip_forward").trim(), "1");
    assert_eq!(read("src", "/proc/sys/net/ipv4/tcp_ehash_entries").trim(), "1024");
    // Flags 0x6: complete and permanent.
    let neighbours = read("router", "/proc/net/arp");
    let permanent = neighbours.lines().filter(|line| line.contains(" 0x6 ")).count();
    assert_eq!(permanent, 2, "{neighbours}");
    bed.end_by_closing_stdin();
}

#[test]
fn enter_reports_errors() {
    let _alone = alone();
    let bed = Bed::start(Start::default());
    let run = |node: &str, command: &str| {
        let out = bed.enter(node, &[command], None).output().unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, error) = run("nope", "true");
    assert_eq!(code, Some(1));
    assert!(error.contains("there is no node `nope`; the testbed has dst, emulator, router, src"));
    let (code, error) = run("src", "no-such-program");
    assert_eq!(code, Some(127));
    assert!(error.contains("run no-such-program: not found"), "{error}");
    let too_late = bed.enter("src", &["true"], None);
    bed.end_by_closing_stdin();
    let out = { too_late }.output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("is the experiment still running?"));
}

#[test]
fn closing_standard_input_removes_everything() {
    let _alone = alone();
    Bed::start(Start::default()).end_by_closing_stdin();
}

#[test]
fn a_request_to_stop_removes_everything() {
    let _alone = alone();
    let mut bed = Bed::start(Start::default());
    bed.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(bed.child.wait().unwrap().success());
    bed.traces.must_vanish();
    assert_eq!(bed.files(), Vec::<String>::new());
}

#[test]
fn a_killed_testbed_leaves_nothing_but_files_and_these_are_swept() {
    let _alone = alone();
    let root = scratch();
    let other = Bed::start(Start { dir: Some(root.path().join("live")), ..Start::default() });
    let mut bed = Bed::start(Start { dir: Some(root.path().join("dead")), ..Start::default() });
    bed.child.kill().unwrap();
    bed.child.wait().unwrap();
    bed.traces.must_vanish();
    assert!(bed.files().contains(&"testbed.json".to_owned()));

    let out = Command::new(AGENT).args(["clean", "--root"]).arg(root.path()).output().unwrap();

    let expected = format!("removed: {} (its testbed has ended)\n", bed.dir.display());
    assert_eq!(String::from_utf8(out.stdout).unwrap(), expected);
    assert!(out.status.success());
    assert!(!bed.dir.exists());
    transfer(&other, None);
    other.end_by_closing_stdin();
}

#[test]
fn a_testbed_killed_at_any_moment_leaves_no_process() {
    let _alone = alone();
    for step in 0..30 {
        let dir = scratch();
        // A testbed that becomes ready removes empty directories beside its own, so the parent must not be a shared one.
        let bed = dir.path().join("bed");
        let mut child = Start { dir: Some(bed), ..Start::default() }.spawn();
        std::thread::sleep(Duration::from_millis(step));
        child.kill().unwrap();
        child.wait().unwrap();
        let name = dir.path().to_str().unwrap();
        wait_for(&format!("the end of every process of {name}"), || {
            processes_naming(name).is_empty()
        });
    }
}

#[test]
fn an_agent_that_dies_is_reported_and_the_others_go_on() {
    let _alone = alone();
    let mut bed = Bed::start(Start::default());
    let pid = bed.ready["nodes"]["emulator"]["pid"].as_i64().unwrap();
    let pid = nix::unistd::Pid::from_raw(pid.try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    let line = bed.next_line();
    assert_eq!(line["agent_died"], "emulator");
    assert!(line["status"].as_str().unwrap().starts_with("signal 9"), "{line}");
    transfer(&bed, None);
    bed.end_by_closing_stdin();
}

#[test]
fn two_testbeds_do_not_meet() {
    let _alone = alone();
    let (one, two) = (Bed::start(Start::default()), Bed::start(Start::default()));
    transfer(&one, None);
    one.end_by_closing_stdin();
    transfer(&two, None);
    two.end_by_closing_stdin();
}

#[test]
fn works_without_root() {
    let _alone = alone();
    let mut bed = Bed::start(Start { user: Some(NOBODY), ..Start::default() });
    assert_eq!(bed.ready["rootless"], true);
    assert!(bed.ready["notes"].to_string().contains("eBPF"), "{}", bed.ready);
    transfer(&bed, Some(NOBODY));
    // Links consist of HTB.
    let tc = ["tc", "qdisc", "add", "dev", "to-router", "root", "handle", "1:", "htb"];
    assert!(bed.enter("src", &tc, Some(NOBODY)).status().unwrap().success());
    // Root may enter a user's testbed.
    assert!(bed.enter("src", &["ip", "link"], None).output().unwrap().status.success());
    bed.child.kill().unwrap();
    bed.child.wait().unwrap();
    bed.traces.must_vanish();

    Bed::start(Start { user: Some(NOBODY), ..Start::default() }).end_by_closing_stdin();
}

#[test]
fn names_the_setting_that_forbids_user_namespaces() {
    let _alone = alone();
    let dir = scratch();
    let script = "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    let mut child = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script])
        .args([AGENT, "testbed", "--rootless", "--dir"])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    testbed_support::send_plan(&mut child, testbed_support::PLAN);
    let answer = testbed_support::first_line(&mut child);
    assert!(!child.wait().unwrap().success());
    assert_eq!(answer["ready"], false);
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("sysctl user.max_user_namespaces=10000"), "{error}");
}

#[test]
fn build_errors_are_reported_and_undone() {
    let _alone = alone();
    let scratch = scratch();
    let dir = scratch.path().to_owned();
    let start = || Start { dir: Some(dir.clone()), ..Start::default() };
    let with_bin = |bin: &str| Start { agent_bin: Some(bin.into()), ..start() };
    let cases: [(Start, &str); 5] = [
        (with_bin("/no/such/agent"), "start the agent of node dst (/no/such/agent): No such file"),
        (with_bin("false"), "ended before it was ready: exit code 1"),
        (Start { plan: "name = 1".into(), ..start() }, "the plan is wrong: "),
        (Start { dir: Some(dir.join("x".repeat(100))), ..start() }, "use a shorter run directory"),
        (
            Start { dir: Some("/no/such/dir".into()), make_dir: false, ..start() },
            "write testbed.json in /no/such/dir: No such file",
        ),
    ];
    for (start, expected) in cases {
        let mut child = start.spawn();
        let answer = testbed_support::first_line(&mut child);
        assert!(!child.wait().unwrap().success());
        assert_eq!(answer["ready"], false);
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(expected), "{error}");
        assert!(processes_naming(start.dir.unwrap().to_str().unwrap()).is_empty());
    }
    let left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["x".repeat(100).as_str()], "the directory that the test made");
}

#[test]
fn input_that_ends_too_early_is_an_error() {
    let _alone = alone();
    let dir = scratch();
    let out = Command::new(AGENT)
        .args(["testbed", "--dir"])
        .arg(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(answer["error"].as_str().unwrap().contains("before the line ---END---"));
    assert_eq!(out.status.code(), Some(1));
}

#[test]
fn a_launched_program_dies_with_the_process_that_launched_it() {
    let _alone = alone();
    let mark = format!("{}.25", 100_000 + std::process::id());
    let script = "\"$0\" launch --parent $$ -- sleep \"$1\" & wait";
    let mut shell = Command::new("sh").args(["-c", script, AGENT, &mark]).spawn().unwrap();
    let sleeping = || -> Vec<u32> {
        let all = processes_naming(&mark);
        all.into_iter().filter(|&pid| comm(pid).as_deref() == Some("sleep")).collect()
    };
    wait_for("the launched program", || !sleeping().is_empty());
    let pid = sleeping()[0];
    let born = starttime(pid);
    shell.kill().unwrap();
    shell.wait().unwrap();
    wait_for("its end", || starttime(pid) != born);

    let out = Command::new(AGENT).args(["launch", "--parent", "1", "--", "true"]).output().unwrap();
    assert!(!out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("has ended"));
}

fn comm(pid: u32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned())
}

/// Transfers a megabyte from `src` to `dst` with iperf3, as `user`.
fn transfer(bed: &Bed, user: Option<u32>) {
    let mut server = bed
        .enter("dst", &["iperf3", "-s", "-1", "--forceflush"], user)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let log = PathBuf::from(format!("/proc/{}/net/tcp", server.id()));
    // 0x1451 is port 5201 (the socket is IPv4-mapped or IPv4), state 0A is LISTEN.
    wait_for("iperf3's server", || {
        [log.clone(), log.with_file_name("tcp6")].iter().any(|path| {
            let table = std::fs::read_to_string(path).unwrap_or_default();
            table.lines().any(|line| line.contains(":1451 ") && line.contains(" 0A "))
        })
    });
    let address = bed.ready["nodes"]["dst"]["address"].as_str().unwrap();
    let client = ["iperf3", "-c", address, "-n", "1M", "--connect-timeout", "3000"];
    let out = bed.enter("src", &client, user).output().unwrap();
    let _ = server.kill();
    let _ = server.wait();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}
