//! The boot before the first trial: describes the nodes and measures the load of the guest's CPU.

use ccbench_proto::plan::check::{CheckedPlan, PlanProblem, Severity, check};
use ccbench_proto::plan::repeat::Repetitions;
use ccbench_proto::schedule::Point;
use ccbench_proto::units::Micros;
use ccbench_proto::wire::lab_message::Payload;
use tokio::sync::mpsc;

use super::boot_directory::BootDirectory;
use super::jobs::GuestResources;
use super::preflight_cache::{Preflight, PreflightCache};
use super::trial;
use super::vm::VmImage;
use crate::backend::error::BackendError;
use crate::console::message;
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;

/// Length of the calibration phase.
const CALIBRATION: Micros = Micros::from_millis(1500);
/// Length of that phase without calibration, when the boot only describes the nodes.
const DESCRIPTION: Micros = Micros::from_millis(100);

/// Seed of the boot.
const SEED: u64 = 1;

/// Boots once, describes every node of this point, and runs a short version of its busiest phase to measure the load. The cache
/// keeps the result if the kernel is deterministic.
///
/// # Errors
/// The virtual machine failed, or the plan cannot run in it.
pub async fn run(
    image: &VmImage,
    experiment: &Experiment,
    point: &Point,
    dilation: Option<u32>,
    interrupt: &mut Interrupt,
) -> Result<Preflight, BackendError> {
    let length = if dilation.is_some() { CALIBRATION } else { DESCRIPTION };
    let short = shortened(&point.plan, length).unwrap_or_else(|reason| {
        message(format_args!("lab: the boot before the first trial runs a whole trial, because the shortened plan is not valid: {reason}"));
        point.plan.clone()
    });
    let task = trial::task(experiment, point, &short, (1, SEED));
    let cache = PreflightCache::new(image, &task, dilation);
    if let Some(result) = cache.as_ref().and_then(PreflightCache::read) {
        return Ok(result);
    }
    let dir = BootDirectory::new()?;
    let vm = image.boot(dir.path(), &task, SEED, dilation, &GuestResources::default())?;
    let (send, mut receive) = mpsc::channel(trial::MAX_QUEUED_MESSAGES);
    let reader = vm.read(send);
    let (mut result, mut failed) = (Preflight::default(), None);
    loop {
        let message = tokio::select! {
            biased;
            () = interrupt.requested() => {
                reader.kill().await;
                return Err(BackendError::Interrupted);
            }
            message = receive.recv() => message,
        };
        let Some(message) = message else { break };
        match message.payload {
            Some(Payload::Node(node)) => {
                result.nodes.insert(node.node, node.info.unwrap_or_default());
            }
            Some(Payload::Failed(failure)) => failed = Some(trial::error(failure, dir.path())),
            Some(Payload::Done(done)) => result.busy_pct = done.busy_pct,
            _ => {}
        }
    }
    reader.ended().await?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if let Some(cache) = cache {
        cache.write(&result);
    }
    Ok(result)
}

/// Why a plan cannot be shortened: the first problem of the shortened plan.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotShortened(String);

/// Returns the plan with one short phase, in which the flows of its busiest phase and those with their own start run. Flows that run
/// only in other phases are left out.
fn shortened(plan: &CheckedPlan, length: Micros) -> Result<CheckedPlan, NotShortened> {
    let mut short = plan.plan().clone();
    let busiest = short.phases.iter().max_by_key(|phase| phase.flows.len()).cloned();
    if let Some(mut phase) = busiest {
        let self_starting = short.flows.iter().filter(|(_, flow)| flow.start.is_some());
        let missing =
            self_starting.map(|(name, _)| name).filter(|name| !phase.flows.contains(name));
        let missing: Vec<String> = missing.cloned().collect();
        phase.flows.extend(missing);
        phase.length = length;
        short.phases = vec![phase];
        short.changes.clear();
        short.expect.clear();
        short.compare.clear();
        // Its rules may be about flows that are left out.
        short.repeat = Repetitions::Times(1);
        short.flows.retain(|name, _| short.phases[0].flows.contains(name));
        // Classes may select packets of flows that are left out.
        for link in short.links.values_mut() {
            link.classes.retain(|_, class| {
                let flow = class.matches.flow.as_ref();
                flow.is_none_or(|flow| short.flows.contains_key(flow))
            });
        }
        for flow in short.flows.values_mut() {
            (flow.start, flow.stop) = (None, None);
        }
        for probe in short.probes.values_mut() {
            probe.start = Micros::default();
        }
    }
    let text = |problem: PlanProblem| format!("{}: {}", problem.path, problem.reason);
    let first = |problems: Vec<PlanProblem>| {
        let error = problems.into_iter().find(|problem| problem.severity == Severity::Error);
        NotShortened(error.map_or(String::new(), text))
    };
    check(short).map(|(plan, _)| plan).map_err(first)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ccbench_proto::plan::parse::parse;
    use ccbench_proto::schedule;

    use super::*;
    use crate::plan_source::PlanSource;

    /// Flows with their own start, late probes, changes and claims about phases do not prolong the calibration.
    #[test]
    fn calibration_is_short() {
        let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
        for name in ["bufferbloat", "l4s/step", "dumbbell/fairness", "dumbbell/responsiveness"] {
            let path = plans.join(name).with_extension("toml");
            let plan = PlanSource::read(&path).unwrap().load_quietly(&[]).unwrap();
            for point in plan.points() {
                for length in [CALIBRATION, DESCRIPTION] {
                    let short = shortened(&point.plan, length).unwrap();
                    assert_eq!(schedule::length(&short), length, "{name} {:?}", point.factors);
                }
                let short = shortened(&point.plan, CALIBRATION).unwrap();
                let flows = short.plan().phases.iter().map(|phase| phase.flows.len()).max();
                assert_eq!(flows, Some(plan.plan().flows.len()), "{name}");
            }
        }
    }

    #[test]
    fn flows_of_other_phases_are_left_out() {
        let text = r#"
            name = "turns"
            nodes = { src = {}, dst = {} }
            wires = { path = ["src", "dst"] }
            flows.first = { from = "src", to = "dst" }
            flows.second = { from = "src", to = "dst" }
            phases = [
                { name = "one", length = "9s", flows = ["first"] },
                { name = "other", length = "9s", flows = ["second"] },
            ]
        "#;
        let (plan, _) = parse(text).and_then(check).unwrap();
        let short = shortened(&plan, CALIBRATION).unwrap();
        assert_eq!((short.plan().flows.len(), schedule::length(&short)), (1, CALIBRATION));
    }
}
