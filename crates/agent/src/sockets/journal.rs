//! Journal of changes to the whole machine: instances of modules, loaded modules, parameters of the kernel's congestion
//! controls, and BPF instances on kernels without BPF links. The kernel does not undo these when this process or its
//! namespace ends. So each change is written to disk first, and the next agent on the machine rolls back the journals
//! of dead processes.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ccbench_io::replace::replace;
use ccbench_proto::sealed_line::{self, seal};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::SocketError;
use crate::undo::{Outcome, append_line};

mod step;
mod sweep;

pub use step::{ModuleUse, Step};
pub use sweep::{sweep, sweep_folder};

/// Folder of the journals.
pub const FOLDER: &str = "/run/ccbench/cc";
/// Extension of the journals. Another sweep may be writing a file beside them.
const EXTENSION: &str = "ndjson";

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
        match File::open(&path) {
            Ok(file) => found.push((path, file)),
            // It is gone by now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(SocketError::file("open", &path)(error)),
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
    make_folder(folder)?;
    let path = folder.join("modules.lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(SocketError::file("make", &path))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|e| SocketError::file("lock", &path)(e.into()))?;
    Ok(file)
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
    pub(crate) fn in_folder(folder: &Path) -> Self {
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

    /// Undoes everything, last first. Only the steps that failed stay in the file, for the next [`sweep()`]: what is undone may be in use
    /// again by then.
    pub fn undo(&mut self) -> Outcome {
        let (mut outcome, mut left, mut ended) = (Outcome::default(), Vec::new(), Vec::new());
        for step in self.steps.drain(..).rev() {
            let of_step = undo_step(&step, &mut ended);
            if !of_step.failed.is_empty() {
                left.insert(0, step);
            }
            outcome.merge(of_step);
        }
        if let Some((path, file)) = self.file.take() {
            if let Err(error) = keep_only(&left, &path) {
                outcome.failed.push(error.to_string());
            }
            unlock(&file);
        }
        unload_unused(&ended, &self.folder, &mut outcome);
        outcome
    }

    /// Leaves the file to the next [`sweep()`], as if this process were dead.
    fn leave(&mut self) {
        self.steps.clear();
        if let Some((_, file)) = self.file.take() {
            unlock(&file);
        }
    }
}

/// Unlocks a file that is about to be closed. A child process that has not yet executed its program holds a copy of the descriptor, and
/// with it the lock.
fn unlock(file: &File) {
    let _ = flock(file, FlockOperation::Unlock);
}

fn make_folder(folder: &Path) -> Result<(), SocketError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(SocketError::file("make", folder))?;
    restrict(folder)
}

/// Closes a folder of this user to others: a process that can open it can lock it, and so keep every agent from rolling back journals.
fn restrict(folder: &Path) -> Result<(), SocketError> {
    let metadata = std::fs::metadata(folder).map_err(SocketError::file("look up", folder))?;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_own || metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))
        .map_err(SocketError::file("restrict", folder))
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
/// the same time still see each other's journals, as do two uses in one journal. In that case none has unloaded the module yet. A use
/// whose module cannot be unloaded goes into another journal in `folder`, for the next [`sweep()`].
fn unload_unused(ended: &[ModuleUse], folder: &Path, outcome: &mut Outcome) {
    if ended.is_empty() {
        return;
    }
    let mut again = Journal::in_folder(folder);
    for used in ended {
        let Err(error) = used.end() else { continue };
        let step = Step::SuppliedModule(used.clone());
        outcome.note(&step, Err(error));
        if let Err(error) = again.push(step) {
            outcome.failed.push(error.to_string());
        }
    }
    again.leave();
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
    make_folder(folder)?;
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

/// Why a line of a journal cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableStep {
    /// Its checksum is wrong or absent.
    #[error("is damaged")]
    Damaged,
    /// Its checksum is right, but this version has no such step.
    #[error("was written by another version of ccbench-agent")]
    OtherVersion,
}

/// Returns the lines of a journal, each with its step or the reason why it cannot be read.
pub fn steps(bytes: &[u8]) -> Vec<(sealed_line::Line<'_>, Result<Step, UnreadableStep>)> {
    let step = |line: &sealed_line::Line<'_>| {
        let object = line.object.as_deref().ok_or(UnreadableStep::Damaged)?;
        serde_json::from_slice(object).map_err(|_| UnreadableStep::OtherVersion)
    };
    sealed_line::lines(bytes).into_iter().map(|line| (line.clone(), step(&line))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn gone() -> Step {
        Step::Parameter { module: "no_such".into(), name: "x".into(), before: "1".into() }
    }

    /// Returns a step that fails until the folder at the second value is removed: nobody can write to a parameter that is a folder.
    pub(crate) fn stuck(dir: &Path) -> (Step, PathBuf) {
        let obstacle = dir.join("parameters/x");
        std::fs::create_dir_all(&obstacle).unwrap();
        let module = dir.to_str().unwrap().to_owned();
        (Step::Parameter { module, name: "x".into(), before: "1".into() }, obstacle)
    }

    /// Leaves a journal as after a kill: unlocked, but with its file. A child process of another test may hold a copy
    /// of the descriptor until its exec, so closing it is not enough.
    pub(crate) fn abandon(journal: &mut Journal) -> PathBuf {
        let (path, file) = journal.file.take().unwrap();
        journal.steps.clear();
        flock(&file, FlockOperation::Unlock).unwrap();
        path
    }

    #[test]
    fn an_unreadable_step_has_a_reason() {
        let read = |line: &str| steps(line.as_bytes()).remove(0).1.unwrap_err();
        assert_eq!(read(&seal(r#"{"kind":"of_another_version"}"#)), UnreadableStep::OtherVersion);
        assert_eq!(read("{\"kind\":\"module\",\"module\":\"x\"}\n"), UnreadableStep::Damaged);
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
        let (stuck, _) = stuck(dir.path());
        journal.push(stuck.clone()).unwrap();
        journal.push(gone()).unwrap();
        let (path, _) = journal.file.as_ref().unwrap();
        let path = path.clone();
        let outcome = journal.undo();
        assert_eq!((outcome.undone.len(), outcome.failed.len()), (1, 1), "{outcome:?}");
        assert_eq!(readable_steps(&path, File::open(&path).unwrap()).unwrap(), [stuck]);
    }

    #[test]
    fn a_parameter_counts_as_gone_only_if_the_kernel_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let module = dir.path().to_str().unwrap().to_owned();
        let step = Step::Parameter { module, name: "x".into(), before: "1".into() };
        step.undo().unwrap();
        // A look-up that fails for another reason.
        std::os::unix::fs::symlink("parameters", dir.path().join("parameters")).unwrap();
        let error = step.undo().unwrap_err().to_string();
        assert!(error.starts_with("look up ") && error.contains("parameters/x: "), "{error}");
    }

    #[test]
    fn only_this_user_can_open_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run/cc");
        let mode = || std::fs::metadata(&folder).unwrap().mode() & 0o777;
        let open_to_all = || {
            std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        };
        let mut journal = Journal::in_folder(&folder);
        journal.push(gone()).unwrap();
        assert_eq!(mode(), 0o700, "a new one");
        journal.undo();
        open_to_all();
        journal.push(gone()).unwrap();
        assert_eq!(mode(), 0o700, "one of an earlier version");
        journal.undo();
        open_to_all();
        sweep_folder(&folder);
        assert_eq!(mode(), 0o700, "one that is only swept");
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
