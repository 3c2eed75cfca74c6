//! containerlab: a topology of containers on this machine, and the Dockerfile of their image.

use std::fmt::Write as _;

use serde_json::json;

use super::{AGENT_PORT, Layout};

/// The image of the nodes.
const IMAGE: &str = "ccbench-agent";
/// The interface of the control network.
const CONTROL_DEVICE: &str = "eth0";
/// The MTU of ccbench's namespaces and of Ethernet. containerlab's default is 9500.
const MTU: u32 = 1500;

/// The Dockerfile of the image.
pub const CONTAINERFILE: &str = "\
# The image of the nodes: `docker build -f Containerfile -t ccbench-agent .` here, beside ccbench.tar.gz, the tarball of `make dist`.
FROM docker.io/library/debian:trixie-slim
RUN apt-get update \\
    && apt-get install -y --no-install-recommends ca-certificates ethtool iperf3 iproute2 libelf1 procps zlib1g \\
    && rm -rf /var/lib/apt/lists/*
COPY ccbench.tar.gz /tmp/
RUN tar -C /usr/local --strip-components=1 --no-same-owner -xzf /tmp/ccbench.tar.gz && rm /tmp/ccbench.tar.gz
COPY install-agent.sh /usr/local/bin/install-agent.sh
";

/// Returns the topology in YAML. Strings are written as in JSON, because YAML is a superset of JSON.
pub fn topology(layout: &Layout<'_>) -> String {
    let text = |text: &str| json!(text).to_string();
    let serve = format!("install-agent.sh serve {CONTROL_DEVICE} {AGENT_PORT}");
    let mut yaml = format!(
        "# {}\n# Written by `ccbench testbed containerlab`. Rates, delays and queues are not here: ccbench sets them for each trial.\n\
         name: {}\ntopology:\n  defaults:\n    kind: linux\n    image: {}\n    cmd: {}\n  nodes:\n",
        layout.title(),
        text(&layout.plan.name),
        text(IMAGE),
        text(&serve),
    );
    for (name, node) in layout.nodes() {
        let _ = write!(yaml, "    {}:\n      exec:\n", text(layout.host(name)));
        for interface in &node.interfaces {
            let add = format!("ip address replace {}/24 dev {}", interface.address, interface.dev);
            let _ = writeln!(yaml, "        - {}", text(&add));
        }
        let network = format!("install-agent.sh network {}", layout.network(name, node));
        let _ = writeln!(yaml, "        - {}", text(network.trim_end()));
    }
    let wires = &layout.topology.wires;
    yaml.push_str(if wires.is_empty() { "  links: []\n" } else { "  links:\n" });
    for wire in wires {
        let end = |(node, dev): &(String, String)| text(&format!("{}:{dev}", layout.host(node)));
        let (a, b) = (end(&wire.a), end(&wire.b));
        let _ = write!(yaml, "    - endpoints: [{a}, {b}]\n      mtu: {MTU}\n");
    }
    yaml
}
