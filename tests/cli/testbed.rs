//! Tests `ccbench testbed`: checks what it writes against geni-lib, a stub of fablib, and the keys of containerlab's manual.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use ccbench_tests::port::ReservedPort;
use ccbench_tests::skip::skip;
use ccbench_tests::{Bench, binary, python, source_root, text};
use serde_json::json;

use crate::{err, out};

/// The plan's nodes.
const NODES: [&str; 4] = ["src", "router", "emulator", "dst"];

/// Runs `ccbench testbed NAME quickstart.toml ARGUMENTS` on a copy of the plan.
fn testbed(bench: &Bench, name: &str, arguments: &[&str]) -> std::process::Output {
    let plan = std::fs::read_to_string(source_root().join("plans/quickstart.toml")).unwrap();
    bench.write("quickstart.toml", &plan);
    bench.run(&[&["testbed", name, "quickstart.toml"], arguments].concat())
}

fn succeeds(output: &std::process::Output) {
    assert_eq!(output.status.code(), Some(0), "{}", text(output));
}

/// Compares with the golden file, which `UPDATE_GOLDEN=1` writes.
fn is_golden(found: &Path, name: &str) {
    let golden = source_root().join("tests/golden/testbeds").join(name);
    let found = std::fs::read_to_string(found).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(golden.parent().unwrap()).unwrap();
        std::fs::write(&golden, &found).unwrap();
    }
    let wanted = std::fs::read_to_string(&golden).unwrap_or_default();
    assert!(found == wanted, "{} differs; UPDATE_GOLDEN=1 rewrites it:\n{found}", golden.display());
}

/// Writes what the plan needs, independently of the program.
fn expected(bench: &Bench) -> PathBuf {
    let document = json!({
        "nodes": {
            "src": ["10.77.1.1"],
            "router": ["10.77.1.2", "10.77.2.1"],
            "emulator": ["10.77.2.2", "10.77.3.1"],
            "dst": ["10.77.3.2"],
        },
        "links": [["10.77.1.1", "10.77.1.2"], ["10.77.2.1", "10.77.2.2"], ["10.77.3.1", "10.77.3.2"]],
        "routes": {
            "src": { "10.77.2.0/24": "10.77.1.2", "10.77.3.0/24": "10.77.1.2" },
            "router": { "10.77.3.0/24": "10.77.2.2" },
            "emulator": { "10.77.1.0/24": "10.77.2.1" },
            "dst": { "10.77.1.0/24": "10.77.3.1", "10.77.2.0/24": "10.77.3.1" },
        },
        "controller": "controller",
        "files": ["quickstart.toml"],
        "link_speed_kbps": 0,
    });
    bench.write("expected.json", &document.to_string())
}

/// Runs `tests/testbeds/SCRIPT FILE EXPECTED` in `directory`. Skipped without the packages of `scripts/setup.sh --test`.
fn holds(bench: &Bench, directory: &str, script: &str, file: &str) {
    let Some(mut command) = python() else {
        return skip("the Python packages are missing: scripts/setup.sh --test");
    };
    command.arg(source_root().join("tests/testbeds").join(script));
    command.arg(bench.path(directory).join(file)).arg(expected(bench));
    let output = command.current_dir(bench.path(directory)).output().unwrap();
    assert!(output.status.success(), "{script}: {}", text(&output));
    assert!(out(&output).contains("4 nodes, 3 "), "{}", text(&output));
}

#[test]
fn a_profile_of_cloudlab_requests_the_nodes() {
    let bench = Bench::new();
    succeeds(&testbed(&bench, "cloudlab", &[]));
    let profile = bench.path("quickstart-cloudlab/profile.py");
    is_golden(&profile, "profile.py");
    is_golden(&bench.path("quickstart.testbed.toml"), "quickstart.testbed.toml");
    holds(&bench, "quickstart-cloudlab", "cloudlab.py", "profile.py");
    let script = std::fs::read_to_string(bench.path("quickstart-cloudlab/install-agent.sh"));
    assert!(script.unwrap().starts_with("#!/bin/sh\n"));
}

#[test]
fn a_notebook_of_fabric_makes_the_slice() {
    let bench = Bench::new();
    succeeds(&testbed(&bench, "fabric", &[]));
    is_golden(&bench.path("quickstart-fabric/quickstart.ipynb"), "quickstart.ipynb");
    let copy = std::fs::read_to_string(bench.path("quickstart-fabric/quickstart.toml")).unwrap();
    assert!(copy.contains("name   = \"quickstart\""), "the plan is beside the notebook: {copy}");
    holds(&bench, "quickstart-fabric", "fabric.py", "quickstart.ipynb");
    // The notebook's output is a manifest.
    let entry = |(name, address): (&str, &str)| json!({ "name": name, "control_address": address });
    let addresses = ["10.130.1.2", "10.130.1.3", "10.130.1.4", "10.130.1.5"];
    let entries: Vec<_> = NODES.into_iter().zip(addresses).map(entry).collect();
    bench.write("manifest.json", &json!(entries).to_string());
    succeeds(&testbed(&bench, "fabric", &["--manifest", "manifest.json"]));
    let plan = std::fs::read_to_string(bench.path("quickstart.testbed.toml")).unwrap();
    assert!(plan.contains("\"10.130.1.5:7700\""), "{plan}");
}

#[test]
fn a_topology_of_containerlab_has_the_links() {
    let bench = Bench::new();
    succeeds(&testbed(&bench, "containerlab", &[]));
    is_golden(&bench.path("quickstart-containerlab/quickstart.clab.yml"), "quickstart.clab.yml");
    assert!(bench.path("quickstart-containerlab/Containerfile").exists());
    holds(&bench, "quickstart-containerlab", "containerlab.py", "quickstart.clab.yml");
}

#[test]
fn files_of_the_plan_go_with_the_notebook() {
    let bench = Bench::new();
    let plan = std::fs::read_to_string(source_root().join("plans/quickstart.toml")).unwrap();
    let traced = |file: &str| {
        plan.replace("rate   = \"100mbit\"", &format!("trace  = {{ file = \"{file}\" }}"))
    };
    std::fs::create_dir(bench.path("traces")).unwrap();
    bench.write("traces/steps.csv", "rate_mbit,dwell_s\n10,1\n20,1\n");
    bench.write("traced.toml", &traced("traces/steps.csv"));
    succeeds(&bench.run(&["testbed", "fabric", "traced.toml", "-o", "there"]));
    assert!(bench.path("there/traces/steps.csv").exists());
    let notebook = std::fs::read_to_string(bench.path("there/quickstart.ipynb")).unwrap();
    assert!(notebook.contains(r#"[\"traced.toml\", \"traces/steps.csv\"]"#), "{notebook}");
    std::fs::create_dir(bench.path("inner")).unwrap();
    bench.write("inner/traced.toml", &traced("../traces/steps.csv"));
    let outside = bench.run(&["testbed", "fabric", "inner/traced.toml"]);
    assert_eq!(outside.status.code(), Some(2), "{}", text(&outside));
    assert!(err(&outside).contains("`../traces/steps.csv`"), "{}", text(&outside));
}

/// Two wires connect the same nodes, and no route uses the second.
#[test]
fn a_plan_that_is_refused_leaves_no_files() {
    let bench = Bench::new();
    let plan = std::fs::read_to_string(source_root().join("plans/quickstart.toml")).unwrap();
    let plan = plan
        .replace("[wires]\n", "[wires]\nsecond = [\"router\", \"emulator\"]\n")
        .replace("\"router\"\ntoward = \"dst\"", "\"router\"\ndev = \"to-emulator-2\"");
    bench.write("plan.toml", &plan);
    let refused = bench.run(&["testbed", "cloudlab", "plan.toml"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    let error = "`links.bottleneck` is at `to-emulator-2` of `router`";
    assert!(err(&refused).contains(error), "{}", text(&refused));
    assert!(!bench.path("plan-cloudlab").exists() && !bench.path("plan.testbed.toml").exists());
}

#[test]
fn a_manifest_of_something_else_is_refused() {
    let bench = Bench::new();
    bench.write(
        "manifest.xml",
        "<rspec xmlns=\"http://www.geni.net/resources/rspec/3\" type=\"request\"/>",
    );
    let refused = testbed(&bench, "cloudlab", &["--manifest", "manifest.xml"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(err(&refused).contains("manifest.xml: it is not a manifest"), "{}", text(&refused));
    assert!(!bench.path("quickstart.testbed.toml").exists());
}

/// Nodes in the output of `containerlab inspect`, with loopback addresses.
fn inspected() -> String {
    let container = |(index, name): (usize, &str)| {
        json!({
            "lab_name": "quickstart",
            "name": format!("clab-quickstart-{name}"),
            "ipv4_address": format!("127.0.77.{}/24", index + 1),
        })
    };
    let containers: Vec<_> = NODES.into_iter().enumerate().map(container).collect();
    json!({ "quickstart": containers }).to_string()
}

/// Creates a program in `bin` with these commands, for a PATH.
fn program(bench: &Bench, name: &str, commands: &str) {
    bench.program(&format!("bin/{name}"), &format!("#!/bin/sh\n{commands}\n"));
}

/// Writes an `install-agent.sh` whose directory is `etc`, in shell quotation marks, instead of `/etc/ccbench`. For it, systemd runs if the
/// directory `systemd` exists.
fn install_agent(bench: &Bench, etc: &str) -> PathBuf {
    let mut script =
        std::fs::read_to_string(source_root().join("scripts/install-agent.sh")).unwrap();
    let systemd = bench.path("systemd").display().to_string();
    for (variable, usual, here) in
        [("etc", "/etc/ccbench", etc), ("systemd", "/run/systemd/system", systemd.as_str())]
    {
        let line = format!("\n{variable}={usual}\n");
        assert_eq!(script.matches(usual).count(), 1, "the script uses ${variable}");
        assert!(script.contains(&line), "no {line}");
        script = script.replace(&line, &format!("\n{variable}=\"{here}\"\n"));
    }
    bench.write("install-agent.sh", &script)
}

#[test]
fn a_package_at_a_url_with_a_query_is_installed_by_its_ending() {
    let bench = Bench::new();
    let etc = bench.path("etc").display().to_string();
    let script = install_agent(&bench, &etc);
    for name in ["iperf3", "ip", "ethtool", "ccbench-agent"] {
        program(&bench, name, "");
    }
    program(&bench, "curl", "while [ \"$1\" != -o ]; do shift; done; : >\"$2\"");
    for name in ["apt-get", "tar"] {
        program(&bench, name, &format!("echo {name} \"$@\" >>'{etc}/calls'"));
    }
    let path = format!("{}:{}", bench.path("bin").display(), std::env::var("PATH").unwrap());
    for (url, tool, file) in [
        (
            "https://host/d/ccbench_0.1.0_amd64.deb?token=a/b.c",
            "apt-get",
            "/ccbench_0.1.0_amd64.deb",
        ),
        ("https://host/ccbench.tar.gz?name=x.deb#part", "tar", "/ccbench.tar.gz"),
        ("https://host/ccbench.deb", "apt-get", "/ccbench.deb"),
    ] {
        let mut install = Command::new("sh");
        install
            .arg(&script)
            .args(["install", url])
            .env("PATH", &path)
            .env("TMPDIR", bench.path("."));
        succeeds(&install.output().unwrap());
        let calls = std::fs::read_to_string(bench.path("etc/calls")).unwrap();
        let last = calls.lines().last().unwrap();
        assert!(last.starts_with(tool) && last.ends_with(file), "{url}: {calls}");
    }
}

/// Creates a `docker` that runs install-agent.sh on this machine, as join.sh tells it to: `docker exec -i CONTAINER install-agent.sh join SERVICE
/// AGENT`. Each container has its own directory below `nodes`. It cannot reach containers that have a file in `unreachable`.
fn docker(bench: &Bench) -> PathBuf {
    let dir = bench.path("nodes");
    std::fs::create_dir(&dir).unwrap();
    let script = install_agent(bench, &format!("{}/$CONTAINER", dir.display()));
    program(
        bench,
        "docker",
        &format!(
            "set -eu\n[ \"$4 $5\" = \"install-agent.sh join\" ]\n[ ! -e \"{}/$3\" ]\n\
             echo \"$3 $7\" >>'{}/agents'\nCONTAINER=$3 exec sh '{}' join \"$6\" \"$7\"",
            bench.path("unreachable").display(),
            dir.display(),
            script.display(),
        ),
    );
    bench.path("bin")
}

#[test]
fn the_script_gives_every_node_a_certificate() {
    let bench = Bench::new();
    bench.write("inspect.json", &inspected());
    succeeds(&testbed(&bench, "containerlab", &["--manifest", "inspect.json"]));
    is_golden(&bench.path("quickstart-containerlab/join.sh"), "join.sh");
    let plan = std::fs::read_to_string(bench.path("quickstart.testbed.toml")).unwrap();
    assert!(plan.contains("\"127.0.77.1:7700\"") && plan.contains("\"10.77.1.1\""), "{plan}");

    let programs = binary("ccbench").parent().unwrap().display().to_string();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{programs}:{path}", docker(&bench).display());
    let service = ReservedPort::new(Ipv4Addr::new(127, 0, 77, 100));
    let run = || {
        let mut script = Command::new("sh");
        script.arg("quickstart-containerlab/join.sh").args(["pki", &service.address().to_string()]);
        script.env("PATH", &path).current_dir(bench.path(".")).output().unwrap()
    };
    let agents = || std::fs::read_to_string(bench.path("nodes/agents")).unwrap();
    let unreachable = bench.path("unreachable/clab-quickstart-router");
    std::fs::create_dir_all(&unreachable).unwrap();
    let failed = run();
    assert!(!failed.status.success(), "{}", text(&failed));
    assert_eq!(agents().lines().count(), 2, "{}", agents());

    // Repeated, it goes on with the node that it could not reach; once more, it starts the agents again.
    std::fs::remove_dir(&unreachable).unwrap();
    for joined in [6, 10] {
        let done = run();
        succeeds(&done);
        assert!(out(&done).contains("every agent is started"), "{}", text(&done));
        assert_eq!(agents().lines().count(), joined, "{}", agents());
    }
    let agents = agents();
    for (index, name) in NODES.iter().enumerate() {
        let address = format!("127.0.77.{}", index + 1);
        assert!(agents.contains(&format!("clab-quickstart-{name} {address}:7700\n")), "{agents}");
        let given = std::fs::read(bench.path(&format!("nodes/clab-quickstart-{name}/node.pem")));
        assert_eq!(
            given.unwrap(),
            std::fs::read(bench.path(&format!("pki/{address}.pem"))).unwrap()
        );
    }
    // A node that has lost its certificate needs a token, which the authority gives it after a revocation.
    std::fs::remove_dir_all(bench.path("nodes/clab-quickstart-src")).unwrap();
    let lost = run();
    assert!(err(&lost).contains("there is no token on standard input"), "{}", text(&lost));
    let usage = Command::new("sh").arg(bench.path("quickstart-containerlab/join.sh")).output();
    assert_eq!(usage.unwrap().status.code(), Some(2));
}

/// A node that has joined before, with a systemd whose units are files below `units` and `enabled`, and without the front's user.
struct JoinedNode {
    bench: Bench,
    script: PathBuf,
}

impl JoinedNode {
    fn new() -> Self {
        let bench = Bench::new();
        let at = |name: &str| bench.path(name).display().to_string();
        for directory in ["etc", "systemd", "units", "enabled"] {
            std::fs::create_dir(bench.path(directory)).unwrap();
        }
        bench.write("etc/node.pem", "");
        for unit in ["ccbench-agent", "ccbench-agent-front"] {
            bench.write(&format!("units/{unit}"), "");
        }
        let (units, enabled) = (at("units"), at("enabled"));
        // Of `ccbench-agent join`: what it was given as the authority.
        program(
            &bench,
            "ccbench-agent",
            &format!(
                "[ \"$1 $2\" = 'join --controller' ] && echo \"$3\" >'{}'",
                at("etc/node.pem")
            ),
        );
        let systemctl = format!(
            "for unit; do :; done\nunit=${{unit%.service}}\ncase $1 in\n\
             cat) [ -e \"{units}/$unit\" ] ;;\nis-enabled) [ -e \"{enabled}/$unit\" ] ;;\n\
             enable) : >\"{enabled}/$unit\" ;;\ndisable) rm -f \"{enabled}/$unit\" ;;\n\
             restart) echo \"$unit\" >'{}' ;;\ntry-restart) echo \"$@\" >>'{}' ;;\nesac",
            at("restarted"),
            at("tried")
        );
        program(&bench, "systemctl", &systemctl);
        program(
            &bench,
            "id",
            &format!("[ \"$*\" = '-u ccbench-front' ] && [ -e '{}' ]", at("user")),
        );
        program(&bench, "systemd-sysusers", &format!(": >'{}'", at("user")));
        let script = install_agent(&bench, &at("etc"));
        Self { bench, script }
    }

    /// Runs `install-agent.sh ARGUMENTS`.
    fn run(&self, arguments: &[&str]) -> std::process::Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let path =
            format!("{}:{}", self.bench.path("bin").display(), std::env::var("PATH").unwrap());
        let mut script = Command::new("sh");
        script.arg(&self.script).args(arguments).env("PATH", path);
        script
    }

    fn join(&self, option: &[&str]) -> std::process::Output {
        self.run(&[&["join"][..], option, &["192.0.2.1:7701", "192.0.2.11:7700"]].concat())
    }

    /// Joins, checks that exactly this service is enabled and has been started, and returns the messages.
    fn runs(&self, option: &[&str], service: &str) -> String {
        let joined = self.join(option);
        succeeds(&joined);
        let enabled = std::fs::read_dir(self.bench.path("enabled")).unwrap();
        let enabled: Vec<_> = enabled.map(|unit| unit.unwrap().file_name()).collect();
        assert_eq!(enabled, [service], "{option:?}");
        let restarted = std::fs::read_to_string(self.bench.path("restarted")).unwrap();
        assert_eq!(restarted.trim_end(), service, "{option:?}");
        err(&joined)
    }
}

#[test]
fn a_node_joins_with_front_and_worker_unless_the_operator_chooses_one_process() {
    let (front, one) = ("ccbench-agent-front", "ccbench-agent");
    let node = JoinedNode::new();
    let messages = node.runs(&[], front);
    assert!(node.bench.path("user").exists(), "the front's user: {messages}");
    assert!(!messages.contains("deprecated") && !messages.contains("one process"), "{messages}");
    let conf = || std::fs::read_to_string(node.bench.path("etc/agent.conf")).unwrap();
    assert_eq!(conf(), "CCBENCH_LISTEN=tcp:192.0.2.11:7700\nCCBENCH_AUTHORITY=192.0.2.1:7701\n");
    let messages = node.runs(&["--front"], front);
    assert!(messages.contains("`--front` is deprecated"), "{messages}");

    node.runs(&["--one-process"], one);
    // Repeated, as by join.sh: the node keeps what its operator has chosen.
    let kept = node.runs(&[], one);
    let divide =
        "`systemctl disable --now ccbench-agent && systemctl enable --now ccbench-agent-front`";
    assert!(kept.contains(divide), "{kept}");
    node.bench.write("etc/agent.conf", "CCBENCH_ARGUMENTS=--audit-size 16MB\n");
    let messages = node.runs(&["--front"], front);
    assert!(messages.contains("front and worker do not use CCBENCH_ARGUMENTS"), "{messages}");
    assert!(
        conf().starts_with("CCBENCH_ARGUMENTS=--audit-size 16MB\nCCBENCH_LISTEN="),
        "{}",
        conf()
    );
    // With both enabled, which of them starts at a boot would be left to systemd.
    node.bench.write("enabled/ccbench-agent", "");
    node.runs(&[], front);
}

#[test]
fn a_node_that_joins_renews_its_certificate_at_its_authority() {
    let node = JoinedNode::new();
    node.bench.write("units/ccbench-agent-renew.timer", "");
    node.bench.write("etc/agent.conf", "");
    let has_authority = |expected: &str| {
        let conf = std::fs::read_to_string(node.bench.path("etc/agent.conf")).unwrap();
        let authority: Vec<&str> = conf.lines().filter(|l| l.contains("AUTHORITY")).collect();
        assert_eq!(authority, [expected]);
    };
    succeeds(&node.join(&[]));
    has_authority("CCBENCH_AUTHORITY=192.0.2.1:7701");
    assert!(node.bench.path("enabled/ccbench-agent-renew.timer").exists());
    // The administrator has another address. It stays when the command is repeated.
    node.bench.write("etc/agent.conf", "CCBENCH_AUTHORITY=192.0.2.9:7701\n");
    succeeds(&node.join(&[]));
    has_authority("CCBENCH_AUTHORITY=192.0.2.9:7701");
    // A certificate of another authority cannot be renewed at the earlier one.
    std::fs::remove_file(node.bench.path("etc/node.pem")).unwrap();
    let token = std::fs::File::open(node.bench.write("token", "ccbench-join-1:...")).unwrap();
    let mut join = node.command(&["join", "192.0.2.1:7701", "192.0.2.11:7700"]);
    succeeds(&join.stdin(token).output().unwrap());
    let joined = std::fs::read_to_string(node.bench.path("etc/node.pem")).unwrap();
    assert_eq!(joined, "192.0.2.1:7701\n");
    has_authority("CCBENCH_AUTHORITY=192.0.2.1:7701");
}

#[test]
fn an_option_is_not_taken_for_the_controller() {
    let node = JoinedNode::new();
    succeeds(&node.join(&[]));
    let conf = || std::fs::read_to_string(node.bench.path("etc/agent.conf")).unwrap();
    let before = conf();
    for option in ["--one-process", "--front", "-x"] {
        let refused = node.run(&["join", option, "192.0.2.12:7700"]);
        assert_eq!(refused.status.code(), Some(1), "{option}: {}", text(&refused));
        let usage = "write join [--one-process] CONTROLLER ADDRESS";
        assert!(err(&refused).contains(usage), "{option}: {}", text(&refused));
        assert_eq!(conf(), before, "{option}");
    }
}

#[test]
fn a_node_keeps_one_process_when_a_tarball_is_installed_and_says_so() {
    let node = JoinedNode::new();
    for name in ["iperf3", "ip", "ethtool", "tar"] {
        program(&node.bench, name, "");
    }
    for (version, enabled) in [("one", "ccbench-agent-front"), ("two", "ccbench-agent")] {
        let package = node.bench.write("ccbench.tar.gz", version).display().to_string();
        node.bench.write(&format!("enabled/{enabled}"), "");
        let installed = node.run(&["install", &package]);
        succeeds(&installed);
        let is_noted = err(&installed).contains("this node keeps its agent in one process");
        assert_eq!(is_noted, enabled == "ccbench-agent", "{}", text(&installed));
        std::fs::remove_file(node.bench.path(&format!("enabled/{enabled}"))).unwrap();
        // The loader is restarted after the worker, whose undo may need it.
        let tried = std::fs::read_to_string(node.bench.path("tried")).unwrap();
        std::fs::remove_file(node.bench.path("tried")).unwrap();
        let calls: Vec<&str> = tried.lines().collect();
        let [first, last] = calls[..] else { panic!("{tried}") };
        assert!(first.contains("ccbench-agent-worker") && !first.contains("loader"), "{tried}");
        assert!(last.contains("ccbench-agent-loader"), "{tried}");
    }
}

#[test]
fn a_node_that_cannot_run_a_front_says_what_to_do() {
    let node = JoinedNode::new();
    program(&node.bench, "systemd-sysusers", "exit 1");
    let failed = node.join(&[]);
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
    assert!(
        err(&failed).contains("useradd --system --user-group ccbench-front"),
        "{}",
        err(&failed)
    );
    std::fs::remove_file(node.bench.path("units/ccbench-agent-front")).unwrap();
    let failed = node.join(&[]);
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
    assert!(err(&failed).contains("write join --one-process"), "{}", err(&failed));
    node.runs(&["--one-process"], "ccbench-agent");
    let refused = node.join(&["--two"]);
    assert!(err(&refused).contains("--two is not an option"), "{}", err(&refused));
}
