//! Tests `scripts/install-agent.sh` on the networks of machines, in namespaces.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use ccbench_tests::namespace::Namespace;
use ccbench_tests::snippets::{self, Snippet};
use ccbench_tests::{beside_others, source_root, text};

/// Connects both ends of a wire here, and runs the script for one end, twice, as at two boots.
const NETWORK: &str = r#"
set -e
ip link add to-r type veth peer name to-a
ip address add 10.77.1.1/24 dev to-r
ip link set to-r up
ip link set to-a up
sysctl -q -w net.ipv4.conf.to-r.rp_filter=1
sh "$0" network $1 10.77.1.1 10.77.2.0/24=10.77.1.2
sh "$0" network $1 10.77.1.1 10.77.2.0/24=10.77.1.2
ip route show 10.77.2.0/24
sysctl net.ipv4.ip_forward net.ipv4.conf.to-r.rp_filter
ethtool -k to-r | grep -E '^(tcp-segmentation-offload|generic-receive-offload)'
"#;

fn network(option: &str) -> String {
    let script = source_root().join("scripts/install-agent.sh");
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", NETWORK]).arg(script).arg(option);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_install_script_makes_an_interface_that_of_a_node() {
    let _others = beside_others();
    let found = network("");
    for line in [
        "10.77.2.0/24 via 10.77.1.2 dev to-r",
        "net.ipv4.ip_forward = 1",
        "net.ipv4.conf.to-r.rp_filter = 0",
        "tcp-segmentation-offload: off",
        "generic-receive-offload: off",
    ] {
        assert!(found.contains(line), "no `{line}`: {found}");
    }
    let kept = network("--offloads");
    assert!(kept.contains("tcp-segmentation-offload: on"), "{kept}");
}

/// The cables of plans/four-machines.toml: the nodes at the ends, with their addresses.
const CABLES: [[(&str, &str); 2]; 3] = [
    [("src", "10.0.1.1"), ("router", "10.0.1.2")],
    [("router", "10.0.2.1"), ("emulator", "10.0.2.2")],
    [("emulator", "10.0.3.1"), ("dst", "10.0.3.2")],
];

const SERVER: &str = "import socket\nserver = socket.create_server(('10.0.3.2', 5000))\n\
    print('listens', flush=True)\nserver.accept()[0].sendall(b'arrived')";
const CLIENT: &str =
    "import socket\nprint(socket.create_connection(('10.0.3.2', 5000), 10).recv(9).decode())";

/// Creates four namespaces with these cables. Each has its addresses and nothing else.
fn machines() -> BTreeMap<&'static str, Namespace> {
    let names = ["src", "router", "emulator", "dst"];
    let machines = BTreeMap::from(names.map(|name| (name, Namespace::new())));
    for [one, other] in CABLES {
        let far = machines[other.0].pid();
        let dev = format!("to-{}", other.0);
        let cable = format!("ip link add {dev} type veth peer name to-{} netns {far}", one.0);
        machines[one.0].shell(&cable);
        for ((node, address), far) in [(one, other.0), (other, one.0)] {
            let set =
                format!("ip address add {address}/24 dev to-{far} && ip link set to-{far} up");
            machines[node].shell(&set);
        }
    }
    machines
}

/// Returns the commands of a snippet of docs/guide.md for each node, which the comment after the command names.
fn commands_of(guide: &Snippet) -> Vec<(&str, String)> {
    let script = source_root().join("scripts/install-agent.sh");
    let with_node = guide.text.lines().filter_map(|line| line.split_once("# on "));
    let of_node = with_node.map(|(command, node)| {
        (node.trim(), command.replace("$install", &script.display().to_string()))
    });
    of_node.collect()
}

#[test]
fn the_commands_of_the_guide_connect_four_machines() {
    let _others = beside_others();
    let plan = std::fs::read_to_string(source_root().join("plans/four-machines.toml")).unwrap();
    let plan: toml::Table = plan.parse().unwrap();
    for (node, keys) in plan["nodes"].as_table().unwrap() {
        let end = (node.as_str(), keys["address"].as_str().unwrap());
        assert!(CABLES.iter().flatten().any(|found| *found == end), "{end:?}");
    }
    let machines = machines();
    let documents = snippets::all();
    let guide = documents.iter().find(|s| s.text.contains("$install network")).unwrap();
    let commands = commands_of(guide);
    assert_eq!(commands.len(), 4, "{}: {commands:?}", guide.place());
    for (node, command) in &commands {
        machines[node].shell(command);
    }
    let mut server = machines["dst"].enter();
    let mut server = server.args(["python3", "-c", SERVER]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let arrived = machines["src"].enter().args(["python3", "-c", CLIENT]).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(line, "listens\n");
    assert_eq!(arrived.stdout, b"arrived\n", "{}", text(&arrived));
}
