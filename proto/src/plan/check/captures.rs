//! Captures.

use crate::plan::{Capture, Plan};
use crate::topology::Topology;
use crate::units::Bytes;

use super::limits::{AGENTS, is_ours, known_node};
use super::links::{known_dev, needs_address, unreachable};
use super::problems::Problems;

/// Enough for Ethernet, IPv4 and UDP headers.
const MIN_SNAP: Bytes = Bytes::new(48);
const MAX_SNAP: Bytes = Bytes::new(65_535);
const MIN_SIZE: Bytes = Bytes::new(100_000);
/// Maximum bytes of all captures of a node, which the controller receives after each trial.
const MAX_TOGETHER: u64 = 1 << 30;
const MAX_FILES: u32 = 1000;

pub(super) fn check(plan: &Plan, topology: &Topology, problems: &mut Problems) {
    let mut together = std::collections::BTreeMap::<&str, u64>::new();
    for (name, capture) in &plan.capture {
        let path = |key: &'static str| ["capture", name.as_str(), key];
        interface((plan, topology), name, capture, problems);
        if capture.snap < MIN_SNAP || capture.snap > MAX_SNAP {
            problems.error(&path("snap"), "must be from 48B (headers) to 65535B (whole packets)");
        }
        if capture.size < MIN_SIZE {
            problems.error(&path("size"), "must be at least 100kB");
        }
        if capture.files == 0 || capture.files > MAX_FILES {
            problems.error(&path("files"), format!("must be from 1 to {MAX_FILES}"));
        }
        let bytes = capture.size.get().saturating_mul(capture.files.into());
        let sum = together.entry(&capture.node).or_default();
        *sum = sum.saturating_add(bytes);
    }
    for (node, bytes) in together {
        if bytes > MAX_TOGETHER {
            problems.error_from(
                &["capture"],
                &[&["capture", "*", "size"], &["capture", "*", "files"], AGENTS],
                format!(
                    "the files of `{node}` may hold {bytes} bytes together; at most 1GiB is allowed: give a smaller \
                     `size`, fewer `files`, or a smaller `snap`"
                ),
            );
        }
    }
}

/// Checks the interface of a capture.
fn interface(
    (plan, topology): (&Plan, &Topology),
    name: &str,
    capture: &Capture,
    problems: &mut Problems,
) {
    let path = |key: &'static str| ["capture", name, key];
    let node = capture.node.as_str();
    let known = known_node(plan, &path("node"), node, problems);
    match (&capture.toward, &capture.dev) {
        (None, None) => problems.error_from(
            &["capture", name],
            &[&path("toward"), &path("dev")],
            "has no interface; give `toward = \"NODE\"`, where packets go, or `dev = \"NAME\"`",
        ),
        (Some(_), Some(_)) => problems.error_from(
            &path("dev"),
            &[&path("toward")],
            "there is `toward` too; keep one of the two",
        ),
        (Some(toward), None) => {
            let there = known_node(plan, &path("toward"), toward, problems);
            if there && known && toward == node {
                let why = format!("`{toward}` is the node itself; name another one");
                problems.error_from(&path("toward"), &[&path("node")], why);
            } else if there {
                let because = format!("`capture.{name}` is toward `{toward}`");
                needs_address(plan, toward, &because, problems);
                if is_ours(plan, node) && topology.egress(node, toward).is_none() {
                    unreachable(plan, &path("toward"), (node, toward), problems);
                }
            }
        }
        // Every namespace has the loopback interface.
        (None, Some(dev)) if dev == "lo" => {}
        (None, Some(dev)) => {
            known_dev((plan, topology), ["capture", name], (node, dev), problems);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::check::read;

    #[test]
    fn the_interface_of_a_capture_exists() {
        let errors = |keys: &str| -> Vec<String> {
            let text = format!(
                "name = \"t\"\n[nodes]\na = {{}}\nb = {{}}\nc = {{}}\n[wires]\nw = [\"a\", \"b\"]\n[flows.f]\n\
                 from = \"a\"\nto = \"b\"\n[[phases]]\nname = \"p\"\nlength = \"5s\"\nflows = [\"f\"]\n\
                 [capture.x]\nnode = \"a\"\n{keys}\n"
            );
            let problems = read(&text, &[]).err().unwrap_or_default();
            let about = problems.iter().filter(|problem| problem.path.starts_with("capture"));
            about.map(ToString::to_string).collect()
        };
        for right in ["dev = \"to-b\"", "dev = \"lo\"", "toward = \"b\""] {
            assert_eq!(errors(right), [""; 0]);
        }
        let wrong = [
            ("dev = \"to-d\"", "capture.x.dev: `a` has no interface `to-d`"),
            ("dev = \"\"", "capture.x.dev: `` is not a device's name"),
            ("toward = \"c\"", "capture.x.toward: `a` has no wire that leads to `c`"),
        ];
        for (keys, why) in wrong {
            let found = errors(keys);
            assert!(found.len() == 1 && found[0].starts_with(why), "{found:?}");
        }
    }
}
