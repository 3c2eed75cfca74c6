//! `run.json`: the provenance of a run. It is replaced atomically.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ccbench_io::input;
use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::wire::NodeInfo;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::backend::RunBackend;
use super::digest::FileDigest;
use super::journal::{RunState, TrialEnd};
use super::model::attempt::Attempt;
use super::model::decision::Decision;
use super::model::{Imported, RunInfo, RunStatus, SCHEMA_VERSION};
use super::part::sync;
use super::store::error::StoreError;
use super::trace::stored::CC_FOLDER;
use crate::error::{FileError, Result, io_error};

/// The file's name in the results directory.
pub(crate) const FILE_NAME: &str = "run.json";

/// The file's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    pub(crate) schema_version: u32,
    pub(crate) status: RunStatus,
    pub(crate) plan_name: String,
    pub(crate) plan_sha256: String,
    pub(crate) repeat: u32,
    pub(crate) seed: u64,
    pub(crate) factors: Vec<String>,
    pub(crate) points: Vec<Point>,
    /// The first session and every resumed one.
    pub(crate) sessions: Vec<RunSession>,
    /// The backend; `None` in runs of earlier versions. See [`RunRecord::backend`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backend: Option<RunBackend>,
    /// The topology; text in runs of earlier versions.
    pub(crate) topology: Value,
    /// Committed trials with their clocks, updated whenever the status changes.
    pub(crate) trials: Vec<TrialEnd>,
    /// The decided rules of the plan; empty until the run ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) decisions: Vec<Decision>,
    /// Number of trials that remain after the plan's rules; `None` until the run ends, and without rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) planned_trials: Option<u32>,
    /// Notes for readers, such as a truncated journal or removed incomplete trials.
    pub(crate) notes: Vec<String>,
    /// SHA-256 of each of the user's congestion controls, by its path in the results directory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) cc_digests: BTreeMap<String, String>,
    /// Imported files of other tools; empty for runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) imported: Vec<Imported>,
}

/// One combination of the matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) point_id: u32,
    /// Each factor with its level, in the plan's order.
    pub(crate) levels: Vec<(String, String)>,
}

/// One process that worked on the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunSession {
    pub(crate) started_utc: String,
    pub(crate) ccbench_version: String,
    pub(crate) command_line: Vec<String>,
    pub(crate) sets: Vec<String>,
    pub(crate) nodes: BTreeMap<String, Value>,
    /// The attempt, in a merged run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<Attempt>,
}

impl RunSession {
    pub(crate) fn new(info: &RunInfo) -> Self {
        Self {
            started_utc: info.started_utc.to_string(),
            ccbench_version: info.ccbench_version.clone(),
            command_line: info.command_line.clone(),
            sets: info.sets.clone(),
            nodes: info.nodes.iter().map(|(name, node)| (name.clone(), node_json(node))).collect(),
            attempt: None,
        }
    }
}

impl RunRecord {
    pub(crate) fn new(info: &RunInfo) -> Self {
        let points = info
            .points
            .iter()
            .map(|(point_id, levels)| Point { point_id: *point_id, levels: levels.clone() });
        Self {
            schema_version: SCHEMA_VERSION,
            status: RunStatus::Running,
            plan_name: info.plan_name.clone(),
            plan_sha256: info.plan_sha256.clone(),
            repeat: info.repeat,
            seed: info.seed,
            factors: factors(info),
            points: points.collect(),
            sessions: vec![RunSession::new(info)],
            backend: Some(info.backend.clone()),
            topology: info.topology.clone(),
            trials: vec![],
            decisions: vec![],
            planned_trials: None,
            notes: info.notes.clone(),
            cc_digests: info.ccs.iter().map(cc_digest).collect(),
            imported: info.imported.clone(),
        }
    }

    /// Returns where the trials took place.
    pub(crate) fn backend(&self) -> RunBackend {
        match &self.backend {
            Some(backend) => backend.clone(),
            None if !self.imported.is_empty() => RunBackend::Import,
            None => RunBackend::of_notes(&self.notes),
        }
    }

    /// Returns the number of trials in the plan, without those that rules made unnecessary once that is known.
    pub(crate) fn planned(&self) -> u32 {
        let all = u32::try_from(self.points.len()).unwrap_or(u32::MAX).saturating_mul(self.repeat);
        self.planned_trials.unwrap_or(all)
    }

    /// Returns trials of a complete run that its journal has lost.
    pub(crate) fn lost(&self, journal: &RunState) -> Vec<(u32, u16)> {
        let is_complete = self.status == RunStatus::Complete;
        let trials = self.trials.iter().map(|end| (end.point_id, end.trial));
        trials.filter(|key| is_complete && !journal.committed.contains_key(key)).collect()
    }

    /// Reads the file. Returns also its digest, for comparing it with those in the journal.
    ///
    /// # Errors
    /// The directory is not a results directory, or the file cannot be read or parsed.
    pub(crate) fn read(dir: &Path) -> Result<(Self, FileDigest), StoreError> {
        let path = dir.join(FILE_NAME);
        let not_a_run = |reason| StoreError::NotResults { path: dir.to_path_buf(), reason };
        let is_plan = dir.extension().is_some_and(|ending| ending == "toml");
        let bytes =
            input::read(&path, &input::RECORD).map_err(|e| match (e.kind(), dir.metadata()) {
                (ErrorKind::NotFound, Ok(_)) => not_a_run("it has no run.json"),
                (ErrorKind::NotADirectory, Ok(_)) if is_plan => {
                    StoreError::IsPlan { path: dir.to_path_buf() }
                }
                (ErrorKind::NotADirectory, Ok(_)) => not_a_run("it is not a directory"),
                (ErrorKind::NotFound | ErrorKind::NotADirectory, Err(_)) => {
                    not_a_run("it does not exist")
                }
                _ => io_error("read", &path)(e).into(),
            })?;
        let record = serde_json::from_slice(&bytes).map_err(|source| FileError::Json {
            op: "parse",
            path,
            source,
        })?;
        Ok((record, FileDigest::of(&bytes)))
    }

    /// Returns the file's content and its digest. The journal gets the digest before the file is written.
    pub(crate) fn encoded(&self, dir: &Path) -> Result<(Vec<u8>, FileDigest)> {
        let path = dir.join(FILE_NAME);
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|source| FileError::Json {
            op: "write",
            path,
            source,
        })?;
        bytes.push(b'\n');
        let digest = FileDigest::of(&bytes);
        Ok((bytes, digest))
    }
}

fn cc_digest((name, bytes): (&PathBuf, &Vec<u8>)) -> (String, String) {
    let path = Path::new(CC_FOLDER).join(name);
    (path.to_string_lossy().into_owned(), FileDigest::of(bytes).sha256)
}

/// Returns the names of the factors, in the order of the points.
fn factors(info: &RunInfo) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    for (name, _) in info.points.iter().flat_map(|(_, levels)| levels) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// Replaces a file atomically and syncs it to disk: readers see the old or the new content, even after a crash.
pub(crate) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = dir.join(name);
    ccbench_io::replace::replace(&path, bytes).map_err(io_error("replace", &path))?;
    sync(dir)
}

/// Returns a node's description as JSON, with every field of the message.
fn node_json(node: &NodeInfo) -> Value {
    let interfaces: Vec<Value> = node
        .interfaces
        .iter()
        .map(|i| {
            json!({
                "name": i.name, "index": i.index, "mtu_bytes": i.mtu_bytes, "up": i.up,
                "addresses": i.addresses, "root_qdisc": i.root_qdisc, "tso": i.tso, "gso": i.gso,
                "gro": i.gro, "driver": i.driver,
            })
        })
        .collect();
    let sysctls: BTreeMap<_, _> = node.sysctls.iter().collect();
    json!({
        "agent_version": node.agent_version,
        "hostname": node.hostname,
        "kernel": node.kernel,
        "kernel_version": node.kernel_version,
        "machine": node.machine,
        "boot_id": node.boot_id,
        "cpus": node.cpus,
        "cpu_model": node.cpu_model,
        "iperf3_version": node.iperf3_version,
        "iperf3_json_stream": node.iperf3_json_stream,
        "congestion_controls": node.congestion_controls,
        "allowed_congestion_controls": node.allowed_congestion_controls,
        "default_congestion_control": node.default_congestion_control,
        "qdiscs": node.qdiscs,
        "interfaces": interfaces,
        "sysctls": sysctls,
        "can_ebpf": node.can_ebpf,
        "can_userspace_link": node.can_userspace_link,
        "clocksource": node.clocksource,
        "privileges": node.privileges().as_text(),
        "notes": node.notes,
        "netns_inode": node.netns_inode,
        "ecn": node.ecn,
        "generation": node.generation,
        "last_run_id": node.last_run_id,
        "time_ns_inode": node.time_ns_inode,
        "traffic_user": node.traffic_user,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccbench_proto::wire;
    use prost::Message as _;

    #[test]
    fn records_every_field_of_node_info() {
        let set = prost_types::FileDescriptorSet::decode(wire::DESCRIPTORS).unwrap();
        let node = NodeInfo { interfaces: vec![wire::Interface::default()], ..Default::default() };
        let node = node_json(&node);
        for (message, value) in [("NodeInfo", &node), ("Interface", &node["interfaces"][0])] {
            let mut messages = set.file.iter().flat_map(|f| &f.message_type);
            let message = messages.find(|m| m.name() == message).unwrap();
            for field in &message.field {
                assert!(value.get(field.name()).is_some(), "{}.{}", message.name(), field.name());
            }
        }
    }
}
