//! `ccbench scorecard`: measures a congestion control by the criteria of RFC 9743 and prints the result as one table.

use std::path::Path;

use ccbench_results::scorecard::{BASELINE, NAME_PREFIX};
use ccbench_results::store::RunDir;

use self::error::ScorecardUsageError;
use crate::args::RunArgs;
use crate::args::new::NewCc;
use crate::args::scorecard::ScorecardArgs;
use crate::commands::check::size;
use crate::commands::run::{self, Tables};
use crate::console::print;
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::plan_source::PlanSource;
use crate::runtime::block_on;
use crate::trace_files::Embedded;

pub mod error;

/// Embeds a file below `plans/scorecard`.
macro_rules! embedded_file {
    ($include:ident, $file:literal) => {
        $include!(concat!("../../../../plans/scorecard/", $file))
    };
}

/// The plan's path in the repository.
const PATH: &str = "plans/scorecard/rfc9743.toml";
const PLAN: &str = embedded_file!(include_str, "rfc9743.toml");
/// The plan's trace files, by the name in the plan.
const TRACES: Embedded = &[
    ("traces/heavy-loss.csv", embedded_file!(include_bytes, "traces/heavy-loss.csv")),
    ("traces/outage.csv", embedded_file!(include_bytes, "traces/outage.csv")),
    ("traces/rate-drop.csv", embedded_file!(include_bytes, "traces/rate-drop.csv")),
    ("traces/rate-rise.csv", embedded_file!(include_bytes, "traces/rate-rise.csv")),
    ("traces/reroute.csv", embedded_file!(include_bytes, "traces/reroute.csv")),
    ("traces/wireless.csv", embedded_file!(include_bytes, "traces/wireless.csv")),
];

/// Longest part of a plan's name that comes from a file's.
const MAX_NAME: usize = 40;
/// The key in the plan's matrix of the congestion control under test.
const TESTED: &str = "matrix.cc.tested.\"cc.scored\"";
/// The level that contains this key. `check` warns there if it equals the baseline.
const TESTED_LEVEL: &str = "matrix.cc.tested";

/// Runs the plan for a congestion control, or continues a run of it, and prints the table.
///
/// # Errors
/// The name cannot be that of a congestion control, the directory has no scorecard, or the run failed.
pub fn run(args: ScorecardArgs) -> Result<ExitCode, CliError> {
    let ScorecardArgs { cc, sets, resume, options } = args;
    let (source, sets) = match (&resume, &cc) {
        (Some(dir), _) => (resumed(dir)?, Vec::new()),
        (None, Some(cc)) => (embedded(), overrides(cc, &sets)?),
        (None, None) => return Err(ScorecardUsageError::NothingToRun.into()),
    };
    let source = source.for_backend(options.lab, options.sim);
    let source = source.with_reason_at(TESTED_LEVEL, same_as_baseline());
    if let Some(cc) = cc.filter(|_| !options.json) {
        let plan = source.load_quietly(&source.sets(&sets, options.quick)?)?;
        print(&format!("{cc}: the criteria of RFC 9743, beside {BASELINE}\n{}\n", size(&plan)));
    }
    let args = RunArgs { sets, resume, ..RunArgs::from_options(options) };
    let completed = block_on(run::run_plan(&args, source))?;
    Ok(run::conclude(&args, completed, Tables::Scorecard)?.exit_code)
}

fn embedded() -> PlanSource {
    PlanSource::embedded(PATH, PLAN, TRACES)
}

/// Returns the text for two equal levels. They are not a mistake: they show how much a machine's rows vary by chance.
fn same_as_baseline() -> String {
    format!(
        "is the baseline, {BASELINE}, with the same parameters: the two columns differ by chance, and not at all in the lab and the simulator; \
         name another congestion control, or add what distinguishes it: --set cc.{BASELINE}.params.NAME=VALUE"
    )
}

/// Reads the plan of a results directory.
fn resumed(dir: &Path) -> Result<PlanSource, CliError> {
    let run = RunDir::open(dir)?;
    let is_scorecard = run.plan().is_some_and(|plan| plan.plan().name.starts_with(NAME_PREFIX));
    if !is_scorecard {
        return Err(ScorecardUsageError::OtherPlan(dir.to_owned()).into());
    }
    Ok(PlanSource::read(&dir.join("plan.resolved.toml"))?)
}

/// Returns the overrides for the congestion control under test, followed by those of the command line.
fn overrides(cc: &str, sets: &[String]) -> Result<Vec<String>, ScorecardUsageError> {
    let NewCc { name: cc, file } = cc.parse::<NewCc>()?;
    let own = format!("cc.{cc}.");
    let is_file = |set: &String| set.strip_prefix(&own).is_some_and(|key| key.starts_with("file="));
    // A file already contains the algorithm.
    let instance = match file {
        Some((key, path)) => {
            let path = toml_edit::Value::from(&*path.to_string_lossy());
            format!("{{ {key} = {path} }}")
        }
        None if sets.iter().any(is_file) => "{}".to_owned(),
        None => format!("{{ algorithm = \"{cc}\" }}"),
    };
    // Plan names have no dots.
    let name: String = cc.replace('.', "_").chars().take(MAX_NAME).collect();
    let name = format!("name={NAME_PREFIX}{name}");
    let of_command_line = sets.iter().map(|set| match set.strip_prefix(&own) {
        Some(key) => format!("{TESTED}.{key}"),
        None => set.clone(),
    });
    let instance = std::iter::once(format!("{TESTED}={instance}"));
    Ok(instance.chain(of_command_line).chain([name]).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ccbench_proto::metric::Scope;
    use ccbench_proto::plan::check;
    use ccbench_proto::plan::{Plan, Via};
    use ccbench_results::scorecard::{CRITERIA, PHASE};

    use super::*;

    /// Returns the plans of the scenarios with the congestion control under test.
    fn scenarios(cc: &str, sets: &[&str], sim: bool) -> Vec<(String, Plan)> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let sets = overrides(cc, &sets).unwrap();
        let source = embedded().for_backend(false, sim);
        let plan = source.load(&sets).unwrap_or_else(|error| panic!("{cc}: {error}")).plan;
        assert_eq!(plan.plan().name, format!("scorecard-{cc}"));
        let level = |factors: &[(String, String)], name: &str| {
            factors.iter().find(|(factor, _)| factor == name).unwrap().1.clone()
        };
        let mut scenarios = Vec::new();
        for point in plan.points() {
            if level(&point.factors, "cc") == "tested" {
                scenarios.push((level(&point.factors, "scenario"), point.plan.plan().clone()));
            }
        }
        scenarios
    }

    #[test]
    fn plan_is_valid_for_every_kind_of_congestion_control() {
        for cc in ["cubic", "reno", "bbr", "bbr3", "prague", "dctcp", "vegas", "ta"] {
            for sim in [false, true] {
                let scenarios = scenarios(cc, &[], sim);
                assert_eq!(scenarios.len(), 29, "{cc}");
                let is_set = |plan: &Plan| plan.cc["scored"].algorithm == cc;
                assert!(scenarios.iter().all(|(_, plan)| is_set(plan)), "{cc}");
            }
        }
        assert!(overrides("../x", &[]).is_err());
        let source = embedded();
        let quick = source.sets(&overrides("cubic", &[]).unwrap(), true).unwrap();
        assert_eq!(source.load(&quick).unwrap().plan.plan().repeat.at_most(), 2);
    }

    #[test]
    fn plan_has_no_warnings() {
        let (_, warnings) = check::read(PLAN, &overrides("bbr3", &[]).unwrap()).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn a_congestion_control_that_is_the_baseline_has_one_warning() {
        let sets = overrides(BASELINE, &[]).unwrap();
        let (_, warnings) = check::read(PLAN, &sets).unwrap();
        let keys: Vec<&str> = warnings.iter().map(|warning| warning.path.as_str()).collect();
        assert_eq!(keys, [TESTED_LEVEL], "{warnings:?}");
    }

    #[test]
    fn keys_of_the_congestion_control_are_those_of_the_instance_under_test() {
        let sets = ["cc.vegas.via=builtin", "repeat=3"];
        for (scenario, plan) in scenarios("vegas", &sets, false) {
            assert_eq!(plan.cc["scored"].via, Via::Builtin, "{scenario}");
        }
        let sets = ["cc.bbr3.params.ecn_enable=1".to_owned(), "cc.other.via=bpf".to_owned()];
        let found = overrides("bbr3", &sets).unwrap();
        assert_eq!(
            found,
            [
                "matrix.cc.tested.\"cc.scored\"={ algorithm = \"bbr3\" }",
                "matrix.cc.tested.\"cc.scored\".params.ecn_enable=1",
                "cc.other.via=bpf",
                "name=scorecard-bbr3",
            ]
        );
        let found = overrides("mine", &["cc.mine.file=mine.bpf.o".to_owned()]).unwrap();
        assert_eq!(found[0], "matrix.cc.tested.\"cc.scored\"={}");
        assert_eq!(found[1], "matrix.cc.tested.\"cc.scored\".file=mine.bpf.o");
        let found = overrides("a/mine.bpf.o", &["cc.mine.params.gain=1".to_owned()]).unwrap();
        assert_eq!(
            found,
            [
                "matrix.cc.tested.\"cc.scored\"={ file = \"a/mine.bpf.o\" }",
                "matrix.cc.tested.\"cc.scored\".params.gain=1",
                "name=scorecard-mine",
            ]
        );
        let source = overrides("mine.bpf.c", &[]).unwrap_err().to_string();
        assert!(source.contains("is a source file; compile it first"), "{source}");
    }

    #[test]
    fn files_of_the_user_are_in_the_working_directory() {
        // Tests run in the directory of their package. Its manifest exists, but is not a BPF object.
        let sets = overrides("mine", &["cc.mine.file=Cargo.toml".to_owned()]).unwrap();
        let error = embedded().first_error(&sets).unwrap();
        assert!(!error.contains("there is no such file"), "{error}");
    }

    #[test]
    fn measures_are_about_subjects_of_their_scenarios() {
        let scenarios = scenarios("bbr3", &[], true);
        let measures = || CRITERIA.iter().flat_map(|criterion| criterion.measures);
        for measure in measures() {
            let found = scenarios.iter().find(|(name, _)| name == measure.scenario);
            let (name, plan) =
                found.unwrap_or_else(|| panic!("there is no scenario `{}`", measure.scenario));
            let is_there = match measure.scope {
                Scope::Net => true,
                Scope::Group => plan.flows.contains_key(measure.subject),
                Scope::Probe => plan.probes.contains_key(measure.subject),
                Scope::Link => plan.links.contains_key(measure.subject),
                Scope::Flow => false,
            };
            assert!(is_there, "{name} has no {}", measure.subject);
            assert!(plan.phases.iter().any(|phase| phase.measure && phase.name == PHASE));
        }
        for (name, _) in &scenarios {
            assert!(measures().any(|measure| measure.scenario == name), "{name} is not used");
        }
    }

    #[test]
    fn embedded_traces_are_those_of_the_plan() {
        let embedded: BTreeSet<String> =
            TRACES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(check::trace_files(PLAN, &[]), embedded);
    }
}
