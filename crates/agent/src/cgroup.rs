//! Where traffic runs: never under the agent's own limits. A socket's buffers are charged to its process's
//! control group, a CPU quota stalls a sender, and a service's address filters look at every packet; all of
//! that changes what TCP does. So where the agent's group has limits or is a service, traffic gets a sibling
//! group for the time of a trial, which also kills whatever is left in it. Control groups version 2 only.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clock;
use crate::undo::{Step, Undo};

/// How the name of a traffic group begins; nothing else is ever removed.
const PREFIX: &str = "ccbench-traffic-";
/// A file of every control group but the machine's own root.
const NOT_ROOT: &str = "cgroup.type";
/// Killed processes leave their group within this.
const EMPTY_LIMIT_NS: u64 = 1_000_000_000;
const WAY_OUT: &str = "run the agent outside of limits, or in its unit set Delegate=yes and \
    DelegateSubgroup=agent (systemd 254 or later), without ProtectControlGroups=, MemoryMax=, CPUQuota= and \
    IPAddressDeny=";

/// Where the traffic of this agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// The group to make for a trial; none: traffic stays in the agent's.
    pub group: Option<PathBuf>,
    /// What distorts traffic all the same, each with the way out.
    pub notes: Vec<String>,
}

/// A place where control groups version 2 are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    /// What of the hierarchy is mounted.
    root: String,
    /// Where.
    point: PathBuf,
}

/// The first mount of control groups version 2 (in hybrid mode not the only hierarchy) in a mountinfo.
fn mount(mountinfo: &str) -> Option<Mount> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let is_v2 = after.split(' ').next() == Some("cgroup2");
        is_v2.then(|| Mount { root: unescaped(root), point: unescaped(point).into() })
    })
}

/// Blanks in a mountinfo are written in octal digits.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

/// This process's group in `/proc/self/cgroup`.
fn own_path(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

impl Mount {
    /// The folder of a group; none if it is not in what is mounted.
    fn folder(&self, path: &str) -> Option<PathBuf> {
        let inside = Path::new(path).strip_prefix(&self.root).ok()?;
        let plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
        plain.then(|| self.point.join(inside))
    }
}

/// What is known of the agent's own group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Own {
    /// As in `/proc/self/cgroup`.
    path: String,
    /// The machine's root group: it has no limits.
    is_root: bool,
    /// "memory.max = 1073741824" ...
    limits: Vec<String>,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice {
    /// Traffic may share the group.
    Stay,
    /// Traffic needs a sibling.
    Sibling,
    /// Traffic needs a sibling, but the parent is outside of this cgroup namespace.
    NoParent,
}

fn decide(own: &Own) -> Choice {
    // A service's filters cannot be seen; that it may have them is enough.
    let service = own.path.split('/').any(|part| part.ends_with(".service"));
    match (own.is_root, own.path == "/") {
        (true, _) => Choice::Stay,
        _ if !service && own.limits.is_empty() => Choice::Stay,
        (false, true) => Choice::NoParent,
        (false, false) => Choice::Sibling,
    }
}

/// A limit in a control file's text, if it is one.
fn limit(file: &str, text: &str) -> Option<String> {
    let text = text.trim();
    let none = text.is_empty() || text.split(' ').next() == Some("max");
    (!none).then(|| format!("{file} = {text}"))
}

fn limits(folder: &Path) -> Vec<String> {
    let read = |file: &str| limit(file, &std::fs::read_to_string(folder.join(file)).ok()?);
    ["memory.max", "memory.high", "cpu.max"].into_iter().filter_map(read).collect()
}

/// The folder of this process's own group, if control groups version 2 are mounted where it can be seen.
pub fn own_folder() -> Option<PathBuf> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cgroup, mountinfo) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    mount(&mountinfo)?.folder(own_path(&cgroup)?)
}

/// Finds out where traffic of this agent is to run; tries it, with its undo recorded first.
pub fn place(undo: &mut Undo) -> Placement {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cgroup, mountinfo) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    let found = own_path(&cgroup).zip(mount(&mountinfo));
    let Some((path, mount)) = found else { return Placement::default() };
    let Some(folder) = mount.folder(path) else { return Placement::default() };
    let is_root = !folder.join(NOT_ROOT).exists();
    let own = Own { path: path.to_owned(), is_root, limits: limits(&folder) };
    let name = format!("{PREFIX}{}-{}", std::process::id(), clock::now_ns() / 1_000_000);
    place_with(&own, &folder, &mount.point, &name, |group| try_out(group, undo))
}

fn place_with(
    own: &Own,
    folder: &Path,
    top: &Path,
    name: &str,
    try_out: impl FnOnce(&Path) -> Result<(), String>,
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
             {WAY_OUT}",
            own.path
        )
    };
    let parent = folder.parent().filter(|parent| parent.starts_with(top));
    match (decide(own), parent) {
        (Choice::Stay, _) => {}
        (Choice::Sibling, Some(parent)) => match try_out(&parent.join(name)) {
            Ok(()) => placed.group = Some(parent.join(name)),
            Err(why) => placed.notes.push(shared(&why)),
        },
        (Choice::NoParent | Choice::Sibling, _) => {
            placed.notes.push(shared("its parent is outside of this cgroup namespace"));
        }
    }
    let above = folder.ancestors().skip(1).take_while(|folder| folder.starts_with(top));
    for folder in above {
        let limits = limits(folder);
        if !limits.is_empty() {
            let (folder, limits) = (folder.display(), limits.join(", "));
            placed.notes.push(format!(
                "control group {folder} limits all traffic of this node ({limits}), which distorts TCP; \
                 {WAY_OUT}"
            ));
        }
    }
    placed
}

/// Makes the group, moves a process into it, and removes it.
fn try_out(group: &Path, undo: &mut Undo) -> Result<(), String> {
    undo.push(Step::TrafficGroup { folder: group.to_owned() }).map_err(|e| e.to_string())?;
    let tried = make(group)
        .map_err(|e| format!("make {}: {e}", group.display()))
        .and_then(|()| join_by_launch(group));
    let left = undo.undo_all(&crate::kernel::Machine).failed;
    tried.and_then(|()| if left.is_empty() { Ok(()) } else { Err(left.join("; ")) })
}

fn join_by_launch(group: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("find this program's file: {e}"))?;
    let output = std::process::Command::new(&program)
        .arg("launch")
        .arg("--cgroup")
        .arg(group)
        .arg("--")
        .arg(&program)
        .arg("--version")
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|e| format!("run {}: {e}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// Makes a traffic group. One that is there already is fine.
///
/// # Errors
/// The kernel's answer.
pub fn make(group: &Path) -> io::Result<()> {
    match std::fs::create_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Moves the calling process into a group.
///
/// # Errors
/// The kernel's answer.
pub fn join(group: &Path) -> io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), "0")
}

/// Kills whatever is left in a traffic group and removes it; one that is gone is fine.
///
/// # Errors
/// It is no traffic group, or it does not become empty within a second.
pub fn remove(group: &Path) -> io::Result<()> {
    let name = group.file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with(PREFIX) {
        let why = format!("its name does not begin with {PREFIX}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let deadline_ns = clock::now_ns() + EMPTY_LIMIT_NS;
    loop {
        match std::fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && clock::now_ns() < deadline_ns =>
            {
                kill_all(group);
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

fn kill_all(group: &Path) {
    if std::fs::write(group.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    // Before Linux 5.14.
    let pids = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in pids.lines().filter_map(|pid| pid.parse::<i32>().ok()).filter(|&pid| pid > 0) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 master:1 - cgroup2 cgroup2 rw\n";

    #[test]
    fn version_two_is_found_wherever_it_is_mounted() {
        let hybrid = mount(HYBRID).unwrap();
        assert_eq!(hybrid.point, Path::new("/sys/fs/cgroup/unified"));
        let plain = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount(plain).unwrap().point, Path::new("/sys/fs/cgroup"));
        let bound = mount("9 1 0:2 /a\\040b /mnt/c\\040d rw - cgroup2 none rw").unwrap();
        assert_eq!((bound.root.as_str(), bound.point), ("/a b", "/mnt/c d".into()));
        assert_eq!(mount("40 31 0:37 / /sys/fs/cgroup rw - cgroup cgroup rw,memory"), None);
        assert_eq!(mount("nonsense - \n\n"), None);
    }

    #[test]
    fn the_own_group_is_the_line_without_controllers() {
        let text = "9:name=systemd:/x\n4:memory:/y\n0::/system.slice/a.service\n";
        assert_eq!(own_path(text), Some("/system.slice/a.service"));
        assert_eq!(own_path("4:memory:/y\n"), None);
    }

    #[test]
    fn a_group_is_a_folder_below_its_mount() {
        let mount = |root: &str| Mount { root: root.into(), point: "/m".into() };
        assert_eq!(mount("/").folder("/a/b"), Some("/m/a/b".into()));
        assert_eq!(mount("/").folder("/"), Some("/m".into()));
        assert_eq!(mount("/a").folder("/a/b"), Some("/m/b".into()));
        assert_eq!(mount("/a").folder("/c"), None);
        assert_eq!(mount("/").folder("/../c"), None, "outside of the cgroup namespace");
    }

    fn own(path: &str, is_root: bool, limits: &[&str]) -> Own {
        let limits = limits.iter().map(|&limit| limit.to_owned()).collect();
        Own { path: path.into(), is_root, limits }
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
    fn a_sibling_is_used_only_if_it_works() {
        let (top, folder) = hierarchy();
        let service = own("/slice/agent.service", false, &[]);
        let placed = place_with(&service, &folder, top.path(), "t", |_| Ok(()));
        assert_eq!(placed.group, Some(top.path().join("slice/t")));
        assert_eq!(placed.notes, Vec::<String>::new());

        let limited = own("/slice/agent.service", false, &["memory.max = 5"]);
        let refuse = |_: &Path| Err("make /x: Permission denied".to_owned());
        let placed = place_with(&limited, &folder, top.path(), "t", refuse);
        assert_eq!(placed.group, None);
        let note = &placed.notes[0];
        for part in ["/slice/agent.service", "memory.max = 5", "Permission denied", "Delegate=yes"]
        {
            assert!(note.contains(part), "{note}");
        }
    }

    #[test]
    fn limits_further_up_are_told() {
        let (top, folder) = hierarchy();
        std::fs::write(top.path().join("slice/cpu.max"), "1000 100000\n").unwrap();
        let free = own("/slice/agent.service", false, &[]);
        let placed = place_with(&free, &folder, top.path(), "t", |_| Ok(()));
        assert!(placed.group.is_some());
        assert!(placed.notes.len() == 1 && placed.notes[0].contains("cpu.max = 1000 100000"));
    }

    #[test]
    fn nothing_but_a_traffic_group_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        make(&other).unwrap();
        assert!(remove(&other).is_err() && other.exists());
        let ours = dir.path().join("ccbench-traffic-1-2");
        make(&ours).unwrap();
        make(&ours).unwrap();
        remove(&ours).unwrap();
        remove(&ours).unwrap();
        assert!(!ours.exists());
    }
}
