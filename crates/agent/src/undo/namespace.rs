//! The network namespace that a step belongs to. The journal names it, and this module finds and enters it.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use ccbench_shaper::bpf::netns_cookie;
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use serde::{Deserialize, Serialize};

use crate::mountinfo::mounts;

/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";
/// The PID namespace in which all processes of the machine are visible (`PROC_PID_INIT_INO`).
const ALL_PROCESSES: &str = "pid:[4026531836]";

/// A network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Namespace {
    /// The inode of its file. Once the namespace is gone, the kernel may reuse the number.
    inode: u64,
    /// `SO_NETNS_COOKIE`, which the kernel does not reuse within a boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cookie: Option<u64>,
    /// The file named by `--netns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "the network namespace {path} (inode {})", self.inode),
            None => write!(f, "the network namespace with inode {}", self.inode),
        }
    }
}

/// Why the steps of a namespace are not undone.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotEntered {
    /// The namespace is gone, so there is nothing left to undo.
    #[error("{0} no longer exists")]
    Gone(Namespace),
    /// The namespace is not found, but this process does not see everything.
    #[error(
        "it was changed in {netns}, which was not found but may still exist ({why}): run `ccbench-agent undo` for this state directory \
         as root, outside of services and containers; if that does not find it and you know that it is gone, add --discard-unreachable"
    )]
    Hidden {
        /// The namespace.
        netns: Namespace,
        /// What this process cannot see.
        why: String,
    },
    /// The operator has named another namespace.
    #[error(
        "it was changed in {netns}, and --netns names another one: run `ccbench-agent undo` without --netns"
    )]
    Other {
        /// The namespace.
        netns: Namespace,
    },
    /// The kernel refused to enter the namespace.
    #[error(
        "it was changed in {netns}, which cannot be entered through {path}: {source}; run `ccbench-agent undo` for this state directory \
         as root, or, after you have restored the namespace by hand, with --discard-unreachable"
    )]
    Refused {
        /// The namespace.
        netns: Namespace,
        /// A file of the namespace.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl NotEntered {
    /// Describes a namespace that an operator may give up. `None` if it is gone, if `--netns` forbids entering it, or if
    /// a later attempt or root may enter it.
    pub(super) fn unreachable(&self) -> Option<String> {
        match self {
            Self::Hidden { netns, why } => Some(format!("{netns} is not found ({why})")),
            Self::Refused { netns, path, source } => {
                let is_root = || rustix::process::geteuid().is_root();
                is_lasting(source, is_root).then(|| {
                    format!("{netns} cannot be entered through {}: {source}", path.display())
                })
            }
            Self::Gone(_) | Self::Other { .. } => None,
        }
    }
}

/// Whether open(2) and setns(2) would fail like this again: neither a limit nor missing privileges caused it.
fn is_lasting(error: &io::Error, is_root: impl FnOnce() -> bool) -> bool {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::EINVAL) => true,
        Some(Errno::EPERM) => is_root(),
        _ => false,
    }
}

/// The result of a search for a namespace.
#[derive(Debug, PartialEq, Eq)]
enum Search {
    /// A file of the namespace.
    Found(PathBuf),
    /// The namespace does not exist.
    Absent,
    /// The namespace is not visible; the text says what this process cannot see.
    Hidden(String),
}

impl Namespace {
    /// Returns the namespace of the calling thread, with its file `path` if given; `None` without /proc.
    fn current(path: Option<&Path>) -> Option<Self> {
        let inode = std::fs::metadata(OWN).ok()?.ino();
        let path = path.and_then(|path| Some(std::path::absolute(path).ok()?.to_str()?.to_owned()));
        Some(Self { inode, cookie: netns_cookie().ok(), path })
    }

    /// Whether both are the same namespace.
    fn is_same(&self, other: &Self) -> bool {
        let cookies = self.cookie.zip(other.cookie);
        self.inode == other.inode && cookies.is_none_or(|(one, other)| one == other)
    }

    /// Looks at its path, at the mounts of this process and at all processes. Cannot find a namespace that only open
    /// descriptors, or mounts in other mount namespaces, hold.
    fn search(&self, proc: &Path) -> Search {
        let is_it =
            |path: &String| std::fs::metadata(path).is_ok_and(|file| file.ino() == self.inode);
        if let Some(path) = self.path.as_ref().filter(|path| is_it(path)) {
            return Search::Found(path.into());
        }
        let unreadable =
            |path: &Path, error: io::Error| format!("read {}: {error}", path.display());
        let mounts = proc.join("self/mountinfo");
        match std::fs::read(&mounts) {
            Ok(text) => {
                if let Some(path) = mount_of(&String::from_utf8_lossy(&text), self.inode) {
                    return Search::Found(path);
                }
            }
            Err(error) => return Search::Hidden(unreadable(&mounts, error)),
        }
        let entries = match std::fs::read_dir(proc) {
            Ok(entries) => entries,
            Err(error) => return Search::Hidden(unreadable(proc, error)),
        };
        let sees_all = std::fs::read_link(proc.join("self/ns/pid"));
        let sees_all = sees_all.is_ok_and(|link| link == Path::new(ALL_PROCESSES));
        let mut hidden =
            (!sees_all).then(|| "processes of other PID namespaces are not visible".to_owned());
        let link_to_it = PathBuf::from(format!("net:[{}]", self.inode));
        for entry in entries.flatten() {
            if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            let file = entry.path().join("ns/net");
            match std::fs::read_link(&file) {
                Ok(link) if link == link_to_it => return Search::Found(file),
                Ok(_) => {}
                Err(error) if has_ended(&error) => {}
                Err(error) => hidden = Some(unreadable(&file, error)),
            }
        }
        hidden.map_or(Search::Absent, Search::Hidden)
    }
}

/// Whether the error means that the process has ended: it is then in no namespace.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

/// Returns where the file of a network namespace is mounted, from a mountinfo.
fn mount_of(mountinfo: &str, inode: u64) -> Option<PathBuf> {
    let root = format!("net:[{inode}]");
    mounts(mountinfo).find(|mount| mount.root == root).map(|mount| mount.point)
}

/// The network namespaces of this machine, as seen by a process in one of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Namespaces {
    /// The namespace of this process; `None` without /proc, and for a stack in memory.
    own: Option<Namespace>,
    /// Whether to keep the steps of other namespaces.
    only_own: bool,
    /// The mount point of /proc.
    proc: PathBuf,
}

impl Namespaces {
    /// Returns the namespaces that the calling thread sees. `path` is the file of its own, if the command line names it.
    pub(super) fn of_thread(path: Option<&Path>) -> Self {
        Self { own: Namespace::current(path), only_own: false, proc: PathBuf::from("/proc") }
    }

    /// Like [`Self::of_thread`], but never enters another namespace.
    pub(super) fn of_thread_only(path: &Path) -> Self {
        Self { only_own: true, ..Self::of_thread(Some(path)) }
    }

    /// Returns the namespace of this process.
    pub(super) fn own(&self) -> Option<&Namespace> {
        self.own.as_ref()
    }

    /// Whether a step of this namespace is undone in this process's own. `None` means that the step belongs to no
    /// namespace, or is from a version that did not record it.
    pub(super) fn is_own(&self, netns: Option<&Namespace>) -> bool {
        netns.is_none_or(|netns| self.own.as_ref().is_some_and(|own| own.is_same(netns)))
    }

    /// Runs `work` in a namespace: directly if it is this process's own, otherwise on a thread that enters it.
    ///
    /// # Errors
    /// The namespace is gone, not found, or must not be entered.
    pub(super) fn run_in<T: Send>(
        &self,
        netns: Option<&Namespace>,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, NotEntered> {
        let Some(netns) = netns.filter(|netns| !self.is_own(Some(*netns))) else {
            return Ok(work());
        };
        // Existing namespaces have different inodes, so this process's own has reused the number.
        if self.own.as_ref().is_some_and(|own| own.inode == netns.inode) {
            return Err(NotEntered::Gone(netns.clone()));
        }
        match netns.search(&self.proc) {
            Search::Found(_) if self.only_own => Err(NotEntered::Other { netns: netns.clone() }),
            Search::Found(path) => enter(&path, netns, work),
            Search::Absent => Err(NotEntered::Gone(netns.clone())),
            Search::Hidden(why) => Err(NotEntered::Hidden { netns: netns.clone(), why }),
        }
    }
}

/// Runs `work` on a new thread, because setns(2) moves the calling thread and this process must not move.
fn enter<T: Send>(
    path: &Path,
    netns: &Namespace,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NotEntered> {
    let refused = |source: io::Error| NotEntered::Refused {
        netns: netns.clone(),
        path: path.to_owned(),
        source,
    };
    thread::scope(|scope| {
        let enter = || -> Result<T, NotEntered> {
            let file = File::open(path).map_err(refused)?;
            setns(&file, CloneFlags::CLONE_NEWNET).map_err(|errno| refused(errno.into()))?;
            match Namespace::current(None) {
                Some(entered) if entered.is_same(netns) => Ok(work()),
                // A later namespace has reused the number.
                Some(entered) if entered.inode == netns.inode => {
                    Err(NotEntered::Gone(netns.clone()))
                }
                _ => Err(refused(io::Error::other("it is another one now"))),
            }
        };
        let done = thread::Builder::new().spawn_scoped(scope, enter).map_err(refused)?;
        done.join().unwrap_or_else(|_| Err(refused(io::Error::other("its thread panicked"))))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// These inodes belong to no namespace.
    const OWN: u64 = 1;
    const OTHER: u64 = 2;

    /// Models a process in a namespace with this inode and cookie that sees `proc`.
    pub(in super::super) fn fake(inode: u64, cookie: u64, proc: &Path) -> Namespaces {
        let own =
            Namespace { inode, cookie: Some(cookie), path: Some("/run/netns/exp".to_owned()) };
        Namespaces { own: Some(own), only_own: false, proc: proc.to_owned() }
    }

    /// Returns a /proc of processes in namespaces with these inodes.
    pub(in super::super) fn proc_of(inodes: &[u64]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        for (pid, inode) in (1..).zip(inodes) {
            let dir = proc.path().join(format!("{pid}/ns"));
            std::fs::create_dir_all(&dir).unwrap();
            symlink(format!("net:[{inode}]"), dir.join("net")).unwrap();
        }
        std::fs::create_dir_all(proc.path().join("self/ns")).unwrap();
        symlink(ALL_PROCESSES, proc.path().join("self/ns/pid")).unwrap();
        std::fs::write(proc.path().join("self/mountinfo"), "").unwrap();
        proc
    }

    fn other(path: Option<&str>) -> Namespace {
        Namespace { inode: OTHER, cookie: Some(20), path: path.map(str::to_owned) }
    }

    #[test]
    fn a_namespace_is_known_by_inode_and_cookie() {
        let one = other(None);
        assert!(one.is_same(&other(Some("/x"))));
        assert!(!one.is_same(&Namespace { cookie: Some(21), ..one.clone() }));
        assert!(!one.is_same(&Namespace { inode: OWN, ..one.clone() }));
        assert!(one.is_same(&Namespace { cookie: None, ..one.clone() }), "before Linux 5.14");
        let own = Namespace::current(Some(Path::new("/run/netns/exp"))).unwrap();
        assert!(own.is_same(&Namespace::current(None).unwrap()) && own.inode > 0);
        assert_eq!(
            own.to_string(),
            format!("the network namespace /run/netns/exp (inode {})", own.inode)
        );
    }

    #[test]
    fn a_namespace_is_found_by_its_mounts_and_processes() {
        let proc = proc_of(&[OWN, OWN]);
        assert_eq!(other(None).search(proc.path()), Search::Absent);
        let mountinfo = "25 1 0:4 net:[2] /run/netns/a\\040b rw shared:9 - nsfs nsfs rw\n";
        std::fs::write(proc.path().join("self/mountinfo"), mountinfo).unwrap();
        assert_eq!(other(None).search(proc.path()), Search::Found("/run/netns/a b".into()));
        let proc = proc_of(&[OWN, OTHER]);
        assert_eq!(other(None).search(proc.path()), Search::Found(proc.path().join("2/ns/net")));
    }

    #[test]
    fn the_named_file_is_used_while_it_is_of_the_namespace() {
        let proc = proc_of(&[OWN]);
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(other(Some(path)).search(proc.path()), Search::Absent);
        let inode = file.as_file().metadata().unwrap().ino();
        let named = Namespace { inode, ..other(Some(path)) };
        assert_eq!(named.search(proc.path()), Search::Found(path.into()));
    }

    #[test]
    fn hidden_namespace_is_kept() {
        let proc = proc_of(&[OWN]);
        let why = |proc: &Path| match other(None).search(proc) {
            Search::Hidden(why) => why,
            found => panic!("{found:?}"),
        };
        // A process that may not be inspected: a file here causes an error other than "not found", even for root.
        std::fs::create_dir_all(proc.path().join("7/ns")).unwrap();
        std::fs::write(proc.path().join("7/ns/net"), "").unwrap();
        assert!(why(proc.path()).contains("7/ns/net"));
        let proc = proc_of(&[OWN]);
        std::fs::remove_file(proc.path().join("self/ns/pid")).unwrap();
        symlink("pid:[5]", proc.path().join("self/ns/pid")).unwrap();
        assert!(why(proc.path()).contains("PID namespaces"));
        std::fs::remove_file(proc.path().join("self/mountinfo")).unwrap();
        assert!(why(proc.path()).contains("self/mountinfo"));
    }

    #[test]
    fn inaccessible_namespace_is_kept() {
        let given_up = |errno: Errno| is_lasting(&errno.into(), || true);
        assert!([Errno::ENOENT, Errno::EINVAL, Errno::EPERM].into_iter().all(given_up));
        assert!(![Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM].into_iter().any(given_up));
        assert!(!is_lasting(&Errno::EPERM.into(), || false), "root may enter it");
        assert!(!is_lasting(&io::Error::other("it is another one now"), || true));
        let source = Errno::EMFILE.into();
        let refused = NotEntered::Refused { netns: other(None), path: "/x".into(), source };
        assert_eq!(refused.unreachable(), None);
    }

    #[test]
    fn only_the_own_namespace_is_worked_in_unless_another_one_is_entered() {
        let proc = proc_of(&[OWN, OTHER]);
        let here = fake(OWN, 10, proc.path());
        assert!(matches!(here.run_in(None, || 7), Ok(7)));
        assert!(matches!(here.run_in(here.own(), || 7), Ok(7)));
        // The link leads nowhere, so that it cannot be opened.
        let refused = here.run_in(Some(&other(None)), || 7).unwrap_err();
        assert!(matches!(refused, NotEntered::Refused { .. }), "{refused:?}");
        let of_thread_only = Namespaces { only_own: true, ..here.clone() };
        let refused = of_thread_only.run_in(Some(&other(None)), || 7).unwrap_err();
        assert!(refused.to_string().contains("without --netns"), "{refused:?}");
        // A later namespace has reused its number.
        let later = fake(OTHER, 21, proc.path());
        let gone = later.run_in(Some(&other(None)), || 7).unwrap_err();
        assert!(matches!(gone, NotEntered::Gone(_)), "{gone:?}");
    }
}
