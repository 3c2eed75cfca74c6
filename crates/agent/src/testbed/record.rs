//! `testbed.json`: the record of a running testbed, for `ccbench exec` and for sweeping.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ccbench_proto::testbed::ReadyNode;
use serde::{Deserialize, Serialize};

use super::identity::{ProcessIdentity, boot_id};

/// Name of the file in the run directory.
pub const FILE: &str = "testbed.json";
/// Its name while it is written.
pub(super) const FILE_NEW: &str = "testbed.json.new";

/// A testbed and its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The process that holds the namespaces.
    #[serde(flatten)]
    pub process: ProcessIdentity,
    /// The boot in which `process` ran.
    pub boot_id: String,
    /// The nodes by name; empty while the testbed is being built.
    pub nodes: BTreeMap<String, NodeRecord>,
}

/// One node of a testbed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The process of its agent.
    #[serde(flatten)]
    pub process: ProcessIdentity,
    /// Where its agent listens.
    pub socket: PathBuf,
    /// The address its peers use; loopback for a node without wires.
    pub address: IpAddr,
    /// Inode of its network namespace.
    pub netns_inode: u64,
}

impl From<&NodeRecord> for ReadyNode {
    fn from(node: &NodeRecord) -> Self {
        let ProcessIdentity { pid, starttime } = node.process;
        let NodeRecord { socket, address, netns_inode, .. } = node.clone();
        Self { pid, starttime, socket, address, netns_inode }
    }
}

impl Record {
    /// Returns a record of this process, without nodes.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        Ok(Self { process: ProcessIdentity::own()?, boot_id: boot_id()?, nodes: BTreeMap::new() })
    }

    /// Reads the record in `dir`.
    ///
    /// # Errors
    /// `NotFound` without a record; `InvalidData` if it cannot be parsed.
    pub fn load(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_str(&std::fs::read_to_string(dir.join(FILE))?)?)
    }

    /// Replaces the record in `dir` atomically: a reader sees the old one or the new one.
    ///
    /// # Errors
    /// A file in `dir` cannot be written or renamed.
    pub fn store(&self, dir: &Path) -> io::Result<()> {
        let new = dir.join(FILE_NEW);
        std::fs::write(&new, serde_json::to_vec(self)?)?;
        std::fs::rename(&new, dir.join(FILE))
    }

    /// Whether the testbed is still running.
    pub fn is_live(&self) -> bool {
        boot_id().is_ok_and(|now| now == self.boot_id) && self.process.is_live()
    }
}

/// Returns the path of a node agent's socket.
pub fn socket_path(dir: &Path, node: &str) -> PathBuf {
    dir.join(format!("{node}.sock"))
}

/// Returns the path of a node agent's log.
pub fn log_path(dir: &Path, node: &str) -> PathBuf {
    dir.join(format!("{node}.log"))
}

/// Removes the testbed's own files from `dir`, but neither `dir` nor other files.
pub fn remove_files(dir: &Path, nodes: &mut dyn Iterator<Item = &str>) {
    for node in nodes {
        let _ = std::fs::remove_file(socket_path(dir, node));
        let _ = std::fs::remove_file(log_path(dir, node));
    }
    let _ = std::fs::remove_file(dir.join(FILE_NEW));
    let _ = std::fs::remove_file(dir.join(FILE));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = Record::own().unwrap();
        record.nodes.insert(
            "src".into(),
            NodeRecord {
                process: record.process,
                socket: socket_path(dir.path(), "src"),
                address: "10.77.1.1".parse().unwrap(),
                netns_inode: 7,
            },
        );
        record.store(dir.path()).unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), record);
        assert!(record.is_live());
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(dir.path().join(FILE)).unwrap()).unwrap();
        assert_eq!(json["pid"], std::process::id());
        assert_eq!(json["nodes"]["src"]["netns_inode"], 7);
        remove_files(dir.path(), &mut ["src"].into_iter());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_earlier_boot_is_dead() {
        let record = Record { boot_id: "another".into(), ..Record::own().unwrap() };
        assert!(!record.is_live());
    }
}
