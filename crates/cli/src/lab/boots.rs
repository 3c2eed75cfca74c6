//! The lab for a whole experiment: a kernel for every point, a machine for every trial.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::plan::Series;
use ccbench_proto::schedule::Point;
use ccbench_proto::topology::Topology;
use ccbench_proto::units::Micros;
use tokio::sync::watch;

use super::trial::Survey;
use super::{Kernel, Lab};
use crate::coordinate::Experiment;
use crate::error::CliError;
use crate::live::Live;
use crate::trials::{About, Ground, Trial};
use ccbench_results::verdict::Verdict;

/// What the automatic choice of the dilation aims at: share of the guest's processor.
const BUSY_WANTED_PCT: f64 = 35.0;
/// Dilations that are chosen from.
const DILATIONS: [u32; 7] = [1, 2, 5, 10, 20, 50, 100];
/// What the calibration runs at.
const CALIBRATION_DILATION: u32 = 20;

/// How the note of a run in the lab begins.
pub const LAB_NOTE: &str = "lab: ";

/// What the command line asks of the lab.
#[derive(Debug, Clone, Copy)]
pub struct AskedOfLab {
    /// The kernel where the plan names none.
    pub kernel: Series,
    /// Instead of measuring.
    pub dilation: Option<u32>,
}

/// A machine for every trial.
pub struct Boots {
    /// The kernel of points that name none.
    kernel: Series,
    /// What boots each kernel, and its dilation.
    labs: BTreeMap<Series, (Lab, u32)>,
    survey: Survey,
    notes: Vec<String>,
}

impl Boots {
    /// Opens every kernel that some point asks for, looks at its nodes, and chooses the dilation unless it is given.
    ///
    /// # Errors
    /// The lab is not there, or the plan cannot run in it.
    pub async fn open(
        experiment: &Experiment,
        asked: AskedOfLab,
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<Self, CliError> {
        let plan = experiment.plan.plan();
        if let Some((node, _)) = plan.nodes.iter().find(|(_, node)| node.agent.is_some()) {
            let why = format!("--lab builds its nodes itself, but node {node} names an agent");
            return Err(CliError::Usage(why));
        }
        let (labs, notes) = (BTreeMap::new(), Vec::new());
        let mut boots = Self { kernel: asked.kernel, labs, survey: Survey::default(), notes };
        let points = experiment.plan.points();
        let wanted: BTreeSet<Series> = points.iter().map(|point| boots.series(point)).collect();
        let open = |series| Ok((series, Lab::open(series)?));
        let opened = wanted.into_iter().map(open).collect::<Result<Vec<_>, CliError>>()?;
        if asked.dilation.is_some() && !opened.iter().any(|(_, lab)| lab.kernel().dilates()) {
            let why =
                "a stock kernel cannot be dilated: leave out --dilation, or use the kernel `own`";
            return Err(CliError::Usage(why.to_owned()));
        }
        for (series, lab) in opened {
            let points = points.iter().filter(|point| boots.series(point) == series).collect();
            boots.add(lab, experiment, points, asked.dilation, interrupt).await?;
        }
        Ok(boots)
    }

    /// The kernel of a point.
    fn series(&self, point: &Point) -> Series {
        point.plan.plan().kernel().unwrap_or(self.kernel)
    }

    async fn add(
        &mut self,
        lab: Lab,
        experiment: &Experiment,
        points: Vec<&Point>,
        asked: Option<u32>,
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<(), CliError> {
        let (mut dilation, how) = match (lab.kernel().dilates(), asked) {
            (false, _) => (1, "a stock kernel has no other"),
            (true, Some(dilation)) => (dilation, "as asked"),
            (true, None) => (CALIBRATION_DILATION, "chosen by a short calibration"),
        };
        let calibrates = lab.kernel().dilates() && asked.is_none();
        // Every point may cost another: the dearest decides, so that points can be compared. Without that question
        // one boot tells what the nodes are.
        let looked_at = if calibrates { points.len() } else { 1 };
        if looked_at > 1 {
            eprintln!(
                "lab: a look at {looked_at} points, to choose the dilation (`--dilation N` does without)"
            );
        }
        let mut busy_pct = 0.0_f64;
        for point in points.into_iter().take(looked_at) {
            let seen = lab.survey(experiment, point, dilation, interrupt).await?;
            busy_pct = busy_pct.max(seen.busy_pct);
            self.survey.nodes.extend(seen.nodes);
        }
        if calibrates {
            dilation = dilation_for(busy_pct);
        }
        let Kernel { version, release, series, .. } = lab.kernel();
        self.notes.push(format!(
            "{LAB_NOTE}{version} {release}, {}, dilation {dilation} ({how})",
            lab.emulator
        ));
        self.labs.insert(*series, (lab, dilation));
        Ok(())
    }
}

impl Ground for Boots {
    fn is_virtual(&self) -> bool {
        true
    }

    fn about(&self, experiment: &Experiment) -> About {
        About {
            topology: format!("{:#?}", Topology::build(experiment.plan.plan())),
            nodes: self.survey.nodes.clone(),
            notes: self.notes.clone(),
            missing: BTreeSet::new(),
        }
    }

    /// Nothing of a trial is left that could disturb the next.
    fn gap(&self, _: &Experiment) -> Micros {
        Micros::default()
    }

    async fn trial(
        &mut self,
        trial: Trial<'_>,
        live: &mut Live,
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<Verdict, CliError> {
        let series = self.series(trial.point);
        let Some((lab, dilation)) = self.labs.get(&series) else {
            return Err(CliError::Usage(format!("kernel {series} has not been opened")));
        };
        lab.trial(trial, *dilation, live, interrupt).await
    }

    /// Every trial has a machine of its own.
    fn lost(&mut self, _: bool) -> bool {
        false
    }

    async fn rebuild(&mut self, _: &Experiment) -> Result<(), CliError> {
        Ok(())
    }

    async fn close(self) {}
}

/// The smallest dilation at which traffic that kept the guest busy for `busy_pct` at the calibration's dilation
/// leaves it idle enough.
fn dilation_for(busy_pct: f64) -> u32 {
    let needed = f64::from(CALIBRATION_DILATION) * busy_pct / BUSY_WANTED_PCT;
    let enough = DILATIONS.iter().find(|dilation| f64::from(**dilation) >= needed);
    enough.or(DILATIONS.last()).copied().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dilation_leaves_the_guest_idle_enough() {
        assert_eq!(dilation_for(1.0), 1);
        assert_eq!(dilation_for(17.5), 10);
        assert_eq!(dilation_for(18.0), 20);
        assert_eq!(dilation_for(100.0), 100);
    }
}
