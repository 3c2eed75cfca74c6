//! Why the `acks` programs cannot run on this node.

use std::error::Error;

/// An error of aya or of the kernel. Boxed because aya is an optional dependency.
type Source = Box<dyn Error + Send + Sync>;

/// An error of [`open`](super::open). Messages have one line and name the missing kernel option or capability.
#[derive(Debug, thiserror::Error)]
pub enum AcksError {
    /// The build lacks the feature `ebpf`.
    #[error("this agent was built without eBPF (build it with its feature `ebpf`)")]
    NotBuilt,
    /// /sys/kernel/btf/vmlinux cannot be read.
    #[error("read the kernel's BTF (CONFIG_DEBUG_INFO_BTF): {}", chain(source.as_ref()))]
    Btf {
        /// The cause.
        source: Source,
    },
    /// The kernel refused to create the maps.
    #[error("load BPF maps (needs CAP_BPF and CAP_PERFMON): {}", chain(source.as_ref()))]
    LoadMaps {
        /// The cause.
        source: Source,
    },
    /// The kernel refused to load a program.
    #[error("load the BPF program for the tracepoint {tracepoint}: {}", chain(source.as_ref()))]
    LoadProgram {
        /// The tracepoint.
        tracepoint: &'static str,
        /// The cause.
        source: Source,
    },
    /// A value of `acks_global` cannot be set.
    #[error("set up the BPF programs: {}", chain(source.as_ref()))]
    SetUp {
        /// The cause.
        source: Source,
    },
    /// The kernel refused to attach a program.
    #[error("attach the BPF program {program}: {}", chain(source.as_ref()))]
    Attach {
        /// The program's name.
        program: String,
        /// The cause.
        source: Source,
    },
    /// The BPF object lacks a map.
    #[error("the BPF object has no map {name}")]
    NoMap {
        /// The map's name.
        name: &'static str,
    },
    /// A map has an unexpected type.
    #[error("open the BPF map {name}: {}", chain(source.as_ref()))]
    OpenMap {
        /// The map's name.
        name: &'static str,
        /// The cause.
        source: Source,
    },
}

/// Formats an error with its causes on one line.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        // An aya error may already contain its cause, followed by the verifier log.
        if !text.contains(&message) {
            text = format!("{}: {message}", text.trim_end());
        }
        cause = error.source();
    }
    one_line(&text)
}

/// Returns the first line of a text and the verifier's error, which is the last line before the statistics at the end of its log.
fn one_line(text: &str) -> String {
    const STATISTICS: [&str; 3] = ["verification time", "stack depth", "processed "];
    let is_error =
        |line: &&str| !line.trim().is_empty() && !STATISTICS.iter().any(|s| line.starts_with(s));
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    match lines.rfind(is_error) {
        Some(last) => format!("{first} ... {last}"),
        None => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_error_line_of_a_verifier_log() {
        let log = "BPF_PROG_LOAD failed: 0: R1=ctx()\n1: (85) call x\ninvalid func x\nprocessed 2 insns\n\n";
        assert_eq!(one_line(log), "BPF_PROG_LOAD failed: 0: R1=ctx() ... invalid func x");
        assert_eq!(one_line("not permitted"), "not permitted");
    }
}
