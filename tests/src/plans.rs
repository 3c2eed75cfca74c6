//! The text of small plans for unit tests.

/// Returns a plan with a ping and phases of these lengths (`10s`). `head` has the keys before the tables: a name, and others.
pub fn of_lengths(head: &str, lengths: &[&str]) -> String {
    format!(
        r#"{head}
[nodes]
src = {{}}
dst = {{}}
[wires]
path = ["src", "dst"]
[probes.rtt]
kind = "ping"
from = "src"
to = "dst"
[[phases]]
name = "only"
length = "10s"
[matrix]
"phases.0.length" = {lengths:?}
"#
    )
}
