//! The lab: trials in a small Linux under QEMU. The guest's clock counts instructions, so a trial depends only on the plan
//! and the seed. Every trial is one boot.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::plan::Series;
use ccbench_proto::schedule::Point;
use ccbench_proto::topology::Topology;
use ccbench_proto::units::Micros;
use ccbench_results::model::Verdict;
use tracing::info;

use crate::backend::{Backend, BackendError, BackendInfo, Trial};
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use error::LabError;
use kernel::Kernel;
use preflight::Preflight;
use vm::VmImage;

mod cpio;
pub mod error;
pub mod kernel;
mod preflight;
mod qemu;
mod trial;
mod userland;
pub mod vm;

/// Share of the guest's processor that the automatic choice of the dilation aims at.
const TARGET_BUSY_PCT: f64 = 35.0;
/// Candidates of the automatic choice.
const DILATIONS: [u32; 7] = [1, 2, 5, 10, 20, 50, 100];
/// Dilation of the calibration.
const CALIBRATION_DILATION: u32 = 20;

/// Prefix of the note that every run in the lab has.
pub const LAB_NOTE: &str = "lab: ";

/// Options of the lab (`--kernel`, `--dilation`).
#[derive(Debug, Clone, Copy)]
pub struct LabOptions {
    /// The kernel of points that name none.
    pub kernel: Series,
    /// The dilation; `None` chooses one by a calibration.
    pub dilation: Option<u32>,
}

/// Boots a virtual machine for every trial.
pub struct Lab {
    /// The kernel of points that name none.
    kernel: Series,
    /// The image and the dilation of each kernel.
    images: BTreeMap<Series, (VmImage, u32)>,
    preflight: Preflight,
    notes: Vec<String>,
}

impl Lab {
    /// Opens every kernel that a point asks for, describes its nodes, and chooses the dilation unless it is given.
    ///
    /// # Errors
    /// A kernel or program is missing, or the plan cannot run in the lab.
    pub async fn open(
        experiment: &Experiment,
        options: LabOptions,
        interrupt: &mut Interrupt,
    ) -> Result<Self, BackendError> {
        let plan = experiment.plan.plan();
        if let Some((node, _)) = plan.nodes.iter().find(|(_, node)| node.agent.is_some()) {
            return Err(LabError::NodeWithAgent { node: node.clone() }.into());
        }
        let (images, notes) = (BTreeMap::new(), Vec::new());
        let preflight = Preflight::default();
        let mut lab = Self { kernel: options.kernel, images, preflight, notes };
        let points = experiment.plan.points();
        let kernels: BTreeSet<Series> = points.iter().map(|point| lab.series(point)).collect();
        let open = |series| Ok((series, VmImage::open(series)?));
        let opened = kernels.into_iter().map(open).collect::<Result<Vec<_>, LabError>>()?;
        let can_dilate = opened.iter().any(|(_, image)| image.kernel().can_dilate());
        if options.dilation.is_some() && !can_dilate {
            return Err(LabError::NotDilatable.into());
        }
        for (series, image) in opened {
            let points = points.iter().filter(|point| lab.series(point) == series).collect();
            lab.add(image, experiment, points, options.dilation, interrupt).await?;
        }
        Ok(lab)
    }

    /// The kernel of a point.
    fn series(&self, point: &Point) -> Series {
        point.plan.plan().kernel().unwrap_or(self.kernel)
    }

    async fn add(
        &mut self,
        image: VmImage,
        experiment: &Experiment,
        points: Vec<&Point>,
        given: Option<u32>,
        interrupt: &mut Interrupt,
    ) -> Result<(), BackendError> {
        let (mut dilation, how) = match (image.kernel().can_dilate(), given) {
            (false, _) => (1, "the only one of a stock kernel"),
            (true, Some(dilation)) => (dilation, "given"),
            (true, None) => (CALIBRATION_DILATION, "chosen by a short calibration"),
        };
        let calibrates = image.kernel().can_dilate() && given.is_none();
        // Points differ in cost: the most expensive one decides, so that all points stay comparable. Without a calibration
        // one boot is enough to describe the nodes.
        let boots = if calibrates { points.len() } else { 1 };
        if boots > 1 {
            eprintln!(
                "lab: calibrating the dilation on {boots} points (`--dilation N` skips the calibration)"
            );
        }
        let mut busy_pct = 0.0_f64;
        for point in points.into_iter().take(boots) {
            let result = preflight::run(&image, experiment, point, dilation, interrupt).await?;
            busy_pct = busy_pct.max(result.busy_pct);
            self.preflight.nodes.extend(result.nodes);
        }
        if calibrates {
            dilation = dilation_for(busy_pct);
            info!(busy_pct, dilation, "calibration");
        }
        let Kernel { version, release, series, .. } = image.kernel();
        self.notes.push(format!(
            "{LAB_NOTE}{version} {release}, {}, dilation {dilation} ({how})",
            image.emulator
        ));
        self.images.insert(*series, (image, dilation));
        Ok(())
    }
}

impl Backend for Lab {
    fn has_virtual_time(&self) -> bool {
        true
    }

    fn info(&self, experiment: &Experiment) -> BackendInfo {
        BackendInfo {
            topology: format!("{:#?}", Topology::build(experiment.plan.plan())),
            nodes: self.preflight.nodes.clone(),
            notes: self.notes.clone(),
            missing: BTreeSet::new(),
        }
    }

    /// None: a trial cannot disturb the next one.
    fn gap(&self, _: &Experiment) -> Micros {
        Micros::default()
    }

    async fn run_trial(
        &mut self,
        trial: Trial<'_>,
        progress: &mut Progress,
        interrupt: &mut Interrupt,
    ) -> Result<Verdict, BackendError> {
        let series = self.series(trial.point);
        let Some((image, dilation)) = self.images.get(&series) else {
            return Err(LabError::NotOpen(series.to_string()).into());
        };
        trial::run(image, trial, *dilation, progress, interrupt).await
    }

    /// Never: every trial has its own virtual machine.
    fn needs_rebuild(&mut self, _: bool) -> bool {
        false
    }

    async fn rebuild(&mut self, _: &Experiment) -> Result<(), BackendError> {
        Ok(())
    }

    async fn close(self) {}
}

/// The smallest dilation at which the guest is idle enough, for traffic that kept it busy for `busy_pct` during the
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
    fn chooses_the_smallest_sufficient_dilation() {
        assert_eq!(dilation_for(1.0), 1);
        assert_eq!(dilation_for(17.5), 10);
        assert_eq!(dilation_for(18.0), 20);
        assert_eq!(dilation_for(100.0), 100);
    }
}
