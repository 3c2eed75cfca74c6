//! Reads the plan and the traces of a request.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ccbench_proto::plan::{check as plan_check, digest_bytes, parse};
use ccbench_proto::schedule::{self, NodeTask, TrialContext};
use ccbench_proto::trace::{self, Trace};
use ccbench_proto::wire;

use crate::blocking;
use crate::error::AgentError;
use crate::files::{Content, Contents};

/// Reads this node's part of the trial from a request and its files.
pub type ReadTask = fn(&wire::PrepareRequest, &Contents) -> Result<NodeTask, AgentError>;

/// Reads this node's part of the trial beside the runtime: a long plan or trace takes seconds. Returns the request and its files, too.
///
/// # Errors
/// Those of `read_task`.
pub async fn beside_runtime(
    request: Box<wire::PrepareRequest>,
    files: Contents,
    read_task: ReadTask,
) -> Result<(Box<wire::PrepareRequest>, Contents, NodeTask), AgentError> {
    blocking::run(move || {
        let task = read_task(&request, &files)?;
        Ok((request, files, task))
    })
    .await
}

/// Returns this node's part of the trial of a request that contains its files.
///
/// # Errors
/// The plan is wrong, the node is not in it, an address is invalid, or a trace is missing or wrong.
pub fn task_of(request: &wire::PrepareRequest) -> Result<NodeTask, AgentError> {
    let files = request.files.iter();
    let files = files.map(|(name, bytes)| (name.clone(), Arc::new(Content::from(bytes.clone()))));
    task_with(request, &files.collect())
}

/// Parses the request's plan and returns this node's part of the trial.
///
/// # Errors
/// The plan is wrong, the node is not in it, an address is invalid, or a trace is missing or wrong.
pub fn task_with(request: &wire::PrepareRequest, files: &Contents) -> Result<NodeTask, AgentError> {
    task(request, |plan| traces(request, files, plan))
}

/// Like [`task_with`], but without the traces of the links.
///
/// # Errors
/// The plan is wrong, the node is not in it, or an address is invalid.
pub fn task_without_traces(request: &wire::PrepareRequest) -> Result<NodeTask, AgentError> {
    task(request, |_| Ok(BTreeMap::new()))
}

fn task(
    request: &wire::PrepareRequest,
    traces: impl FnOnce(&plan_check::CheckedPlan) -> Result<BTreeMap<String, Arc<Trace>>, AgentError>,
) -> Result<NodeTask, AgentError> {
    let wrong = |problems: Vec<plan_check::PlanProblem>| AgentError::Plan {
        problems: problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    };
    let plan = parse::parse(&request.plan_toml).map_err(wrong)?;
    // The check of a plan checks each of its points.
    if !plan.matrix.is_empty() {
        let reason = "the plan has a matrix; send the resolved plan of one point".to_owned();
        return Err(AgentError::Request { field: "plan_toml", reason });
    }
    let (plan, _) = plan_check::check(plan).map_err(wrong)?;
    let nodes = &plan.plan().nodes;
    if !nodes.contains_key(&request.node) {
        let known = nodes.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let reason = format!("the plan has no node `{}`; it has: {known}", request.node);
        return Err(AgentError::Request { field: "node", reason });
    }
    let address = |(name, text): (&String, &String)| match text.parse::<IpAddr>() {
        Ok(ip) => Ok((name.clone(), ip)),
        Err(_) => Err(AgentError::Request {
            field: "addresses",
            reason: format!("`{text}`, the address of node {name}, is not an IP address"),
        }),
    };
    let context = TrialContext {
        addresses: request.addresses.iter().map(address).collect::<Result<_, _>>()?,
        port_slot: request.port_slot,
        seed: request.seed,
        traces: traces(&plan)?,
    };
    let mut task = schedule::task_for(&plan, &request.node, &context);
    // A group that no phase names never runs, so it needs no listener either.
    task.servers.retain(|flow| flow.start < flow.stop);
    task.clients.retain(|flow| flow.start < flow.stop);
    Ok(task)
}

/// Returns the contents of the trace files of this node's links. A content that has several names is parsed once.
fn traces(
    request: &wire::PrepareRequest,
    files: &Contents,
    plan: &plan_check::CheckedPlan,
) -> Result<BTreeMap<String, Arc<Trace>>, AgentError> {
    let wrong = |reason| AgentError::Request { field: "files", reason };
    let (mut traces, mut parsed) = (BTreeMap::new(), BTreeMap::new());
    let here = plan.plan().links.values().filter(|link| link.node == request.node);
    for used in here.filter_map(|link| link.trace.as_ref()) {
        let file = &used.file;
        let Some(content) = files.get(file) else {
            return Err(wrong(format!("the trace `{file}` is missing")));
        };
        let (found, trace) = parsed
            .entry(Arc::as_ptr(content))
            .or_insert_with(|| (digest_bytes(content.bytes()), None::<Arc<Trace>>));
        if let Some(wanted) = used.sha256.as_ref().filter(|wanted| **wanted != *found) {
            let reason =
                format!("the trace `{file}` has sha256 {found}, but the plan expects {wanted}");
            return Err(wrong(reason));
        }
        let trace = match trace {
            Some(trace) => trace,
            None => {
                let read = trace::parse(file, content.bytes())
                    .map_err(|error| wrong(format!("the trace `{file}`: {error}")))?;
                trace.insert(Arc::new(read))
            }
        };
        traces.insert(file.clone(), Arc::clone(trace));
    }
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_plan_is_read_beside_the_runtime() {
        let on_thread: ReadTask = |_, _| {
            let reason = std::thread::current().name().unwrap_or_default().to_owned();
            Err(AgentError::Request { field: "plan_toml", reason })
        };
        let error = beside_runtime(Box::default(), Contents::new(), on_thread).await.unwrap_err();
        assert_eq!(error.to_string(), "plan_toml: blocking");
    }
}
