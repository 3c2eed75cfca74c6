//! `artifact.json`: what was run and where, with every digest and claim, for programs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::FORMAT_VERSION;
use crate::digest::Digests;
use crate::expect::Expectation;
use crate::record::RunRecord;

/// Fields of a node's description that affect results.
const NODE_FIELDS: [&str; 8] = [
    "agent_version",
    "kernel",
    "kernel_version",
    "machine",
    "cpus",
    "cpu_model",
    "iperf3_version",
    "clocksource",
];

/// Returns the content of the file. `digests` has every file of the artifact, by its path in the artifact.
pub(super) fn manifest(record: &RunRecord, digests: &Digests, claims: &[Expectation]) -> Value {
    let parquet = digests.iter().filter(|(name, _)| name.ends_with(".parquet"));
    let parquet: BTreeMap<_, _> = parquet.collect();
    let claims = claims.iter().zip(1..).map(|(one, number)| claim(one, number));
    let claims: Vec<Value> = claims.collect();
    let versions = record.sessions.iter().map(|session| &session.ccbench_version);
    let versions: Vec<&String> = versions.collect();
    json!({
        "format_version": FORMAT_VERSION,
        "plan": record.plan_name,
        "plan_sha256": record.plan_sha256,
        "ccbench_versions": versions,
        "schema_version": record.schema_version,
        "backend": record.backend(),
        "nodes": nodes(record),
        "parquet": parquet,
        "claims": claims,
    })
}

fn claim(claim: &Expectation, number: usize) -> Value {
    let mut value = claim.json();
    if let Value::Object(fields) = &mut value {
        fields.remove("event");
        fields.insert("number".to_owned(), number.into());
    }
    value
}

/// Returns the nodes as the last session described them.
fn nodes(record: &RunRecord) -> BTreeMap<String, Value> {
    let nodes = record.sessions.last().map(|session| session.nodes.clone()).unwrap_or_default();
    let described = |node: &Value| {
        let fields = NODE_FIELDS.iter().filter_map(|field| Some((*field, node.get(*field)?)));
        json!(fields.collect::<BTreeMap<_, _>>())
    };
    nodes.iter().map(|(name, node)| (name.clone(), described(node))).collect()
}
