//! Journal of changes to the whole machine: instances of modules, loaded modules, parameters of the kernel's congestion
//! controls, and BPF instances on kernels without BPF links. The kernel does not undo these when this process or its
//! namespace ends. So each change is written to disk first, and the next agent on the machine rolls back the journals
//! of dead processes.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ccbench_io::replace::replace;
use ccbench_proto::sealed_line::{self, seal};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::SocketError;
use super::{module_loader, supplied_module, sysfs};
use crate::undo::{Outcome, append_line};

/// Folder of the journals.
const FOLDER: &str = "/run/ccbench/cc";
/// Extension of the journals. Another sweep may be writing a file beside them.
const EXTENSION: &str = "ndjson";

/// One thing to undo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Step {
    /// Restore a module's parameter.
    Parameter {
        /// The module.
        module: String,
        /// The parameter.
        name: String,
        /// Its previous value.
        before: String,
    },
    /// Remove an instance from one of ccbench's modules.
    Instance {
        /// The module.
        module: String,
        /// The instance's name in the kernel.
        name: String,
    },
    /// Unload a module that was loaded for an experiment, if it is unused.
    Module {
        /// The module.
        module: String,
    },
    /// Unload a supplied module, if no other process has loaded it, too.
    SuppliedModule(ModuleUse),
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
            Self::SuppliedModule(used) => write!(f, "module {}", used.module),
            Self::Bpf { name } => write!(f, "BPF instance {name}"),
        }
    }
}

impl Step {
    fn undo(&self) -> Result<(), SocketError> {
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
                if !sysfs::is_loaded(module) {
                    return Ok(());
                }
                let _lock = lock_modules()?;
                let instances = std::fs::read_to_string(sysfs::parameter(module, "instances"))
                    .unwrap_or_default();
                // Another agent has an instance, and this step in its journal; the last agent unloads the module.
                if instances.lines().count() > 1 {
                    return Ok(());
                }
                module_loader::unload(module)
            }
            Self::SuppliedModule(used) => supplied_module::unload(used),
            Self::Bpf { name } => unregister(name),
        }
    }
}

/// A process's use of a supplied module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleUse {
    /// The module.
    pub module: String,
    /// The SHA-256 of its file, in hexadecimal.
    pub sha256: String,
    /// Its parameters, as the kernel accepts them: `a=1 b=2`.
    pub params: String,
    /// The congestion controls that the kernel had before the module was loaded.
    pub before: Vec<String>,
    /// Distinguishes the uses of one module.
    pub id: String,
}

/// Returns the uses of the module by living processes, except the one with this id.
///
/// # Errors
/// The journals cannot be listed.
pub(super) fn other_uses(module: &str, id: &str) -> Result<Vec<ModuleUse>, SocketError> {
    other_uses_in(Path::new(FOLDER), module, id)
}

fn other_uses_in(folder: &Path, module: &str, id: &str) -> Result<Vec<ModuleUse>, SocketError> {
    let mut found = Vec::new();
    for (path, file) in journals_in(folder)? {
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            // Its process is dead; the next agent that starts undoes it.
            continue;
        }
        let uses = readable_steps(&path, file)?.into_iter().filter_map(|step| match step {
            Step::SuppliedModule(used) => Some(used),
            _ => None,
        });
        found.extend(uses.filter(|used| used.module == module && used.id != id));
    }
    Ok(found)
}

/// Whether some agent, even a dead one, has loaded one of ccbench's modules and not unloaded it. If so, every agent
/// with an instance may be the last one, which unloads the module.
///
/// # Errors
/// The journals cannot be listed.
pub(super) fn is_loaded_by_agent(module: &str) -> Result<bool, SocketError> {
    is_loaded_by_agent_in(Path::new(FOLDER), module)
}

fn is_loaded_by_agent_in(folder: &Path, module: &str) -> Result<bool, SocketError> {
    let wanted = Step::Module { module: module.to_owned() };
    for (path, file) in journals_in(folder)? {
        if readable_steps(&path, file)?.contains(&wanted) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn journals_in(folder: &Path) -> Result<Vec<(PathBuf, File)>, SocketError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(SocketError::file("read", folder))? {
        let path = entry.map_err(SocketError::file("read", folder))?.path();
        if path.extension().is_none_or(|e| e != EXTENSION) {
            continue;
        }
        // The file may be gone by now.
        if let Ok(file) = File::open(&path) {
            found.push((path, file));
        }
    }
    Ok(found)
}

fn readable_steps(path: &Path, mut file: File) -> Result<Vec<Step>, SocketError> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(SocketError::file("read", path))?;
    Ok(steps(&bytes).into_iter().filter_map(|(_, step)| step.ok()).collect())
}

/// Returns a lock that serialises loading and unloading modules until it is dropped.
///
/// # Errors
/// The folder cannot be written.
pub(super) fn lock_modules() -> Result<File, SocketError> {
    let folder = Path::new(FOLDER);
    std::fs::create_dir_all(folder).map_err(SocketError::file("make", folder))?;
    let path = folder.join("modules.lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(SocketError::file("make", &path))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|e| SocketError::file("lock", &path)(e.into()))?;
    Ok(file)
}

#[cfg(feature = "ebpf")]
fn unregister(name: &str) -> Result<(), SocketError> {
    Ok(super::bpf::unregister(name)?)
}

#[cfg(not(feature = "ebpf"))]
fn unregister(name: &str) -> Result<(), SocketError> {
    Err(SocketError::UnregisterWithoutEbpf { name: name.to_owned() })
}

/// The changes of one process. Dropping it undoes them.
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
    /// The file is created with the first step.
    fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), file: None, steps: Vec::new() }
    }

    /// Writes to disk how to undo a change. Call this before the change.
    ///
    /// # Errors
    /// The journal cannot be written; the change must then not be made.
    pub fn push(&mut self, step: Step) -> Result<(), SocketError> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(open(&self.folder)?),
        };
        let line = line(&step)?;
        append_line(&mut file.1, |file| file.write_all(line.as_bytes()))
            .map_err(SocketError::file("write", &file.0))?;
        self.steps.push(step);
        Ok(())
    }

    /// Whether the step will be undone.
    pub(super) fn has(&self, step: &Step) -> bool {
        self.steps.contains(step)
    }

    /// Drops the steps without undoing them: the changes stay.
    pub fn forget(&mut self) {
        self.steps.clear();
        if let Some((path, _)) = self.file.take() {
            // The next agent would otherwise undo the steps.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Undoes everything, last first. Only the steps that failed stay in the file, for the next agent: what is undone may be in use
    /// again when it starts.
    pub fn undo(&mut self) -> Outcome {
        let (mut outcome, mut left, mut ended) = (Outcome::default(), Vec::new(), Vec::new());
        for step in self.steps.drain(..).rev() {
            let of_step = undo_step(&step, &mut ended);
            if !of_step.failed.is_empty() {
                left.insert(0, step);
            }
            outcome.merge(of_step);
        }
        if let Some((path, _)) = self.file.take()
            && let Err(error) = keep_only(&left, &path)
        {
            outcome.failed.push(error.to_string());
        }
        unload_unused(&ended, &mut outcome);
        outcome
    }
}

/// Replaces a journal by one with these steps, or removes it.
fn keep_only(steps: &[Step], path: &Path) -> Result<(), SocketError> {
    if steps.is_empty() {
        // A leftover file does no harm: its steps are undone already.
        let _ = std::fs::remove_file(path);
        return Ok(());
    }
    let lines = steps.iter().map(line).collect::<Result<String, _>>()?;
    replace(path, lines.as_bytes()).map(drop).map_err(SocketError::file("write", path))
}

fn line(step: &Step) -> Result<String, serde_json::Error> {
    Ok(seal(&serde_json::to_string(step)?))
}

/// Undoes a step. `ended` gets the use of a module that it ends.
fn undo_step(step: &Step, ended: &mut Vec<ModuleUse>) -> Outcome {
    let (mut outcome, undone) = (Outcome::default(), step.undo());
    if let (Step::SuppliedModule(used), Ok(())) = (step, &undone) {
        ended.push(used.clone());
    }
    outcome.note(step, undone);
    outcome
}

/// Unloads modules without users, after the journal of their ended uses has been removed. Two processes that end their uses at
/// the same time still see each other's journals, as do two uses in one journal. In that case none has unloaded the module yet.
fn unload_unused(ended: &[ModuleUse], outcome: &mut Outcome) {
    for used in ended {
        if let Err(error) = supplied_module::unload(used) {
            outcome.note(Step::SuppliedModule(used.clone()), Err(error));
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let outcome = self.undo();
        if !outcome.failed.is_empty() {
            tracing::error!(failed = ?outcome.failed, "could not undo changes to congestion controls");
        }
    }
}

/// Creates the journal of this process and locks it for the process's lifetime.
fn open(folder: &Path) -> Result<(PathBuf, File), SocketError> {
    std::fs::create_dir_all(folder).map_err(SocketError::file("make", folder))?;
    for count in 0..1000 {
        let path = folder.join(format!("{}-{count}.{EXTENSION}", std::process::id()));
        let file = match OpenOptions::new().create_new(true).append(true).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(SocketError::file("make", &path)(e)),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // A starting agent is inspecting the empty file.
            Err(Errno::WOULDBLOCK) => continue,
            locked => locked.map_err(|e| SocketError::file("lock", &path)(e.into()))?,
        }
        // A starting agent may have removed the file before it was locked.
        let metadata = file.metadata().map_err(SocketError::file("read", &path))?;
        if metadata.nlink() > 0 {
            return Ok((path, file));
        }
    }
    Err(SocketError::JournalFull { folder: folder.to_owned() })
}

/// Rolls back the journals of dead processes. A reboot clears both the changes and the folder.
pub fn sweep() -> Outcome {
    sweep_folder(Path::new(FOLDER))
}

fn sweep_folder(folder: &Path) -> Outcome {
    let mut outcome = Outcome::default();
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let paths = entries.map(|entry| entry.path());
    for path in paths.filter(|path| path.extension().is_some_and(|e| e == EXTENSION)) {
        let Ok(mut file) = OpenOptions::new().read(true).append(true).open(&path) else { continue };
        outcome.merge(sweep_file(&mut file, &path));
    }
    outcome
}

/// Rolls back an open journal, unless its process is alive.
fn sweep_file(file: &mut File, path: &Path) -> Outcome {
    // A living process holds the lock of its own journal.
    if flock(&*file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Outcome::default();
    }
    // Another agent rolled it back between opening and locking: the path now leads to another file, or to none.
    if file.metadata().is_ok_and(|metadata| metadata.nlink() == 0) {
        return Outcome::default();
    }
    let mut bytes = Vec::new();
    match file.rewind().and_then(|()| file.read_to_end(&mut bytes)) {
        Ok(_) => undo_file(&bytes, path),
        Err(error) => failed(format!("read {}: {error}", path.display())),
    }
}

fn failed(message: String) -> Outcome {
    Outcome { failed: vec![message], ..Outcome::default() }
}

/// Undoes the steps of a dead process, last first. Only the lines of failed steps stay in the file: what one agent has
/// undone may be in use again when the next one starts.
fn undo_file(bytes: &[u8], path: &Path) -> Outcome {
    let (mut outcome, mut kept, mut ended) = (Outcome::default(), Vec::new(), Vec::new());
    for (line, step) in steps(bytes).into_iter().rev() {
        let of_step = match step {
            Ok(step) => undo_step(&step, &mut ended),
            Err(why) => failed(format!(
                "{}: line {} {why}, so what it would undo is unknown: restore the congestion controls by hand or reboot, \
                 then remove the file",
                path.display(),
                line.number
            )),
        };
        if !of_step.failed.is_empty() {
            kept.insert(0, [line.bytes, b"\n"].concat());
        }
        outcome.merge(of_step);
    }
    let rewritten = match kept.is_empty() {
        true => std::fs::remove_file(path),
        false if outcome.undone.is_empty() => Ok(()),
        false => replace(path, &kept.concat()).map(drop),
    };
    if let Err(error) = rewritten {
        outcome.failed.push(format!("write {}: {error}", path.display()));
    }
    unload_unused(&ended, &mut outcome);
    outcome
}

/// Returns the lines of a journal, each with its step or the reason why it cannot be read.
pub fn steps(bytes: &[u8]) -> Vec<(sealed_line::Line<'_>, Result<Step, &'static str>)> {
    let step = |line: &sealed_line::Line<'_>| {
        let object = line.object.as_deref().ok_or("is damaged")?;
        serde_json::from_slice(object)
            .map_err(|_| "was written by another version of ccbench-agent")
    };
    sealed_line::lines(bytes).into_iter().map(|line| (line.clone(), step(&line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone() -> Step {
        Step::Parameter { module: "no_such".into(), name: "x".into(), before: "1".into() }
    }

    /// Leaves a journal as after a kill: unlocked, but with its file. A child process of another test may hold a copy
    /// of the descriptor until its exec, so closing it is not enough.
    fn abandon(journal: &mut Journal) -> PathBuf {
        let (path, file) = journal.file.take().unwrap();
        journal.steps.clear();
        flock(&file, FlockOperation::Unlock).unwrap();
        path
    }

    #[test]
    fn sweep_skips_living_processes_and_undoes_dead_ones() {
        let dir = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        let mut journal = Journal::in_folder(dir.path());
        journal.push(gone()).unwrap();
        assert_eq!(sweep_folder(dir.path()), Outcome::default());
        assert_eq!(count(), 1);
        let path = abandon(&mut journal);
        assert!(path.exists());
        assert_eq!(sweep_folder(dir.path()).undone, ["parameter no_such.x = 1"]);
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_journal_is_rolled_back_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::in_folder(dir.path());
        journal.push(gone()).unwrap();
        let path = abandon(&mut journal);
        // Models an agent that opens the file before another one rolls it back.
        let mut late = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        assert_eq!(sweep_folder(dir.path()).undone.len(), 1);
        assert_eq!(sweep_file(&mut late, &path), Outcome::default());
    }

    #[test]
    fn sweep_keeps_a_journal_with_a_damaged_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::in_folder(dir.path());
        journal.push(gone()).unwrap();
        journal.push(gone()).unwrap();
        let path = abandon(&mut journal);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] = 0xff;
        std::fs::write(&path, bytes).unwrap();
        let outcome = sweep_folder(dir.path());
        assert_eq!(outcome.undone.len(), 1, "{outcome:?}");
        let [failed] = &outcome.failed[..] else { panic!("{outcome:?}") };
        assert!(failed.contains("line 1 is damaged") && path.exists(), "{failed}");
        let again = sweep_folder(dir.path());
        assert_eq!((again.undone.len(), again.failed.len()), (0, 1), "undone once: {again:?}");
    }

    #[test]
    fn living_processes_count_as_users_of_a_module() {
        let dir = tempfile::tempdir().unwrap();
        let used = |id: &str| ModuleUse {
            module: "no_such".into(),
            sha256: "0".repeat(64),
            params: "a=1".into(),
            before: Vec::new(),
            id: id.into(),
        };
        let mut journals = [Journal::in_folder(dir.path()), Journal::in_folder(dir.path())];
        for (journal, id) in journals.iter_mut().zip(["1", "2"]) {
            journal.push(Step::SuppliedModule(used(id))).unwrap();
        }
        let others = |id: &str| other_uses_in(dir.path(), "no_such", id).unwrap();
        assert_eq!(others("1"), [used("2")]);
        assert!(other_uses_in(dir.path(), "other", "1").unwrap().is_empty());
        abandon(&mut journals[1]);
        assert!(others("1").is_empty(), "the other process is dead");
        journals[0].steps.clear();
    }

    #[test]
    fn a_module_that_an_agent_has_loaded_is_of_all_agents() {
        let dir = tempfile::tempdir().unwrap();
        let module = || Step::Module { module: "no_such".into() };
        let is_loaded = |module: &str| is_loaded_by_agent_in(dir.path(), module).unwrap();
        let mut journals = [Journal::in_folder(dir.path()), Journal::in_folder(dir.path())];
        assert!(!is_loaded("no_such"));
        journals[0].push(module()).unwrap();
        assert!(is_loaded("no_such") && !is_loaded("other"));
        assert!(journals[0].has(&module()) && !journals[1].has(&module()));
        journals[1].push(module()).unwrap();
        journals[0].undo();
        assert!(is_loaded("no_such"), "the other agent has to unload it");
        abandon(&mut journals[1]);
        assert!(is_loaded("no_such"), "so does whoever comes before the next start of an agent");
        sweep_folder(dir.path());
        assert!(!is_loaded("no_such"));
    }

    #[test]
    fn undo_keeps_only_what_failed() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::in_folder(dir.path());
        // Nobody can write to a parameter that is a folder.
        std::fs::create_dir_all(dir.path().join("parameters/x")).unwrap();
        let module = dir.path().to_str().unwrap().to_owned();
        let stuck = Step::Parameter { module, name: "x".into(), before: "1".into() };
        journal.push(stuck.clone()).unwrap();
        journal.push(gone()).unwrap();
        let (path, _) = journal.file.as_ref().unwrap();
        let path = path.clone();
        let outcome = journal.undo();
        assert_eq!((outcome.undone.len(), outcome.failed.len()), (1, 1), "{outcome:?}");
        assert_eq!(readable_steps(&path, File::open(&path).unwrap()).unwrap(), [stuck]);
    }

    #[test]
    fn undo_removes_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::in_folder(dir.path());
        journal.push(gone()).unwrap();
        assert_eq!(journal.undo().undone.len(), 1);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
