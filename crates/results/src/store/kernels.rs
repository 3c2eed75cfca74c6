//! The kernels with which a run can be continued.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::RunDir;

/// A kernel's release and version, as `uname -r` and `uname -v` print them.
pub type Kernel = (String, String);

impl RunDir {
    /// Returns the kernels that each node had in the last session. In a merged run that has not been resumed, these are the kernels of all
    /// attempts. Nodes whose kernel is not recorded are absent.
    pub fn kernels(&self) -> BTreeMap<String, BTreeSet<Kernel>> {
        let state = self.shared.state();
        let mut kernels: BTreeMap<String, BTreeSet<Kernel>> = BTreeMap::new();
        for session in state.record.sessions.iter().rev() {
            for (name, node) in &session.nodes {
                if let Some(kernel) = kernel(node) {
                    kernels.entry(name.clone()).or_default().insert(kernel);
                }
            }
            if session.attempt.is_none() {
                break;
            }
        }
        kernels
    }
}

/// Returns the kernel in a node's description.
fn kernel(node: &Value) -> Option<Kernel> {
    let text = |key: &str| Some(node.get(key)?.as_str()?.to_owned());
    Some((text("kernel")?, text("kernel_version")?))
}

#[cfg(test)]
mod tests {
    use ccbench_proto::wire::NodeInfo;
    use serde_json::json;

    use super::*;
    use crate::model::RunInfo;
    use crate::shard::Attempt;
    use crate::trial::tests::info;

    /// Returns a session whose only node has this kernel.
    fn session(release: &str) -> RunInfo {
        let (kernel, kernel_version) = (release.to_owned(), "#1 SMP".to_owned());
        let node = NodeInfo { kernel, kernel_version, ..NodeInfo::default() };
        RunInfo { nodes: BTreeMap::from([("src".to_owned(), node)]), ..info() }
    }

    fn releases(run: &RunDir) -> Vec<String> {
        let kernels = run.kernels().remove("src").unwrap_or_default();
        kernels.into_iter().map(|(release, _)| release).collect()
    }

    #[test]
    fn kernels_are_those_of_the_last_session_and_of_all_attempts() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &session("6.1.0")).unwrap();
        let path = run.path().to_path_buf();
        drop(run);
        let run = RunDir::resume(&path, &session("6.12.0")).unwrap();
        assert_eq!(releases(&run), ["6.12.0"]);
        let attempt = Attempt {
            id: "a1".to_owned(),
            shard: 1,
            shards: 1,
            host: "host".to_owned(),
            job: None,
        };
        for session in &mut run.shared.state().record.sessions {
            session.attempt = Some(attempt.clone());
        }
        assert_eq!(releases(&run), ["6.1.0", "6.12.0"]);
        // An earlier version did not record the version.
        for session in &mut run.shared.state().record.sessions {
            session.nodes = BTreeMap::from([("src".to_owned(), json!({ "kernel": "6.1.0" }))]);
        }
        assert!(run.kernels().is_empty());
    }
}
