//! Changes to the machine that no namespace and no descriptor takes away: instances of modules, modules that were
//! loaded, parameters of the kernel's own, BPF instances of kernels without links. Each is in a record on disk before
//! it is made; whoever starts next undoes what a dead process left, an agent in a namespace too.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::sysfs;
use crate::undo::Outcome;

/// Where the records are.
const FOLDER: &str = "/run/ccbench/cc";

/// One thing to undo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Step {
    /// Put a module's parameter back.
    Parameter {
        /// The module.
        module: String,
        /// The parameter.
        name: String,
        /// Its value before.
        before: String,
    },
    /// Take an instance out of one of ccbench's modules.
    Instance {
        /// The module.
        module: String,
        /// The instance's name in the kernel.
        name: String,
    },
    /// Take a module out that was loaded for an experiment, if nobody uses it.
    Module {
        /// The module.
        module: String,
    },
    /// Unregister a BPF instance that has no link.
    Bpf {
        /// Its name in the kernel.
        name: String,
    },
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Parameter { module, name, before } => {
                write!(f, "parameter {module}.{name} = {before}")
            }
            Self::Instance { module, name } => write!(f, "instance {name} of {module}"),
            Self::Module { module } => write!(f, "module {module}"),
            Self::Bpf { name } => write!(f, "BPF instance {name}"),
        }
    }
}

impl Step {
    fn undo(&self) -> Result<(), String> {
        match self {
            Self::Parameter { module, name, before } => {
                let path = sysfs::parameter(module, name);
                if !path.exists() {
                    return Ok(());
                }
                sysfs::write(&path, before)
            }
            Self::Instance { module, name } => {
                if !sysfs::available().contains(name) {
                    return Ok(());
                }
                sysfs::write(&sysfs::parameter(module, "remove"), name)
            }
            Self::Module { module } => {
                let instances = std::fs::read_to_string(sysfs::parameter(module, "instances"))
                    .unwrap_or_default();
                // Another agent's instance: whoever is last takes the module along.
                if !sysfs::is_loaded(module) || instances.lines().count() > 1 {
                    return Ok(());
                }
                sysfs::rmmod(module)
            }
            Self::Bpf { name } => unregister(name),
        }
    }
}

#[cfg(feature = "ebpf")]
fn unregister(name: &str) -> Result<(), String> {
    super::bpf::unregister(name)
}

#[cfg(not(feature = "ebpf"))]
fn unregister(name: &str) -> Result<(), String> {
    Err(format!(
        "bpftool struct_ops unregister name {name}: this agent was built without the feature ebpf"
    ))
}

/// The changes of one process; dropped, they are undone.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    file: Option<(PathBuf, File)>,
    steps: Vec<Step>,
}

impl Default for Journal {
    fn default() -> Self {
        Self::in_folder(Path::new(FOLDER))
    }
}

impl Journal {
    /// Nothing is made before the first step.
    fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), file: None, steps: Vec::new() }
    }

    /// Writes down how to undo a change; only after this may it be made.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn push(&mut self, step: Step) -> Result<(), String> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(open(&self.folder)?),
        };
        let mut line = serde_json::to_vec(&step).map_err(|e| e.to_string())?;
        line.push(b'\n');
        let written = file.1.write_all(&line).and_then(|()| file.1.sync_data());
        written.map_err(|e| format!("write {}: {e}", file.0.display()))?;
        self.steps.push(step);
        Ok(())
    }

    /// What was done so far stays.
    pub fn forget(&mut self) {
        self.steps.clear();
        if let Some((path, _)) = self.file.take() {
            // Whoever finds it would undo what shall stay.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Undoes everything, last first.
    pub fn undo(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        for step in self.steps.drain(..).rev() {
            outcome.note(&step, step.undo());
        }
        if let Some((path, _)) = self.file.take().filter(|_| outcome.failed.is_empty()) {
            // Nothing depends on it: its steps are undone already.
            let _ = std::fs::remove_file(path);
        }
        outcome
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let outcome = self.undo();
        if !outcome.failed.is_empty() {
            tracing::error!(failed = ?outcome.failed, "congestion controls");
        }
    }
}

/// A record of this process, locked for as long as it lives.
fn open(folder: &Path) -> Result<(PathBuf, File), String> {
    let failed =
        |op: &str, path: &Path, e: &dyn std::fmt::Display| format!("{op} {}: {e}", path.display());
    std::fs::create_dir_all(folder).map_err(|e| failed("make", folder, &e))?;
    for count in 0..1000 {
        let path = folder.join(format!("{}-{count}.ndjson", std::process::id()));
        let file = match OpenOptions::new().create_new(true).append(true).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(failed("make", &path, &e)),
        };
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| failed("lock", &path, &e))?;
        return Ok((path, file));
    }
    Err(format!("{} is full of records that cannot be undone", folder.display()))
}

/// Undoes what dead processes left. A reboot took it all along, and the folder with it.
pub fn sweep() -> Outcome {
    sweep_folder(Path::new(FOLDER))
}

fn sweep_folder(folder: &Path) -> Outcome {
    let mut outcome = Outcome::default();
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    for path in entries.map(|entry| entry.path()) {
        let Ok(mut file) = OpenOptions::new().read(true).append(true).open(&path) else { continue };
        // Whoever lives holds its own.
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let mut text = String::new();
        if file.rewind().and_then(|()| file.read_to_string(&mut text)).is_err() {
            continue;
        }
        let steps = text.lines().filter_map(|line| serde_json::from_str::<Step>(line).ok());
        let steps: Vec<Step> = steps.collect();
        let mut all = true;
        for step in steps.iter().rev() {
            let undone = step.undo();
            all &= undone.is_ok();
            outcome.note(step, undone);
        }
        if all {
            let _ = std::fs::remove_file(&path);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone() -> Step {
        Step::Parameter { module: "no_such".into(), name: "x".into(), before: "1".into() }
    }

    #[test]
    fn a_living_process_keeps_its_record_and_a_dead_ones_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        let mut journal = Journal::in_folder(dir.path());
        journal.push(gone()).unwrap();
        assert_eq!(sweep_folder(dir.path()), Outcome::default());
        assert_eq!(count(), 1);
        // As after a kill: the lock is gone, the file is not.
        let (path, file) = journal.file.take().unwrap();
        journal.steps.clear();
        drop(file);
        assert!(path.exists());
        assert_eq!(sweep_folder(dir.path()).undone, ["parameter no_such.x = 1"]);
        assert_eq!(count(), 0);
    }

    #[test]
    fn what_is_undone_leaves_no_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::in_folder(dir.path());
        journal.push(gone()).unwrap();
        assert_eq!(journal.undo().undone.len(), 1);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
