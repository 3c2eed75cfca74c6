//! Chooses the lab's engine when neither the plan nor the command line names one.

use std::collections::BTreeSet;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::{Engine, Plan, Series};

use super::{kernel, qemu, uml, userland};
use crate::plan_source::PlanSource;

/// The engine of points that name none in a plan in which others do, and of runs of earlier versions. It runs every plan.
pub const DEFAULT_ENGINE: Engine = Engine::Qemu;

/// Command-line options on which the choice depends.
#[derive(Debug, Clone, Copy, Default)]
pub struct LabRequest {
    /// `--lab`.
    pub lab: bool,
    /// `--kernel`.
    pub kernel: Option<Series>,
    /// `--dilation`.
    pub dilation: Option<u32>,
}

/// The chosen engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineChoice {
    /// The engine.
    pub engine: Engine,
    /// Why it is not uml, unless the user asked for something that only qemu has.
    pub note: Option<String>,
}

/// What the choice depends on.
#[derive(Debug, Clone, Default)]
struct Facts {
    /// The kernels of all points.
    kernels: BTreeSet<Series>,
    has_dilation: bool,
    /// Whether the plan names agents, which no engine supports.
    has_agents: bool,
    /// What uml needs but this machine lacks.
    missing_requirement: Option<String>,
    /// Why uml cannot run the plan.
    plan_error: Option<String>,
    /// Engines that are installed with their kernel `own`.
    installed: Vec<Engine>,
}

/// Returns the engine for a valid plan with the overrides `sets`. `None` if the plan does not run in the lab or names engines
/// itself.
pub fn choose_for(
    plan: &CheckedPlan,
    source: &PlanSource,
    sets: &[String],
    request: LabRequest,
) -> Option<EngineChoice> {
    let points = plan.points();
    let plans = || points.iter().map(|point| point.plan.plan());
    let in_lab = request.lab || plans().any(Plan::in_lab);
    if !in_lab || plans().any(|plan| plan.lab.engine.is_some()) {
        return None;
    }
    let on_uml = [sets, &[as_override(Engine::Uml)]].concat();
    let unnamed = request.kernel.unwrap_or_default();
    Some(choose(&Facts {
        kernels: plans().map(|plan| plan.kernel().unwrap_or(unnamed)).collect(),
        has_dilation: request.dilation.is_some(),
        has_agents: plan.plan().nodes.values().any(|node| node.agent.is_some()),
        missing_requirement: uml::missing_requirement(),
        plan_error: source.first_error(&on_uml),
        installed: [Engine::Uml, Engine::Qemu].into_iter().filter(|e| is_installed(*e)).collect(),
    }))
}

/// Chooses uml unless the user asks for something that only qemu has, or uml cannot run here.
fn choose(facts: &Facts) -> EngineChoice {
    let for_uml = facts.kernels.iter().all(|series| Engine::Uml.runs(*series));
    if facts.has_dilation || facts.has_agents || !for_uml {
        return EngineChoice { engine: Engine::Qemu, note: None };
    }
    // If neither is installed, choose uml, so that the error names the command that builds its kernel.
    let only_qemu = facts.installed == [Engine::Qemu];
    let not_built =
        || format!("its kernel is not built: {}", kernel::hint(Engine::Uml, Series::Own));
    let lacks = facts.missing_requirement.as_ref().map(|what| format!("it needs {what}"));
    let why = lacks.or_else(|| facts.plan_error.clone()).or_else(|| only_qemu.then(not_built));
    match why {
        None => EngineChoice { engine: Engine::Uml, note: None },
        Some(why) => EngineChoice {
            engine: Engine::Qemu,
            note: Some(format!("the lab uses the engine qemu instead of uml: {why}")),
        },
    }
}

impl EngineChoice {
    /// Returns whether the engine becomes part of the plan, so that a run of the resolved plan uses the same engine elsewhere. A
    /// dilation and stock kernels select qemu anyway.
    pub fn is_override(&self) -> bool {
        self.engine == Engine::Uml || self.note.is_some()
    }
}

/// Returns the plan override that selects an engine.
pub fn as_override(engine: Engine) -> String {
    format!("lab.engine={engine}")
}

/// Returns the engines that can run here and whose kernel `own` is built, the faster one first.
pub fn usable() -> Vec<Engine> {
    let can_run = |engine: &Engine| *engine == Engine::Qemu || uml::missing_requirement().is_none();
    [Engine::Uml, Engine::Qemu].into_iter().filter(|e| is_installed(*e) && can_run(e)).collect()
}

/// Returns whether an engine and its kernel `own` are installed. Does not start QEMU, because runs on other engines and in
/// namespaces ask this, too.
fn is_installed(engine: Engine) -> bool {
    let has_emulator = engine == Engine::Uml || userland::find(qemu::QEMU).is_some();
    has_emulator && kernel::find(engine, Series::Own).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Engine; 2] = [Engine::Uml, Engine::Qemu];

    /// Returns the kernel `own`, no obstacles in the plan or on the machine, and both engines installed.
    fn good() -> Facts {
        Facts { kernels: [Series::Own].into(), installed: BOTH.to_vec(), ..Facts::default() }
    }

    #[test]
    fn uml_is_chosen_where_it_can_run() {
        for installed in [&BOTH[..], &[Engine::Uml], &[]] {
            let choice = choose(&Facts { installed: installed.to_vec(), ..good() });
            assert_eq!(choice, EngineChoice { engine: Engine::Uml, note: None }, "{installed:?}");
            assert!(choice.is_override());
        }
    }

    #[test]
    fn what_only_qemu_has_selects_it_without_a_note() {
        let stock = *Series::ALL.iter().find(|series| **series != Series::Own).unwrap();
        // No other reason is given, because the user has decided.
        let bad = Facts { missing_requirement: Some("x".to_owned()), ..good() };
        for facts in [
            Facts { has_dilation: true, ..good() },
            Facts { has_dilation: true, ..bad.clone() },
            Facts { kernels: [stock].into(), ..good() },
            Facts { kernels: [Series::Own, stock].into(), ..bad },
            Facts { has_agents: true, ..good() },
        ] {
            let choice = choose(&facts);
            assert_eq!(choice, EngineChoice { engine: Engine::Qemu, note: None }, "{facts:?}");
            assert!(!choice.is_override());
        }
    }

    #[test]
    fn a_note_says_why_uml_is_not_used() {
        let machine = Facts { missing_requirement: Some("an x86-64 machine".to_owned()), ..good() };
        let plan = Facts { plan_error: Some("keep_awake: leave it out".to_owned()), ..good() };
        let kernel = Facts { installed: vec![Engine::Qemu], ..good() };
        let both =
            Facts { missing_requirement: machine.missing_requirement.clone(), ..plan.clone() };
        for (facts, why) in [
            (machine, "it needs an x86-64 machine"),
            (plan, "keep_awake: leave it out"),
            (kernel, "its kernel is not built: run `ccbench lab build --engine uml`"),
            (both, "it needs an x86-64 machine"),
        ] {
            let choice = choose(&facts);
            let note = choice.note.as_deref().unwrap_or_default();
            let start = format!("the lab uses the engine qemu instead of uml: {why}");
            assert!(choice.engine == Engine::Qemu && note.starts_with(&start), "{facts:?}: {note}");
            assert!(choice.is_override());
        }
    }

    /// Tests the path from a plan's text to the choice, whatever this machine has and lacks.
    #[test]
    fn plans_that_decide_themselves_need_no_choice() {
        let text = |more: &str| {
            format!(
                "name = \"p\"\n{more}[nodes]\na = {{}}\nb = {{}}\n[wires]\nw = [\"a\", \"b\"]\n[flows.f]\nfrom = \"a\"\nto = \"b\"\n\
                 [[phases]]\nname = \"p\"\nlength = \"1s\"\nflows = [\"f\"]\n"
            )
        };
        let chosen = |more: &str, request: LabRequest| {
            let source = PlanSource::embedded("plan.toml", &text(more), &[]);
            let plan = source.load_quietly(&[]).unwrap();
            choose_for(&plan, &source, &[], request)
        };
        let lab = LabRequest { lab: true, ..LabRequest::default() };
        assert_eq!(chosen("", LabRequest::default()), None, "not in the lab");
        assert_eq!(chosen("lab.engine = \"qemu\"\n", lab), None, "the plan names it");
        let qemu = Some(EngineChoice { engine: Engine::Qemu, note: None });
        assert_eq!(chosen("", LabRequest { dilation: Some(5), ..lab }), qemu);
        assert_eq!(chosen("lab.kernel = \"6.1\"\n", LabRequest::default()), qemu);
        assert_eq!(chosen("", LabRequest { kernel: "6.1".parse().ok(), ..lab }), qemu);
        // Its flow has no limit, which uml's infinitely fast CPU needs.
        let unlimited = chosen("lab.kernel = \"own\"\n", LabRequest::default()).unwrap();
        assert!(unlimited.engine == Engine::Qemu && unlimited.note.is_some(), "{unlimited:?}");
    }
}
