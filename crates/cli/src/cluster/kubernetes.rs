//! Checks a manifest as Kubernetes would: only the API fields that we use, and the rules between them.
//!
//! Names, types and rules come from the API reference (`batch/v1` Job, `v1` ConfigMap, PodSpec). The API server rejects more than
//! this module. A manifest that passes here but that the server rejects is a bug of this module.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::tests::job;
use super::*;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct List {
    api_version: CoreVersion,
    kind: ListKind,
    items: (ConfigMap, IndexedJob),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ConfigMap {
    api_version: CoreVersion,
    kind: ConfigMapKind,
    metadata: Metadata,
    data: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct IndexedJob {
    api_version: BatchVersion,
    kind: JobKindName,
    metadata: Metadata,
    spec: JobSpec,
}

#[derive(Debug, Serialize, Deserialize)]
enum CoreVersion {
    #[serde(rename = "v1")]
    V1,
}

#[derive(Debug, Serialize, Deserialize)]
enum BatchVersion {
    #[serde(rename = "batch/v1")]
    BatchV1,
}

#[derive(Debug, Serialize, Deserialize)]
enum ListKind {
    List,
}

#[derive(Debug, Serialize, Deserialize)]
enum ConfigMapKind {
    ConfigMap,
}

#[derive(Debug, Serialize, Deserialize)]
enum JobKindName {
    Job,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JobSpec {
    completion_mode: CompletionMode,
    completions: i32,
    parallelism: i32,
    backoff_limit_per_index: i32,
    pod_failure_policy: PodFailurePolicy,
    template: PodTemplateSpec,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum CompletionMode {
    NonIndexed,
    Indexed,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PodFailurePolicy {
    rules: Vec<PodFailurePolicyRule>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PodFailurePolicyRule {
    action: Action,
    on_exit_codes: OnExitCodes,
}

#[derive(Debug, Serialize, Deserialize)]
enum Action {
    FailJob,
    FailIndex,
    Ignore,
    Count,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnExitCodes {
    operator: Operator,
    values: Vec<i32>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Operator {
    In,
    NotIn,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PodTemplateSpec {
    spec: PodSpec,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PodSpec {
    restart_policy: RestartPolicy,
    termination_grace_period_seconds: i64,
    active_deadline_seconds: i64,
    containers: Vec<Container>,
    volumes: Vec<Volume>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Container {
    name: String,
    image: String,
    args: Vec<String>,
    volume_mounts: Vec<VolumeMount>,
    env_from: Vec<EnvFromSource>,
    resources: ResourceRequirements,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct VolumeMount {
    name: String,
    mount_path: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct EnvFromSource {
    secret_ref: SecretEnvSource,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretEnvSource {
    name: String,
    optional: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceRequirements {
    requests: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Volume {
    name: String,
    config_map: ConfigMapVolumeSource,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigMapVolumeSource {
    name: String,
}

/// Returns whether a name is an RFC 1123 label.
fn is_label(name: &str) -> bool {
    let of_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len())
        && name.chars().all(of_label)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// A rule of the API, and whether a manifest follows it.
type Rule = (&'static str, bool);

/// Checks the rules between fields. Returns the first broken one.
fn broken_rule(list: &List) -> Option<&'static str> {
    let (config, job) = &list.items;
    let all = job_rules(config, job).into_iter().chain(pod_rules(config, &job.spec.template.spec));
    all.into_iter().find(|(_, holds)| !holds).map(|(rule, _)| rule)
}

fn job_rules(config: &ConfigMap, job: &IndexedJob) -> [Rule; 7] {
    let JobSpec { completions, parallelism, pod_failure_policy, template, .. } = &job.spec;
    // The name of a pod of an Indexed Job: `$(job-name)-$(index)`.
    let host = format!("{}-{}", job.metadata.name, completions - 1);
    let names = [&job.metadata.name, &config.metadata.name, &host];
    let codes = |rule: &PodFailurePolicyRule| {
        let OnExitCodes { operator, values } = &rule.on_exit_codes;
        let zero = *operator == Operator::In && values.contains(&0);
        (1..=255).contains(&values.len()) && values.is_sorted_by(|a, b| a < b) && !zero
    };
    let is_indexed = job.spec.completion_mode == CompletionMode::Indexed;
    let is_count = |number: &i32| (1..=100_000).contains(number);
    let is_never = template.spec.restart_policy == RestartPolicy::Never;
    [
        ("names are labels of RFC 1123", names.iter().all(|name| is_label(name))),
        ("a key of a ConfigMap is a file name", config.data.keys().all(|key| !key.contains('/'))),
        ("backoffLimitPerIndex needs completionMode Indexed", is_indexed),
        (
            "completions and parallelism are 1 to 100000",
            is_count(completions) && is_count(parallelism),
        ),
        ("backoffLimitPerIndex is not negative", job.spec.backoff_limit_per_index >= 0),
        ("podFailurePolicy needs restartPolicy Never", is_never),
        (
            "exit codes are sorted, unique, and not 0 with In",
            pod_failure_policy.rules.iter().all(codes),
        ),
    ]
}

fn pod_rules(config: &ConfigMap, pod: &PodSpec) -> [Rule; 7] {
    let volumes: BTreeSet<&str> = pod.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let is_config = |volume: &Volume| volume.config_map.name == config.metadata.name;
    let mounts = |container: &Container| {
        let is_known = |mount: &VolumeMount| {
            volumes.contains(mount.name.as_str()) && mount.mount_path.starts_with('/')
        };
        container.volume_mounts.iter().all(is_known)
    };
    let names = |container: &Container| {
        let mut secrets = container.env_from.iter();
        is_label(&container.name) && secrets.all(|source| is_label(&source.secret_ref.name))
    };
    let whole_cpus = |container: &Container| {
        let is_cpus = |(name, amount): (&String, &String)| {
            name == "cpu" && amount.parse::<u32>().is_ok_and(|cpus| cpus > 0)
        };
        container.resources.requests.iter().all(is_cpus)
    };
    let seconds = 1..=i64::from(i32::MAX);
    let containers = &pod.containers;
    let has_image = |container: &Container| !container.image.trim().is_empty();
    [
        (
            "activeDeadlineSeconds is 1 to 2147483647",
            seconds.contains(&pod.active_deadline_seconds),
        ),
        (
            "terminationGracePeriodSeconds is not negative",
            pod.termination_grace_period_seconds >= 0,
        ),
        (
            "a pod has a container with an image",
            !containers.is_empty() && containers.iter().all(has_image),
        ),
        ("names of containers and secrets are labels", containers.iter().all(names)),
        ("a volume mount names a volume", containers.iter().all(mounts)),
        ("requests are amounts of CPU", containers.iter().all(whole_cpus)),
        ("the volume is that of the ConfigMap", pod.volumes.iter().all(is_config)),
    ]
}

/// Returns why the manifest would be rejected.
fn refusal(manifest: &Value) -> Option<String> {
    match serde_json::from_value::<List>(manifest.clone()) {
        Err(error) => Some(error.to_string()),
        Ok(list) => {
            // Every field was parsed into the type that the API gives it.
            assert_eq!(serde_json::to_value(&list).unwrap(), *manifest);
            broken_rule(&list).map(str::to_owned)
        }
    }
}

fn manifest(job: &Job) -> Value {
    job.kubernetes_manifest("registry.example/ccbench:1", "name = \"x\"\n")
}

#[test]
fn kubernetes_accepts_the_manifests_of_all_jobs() {
    let long = "long name ".repeat(20);
    let dashes = "ends with dashes after forty letters -----";
    for name in ["L4S sweep/1", "x", "_", "-- --", "ÄÖ", long.as_str(), dashes] {
        for (kind, shards, cpus) in
            [(JobKind::Simulator, 1, None), (JobKind::Lab, 100_000, Some(1024))]
        {
            let job = Job { name: name.to_owned(), shards, cpus, ..job(kind) };
            assert_eq!(refusal(&manifest(&job)), None, "{name}");
        }
    }
}

/// Checks that manifests are rejected: with misplaced fields, wrong types, and broken rules.
#[test]
fn other_manifests_are_refused() {
    let refused = |pointer: &str, key: &str, value: Value, reason: &str| {
        let mut manifest = manifest(&job(JobKind::Simulator));
        manifest.pointer_mut(pointer).unwrap()[key] = value;
        let found = refusal(&manifest).unwrap_or_else(|| panic!("{pointer}/{key} is accepted"));
        assert!(found.contains(reason), "{pointer}/{key}: {found}");
    };
    let spec = "/items/1/spec";
    let pod = "/items/1/spec/template/spec";
    refused("/items/1", "apiVersion", json!("batch/v1beta1"), "unknown variant");
    refused(pod, "backoffLimitPerIndex", json!(5), "unknown field");
    refused(spec, "restartPolicy", json!("Never"), "unknown field");
    refused(spec, "completions", json!("5"), "invalid type");
    refused(spec, "completionMode", json!("indexed"), "unknown variant");
    refused(spec, "completionMode", json!("NonIndexed"), "needs completionMode Indexed");
    refused(spec, "parallelism", json!(100_001), "1 to 100000");
    refused(pod, "restartPolicy", json!("OnFailure"), "needs restartPolicy Never");
    refused(pod, "activeDeadlineSeconds", json!(0), "activeDeadlineSeconds");
    refused("/items/1/metadata", "name", json!("L4S"), "RFC 1123");
    refused("/items/0/metadata", "name", json!("other"), "that of the ConfigMap");
    let codes = "/items/1/spec/podFailurePolicy/rules/0/onExitCodes";
    refused(codes, "values", json!([2, 2]), "exit codes");
    refused(codes, "values", json!([0]), "exit codes");
    let container = "/items/1/spec/template/spec/containers/0";
    refused(container, "resources", json!({ "requests": { "cpu": 1 } }), "invalid type");
    refused(
        container,
        "volumeMounts",
        json!([{ "name": "plans", "mountPath": "/plan" }]),
        "names a volume",
    );
}
