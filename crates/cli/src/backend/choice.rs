//! Chooses the backend for the trials of a command.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ccbench_proto::plan::{Engine, Series};
use ccbench_proto::units::Micros;
use ccbench_proto::wire::NodeInfo;
use ccbench_results::backend::{DilationSource, LabImage, RunBackend};
use ccbench_results::store::{Kernel, RunDir};
use ccbench_simulator::MODEL_VERSION;
use clap::Parser;

use crate::args::artifact::ArtifactCommand;
use crate::args::trace::TraceCommand;
use crate::args::{Cli, Command, RunOptions};
use crate::experiment::Experiment;
use crate::lab::LabOptions;

/// No backend can run what the command line asks for.
#[derive(Debug, thiserror::Error)]
pub enum BackendChoiceError {
    /// Both the command line and the plan name kernels.
    #[error(
        "--kernel {given} conflicts with the plan, which names its kernels itself (for example {in_plan}); leave out --kernel, or change \
         the plan with `--set 'lab.kernel=\"{given}\"'`"
    )]
    KernelInPlan {
        /// The kernel of the command line.
        given: Series,
        /// A kernel of the plan.
        in_plan: Series,
    },
    /// Concurrent trials were requested for nodes in real time.
    #[error(
        "--jobs {0} needs the lab or the simulator: elsewhere, concurrent trials disturb each other; add --lab or --sim, or leave out --jobs"
    )]
    Jobs(u32),
    /// Options of the lab were given without the lab.
    #[error("--kernel and --dilation need --lab")]
    NeedsLab,
    /// A run cannot be resumed.
    #[error("{}: {source}", dir.display())]
    Resume {
        /// Its results directory.
        dir: PathBuf,
        /// Why.
        source: ResumeError,
    },
}

/// Why a run cannot be resumed with these options or on these nodes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// It was simulated, but the options are about the lab or a testbed.
    #[error(
        "this run was simulated; leave out --lab, --engine, --kernel, --dilation and --rootless"
    )]
    Simulated,
    /// Another model version simulated it.
    #[error(
        "this run was simulated with another version of the model, whose results may differ; start a new run of its plan"
    )]
    OtherModel,
    /// It began in the lab, not in the simulator.
    #[error("this run began in the lab; leave out --sim")]
    InLab,
    /// It began with another engine of the lab.
    #[error("this run began in the lab with the engine {0}; leave out --engine")]
    OtherEngine(Engine),
    /// It began with another kernel of the lab.
    #[error("this run began in the lab with the kernel {0}; leave out --kernel")]
    OtherLabKernel(Series),
    /// It began with another dilation of the lab.
    #[error("this run began in the lab with the dilation {0}; leave out --dilation")]
    OtherDilation(u32),
    /// It began on a testbed, not in the simulator.
    #[error("this run was not simulated; leave out --sim")]
    NotSimulated,
    /// It began on a testbed, not in the lab.
    #[error(
        "this run did not begin in the lab; leave out --lab, --engine, --kernel and --dilation"
    )]
    NotInLab,
    /// It began without `--rootless`.
    #[error("this run did not begin with --rootless; leave it out")]
    NotRootless,
    /// Its nodes have other kernels now.
    #[error(
        "this run began with another kernel, whose results may differ ({}); boot the previous kernel, then continue with `--resume`, or \
         start a new run of its plan",
        .0.iter().map(KernelChange::to_string).collect::<Vec<_>>().join("; ")
    )]
    OtherKernels(Vec<KernelChange>),
}

/// The nodes of a run that have the same other kernel now.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelChange {
    nodes: Vec<String>,
    /// Their kernel, as text.
    now: String,
    /// Their kernels in the last session of the run.
    before: String,
}

impl std::fmt::Display for KernelChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { nodes, now, before } = self;
        let node = if nodes.len() == 1 { "node" } else { "nodes" };
        write!(f, "{node} {}: {now} instead of {before}", nodes.join(", "))
    }
}

/// A backend and its options.
#[derive(Debug, Clone)]
pub enum BackendChoice {
    /// Agents on nodes, or in namespaces of this machine.
    Testbed,
    /// The lab.
    Lab(LabOptions),
    /// The simulator.
    Simulator {
        /// Number of concurrent trials; `None` means the number of CPUs.
        jobs: Option<u32>,
    },
}

impl BackendChoice {
    /// Returns the backend that the command line or the plan asks for. `images` are the lab images with which a [`resumed`] run
    /// began.
    ///
    /// # Errors
    /// Options contradict each other or the plan.
    pub fn new(
        options: &RunOptions,
        experiment: &Experiment,
        images: Vec<LabImage>,
    ) -> Result<Self, BackendChoiceError> {
        if options.sim {
            // The check of the plan has already rejected kernels.
            return Ok(Self::Simulator { jobs: options.jobs });
        }
        let points = experiment.plan.points();
        let in_plan = points.iter().find_map(|point| point.plan.plan().kernel());
        let in_lab = options.lab || points.iter().any(|point| point.plan.plan().in_lab());
        if let (Some(in_plan), Some(given)) = (in_plan, options.kernel) {
            return Err(BackendChoiceError::KernelInPlan { given, in_plan });
        }
        if in_lab {
            // A plan without a kernel uses the same one for all points.
            let earlier = images.first().filter(|_| in_plan.is_none()).map(|image| image.kernel);
            let kernel = options.kernel.or(earlier).unwrap_or_default();
            let RunOptions { dilation, jobs, .. } = *options;
            return Ok(Self::Lab(LabOptions { kernel, dilation, jobs, earlier: images }));
        }
        if let Some(jobs) = options.jobs.filter(|jobs| *jobs != 1) {
            return Err(BackendChoiceError::Jobs(jobs));
        }
        if options.kernel.is_some() || options.dilation.is_some() {
            return Err(BackendChoiceError::NeedsLab);
        }
        Ok(Self::Testbed)
    }
}

/// Returns the options of a resumed run, and the lab images with which it began. Options that affect its trials keep their
/// original values. They need not be given again, and other values are refused, because such trials would not be repetitions of
/// the same point.
///
/// # Errors
/// An option contradicts the run, or another model version simulated the run.
pub fn resumed(
    given: &RunOptions,
    dir: &RunDir,
) -> Result<(RunOptions, Vec<LabImage>), BackendChoiceError> {
    options_of_resumed(given, dir).map_err(|source| {
        let dir = dir.path().to_owned();
        BackendChoiceError::Resume { dir, source }
    })
}

fn options_of_resumed(
    given: &RunOptions,
    dir: &RunDir,
) -> Result<(RunOptions, Vec<LabImage>), ResumeError> {
    let mut options = given.clone();
    restore(&mut options, &dir.command_lines());
    let asks_for_lab = given.lab || given.kernel.is_some() || given.dilation.is_some();
    match dir.backend() {
        RunBackend::Simulator { model_version } => {
            if asks_for_lab || given.rootless {
                return Err(ResumeError::Simulated);
            }
            if model_version != MODEL_VERSION {
                return Err(ResumeError::OtherModel);
            }
            options.sim = true;
            Ok((options, vec![]))
        }
        RunBackend::Lab { .. } if given.sim => Err(ResumeError::InLab),
        RunBackend::Lab { images } => {
            check_lab(given, &images)?;
            options.lab = true;
            // The engine is in the resolved plan unless it is the default. Runs of earlier versions have no images.
            options.engine = given.engine.filter(|_| images.is_empty());
            Ok((options, images))
        }
        RunBackend::Testbed | RunBackend::Import => {
            if given.sim {
                return Err(ResumeError::NotSimulated);
            }
            if asks_for_lab {
                return Err(ResumeError::NotInLab);
            }
            let was_rootless = dir.command_line().iter().any(|argument| argument == "--rootless");
            if given.rootless && !was_rootless {
                return Err(ResumeError::NotRootless);
            }
            options.rootless = was_rootless;
            Ok((options, vec![]))
        }
    }
}

/// Refuses to resume the run in `dir` on nodes with other kernels than those of its last session. `nodes` are their descriptions now. The
/// plan chooses the kernels of nodes that it names a kernel for.
///
/// # Errors
/// A node has another kernel.
pub fn check_kernels(
    dir: &Path,
    earlier: &BTreeMap<String, BTreeSet<Kernel>>,
    experiment: &Experiment,
    nodes: &BTreeMap<String, NodeInfo>,
) -> Result<(), BackendChoiceError> {
    let points = experiment.plan.points();
    let named = points.iter().flat_map(|point| Experiment::kernel_releases(point).into_keys());
    let named: BTreeSet<String> = named.collect();
    let mut earlier = earlier.clone();
    earlier.retain(|node, _| !named.contains(node));
    let changes = other_kernels(&earlier, nodes);
    if changes.is_empty() {
        return Ok(());
    }
    let (dir, source) = (dir.to_owned(), ResumeError::OtherKernels(changes));
    Err(BackendChoiceError::Resume { dir, source })
}

/// Returns the nodes that have other kernels than in the last session of a run, `earlier`.
fn other_kernels(
    earlier: &BTreeMap<String, BTreeSet<Kernel>>,
    nodes: &BTreeMap<String, NodeInfo>,
) -> Vec<KernelChange> {
    let text = |(release, version): &Kernel| format!("{release} {version}").trim_end().to_owned();
    // In namespaces, all nodes have the same kernel.
    let mut changed: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (name, kernels) in earlier {
        let Some(NodeInfo { kernel, kernel_version, .. }) = nodes.get(name) else { continue };
        let now = (kernel.clone(), kernel_version.clone());
        if !kernels.contains(&now) {
            let before = kernels.iter().map(text).collect::<Vec<_>>().join(" or ");
            changed.entry((text(&now), before)).or_default().push(name.clone());
        }
    }
    let changes = changed.into_iter();
    changes.map(|((now, before), nodes)| KernelChange { nodes, now, before }).collect()
}

/// Gives options that decide what happens after a failure their last values in the sessions of a run, unless they are given again.
fn restore(options: &mut RunOptions, command_lines: &[Vec<String>]) {
    for session in command_lines.iter().rev().filter_map(|line| session_options(line)) {
        let (keep_going, await_nodes, await_reboot) = session;
        options.keep_going |= keep_going;
        options.await_nodes = options.await_nodes.or(await_nodes);
        options.await_reboot = options.await_reboot.or(await_reboot);
    }
}

/// Returns `--keep-going`, `--await-nodes` and `--await-reboot` of a session; `None` if its command has none, or only another version
/// accepts them.
fn session_options(command_line: &[String]) -> Option<(bool, Option<Micros>, Option<Micros>)> {
    let options = match Cli::try_parse_from(command_line).ok()?.command {
        Command::Run(args) => args.options,
        Command::Reproduce(args) => args.options,
        Command::Scorecard(args) => args.options,
        Command::Trace(TraceCommand::Record(args)) => args.options,
        // It compares every trial.
        Command::Artifact(ArtifactCommand::Rerun(_)) => return Some((true, None, None)),
        _ => return None,
    };
    Some((options.keep_going, options.await_nodes, options.await_reboot))
}

/// Refuses options of the lab that contradict the images with which a run began.
fn check_lab(given: &RunOptions, images: &[LabImage]) -> Result<(), ResumeError> {
    for LabImage { engine, kernel, dilation, .. } in images {
        if given.engine.is_some_and(|given| given != *engine) {
            return Err(ResumeError::OtherEngine(*engine));
        }
        if given.kernel.is_some_and(|given| given != *kernel) {
            return Err(ResumeError::OtherLabKernel(*kernel));
        }
        let chosen = dilation.filter(|dilation| dilation.source != DilationSource::StockKernel);
        if let Some(chosen) = chosen
            && given.dilation.is_some_and(|given| given != chosen.factor)
        {
            return Err(ResumeError::OtherDilation(chosen.factor));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ccbench_results::backend::Dilation;

    use super::*;

    fn options(line: &str) -> RunOptions {
        let words = ["ccbench", "run", "plan.toml"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).unwrap();
        let Command::Run(args) = cli.command else { panic!("another command") };
        args.options
    }

    #[test]
    fn a_resumed_run_keeps_its_options_for_failures() {
        let line = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines = [
            line("ccbench run plan.toml --keep-going --await-nodes 10min --await-reboot 60min"),
            line("ccbench run --resume DIR --await-nodes 20min"),
            line("ccbench run --resume DIR --option-of-another-version"),
        ];
        let rerun = session_options(&line("ccbench artifact rerun run.tar.gz"));
        assert_eq!(rerun, Some((true, None, None)));
        let restored = |given: &str| {
            let mut options = options(given);
            restore(&mut options, &lines);
            (options.keep_going, options.await_nodes, options.await_reboot)
        };
        let minutes = |count: u64| Some(Micros::from_secs(60 * count));
        assert_eq!(restored(""), (true, minutes(20), minutes(60)));
        assert_eq!(restored("--await-nodes 1min"), (true, minutes(1), minutes(60)));
    }

    #[test]
    fn a_run_is_resumed_only_with_its_kernels() {
        let node = |release: &str| NodeInfo {
            kernel: release.to_owned(),
            kernel_version: "#1 SMP".to_owned(),
            ..NodeInfo::default()
        };
        let of = |all: &[(&str, &str)]| -> BTreeMap<String, NodeInfo> {
            all.iter().map(|(name, release)| ((*name).to_owned(), node(release))).collect()
        };
        let earlier = |all: &[(&str, &[&str])]| -> BTreeMap<String, BTreeSet<Kernel>> {
            let kernel = |release: &&str| ((*release).to_owned(), "#1 SMP".to_owned());
            all.iter()
                .map(|(name, releases)| ((*name).to_owned(), releases.iter().map(kernel).collect()))
                .collect()
        };
        let refusal = |earlier: &BTreeMap<String, BTreeSet<Kernel>>,
                       nodes: &BTreeMap<String, NodeInfo>| {
            ResumeError::OtherKernels(other_kernels(earlier, nodes)).to_string()
        };
        let both = earlier(&[("dst", &["6.1"]), ("src", &["6.1"])]);
        assert!(other_kernels(&both, &of(&[("dst", "6.1"), ("src", "6.1")])).is_empty());
        let why = refusal(&both, &of(&[("dst", "6.12"), ("src", "6.1")]));
        assert!(why.contains("(node dst: 6.12 #1 SMP instead of 6.1 #1 SMP); boot the"), "{why}");
        let why = refusal(&both, &of(&[("dst", "6.12"), ("src", "6.12")]));
        assert!(why.contains("(nodes dst, src: 6.12 #1 SMP instead of 6.1 #1 SMP)"), "{why}");
        // The release is the same after an update of the distribution's kernel.
        let mut updated = of(&[("src", "6.1")]);
        updated.values_mut().for_each(|node| node.kernel_version = "#2 SMP".to_owned());
        let why = refusal(&both, &updated);
        assert!(why.contains("(node src: 6.1 #2 SMP instead of 6.1 #1 SMP)"), "{why}");
        // A merged run has trials of several machines.
        let merged = earlier(&[("src", &["6.1", "6.6"])]);
        assert!(other_kernels(&merged, &of(&[("src", "6.6")])).is_empty());
        let why = refusal(&merged, &of(&[("src", "6.12")]));
        assert!(why.contains("6.12 #1 SMP instead of 6.1 #1 SMP or 6.6 #1 SMP"), "{why}");
        // Runs of earlier versions have no record.
        assert!(other_kernels(&BTreeMap::new(), &of(&[("src", "6.12")])).is_empty());
    }

    #[test]
    fn options_of_the_lab_must_be_those_of_the_run() {
        let dilation = Some(Dilation { factor: 10, source: DilationSource::Calibrated });
        let image = LabImage {
            engine: Engine::Qemu,
            engine_sha256: String::new(),
            emulator: String::new(),
            kernel: Series::Own,
            source: String::new(),
            release: String::new(),
            dilation,
        };
        let refused = |line: &str| check_lab(&options(line), std::slice::from_ref(&image)).err();
        for line in ["", "--lab --engine qemu --kernel own --dilation 10", "--jobs 3"] {
            assert_eq!(refused(line), None, "{line}");
        }
        for (line, with) in [
            ("--lab --engine uml", "the engine qemu; leave out --engine"),
            ("--kernel 6.12", "the kernel own; leave out --kernel"),
            ("--dilation 20", "the dilation 10; leave out --dilation"),
        ] {
            let expected = format!("this run began in the lab with {with}");
            assert_eq!(refused(line).unwrap().to_string(), expected, "{line}");
        }
        // A stock kernel cannot be dilated, so the option applies to other kernels of the plan.
        let source = DilationSource::StockKernel;
        let stock = LabImage { dilation: Some(Dilation { factor: 1, source }), ..image.clone() };
        assert_eq!(check_lab(&options("--dilation 10"), &[stock, image]), Ok(()));
    }
}
