//! `ccbench artifact`: packs a run for reviewers, and reruns it from such an artifact.

use std::collections::BTreeMap;
use std::path::Path;

use ccbench_proto::plan::Series;
use ccbench_results::artifact::{self, Agreement, Artifact, Limits, Packed, Reproduction};
use ccbench_results::backend::{DilationSource, RunBackend};

use self::error::ArtifactUsageError;
use crate::args::artifact::{ArtifactCommand, ArtifactRerunArgs};
use crate::args::{RunArgs, RunOptions};
use crate::commands::run::{self, Tables};
use crate::console::print;
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::file::is_missing;
use crate::interrupt::EndsProcess;
use crate::plan_source::PlanSource;
use crate::readable_run::ReadableRun;
use crate::runtime::block_on;

pub mod error;

/// Runs one of the sub-commands.
///
/// # Errors
/// The run or the archive cannot be used, or the rerun failed.
pub fn run(command: ArtifactCommand) -> Result<ExitCode, CliError> {
    match command {
        ArtifactCommand::Pack { run, output } => pack(&run, &output),
        ArtifactCommand::Rerun(args) => rerun(args),
        ArtifactCommand::Claim { directory, number } => claim(&directory, number),
    }
}

fn pack(run: &Path, output: &Path) -> Result<ExitCode, CliError> {
    let run = ReadableRun::open(run)?;
    run.complete()?;
    let Packed { files, bytes, claims } = artifact::pack(run.path(), output)?;
    let claims = if claims == 1 { "1 claim".to_owned() } else { format!("{claims} claims") };
    print(&format!("{}: {files} files with {bytes} bytes, {claims}\n", output.display()));
    Ok(ExitCode::Success)
}

fn rerun(args: ArtifactRerunArgs) -> Result<ExitCode, CliError> {
    let limits = Limits { max_bytes: u64::from(args.max_gib) << 30, ..Limits::default() };
    let dir = artifact::unpack(&args.file, &args.directory, limits)?;
    let done = rerun_unpacked(args, &dir);
    if done.is_err() {
        remove_unless_begun(&dir);
    }
    done
}

/// Removes the directory of a rerun of which no trial has run yet, so that the same command can be given again.
fn remove_unless_begun(dir: &Path) {
    if is_missing(&dir.join(artifact::RERUN)) {
        // The caller reports the error that ended the rerun.
        let _ = std::fs::remove_dir_all(dir);
    }
}

fn rerun_unpacked(args: ArtifactRerunArgs, dir: &Path) -> Result<ExitCode, CliError> {
    let artifact = Artifact::open(dir)?;
    print(&format!("{}: unpacked; every file with a digest is intact\n", dir.display()));
    let backend = artifact.run().backend();
    let in_lab = matches!(backend, RunBackend::Lab { .. });
    let simulated = matches!(backend, RunBackend::Simulator { .. });
    let source = PlanSource::read(&artifact.plan())?.for_backend(in_lab, simulated);
    let run_args = RunArgs::from_options(options(args, &artifact, &source)?);
    let completed = block_on(run::run_plan(&run_args, source))?;
    let results = completed.path().to_path_buf();
    // Ignores the exit code, which is about the claims alone: a claim that does not hold may also be the artifact's result.
    run::conclude(&run_args, completed, Tables::Claims)?;
    // It reads both runs, which may take long.
    let _ends = EndsProcess::start();
    let comparison = artifact::compare(&artifact, &results)?;
    print(&artifact::text(&comparison));
    Ok(code_of_rerun(comparison.reproduction()))
}

fn claim(directory: &Path, number: usize) -> Result<ExitCode, CliError> {
    let item = artifact::compare_claim(&Artifact::open(directory)?, number)?;
    print(&item.line());
    Ok(code_of_claim(item.agreement))
}

const fn code_of_rerun(reproduction: Reproduction) -> ExitCode {
    match reproduction {
        // What is not measured does not change the exit code of a run either.
        Reproduction::Reproduced | Reproduction::NotCompared => ExitCode::Success,
        Reproduction::NotReproduced => ExitCode::ClaimRefuted,
    }
}

const fn code_of_claim(agreement: Agreement) -> ExitCode {
    match agreement {
        Agreement::Agrees | Agreement::NotCompared => ExitCode::Success,
        Agreement::Differs => ExitCode::ClaimRefuted,
    }
}

/// Returns the options that repeat the artifact's run: its backend, and the kernel and dilation, which the resolved plan does not
/// contain.
fn options(
    args: ArtifactRerunArgs,
    artifact: &Artifact,
    source: &PlanSource,
) -> Result<RunOptions, CliError> {
    let backend = artifact.run().backend();
    let plan = source.load_quietly(&[])?;
    if backend == RunBackend::Testbed
        && let Some((cc, sha256)) = first_not_allowed(&plan.cc_digests(), &args.allow_cc_digest)
    {
        let (cc, sha256) = (cc.clone(), sha256.clone());
        return Err(ArtifactUsageError::CcNotAllowed { file: args.file, cc, sha256 }.into());
    }
    let points = plan.points();
    let mut nodes = points.iter().flat_map(|point| point.plan.plan().nodes.values());
    if let Some(agent) = nodes.find_map(|node| node.agent.as_ref())
        && !args.agents
    {
        let agent = agent.clone();
        return Err(ArtifactUsageError::AgentsNotAllowed { file: args.file, agent }.into());
    }
    let plan_names_kernels = points.iter().any(|point| point.plan.plan().kernel().is_some());
    let (kernel, dilation) = kernel_and_dilation(&backend);
    Ok(RunOptions {
        quick: false,
        out: artifact.rerun_parent(),
        json: false,
        view: None,
        strict: false,
        // Every trial is compared.
        keep_going: true,
        await_nodes: None,
        await_reboot: None,
        rootless: args.rootless || artifact.was_rootless(),
        lab: matches!(backend, RunBackend::Lab { .. }),
        engine: None,
        kernel: kernel.filter(|_| !plan_names_kernels),
        dilation,
        sim: matches!(backend, RunBackend::Simulator { .. }),
        jobs: args.jobs,
        tls: args.tls,
    })
}

/// Returns the first congestion control of the artifact that the user has not allowed to be loaded into this machine's kernel.
fn first_not_allowed<'a>(
    digests: &'a BTreeMap<String, String>,
    allowed: &[String],
) -> Option<(&'a String, &'a String)> {
    let is_allowed = |sha256: &String| allowed.iter().any(|text| text.eq_ignore_ascii_case(sha256));
    digests.iter().find(|(_, sha256)| !is_allowed(sha256))
}

/// Returns the kernel and the dilation of the lab. The dilation is given because a calibration on another machine might choose
/// another one. The engine is not needed: the resolved plan names uml, and a dilation or a stock kernel selects qemu.
fn kernel_and_dilation(backend: &RunBackend) -> (Option<Series>, Option<u32>) {
    let images = match backend {
        RunBackend::Lab { images } => &images[..],
        RunBackend::Testbed | RunBackend::Simulator { .. } | RunBackend::Import => &[][..],
    };
    let dilations = images.iter().filter_map(|image| image.dilation);
    let mut chosen = dilations.filter(|dilation| match dilation.source {
        DilationSource::Given | DilationSource::Calibrated => true,
        DilationSource::StockKernel => false,
    });
    // Applies the limits of `--dilation`, because the artifact is untrusted.
    let dilation = chosen.next().map(|dilation| dilation.factor.clamp(1, 500));
    (images.first().map(|image| image.kernel), dilation)
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::Engine;
    use ccbench_results::backend::{Dilation, LabImage};

    use super::*;

    fn lab(kernel: Series, dilation: Option<(u32, DilationSource)>) -> RunBackend {
        let image = LabImage {
            engine: Engine::Qemu,
            engine_sha256: String::new(),
            emulator: String::new(),
            kernel,
            source: String::new(),
            release: String::new(),
            dilation: dilation.map(|(factor, source)| Dilation { factor, source }),
        };
        RunBackend::Lab { images: vec![image] }
    }

    #[test]
    fn only_a_rerun_that_has_not_begun_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let [begun, unknown, unpacked] =
            ["begun", "unknown", "unpacked"].map(|name| root.path().join(name));
        std::fs::create_dir_all(begun.join(artifact::RERUN)).unwrap();
        std::fs::create_dir(&unknown).unwrap();
        // A symbolic link to itself stands for a disk that fails: whether trials have run is unknown.
        std::os::unix::fs::symlink(artifact::RERUN, unknown.join(artifact::RERUN)).unwrap();
        std::fs::create_dir(&unpacked).unwrap();
        for dir in [&begun, &unknown, &unpacked] {
            remove_unless_begun(dir);
        }
        assert_eq!([&begun, &unknown, &unpacked].map(|dir| dir.exists()), [true, true, false]);
    }

    #[test]
    fn only_a_difference_changes_the_exit_code() {
        assert_eq!(code_of_rerun(Reproduction::Reproduced), ExitCode::Success);
        assert_eq!(code_of_rerun(Reproduction::NotCompared), ExitCode::Success);
        assert_eq!(code_of_rerun(Reproduction::NotReproduced), ExitCode::ClaimRefuted);
        assert_eq!(code_of_claim(Agreement::NotCompared), ExitCode::Success);
        assert_eq!(code_of_claim(Agreement::Differs), ExitCode::ClaimRefuted);
    }

    #[test]
    fn every_congestion_control_must_be_allowed() {
        let digest = |digit: &str| digit.repeat(64);
        let digests: BTreeMap<String, String> =
            [("a.bpf.o".to_owned(), digest("a")), ("b.bpf.o".to_owned(), digest("b"))].into();
        let refused = |allowed: &[String]| {
            first_not_allowed(&digests, allowed).map(|(file, _)| file.as_str())
        };
        assert_eq!(refused(&[]), Some("a.bpf.o"));
        assert_eq!(refused(&[digest("A")]), Some("b.bpf.o"));
        assert_eq!(refused(&[digest("b"), digest("a")]), None);
    }

    #[test]
    fn the_lab_of_a_rerun_is_that_of_the_artifact() {
        use DilationSource::{Calibrated, Given, StockKernel};
        let own = Series::Own;
        assert_eq!(kernel_and_dilation(&lab(own, Some((20, Calibrated)))), (Some(own), Some(20)));
        assert_eq!(kernel_and_dilation(&lab(own, Some((5, Given)))), (Some(own), Some(5)));
        assert_eq!(kernel_and_dilation(&lab(own, Some((1, StockKernel)))), (Some(own), None));
        assert_eq!(kernel_and_dilation(&lab(own, None)), (Some(own), None));
        assert_eq!(kernel_and_dilation(&lab(own, Some((0, Given)))), (Some(own), Some(1)));
        assert_eq!(kernel_and_dilation(&RunBackend::Lab { images: vec![] }), (None, None));
        assert_eq!(kernel_and_dilation(&RunBackend::Simulator { model_version: 3 }), (None, None));
    }
}
