//! Links errors to the sections of the documents that explain them and their remedies, as paths in the source tree and in the
//! book. An error whose message says everything has no section.

use std::collections::BTreeSet;

use ccbench_proto::plan::check::{PlanProblem, Severity};
use ccbench_proto::units::UnitError;
use ccbench_results::{
    ArtifactError, CompareError, ExportError, FigureError, FileError, JournalError, MergeError,
    RecordedError, StoreError,
};
use ccbench_store::{Cause, ObjectError};

use crate::agents::AgentError;
use crate::backend::error::BackendError;
use crate::collect::CollectError;
use crate::commands::submit::error::SubmitError;
use crate::commands::testbed::error::TestbedUsageError;
use crate::error::CliError;
use crate::lab::error::LabError;
use crate::lab::package::error::PackageError;
use crate::pki::PkiError;
use crate::plan_source::PlanSourceError;
use crate::provision::ProvisionError;
use crate::readable_run::ReadableRunError;
use crate::shard::ShardRunError;
use crate::simulator::error::SimulatedTrialError;
use crate::testbed::process::TestbedError;
use crate::view::ViewError;

/// A page, or a section of it: `docs/lab.md#kernels`.
type Section = &'static str;

macro_rules! sections {
    ($($name:ident = $section:literal;)*) => {
        $(const $name: Section = $section;)*
        const SECTIONS: &[Section] = &[$($name),*];
    };
}

sections! {
    ARTIFACTS = "docs/guide.md#artifacts";
    CERTIFICATES = "docs/guide.md#certificates";
    CLUSTER = "docs/cluster.md";
    COMPARING = "docs/results.md#comparing";
    FIGURES = "docs/results.md#figures";
    INTEGRITY = "docs/results.md#integrity";
    JOIN_TOKENS = "docs/guide.md#join-tokens";
    LAB_ENGINES = "docs/lab.md#engines";
    LAB_KERNELS = "docs/lab.md#kernels";
    LAB_MODULES = "docs/lab.md#modules";
    LAB_PACKAGES = "docs/packages.md#lab-kernels";
    MERGING = "docs/cluster.md#merging";
    NODE_RENEWAL = "docs/guide.md#renewal-on-nodes";
    NOT_SIMULATED = "docs/simulator.md#what-is-not-modelled";
    OTHER_TOOLS = "docs/results.md#for-other-tools";
    PLANS = "docs/plan.md";
    QUICK = "docs/plan.md#quick";
    RECORDING = "docs/traces.md#record-a-path";
    REPEATING = "docs/results.md#repeating-trials";
    SET = "docs/plan.md#--set";
    SHARDS = "docs/cluster.md#shards";
    TESTBEDS = "docs/testbeds.md";
    TESTBED_PLANS = "docs/testbeds.md#what-is-taken-from-the-plan";
    TRACE_FORMATS = "docs/traces.md#formats";
    TROUBLESHOOTING = "docs/guide.md#troubleshooting";
    UNITS = "docs/plan.md#units";
    WATCHING = "docs/guide.md#watching-a-run";
    WHERE_TO_RUN = "docs/guide.md#where-to-run";
}

/// The top-level keys of a plan, with the sections that explain what is below them.
const PLAN_KEYS: [(&str, Section); 24] = [
    ("name", "docs/plan.md#the-experiment"),
    ("about", "docs/plan.md#the-experiment"),
    ("gap", "docs/plan.md#the-experiment"),
    ("seed", "docs/plan.md#the-experiment"),
    ("order", "docs/plan.md#the-experiment"),
    ("keep_awake", "docs/plan.md#the-experiment"),
    ("sample", "docs/plan.md#sample"),
    ("lab", "docs/plan.md#lab"),
    ("nodes", "docs/plan.md#nodes"),
    ("wires", "docs/plan.md#wires"),
    ("links", "docs/plan.md#links"),
    ("path", "docs/plan.md#path"),
    ("flows", "docs/plan.md#flows"),
    ("cc", "docs/plan.md#cc"),
    ("probes", "docs/plan.md#probes"),
    ("capture", "docs/plan.md#capture"),
    ("phases", "docs/plan.md#phases"),
    ("changes", "docs/plan.md#changes"),
    ("matrix", "docs/plan.md#matrix"),
    ("design", "docs/plan.md#design"),
    ("expect", "docs/plan.md#expect"),
    ("repeat", "docs/plan.md#repeat"),
    ("compare", "docs/plan.md#compare"),
    ("quick", QUICK),
];

/// Maximum number of sections printed for a plan. If more sections apply, the page is printed instead.
const MAX_PLAN_SECTIONS: usize = 3;

/// Returns every section that an error may name.
pub fn sections() -> impl Iterator<Item = Section> {
    SECTIONS.iter().copied().chain(PLAN_KEYS.map(|(_, section)| section))
}

/// Returns the sections that explain an error.
pub fn of(error: &CliError) -> Vec<Section> {
    let section = match error {
        CliError::Plan(error) => return plan_sections(error),
        CliError::Backend(error) => backend_section(error),
        CliError::Lab(error) => lab_section(error),
        CliError::Shard(error) => shard_section(error),
        CliError::Provision(error) => provision_section(error),
        CliError::Collect(error) => collect_section(error),
        CliError::ReadableRun(error) => readable_run_section(error),
        CliError::Submit(error) => submit_section(error),
        CliError::Testbed(error) => testbed_request_section(error),
        CliError::Results(error) => results_section(error),
        CliError::Pki(error) => pki_section(error),
        CliError::View(error) => view_section(error),
        CliError::Artifact(_)
        | CliError::Compare(_)
        | CliError::Exec(_)
        | CliError::Import(_)
        | CliError::Merge(_)
        | CliError::New(_)
        | CliError::Reference(_)
        | CliError::Record(_)
        | CliError::Reproduce(_)
        | CliError::Reset(_)
        | CliError::Run(_)
        | CliError::Scorecard(_)
        | CliError::Trace(_)
        | CliError::BackendChoice(_)
        | CliError::Terminated
        | CliError::File(_)
        | CliError::StartProgram { .. }
        | CliError::Runtime(_) => None,
    };
    section.into_iter().collect()
}

fn plan_sections(error: &PlanSourceError) -> Vec<Section> {
    match error {
        PlanSourceError::Read { .. } => vec![],
        PlanSourceError::Invalid { problems, in_traces, .. } => {
            let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
            let mut found: BTreeSet<Section> = errors.filter_map(problem_section).collect();
            if found.len() > MAX_PLAN_SECTIONS {
                found = BTreeSet::from([PLANS]);
            }
            found.extend((*in_traces > 0).then_some(TRACE_FORMATS));
            found.into_iter().collect()
        }
        PlanSourceError::NoQuick { .. } => vec![QUICK],
    }
}

fn problem_section(problem: &PlanProblem) -> Option<Section> {
    if problem.path.starts_with("--set") {
        return Some(SET);
    }
    if UnitError::is_in(&problem.reason) {
        return Some(UNITS);
    }
    let key = problem.path.split('.').next()?;
    PLAN_KEYS.iter().find(|(known, _)| *known == key).map(|(_, section)| *section)
}

fn backend_section(error: &BackendError) -> Option<Section> {
    match error {
        BackendError::Interrupted => None,
        BackendError::Agent(error) => agent_section(error),
        BackendError::Testbed(error) => testbed_section(error),
        BackendError::Lab(error) => lab_section(error),
        BackendError::Simulator(error) => simulator_section(error),
        BackendError::Results(error) => results_section(error),
        BackendError::Shard(error) => shard_section(error),
    }
}

fn agent_section(error: &AgentError) -> Option<Section> {
    match error {
        AgentError::Call { .. } | AgentError::Refused { .. } => Some(TROUBLESHOOTING),
        AgentError::NoCertificates { .. } | AgentError::Tls(_) => Some(CERTIFICATES),
        AgentError::PortInUse { .. } | AgentError::Unsupported { .. } => None,
    }
}

fn testbed_section(error: &TestbedError) -> Option<Section> {
    match error {
        TestbedError::Build(_) => Some(WHERE_TO_RUN),
        TestbedError::Start { .. }
        | TestbedError::NoPipes
        | TestbedError::Timeout
        | TestbedError::Ended
        | TestbedError::Read(_)
        | TestbedError::Report { .. }
        | TestbedError::File(_) => None,
    }
}

fn lab_section(error: &LabError) -> Option<Section> {
    match error {
        LabError::Missing { .. } => Some(LAB_KERNELS),
        LabError::Package(error) => package_section(error),
        LabError::NoModules { .. } => Some(LAB_MODULES),
        LabError::OtherImage { .. } => Some(REPEATING),
        LabError::NotDilatable | LabError::NotItsKernel { .. } => Some(LAB_ENGINES),
        LabError::Io { .. }
        | LabError::Build { .. }
        | LabError::Vm { .. }
        | LabError::NoTrial
        | LabError::Reader(_)
        | LabError::Guest { .. }
        | LabError::Unsupported { .. }
        | LabError::NodeWithAgent { .. }
        | LabError::NotOpen { .. } => None,
    }
}

fn package_section(error: &PackageError) -> Option<Section> {
    match error {
        PackageError::NoKernel | PackageError::Unfit { .. } | PackageError::Recipe { .. } => {
            Some(LAB_PACKAGES)
        }
        PackageError::Write { .. } | PackageError::Unpack { .. } | PackageError::Damaged { .. } => {
            None
        }
    }
}

fn simulator_section(error: &SimulatedTrialError) -> Option<Section> {
    match error {
        SimulatedTrialError::Unsupported(_) => Some(NOT_SIMULATED),
        SimulatedTrialError::Failed(_) | SimulatedTrialError::Panicked => None,
    }
}

fn shard_section(error: &ShardRunError) -> Option<Section> {
    match error {
        ShardRunError::Task(_)
        | ShardRunError::OtherPlan { .. }
        | ShardRunError::OtherFile { .. }
        | ShardRunError::OtherBackend { .. } => Some(SHARDS),
        ShardRunError::Store(error) => store_section(error),
        ShardRunError::Results(error) => results_section(error),
        ShardRunError::Scratch { .. } | ShardRunError::Inconsistent { .. } => None,
    }
}

fn collect_section(error: &CollectError) -> Option<Section> {
    match error {
        CollectError::Store(error) => store_section(error),
        CollectError::Results(error) => results_section(error),
        CollectError::File(_) => None,
    }
}

fn readable_run_section(error: &ReadableRunError) -> Option<Section> {
    match error {
        ReadableRunError::Collect(error) => collect_section(error),
        ReadableRunError::Results(error) => results_section(error),
        ReadableRunError::RunCache(_) => Some(CLUSTER),
        ReadableRunError::NoRun { .. }
        | ReadableRunError::Incomplete { .. }
        | ReadableRunError::NotHere { .. }
        | ReadableRunError::File(_)
        | ReadableRunError::Runtime(_) => None,
    }
}

fn submit_section(error: &SubmitError) -> Option<Section> {
    match error {
        SubmitError::NoSlurm { .. }
        | SubmitError::MaybeSubmitted { .. }
        | SubmitError::Outage { .. }
        | SubmitError::NoState { .. }
        | SubmitError::NotRecorded { .. } => Some(CLUSTER),
        SubmitError::SharedAgents
        | SubmitError::FilesOfPods
        | SubmitError::RealTimeInPods
        | SubmitError::OwnProgram(_)
        | SubmitError::Refused { .. } => None,
    }
}

fn testbed_request_section(error: &TestbedUsageError) -> Option<Section> {
    match error {
        TestbedUsageError::Manifest { .. } => Some(TESTBEDS),
        TestbedUsageError::Outside(_) => None,
    }
}

fn store_section(error: &ObjectError) -> Option<Section> {
    match error.cause() {
        Cause::Command => Some(CLUSTER),
        Cause::Environment => None,
    }
}

fn provision_section(error: &ProvisionError) -> Option<Section> {
    match error {
        ProvisionError::Agent(_)
        | ProvisionError::Lab
        | ProvisionError::Varied(_)
        | ProvisionError::Device { .. } => Some(TESTBED_PLANS),
        ProvisionError::NotReserved(_) => Some(TESTBEDS),
        ProvisionError::HostName(..) | ProvisionError::Text(_) => None,
    }
}

/// Ends with a catch-all, because the crate's errors are non-exhaustive and most of them say what to do.
fn results_section(error: &ccbench_results::Error) -> Option<Section> {
    use ccbench_results::Error;
    match error {
        Error::File(error) => file_section(error),
        Error::Journal(error) => journal_section(error),
        Error::Store(error) => results_directory_section(error),
        Error::Artifact(error) => artifact_section(error),
        Error::Compare(CompareError::Unpaired { .. }) => Some(COMPARING),
        Error::Figure(FigureError::NoData { .. }) => Some(FIGURES),
        Error::Export(ExportError::NoData { .. }) => Some(OTHER_TOOLS),
        Error::Merge(
            MergeError::NoSession | MergeError::OtherPlan { .. } | MergeError::OtherBackend { .. },
        ) => Some(MERGING),
        Error::Recorded(RecordedError::NoRows { .. }) => Some(RECORDING),
        _ => None,
    }
}

fn file_section(error: &FileError) -> Option<Section> {
    match error {
        FileError::Damaged { .. } => Some(INTEGRITY),
        _ => None,
    }
}

fn journal_section(error: &JournalError) -> Option<Section> {
    match error {
        JournalError::File(error) => file_section(error),
        JournalError::Damaged { .. } => Some(INTEGRITY),
        JournalError::Moved { .. } => Some(TROUBLESHOOTING),
        _ => None,
    }
}

fn results_directory_section(error: &StoreError) -> Option<Section> {
    match error {
        StoreError::File(error) => file_section(error),
        StoreError::Journal(error) => journal_section(error),
        StoreError::OtherPlan { .. } => Some(REPEATING),
        StoreError::Damaged { .. }
        | StoreError::OtherFile { .. }
        | StoreError::LostTrial { .. } => Some(INTEGRITY),
        _ => None,
    }
}

fn artifact_section(error: &ArtifactError) -> Option<Section> {
    match error {
        ArtifactError::File(error) => file_section(error),
        ArtifactError::Store(error) => results_directory_section(error),
        ArtifactError::NotAnArtifact { .. }
        | ArtifactError::Unfit { .. }
        | ArtifactError::NoRerun { .. } => Some(ARTIFACTS),
        _ => None,
    }
}

fn pki_section(error: &PkiError) -> Option<Section> {
    match error {
        PkiError::Issued(_)
        | PkiError::Foreign(_)
        | PkiError::Authority(_)
        | PkiError::OtherUsage(_)
        | PkiError::OtherKey(_)
        | PkiError::Revoked(_) => Some(CERTIFICATES),
        PkiError::Validity => Some(JOIN_TOKENS),
        PkiError::KeyOnNode(_) | PkiError::ManyRenewals(_) => Some(NODE_RENEWAL),
        PkiError::Exists(_)
        | PkiError::InvalidName(_)
        | PkiError::NoName
        | PkiError::Unreadable { .. }
        | PkiError::Key { .. }
        | PkiError::Damaged { .. }
        | PkiError::Service { .. }
        | PkiError::Certificate(_)
        | PkiError::File(_) => None,
    }
}

fn view_section(error: &ViewError) -> Option<Section> {
    match error {
        ViewError::NotRunning(_) | ViewError::Elsewhere(_) | ViewError::NothingRuns => {
            Some(WATCHING)
        }
        ViewError::Several(_) | ViewError::NoTerminal(_) | ViewError::Io { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use ccbench_proto::plan::check;

    use super::*;
    use crate::commands::run::error::RunUsageError;
    use crate::exit::ExitCode;
    use crate::run_cache::RunCacheError;

    fn source(path: &str) -> String {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        std::fs::read_to_string(root.join(path)).unwrap()
    }

    fn invalid(plan: &str) -> Vec<Section> {
        let Err(problems) = check::read(plan, &[]) else { panic!("the plan is valid") };
        let path = PathBuf::from("plan.toml");
        plan_sections(&PlanSourceError::Invalid { path, problems, in_traces: 0 })
    }

    #[test]
    fn every_key_of_a_plan_has_a_section() {
        let plan: toml_edit::DocumentMut =
            source("tests/plans/valid/every-key.toml").parse().unwrap();
        let manual = source("docs/plan.md");
        let tables =
            manual.lines().filter_map(|line| line.strip_prefix("## `[")?.split(']').next());
        let tables: Vec<&str> = tables.map(|table| table.trim_start_matches('[')).collect();
        assert!(tables.len() > 15, "{tables:?}");
        for key in plan.iter().map(|(key, _)| key).chain(tables) {
            assert!(PLAN_KEYS.iter().any(|(known, _)| *known == key), "{key}");
        }
    }

    #[test]
    fn errors_of_a_plan_name_their_tables() {
        let plan =
            source("plans/quickstart.toml").replace("\"bbr\"", "\"a name that is too long\"");
        assert_eq!(invalid(&plan), ["docs/plan.md#flows"]);
        assert_eq!(invalid("not TOML"), [] as [Section; 0]);
        let rate = |value: &str| {
            let plan = source("plans/quickstart.toml").replace("\"100mbit\"", value);
            invalid(&plan)
        };
        assert_eq!(rate("\"20M\""), [UNITS]);
        assert_eq!(rate("20"), [UNITS]);
        // An empty plan lacks keys of many tables.
        assert_eq!(invalid(""), [PLANS]);
    }

    #[test]
    fn a_missing_kernel_leads_to_its_section_and_a_complete_message_to_none() {
        let (what, hint) = ("a kernel".to_owned(), "run `ccbench lab build`".to_owned());
        let missing = LabError::Missing { what, hint };
        assert_eq!(of(&BackendError::from(missing).into()), [LAB_KERNELS]);
        assert!(of(&RunUsageError::NothingToRun.into()).is_empty());
    }

    #[test]
    fn errors_of_schedulers_and_of_the_run_cache_lead_to_the_page_about_clusters() {
        let section_and_code = |error: CliError| (of(&error), error.exit_code());
        let reason = "no partition".to_owned();
        let no_slurm = SubmitError::NoSlurm { reason: reason.clone() };
        assert_eq!(section_and_code(no_slurm.into()), (vec![CLUSTER], ExitCode::Unavailable));
        let refused = SubmitError::Refused { reason };
        assert_eq!(section_and_code(refused.into()), (vec![], ExitCode::Usage));
        let limit = ReadableRunError::from(RunCacheError::Limit("many".to_owned()));
        assert_eq!(section_and_code(limit.into()), (vec![CLUSTER], ExitCode::Usage));
    }
}
