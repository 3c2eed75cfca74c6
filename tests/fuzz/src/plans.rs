//! Fuzzes plans: their text, overrides of their keys, and the request that brings a plan to an agent.

use std::fmt::Display;
use std::str::FromStr;

use ccbench_agent::fuzzing::task_of;
use ccbench_proto::plan::check::{self, CheckedPlan, Severity, Target, TraceFiles};
use ccbench_proto::units::{Bytes, Limit, Micros, Packets, Ppm, Rate};
use ccbench_proto::wire::PrepareRequest;
use ccbench_proto::{resolve, schedule};
use prost::Message as _;

use crate::text;

/// A plan with every key, for overrides.
const EVERY_KEY: &str = include_str!("../../plans/valid/every-key.toml");
/// Points and trials beyond these are not expanded, because a plan may have up to 10 000 points.
const MAX_POINTS: u32 = 64;
const MAX_TRIALS: u32 = 10_000;

/// A plan's text.
pub fn plan(data: &[u8]) {
    if let Some(text) = text(data) {
        read(text, &[]);
    }
}

/// Overrides of a plan, one per line.
pub fn set(data: &[u8]) {
    if let Some(text) = text(data) {
        let sets: Vec<String> = text.lines().take(16).map(str::to_owned).collect();
        read(EVERY_KEY, &sets);
    }
}

/// Reads a plan. A valid plan is written and read back.
fn read(text: &str, sets: &[String]) {
    let _ = (check::trace_files(text, sets), check::cc_files(text, sets));
    let _ = check::quick_sets(text, sets);
    let simulated = check::read_for(Target::Simulator, text, sets, TraceFiles::new());
    match check::read(text, sets) {
        Err(problems) => {
            assert!(simulated.is_err(), "the simulator has rules in addition");
            assert!(problems.iter().any(|problem| problem.severity == Severity::Error));
            for problem in problems {
                assert!(!problem.to_string().is_empty());
            }
        }
        Ok((plan, _)) => {
            let written = resolve::to_toml(&plan);
            let again = check::read(&written, &[]);
            let again = again.unwrap_or_else(|problems| panic!("{problems:?} in {written}")).0;
            assert_eq!(again.plan(), plan.plan());
            assert_eq!(resolve::to_toml(&again), written);
            schedule(&plan);
        }
    }
}

/// Plans every node's part of the first points.
fn schedule(plan: &CheckedPlan) {
    let points = plan.point_count();
    if points.saturating_mul(plan.plan().repeat.at_most()) <= MAX_TRIALS {
        let trials = schedule::trials(plan);
        assert_eq!(trials.len() as u32, points * plan.plan().repeat.at_most());
    }
    if points > MAX_POINTS {
        return;
    }
    for point in plan.points().iter().take(4) {
        let length = schedule::length(&point.plan);
        assert!(schedule::phases(&point.plan).iter().all(|phase| phase.end <= length));
        for node in point.plan.plan().nodes.keys() {
            let task = schedule::task_for(&point.plan, node, &schedule::TrialContext::default());
            assert_eq!(task.length, length);
        }
    }
}

/// Texts of quantities. What is read is written and read back.
pub fn units(data: &[u8]) {
    fn check<T: FromStr + Display + PartialEq + std::fmt::Debug>(text: &str) {
        if let Ok(value) = text.parse::<T>() {
            let again = value.to_string().parse::<T>().ok();
            assert_eq!(again, Some(value));
        }
    }
    if let Some(text) = text(data) {
        check::<Rate>(text);
        check::<Bytes>(text);
        check::<Packets>(text);
        check::<Micros>(text);
        check::<Ppm>(text);
        check::<Limit>(text);
    }
}

/// A request to prepare a trial, as its bytes arrive. A valid plan becomes a task, which does not reach the kernel.
pub fn prepare(data: &[u8]) {
    let Ok(request) = PrepareRequest::decode(data) else { return };
    match task_of(&request) {
        Ok(task) => {
            let used = task.clients.iter().chain(&task.servers);
            assert!(used.clone().all(|flow| flow.start < flow.stop && flow.stop <= task.length));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
