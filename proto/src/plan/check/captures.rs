//! Captures.

use crate::plan::Plan;
use crate::units::Bytes;

use super::limits::{AGENTS, known_node};
use super::links::needs_address;
use super::problems::Problems;

/// Enough for Ethernet, IPv4 and UDP headers.
const MIN_SNAP: Bytes = Bytes::new(48);
const MAX_SNAP: Bytes = Bytes::new(65_535);
const MIN_SIZE: Bytes = Bytes::new(100_000);
/// Maximum bytes of all captures of a node, which the controller receives after each trial.
const MAX_TOGETHER: u64 = 1 << 30;
const MAX_FILES: u32 = 1000;

pub(super) fn check(plan: &Plan, problems: &mut Problems) {
    let mut together = std::collections::BTreeMap::<&str, u64>::new();
    for (name, capture) in &plan.capture {
        let path = |key: &'static str| ["capture", name.as_str(), key];
        let known = known_node(plan, &path("node"), &capture.node, problems);
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
                if there && known && *toward == capture.node {
                    let why = format!("`{toward}` is the node itself; name another one");
                    problems.error_from(&path("toward"), &[&path("node")], why);
                } else if there {
                    let because = format!("`capture.{name}` is toward `{toward}`");
                    needs_address(plan, toward, &because, problems);
                }
            }
            (None, Some(_)) => {}
        }
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
