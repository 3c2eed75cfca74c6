//! Which backend the trials of a command run on.

use ccbench_results::backend::RunBackend;
use ccbench_results::store::RunDir;
use ccbench_simulator::MODEL_VERSION;

use crate::args::RunOptions;
use crate::error::CliError;
use crate::experiment::Experiment;
use crate::lab::LabOptions;

/// A backend and its options.
#[derive(Debug, Clone, Copy)]
pub enum BackendChoice {
    /// Agents on nodes or in namespaces of this machine.
    Testbed,
    /// The lab.
    Lab(LabOptions),
    /// The simulator.
    Simulator {
        /// How many trials run at the same time; `None`: as many as there are CPUs.
        jobs: Option<u32>,
    },
}

impl BackendChoice {
    /// The backend that the command line or the plan asks for.
    ///
    /// # Errors
    /// Options that contradict each other, or the plan.
    pub fn of(options: &RunOptions, experiment: &Experiment) -> Result<Self, CliError> {
        if options.sim {
            // The check of the plan has rejected kernels.
            return Ok(Self::Simulator { jobs: options.jobs });
        }
        let points = experiment.plan.points();
        let in_plan = points.iter().find_map(|point| point.plan.plan().kernel());
        let in_lab = options.lab || points.iter().any(|point| point.plan.plan().in_lab());
        if let (Some(in_plan), Some(kernel)) = (in_plan, options.kernel) {
            return Err(CliError::Usage(format!(
                "--kernel {kernel} conflicts with the plan, which names its kernels itself (for example {in_plan}); leave \
                 out --kernel, or change the plan with `--set 'lab.kernel=\"{kernel}\"'`"
            )));
        }
        if in_lab {
            let kernel = options.kernel.unwrap_or_default();
            let RunOptions { dilation, jobs, .. } = *options;
            return Ok(Self::Lab(LabOptions { kernel, dilation, jobs }));
        }
        if let Some(jobs) = options.jobs.filter(|jobs| *jobs != 1) {
            return Err(CliError::Usage(format!(
                "--jobs {jobs} needs the lab or the simulator: outside of them, trials that run at the same time disturb each \
                 other; add --lab or --sim, or leave out --jobs"
            )));
        }
        if options.kernel.is_some() || options.dilation.is_some() {
            return Err(CliError::Usage("--kernel and --dilation need --lab".to_owned()));
        }
        Ok(Self::Testbed)
    }

    /// Refuses to resume a run of another backend: their trials are not repetitions of one point.
    ///
    /// # Errors
    /// Another backend began the run, or another version of the simulator's model.
    pub fn check_resumes(&self, dir: &RunDir) -> Result<(), CliError> {
        let reason = match (dir.backend(), self) {
            (RunBackend::Simulator { model_version }, Self::Simulator { .. })
                if model_version != MODEL_VERSION =>
            {
                "this run was simulated with another version of the model, whose results may differ; start a new run of its plan"
            }
            (RunBackend::Lab { .. }, Self::Lab(_))
            | (RunBackend::Simulator { .. }, Self::Simulator { .. })
            | (RunBackend::Testbed | RunBackend::Import, Self::Testbed) => return Ok(()),
            (RunBackend::Lab { .. }, Self::Simulator { .. }) => {
                "this run began in the lab; add --lab, and leave out --sim"
            }
            (RunBackend::Lab { .. }, Self::Testbed) => "this run began in the lab; add --lab",
            (RunBackend::Simulator { .. }, Self::Lab(_)) => {
                "this run was simulated; add --sim, and leave out --lab"
            }
            (RunBackend::Simulator { .. }, Self::Testbed) => "this run was simulated; add --sim",
            (RunBackend::Testbed | RunBackend::Import, Self::Lab(_)) => {
                "this run did not begin in the lab; leave out --lab"
            }
            (RunBackend::Testbed | RunBackend::Import, Self::Simulator { .. }) => {
                "this run was not simulated; leave out --sim"
            }
        };
        Err(CliError::Usage(format!("{}: {reason}", dir.path().display())))
    }
}
