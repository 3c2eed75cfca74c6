//! `scripts/install-agent.sh` on a machine's network, in a namespace.

use std::process::Command;

use ccbench_tests::{beside_others, source_root, text};

/// A wire with both ends here, and the script for one end, twice as at two boots.
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
