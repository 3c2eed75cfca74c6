//! Backends as recorded in `run.json`.

use std::collections::BTreeSet;
use std::fmt;

use ccbench_proto::plan::{Engine, Series};
use serde::{Deserialize, Serialize};

/// Prefix of a note on the lab. Such notes are the only record of the backend in runs of earlier versions.
const LAB_NOTE: &str = "lab: ";
/// Prefix of the note on the simulator, followed by the model's version and a comma.
const SIMULATED_NOTE: &str = "simulated: model ";

/// Where the trials of a run took place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunBackend {
    /// Agents on nodes or in namespaces of one machine.
    Testbed,
    /// The lab.
    Lab {
        /// One image for each engine and kernel; empty in runs of earlier versions.
        images: Vec<LabImage>,
    },
    /// The simulator.
    Simulator {
        /// Version of its model; results of different versions may differ. 0 if unknown.
        model_version: u32,
    },
    /// Nowhere: the rows are those of imported files.
    Import,
}

/// A virtual machine of the lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabImage {
    /// The engine.
    pub engine: Engine,
    /// SHA-256 of the engine's scripts, configuration and patches, in hexadecimal.
    pub engine_sha256: String,
    /// The emulator's program and version.
    pub emulator: String,
    /// The kernel's series.
    pub kernel: Series,
    /// The kernel's source package and version.
    pub source: String,
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// The dilation; `None` if the engine's CPU takes no time.
    pub dilation: Option<Dilation>,
}

/// How much faster the guest's CPU is relative to its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dilation {
    /// The dilation factor.
    pub factor: u32,
    /// How the factor was chosen.
    pub source: DilationSource,
}

/// How a dilation was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DilationSource {
    /// A stock kernel cannot be dilated.
    StockKernel,
    /// `--dilation`.
    Given,
    /// A short calibration before the first trial.
    Calibrated,
}

/// The kind, and the versions that distinguish its results: "simulator, model 3".
impl fmt::Display for RunBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Testbed => f.write_str("testbed"),
            Self::Import => f.write_str("import"),
            Self::Simulator { model_version } => write!(f, "simulator, model {model_version}"),
            Self::Lab { images } => {
                let machine = |image: &LabImage| format!(", {} {}", image.engine, image.release);
                let machines: BTreeSet<String> = images.iter().map(machine).collect();
                f.write_str("lab")?;
                machines.iter().try_for_each(|machine| f.write_str(machine))
            }
        }
    }
}

impl RunBackend {
    /// Returns the backend of a run of an earlier version, from its notes.
    pub(crate) fn of_notes(notes: &[String]) -> Self {
        if let Some(model) = notes.iter().find_map(|note| note.strip_prefix(SIMULATED_NOTE)) {
            let version = model.split_once(',').and_then(|(version, _)| version.parse().ok());
            return Self::Simulator { model_version: version.unwrap_or(0) };
        }
        match notes.iter().any(|note| note.starts_with(LAB_NOTE)) {
            true => Self::Lab { images: vec![] },
            false => Self::Testbed,
        }
    }

    /// Returns notes for readers of the run's results.
    pub fn notes(&self) -> Vec<String> {
        match self {
            Self::Testbed | Self::Import => vec![],
            Self::Lab { images } => images.iter().map(LabImage::note).collect(),
            Self::Simulator { model_version } => vec![format!(
                "{SIMULATED_NOTE}{model_version}, no kernel; the model is provisional, so compare results with the lab \
                 (docs/simulator.md)"
            )],
        }
    }

    /// Returns whether trials have a virtual clock, which the host's load does not delay.
    pub const fn has_virtual_clock(&self) -> bool {
        match self {
            Self::Lab { .. } | Self::Simulator { .. } => true,
            Self::Testbed | Self::Import => false,
        }
    }
}

impl LabImage {
    fn note(&self) -> String {
        let dilation = self.dilation.map_or(String::new(), |dilation| {
            let source = match dilation.source {
                DilationSource::StockKernel => "the only one of a stock kernel",
                DilationSource::Given => "given",
                DilationSource::Calibrated => "chosen by a short calibration",
            };
            format!(", dilation {} ({source})", dilation.factor)
        });
        format!("{LAB_NOTE}{self}{dilation}")
    }
}

/// Without the dilation.
impl fmt::Display for LabImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, engine_sha256, emulator, source, release, .. } = self;
        let sha256 = engine_sha256.get(..12).unwrap_or(engine_sha256);
        write!(f, "engine {engine} (sha256 {sha256}), {source} {release}, {emulator}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> LabImage {
        LabImage {
            engine: Engine::Qemu,
            engine_sha256: "0123456789abcdef".repeat(4),
            emulator: "QEMU 7.2".to_owned(),
            kernel: Series::Own,
            source: "linux 7.3".to_owned(),
            release: "7.3.0-lab".to_owned(),
            dilation: Some(Dilation { factor: 10, source: DilationSource::Given }),
        }
    }

    #[test]
    fn an_image_is_described_in_a_note() {
        let lab = RunBackend::Lab { images: vec![image(), LabImage { dilation: None, ..image() }] };
        let common = "lab: engine qemu (sha256 0123456789ab), linux 7.3 7.3.0-lab, QEMU 7.2";
        assert_eq!(lab.notes(), [format!("{common}, dilation 10 (given)"), common.to_owned()]);
    }

    #[test]
    fn a_backend_is_displayed_with_its_versions() {
        assert_eq!(RunBackend::Simulator { model_version: 3 }.to_string(), "simulator, model 3");
        let lab = RunBackend::Lab { images: vec![image(), image()] };
        assert_eq!(lab.to_string(), "lab, qemu 7.3.0-lab");
        assert_eq!(RunBackend::Lab { images: vec![] }.to_string(), "lab");
    }

    #[test]
    fn notes_name_the_backend_of_earlier_versions() {
        let simulator = RunBackend::Simulator { model_version: 2 };
        assert_eq!(RunBackend::of_notes(&simulator.notes()), simulator);
        let lab = RunBackend::Lab { images: vec![image()] };
        assert_eq!(RunBackend::of_notes(&lab.notes()), RunBackend::Lab { images: vec![] });
        assert_eq!(RunBackend::of_notes(&["src: no BPF".to_owned()]), RunBackend::Testbed);
    }
}
