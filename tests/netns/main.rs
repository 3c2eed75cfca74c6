//! Tests the whole product in real namespaces with real iperf3 traffic (root).
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod agents;
mod congestion;
mod disturbed;
mod experiment;
mod figures;
mod killed;
mod probes;
mod record;
mod testbeds;

/// Returns a miniature of E1's path, with phases short enough for a test.
pub(crate) fn plan(name: &str, phase: &str, repeat: u32) -> String {
    format!(
        r#"
name = "{name}"
repeat = {repeat}

[nodes]
src = {{}}
router = {{}}
emulator = {{}}
dst = {{}}

[wires]
path = ["src", "router", "emulator", "dst"]

[links.bottleneck]
node = "router"
toward = "dst"
rate = "100mbit"
queue = {{ kind = "bfifo", limit = "187500B" }}

[links.delay]
node = "emulator"
toward = "dst"
delay = "10ms"

[flows.first]
from = "src"
to = "dst"
cc = "cubic"

[flows.second]
from = "src"
to = "dst"
cc = "reno"

[probes.rtt]
kind = "ping"
from = "src"
to = "dst"
every = "200ms"

[[phases]]
name = "alone"
length = "{phase}"
flows = ["first"]

[[phases]]
name = "together"
length = "{phase}"
flows = ["first", "second"]
"#
    )
}
