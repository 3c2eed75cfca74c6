//! The lab: trials in a small Linux on a virtual clock, so that a trial depends only on the plan and the seed. Each trial is one
//! boot. Two engines run the kernel: QEMU, whose clock counts instructions, and User-Mode Linux, whose clock advances only while
//! all processes wait.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::plan::{Engine, Series};
use ccbench_proto::schedule::Point;
use ccbench_proto::topology::Topology;
use ccbench_results::backend::{Dilation, DilationSource, LabImage, RunBackend};
use ccbench_results::model::Verdict;
use serde_json::json;
use tracing::info;

use crate::backend::error::BackendError;
use crate::backend::{Backend, BackendInfo};
use crate::console::message;
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::runner::{AfterError, RunningTrial, TrialQueue};
use error::LabError;
use jobs::GuestResources;
use kernel::Kernel;
use preflight_cache::Preflight;
use userland::Programs;
use vm::VmImage;

/// Memory of a guest, in MiB.
pub const MEMORY_MIB: u32 = 768;

mod boot_directory;
mod cpio;
pub mod cpu;
pub mod engine;
pub mod error;
mod jobs;
pub mod kernel;
pub mod modules;
pub mod package;
mod preflight;
mod preflight_cache;
mod qemu;
mod trial;
pub mod uml;
pub mod userland;
pub mod vm;

/// CPU load of the guest at which the automatic choice of the dilation aims.
const TARGET_BUSY_PCT: f64 = 35.0;
/// Dilations that the automatic choice considers.
const DILATIONS: [u32; 7] = [1, 2, 5, 10, 20, 50, 100];
/// Dilation during the calibration.
const CALIBRATION_DILATION: u32 = 20;

/// Options of the lab (`--kernel`, `--dilation`, `--jobs`). `--engine` is an override of the plan: see [`engine`].
#[derive(Debug, Clone)]
pub struct LabOptions {
    /// The kernel for points that name none.
    pub kernel: Series,
    /// The dilation; `None` chooses one by calibration.
    pub dilation: Option<u32>,
    /// Number of concurrent trials; `None` means the number of CPUs.
    pub jobs: Option<u32>,
    /// The images with which a resumed run began. Their dilations apply to the rest of the run.
    pub earlier: Vec<LabImage>,
}

/// The backend that boots a virtual machine for every trial.
pub struct Lab {
    /// The kernel for points that name none.
    kernel: Series,
    jobs: Option<u32>,
    /// The image of each engine and kernel, with its dilation if it has one.
    images: BTreeMap<(Engine, Series), (VmImage, Option<u32>)>,
    preflight: Preflight,
    /// The images, for `run.json`.
    described: Vec<LabImage>,
    /// Why the engine is not the usual one.
    engine_note: Option<String>,
}

impl Lab {
    /// Opens every kernel that a point asks for, describes its nodes, and chooses the dilation unless it is given. `engine_note`
    /// is kept with the results.
    ///
    /// # Errors
    /// A kernel or program is missing, or the plan cannot run in the lab.
    pub async fn open(
        experiment: &Experiment,
        options: LabOptions,
        engine_note: Option<String>,
        interrupt: &mut Interrupt,
    ) -> Result<Self, BackendError> {
        let plan = experiment.plan.plan();
        if let Some((node, _)) = plan.nodes.iter().find(|(_, node)| node.agent.is_some()) {
            return Err(LabError::NodeWithAgent { node: node.clone() }.into());
        }
        let (images, described) = (BTreeMap::new(), Vec::new());
        let preflight = Preflight::default();
        let LabOptions { kernel, jobs, dilation, earlier } = options;
        let mut lab = Self { kernel, jobs, images, preflight, described, engine_note };
        let points = experiment.plan.points();
        let kernels: BTreeSet<_> = points.iter().map(|point| lab.machine(point)).collect();
        let open = |machine: (Engine, Series)| {
            let of_machine = |point: &&Point| lab.machine(point) == machine;
            let plans = || points.iter().filter(of_machine).map(|point| point.plan.plan());
            let programs = match plans().any(userland::needs_iperf3) {
                true => Programs::Iperf3,
                false => Programs::None,
            };
            let image = VmImage::open(machine.0, machine.1, programs)?;
            Ok((
                machine,
                if plans().any(modules::are_used) { image.with_modules()? } else { image },
            ))
        };
        let opened = kernels.into_iter().map(open).collect::<Result<Vec<_>, LabError>>()?;
        let can_dilate = opened.iter().any(|(_, image)| image.kernel().can_dilate());
        if dilation.is_some() && !can_dilate {
            return Err(LabError::NotDilatable.into());
        }
        for (_, image) in &opened {
            check_resumed(&description(image, None), &earlier)?;
        }
        for (machine, image) in opened {
            let points = points.iter().filter(|point| lab.machine(point) == machine).collect();
            let given = dilation.map(|factor| Dilation { factor, source: DilationSource::Given });
            let known = earlier.iter().find(|known| (known.engine, known.kernel) == machine);
            let given = given.or(known.and_then(|known| known.dilation));
            lab.add(image, experiment, points, given, interrupt).await?;
        }
        Ok(lab)
    }

    /// Returns the engine and the kernel of a point.
    fn machine(&self, point: &Point) -> (Engine, Series) {
        let plan = point.plan.plan();
        (plan.lab.engine.unwrap_or(engine::DEFAULT_ENGINE), plan.kernel().unwrap_or(self.kernel))
    }

    async fn add(
        &mut self,
        image: VmImage,
        experiment: &Experiment,
        points: Vec<&Point>,
        given: Option<Dilation>,
        interrupt: &mut Interrupt,
    ) -> Result<(), BackendError> {
        let has_cpu_time = image.kernel().engine.has_cpu_time();
        let dilated = |factor, source| Some(Dilation { factor, source });
        let mut dilation = match (image.kernel().can_dilate(), given) {
            (false, _) if !has_cpu_time => None,
            (false, _) => dilated(1, DilationSource::StockKernel),
            (true, Some(given)) => Some(given),
            (true, None) => dilated(CALIBRATION_DILATION, DilationSource::Calibrated),
        };
        let calibrates = image.kernel().can_dilate() && given.is_none();
        // Points differ in cost. The most expensive one decides for all, so that points stay comparable. Without a calibration,
        // one boot is enough to describe the nodes.
        let boots = if calibrates { points.len() } else { 1 };
        if boots > 1 {
            message(format_args!(
                "lab: calibrating the dilation on {boots} points (`--dilation N` skips the calibration)"
            ));
        }
        let mut busy_pct = 0.0_f64;
        for point in points.into_iter().take(boots) {
            let factor = dilation.map(|dilation| dilation.factor);
            let result = preflight::run(&image, experiment, point, factor, interrupt).await?;
            busy_pct = busy_pct.max(result.busy_pct);
            self.preflight.nodes.extend(result.nodes);
        }
        if calibrates {
            let factor = dilation_for(busy_pct);
            dilation = dilated(factor, DilationSource::Calibrated);
            info!(busy_pct, factor, "calibration");
        }
        self.described.push(description(&image, dilation));
        let factor = dilation.map(|dilation| dilation.factor);
        let Kernel { series, engine, .. } = *image.kernel();
        self.images.insert((engine, series), (image, factor));
        Ok(())
    }
}

impl Backend for Lab {
    fn info(&self, experiment: &Experiment) -> BackendInfo {
        BackendInfo {
            backend: RunBackend::Lab { images: self.described.clone() },
            topology: json!(Topology::build(experiment.plan.plan())),
            nodes: self.preflight.nodes.clone(),
            notes: self.engine_note.iter().cloned().collect(),
            missing: BTreeSet::new(),
        }
    }

    /// Runs as many trials at a time as the machine has room for, because they cannot disturb each other.
    async fn run_trials(&mut self, queue: &TrialQueue<'_>, interrupt: Interrupt) {
        let in_folder = self.images.keys().any(|(engine, _)| *engine == Engine::Uml);
        let (resources, note) = jobs::guest_resources(self.jobs, queue.count(), in_folder);
        queue.use_jobs(resources.len(), note.as_deref());
        let next = || queue.start();
        let run = async |resources: &GuestResources, mut running: RunningTrial<'_>| {
            let result = self.run_trial(resources, &mut running, interrupt.clone()).await;
            queue.end(running, result, AfterError::Stop).await;
        };
        crate::jobs::run_in(&resources, next, run).await;
    }

    async fn close(self) {}
}

impl Lab {
    async fn run_trial(
        &self,
        resources: &GuestResources,
        running: &mut RunningTrial<'_>,
        mut interrupt: Interrupt,
    ) -> Result<Verdict, BackendError> {
        let RunningTrial { trial, progress, .. } = running;
        let (engine, kernel) = self.machine(trial.point);
        let Some((image, dilation)) = self.images.get(&(engine, kernel)) else {
            return Err(LabError::NotOpen { engine, kernel }.into());
        };
        trial::run((image, *dilation), resources, *trial, progress, &mut interrupt).await
    }
}

/// Describes an image for `run.json`.
fn description(image: &VmImage, dilation: Option<Dilation>) -> LabImage {
    let Kernel { version, release, series, engine, recipe_sha256, .. } = image.kernel();
    LabImage {
        engine: *engine,
        engine_sha256: recipe_sha256.clone(),
        emulator: image.emulator.clone(),
        kernel: *series,
        source: version.clone(),
        release: release.clone(),
        dilation,
    }
}

/// Checks that the run began with this image. `earlier` are the images with which it began, empty if it is a new one; runs of
/// earlier versions have none.
///
/// # Errors
/// It began with others. Trials of this image would not be repetitions of the same point.
fn check_resumed(image: &LabImage, earlier: &[LabImage]) -> Result<(), LabError> {
    // The dilation is always that with which the run began.
    let is_same =
        |known: &LabImage| LabImage { dilation: image.dilation, ..known.clone() } == *image;
    if earlier.is_empty() || earlier.iter().any(is_same) {
        return Ok(());
    }
    let began = earlier.iter().map(LabImage::to_string).collect::<Vec<_>>().join("; ");
    Err(LabError::OtherImage { began, here: image.to_string() })
}

/// Returns the smallest dilation at which the guest is idle enough, for traffic that kept it busy for `busy_pct` during the
/// calibration.
fn dilation_for(busy_pct: f64) -> u32 {
    let needed = f64::from(CALIBRATION_DILATION) * busy_pct / TARGET_BUSY_PCT;
    let enough = DILATIONS.iter().find(|dilation| f64::from(**dilation) >= needed);
    enough.or(DILATIONS.last()).copied().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_continues_only_with_the_lab_with_which_it_began() {
        let image = LabImage {
            engine: Engine::Qemu,
            engine_sha256: "ab".repeat(32),
            emulator: "QEMU 7.2".to_owned(),
            kernel: Series::Own,
            source: "linux 7.3".to_owned(),
            release: "7.3.0-lab".to_owned(),
            dilation: None,
        };
        let dilation = Some(Dilation { factor: 10, source: DilationSource::Calibrated });
        let uml = LabImage { engine: Engine::Uml, ..image.clone() };
        let began = [uml, LabImage { dilation, ..image.clone() }];
        check_resumed(&image, &began).unwrap();
        check_resumed(&image, &[]).unwrap();
        for other in [
            LabImage { engine_sha256: "cd".repeat(32), ..image.clone() },
            LabImage { emulator: "QEMU 10.0".to_owned(), ..image.clone() },
            LabImage { source: "linux 7.4".to_owned(), ..image.clone() },
            LabImage { release: "7.3.1-lab".to_owned(), ..image.clone() },
            LabImage { kernel: Series::Debian612, ..image.clone() },
        ] {
            let error = check_resumed(&other, &began).unwrap_err().to_string();
            for image in began.iter().chain([&other]) {
                assert!(error.contains(&image.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn chooses_the_smallest_sufficient_dilation() {
        assert_eq!(dilation_for(1.0), 1);
        assert_eq!(dilation_for(17.5), 10);
        assert_eq!(dilation_for(18.0), 20);
        assert_eq!(dilation_for(100.0), 100);
    }
}
