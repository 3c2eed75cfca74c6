//! One interface whose egress is shaped. The changes outlive this process, so each is written to an undo journal first. If this
//! process is killed, a guard process undoes them. If the guard is killed, too, the next link on the interface does.

use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ccbench_io::owner::check_state_root;
use nix::sys::signal::{SigSet, Signal};

use super::args::DOWN;
use super::bridge::{InterfaceLock, find};
use super::error::LinkError;
use super::report::Name;
use super::rtnl::{Device, Rtnl};
use super::session::Direction;
use super::spec::Spec;
use crate::interfaces::{Interfaces as _, Machine};
use crate::undo::{self, Discard, JournalError, Outcome, Step, Undo};

const FLAG: &str = "--dev";
/// Further attempts of a link to lock the journal, 20 ms apart. The guard of a killed link holds the lock while it
/// restores the interface.
const LINK_RETRIES: u32 = 500;
/// The same for a guard. A dying process closes its files one by one, so the pipe may end before the lock is released.
const GUARD_RETRIES: u32 = 100;

/// `ccbench-agent link-guard`: waits for the end of its standard input, then rolls back a journal.
#[derive(Debug, Clone, clap::Args)]
pub struct GuardArgs {
    /// Folder of the journal
    #[arg(long)]
    pub state_dir: PathBuf,
}

/// Runs the guard; see [`GuardArgs`]. Returns the exit code.
pub fn guard(args: &GuardArgs) -> u8 {
    // The guard must survive signals of the terminal and the end of the session.
    let _ = nix::unistd::setsid();
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        mask.add(signal);
    }
    let _ = mask.thread_block();
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    // If the guard cannot lock the journal, a later link holds it and undoes the journal itself.
    let Ok(lock) = undo::lock_soon(&args.state_dir, GUARD_RETRIES) else { return 0 };
    match undo::roll_back(&args.state_dir, None, Discard::default()) {
        Ok(outcome) if outcome.failed.is_empty() => {
            let _ = undo::remove_locked(&args.state_dir, lock);
            0
        }
        Ok(Outcome { .. }) | Err(JournalError { .. }) => 1,
    }
}

/// A shaped interface.
pub(crate) struct Egress {
    undo: Undo,
    state_dir: PathBuf,
    guard: Option<Child>,
    lock: Option<File>,
    _interface: InterfaceLock,
}

impl Egress {
    /// Shapes the egress of `dev` in the calling thread's namespace.
    ///
    /// # Errors
    /// The interface does not exist, is already shaped, or the shaper failed.
    pub(crate) fn open(dev: &str, spec: &Spec) -> Result<(Self, Direction), LinkError> {
        let device = find(&mut Rtnl::open()?, FLAG, dev)?;
        let interface = InterfaceLock::take(FLAG, &device)?;
        let state_dir = state_dir(&device)?;
        let lock = undo::lock_soon(&state_dir, LINK_RETRIES)?;
        // Undoes the changes of a link that was killed together with its guard.
        let (undo, left) = Undo::open(&state_dir)?;
        if !undo.is_empty() {
            return Err(LinkError::NotRestored { left: left.failed });
        }
        let guard = start_guard(&state_dir)?;
        let mut egress =
            Self { undo, state_dir, guard: Some(guard), lock: Some(lock), _interface: interface };
        let direction = egress.shape(dev, spec)?;
        Ok((egress, direction))
    }

    fn shape(&mut self, dev: &str, spec: &Spec) -> Result<Direction, LinkError> {
        let refused = || LinkError::shaper(format!("{FLAG} {dev}"));
        if let Some(before) = Machine.save_offloads(dev).map_err(refused())? {
            self.undo.push(Step::Offloads { dev: dev.to_owned(), before })?;
            Machine.offloads_off(dev).map_err(refused())?;
        }
        let before = Machine.save_root(dev).map_err(refused())?;
        let step = Step::Link { link: DOWN.to_owned(), dev: dev.to_owned(), before };
        self.undo.push(step)?;
        let link = Machine.open(&spec.down, dev).map_err(refused())?;
        let name = Name { direction: DOWN, from: "this node".to_owned(), to: dev.to_owned() };
        Ok(Direction::new(name, link))
    }

    /// Restores everything. Remove the link first. Returns what could not be restored.
    pub(crate) fn close(mut self) -> Outcome {
        self.restore()
    }

    fn restore(&mut self) -> Outcome {
        let outcome = self.undo.undo_all(&Machine);
        drop(self.lock.take());
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            // The guard finds nothing to undo and removes the folder.
            let _ = guard.wait();
        }
        outcome
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        if self.guard.is_some() {
            for line in self.restore().failed {
                tracing::error!(dir = %self.state_dir.display(), "not undone: {line}");
            }
        }
    }
}

/// Returns the path of the journal of a link on this interface.
///
/// # Errors
/// The directory above it cannot be made, or another user has made it or can change it.
fn state_dir(device: &Device) -> Result<PathBuf, JournalError> {
    let name = format!("link-{}-{}", undo::netns_inode(), device.index);
    if let Some(root) = std::env::var_os("CCBENCH_STATE") {
        return Ok(own_root(root.into())?.join(name));
    }
    let root = Path::new("/run/ccbench");
    if std::fs::create_dir_all(root.join(&name)).is_ok() {
        return Ok(root.join(name));
    }
    let user = format!("ccbench-{}", rustix::process::geteuid().as_raw());
    Ok(own_root(std::env::temp_dir().join(user))?.join(name))
}

/// Makes the directory of the journals. Returns it, unless another user has made it or can change it.
fn own_root(root: PathBuf) -> Result<PathBuf, JournalError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&root);
    match made.and_then(|()| check_state_root(&root)) {
        Ok(()) => Ok(root),
        Err(source) => Err(JournalError { op: "open", path: root, source }),
    }
}

#[expect(clippy::disallowed_methods, reason = "starts this program again")]
fn start_guard(state_dir: &Path) -> Result<Child, LinkError> {
    let program = std::env::current_exe().map_err(LinkError::system("find this program"))?;
    Command::new(program)
        .arg("link-guard")
        .arg("--state-dir")
        .arg(state_dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(LinkError::system("start the guard of the link"))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn journals_are_not_kept_where_others_can_replace_them() {
        let root = tempfile::tempdir().unwrap();
        let own = || own_root(root.path().to_owned());
        assert_eq!(own().unwrap(), root.path());
        set_permissions(root.path(), Permissions::from_mode(0o777)).unwrap();
        let why = own().unwrap_err().to_string();
        assert!(why.contains("set CCBENCH_STATE"), "{why}");
        let new = root.path().join("new");
        assert_eq!(own_root(new.clone()).unwrap(), new);
        assert_eq!(new.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
}
