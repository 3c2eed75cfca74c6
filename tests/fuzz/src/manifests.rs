//! Fuzzes what testbeds report about their nodes.

use ccbench_proto::manifest::{
    Access, ManifestError, ReservedNode, cloudlab, containerlab, fabric,
};

/// Reads a manifest as that of every testbed. What is accepted becomes words of a shell script.
pub fn manifest(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for read in [cloudlab, fabric, containerlab] {
        check(read(text), text.len());
    }
}

fn check(read: Result<Vec<ReservedNode>, ManifestError>, bytes: usize) {
    let nodes = match read {
        Ok(nodes) => nodes,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(!nodes.is_empty() && nodes.len() <= bytes);
    for node in &nodes {
        let words = match &node.access {
            Access::Ssh { user, host, .. } => vec![&node.name, user, host],
            Access::Container(container) => vec![&node.name, container],
            Access::Notebook => vec![&node.name],
        };
        for word in words {
            assert!(!word.is_empty() && !word.starts_with('-'), "{word:?}");
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            assert!(word.chars().all(plain), "{word:?}");
        }
    }
}
