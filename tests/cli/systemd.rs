//! Tests the agent's systemd units.

use std::collections::BTreeMap;
use std::process::Command;

use ccbench_tests::skip::skip;
use ccbench_tests::{binary, source_root};

/// The units with the highest exposure allowed for each, in tenths, as `systemd-analyze security` rates it. A unit without restrictions has
/// 96.
const MAX_EXPOSURES: [(&str, u32); 5] = [
    // The privileges that a single process needs cost 37: root with CAP_NET_ADMIN and CAP_SYS_ADMIN in the machine's network, sysctls,
    // control groups, packet sockets and real-time threads. The rest leaves room for the ratings of other systemd versions.
    ("ccbench-agent", 45),
    ("ccbench-agent-front", 15),
    ("ccbench-agent-worker", 37),
    ("ccbench-agent-loader", 15),
    // Runs as root to read the key, without capabilities.
    ("ccbench-agent-renew", 18),
];
/// Older versions cannot rate a file.
const FIRST_VERSION: u32 = 250;

fn unit(name: &str) -> String {
    std::fs::read_to_string(source_root().join(format!("systemd/{name}"))).unwrap()
}

/// Returns the values of every setting of a unit.
fn settings(name: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let text = unit(name).replace("\\\n", " ");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    for (key, value) in lines.filter_map(|line| line.split_once('=')) {
        found.entry(key.to_owned()).or_default().push(value.to_owned());
    }
    found
}

#[test]
fn the_units_of_the_agent_are_confined() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        return skip("systemd-analyze is not installed");
    };
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let number = version.split_whitespace().nth(1).and_then(|number| number.parse::<u32>().ok());
    if number.is_none_or(|number| number < FIRST_VERSION) {
        return skip(&format!("systemd-analyze cannot rate a file: {version}"));
    }
    for (name, limit) in MAX_EXPOSURES {
        let output = Command::new("systemd-analyze")
            .args(["security", "--no-pager", "--offline=true"])
            .arg(format!("--threshold={limit}"))
            .arg(source_root().join(format!("systemd/{name}.service")))
            .output()
            .unwrap();
        let rated = String::from_utf8_lossy(&output.stdout);
        assert!(rated.contains("Overall exposure level"), "{name}: {output:?}");
        assert!(output.status.success(), "{name} is more exposed than {limit}:\n{rated}");
    }
}

/// With ProtectClock=, no devices except the clock's can be opened.
#[test]
fn the_drop_ins_for_modules_permit_their_devices() {
    for name in ["ccbench-agent.service", "ccbench-agent-worker.service"] {
        let unit = unit(name);
        let drop_in: Vec<&str> = unit.lines().filter_map(|l| l.strip_prefix("#   ")).collect();
        for setting in ["PrivateDevices=", "ProtectClock="] {
            assert!(unit.lines().any(|line| line == format!("{setting}yes")), "{name}: {setting}");
            let wanted = format!("{setting}no");
            assert!(drop_in.contains(&wanted.as_str()), "{name}: {setting}: {drop_in:?}");
        }
    }
}

/// Returns the sub-commands that a unit starts. Checks that their arguments exist.
fn subcommands(name: &str) -> Vec<String> {
    let settings = settings(name);
    let lines = ["ExecStart", "ExecStopPost"].into_iter().flat_map(|key| settings.get(key));
    let subcommand = |line: &String| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [program, subcommand, arguments @ ..] = &words[..] else { panic!("{line}") };
        assert!(program.ends_with("/ccbench-agent"), "{line}");
        let help = Command::new(binary("ccbench-agent")).args([*subcommand, "--help"]).output();
        let help = String::from_utf8(help.unwrap().stdout).unwrap();
        for flag in arguments.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(&format!("{flag} ")), "{subcommand} has no {flag}");
        }
        (*subcommand).to_owned()
    };
    lines.flatten().map(subcommand).collect()
}

#[test]
fn the_units_of_the_agent_use_arguments_that_exist() {
    let started = [
        ("ccbench-agent.service", &["serve", "undo", "clean"][..]),
        ("ccbench-agent-front.service", &["front"][..]),
        ("ccbench-agent-worker.service", &["worker", "undo", "clean"][..]),
        ("ccbench-agent-loader.service", &["loader"][..]),
    ];
    for (name, expected) in started {
        assert_eq!(subcommands(name), expected, "{name}");
        let settings = settings(name);
        assert_eq!(settings["Type"], ["notify"], "{name}");
        // The loader lives only for one request.
        let is_watched = settings.contains_key("WatchdogSec");
        assert_eq!(is_watched, name != "ccbench-agent-loader.service", "{name}");
    }
}

/// crates/agent/src/renew/tests.rs tests that the configuration's example has its setting.
#[test]
fn a_timer_renews_due_certificates_with_few_rights() {
    assert_eq!(subcommands("ccbench-agent-renew.service"), ["renew"]);
    let renew = settings("ccbench-agent-renew.service");
    assert!(renew["ExecStart"][0].contains(" --if-due "), "{:?}", renew["ExecStart"]);
    assert_eq!(renew["Type"], ["oneshot"]);
    assert_eq!(renew["EnvironmentFile"], ["/etc/ccbench/agent.conf"]);
    assert_eq!(renew["CapabilityBoundingSet"], [""]);
    assert_eq!(renew["ProtectSystem"], ["strict"]);
    assert_eq!(renew["ReadWritePaths"], ["/etc/ccbench"]);
    let timer = settings("ccbench-agent-renew.timer");
    assert_eq!(timer["OnCalendar"], ["daily"]);
    assert!(timer.contains_key("RandomizedDelaySec"), "all nodes would ask at midnight");
    assert_eq!(timer["Persistent"], ["yes"]);
    assert_eq!(timer["WantedBy"], ["timers.target"]);
    assert!(!timer.contains_key("Unit"), "it starts the service of its own name");
}

/// Checks every setting that the units read from it. crates/agent/src/args.rs tests those that are options, with their values.
#[test]
fn the_example_of_the_configuration_has_the_settings_of_the_units() {
    let example = unit("agent.conf.example");
    let mut found = 0;
    for (name, _) in MAX_EXPOSURES {
        let start = &settings(&format!("{name}.service"))["ExecStart"][0];
        let words = start.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        for variable in words.filter(|word| word.starts_with("CCBENCH_")) {
            let line = format!("{variable}=");
            let has = |text: &str| text.trim_start_matches('#').starts_with(&line);
            assert!(example.lines().any(has), "{name}: {variable}");
            found += 1;
        }
    }
    assert_eq!(found, 4, "CCBENCH_LISTEN of two units, and arguments of two");
}

/// The purpose of splitting the agent.
#[test]
fn front_worker_and_loader_have_the_privileges_of_their_parts() {
    let [front, worker, loader] = ["front", "worker", "loader"]
        .map(|name| settings(&format!("ccbench-agent-{name}.service")));
    assert_eq!(
        (&front["User"][..], &front["CapabilityBoundingSet"][..]),
        (&["ccbench-front".to_owned()][..], &[String::new()][..])
    );
    assert!(front["LoadCredential"][0].starts_with("node.key:"));
    for other in [&worker, &loader] {
        assert!(!other.contains_key("LoadCredential"), "the key is the front's");
        assert_eq!(other["StandardInput"], ["socket"], "it makes no socket");
    }
    let has = |unit: &BTreeMap<String, Vec<String>>, capability: &str| {
        unit["CapabilityBoundingSet"].iter().any(|set| set.contains(capability))
    };
    assert!(has(&worker, "CAP_NET_ADMIN") && !has(&worker, "CAP_SYS_MODULE"));
    assert_eq!(loader["CapabilityBoundingSet"], ["CAP_SYS_MODULE"]);
    assert_eq!(loader["RestrictAddressFamilies"], ["AF_UNIX"]);
    // Each finds the socket of the next one.
    let sockets =
        ["worker", "loader"].map(|name| settings(&format!("ccbench-agent-{name}.socket")));
    let paths = sockets.each_ref().map(|socket| socket["ListenStream"][0].as_str());
    assert!(front["ExecStart"][0].contains(&format!("--worker {} ", paths[0])));
    assert!(worker["Environment"].contains(&format!("CCBENCH_LOADER={}", paths[1])));
    assert!(sockets.iter().all(|socket| socket["SocketMode"] == ["0600"]));
    assert_eq!(sockets[0]["SocketUser"], front["User"]);
    // Nothing starts the worker while the single process runs.
    assert_eq!(sockets[0]["Conflicts"], ["ccbench-agent.service"]);
    assert!(worker["ExecStart"][0].contains(&format!("--front-user {} ", front["User"][0])));
    // Both need what the single process has until it has ended. A loader is started while a worker is being stopped, so neither waits for
    // the other.
    for unit in [&front, &worker] {
        assert_eq!(unit["Conflicts"], ["ccbench-agent.service"]);
        let after: Vec<&str> = unit["After"].iter().flat_map(|units| units.split(' ')).collect();
        assert!(after.contains(&"ccbench-agent.service"), "{after:?}");
        assert!(!after.contains(&"ccbench-agent-loader.service"), "{after:?}");
    }
    assert!(!loader.contains_key("After") && !loader.contains_key("Before"));
    let users = unit("ccbench.sysusers");
    assert!(users.lines().any(|line| line.starts_with(&format!("u {} ", front["User"][0]))));
}
