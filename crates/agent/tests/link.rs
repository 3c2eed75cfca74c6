//! `ccbench-agent link` in real network namespaces with real packets. Needs root and iproute2; fails without them.
#![allow(clippy::disallowed_methods, reason = "a test measures real time")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod link_support;

use std::process::Command;
use std::time::Duration;

use link_support::{AGENT, Lab, Running, exchange, inside, run, udp_echo, wait_for};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Returns the last objects of both directions in a JSON stream.
fn totals(text: &str) -> [Value; 2] {
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let finals: Vec<Value> = rows.into_iter().filter(|row| row["final"] == true).collect();
    finals.try_into().unwrap()
}

/// Whether, by the JSON stream so far, the direction `down` has forwarded or dropped this many packets and its queue is empty.
fn is_drained(text: &str, packets: u64) -> bool {
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let rows = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let down: Vec<Value> = rows.filter(|row| row["direction"] == "down").collect();
    let of = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let counted: u64 = down.iter().map(|row| of(row, "packets") + of(row, "drops_pkts")).sum();
    counted >= packets && down.last().is_some_and(|row| row["queue_pkts"] == 0)
}

#[test]
fn two_interfaces_are_joined_with_delay_for_every_protocol() {
    let lab = Lab::new();
    let link = lab.link("--left lb0 --right lc0 --delay 10ms --stats-json -");
    // ARP resolves the neighbour through the link. Packets of both families take 10 ms each way.
    for address in ["10.9.0.2", "fd09::2"] {
        let _server = udp_echo(lab.right(), address);
        let rtt = inside(lab.left(), move || exchange(address, b"there and back"));
        assert!(rtt >= Duration::from_millis(20), "{address}: {rtt:?}");
        assert!(rtt < Duration::from_secs(5), "{address}: {rtt:?}");
    }
    let neighbours = lab.ip(lab.left(), "neigh show 10.9.0.2");
    assert!(neighbours.contains("lladdr"), "{neighbours}");
    let ended = link.end(Signal::SIGINT);
    assert_eq!(ended.code, Some(0));
    let [down, up] = totals(&ended.stdout);
    assert_eq!((&down["direction"], &up["direction"]), (&"down".into(), &"up".into()));
    assert_eq!((&down["from"], &down["to"]), (&"lb0".into(), &"lc0".into()));
    assert!(down["packets"].as_u64().unwrap() >= 2 && down["drops_pkts"] == 0, "{down}");
    assert!(ended.stderr.contains("down (lb0 → lc0): "), "{}", ended.stderr);
    assert!(ended.stderr.contains("scheduling error p50"), "{}", ended.stderr);
}

#[test]
fn a_full_queue_drops_and_everything_is_counted() {
    let lab = Lab::new();
    // A router solicitation may be in the queue at the end.
    lab.send_no_ipv6();
    let link = lab.link("--left lb0 --right lc0 --rate 200kbit --queue 20p --up-rate none --stats-json - --interval 100ms");
    let _server = udp_echo(lab.right(), "10.9.0.2");
    inside(lab.left(), || exchange("10.9.0.2", b"first the neighbour"));
    let before = lab.received(lab.right(), "lc1");
    // 200 packets at once into a queue of 20, after at least 5 packets of the exchange. Those that leave meanwhile take 42 ms each.
    inside(lab.left(), || link_support::blast("10.9.0.2:9", 200, 1000));
    let passed = || lab.received(lab.right(), "lc1") - before;
    wait_for("the queue to drain", || is_drained(&link.stdout(), 205) && passed() >= 21);
    let ended = link.end(Signal::SIGTERM);
    assert_eq!(ended.code, Some(0));
    let [down, _] = totals(&ended.stdout);
    let of = |key: &str| down[key].as_u64().unwrap();
    assert!(of("drops_pkts") >= 150, "{down}");
    assert_eq!(down["drops"]["overlimit"], down["drops_pkts"], "{down}");
    assert!(of("packets") + of("drops_pkts") >= 201, "{down}");
    assert_eq!((of("queue_bytes"), of("link_rate_bps")), (0, 200_000));
    assert!(ended.stdout.lines().count() > 2, "an object per interval too: {}", ended.stdout);
}

#[test]
fn a_mahimahi_trace_limits_opportunities() {
    let lab = Lab::new();
    let trace = lab.dir().join("short.down");
    let lines: String = (1..=30).map(|nth| format!("{}\n", nth * 50)).collect();
    std::fs::write(&trace, lines).unwrap();
    let trace = trace.display();
    // An IPv6 multicast would be the first packet, and opportunities would pass before the others are sent.
    lab.send_no_ipv6();
    let link = lab.link(&format!(
        "--left lb0 --right lc0 --trace {trace} --on-end stop --start first-packet --queue 1000p --up-rate none \
         --stats-json - --interval 100ms"
    ));
    inside(lab.left(), || link_support::blast("10.9.0.2:9", 100, 1400));
    wait_for("the trace to end", || lab.received(lab.right(), "lc1") >= 20);
    let ended = link.end(Signal::SIGTERM);
    let [down, up] = totals(&ended.stdout);
    let passed = down["packets"].as_u64().unwrap();
    // Small ARP packets share an opportunity with others.
    assert!((20..=34).contains(&passed), "{down}");
    assert!(up["link_rate_bps"].is_null(), "{up}");
}

#[test]
fn sigkill_leaves_nothing() {
    let lab = Lab::new();
    let found = lab.state_of_middle();
    let mut link = lab.link("--left lb0 --right lc0 --delay 1ms");
    assert!(lab.state_of_middle().contains("PROMISC") || lab.promiscuity() > 0);
    link.kill();
    wait_for("the kernel to clean up", || lab.promiscuity() == 0);
    assert_eq!(lab.state_of_middle(), found);
    // The interfaces are free again.
    let link = lab.link("--left lb0 --right lc0");
    let refused = lab.refused("--left lc0 --right lb0");
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("another ccbench link is using"), "{}", refused.stderr);
    assert_eq!(link.end(Signal::SIGHUP).code, Some(0));
    assert_eq!(lab.state_of_middle(), found);
}

#[test]
fn an_interface_is_restored_after_any_end() {
    let lab = Lab::new();
    let state = lab.dir().join("state");
    for flags in ["--rate 10mbit --queue 40p", "--rate 10mbit --delay 1ms --backend userspace"] {
        let found = lab.state_of_middle();
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let link = lab.link(&format!("--dev lb0 {flags}"));
            assert_ne!(lab.state_of_middle(), found, "{flags}: it did something");
            link.end(signal);
            wait_for("the interface to be as it was", || lab.state_of_middle() == found);
            // The guard of a killed link removes its folder last.
            wait_for("the end of the guard", || {
                std::fs::read_dir(&state).is_ok_and(|mut entries| entries.next().is_none())
            });
        }
    }
}

#[test]
fn the_interface_of_a_killed_link_is_free_at_once() {
    let lab = Lab::new();
    let found = lab.state_of_middle();
    for rate in ["10mbit", "20mbit", "30mbit", "40mbit"] {
        // The guard of the previous link may still hold the journal's lock, or remove its directory.
        lab.link(&format!("--dev lb0 --rate {rate} --queue 40p")).kill();
    }
    let link = lab.link("--dev lb0 --rate 50mbit --queue 40p");
    assert_eq!(link.end(Signal::SIGTERM).code, Some(0));
    wait_for("the interface to be as it was", || lab.state_of_middle() == found);
}

#[test]
fn the_interface_of_an_ssh_session_needs_a_flag() {
    let lab = Lab::new();
    let link = |flags: &[&str]| {
        let mut command = lab.enter(lab.middle());
        // A session that ends here, with a client reachable through lo.
        command.env("SSH_CONNECTION", "127.0.0.1 50000 127.0.0.1 22");
        command.args([AGENT, "link", "--rate", "100mbit", "--for", "10ms"]).args(flags);
        run(&mut command)
    };
    for flags in [["--dev", "lo"].as_slice(), &["--left", "lb0", "--right", "lo"]] {
        let refused = link(flags);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        for part in ["lo is on the route to 127.0.0.1", "--allow-control-interface"] {
            assert!(refused.stderr.contains(part), "no `{part}`: {}", refused.stderr);
        }
    }
    let allowed = link(&["--dev", "lo", "--allow-control-interface"]);
    assert!(!allowed.stderr.contains("is on the route"), "{}", allowed.stderr);
    let other = link(&["--dev", "lb0"]);
    assert_eq!(other.code, Some(0), "{}", other.stderr);
}

#[test]
fn errors_name_the_flag_and_the_fix() {
    let lab = Lab::new();
    lab.ip(lab.middle(), "link set lc0 mtu 1400");
    for (typed, code, wanted) in [
        (
            "--left lb0 --right nowhere",
            2,
            "--right: there is no interface nowhere in this network namespace; there are: lo lb0 lc0",
        ),
        ("--left lb0 --right lb0", 2, "--left and --right are both lb0"),
        ("--left lb0 --right lc0", 1, "`ip link set lb0 mtu 1400`"),
        ("--left lb0", 2, "--right"),
        ("--rate 10mbit", 2, "--left A --right B (two interfaces), --dev X (one), or -- COMMAND"),
        ("--rate 10 --dev lb0", 2, "the unit is missing"),
        ("--dev lb0 --rate 1mbit --aqm codel,targt=5ms", 2, "--aqm: unknown field `targt`"),
        ("--dev lb0 --trace /nowhere", 2, "--trace: read /nowhere: "),
        ("--dev lb0 --stats-json /nowhere/x --rate 1mbit", 1, "--stats-json /nowhere/x: "),
        ("--dev lb0 --start @1 --rate 1mbit", 2, "--start: this time has already passed"),
        ("--dev lb0 --rate 1mbit -- true", 2, "takes no interfaces"),
    ] {
        let refused = lab.refused(typed);
        assert!(refused.stderr.contains(wanted), "{typed}: {}", refused.stderr);
        assert_eq!(refused.code, Some(code), "{typed}: {}", refused.stderr);
    }
}

#[test]
fn a_command_runs_behind_the_link_and_its_exit_code_counts() {
    let lab = Lab::new();
    let script = "test \"$MAHIMAHI_BASE\" = \"$CCBENCH_LINK_HOST\" && echo $CCBENCH_LINK_HOST $CCBENCH_LINK_HOST6; exit 7";
    let ended = lab.command("--rate 10mbit --delay 2ms", &["sh", "-c", script]);
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
    assert_eq!(ended.stdout, "100.64.0.1 fdcc:be4c:11::6440:1\n");
    assert!(!lab.ip(lab.middle(), "-br link").contains("ccl"));

    let ended = lab.command("", &["/nowhere/program"]);
    assert_eq!(ended.code, Some(127), "{}", ended.stderr);
    let ended = lab.command("", &["sh", "-c", "kill -9 $$"]);
    assert_eq!(ended.code, Some(137), "{}", ended.stderr);
    // Addresses in use are left alone.
    lab.ip(lab.middle(), "addr add 100.64.3.4/24 dev lb0");
    let ended = lab.command("", &["sh", "-c", "echo $CCBENCH_LINK_HOST"]);
    assert_eq!(ended.stdout, "100.64.64.1\n");
}

#[test]
fn a_namespace_without_loopback_is_named_as_the_cause() {
    let ended = run(Command::new("unshare").args(["-n", AGENT, "link", "-q", "--", "true"]));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("lo of this network namespace is down"), "{}", ended.stderr);
    let set_up = "ip link set lo up && exec \"$0\" link -q -- true";
    let ended = run(Command::new("unshare").args(["-n", "sh", "-c", set_up, AGENT]));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn shells_in_shells_reach_every_end() {
    let lab = Lab::new();
    let dir = lab.dir().to_owned();
    let file = |name: &str| dir.join(name).display().to_string();
    // The innermost command reaches the ends of both links, and the outermost machine's own addresses.
    let script = format!(
        "echo $$ $MAHIMAHI_BASE $CCBENCH_LINK_HOST > {0}; mv {0} {1}; while ! test -e {2}; do sleep 0.05; done",
        file("half"),
        file("ready"),
        file("stop")
    );
    let typed = [
        "link", "-q", "--delay", "3ms", "--", AGENT, "link", "-q", "--delay", "4ms", "--", "sh",
        "-c",
    ];
    let mut shell = Running::start(lab.enter(lab.middle()).arg(AGENT).args(typed).arg(&script));
    wait_for("the inner command", || dir.join("ready").exists() || shell.has_ended());
    let text = std::fs::read_to_string(dir.join("ready")).unwrap();
    let (inner, ends) = text.trim().split_once(' ').unwrap();
    assert_eq!(ends, "100.64.0.1 100.64.8.1");
    let inner = inner.parse().unwrap();
    // A round trip crosses both links twice: 14 ms.
    lab.ip(lab.middle(), "addr add 192.0.2.7/32 dev lb0");
    for (address, least_ms) in [("100.64.0.1", 14), ("192.0.2.7", 14)] {
        let _server = udp_echo(lab.middle(), address);
        let rtt = inside(inner, move || exchange(address, b"through both"));
        assert!(rtt >= Duration::from_millis(least_ms), "{address}: {rtt:?}");
    }
    std::fs::write(dir.join("stop"), "").unwrap();
    assert_eq!(shell.wait().code, Some(0));
}

#[test]
fn a_killed_shell_ends_its_command_and_network() {
    let lab = Lab::new();
    let routes = lab.ip(lab.middle(), "route show table all");
    let mut shell =
        Running::start(lab.enter(lab.middle()).arg(AGENT).args(["link", "--", "sleep", "1000"]));
    wait_for("the network", || lab.ip(lab.middle(), "-br link").contains("ccl"));
    wait_for("the command", || shell.runs("sleep"));
    let command = shell.youngest_child();
    shell.kill();
    wait_for("the command's end", || !std::path::Path::new(&format!("/proc/{command}")).exists());
    wait_for("the interface's end", || !lab.ip(lab.middle(), "-br link").contains("ccl"));
    wait_for("the end of its routes", || lab.ip(lab.middle(), "route show table all") == routes);
}

#[test]
fn a_request_to_terminate_reaches_the_command() {
    let lab = Lab::new();
    let ready = lab.dir().join("ready");
    let script =
        format!("trap 'exit 9' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
    let shell = Running::start(
        lab.enter(lab.middle()).arg(AGENT).args(["link", "-q", "--", "sh", "-c", &script]),
    );
    wait_for("the command", || ready.exists());
    assert_eq!(shell.end(Signal::SIGTERM).code, Some(9));
}

#[test]
fn without_root_the_network_is_private() {
    let lab = Lab::new();
    let script = "id -u; n=0; until iperf3 -c $CCBENCH_LINK_HOST -n 100K > /dev/null 2>&1; do n=$((n+1)); \
                  test $n -lt 100 || exit 3; sleep 0.05; done";
    // Only root may be able to read the build folder.
    let folder = tempfile::tempdir().unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everybody).unwrap();
    let agent = folder.path().join("ccbench-agent");
    // Copied by another process: if a thread of this one forked meanwhile, its child would keep the copy open for writing (ETXTBSY).
    let copied = std::process::Command::new("cp").arg(AGENT).arg(&agent).status().unwrap();
    assert!(copied.success());
    let mut command = std::process::Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&agent)
        .args(["link", "--delay", "1ms"]);
    command.args(["--outside", "exec iperf3 -s > /dev/null", "--", "sh", "-c", script]);
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout, "0\n");
    assert!(ended.stderr.contains("without root"), "{}", ended.stderr);
    drop(lab);
}
