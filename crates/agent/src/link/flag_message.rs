//! Names flags in the messages about the plan that the flags make.

use ccbench_proto::plan::check::{PlanProblem, Severity};

use super::args::{Args, DOWN, UP};
use super::error::LinkError;

fn has_queue(problem: &PlanProblem) -> bool {
    problem.path.starts_with("links.") && problem.path.contains(".queue")
}

/// Whether a problem concerns a queue whose limit a flag sets.
pub(super) fn is_of_queue(problem: &PlanProblem, args: &Args) -> bool {
    has_queue(problem) && is_set(problem, args.down.queue.is_some(), args.up.queue.is_some())
}

/// Whether a problem concerns a queue that no flag sets.
fn is_of_default(problem: &PlanProblem, args: &Args) -> bool {
    let down = args.down.queue.is_some() || args.down.aqm.is_some();
    let up = args.up.queue.is_some() || args.up.aqm.is_some();
    has_queue(problem) && !is_set(problem, down, up)
}

/// Whether flags of these directions set the link of a problem. Up inherits from down.
fn is_set(problem: &PlanProblem, down: bool, up: bool) -> bool {
    down || up && problem.path.starts_with("links.up.")
}

/// Returns the error for the problems of a plan.
pub(super) fn refused(problems: &[PlanProblem], args: &Args) -> LinkError {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
    let mut errors: Vec<&PlanProblem> = errors.collect();
    // A default queue follows from other flags, whose problems are reported.
    if !errors.iter().all(|error| is_of_default(error, args)) {
        errors.retain(|error| !is_of_default(error, args));
    }
    errors.sort_by(|a, b| a.path.cmp(&b.path));
    let errors = errors.into_iter();
    let mut problems: Vec<String> = errors.map(|error| flag_message(error, args)).collect();
    problems.dedup();
    LinkError::Plan { problems }
}

/// Formats a problem of the plan with its flag in place of its key: `links.up.delay` is `--up-delay`.
pub(super) fn flag_message(problem: &PlanProblem, args: &Args) -> String {
    let path = problem.path.replace(['"', '\''], "");
    let mut parts = path.split('.').skip(1);
    let flag = match parts.next() {
        Some(DOWN) => "--",
        Some(UP) => "--up-",
        _ => return problem.to_string(),
    };
    let (name, rest) = match parts.next() {
        Some("queue") => ("aqm", parts.next().filter(|key| *key != "limit")),
        Some("trace") => match parts.next() {
            Some("on_end") => ("on-end", None),
            Some("floor") => ("floor", None),
            _ => ("trace", None),
        },
        Some("burst_loss") => ("burst-loss", parts.next()),
        Some("ecn_rewrite") => ("ecn-rewrite", parts.next()),
        Some("ack_filter") => ("ack-filter", None),
        Some("ack_aggregation") => ("ack-aggregation", parts.next()),
        Some(key @ ("policer" | "slot" | "tbf")) => (key, parts.next()),
        Some("packet_log") => ("packet-log-limit", None),
        Some("gso") => ("no-gso", None),
        Some(key @ ("reorder" | "jitter")) => (key, parts.next().filter(|key| *key != "share")),
        Some(key) => (key, None),
        None => ("rate", None),
    };
    let name = if name == "aqm" && rest.is_none() { "queue" } else { name };
    let direction = flag;
    let flag = if matches!(name, "overhead" | "packet-log-limit" | "no-gso" | "backend") {
        "--"
    } else {
        flag
    };
    // The kind of a queue has no key on the command line.
    let rest = rest.filter(|key| *key != "kind").map_or(String::new(), |key| format!(" {key}"));
    // Only a link at one interface can use qdiscs.
    let backend = if args.dev.is_some() { "write --backend kernel" } else { "use --dev" };
    let reason = problem
        .reason
        .replace("write `backend = \"kernel\"`", backend)
        .replace("`backend`", "--backend")
        .replace("this key", "this flag")
        .replace("the link's `rate`", &format!("{direction}rate"))
        .replace("`floor`", &format!("{direction}floor"))
        .replace("`on_end`", &format!("{direction}on-end"));
    format!("{flag}{name}:{rest} {reason}")
}
