//! Decides which control group traffic runs in. Socket buffers are charged to the process's control group, a CPU quota
//! stalls a sender, and a service's address filters see every packet; each changes how TCP behaves. If the agent's
//! group has limits or is a service, traffic runs in a sibling group for the trial. Removing that group also kills
//! leftover processes. Control groups version 2 only.

use std::io;
use std::path::{Path, PathBuf};

use crate::cgroup::{PREFIX, make, mount, own_path};
use crate::clock;
use crate::undo::{JournalError, Step, Undo};

/// A file of every control group except the machine's root.
const NOT_ROOT: &str = "cgroup.type";
const HINT: &str = "run the agent in a control group without limits, or set Delegate=yes and DelegateSubgroup=agent (systemd 254 or \
    later) in its unit and remove ProtectControlGroups=, MemoryMax=, CPUQuota= and IPAddressDeny= from it";

/// Where the traffic of this agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// The group to create for a trial; `None`: traffic stays in the agent's.
    pub group: Option<PathBuf>,
    /// Limits that still distort traffic, each with a fix.
    pub notes: Vec<String>,
}

/// The agent's own group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct AgentCgroup {
    /// Its path, as in `/proc/self/cgroup`.
    path: String,
    /// Whether it is the machine's root group, which has no limits.
    is_root: bool,
    /// Its limits, such as "memory.max = 1073741824".
    limits: Vec<String>,
}

/// Where traffic can run.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice {
    /// Traffic may share the group.
    Stay,
    /// Traffic needs a sibling.
    Sibling,
    /// Traffic needs a sibling, but the parent is outside this cgroup namespace.
    NoParent,
}

fn decide(own: &AgentCgroup) -> Choice {
    // A service's filters cannot be read, so any service may have them.
    let service = own.path.split('/').any(|part| part.ends_with(".service"));
    match (own.is_root, own.path == "/") {
        (true, _) => Choice::Stay,
        _ if !service && own.limits.is_empty() => Choice::Stay,
        (false, true) => Choice::NoParent,
        (false, false) => Choice::Sibling,
    }
}

/// Returns the limit in a control file's text, if it sets one.
fn limit(file: &str, text: &str) -> Option<String> {
    let text = text.trim();
    let none = text.is_empty() || text.split(' ').next() == Some("max");
    (!none).then(|| format!("{file} = {text}"))
}

fn limits(folder: &Path) -> Vec<String> {
    let read = |file: &str| limit(file, &std::fs::read_to_string(folder.join(file)).ok()?);
    ["memory.max", "memory.high", "cpu.max"].into_iter().filter_map(read).collect()
}

/// Decides where this agent's traffic runs. Tries the group out, with its undo recorded first.
pub fn place(undo: &mut Undo) -> Placement {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cgroup, mountinfo) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    let found = own_path(&cgroup).zip(mount(&mountinfo));
    let Some((path, mount)) = found else { return Placement::default() };
    let Some(folder) = mount.folder(path) else { return Placement::default() };
    let is_root = !folder.join(NOT_ROOT).exists();
    let own = AgentCgroup { path: path.to_owned(), is_root, limits: limits(&folder) };
    let name = format!("{PREFIX}{}-{}", std::process::id(), clock::now_ns() / 1_000_000);
    place_with(&own, &folder, &mount.point, &name, |group| try_out(group, undo))
}

fn place_with(
    own: &AgentCgroup,
    folder: &Path,
    top: &Path,
    name: &str,
    try_out: impl FnOnce(&Path) -> Result<(), PlacementError>,
) -> Placement {
    let mut placed = Placement::default();
    let shared = |why: &str| {
        let limits = if own.limits.is_empty() {
            "a service's limits and filters".to_owned()
        } else {
            own.limits.join(", ")
        };
        format!(
            "traffic runs in the agent's own control group {}, where {limits} would distort TCP: {why}; \
             {HINT}",
            own.path
        )
    };
    let parent = folder.parent().filter(|parent| parent.starts_with(top));
    match (decide(own), parent) {
        (Choice::Stay, _) => {}
        (Choice::Sibling, Some(parent)) => match try_out(&parent.join(name)) {
            Ok(()) => placed.group = Some(parent.join(name)),
            Err(error) => placed.notes.push(shared(&error.to_string())),
        },
        (Choice::NoParent | Choice::Sibling, _) => {
            placed.notes.push(shared(
                "the parent of this group is outside of the agent's cgroup namespace",
            ));
        }
    }
    let above = folder.ancestors().skip(1).take_while(|folder| folder.starts_with(top));
    for folder in above {
        let limits = limits(folder);
        if !limits.is_empty() {
            let (folder, limits) = (folder.display(), limits.join(", "));
            placed.notes.push(format!(
                "control group {folder} limits all traffic of this node ({limits}), which distorts TCP; \
                 {HINT}"
            ));
        }
    }
    placed
}

/// Why traffic cannot have its own control group.
#[derive(Debug, thiserror::Error)]
enum PlacementError {
    /// The undo journal could not be written.
    #[error(transparent)]
    Undo(#[from] JournalError),
    /// A system call failed.
    #[error("{op}: {source}")]
    System {
        /// The operation and its object.
        op: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A process could not be moved into the group.
    #[error("{0}")]
    Launch(String),
    /// The group could not be removed.
    #[error("{0}")]
    Left(String),
}

impl PlacementError {
    fn system(op: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let op = op.into();
        move |source| Self::System { op, source }
    }
}

/// Makes the group, moves a process into it, and removes it.
fn try_out(group: &Path, undo: &mut Undo) -> Result<(), PlacementError> {
    undo.push(Step::TrafficGroup { folder: group.to_owned() })?;
    let tried = make(group)
        .map_err(|source| PlacementError::System {
            op: format!("make {}", group.display()),
            source,
        })
        .and_then(|()| join_by_launch(group));
    let left = undo.undo_all(&crate::interfaces::Machine).failed;
    tried.and_then(|()| {
        if left.is_empty() { Ok(()) } else { Err(PlacementError::Left(left.join("; "))) }
    })
}

#[expect(clippy::disallowed_methods, reason = "starts this program again")]
fn join_by_launch(group: &Path) -> Result<(), PlacementError> {
    let program =
        std::env::current_exe().map_err(PlacementError::system("find this program's file"))?;
    let output = std::process::Command::new(&program)
        .arg("launch")
        .arg("--cgroup")
        .arg(group)
        .arg("--")
        .arg(&program)
        .arg("--version")
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(PlacementError::system(format!("run {}", program.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(PlacementError::Launch(stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(path: &str, is_root: bool, limits: &[&str]) -> AgentCgroup {
        let limits = limits.iter().map(|&limit| limit.to_owned()).collect();
        AgentCgroup { path: path.into(), is_root, limits }
    }

    #[test]
    fn limits_and_services_need_a_sibling() {
        assert_eq!(decide(&own("/", true, &[])), Choice::Stay);
        assert_eq!(decide(&own("/user.slice/s.scope", false, &[])), Choice::Stay);
        assert_eq!(decide(&own("/a", false, &["cpu.max = 1 2"])), Choice::Sibling);
        assert_eq!(decide(&own("/system.slice/a.service", false, &[])), Choice::Sibling);
        assert_eq!(decide(&own("/a.service/agent", false, &[])), Choice::Sibling);
        assert_eq!(decide(&own("/", false, &["memory.max = 1"])), Choice::NoParent);
        assert_eq!(decide(&own("/", false, &[])), Choice::Stay);
    }

    #[test]
    fn max_is_no_limit() {
        assert_eq!(limit("memory.max", "max\n"), None);
        assert_eq!(limit("cpu.max", "max 100000\n"), None);
        assert_eq!(limit("cpu.max", "50000 100000\n").unwrap(), "cpu.max = 50000 100000");
        assert_eq!(limit("memory.high", ""), None);
    }

    /// A hierarchy of plain files: top/slice/agent.service.
    fn hierarchy() -> (tempfile::TempDir, PathBuf) {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("slice/agent.service");
        std::fs::create_dir_all(&folder).unwrap();
        (top, folder)
    }

    #[test]
    fn uses_a_sibling_only_if_it_works() {
        let (top, folder) = hierarchy();
        let service = own("/slice/agent.service", false, &[]);
        let placed = place_with(&service, &folder, top.path(), "t", |_| Ok(()));
        assert_eq!(placed.group, Some(top.path().join("slice/t")));
        assert_eq!(placed.notes, Vec::<String>::new());

        let limited = own("/slice/agent.service", false, &["memory.max = 5"]);
        let refuse =
            |_: &Path| Err(PlacementError::Launch("make /x: Permission denied".to_owned()));
        let placed = place_with(&limited, &folder, top.path(), "t", refuse);
        assert_eq!(placed.group, None);
        let note = &placed.notes[0];
        for part in ["/slice/agent.service", "memory.max = 5", "Permission denied", "Delegate=yes"]
        {
            assert!(note.contains(part), "{note}");
        }
    }

    #[test]
    fn reports_limits_of_ancestors() {
        let (top, folder) = hierarchy();
        std::fs::write(top.path().join("slice/cpu.max"), "1000 100000\n").unwrap();
        let free = own("/slice/agent.service", false, &[]);
        let placed = place_with(&free, &folder, top.path(), "t", |_| Ok(()));
        assert!(placed.group.is_some());
        assert!(placed.notes.len() == 1 && placed.notes[0].contains("cpu.max = 1000 100000"));
    }
}
